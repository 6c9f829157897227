"""Exact binomial tails and their inverses, for the guarantees of thresholds.

With X ~ Binomial(n, p), P(X ≥ k) is the regularised incomplete beta function I_p(k, n − k + 1). Each tail is computed
directly, never as 1 minus the other, so small tails keep all their digits. Arguments broadcast; results are 1-D.
"""

from __future__ import annotations

from bisect import bisect_left

import numpy as np
from numpy.typing import ArrayLike

from sirc._utils.arrays import Floats


def at_least(k: ArrayLike, n: ArrayLike, p: ArrayLike) -> Floats:
    """P(X ≥ k)."""
    from scipy.special import betainc

    k, n, p = _broadcast(k, n, p)
    tail: Floats = betainc(np.maximum(k, 1), np.maximum(n - k, 0) + 1, p)
    return np.where(k <= 0, 1.0, np.where(k > n, 0.0, tail))


def upper_limit(k: ArrayLike, n: ArrayLike, delta: ArrayLike) -> Floats:
    """Clopper–Pearson's upper limit: the largest p under which k or fewer of n still has probability δ."""
    from scipy.special import betainccinv

    k, n, delta = _broadcast(k, n, delta)
    limit: Floats = betainccinv(np.maximum(k, 0) + 1, np.maximum(n - k, 1), delta)
    return np.where(k >= n, 1.0, limit)


def lower_limit(k: ArrayLike, n: ArrayLike, delta: ArrayLike) -> Floats:
    """Clopper–Pearson's lower limit: the smallest p under which k or more of n still has probability δ."""
    from scipy.special import betaincinv

    k, n, delta = _broadcast(k, n, delta)
    limit: Floats = betaincinv(np.maximum(k, 1), np.maximum(n - k, 0) + 1, delta)
    return np.where(k <= 0, 0.0, limit)


def binomial_interval(k: int, n: int, delta: float) -> tuple[float, float]:
    """Clopper–Pearson's interval: both limits, each at δ/2."""
    return float(lower_limit(k, n, delta / 2)[0]), float(upper_limit(k, n, delta / 2)[0])


def least_count(n: int, p: float, delta: float) -> int | None:
    """The smallest j with P(X ≥ j) ≤ δ, or None if even P(X = n) is larger."""
    count = bisect_left(range(n + 1), True, key=lambda j: bool(at_least(j, n, p)[0] <= delta))
    return count if count <= n else None


def _broadcast(*values: ArrayLike) -> list[Floats]:
    return [np.array(x, dtype=np.float64).reshape(-1) for x in np.broadcast_arrays(*values)]
