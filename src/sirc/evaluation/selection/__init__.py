"""Choice between scores for a range of α and β, by their regret, and whether the best one's lead is noise."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, final

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from sirc._utils.arrays import ArrayLike
from sirc.evaluation.evaluation import Evaluation, Pool
from sirc.evaluation.inputs import POOLED, WRONG, ConfidenceArrays, Data, OodSets, check_groups, ood_confidences
from sirc.evaluation.selection.arguments import as_points, candidates, check_fresh, check_settings
from sirc.evaluation.selection.regret import EQUAL, Bounds, Floats, Regrets, contenders, intervals, regrets, wins
from sirc.evaluation.selection.text import written
from sirc.metrics import Metric, Negative, bootstrap_grids
from sirc.scores import Scorer, parse

__all__ = ["Choice", "select"]

By = Literal["worst", "average"]

COLUMNS = [
    *("score", "worst_regret", "worst_low", "worst_high", "worst_alpha", "worst_beta"),
    *("average_regret", "average_low", "average_high", "wins", "tied", "worst_set", "worst_set_regret"),
]


@final
@dataclass(frozen=True, eq=False)
class Choice:
    """The result of `select`; `print` it to read the report."""

    best: str
    """The score to use. In a tie the simplest of `tied`: that of the fewest parts, of these the first one given."""
    tie: bool
    """Whether the lead of the one with the lowest regret, over one other or more, is within noise."""
    tied: tuple[str, ...]
    """In a tie, all that may be the best, the lowest regret first; else none."""
    table: pd.DataFrame
    """A row for each score, the lowest regret first.

    `worst_regret` (where: `worst_alpha`, `worst_beta`) and `average_regret`, each with an interval, `…_low` and
    `…_high`; `wins`, the share of draws in which the score has the lowest regret by what it was chosen by; `tied`; and,
    for information, the regret within the OOD set where it is largest, `worst_set_regret` in `worst_set`.
    """
    grid: pd.DataFrame
    """At each point of the range: score, alpha, beta, value (the metric), regret."""
    by: By
    metric: str
    alpha: tuple[float, ...]
    """The points of the range; 1 alone where no OOD data was given."""
    beta: tuple[float, ...]
    relative: bool
    sizes: Mapping[str, int]
    """Samples: `correct`, `wrong`, and each OOD set."""
    draws: int
    level: float

    @property
    def summary(self) -> str:
        """The report in words: what is chosen, whether it is a tie, and the figures of each score."""
        return written(self)

    def __str__(self) -> str:
        return self.summary

    def __repr__(self) -> str:
        return f"Choice({self.best!r}, tie={self.tie}, {len(self.table)} scores)"

    def to_dict(self) -> dict[str, object]:
        """Everything but the grid as JSON values; a number that does not exist is None."""
        rows = [
            {key: None if isinstance(value, float) and math.isnan(value) else value for key, value in row.items()}
            for row in self.table.to_dict("records")
        ]
        plain = ("best", "tie", "by", "metric", "relative", "draws", "level")
        return {
            **{name: getattr(self, name) for name in plain},
            "tied": list(self.tied),
            "alpha": list(self.alpha),
            "beta": list(self.beta),
            "sizes": dict(self.sizes),
            "table": rows,
        }


def select(
    scorer: Scorer | ConfidenceArrays,
    val: Data | None = None,
    ood: OodSets | None = None,
    *,
    alpha: ArrayLike = (0.1, 0.9),
    beta: ArrayLike = (0.1, 0.9),
    metric: str = "aurr",
    by: By = "worst",
    relative: bool = True,
    scores: Sequence[str] | None = None,
    pool: Pool = "datasets",
    draws: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> Choice:
    """Choose the score with the least regret over a range of α and β, and say where the lead is noise.

    `val` is labelled ID data that the scorer was not fitted on, `ood` a dict of OOD sets; or `scorer` and `ood` are
    confidences from elsewhere, as for `evaluate`. `alpha` and `beta` are a number, a range (low, high) of 9 even
    points, or an array of more than two points. `metric` is any metric of the mixture of which lower is
    better: `aurr`, `aurc`, `augrc`, or `risk@95` (of any percentage).

    The regret of a score at (α, β) is its metric less that of the candidate that is best there, over the latter;
    `relative=False` leaves out the division. Chosen is the lowest regret in its worst point, or with `by="average"` in
    the mean over all points. A stratified bootstrap, with the same `draws` for all scores, gives intervals, and tells
    which others may be the best: then it is a tie, and the simplest of them is chosen.

    Without OOD data only ID✗|ID✓ is measured: α is 1, whatever was given.
    """
    loss, recall = check_settings(metric, by, pool, draws, level)
    a, b = as_points("alpha", alpha), as_points("beta", beta)
    confidences, correct = candidates(scorer, val, scores)
    chosen = scorer.only(list(confidences)) if isinstance(scorer, Scorer) else scorer
    for name, data in ood.items() if isinstance(ood, Mapping) else ():
        check_fresh(chosen, f"ood[{name!r}]", data)
    sets = ood_confidences(chosen, ood, list(confidences))
    check_groups({}, list(sets))
    if "correct" in sets:
        raise ValueError("'correct' stands for ID✓ among the sizes of a choice; name the OOD set otherwise")
    ev = Evaluation(confidences, correct, sets, pool=pool)
    right = int(ev.correct.sum())
    if right == len(ev.correct):
        raise ValueError(
            f"`val` must hold wrong predictions too, to see how ID✗ is ranked; all {right} are right. Pass more rows"
        )
    if not sets:
        a = torch.ones(1, dtype=torch.float64)
    values = _values(ev, POOLED if sets else WRONG, loss, recall, a, b)
    scale = _scale(values, right / len(ev.correct), a, b, relative)
    blocks = bootstrap_grids(
        ev.confidences, ev.correct, ev.ood, equal_sets=pool == "datasets", metric=loss, recall=recall,
        alpha=a, beta=b, draws=draws, seed=seed,
    )  # fmt: skip
    draw_values: Floats = torch.cat(list(blocks)).numpy()
    regret, drawn = regrets(values, scale), regrets(draw_values, scale)
    ends = intervals(values, draw_values, scale, relative=relative, level=level)
    table = _table(ev.scores, regret, drawn, ends, by, level, EQUAL * float((values / scale).max()))
    # The first of points that differ by rounding only, as all β do where there is no OOD data.
    at = [np.unravel_index(int((one >= one.max() - EQUAL * EQUAL).argmax()), one.shape) for one in regret.grid]
    table["worst_alpha"], table["worst_beta"] = [float(a[i]) for i, _ in at], [float(b[j]) for _, j in at]
    table["worst_set"], table["worst_set_regret"] = _worst_set(ev, loss, recall, a, b, relative)
    table = table.sort_values(f"{by}_regret", kind="stable", ignore_index=True)[COLUMNS]
    tied = tuple(table["score"][table["tied"]])
    sizes = {"correct": right, "wrong": len(ev.correct) - right}
    return Choice(
        best=min(tied, key=lambda score: (_parts(score), ev.scores.index(score))) if tied else table["score"][0],
        tie=bool(tied),
        tied=tied,
        table=table,
        grid=_tidy(ev.scores, values, regret.grid, a, b),
        by=by,
        metric=metric,
        alpha=tuple(a.tolist()),
        beta=tuple(b.tolist()),
        relative=relative,
        sizes={**sizes, **{name: len(next(iter(by_score.values()))) for name, by_score in ev.ood.items()}},
        draws=draws,
        level=level,
    )


def _values(ev: Evaluation, negative: str, metric: Metric, recall: float, alpha: Tensor, beta: Tensor) -> Floats:
    """The metric of each score on the grid, (scores, α, β)."""
    kind: Negative = "wrong" if negative == WRONG else "ood"
    grids = [metric.grid(ev.ranking(score, negative), kind, recall, alpha, beta) for score in ev.scores]
    values: Floats = torch.stack(grids).numpy()
    return values


def _scale(values: Floats, accuracy: float, alpha: Tensor, beta: Tensor, relative: bool) -> Floats:
    """What regret is divided by at each point: the best candidate's value, or 1."""
    a, b = alpha[:, None].numpy(), beta[None, :].numpy()
    no_loss = b * a * (1 - accuracy) + (1 - b) * (1 - a) == 0
    if no_loss.all():
        raise ValueError(
            "nothing costs anything in this range: ID✗ costs β and OOD 1 − β, and what costs something never comes "
            f"(alpha {alpha.tolist()}, beta {beta.tolist()}). Widen `alpha` or `beta`"
        )
    best: Floats = values.min(0)
    if not relative:
        return np.ones_like(best)
    if (perfect := (best == 0) & ~no_loss).any():
        i, j = np.argwhere(perfect)[0]
        raise ValueError(
            f"a regret relative to the best needs a best above 0; it is 0 at α = {a[i, 0]:g}, β = {b[0, j]:g}. Pass "
            "`relative=False`"
        )
    return np.where(best > 0, best, 1.0)


