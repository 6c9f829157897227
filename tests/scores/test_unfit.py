"""Specs that cannot be fitted are told before the first pass, all at once, or left out with one warning."""

import pytest
import torch

import sirc
from support import reference

LOGITS, Z, Y, WEIGHT, BIAS = reference.model(60, 5, 16, seed=0)
TRAIN = sirc.Outputs(LOGITS, Z, Y)
HEAD = sirc.Head(WEIGHT, BIAS)


class Counted:
    """Batches that count how often they are read."""

    def __init__(self, *batches):
        self.batches, self.read = batches, 0

    def __iter__(self):
        self.read += 1
        return iter(self.batches)


@pytest.fixture
def passes(monkeypatch):
    """The batches that any fit works on."""
    seen = []
    update = sirc.Fitter.update
    monkeypatch.setattr(sirc.Fitter, "update", lambda self, *a, **k: (seen.append(a), update(self, *a, **k))[1])
    return seen


UNFIT = {
    "knn(k=61)": "`knn(k=61)` needs at least 61 training rows to search; got 60",
    "sirc(msp, knn(k=60))": "`knn(k=60)` needs at least 61 training rows to search, as no row searches for itself; got",
    "sirc(msp, l1, budget=1)": "`val` is needed for `sirc(msp, l1, budget=1.0)`",
    "vim": "`head` is needed for `residual`",
}


@pytest.mark.parametrize("stored", [False, True], ids=["memory", "store"])
def test_all_that_cannot_be_fitted_is_named_before_any_pass(stored, passes, tmp_path):
    train = sirc.OutputStore.from_outputs(tmp_path / "train", TRAIN) if stored else TRAIN
    with pytest.raises(ValueError, match="4 specs cannot be fitted") as error:
        sirc.fit(["msp", *UNFIT, "sirc(msp, l1)"], train, crossfit=5)
    for spec, words in UNFIT.items():
        named = "" if f"`{sirc.scores.parse(spec)}`" in words else f"`{spec}`: "  # once
        assert f"- {named}{words}" in str(error.value)
    assert 'as `on_unfit="skip"` does, to fit the other 2' in str(error.value)
    assert not passes


def test_skipping_fits_the_others_as_without(passes):
    with pytest.warns(sirc.DataWarning, match="left out: ") as told:
        some = sirc.fit(["msp", *UNFIT, "sirc(msp, l1)"], TRAIN, crossfit=5, on_unfit="skip")
    (warning,) = told
    assert all(words in str(warning.message) for words in UNFIT.values())
    assert some.specs == ("msp", "sirc(msp, l1)")
    alone = sirc.fit(["msp", "sirc(msp, l1)"], TRAIN, crossfit=5)
    assert torch.equal(some(TRAIN)["sirc(msp, l1)"], alone(TRAIN)["sirc(msp, l1)"])


def test_what_only_batches_show_is_told_at_the_first():
    batches = Counted(sirc.Outputs(LOGITS[:30]), sirc.Outputs(LOGITS[30:]))
    with pytest.raises(ValueError, match="features are needed for `l1`, `mahalanobis`"):
        sirc.fit(["msp", "l1", "mahalanobis"], batches)
    assert batches.read == 1
    with pytest.warns(sirc.DataWarning, match="left out: `l1`, `sirc"):
        assert sirc.fit(["l1", "msp", "sirc(msp, l1)"], batches, on_unfit="skip").specs == ("msp",)


def flat(outputs):
    ones = torch.ones_like(outputs.features)
    return sirc.Outputs(ones @ HEAD.weight.T + HEAD.bias, ones, outputs.labels)


@pytest.mark.parametrize("crossfit", [0, 5])
def test_what_only_the_values_show_is_left_out_too(crossfit):
    specs = ["sirc(msp, l1)", "vim", "sirc(msp, vim)", "react", "mahalanobis", "sirc(msp, mahalanobis)", "energy"]
    with pytest.warns(sirc.DataWarning, match="left out: ") as told:
        scorer = sirc.fit(specs, flat(TRAIN), head=HEAD, crossfit=crossfit, on_unfit="skip")
    (warning,) = told
    assert scorer.specs == ("energy",)
    for words in (
        "`l1` does not vary",
        "`vim`, `sirc(msp, vim)`: `vim` needs features with a part outside",
        "`react` needs a percentile",
        "`mahalanobis`, `sirc(msp, mahalanobis)`: `mahalanobis` needs features that vary",
    ):
        assert words in str(warning.message)


def test_a_budget_that_finds_no_wrong_prediction_is_left_out():
    right = sirc.Outputs(LOGITS, Z, LOGITS.argmax(1))
    with pytest.warns(sirc.DataWarning, match="`val` must hold right and wrong predictions"):
        scorer = sirc.fit(["msp", "sirc(msp, l1, budget=1)"], TRAIN, val=right, on_unfit="skip")
    assert scorer.specs == ("msp",)


def test_a_search_of_too_few_rows_is_left_out_after_the_first_pass_too():
    with pytest.warns(sirc.DataWarning, match=r"left out: `sirc\(msp, knn\(k=60\)\)`: `knn\(k=60\)` needs at least 61"):
        scorer = sirc.fit(["knn(k=60)", "sirc(msp, knn(k=60))"], [TRAIN[:30], TRAIN[30:]], on_unfit="skip")
    assert scorer.specs == ("knn(k=60)",)


def test_a_scod_inside_what_val_tunes_is_named_too():
    with pytest.raises(ValueError, match=r"`val` is needed for `both\(scod, msp\)`"):
        sirc.fit("both(scod, msp)", TRAIN, head=HEAD)
    with pytest.warns(sirc.DataWarning, match=r"left out: .*`both\(scod, msp\)`"):
        assert sirc.fit(["msp", "both(scod, msp)"], TRAIN, head=HEAD, on_unfit="skip").specs == ("msp",)


def test_nothing_left_to_fit_is_an_error():
    with pytest.raises(ValueError, match="`head` is needed for `residual`") as error:
        sirc.fit(["vim", "linear(energy, residual)"], TRAIN, on_unfit="skip")
    assert str(error.value).count("is needed") == 1  # the two texts are one spec
    with pytest.raises(ValueError, match='`on_unfit` must be "stop" or "skip"; got'):
        sirc.fit("msp", TRAIN, on_unfit="ignore")
