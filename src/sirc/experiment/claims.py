"""Checks of the paper's four findings in a study: what was measured, how surely, and the verdict."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias, final

import pandas as pd

from sirc.experiment.results import RunResults
from sirc.scores import parse

DETECTORS = ("max_logit", "energy", "gradnorm", "vim", "residual", "mahalanobis")
TOLERANCE = 0.002  # in AUROC: "keeps" and "matches" allow a loss of 0.2 points
_GRID = (0.1, 0.3, 0.5, 0.7, 0.9)
Pairs: TypeAlias = dict[str, list[str]]  # the scores that are compared with each baseline


@final
@dataclass(frozen=True)
class Finding:
    """One claim of the paper, what was measured, and the verdict.

    `sure` counts the comparisons whose whole interval supports the claim, `against` those whose whole interval
    contradicts it, and `open` the rest. `details` has one row for each comparison: `model, seed, score, baseline,
    difference, low, high`, in AUROC or AURR.
    """

    claim: str
    measured: str
    sure: int
    against: int
    open: int
    details: pd.DataFrame

    @property
    def holds(self) -> bool:
        """Whether every comparison surely supports the claim."""
        return self.sure > 0 and self.against == self.open == 0

    @property
    def verdict(self) -> str:
        """The outcome in words: holds, does not hold, or undecided."""
        if self.holds:
            return "holds"
        return "does not hold" if self.against else "undecided"


def findings(runs: Sequence[RunResults], *, draws: int = 500) -> list[Finding]:
    """Check the paper's findings with the 95% intervals of paired differences that `compare` gives for each run.

    A finding holds if every comparison in every run supports it: for a loss, the whole interval lies below 0; for
    "keeps" and "matches", the whole interval lies above −0.2 points. It does not hold if one comparison surely
    contradicts it. Otherwise it is undecided.
    """
    checked = [
        _detectors_lose_wrong(runs, draws),
        _sirc_keeps(runs, draws, "wrong", "SIRC keeps S1's AUROC of ID✗|ID✓ within 0.2 points"),
        _sirc_keeps(runs, draws, "OOD mean", "SIRC matches or improves S1's AUROC of OOD|ID✓ (mean over sets)"),
        _best_changes(runs, draws),
    ]
    return [finding for finding in checked if finding is not None]


def _detectors_lose_wrong(runs: Sequence[RunResults], draws: int) -> Finding | None:
    def detectors(names: Sequence[str]) -> Pairs:
        present = [name for name in DETECTORS if name in names]
        return {"msp": present} if present and "msp" in names else {}

    rows = _auroc_differences(runs, draws, "wrong", detectors)
    sure, against = rows["high"] < 0, rows["low"] > 0
    return _finding("OOD detectors lose ID✗|ID✓ against MSP", {"all six": rows}, sure, against, rows)


def _sirc_keeps(runs: Sequence[RunResults], draws: int, negative: str, claim: str) -> Finding | None:
    def augmented(names: Sequence[str]) -> Pairs:
        pairs: Pairs = {}
        for name in names:
            spec = parse(name)
            if spec.name == "sirc" and str(spec.args[0]) in names:
                pairs.setdefault(str(spec.args[0]), []).append(name)
        return pairs

    rows = _auroc_differences(runs, draws, negative, augmented)
    sure, against = rows["low"] >= -TOLERANCE, rows["high"] < -TOLERANCE
    second = rows["score"].map(lambda name: ", ".join(map(str, parse(name).args[1:])))
    return _finding(claim, {f"with {s2}": rows[second == s2] for s2 in dict.fromkeys(second)}, sure, against, rows)


def _best_changes(runs: Sequence[RunResults], draws: int) -> Finding | None:
    """Compare the best score where OOD inputs are frequent and costly, (0.1, 0.1), with that at (0.9, 0.9)."""
    if not runs or any(not run.ood or len(run.evaluation.scores) < 2 for run in runs):
        return None
    parts, different = [], []
    for run in runs:
        sweep = run.evaluation.sweep(list(_GRID), list(_GRID))
        sweep = sweep[(sweep["metric"] == "aurr") & (sweep["negative"] == "pooled")]
        sweep = sweep.sort_values("value", kind="stable")  # of equal scores the same one is best everywhere
        best = sweep.drop_duplicates(["alpha", "beta"]).set_index(["alpha", "beta"])["score"]
        different.append(best.nunique())
        corners = {at: str(best[(at, at)]) for at in (_GRID[0], _GRID[-1])}
        for at, other in ((_GRID[0], _GRID[-1]), (_GRID[-1], _GRID[0])):
            if corners[at] != corners[other]:
                rows = _differences(run, {corners[other]: [corners[at]]}, "pooled", "aurr", draws, at)
                parts.append(rows.assign(alpha=at, beta=at))
    rows = _joined(parts)
    sure = int((rows["high"] < 0).sum())
    against = int((rows["low"] > 0).sum()) + 2 * len(runs) - len(rows)  # the same score in both corners
    measured = (
        f"{min(different)} to {max(different)} different scores have the lowest AURR on a grid of α, β from 0.1 to "
        f"0.9; in {sure} of {2 * len(runs)} corners (0.1, 0.1) and (0.9, 0.9) the best surely beats the other corner's"
    )
    open_ = 2 * len(runs) - sure - against
    return Finding("The best score changes with α and β", measured, sure, against, open_, rows)


def _finding(
    claim: str, parts: dict[str, pd.DataFrame], sure: pd.Series, against: pd.Series, rows: pd.DataFrame
) -> Finding | None:
    """Describe each part in words: its counts, and the ranges of its differences and intervals. None without rows."""
    if rows.empty:
        return None
    sentences = []
    for name, part in parts.items():
        means = part.groupby(["model", "score"])["difference"].mean() * 100
        yes, no = int(sure[part.index].sum()), int(against[part.index].sum())
        sentences.append(
            f"{name}: {yes} of {len(part)} surely, {no} surely not; mean differences {means.min():+.2f} to "
            f"{means.max():+.2f} points, 95% intervals from {part['low'].min() * 100:+.2f} to "
            f"{part['high'].max() * 100:+.2f}"
        )
    yes, no = int(sure.sum()), int(against.sum())
    return Finding(claim, "; ".join(sentences), yes, no, len(rows) - yes - no, rows)


def _auroc_differences(
    runs: Sequence[RunResults], draws: int, negative: str, pairs: Callable[[Sequence[str]], Pairs]
) -> pd.DataFrame:
    """The AUROC differences of the pairs in each run."""
    known = [run for run in runs if negative == "wrong" or run.ood]
    return _joined(_differences(run, pairs(run.evaluation.scores), negative, "auroc", draws, None) for run in known)


def _differences(
    run: RunResults, pairs: Pairs, negative: str, metric: str, draws: int, at: float | None
) -> pd.DataFrame:
    """One row for each score and its baseline; `at` is the value of both α and β."""
    parts = []
    for baseline, scores in pairs.items():
        table = run.evaluation.compare(baseline, draws=draws, alpha=at, beta=at, scores=scores, negatives=[negative])
        table = table.query("metric == @metric and negative == @negative")[["score", "difference", "low", "high"]]
        parts.append(table.assign(baseline=baseline, model=run.model, seed=run.seed))
    return _joined(parts)


def _joined(tables: Iterable[pd.DataFrame]) -> pd.DataFrame:
    """All rows of these tables in one; without rows, an empty table with the columns that are read."""
    filled = [table for table in tables if len(table)]
    return pd.concat(filled, ignore_index=True) if filled else pd.DataFrame(columns=["score", "low", "high"])
