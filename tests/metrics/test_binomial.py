"""Binomial tails, limits and counts against exact fractions and SciPy's distributions."""

import math
from fractions import Fraction
from itertools import accumulate

import numpy as np
import pytest
from scipy import stats

from sirc.metrics import binomial


def many_binomials(seed=0):
    rng = np.random.default_rng(seed)
    n = np.concatenate([np.ones(50), rng.integers(1, 40, 1000), rng.integers(1, 10**6, 500), np.full(200, 10**6)])
    p = np.where(rng.random(len(n)) < 0.5, rng.random(len(n)), 10 ** rng.uniform(-8, 0, len(n)))
    k = np.clip((n * p + 3 * rng.normal(size=len(n)) * np.sqrt(n * p * (1 - p))).round(), 0, n)
    return np.concatenate([k, np.zeros(100), n[-100:]]), np.append(n, np.tile(n[-100:], 2)), np.append(p, p[:200])


@pytest.mark.slow
@pytest.mark.parametrize("n", [1, 7, 200])
def test_tails_are_sums_of_exact_fractions(n):
    for p in map(Fraction, (1e-6, 0.3, 0.999)):
        masses = [math.comb(n, k) * p**k * (1 - p) ** (n - k) for k in range(n + 1)]
        upper = [*map(float, accumulate(masses[::-1]))][::-1]
        counts = np.arange(n + 1)
        assert binomial.at_least(counts, n, float(p)) == pytest.approx(upper, rel=1e-11, abs=1e-300)
        assert binomial.at_least([-1, n + 1], n, float(p)).tolist() == [1, 0]


def test_tails_are_those_of_scipy_s_distribution():
    k, n, p = many_binomials()
    upper = stats.binom.sf(k - 1, n, p)
    assert binomial.at_least(k, n, p) == pytest.approx(upper, rel=1e-9, abs=1e-280)


@pytest.mark.parametrize("delta", [1e-9, 1e-3, 0.05, 0.5, 0.99])
def test_limits_are_clopper_and_pearson_s(delta):
    rng = np.random.default_rng(1)
    n = np.concatenate([np.ones(2), np.full(3, 7), rng.integers(1, 10**6, 200), np.full(8, 10**6)])
    k = np.concatenate(
        [[0, 1], [0, 3, 7], rng.integers(0, n[5:205] + 1), [0, 1, 2, 500, 999_000, 999_998, 999_999, 1e6]]
    )
    upper = np.where(k == n, 1.0, stats.beta.isf(delta, k + 1, np.maximum(n - k, 1)))
    lower = np.where(k == 0, 0.0, stats.beta.ppf(delta, np.maximum(k, 1), n - k + 1))
    assert binomial.upper_limit(k, n, delta) == pytest.approx(upper, rel=1e-9)
    assert binomial.lower_limit(k, n, delta) == pytest.approx(lower, rel=1e-9, abs=1e-300)


@pytest.mark.parametrize(("n", "p", "delta"), [(59, 0.95, 0.05), (1000, 0.9, 1e-9), (10**6, 0.95, 1e-6), (1, 0.5, 0.5)])
def test_the_least_count_is_the_first_that_is_rare_enough(n, p, delta):
    j = binomial.least_count(n, p, delta)
    assert stats.binom.sf(j - 1, n, p) <= delta < stats.binom.sf(j - 2, n, p)
    assert binomial.least_count(58, 0.95, 0.05) is None
