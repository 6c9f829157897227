"""Evaluation of a scorer, or of confidences from elsewhere, on ID and OOD data: a tidy table with error bars."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, final

import pandas as pd
import torch
from torch import Tensor

from sirc._utils.arrays import ArrayLike
from sirc._utils.checks import check_choice, check_fraction, check_type, iterates
from sirc._utils.files import PathLike
from sirc._utils.text import shorten
from sirc.evaluation import bars
from sirc.evaluation.bars import Method
from sirc.evaluation.inputs import (
    COLUMNS,
    MEAN,
    ORACLE,
    POOLED,
    WRONG,
    ConfidenceArrays,
    Data,
    OodSets,
    as_fractions,
    as_names,
    check_groups,
    check_set,
    group_sizes,
    id_confidences,
    ood_confidences,
)
from sirc.metrics import (
    Curve,
    Negative,
    Placed,
    Ranking,
    SortedID,
    all_metrics,
    as_flags,
    as_scores,
    sorted_scores,
)
from sirc.scores import Scorer

if TYPE_CHECKING:
    from sirc.evaluation.premise import Assumptions

Pool = Literal["samples", "datasets"]
Row = tuple[str, str, str, float, float, float]

_RANKINGS = 64  # sorted scores kept for curves and sweeps; the oldest goes first


def evaluate(
    scorer: Scorer | ConfidenceArrays,
    test: Data | None = None,
    ood: OodSets | None = None,
    *,
    alpha: ArrayLike = 0.5,
    beta: ArrayLike = 0.5,
    scores: Sequence[str] | None = None,
    groups: Mapping[str, Sequence[str]] | None = None,
    pool: Pool = "samples",
    recall: float = 0.95,
) -> Evaluation:
    """Evaluate confidences for selective classification with OOD data.

    With a `Scorer`: `test` is labelled ID data, `ood` a dict of unlabelled OOD sets (`Outputs`, stores, or iterables of
    batches). With confidences from elsewhere: `scorer` is `{score: (confidence, correct)}` on ID data, and `ood` is
    `{set: {score: confidence}}`.

    `alpha` (the share of ID input) and `beta` (the cost of accepting ID✗, 1 − β that of OOD) are numbers or arrays.
    `scores` picks some of the scorer's specs. `groups` names unions of OOD sets, `{"Close": [...], "Far": [...]}`;
    `pooled` is the union of all. In a union, `pool="samples"` weighs samples equally, `"datasets"` sets equally.
    """
    confidences, correct = id_confidences(scorer, test, scores, "test")
    sets = ood_confidences(scorer, ood, list(confidences))
    return Evaluation(confidences, correct, sets, alpha=alpha, beta=beta, groups=groups, pool=pool, recall=recall)


@final
class Evaluation:
    """Confidences of the three kinds of input by several scores, and every figure that follows from them."""

    def __init__(
        self,
        confidences: Mapping[str, ArrayLike],
        correct: ArrayLike,
        ood: Mapping[str, Mapping[str, ArrayLike]],
        *,
        alpha: ArrayLike = 0.5,
        beta: ArrayLike = 0.5,
        groups: Mapping[str, Sequence[str]] | None = None,
        pool: Pool = "samples",
        recall: float = 0.95,
    ) -> None:
        check_type("confidences", confidences, Mapping, "a dict of confidences by score")
        check_type("ood", ood, Mapping, "a dict of OOD sets, each with confidences by score")
        # Copied: metrics are computed when asked for, and must not change with the caller's arrays.
        self.confidences = {s: as_scores(f"confidence of {s!r}", c).clone() for s, c in confidences.items()}
        if ORACLE in self.confidences:
            raise ValueError(f"{ORACLE!r} names the best possible curve; name the score otherwise")
        if not self.confidences:
            raise ValueError("at least one score is needed; got none")
        for score, values in self.confidences.items():
            self.correct = as_flags(f"correct of {score!r}", correct, values).clone()
        if not bool(self.correct.any()):
            raise ValueError(f"at least one prediction must be right, to accept any; got {len(self.correct)} wrong")
        self.ood = {name: check_set(name, by_score, list(self.confidences)) for name, by_score in ood.items()}
        self.alpha = as_fractions("alpha", alpha)
        self.beta = as_fractions("beta", beta)
        self.recall = check_fraction("recall", recall)
        check_choice("pool", pool, ("samples", "datasets"))
        self.pool: Pool = pool
        self.groups = check_groups({} if groups is None else groups, list(self.ood))
        self._rankings: dict[tuple[str, str], Ranking] = {}
        self._table: pd.DataFrame | None = None

    def __repr__(self) -> str:
        right, wrong, *_ = (sizes := group_sizes(self.correct, self.ood)).values()
        sets = ", ".join(f"{name} {sizes[name]}" for name in self.ood) or "no OOD"
        return f"Evaluation({len(self.confidences)} scores; {right} correct, {wrong} wrong; {sets})"

    @property
    def scores(self) -> list[str]:
        """The names of the scores."""
        return list(self.confidences)

    @property
    def negatives(self) -> list[str]:
        """The groups that ID✓ is compared with: `wrong`, each OOD set, their mean, their union, and the groups."""
        return [*([WRONG] if not bool(self.correct.all()) else []), *self._ood_negatives]

    @property
    def _ood_negatives(self) -> list[str]:
        return [*self.ood, MEAN, POOLED, *self.groups] if self.ood else []

    @property
    def table(self) -> pd.DataFrame:
        """Every metric: score, negative, metric, alpha, beta (NaN where they play no part), value (a fraction)."""
        if self._table is None:
            shown = (WRONG, *self._ood_negatives)
            rows = [row for score in self.scores for row in self._rows(score, shown, self._ranked(score))]
            self._table = pd.DataFrame(rows, columns=COLUMNS)
        return self._table.copy()

    def only(self, scores: Sequence[str]) -> Evaluation:
        """The same evaluation of some of the scores."""
        chosen, some = self._wanted(scores), copy(self)
        some.confidences = {score: self.confidences[score] for score in chosen}
        some.ood = {name: {score: by_score[score] for score in chosen} for name, by_score in self.ood.items()}
        some._rankings, some._table = {}, None
        return some

    def ranking(self, score: str, negative: str = POOLED) -> Ranking:
        """The `Ranking` of a score with one OOD set, one group, or `pooled` as the OOD data (with `wrong`: none)."""
        self._check_score(score)
        if (score, negative) not in self._rankings:
            if len(self._rankings) >= _RANKINGS:
                self._rankings.pop(next(iter(self._rankings)))
            self._rankings[score, negative] = self._rank(score, negative)
        return self._rankings[score, negative]

    def _rank(self, score: str, negative: str) -> Ranking:
        groups, weights = self._samples(score, negative)
        return Ranking(*groups, ood_weights=weights)

    def _samples(self, score: str, negative: str) -> tuple[list[Tensor], Tensor | None]:
        """The confidences of ID✓, ID✗ and OOD, and the weights of the OOD samples where these differ."""
        inside = self.confidences[score]
        values = [self.ood[name][score] for name in self._members(negative)]
        weights = None
        if self.pool == "datasets" and len(values) > 1:
            weights = torch.cat([torch.full((len(v),), 1 / len(v), dtype=torch.float64) for v in values])
        return [inside[self.correct], inside[~self.correct], torch.cat([inside[:0], *values])], weights

    def sweep(
        self,
        alphas: ArrayLike,
        betas: ArrayLike,
        groups: Sequence[str] | None = None,
        scores: Sequence[str] | None = None,
    ) -> pd.DataFrame:
        """Every metric of the mixture on the whole (α, β) grid, for `pooled` and each group (or those in `groups`).

        Without OOD data it is for `wrong`, and α must be 1.
        """
        a, b = as_fractions("alphas", alphas), as_fractions("betas", betas)
        wanted = ([POOLED, *self.groups] if self.ood else [WRONG]) if groups is None else as_names(groups)
        if not wanted:
            raise ValueError("a sweep is for at least one group; got none")
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
        """The curve of each score, by default on all OOD data; with `risk_coverage` also that of the `oracle`."""
        negative = (POOLED if self.ood else WRONG) if negative is None else negative
        check_choice("kind", kind, ("risk_recall", "risk_coverage"))
        a, b = self._one("alpha", alpha), self._one("beta", beta)
        wanted = self._wanted(scores)
        curves = {score: getattr(self.ranking(score, negative), kind)(a, b) for score in wanted}
        if kind == "risk_coverage":
            curves[ORACLE] = self.ranking(wanted[0], negative).oracle_risk_coverage(a, b)
        return curves

    def intervals(
        self,
        *,
        method: Method = "auto",
        draws: int = 1000,
        level: float = 0.95,
        seed: int = 0,
        alpha: float | None = None,
        beta: float | None = None,
        scores: Sequence[str] | None = None,
        negatives: Sequence[str] | None = None,
    ) -> pd.DataFrame:
        """Every metric with its standard error `se`, its interval `low`…`high`, and the `method` that gave them.

        Analytic, from the influence of each sample, with ID✓, ID✗ and each OOD set as strata; the error on ID data has
        Wilson's interval. What has no derivative or too few samples for one, and all with `method="bootstrap"`, has the
        percentiles of a stratified bootstrap. `scores` and `negatives` pick those of interest.
        """
        return bars.intervals(self._request(alpha, beta, scores, negatives, method, draws, seed), level)

    def compare(
        self,
        baseline: str,
        *,
        method: Method = "auto",
        draws: int = 1000,
        level: float = 0.95,
        seed: int = 0,
        alpha: float | None = None,
        beta: float | None = None,
        scores: Sequence[str] | None = None,
        negatives: Sequence[str] | None = None,
    ) -> pd.DataFrame:
        """Every metric against a baseline's on the same samples, or those of some scores and negatives only.

        `difference` to the baseline, its standard error `se`, its interval `low`…`high`, `wins`, the probability that
        the score is the better one as far as these samples tell, and `method` as of `intervals`. In a bootstrap `wins`
        is the share of draws in which the score is the better one (equal ones count half).
        """
        self._check_score(baseline)
        chosen = None if scores is None else list(dict.fromkeys([*as_names(scores), baseline]))
        return bars.compare(self._request(alpha, beta, chosen, negatives, method, draws, seed), baseline, level)

    def _request(
        self, alpha: float | None, beta: float | None, scores: Sequence[str] | None, *rest: Any
    ) -> bars.Request:
        return bars.Request.of(self, self._one("alpha", alpha), self._one("beta", beta), self._wanted(scores), *rest)

    def assumptions(self, scorer: Scorer | None = None, *, level: float = 0.95) -> Assumptions:
        """Whether SIRC's premise holds for each `sirc(S1, S2)` whose S1 and S2 are among the scores too.

        The share of ID rows below a and the sensitivity to a and b need the scorer that the evaluation was made with.
        """
        from sirc.evaluation.premise import of_evaluation

        return of_evaluation(self, scorer, level=level)

    def report(self, path: PathLike, *, title: str | None = None, overwrite: bool = False) -> Path:
        """Write one HTML file in which α, β, the recall and the mix of OOD sets can be changed, and give its path.

        It opens from disk and needs no network. Several runs or models go on one page with `sirc.report.page.report`.
        """
        from sirc.report.page import report

        return report(self, path, title=title, overwrite=overwrite)

    def _rows(self, score: str, negatives: Sequence[str], rank: Callable[[str], Ranking]) -> list[Row]:
        """Rows of the table, from rankings with each negative (for the mean over sets, with each set)."""
        sets = self.ood if MEAN in negatives else ()
        # Without OOD data the mixture is all ID: plain selective classification.
        alone = torch.ones(1, dtype=torch.float64)
        cells = {}
        for name in dict.fromkeys([*negatives, *sets]):
            if name != MEAN:
                inside = name == WRONG
                cells[name] = self._cells(rank(name), "wrong" if inside else "ood", alone if inside else self.alpha)
        if sets:
            each = zip(*(cells[name] for name in sets), strict=True)
            cells[MEAN] = [(*same[0][:3], sum(cell[3] for cell in same) / len(same)) for same in each]
        return [(score, negative, *cell) for negative in negatives for cell in cells[negative]]

    def _placed(self, score: str, negative: str) -> Placed:
        values = self.confidences[score]
        sets = {name: self.ood[name][score] for name in self._members(negative)}
        return Placed(values[self.correct], values[~self.correct], sets, equal_sets=self.pool == "datasets")

    def _ranked(self, score: str) -> Callable[[str], Ranking]:
        """Gives the rankings of one score; on the CPU, ID and each OOD set are sorted once for all of them."""
        tensors = [self.confidences[score], *(by_score[score] for by_score in self.ood.values())]
        if any(values.device.type != "cpu" for values in tensors):
            return partial(self._rank, score)
        inside = SortedID(tensors[0], self.correct)
        sets = {name: sorted_scores(values) for name, values in zip(self.ood, tensors[1:], strict=True)}

        def rank(negative: str) -> Ranking:
            members = self._members(negative)
            if self.pool == "datasets" and len(members) > 1:
                return self._rank(score, negative)  # has weights
            if not members:
                return inside.ranking()
            return inside.ranking(
                sets[members[0]] if len(members) == 1 else sorted_scores(*(sets[name] for name in members))
            )

        return rank

    def _cells(self, ranking: Ranking, negative: Negative, alpha: Tensor) -> list[tuple[str, float, float, float]]:
        """Each metric, at each α and β if it depends on them; those of the ID data alone stand with `wrong`."""
        nan = torch.tensor([torch.nan])
        cells = []
        for metric in all_metrics():
            has_value = (ranking.num_wrong or negative != WRONG) if metric.per_negative else negative == WRONG
            if not has_value:
                continue
            grid = metric.grid(ranking, negative, self.recall, alpha, self.beta).tolist()
            alphas, betas = (alpha, self.beta) if metric.of_mixture else (nan, nan)
            for a, row in zip(alphas.tolist(), grid, strict=True):
                name = metric.label(self.recall)
                cells += [(name, a, b, value) for b, value in zip(betas.tolist(), row, strict=True)]
        return cells

    def _members(self, negative: str) -> Sequence[str]:
        if negative == WRONG or negative in self.ood:
            return [] if negative == WRONG else [negative]
        if negative == POOLED and self.ood:
            return list(self.ood)
        if negative in self.groups:
            return self.groups[negative]
        known = [n for n in self.negatives if n != MEAN]
        raise ValueError(f"`negative` must be one of {', '.join(known)}; got {negative!r}")

    def _one(self, name: str, value: float | None) -> float:
        if name == "alpha" and value is None and not self.ood:
            return 1.0
        known: Tensor = getattr(self, name) if value is None else as_fractions(name, value)
        if len(known) != 1:
            raise ValueError(f"`{name}` must be one number here; got {known.tolist()}. Pass `{name}=` one of them")
        return float(known[0])

    def _wanted(self, scores: Sequence[str] | None) -> list[str]:
        wanted = self.scores if scores is None else as_names(scores)
        if not wanted:
            raise ValueError("at least one score is needed; got none")
        for score in wanted:
            self._check_score(score)
        return wanted

    def _check_score(self, score: str) -> None:
        if not isinstance(score, str) or score not in self.confidences:
            raise ValueError(f"unknown score {shorten(repr(score))}; this evaluation has {', '.join(self.confidences)}")


def combine(runs: Sequence[Evaluation | pd.DataFrame]) -> pd.DataFrame:
    """The tables of several training runs as one: `mean`, `std` (sample, n − 1), `low` and `high` (± 2 std), `runs`.

    Takes evaluations or their tables, which must have the same rows. A table with a column `seed` holds the runs of
    several seeds, and models in a column `model` stay apart. One run alone has no std: it is NaN.
    """
    if isinstance(runs, Evaluation | pd.DataFrame) or not iterates(runs):
        raise ValueError(f"`runs` must be a list of evaluations or of their tables; got {type(runs).__name__}")
    tables: list[pd.DataFrame] = []
    for run in runs:
        table = run.table if isinstance(run, Evaluation) else run
        if not isinstance(table, pd.DataFrame) or not set(COLUMNS) <= set(table.columns):
            got = ", ".join(map(str, table.columns)) if isinstance(table, pd.DataFrame) else type(table).__name__
            raise ValueError(f"a run must be an evaluation, or a table with {', '.join(COLUMNS)}; got {got}")
        tables += [part for _, part in table.groupby("seed")] if "seed" in table.columns else [table]
    if not tables:
        raise ValueError("`runs` must hold at least one evaluation; got none")
    keys = [*(["model"] if "model" in tables[0].columns else []), *COLUMNS[:-1]]
    if any(table.duplicated(keys).any() for table in tables):
        raise ValueError(
            "a run has the same row twice: keep runs apart, as a list of tables or by a column `seed`, and models by a "
            "column `model`"
        )
    rows = pd.concat(tables, ignore_index=True).groupby(keys, sort=False, dropna=False)["value"]
    combined = rows.agg(mean="mean", std="std", runs="count")
    if odd := list(combined.index[rows.size() < len(tables)]):
        example = ", ".join(f"{key}={value}" for key, value in zip(keys, odd[0], strict=True))
        raise ValueError(
            f"runs combine when they have the same scores, sets, α and β; {len(odd)} rows are not in every run, such "
            f"as {example}"
        )
    combined["low"], combined["high"] = (combined["mean"] + sign * 2 * combined["std"] for sign in (-1, 1))
    return combined.reset_index()[[*keys, "mean", "std", "low", "high", "runs"]]
