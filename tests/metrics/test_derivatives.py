"""Derivatives of the metrics against autograd and finite differences of plain weighted formulas, with ties."""

import numpy as np
import pytest
import torch

import sirc
from sirc.metrics import Placed, Ranking, derivatives, find_metric, influence

GROUPS = ("correct", "wrong", "ood")
SIZES = (11, 6, 9)
SMOOTH = ("auroc", "aurr", "aurc", "augrc")


def masses(sizes=SIZES):
    return [torch.full((n,), 1 / n, dtype=torch.float64) for n in sizes]


def samples(decimals, sizes=SIZES, seed=0):
    rng = np.random.default_rng(seed)
    return [torch.tensor(rng.normal(m, 1, n).round(decimals)) for m, n in zip((1.5, 0.4, 0.0), sizes, strict=True)]


def plain(metric, negative, scores, mass, alpha, beta):
    """A metric of weighted samples by sums over the distinct scores; the accuracy is that of the sizes."""
    p = len(scores[0]) / (len(scores[0]) + len(scores[1]))
    zero = torch.zeros(1, dtype=torch.float64)
    shares = []
    for values, weights in zip(scores, mass, strict=True):
        accepted = [(weights * (values >= t)).sum() for t in torch.cat(scores).unique().flip(0)]
        shares.append(torch.cat((zero, torch.stack(accepted))))
    c, x, o = shares
    if metric == "auroc":
        n = x if negative == "wrong" else o
        return (n.diff() * (c[1:] + c[:-1])).sum() / 2
    covered = alpha * (p * c + (1 - p) * x) + (1 - alpha) * o
    loss = beta * alpha * (1 - p) * x + (1 - beta) * (1 - alpha) * o
    if metric == "augrc":
        return (covered.diff() * (loss[1:] + loss[:-1])).sum() / 2
    return ((c if metric == "aurr" else covered).diff() * loss[1:] / covered[1:]).sum()


def found(metric, negative, scores, alpha, beta):
    """By group, the derivative in the mass of each sample."""
    ranking, places = Ranking.placed(scores)
    slopes = find_metric(metric).slopes(ranking, negative, 0.95, alpha, torch.tensor([beta], dtype=torch.float64))
    parts = dict(zip(GROUPS, places.split([len(values) for values in scores]), strict=True))
    return [slopes[g][0][parts[g]] if g in slopes else torch.zeros(len(parts[g])) for g in GROUPS]


@pytest.mark.parametrize("decimals", [0, 6], ids=["ties", "no ties"])
@pytest.mark.parametrize("metric", SMOOTH)
@pytest.mark.parametrize(("alpha", "beta"), [(0.6, 0.3), (1.0, 0.8), (0.05, 1.0)])
def test_the_derivative_of_a_smooth_metric_is_that_of_autograd(metric, alpha, beta, decimals):
    scores, mass = samples(decimals), [one.requires_grad_() for one in masses()]
    for negative in ("wrong", "ood") if metric == "auroc" else ("ood",):
        value = plain(metric, negative, scores, mass, alpha, beta)
        expected = torch.autograd.grad(value, mass, allow_unused=True, materialize_grads=True)
        for got, want in zip(found(metric, negative, scores, alpha, beta), expected, strict=True):
            torch.testing.assert_close(got.double(), want, rtol=0, atol=1e-14)
        ranking = Ranking(*scores)
        given = {"negative": negative} if metric == "auroc" else {"alpha": alpha, "beta": beta}
        assert float(value.detach()) == pytest.approx(getattr(ranking, metric)(**given), abs=1e-14)


@pytest.mark.parametrize("metric", SMOOTH)
def test_a_sample_of_more_mass_moves_the_metric_by_its_derivative(metric):
    scores, step = samples(1), 1e-6
    slopes = found(metric, "ood", scores, 0.4, 0.7)
    for group in range(3):
        for sample in (0, SIZES[group] - 1):
            ends = []
            for sign in (1, -1):
                mass = masses()
                mass[group][sample] += sign * step
                ends.append(float(plain(metric, "ood", scores, mass, 0.4, 0.7)))
            assert (ends[0] - ends[1]) / (2 * step) == pytest.approx(float(slopes[group][sample]), abs=1e-8)


def test_derivatives_are_linear_in_beta_and_the_same_for_many_at_once():
    ranking, _ = Ranking.placed(samples(1))
    betas = torch.tensor([1.0, 0.0, 0.3], dtype=torch.float64)
    for name in ("aurr", "aurc", "augrc", "risk"):
        for slope in find_metric(name).slopes(ranking, "ood", 0.7, 0.6, betas).values():
            torch.testing.assert_close(slope[2], 0.3 * slope[0] + 0.7 * slope[1], rtol=0, atol=1e-14)


