"""Results computed from rankings: the tidy table, sweeps over α and β, curves."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Literal, TypedDict, Unpack, get_args

import pandas as pd
import torch
from torch import Tensor

from sirc._utils.arrays import ArrayLike
from sirc._utils.checks import check_choice, check_fraction
from sirc._utils.text import quoted
from sirc.evaluation.inputs import COLUMNS, MEAN, ORACLE, POOLED, WRONG, as_fractions, as_names, check_groups
from sirc.metrics import Curve, Negative, Ranking, all_metrics

Pool = Literal["samples", "datasets"]
Row = tuple[str, str, str, float, float, float]
Cell = tuple[str, float, float, float]
"""The last columns of a row: the metric, its α and β (NaN if it has none), and its value."""


class Settings(TypedDict, total=False):
    """Settings of an evaluation besides its data, as `sirc.evaluate` takes them."""

    alpha: ArrayLike
    beta: ArrayLike
    groups: Mapping[str, Sequence[str]] | None
    pool: Pool
    recall: float


class Tabulated(ABC):
    """Scores on ID data and OOD sets, in memory or on disk, and the results that follow from their rankings."""

    def __init__(self, scores: Sequence[str], sets: Sequence[str], **settings: Unpack[Settings]) -> None:
        if ORACLE in scores:
            raise ValueError(f"{ORACLE!r} is the name of the best possible curve; give the score another name")
        if not scores:
            raise ValueError("at least one score is needed; got none")
        self.scores = list(scores)
        """The names of the scores."""
        self.sets = list(sets)
        """The names of the OOD sets."""
        self.alpha = as_fractions("alpha", settings["alpha"])
        self.beta = as_fractions("beta", settings["beta"])
        self.recall = check_fraction("recall", settings["recall"])
        check_choice("pool", settings["pool"], get_args(Pool))
        self.pool = settings["pool"]
        self.groups = check_groups({} if settings["groups"] is None else settings["groups"], self.sets)
        self._table: pd.DataFrame | None = None

    @property
    @abstractmethod
    def sizes(self) -> dict[str, int]:
        """The number of samples in `correct`, `wrong` and each OOD set."""

    def ranking(self, score: str, negative: str = POOLED) -> Ranking:
        """The `Ranking` of a score. Its OOD data is one OOD set, one group or `pooled`; with `wrong` it has none."""
        self._check_score(score)
        return self._rank(score, negative)

    @abstractmethod
    def _rank(self, score: str, negative: str) -> Ranking:
        """Make the ranking; `ranking` has checked the score."""

    def __repr__(self) -> str:
        right, wrong, *_ = (sizes := self.sizes).values()
        sets = ", ".join(f"{name} {sizes[name]}" for name in self.sets) or "no OOD"
        return f"{type(self).__name__}({len(self.scores)} scores; {right} correct, {wrong} wrong; {sets})"

    @property
    def negatives(self) -> list[str]:
        """The groups that ID✓ is compared with: `wrong`, each OOD set, their mean, their union, and the groups."""
        return [*([WRONG] if self.sizes[WRONG] else []), *self._ood_negatives]

    @property
    def _ood_negatives(self) -> list[str]:
        return [*self.sets, MEAN, POOLED, *self.groups] if self.sets else []

    @property
    def _usual_negative(self) -> str:
        """What curves and figures compare ID✓ with by default: all OOD data, or ID✗ where there is none."""
        return POOLED if self.sets else WRONG

    @property
    def table(self) -> pd.DataFrame:
        """Every metric: score, negative, metric, alpha, beta (NaN if the metric has none), value (a fraction).

        Example:
            >>> import sirc
            >>> ev = sirc.evaluate({"msp": ([0.9, 0.8, 0.7, 0.85], [True, True, True, False])})
            >>> ev.table.query("metric in ['error', 'auroc']")["value"].round(3).tolist()
            [0.25, 0.333]
        """
        if self._table is None:
            rows = [row for score in self.scores for row in self._all_rows(score)]
            self._table = pd.DataFrame(rows, columns=COLUMNS)
        return self._table.copy()

    def sweep(
        self,
        alphas: ArrayLike,
        betas: ArrayLike,
        groups: Sequence[str] | None = None,
        scores: Sequence[str] | None = None,
    ) -> pd.DataFrame:
        """Every metric of the mixture on the whole (α, β) grid, for `pooled` and each group (or those in `groups`).

        Without OOD data it is for `wrong`, and α must be 1.

        Example:
            >>> import sirc
            >>> ev = sirc.evaluate({"msp": ([0.9, 0.8, 0.6], [True, True, False])}, ood={"noise": {"msp": [0.7, 0.85]}})
            >>> sweep = ev.sweep(alphas=[0.2, 0.5, 0.8], betas=[0.5])
            >>> sweep.query("metric == 'aurr'")["value"].round(3).tolist()
            [0.188, 0.107, 0.039]
        """
        a, b = as_fractions("alphas", alphas), as_fractions("betas", betas)
        wanted = [self._usual_negative, *self.groups] if groups is None else as_names(groups)
        if not wanted:
            raise ValueError("a sweep needs at least one group; got none")
        index = pd.MultiIndex.from_product([a.tolist(), b.tolist()], names=["alpha", "beta"])
        grids = {}
        for score in self._wanted(scores):
            for negative in wanted:
                ranking = self.ranking(score, negative)
                for metric in all_metrics():
                    if metric.of_mixture:
                        grid = metric.grid(ranking, "ood" if ranking.num_ood else "wrong", self.recall, a, b)
                        key = score, negative, metric.label(self.recall)
                        grids[key] = pd.Series(grid.reshape(-1).numpy(), index)
        return pd.concat(grids, names=COLUMNS[:3]).rename("value").reset_index()

    def curves(
        self,
        kind: Literal["risk_recall", "risk_coverage"] = "risk_recall",
        *,
        negative: str | None = None,
        alpha: float | None = None,
        beta: float | None = None,
        scores: Sequence[str] | None = None,
    ) -> dict[str, Curve]:
        """The curve of each score, by default with all OOD data; `risk_coverage` also has the `oracle`'s."""
        negative = self._usual_negative if negative is None else negative
        check_choice("kind", kind, ("risk_recall", "risk_coverage"))
        a, b = self._one("alpha", alpha), self._one("beta", beta)
        wanted = self._wanted(scores)
        curves = {score: getattr(self.ranking(score, negative), kind)(a, b) for score in wanted}
        if kind == "risk_coverage":
            curves[ORACLE] = self.ranking(wanted[0], negative).oracle_risk_coverage(a, b)
        return curves

    def _all_rows(self, score: str) -> list[Row]:
        return self._rows(score, (WRONG, *self._ood_negatives), partial(self._rank, score))

    def _rows(self, score: str, negatives: Sequence[str], rank: Callable[[str], Ranking]) -> list[Row]:
        """Rows of the table, from rankings with each negative (for the mean over sets, with each set)."""
        sets = self.sets if MEAN in negatives else ()
        # Against ID✗ the input is all ID: plain selective classification.
        alone = torch.ones(1, dtype=torch.float64)
        cells: dict[str, list[Cell]] = {}
        for name in dict.fromkeys([*negatives, *sets]):
            if name != MEAN:
                inside = name == WRONG
                cells[name] = self._cells(rank(name), "wrong" if inside else "ood", alone if inside else self.alpha)
        if sets:
            cells[MEAN] = []
            for same in zip(*(cells[name] for name in sets), strict=True):  # a metric at one α and β, with each set
                metric, alpha, beta, _ = same[0]
                cells[MEAN].append((metric, alpha, beta, sum(value for *_, value in same) / len(same)))
        return [(score, negative, *cell) for negative in negatives for cell in cells[negative]]

    def _cells(self, ranking: Ranking, negative: Negative, alpha: Tensor) -> list[Cell]:
        """Each metric, at each α and β if it depends on them; metrics of the ID data only for `wrong`."""
        nan = torch.tensor([torch.nan])
        cells = []
        for metric in all_metrics():
            has_value = (ranking.num_wrong or negative != WRONG) if metric.per_negative else negative == WRONG
            if not has_value:
                continue
            grid = metric.grid(ranking, negative, self.recall, alpha, self.beta).tolist()
            alphas, betas = (alpha, self.beta) if metric.of_mixture else (nan, nan)
            name = metric.label(self.recall)
            for a, row in zip(alphas.tolist(), grid, strict=True):
                cells += [(name, a, b, value) for b, value in zip(betas.tolist(), row, strict=True)]
        return cells

    def _members(self, negative: str) -> Sequence[str]:
        pooled = {POOLED: self.sets} if self.sets else {}
        members = {WRONG: [], **{name: [name] for name in self.sets}, **pooled, **self.groups}
        if negative not in members:
            raise ValueError(f"`negative` must be one of {', '.join(members)}; got {quoted(negative)}")
        return members[negative]

    def _one(self, name: str, value: float | None) -> float:
        if name == "alpha" and value is None and not self.sets:
            return 1.0
        known: Tensor = getattr(self, name) if value is None else as_fractions(name, value)
        if len(known) != 1:
            raise ValueError(
                f"`{name}` must be one number here; got {quoted(known.tolist())}. Pass `{name}=` one of them"
            )
        return float(known[0])

    def _wanted(self, scores: Sequence[str] | None) -> list[str]:
        wanted = self.scores if scores is None else as_names(scores)
        if not wanted:
            raise ValueError("at least one score is needed; got none")
        for score in wanted:
            self._check_score(score)
        return wanted

    def _check_score(self, score: str) -> None:
        if not isinstance(score, str) or score not in self.scores:
            raise ValueError(f"unknown score {quoted(score)}; this evaluation has {', '.join(self.scores)}")
