"""The softmax-side scores beyond the paper: exact in value and near their bounds, tuned to the true optimum."""

import math

import mpmath
import numpy as np
import pytest
import scipy.optimize
import torch
from scipy.special import logsumexp

import sirc
from sirc import functional
from sirc.scores import blocks, registry
from sirc.scores.formulas.pnorm import choose_p
from sirc.scores.formulas.softmax import Softmax
from sirc.scores.formulas.temperature import fit_temperature
from sirc.scores.row_sums import _sums
from support import reference, reference_logits

OPTIONS = {
    "margin": [{}],
    "tempered_msp": [{}, {"temperature": 0.3}, {"temperature": 7.5}],
    "tempered_entropy": [{}, {"temperature": 0.3}, {"temperature": 7.5}],
    "max_logit_pnorm": [{}, *({"p": p} for p in (-1, 0, 1, 2, 3, 5, 8, 9))],
    "gen": [{}, {"gamma": 1.0}, {"gamma": 0.5, "m": 3}, {"m": 1}],
}
CASES = [(name, options) for name, several in OPTIONS.items() for options in several]
BOUNDED = [(name, options) for name, options in CASES if options.get("p", 1) > 0]


def text(name, options):
    return f"{name}({', '.join(f'{key}={value}' for key, value in options.items())})" if options else name


def random_rows(n, classes, seed=0, scale=4.0):
    return np.random.default_rng(seed).normal(size=(n, classes)) * scale


def rows_of_every_gap(classes):
    rng = np.random.default_rng(classes)
    v = rng.normal(size=(24, classes)) * rng.choice([0.01, 1.0, 20.0], size=(24, 1))
    v[:, 0] = v[:, 1:].max(1) + np.concatenate(([0.0, 1e-12, 1e-6], np.geomspace(1e-3, 1000, 21)))
    return v - rng.normal(size=(24, 1)) * 10


@pytest.mark.parametrize(("name", "options"), CASES)
@pytest.mark.parametrize("classes", [2, 3, 10, 130])
def test_plain_values_are_the_formulas(name, options, classes):
    v = random_rows(40, classes)
    expected = getattr(reference_logits, name)(v, **options)
    np.testing.assert_allclose(getattr(functional, name)(v, **options), expected, rtol=1e-11, atol=1e-14)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "options"), BOUNDED)
@pytest.mark.parametrize("classes", [3, 12])
def test_log_gap_is_exact_at_every_gap(name, options, classes):
    v = rows_of_every_gap(classes)
    exact = np.array([reference_logits.log_gaps(row, **options)[name] for row in v])
    got = functional.log_gap(v, text(name, options)).numpy()
    at_bound = np.isneginf(exact)
    np.testing.assert_allclose(got[~at_bound], exact[~at_bound], rtol=1e-12, atol=1e-13)
    assert at_bound.any() == (name == "max_logit_pnorm" and options.get("p") == 1)
    assert np.isfinite(got).all()
    assert len(set(got[at_bound])) <= 1, "rows at the bound are one tie"
    assert got[at_bound].max(initial=-np.inf) < got[~at_bound].min()


@pytest.mark.parametrize(("name", "options"), BOUNDED)
def test_the_gap_is_what_the_plain_value_leaves_of_its_bound(name, options):
    v = random_rows(50, 7, scale=1.0)
    p = options.get("p", 4)
    most = {"margin": 1.0, "tempered_msp": 1.0, "max_logit_pnorm": (1 + 6.0 ** (1 - p)) ** (-1 / p)}.get(name, 0.0)
    plain = getattr(functional, name)(v, **options)
    plain = torch.sigmoid(plain) if name == "margin" else plain
    gap = functional.log_gap(v, text(name, options)).exp()
    above_floor = gap > 1e-200
    torch.testing.assert_close(gap[above_floor], most - plain[above_floor], rtol=1e-9, atol=1e-14)
    torch.testing.assert_close(plain[~above_floor], torch.full_like(plain[~above_floor], most))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("spec", ["margin", "tempered_msp", "tempered_entropy(temperature=3)", "gen", "gen(m=2)"])
