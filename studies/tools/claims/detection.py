"""The paper's claims about plain OOD detection against SCOD, about AURC, and about how training runs differ."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from sirc.evaluation import MEAN, POOLED, WRONG
from studies.tools.claims.pairs import differences
from studies.tools.claims.verdicts import FAILS, NO, OPEN, PARTLY, UNDECIDED, YES, Check, Claim, above, below, opposite
from studies.tools.draws import ID_MEAN
from studies.tools.families import BASELINE, BEST, PAPER
from studies.tools.study import Study, named, table

DETECTING = ("energy", "max_logit", "gradnorm", "vim")
FEW = 2  # sets that "especially" may mean


def detection_claims(study: Study) -> Iterator[Claim]:
    """Section 5.3 of the paper, and what its appendix says of metrics and runs."""
    yield detection_costs_wrong(study)
    yield sirc_detects_too(study)
    yield areas_agree(study)
    yield runs_differ(study)


def detection_costs_wrong(study: Study) -> Claim:
    """'Able to improve over the baseline for OOD|ID, but this comes mostly at the cost of inferior ID✗|ID✓.'"""
    checks, rows = [], []
    for score in (*DETECTING, "sirc(msp, residual)", BEST):
        for model in dict.fromkeys([*study.models, *study.shown]):
            found = [study.interval(model, score, BASELINE, n, "fpr@95") for n in (ID_MEAN, MEAN, WRONG)]
            if any(interval is None for interval in found):
                continue
            detecting, ood, wrong = (interval for interval in found if interval is not None)
            rows.append([f"{named(score)}, {model}", detecting, ood, wrong])
            if score in DETECTING and model in study.models:
                paid = above(wrong) == YES and detecting.value < ood.value
                outcome = NO if below(detecting) == NO else YES if below(detecting) == YES and paid else OPEN
                checks.append(Check(model, named(score), outcome, detecting))
    return Claim(
        "Detectors gain at OOD|ID by giving up ID✗|ID✓",
        "Energy and similar scores improve plain OOD detection mainly by accepting ID✗, not by rejecting OOD (shown as "
        "a figure, without numbers).",
        "FPR@95 minus that of MSP, mean over the OOD sets, with all ID data and with ID✓ as positives. A detector "
        "bears it out if it is surely better at OOD|ID, surely worse at ID✗|ID✓, and gains less at OOD|ID✓ than at "
        "OOD|ID; one that is surely worse at OOD|ID speaks against it.",
        checks,
        table(["ΔFPR@95", "OOD\\|ID", "OOD\\|ID✓", "ID✗\\|ID✓"], rows),
        {
            PARTLY: "If a detector does not even improve OOD|ID, there is nothing to pay for.",
            FAILS: "If a detector does not even improve OOD|ID, there is nothing to pay for: these networks' "
            "logits are worse at it than their softmax.",
            UNDECIDED: "FPR@95 is a noisy measure, and most gains are within its noise.",
        },
    )


def sirc_detects_too(study: Study) -> Claim:
    """'Allowing it to have better OOD detection and SCOD performance compared to the baseline.'"""
    scores = ("sirc(msp, residual)", BEST)
    pairs = [(score, BASELINE) for score in scores]
    checks = [Check(m, named(s), below(i), i) for m, s, _, i in differences(study, pairs, ID_MEAN, "fpr@95")]
    checks += [
        Check(m, f"{named(s)}, AURR", below(i), i, fine=True)
        for m, s, _, i in differences(study, pairs, POOLED, "aurr")
    ]
    return Claim(
        "SIRC is better than MSP at plain OOD detection too",
        "SIRC has better OOD detection and better SCOD than MSP (a figure, without numbers).",
        "FPR@95 of OOD|ID, and AURR on all OOD data at α = β = 0.5, minus those of MSP, for SIRC with Residual; below "
        "0 bears it out. The table is that of the previous claim.",
        checks,
    )


def areas_agree(study: Study) -> Claim:
    """AURC: 'not notably different to AURR' in terms of relative performance to the baseline."""
    checks, rows = [], []
    for model in study.models:
        for score in (s for s in PAPER if s != BASELINE):
            pair = [study.interval(model, score, BASELINE, POOLED, metric) for metric in ("aurr", "aurc")]
            if any(interval is None for interval in pair):
                continue
            recall, coverage = (above(interval) for interval in pair if interval is not None)
            outcome = OPEN if OPEN in (recall, coverage) else NO if opposite(recall, coverage) else YES
            checks.append(Check(model, named(score), outcome, pair[1], fine=True))
            if outcome == NO:
                rows.append(
                    [f"{named(score)}, {model}", *(interval.finer for interval in pair if interval is not None)]
                )
    return Claim(
        "AURC says what AURR says",
        "Relative to MSP the two behave alike; differences in AURC are harder to see.",
        "Both, on all OOD data at α = β = 0.5, minus those of MSP: the same sure sign bears it out, opposite sure "
        "signs speak against it.",
        checks,
        table(["×10²", "ΔAURR", "ΔAURC"], rows),
        {
            PARTLY: "AURC also counts how ID✗ and OOD are ordered among themselves, which matters more where networks "
            "err more.",
            FAILS: "AURC also counts how ID✗ and OOD are ordered among themselves, which matters more where networks "
            "err more.",
        },
    )


def runs_differ(study: Study) -> Claim:
    """'There is non-negligible variance between training runs … Some datasets (e.g. Noise, Colorectal) …'"""
    noise = next((name for name in study.sets if name.lower() == "noise"), None)
    checks, rows = [], []
    spread = {
        model: {
            name: median(study.two_std(model, s, name, "auroc") for s in PAPER if s in study.scores)
            for name in study.sets
        }
        for model in study.models
        if study.seeds > 1
    }
    for model, by_set in spread.items():
        if noise is not None:
            more = sum(value > by_set[noise] for value in by_set.values())
            checks.append(Check(model, f"{noise} with ±{by_set[noise]:.1f}", YES if more < FEW else NO))
    for name in study.sets:
        rows.append([name, *(f"±{by_set[name]:.1f}" for by_set in spread.values())])
    printed = study.printed[(study.printed["metric"] == "auroc") & study.printed["two_std"].notna()]
    old = printed[printed["negative"] != WRONG].groupby("negative")["two_std"].median().sort_values(ascending=False)
    words = ", ".join(f"±{value:.1f} on {name}" for name, value in list(old.items())[:FEW])
    return Claim(
        "Training runs differ, and most on Noise",
        "Two standard deviations of the AUROC over training runs are largest on Noise and Colorectal; the medians "
        f"over scores and networks begin with {words}, and are ±{old.min():.1f} at the least.",
        f"The same, median over the paper's scores; Noise among the first {FEW} of the sets bears it out, otherwise it "
        "speaks against it.",
        checks,
        table(["±2 std of %AUROC", *spread], rows) if spread else "",
        {
            PARTLY: f"Two standard deviations of {study.seeds} runs are a rough estimate.",
            FAILS: f"Two standard deviations of {study.seeds} runs are a rough estimate.",
        },
        by_network=True,
    )
