"""The softmax family: exact in plain value and in log(S1max − S1), eager and compiled, however saturated."""

import logging
import shutil
import warnings

import numpy as np
import pytest
import torch

import sirc
from sirc import functional
from sirc._utils import fused
from sirc.scores import row_sums
from sirc.scores.formulas.softmax import Softmax
from support import reference

BOUNDED = ("msp", "doctor", "entropy")


def awkward_rows():
    """Rows of 4 logits where formulas go wrong: ties, one-hot, two-hot, offsets, tiny differences."""
    return np.array(
        [
            [0.0, 0.0, 0.0, 0.0],
            [-0.0, 0.0, -0.0, 0.0],
            [5.0, 5.0, 0.0, -1.0],
            [5.0, 5.0, 5.0, 4.999],
            [1.0, 2.0, 3.0, 4.0],
            [30.0, 0.0, 0.0, 0.0],
            [40.0, 39.0, 0.0, -40.0],
            [700.0, 0.0, 0.0, 0.0],
            [-700.0, -700.0, 0.0, 0.0],
            [1e5, 1e5 - 1, 1e5 - 2, 1e5 - 3],
            [-1e5, -1e5 - 1, -1e5 - 2, -1e5 - 30],
            [1e-8, 0.0, 0.0, 0.0],
            [1e-300, 0.0, -1e-300, 0.0],
            [0.0, -800.0, -800.0, -800.0],
            [0.0, -1e4, -1e4, -2e4],
        ]
    )


def random_rows(n, classes, seed=0, scale=4.0):
    return np.random.default_rng(seed).normal(size=(n, classes)) * scale


