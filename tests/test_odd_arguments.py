"""Wrong types and values for every public function: a worded `ValueError`, or an answer; nothing breaks deep inside."""

import inspect
import warnings
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import sirc
from sirc import deploy, functional, threshold
from sirc.cli import app
from sirc.data import Glyphs, Noise, Preprocess, Source, benchmark, file_list, image_folder, open_source
from sirc.deploy.onnx import OnnxGraph
from sirc.deploy.serve import make_app
from sirc.experiment import Experiment
from sirc.report.figures import figures
from sirc.report.tables import table

ODD = {
    "None": None,
    "text": "nonsense",
    "empty text": "",
    "bytes": b"x",
    "zero": 0,
    "negative": -3,
    "huge": 10**30,
    "nan": float("nan"),
    "infinity": float("inf"),
    "complex": 1 + 2j,
    "bool": True,
    "empty list": [],
    "list of None": [None, None],
    "list of text": ["a", "b"],
    "ragged": [[1.0, 2.0], [3.0]],
    "dict": {"a": 1},
    "empty dict": {},
    "dict of None": {"msp": None},
    "object": object(),
    "class": int,
    "function": len,
    "generator": range,
    "complex array": np.ones((4, 3), dtype=complex),
    "bool array": np.ones(4, dtype=bool),
    "object array": np.array([object(), None]),
    "text array": np.array(["a", "b"]),
    "dates": np.array(["2020-01-01"], dtype="datetime64[D]"),
    "scalar array": np.float32(1.5),
    "0-D tensor": torch.tensor(1.0),
    "empty tensor": torch.empty(0),
    "integers": torch.arange(6).reshape(2, 3),
    "3-D tensor": torch.zeros(2, 3, 4),
    "NaN tensor": torch.full((4, 3), torch.nan),
    "sparse": torch.eye(3).to_sparse(),
    "meta": torch.empty(4, 3, device="meta"),
    "path": Path("/nowhere/at/all"),
}


def _rows(seed=0, n=40, labels=True):
    make = torch.Generator().manual_seed(seed)
    features = torch.randn(n, 6, generator=make)
    logits = features[:, :3]
    return sirc.Outputs(logits, features, torch.randint(0, 3, (n,), generator=make) if labels else None)


ROWS, OTHER, OOD = _rows(), _rows(1), _rows(2, labels=False)
HEAD = sirc.Head(torch.eye(3, 6), torch.zeros(3))
SCORER = sirc.fit(["msp", "sirc(msp, residual)"], ROWS, head=HEAD)
CONFIDENCE, CORRECT, OUTSIDE = torch.linspace(0, 1, 50), torch.arange(50) % 3 > 0, torch.linspace(-1, 0.5, 20)
EVALUATION = sirc.evaluate({"msp": (CONFIDENCE, CORRECT)}, ood={"far": {"msp": OUTSIDE}})
RANKING = sirc.Ranking(CONFIDENCE[CORRECT], CONFIDENCE[~CORRECT], OUTSIDE)
torch.manual_seed(0)
MODEL = nn.Sequential(nn.Flatten(), nn.Linear(12, 6), nn.ReLU(), nn.Linear(6, 3)).eval()
IMAGES = torch.randn(4, 3, 2, 2)
Z, V = ROWS.features[:4], ROWS.logits[:4]
W, B = HEAD.weight, HEAD.bias
FORMULA_ARGUMENTS = {
    "logits": V, "features": Z, "weight": W, "bias": B, "mean": Z.mean(0), "means": Z[:3], "origin": Z.mean(0),
    "basis": torch.eye(6)[:, :2], "precision": torch.eye(6), "total_precision": torch.eye(6), "bank": ROWS.features,
    "clip": 1.0, "log_gap": V[:, 0], "s2": V[:, 1], "s1": V[:, 0], "a": 0.0, "b": 1.0, "c": 1.0, "s1_max": 1.0,
    "residual": -V[:, 0].abs(), "log_u": -V[:, 0].abs(), "log_g": V[:, 1], "name": "msp",
}  # fmt: skip


