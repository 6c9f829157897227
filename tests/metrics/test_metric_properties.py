"""One table of metrics × invariants: what must not matter does not, and what must hurt does."""

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sirc import Ranking
from support.examples import examples

A, B = 0.4, 0.3
METRICS = {
    "auroc_wrong": lambda r: r.auroc("wrong"),
    "auroc_ood": lambda r: r.auroc("ood"),
    "auroc_id": lambda r: r.auroc("ood", positive="id"),
    "fpr_wrong": lambda r: r.fpr("wrong", recall=0.7),
    "fpr_ood": lambda r: r.fpr("ood"),
    "fpr_id": lambda r: r.fpr("ood", recall=0.5, positive="id"),
    "aurr": lambda r: r.aurr(A, B),
    "aurc": lambda r: r.aurc(A, B),
    "eaurc": lambda r: r.eaurc(A, B),
    "augrc": lambda r: r.augrc(A, B),
    "risk_at_recall": lambda r: r.risk_at_recall(0.8, A, B),
    "interval_low": lambda r: r.auroc_interval("wrong")[0],
    "interval_high": lambda r: r.auroc_interval("ood", positive="id")[1],
}

small = examples(40)
scores = st.integers(-3, 3)
groups = st.tuples(*[st.lists(scores, min_size=2, max_size=8)] * 3)
shares = st.integers(0, 100).map(lambda k: k / 100)


def every_metric(three):
    """The value of each metric for three groups."""
    ranking = Ranking(*three)
    return {name: metric(ranking) for name, metric in METRICS.items()}


def same(x, y):
    # The interval has a square root, which is steep where the variance is 0.
    return x == pytest.approx(y, abs=1e-7)


@pytest.mark.slow
@small
@given(groups, st.lists(st.floats(allow_nan=False, width=32), min_size=7, max_size=7, unique=True))
def test_a_strictly_increasing_map_changes_nothing(three, values):
    values = sorted(v + 0.0 for v in values)  # −0 and 0 would be a tie
    if len(set(values)) < 7:
        return
    mapped = [[values[s + 3] for s in group] for group in three]
    plain = every_metric(three)
    for dtype in (np.float64, np.float32):
        got = every_metric(np.array(group, dtype) for group in mapped)
        assert all(same(got[name], value) for name, value in plain.items()), (got, plain)


@pytest.mark.slow
@small
@given(groups, st.randoms(use_true_random=False))
def test_the_order_of_samples_does_not_matter(three, random):
    got, plain = every_metric(random.sample(group, len(group)) for group in three), every_metric(three)
    assert all(same(got[name], value) for name, value in plain.items()), (got, plain)


@pytest.mark.slow
@small
@given(groups, st.integers(2, 4))
def test_repeating_every_sample_changes_nothing_but_the_interval(three, times):
    once, often = every_metric(three), every_metric(group * times for group in three)
    assert often.pop("interval_low") >= once.pop("interval_low") - 1e-12  # more samples make an interval narrower
    assert often.pop("interval_high") <= once.pop("interval_high") + 1e-12
    assert all(same(often[name], value) for name, value in once.items()), (often, once)


@small
@given(groups, st.integers(2, 4), shares, shares)
def test_repeating_the_ood_samples_alone_changes_nothing(three, times, alpha, beta):
    correct, wrong, ood = three
    once, often = Ranking(correct, wrong, ood), Ranking(correct, wrong, ood * times)
    for metric in ("aurr", "aurc", "augrc", "eaurc"):
        assert getattr(often, metric)(alpha, beta) == pytest.approx(getattr(once, metric)(alpha, beta), abs=1e-13)


@small
@given(groups)
def test_ties_count_as_the_mean_of_both_ways_to_break_them(three):
    """AUROC and AUGRC are means over pairs, so this holds for them, and only for them."""
    sizes = np.cumsum([0, *map(len, three)])
    shift = [np.arange(low, high) / 1000 for low, high in pairwise(sizes)]
    up, down = ([np.array(g) + sign * s for g, s in zip(three, shift, strict=True)] for sign in (1, -1))
    for metric in ("auroc_wrong", "auroc_ood", "auroc_id", "augrc"):
        mean = (METRICS[metric](Ranking(*up)) + METRICS[metric](Ranking(*down))) / 2
        assert METRICS[metric](Ranking(*three)) == pytest.approx(mean, abs=1e-13)


@small
@given(groups)
def test_auroc_of_exchanged_groups_is_one_minus_it(three):
    correct, wrong, ood = three
    assert Ranking(correct, wrong).auroc("wrong") == pytest.approx(
        1 - Ranking(wrong, correct).auroc("wrong"), abs=1e-14
    )
    assert Ranking(correct, None, ood).auroc("ood") == pytest.approx(
        1 - Ranking(ood, None, correct).auroc("ood"), abs=1e-14
    )