@pytest.mark.parametrize("gap", [499.0, 1e4])
def test_saturated_gaps_keep_their_rank(spec, dtype, gap):
    wider = gap + (1 if gap < 1000 else 8)
    v = torch.zeros(2, 5, dtype=dtype)
    v[0, 0], v[1, 0] = gap, wider
    v[:, 4] = -3
    conf = sirc.Scorer(spec)(sirc.Outputs(v))[spec]
    assert conf[1] - conf[0] > 0.04 * (wider - gap)
    gaps = functional.log_gap(v, spec)
    assert gaps[0] - gaps[1] > 0.04 * (wider - gap)


@pytest.mark.parametrize("p", range(1, 10))
def test_a_wider_gap_comes_nearer_to_the_norm_s_bound(p):
    v = torch.tensor([0.0, -1.0, -2.5, -0.5, -3.0, -2.0], dtype=torch.float64).repeat(60, 1)
    v[:, 2] = torch.logspace(0, 9, 60)
    gap, plain = functional.log_gap(v, f"max_logit_pnorm(p={p})"), functional.max_logit_pnorm(v, p)
    assert bool((plain.diff() >= 0).all())
    assert bool((gap.diff() <= 0).all())
    if p > 1:
        assert bool((gap.diff() < 0).all())
        assert gap[-1] < -30  # the plain value has been at its bound for long
        assert plain[-1].item() == pytest.approx((1 + 5.0 ** (1 - p)) ** (-1 / p), rel=1e-15)


@pytest.mark.parametrize("p", [2, 3, 4, 9])
def test_the_distance_to_the_norm_s_bound_has_all_digits_however_near(p):
    v = random_rows(20, 9, seed=p)
    v[:, 3] = np.geomspace(1e4, 1e12, 20)
    with mpmath.workdps(200):
        exact = [reference_logits.log_below_bound([mpmath.mpf(x) for x in row], p) for row in v]
    np.testing.assert_allclose(functional.log_gap(v, f"max_logit_pnorm(p={p})"), exact, rtol=0, atol=1e-13)


@pytest.mark.slow
@pytest.mark.parametrize("p", range(1, 10))
@pytest.mark.parametrize("classes", [2, 3, 6, 40])
def test_no_row_exceeds_the_norm_s_bound_and_an_optimiser_reaches_it(p, classes):
    most = (1 + (classes - 1.0) ** (1 - p)) ** (-1 / p)
    rng = np.random.default_rng(p)
    v = rng.normal(size=(4000, classes)) * np.exp(rng.normal(size=(4000, 1))) + rng.standard_cauchy(size=(4000, 1))
    assert reference_logits.max_logit_pnorm(v[:500], p).max() <= most * (1 + 1e-12)
    assert functional.max_logit_pnorm(v, p).max() <= most * (1 + 1e-15)
    if classes == 6:
        found = scipy.optimize.minimize(
            lambda row: -reference_logits.max_logit_pnorm(row[None], p)[0], v[0], method="Nelder-Mead", tol=1e-10
        )
        assert 0.97 * most < -found.fun <= most * (1 + 1e-12)
    one_hot = np.eye(classes)[:1] * 3.5
    assert functional.max_logit_pnorm(one_hot, p).item() == pytest.approx(most, rel=1e-14)


@pytest.mark.parametrize("p", range(1, 10))
def test_equal_logits_have_the_least_value_a_norm_can_give(p):
    least = functional.max_logit_pnorm(np.full((1, 5), -2.75), p).item()
    assert least == pytest.approx((4 + 4.0**p) ** (-1 / p), rel=1e-14)
    assert least == pytest.approx(reference_logits.max_logit_pnorm([[1.0, 1.0, 1.0, 1.0, 0.0]], p)[0], rel=1e-14)
    v = random_rows(5000, 5, seed=p)
    v[:2500] = np.random.default_rng(p).integers(0, 3, size=(2500, 5))
    assert functional.max_logit_pnorm(v, p).min().item() >= least * (1 - 1e-14)
    gaps = functional.log_gap(np.concatenate((np.zeros((1, 5)), v)), f"max_logit_pnorm(p={p})")
    assert gaps[0].item() == pytest.approx(gaps.max().item(), rel=1e-13)
    assert functional.max_logit_pnorm(np.full((1, 5), -2.75), 0).item() == 0


