"""The risk test: thresholds whose share of errors is at most r*, against a binomial random walk.

Go down the confidences and count the errors X among the first k rows. Let F count the heads of k independent coins that
fall on heads with probability r*.

Theorem. For any distribution, with ties or without, and with probability 1 in one coupling: at every threshold whose
risk is above r*, X ≥ F at the same k.

Proof. Break ties by a second, uniform variable: the risk is then continuous in the threshold, and exactly r* wherever
it passes r*. So between two such points, and above the first, the rate of errors is r*, and given how many rows lie in
each of these pieces, their errors are binomial at r*, as heads are. Inside a piece where the risk is above r*, each
upper part of it has a rate of at least r*: errors lie higher than right rows do, stochastically. Start from rows whose
labels are coins, independent of the confidence, and move the errors up to where they belong: every count grows. (In the
last piece the rate may be above r*: calling its lowest errors right makes it r*, and only lowers counts.)

So whatever F does with probability at most δ, X does at most as often at the thresholds that may not be accepted. Two
limits share δ, and both come from one pass over the law of F:
- the net, at every k at once: F ever at or below it has probability δ/2, spent evenly in log k (Lan and DeMets 1983);
- the run, a fixed sequence of tests from a first k on, down to the first that fails. To go too far it must pass at the
  first threshold that may not be accepted: there F is at or below the limit, and not yet in the net, with probability
  δ/2. Where that is the end of a tie, the coupling gives X = F + d at k + d for a k that knows nothing of F, so it is
  enough that the limit grows by at most one a row. A first k within a tie counts the errors of the tie first.
"""

from __future__ import annotations

import functools
import math
from statistics import NormalDist

import numpy as np

from sirc.deploy.threshold.counts import Counts, check_inner

_STEPS = 512  # most steps of the walk; with more rows, a step takes several
_START = 0.6  # the run starts where an error rate of this share of r* would pass,
_LATEST = 3  # but at the latest after a third of the rows
_LOST = 1e-15  # the probability cut off at the top in each step


def rows_needed(risk: float, delta: float) -> int:
    """The least number of rows that, without one error, prove a risk: (1 − r)ⁿ ≤ δ."""
    return max(1, math.ceil(math.log(delta) / math.log1p(-risk) - 1e-9))


def require_rows(count: int | None, risk: float, delta: float) -> None:
    """Refuse fewer rows than can prove a risk; None means that their number is not known yet."""
    needed = rows_needed(check_inner("risk", risk), check_inner("delta", delta))
    if count is not None and count < needed:
        raise ValueError(
            f"a risk of {risk:g} with δ = {delta:g} needs at least {needed:,} ID rows, and no error among them; got "
            f"{count:,}. Label more rows, or allow a larger risk or δ."
        )


