"""Influence of each sample on the metrics, and the intervals that follow from it, of values and of differences.

Samples of a stratum (ID✓, ID✗, each OOD set) are independent, so a metric strays as the mean of their influences does:
variances of the strata add up. Intervals of few samples have t quantiles with Welch and Satterthwaite's degrees of
freedom, and allow for a sample that has not been seen.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import final

import numpy as np
import torch
from torch import Tensor

from sirc._utils.arrays import Floats
from sirc.metrics.ranking import Negative, Ranking
from sirc.metrics.registry import Metric

Influences = dict[str, Tensor]
"""By stratum, the influence of each of its samples on some figures, (figures, n)."""

_ROOM = 1 << 25  # influences of several scores held at a time
_FAR = 1e9  # standard errors, beyond any range
# A few samples may lack the one that matters most, and it shows in the skewness of the others' influences: each end of
# an interval then allows for one more, so much farther out than the farthest. Chosen by `benchmarks/coverage.py`.
_SKEW, _STEEP, _FARTHER = 0.2, 4.0, 2.0
# A few negatives far from ID✓ have influences of many sizes: the one may then be missing although they are not skew.
_FEW, _ENOUGH = 20, 40  # all of this below the first, none above the second
_FARTHEST = 5.0
_ROUNDING = 1e-13
_SIDES = np.array([[1.0], [-1.0]])


@final
class Placed:
    """One score's ranking of ID✓, ID✗ and some OOD sets, and where in it each sample stands."""

    def __init__(self, correct: Tensor, wrong: Tensor, sets: Mapping[str, Tensor], *, equal_sets: bool) -> None:
        ood = torch.cat([wrong[:0], *sets.values()])
        sizes = {name: len(values) for name, values in sets.items()}
        shares = {name: 1 / len(sets) if equal_sets else size / len(ood) for name, size in sizes.items()}
        weights = None
        if equal_sets and len(sets) > 1:
            weights = torch.cat(
                [torch.full((n,), 1 / n, dtype=torch.float64, device=ood.device) for n in sizes.values()]
            )
        self.ranking, places = Ranking.placed([correct, wrong, ood], weights)
        names = ["correct", "wrong", *(f"ood {name}" for name in sets)]
        # Short numbers, which `index_select` follows nearly twice as fast.
        short = places.int() if len(places) < 1 << 31 else places
        split = torch.split(short, [len(correct), len(wrong), *sizes.values()])
        # By stratum: its group, its share of the group, and the threshold that first accepts each sample.
        groups = ["correct", "wrong", *("ood" for _ in sets)]
        self._strata = dict(zip(names, zip(groups, [1.0, 1.0, *shares.values()], split, strict=True), strict=True))

    def influences(
        self, metrics: Sequence[Metric], negative: Negative, recall: float, alpha: float, beta: Tensor
    ) -> Influences:
        """The influences on each metric, those of the mixture at each β."""
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
    """Of a metric of several scores on the same samples, at every α, by every score, at β = 1 and 0, in this order.

    The metric is linear in β, and any other value a mix of these two.
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
    """The influences on the means of figures."""
    total: Influences = {}
    for influences in parts:
        for stratum, values in influences.items():
            total[stratum] = total[stratum] + values if stratum in total else values
    return {stratum: values / len(parts) for stratum, values in total.items()}


@final
@dataclass(frozen=True)
class Spread:
    """How some figures stray; each (figures,), and what belongs to the low and the high end (2, figures)."""

    variance: Floats
    freedom: Floats
    """Degrees of freedom of the variance."""
    shifts: Floats
    """By how much the sample more that each end allows for moves the figure."""
    variances: Floats
    """With that sample."""
    freedoms: Floats

    @classmethod
    def of(cls, columns: Floats) -> Spread:
        """From what `columns` gave."""
        return cls(*columns[:2], *columns[2:].reshape(3, 2, -1))

    def columns(self) -> Floats:
        """All of it, (8, figures)."""
        return np.vstack([getattr(self, field.name) for field in fields(self)])


def even_spread(variance: float, freedom: float) -> Floats:
    """The columns of one figure for which no sample more is allowed for."""
    return np.array([variance, freedom, 0.0, 0.0, variance, variance, freedom, freedom])


def still(influences: Influences, figure: int) -> bool:
    """Whether a figure stays as it is whichever samples are drawn again: none has an influence of its own."""
    ends = (torch.aminmax(values[figure]) for values in influences.values())
    return all(float(end.max - end.min) <= _ROUNDING for end in ends)


@final
@dataclass(frozen=True)
class _Stratum:
    """What an interval needs of the influences of a stratum, about their mean: each (figures,)."""

    size: int
    second: Floats
    third: Floats
    ends: Floats
    """The lowest and the highest, (2, figures)."""
    farther: Floats | float
    """How many times as far out as these one more may lie, (2, figures)."""
    apart: Floats
    """How far a few negatives lie from ID✓, 0 to 1: so far that the one that matters most may be missing."""


def spread(influences: Influences, less: Influences | None = None) -> Spread:
    """The spread of figures, or of their differences to others' on the same samples."""
    strata = []
    for stratum, values in influences.items():
        numbers = _about_the_mean(values, None if less is None else less[stratum])
        farther: Floats | float = _FARTHER
        apart = np.zeros(len(values))
        if stratum != "correct" and values.shape[1] < _ENOUGH:
            tails, apart = _tails(values.cpu().numpy())
            farther = tails if less is None else _FARTHER
        strata.append(_Stratum(values.shape[1], numbers[0], numbers[1], numbers[2:], farther, apart))
    nothing = np.zeros((len(strata), len(strata[0].second)))
    _, variance, freedom = _moments(strata, nothing, 0)
    outliers = np.stack([_outlier(part, variance) for part in strata])
    ends = zip(*(_moments(strata, outliers, side) for side in (0, 1)), strict=True)
    return Spread(variance, freedom, *(np.stack(both) for both in ends))


