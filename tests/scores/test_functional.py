"""The plain formulas as functions: what they take, what they return, what they refuse."""

import numpy as np
import pytest
import torch

from sirc import functional
from sirc.scores import score
from sirc.scores.formulas.softmax import Softmax
from support import reference, reference_features, reference_logits

RNG = np.random.default_rng(0)
V, Z = RNG.normal(size=(30, 6)) * 3, RNG.normal(size=(30, 9))
BANK = RNG.normal(size=(40, 9))
MEANS = RNG.normal(size=(4, 9)) * 3
ROOT = RNG.normal(size=(9, 9))
PRECISION = ROOT @ ROOT.T
ORIGIN = RNG.normal(size=9)
BASIS = np.linalg.qr(RNG.normal(size=(9, 4)))[0]
WEIGHT, BIAS, MEAN = RNG.normal(size=(6, 9)), RNG.normal(size=6), RNG.normal(size=9) / 9
ROOT = RNG.normal(size=(9, 9))
TOTAL_PRECISION = ROOT @ ROOT.T

CALLS = {
    "msp": lambda v, z: functional.msp(v),
    "doctor": lambda v, z: functional.doctor(v),
    "entropy": lambda v, z: functional.entropy(v),
    "max_logit": lambda v, z: functional.max_logit(v),
    "energy": lambda v, z: functional.energy(v),
    "log_gap": lambda v, z: functional.log_gap(v, "msp"),
    "l1": lambda v, z: functional.l1(z),
    "gradnorm": lambda v, z: functional.gradnorm(v, z),
    "residual": lambda v, z: functional.residual(z, ORIGIN, BASIS),
    "vim": lambda v, z: functional.vim(v, functional.residual(z, ORIGIN, BASIS), 0.3),
    "mahalanobis": lambda v, z: functional.mahalanobis(z, MEANS, PRECISION),
    "knn": lambda v, z: functional.knn(z, BANK, k=3),
    "sirc": lambda v, z: functional.sirc(functional.log_gap(v, "entropy"), functional.l1(z), 4.0, 0.5),
    "sirc_literal": lambda v, z: functional.sirc_literal(functional.msp(v), functional.l1(z), 4.0, 0.5, 1.0),
    "linear": lambda v, z: functional.linear(functional.msp(v), functional.l1(z), -2.0),
    "product": lambda v, z: functional.product(functional.msp(v), functional.l1(z), functional.energy(v)),
    "margin": lambda v, z: functional.margin(v),
    "tempered_msp": lambda v, z: functional.tempered_msp(v, 2.0),
    "tempered_entropy": lambda v, z: functional.tempered_entropy(v, 0.5),
    "max_logit_pnorm": lambda v, z: functional.max_logit_pnorm(v, 3),
    "gen": lambda v, z: functional.gen(v, 0.2, 4),
    "additive": lambda v, z: functional.additive(functional.log_gap(v, "msp"), functional.l1(z), 4.0, 0.5, 0.3),
    "bayes": lambda v, z: functional.bayes(functional.log_gap(v, "msp"), -functional.l1(z), 0.7, 0.4),
    "mahalanobis_pp": lambda v, z: functional.mahalanobis_pp(z, MEANS, PRECISION),
    "relative_mahalanobis": lambda v, z: functional.relative_mahalanobis(z, MEANS, PRECISION, MEAN, TOTAL_PRECISION),
    "react": lambda v, z: functional.react(z, WEIGHT, BIAS, 0.7),
    "scale": lambda v, z: functional.scale(v, z, BIAS),
    "ash": lambda v, z: functional.ash(z, WEIGHT, BIAS),
    "nci": lambda v, z: functional.nci(v, z, WEIGHT, MEAN),
    "fdbd": lambda v, z: functional.fdbd(v, z, WEIGHT, MEAN),
    "cop": lambda v, z: functional.cop(z, MEAN, BASIS),
    "nnguide": lambda v, z: functional.nnguide(v, z, BANK, WEIGHT, BIAS, k=3),
    "delta_mahalanobis": lambda v, z: functional.delta_mahalanobis(z, MEANS, WEIGHT, PRECISION),
    "delta_knn": lambda v, z: functional.delta_knn(z, BANK, WEIGHT, k=3),
}
REFERENCES = {
    **{name: lambda v, z, name=name: getattr(reference, name)(v) for name in reference.LOGIT_SCORES},
    "log_gap": lambda v, z: np.array([reference.log_gaps(row)["msp"] for row in v]),
    "l1": lambda v, z: reference.l1(z),
    "gradnorm": reference.gradnorm,
    "residual": lambda v, z: reference.residual(z, ORIGIN, BASIS @ BASIS.T),
    "vim": lambda v, z: reference.energy(v) + 0.3 * reference.residual(z, ORIGIN, BASIS @ BASIS.T),
    "mahalanobis": lambda v, z: reference.mahalanobis(z, MEANS, PRECISION),
    "knn": lambda v, z: reference.knn(z, BANK, k=3),
    "sirc": lambda v, z: reference.sirc(
        [reference.log_gaps(row)["entropy"] for row in v], [reference.l1(z)], [4.0], [0.5]
    ),
    "sirc_literal": lambda v, z: -(1 - reference.msp(v)) * (1 + np.exp(-0.5 * (reference.l1(z) - 4.0))),
    "linear": lambda v, z: reference.msp(v) - 2 * reference.l1(z),
    "product": lambda v, z: reference.msp(v) * reference.l1(z) * reference.energy(v),
    "margin": lambda v, z: np.array([row[-1] - row[-2] for row in np.sort(v.astype(np.float64))]),
    "tempered_msp": lambda v, z: reference.msp(v.astype(np.float64) / 2),
    "tempered_entropy": lambda v, z: reference.entropy(v.astype(np.float64) * 2),
    "max_logit_pnorm": lambda v, z: reference_logits.max_logit_pnorm(v, 3),
    "gen": lambda v, z: reference_logits.gen(v, 0.2, 4),
    "additive": lambda v, z: -np.log(1 - reference.msp(v) + 0.3 * np.exp(-0.5 * (reference.l1(z) - 4.0))),
    "bayes": lambda v, z: reference.bayes(1 - reference.msp(v), np.exp(-reference.l1(z)), 0.7, 0.4),
    "mahalanobis_pp": lambda v, z: reference.mahalanobis(reference.unit(z), MEANS, PRECISION),
    "relative_mahalanobis": lambda v, z: (
        reference.mahalanobis(z, MEANS, PRECISION) - reference.mahalanobis(z, MEAN[None], TOTAL_PRECISION)
    ),
    "react": lambda v, z: reference_features.react(z, WEIGHT, BIAS, 0.7),
    "scale": lambda v, z: reference_features.scale(v, z, BIAS),
    "ash": lambda v, z: reference_features.ash(z, WEIGHT, BIAS),
    "nci": lambda v, z: reference_features.nci(v, z, WEIGHT, MEAN),
    "fdbd": lambda v, z: reference_features.fdbd(v, z, WEIGHT, MEAN),
    "cop": lambda v, z: reference_features.cop(z, MEAN, BASIS @ BASIS.T),
    "nnguide": lambda v, z: reference_features.nnguide(v, z, BANK, WEIGHT, BIAS, k=3),
    "delta_mahalanobis": lambda v, z: (
        reference.mahalanobis(z, MEANS, PRECISION) - reference.mahalanobis(z, WEIGHT, PRECISION)
    ),
    "delta_knn": lambda v, z: (
        reference_features.mean_log_distance(z, WEIGHT, k=3) - reference_features.mean_log_distance(z, BANK, k=3)
    ),
}


