"""What the intervals of RESULTS.md are made of, what could not be told, and where the study falls short."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from _results_draws import t_quantile
from _results_families import BASELINE, FIRST, WITH_MSP, families
from _results_measure import compare
from _results_scores import ties
from _results_seeds import runs_of, scatter
from _results_study import EVERY, WRONG, Study, listed
from _results_verdicts import Claim

from sirc.scores.spec import parse

OF_IMAGES = (
    "Intervals are at 95%: the mean difference over seeds ± √((1.96·a)² + (t·b)²), where a is its standard deviation "
    "in a paired bootstrap that resamples the images, the same for all networks and scores, and b the standard "
    "deviation between seeds over √n, with Student's t for n − 1 degrees of freedom. More seeds would lower b, but "
    "hardly a."
)


def intervals(study: Study) -> str:
    """How intervals were made."""
    if study.shared is None:
        return OF_IMAGES
    apart = [model for model in study.models if not any(model in group for group in study.shared)]
    words = []
    for group in study.shared:
        freedom = sum(study.runs[model] - 1 for model in group)
        words.append(
            f"{listed(group)} share one s, pooled within each, with {freedom} degrees of freedom "
            f"(t = {t_quantile(freedom):.1f})"
        )
    for model in apart:
        freedom = study.runs[model] - 1
        words.append(f"{model} has its own, with {freedom} (t = {t_quantile(freedom):.1f})")
    parts = [
        "Intervals are at 95% and come from the training runs alone: the mean difference over the n seeds of a network "
        f"± t·s/√n, with the standard deviation s of the difference between seeds. {'; '.join(words)}."
    ]
    if study.shared:
        few = min((model for group in study.shared for model in group), key=lambda model: study.runs[model])
        parts.append(
            f"{study.runs[few]} seeds of {few} alone would need t = {t_quantile(study.runs[few] - 1):.1f} and tell "
            "next to nothing."
        )
    if study.shared and apart:
        spread = scatter(study.results)
        largest = max(spread, key=lambda model: spread[model])
        ratios = [f"{spread[largest] / spread[m]:.0f} times that of {m}" for m in study.models if m != largest]
        parts.append(
            f"A spread shared by all would not be honest: the variance between seeds of {largest} is "
            f"{' and '.join(ratios)} (median over scores, differences to MSP in AUROC). Who shares was chosen after a "
            "look at these variances."
        )
    if len(study.models) > 1:
        parts.append(
            f"For {EVERY} the means of the {len(study.models)} kinds of network are averaged, and their variances "
            "s²/n, too, with Satterthwaite's degrees of freedom: it speaks of these kinds and of new seeds, not of "
            "other kinds."
        )
    parts.append(
        "The noise of the test images is **not** in these intervals: all networks saw the same images, and other "
        "images could move all of them alike. So a difference that is sure here is sure for these images."
    )
    return " ".join(parts)


def otherwise(study: Study, claims: Sequence[Claim], judged: Callable[[Study], Sequence[Claim]]) -> str:
    """Which verdicts hang on networks that share their spread: those that would be others if none did."""
    if not study.shared or study.seeds < 2:
        return ""
    runs, samples = runs_of(study.results, study.sizes)
    verdicts = {claim.title: claim.verdict for claim in judged(study.compared(compare(runs, samples, shared=[])))}
    changed = [
        f"{number} ({verdicts[claim.title]})"
        for number, claim in enumerate(claims, start=1)
        if verdicts[claim.title] != claim.verdict
    ]
    if not changed:
        return "If no network shared its s, every verdict would be the same."
    return (
        f"If no network shared its s, {len(claims) - len(changed)} of the {len(claims)} verdicts would be the same; "
        f"the others would be {listed(changed, len(changed))}."
    )


def left_out(claims: Sequence[Claim]) -> str:
    """The claims that results.csv does not have the figures for."""
    if not claims:
        return ""
    titles = [f"“{claim.title}”" for claim in claims]
    return (
        "Left out, since they take figures at other α and β than 0.5, or of OOD against all ID data, which the "
        f"stored results of these networks do not have: {listed(titles, len(titles))}. The page shows other α and β, "
        "without intervals."
    )


def short(study: Study) -> str:
    """Where the study falls short."""
    sizes = dict(zip(study.sizes["set"], study.sizes["images"], strict=True))
    smallest = min(study.sets, key=lambda name: sizes[name])
    errors = [study.mean(model, study.scores[0], WRONG, "error") for model in study.models]
    old = study.printed[study.printed["model"].isin(study.models)]["id_error"].astype(float)
    err = f" against {old.min():.1f} to {old.max():.1f}% in the paper" if len(old) else ""
    lines = [
        f"The networks err on {min(errors):.1f} to {max(errors):.1f}% of the test images{err}: small images, few "
        "epochs. A network that errs more has more ID✗ to find and a weaker softmax to find it with.",
        _of_seeds(study),
        f"The ID test set has {sizes['test']:,} images and the smallest OOD set, {smallest}, {sizes[smallest]:,}"
        f"{'; what that adds to the uncertainty is not in the intervals' if study.shared is not None else ''}.",
        *_uneven(study, sizes),
        *_unmeasured(study),
        "Close and Far are our grouping, as they are the authors' in the paper. The OOD sets were not searched by "
        "hand for images of the ID classes.",
        f"Nothing is corrected for the number of comparisons ({len(study.comparisons):,} in all), so that some of the "
        "sure ones are sure by chance.",
        "AURR and AURC depend on α and β; the tables of every score have them at 0.5 only.",
    ]
    return "\n".join(f"- {line}" for line in lines)


def _uneven(study: Study, sizes: dict[str, int]) -> list[str]:
    """Where OOD data are taken together, image by image, one large set may be much of them."""
    shares = []
    for what, members in {**{f"the {group}": own for group, own in study.groups.items()}, "all": study.sets}.items():
        largest = max(members, key=lambda name: sizes[name])
        shares.append(f"{largest} is {100 * sizes[largest] / sum(sizes[name] for name in members):.0f}% of {what}")
    return [f"Where OOD data are taken together, it is image by image: {listed(shares)} OOD data."]


def _unmeasured(study: Study) -> list[str]:
    """The best S1 with the best S2, where that was not among the combinations."""
    found = families(study.scores)
    if not found[FIRST] or not found[WITH_MSP]:
        return []
    first = parse(ties(study, found[FIRST])[0]).args[0]
    second = parse(ties(study, found[WITH_MSP])[0]).args[1]
    best = f"sirc({first}, {second})"
    return [] if best in study.scores else [f"The best S1 and the best S2 in one, `{best}`, was not measured."]


def _of_seeds(study: Study) -> str:
    if study.shared is not None:
        return (
            f"There are {sum(study.runs.values())} networks, {study.seed_words}. So few seeds are a bad guess of how "
            "networks differ, and Student's t makes up for it with wide intervals."
        )
    if study.seeds == 1:
        return "One seed each says nothing of how networks differ."
    networks = study.comparisons[(study.comparisons["baseline"] == BASELINE) & (study.comparisons["model"] != EVERY)]
    share = (networks["networks"] > networks["images"]).mean()
    return (
        f"{study.seeds} seeds say little of how networks differ: in {100 * share:.0f}% of the comparisons with MSP "
        f"the seeds bring more uncertainty than the images, and Student's t, {t_quantile(study.seeds - 1):.1f} for "
        "one network, makes intervals wide."
    )
