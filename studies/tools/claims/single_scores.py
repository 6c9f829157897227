"""The paper's claims about single scores, and about which OOD data are hard."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sirc.evaluation import MEAN, WRONG
from studies.tools.claims.pairs import by_network, differences
from studies.tools.claims.verdicts import FAILS, NO, OPEN, PARTLY, UNDECIDED, YES, Check, Claim, above, below
from studies.tools.families import BASELINE, BEST, SECOND, SOFTMAX
from studies.tools.study import Interval, Study, named, span, table

NEAR = (
    "The paper's near classes were chosen for their likeness to the ID classes; sets here were not. And leaves or "
    "noise may have so little detail that a network is sure of them."
)
USELESS = 60.0  # %AUROC: less than this does not tell two groups apart


def score_claims(study: Study) -> Iterator[Claim]:
    """What the paper says of S2 in section 4, and of single scores in its tables and its appendix."""
    yield second_scores_know_nothing_of_wrong(study)
    yield better_second(study)
    yield distances_are_poor(study)
    yield entropy_trades(study)
    yield doctor_is_between(study)
    yield near_is_hardest(study)


def second_scores_know_nothing_of_wrong(study: Study) -> Claim:
    """'We do not expect them to be useful for identifying misclassifications.'"""
    checks, rows = [], []
    for score in SECOND:
        found = [(model, study.interval(model, score, "", WRONG, "auroc")) for model in study.shown]
        checks += [Check(m, named(score), _nothing(i)) for m, i in found if i is not None and m in study.models]
        printed = [study.paper(model, score, WRONG, "auroc") for model in study.printed_models]
        cells = (interval and interval.plain for _, interval in found)
        rows.append([named(score), ", ".join(f"{value:.1f}" for value in printed), *cells])
    return Claim(
        "‖z‖₁ and Residual know nothing of ID✗",
        "SIRC assumes that S2 cannot tell wrong from right predictions. The table has the paper's %AUROC of ID✗|ID✓.",
        f"%AUROC of ID✗|ID✓ of S2 alone; between {100 - USELESS:.0f} and {USELESS:.0f} bears it out. Below 50, S2 "
        "ranks wrong predictions above right ones, and SIRC pays for it.",
        checks,
        table(["%AUROC", "paper", *study.shown], rows),
        {
            PARTLY: "An S2 above 50 does SIRC no harm; one below costs ID✗|ID✓.",
            FAILS: "Features may be smaller or stranger where a network errs. An S2 above 50 does SIRC no harm; one "
            "below costs ID✗|ID✓.",
        },
    )


def _nothing(interval: Interval) -> str:
    """A claim that an AUROC tells two groups apart neither way."""
    sides = below(interval, USELESS), above(interval, 100 - USELESS)
    return NO if NO in sides else OPEN if OPEN in sides else YES


def better_second(study: Study) -> Claim:
    """Table 1: Residual is the better S2 for ResNet-50 and DenseNet-121, ‖z‖₁ for MobileNetV2."""
    checks = []
    pairs = [(f"sirc({first}, residual)", f"sirc({first}, l1)") for first in SOFTMAX]
    printed = {m: [study.printed_difference(m, s, b, MEAN, "auroc") for s, b in pairs] for m in study.printed_models}
    for model, score, _, interval in differences(study, pairs, MEAN, "auroc"):
        if model in printed:
            up = sum(printed[model]) > 0
            checks.append(Check(model, named(score), above(interval) if up else below(interval), interval))
    words = ", ".join(f"{span(values)} for {model}" for model, values in printed.items())
    rows = []
    for score, baseline in pairs:
        cells = [study.interval(m, score, baseline, MEAN, "auroc") for m in study.shown]
        rows.append([named(score), *cells])
    return Claim(
        "Which S2 is better depends on the network",
        f"SIRC with Residual minus SIRC with ‖z‖₁, mean over the OOD sets, in points of AUROC: {words}.",
        "The same difference; the sign of the paper's network bears it out.",
        checks,
        table(["", *study.shown], rows),
        {
            PARTLY: "The best S2 depends on the OOD sets as much as on the network, and the sets differ here.",
            FAILS: "The best S2 depends on the OOD sets as much as on the network, and the sets differ here.",
        },
    )


def distances_are_poor(study: Study) -> Claim:
    """'Residual and Mahalanobis perform much better only for ResNetV2-101 … poorly otherwise.'"""
    scores = ("residual", "mahalanobis")
    pairs = [(score, BASELINE) for score in scores]
    bit = study.printed_elsewhere[study.printed_elsewhere["model"] == "ResNetV2-101"]
    at = bit[(bit["negative"] == MEAN) & (bit["metric"] == "auroc")].set_index("score")["mean"]
    words = " and ".join(f"{at[score]:.1f}% ({named(score)})" for score in scores)
    return Claim(
        "Residual and Mahalanobis alone are poor on networks with batch normalisation",
        f"They do well on BiT's ResNetV2-101 only ({words} AUROC, mean over its OOD sets, MSP {at[BASELINE]:.1f}%), "
        "and fall behind MSP on the networks trained on ImageNet-200.",
        "AUROC of OOD|ID✓, mean over the sets, minus that of MSP; below 0 bears it out.",
        [Check(m, named(s), below(i), i) for m, s, _, i in differences(study, pairs, MEAN, "auroc")],
        by_network(study, pairs, MEAN, "auroc"),
        {
            PARTLY: "Far sets may leave the subspace of the training features, and they differ from the paper's.",
            FAILS: "Far sets may leave the subspace of the training features, and they differ from the paper's.",
        },
    )


def entropy_trades(study: Study) -> Claim:
    """Tables 1 and 2: −H is better than MSP at OOD|ID✓ and a little worse at ID✗|ID✓."""
    pairs = [("entropy", BASELINE)]
    checks = [Check(m, "ID✗", below(i), i) for m, _, _, i in differences(study, pairs, WRONG, "auroc")]
    checks += [Check(m, "OOD", above(i), i) for m, _, _, i in differences(study, pairs, MEAN, "auroc")]
    rows = [
        [name, study.printed_range("entropy", BASELINE, negative, "auroc"), *found]
        for name, negative in (("ID✗\\|ID✓", WRONG), ("OOD\\|ID✓, mean", MEAN))
        if all(found := [study.interval(m, "entropy", BASELINE, negative, "auroc") for m in study.shown])
    ]
    counts = [sum(c.what == what and c.outcome == YES for c in checks) for what in ("ID✗", "OOD")]
    return Claim(
        "−H trades a little ID✗|ID✓ for OOD|ID✓",
        "In its tables the entropy is a little worse than MSP at ID✗|ID✓ and better at OOD|ID✓.",
        "AUROC of −H minus that of MSP; below 0 for ID✗ and above 0 for OOD bear it out: the loss at ID✗ does on "
        f"{counts[0]} of {len(study.models)} networks, the gain at OOD on {counts[1]}.",
        checks,
        table(["−H − MSP", "paper", *study.shown], rows),
    )


def doctor_is_between(study: Study) -> Claim:
    """'DOCTOR in general performs somewhere in between MSP and −H.'"""
    checks, rows = [], []
    for what, negative in (("ID✗", WRONG), ("OOD", MEAN)):
        for metric in ("auroc", "fpr@95"):
            for model in dict.fromkeys([*study.models, *study.shown]):
                to_msp = study.interval(model, "doctor", "msp", negative, metric)
                to_entropy = study.interval(model, "doctor", "entropy", negative, metric)
                if to_msp is None or to_entropy is None:
                    continue
                pair = {above(to_msp), above(to_entropy)}
                outcome = YES if pair == {YES, NO} else OPEN if OPEN in pair else NO
                if model in study.models:
                    checks.append(Check(model, f"{metric} of {what}", outcome))
                if metric == "auroc":
                    rows.append([f"{model}, {what}", to_msp, to_entropy])
    return Claim(
        "DOCTOR lies between MSP and −H",
        "DOCTOR generally lies in between, alone and in SIRC.",
        "AUROC and FPR@95 of ID✗|ID✓ and OOD|ID✓ (mean) minus those of MSP and of −H: opposite sure signs bear it out, "
        "the same sure sign speaks against it. The table has the AUROC.",
        checks,
        table(["DOCTOR", "− MSP", "− (−H)"], rows),
        {UNDECIDED: "Most differences to MSP or −H are too small to tell."},
    )


def near_is_hardest(study: Study) -> Claim:
    """'Near-ImageNet-200 … is especially challenging to detect'; in its tables Close sets are harder than Far ones."""
    near = [name for name in study.sets if name.lower().startswith("near")]
    checks, rows = [], []
    for model in dict.fromkeys([*study.models, *study.shown]):
        for score in ("msp", "entropy", BEST):
            by_set = {name: study.each(model, score, name, "auroc") for name in study.sets}
            if not all(by_set.values()):
                continue
            groups = {group: _mean_of([by_set[name] for name in members]) for group, members in study.groups.items()}
            pairs = {}
            if "Close" in groups and "Far" in groups:
                pairs["Close below Far"] = study.groups["Close"], study.groups["Far"]
            for name in near:
                pairs[f"{name} below the others"] = [name], [other for other in study.sets if other not in near]
            for what, (low, high) in pairs.items() if model in study.models else ():
                checks.append(Check(model, f"{named(score)} ({what})", _below(study, model, score, low, high)))
            hardest = min(study.sets, key=lambda name: study.mean(model, score, name, "auroc"))
            shown = [*groups.values(), *(by_set[name] for name in near), by_set[hardest]]
            cells = [f"{sum(values) / len(values):.1f}" for values in shown]
            rows.append([f"{named(score)}, {model}", *cells[:-1], f"{hardest} {cells[-1]}"])
    old = {n: study.paper("ResNet-50", BASELINE, n, "auroc") for n in study.printed_sets}
    mean = sum(value for name, value in old.items() if name != "Near-IN-200") / (len(old) - 1)
    return Claim(
        "OOD images near the ID classes are hard to tell",
        f"Near-ImageNet-200 is especially challenging (MSP on ResNet-50 has {old['Near-IN-200']:.1f}% AUROC, and "
        f"{mean:.1f}% in the mean of the other sets; only the adversarial ImageNet-O is harder, "
        f"{old['ImageNet-O']:.1f}%). In its tables Close OOD data are harder than Far.",
        "In every seed: the mean of the Close sets below that of the Far sets, and the near set below the mean of all "
        "others, bear it out; in no seed speaks against it."
        + (
            ""
            if study.seeds > 1
            else " With one seed: intervals that do not overlap, the mean over sets of their ends."
        ),
        checks,
        table(["%AUROC of OOD\\|ID✓", *study.groups, *near, "hardest set"], rows),
        {PARTLY: NEAR, FAILS: NEAR},
    )


def _below(study: Study, model: str, score: str, low: Sequence[str], high: Sequence[str]) -> str:
    """A claim that the mean AUROC over some OOD sets is below that over others."""
    if study.seeds > 1:
        ours, theirs = (_mean_of([study.each(model, score, name, "auroc") for name in sets]) for sets in (low, high))
        lower = [a < b for a, b in zip(ours, theirs, strict=True)]
        return YES if all(lower) else OPEN if any(lower) else NO
    # The reach of a mean is at most the mean of the reaches, and that of a difference at most their sum.
    found = [[study.interval(model, score, "", name, "auroc") for name in sets] for sets in (low, high)]
    ours, theirs = (_mean_of([[i.low, i.high] for i in some if i is not None]) for some in found)
    return YES if ours[1] < theirs[0] else NO if ours[0] > theirs[1] else OPEN


def _mean_of(columns: Sequence[Sequence[float]]) -> list[float]:
    """The mean over sets, seed by seed."""
    return [sum(values) / len(values) for values in zip(*columns, strict=True)]