def _table(
    scores: list[str],
    regret: Regrets,
    drawn: Regrets,
    ends: Mapping[str, Bounds],
    by: By,
    level: float,
    resolution: float,
) -> pd.DataFrame:
    """A row for each score: its regrets with their intervals, its wins over the draws, and whether it is in a tie."""
    table = pd.DataFrame({"score": scores, "worst_regret": regret.worst, "average_regret": regret.average})
    for name, (low, high) in ends.items():
        table[f"{name}_low"], table[f"{name}_high"] = low, high
    may_be_best = contenders(regret.of(by), drawn.of(by), level, resolution)
    return table.assign(tied=may_be_best if may_be_best.sum() > 1 else False, wins=wins(drawn.of(by), resolution))


def _worst_set(
    ev: Evaluation, metric: Metric, recall: float, alpha: Tensor, beta: Tensor, relative: bool
) -> tuple[list[str | None], list[float]]:
    """For each score the OOD set, alone, in which its worst regret is largest, and that regret."""
    if not ev.ood:
        return [None] * len(ev.scores), [math.nan] * len(ev.scores)
    each = []
    for name in ev.ood:
        values = _values(ev, name, metric, recall, alpha, beta)
        best = values.min(0)
        # Points where the best is perfect have no relative regret.
        each.append(regrets(values, np.where(best > 0, best, np.inf) if relative else np.ones_like(best)).worst)
    worst = np.stack(each)
    names = list(ev.ood)
    return [names[i] for i in worst.argmax(0)], worst.max(0).tolist()


def _parts(score: str) -> int:
    """How many scores a spec is made of; a name that is no spec counts as one."""
    try:
        return sum(part.is_leaf for part in parse(score).walk())
    except ValueError:
        return 1


def _tidy(scores: list[str], values: Floats, regret: Floats, alpha: Tensor, beta: Tensor) -> pd.DataFrame:
    index = pd.MultiIndex.from_product([scores, alpha.tolist(), beta.tolist()], names=["score", "alpha", "beta"])
    return pd.DataFrame({"value": values.reshape(-1), "regret": regret.reshape(-1)}, index=index).reset_index()
