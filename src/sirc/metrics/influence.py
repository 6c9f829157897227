"""Influence of each sample on the metrics, and the intervals of values and differences that follow from it.

Samples of a stratum (ID✓, ID✗, each OOD set) are independent, so the error of a metric is that of the mean of their
influences, and the variances of the strata add up. Quantiles are Student's, with Welch and Satterthwaite's degrees of
freedom. Intervals of few samples also allow for an input that was not drawn.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, final

import numpy as np
import torch
from torch import Tensor

from sirc._utils.arrays import Floats
from sirc.metrics.ranking import Negative, Ranking, pooled
from sirc.metrics.registry import Metric

Influences = dict[str, Tensor]
"""By stratum, the influence of each of its samples on some statistics, (statistics, samples)."""

_ROOM = 1 << 25  # the most influences in memory at a time
_FAR = 1e9  # standard errors, beyond any range
# A small sample may lack the one input that matters most; then the influences of the others are skewed. So each end of
# an interval allows for one more input, `_FARTHER` times as far out as the farthest one. Its weight is 0 up to a
# skewness of `_SKEW`, and rises from there to 1 with a slope of `_STEEP`. `benchmarks/coverage.py` chose these numbers.
_STEEP = 6.0
_SKEW, _FARTHER = 0.2, 5.0  # for a value
_DIFFERENCE_SKEW, _DIFFERENCE_FARTHER = 0.4, 3.0  # for a difference
_ROUNDING = 1e-13  # the largest difference between equal influences
_SIDES = np.array([[1.0], [-1.0]])


@final
class Placed:
    """One score's ranking of ID✓, ID✗ and some OOD sets, and the place of each sample in it."""

    def __init__(self, correct: Tensor, wrong: Tensor, sets: Mapping[str, Tensor], *, equal_sets: bool) -> None:
        groups, weights = pooled(correct, wrong, list(sets.values()), equal_sets=equal_sets)
        self.ranking, places = Ranking.placed(groups, weights)
        if len(places) < 1 << 31:
            places = places.int()  # with which `index_select` is nearly twice as fast
        of_correct, of_wrong, *of_sets = torch.split(places, [len(x) for x in (correct, wrong, *sets.values())])
        # By stratum: its group, its share of the group, and the threshold that first accepts each sample.
        self._strata = {"correct": ("correct", 1.0, of_correct), "wrong": ("wrong", 1.0, of_wrong)}
        for name, of_set in zip(sets, of_sets, strict=True):
            share = 1 / len(sets) if equal_sets else len(of_set) / self.ranking.num_ood
            self._strata[f"ood {name}"] = ("ood", share, of_set)

    def influences(
        self, metrics: Sequence[Metric], negative: Negative, recall: float, alpha: float, beta: Tensor
    ) -> Influences:
        """The influences on each metric; on metrics of the mixture, at each β."""
        slopes = [metric.slopes(self.ranking, negative, recall, alpha, beta) for metric in metrics]
        counts = [len(next(iter(by_group.values()))) for by_group in slopes]
        found = {}
        for name, (group, share, place) in self._strata.items():
            if len(place):
                rows = torch.empty(sum(counts), len(place), dtype=torch.float64, device=place.device)
                for by_group, part in zip(slopes, torch.split(rows, counts), strict=True):
                    if group not in by_group:
                        part.zero_()
                    for row, slope in zip(part, by_group.get(group, ()), strict=False):
                        torch.index_select(slope, 0, place, out=row)
                found[name] = rows.mul_(share) if share != 1 else rows
        return found


