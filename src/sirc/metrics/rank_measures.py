"""Rank statistics with intervals in closed form: AUROC and its paired differences, ρ, τ, and shares."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

FloatArray = npt.NDArray[np.float64]


@final
@dataclass(frozen=True)
class Estimate:
    """A number and its interval; the interval is NaN where there are too few samples for one."""

    value: float
    low: float
    high: float


@final
@dataclass(frozen=True)
class Components:
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

    def less(self, other: Components, level: float) -> Estimate:
        """This AUROC less another score's on the same samples, with DeLong's interval for correlated ones."""
        pairs = zip(self.negatives, other.negatives, strict=True)
        return Components(self.positive - other.positive, tuple(a - b for a, b in pairs))._estimate(level, -1.0, 1.0)

    def _estimate(self, level: float, least: float, most: float) -> Estimate:
        groups = (self.positive, *self.negatives)
        if min(len(group) for group in groups) < 2:
            return Estimate(self.auroc, math.nan, math.nan)
        share = 1 / len(self.negatives)
        weights = (1.0, *(share for _ in self.negatives))
        variance = sum(w**2 * float(g.var()) / len(g) for w, g in zip(weights, groups, strict=True))
        reach = quantile(level) * variance**0.5
        return Estimate(self.auroc, max(least, self.auroc - reach), min(most, self.auroc + reach))


def components(positive: Tensor, negatives: Sequence[Tensor]) -> Components:
    """Compare one group with one or more others."""
    own, _ = positive.sort()
    shares = [_share_below(positive, group.sort().values) for group in negatives]
    return Components(torch.stack(shares).mean(0), tuple(1 - _share_below(group, own) for group in negatives))


def _share_below(values: Tensor, ascending: Tensor) -> Tensor:
    below = torch.searchsorted(ascending, values.contiguous(), right=False)
    up_to = torch.searchsorted(ascending, values.contiguous(), right=True)
    return (below + up_to).double() / (2 * len(ascending))


def spearman(x: FloatArray, y: FloatArray, level: float) -> Estimate:
    """Spearman's ρ (equal values have their mean rank) with Bonett and Wright's interval; NaN where one is constant."""
    a, b = (_mean_ranks(v) - (len(v) + 1) / 2 for v in (x, y))
    size = math.sqrt(float(a @ a)) * math.sqrt(float(b @ b))
    if not size:
        return Estimate(math.nan, math.nan, math.nan)
    rho = max(-1.0, min(1.0, float(a @ b) / size))
    if abs(rho) == 1 or len(x) < 4:
        return Estimate(rho, *((rho, rho) if len(x) >= 4 else (-1.0, 1.0)))
    reach = quantile(level) * math.sqrt((1 + rho**2 / 2) / (len(x) - 3))
    return Estimate(rho, math.tanh(math.atanh(rho) - reach), math.tanh(math.atanh(rho) + reach))


def kendall(x: FloatArray, y: FloatArray) -> float:
    """Kendall's τ-b; NaN where one is constant."""
    (rx, cx), (ry, cy) = (_dense_ranks(v) for v in (x, y))
    pairs = _count_pairs(np.array([len(x)]))
    both = _count_pairs(np.unique(rx * len(cy) + ry, return_counts=True)[1])
    tied_x, tied_y = _count_pairs(cx), _count_pairs(cy)
    against = discordant(rx, ry)
    scale = math.sqrt(pairs - tied_x) * math.sqrt(pairs - tied_y)
    return (pairs - tied_x - tied_y + both - 2 * against) / scale if scale else math.nan


def discordant(x: npt.NDArray[np.int64], y: npt.NDArray[np.int64]) -> int:
    """Count the pairs that x and y, ranks from 0 on, order in opposite ways.

    With rows in the order of x these are the inversions of y. Two ranks differ first, from the top, in one bit: bit by
    bit, count the pairs with the same higher bits in which a 1 comes before a 0.
    """
    ranks = y[np.lexsort((y, x))]
    total = 0
    for bit in range(max(1, int(ranks.max(initial=0)).bit_length()) - 1, -1, -1):
        order = np.argsort(ranks >> (bit + 1), kind="stable")
        prefix, one = ranks[order] >> (bit + 1), (ranks[order] >> bit) & 1
        ones = np.cumsum(one)
        starts = np.flatnonzero(np.diff(prefix, prepend=prefix[0] - 1))
        before = (ones - one)[starts]  # the ones of earlier groups
        total += int(((1 - one) * (ones - np.repeat(before, np.diff(starts, append=len(prefix))))).sum())
    return total


def share(count: int, of: int, level: float) -> Estimate:
    """A share with Wilson's interval, which keeps its width where none or all were counted."""
    z2, p = quantile(level) ** 2, count / of
    centre = (p + z2 / (2 * of)) / (1 + z2 / of)
    reach = math.sqrt(z2 * (p * (1 - p) / of + z2 / (4 * of**2))) / (1 + z2 / of)
    return Estimate(p, 0.0 if count == 0 else centre - reach, 1.0 if count == of else centre + reach)


def quantile(level: float) -> float:
    """How many standard deviations a normal interval of that level reaches."""
    return float(torch.special.ndtri(torch.tensor((1 + level) / 2, dtype=torch.float64)))


def _mean_ranks(values: FloatArray) -> FloatArray:
    ranks, counts = _dense_ranks(values)
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2)[ranks]


def _dense_ranks(values: FloatArray) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    _, ranks, counts = np.unique(values, return_inverse=True, return_counts=True)
    return ranks.astype(np.int64), counts.astype(np.int64)


def _count_pairs(counts: npt.NDArray[np.int64]) -> int:
    return int((counts * (counts - 1) // 2).sum())
