"""`both`: the smallest ID quantile of some scores, from distribution functions kept as knots.

F_i is the distribution function of score i on held-out ID rows. With a threshold for each score, below which
a share p of ID rows lies, a row passes all of them if min_i F_i(s_i) ≥ p: the order is that of min_i F_i.

log(F/(1 − F)), which keeps digits in both tails, is linear between knots. Beyond the least and the largest held-out
score the tails continue as exponential ones, log F (log(1 − F)) falling by 1 in each mean excess of the outer tenth.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

_KNOTS = 1024
_TAIL = 10  # the share of rows, one in so many, whose excess says how a tail goes on
_LEAST_EXCESS = 1e-12  # relative to the score: below it an excess is rounding


def id_quantiles(values: Tensor) -> tuple[list[float], list[float]]:
    """Knots of a distribution function, at most 1,026: scores, and log(F/(1 − F)) of each; both strictly increase.

    F of a value is the share of rows below it and half the share of those equal to it. Where there are more distinct
    values than knots, those are kept that are evenly spaced in log(F/(1 − F)): the outermost all, the middle thinned.
    """
    ordered = np.sort(values.double().cpu().numpy())
    scores, count = np.unique(ordered, return_counts=True)
    below = count.cumsum() - count / 2
    levels = np.log(below / (len(ordered) - below))
    if len(scores) > _KNOTS:
        kept = np.unique(np.searchsorted(levels, np.linspace(levels[0], levels[-1], _KNOTS)).clip(max=len(levels) - 1))
        scores, levels = scores[kept], levels[kept]
    # One knot more on either side carries the slope of the tail.
    low, high = ordered[0] - _excess(ordered), ordered[-1] + _excess(-ordered[::-1])
    return [low, *scores.tolist(), high], [levels[0] - 1, *levels.tolist(), levels[-1] + 1]


def _excess(ascending: npt.NDArray[np.float64]) -> float:
    """How far the least tenth lies, on average, below the row after it; the size of the scores where they tie."""
    tail = -(-len(ascending) // _TAIL)
    end = ascending[min(tail, len(ascending) - 1)]
    excess, size = float((end - ascending[:tail]).mean()), abs(float(ascending[0]))
    return excess if excess > _LEAST_EXCESS * size else size or 1.0


def least_quantile(values: Sequence[Tensor], knots: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """The smallest log(F/(1 − F)) of some scores, from the knots of each."""
    found = torch.stack([_level(s, *pair) for s, pair in zip(values, knots, strict=True)])
    return torch.where(found.isnan().any(0), torch.nan, found.amin(0))  # the least in ONNX leaves NaN out


def _level(values: Tensor, scores: Tensor, levels: Tensor) -> Tensor:
    """Linear between knots, and beyond both ends."""
    if torch.compiler.is_compiling():  # a search of sorted numbers has no counterpart in ONNX
        place = (values[:, None] >= scores).sum(-1)
    else:
        place = torch.searchsorted(scores, values, right=True)
    above = place.clamp(1, len(scores) - 1)
    left, right = scores[above - 1], scores[above]
    share = (values - left) / (right - left)
    return levels[above - 1] + share * (levels[above] - levels[above - 1])