def _about_the_mean(values: Tensor, less: Tensor | None) -> Floats:
    """Of each figure: the sums of squares and of cubes, the lowest and the highest; (4, figures)."""
    found = torch.empty(4, len(values), dtype=torch.float64, device=values.device)
    off, square = torch.empty_like(values[0]), torch.empty_like(values[0])
    for row, value in enumerate(values):  # one at a time, in memory that is in the cache: five times sooner
        torch.sub(value, value.mean() if less is None else less[row], out=off)
        if less is not None:
            off -= off.mean()
        torch.mul(off, off, out=square)
        found[0, row], found[1, row] = square.sum(), torch.dot(square, off)
        found[2, row], found[3, row] = torch.aminmax(off)
    numbers: Floats = found.cpu().numpy()
    return numbers


def _tails(values: Floats) -> tuple[Floats, Floats]:
    """`farther` and `apart` of a few negatives: by how many times as long one side of their median is as the other."""
    low, middle, high = np.quantile(values, [0.0, 0.5, 1.0], axis=1)
    short, whole = np.minimum(high - middle, middle - low), high - low
    many = (_ENOUGH - values.shape[1]) / (_ENOUGH - _FEW)
    with np.errstate(invalid="ignore"):
        times = np.nan_to_num(np.sqrt(whole / np.maximum(short, whole / _FARTHEST**2)), nan=_FARTHER)
    beyond = np.maximum(times - _FARTHER, 0.0) * min(1.0, many)
    upwards = high - middle >= middle - low
    return _FARTHER + np.stack([~upwards, upwards]) * beyond, np.minimum(beyond, 1.0)


def _outlier(part: _Stratum, variance: Floats) -> Floats:
    """The share, 0 to 1, of the one sample more that each end allows for: more, the more skew the figure is."""
    n = part.size
    with np.errstate(divide="ignore", invalid="ignore"):
        skewness = np.nan_to_num(np.abs(part.third) / variance**1.5) / (max(1, n - 1) * max(1, n - 2) * n)
    outlier: Floats = np.clip(_STEEP * (1 + part.apart) * (skewness - _SKEW * (1 - part.apart)), 0.0, 1.0)
    return outlier


