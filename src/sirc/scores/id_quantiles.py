"""`both`: the smallest ID quantile among several scores, from distribution functions stored as knots.

F_i is the distribution function of score i on held-out ID rows. If each score has a threshold with a share p of ID rows
below it, a row passes all thresholds if min_i F_i(s_i) ≥ p; so rows are ordered by min_i F_i.

Between knots, log(F/(1 − F)) is linear, which keeps digits in both tails. Beyond the smallest and the largest held-out
score the tails are exponential: log F, or log(1 − F), falls by 1 over the mean excess of the outer tenth of the rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

_KNOTS = 1024
_TAIL = 10  # one row in so many belongs to a tail
_LEAST_EXCESS = 1e-12  # relative to the score: a smaller excess is rounding error


def id_quantiles(values: Tensor) -> tuple[list[float], list[float]]:
    """At most 1,026 knots of a distribution function: scores, and log(F/(1 − F)) of each; both strictly increase.

    F of a value is the share of rows below it plus half the share of rows equal to it. Of more than 1,024 distinct
    values, those about evenly spaced in log(F/(1 − F)) become knots, which keeps all values in the tails.
    """
    ordered = np.sort(values.double().cpu().numpy())
    scores, count = np.unique(ordered, return_counts=True)
    below = count.cumsum() - count / 2
    levels = np.log(below / (len(ordered) - below))
    if len(scores) > _KNOTS:
        kept = np.unique(np.searchsorted(levels, np.linspace(levels[0], levels[-1], _KNOTS)).clip(max=len(levels) - 1))
        scores, levels = scores[kept], levels[kept]
    # One more knot at either end gives the slope of the tail.
    low, high = ordered[0] - _excess(ordered), ordered[-1] + _excess(-ordered[::-1])
    return [low, *scores.tolist(), high], [levels[0] - 1, *levels.tolist(), levels[-1] + 1]


def _excess(ascending: npt.NDArray[np.float64]) -> float:
    """The mean distance of the lowest tenth to the next row; if these rows tie, the size of the lowest score."""
    tail = -(-len(ascending) // _TAIL)
    end = ascending[min(tail, len(ascending) - 1)]
    excess, size = float((end - ascending[:tail]).mean()), abs(float(ascending[0]))
    return excess if excess > _LEAST_EXCESS * size else size or 1.0


def least_quantile(values: Sequence[Tensor], knots: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """The smallest log(F/(1 − F)) among some scores, from the knots of each."""
    levels = torch.stack([_level(s, *pair) for s, pair in zip(values, knots, strict=True)])
    return torch.where(levels.isnan().any(0), torch.nan, levels.amin(0))  # ONNX's minimum ignores NaN


def _level(values: Tensor, scores: Tensor, levels: Tensor) -> Tensor:
    """log(F/(1 − F)): linear between knots, and beyond both ends."""
    if torch.compiler.is_compiling():  # ONNX has no `searchsorted`
        place = (values[:, None] >= scores).sum(-1)
    else:
        place = torch.searchsorted(scores, values, right=True)
    above = place.clamp(1, len(scores) - 1)
    left, right = scores[above - 1], scores[above]
    share = (values - left) / (right - left)
    return levels[above - 1] + share * (levels[above] - levels[above - 1])
