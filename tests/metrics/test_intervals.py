"""Analytic intervals: against SciPy, against the ranking's own, and by how often they cover the truth."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

import sirc
from sirc.metrics.intervals import auroc_influences, spearman, wilson_interval
from support.examples import examples

ties = st.lists(st.tuples(st.integers(-3, 3), st.integers(-3, 3)), min_size=4, max_size=40)


@examples(60)
@given(ties)
def test_the_rank_correlation_is_scipy_s_with_ties_too(pairs):
    x, y = np.array(pairs, dtype=float).T
    constant = len(set(x)) == 1 or len(set(y)) == 1
    if constant:
        assert math.isnan(spearman(x, y, 0.95).value)
    else:
        assert spearman(x, y, 0.95).value == pytest.approx(stats.spearmanr(x, y).statistic, abs=1e-12)


def test_a_share_has_wilson_s_interval():
    for count, of in ((0, 30), (3, 50), (50, 50)):
        expected = stats.binomtest(count, of).proportion_ci(0.9, method="wilson")
        got = wilson_interval(count, of, 0.9)
        assert (got.value, got.low, got.high) == pytest.approx((count / of, expected.low, expected.high), abs=1e-12)


def test_intervals_of_one_auroc_are_those_of_the_ranking():
    rng = np.random.default_rng(3)
    right, wrong = torch.tensor(rng.normal(1, 1, 300).round(1)), torch.tensor(rng.normal(0, 1, 40).round(1))
    ranking, got = sirc.Ranking(right, wrong), auroc_influences(right, [wrong]).interval(0.9)
    assert got.value == pytest.approx(ranking.auroc("wrong"), abs=1e-12)
    assert (got.low, got.high) == pytest.approx(ranking.auroc_interval("wrong", level=0.9), abs=1e-12)


@pytest.mark.slow
def test_the_interval_of_a_paired_difference_covers_as_promised():
    rng = np.random.default_rng(4)
    truth = stats.norm.cdf(0.6 / 2**0.5) - stats.norm.cdf(1 / 2**0.5)
    repeats, inside = 600, 0
    for _ in range(repeats):
        # Two scores with a correlation of 0.8, means 1 and 0.6 for positives.
        shared = rng.normal(size=250)
        noise = rng.normal(size=(2, 250)) * 0.5 + shared
        noise /= 1.25**0.5
        noise[:, :200] += np.array([[1.0], [0.6]])
        x, y = (auroc_influences(torch.tensor(s[:200]), [torch.tensor(s[200:])]) for s in noise)
        difference = y.less(x, 0.95)
        inside += difference.low <= truth <= difference.high
    assert stats.binomtest(inside, repeats, 0.95).pvalue > 0.01


@pytest.mark.slow
def test_the_interval_of_rho_covers_as_promised():
    rng = np.random.default_rng(5)
    correlation = 0.5
    truth = 6 / math.pi * math.asin(correlation / 2)
    repeats, inside = 600, 0
    for _ in range(repeats):
        x, y = rng.multivariate_normal([0, 0], [[1, correlation], [correlation, 1]], 200).T
        rho = spearman(x, y, 0.95)
        inside += rho.low <= truth <= rho.high
    assert stats.binomtest(inside, repeats, 0.95).pvalue > 0.01