def test_the_influences_on_an_auroc_are_delong_s():
    scores = samples(1, (60, 25, 40))
    placed = Placed(scores[0], scores[1], {"x": scores[2]}, equal_sets=False)
    strays = influence.spread(placed.influences([find_metric("auroc")], "ood", 0.95, 0.5, torch.tensor([0.5])))
    low, high = sirc.Ranking(*scores).auroc_interval("ood")
    assert float(2 * 1.959964 * strays.variance[0] ** 0.5) == pytest.approx(high - low, rel=1e-6)


@pytest.mark.parametrize("equal_sets", [True, False])
def test_sets_of_a_union_have_their_shares(equal_sets):
    """The influence of a sample is that of its mass in the union, times the share of its set."""
    (right, wrong, one), (_, _, two) = samples(1, (40, 20, 30), 1), samples(1, (40, 20, 10), 2)
    placed = Placed(right, wrong, {"one": one, "two": two}, equal_sets=equal_sets)
    got = placed.influences([find_metric("aurr")], "ood", 0.95, 0.5, torch.tensor([0.5], dtype=torch.float64))
    sizes = [30, 10]
    mass = [torch.full((n,), 1 / n, dtype=torch.float64) for n in (40, 20)]
    shares = [0.5, 0.5] if equal_sets else [0.75, 0.25]
    mass.append(torch.cat([torch.full((n,), s / n, dtype=torch.float64) for n, s in zip(sizes, shares, strict=True)]))
    mass = [one_mass.requires_grad_() for one_mass in mass]
    value = plain("aurr", "ood", [right, wrong, torch.cat([one, two])], mass, 0.5, 0.5)
    *_, outside = torch.autograd.grad(value, mass)
    for name, part, share in zip(("ood one", "ood two"), outside.split(sizes), shares, strict=True):
        torch.testing.assert_close(got[name][0], part * share, rtol=0, atol=1e-14)


def test_the_slope_at_a_recall_is_that_of_the_curve():
    """Of normal scores with equal spreads, dX/dC at a recall is a ratio of two densities."""
    normal = torch.distributions.Normal(0.0, 1.0)
    even = (torch.arange(20_000, dtype=torch.float64) + 0.5) / 20_000
    quantiles = torch.special.ndtri(even)
    ranking = Ranking(quantiles + 1.5, quantiles + 0.3, quantiles)
    threshold = 1.5 + torch.special.ndtri(torch.tensor(0.05, dtype=torch.float64))
    slope = torch.exp(normal.log_prob(threshold) - normal.log_prob(threshold - 1.5))
    got = derivatives.fpr(ranking, "ood", 0.95)
    assert -float(got["correct"][0]) == pytest.approx(float(slope), rel=0.01)
    assert set(got["ood"].tolist()) == {0.0, 1.0}


@pytest.mark.parametrize(
    ("scores", "recall", "enough"),
    [
        (torch.arange(1000.0), 0.95, True),
        (torch.arange(1000.0), 1.0, False),
        (torch.arange(1000.0), 0.0, False),
        (torch.arange(20.0), 0.95, False),
        (torch.arange(1000.0) // 100, 0.95, False),
    ],
)
def test_a_slope_needs_several_recalls_nearby(scores, recall, enough):
    assert derivatives.resolved(Ranking(scores, scores), recall) == enough


def test_a_covariance_is_that_of_the_influences_in_blocks_of_any_size(monkeypatch):
    placed = []
    for seed in range(2):
        right, wrong, ood = samples(1, (30, 12, 20), seed)
        placed.append(Placed(right, wrong, {"x": ood}, equal_sets=False))
    metric, alphas = find_metric("aurr"), torch.tensor([0.2, 0.6, 1.0], dtype=torch.float64)
    whole = influence.covariance(placed, metric, "ood", 0.95, alphas)
    monkeypatch.setattr(influence, "_ROOM", 1)
    torch.testing.assert_close(influence.covariance(placed, metric, "ood", 0.95, alphas), whole, rtol=1e-12, atol=0)
    assert whole.shape == (12, 12)
    for at, alpha in enumerate(alphas.tolist()):
        for score, one in enumerate(placed):
            strays = influence.spread(
                one.influences([metric], "ood", 0.95, alpha, torch.tensor([1.0, 0.0], dtype=torch.float64))
            )
            place = 4 * at + 2 * score
            assert whole.diag()[place : place + 2].numpy() == pytest.approx(strays.variance, abs=1e-15)
