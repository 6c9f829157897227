"""Which thresholds a page carries: few enough for a small file, placed so that curves and areas lose nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, final

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

POINTS: Final = 512
LEVELS: Final = tuple(i / 100 for i in range(1, 90)) + tuple(i / 1000 for i in range(900, 1001))
_ALPHAS: Final = (0.001, 0.01, 0.3, 0.99, 0.999)  # mixtures whose areas must come out right; those between do with them
_AT_ONCE = 8  # of the worst intervals are halved before looking again
_LOOKED_AT = 4000  # thresholds, about, that are looked at when placing the points


@final
@dataclass(frozen=True)
class Grid:
    """Some thresholds of one score, the strictest first, and what each of them accepts."""

    thresholds: Floats
    ranks: Ints
    """How many different thresholds are at least as strict; consecutive ones have nothing between them."""
    counts: Ints
    """(group, threshold): how many of ID✓, ID✗ and each OOD set have at least that score."""


def make_grid(groups: Sequence[Floats], levels: Sequence[float] = LEVELS, points: int = POINTS) -> Grid:
    """Pick at most `points` of a score's thresholds, all of them if they are so few.

    `groups` holds the scores of ID✓, ID✗ and each OOD set. Always there are, for each recall in `levels`, the highest
    threshold that reaches it, the strictest threshold of all, and the one that accepts everything.
    """
    thresholds, counts = _accepted(groups)
    chosen = np.arange(len(thresholds))
    if len(thresholds) > points:
        chosen = _refined(counts, _placed(counts, levels, points), points)
    return Grid(thresholds[chosen], chosen + 1, counts[:, chosen])


def _accepted(groups: Sequence[Floats]) -> tuple[Floats, Ints]:
    """Give every threshold, the strictest first, and how many of each group it accepts. Equal scores are one."""
    values = np.concatenate(groups)
    order = np.argsort(values)[::-1]
    values = values[order]
    owner = np.repeat(np.arange(len(groups)), [len(group) for group in groups])[order]
    ends = np.append(np.flatnonzero(values[1:] != values[:-1]), len(values) - 1)
    counts = [np.cumsum(owner == group, dtype=np.int64)[ends] for group in range(len(groups))]
    return values[ends], np.stack(counts)


def _placed(counts: Ints, levels: Sequence[float], points: int) -> Ints:
    """Places among all thresholds that a page must have, whatever the curve between them; at most `points`."""
    last = counts.shape[1] - 1
    reached = np.unique(np.searchsorted(counts[0] / counts[0, -1], np.asarray(levels), side="left").clip(max=last))
    if len(reached) > points - 2:
        reached = reached[np.linspace(0, len(reached) - 1, max(0, points - 2)).round().astype(np.int64)]
    return np.union1d(reached, [0, last])


def _refined(counts: Ints, chosen: Ints, points: int) -> Ints:
    """Halve again and again the intervals over which the areas that a page computes are furthest from the true ones."""
    seen = _looked_at(counts, chosen)
    mixes = list(_mixes(seen + 1, counts[:, seen]))
    at = np.searchsorted(seen, chosen)
    low, high = at[:-1], at[1:]
    worst = _worst(mixes, low, high)
    spare = points - len(at)
    while spare > 0:
        most = min(spare, _AT_ONCE, int((worst > 0).sum()))
        if not most:
            break
        split = np.argpartition(worst, -most)[-most:]
        begin, end = low[split], high[split]
        middle = (begin + end) // 2
        halves = _worst(mixes, np.append(begin, middle), np.append(middle, end))
        low, high, worst = np.append(low, middle), np.append(high, end), np.append(worst, halves[most:])
        high[split], worst[split] = middle, halves[:most]
        spare -= most
    return seen[np.unique(np.append(low, high))]


def _looked_at(counts: Ints, chosen: Ints) -> Ints:
    """Places that may be chosen: all if they are few, else some of them, spread over the ranks and over each group.

    The risk changes most with the first samples of a group, and recall stops growing with the last ID✓: both ends of
    each group are looked at closely. Where a sample is accepted, the place before it is looked at too.
    """
    last = counts.shape[1] - 1
    if last < _LOOKED_AT:
        return np.arange(last + 1)
    some = [chosen, np.linspace(0, last, _LOOKED_AT // 3).astype(np.int64)]
    each = _LOOKED_AT // (4 * len(counts))
    for row in counts:
        if size := int(row[-1]):
            growing = np.geomspace(1, size, each).astype(np.int64)
            even = np.linspace(1, size, each).astype(np.int64)
            rises = np.searchsorted(row, np.unique([growing, size + 1 - growing, even]), side="left")
            some += [rises, (rises - 1).clip(min=0)]
    return np.unique(np.concatenate(some))


def _worst(mixes: Sequence[_Mix], low: Ints, high: Ints) -> Floats:
    """By which part of an area each interval is off in the worst case; nothing where no place is between its ends."""
    worst: Floats = np.max([mix.errors(low, high) for mix in mixes], axis=0)
    return np.where(high - low < 2, 0.0, worst)


def _mixes(ranks: Ints, counts: Ints) -> Iterator[_Mix]:
    """Give the mixes of OOD sets whose areas are looked at: each set alone, all equally, all samples equally."""
    number = len(counts) - 2
    weights = list(np.eye(number))
    if number > 1:
        weights += [np.full(number, 1 / number), counts[2:, -1] / counts[2:, -1].sum()]
    for weight in weights:
        yield _Mix.of(ranks, counts, weight, np.array(_ALPHAS))
    if not number:
        yield _Mix.of(ranks, counts, np.empty(0), np.ones(1))


@final
@dataclass(frozen=True)
class _Mix:
    """Risks along the thresholds on one mix of OOD sets, and the areas under them, over recall and over coverage.

    Risks have the axes α, which group's mistakes alone cost something, threshold. If all of these come out right, so
    does every β: the risk is a sum of them.
    """

    ranks: Ints
    counts: Ints
    """(part, threshold): accepted samples of ID✓, ID✗ and each OOD set of the mix."""
    shares: Floats
    """The same as shares of ID, or of the set."""
    factors: Floats
    """(α, part): what a share is of all input."""
    risks: Floats
    areas: tuple[Floats, Floats]

    @classmethod
    def of(cls, ranks: Ints, counts: Ints, weights: Floats, alphas: Floats) -> _Mix:
        """Compute risks and areas for a mix with these weights of the OOD sets."""
        used = weights > 0
        inside = counts[0, -1] + counts[1, -1]
        parts = np.vstack([counts[:2], counts[2:][used]])
        shares = np.vstack([counts[:2] / inside, parts[2:] / parts[2:, -1:]])
        factors = np.column_stack([alphas, alphas, np.outer(1 - alphas, weights[used])])
        bad = parts[1:][parts[1:, -1] > 0].astype(np.float64)
        covered = (factors @ shares)[:, None]
        risks = np.divide(bad, covered, out=np.zeros((len(alphas), *bad.shape)), where=covered > 0)
        alone = cls(ranks, parts, shares, factors, risks, (risks, risks))
        first = (shares[0, :1], covered[..., :1])
        rest = alone.guesses(np.arange(len(ranks) - 1), np.arange(1, len(ranks)))
        recall, coverage = (
            np.cumsum(np.concatenate([grown * risks[..., :1], more], axis=-1), axis=-1)
            for grown, more in zip(first, rest, strict=True)
        )
        return cls(ranks, parts, shares, factors, risks, (recall, coverage))

    def guesses(self, low: Ints, high: Ints) -> tuple[Floats, Floats]:
        """Give the areas over intervals of which only the ends are known, over recall and over coverage.

        Between the ends the risk is taken to rise in as many equal steps as there are samples that make the axis grow,
        each step holding its last value; with one such sample that is exact.
        """
        before, after = self.risks[..., low], self.risks[..., high]
        middle, half = (before + after) / 2, (after - before) / 2
        grown = self.shares[:, high] - self.shares[:, low]
        steps = np.minimum(self.counts[:, high] - self.counts[:, low], self.ranks[high] - self.ranks[low])
        stepped = grown / steps.clip(min=1)
        return (
            grown[0] * middle + stepped[0] * half,
            (self.factors @ grown)[:, None] * middle + (self.factors @ stepped)[:, None] * half,
        )

    def errors(self, low: Ints, high: Ints) -> Floats:
        """By which part of its area the worst of the paths is off over each interval."""
        worst = np.zeros(len(low))
        for guess, area in zip(self.guesses(low, high), self.areas, strict=True):
            error, total = np.abs(guess - (area[..., high] - area[..., low])), area[..., -1:]
            shares = np.divide(error, total, out=np.zeros_like(error), where=total > 0)
            worst = np.maximum(worst, shares.max(axis=(0, 1), initial=0.0))
        return worst
