"""Fits and scores do not depend on the caller's modes, and likely mistakes are told."""

import numpy as np
import pytest
import torch

import sirc
from sirc.scores.moments import Moments
from support import reference

LOGITS, Z, Y, WEIGHT, BIAS = reference.model(240, 5, 8, seed=0)
TRAIN = sirc.Outputs(LOGITS, Z, Y)
HEAD = sirc.Head(WEIGHT, BIAS)
SPECS = ["residual", "vim", "mahalanobis", "knn", "sirc(msp, residual)", "sirc(msp, knn, mahalanobis)"]


@pytest.fixture(scope="module")
def single():
    train = TRAIN.to(dtype=torch.float32)
    scorer = sirc.fit(SPECS, train, head=HEAD)
    return train, scorer, scorer(train)


def test_autocast_does_not_round_a_fit_or_a_score(single):
    train, scorer, expected = single
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = scorer(train)
        again = sirc.fit(SPECS, train, head=HEAD)(train)
    for spec in SPECS:
        assert torch.equal(inside[spec], expected[spec])
        torch.testing.assert_close(again[spec], expected[spec], rtol=1e-6, atol=1e-6)


def test_a_default_device_elsewhere_changes_nothing(single):
    train, _, expected = single
    with torch.device("meta"):
        got = sirc.fit(SPECS, train, head=HEAD)(train)
    for spec in SPECS:
        torch.testing.assert_close(got[spec], expected[spec], rtol=1e-6, atol=1e-6)


def test_a_fitter_may_begin_in_inference_mode_and_end_outside(monkeypatch, single):
    train, _, expected = single
    monkeypatch.setattr("sirc.scores.fitting.rows.BLOCK_ROWS", 32)
    fitter = sirc.Fitter(SPECS, head=HEAD)
    with torch.inference_mode():
        fitter.update(train[:100])
    fitter.update(train[100:])
    got = fitter.finish(train)(train)
    for spec in SPECS:
        torch.testing.assert_close(got[spec], expected[spec], rtol=1e-6, atol=1e-6)


def test_a_fit_may_be_made_in_inference_mode(single):
    train, _, expected = single
    with torch.inference_mode():
        got = sirc.fit(SPECS, train, head=HEAD)(train)
    for spec in SPECS:
        torch.testing.assert_close(got[spec], expected[spec], rtol=1e-6, atol=1e-6)


def test_scores_do_not_carry_gradients(single):
    _, scorer, _ = single
    outputs = sirc.Outputs(torch.tensor(LOGITS, requires_grad=True), torch.tensor(Z, requires_grad=True))
    assert not any(value.requires_grad for value in scorer(outputs).values())
    assert not Moments().update(torch.ones(3, 2, requires_grad=True)).covariance.requires_grad


def test_batches_of_another_type_are_refused_whatever_their_size(monkeypatch):
    mixed = [TRAIN[:100].to(dtype=torch.float16), TRAIN[100:].to(dtype=torch.float32)]
    for block in (8192, 32):
        monkeypatch.setattr("sirc.scores.fitting.rows.BLOCK_ROWS", block)
        with pytest.raises(
            ValueError, match="all batches of `train` must be alike and of one model: logits is float16, got float32"
        ):
            sirc.fit("sirc(msp, knn)", mixed)


def test_labels_may_come_and_go_where_they_are_not_needed():
    some = [TRAIN[:100], sirc.Outputs(LOGITS[100:], Z[100:])]
    assert sirc.fit("sirc(msp, residual)", some, head=HEAD).parameters["sirc(msp, residual)"]["b"] > 0


def test_a_shuffling_loader_will_do_where_no_statistic_searches_the_bank(monkeypatch):
    monkeypatch.setattr("sirc.scores.fitting.state.BANK_SIZE", 50)

    class Shuffled:
        passes = 0

        def __iter__(self):
            self.passes += 1
            order = np.random.default_rng(self.passes).permutation(240)
            return iter([TRAIN[order[i : i + 40]] for i in range(0, 240, 40)])

    sirc.fit(["knn", "sirc(msp, l1)"], Shuffled(), crossfit=0)
    with pytest.raises(ValueError, match="scored without itself in the bank"):
        sirc.fit(["sirc(msp, knn)"], Shuffled(), crossfit=0)


