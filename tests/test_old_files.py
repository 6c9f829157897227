"""Files that sirc 0.1.0 wrote before its code was sorted into packages: today's code reads them, with the same numbers.

`legacy/make.py` tells how they were made. Numbers that are only read are compared exactly; those that are computed may
differ in the last digits, as another processor adds in another order.
"""

import io
import json
import shutil
import sys
import tomllib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

import sirc
from legacy import make
from sirc.deploy.onnx import OnnxModel
from sirc.scores import parse
from support import reference
from support.report_reader import read_page
from support.tiny_selective import prepared

OLD = make.FOLDER
NUMBERS = json.loads((OLD / "numbers.json").read_text(encoding="utf-8"))
KEYS = ["score", "negative", "metric"]


@pytest.fixture
def study(tmp_path, monkeypatch):
    """A copy of the old study, as the current folder, with its images. Other tests have a `tiny_model` too."""
    shutil.copytree(OLD / "study", tmp_path, dirs_exist_ok=True)
    make.write_images(tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    sys.modules.pop("tiny_model", None)  # another test's network may have this name
    yield tmp_path
    sys.modules.pop("tiny_model", None)


def contents(folder):
    """What a version of sirc may not write differently; stamps name the version."""
    files = (path for path in Path(folder).rglob("*") if path.is_file() and path.parent.name != ".made-from")
    return {path: path.read_bytes() for path in files}


def times(run):
    """When networks, outputs and scores were made."""
    made = [*run.rglob("outputs/*/*"), *(run / name for name in ("model.safetensors", "scorer.safetensors"))]
    return {path: path.stat().st_mtime_ns for path in made}


def assert_same(found, expected):
    assert {**found}.keys() == expected.keys()
    for name, values in found.items():
        # The rows are float32, whose products have other last digits on another processor.
        torch.testing.assert_close(values, torch.tensor(expected[name], dtype=torch.float64), rtol=1e-5, atol=1e-6)


def test_outputs_and_stores_hold_the_same_rows():
    test = sirc.Outputs.load(OLD / "outputs.npz")
    store = sirc.OutputStore(OLD / "store")
    assert (len(test), len(store), store.num_shards, store.complete) == (40, 40, 2, True)
    for name in ("logits", "features", "labels"):
        assert torch.equal(getattr(store.load(), name), getattr(test, name))
    ood = sirc.Outputs.load(OLD / "outputs.safetensors")
    assert ood.labels is None
    assert (ood.logits.shape, ood.features.shape, ood.logits.dtype) == ((20, 3), (20, 6), torch.float32)


def test_a_scorer_gives_the_same_confidences_and_table():
    scorer = sirc.Scorer.load(OLD / "scorer.safetensors")
    test, ood = sirc.Outputs.load(OLD / "outputs.npz"), sirc.Outputs.load(OLD / "outputs.safetensors")
    assert_same(scorer(test), NUMBERS["confidences"]["test"])
    assert_same(scorer(ood), NUMBERS["confidences"]["ood"])
    table, old = sirc.evaluate(scorer, test, {"ood": ood}).table, pd.read_csv(io.StringIO(NUMBERS["table"]))
    table = table[table["metric"].isin(old["metric"])].reset_index(drop=True)
    pd.testing.assert_frame_equal(table, old, check_dtype=False, rtol=1e-11)


@pytest.mark.parametrize(("alpha", "beta"), [(0.5, 0.5), (0.9, 0.2), (0.5, 1.0), (0.5, 0.0), (1.0, 0.5), (1.0, 1.0)])
def test_a_bayes_without_ood_rows_keeps_its_earlier_rule(alpha, beta):
    """Its confidence for AURR is −log[βu′ + ρg]: u′ is u with SIRC's factor, on the scale of odds."""
    specs = [f"bayes(msp, l1, energy, alpha={alpha}, beta={beta}{metric})" for metric in ("", ", metric=aurr")]
    numbers = {"a": [2.0, 1.0], "b": [0.5, 2.0], "claim": [0.0, np.log(2 / 3)], "calibration": [0.3, 0.7]}
    found = {name: torch.tensor(x, dtype=torch.float64) for name, x in numbers.items()}
    rng = np.random.default_rng(0)
    logits, features = rng.normal(size=(50, 3)), rng.normal(size=(50, 4)) * 2
    scorer = sirc.Scorer(specs, {str(parse(spec)): found for spec in specs})
    aurc, aurr = scorer(sirc.Outputs(logits, features)).values()

    claimed = 1 - reference.msp(logits)
    odds = np.exp(0.3) * (claimed / (1 - claimed)) ** 0.7
    z = [0.5 * (reference.l1(features) - 2), 2.0 * (reference.energy(logits) - 1)]  # 3 more than in deviations
    u, tilt = odds / (1 + odds), np.mean([np.exp(-1.5 * (x - 3) - 1.125) for x in z], axis=0)
    g = 0.9 * u / 0.3 + 0.1 * (u / 0.3) ** 0.75 * tilt
    for x in z:
        odds = odds * (1 + np.exp(-x)) ** 0.7
    raised, w = odds / (1 + odds), (1 - alpha) * g / (alpha + (1 - alpha) * g)
    np.testing.assert_allclose(aurc, -np.log(beta * (1 - w) * raised + (1 - beta) * w), rtol=1e-10, atol=1e-10)
    cost = beta * raised + (1 - alpha) * (1 - beta) / alpha * g
    np.testing.assert_allclose(aurr, -np.log(cost), rtol=1e-10, atol=1e-10)


def test_a_scorer_that_is_saved_again_is_the_same_file(tmp_path):
    sirc.Scorer.load(OLD / "scorer.safetensors").save(tmp_path / "again.safetensors")
    assert (tmp_path / "again.safetensors").read_bytes() == (OLD / "scorer.safetensors").read_bytes()


def test_a_classifier_decides_the_same():
    weights = load_file(OLD / "network.safetensors")
    x = weights.pop("x")
    model = make.network()
    model.load_state_dict(weights)
    classifier = sirc.SelectiveClassifier.load(OLD / "classifier.safetensors", model)
    expected = NUMBERS["decision"]
    assert classifier.threshold.value == expected["threshold"]
    assert (classifier.spec, list(classifier.classes)) == (make.CLASSIFIER_SPEC, make.CLASSES)
    decision = classifier(x)
    assert decision.label.tolist() == expected["label"]
    assert decision.accepted.tolist() == expected["accepted"]
    assert 0 < sum(expected["accepted"]) < len(x)
    np.testing.assert_allclose(decision.logits, expected["logits"], rtol=1e-4, atol=1e-5)  # float32
    np.testing.assert_allclose(decision.confidence, expected["confidence"], rtol=1e-4, atol=1e-5)


def test_a_graph_decides_the_same_and_warns_that_its_weights_have_no_digest(tmp_path):
    with pytest.warns(UserWarning, match=r"model\.onnx' was exported by an earlier version.*Export it again"):
        model = OnnxModel(OLD / "model.onnx")
    expected = NUMBERS["graph"]
    decision = model(prepared(20))
    assert decision.label.tolist() == expected["label"]
    assert decision.accepted.tolist() == expected["accepted"]
    np.testing.assert_allclose(decision.confidence, expected["confidence"], rtol=1e-4, atol=1e-5)
    assert model.explain(prepared(20))[1] is None
    assert model.calibration is None
    changed = (OLD / "model.onnx").read_bytes().replace(b'"feasible": true', b'"feasible": 1234')
    (tmp_path / "m.onnx").write_bytes(changed)
    with pytest.raises(sirc.StoreError, match="shows a later change"):
        OnnxModel(tmp_path / "m.onnx")


def test_a_run_is_read_with_its_results(study, command):
    code, out, err = command("table", "runs/tiny", "--format", "csv")
    assert code == 0, err
    assert out == Path("runs/tiny/table.csv").read_text(encoding="utf-8") + "\n"
    scorer = sirc.Scorer.load("runs/tiny/seed-1/scorer.safetensors")
    for name, expected in NUMBERS["study"].items():
        assert_same(scorer(sirc.OutputStore(f"runs/tiny/seed-1/outputs/{name}").load()), expected)

    code, out, err = command("report", "runs/tiny", "--quiet")
    assert (code, err) == (0, "")
    (model,) = read_page("runs/tiny/report.html")["models"]
    assert [score["spec"] for score in model["scores"]] == ["msp", "sirc(msp, residual)", "mahalanobis", "tempered_msp"]
    assert (model["sets"], [run["seed"] for run in model["runs"]]) == (["Grey", "Noise"], [1])


def test_the_outputs_of_a_run_are_evaluated_to_its_results(study, command):
    stores = Path("runs/tiny/seed-1/outputs")
    sets = [word for name in ("Grey", "Noise") for word in ("--ood", f"{name}={stores / name}")]
    own = ["--train", stores / "train", "--id", stores / "test", "--val", stores / "validation"]
    head = ["--head", "runs/tiny/seed-1/head.safetensors", "--crossfit", "3"]
    specs = [word for spec in ("msp", "mahalanobis", "tempered_msp") for word in ("--score", spec)]
    code, _, err = command("evaluate", *own, *sets, *head, *specs, "--no-figures", "--quiet")
    assert code == 0, err
    old = pd.read_csv("runs/tiny/results.csv").set_index(KEYS)["value"]
    new = pd.read_csv("sirc-results/results.csv").set_index(KEYS)["value"]
    new = new[new.index.isin(old.index)]  # without metrics that came later
    assert len(new) > 50
    np.testing.assert_allclose(new, old[new.index], rtol=1e-9)


@pytest.mark.parametrize("images", [True, False], ids=["with its images", "without them"])
@pytest.mark.slow
def test_nothing_of_a_finished_run_is_made_anew(study, command, images):
    if not images:
        shutil.rmtree("data")
    run = Path("runs/tiny/seed-1")
    before, made = contents("runs"), times(run)
    code, out, err = command("run", "tiny.toml", "--no-figures", "--device", "cpu")
    assert code == 0, err
    assert ("stored outputs are used, and cannot be compared with their images" in err) != images
    assert times(run) == made
    after = contents("runs")
    assert out.splitlines()[-1] == "open runs/tiny/report.html"
    del after[Path("runs/tiny/report.html")]  # the page alone was not kept
    for files in (before, after):  # lists may be laid out in another way
        files[Path("runs/tiny/experiment.toml")] = tomllib.loads(files[Path("runs/tiny/experiment.toml")].decode())
    assert after == before