def _calls():
    """A valid call of every public function, as a function and its arguments by name."""
    yield "Outputs", sirc.Outputs, {"logits": V, "features": Z, "labels": [0, 1, 2, 0], "classes": [0, 1, 2]}
    yield "Outputs.of", sirc.Outputs.of, {"batch": (V, Z)}
    yield "Outputs.cat", sirc.Outputs.cat, {"parts": [ROWS, OTHER]}
    yield "Outputs.to", ROWS.to, {"device": "cpu", "dtype": torch.float64}
    yield "Outputs.batches", ROWS.batches, {"batch_size": 3}
    yield "Outputs.save", ROWS.save, {"path": "/dev/null/x.npz"}
    yield "Outputs.load", sirc.Outputs.load, {"path": "/nowhere/x.npz"}
    yield "OutputStore", sirc.OutputStore, {"path": "/nowhere/at/all"}
    yield "Head", sirc.Head, {"weight": W, "bias": B, "name": "fc"}
    yield "Head.to", HEAD.to, {"device": "cpu"}
    yield "fit", sirc.fit, {"specs": "sirc(msp, l1)", "train": ROWS, "head": HEAD, "crossfit": 0, "val": OTHER,
                            "ood": OOD, "unlabelled": None, "device": "cpu"}  # fmt: skip
    yield "Fitter", sirc.Fitter, {"specs": "msp", "head": HEAD, "crossfit": 0, "val": OTHER, "ood": None}
    yield "Fitter.update", lambda **k: sirc.Fitter("l1").update(**k), {"batch": ROWS, "index": torch.arange(40)}
    yield "Fitter.merge", lambda **k: sirc.Fitter("l1").merge(**k), {"other": sirc.Fitter("l1")}
    yield "Scorer", sirc.Scorer, {"specs": "msp", "parameters": {}, "num_classes": 3, "num_features": 6}
    yield "Scorer()", SCORER, {"outputs": ROWS, "compile": False}
    yield "Scorer.only", SCORER.only, {"specs": "msp"}
    yield "Scorer.seen", SCORER.seen, {"outputs": ROWS}
    yield "Scorer.load", sirc.Scorer.load, {"path": "/nowhere/x"}
    yield "Moments", sirc.Moments, {"second": True, "classes": 3}
    yield "Moments.update", lambda **k: sirc.Moments(classes=3).update(**k), {"rows": Z, "labels": [0, 1, 2, 0]}
    yield "Moments.merge", lambda **k: sirc.Moments().merge(**k), {"other": sirc.Moments()}
    yield "Ranking", sirc.Ranking, {"correct": CONFIDENCE, "wrong": OUTSIDE, "ood": OUTSIDE, "ood_weights": None}
    yield "Ranking.auroc", RANKING.auroc, {"negative": "ood"}
    yield "Ranking.fpr", RANKING.fpr, {"negative": "ood", "recall": 0.9}
    for name in ("aurr", "aurc", "risk_recall", "risk_coverage", "oracle_risk_coverage"):
        yield f"Ranking.{name}", getattr(RANKING, name), {"alpha": 0.5, "beta": 0.5}
    yield "Ranking.risk_at_recall", RANKING.risk_at_recall, {"recall": 0.9, "alpha": 0.5, "beta": 0.5}
    yield "SelectiveMetrics", sirc.SelectiveMetrics, {"alpha": 0.5, "beta": 0.5, "recall": 0.95}
    yield "evaluate", sirc.evaluate, {"scorer": SCORER, "test": ROWS, "ood": {"far": OOD}, "alpha": 0.5, "beta": 0.5,
                                      "scores": ["msp"], "groups": {"all": ["far"]}}  # fmt: skip
    yield "Evaluation", sirc.Evaluation, {"confidences": {"msp": CONFIDENCE}, "correct": CORRECT,
                                          "ood": {"far": {"msp": OUTSIDE}}, "alpha": 0.5, "beta": 0.5}  # fmt: skip
    yield "Evaluation.sweep", EVALUATION.sweep, {"alphas": [0.5], "betas": [0.5], "groups": ["far"]}
    yield "Evaluation.compare", EVALUATION.compare, {"baseline": "msp", "draws": 20, "seed": 0, "level": 0.9}
    yield "combine", sirc.combine, {"runs": [EVALUATION]}
    yield "select", sirc.select, {"scorer": SCORER, "val": ROWS, "ood": {"far": OOD}, "alpha": 0.5, "beta": 0.5,
                                  "metric": "aurr", "by": "worst", "draws": 20, "level": 0.9, "seed": 0}  # fmt: skip
    # What a model makes of an odd batch is its own affair.
    data = [(IMAGES, torch.tensor([0, 1, 2, 0]))]
    yield "extract", partial(sirc.extract, data=data), {"model": MODEL, "head": None, "batch_size": 2}
    yield "find_head", partial(sirc.find_head, example=IMAGES), {"model": MODEL, "name": None}
    wrapped = {"model": MODEL, "scorer": SCORER, "spec": "msp", "head": "3", "classes": ["a", "b", "c"]}
    yield "SelectiveClassifier", sirc.SelectiveClassifier, wrapped
    made = sirc.SelectiveClassifier(MODEL, SCORER, "msp", head="3")
    yield "calibrate", partial(made.calibrate, OTHER), {"recall": 0.9, "delta": None}
    by_cost = {"alpha": 0.5, "beta": 0.5, "reject_cost": 0.1}
    yield "calibrate by cost", partial(made.calibrate, OTHER, ood=OOD), by_cost
    guarded = {"model": MODEL, "recall": 0.5, "delta": None, "score": "msp", "head": None, "classes": None}
    guarded |= {"batch_size": 8, "progress": False, "path": None, "preprocess": None}
    yield "guard", partial(sirc.guard, train=ROWS, val=OTHER), guarded
    yield "load_guard", sirc.load_guard, {"path": "/nowhere/x", "model": MODEL}
    yield "calibration_of", deploy.calibration_of, {"path": "/nowhere/x"}
    yield "predict_folder", deploy.predict_folder, {"classifier": made, "folder": "/nowhere", "path": "/nowhere/x.csv"}
    graph = "/nowhere/x.onnx"
    yield "OnnxGraph", OnnxGraph, {"path": graph, "threads": 0}
    yield "write_triton", deploy.write_triton, {"graph": graph, "folder": "/dev/null/x", "max_batch_size": 8}
    served = {"onnx_path": graph, "state": "/nowhere/state", "log": "/nowhere/log.parquet", "threads": 0}
    yield "make_app", make_app, {**served, "max_bytes": 99, "answer_seconds": 1.0}
    yield "DecideImages", partial(deploy.DecideImages, graph), {"column": "bytes", "keep": ["path"]}
    yield "DecideImages()", deploy.DecideImages(graph), {"batch": {"bytes": [b"x"]}}
    yield "ScoreOutputs", deploy.ScoreOutputs, {"scorer": SCORER}
    yield "ScoreOutputs()", deploy.ScoreOutputs(SCORER), {"batch": {"logits": V, "features": Z}}
    yield "set_threshold", made.set_threshold, {"value": 0.5}
    yield "at_recall", threshold.at_recall, {"confidence": CONFIDENCE, "correct": CORRECT, "recall": 0.9, "delta": 0.1}
    yield "at_coverage", threshold.at_coverage, {"confidence": CONFIDENCE, "coverage": 0.9, "delta": 0.1}
    yield "at_risk", threshold.at_risk, {"confidence": CONFIDENCE, "correct": CORRECT, "risk": 0.5, "delta": 0.1}
    costs = {"confidence": CONFIDENCE, "correct": CORRECT, "alpha": 0.5, "beta": 0.5, "reject_cost": 0.1}
    yield "at_cost", partial(threshold.at_cost, ood=OUTSIDE), costs
    yield "monitor", sirc.monitor.monitor, {"calibration": CONFIDENCE, "production": OUTSIDE, "threshold": 0.5,
                                            "delta": 0.1}  # fmt: skip
    yield "Monitor.update", lambda **k: sirc.monitor.Monitor(CONFIDENCE, 0.5).update(**k), {"confidences": OUTSIDE}
    yield "Noise", Noise, {"count": 3, "seed": 0, "size": 8}
    yield "Glyphs", Glyphs, {"what": "letters", "split": "test", "count": 3, "seed": 0}
    yield "Preprocess", Preprocess, {"resize": 8, "crop": 8, "mean": (0.5,) * 3, "std": (0.5,) * 3}
    yield "image_folder", image_folder, {"path": "/nowhere"}
    yield "file_list", file_list, {"path": "/nowhere", "root": "/nowhere"}
    yield "models.build", sirc.models.build, {"name": "resnet18", "num_classes": 3}
    yield "score", sirc.score, {"needs": "logits"}
    yield "product", lambda s: functional.product(s, V[:, 0]), {"s": V[:, 1]}
    for name in functional.__all__:
        if name != "product":
            parameters = inspect.signature(getattr(functional, name)).parameters.values()
            given = {p.name: FORMULA_ARGUMENTS.get(p.name, p.default) for p in parameters}
            yield f"functional.{name}", getattr(functional, name), given


