"""Ranking against exact fractions, scikit-learn and SciPy; its thresholds, edges and errors."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from scipy import integrate
from sklearn import metrics as sk

from sirc import Ranking
from sirc.metrics import Curve, ranking
from support.examples import examples
from support.metric_reference import Mixture, delong

MIXTURE_METRICS = ["aurr", "aurc", "augrc"]
small = examples(60)
shares = st.one_of(st.sampled_from([0.0, 0.5, 1.0]), st.integers(0, 1000).map(lambda k: k / 1000))


def group(least, most=7):
    return st.lists(st.integers(-3, 3).map(float), min_size=least, max_size=most)


triples = st.tuples(group(1), group(0), group(1))
full_triples = st.tuples(group(1), group(1), group(1))


def normal_groups(sizes=(700, 260, 900), seed=0, decimals=None):
    rng = np.random.default_rng(seed)
    groups = [rng.normal(mean, 1, n) for n, mean in zip(sizes, (1.5, 0.4, 0.0), strict=True)]
    return groups if decimals is None else [g.round(decimals) for g in groups]


# Every metric against loops over thresholds


@small
@given(full_triples)
def test_auroc_is_the_share_of_pairs_in_order(groups):
    r, plain = Ranking(*groups), Mixture(*groups)
    assert r.auroc("wrong") == pytest.approx(plain.auroc("wrong"), abs=1e-14)
    assert r.auroc("ood") == pytest.approx(plain.auroc("ood"), abs=1e-14)
    assert r.auroc("ood", positive="id") == pytest.approx(plain.auroc("ood", "id"), abs=1e-14)


@small
@given(full_triples, shares)
def test_fpr_is_the_share_of_negatives_at_the_conservative_threshold(groups, recall):
    r, plain = Ranking(*groups), Mixture(*groups)
    assert r.fpr("wrong", recall=recall) == plain.fpr("wrong", recall)
    assert r.fpr("ood", recall=recall) == plain.fpr("ood", recall)
    assert r.fpr("ood", recall=recall, positive="id") == plain.fpr("ood", recall, "id")


@pytest.mark.slow
@pytest.mark.parametrize("metric", MIXTURE_METRICS)
@small
@given(triples, shares, shares)
def test_areas_are_sums_over_distinct_thresholds(metric, groups, alpha, beta):
    got = getattr(Ranking(*groups), metric)(alpha, beta)
    assert got == pytest.approx(getattr(Mixture(*groups), metric)(alpha, beta), abs=1e-13)


@small
@given(triples, shares, shares, shares)
def test_risk_at_recall_is_the_risk_of_that_threshold(groups, recall, alpha, beta):
    got = Ranking(*groups).risk_at_recall(recall, alpha, beta)
    assert got == pytest.approx(Mixture(*groups).risk_at_recall(recall, alpha, beta), abs=1e-14)


@small
@given(triples, shares, shares)
def test_curves_have_one_point_for_each_distinct_score(groups, alpha, beta):
    r, plain = Ranking(*groups), Mixture(*groups)
    recall, coverage = r.risk_recall(alpha, beta), r.risk_coverage(alpha, beta)
    for curve in (recall, coverage):
        assert curve.threshold.tolist() == plain.thresholds
        expected = [float(plain.risk(t, alpha, beta)) for t in plain.thresholds]
        assert curve.risk.tolist() == pytest.approx(expected, abs=1e-14)
    assert recall.x.tolist() == [float(plain.recall(t)) for t in plain.thresholds]
    expected = [float(plain.coverage(t, alpha)) for t in plain.thresholds]
    assert coverage.x.tolist() == pytest.approx(expected, abs=1e-14)
    assert recall.x[-1] == coverage.x[-1] == 1


@small
@given(triples, st.sampled_from([-math.inf, -9.0, -1.0, -0.5, 0.0, 2.0, 2.5, 3.0, 9.0, math.inf]), shares, shares)
def test_a_threshold_accepts_scores_at_or_above_it(groups, t, alpha, beta):
    r, plain = Ranking(*groups), Mixture(*groups)
    assert r.accepted(t) == (float(plain.recall(t)), float(plain.wrong_share(t)), float(plain.ood_share(t)))
    assert r.recall(t) == float(plain.recall(t))
    assert r.coverage(t, alpha) == pytest.approx(float(plain.coverage(t, alpha)), abs=1e-14)
    assert r.risk(t, alpha, beta) == pytest.approx(float(plain.risk(t, alpha, beta)), abs=1e-14)


@small
@given(triples, st.data(), shares, shares, shares)
def test_ood_weights_are_shares_of_the_ood_mass(groups, data, recall, alpha, beta):
    size = len(groups[2])
    weights = data.draw(st.lists(st.integers(0, 4), min_size=size, max_size=size).filter(any))
    r, plain = Ranking(*groups, ood_weights=weights), Mixture(*groups, weights)
    assert r.auroc("ood") == pytest.approx(plain.auroc("ood"), abs=1e-14)
    assert r.auroc("ood", positive="id") == pytest.approx(plain.auroc("ood", "id"), abs=1e-14)
    assert r.fpr("ood", recall=recall) == pytest.approx(plain.fpr("ood", recall), abs=1e-15)
    for metric in MIXTURE_METRICS:
        assert getattr(r, metric)(alpha, beta) == pytest.approx(getattr(plain, metric)(alpha, beta), abs=1e-13)
    for t in plain.thresholds:
        assert r.accepted(t)[2] == pytest.approx(float(plain.ood_share(t)), abs=1e-15)
        assert r.risk(t, alpha, beta) == pytest.approx(float(plain.risk(t, alpha, beta)), abs=1e-14)


@pytest.mark.parametrize("metric", [*MIXTURE_METRICS, "eaurc", "risk_at_recall", "risk"])
def test_arrays_of_alpha_and_beta_give_the_grid_of_the_single_values(metric):
    groups = normal_groups((30, 12, 25), decimals=1)
    r, plain = Ranking(*groups), Mixture(*(g.tolist() for g in groups))
    alphas, betas = [0.0, 0.15, 0.5, 1.0], [0.0, 0.3, 1.0]
    first = {"risk_at_recall": (0.8,), "risk": (0.4,)}.get(metric, ())

    def got(alpha, beta):
        return getattr(r, metric)(*first, alpha, beta)

    def expected(alpha, beta):
        if metric == "eaurc":
            return plain.aurc(alpha, beta) - numeric_oracle_area(plain, alpha, beta)
        return float(getattr(plain, metric)(*first, alpha, beta))

    table = np.array([[expected(a, b) for b in betas] for a in alphas])
    grid = got(np.array(alphas), torch.tensor(betas, dtype=torch.float64))
    assert grid.shape == (4, 3)
    assert grid.dtype == torch.float64
    np.testing.assert_allclose(grid, table, atol=1e-9)
    np.testing.assert_allclose(got(alphas, 0.3), table[:, 1], atol=1e-9)
    np.testing.assert_allclose(got(0.15, betas), table[1], atol=1e-9)
    assert got([0.5], betas).shape == (1, 3)
    assert got([0.5], 0.3).shape == (1,)
    assert isinstance(got(0.5, 0.3), float)
    assert isinstance(got(np.float64(0.5), torch.tensor(0.3)), float)


@pytest.mark.slow
def test_a_later_call_with_other_alphas_is_not_answered_from_the_first():
    groups = normal_groups((30, 12, 25))
    plain = Mixture(*(g.tolist() for g in groups))
    r = Ranking(*groups)
    for alphas in ([0.2, 0.9], [0.9, 0.2], [0.2], [0.9], [0.2, 0.9]):
        np.testing.assert_allclose(r.aurr(alphas, 0.3), [plain.aurr(a, 0.3) for a in alphas], atol=1e-13)
        np.testing.assert_allclose(r.aurc(alphas, 0.3), [plain.aurc(a, 0.3) for a in alphas], atol=1e-13)


# Against scikit-learn, on many samples


@pytest.mark.parametrize("decimals", [None, 1])
def test_auroc_is_scikit_learns(decimals):
    correct, wrong, ood = normal_groups((7000, 2000, 9000), decimals=decimals)
    r = Ranking(correct, wrong, ood)

    def expected(positive, negative, weight=None):
        truth = np.repeat([1, 0], [len(positive), len(negative)])
        return sk.roc_auc_score(truth, np.concatenate((positive, negative)), sample_weight=weight)

    inside = np.concatenate((correct, wrong))
    assert r.auroc("wrong") == pytest.approx(expected(correct, wrong), abs=1e-12)
    assert r.auroc("ood") == pytest.approx(expected(correct, ood), abs=1e-12)
    assert r.auroc("ood", positive="id") == pytest.approx(expected(inside, ood), abs=1e-12)
    weights = np.random.default_rng(1).exponential(size=len(ood))
    weighted = expected(correct, ood, np.concatenate((np.ones(len(correct)), weights)))
    assert Ranking(correct, wrong, ood, ood_weights=weights).auroc("ood") == pytest.approx(weighted, abs=1e-12)


@pytest.mark.parametrize("decimals", [None, 1])
@pytest.mark.parametrize("alpha", [0.05, 0.5, 0.93, 1.0])
def test_aurr_at_equal_costs_is_one_minus_average_precision(decimals, alpha):
    groups = normal_groups((7000, 2000, 9000), decimals=decimals)
    truth, scores, weights = weighted_problem(groups, alpha)
    precision = sk.average_precision_score(truth, scores, sample_weight=weights)
    assert 2 * Ranking(*groups).aurr(alpha, 0.5) == pytest.approx(1 - precision, abs=1e-12)


@pytest.mark.parametrize("decimals", [None, 1])
@pytest.mark.parametrize("alpha", [0.05, 0.5, 0.93, 1.0])
def test_curves_at_equal_costs_follow_scikit_learns_precision(decimals, alpha):
    groups = normal_groups((3000, 900, 4000), decimals=decimals)
    truth, scores, weights = weighted_problem(groups, alpha)
    precision, recall, thresholds = sk.precision_recall_curve(truth, scores, sample_weight=weights)
    precision, recall, thresholds = precision[-2::-1], recall[-2::-1], thresholds[::-1]
    r = Ranking(*groups)
    curve = r.risk_recall(alpha, 0.5)
    # At α = 1, OOD scores weigh nothing there and are thresholds here.
    kept = np.isin(curve.threshold.numpy(), thresholds)
    np.testing.assert_allclose(2 * curve.risk.numpy()[kept], 1 - precision, atol=1e-12)
    np.testing.assert_allclose(curve.x.numpy()[kept], recall, atol=1e-12)
    coverage = np.where(precision > 0, recall * alpha * r.accuracy / np.maximum(precision, 1e-300), np.nan)
    known = precision > 0
    np.testing.assert_allclose(r.risk_coverage(alpha, 0.5).x.numpy()[kept][known], coverage[known], atol=1e-12)


def test_fpr_and_recall_threshold_are_points_of_scikit_learns_roc():
    correct, wrong, ood = normal_groups((7000, 2000, 9000), decimals=2)
    truth = np.repeat([1, 0], [len(correct), len(ood)])
    fpr, tpr, thresholds = sk.roc_curve(truth, np.concatenate((correct, ood)), drop_intermediate=False)
    at = np.argmax(tpr >= 0.95)
    r = Ranking(correct, wrong, ood)
    assert r.fpr("ood") == pytest.approx(fpr[at], abs=1e-15)
    assert r.threshold(recall=0.95) == thresholds[at]


def weighted_problem(groups, alpha):
    """ID✓ against the rest, with the weights that the mixture gives them."""
    n_id, n_ood = len(groups[0]) + len(groups[1]), len(groups[2])
    sizes = [len(g) for g in groups]
    weights = np.repeat([alpha / n_id, alpha / n_id, (1 - alpha) / n_ood], sizes)
    return np.repeat([1, 0, 0], sizes), np.concatenate(groups), weights


# Identities


def test_auroc_of_a_mixture_is_the_weighted_mean_of_the_two():
    correct, wrong, ood = normal_groups(decimals=1)
    r = Ranking(correct, wrong, ood)
    mixed = Ranking(correct, np.concatenate((wrong, ood)))
    mean = (len(wrong) * r.auroc("wrong") + len(ood) * r.auroc("ood")) / (len(wrong) + len(ood))
    assert mixed.auroc("wrong") == pytest.approx(mean, abs=1e-13)
    against_wrong = Ranking(wrong, None, ood).auroc("ood")
    p = len(correct) / (len(correct) + len(wrong))
    assert r.auroc("ood", positive="id") == pytest.approx(p * r.auroc("ood") + (1 - p) * against_wrong, abs=1e-13)


@pytest.mark.parametrize("metric", [*MIXTURE_METRICS, "risk_at_recall", "risk"])
def test_risk_is_linear_in_beta(metric):
    r = Ranking(*normal_groups(decimals=1))
    first = {"risk_at_recall": (0.95,), "risk": (0.7,)}.get(metric, ())
    betas = np.linspace(0, 1, 11)
    values = np.array([getattr(r, metric)(*first, 0.4, float(b)) for b in betas])
    np.testing.assert_allclose(values, (1 - betas) * values[0] + betas * values[-1], atol=1e-14)
    assert values[0] != pytest.approx(values[-1], abs=1e-3)


@small
@given(triples, shares)
def test_alpha_one_ignores_ood(groups, beta):
    alone, together = Ranking(*groups[:2]), Ranking(*groups)
    for metric in [*MIXTURE_METRICS, "eaurc"]:
        assert getattr(together, metric)(1, beta) == pytest.approx(getattr(alone, metric)(1, beta), abs=1e-14)
    assert together.risk_at_recall(0.9, 1, beta) == pytest.approx(alone.risk_at_recall(0.9, 1, beta), abs=1e-15)
    assert together.coverage(0.0, 1) == alone.coverage(0.0, 1)


def test_alpha_zero_is_ood_alone():
    r = Ranking([5, 3, 1], [4], [4, 2])
    # Where no OOD input is accepted yet, nothing is: the first ID✓ costs nothing.
    assert r.aurr(0, 0.25) == pytest.approx(0.75 * 2 / 3)
    assert r.aurc(0, 0.25) == pytest.approx(0.75)
    assert r.augrc(0, 0.25) == pytest.approx(0.75 / 2)
    assert r.risk(3, 0, 0.25) == 0.75
    assert r.risk(5, 0, 0.25) == 0
    assert r.coverage(4, 0) == 0.5


@small
@given(full_triples, shares)
def test_a_mistake_that_costs_nothing_counts_only_as_coverage(groups, alpha):
    correct, wrong, ood = groups
    r = Ranking(correct, wrong, ood)
    n_id = len(correct) + len(wrong)

    def by_hand(costs):
        area = 0.0
        for s in correct:
            c, x, o = (sum(v >= s for v in g) for g in groups)
            masses = (alpha * c / n_id, alpha * x / n_id, (1 - alpha) * o / len(ood))
            area += sum(m * cost for m, cost in zip(masses, costs, strict=True)) / (sum(masses) or 1) / len(correct)
        return area

    assert r.aurr(alpha, 1) == pytest.approx(by_hand((0, 1, 0)), abs=1e-13)
    assert r.aurr(alpha, 0) == pytest.approx(by_hand((0, 0, 1)), abs=1e-13)


@pytest.mark.parametrize("decimals", [None, 0])
def test_augrc_of_plain_selective_classification_follows_from_auroc(decimals):
    correct, wrong, _ = normal_groups(decimals=decimals)
    r = Ranking(correct, wrong)
    acc, err = len(correct) / (len(correct) + len(wrong)), len(wrong) / (len(correct) + len(wrong))
    assert r.augrc(1, 1) == pytest.approx(acc * err * (1 - r.auroc("wrong")) + err**2 / 2, abs=1e-14)


@small
@given(triples, shares, shares)
@example(([0.0], [], [0.0]), 0.5, 0.5)
@example(([1.0], [0.0], [-1.0]), 1.0, 1.0)
@example(([1.0, 1.0, 1.0], [0.0], [-1.0]), 0.3, 0.7)
def test_the_oracle_is_a_lower_bound(groups, alpha, beta):
    r, plain = Ranking(*groups), Mixture(*groups)
    assert r.eaurc(alpha, beta) >= -1e-14
    curve = r.risk_coverage(alpha, beta)
    for k, risk in zip(curve.x.tolist(), curve.risk.tolist(), strict=True):
        assert risk * k >= float(plain.oracle_loss(k, alpha, beta)) - 1e-14
    oracle = r.oracle_risk_coverage(alpha, beta, points=40)
    at = torch.searchsorted(oracle.x, curve.x.clamp_max(oracle.x[-1]))
    below = torch.where(at > 0, oracle.risk[(at - 1).clamp_min(0)], 0.0)
    assert bool((curve.risk >= below - 1e-14).all())


@small
@given(triples, shares, shares)
def test_the_oracle_curve_is_the_least_risk_at_each_coverage(groups, alpha, beta):
    curve, plain = Ranking(*groups).oracle_risk_coverage(alpha, beta, points=16), Mixture(*groups)
    assert curve.x[-1] == 1
    assert bool((curve.x > 0).all() and (curve.x.diff() >= 0).all() and curve.threshold.isnan().all())
    expected = [float(plain.oracle_loss(k, alpha, beta)) / k for k in curve.x.tolist()]
    assert curve.risk.tolist() == pytest.approx(expected, abs=1e-13)


def test_the_oracle_curve_has_its_knees_as_points():
    curve = Ranking([1, 1, 1], [0], [0]).oracle_risk_coverage(0.6, 0.3, points=2)
    assert curve.x.tolist() == pytest.approx([0.45, 0.5, 0.6, 1])
    assert curve.risk.tolist() == pytest.approx([0, 0.3 * 0.05 / 0.5, 0.3 * 0.15 / 0.6, 0.3 * 0.15 + 0.7 * 0.4])


def numeric_oracle_area(plain, alpha, beta):
    good, wrong = alpha * len(plain.correct) / plain.n_id, alpha * len(plain.wrong) / plain.n_id
    knots = sorted({0.0, 1.0, *(min(1.0, k) for k in (good, good + wrong, good + 1 - alpha))})
    parts = [
        integrate.quad(lambda k: float(plain.oracle_loss(k, alpha, beta)) / k, low, high, epsabs=1e-12)[0]
        for low, high in pairwise(knots)
    ]
    return sum(parts)


@pytest.mark.parametrize("alpha", [0.0, 0.01, 0.3, 0.75, 1.0])
@pytest.mark.parametrize("beta", [0.0, 0.2, 0.5, 0.51, 0.9, 1.0])
@pytest.mark.parametrize("sizes", [(6, 3, 2), (1, 9, 4), (4, 0, 3)])
def test_the_oracle_area_is_the_integral_of_its_curve(alpha, beta, sizes):
    groups = [list(range(n)) for n in sizes]
    r = Ranking(*groups)
    got = r.aurc(alpha, beta) - r.eaurc(alpha, beta)
    assert got == pytest.approx(numeric_oracle_area(Mixture(*groups), alpha, beta), abs=1e-9)


def test_the_oracle_area_of_plain_selective_classification_is_the_known_formula():
    for right, wrong in ((9, 1), (1, 1), (3, 17)):
        r = Ranking(range(right), range(wrong))
        error = wrong / (right + wrong)
        known = error + (1 - error) * math.log(1 - error)
        assert r.aurc(1, 1) - r.eaurc(1, 1) == pytest.approx(known, abs=1e-14)


def test_a_perfect_ranking_nears_the_oracle_as_samples_grow():
    excess = [
        Ranking(np.arange(7 * n) + 5 * n, np.arange(3 * n), -1.0 - np.arange(4 * n)).eaurc(0.6, 0.2) for n in (1, 100)
    ]
    assert 0 < excess[1] < excess[0] / 50


# The exact mixture against resampling


@pytest.mark.slow
@pytest.mark.parametrize("alpha", [0.3, 0.8])
def test_the_exact_mixture_is_the_mean_over_resamplings(alpha):
    correct, wrong, ood = normal_groups((400, 150, 4000), decimals=1)
    n_id = len(correct) + len(wrong)
    size = round(n_id * (1 - alpha) / alpha)
    rng = np.random.default_rng(3)
    draws = {name: [] for name in (*MIXTURE_METRICS, "risk")}
    for _ in range(300):
        # Unit costs and equal weights once OOD is subsampled to its share.
        some = rng.choice(ood, size, replace=False)
        scores, cost = np.concatenate((correct, wrong, some)), np.repeat([0.0, 1, 1], [400, 150, size])
        thresholds = np.unique(scores)[::-1]
        order = np.sort(scores)
        accepted = len(scores) - np.searchsorted(order, thresholds, "left")
        bad = np.sort(scores[cost == 1])
        lost = len(bad) - np.searchsorted(bad, thresholds, "left")
        right = len(correct) - np.searchsorted(np.sort(correct), thresholds, "left")
        risk, cover, loss = lost / accepted, accepted / len(scores), lost / len(scores)
        draws["aurr"].append(np.sum(np.diff(right / len(correct), prepend=0) * risk))
        draws["aurc"].append(np.sum(np.diff(cover, prepend=0) * risk))
        draws["augrc"].append(np.trapezoid(np.r_[0, loss], np.r_[0, cover]))
        draws["risk"].append(risk[np.argmax(right / len(correct) >= 0.95)])
    r, share = Ranking(correct, wrong, ood), n_id / (n_id + size)
    for name, values in draws.items():
        exact = 2 * (r.risk_at_recall(0.95, share, 0.5) if name == "risk" else getattr(r, name)(share, 0.5))
        error = np.std(values, ddof=1) / math.sqrt(len(values))
        # The mean of ratios is off the ratio of means by the order of the variance.
        assert abs(np.mean(values) - exact) < 4 * error + np.var(values), name
        assert error < 0.002


def test_equal_ood_weights_change_nothing_and_whole_ones_repeat_samples():
    correct, wrong, ood = normal_groups((60, 20, 30), decimals=1)
    plain, equal = Ranking(correct, wrong, ood), Ranking(correct, wrong, ood, ood_weights=np.full(30, 0.1))
    counts = np.random.default_rng(0).integers(0, 4, 30)
    counted, repeated = (
        Ranking(correct, wrong, ood, ood_weights=counts),
        Ranking(correct, wrong, np.repeat(ood, counts)),
    )
    for one, other in ((plain, equal), (counted, repeated)):
        assert one.auroc("ood") == pytest.approx(other.auroc("ood"), abs=1e-13)
        for metric in MIXTURE_METRICS:
            np.testing.assert_allclose(
                getattr(one, metric)([0.2, 0.9], [0, 0.6]), getattr(other, metric)([0.2, 0.9], [0, 0.6]), atol=1e-13
            )


# Thresholds


@pytest.mark.parametrize(
    ("recall", "n", "accepted"),
    [(0.95, 20, 19), (0.07, 100, 7), (0.29, 100, 29), (0.57, 100, 57), (1.0, 7, 7), (0.0, 7, 0), (1e-9, 7, 1)]
    + [(k / 49, 49, k) for k in (1, 7, 30, 48)]
    + [(math.nextafter(0.95, 1), 20, 20), (math.nextafter(0.95, 0), 20, 19)],
)
def test_a_recall_is_reached_as_a_float_and_not_exceeded(recall, n, accepted):
    scores = np.random.default_rng(0).permutation(n) / n
    t = Ranking(scores, [0.5], [2.0]).threshold(recall=recall)
    assert (scores >= t).sum() == accepted
    assert accepted / n >= recall
    if recall == 0:
        assert t == math.inf


def test_every_recall_k_of_n_accepts_k():
    for n in range(1, 80):
        r = Ranking(np.arange(n))
        for k in range(1, n + 1):
            assert r.threshold(recall=k / n) == n - k


def test_every_coverage_k_of_n_accepts_k():
    rng = np.random.default_rng(5)
    for n in range(2, 40):
        scores, wrong = np.arange(float(n)), rng.permutation(n) < rng.integers(1, n)
        r = Ranking(scores[~wrong], scores[wrong])
        for k in range(1, n + 1):
            assert r.threshold(coverage=k / n, alpha=1) == n - k


@pytest.mark.slow
def test_every_risk_k_of_n_is_within_reach():
    """19 right and one wrong have a risk of 0.05: a limit of 0.05 accepts all of them, rounding or not."""
    for n in range(2, 41):
        for k in range(1, n):
            r = Ranking(np.arange(n - k) + 1.0 + n, np.arange(k) + 1.0)
            assert r.threshold(risk=k / n, alpha=1, beta=1) == 1.0
            assert r.risk(1.0, 1, 1) == k / n


def test_tied_scores_at_the_threshold_are_accepted_together():
    r = Ranking([3, 2, 2, 2, 1], [2, 2], [2, 0])
    assert r.threshold(recall=0.4) == 2
    assert r.accepted(2) == (0.8, 1, 0.5)
    assert r.fpr("wrong", recall=0.4) == 1
    assert r.fpr("wrong", recall=0.2) == 0


@small
@given(triples, shares, shares)
def test_the_threshold_at_a_coverage_is_the_highest_that_reaches_it(groups, target, alpha):
    r, plain = Ranking(*groups), Mixture(*groups)
    t = r.threshold(coverage=target, alpha=alpha)
    if target == 0:
        assert t == math.inf
        return
    assert r.coverage(t, alpha) >= target
    assert float(plain.coverage(t, alpha)) >= target - 1e-15
    for higher in (s for s in plain.thresholds if s > t):
        assert float(plain.coverage(higher, alpha)) < target + 1e-15


@small
@given(triples, shares, shares, shares)
def test_the_threshold_at_a_risk_has_the_most_coverage_within_it(groups, limit, alpha, beta):
    r, plain = Ranking(*groups), Mixture(*groups)
    t = r.threshold(risk=limit, alpha=alpha, beta=beta)
    assert r.risk(t, alpha, beta) <= limit
    assert float(plain.risk(t, alpha, beta)) <= limit + 1e-15
    for lower in (s for s in plain.thresholds if s < t):
        assert float(plain.risk(lower, alpha, beta)) > limit - 1e-15


def test_a_risk_out_of_reach_accepts_nothing():
    r = Ranking([1, 1], [2], [3])
    assert r.threshold(risk=0.1, alpha=0.5, beta=0.5) == math.inf
    assert r.accepted(math.inf) == (0, 0, 0)
    assert r.risk(math.inf, 0.5, 0.5) == 0
    assert r.threshold(risk=0, alpha=0.5, beta=0.5) == math.inf
    assert r.threshold(risk=1, alpha=0.5, beta=0.5) == 1


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_scores_compared_with_a_returned_threshold_reproduce_the_risk(dtype):
    generator = torch.Generator().manual_seed(0)
    groups = [torch.randn(n, generator=generator).to(dtype) for n in (90, 40, 70)]
    r = Ranking(*groups)
    for wanted in ({"recall": 0.8}, {"coverage": 0.6, "alpha": 0.7}, {"risk": 0.22, "alpha": 0.7, "beta": 0.4}):
        t = r.threshold(**wanted)
        c, x, o = (int((g >= t).sum()) for g in groups)
        assert 0 < c + x + o < 200
        loss, covered = 0.4 * 0.7 * x / 130 + 0.6 * 0.3 * o / 70, 0.7 * (c + x) / 130 + 0.3 * o / 70
        assert r.risk(t, 0.7, 0.4) == pytest.approx(loss / covered, abs=1e-14)
        assert r.coverage(t, 0.7) == pytest.approx(covered, abs=1e-14)
        assert r.recall(t) == c / 90


# Inputs of every kind


@pytest.mark.parametrize(
    "convert",
    [
        list,
        tuple,
        lambda x: np.array(x, np.float64),
        lambda x: np.array(x, np.float32),
        lambda x: np.array(x, np.float16),
        lambda x: np.array(x, np.int16),
        lambda x: np.array(x, np.uint8),
        lambda x: np.array(x, np.float64)[::-1],
        lambda x: torch.tensor(x, dtype=torch.bfloat16),
        lambda x: torch.tensor(x, dtype=torch.int64),
        lambda x: torch.tensor(x, dtype=torch.float32, requires_grad=True),
    ],
)
def test_every_kind_of_array_gives_the_same_numbers(convert):
    groups = [5, 3, 3, 2], [4, 2], [3, 1, 0]
    r, plain = Ranking(*(convert(g) for g in groups)), Mixture(*groups)
    assert r.auroc("ood") == pytest.approx(plain.auroc("ood"), abs=1e-15)
    assert r.aurr(0.3, 0.6) == pytest.approx(plain.aurr(0.3, 0.6), abs=1e-15)
    assert r.threshold(recall=0.75) == 3
    assert isinstance(r.auroc("ood"), float)


def test_groups_of_different_types_are_ranked_by_value():
    third = np.float32(1 / 3)  # a little more than 1/3
    assert Ranking(np.array([third]), [1 / 3], torch.tensor([0.34], dtype=torch.float16)).auroc("wrong") == 1
    assert Ranking(torch.tensor([1]), torch.tensor([1.0]), [0.5]).auroc("wrong") == 0.5


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_curves_are_float64(dtype):
    r = Ranking(torch.tensor([1, 2], dtype=dtype), torch.tensor([0], dtype=dtype), torch.tensor([1], dtype=dtype))
    for curve in (r.risk_recall(0.5, 0.5), r.risk_coverage(0.5, 0.5), r.oracle_risk_coverage(0.5, 0.5)):
        assert isinstance(curve, Curve)
        assert {curve.x.dtype, curve.risk.dtype, curve.threshold.dtype} == {torch.float64}


def test_infinite_scores_are_ranked_first_and_last():
    inf = math.inf
    r = Ranking([inf, 1, -inf], [inf, 0], [-inf, 2, -inf])
    finite = Mixture([9, 1, -9], [9, 0], [-9, 2, -9])
    assert r.auroc("wrong") == pytest.approx(finite.auroc("wrong"))
    assert r.auroc("ood") == pytest.approx(finite.auroc("ood"))
    assert r.aurc(0.4, 0.3) == pytest.approx(finite.aurc(0.4, 0.3))
    assert r.threshold(recall=0.3) == inf
    assert r.threshold(recall=1) == -inf
    assert r.accepted(-inf) == (1, 1, 1)


def test_zero_and_minus_zero_are_tied():
    assert Ranking([0.0], [-0.0], [-0.0]).auroc("wrong") == 0.5
    assert len(Ranking([0.0], [-0.0], [-0.0]).thresholds) == 1


def test_one_sample_alone():
    r = Ranking([0.3])
    assert len(r) == 1
    assert (r.accuracy, r.aurr(1, 0.5), r.aurc(1, 0.5), r.augrc(1, 0.5), r.eaurc(1, 0.5)) == (1, 0, 0, 0, 0)
    assert (r.threshold(recall=0.95), r.recall(0.3), r.recall(0.31)) == (0.3, 1, 0)


def test_one_of_each():
    r = Ranking([0.3], [0.3], [0.3])
    assert (r.auroc("wrong"), r.auroc("ood"), r.auroc("ood", positive="id")) == (0.5, 0.5, 0.5)
    assert r.fpr("wrong") == r.fpr("ood") == 1
    assert r.aurr(0.5, 0.5) == r.aurc(0.5, 0.5) == pytest.approx(0.5 * 0.25 + 0.5 * 0.5)


def test_all_tied_is_a_single_point():
    r = Ranking(np.ones(70), np.ones(30), np.ones(50))
    risk = 0.2 * 0.6 * 0.3 + 0.8 * 0.4
    for value in (r.aurr(0.6, 0.2), r.aurc(0.6, 0.2), r.risk_at_recall(0.5, 0.6, 0.2), r.risk_recall(0.6, 0.2).risk):
        assert float(value) == pytest.approx(risk, abs=1e-14)
    assert r.augrc(0.6, 0.2) == pytest.approx(risk / 2, abs=1e-14)
    assert r.auroc("ood") == pytest.approx(0.5, abs=1e-15)
    assert r.risk_recall(0.6, 0.2).x.tolist() == [1]
    assert r.threshold(recall=0.01) == 1


def test_wrong_may_be_empty():
    for wrong in (None, [], np.empty(0), torch.empty(0)):
        r = Ranking([2, 1], wrong, [1, 0])
        assert r.accuracy == 1
        assert r.auroc("ood") == r.auroc("ood", positive="id") == 0.875
        # Tied with one of the two OOD: ½·½ of the mass there, against all of ID.
        assert r.aurr(0.5, 0) == pytest.approx((0 + 0.25 / 0.75) / 2)
        assert r.accepted(1) == (1, 0, 0.5)


def test_ood_may_be_empty():
    for ood in (None, [], np.empty(0, np.float32)):
        r = Ranking([3, 1], [2], ood)
        assert r.aurc(1, 1) == pytest.approx((0 + 1 / 2 + 1 / 3) / 3)
        assert r.accepted(2) == (0.5, 1, 0)
        assert r.risk_coverage(1, 1).x.tolist() == pytest.approx([1 / 3, 2 / 3, 1])


def test_the_inputs_are_left_as_they_were():
    scores = torch.tensor([0.2, 0.9, 0.5])
    Ranking(scores, scores[:1], scores).aurr(0.5, 0.5)
    assert scores.tolist() == pytest.approx([0.2, 0.9, 0.5])


# Precision and size


@pytest.mark.slow
def test_ten_million_float32_scores_lose_no_precision():
    """Counts and areas known in closed form, in exact integers."""
    n = 2_500_000  # quadruples of scores: ID✓, ID✗, OOD, ID✓, from the top; all distinct as float32
    scores = torch.arange(4 * n, 0, -1).float()
    r = Ranking(scores.view(n, 4)[:, [0, 3]].reshape(-1), scores[1::4], scores[2::4])
    # Of the n(n−1)/2 + n pairs of a quadruple with itself or a lower one, the first ID✓ wins all, the fourth the lower.
    assert r.auroc("wrong") == pytest.approx((n * (n + 1) // 2 + n * (n - 1) // 2) / (2 * n * n), abs=1e-15)
    assert r.auroc("ood") == pytest.approx((n * (n + 1) // 2 + n * (n - 1) // 2) / (2 * n * n), abs=1e-15)
    # At α = ¾ all samples weigh 1/(4n): AURR at β = ½ is ½·mean over ID✓ of (bad so far)/(accepted so far).
    i = np.arange(n).astype(np.longdouble)
    risks = np.concatenate((2 * i / (4 * i + 1), (2 * i + 2) / (4 * i + 4)))
    assert r.aurr(0.75, 0.5) == pytest.approx(float(risks.sum() / (2 * n) / 2), abs=1e-12)
    others = np.concatenate((risks, (2 * i + 1) / (4 * i + 2), (2 * i + 2) / (4 * i + 3)))
    assert r.aurc(0.75, 0.5) == pytest.approx(float(others.sum() / (4 * n) / 2), abs=1e-12)
    assert r.threshold(recall=0.95) == 4 * n - 4 * (19 * n // 20) + 1
    assert r.risk_at_recall(0.95, 0.75, 0.5) == 0.25
    assert r.fpr("ood", recall=0.95) == 0.95


@pytest.mark.slow
def test_millions_of_ties_are_counted_exactly():
    n = 3_000_000
    r = Ranking(torch.ones(n), torch.ones(1), torch.ones(n - 1))
    assert r.aurc(1, 1) == pytest.approx(1 / (n + 1), rel=1e-12)
    assert r.auroc("ood") == 0.5


@pytest.mark.slow
@pytest.mark.parametrize("weighted", [False, True])
def test_chunks_of_any_size_give_the_same(monkeypatch, weighted):
    correct, wrong, ood = normal_groups((60, 25, 40), decimals=2)
    weights = np.random.default_rng(0).integers(1, 5, len(ood)) if weighted else None
    plain = Mixture(correct.tolist(), wrong.tolist(), ood.tolist(), None if weights is None else weights.tolist())
    areas = {m: [[getattr(plain, m)(a, b) for b in (0.2, 0.7)] for a in (0.1, 0.8)] for m in MIXTURE_METRICS}
    auroc, interval = plain.auroc("ood", "id"), delong(correct.tolist(), wrong.tolist(), 0.95)
    for chunk in (1, 2, 7, 50):
        monkeypatch.setattr(ranking, "_CPU_CHUNK", chunk)
        r = Ranking(correct, wrong, ood, ood_weights=weights)
        assert len(r.thresholds) > 50
        assert r.auroc("ood", positive="id") == pytest.approx(auroc, abs=1e-13), chunk
        for metric, expected in areas.items():
            found = getattr(r, metric)([0.1, 0.8], [0.2, 0.7])
            np.testing.assert_allclose(found, expected, atol=1e-13, err_msg=f"{chunk} {metric}")
        assert r.auroc_interval("wrong") == pytest.approx(interval, abs=1e-13), chunk


# DeLong's interval


@small
@given(group(2, 9), group(2, 9), group(2, 9), st.sampled_from([0.5, 0.9, 0.95, 0.99]))
def test_delongs_interval_is_that_of_the_pairwise_components(correct, wrong, ood, level):
    r = Ranking(correct, wrong, ood)
    assert r.auroc_interval("wrong", level=level) == pytest.approx(delong(correct, wrong, level), abs=1e-7)
    assert r.auroc_interval("ood", level=level) == pytest.approx(delong(correct, ood, level), abs=1e-7)
    got = r.auroc_interval("ood", positive="id", level=level)
    assert got == pytest.approx(delong(correct + wrong, ood, level), abs=1e-7)
    assert 0 <= got[0] <= got[1] <= 1


def test_delongs_interval_ignores_the_weights_of_ood_for_wrong():
    groups = [5, 3, 2], [4, 1], [3, 1]
    r = Ranking(*groups, ood_weights=[1, 2])
    assert r.auroc_interval("wrong") == pytest.approx(delong(*groups[:2], 0.95), abs=1e-12)


@pytest.mark.slow
def test_delongs_interval_is_near_that_of_resampling():
    correct, wrong, _ = normal_groups((300, 120, 1), decimals=1)
    rng = np.random.default_rng(0)
    areas = []
    for _ in range(2000):
        drawn, negatives = rng.choice(correct, 300), np.sort(rng.choice(wrong, 120))
        below = np.searchsorted(negatives, drawn, "left") + np.searchsorted(negatives, drawn, "right")
        areas.append(below.mean() / 2 / 120)
    low, high = Ranking(correct, wrong).auroc_interval("wrong", level=0.9)
    expected = np.quantile(areas, [0.05, 0.95])
    np.testing.assert_allclose([low, high], expected, atol=0.15 * (high - low))


@pytest.mark.slow
def test_delongs_interval_covers_the_truth_as_often_as_it_says():
    truth = 0.5 * math.erfc(-1 / 2)  # P(N(1, 1) > N(0, 1)) = Φ(1/√2)
    generator = torch.Generator().manual_seed(7)
    hits = 0
    for _ in range(500):
        positive, negative = torch.randn(60, generator=generator) + 1, torch.randn(40, generator=generator)
        low, high = Ranking(positive, negative).auroc_interval("wrong", level=0.9)
        hits += low <= truth <= high
    assert abs(hits / 500 - 0.9) < 4 * math.sqrt(0.9 * 0.1 / 500)


# What bad input gets


@pytest.mark.parametrize("name", ["correct", "wrong", "ood"])
def test_nan_scores_are_refused_with_count_and_index(name):
    groups = {"correct": [1.0, 2, 3, 4], "wrong": [1.0, 2, 3, 4], "ood": [1.0, 2, 3, 4]}
    groups[name] = [1.0, math.nan, 3, math.nan]
    with pytest.raises(ValueError, match=rf"`{name}` must not hold NaN.*got 2 of 4, the first at index 1"):
        Ranking(**groups)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"correct": []}, "`correct` must hold at least one score"),
        ({"correct": [[1.0, 2]]}, r"`correct` must be 1-D, one score for each sample; got shape \(1, 2\)"),
        ({"correct": [1.0], "wrong": 3.0}, r"`wrong` must be 1-D.*got shape \(\)"),
        ({"correct": [1j]}, "`correct` must be real numbers; got torch.complex128"),
        ({"correct": ["high"]}, "`correct` must be an array of numbers"),
        (
            {"correct": [1], "ood": [1, 2], "ood_weights": [1]},
            "`ood_weights` must have as many rows as `ood`; got 1 and 2",
        ),
        ({"correct": [1], "ood": [1, 2], "ood_weights": [[1], [1]]}, r"`ood_weights` must be 1-D.*got shape \(2, 1\)"),
        ({"correct": [1], "ood": [1, 2], "ood_weights": [1, -1]}, "`ood_weights` must be finite, not negative"),
        ({"correct": [1], "ood": [1, 2], "ood_weights": [0, 0]}, "not all 0"),
        ({"correct": [1], "ood": [1, 2], "ood_weights": [1, math.nan]}, "`ood_weights` must be finite"),
        ({"correct": [1], "ood": [1, 2], "ood_weights": [1, math.inf]}, "`ood_weights` must be finite"),
    ],
)
def test_scores_that_cannot_be_ranked_are_refused(arguments, words):
    with pytest.raises(ValueError, match=words):
        Ranking(**arguments)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda r: r.aurr(1.5, 0.5), r"`alpha` must lie in \[0, 1\]; got 1.5. Pass a fraction"),
        (lambda r: r.aurc(0.5, -0.1), r"`beta` must lie in \[0, 1\]; got -0.1"),
        (lambda r: r.augrc([0.5, 50], 0.5), "`alpha` must lie in .*got 50 at index 1"),
        (lambda r: r.eaurc(0.5, math.nan), "`beta` must lie in .*got nan"),
        (lambda r: r.risk_at_recall(95, 0.5, 0.5), "`recall` must lie in .*got 95"),
        (lambda r: r.risk_recall(2, 0.5), "`alpha` must lie in"),
        (lambda r: r.oracle_risk_coverage(0.5, 2), "`beta` must lie in"),
        (lambda r: r.aurr([[0.5]], 0.5), r"`alpha` must be a number or a 1-D array; got shape \(1, 1\)"),
        (lambda r: r.risk_recall([0.1, 0.2], 0.5), "takes one alpha and one beta; got arrays"),
        (lambda r: r.fpr("ood", recall=-1), "`recall` must lie in"),
        (
            lambda r: r.auroc("OOD"),
            '`negative` must be "wrong" or "ood" and `positive` "correct" or, against OOD only, "id"; got',
        ),
        (lambda r: r.auroc("ood", positive="wrong"), "got 'ood', 'wrong'"),
        (lambda r: r.auroc("wrong", positive="id"), "against OOD only"),
        (lambda r: r.auroc_interval("ood", level=95), "`level` must lie in"),
        (lambda r: r.threshold(), "give exactly one of recall=, coverage= and risk="),
        (lambda r: r.threshold(recall=0.5, risk=0.1), "give exactly one of"),
        (lambda r: r.threshold(coverage=0.5), "a threshold at a coverage needs alpha="),
        (lambda r: r.threshold(risk=0.5, alpha=0.5), "one at a risk alpha= and beta="),
        (lambda r: r.threshold(recall=1.1), "`recall` must lie in"),
        (lambda r: r.threshold(coverage=-0.1, alpha=0.5), "`coverage` must lie in"),
        (lambda r: r.threshold(risk=7, alpha=0.5, beta=0.5), "`risk` must lie in"),
    ],
)
def test_arguments_out_of_range_are_refused(call, words):
    with pytest.raises(ValueError, match=words):
        call(Ranking([1, 2], [0, 1], [0, 3]))


@pytest.mark.parametrize(
    "call",
    [
        lambda r: r.aurr(0.5, 0.5),
        lambda r: r.aurc([1, 0.5], 0.5),
        lambda r: r.risk_coverage(0.5, 0.5),
        lambda r: r.coverage(1, 0.5),
        lambda r: r.oracle_risk_coverage(0.5, 0.5),
        lambda r: r.threshold(risk=0.1, alpha=0.5, beta=1),
    ],
)
def test_alpha_below_one_needs_ood_scores(call):
    with pytest.raises(ValueError, match=r"`alpha` must be 1 where there are no OOD scores; got 0.5. Pass"):
        call(Ranking([1, 2], [0]))


def test_a_group_that_is_not_there_cannot_be_compared_with():
    with pytest.raises(
        ValueError, match=r"`ood` has no scores to compare with; this ranking is Ranking\(2 correct, 1 wrong, 0 ood"
    ):
        Ranking([1, 2], [0]).auroc("ood")
    with pytest.raises(ValueError, match="`wrong` has no scores to compare with"):
        Ranking([1, 2], None, [0]).fpr("wrong")


def test_delongs_interval_needs_two_of_each_and_equal_weights():
    for r, negative in (
        (Ranking([1], [0, 1]), "wrong"),
        (Ranking([1, 2], [0]), "wrong"),
        (Ranking([1, 2], [0], [1, 2], ood_weights=[1, 2]), "ood"),
    ):
        with pytest.raises(
            ValueError, match="DeLong's interval needs at least two samples in each group, without `ood_weights`"
        ):
            r.auroc_interval(negative)


def test_accepting_nothing_has_a_threshold_even_among_infinite_scores():
    r = Ranking([math.inf, 1.0], [0.0], [math.inf])
    t = r.threshold(risk=0, alpha=0.5, beta=0.5)
    assert math.isnan(t)
    assert (r.accepted(t), r.risk(t, 0.5, 0.5)) == ((0, 0, 0), 0)
    assert r.recall(r.threshold(recall=0)) == 0
    assert Ranking([2.0, 1.0], [3.0]).threshold(risk=0, alpha=1, beta=1) == math.inf


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda r: r.fpr("ood", recall=[0.9, 0.95]), "`recall` must be one number; got list"),
        (lambda r: r.threshold(coverage=[0.5], alpha=0.5), "`coverage` must be one number; got list"),
        (lambda r: r.accepted("0.5"), "`threshold` must be one number; got str"),
        (lambda r: r.recall(torch.tensor([0.5, 0.6])), "`threshold` must be one number; got Tensor"),
        (lambda r: r.oracle_risk_coverage(0.5, 0.5, points=-3), "`points` must be a whole number"),
    ],
)
def test_one_number_is_one_number(call, words):
    with pytest.raises(ValueError, match=words):
        call(Ranking([3.0, 2.0], [1.0], [0.0]))
