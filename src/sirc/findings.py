"""The paper's four findings, looked for in a study: what was measured, how sure it is, and whether each holds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias, final

import pandas as pd

from sirc.results import RunResults
from sirc.scores.spec import parse

DETECTORS = ("max_logit", "energy", "gradnorm", "vim", "residual", "mahalanobis")
TOLERANCE = 0.002  # AUROC: what "keeps" and "matches" allow, 0.2 points
_GRID = (0.1, 0.3, 0.5, 0.7, 0.9)
Pairs: TypeAlias = dict[str, list[str]]  # scores by the baseline that each is compared with


@final
@dataclass(frozen=True)
class Finding:
    """One claim: what was measured in its favour or against it, and the verdict."""

    claim: str
    measured: str
    holds: bool
    details: pd.DataFrame
    """One row for each comparison: `model, seed, score, baseline, difference, low, high`, in AUROC or AURR."""

    @property
    def verdict(self) -> str:
        """In a word."""
        return "holds" if self.holds else "does not hold"


def findings(runs: Sequence[RunResults], *, draws: int = 500, seed: int = 0) -> list[Finding]:
    """Look for the paper's findings, with 95% intervals from a paired bootstrap within each run.

    A finding holds if it does in every run: where it claims a loss, the whole interval lies below 0; where it claims
    that something is kept or matched, the whole interval lies above −0.2 points.
    """
    found = [
        _detectors_lose_wrong(runs, draws, seed),
        _sirc_keeps(runs, draws, seed, "wrong", "SIRC keeps S1's AUROC of ID✗|ID✓ within 0.2 points"),
        _sirc_keeps(runs, draws, seed, "OOD mean", "SIRC matches or improves S1's AUROC of OOD|ID✓ (mean over sets)"),
        _best_changes(runs, draws, seed),
    ]
    return [finding for finding in found if finding is not None]


def _detectors_lose_wrong(runs: Sequence[RunResults], draws: int, seed: int) -> Finding | None:
    def detectors(names: Sequence[str]) -> Pairs:
        return {"msp": [name for name in DETECTORS if name in names]} if "msp" in names else {}

    rows = _auroc_differences(runs, draws, seed, "wrong", detectors)
    if rows.empty:
        return None
    lost = rows.high < 0
    measured = f"{_count(lost)} (score, network) pairs lose AUROC to MSP for sure; {_range(rows)}"
    return Finding("OOD detectors lose ID✗|ID✓ against MSP", measured, bool(lost.all()), rows)


def _sirc_keeps(runs: Sequence[RunResults], draws: int, seed: int, negative: str, claim: str) -> Finding | None:
    def augmented(names: Sequence[str]) -> Pairs:
        pairs: Pairs = {}
        for name in names:
            spec = parse(name)
            if spec.name == "sirc" and str(spec.args[0]) in names:
                pairs.setdefault(str(spec.args[0]), []).append(name)
        return pairs

    rows = _auroc_differences(runs, draws, seed, negative, augmented)
    if rows.empty:
        return None
    kept = rows.low >= -TOLERANCE
    return Finding(claim, f"{_count(kept)} (score, network) pairs do for sure; {_range(rows)}", bool(kept.all()), rows)


def _best_changes(runs: Sequence[RunResults], draws: int, seed: int) -> Finding | None:
    """The best score where OOD input is rare and errors are dear, against the best where OOD input dominates."""
    if any(not run.ood or len(run.evaluation.scores) < 2 for run in runs):
        return None
    parts, different = [], []
    for run in runs:
        sweep = run.evaluation.sweep(list(_GRID), list(_GRID))
        sweep = sweep[(sweep["metric"] == "aurr") & (sweep["negative"] == "pooled")]
        best = sweep.sort_values("value").drop_duplicates(["alpha", "beta"]).set_index(["alpha", "beta"])["score"]
        different.append(best.nunique())
        corners = {at: str(best[(at, at)]) for at in (_GRID[0], _GRID[-1])}
        for at, other in ((_GRID[0], _GRID[-1]), (_GRID[-1], _GRID[0])):
            if corners[at] != corners[other]:
                rows = _differences(run, {corners[other]: [corners[at]]}, "pooled", "aurr", draws, seed, at)
                parts.append(rows.assign(alpha=at, beta=at))
    rows = pd.concat(parts, ignore_index=True) if parts else pd.DataFrame({"high": [0.0]})
    sure = rows.high < 0
    measured = (
        f"{min(different)} to {max(different)} different scores have the lowest AURR on a grid of α, β from 0.1 to "
        f"0.9; {_count(sure)} (corner, network) pairs beat the best of the opposite corner for sure"
    )
    holds = len(parts) == 2 * len(runs) and bool(sure.all())
    return Finding("The best score changes with α and β", measured, holds, rows)


def _auroc_differences(
    runs: Sequence[RunResults], draws: int, seed: int, negative: str, pairs: Callable[[Sequence[str]], Pairs]
) -> pd.DataFrame:
    """AUROC differences of the pairs that each run has."""
    parts = [
        _differences(run, pairs(run.evaluation.scores), negative, "auroc", draws, seed, None)
        for run in runs
        if negative == "wrong" or run.ood
    ]
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()


def _differences(
    run: RunResults, pairs: Pairs, negative: str, metric: str, draws: int, seed: int, at: float | None
) -> pd.DataFrame:
    """One row for each score and its baseline; `at` is α and β."""
    parts = []
    for baseline, scores in pairs.items():
        if scores:
            table = run.evaluation.compare(
                baseline, draws=draws, seed=seed, alpha=at, beta=at, scores=scores, negatives=[negative]
            )
            table = table[(table["metric"] == metric) & (table["negative"] == negative)]
            table = table[["score", "difference", "low", "high"]]
            parts.append(table.assign(baseline=baseline, model=run.model, seed=run.seed))
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()


def _count(which: Iterable[bool]) -> str:
    flags = list(which)
    return f"{sum(flags)} of {len(flags)}"


def _range(rows: pd.DataFrame) -> str:
    means = rows.groupby(["model", "score"])["difference"].mean() * 100
    low, high = rows["low"].min() * 100, rows["high"].max() * 100
    return (
        f"mean differences from {means.min():+.2f} to {means.max():+.2f} points, 95% intervals between {low:+.2f} and "
        f"{high:+.2f}"
    )