def covariance(placed: Sequence[Placed], metric: Metric, negative: Negative, recall: float, alpha: Tensor) -> Tensor:
    """The covariance of one metric over every α, score and β of 1 and 0, in this order, on the same samples.

    The metric is linear in β, so these two give its value at any other.
    """
    ends = torch.tensor([1.0, 0.0], dtype=torch.float64)

    def centred(some: Tensor) -> Influences:
        each = [one.influences([metric], negative, recall, a, ends) for a in some.tolist() for one in placed]
        stacked = {stratum: torch.cat([influences[stratum] for influences in each]) for stratum in each[0]}
        return {stratum: values - values.mean(1, keepdim=True) for stratum, values in stacked.items()}

    per_alpha = 2 * len(placed)
    size = max(1, _ROOM // (per_alpha * len(placed[0].ranking)))
    blocks = torch.split(alpha, size)
    rows = torch.arange(per_alpha * len(alpha))
    spans = torch.split(rows, per_alpha * size)
    total = torch.zeros(len(rows), len(rows), dtype=torch.float64)
    for number, block in enumerate(blocks):
        own = centred(block)
        for other in range(number + 1):
            theirs = own if other == number else centred(blocks[other])
            sums = [v @ theirs[name].T / (v.shape[1] * max(1, v.shape[1] - 1)) for name, v in own.items()]
            both = torch.stack(sums).sum(0).cpu()
            total[spans[number][:, None], spans[other]] = both
            total[spans[other][:, None], spans[number]] = both.T
    return total


def mean_influences(parts: Sequence[Influences]) -> Influences:
    """The influences on the means of statistics."""
    total: Influences = {}
    for influences in parts:
        for stratum, values in influences.items():
            total[stratum] = total[stratum] + values if stratum in total else values
    return {stratum: values / len(parts) for stratum, values in total.items()}


class Spread(NamedTuple):
    """Sampling error of statistics; all but `variance` are for both ends of an interval, (2, statistics).

    `np.vstack` makes it one array, (7, statistics), and `of_rows` undoes that.
    """

    variance: Floats
    """(statistics,)"""
    shifts: Floats
    """How far the further input that an end allows for moves the statistic."""
    variances: Floats
    """With that input."""
    freedoms: Floats
    """Degrees of freedom of these variances."""

    @classmethod
    def of_rows(cls, rows: Floats) -> Spread:
        """The spread that `np.vstack` made an array of."""
        return cls(rows[0], *rows[1:].reshape(3, 2, -1))


def even_spread(variance: float, freedom: float) -> Floats:
    """The array of a `Spread` of one statistic whose interval allows for no further input."""
    return np.array([variance, 0.0, 0.0, variance, variance, freedom, freedom])


def is_constant(influences: Influences, statistic: int) -> bool:
    """Whether a statistic is the same in every resample: the influences within each stratum are equal."""
    ends = (torch.aminmax(values[statistic]) for values in influences.values())
    return all(float(end.max - end.min) <= _ROUNDING for end in ends)


def spread(influences: Influences) -> Spread:
    """The sampling error of values; a further input is allowed for at the end towards which they are skewed."""
    sizes, moments = _moments(influences)
    skew = _skewness(sizes, moments)
    return _spread(sizes, moments, np.stack([-skew, skew]) - _SKEW, _FARTHER)


def difference_spread(influences: Influences, less: Influences, skew: Floats) -> Spread:
    """The sampling error of differences on the same samples; `skew` is the mean |skewness| of the two values.

    Two scores agree on a sample that lacks the inputs that matter, so the differences themselves need not be skewed.
    """
    excess = skew - _DIFFERENCE_SKEW
    return _spread(*_moments(influences, less), np.stack([excess, excess]), _DIFFERENCE_FARTHER)


def skewness(influences: Influences) -> Floats:
    """What each stratum adds to the skewness of the statistics, (strata, statistics)."""
    return _skewness(*_moments(influences))


def _skewness(sizes: Floats, moments: Floats) -> Floats:
    variance = (moments[0] / (sizes * np.maximum(1, sizes - 1))).sum(0)
    third = moments[1] / (sizes * np.maximum(1, sizes - 1) * np.maximum(1, sizes - 2))
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.nan_to_num(third / variance**1.5), dtype=np.float64)


def _moments(influences: Influences, less: Influences | None = None) -> tuple[Floats, Floats]:
    """The sizes of the strata, (strata, 1), and the moments of their influences, (4, strata, statistics).

    The moments are about the mean: the sum of squares, the sum of cubes (0 for differences), the lowest, the highest.
    """
    found = []
    for stratum, values in influences.items():
        of_stratum = torch.zeros(4, len(values), dtype=torch.float64, device=values.device)
        off, square = torch.empty_like(values[0]), torch.empty_like(values[0])
        for row, value in enumerate(values):  # one at a time, in memory that is in the cache: five times faster
            if less is None:
                torch.sub(value, value.mean(), out=off)
                of_stratum[1, row] = torch.dot(torch.mul(off, off, out=square), off)
            else:
                torch.sub(value, less[stratum][row], out=off)
                off -= off.mean()
            of_stratum[0, row] = torch.dot(off, off)
            of_stratum[2, row], of_stratum[3, row] = torch.aminmax(off)
        found.append(of_stratum.cpu().numpy())
    sizes = np.array([[float(values.shape[1])] for values in influences.values()])
    return sizes, np.stack(found, axis=1)


