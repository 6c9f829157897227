"""Thresholds of a page: few, for a small file, but so placed that areas are within 0.5%."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, final

import numpy as np
import numpy.typing as npt

from sirc._utils.arrays import Floats, counts_from_above

Ints = npt.NDArray[np.int64]

POINTS: Final = 512
LEVELS: Final = tuple(i / 100 for i in range(1, 90)) + tuple(i / 1000 for i in range(900, 1001))
_ALPHAS: Final = (0.001, 0.01, 0.3, 0.99, 0.999)  # where areas are compared; between these they are right too
_AT_ONCE = 8  # how many of the worst intervals are halved before errors are computed again
_CANDIDATES = 4000  # thresholds, about, among which the points are chosen


@final
@dataclass(frozen=True)
class Grid:
    """Some thresholds of one score, the strictest first, and how many inputs each accepts."""

    thresholds: Floats
    ranks: Ints
    """The number of different thresholds that are at least as strict: consecutive ranks have none between them."""
    counts: Ints
    """(group, threshold): how many of ID✓, ID✗ and each OOD set reach the threshold."""
    least_points: Ints
    """The smallest size of grid that still has each threshold."""

    def fewer(self, points: int) -> Grid:
        """The grid that `make_grid` makes for fewer points."""
        if len(self.ranks) <= points:
            return self
        kept = self.least_points <= points
        return Grid(self.thresholds[kept], self.ranks[kept], self.counts[:, kept], self.least_points[kept])


def make_grid(groups: Sequence[Floats], levels: Sequence[float] = LEVELS, points: int = POINTS) -> Grid:
    """Pick at most `points` of a score's thresholds, or all of them if there are no more.

    `groups` holds the confidences of ID✓, ID✗ and each OOD set. The grid always has the strictest threshold, the one
    that accepts everything, and for each recall in `levels` the highest threshold that reaches it.
    """
    thresholds, counts = counts_from_above(groups)
    chosen, least_points = _refined(counts, _placed(counts, levels, points), points)
    if len(thresholds) <= points:
        every = np.full(len(thresholds), points)  # thresholds that improve no area are dropped first
        every[chosen] = least_points
        chosen, least_points = np.arange(len(thresholds)), every
    return Grid(thresholds[chosen], chosen + 1, counts[:, chosen], least_points)


def _placed(counts: Ints, levels: Sequence[float], points: int) -> Ints:
    """The places of the thresholds that a page must have, at most `points`."""
    last = counts.shape[1] - 1
    reached = np.unique(np.searchsorted(counts[0] / counts[0, -1], np.asarray(levels), side="left").clip(max=last))
    if len(reached) > points - 2:
        reached = reached[np.linspace(0, len(reached) - 1, max(0, points - 2)).round().astype(np.int64)]
    return np.union1d(reached, [0, last])


def _refined(counts: Ints, chosen: Ints, points: int) -> tuple[Ints, Ints]:
    """Halve the interval with the largest error of an area, again and again.

    Returns the places, and for each the smallest size of grid that still has it: smaller grids are parts of larger.
    """
    examined = _candidates(counts, chosen)
    mixes = list(_mixes(examined + 1, counts[:, examined]))
    at = np.searchsorted(examined, chosen)
    low, high = at[:-1], at[1:]
    worst = _worst(mixes, low, high)
    added = [at]
    spare = points - len(at)
    while spare > 0:
        most = min(spare, _AT_ONCE, int((worst > 0).sum()))
        if not most:
            break
        split = np.argpartition(worst, -most)[-most:]
        split = split[np.argsort(-worst[split], kind="stable")]  # a smaller grid splits only the worst of these
        begin, end = low[split], high[split]
        middle = (begin + end) // 2
        halves = _worst(mixes, np.append(begin, middle), np.append(middle, end))
        low, high, worst = np.append(low, middle), np.append(high, end), np.append(worst, halves[most:])
        high[split], worst[split] = middle, halves[:most]
        added.append(middle)
        spare -= most
    places = np.concatenate(added)
    order = np.argsort(places)
    least_points = np.maximum(np.arange(1, len(places) + 1), len(at))
    return examined[places[order]], least_points[order]


def _candidates(counts: Ints, chosen: Ints) -> Ints:
    """Places to choose from: all if they are few, else some, spread over the ranks and over each group.

    The risk changes most with the first samples of a group, and recall stops growing with the last ID✓, so places are
    dense at both ends of each group. The place before each accepted sample is a candidate too.
    """
    last = counts.shape[1] - 1
    if last < _CANDIDATES:
        return np.arange(last + 1)
    some = [chosen, np.linspace(0, last, _CANDIDATES // 3).astype(np.int64)]
    each = _CANDIDATES // (4 * len(counts))
    for row in counts:
        if size := int(row[-1]):
            growing = np.geomspace(1, size, each).astype(np.int64)
            even = np.linspace(1, size, each).astype(np.int64)
            rises = np.searchsorted(row, np.unique([growing, size + 1 - growing, even]), side="left")
            some += [rises, (rises - 1).clip(min=0)]
    return np.unique(np.concatenate(some))


def _worst(mixes: Sequence[_Mixes], low: Ints, high: Ints) -> Floats:
    """The worst relative error of an area over each interval; 0 if nothing lies between its ends."""
    worst: Floats = np.max([mix.errors(low, high) for mix in mixes], axis=0)
    return np.where(high - low < 2, 0.0, worst)


def _mixes(ranks: Ints, counts: Ints) -> Iterator[_Mixes]:
    """Yield the mixes of OOD sets whose areas are compared: each set alone; equal sets; equal samples."""
    number, alphas = len(counts) - 2, np.array(_ALPHAS)
    if not number:
        yield _Mixes(ranks, counts[None], np.empty((1, 0)), np.ones(1))
        return
    alone = np.stack([counts[[0, 1, 2 + i]] for i in range(number)])
    yield _Mixes(ranks, alone, np.ones((number, 1)), alphas)
    if number > 1:
        weights = np.stack([np.full(number, 1 / number), counts[2:, -1] / counts[2:, -1].sum()])
        yield _Mixes(ranks, np.broadcast_to(counts, (2, *counts.shape)), weights, alphas)


@final
class _Mixes:
    """Risks at all thresholds on some mixes of OOD sets, and the areas under them, over recall and over coverage.

    Risks and areas have the axes mix, α, group, threshold, and count the mistakes of one group. They cover every β,
    whose risk is their weighted sum.
    """

    def __init__(self, ranks: Ints, counts: Ints, weights: Floats, alphas: Floats) -> None:
        """`counts` (mix, part, threshold) are accepted samples of ID✓, ID✗ and each OOD set; `weights` are (mix, set).

        `shares` are parts of ID input, or of a set; `factors` (mix, α, part) make them parts of all input.
        """
        self.ranks, self.counts = ranks, counts
        inside = counts[0, :2, -1].sum()
        self.shares = np.concatenate([counts[:, :2] / inside, counts[:, 2:] / counts[:, 2:, -1:]], axis=1)
        of_id = np.broadcast_to(alphas[:, None], (len(counts), len(alphas), 2))
        self.factors = np.concatenate([of_id, (1 - alphas)[:, None] * weights[:, None]], axis=2)
        bad = counts[:, 1:][:, counts[0, 1:, -1] > 0].astype(np.float64)
        self.risks = np.empty((len(counts), len(alphas), bad.shape[1], len(ranks)))
        self.areas = np.empty_like(self.risks), np.empty_like(self.risks)
        # One mix at a time stays in a CPU's cache.
        for mix, (risk, shares, factors) in enumerate(zip(self.risks, self.shares, self.factors, strict=True)):
            covered = factors @ shares
            covered[covered == 0] = 1.0  # without coverage there are no mistakes
            np.divide(bad[mix], covered[:, None], out=risk)
            first = shares[0, 0], (factors @ shares[:, :1])[:, None]
            steps = _steps(counts[mix], shares, ranks, slice(None, -1), slice(1, None))
            for areas, grown, ends in zip(self.areas, first, _ends(*steps, factors), strict=True):
                area = areas[mix]
                np.multiply(risk[..., :1], grown, out=area[..., :1])
                np.multiply(risk[..., :-1], ends[0], out=area[..., 1:])
                area[..., 1:] += risk[..., 1:] * ends[1]
                np.cumsum(area, axis=-1, out=area)
        totals = [areas[..., -1:] for areas in self.areas]
        self.scales = [np.divide(1.0, total, out=np.zeros_like(total), where=total > 0) for total in totals]

    def errors(self, low: Ints, high: Ints) -> Floats:
        """The worst relative error of the areas over intervals of which only the ends are known."""
        before, after = self.risks[..., low], self.risks[..., high]
        steps = _steps(self.counts, self.shares, self.ranks, low, high)
        worst = np.zeros(len(low))
        for ends, area, scale in zip(_ends(*steps, self.factors), self.areas, self.scales, strict=True):
            error = np.abs(before * ends[0] + after * ends[1] - (area[..., high] - area[..., low])) * scale
            worst = np.maximum(worst, error.max(axis=(0, 1, 2), initial=0.0))
        return worst


def _steps(counts: Ints, shares: Floats, ranks: Ints, low: Ints | slice, high: Ints | slice) -> tuple[Floats, Floats]:
    """The growth of the share of each part over intervals, and in one step of an interval."""
    grown = shares[..., high] - shares[..., low]
    steps = np.minimum(counts[..., high] - counts[..., low], ranks[high] - ranks[low])
    return grown, grown / np.maximum(steps, 1)


def _ends(grown: Floats, stepped: Floats, factors: Floats) -> Iterator[tuple[Floats, Floats]]:
    """The weights of the risks at both ends of an interval in its area, over recall and over coverage.

    Between the ends, the risk is assumed to rise in equal steps, one for each sample that makes the axis grow, and each
    step has its last value. With one such sample this is exact.
    """
    for width, step in ((grown[..., :1, :], stepped[..., :1, :]), (factors @ grown, factors @ stepped)):
        yield ((width - step) / 2)[..., None, :], ((width + step) / 2)[..., None, :]
