"""The limits of a study: how its intervals are made, and where it falls short."""

from __future__ import annotations

from sirc.evaluation import WRONG
from sirc.scores import parse
from studies.tools.draws import t_quantile
from studies.tools.families import BASELINE, FIRST, WITH_MSP, families
from studies.tools.measure import EVERY
from studies.tools.scores import ties
from studies.tools.study import Study, listed

INTERVALS = (
    "Intervals are at 95%: the mean difference over seeds ± √((1.96·a)² + (t·b)²), where a is its standard deviation "
    "in a paired bootstrap that resamples the images, the same for all networks and scores, and b the standard "
    "deviation between seeds over √n, with Student's t for n − 1 degrees of freedom. More seeds would lower b, but "
    "hardly a."
)
INTERVALS_OF_IMAGES = (
    "Intervals are at 95%: the difference ± 1.96·a, where a is its standard deviation in a paired bootstrap that "
    "resamples the images, the same for all networks and scores. It is the sampling error of these images: one run of "
    "a network does not say how much another training would change."
)


def short(study: Study) -> str:
    """Where the study falls short."""
    sizes = dict(zip(study.sizes["set"], study.sizes["images"], strict=True))
    smallest = min(study.sets, key=lambda name: sizes[name])
    errors = [study.mean(model, study.scores[0], WRONG, "error") for model in study.models]
    old = study.printed[study.printed["model"].isin(study.models)]["id_error"].astype(float)
    err = f" against {old.min():.1f} to {old.max():.1f}% in the paper" if len(old) else ""
    lines = [
        f"The networks err on {min(errors):.1f} to {max(errors):.1f}% of the test images{err}. A "
        "network that errs more has more ID✗ to find and a weaker softmax to find it with.",
        _of_seeds(study),
        f"The ID test set has {sizes['test']:,} images and the smallest OOD set, {smallest}, {sizes[smallest]:,}.",
        *_uneven(study, sizes),
        *_unmeasured(study),
        "The grouping into Close and Far is ours; the paper's is its authors'. The OOD sets were not searched by hand "
        "for images of the ID classes.",
        f"Nothing is corrected for the number of comparisons ({len(study.comparisons):,} in all), so some of the sure "
        "ones are sure by chance.",
        "AURR and AURC depend on α and β; the tables of every score have them at 0.5 only.",
    ]
    return "\n".join(f"- {line}" for line in lines)


def _uneven(study: Study, sizes: dict[str, int]) -> list[str]:
    """Where OOD data are taken together, image by image, one large set may be much of them."""
    shares = []
    for what, members in {**{f"the {group}": own for group, own in study.groups.items()}, "all": study.sets}.items():
        largest = max(members, key=lambda name: sizes[name])
        shares.append(f"{largest} is {100 * sizes[largest] / sum(sizes[name] for name in members):.0f}% of {what}")
    return [f"Where OOD data are pooled, every image counts alike: {listed(shares)} OOD data."]


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
    if study.seeds == 1:
        return "One seed each says nothing of how networks differ."
    networks = study.comparisons[(study.comparisons["baseline"] == BASELINE) & (study.comparisons["model"] != EVERY)]
    share = (networks["networks"] > networks["images"]).mean()
    return (
        f"{study.seeds} seeds say little of how networks differ: in {100 * share:.0f}% of the comparisons with MSP "
        f"the seeds bring more uncertainty than the images, and Student's t, {t_quantile(study.seeds - 1):.1f} for "
        "one network, makes intervals wide."
    )