@pytest.mark.parametrize("p", [1, 4, 9])
def test_two_classes_are_always_at_the_norm_s_bound(p):
    v = random_rows(50, 2)
    np.testing.assert_allclose(functional.max_logit_pnorm(v, p), 2 ** (-1 / p), rtol=1e-15)
    gaps = functional.log_gap(v, f"max_logit_pnorm(p={p})")
    assert bool(gaps.isfinite().all())
    assert len(gaps.unique()) == 1


@pytest.mark.parametrize("p", [0, 1, 4, 9])
def test_the_norm_is_blind_to_offset_and_but_for_p_0_to_scale(p):
    v = random_rows(30, 8).round(3)
    plain = functional.max_logit_pnorm(v, p).numpy()
    np.testing.assert_allclose(functional.max_logit_pnorm(v * 64 + 4096, p), plain * (64 if p == 0 else 1), rtol=1e-11)


def test_p_of_minus_one_is_msp():
    v = random_rows(30, 6)
    assert torch.equal(functional.max_logit_pnorm(v, -1), functional.msp(v))
    assert torch.equal(functional.log_gap(v, "max_logit_pnorm(p=-1)"), functional.log_gap(v, "msp"))


def test_at_temperature_one_the_scores_are_msp_and_entropy():
    v = np.concatenate((random_rows(200, 9), rows_of_every_gap(9)))
    for name in ("msp", "entropy"):
        np.testing.assert_allclose(
            functional.log_gap(v, f"tempered_{name}"), functional.log_gap(v, name), rtol=1e-13, atol=1e-13
        )


def test_gen_with_gamma_one_over_all_classes_is_the_gini_index():
    v = random_rows(60, 9)
    gini = np.array([1 - sum(x * x for x in p) for p in reference.softmax(v)])
    np.testing.assert_allclose(functional.gen(v, gamma=1.0), -gini, rtol=1e-12)


def test_gen_takes_the_m_largest_with_ties_and_no_more_than_there_are():
    v = np.array([[2.0, 2.0, 2.0, 1.0, 1.0, 0.0]])
    for m in range(1, 9):
        assert functional.gen(v, m=m).item() == pytest.approx(reference_logits.gen(v, m=m)[0], rel=1e-13)
    assert functional.gen(v, m=6).item() == functional.gen(v, m=100).item()


@pytest.mark.parametrize(("name", "options"), CASES)
def test_ties_of_the_winner_are_ordinary(name, options):
    v = np.array([[3.0, 3.0, 0.0, -1.0], [3.0, 3.0, 3.0, 2.0], [0.0, -0.0, -1.0, -1.0]])
    expected = getattr(reference_logits, name)(v, **options)
    np.testing.assert_allclose(getattr(functional, name)(v, **options), expected, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize(("name", "options"), CASES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_narrow_logits_score_as_the_same_values_in_float64(name, options, dtype):
    v = torch.as_tensor(random_rows(50, 9)).to(dtype)
    assert torch.equal(getattr(functional, name)(v, **options), getattr(functional, name)(v.double(), **options))


@pytest.mark.parametrize(("name", "options"), CASES)
def test_extreme_finite_logits_give_finite_confidences(name, options):
    big = float(np.finfo(np.float32).max)
    v = np.array([[big, -big, 0.0], [big, big, big], [-big, -big, -big], [0.0, 0.0, -big], [1e-40, 0, 0]], np.float32)
    assert bool(getattr(functional, name)(v, **options).isfinite().all())
    if options.get("p") != 0:
        assert bool(functional.log_gap(v, text(name, options)).isfinite().all())


@pytest.mark.parametrize(("name", "options"), CASES)
def test_blocks_of_rows_do_not_show_and_no_rows_have_no_scores(name, options, monkeypatch):
    v = random_rows(37, 7)
    function, spec = getattr(functional, name), text(name, options)
    whole = function(v, **options)
    gaps = None if options.get("p") == 0 else functional.log_gap(v, spec)
    monkeypatch.setitem(blocks._BLOCK, "cpu", 7 * 5)
    torch.testing.assert_close(function(v, **options), whole, rtol=1e-15, atol=0)
    if gaps is not None:
        torch.testing.assert_close(functional.log_gap(v, spec), gaps, rtol=1e-15, atol=1e-15)
    assert len(sirc.Scorer(spec)(sirc.Outputs(v)[:0])[spec]) == 0


class Formula(torch.nn.Module):
    """A score's two formulas on the logits, as a graph."""

    def __init__(self, name, options):
        super().__init__()
        self.score, self.options = registry.get(name), {**registry.get(name).options, **options}

    def forward(self, logits):
        inputs = {"logits": logits, "softmax": Softmax(*_sums(logits))}
        given = [inputs[need] for need in self.score.needs]
        plain = self.score.compute(*given, **self.options)
        return plain, plain if self.options.get("p") == 0 else self.score.log_gap(*given, **self.options)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "options"), [(name, several[0]) for name, several in OPTIONS.items()])
