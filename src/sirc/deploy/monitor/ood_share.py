"""OOD share: a lower bound from the excess of low confidences over those of ID data.

Input is α ID and 1 − α OOD, so for every t, P(S < t) ≤ α·P_ID(S < t) + (1 − α), that is
1 − α ≥ (F(t) − F_ID(t)) / (1 − F_ID(t)). With F bounded from below and F_ID from above, at several fixed ranks of the
calibration sample at once, the largest of these is a lower bound.
"""

from __future__ import annotations

from functools import lru_cache
from typing import final

import numpy as np
from numpy.typing import NDArray

from sirc.deploy.monitor.betting import rates_below
from sirc.metrics import lower_limit

Floats = NDArray[np.float64]

# Easy OOD input lies below most ID confidences, hard OOD input among their lower half.
_LEVELS = np.array([0, 0.001, 0.003, 0.01, 0.02, 0.04, 0.07, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.75, 0.9])


@final
class OodShare:
    """Counts of confidences between ranks of the calibration sample, and the bound that follows from them."""

    def __init__(self, calibration: Floats, delta: float) -> None:
        ranks, self._id_above, self._part = _id_limits(len(calibration), delta)
        self._edges = np.sort(calibration)[ranks - 1]
        self._below = np.zeros(len(ranks), dtype=np.int64)
        self._total = 0

    def update(self, confidences: Floats) -> None:
        """Count production confidences below each rank's."""
        at = np.searchsorted(self._edges, confidences, side="right")  # as many edges are at or below it
        counts = np.bincount(at, minlength=len(self._edges) + 1)
        self._below += np.cumsum(counts)[:-1]
        self._total += len(confidences)

    def bound(self) -> float:
        """The lower bound on 1 − α; like its confidence sequences it is valid at all times at once."""
        rates = rates_below(self._below, self._total, self._part)
        return max(0.0, float((1 - (1 - rates) / self._id_above).max()))


@lru_cache(maxsize=16)
def _id_limits(n: int, delta: float) -> tuple[NDArray[np.int64], Floats, float]:
    """The ranks, a lower limit of P_ID(S ≥ t) at each, and the part of δ that each limit has.

    Each sample gets half of δ. P_ID(S ≥ j-th lowest) is Beta(n + 1 − j, j), or more with ties; its lower quantile is
    Clopper–Pearson's lower limit of the n + 1 − j rows at or above.
    """
    ranks = np.unique(np.maximum(1, np.ceil(_LEVELS * n)).astype(np.int64))
    part = delta / 2 / len(ranks)
    return ranks, lower_limit(n + 1 - ranks, n, part), part
