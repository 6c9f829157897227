"""Exact binomial tails and their inverses, for the guarantees of thresholds.

With X ~ Binomial(n, p), P(X ≥ k) is the regularised incomplete beta function I_p(k, n − k + 1). Each tail is computed
directly, never as 1 minus the other, so small tails keep all their digits. Arguments broadcast.
"""

from __future__ import annotations

from bisect import bisect_left

import numpy as np
from numpy.typing import ArrayLike

from sirc._utils.arrays import Floats


def at_least(k: ArrayLike, n: Floats | int, p: Floats | float) -> Floats:
    """P(X ≥ k)."""
    from scipy.special import betainc

    k = np.asarray(k, dtype=np.float64)
    tail: Floats = betainc(np.maximum(k, 1), np.maximum(n - k, 0) + 1, p)
    return np.where(k <= 0, 1.0, np.where(k > n, 0.0, tail))


def upper_limit(k: ArrayLike, n: Floats | int, delta: float) -> Floats:
    """Clopper–Pearson's upper limit: the largest p under which k or fewer of n still has probability δ."""
    from scipy.special import betainccinv

    k = np.asarray(k, dtype=np.float64)
    limit: Floats = betainccinv(np.maximum(k, 0) + 1, np.maximum(n - k, 1), delta)
    return np.where(k >= n, 1.0, limit)


def lower_limit(k: ArrayLike, n: Floats | int, delta: float) -> Floats:
    """Clopper–Pearson's lower limit: the smallest p under which k or more of n still has probability δ."""
    from scipy.special import betaincinv

    k = np.asarray(k, dtype=np.float64)
    limit: Floats = betaincinv(np.maximum(k, 1), np.maximum(n - k, 0) + 1, delta)
    return np.where(k <= 0, 0.0, limit)


def binomial_interval(k: int, n: int, delta: float) -> tuple[float, float]:
    """Clopper–Pearson's interval: both limits, each at δ/2."""
    return float(lower_limit(k, n, delta / 2)), float(upper_limit(k, n, delta / 2))


def least_count(n: int, p: float, delta: float) -> int | None:
    """The smallest j with P(X ≥ j) ≤ δ, or None if even P(X = n) is larger."""
    count = bisect_left(range(n + 1), True, key=lambda j: bool(at_least(j, n, p) <= delta))
    return count if count <= n else None