def test_both_formulas_export_for_batches_of_any_size(name, options):
    rows = torch.export.Dim("rows", min=1, max=4096)
    example = torch.as_tensor(random_rows(6, 8)).float()
    graph = torch.export.export(Formula(name, options), (example,), dynamic_shapes={"logits": {0: rows}}).module()
    v = torch.as_tensor(np.concatenate((random_rows(40, 8, seed=3), np.zeros((1, 8)), 900 * np.eye(8)[:1]))).float()
    plain, gap = graph(v)
    torch.testing.assert_close(plain, getattr(functional, name)(v, **options), rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(gap, functional.log_gap(v, text(name, options)), rtol=1e-12, atol=1e-13)


@pytest.mark.slow
@pytest.mark.parametrize("p", [-1, 0, 1, 9])
def test_every_kind_of_norm_exports(p):
    v = torch.as_tensor(random_rows(6, 8)).float()
    plain, _ = torch.export.export(Formula("max_logit_pnorm", {"p": p}), (v,)).module()(v)
    torch.testing.assert_close(plain, functional.max_logit_pnorm(v, p), rtol=1e-12, atol=1e-14)


def labelled(n, classes, seed, sharpness):
    """Labels drawn from softmax(v), and logits that are v times `sharpness`: the true temperature is that."""
    rng = np.random.default_rng(seed)
    v = rng.normal(size=(n, classes)) * 2
    labels = (v + rng.gumbel(size=v.shape)).argmax(1)
    return v * sharpness, labels


def negative_log_likelihood(log_t, v, labels):
    x = np.asarray(v, dtype=np.float64) / np.exp(log_t)
    return float(np.mean(logsumexp(x, axis=1) - x[np.arange(len(x)), labels]))


@pytest.mark.parametrize("sharpness", [0.11, 0.5, 1.0, 2.5, 12.0])
@pytest.mark.parametrize("classes", [2, 10])
def test_the_temperature_minimises_the_nll(sharpness, classes, monkeypatch):
    v, labels = labelled(700, classes, 3, sharpness)
    best = scipy.optimize.minimize_scalar(
        negative_log_likelihood,
        bounds=(math.log(0.05), math.log(20)),
        args=(v, labels),
        method="bounded",
        options={"xatol": 1e-10},
    )
    found = fit_temperature(torch.as_tensor(v), torch.as_tensor(labels))["temperature"]
    assert found == pytest.approx(math.exp(best.x), rel=1e-6)
    assert negative_log_likelihood(math.log(found), v, labels) <= best.fun + 1e-14
    assert found == pytest.approx(sharpness, rel=0.2)
    monkeypatch.setitem(blocks._BLOCK, "cpu", classes * 64)
    assert fit_temperature(torch.as_tensor(v), torch.as_tensor(labels))["temperature"] == pytest.approx(found, rel=1e-9)


@pytest.mark.parametrize(
    ("v", "labels", "expected"),
    [
        ([[3.0, 1.0, 0.0], [0.0, 2.0, 1.0]], [0, 1], 0.05),  # all right
        ([[3.0, 1.0, 0.0], [0.0, 2.0, 1.0]], [2, 0], 20.0),  # all as wrong as can be
        ([[3.0, 1.0]], [0], 0.05),
        ([[3.0, 1.0]], [1], 20.0),
        ([[2.0, 2.0], [5.0, 5.0]], [0, 1], 1.0),  # T does nothing
        ([[1e4, 0.0], [0.0, 1e4]], [0, 1], 1.0),  # so sure that it still does nothing
        ([[1e4, 0.0], [0.0, 1e4]], [1, 0], 20.0),
        ([[1e4, 0.0], [1.0, 1e4], [2.0, 0.0]], [0, 1, 0], 0.05),
    ],
)
def test_the_temperature_of_degenerate_data_is_an_end_or_one(v, labels, expected):
    assert fit_temperature(torch.tensor(v), torch.tensor(labels)) == {"temperature": pytest.approx(expected, rel=1e-12)}


def test_labels_of_one_class_still_have_a_temperature():
    v, _ = labelled(300, 4, 0, 3.0)
    found = fit_temperature(torch.as_tensor(v), torch.zeros(300, dtype=torch.int64))["temperature"]
    nll = [
        negative_log_likelihood(math.log(t), v, np.zeros(300, dtype=int)) for t in (found * 0.99, found, found * 1.01)
    ]
    assert found == 20.0 or nll[1] < min(nll[0], nll[2])


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("tune", [fit_temperature, choose_p])
def test_narrow_logits_tune_as_the_same_values_in_float64(tune, dtype):
    v, labels = labelled(300, 6, 1, 2.0)
    v, labels = torch.as_tensor(v).to(dtype), torch.as_tensor(labels)
    assert tune(v, labels) == tune(v.double(), labels)
    assert tune(v, labels.to(torch.int32)) == tune(v, labels)


def area_under_risk_coverage(confidence, correct):
    """Σ Δcoverage·risk over thresholds from the strictest on, equal scores together."""
    area = covered = wrong = 0
    for value in sorted(set(confidence.tolist()), reverse=True):
        here = confidence == value
        covered += here.sum()
        wrong += (here & ~correct).sum()
        area += here.sum() / len(correct) * wrong / covered
    return area


def by_brute_force(v, labels):
    correct = np.asarray(v).argmax(1) == labels
    gaps = np.array([reference.log_gaps(row)["msp"] for row in v])
    areas = {-1: area_under_risk_coverage(-gaps, correct)}
    for p in range(10):
        # Rounded, so that rows that reach the bound tie as they would without rounding.
        values = reference_logits.max_logit_pnorm(v, p).round(12)
        areas[p] = area_under_risk_coverage(values, correct)
    best = min(areas, key=lambda p: (round(areas[p], 13), p))
    bounded = min((p for p in areas if p != 0), key=lambda p: (round(areas[p], 13), p))
    return {"p": best, "p_bounded": bounded}


def of_changing_scale(seed):
    """Logits whose scale says nothing about being right."""
    rng = np.random.default_rng(seed)
    v, labels = labelled(250, 8, seed, 1.0)
    return v * np.exp(rng.normal(size=(250, 1)) * 1.5), labels


@pytest.mark.slow
def test_p_has_the_least_aurc_on_validation_rows():
    found = []
    for seed in range(6):
        v, labels = of_changing_scale(seed) if seed % 2 else labelled(250, 8, seed, 1.0)
        found.append(choose_p(torch.as_tensor(v), torch.as_tensor(labels)))
        assert found[-1] == by_brute_force(v, labels)
    assert any(one["p"] == -1 for one in found)
    assert any(one["p"] > 0 for one in found)


def test_the_bounded_p_is_not_0_where_0_is_best():
    """Right where the centred winner is high; the gap, which moves the softmax and the norms, says nothing."""
    rng = np.random.default_rng(2)
    labels = np.arange(200) % 2
    v = np.repeat(-np.where(labels == 0, rng.uniform(10, 12, 200), rng.uniform(6, 8, 200))[:, None], 6, axis=1)
    v[:, 0], v[:, 1] = 0, -rng.uniform(0.3, 3, 200)
    found = choose_p(torch.as_tensor(v), torch.as_tensor(labels))
    assert found == by_brute_force(v, labels)
    assert found["p"] == 0
    assert found["p_bounded"] != 0


def test_two_classes_fall_back_to_msp():
    """For K = 2 all norms are constant, and the centred largest logit has the order of the softmax."""
    v, labels = labelled(300, 2, 5, 1.0)
    assert choose_p(torch.as_tensor(v), torch.as_tensor(labels)) == {"p": -1, "p_bounded": -1}


@pytest.mark.parametrize("labels", [[0, 1], [1, 0]])
def test_without_right_or_without_wrong_rows_p_is_msp(labels):
    v = torch.tensor([[3.0, 1.0, 0.0], [0.0, 2.0, 1.0]])
    assert choose_p(v, torch.tensor(labels)) == {"p": -1, "p_bounded": -1}


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda v: functional.log_gap(v, "max_logit_pnorm(p=0)"), "must have p ≥ 1 .* got p = 0, .* Choose p from 1"),
        (lambda v: functional.max_logit_pnorm(v, 10), "`p` of `max_logit_pnorm` must be .* -1 to 9; got 10"),
        (lambda v: functional.max_logit_pnorm(v, 2.5), "`p` of `max_logit_pnorm` must be a whole number"),
        (lambda v: functional.max_logit_pnorm(v, "2"), "`p` must be one number"),
        (lambda v: functional.tempered_msp(v, 0.0), "`temperature` of `tempered_msp` must be .* from 0.001 to 1000"),
        (lambda v: functional.tempered_entropy(v, -1), "`temperature` of `tempered_entropy` must be"),
        (lambda v: functional.tempered_msp(v, math.nan), "`temperature` must be a finite number; got `nan`"),
        (lambda v: functional.gen(v, gamma=1.5), "`gamma` of `gen` must be a number from 0.001 to 1; got 1.5"),
        (lambda v: functional.gen(v, m=0), "`m` of `gen` must be a whole number"),
        (lambda v: functional.gen(v[0]), "`logits` must have shape"),
        (lambda v: functional.log_gap(functional.softmax(v), "gen"), "`gen` reads every logit.* Pass the logits"),
        (lambda v: functional.log_gap(v, "gen(gama=1)"), "`gen` has no parameter `gama`"),
        (
            lambda v: functional.log_gap(v, "max_logit"),
            "`name` must be a bounded score of the logits, one of msp, .*margin",
        ),
    ],
)
def test_bad_options_are_told_the_rule(call, words):
    with pytest.raises(ValueError, match=words):
        call(random_rows(3, 4))