CALLS = {name: (function, arguments) for name, function, arguments in _calls()}


@pytest.mark.parametrize("name", CALLS)
def test_odd_arguments_are_refused_in_words(name, attack):
    function, valid = CALLS[name]
    broken = []
    for argument in valid:
        for kind, odd in ODD.items():
            if argument == "compile" and odd is True:
                continue  # takes seconds, and is right
            try:
                with warnings.catch_warnings(action="ignore"):
                    function(**{**valid, argument: odd})
            except (ValueError, OSError, ImportError) as error:
                words = str(error)
                if len(words) < 20 or len(words) > 1500:
                    broken.append(f"{argument}={kind}: {words[:80]!r}")
            except Exception as error:
                broken.append(f"{argument}={kind}: {type(error).__name__}: {str(error)[:80]}")
    assert not broken, "\n".join(broken)
    attack.tried("odd arguments to public functions", len(valid) * len(ODD), "an answer, or words")


LONG = "x" * 9000
DEMO = Path(sirc.__file__).parent / "experiment" / "demo" / "glyphs_resnet.toml"
QUOTING = {
    "select": lambda: sirc.select(SCORER, ROWS, {"far": OOD}, metric=LONG),
    "pool": lambda: sirc.evaluate(SCORER, ROWS, ood={"far": OOD}, pool=LONG),
    "a member of a group": lambda: sirc.evaluate(SCORER, ROWS, ood={"far": OOD}, groups={"all": [LONG]}),
    "a group": lambda: sirc.evaluate(SCORER, ROWS, ood={"far": OOD}, groups={LONG: ["near"]}),
    "an OOD set": lambda: sirc.evaluate({"msp": (CONFIDENCE, CORRECT)}, ood={LONG: {"l1": OUTSIDE}}),
    "a score": lambda: sirc.evaluate({LONG: (CONFIDENCE, CORRECT)}, ood={"far": {"msp": OUTSIDE}}),
    "alpha": lambda: sirc.evaluate(SCORER, ROWS, ood={"far": OOD}, alpha=[0.1] * 5000),
    "method": lambda: EVALUATION.intervals(method=LONG),
    "negatives": lambda: EVALUATION.compare("msp", negatives=[LONG]),
    "baseline": lambda: EVALUATION.compare(LONG),
    "ranking": lambda: EVALUATION.ranking("msp", LONG),
    "metrics of a table": lambda: table(EVALUATION.table, metrics=[LONG]),
    "scores of a table": lambda: table(EVALUATION.table, scores=[LONG]),
    "page": lambda: EVALUATION.report(LONG),
    "specs": lambda: sirc.fit(LONG, ROWS),
    "crossfit": lambda: sirc.fit("l1", ROWS, crossfit=LONG),
    "device": lambda: ROWS.to(LONG),
    "labels": lambda: sirc.Outputs(V, labels=[LONG] * 4, classes=["a", "b", "c"]),
    "head": lambda: sirc.find_head(MODEL, IMAGES, name=LONG),
    "model": lambda: sirc.models.build(LONG),
    "model of timm": lambda: sirc.models.build(f"timm:{LONG}"),
    "model of torchvision": lambda: sirc.models.build(f"torchvision:{LONG}"),
    "function": lambda: sirc.models.build(f"sirc.models:{LONG}"),
    "module": lambda: sirc.models.build(f"{LONG}:build"),
    "benchmark": lambda: benchmark(LONG),
    "b of sirc": lambda: functional.sirc(torch.zeros(3), torch.zeros(3), a=[0.0] * 3000, b=[1.0] * 3000),
    "needs": lambda: sirc.score(needs=LONG)(lambda logits: logits),
    "scorer": lambda: sirc.Scorer.load(LONG),
    "store": lambda: sirc.OutputStore(LONG),
    "outputs": lambda: sirc.Outputs.load(f"{LONG}.npz"),
    "outputs to save": lambda: ROWS.save(f"{LONG}.npz"),
    "folder": lambda: image_folder(LONG),
    "guard": lambda: sirc.load_guard(LONG, MODEL),
    "scores to choose from": lambda: sirc.select({LONG: (CONFIDENCE, CORRECT)}),
    "columns of a table": lambda: table(EVALUATION.table.rename(columns={"value": LONG})),
    "columns of a run": lambda: sirc.combine([EVALUATION.table.rename(columns={"value": LONG})]),
    "formats": lambda: figures([], "figures", formats=[LONG]),
    "a stored threshold": lambda: threshold.Threshold.from_dict({LONG: 1}),
    "options": lambda: open_source(Source("sirc.data.glyphs:letters", options={LONG: 1}), root=Path(), preprocess=None),
    "a key to set": lambda: Experiment.read(DEMO, [f"train.{LONG}=1"]),
    "a value to set": lambda: Experiment.read(DEMO, [f"train.epochs={LONG}"]),
    "no setting": lambda: Experiment.read(DEMO, [LONG]),
    "seeds": lambda: Experiment.read(DEMO, [f"seeds={[1] * 3000}"]),
}


@pytest.mark.parametrize("what", QUOTING)
def test_a_message_quotes_little_of_what_it_got(what):
    with pytest.raises(ValueError) as error:  # noqa: PT011
        QUOTING[what]()
    assert "x" * 81 not in str(error.value)
    assert len(str(error.value)) < 700


def test_a_command_quotes_little_of_what_it_got():
    done = CliRunner().invoke(app, ["table", "x" * 3000])
    assert done.exit_code == 1
    assert len(done.stderr) < 200