class ErrorLimits:
    """The most errors among k rows that show a risk: at any k by `net`, at each k from `start` on by `run`."""

    def __init__(self, n: int, risk: float, delta: float) -> None:
        from scipy.stats import binom

        few = n < 2 * rows_needed(risk, delta)  # too few to share δ
        spent, spend = 0.0, 0.0 if few else delta / 2
        first = rows_needed(risk, delta / 2)
        size = -(-n // _STEPS)
        self.ends = np.append(np.arange(size, n, size), n)
        self.net, self.run = np.full((2, len(self.ends)), -1)
        highest = binom.isf(_LOST, self.ends, risk).astype(int)
        tosses, before = np.empty(0), 0
        law, lowest = np.ones(1), 0  # of F while it has not met the net: P(F = lowest), P(F = lowest + 1), …
        for step, k in enumerate(self.ends):
            if len(tosses) != k - before + 1:
                tosses = binom.pmf(np.arange(k - before + 1), k - before, risk)
            law = np.convolve(law, tosses[: highest[step] + 1])[: highest[step] + 1 - lowest]
            if spend and k >= first:
                may = spend if k == n else spend * math.log(k / first) / math.log(n / first)
                sums = np.cumsum(law)
                met = int(np.searchsorted(sums, may - spent, side="right"))
                spent += float(sums[met - 1]) if met else 0.0
                law, lowest = law[met:], lowest + met
            passing = lowest - 1 + int(np.searchsorted(np.cumsum(law), delta - spend, side="right"))
            for limits, most in ((self.net, lowest - 1), (self.run, passing)):
                limits[step] = min(most, (limits[step - 1] if step else -1) + k - before)
            before = int(k)
        able = self.ends[self.run >= 0].tolist()
        decided = self.ends[self.run >= np.maximum(0, np.floor(_START * risk * self.ends))].tolist()
        self.start = min(max(n // _LATEST, able[0]), *decided[:1], n) if able else n + 1

    def at(self, limits: Counts, sizes: Counts) -> Counts:
        """The limits for these numbers of rows; they grow by at most one with each row."""
        # F never falls, and grows by at most one a toss: the ends of the steps on both sides bound it.
        after = np.searchsorted(self.ends, sizes)
        whole = np.append(limits, -1)  # index −1: no step lies before
        before = np.where(self.ends[after] == sizes, after, after - 1)
        bounds: Counts = np.maximum(whole[before], limits[after] - (self.ends[after] - sizes))
        return np.maximum(bounds, -1)


_limits = functools.lru_cache(maxsize=32)(ErrorLimits)


def certified(accepted: Counts, wrong: Counts, risk: float, delta: float) -> int:
    """The index of the lowest value at which the risk is proved, or −1; counts are cumulative, by distinct value."""
    at = np.arange(len(wrong))
    limits = _limits(int(accepted[-1]), risk, delta)
    shown = wrong <= limits.at(limits.net, accepted)
    begun = accepted >= limits.start
    fails = begun & (wrong > limits.at(limits.run, accepted))
    if begun.any():  # if the run starts within a tie, the tie's errors come first
        at_start = int(begun.argmax())
        above = (int(accepted[at_start - 1]), int(wrong[at_start - 1])) if at_start else (0, 0)
        errors = min(above[1] + limits.start - above[0], int(wrong[at_start]))
        fails[at_start] |= bool(errors > limits.at(limits.run, np.array([limits.start]))[0])
    stop = int(fails.argmax()) if fails.any() else len(at)
    shown |= begun & (at < stop)
    return int(at[shown].max(initial=-1))


def lowest_risk(accepted: Counts, wrong: Counts, risk: float, delta: float, *, feasible: bool) -> float:
    """The lowest risk for which `certified` finds a threshold, to a twentieth of a percent; 1 if there is none.

    The search goes down from a feasible target, and up from an infeasible one.
    """

    def found(target: float) -> bool:
        return certified(accepted, wrong, target, delta) >= 0

    least = -math.expm1(math.log(delta) / int(accepted[-1]))  # by rows without an error
    low, high = (least * (1 - 1e-9), risk) if feasible else (risk, 1 - 1e-9)
    if not feasible and not found(high):
        return 1.0
    while high / low > 1.0005:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if found(middle) else (middle, high)
    return high


def rows_for(accepted: Counts, wrong: Counts, risk: float, delta: float) -> int | None:
    """About how many ID rows would prove a risk at the error rates seen, or None if no number would.

    It is the least number over the coverages 1, 1/2, … 1/32, if their error rates stay the same. Each rate has half an
    error added, and is tested with a normal approximation at the level δ/8.
    """
    n = int(accepted[-1])
    at = np.searchsorted(accepted, [-(-n // 2**i) for i in range(6)])
    at = at[wrong[at] + 0.5 < risk * (accepted[at] + 1)]
    if not len(at):
        return None
    gap = risk - (wrong[at] + 0.5) / (accepted[at] + 1)
    needed = NormalDist().inv_cdf(delta / 8) ** 2 * risk * (1 - risk) * float((n / accepted[at] / gap**2).min())
    digits = int(10 ** max(0, math.floor(math.log10(needed)) - 1))
    return math.ceil(needed / digits) * digits
