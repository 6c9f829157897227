"""Betting: sequential tests of the acceptance rate and the OOD share, valid after every input.

If the rate is at most u, a bet on q > u pays (q/u)^accepted · ((1−q)/(1−u))^rejected, which on average never grows; the
same holds for q < l if the rate is at least l. Capital spread over many q is an e-process: it ever exceeds 1/δ with
probability at most δ (Ville). It depends on the counts only, so no inputs are stored.
"""

from __future__ import annotations

import math
from typing import final

import numpy as np
from numpy.typing import NDArray

from sirc._utils.arrays import Floats
from sirc.metrics import lower_limit

# Bets, as fractions of the way from the rate to 1 or 0: ½ is a gross change, 2⁻¹⁴ takes millions of inputs to see.
_STEPS = np.concatenate(([0.97, 0.85], 2.0 ** -(0.5 * np.arange(1, 29))))
_CHUNK = 1 << 12  # inputs at a time, so that their bets stay in a CPU's cache
# Ranks to compare, as shares of the rows: easy OOD input lies below most ID confidences, hard OOD in their lower half.
_LEVELS = np.array([0, 0.001, 0.003, 0.01, 0.02, 0.04, 0.07, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.75, 0.9])


@final
class Bets:
    """The capital against a rate within [low, high], after each input."""

    def __init__(self, low: float, high: float) -> None:
        self.accepted = self.rejected = 0
        self.log_capital = self.log_peak = 0.0
        # For the rates above and below: the log factors of each bet, for an accepted and for a rejected input. If no
        # rate lies on a side, its half of the capital stays as it is.
        self._sides: list[Floats] = []
        if high < 1:
            self._sides.append(np.stack((np.log1p(_STEPS * (1 - high) / high), np.log1p(-_STEPS))))
        if low > 0:
            self._sides.append(np.stack((np.log1p(-_STEPS), np.log1p(_STEPS * low / (1 - low)))))

    def update(self, accepts: NDArray[np.bool_], log_alarm: float) -> int | None:
        """Take inputs in order; return the index, among all so far, of the one that raises the alarm, or None."""
        first = None
        for start in range(0, len(accepts), _CHUNK):
            some = accepts[start : start + _CHUNK]
            before = self.accepted + self.rejected
            right = self.accepted + np.cumsum(some, dtype=np.int64)
            left = before + np.arange(1, len(some) + 1) - right
            capital = self._log_capital(right, left)
            high = capital >= log_alarm
            if first is None and high.any():
                first = before + int(high.argmax())
            self.log_peak = max(self.log_peak, float(capital.max()))
            self.log_capital = float(capital[-1])
            self.accepted, self.rejected = int(right[-1]), int(left[-1])
        return first

    def _log_capital(self, accepted: NDArray[np.int64], rejected: NDArray[np.int64]) -> Floats:
        counts = np.stack((accepted, rejected), 1).astype(np.float64)
        logs = [np.zeros(len(counts))] * (2 - len(self._sides))
        for gains in self._sides:
            bets = counts @ gains
            largest = bets.max(axis=1, keepdims=True)
            logs.append(largest[:, 0] + np.log(np.exp(bets - largest).sum(axis=1) / len(_STEPS)))
        return np.asarray(np.logaddexp(logs[0], logs[1]) - math.log(2), dtype=np.float64)


def rate_interval(accepted: int, total: int, delta: float) -> tuple[float, float]:
    """A confidence sequence for a constant rate: it contains the rate at all times at once with probability 1 − δ.

    It consists of the rates against which bets with Jeffreys' prior, Beta(½, ½), have not reached a capital of 1/δ.
    """
    low, high = rates_below(np.array([accepted, total - accepted]), total, delta).tolist()
    return low, 1 - high


def interval_anywhere(accepted: int, n: int, delta: float) -> tuple[float, float]:
    """Limits of a population's acceptance rate, from n of its rows, that hold at all thresholds at once.

    By Dvoretzky, Kiefer and Wolfowitz (1956), with the constant of Massart (1990).
    """
    reach = math.sqrt(math.log(2 / delta) / (2 * n))
    return max(0.0, accepted / n - reach), min(1.0, accepted / n + reach)


def rates_below(counts: NDArray[np.int64], total: int, delta: float) -> Floats:
    """The lower ends of the confidence sequences for the rates of several events; 0 for events that never happened."""
    positive = counts[counts > 0].astype(np.float64)
    rest = total - positive
    logs = [math.lgamma(k + 0.5) + math.lgamma(total - k + 0.5) for k in positive.tolist()]
    mixture = np.array(logs) - math.lgamma(total + 1) - math.log(math.pi)
    low, high = np.zeros(len(positive)), positive / total
    for _ in range(60):
        p = (low + high) / 2
        won = mixture - positive * np.log(p) - rest * np.log1p(-p) >= -math.log(delta)
        low, high = np.where(won, p, low), np.where(won, high, p)
    ends = np.zeros(len(counts))
    ends[counts > 0] = low
    return ends


@final
class OodShare:
    """A lower bound of the OOD share, from the excess of low confidences over those of ID data.

    Input is α ID and 1 − α OOD, so for every t, P(S < t) ≤ α·P_ID(S < t) + (1 − α), that is
    1 − α ≥ (F(t) − F_ID(t)) / (1 − F_ID(t)). With F bounded from below and F_ID from above, at several fixed ranks of
    the calibration sample at once, the largest of these is a lower bound.
    """

    def __init__(self, calibration: Floats, delta: float) -> None:
        n = len(calibration)
        ranks = np.unique(np.maximum(1, np.ceil(_LEVELS * n)).astype(np.int64))
        # Each sample gets half of δ. P_ID(S ≥ j-th lowest) is Beta(n + 1 − j, j), or more with ties; its lower quantile
        # is Clopper–Pearson's lower limit of the n + 1 − j rows at or above.
        self._part = delta / 2 / len(ranks)
        self._id_above = lower_limit(n + 1 - ranks, n, self._part)
        self._edges = np.sort(calibration)[ranks - 1]
        self.below = np.zeros(len(ranks), dtype=np.int64)

    def update(self, confidences: Floats) -> None:
        """Count production confidences below that of each rank."""
        at = np.searchsorted(self._edges, confidences, side="right")  # the number of edges at or below each
        counts = np.bincount(at, minlength=len(self._edges) + 1)
        self.below += np.cumsum(counts)[:-1]

    def bound(self, total: int) -> float:
        """The lower bound on 1 − α after `total` inputs; like the confidence sequences it is valid at all times."""
        rates = rates_below(self.below, total, self._part)
        return max(0.0, float((1 - (1 - rates) / self._id_above).max()))
