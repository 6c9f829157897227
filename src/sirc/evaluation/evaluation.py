"""Evaluation of a scorer, or of confidences from elsewhere, on ID and OOD data: a tidy table with error bars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Unpack, final, overload

import pandas as pd
import torch
from torch import Tensor

from sirc._utils.arrays import ArrayLike
from sirc._utils.checks import check_device, check_type, iterates
from sirc._utils.files import PathLike
from sirc._utils.text import quoted, shorten
from sirc.evaluation import error_bars
from sirc.evaluation.error_bars import Method
from sirc.evaluation.inputs import (
    COLUMNS,
    POOLED,
    AnyOutputs,
    ConfidenceArrays,
    OodSets,
    as_names,
    check_classes,
    check_set,
    group_sizes,
    id_confidences,
    ood_confidences,
    require_right,
)
from sirc.evaluation.spilled import SpilledEvaluation
from sirc.evaluation.tabulated import Pool, Settings, Tabulated
from sirc.metrics import Placed, Ranking, as_flags, as_scores, pooled
from sirc.progress import Progress
from sirc.scores import Scorer

if TYPE_CHECKING:
    from sirc.evaluation.premise import Assumptions

_RANKINGS = 64  # rankings kept for curves and sweeps; the oldest is dropped first


@overload
def evaluate(
    scorer: Scorer | ConfidenceArrays,
    test: AnyOutputs | None = None,
    ood: OodSets | None = None,
    *,
    scores: Sequence[str] | None = None,
    **settings: Unpack[Settings],
) -> Evaluation: ...


@overload
def evaluate(
    scorer: Scorer | ConfidenceArrays,
    test: AnyOutputs | None = None,
    ood: OodSets | None = None,
    *,
    spill: PathLike,
    scores: Sequence[str] | None = None,
    device: torch.device | str = "cpu",
    progress: Progress | bool | None = None,
    **settings: Unpack[Settings],
) -> SpilledEvaluation: ...


def evaluate(
    scorer: Scorer | ConfidenceArrays,
    test: AnyOutputs | None = None,
    ood: OodSets | None = None,
    *,
    alpha: ArrayLike = 0.5,
    beta: ArrayLike = 0.5,
    scores: Sequence[str] | None = None,
    groups: Mapping[str, Sequence[str]] | None = None,
    pool: Pool = "samples",
    recall: float = 0.95,
    spill: PathLike | None = None,
    device: torch.device | str = "cpu",
    progress: Progress | bool | None = None,
) -> Evaluation | SpilledEvaluation:
    """Evaluate confidences for selective classification with OOD data.

    With a `Scorer`: `test` is labelled ID data, `ood` a dict of unlabelled OOD sets (`Outputs`, stores, or iterables of
    batches). With confidences from elsewhere: `scorer` is `{score: (confidence, correct)}` on ID data, and `ood` is
    `{set: {score: confidence}}`.

    `alpha` (the share of ID input) and `beta` (the cost of accepting ID✗, 1 − β that of OOD) are numbers or arrays.
    `scores` selects some of the scorer's specs. `groups` names unions of OOD sets, `{"Close": [...], "Far": [...]}`;
    `pooled` is the union of all. In a union, `pool="samples"` weighs samples equally, `"datasets"` sets equally.

    `spill` is a folder for confidences that do not fit in memory. All data must then be stores, whose shards are scored
    on `device`. The table is the same, and memory does not grow with the rows. The same call resumes what a stopped one
    left in the folder. Inside `sirc.distributed.process_group()` the processes share the work.

    Example:
        >>> import sirc
        >>> given = {"msp": ([0.9, 0.8, 0.6, 0.7], [True, True, True, False])}
        >>> ev = sirc.evaluate(given, ood={"noise": {"msp": [0.65, 0.2]}})
        >>> aurocs = ev.table.query("metric == 'auroc'").set_index("negative")["value"]
        >>> aurocs.round(3).to_dict()
        {'wrong': 0.667, 'noise': 0.833, 'OOD mean': 0.833, 'pooled': 0.833}
    """
    if spill is None and check_device(device).type != "cpu":
        raise ValueError(
            f"`device` is for stores that are spilled; got {device} without `spill`. Pass `spill=` too, or outputs on "
            "the device"
        )
    check_classes(test, ood)
    settings = Settings(alpha=alpha, beta=beta, groups=groups, pool=pool, recall=recall)
    if spill is not None:
        return SpilledEvaluation(scorer, test, ood, spill, scores, device=device, progress=progress, **settings)
    confidences, correct = id_confidences(scorer, test, scores, "test")
    sets = ood_confidences(scorer, ood, list(confidences))
    return Evaluation(confidences, correct, sets, **settings)


@final
class Evaluation(Tabulated):
    """The confidences of several scores on ID and OOD data, and every result that follows; `sirc.evaluate` makes it.

    Example:
        >>> import sirc
        >>> ev = sirc.Evaluation({"msp": [0.9, 0.8, 0.7]}, [True, True, False], {"noise": {"msp": [0.1, 0.75]}})
        >>> ev
        Evaluation(1 scores; 2 correct, 1 wrong; noise 2)
        >>> ev.ranking("msp", "noise").auroc("ood")
        1.0
    """

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
        # Copied, as metrics are computed later and must not change with the caller's arrays.
        self.confidences = {s: as_scores(f"confidence of {quoted(s)}", c).clone() for s, c in confidences.items()}
        super().__init__(list(confidences), list(ood), alpha=alpha, beta=beta, groups=groups, pool=pool, recall=recall)
        for score, values in self.confidences.items():
            self.correct = as_flags(f"correct of {quoted(score)}", correct, values).clone()
        self.ood = {name: check_set(name, by_score, list(self.confidences)) for name, by_score in ood.items()}
        require_right(self.sizes)
        self._rankings: dict[tuple[str, str], Ranking] = {}

    @property
    def sizes(self) -> dict[str, int]:
        """The number of samples in `correct`, `wrong` and each OOD set."""
        return group_sizes(self.correct, self.ood)

    def only(self, scores: Sequence[str]) -> Evaluation:
        """The same evaluation of some of the scores."""
        chosen, some = self._wanted(scores), copy(self)
        some.confidences = {score: self.confidences[score] for score in chosen}
        some.ood = {name: {score: by_score[score] for score in chosen} for name, by_score in self.ood.items()}
        some.scores, some._rankings, some._table = chosen, {}, None
        return some

    def ranking(self, score: str, negative: str = POOLED) -> Ranking:
        """The `Ranking` of a score. Its OOD data is one OOD set, one group or `pooled`; with `wrong` it has none."""
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
        right, wrong, sets = self._groups(score, negative)
        return pooled(right, wrong, list(sets.values()), equal_sets=self.pool == "datasets")

    def _placed(self, score: str, negative: str) -> Placed:
        return Placed(*self._groups(score, negative), equal_sets=self.pool == "datasets")

    def _groups(self, score: str, negative: str) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """The confidences of ID✓, of ID✗, and of each OOD set of a negative."""
        right, wrong = (self.confidences[score].index_select(0, rows) for rows in self._right_and_wrong)
        return right, wrong, {name: self.ood[name][score] for name in self._members(negative)}

    @cached_property
    def _right_and_wrong(self) -> tuple[Tensor, Tensor]:
        """The rows of ID✓ and of ID✗."""
        return self.correct.nonzero()[:, 0], (~self.correct).nonzero()[:, 0]

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
        """Every metric with its standard error `se`, its interval `low`…`high`, and the `method` behind them.

        `analytic` intervals come from the influence of each sample, with ID✓, ID✗ and each OOD set as strata; the error
        on ID data has Wilson's interval. Metrics without a derivative, or with too few samples, have the percentiles of
        a stratified `bootstrap`. With `method="bootstrap"` all have, and metrics of the ID data are left out.
        `scores` and `negatives` select rows.
        """
        asked = error_bars.Request(self, scores, negatives, alpha, beta, method, draws, level, seed)
        return error_bars.intervals(asked)

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
        """Every metric of each other score against the baseline's, on the same samples.

        The columns are the `difference` to the baseline, its standard error `se`, its interval `low`…`high`, `wins`
        (the probability that the score is better, given these samples) and `method`, as for `intervals`. In a bootstrap
        `wins` is the share of draws in which the score is better; ties count half.

        Example:
            >>> import numpy as np
            >>> import sirc
            >>> noise, right = np.random.default_rng(0).normal(size=(2, 500)), np.arange(500) < 400
            >>> ev = sirc.evaluate({"old": (right + 2 * noise[0], right), "new": (right + noise[1], right)})
            >>> row = ev.compare("old").query("metric == 'auroc'").iloc[0]
            >>> row.score, round(float(row.difference), 2), bool(row.low > 0)
            ('new', 0.21, True)
        """
        self._check_score(baseline)
        chosen = None if scores is None else list(dict.fromkeys([*as_names(scores), baseline]))
        asked = error_bars.Request(self, chosen, negatives, alpha, beta, method, draws, level, seed)
        return error_bars.compare(asked, baseline)

    def assumptions(self, scorer: Scorer | None = None, *, level: float = 0.95) -> Assumptions:
        """Whether SIRC's premise holds for each `sirc(S1, S2)` whose S1 and S2 are among the scores too.

        The share of ID rows below a, and the sensitivity to a and b, need the scorer behind the evaluation.
        """
        from sirc.evaluation.premise import of_evaluation

        return of_evaluation(self, scorer, level=level)

    def report(
        self, path: PathLike, *, title: str | None = None, notes: Sequence[str] = (), overwrite: bool = False
    ) -> Path:
        """Write one HTML file in which α, β, the recall and the mix of OOD sets can be changed; returns its path.

        It opens from disk and needs no network. `notes` are lines under its title. `sirc.report.page.report` puts
        several runs or models on one page.

        Example:
            >>> import tempfile
            >>> import sirc
            >>> ev = sirc.Evaluation({"msp": [0.9, 0.8, 0.7]}, [True, True, False], {"noise": {"msp": [0.1, 0.75]}})
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     ev.report(f"{folder}/report.html").name
            'report.html'
        """
        from sirc.report.page import report

        return report(self, path, title=title, notes=notes, overwrite=overwrite)


def combine(runs: Sequence[Tabulated | pd.DataFrame]) -> pd.DataFrame:
    """The tables of several training runs as one: `mean`, `std` (sample, n − 1), `low` and `high` (± 2 std), `runs`.

    Takes evaluations or their tables, which must have the same rows. A table with a column `seed` holds one run for
    each seed; models in a column `model` stay apart. The std of a single run is NaN.

    Example:
        >>> import sirc
        >>> right = [True, True, False]
        >>> runs = [sirc.evaluate({"msp": (confidence, right)}) for confidence in ([0.9, 0.8, 0.7], [0.9, 0.6, 0.7])]
        >>> sirc.combine(runs).query("metric == 'auroc'")[["mean", "low", "high", "runs"]].round(3).to_dict("records")
        [{'mean': 0.75, 'low': 0.043, 'high': 1.457, 'runs': 2}]
    """
    if isinstance(runs, Tabulated | pd.DataFrame) or not iterates(runs):
        raise ValueError(f"`runs` must be a list of evaluations or of their tables; got {type(runs).__name__}")
    tables: list[pd.DataFrame] = []
    for run in runs:
        table = run.table if isinstance(run, Tabulated) else run
        if not isinstance(table, pd.DataFrame) or not set(COLUMNS) <= set(table.columns):
            got = ", ".join(map(str, table)) if isinstance(table, pd.DataFrame) else type(table).__name__
            raise ValueError(f"a run must be an evaluation, or a table with {', '.join(COLUMNS)}; got {shorten(got)}")
        tables += [part for _, part in table.groupby("seed")] if "seed" in table.columns else [table]
    if not tables:
        raise ValueError("`runs` must hold at least one evaluation; got none")
    keys = [*(["model"] if "model" in tables[0].columns else []), *COLUMNS[:-1]]
    if any(table.duplicated(keys).any() for table in tables):
        raise ValueError(
            "each row of a run must be there once; got one twice. Pass runs as a list of tables or with a column "
            "`seed`, and models with a column `model`"
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
