"""Scores that compare a row with right and wrong rows of `val`: what they learn from, and what they say without."""

import numpy as np
import pytest
import torch

import sirc
from sirc.scores.formulas import delta
from support import reference, reference_features

K, L = 5, 8
DATA = reference.model(300, K, L, seed=0)
VALIDATION = reference.model(240, K, L, seed=0, noise=4.0)
TRAIN, VAL = sirc.Outputs(*DATA[:3]), sirc.Outputs(*VALIDATION[:3])
TEST = sirc.Outputs(*reference.model(90, K, L, seed=0, noise=3.0)[:3])
NAMES = ["delta_mahalanobis", "delta_knn"]


@pytest.fixture(scope="module")
def fitted():
    return sirc.fit([*NAMES, "delta_knn(k=3)", "sirc(msp, delta_mahalanobis)"], TRAIN, val=VAL, crossfit=0)


def test_they_are_their_formulas(fitted):
    rows = TEST.logits.numpy(), TEST.features.numpy()
    found = fitted(TEST)
    for name, expected in reference_features.delta_values(DATA, VALIDATION, rows).items():
        np.testing.assert_allclose(found[name], expected, rtol=1e-9, atol=1e-9)
    expected = reference_features.delta_knn(rows[1], *VALIDATION[:3], k=3)
    np.testing.assert_allclose(found["delta_knn(k=3)"], expected, rtol=1e-9)


def test_inside_sirc_mean_and_spread_are_those_of_training_rows(fitted):
    values = fitted(TRAIN)["delta_mahalanobis"]
    expected = reference.spread(values.numpy())
    found = fitted.parameters["sirc(msp, delta_mahalanobis)"]
    np.testing.assert_allclose((float(found["a"]), float(found["b"])), expected, rtol=1e-9)


def test_training_rows_do_not_score_themselves_where_folds_are_left_out():
    """Only the covariance is of training rows: without a fold it is wider on that fold's rows."""
    specs = ["sirc(msp, delta_mahalanobis)", "sirc(msp, delta_knn)"]
    folds, whole = (sirc.fit(specs, TRAIN, val=VAL, crossfit=n).parameters for n in (5, 0))
    assert folds[specs[0]]["a"] != whole[specs[0]]["a"]
    assert torch.equal(folds[specs[1]]["a"], whole[specs[1]]["a"])


def test_the_banks_are_bounded(monkeypatch):
    monkeypatch.setattr(delta, "BANK_SIZE", 40)
    found = sirc.fit("delta_knn", TRAIN, val=VAL).parameters["delta_knn"]
    assert len(found["right"]) == len(found["wrong"]) == 40
    rows = {tuple(row) for row in reference.unit(VALIDATION[1][VAL.correct.numpy()]).round(9)}
    assert {tuple(row) for row in found["right"].numpy().round(9)} <= rows


def test_a_row_of_the_bank_has_a_finite_score(fitted):
    assert fitted(VAL)["delta_knn(k=3)"].isfinite().all()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kept", [VAL.correct, ~VAL.correct], ids=["right", "wrong"])
def test_they_need_right_and_wrong_rows(name, kept):
    some = VAL[kept.nonzero()[:, 0]]
    with pytest.raises(
        ValueError, match=rf"`{name}` needs .*right and .*wrong rows in `val`; got \d+ right and \d+ wr"
    ):
        sirc.fit(name, TRAIN, val=some)
    with pytest.warns(sirc.DataWarning, match=f"left out: .*`{name}` needs"):
        assert sirc.fit(["msp", f"sirc(msp, {name})"], TRAIN, val=some, on_unfit="skip").specs == ("msp",)


def test_few_wrong_rows_ask_for_a_smaller_k():
    with pytest.raises(ValueError, match=r"needs at least 200 right and 200 wrong rows.*, or choose a smaller k"):
        sirc.fit("delta_knn(k=200)", TRAIN, val=VAL)


@pytest.mark.parametrize("name", NAMES)
def test_without_validation_rows_they_say_so(name):
    with pytest.raises(ValueError, match=f"`val` is needed for `{name}`: labelled ID validation data"):
        sirc.fit(["msp", name], TRAIN)
    with pytest.raises(sirc.NotFittedError, match=rf"sirc.fit\(\['{name}'\], train, val=val\)"):
        sirc.Scorer(name)(TEST)


def test_validation_rows_of_another_model_are_refused_before_they_are_worked_on():
    narrow = sirc.Outputs(VAL.logits, VAL.features[:, :3], VAL.labels)
    with pytest.raises(ValueError, match="`val` must be of the same model as `train`, with 8 features; got 3"):
        sirc.fit(NAMES, TRAIN, val=narrow)


def test_the_rows_that_were_learnt_from_are_known():
    assert sirc.fit("delta_knn", TRAIN, val=VAL).seen(VAL) == 1
    assert sirc.fit("delta_knn", TRAIN, val=VAL).seen(TRAIN) == 0
    both = sirc.fit("delta_mahalanobis", TRAIN, val=VAL)
    assert both.seen(VAL) == both.seen(TRAIN) == 1


def test_classes_without_wrong_rows_leave_the_minimum():
    labels = VAL.predictions.clone()
    labels[:3] = (labels[:3] + 1) % K
    val = sirc.Outputs(VAL.logits, VAL.features, labels)
    scorer = sirc.fit("delta_mahalanobis", TRAIN, val=val)
    assert len(scorer.parameters["delta_mahalanobis"]["wrong"]) == len(labels[:3].unique())
    assert scorer(TEST)["delta_mahalanobis"].isfinite().all()
