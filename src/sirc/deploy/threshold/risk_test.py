"""Risk test: certify thresholds by exact binomial tests, in an order fixed before labels are seen.

The hypothesis at a threshold t is "more than r* of the inputs with S > t are errors". It is rejected if so few errors
among the accepted rows have probability at most the level under a rate of r*: the test of which Clopper–Pearson's limit
is the inverse. The sequence runs through every distinct confidence, from few accepted rows to all, and ends at the
first test that fails. To survive a failure by chance it may start again at other ranks, n/32, n/16, … n, as far as r*
and δ let them succeed, each with an equal share of δ. A run that reaches the next start adds that share to its own (the
fallback procedure, Wiens 2003), so that a run without failures ends with the whole δ. A grid of G coverages with δ/G
each would have no more than that share anywhere.
"""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np

from sirc.deploy.threshold.counts import Counts
from sirc.metrics import too_few, upper_limit

MOST_STARTS = 6


def rows_needed(risk: float, delta: float) -> int:
    """The least number of rows that, without one error, prove a risk: (1 − r)ⁿ ≤ δ."""
    return max(1, math.ceil(math.log(delta) / math.log1p(-risk) - 1e-9))


def _ranks(n: int, count: int) -> list[int]:
    return [-(-n // 2**i) for i in range(count - 1, -1, -1)]


def _least_risk(n: int, count: int, delta: float) -> float:
    """The least risk at which each of `count` starts can succeed if there are no errors."""
    rows = n if count == 1 else _ranks(n, count)[0] - 1
    return -math.expm1(math.log(delta / count) / rows) if rows > 0 else 1.0


def start_ranks(n: int, risk: float, delta: float) -> list[int]:
    """The ranks at which the sequence may start, from few rows to all; they depend on n, r* and δ only."""
    for count in range(MOST_STARTS, 0, -1):
        if _least_risk(n, count, delta) <= risk * (1 + 1e-9):
            return _ranks(n, count)
    return []


def certified(accepted: Counts, wrong: Counts, risk: float, delta: float) -> int:
    """The index of the lowest value down to which a risk is proved, or −1. Counts are cumulative, by distinct value."""
    n = int(accepted[-1])
    ranks = start_ranks(n, risk, delta)
    starts = [int(at) for at in np.searchsorted(accepted, ranks)]
    share = delta / max(1, len(ranks))
    best, level, alive = -1, 0.0, False
    for number, (start, end) in enumerate(zip(starts, [*starts[1:], len(accepted)], strict=True)):
        level = level + share if alive else share
        if not alive:
            # The rows above a rank are a random sample of what is accepted there, without the row at the rank itself.
            # Rows that all tie at the top are such a sample too, and so are all rows.
            is_sample = start == 0 or number == len(starts) - 1
            alive = is_sample or bool(too_few(wrong[start - 1], accepted[start - 1], risk, level)[0])
        if alive and end > start:
            passed = too_few(wrong[start:end], accepted[start:end], risk, level)
            alive = bool(passed.all())
            count = len(passed) if alive else int(passed.argmin())
            best = start + count - 1 if count else best
    return best


def lowest_risk(accepted: Counts, wrong: Counts, risk: float, delta: float, *, feasible: bool) -> float:
    """The lowest risk for which `certified` finds a threshold; 1 if there is none.

    A risk is feasible if one start succeeds: if the rows above its rank, and those down to it, pass. Starts at the same
    value add up their shares once the rows above have passed. If the target is infeasible, it is the lowest feasible
    risk above it, since a lower one may be feasible by having fewer starts with larger shares of δ.
    """
    n = int(accepted[-1])
    lowest = 1.0
    for count in range(1, MOST_STARTS + 1):
        at = np.searchsorted(accepted, _ranks(n, count))
        above = np.maximum(at - 1, 0)
        tied = (at[:, None] == at).sum(1)
        down_to = upper_limit(wrong[at], accepted[at], delta / count * tied)
        before = upper_limit(wrong[above], accepted[above], delta / count)
        limits = np.where(at == 0, down_to, np.maximum(down_to, before))
        whole = float(upper_limit(wrong[-1], n, delta / count)[0])  # all rows are a sample by themselves
        proved = min(float(limits.min()), whole) * (1 + 1e-9)
        within = max(proved, _least_risk(n, count, delta), 0.0 if feasible else risk)
        if count == MOST_STARTS or within < _least_risk(n, count + 1, delta):
            lowest = min(lowest, within)
    return lowest


def rows_for(accepted: Counts, wrong: Counts, risk: float, delta: float) -> int | None:
    """About how many ID rows would prove a risk at the error rates seen, or None if no number would.

    It is the least number over the starts, if their error rates stay, with half an error added to each. By the bound
    P(X ≤ k) ≤ Φ(−√(2m·KL((k + 1)/m ‖ r*))) (Zubkov and Serov 2013), m accepted rows with k errors are enough where
    m·KL((k + 1)/m ‖ r*) ≥ z²/2.
    """
    from scipy.optimize import brentq
    from scipy.special import rel_entr

    def surplus(m: float, rate: float) -> float:
        seen = rate + 1 / m
        return float(m * (rel_entr(seen, risk) + rel_entr(1 - seen, 1 - risk)) - wanted)

    n = int(accepted[-1])
    wanted = NormalDist().inv_cdf(delta / MOST_STARTS) ** 2 / 2
    needed: list[float] = []
    for at in np.searchsorted(accepted, _ranks(n, MOST_STARTS)):
        size = int(accepted[at])
        rate = (int(wrong[at]) + 0.5) / (size + 1)
        gap = risk - rate
        if gap > 0:
            # At twice 1/gap half of the gap is left, and KL(p ‖ r) ≥ 2(r − p)² (Pinsker).
            needed.append(brentq(surplus, 1 / gap, 2 / gap + 2 * wanted / gap**2, args=(rate,)) * n / size)
    if not needed:
        return None
    digits = int(10 ** max(0, math.floor(math.log10(min(needed))) - 1))
    return math.ceil(min(needed) / digits) * digits
