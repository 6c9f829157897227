"""The paper's claims about single scores, and about which OOD data are hard."""

from __future__ import annotations

from collections.abc import Iterator

from _results_families import BASELINE, BEST, SECOND, SOFTMAX
from _results_pairs import by_network, differences
from _results_study import MEAN, WRONG, Study, named, span, table
from _results_verdicts import FAILS, NO, OPEN, PARTLY, UNDECIDED, YES, Check, Claim, above, below

NEAR = (
    "The paper's near classes were chosen for their likeness to the ID classes; Near-ImageNet here is the other half "
    "of Tiny-ImageNet's classes. And at 64 px, leaves or noise may have so little detail left that a network is sure "
    "of them."
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
        found = [(model, study.interval(model, score, "", WRONG, "auroc")) for model in study.models]
        checks += [Check(m, named(score), below(i, USELESS)) for m, i in found if i is not None]
        printed = [study.paper(model, score, WRONG, "auroc") for model in study.printed_models]
        rows.append(
            [
                named(score),
                ", ".join(f"{value:.1f}" for value in printed),
                *("–" if interval is None else interval.plain for _, interval in found),
            ]
        )
    return Claim(
        "‖z‖₁ and Residual know nothing of ID✗",
        "SIRC assumes that S2 cannot tell wrong from right predictions. The table has the paper's %AUROC of ID✗|ID✓.",
        f"%AUROC of ID✗|ID✓ of S2 alone; below {USELESS:.0f} bears it out. Below 50, S2 ranks wrong predictions above "
        "right ones, and SIRC pays for it.",
        checks,
        table(["%AUROC", "paper", *study.models], rows),
        {
            PARTLY: "An S2 that knows something of ID✗ does SIRC no harm.",
            FAILS: "Networks that err this often may have smaller or stranger features where they err; for SIRC that "
            "is no harm.",
        },
    )


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
        cells = [study.interval(m, score, baseline, n, "auroc") for m in study.models for n in (MEAN,)]
        rows.append([named(score), *("–" if cell is None else str(cell) for cell in cells)])
    return Claim(
        "Which S2 is better depends on the network",
        f"SIRC with Residual less SIRC with ‖z‖₁, mean over the OOD sets, in points of AUROC: {words}.",
        "The same difference; the sign of the paper's network bears it out.",
        checks,
        table(["", *study.models], rows),
        {
            PARTLY: "The best S2 depends on the OOD sets as much as on the network, and those are others here.",
            FAILS: "The best S2 depends on the OOD sets as much as on the network, and those are others here.",
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
        "AUROC of OOD|ID✓, mean over the sets, less that of MSP; below 0 bears it out.",
        [Check(m, named(s), below(i), i) for m, s, _, i in differences(study, pairs, MEAN, "auroc")],
        by_network(study, pairs, MEAN, "auroc"),
        {
            PARTLY: "Far sets such as Noise and SVHN leave the subspace of the training features; there are more of "
            "them here than in the paper.",
            FAILS: "Far sets such as Noise and SVHN leave the subspace of the training features; there are more of "
            "them here than in the paper, and MSP is weaker on networks that err more.",
        },
    )


def entropy_trades(study: Study) -> Claim:
    """Tables 1 and 2: −H is better than MSP at OOD|ID✓ and a little worse at ID✗|ID✓."""
    pairs = [("entropy", BASELINE)]
    checks = [Check(m, "ID✗", below(i), i) for m, _, _, i in differences(study, pairs, WRONG, "auroc")]
    checks += [Check(m, "OOD", above(i), i) for m, _, _, i in differences(study, pairs, MEAN, "auroc")]
    rows = [
        [name, study.printed_range("entropy", BASELINE, negative, "auroc"), *map(str, found)]
        for name, negative in (("ID✗\\|ID✓", WRONG), ("OOD\\|ID✓, mean", MEAN))
        if all(found := [study.interval(m, "entropy", BASELINE, negative, "auroc") for m in study.models])
    ]
    counts = [sum(c.what == what and c.outcome == YES for c in checks) for what in ("ID✗", "OOD")]
    return Claim(
        "−H trades a little ID✗|ID✓ for OOD|ID✓",
        "In its tables the entropy is a little worse than MSP at ID✗|ID✓ and better at OOD|ID✓.",
        "AUROC of −H less that of MSP; below 0 for ID✗ and above 0 for OOD bear it out: the loss at ID✗ does on "
        f"{counts[0]} of {len(study.models)} networks, the gain at OOD on {counts[1]}.",
        checks,
        table(["−H − MSP", "paper", *study.models], rows),
    )


def doctor_is_between(study: Study) -> Claim:
    """'DOCTOR in general performs somewhere in between MSP and −H.'"""
    checks, rows = [], []
    for what, negative in (("ID✗", WRONG), ("OOD", MEAN)):
        for metric in ("auroc", "fpr@95"):
            for model in study.models:
                to_msp = study.interval(model, "doctor", "msp", negative, metric)
                to_entropy = study.interval(model, "doctor", "entropy", negative, metric)
                if to_msp is None or to_entropy is None:
                    continue
                pair = {above(to_msp), above(to_entropy)}
                outcome = YES if pair == {YES, NO} else OPEN if OPEN in pair else NO
                checks.append(Check(model, f"{metric} of {what}", outcome))
                if metric == "auroc":
                    rows.append([f"{model}, {what}", str(to_msp), str(to_entropy)])
    return Claim(
        "DOCTOR lies between MSP and −H",
        "DOCTOR in general does something in between, alone and in SIRC.",
        "AUROC and FPR@95 of ID✗|ID✓ and OOD|ID✓ (mean) less those of MSP and of −H: opposite sure signs bear it out, "
        "the same sure sign speaks against it. The table has the AUROC.",
        checks,
        table(["DOCTOR", "− MSP", "− (−H)"], rows),
        {UNDECIDED: "Most differences to one or the other are too small to tell."},
    )


def near_is_hardest(study: Study) -> Claim:
    """'Near-ImageNet-200 … is especially challenging to detect'; Close sets are nearer than Far ones."""
    near = [name for name in study.sets if name.lower().startswith("near")]
    shown = ("msp", "entropy", BEST)
    checks, rows = [], []
    for model in study.models:
        for score in shown:
            by_set = {name: study.each(model, score, name, "auroc") for name in study.sets}
            groups = {group: study.each(model, score, group, "auroc") for group in study.groups}
            if not all(by_set.values()):
                continue
            if "Close" in groups and "Far" in groups:
                closer = [c < f for c, f in zip(groups["Close"], groups["Far"], strict=True)]
                outcome = YES if all(closer) else OPEN if any(closer) else NO
                checks.append(Check(model, f"{named(score)} (Close below Far)", outcome))
            for name in near:
                lowest = [all(own <= by_set[other][i] for other in study.sets) for i, own in enumerate(by_set[name])]
                outcome = YES if all(lowest) else OPEN if any(lowest) else NO
                checks.append(Check(model, f"{named(score)} ({name} the lowest)", outcome))
            hardest = min(study.sets, key=lambda name: study.mean(model, score, name, "auroc"))
            means = [f"{study.mean(model, score, group, 'auroc'):.1f}" for group in study.groups]
            lowest_mean = f"{hardest} {study.mean(model, score, hardest, 'auroc'):.1f}"
            rows.append([f"{named(score)}, {model}", *means, lowest_mean])
    old = {n: study.paper("ResNet-50", BASELINE, n, "auroc") for n in study.printed_sets}
    parts = {word: [c.outcome for c in checks if c.what.endswith(f"{word})")] for word in ("Close below Far", "lowest")}
    told = "; ".join(
        f"{name}: {outcomes.count(YES)} for, {outcomes.count(NO)} against, {outcomes.count(OPEN)} open"
        for name, outcomes in zip(("Close below Far", "the near set the lowest"), parts.values(), strict=True)
    )
    return Claim(
        "OOD images near the ID classes are the hardest",
        f"Near-ImageNet-200 is especially challenging ({old['Near-IN-200']:.1f}% AUROC for MSP on ResNet-50; the "
        f"adversarial ImageNet-O {old['ImageNet-O']:.1f}%), and Close OOD data are harder than Far.",
        "In every seed: Close below Far, and the near set below all others, bear it out; in no seed speaks against it. "
        f"{told}.",
        checks,
        table(["%AUROC of OOD\\|ID✓", *study.groups, "hardest set"], rows),
        {
            PARTLY: NEAR,
            FAILS: NEAR,
        },
    )