@pytest.mark.parametrize("name", reference.LOGIT_SCORES)
@pytest.mark.parametrize("classes", [2, 3, 10, 101])
def test_plain_values_are_the_formulas(name, classes):
    v = random_rows(64, classes)
    np.testing.assert_allclose(getattr(functional, name)(v), getattr(reference, name)(v), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", reference.LOGIT_SCORES)
def test_plain_values_hold_at_awkward_rows(name):
    v = awkward_rows()
    np.testing.assert_allclose(getattr(functional, name)(v), getattr(reference, name)(v), rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("classes", [2, 7, 1000])
def test_equal_logits_are_uniform(classes):
    p = functional.softmax(np.full((1, classes), 3.25))
    assert functional.msp(p).item() == pytest.approx(1 / classes, rel=1e-14)
    assert functional.doctor(p).item() == pytest.approx(classes**-0.5, rel=1e-14)
    assert functional.entropy(p).item() == pytest.approx(-np.log(classes), rel=1e-14)
    assert functional.energy(p).item() == pytest.approx(3.25 + np.log(classes), rel=1e-14)
    assert 0 <= p.deviation.item() < 1e-15
    assert p.gap.item() == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", BOUNDED)
def test_log_gap_is_exact_at_awkward_rows(name):
    v = awkward_rows()
    exact = np.array([reference.log_gaps(row)[name] for row in v])
    np.testing.assert_allclose(functional.log_gap(v, name), exact, rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("name", BOUNDED)
@pytest.mark.parametrize("classes", [2, 3, 12])
def test_log_gap_is_exact_at_every_gap(name, classes):
    rng = np.random.default_rng(classes)
    v = rng.normal(size=(48, classes)) * rng.choice([0.01, 1.0, 20.0], size=(48, 1))
    v[:, 0] = v[:, 1:].max(1) + np.concatenate(([0.0, 1e-12, 1e-6], np.geomspace(1e-3, 1000, 45)))
    v -= rng.normal(size=(48, 1)) * 10
    exact = np.array([reference.log_gaps(row)[name] for row in v])
    np.testing.assert_allclose(functional.log_gap(v, name), exact, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("name", BOUNDED)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("classes", [2, 1000])
def test_a_gap_of_500_ranks_above_499(name, dtype, classes):
    v = torch.zeros(2, classes, dtype=dtype)
    v[0, 0], v[1, 0] = 499, 500 if dtype != torch.bfloat16 else 502
    conf = sirc.Scorer(name)(sirc.Outputs(v))[name]
    assert conf[1] - conf[0] > 0.9


@pytest.mark.parametrize("name", BOUNDED)
def test_confident_samples_never_tie(name):
    gaps = torch.arange(0, 60000, 7, dtype=torch.float32)
    v = torch.zeros(len(gaps), 3)
    v[:, 1] = gaps
    conf = sirc.Scorer(name)(sirc.Outputs(v))[name]
    assert bool((conf.diff() > 0).all())
    assert bool(conf.isfinite().all())


def worst_discordance(fine, coarse, floor=1e-300):
    """The largest relative difference in `fine` of any two rows that `coarse` does not order as `fine` does."""
    order = np.lexsort((-fine, coarse))
    fine = fine[order]
    best_so_far = np.maximum.accumulate(fine)
    return ((best_so_far - fine) / np.maximum(np.maximum(abs(best_so_far), abs(fine)), floor)).max()


def test_discordance_is_measured_over_all_pairs():
    assert worst_discordance(np.array([1.0, 2.0, 4.0]), np.array([1.0, 2.0, 3.0])) == 0
    assert worst_discordance(np.array([4.0, 2.0, 1.0]), np.array([1.0, 2.0, 3.0])) == 0.75
    assert worst_discordance(np.array([1.0, 2.0]), np.array([1.0, 1.0])) == 0.5


@pytest.mark.slow
@pytest.mark.parametrize("classes", [10, 1000])
def test_float32_logits_keep_the_order_of_float64(classes):
    rng = np.random.default_rng(classes)
    n = 6000
    v = rng.normal(size=(n, classes))
    gap = rng.uniform(0, 1000, n) * rng.choice([1.0, 1e-2, 1e-3], n)
    # Half of the rows are near copies, so that many pairs lie closer than float32 resolves.
    v[n // 2 :] = v[: n // 2]
    gap[n // 2 :] = gap[: n // 2] * (1 + rng.choice([1e-8, 1e-7, 1e-6, 1e-5], n // 2))
    v[np.arange(n), np.tile(rng.integers(0, classes, n // 2), 2)] = v.max(1) + gap
    scorer = sirc.Scorer(BOUNDED)
    fine, coarse = scorer(sirc.Outputs(v)), scorer(sirc.Outputs(v.astype(np.float32)))
    for name in BOUNDED:
        # −log H passes through 0 at H = 1, where a relative difference means nothing.
        floor = 1.0 if name == "entropy" else 1e-300
        assert 0 < worst_discordance(fine[name].numpy(), coarse[name].numpy(), floor) < 1e-6, name


@pytest.mark.parametrize("name", BOUNDED)
def test_confidence_rises_with_the_gap_where_exp_underflows(name):
    v = torch.zeros(9000, 3, dtype=torch.float64)
    v[:, 1] = torch.arange(9000) / 100 + 690
    steps = functional.log_gap(v, name).neg().diff()
    assert bool((steps > 0.009).all())
    assert bool((steps < 0.011).all())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("name", reference.LOGIT_SCORES)
def test_narrow_logits_score_as_the_same_values_in_float64(name, dtype):
    v = torch.as_tensor(random_rows(50, 9)).to(dtype)
    function = getattr(functional, name)
    assert torch.equal(function(v), function(v.double()))


@pytest.mark.parametrize("name", BOUNDED)
def test_extreme_finite_logits_give_finite_confidences(name):
    big = float(np.finfo(np.float32).max)
    v = np.array([[big, -big, 0.0], [big, big, big], [-big, -big, -big], [0.0, 0.0, -big]], dtype=np.float32)
    conf = sirc.Scorer(name)(sirc.Outputs(v))[name]
    assert bool(conf.isfinite().all())
    assert conf[0] == conf.max()


@pytest.mark.parametrize("name", reference.LOGIT_SCORES)
def test_adding_a_constant_to_logits_shifts_only_max_logit_and_energy(name):
    v = random_rows(40, 8).round(3)
    function = getattr(functional, name)
    shift = 4096.0 if name in ("max_logit", "energy") else 0.0
    np.testing.assert_allclose(function(v + 4096.0), function(v).numpy() + shift, rtol=1e-9, atol=1e-11)


def test_the_prediction_is_the_first_largest_logit():
    v = np.array([[1.0, 3.0, 3.0], [0.0, -0.0, -1.0], [2.0, 2.0, 2.0]])
    assert functional.softmax(v).prediction.tolist() == [1, 0, 0]


def test_blocks_of_rows_do_not_show(monkeypatch):
    v = torch.as_tensor(random_rows(101, 7))
    whole = Softmax.of(v)
    monkeypatch.setattr(row_sums, "_SMALL", 0)
    monkeypatch.setitem(row_sums._BLOCK, "cpu", 7 * 10)
    parts = Softmax.of(v)
    for field in ("prediction", "top", "second", "t", "w", "q", "deviation"):
        assert torch.equal(getattr(whole, field), getattr(parts, field)), field


def test_an_empty_selection_has_empty_scores():
    outputs = sirc.Outputs(random_rows(3, 4))[:0]
    assert all(len(c) == 0 for c in sirc.Scorer(list(reference.LOGIT_SCORES))(outputs).values())


@pytest.mark.slow
@pytest.mark.skipif(not any(map(shutil.which, ("g++", "clang++", "c++"))), reason="no C++ compiler")
def test_the_compiled_pass_gives_the_eager_numbers(monkeypatch):
    monkeypatch.setattr(fused, "_unusable", set())
    v = torch.as_tensor(np.concatenate((awkward_rows(), random_rows(60, 4))))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, while compiling
        compiled = Softmax.of(v, compile=True)
    assert not fused._unusable, "it fell back, so nothing was compared"
    eager = Softmax.of(v, compile=False)
    assert torch.equal(compiled.prediction, eager.prediction)
    for field in ("top", "second", "t", "w", "q", "deviation"):
        torch.testing.assert_close(getattr(compiled, field), getattr(eager, field), rtol=1e-12, atol=1e-14)
    for name in BOUNDED:
        one, other = functional.log_gap(compiled, name), functional.log_gap(eager, name)
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-14)


def test_a_broken_compiler_falls_back_without_a_word(monkeypatch, capfd, caplog):
    calls = []

    def broken(logits):
        calls.append(logits)
        raise RuntimeError("no compiler here")

    monkeypatch.setattr(fused, "_unusable", set())
    monkeypatch.setattr(row_sums, "_compiled_sums", broken)
    v = torch.as_tensor(random_rows(20, 5))
    with caplog.at_level(logging.INFO), warnings.catch_warnings():
        warnings.simplefilter("error")
        first, again = Softmax.of(v, compile=True), Softmax.of(v, compile=True)
    eager = Softmax.of(v, compile=False)
    for field in ("prediction", "top", "second", "t", "w", "q", "deviation"):
        assert torch.equal(getattr(first, field), getattr(eager, field))
        assert torch.equal(getattr(again, field), getattr(eager, field))
    assert len(calls) == 1, "a broken compiler is tried once"
    assert capfd.readouterr() == ("", "")
    assert not caplog.records
