"""Regret over an (α, β) grid, its intervals, and which candidates may be the best, from values and draws of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

EQUAL = 1e-6  # relative: draws have single precision, and what differs by less is equal


@final
@dataclass(frozen=True)
class Regrets:
    """The regret of each candidate: in the worst point of the grid and in the mean over it."""

    grid: Floats
    """(scores, α, β)"""
    worst: Floats
    average: Floats

    def of(self, by: str) -> Floats:
        """One figure for each candidate (and draw)."""
        return self.worst if by == "worst" else self.average


def regrets(values: Floats, scale: Floats) -> Regrets:
    """Regret = (value − the best candidate's) / scale at each point; `values` is (…, scores, α, β)."""
    grid = (values - values.min(-3, keepdims=True)) / scale
    return Regrets(grid, grid.max((-2, -1)), grid.mean((-2, -1)))


def interval(value: Floats, draws: Floats, level: float) -> tuple[Floats, Floats]:
    """value ± the level's quantile of |draw − value|, at least 0.

    Symmetric, as regret is a maximum, or measured from one: noise only adds to it, and does so again in each draw. A
    percentile interval would leave out a true regret of 0; its mirror image would end at 0 for the best candidate.
    """
    reach = np.quantile(np.abs(draws - value), level, axis=0)
    return np.maximum(0.0, value - reach), value + reach


def contenders(value: Floats, draws: Floats, level: float, resolution: float) -> Flags:
    """The candidates that may be the best: those not shown to be worse than any other.

    t is worse than s if d = value_t − value_s exceeds q·se, with se the standard deviation of d over the draws and q
    the level's quantile over draws of the largest |d* − d|/se of all pairs (as Tukey's for means). So with probability
    about `level` no pair at all is called wrongly, whichever of the candidates turned out to lead.
    """
    count = len(value)
    largest = np.zeros(len(draws))
    exceeds = np.zeros(count)
    for t in range(count):
        difference = value[t] - value
        drawn = draws[:, [t]] - draws
        # Candidates that rank alike differ by rounding only.
        spread = np.maximum(drawn.std(0, ddof=1), resolution)
        largest = np.maximum(largest, (np.abs(drawn - difference) / spread).max(1))
        exceeds[t] = (difference / spread).max()
    found: Flags = exceeds <= np.quantile(largest, level)
    return found


def wins(draws: Floats, resolution: float) -> Floats:
    """The share of draws in which each candidate has the lowest value; equal ones share the draw."""
    lowest = draws <= draws.min(1, keepdims=True) + resolution
    shares: Floats = (lowest / lowest.sum(1, keepdims=True)).mean(0)
    return shares
