"""Exact binomial tails and their inverses on whole arrays, in float64: what the guarantees of a threshold rest on.

With X ~ Binomial(n, p), P(X ≤ k) is an incomplete beta function, I_q(n−k, k+1), here by its continued fraction. The
factor before it is the probability of k itself, in Loader's form (2000), whose terms stay small where a difference of
log-gammas would lose half its digits.
"""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]

_SMALL = 16
_TINY = 1e-300
_ROUNDS = 20_000  # the fraction needs some √n of them


def _log_factorial_rest(n: int) -> float:
    """log n! less Stirling's formula."""
    return math.lgamma(n + 1) - (n + 0.5) * math.log(n) + n - 0.5 * math.log(2 * math.pi) if n else 0.0


_RESTS = np.array([_log_factorial_rest(n) for n in range(_SMALL)])


def _stirling_rest(n: Floats) -> Floats:
    large = np.maximum(n, _SMALL)
    square = large * large
    series = (1 / 12 - (1 / 360 - (1 / 1260 - 1 / 1680 / square) / square) / square) / large
    return np.where(n < _SMALL, _RESTS[np.minimum(n, _SMALL - 1).astype(np.intp)], series)


def _deviance(x: Floats, mean: Floats) -> Floats:
    """x·log(x/mean) + mean − x, whose error is that of x − mean and not of x."""
    mean = np.maximum(mean, _TINY)
    u = (x - mean) / mean
    return mean * ((1 + u) * np.log1p(np.maximum(u, -1 + 1e-16)) - u)


def _log_pmf(k: Floats, n: Floats, p: Floats, q: Floats) -> Floats:
    """log P(X = k), for 0 ≤ k ≤ n and q = 1 − p."""
    inner = (k > 0) & (k < n)
    a, b = np.where(inner, k, 1.0), np.where(inner, n - k, 1.0)
    m = a + b
    rests = _stirling_rest(m) - _stirling_rest(a) - _stirling_rest(b)
    middle = rests - _deviance(a, m * p) - _deviance(b, m * q) + 0.5 * np.log(m / (2 * math.pi * a * b))
    logs_p = np.where(p < 0.5, np.log(np.maximum(p, _TINY)), np.log1p(-np.minimum(q, 0.75)))
    logs_q = np.where(q < 0.5, np.log(np.maximum(q, _TINY)), np.log1p(-np.minimum(p, 0.75)))
    return np.where(inner, middle, np.where(k == 0, n * logs_q, n * logs_p))


def _fraction(a: Floats, b: Floats, x: Floats) -> Floats:
    """The continued fraction of I_x(a, b) by Lentz's method, for x below (a+1)/(a+b+2)."""
    c = np.ones_like(x)
    d = 1 / np.where(np.abs(v := 1 - (a + b) * x / (a + 1)) < _TINY, _TINY, v)
    total, result = d, np.empty_like(x)
    rows: NDArray[np.intp] = np.arange(len(x))
    for m in range(1, _ROUNDS):
        change = np.ones_like(x)
        for term in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 + term * d
            c = 1 + term / c
            d = 1 / np.where(np.abs(d) < _TINY, _TINY, d)
            c = np.where(np.abs(c) < _TINY, _TINY, c)
            change = change * c * d
        total = total * change
        going = np.abs(change - 1) > 1e-15
        if m % 16 == 0 or not going.any():
            # Most are done early; the few near the mean would make all the others wait.
            result[rows] = total
            if not going.any():
                break
            rows = rows[going]
            a, b, x, c, d, total = (kept[going] for kept in (a, b, x, c, d, total))
    return result


def _lower(k: Floats, n: Floats, p: Floats, q: Floats) -> Floats:
    """P(X ≤ k) of arrays of one shape; p and q = 1 − p both come, so that neither loses its digits near 0."""
    inside = (k >= 0) & (k < n) & (p > 0) & (q > 0)
    outside = np.where((k >= n) | (p <= 0), 1.0, 0.0)
    outside = np.where(k < 0, 0.0, outside)
    if not inside.any():
        return outside
    where = np.flatnonzero(inside)
    k, n, p, q = k[where], n[where], p[where], q[where]
    a, b = n - k, k + 1
    factor = np.exp(_log_pmf(k, n, p, q)) * p
    direct = q < (a + 1) / (n + 3)
    f = _fraction(np.where(direct, a, b), np.where(direct, b, a), np.where(direct, q, p))
    outside[where] = np.where(direct, factor * f, 1 - factor * a / b * f)
    return np.clip(outside, 0.0, 1.0)


def _arrays(*values: ArrayLike) -> list[Floats]:
    return [np.array(x, dtype=np.float64).reshape(-1) for x in np.broadcast_arrays(*values)]


def at_most(k: ArrayLike, n: ArrayLike, p: ArrayLike) -> Floats:
    """P(X ≤ k), as a 1-D array."""
    k, n, p = _arrays(k, n, p)
    return _lower(k, n, p, 1 - p)


def at_least(k: ArrayLike, n: ArrayLike, p: ArrayLike) -> Floats:
    """P(X ≥ k), as a 1-D array, to full relative precision where it is small."""
    k, n, p = _arrays(k, n, p)
    return _lower(n - k, n, 1 - p, p)


