"""The paper's claims about detectors and SIRC: ID✗|ID✓ and OOD|ID✓ one by one, and what a failing S2 does."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from sirc.evaluation import MEAN, WRONG
from sirc.experiment.claims import DETECTORS
from sirc.scores import parse
from studies.tools.claims.pairs import by_network, differences, pairs_of_sirc, printed_signs, signs
from studies.tools.claims.verdicts import FAILS, NO, OPEN, PARTLY, UNDECIDED, YES, Check, Claim, above, below
from studies.tools.families import BASELINE, BEST, SECOND
from studies.tools.study import Study, named, signed, span, table

TOLERANCE = 0.2  # points of AUROC: the paper's "negligible"
SMALL = 1.0  # points of FPR@95: what the paper's example loses at most
CHANCE = 50.0  # %AUROC
SELDOM_SURE = (
    "If a network is seldom sure, S1 is far from its maximum and varies less, so the factor by which S2 stretches that "
    "distance may move a row past more others. `sirc(…, budget=…)` limits the loss."
)


def separation_claims(study: Study) -> Iterator[Claim]:
    """Sections 3 and 5.1 of the paper."""
    yield detectors_lose_wrong(study)
    yield detectors_are_inconsistent(study)
    yield sirc_keeps_wrong(study)
    yield sirc_raises_ood(study)
    yield sirc_matches_every_set(study)
    yield sirc_is_robust(study)
    yield vim_is_not_robust(study)
    yield vim_depends_on_the_set(study)


def detectors_lose_wrong(study: Study) -> Claim:
    """Table 1: 'from ∼8 worse %AUROC than MSP to ∼50% AUROC'."""
    pairs = [(score, BASELINE) for score in DETECTORS]
    lost = [study.printed_difference(m, s, b, WRONG, "auroc") for m in study.printed_models for s, b in pairs]
    least = [study.mean(m, s, WRONG, "auroc") for m in study.models for s in DETECTORS]
    known = [value for value in least if not math.isnan(value)]
    return Claim(
        "OOD detectors lose ID✗|ID✓ against MSP",
        f"Detectors separate wrong from right predictions worse than MSP: by {span(lost)} points of "
        "AUROC in its table, down to chance.",
        "AUROC of ID✗|ID✓ minus that of MSP, in points; below 0 bears it out. The detectors' own AUROC is "
        f"{min(known, default=math.nan):.1f} to {max(known, default=math.nan):.1f}%.",
        [Check(m, named(s), below(i), i) for m, s, _, i in differences(study, pairs, WRONG, "auroc")],
        by_network(study, pairs, WRONG, "auroc"),
        {
            PARTLY: "Most detectors lose; some networks leave traces of their errors outside the softmax, too.",
            FAILS: "These networks leave traces of their errors outside the softmax.",
        },
    )


def detectors_are_inconsistent(study: Study) -> Claim:
    """'They cannot consistently outperform the baseline when separating OOD|ID✓.'"""
    checks, rows = [], []
    for score in DETECTORS:
        cells = []
        for model in study.models:
            better, worse = signs(study, model, score, BASELINE)
            mean = study.interval(model, score, BASELINE, MEAN, "auroc")
            if mean is None:
                continue
            outcome = YES if worse else NO if better == len(study.sets) else OPEN
            checks.append(Check(model, named(score), outcome))
            cells.append(f"{better} / {worse} ({signed(mean.value)})")
        if cells:
            printed = [printed_signs(study, model, score, BASELINE) for model in study.printed_models]
            rows.append([named(score), ", ".join(f"{b} / {w}" for b, w in printed), *cells])
    return Claim(
        "No OOD detector beats MSP on every OOD set",
        "Detectors cannot consistently outperform MSP at OOD|ID✓ either. The table counts the OOD sets of the paper "
        "on which each was better / worse, network by network.",
        "OOD sets on which a detector's AUROC of OOD|ID✓ is surely better / surely worse than MSP's, and the mean "
        "difference over all sets in points; one set that is surely worse bears it out, all surely better speaks "
        "against it.",
        checks,
        table(["better / worse", "paper", *study.models], rows),
        {
            PARTLY: "A detector without a sure loss on these sets may meet one on others.",
            FAILS: "Feature-based detectors may be strong on these OOD sets.",
        },
    )


def sirc_keeps_wrong(study: Study) -> Claim:
    """'Only a small (<0.2 %AUROC) reduction in the ability to distinguish ID✗|ID✓.'"""
    pairs = pairs_of_sirc()
    lost = [study.printed_difference(m, s, b, WRONG, "auroc") for m in study.printed_models for s, b in pairs]
    return Claim(
        "SIRC keeps the ID✗|ID✓ of its S1",
        f"SIRC costs less than {TOLERANCE} points of AUROC; in its table the change is {span(lost, 2)}.",
        f"AUROC of ID✗|ID✓ minus that of S1; above −{TOLERANCE} bears it out.",
        [Check(m, named(s), above(i, -TOLERANCE), i) for m, s, _, i in differences(study, pairs, WRONG, "auroc")],
        by_network(study, pairs, WRONG, "auroc"),
        {
            PARTLY: "The loss depends on S2: an S2 that is low where the network errs helps, one that varies for other "
            f"reasons costs. {SELDOM_SURE}",
            FAILS: SELDOM_SURE,
            UNDECIDED: f"The tolerance of {TOLERANCE} points is smaller than most intervals. "
            f"{_mean_loss(study, pairs)} {SELDOM_SURE}",
        },
    )


def _mean_loss(study: Study, pairs: Sequence[tuple[str, str]]) -> str:
    """What SIRC does to ID✗|ID✓ in the mean, where intervals tell little."""
    means = [interval.value for *_, interval in differences(study, pairs, WRONG, "auroc")]
    more = sum(mean < -TOLERANCE for mean in means)
    return f"The mean change is {span(means, 2)}, a loss of more than {TOLERANCE} in {more} of {len(means)} cases."


def sirc_raises_ood(study: Study) -> Claim:
    """'SIRC, compared to S1, is able to improve OOD|ID✓.'"""
    pairs = pairs_of_sirc()
    gained = [study.printed_difference(m, s, b, MEAN, "auroc") for m in study.printed_models for s, b in pairs]
    return Claim(
        "SIRC raises the OOD|ID✓ of its S1",
        f"Over the mean of its OOD sets SIRC changes the AUROC by {span(gained)} points.",
        "AUROC of OOD|ID✓, mean over the sets, minus that of S1; above 0 bears it out.",
        [Check(m, named(s), above(i), i) for m, s, _, i in differences(study, pairs, MEAN, "auroc")],
        by_network(study, pairs, MEAN, "auroc"),
        {
            PARTLY: "Where it does not, S2 alone does not separate these OOD sets from ID data.",
            FAILS: "S2 alone does not separate these OOD sets from ID data.",
        },
    )


def sirc_matches_every_set(study: Study) -> Claim:
    """'SIRC is able to consistently match or improve over S1 for OOD|ID✓.'"""
    checks, rows, lost = [], [], []
    for score, first in pairs_of_sirc():
        cells = []
        for model in study.models:
            found = [(name, study.interval(model, score, first, name, "auroc")) for name in study.sets]
            known = [(name, interval) for name, interval in found if interval is not None]
            checks += [Check(model, f"{named(score)} for {n}", above(i, -TOLERANCE), i) for n, i in known]
            second = str(parse(score).args[1])
            lost += [study.mean(model, second, n, "auroc") for n, i in known if above(i, -TOLERANCE) == NO]
            better, worse = signs(study, model, score, first)
            cells.append(f"{better} / {worse}" if known else "–")
        printed = [printed_signs(study, model, score, first) for model in study.printed_models]
        rows.append([named(score), ", ".join(f"{b} / {w}" for b, w in printed), *cells])
    limit = f"All sure losses are where S2 alone has at most {max(lost):.1f}% AUROC on the set." if lost else ""
    return Claim(
        "SIRC matches or improves its S1 on every OOD set",
        "SIRC consistently matches or improves S1, set by set: better on most sets, close to S1 on the others. The "
        "table counts the paper's sets on which it was better / worse.",
        f"AUROC of OOD|ID✓ on each set minus that of S1; above −{TOLERANCE} bears it out. The table counts sets that "
        "are surely better / surely worse.",
        checks,
        table(["better / worse", "paper", *study.models], rows),
        {
            PARTLY: f"{limit} The next claim says how large losses get where S2 is below chance.",
            FAILS: limit,
        },
    )


def failing_sets(study: Study, second: str) -> list[tuple[str, str, float]]:
    """Networks and OOD sets on which an S2 alone is worse than chance."""
    found = [(model, name, study.mean(model, second, name, "auroc")) for model in study.models for name in study.sets]
    return [(model, name, auroc) for model, name, auroc in found if auroc < CHANCE]


def sirc_is_robust(study: Study) -> Claim:
    """'SIRC is robust to weak S2': on Colonoscopy SIRC(−H, Res.) loses < 1% FPR@95 though Residual is below chance."""
    example = study.printed_difference("ResNet-50", BEST, "entropy", "Colonoscopy", "fpr@95")
    alone = study.paper("ResNet-50", "residual", "Colonoscopy", "auroc")
    checks, rows = [], []
    for second in SECOND:
        for model, name, auroc in failing_sets(study, second):
            cells = []
            for first in ("msp", "entropy"):
                score = f"sirc({first}, {second})"
                interval = study.interval(model, score, first, name, "fpr@95")
                if interval is not None:
                    checks.append(Check(model, f"{named(score)} for {name}", below(interval, SMALL), interval))
                cells.append(interval)
            vim = study.interval(model, "vim", "energy", name, "fpr@95") if second == "residual" else None
            rows.append([f"{named(second)}, {model}, {name}", f"{auroc:.1f}", *cells, vim])
    return Claim(
        "SIRC is robust to an S2 that fails",
        f"Where S2 alone is worse than chance, SIRC stays close to S1: with Residual at {alone:.1f}% AUROC on "
        f"Colonoscopy (ResNet-50), SIRC(−H, Res.) changes FPR@95 by {signed(example)} points.",
        f"All cases in which S2 alone is below {CHANCE:.0f}% AUROC: FPR@95 of OOD|ID✓ minus that of S1; below "
        f"+{SMALL:.0f} point bears it out.",
        checks,
        table(["S2, network, OOD set", "S2 alone", "SIRC(MSP, S2) − MSP", "SIRC(−H, S2) − (−H)", "ViM − Energy"], rows),
        {
            PARTLY: "The sigmoid bounds what a failing S2 can do to rows above its centre; ID rows below the centre "
            "still pay, and FPR@95 is set by the lowest of them.",
            FAILS: "ID rows below the centre of the sigmoid pay for S2, and FPR@95 is set by the lowest of them.",
        },
    )


def vim_is_not_robust(study: Study) -> Claim:
    """'ViM … is much more sensitive to when the latter stumbles': ∼30 worse %FPR@95 than Energy on Colonoscopy."""
    example = study.printed_difference("ResNet-50", "vim", "energy", "Colonoscopy", "fpr@95")
    checks = []
    for model, name, _ in failing_sets(study, "residual"):
        vim = study.interval(model, "vim", "energy", name, "fpr@95")
        if vim is not None:
            checks.append(Check(model, f"ViM for {name}", above(vim, SMALL), vim))
    return Claim(
        "ViM suffers where Residual fails",
        f"ViM adds Residual to Energy linearly; on Colonoscopy (ResNet-50) its FPR@95 is {example:.1f} points above "
        "that of Energy.",
        f"All cases in which Residual alone is below {CHANCE:.0f}% AUROC: FPR@95 of ViM minus that of Energy; above "
        f"+{SMALL:.0f} point bears it out. The last column of the table above has them.",
        checks,
        "",
        {
            PARTLY: "Where ViM does not suffer, Residual is close to chance and has little to spoil.",
            FAILS: "Residual is close to chance in these cases and has little to spoil.",
        },
    )


def vim_depends_on_the_set(study: Study) -> Claim:
    """'OOD detection methods are inconsistent over different data': ViM >50 better on Noise, >20 worse on Near."""
    at = {name: study.printed_difference("ResNet-50", "vim", BASELINE, name, "fpr@95") for name in study.printed_sets}
    best, worst = min(at, key=lambda name: at[name]), max(at, key=lambda name: at[name])
    checks = []
    for model in study.models:
        for score in DETECTORS:
            better, worse = signs(study, model, score, BASELINE, "fpr@95")
            outcome = YES if better and worse else NO if len(study.sets) in (better, worse) else OPEN
            if study.interval(model, score, BASELINE, MEAN, "fpr@95") is not None:
                checks.append(Check(model, named(score), outcome))
    rows = []
    for name in study.sets:
        cells = [study.interval(m, s, BASELINE, name, "fpr@95") for s in ("vim", BEST) for m in study.models]
        rows.append([name, *(cell and signed(cell.value) for cell in cells)])
    told = "; ".join(f"{named(score)} {_changes(study, score)}" for score in ("vim", BEST))
    return Claim(
        "What a detector gains depends on the OOD set",
        f"ViM changes the FPR@95 of MSP by {signed(at[best])} points on {best} and by {signed(at[worst])} on {worst} "
        "(ResNet-50); SIRC changes it less, and more consistently for the better.",
        "FPR@95 of OOD|ID✓ minus that of MSP on each set. A detector that is surely better on one set and surely worse "
        "on another bears it out; the same sure sign on all sets speaks against it. The table has the means for ViM "
        f"and SIRC(−H, Res.): {told}.",
        checks,
        table(["ΔFPR@95", *(f"{s}: {m}" for s in ("ViM", "SIRC") for m in study.models)], rows),
        {
            PARTLY: "A detector that is worse than MSP on every set is consistent, too, but of no use.",
            FAILS: "On these sets each detector errs to one side.",
        },
    )


def _changes(study: Study, score: str) -> str:
    """In how many cases a score lowers the FPR@95 of MSP, and the range of its changes."""
    found = [study.interval(model, score, BASELINE, name, "fpr@95") for model in study.models for name in study.sets]
    known = [interval.value for interval in found if interval is not None]
    return f"lowers it in {sum(value < 0 for value in known)} of {len(known)} cases ({span(known)})"