def test_workers_that_do_not_belong_together_do_not_merge():
    def worker(head=HEAD, specs="sirc(msp, residual, react)", **index):
        return sirc.Fitter(specs, head=head).update(TRAIN, **index)

    with pytest.raises(ValueError, match="they have the same head; these have different weights, or one has none"):
        worker().merge(worker(sirc.Head(WEIGHT + 1, BIAS)))
    with pytest.raises(ValueError, match="each row came with its dataset index"):
        worker().merge(worker())
    worker(index=range(240)).merge(worker(index=np.arange(240, 480)))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: sirc.fit("residual", TRAIN, head=torch.nn.Linear(8, 5)), "`head` must be a `sirc.Head`; got Linear"),
        (lambda: sirc.fit("msp", 5), "`train` must be an `Outputs`, an `OutputStore` or an iterable of batches"),
        (lambda: sirc.fit("msp", None), "`train`, the outputs of ID training data, is needed: `sirc.fit(specs"),
        (lambda: sirc.fit(), "`train`, the outputs of ID training data, is needed"),
        (lambda: sirc.fit("msp", {"logits": LOGITS}), "Wrap whole arrays: `sirc.Outputs"),
        (lambda: sirc.fit("msp", torch.tensor(LOGITS)), "got a tensor. Wrap whole arrays"),
        (lambda: sirc.fit(5, TRAIN), "`specs` must be a spec or a list of specs; got int"),
        (lambda: sirc.Scorer("msp")(None), "`outputs` must be an `Outputs`"),
        (lambda: sirc.fit("MSP", TRAIN), "Did you mean `msp`"),
        (
            lambda: sirc.fit("vim", sirc.Outputs(torch.tensor(LOGITS).log_softmax(-1), Z), head=HEAD),
            "log-probabilities",
        ),
        (lambda: sirc.Outputs(LOGITS, Y), "Did you mean `labels`"),
        (lambda: sirc.Outputs(LOGITS[:, :1]), "a binary model's one logit v is the pair"),
        (lambda: sirc.fit("sirc(msp, knn)", TRAIN[:10]), "at least 11 training rows to search, as no row searches for"),
        (lambda: sirc.fit("msp", TRAIN, crossfit=1000), "a number of folds from 2 to 20; got 1000"),
        (lambda: sirc.Scorer("residual", {"residual": {"foo": [1.0]}})(TRAIN), "must be basis, origin; got foo"),
        (lambda: Moments(classes=3).update(Z, Y), "`labels` must be in 0…2"),
        (lambda: Moments().update([[float("nan")]]), "`rows` must be finite"),
    ],
)
def test_likely_mistakes_are_told(call, words):
    with pytest.raises(ValueError, match=words.replace("(", r"\(")):
        call()


@pytest.mark.parametrize("result", [lambda x: x.sum(), lambda x: x[:, :1]])
@pytest.mark.parametrize("needs", ["logits", "features"])
def test_a_score_of_the_wrong_shape_is_named(scratch_registry, result, needs):
    def odd(x):
        return result(x)

    sirc.score(needs=needs)(odd)
    with pytest.raises(ValueError, match=r"score `odd` must return one value for each row, shape \(240,\)"):
        sirc.Scorer("odd")(TRAIN)


def test_another_spelling_of_a_spec_is_found(single):
    _, _, values = single
    assert "sirc(msp,residual)" in values
    assert torch.equal(values["sirc( msp, residual )"], values["sirc(msp, residual)"])
    assert "sirc(msp, l1)" not in values


def test_float64_features_far_from_the_origin_have_a_residual():
    far = np.random.default_rng(0).normal(size=(400, 12)) + 1e6
    scorer = sirc.fit("sirc(msp, residual)", sirc.Outputs(far[:, :5], far), head=sirc.Head(np.eye(5, 12)))
    assert float(1 / scorer.parameters["sirc(msp, residual)"]["b"]) == pytest.approx(0.6, rel=0.3)