def _inverse(k: Floats, n: Floats, delta: Floats) -> tuple[Floats, Floats]:
    """The p, and its 1 − p, with P(X ≤ k) = δ for 0 < k < n: Newton's steps in log-odds, kept in a bracket."""
    z = np.array([NormalDist().inv_cdf(1 - min(max(d, 1e-15), 1 - 1e-15)) for d in delta])
    guess = (k + 0.5 + z * z / 2 + z * np.sqrt(z * z / 4 + (k + 0.5) * (n - k) / n)) / (n + z * z + 1)
    guess = np.clip(guess, 1e-12, 1 - 1e-12)
    x = np.log(guess) - np.log1p(-guess)
    low, high = np.full_like(x, -700.0), np.full_like(x, 700.0)
    for _ in range(200):
        p, q = 1 / (1 + np.exp(-x)), 1 / (1 + np.exp(x))
        tail = np.maximum(_lower(k, n, p, q), _TINY)
        low, high = np.where(tail > delta, x, low), np.where(tail > delta, high, x)
        slope = (n - k) * p * np.exp(_log_pmf(k, n, p, q)) / tail
        step = (np.log(tail) - np.log(delta)) / np.maximum(slope, _TINY)
        moved = x + np.clip(step, -50, 50)
        moved = np.where((moved >= low) & (moved <= high), moved, (low + high) / 2)
        done = np.abs(step) < 1e-12 * (1 + np.abs(x))
        x = np.where(done, x, moved)
        if bool((done | (high - low < 1e-14 * (1 + np.abs(x)))).all()):
            break
    return 1 / (1 + np.exp(-x)), 1 / (1 + np.exp(x))


def _limit(k: Floats, n: Floats, delta: Floats) -> tuple[Floats, Floats]:
    p, q = np.ones_like(k), np.zeros_like(k)
    none = (k <= 0) & (n > 0)
    log_q = np.log(delta[none]) / n[none]
    p[none], q[none] = -np.expm1(log_q), np.exp(log_q)
    inner = (k > 0) & (k < n)
    if inner.any():
        p[inner], q[inner] = _inverse(k[inner], n[inner], delta[inner])
    return p, q


def upper_limit(k: ArrayLike, n: ArrayLike, delta: ArrayLike) -> Floats:
    """Clopper–Pearson's upper limit: the largest p under which k or fewer of n still has probability δ."""
    return _limit(*_arrays(k, n, delta))[0]


def lower_limit(k: ArrayLike, n: ArrayLike, delta: ArrayLike) -> Floats:
    """Clopper–Pearson's lower limit: the smallest p under which k or more of n still has probability δ."""
    k, n, delta = _arrays(k, n, delta)
    return _limit(n - k, n, delta)[1]


def interval(k: int, n: int, delta: float) -> tuple[float, float]:
    """Clopper–Pearson's interval: both limits, each at δ/2."""
    p, q = _limit(*_arrays([k, n - k], n, delta / 2))
    return float(q[1]), float(p[0])


def _signed_root(k: Floats, n: Floats, p: float) -> Floats:
    """±√(2n·KL(k/n ‖ p)), negative where k/n is below p."""
    full = np.maximum(n - k, 0.0)
    tilt = _deviance(k, n * p) + np.where(full > 0, _deviance(np.maximum(full, _TINY), n * (1 - p)), n * (1 - p))
    root: Floats = np.sign(k - n * p) * np.sqrt(2 * np.maximum(tilt, 0.0))
    return root


def rejects(k: ArrayLike, n: ArrayLike, p: float, level: float) -> NDArray[np.bool_]:
    """Whether P(X ≤ k) ≤ level: whether k of n is too few for a rate of p or more.

    Φ(g(k)) ≤ P(X ≤ k) ≤ Φ(g(k + 1)) with g = ±√(2n·KL(k/n ‖ p)) (Zubkov and Serov 2013), which decides all but the few
    that lie within one count of the border; only those need the exact tail.
    """
    k, n = _arrays(k, n)
    z = NormalDist().inv_cdf(level)
    slack = 1e-7 * (1 + abs(z))
    inner = (k > 0) & (k + 1 < n)
    surely = inner & (_signed_root(np.minimum(k + 1, n), n, p) < z - slack)
    open_ = np.flatnonzero(~surely & ~(inner & (_signed_root(k, n, p) > z + slack)))
    if len(open_):
        surely[open_] = _lower(k[open_], n[open_], np.full(len(open_), p), np.full(len(open_), 1 - p)) <= level
    return surely


@lru_cache(maxsize=64)
def least_count(n: int, p: float, delta: float) -> int | None:
    """The smallest j with P(X ≥ j) ≤ δ, or None where even P(X = n) is larger."""
    low, high = 0, n + 1  # P(X ≥ low) > δ ≥ P(X ≥ high)
    while high - low > 1:
        some = np.unique(np.linspace(low, high, min(65, high - low + 1)).round().astype(np.int64))[1:-1]
        fine = at_least(some, n, p) <= delta
        first = int(fine.argmax()) if fine.any() else len(some)
        edges = [low, *some.tolist(), high]
        low, high = edges[first], edges[first + 1]
    return high if high <= n else None