def test_every_function_is_tried_here():
    assert set(CALLS) | {"softmax"} == set(functional.__all__)
    assert set(CALLS) == set(REFERENCES)


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize(("dtype", "rtol"), [(np.float64, 1e-10), (np.float32, 1e-5)])
def test_each_function_is_its_formula(name, dtype, rtol):
    v, z = V.astype(dtype), Z.astype(dtype)
    got = CALLS[name](v, z)
    assert got.dtype == torch.float64
    assert got.shape == (30,)
    expected = REFERENCES[name](v, z)
    np.testing.assert_allclose(got, expected, rtol=rtol, atol=rtol * np.abs(expected).mean())


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_counts_as_the_same_values_in_float32(name, dtype):
    v, z = torch.as_tensor(V).to(dtype), torch.as_tensor(Z).to(dtype)
    assert torch.equal(CALLS[name](v, z), CALLS[name](v.float(), z.float()))


def test_one_pass_serves_all_functions_of_the_logits():
    p = functional.softmax(V)
    assert len(p) == 30
    for name in reference.LOGIT_SCORES:
        assert torch.equal(getattr(functional, name)(p), getattr(functional, name)(V))
    assert torch.equal(functional.gradnorm(p, Z), functional.gradnorm(V, Z))
    assert torch.equal(functional.msp(p[3:9]), functional.msp(V)[3:9])