def test_margin_and_the_summary_serve_log_gap():
    v = random_rows(20, 5)
    p = functional.softmax(v)
    assert torch.equal(functional.margin(p), functional.margin(v))
    assert torch.equal(functional.log_gap(p, "margin"), functional.log_gap(v, "margin"))
    np.testing.assert_allclose(
        functional.log_gap(v, "margin"), -np.logaddexp(0, reference_logits.margin(v)), rtol=1e-14
    )


def test_margin_and_the_norm_rank_by_their_plain_value():
    v = random_rows(25, 6)
    conf = sirc.Scorer(["margin", "max_logit_pnorm", "gen"])(sirc.Outputs(v))
    assert torch.equal(conf["margin"], functional.margin(v))
    assert torch.equal(conf["max_logit_pnorm"], functional.max_logit_pnorm(v))
    assert torch.equal(conf["gen"], -functional.log_gap(v, "gen"))


@pytest.mark.parametrize(("name", "options"), BOUNDED)
def test_each_is_the_first_of_sirc(name, options):
    v, z = random_rows(30, 6), random_rows(30, 4, seed=1)
    first = text(name, options)
    spec = f"sirc({first}, l1, a=10.0, b=0.3)"
    got = sirc.Scorer(spec)(sirc.Outputs(v, z))[spec]
    expected = functional.sirc(functional.log_gap(v, first), functional.l1(z), 10.0, 0.3)
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)
