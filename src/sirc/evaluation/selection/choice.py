"""Choice between scores over a range of α and β, by regret, and whether the best score's lead is noise."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import final, get_args

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from sirc._utils.arrays import ArrayLike, Floats
from sirc._utils.checks import check_at_least, check_choice, check_positive
from sirc._utils.text import quoted, shorten
from sirc.evaluation.error_bars import EQUAL, FEWEST, Method
from sirc.evaluation.evaluation import Evaluation
from sirc.evaluation.inputs import (
    WRONG,
    AnyOutputs,
    ConfidenceArrays,
    OodSets,
    as_fractions,
    as_names,
    as_sets,
    check_fresh,
    check_level,
    id_confidences,
    json_rows,
    ood_confidences,
    parse_or_none,
)
from sirc.evaluation.selection.regret import (
    Bounds,
    By,
    contenders,
    intervals,
    normal_draws,
    regrets,
    summary,
    wins,
)
from sirc.evaluation.selection.text import written
from sirc.evaluation.tabulated import Pool
from sirc.metrics import Metric, Negative, all_metrics, bootstrap_grids, derivatives, influence, parse_metric
from sirc.scores import Scorer

POINTS = 9  # of a range: 0.1, 0.2, … 0.9 for the default one


@final
@dataclass(frozen=True, eq=False)
class Choice:
    """The result of `select`; `print` it to read the report.

    Example:
        >>> import numpy as np
        >>> import sirc
        >>> noise, right = np.random.default_rng(0).normal(size=(2, 500)), np.arange(500) < 400
        >>> choice = sirc.select({"old": (right + 2 * noise[0], right), "new": (right + noise[1], right)})
        >>> choice
        Choice('new', tie=False, 2 scores)
        >>> choice.table["score"].tolist()
        ['new', 'old']
    """

    best: str
    """The score to use. In a tie, the simplest of `tied`: the one with the fewest parts, then the first one given."""
    tie: bool
    """Whether the lead of the score with the lowest regret, over at least one other, is within noise."""
    tied: tuple[str, ...]
    """In a tie, all scores that may be the best, the lowest regret first; else empty."""
    table: pd.DataFrame
    """A row for each score, the lowest regret first.

    `worst_regret` (at `worst_alpha`, `worst_beta`) and `average_regret`, each with an interval, `…_low` to `…_high`;
    `wins`, the share of draws in which the score has the lowest regret (the one in `by`); `tied`; and, for information,
    the largest regret if one OOD set were all OOD input, `worst_set_regret`, with that set, `worst_set`.
    """
    grid: pd.DataFrame
    """At each point of the range: score, alpha, beta, value (the metric), regret and its interval, low…high."""
    by: By
    metric: str
    alpha: tuple[float, ...]
    """The points of the range; only 1 without OOD data."""
    beta: tuple[float, ...]
    relative: bool
    sizes: Mapping[str, int]
    """The number of samples in `correct`, `wrong` and each OOD set."""
    draws: int
    level: float
    method: str
    """How values were drawn: `analytic` (from the influence of each sample) or `bootstrap`."""

    @property
    def summary(self) -> str:
        """The report in words: the choice, whether it is a tie, and the regrets of each score."""
        return written(self)

    def __str__(self) -> str:
        return self.summary

    def __repr__(self) -> str:
        return f"Choice({self.best!r}, tie={self.tie}, {len(self.table)} scores)"

    def to_dict(self) -> dict[str, object]:
        """Everything but the grid as JSON values; NaN becomes None."""
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("table", "grid")}
        plain = {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
        return {**plain, "table": json_rows(self.table)}


def select(
    scorer: Scorer | ConfidenceArrays,
    val: AnyOutputs | None = None,
    ood: OodSets | None = None,
    *,
    alpha: ArrayLike = (0.1, 0.9),
    beta: ArrayLike = (0.1, 0.9),
    metric: str = "aurr",
    by: By = "worst",
    relative: bool = True,
    scores: Sequence[str] | None = None,
    pool: Pool = "datasets",
    method: Method = "auto",
    draws: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> Choice:
    """Choose the score with the lowest regret over a range of α and β, and say whether its lead is noise.

    `val` is labelled ID data that the scorer was not fitted on, `ood` a dict of OOD sets; or `scorer` and `ood` are
    confidences from elsewhere, as for `evaluate`. `alpha` and `beta` are a number, a range (low, high) of 9 even
    points, or an array of more than two points. `metric` is any metric of the mixture for which lower is better:
    `aurr`, `aurc`, `augrc`, or `risk@95` (with any percentage).

    The regret of a score at (α, β) is (its metric − the best candidate's) / the best candidate's; `relative=False`
    leaves out the division. The score with the lowest regret at its worst point is chosen, or with `by="average"` the
    one with the lowest mean over all points. Random `draws` of the values of all scores at all points give the
    intervals, and show which other scores may be the best. If there are any it is a tie, and the simplest is chosen.
    Draws follow the covariance of the samples' influences. They come from a stratified bootstrap with
    `method="bootstrap"`, and where a metric has no derivative or too few samples.

    Without OOD data only ID✗|ID✓ is measured, with α = 1.

    Example:
        >>> import numpy as np
        >>> import sirc
        >>> noise, right = np.random.default_rng(0).normal(size=(2, 500)), np.arange(500) < 400
        >>> given = {"old": (right + 2 * noise[0], right), "new": (right + noise[1], right)}
        >>> choice = sirc.select(given, metric="aurc")
        >>> choice.best, choice.tie, choice.alpha
        ('new', False, (1.0,))
    """
    loss, recall = _loss_of(metric)
    check_choice("by", by, get_args(By))
    check_choice("method", method, get_args(Method))
    check_level(level)
    least = math.ceil(round(1 / (1 - level), 6))
    if check_positive("draws", draws) < least:
        raise ValueError(f"a level of {level:g} needs at least {least} draws; got {draws}. Use {max(least, 1000)}")
    seed = check_at_least("seed", seed, 0)
    a, b = _points("alpha", alpha), _points("beta", beta)
    ev = _candidates(scorer, val, ood, scores, pool)
    sizes = ev.sizes
    if not sizes["wrong"]:
        raise ValueError(
            f"`val` must hold wrong predictions too, to see how ID✗ is ranked; got {sizes['correct']} that are all "
            "right. Pass more rows"
        )
    if not ev.ood:
        a = torch.ones(1, dtype=torch.float64)
    asked = _Comparison(ev, loss, recall, a, b, relative)
    values = asked.values(ev._usual_negative)
    scale = asked.scale(values)
    how, drawn_values = asked.drawn(values, method, draws, seed)
    regret, drawn = regrets(values, scale), summary(regrets(drawn_values, scale), by)
    summed, (low, high) = intervals(values, drawn_values, scale, relative=relative, level=level)
    resolution = EQUAL * float((values / scale).max())
    may_be_best = contenders(summary(regret, by), drawn, level, resolution)
    table = _table(asked, regret, summed)
    table["wins"] = wins(drawn, resolution)
    table["tied"] = may_be_best if may_be_best.sum() > 1 else False
    table["worst_set"], table["worst_set_regret"] = asked.worst_sets() if ev.ood else (None, math.nan)
    table = table.sort_values(f"{by}_regret", kind="stable", ignore_index=True)
    tied = tuple(table["score"][table["tied"]])
    index = pd.MultiIndex.from_product([ev.scores, a.tolist(), b.tolist()], names=["score", "alpha", "beta"])
    columns = {"value": values, "regret": regret, "low": low, "high": high}
    return Choice(
        best=min(tied, key=lambda score: (_parts(score), ev.scores.index(score))) if tied else table["score"][0],
        tie=bool(tied),
        tied=tied,
        table=table,
        grid=pd.DataFrame({name: one.reshape(-1) for name, one in columns.items()}, index=index).reset_index(),
        by=by,
        metric=metric,
        alpha=tuple(a.tolist()),
        beta=tuple(b.tolist()),
        relative=relative,
        sizes=sizes,
        draws=draws,
        level=level,
        method=how,
    )


@final
@dataclass(frozen=True, eq=False)
class _Comparison:
    """The candidates, and the metric and the range of α and β to compare them by."""

    ev: Evaluation
    loss: Metric
    recall: float
    alpha: Tensor
    beta: Tensor
    relative: bool

    def values(self, negative: str) -> Floats:
        """The metric of each score on the grid, (scores, α, β)."""
        kind: Negative = "wrong" if negative == WRONG else "ood"
        rankings = [self.ev.ranking(score, negative) for score in self.ev.scores]
        grids = [self.loss.grid(ranking, kind, self.recall, self.alpha, self.beta) for ranking in rankings]
        return torch.stack(grids).numpy()

    def scale(self, values: Floats) -> Floats:
        """The scale of regret at each point: the best candidate's value, or 1."""
        a, b = self.alpha[:, None].numpy(), self.beta[None, :].numpy()
        accuracy = float(self.ev.correct.double().mean())
        no_loss = b * a * (1 - accuracy) + (1 - b) * (1 - a) == 0
        if no_loss.all():
            raise ValueError(
                "accepting a mistake must cost something at one point at least: ID✗ costs β and OOD 1 − β; got "
                f"alpha {self.alpha.tolist()}, beta {self.beta.tolist()}, where the risk is always 0. Widen a range"
            )
        best: Floats = values.min(0)
        if not self.relative:
            return np.ones_like(best)
        if (perfect := (best == 0) & ~no_loss).any():
            i, j = np.argwhere(perfect)[0]
            raise ValueError(
                f"a relative regret needs a best value above 0; got 0 at α = {a[i, 0]:g}, β = {b[0, j]:g}. Pass "
                "`relative=False`"
            )
        return np.where(best > 0, best, 1.0)

    def worst_sets(self) -> tuple[list[str], Floats]:
        """For each score, the OOD set on which alone its worst regret is largest, and that regret."""
        worst = []
        for name in self.ev.ood:
            values = self.values(name)
            best = values.min(0)
            # Points with a best value of 0 have no relative regret.
            scale = np.where(best > 0, best, np.inf) if self.relative else np.ones_like(best)
            worst.append(summary(regrets(values, scale), "worst"))
        return [list(self.ev.ood)[i] for i in np.argmax(worst, axis=0)], np.max(worst, axis=0)

    def drawn(self, values: Floats, method: Method, draws: int, seed: int) -> tuple[str, Floats]:
        """The method, and random draws of the values, (draws, scores, α, β)."""
        ev, loss, negative = self.ev, self.loss, self.ev._usual_negative
        fewest = min(ev.sizes.values())
        enough = method == "auto" and loss.derivative and fewest >= FEWEST
        placed = [ev._placed(score, negative) for score in ev.scores] if enough else []
        if placed and (
            "recall" not in loss.parameters or all(derivatives.resolved(one.ranking, self.recall) for one in placed)
        ):
            covaried = influence.covariance(placed, loss, "ood" if ev.ood else "wrong", self.recall, self.alpha)
            return "analytic", normal_draws(values, covaried, fewest - 1, self.beta, self.relative, draws, seed)
        blocks = bootstrap_grids(
            ev.confidences, ev.correct, ev.ood, equal_sets=ev.pool == "datasets", metric=loss, recall=self.recall,
            alpha=self.alpha, beta=self.beta, draws=draws, seed=seed,
        )  # fmt: skip
        return "bootstrap", torch.cat(list(blocks)).numpy()


def _table(asked: _Comparison, regret: Floats, summed: Mapping[str, Bounds]) -> pd.DataFrame:
    """For each score its worst and its average regret, with intervals, and where the worst is."""
    # The first of the points that differ only by rounding, as all β do without OOD data.
    at = [np.unravel_index(int((one >= one.max() - EQUAL * EQUAL).argmax()), one.shape) for one in regret]
    table = pd.DataFrame({"score": asked.ev.scores})
    for name, (low, high) in summed.items():
        table[f"{name}_regret"], table[f"{name}_low"], table[f"{name}_high"] = summary(regret, name), low, high
        if name == "worst":
            table["worst_alpha"] = [float(asked.alpha[i]) for i, _ in at]
            table["worst_beta"] = [float(asked.beta[j]) for _, j in at]
    return table


def _loss_of(label: str) -> tuple[Metric, float]:
    """The metric of the mixture with this name, for which lower is better, and its recall."""
    parsed = parse_metric(label)
    if parsed and parsed[0].of_mixture and parsed[0].lower_is_better:
        return parsed
    losses = [one.label(0.95) for one in all_metrics() if one.of_mixture and one.lower_is_better]
    raise ValueError(
        f"`metric` must be one of {', '.join(losses)}, with the recall in percent; got {quoted(label)}. "
        "One of your own is known once its module is imported (`--import MODULE`)"
    )


def _points(name: str, value: ArrayLike) -> Tensor:
    """A number, a range (low, high), or the points themselves, as distinct fractions."""
    points = as_fractions(name, value)
    if len(points) != 2:
        return points
    low, high = points.tolist()
    if low > high:
        raise ValueError(f"`{name}` must be a range (low, high); got ({low:g}, {high:g}). Swap the two")
    # Rounded to the decimal number that is meant: 0.3, not 0.30000000000000004.
    return torch.tensor([round(low + (high - low) * i / (POINTS - 1), 12) for i in range(POINTS)], dtype=torch.float64)


def _candidates(
    scorer: Scorer | ConfidenceArrays,
    val: AnyOutputs | None,
    ood: OodSets | None,
    scores: Sequence[str] | None,
    pool: Pool,
) -> Evaluation:
    """The evaluation of the candidates, two or more, on rows that they were not fitted on."""
    known = scorer.specs if isinstance(scorer, Scorer) else scorer if isinstance(scorer, Mapping) else ()
    wanted = list(dict.fromkeys(known if scores is None else as_names(scores)))
    if known and len(wanted) < 2:
        got = shorten(", ".join(wanted)) or "none"
        raise ValueError(f"`select` needs at least two scores; got {got}. Fit or name more")
    if isinstance(scorer, Scorer):
        scorer = scorer.only(wanted)
        for name, data in {"val": val, **{f"ood[{quoted(name)}]": data for name, data in as_sets(ood).items()}}.items():
            check_fresh(scorer, name, data)
    confidences, correct = id_confidences(scorer, val, wanted, "val")
    sets = ood_confidences(scorer, ood, wanted)
    return Evaluation(confidences, correct, sets, pool=pool)


def _parts(score: str) -> int:
    """The number of scores in a spec; a name that is no spec counts as one."""
    spec = parse_or_none(score)
    return 1 if spec is None else sum(part.is_leaf for part in spec.walk())