@pytest.mark.parametrize("number", [float, np.float32, torch.tensor, int])
def test_one_s2_takes_any_kind_of_number(number):
    gap, s2 = functional.log_gap(V, "msp"), functional.l1(Z)
    expected = reference.sirc(gap, [s2], [4], [2])
    np.testing.assert_allclose(functional.sirc(gap, s2, number(4), number(2)), expected, rtol=1e-12)


def test_several_s2_take_a_number_each():
    gap, s2 = functional.log_gap(V, "doctor"), [functional.l1(Z), functional.energy(V)]
    expected = reference.sirc(gap, s2, [4, 1], [2, 0.5])
    for kind in (list, tuple, np.array, torch.tensor):
        np.testing.assert_allclose(functional.sirc(gap, s2, kind([4, 1]), kind([2, 0.5])), expected, rtol=1e-12)
    np.testing.assert_allclose(
        functional.sirc(gap, s2[:1], [4.0], [2.0]), reference.sirc(gap, s2[:1], [4], [2]), rtol=1e-12
    )


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda: functional.log_gap(V, "energy"),
            "`name` must be a bounded score of the logits, one of msp, doctor, entropy, margin.*; got `energy`",
        ),
        (lambda: functional.log_gap(V, "vim"), "`name` must be a bounded score"),
        (lambda: functional.log_gap(V, "mps"), "unknown score `mps`"),
        (lambda: functional.msp(V[0]), "`logits` must have shape"),
        (lambda: functional.msp(V * np.inf), "`logits` must be finite"),
        (lambda: functional.l1(Z[0]), r"`features` must have shape \(n, L\) with n ≥ 0, L ≥ 1; got \(9,\)"),
        (lambda: functional.knn(Z, BANK[:2], k=3), "`bank` must hold at least k = 3 rows; got 2"),
        (lambda: functional.linear(np.zeros(3), np.zeros(4), 1.0), "1-D, one number for each of the same rows"),
        (lambda: functional.linear(np.zeros(3), np.zeros((3, 1)), 1.0), r"got shapes \[\(3,\), \(3, 1\)\]"),
        (lambda: functional.product(np.zeros(3), np.zeros(1)), "one number for each of the same rows"),
        (lambda: functional.gradnorm(V, Z[:4]), "`features` must have as many rows as `logits`"),
        (lambda: functional.sirc(np.zeros(3), np.zeros(4), 1.0, 1.0), "`log_gap` and each S2 must be 1-D"),
        (lambda: functional.sirc(np.zeros(3), [np.zeros(3)] * 2, [1.0], [1.0]), "one number for each S2"),
        (lambda: functional.sirc(np.zeros(3), np.zeros(3), 1.0, [1.0, 2.0]), "one number for each S2"),
        (
            lambda: functional.mahalanobis_pp(Z, MEANS[:, :4], PRECISION),
            r"`means` must be \(K, L\) for features with L = 9",
        ),
        (
            lambda: functional.relative_mahalanobis(Z, MEANS, PRECISION, MEAN[:4], TOTAL_PRECISION),
            r"`mean` must be \(L,\) .* L = 9; got",
        ),
        (
            lambda: functional.relative_mahalanobis(Z, MEANS, PRECISION, MEAN, TOTAL_PRECISION[:4]),
            r"`total_precision` must be \(L, L\)",
        ),
        (
            lambda: functional.relative_mahalanobis(Z, MEANS, PRECISION, MEAN, -TOTAL_PRECISION),
            "`total_precision` must be positive semi",
        ),
        (lambda: functional.react(Z, WEIGHT[:, :4], BIAS, 1.0), r"`weight` must be \(K, L\) for features with L = 9"),
        (lambda: functional.react(Z, WEIGHT, BIAS[:2], 1.0), "`bias` must have one value for each of the 6 rows"),
        (lambda: functional.react(Z, WEIGHT, BIAS, [1.0, 2.0]), "`clip` must be one number"),
        (lambda: functional.scale(V, Z[:4], BIAS), "`features` must have as many rows as `logits`; got 4 and 30"),
        (lambda: functional.scale(V, Z, BIAS[:2]), r"`bias` must be \(K,\) .* logits with K = 6; got \(2,\)"),
        (lambda: functional.scale(V, Z, BIAS, percentile=100), "`percentile` of `scale` must be a number from 0 to 99"),
        (lambda: functional.ash(Z, WEIGHT, BIAS, percentile=-5), "`percentile` of `ash` must be a number from 0 to 99"),
        (lambda: functional.nci(V, Z[:4], WEIGHT, MEAN), "`features` must have as many rows as `logits`"),
        (
            lambda: functional.nci(V, Z, WEIGHT[:1], MEAN),
            r"`weight` must be \(K, L\) .* logits with K = 6; got \(1, 9\)",
        ),
        (lambda: functional.nci(V, Z, [*WEIGHT, WEIGHT[0]], MEAN), r"K = 6; got \(7, 9\). Is it of this model"),
        (
            lambda: functional.nci(functional.softmax(V), Z, WEIGHT[:1], MEAN),
            r"`weight` must be .* logits with K = \d; got \(1, 9\)",
        ),
        (lambda: functional.nnguide(V, Z, Z, WEIGHT[:5], k=1), r"`weight` must be .* K = 6; got \(5, 9\)"),
        (lambda: functional.fdbd(V, Z, WEIGHT[:5], MEAN), r"`weight` must be .* K = 6; got \(5, 9\)"),
        (
            lambda: functional.fdbd(V, Z, WEIGHT, MEAN[:2]),
            r"`mean` must be \(L,\) for features with L = 9 .*; got \(2,\)",
        ),
        (lambda: functional.cop(Z, MEAN, BASIS[:4]), r"`basis` must be \(L, L − D\) for features with L = 9"),
        (lambda: functional.nnguide(V, Z, BANK[:2], WEIGHT, k=3), r"`bank` must hold at least k = 3 rows; got 2"),
        (lambda: functional.nnguide(V, Z, BANK, WEIGHT, k=0), "`k` of `nnguide` must be a whole number of at least 1"),
        (lambda: functional.nnguide(V[:3], Z, BANK, WEIGHT), "`features` must have as many rows as `logits`"),
        (lambda: functional.gen(functional.softmax(V)), "`gen` reads every logit, and `softmax` keeps only a summary"),
    ],
)
def test_bad_input_is_told_the_rule(call, words):
    with pytest.raises(ValueError, match=words):
        call()


def test_what_a_summary_gives_away_is_the_caller_s_own():
    p = Softmax.of(torch.tensor([[2.0, 1.0, 0.0], [0.5, 3.0, 1.0]]))
    before = {
        name: getattr(functional, name)(p) for name in ("msp", "doctor", "entropy", "margin", "max_logit", "energy")
    }
    for name in before:
        getattr(functional, name)(p).neg_()
    for name, values in before.items():
        assert torch.equal(getattr(functional, name)(p), values)


def test_scores_of_your_own_are_functions_if_nothing_in_them_is_fitted(scratch_registry):
    @score(needs="l1")
    def longer(l1, *, weight=2.0):  # an option with the name of a fitted parameter of others
        return weight * l1

    @score(needs="residual")
    def nearer(residual):
        return 2 * residual

    assert torch.equal(functional.longer(Z), 2 * functional.l1(Z))
    assert torch.equal(functional.longer(Z, weight=3), 3 * functional.l1(Z))
    with pytest.raises(AttributeError, match="has no attribute 'nearer'"):
        functional.nearer  # noqa: B018
