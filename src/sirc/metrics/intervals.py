"""Rank statistics and shares with analytic intervals: AUROC, its paired differences, Spearman, Kendall, Wilson."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sirc.metrics import derivatives
from sirc.metrics.ranking import Ranking

Floats = npt.NDArray[np.float64]


@final
@dataclass(frozen=True)
class Estimate:
    """A number and its interval; the interval is NaN where there are too few samples for one."""

    value: float
    low: float
    high: float


@final
@dataclass(frozen=True)
class AurocComponents:
    """DeLong's structural components of an AUROC: each sample's share of the other groups that it is ranked against.

    With several negative groups they belong to the mean of their AUROCs: `positive` is the mean over the groups, and
    `negatives` has one tensor for each.
    """

    positive: Tensor
    negatives: tuple[Tensor, ...]

    @property
    def auroc(self) -> float:
        """P(positive > negative) + ½·P(equal)."""
        return float(self.positive.mean())

    def interval(self, level: float) -> Estimate:
        """The AUROC with DeLong's interval."""
        return self._estimate(level, 0.0, 1.0)

    def less(self, other: AurocComponents, level: float) -> Estimate:
        """This AUROC less another score's on the same samples, with DeLong's interval for correlated ones."""
        pairs = zip(self.negatives, other.negatives, strict=True)
        return AurocComponents(self.positive - other.positive, tuple(a - b for a, b in pairs))._estimate(
            level, -1.0, 1.0
        )

    def _estimate(self, level: float, least: float, most: float) -> Estimate:
        groups = (self.positive, *self.negatives)
        if min(len(group) for group in groups) < 2:
            return Estimate(self.auroc, math.nan, math.nan)
        share = 1 / len(self.negatives)
        weights = (1.0, *(share for _ in self.negatives))
        variance = sum(w**2 * float(g.var()) / len(g) for w, g in zip(weights, groups, strict=True))
        reach = normal_reach(level) * variance**0.5
        return Estimate(self.auroc, max(least, self.auroc - reach), min(most, self.auroc + reach))


def auroc_components(positive: Tensor, negatives: Sequence[Tensor]) -> AurocComponents:
    """Compare one group with one or more others."""
    positives, others = [], []
    for negative in negatives:
        ranking, places = Ranking.placed([positive, negative, negative[:0]])
        slopes, n = derivatives.auroc(ranking, "wrong"), len(positive)
        positives.append(slopes["correct"][places[:n]])
        others.append(slopes["wrong"][places[n:]])
    return AurocComponents(torch.stack(positives).mean(0), tuple(others))


def spearman(x: Floats, y: Floats, level: float) -> Estimate:
    """Spearman's ρ (equal values have their mean rank) with Bonett and Wright's interval; NaN where one is constant."""
    from scipy.stats import rankdata

    a, b = (rankdata(v) - (len(v) + 1) / 2 for v in (x, y))
    size = math.sqrt(float(a @ a)) * math.sqrt(float(b @ b))
    if not size:
        return Estimate(math.nan, math.nan, math.nan)
    rho = max(-1.0, min(1.0, float(a @ b) / size))
    if len(x) < 4:
        return Estimate(rho, -1.0, 1.0)
    if abs(rho) == 1:
        return Estimate(rho, rho, rho)
    reach = normal_reach(level) * math.sqrt((1 + rho**2 / 2) / (len(x) - 3))
    return Estimate(rho, math.tanh(math.atanh(rho) - reach), math.tanh(math.atanh(rho) + reach))


def kendall(x: Floats, y: Floats) -> float:
    """Kendall's τ-b; NaN where one is constant."""
    from scipy.stats import kendalltau

    return float(kendalltau(x, y).statistic)


def wilson_interval(count: int, of: int, level: float) -> Estimate:
    """A share with Wilson's interval, which keeps its width where none or all were counted."""
    from scipy.stats import binomtest

    low, high = binomtest(count, of).proportion_ci(level, "wilson")
    return Estimate(count / of, float(low), float(high))


def normal_reach(level: float) -> float:
    """The half width, in standard deviations, of a normal interval of that level."""
    return float(torch.special.ndtri(torch.tensor((1 + level) / 2, dtype=torch.float64)))
