"""The scorer: what it takes and refuses, and that a saved one gives the same bits."""

import json
import pickle
import re
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import sirc
from sirc.scores import scorer as scorer_module
from support import reference

pytestmark = pytest.mark.filterwarnings("ignore:rows of `val` look OOD")

K, L = 5, 8
SPECS = [
    *(name for name in sirc.known_names() if name not in reference.COMBINATIONS),
    "knn(k=3)",
    "sirc(msp, l1, residual, knn)",
    "sirc(entropy,vim, b=2)",
    "linear(vim, mahalanobis, c=-0.25)",
    "product(doctor, gradnorm)",
    "both(msp, sirc(entropy, knn))",
]
LOGITS, Z, Y, WEIGHT, BIAS = reference.model(150, K, L, seed=0)
TRAIN = sirc.Outputs(LOGITS, Z, Y)
VAL = sirc.Outputs(*reference.model(150, K, L, seed=0, noise=5.0)[:3])
TEST = sirc.Outputs(LOGITS * 0.8, Z * 0.9 + 0.1)


@pytest.fixture(scope="module")
def fitted():
    return sirc.fit(SPECS, TRAIN, head=sirc.Head(WEIGHT, BIAS), val=VAL)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_loaded_scorer_gives_the_same_bits(fitted, tmp_path, dtype):
    train = TRAIN.to(dtype=dtype)
    scorer = sirc.fit(SPECS, train, head=sirc.Head(WEIGHT, BIAS), val=VAL.to(dtype=dtype))
    path = tmp_path / "scorer.safetensors"
    scorer.save(path)
    again = sirc.Scorer.load(path)
    assert again.specs == scorer.specs
    assert (again.num_classes, again.num_features) == (K, L)
    for kind in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        outputs = TEST.to(dtype=kind)
        one, other = scorer(outputs), again(outputs)
        for spec in SPECS:
            assert torch.equal(one[spec], other[spec]), spec


def test_a_saved_scorer_is_the_same_file_twice(fitted, tmp_path):
    fitted.save(tmp_path / "a")
    sirc.Scorer.load(tmp_path / "a").save(tmp_path / "b")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_loaded_scorer_does_not_need_its_file(fitted, tmp_path):
    fitted.save(tmp_path / "a")
    again = sirc.Scorer.load(tmp_path / "a")
    (tmp_path / "a").write_bytes(b"")
    assert torch.equal(again(TEST)["knn"], fitted(TEST)["knn"])


def test_a_scorer_that_learns_nothing_needs_no_fit_and_saves(tmp_path):
    scorer = sirc.Scorer(["msp", "sirc(msp, l1, a=1, b=2)"])
    scorer.save(tmp_path / "free")
    again = sirc.Scorer.load(tmp_path / "free")
    for spec in scorer.specs:
        assert torch.equal(again(TEST)[spec], scorer(TEST)[spec])
    np.testing.assert_allclose(-scorer(TEST)["msp"], [reference.log_gaps(v)["msp"] for v in LOGITS * 0.8], rtol=1e-10)


def test_nothing_is_overwritten_unasked(fitted, tmp_path):
    path = tmp_path / "scorer"
    path.write_text("precious", encoding="utf-8")
    with pytest.raises(FileExistsError, match="exists already"):
        fitted.save(path)
    assert path.read_text(encoding="utf-8") == "precious"
    fitted.save(path, overwrite=True)
    assert sirc.Scorer.load(path).specs == fitted.specs


@pytest.mark.parametrize("where", [0.0, 0.02, 0.3, 0.999])
def test_a_flipped_bit_is_noticed(fitted, tmp_path, where):
    path = tmp_path / "scorer"
    fitted.save(path)
    data = bytearray(path.read_bytes())
    data[int(where * len(data))] ^= 4
    path.write_bytes(data)
    with pytest.raises(sirc.StoreError, match="cannot be trusted"):
        sirc.Scorer.load(path)


def test_a_file_cut_short_is_noticed(fitted, tmp_path):
    path = tmp_path / "scorer"
    fitted.save(path)
    for keep in (0, 5, 100, -1):
        path.write_bytes(path.read_bytes()[:keep])
        with pytest.raises(sirc.StoreError, match="cannot be trusted"):
            sirc.Scorer.load(path)


def test_other_files_are_refused(tmp_path):
    save_file({"x": torch.zeros(3)}, tmp_path / "foreign")
    with pytest.raises(sirc.StoreError, match="sirc did not write it"):
        sirc.Scorer.load(tmp_path / "foreign")
    TRAIN.save(tmp_path / "outputs.safetensors")
    with pytest.raises(sirc.StoreError, match="is not a saved scorer"):
        sirc.Scorer.load(tmp_path / "outputs.safetensors")
    (tmp_path / "pickle").write_bytes(pickle.dumps({"msp": 1}))
    with pytest.raises(sirc.StoreError, match="cannot be trusted"):
        sirc.Scorer.load(tmp_path / "pickle")
    with pytest.raises(FileNotFoundError):
        sirc.Scorer.load(tmp_path / "absent")


def test_a_score_that_is_not_known_here_is_named_with_the_file(tmp_path):
    scorer = sirc.Scorer("msp")
    scorer.specs = ("elsewhere",)
    scorer.save(tmp_path / "own scores")
    with pytest.raises(sirc.StoreError, match="own scores' was saved with scores that are not known here: unknown"):
        sirc.Scorer.load(tmp_path / "own scores")