def _moments(strata: Sequence[_Stratum], outliers: Floats, side: int) -> tuple[Floats, Floats, Floats]:
    """Shift, variance and its freedom, with a share of one sample more in each stratum, at its low or high side."""
    shift, variance, squared = np.zeros((3, outliers.shape[1]))
    for part, outlier in zip(strata, outliers, strict=True):
        far, total = (part.farther * part.ends)[side], part.size + outlier
        moved = outlier * far / total
        own = (part.second + outlier * far**2 - total * moved**2) / (total * np.maximum(1, total - 1))
        shift, variance, squared = shift + moved, variance + own, squared + own**2 / np.maximum(1, total - 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        return shift, variance, np.nan_to_num(variance**2 / squared, nan=1.0)


@final
@dataclass(frozen=True)
class Estimate:
    """A number and its interval; the interval is NaN where there are too few samples for one."""

    value: float
    low: float
    high: float


def normal_estimate(
    value: float, influences: Influences, level: float, *, least: float, less: Influences | None = None
) -> Estimate:
    """A figure between `least` and 1, or a difference to another on the same samples, with the normal interval.

    Of an AUROC this is DeLong's.
    """
    if min(part.shape[1] for part in influences.values()) < 2:
        return Estimate(value, math.nan, math.nan)
    half = float(reach(level, math.inf)) * float(spread(influences, less).variance[0]) ** 0.5
    return Estimate(value, max(least, value - half), min(1.0, value + half))


def grain(influences: Influences, figure: int) -> float:
    """The variance that one sample of each negative stratum more or less makes in a share at a threshold."""
    parts = [values[figure] for name, values in influences.items() if name != "correct"]
    return sum((float(torch.linalg.vector_norm(part, torch.inf)) / len(part)) ** 2 for part in parts)


def reach(level: float, freedom: Floats | float) -> Floats:
    """The half width, in standard errors, of Student's interval; with infinite freedom, of the normal one."""
    from scipy.special import stdtrit

    quantile: Floats = np.minimum(stdtrit(np.maximum(freedom, 1.0), (1 + level) / 2), _FAR)
    return quantile


def area_interval(value: Floats, spread: Spread, most: Floats, level: float) -> tuple[Floats, Floats]:
    """The interval of a smooth metric that lies between 0 and `most`: Student's, on the logit scale."""
    share = np.clip((value + spread.shifts) / most, 1e-12, 1 - 1e-12)
    moved = reach(level, spread.freedoms) * np.sqrt(spread.variances) / (most * share * (1 - share))
    with np.errstate(over="ignore"):  # an end beyond all numbers is that of the range
        low, high = most / (1 + (1 - share) / share * np.exp(np.clip(_SIDES * moved, -700, 700)))
    return np.clip(low, 0.0, value), np.clip(high, value, np.maximum(most, value))


def difference_interval(difference: Floats, spread: Spread, level: float) -> tuple[Floats, Floats]:
    """The interval of a difference between two metrics that lie between 0 and 1: Student's."""
    half = reach(level, spread.freedoms) * np.sqrt(spread.variances)
    low, high = np.clip(difference + spread.shifts - _SIDES * half, -1.0, 1.0)
    return low, high


def share_interval(value: Floats, spread: Spread, most: Floats, fewest: Floats, level: float) -> tuple[Floats, Floats]:
    """The interval of what is, up to the factor `most`, a share of samples: Wilson's, of as many as give this variance.

    Where none or all were counted the variance is 0, and the smallest stratum is taken for their number.
    """
    share = np.clip(value / most, 0.0, 1.0)
    known = (spread.variance > 0) & (share > 0) & (share < 1)
    t = reach(level, np.where(known, spread.freedom, fewest - 1))
    n = np.where(known, share * (1 - share) * most**2 / np.where(known, spread.variance, 1.0), fewest)
    centre = (share + t**2 / (2 * n)) / (1 + t**2 / n)
    half = t / (1 + t**2 / n) * np.sqrt(share * (1 - share) / n + t**2 / (4 * n**2))
    return most * np.clip(centre - half, 0.0, share), most * np.clip(centre + half, share, 1.0)
