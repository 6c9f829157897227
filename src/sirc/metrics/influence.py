"""Influence of each sample on the metrics, and the intervals that follow from it, of values and of differences.

Samples of a stratum (ID✓, ID✗, each OOD set) are independent, so a metric strays as the mean of their influences does:
variances and third moments of the strata add up. Intervals of few samples allow for both: t quantiles with Welch and
Satterthwaite's degrees of freedom, and Hall's correction for skewness.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sirc.metrics.ranking import Negative, Ranking
from sirc.metrics.registry import Metric

Floats = npt.NDArray[np.float64]
Influences = dict[str, Tensor]
"""By stratum, the influence of each of its samples on some figures, (figures, n)."""

_ROOM = 1 << 25  # influences of several scores held at a time
_FAR = 1e9  # standard errors, beyond any range


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
        split = torch.split(places, [len(correct), len(wrong), *sizes.values()])
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
                rows = torch.zeros(sum(counts), len(place), dtype=torch.float64, device=place.device)
                for by_group, part in zip(slopes, torch.split(rows, counts), strict=True):
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
    """How some figures stray: their variance and its degrees of freedom, their skewness; each (figures,)."""

    variance: Floats
    freedom: Floats
    skewness: Floats


def spread(influences: Influences, less: Influences | None = None) -> Spread:
    """The spread of figures, or of their differences to others' on the same samples, whose skewness is taken for 0."""
    sums: Floats | float = 0.0
    for stratum, values in influences.items():
        n = values.shape[1]
        off = values - (values.mean(1, keepdim=True) if less is None else less[stratum])
        if less is not None:
            off -= off.mean(1, keepdim=True)
        variance = torch.linalg.vecdot(off, off) / (max(1, n - 1) * n)
        third = torch.linalg.vecdot(off.square(), off) if less is None else torch.zeros_like(variance)
        third /= max(1, n - 1) * max(1, n - 2) * n
        sums = sums + torch.stack((variance, variance**2 / max(1, n - 1), third)).cpu().numpy()
    variance, squared, third = np.asarray(sums)
    with np.errstate(divide="ignore", invalid="ignore"):
        freedom, skewness = variance**2 / squared, third / variance**1.5
    return Spread(variance, np.nan_to_num(freedom, nan=1.0), np.nan_to_num(skewness))


def grain(influences: Influences, figure: int) -> float:
    """The variance that one sample of each negative stratum more or less makes in a share at a threshold."""
    parts = [values[figure] for name, values in influences.items() if name != "correct"]
    return sum(float(part.abs().amax() / len(part)) ** 2 for part in parts)


def reach(level: float, freedom: Floats) -> Floats:
    """The half width, in standard errors, of Student's interval."""
    from scipy.special import stdtrit

    quantile: Floats = np.minimum(stdtrit(np.maximum(freedom, 1.0), (1 + level) / 2), _FAR)
    return quantile


def area_interval(value: Floats, spread: Spread, most: Floats, level: float) -> tuple[Floats, Floats]:
    """The interval of a smooth metric that lies between 0 and `most`.

    Each end is the wider of two: Hall's for a skew statistic, (θ̂ − θ)/se being taken for a cubic of a t variable, and
    Student's on the logit scale.
    """
    error, t = np.sqrt(spread.variance), reach(level, spread.freedom)
    skew = np.where(np.abs(spread.skewness) < 1e-6, 1e-6, spread.skewness)
    share = np.clip(value / most, 1e-12, 1 - 1e-12)
    moved, ends = t * error / (most * share * (1 - share)), []
    for sign in (1, -1):
        hall = value - error * 3 / skew * (np.cbrt(1 + skew * (sign * t - skew / 6)) - 1)
        with np.errstate(over="ignore"):  # an end beyond all numbers is that of the range
            logit = most / (1 + (1 - share) / share * np.exp(np.clip(sign * moved, -700, 700)))
        ends.append(np.minimum(hall, logit) if sign > 0 else np.maximum(hall, logit))
    return np.clip(ends[0], 0.0, value), np.clip(ends[1], value, np.maximum(most, value))


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