def _spread(sizes: Floats, moments: Floats, excess: Floats, farther: float) -> Spread:
    """Add to each stratum a share of one more input, for the low and the high end, (2, strata, statistics)."""
    second, _, *ends = moments
    share, far = np.clip(_STEEP * excess, 0.0, 1.0), farther * np.stack(ends)
    total = sizes + share
    moved, freedom = share * far / total, np.maximum(1, total - 1)
    own = (second + share * far**2 - total * moved**2) / (total * freedom)
    variance = (second / (sizes * np.maximum(1, sizes - 1))).sum(0)
    variances = own.sum(1)
    with np.errstate(divide="ignore", invalid="ignore"):
        freedoms = np.nan_to_num(variances**2 / (own**2 / freedom).sum(1), nan=1.0)
    return Spread(variance, moved.sum(1), variances, freedoms)


@final
@dataclass(frozen=True)
class Estimate:
    """A number and its interval; the interval is NaN if there are too few samples for one."""

    value: float
    low: float = math.nan
    high: float = math.nan


def normal_estimate(
    value: float, influences: Influences, level: float, *, least: float, less: Influences | None = None
) -> Estimate:
    """A statistic between `least` and 1, or a difference on the same samples, with the normal interval.

    For an AUROC this is DeLong's.
    """
    if min(part.shape[1] for part in influences.values()) < 2:
        return Estimate(value)
    sizes, moments = _moments(influences, less)
    half = float(student_quantile(level, math.inf)) * float((moments[0] / (sizes * (sizes - 1))).sum(0)[0]) ** 0.5
    return Estimate(value, max(least, value - half), min(1.0, value + half))


def rounding_variance(influences: Influences, statistic: int) -> float:
    """The variance of rounding a share at a threshold to whole samples: half a squared step, summed over negatives."""
    parts = [values[statistic] for name, values in influences.items() if name != "correct"]
    steps = (max(map(abs, map(float, torch.aminmax(part)))) / len(part) for part in parts)
    return sum(step**2 for step in steps) / 2


def student_quantile(level: float, freedom: Floats | float) -> Floats:
    """The half width of Student's interval in standard errors; with infinite freedom, of the normal one."""
    from scipy.special import stdtrit

    quantile: Floats = np.minimum(stdtrit(np.maximum(freedom, 1.0), (1 + level) / 2), _FAR)
    return quantile


def area_interval(value: Floats, spread: Spread, least: Floats, most: Floats, level: float) -> tuple[Floats, Floats]:
    """The interval of a smooth metric that lies between `least` and `most`: Student's, on the logit scale."""
    room = np.where(most > least, most - least, 1.0)
    share = np.clip((value + spread.shifts - least) / room, 1e-12, 1 - 1e-12)
    moved = student_quantile(level, spread.freedoms) * np.sqrt(spread.variances) / (room * share * (1 - share))
    with np.errstate(over="ignore"):  # an end beyond all numbers is that of the range
        low, high = least + room / (1 + (1 - share) / share * np.exp(np.clip(_SIDES * moved, -700, 700)))
    return np.clip(low, 0.0, value), np.clip(high, value, np.maximum(most, value))


def difference_interval(difference: Floats, spread: Spread, level: float) -> tuple[Floats, Floats]:
    """The interval of a difference between two metrics that lie between 0 and 1: Student's."""
    half = student_quantile(level, spread.freedoms) * np.sqrt(spread.variances)
    low, high = np.clip(difference + spread.shifts - _SIDES * half, -1.0, 1.0)
    return low, high


def share_interval(
    value: Floats, variance: Floats, most: Floats, fewest: Floats, level: float
) -> tuple[Floats, Floats]:
    """The interval of a share of samples times `most`: Wilson's, for as many samples as have this variance.

    Where none or all were counted the variance is 0, and the size of the smallest stratum is taken instead.
    """
    share = np.clip(value / most, 0.0, 1.0)
    known = (variance > 0) & (share > 0) & (share < 1)
    n = np.where(known, share * (1 - share) * most**2 / np.where(known, variance, 1.0), fewest)
    z = float(student_quantile(level, math.inf))
    centre = (share + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z / (1 + z**2 / n) * np.sqrt(share * (1 - share) / n + z**2 / (4 * n**2))
    return most * np.clip(centre - half, 0.0, share), most * np.clip(centre + half, share, 1.0)