def test_a_later_format_is_refused(fitted, tmp_path, monkeypatch):
    monkeypatch.setattr(scorer_module, "_VERSION", 2)
    fitted.save(tmp_path / "later")
    monkeypatch.undo()
    with pytest.raises(sirc.StoreError, match="has scorer format 2 and this version of sirc reads 1"):
        sirc.Scorer.load(tmp_path / "later")


def test_the_file_is_plain_safetensors_with_json(fitted, tmp_path):
    fitted.save(tmp_path / "scorer")
    data = (tmp_path / "scorer").read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    about = json.loads(json.loads(data[8 : 8 + size])["__metadata__"]["sirc"])
    assert about["version"] == 1
    assert about["specs"] == SPECS


def test_no_format_that_runs_code_is_read_anywhere():
    for path in Path(sirc.__file__).parent.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert all("weights_only=True" in call for call in re.findall(r"torch\.load\((.*?)\n", text)), path
        text = text.replace("from pickle import UnpicklingError\n", "")  # what refusing such a file raises
        assert not re.search(r"^\s*(import|from) (pickle|marshal|shelve|joblib|dill)\b", text, re.M), path
        assert not re.search(r"allow_pickle=True|(?<![\w.])(eval|exec)\(", text), path


@pytest.mark.parametrize("spec", ["residual", "vim", "mahalanobis", "knn", "sirc(msp, l1)", "sirc(msp, l1, a=1)"])
def test_an_unfitted_score_says_how_to_fit_it(spec):
    with pytest.raises(sirc.NotFittedError) as caught:
        sirc.Scorer(["msp", spec])(TEST)
    head = ", head=head" if spec in ("residual", "vim") else ""
    assert f"`{spec}` learns from ID data and was not fitted" in str(caught.value)
    assert f"`sirc.fit(['{spec}'], train{head})`" in str(caught.value)
    assert isinstance(caught.value, ValueError)


def test_outputs_of_another_model_are_refused(fitted):
    with pytest.raises(ValueError, match="the model that the scorer was fitted for, with 5 classes; got 4"):
        fitted(sirc.Outputs(LOGITS[:, :4], Z))
    with pytest.raises(ValueError, match="the scorer was fitted for, with 8 features; got 7"):
        fitted(sirc.Outputs(LOGITS, Z[:, :7]))
    with pytest.raises(ValueError, match=r"features are needed for `l1`, .*; these outputs have none"):
        fitted(sirc.Outputs(LOGITS))


def test_logit_scores_fitted_with_features_do_without_them():
    scorer = sirc.fit(["msp", "sirc(msp, energy)"], TRAIN)
    plain, bare = scorer(TEST), scorer(sirc.Outputs(TEST.logits))
    assert all(torch.equal(plain[spec], bare[spec]) for spec in scorer.specs)


def test_batches_score_as_the_whole(fitted, tmp_path):
    whole = fitted(TEST)
    store = sirc.OutputStore.from_outputs(tmp_path / "store", TEST, shard_size=40)
    batches = [(TEST.logits[i : i + 33], TEST.features[i : i + 33]) for i in range(0, 150, 33)]
    for source in (store, batches, iter(batches)):
        parts = fitted(source)
        assert list(parts) == SPECS
        for spec in SPECS:
            torch.testing.assert_close(parts[spec], whole[spec], rtol=1e-12, atol=1e-12)
    for call in (fitted, fitted.seen):
        with pytest.raises(ValueError, match="`outputs` must hold at least one batch; got an empty iterable"):
            call([])


def test_confidences_come_under_the_texts_asked(fitted):
    conf = fitted(TEST)
    assert list(conf) == SPECS
    assert conf["sirc(entropy, vim, b=2.0)"] is conf["sirc(entropy,vim, b=2)"]
    assert conf["linear(energy, residual)"] is conf["vim"]


def test_scoring_twice_gives_the_same_and_parameters_stay(fitted):
    before = {(k, n): v.clone() for k, part in fitted.parameters.items() for n, v in part.items()}
    for dtype in (torch.float32, torch.float64):
        outputs = TEST.to(dtype=dtype)
        one, other = fitted(outputs), fitted(outputs)
        assert all(torch.equal(one[spec], other[spec]) for spec in SPECS)
    assert all(torch.equal(fitted.parameters[k][n], v) for (k, n), v in before.items())


def test_parameters_are_kept_by_canonical_spec(fitted):
    assert fitted.parameters["vim"]["c"].shape == (1,)
    assert set(fitted.parameters["sirc(entropy, vim, b=2.0)"]) == {"a", "b"}
    assert fitted.parameters["sirc(msp, l1, residual, knn)"]["a"].shape == (3,)
    assert repr(sirc.Scorer("msp")) == "Scorer(['msp'])"


@pytest.mark.parametrize(("parameters", "got"), [({"a": [1.0]}, "None"), ({"a": [1.0], "b": 2}, "2")])
def test_parameters_made_by_hand_are_floats_for_each_name(parameters, got):
    spec = "sirc(msp, l1)"
    words = f"the parameters of `{spec}` must have floats for `b`; got {got}. Make the scorer with `sirc.fit`"
    with pytest.raises(ValueError, match=re.escape(words)):
        sirc.Scorer(spec, {spec: parameters})(TEST)