@small
@given(groups)
def test_auroc_of_negated_scores_is_one_minus_it(three):
    negated = [[-s for s in group] for group in three]
    for metric in ("auroc_wrong", "auroc_ood", "auroc_id"):
        assert METRICS[metric](Ranking(*negated)) == pytest.approx(1 - METRICS[metric](Ranking(*three)), abs=1e-14)


def moved(three, which, index, by):
    """The groups with one score of one group moved."""
    found = [list(group) for group in three]
    found[which][index % len(found[which])] += by
    return found


@small
@given(groups, st.integers(0, 7), st.integers(1, 7), shares, st.integers(0, 50).map(lambda k: k / 100))
def test_raising_an_ood_score_never_lowers_aurr_up_to_equal_costs(three, index, by, alpha, beta):
    assert Ranking(*moved(three, 2, index, by)).aurr(alpha, beta) >= Ranking(*three).aurr(alpha, beta) - 1e-14


@small
@given(groups, st.integers(0, 7), st.integers(1, 7), shares, st.integers(50, 100).map(lambda k: k / 100))
def test_raising_a_wrong_score_never_lowers_aurr_from_equal_costs_on(three, index, by, alpha, beta):
    assert Ranking(*moved(three, 1, index, by)).aurr(alpha, beta) >= Ranking(*three).aurr(alpha, beta) - 1e-14


@small
@given(groups, st.sampled_from([1, 2]), st.integers(0, 7), st.integers(1, 7), shares, shares)
def test_lowering_a_mistake_never_hurts_what_ranks_it_against_right_predictions(three, which, index, by, alpha, beta):
    before, after = Ranking(*three), Ranking(*moved(three, which, index, -by))
    negative = ("wrong", "ood")[which - 1]
    assert after.auroc(negative) >= before.auroc(negative) - 1e-14
    assert after.fpr(negative) <= before.fpr(negative)
    dearer = beta >= 0.5 if which == 1 else beta <= 0.5
    if dearer:
        assert after.risk_at_recall(0.8, alpha, beta) <= before.risk_at_recall(0.8, alpha, beta) + 1e-14


@small
@given(groups, st.integers(0, 7), st.integers(1, 7), shares, shares)
def test_raising_a_right_score_never_hurts_auroc_or_augrc(three, index, by, alpha, beta):
    before, after = Ranking(*three), Ranking(*moved(three, 0, index, by))
    assert after.auroc("wrong") >= before.auroc("wrong") - 1e-14
    assert after.auroc("ood") >= before.auroc("ood") - 1e-14
    assert after.augrc(alpha, beta) <= before.augrc(alpha, beta) + 1e-14


@small
@given(st.tuples(*[st.lists(scores, min_size=1, max_size=8)] * 3), shares, shares, shares)
def test_metrics_stay_in_their_range(three, recall, alpha, beta):
    r = Ranking(*three)
    dearest = max(beta, 1 - beta)
    shared = [r.auroc("wrong"), r.auroc("ood"), r.auroc("ood", positive="id"), *r.accepted(0), r.coverage(0, alpha)]
    assert all(0 <= value <= 1 for value in [*shared, r.fpr("wrong", recall=recall), r.fpr("ood", recall=recall)])
    slack = 1e-15
    for value in (r.aurr(alpha, beta), r.aurc(alpha, beta), r.risk_at_recall(recall, alpha, beta)):
        assert 0 <= value <= dearest + slack
    assert 0 <= r.augrc(alpha, beta) <= dearest / 2 + slack
    assert -slack <= r.eaurc(alpha, beta) <= dearest + slack
    curve = r.risk_coverage(alpha, beta)
    assert bool((curve.x.diff() >= 0).all() and (curve.x <= 1).all())
    assert bool((curve.risk >= 0).all() and (curve.risk <= dearest + slack).all())


@small
@given(st.tuples(*[st.lists(scores, min_size=1, max_size=30)] * 3), shares)
def test_a_perfect_ranking_is_perfect(three, beta):
    correct, wrong, ood = ([s + shift for s in g] for g, shift in zip(three, (10, 0, 0), strict=True))
    r = Ranking(correct, wrong, ood)
    assert r.auroc("wrong") == pytest.approx(1, abs=1e-15)
    assert r.auroc("ood") == pytest.approx(1, abs=1e-15)
    assert (
        r.fpr("ood", recall=1) == r.fpr("wrong", recall=1) == r.aurr(0.5, beta) == r.risk_at_recall(1, 0.5, beta) == 0
    )
    assert r.threshold(risk=0, alpha=0.5, beta=0.5) == min(correct)


def test_the_worst_ranking_is_the_worst():
    r = Ranking([0], [1, 2], [3])
    assert (r.auroc("wrong"), r.auroc("ood"), r.fpr("wrong"), r.fpr("ood")) == (0, 0, 1, 1)
    assert r.aurr(0.75, 1) == pytest.approx(0.5)
    assert math.isinf(r.threshold(risk=0.1, alpha=0.75, beta=0.5))
