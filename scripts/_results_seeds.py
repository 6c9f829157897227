"""Intervals from the training runs alone, where of a study no more than results.csv is left.

Each seed gives a difference between two scores; a network's interval is their mean ± t·s/√n. Two or three seeds know
little of s, so that networks whose seeds scatter alike may share one. What the images bring, which are the same for all
seeds, is not in it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from _results_draws import MIDDLE, Pooled, Samples, key
from _results_families import BASELINE

from sirc._mixtures import MEAN, WRONG

RULE_FILE = "intervals.json"


@dataclass(frozen=True)
class SeedRun:
    """One run in results.csv, as far as comparisons need to know it."""

    model: str
    seed: int
    scores: list[str]
    sets: dict[str, int]
    groups: dict[str, list[str]]


def runs_of(results: pd.DataFrame, sizes: pd.DataFrame) -> tuple[list[SeedRun], list[Samples]]:
    """The runs of results.csv, and their figures at `MIDDLE`, as samples without a draw."""
    outside = sizes[sizes["group"] != "ID"]
    sets = {str(name): int(count) for name, count in zip(outside["set"], outside["images"], strict=True)}
    if missing := sets.keys() - set(results["negative"]):
        raise ValueError(f"results must be of the OOD sets of sets.csv; they have no {', '.join(sorted(missing))}.")
    grouped = {group: list(rows["set"]) for group, rows in outside.groupby("group", sort=False) if group}
    runs, samples = [], []
    for (model, seed), rows in results.groupby(["model", "seed"]):
        scores = list(dict.fromkeys(rows["score"]))
        runs.append(SeedRun(str(model), int(seed), scores, sets, grouped))
        found: Samples = {}
        for row in rows.itertuples():
            own = key(row.score, row.negative, row.metric)
            at = tuple(None if pd.isna(x) else float(x) for x in (row.alpha, row.beta))
            if at == own[3:]:
                found[own] = np.array([row.value])
        samples.append(found)
        if scores != runs[0].scores or found.keys() != samples[0].keys():
            raise ValueError(
                f"runs must have the same scores and metrics at α = β = {MIDDLE[0]} to be compared; {model} with seed "
                f"{seed} has others than {runs[0].model} with seed {runs[0].seed}. Measure them by themselves."
            )
    return runs, samples


def check_shared(runs: Sequence[SeedRun], shared: Sequence[Sequence[str]]) -> None:
    """Every network must be known, share with one group at most, and have a spread to go by."""
    count: dict[str, int] = {}
    for run in runs:
        count[run.model] = count.get(run.model, 0) + 1
    named = [model for group in shared for model in group]
    if unknown := [model for model in named if model not in count]:
        raise ValueError(f"--share must name networks of the results, {', '.join(count)}; got {', '.join(unknown)}")
    if len(set(named)) < len(named):
        raise ValueError(f"--share must name a network once; got {', '.join(named)}")
    for group in [*shared, *([model] for model in count if model not in named)]:
        if sum(count[model] - 1 for model in group) < 1:
            raise ValueError(
                f"a spread over seeds takes at least two of a network; {', '.join(group)} has one. Share the spread of "
                "another network with --share, or measure from ranks."
            )


def pool_seeds(
    values: Mapping[str, Sequence[float]], every: Mapping[str, Sequence[float]], shared: Sequence[Sequence[str]]
) -> Pooled:
    """The mean of the networks' means over seeds; `every` has all networks, of which some may share their spread.

    The variance is Σ s²/n over the networks, by the square of their number, where s² is pooled within a network, or
    over those that share it, with its degrees of freedom Σ (n − 1); Satterthwaite's for several s² together.
    """
    groups = [list(group) for group in shared]
    groups += [[model] for model in values if not any(model in group for group in groups)]
    variance, doubt = 0.0, 0.0
    for group in groups:
        freedom = sum(len(every[model]) - 1 for model in group)
        squares = sum(float(np.sum((np.array(every[m]) - np.mean(every[m])) ** 2)) for m in group)
        weight = sum(1 / len(values[model]) for model in group if model in values) / len(values) ** 2
        part = squares / freedom * weight
        variance += part
        doubt += part**2 / freedom
    mean = float(np.mean([np.mean(runs) for runs in values.values()]))
    return Pooled(mean, 0.0, math.sqrt(variance), variance**2 / doubt if doubt else math.inf)


def scatter(results: pd.DataFrame) -> dict[str, float]:
    """How a network's seeds scatter: the median, over scores, of the variance of the difference to MSP in AUROC."""
    found = results[(results["metric"] == "auroc") & results["negative"].isin([WRONG, MEAN])]
    wide = found.pivot_table(index=["negative", "score"], columns=["model", "seed"], values="value")
    base = wide.xs(BASELINE, level="score")
    less = wide - base.reindex(wide.index.get_level_values("negative")).to_numpy()
    less = less[less.index.get_level_values("score") != BASELINE]
    return {str(model): float(rows.var(ddof=1).median()) for model, rows in less.T.groupby("model")}


def rule_text(shared: Sequence[Sequence[str]] | None) -> str:
    """What `write` needs to know of how intervals were made; None: with the images."""
    known = {"from": "images"} if shared is None else {"from": "seeds", "shared": [list(group) for group in shared]}
    return json.dumps(known) + "\n"


def read_rule(folder: Path) -> list[list[str]] | None:
    """The networks that share a spread, or None where intervals are of the images too."""
    file = folder / RULE_FILE
    known = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {"from": "images"}
    return None if known["from"] == "images" else [list(group) for group in known["shared"]]
