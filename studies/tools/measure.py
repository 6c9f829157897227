"""Tables of a study: comparisons.csv, results.csv from ranks, sets.csv and summary.csv."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pandas as pd

from sirc.evaluation import MEAN, POOLED, WRONG
from sirc.experiment import RunResults
from studies.tools.draws import ID_MEAN, MIDDLE, Key, Samples, by_model, key, pool
from studies.tools.families import (
    BASELINE,
    FAMILIES,
    PAPER,
    SECOND,
    SETTINGS,
    SIRC,
    SWEPT,
    families,
    first_of,
    plain_of,
)
from studies.tools.ranks import Ranks

COLUMNS = [
    *("model", "score", "baseline", "negative", "metric", "alpha", "beta", "seeds"),
    *("value", "difference", "images", "networks", "low", "high"),
]
EVERY = "all networks"
FIGURE = ["model", "score", "negative", "metric", "alpha", "beta"]  # what names a figure over seeds
_SEPARATION = ("auroc", "fpr@95")
_MIXTURE = ("aurr", "aurc", "risk@95")
# score, baseline ("" for the value itself), negative, metric, at
Asked = tuple[str, str, str, str, tuple[float, float]]


def asked(run: Ranks) -> list[Asked]:
    """What to compare, each once: not every score with every other, but what a reader may want to know."""
    return list(dict.fromkeys(one for one in _asked(run) if one[0] in run.scores and one[1] in ("", *run.scores)))


def _asked(run: Ranks) -> Iterator[Asked]:
    groups, others = list(run.groups), [score for score in run.scores if score != BASELINE]

    def of(scores: Iterable[str], baseline: str, negatives: Iterable[str], metrics: Iterable[str]) -> Iterator[Asked]:
        for score in scores:
            for negative in negatives:
                yield from ((score, baseline, negative, metric, MIDDLE) for metric in metrics)

    compared = [score for score in PAPER if score != BASELINE]
    yield from of(others, BASELINE, (WRONG, MEAN), (*_SEPARATION, *_MIXTURE))
    yield from of(compared, BASELINE, (POOLED, *groups), (*_SEPARATION, *_MIXTURE))
    for score in others:
        if (first := first_of(score)) is not None:
            yield from of([score], first, (WRONG, MEAN), _SEPARATION)
        if (plain := plain_of(score)) is not None:
            yield from of([score], plain, (WRONG, MEAN), ("auroc",))
            yield from of([score], plain, (MEAN,), ("aurr", "aurc"))
    yield from of(compared, BASELINE, run.sets, _SEPARATION)
    for score in SIRC:
        yield from of([score], str(first_of(score)), run.sets, _SEPARATION)
    yield from of(["vim"], "energy", run.sets, _SEPARATION)
    yield from of(["doctor"], "entropy", (WRONG, MEAN), _SEPARATION)
    yield from of(compared, BASELINE, (ID_MEAN,), _SEPARATION)
    for score in SIRC:
        if score.endswith(f"{SECOND[1]})"):
            yield from of([score], score.replace(SECOND[1], SECOND[0]), (MEAN, *groups), ("auroc",))
    yield from of(PAPER, "", (WRONG, MEAN, *groups, *run.sets), _SEPARATION)
    for score in SWEPT:
        for negative in (POOLED, *groups):
            for at in SETTINGS:
                yield from ((score, BASELINE, negative, metric, at) for metric in ("aurr", "risk@95"))


def best_of(runs: Sequence[Ranks], samples: Sequence[Samples], only: str | None = None) -> dict[str, str]:
    """The score of each family with the lowest AURR at α = β = 0.5: mean over OOD sets, then seeds, then networks."""
    models = [places for model, places in by_model(runs).items() if only in (None, model)]

    def value(score: str) -> float:
        return float(np.mean([np.mean([samples[i][key(score, MEAN, "aurr")][0] for i in places]) for places in models]))

    found = {family: members for family, members in families(runs[0].scores).items() if members}
    best = {family: min(members, key=value) for family, members in found.items()}
    return {**best, EVERY: min(runs[0].scores, key=value)}


def compare(runs: Sequence[Ranks], samples: Sequence[Samples]) -> pd.DataFrame:
    """Every comparison, for each network over its seeds and for the mean of the networks."""
    models = by_model(runs)
    wanted = {one: [*models, EVERY] for one in asked(runs[0])}
    members = {**families(runs[0].scores), EVERY: runs[0].scores}
    for only in (None, *models):
        best = best_of(runs, samples, only)
        for family in [*FAMILIES, EVERY]:
            for score in members[family]:
                if score != best.get(family, score):
                    for metric in ("aurr", "aurc", "auroc") if only is None else ("aurr",):
                        of = wanted.setdefault((score, best[family], MEAN, metric, MIDDLE), [])
                        of += [name for name in ([only] if only else [*models, EVERY]) if name not in of]
    rows = []
    for (score, baseline, negative, metric, at), of in wanted.items():
        own = key(score, negative, metric, at)
        base = key(baseline, negative, metric, at) if baseline else None
        every = {model: [_difference(samples[i], own, base) for i in places] for model, places in models.items()}
        for model in of:
            chosen = every if model == EVERY else {model: every[model]}
            found = pool(list(chosen.values()))
            value = float(np.mean([np.mean([samples[i][own][0] for i in models[name]]) for name in chosen]))
            rows.append(
                (
                    *(model, score, baseline, negative, metric, own[3], own[4]),
                    min(len(some) for some in chosen.values()),
                    *(value, found.value if baseline else np.nan),
                    *(found.images, found.networks),
                    *(found.value - found.reach, found.value + found.reach),
                )
            )
    return pd.DataFrame(rows, columns=COLUMNS)


def results(runs: Sequence[Ranks]) -> pd.DataFrame:
    """Every metric of every run, as `sirc run` writes it: metrics depend on ranks alone."""
    return pd.concat([RunResults(run.model, run.seed, run.evaluation()).table for run in runs], ignore_index=True)


def same_results(one: pd.DataFrame, other: pd.DataFrame) -> bool:
    """Whether two tables of results have the same runs and, where both have a figure, the same."""
    runs = [set(zip(table["model"], table["seed"], strict=True)) for table in (one, other)]
    names = ["model", "seed", "score", "negative", "metric", "alpha", "beta"]
    both = one.merge(other, on=names)
    return runs[0] == runs[1] and len(both) > 0 and np.allclose(both["value_x"], both["value_y"], 1e-6, 1e-9, True)


def summary(results: pd.DataFrame) -> pd.DataFrame:
    """Mean, standard deviation and number of seeds of each figure."""
    found = results.groupby(FIGURE, sort=False, dropna=False)["value"].agg(mean="mean", std="std", seeds="count")
    return found.reset_index()


def sizes(runs: Sequence[Ranks]) -> pd.DataFrame:
    """How many images there are: of training, of the ID test, and of each OOD set, with its group."""
    first = runs[0]
    group = {name: group for group, members in first.groups.items() for name in members}
    rows = [("train", "ID", first.trained), ("test", "ID", len(first.correct))]
    return pd.DataFrame(
        [*rows, *((name, group.get(name, ""), count) for name, count in first.sets.items())],
        columns=["set", "group", "images"],
    )


def _difference(samples: Samples, own: Key, base: Key | None) -> np.ndarray:
    return samples[own] if base is None else samples[own] - samples[base]
