"""The way from a run to a service on the command line, mistakes answered in words; and the lines of the tutorial."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import onnxruntime
import pandas as pd
import pytest
import torch
from PIL import Image
from torch.distributed.run import parse_args

import sirc
from sirc import SelectiveClassifier
from sirc.cli import main
from sirc.cli.production import read_log
from sirc.errors import StoreError
from sirc.experiment.choice import keep_choice, outputs_to_choose
from sirc.experiment.experiment import Experiment
from sirc.experiment.stages import check_outputs, extract_run, fit_run, train_run
from support.interpreters import Interpreter, launched

PAGE = Path(__file__).parents[2] / "docs" / "deploy.md"

MODEL = """
from torch import nn

def small(num_classes=3):
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, num_classes)
    )
"""

TOML = """
name = "tiny"
seeds = [1, 2]
out = "runs"

[model]
name = "deployed_model:small"
num_classes = 3

[preprocess]
resize = 12
crop = 12

[data]
root = "data"
train = { dataset = "folder", path = "images" }
test = { dataset = "folder", path = "held-out" }
validation = { dataset = "folder", path = "labelled" }

[train]
epochs = 6
batch_size = 10
lr = 0.05
milestones = [5]
workers = 0
augment = { crop = "none" }

[extract]
batch_size = 64
workers = 0

[fit]
specs = ["msp", "sirc(msp, residual)", "l1"]
"""


def write_images(root, count, seed):
    """Three classes of colour, some hard to tell."""
    random = np.random.default_rng(seed)
    for number in range(count):
        pixels = random.integers(0, 150, (16, 16, 3))
        pixels[..., number % 3] += random.integers(0, 70)
        folder = root / "rgb"[number % 3]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{number:03}.png")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with a finished run of two seeds."""
    root = tmp_path_factory.mktemp("deploy")
    write_images(root / "data" / "images", 90, seed=0)
    write_images(root / "data" / "labelled", 120, seed=1)
    write_images(root / "data" / "held-out", 30, seed=2)
    (root / "deployed_model.py").write_text(MODEL, encoding="utf-8")
    (root / "tiny.toml").write_text(TOML, encoding="utf-8")
    before = os.getcwd()
    os.chdir(root)
    try:
        study = Experiment.read("tiny.toml")
        for run in study.runs:
            train_run(study, run, cpu=True)
            extract_run(study, run, ["train", "test"])
            fit_run(study, run)
        study.save()
    finally:
        os.chdir(before)
    return root


@pytest.fixture
def here(made, tmp_path, monkeypatch):
    """A copy of it, as the current folder."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path


@pytest.mark.slow
def test_the_whole_way(here, command):
    code, out, err = command("calibrate", "runs/tiny", "--seed", 1, "--recall", 0.9)
    assert code == 0, err
    assert out.startswith("sirc(msp, residual)\nAccept where confidence ≥ ")
    assert "at least 90% of future ID✓" in out.replace("\n            ", "")
    assert out.endswith("\nselective.safetensors\n")
    assert "seed-1, validation: 120/120 images" in err
    study = Experiment.read("tiny.toml")
    store = sirc.OutputStore(study.run(1).store("validation"))
    assert len(store) == 120

    code, out, err = command("export", "runs/tiny", "--model", "selective.safetensors", "--out", "model.onnx")
    assert code == 0, err
    assert re.fullmatch(r"model\.onnx  [\d.]+ MiB, images \(n, 3, 12, 12\)\n", out)
    session = onnxruntime.InferenceSession("model.onnx", providers=["CPUExecutionProvider"])
    facts = json.loads(session.get_modelmeta().custom_metadata_map["sirc"])
    assert facts["classes"] == ["b", "g", "r"]
    assert facts["preprocess"]["crop"] == 12

    Path("data/held-out/b/broken.png").write_text("no image", encoding="utf-8")
    code, out, err = command("predict", "data/held-out", "--model", "selective.safetensors", "--run", "runs/tiny")
    assert code == 0, err
    table = pd.read_csv("decisions.csv", keep_default_na=False)
    accepted = int(table["accepted"].sum())
    assert out.splitlines()[0] == f"accepted {accepted} of 31, 1 unreadable"
    assert out.splitlines()[-1] == "decisions.csv"
    assert list(table["path"]) == sorted(table["path"])
    good = table[table["error"] == ""]
    test = sirc.OutputStore(study.run(1).store("test")).load()
    wanted = sirc.Scorer.load(study.run(1).scorer)(test)["sirc(msp, residual)"]
    np.testing.assert_allclose(good["confidence"].astype(float), wanted, atol=1e-4)
    assert list(good["label"].astype(int)) == test.predictions.tolist()
    threshold = facts["threshold"]["value"]
    assert list(good["accepted"]) == (good["confidence"].astype(float) >= threshold).tolist()

    code, out, err = command("predict", "data/held-out", "--onnx", "model.onnx", "--out", "graph.csv", "--quiet")
    assert (code, err) == (0, "")
    other = pd.read_csv("graph.csv", keep_default_na=False)
    assert list(other["accepted"]) == list(table["accepted"])
    assert list(other["reason"]) == list(table["reason"])

    arguments = ("--calibration", "selective.safetensors", "--confidences", "decisions.csv")
    code, out, err = command("monitor", *arguments)
    assert code == 0
    assert out.startswith("No alarm")
    assert "30 production inputs against 120 calibration rows" in out
    assert err.splitlines() == [
        "note: 1 rows without a confidence were left out",
        "note: rows of `sirc predict` are sorted by path, not by time: they are used in a random order",
    ]
    code, out, _ = command("monitor", *arguments, "--json")
    told = json.loads(out)
    assert told["alarm"] is False
    assert told["sizes"] == {"calibration": 120, "production": 30}
    assert told["rate"] == pytest.approx(accepted / 30)


@pytest.mark.slow
def test_the_alarm_is_told_and_can_fail(here, command):
    assert command("calibrate", "runs/tiny/seed-2", "--coverage", 0.8)[0] == 0
    saved = SelectiveClassifier.load("selective.safetensors", _network(2))
    low = np.full(200, saved.threshold.value - 1)
    np.save("low.npy", low)
    np.savez("low.npz", scores=low)
    Path("low.csv").write_text(
        "time,score\n" + "\n".join(f"{i},{value}" for i, value in enumerate(low)), encoding="utf-8"
    )
    for arguments in (("low.npy",), ("low.npz", "--column", "scores"), ("low.csv", "--column", "score")):
        call = ("monitor", "--calibration", "selective.safetensors", "--confidences", *arguments)
        code, out, _ = command(*call)
        assert code == 0
        assert out.startswith("ALARM at input")
        assert command(*call, "--fail-on-alarm")[0] == 1


def _network(seed):
    from sirc.experiment import network

    study = Experiment.read("tiny.toml")
    return network(study, study.run(seed))


@pytest.mark.slow
def test_promises_and_scores_are_chosen(here, command):
    calls = {
        "recall": ("--recall", 0.9, "--score", "msp"),
        "coverage": ("--coverage", 0.5, "--score", "sirc( msp , residual )"),
        "risk": ("--risk", 0.3, "--delta", 0.1),
    }
    for rule, options in calls.items():
        code, _, err = command("calibrate", "runs/tiny", "--seed", 1, *options, "--out", f"{rule}.safetensors")
        assert code == 0, err
        saved = SelectiveClassifier.load(f"{rule}.safetensors", _network(1))
        assert saved.threshold.rule == rule
        assert saved.threshold.target == options[1]
        assert saved.threshold.delta == (0.1 if rule == "risk" else 0.05)
        assert saved.spec == ("msp" if rule == "recall" else "sirc(msp, residual)")
    code, out, _ = command("calibrate", "runs/tiny", "--seed", 1, "--plain", "--out", "plain.safetensors")
    assert code == 0
    assert "None, an estimate" in out
    assert "With δ = 0.05 it would be a promise" in out
    assert SelectiveClassifier.load("plain.safetensors", _network(1)).threshold.delta is None


@pytest.mark.slow
def test_a_threshold_is_written_whatever_the_encoding_of_the_terminal(here, command_in):
    code, out, err = command_in("ascii", "calibrate", "runs/tiny", "--seed", 1, "--score", "msp", "--recall", 0.9)
    assert code == 0, err
    assert "of future ID?" in out.replace("\n            ", "")
    assert Path("selective.safetensors").is_file()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no full device")
def test_a_threshold_is_written_though_nobody_reads_what_it_promises(here, monkeypatch, capsys):
    with open("/dev/full", "w", encoding="utf-8") as full:
        monkeypatch.setattr(sys, "stdout", full)
        with pytest.raises(SystemExit) as stop:
            main(["calibrate", "runs/tiny", "--seed", "1", "--score", "msp", "--recall", "0.9"])
        with suppress(OSError):
            full.close()
    assert stop.value.code == 1
    assert "error: [Errno 28] the result cannot be printed: No space left on device" in capsys.readouterr().err
    assert Path("selective.safetensors").is_file()


@pytest.mark.slow
def test_a_folder_sorted_by_class_raises_no_alarm(here, command):
    """Of the same images, class after class, some classes are accepted more often than others."""
    rng = np.random.default_rng(0)
    accepted = np.concatenate([np.ones(240, dtype=bool), rng.random(80) < 0.7])
    selective = SelectiveClassifier(torch.nn.Linear(4, 3), sirc.Scorer("msp"), "msp")
    selective.calibrate(_outputs_like(accepted), coverage=float(accepted.mean()))
    selective.save("sorted.safetensors")
    confidence = selective.calibration.numpy()
    table = pd.DataFrame({"path": [f"{i:04}.png" for i in range(320)], "accepted": accepted, "confidence": confidence})
    call = ("monitor", "--calibration", "sorted.safetensors", "--confidences")
    table.to_csv("by-time.csv", index=False)
    assert command(*call, "by-time.csv")[1].startswith("ALARM")
    spaced = table.astype(str).assign(confidence=[f" {value} " for value in confidence])
    pd.concat([spaced, spaced[:1].assign(confidence="  ")]).to_csv("spaced.csv", index=False)  # as people leave tables
    code, out, err = command(*call, "spaced.csv")
    assert (code, "1 rows without a confidence" in err) == (0, True), err
    table.assign(label=0, reason="", error="").to_csv("decisions.csv", index=False)
    code, out, err = command(*call, "decisions.csv")
    assert code == 0, err
    assert out.startswith("No alarm")
    assert "sorted by path, not by time: they are used in a random order" in err


def _outputs_like(accepted):
    """Outputs whose confidences are high where these are true."""
    size = torch.from_numpy(np.where(accepted, 6.0, 1.0)) + torch.linspace(0, 0.5, len(accepted))
    logits = torch.stack([size, -size, -size], 1)
    return sirc.Outputs(logits, labels=logits.argmax(1))


@pytest.mark.slow
def test_processes_share_the_images_and_write_one_file_in_their_order(here, command):
    assert command("calibrate", "runs/tiny", "--seed", 1, "--recall", 0.9, "--quiet")[0] == 0
    arguments = ["predict", "data/images", "--model", "selective.safetensors", "--run", "runs/tiny", "--seed", "1"]
    code, out, err = command(*arguments, "--batch-size", 4, "--out", "one.csv", "--quiet")
    assert code == 0, err
    first, second = launched(2, "-m", "sirc", *arguments, "--batch-size", 4, "--out", "two.csv")
    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    assert first.stdout + second.stdout == out.replace("one.csv", "two.csv")  # said once
    assert "predict, process 1 of 2: 46/46 images" in first.stderr  # of 90, in batches of 4
    assert Path("two.csv").read_bytes() == Path("one.csv").read_bytes()
    assert not list(here.glob(".*"))
    # Torchrun hands them over; without the `--` it takes `--run` for a short form of its own `--run-path`.
    given = parse_args(["--standalone", "--nproc-per-node", "2", "-m", "--", "sirc", *arguments])
    assert (given.training_script, given.training_script_args) == ("sirc", arguments)


@pytest.mark.slow
def test_processes_that_calibrate_write_one_file_and_say_so_once(here, command):
    arguments = ["calibrate", "runs/tiny", "--seed", 1, "--recall", 0.9, "--quiet", "--out"]
    code, out, err = command(*arguments, "one.safetensors")
    assert code == 0, err
    first, second = launched(2, "-m", "sirc", *arguments, "two.safetensors")
    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    assert first.stdout + second.stdout == out.replace("one.safetensors", "two.safetensors")
    assert Path("two.safetensors").read_bytes() == Path("one.safetensors").read_bytes()


@pytest.mark.slow
def test_the_network_of_a_saved_classifier_is_found_among_the_seeds(here, command):
    assert command("calibrate", "runs/tiny", "--seed", 2, "--recall", 0.9)[0] == 0
    photos = ("data/held-out", "--model", "selective.safetensors", "--run")
    assert command("predict", *photos, "runs/tiny", "--out", "a.csv")[0] == 0
    assert command("predict", *photos, "runs/tiny/seed-2", "--out", "b.csv")[0] == 0
    assert Path("a.csv").read_text(encoding="utf-8") == Path("b.csv").read_text(encoding="utf-8")
    code, _, err = command("predict", *photos, "runs/tiny", "--seed", 1, "--out", "c.csv")
    assert code == 1
    assert "another model" in err


@pytest.mark.slow
def test_given_outputs_or_at_worst_the_test_images_set_the_threshold(here, command):
    study = Experiment.read("tiny.toml")
    run = study.run(1)
    call = ("calibrate", "runs/tiny", "--seed", 1, "--coverage", 0.5, "--plain", "--overwrite")
    outputs = sirc.OutputStore(run.store("test")).load()
    outputs.save("val.npz")
    for val in ("val.npz", run.store("test")):
        code, _, err = command(*call, "--val", val)
        assert code == 0, err
        saved = SelectiveClassifier.load("selective.safetensors", _network(1))
        wanted = sirc.Scorer.load(run.scorer)(outputs)["sirc(msp, residual)"]
        torch.testing.assert_close(saved.calibration, wanted.double().cpu())
    code, _, err = command(*call, "--val", study.run(2).store("test"))
    assert code == 1
    assert "is a store from another model" in err
    sirc.Outputs(outputs.logits, outputs.features).save("unlabelled.npz")
    assert command(*call, "--val", "unlabelled.npz")[0] == 0  # a coverage needs no labels, a recall does
    by_recall = ("calibrate", "runs/tiny", "--seed", 1, "--recall", 0.5, "--plain", "--overwrite")
    code, _, err = command(*by_recall, "--val", "unlabelled.npz")
    assert code == 1
    assert "labels" in err
    text = Path("runs/tiny/experiment.toml").read_text(encoding="utf-8")
    Path("runs/tiny/experiment.toml").write_text(re.sub(r"\[data\.validation\]\n(.+\n)+", "", text), encoding="utf-8")
    code, _, err = command(*call, "--trust")  # as the file is not the one that was made here
    assert code == 0, err
    assert "are then optimistic" in err
    torch.testing.assert_close(SelectiveClassifier.load("selective.safetensors", _network(1)).calibration, wanted.cpu())


@pytest.mark.slow
def test_an_image_that_cannot_be_read_is_skipped_where_one_says_so(here, command):
    Path("data/labelled/r/000.png").write_bytes(b"no image")
    call = ("calibrate", "runs/tiny", "--seed", 1, "--recall", 0.9)
    code, _, err = command(*call)
    assert code == 1
    assert "skip, count and name such images: `--on-error skip`." in err
    assert "`sirc data check NAME PATH --decode` finds all such files" in err
    assert command(*call, "--on-error", "skip")[0] == 0
    assert len(sirc.OutputStore("runs/tiny/seed-1/outputs/validation")) == 119


@pytest.mark.slow
def test_without_the_training_images_only_the_names_are_missing(here, command):
    assert command("extract", "tiny.toml", "--only", "validation")[0] == 0
    shutil.rmtree("data")
    code, _, err = command("calibrate", "runs/tiny", "--seed", 1, "--recall", 0.9)
    assert code == 0, err
    assert "without names of classes" in err
    assert '`data.root = "…"` or `data.train.path = "…"` in the TOML' in err
    assert SelectiveClassifier.load("selective.safetensors", _network(1)).classes is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["calibrate", "runs/tiny"], 2, "say which with `--seed 1`"),
        (["calibrate", "runs/tiny", "--seed", "7"], 2, "`--seed` must be one of the experiment's seeds (1, 2); got 7"),
        (["calibrate", "runs"], 1, "has no experiment.toml"),
        (["calibrate", "none"], 1, "there is no folder"),
        (["calibrate", "runs/tiny/seed-1", "--recall", "0.9", "--risk", "0.1"], 2, "give one of"),
        (["calibrate", "runs/tiny/seed-1", "--recall", "1.5"], 2, "`--recall` must lie between 0 and 1"),
        (["calibrate", "runs/tiny/seed-1", "--delta", "0"], 2, "`--delta` must lie between 0 and 1"),
        (["calibrate", "runs/tiny/seed-1", "--risk", "0.1", "--plain"], 2, "`--plain` is not for"),
        (
            ["calibrate", "runs/tiny/seed-1", "--score", "energy"],
            2,
            "must be one of the run's: msp; sirc(msp, residual)",
        ),
        (["calibrate", "runs/tiny/seed-1", "--score", "mps"], 2, "msp"),
        (["calibrate", "runs/tiny/seed-1", "--val", "none.npz"], 1, "there is no file or store 'none.npz'"),
        (["calibrate", "runs/tiny/seed-1", "--out", "tiny.toml"], 1, "Pass `--overwrite`"),
        (["calibrate", "runs/tiny/seed-1", "--recall", "0.999"], 1, "Label more rows"),
        (["calibrate", "runs/tiny/seed-1", "--val", "runs/tiny/seed-1/outputs/train"], 1, "may not set a threshold"),
        (["export", "runs/tiny", "--model", "none"], 1, "there is no file 'none'"),
        (["export", "runs/tiny", "--model", "tiny.toml"], 1, "not a whole safetensors file"),
        (["export", "runs/tiny", "--model", "runs/tiny/seed-1/scorer.safetensors"], 1, "not a saved selective"),
        (["export", "runs/tiny"], 2, "--model"),
        (["predict", "data"], 2, "give either"),
        (["predict", "data", "--onnx", "m", "--model", "m"], 2, "give either"),
        (["predict", "data", "--model", "m"], 2, "give either"),
        (["predict", "data", "--onnx", "none.onnx"], 1, "there is no file 'none.onnx'"),
        (["predict", "data", "--onnx", "tiny.toml"], 1, "must be an ONNX graph"),
        (["serve", "none.onnx"], 1, "there is no file 'none.onnx'"),
        (["serve", "tiny.toml"], 1, "must be an ONNX graph"),
        (["serve", "tiny.toml", "--port", "70000"], 2, "65535"),
        (["monitor", "--calibration", "none", "--confidences", "x.csv"], 1, "there is no file 'none'"),
    ],
)
def test_nonsense_is_answered_in_words(here, command, arguments, code, words):
    got, out, err = command(*arguments)
    assert (got, out) == (code, ""), err
    assert words in err
    assert "Traceback" not in err
    assert not Path("selective.safetensors").exists()


def test_a_promise_that_cannot_be_kept_writes_nothing(here, command):
    store = Path("runs/tiny/seed-1/outputs/test")
    outputs = sirc.OutputStore(store).load()
    labels = (outputs.predictions + 1) % 3  # all wrong
    sirc.Outputs(*(torch.cat([part] * 10) for part in (outputs.logits, outputs.features, labels))).save("wrong.npz")
    code, out, err = command("calibrate", "runs/tiny/seed-1", "--val", "wrong.npz", "--risk", 0.1)
    assert code == 1
    assert out.startswith("sirc(msp, residual)\nInfeasible")
    assert "nothing was written" in err
    assert not Path("selective.safetensors").exists()


@pytest.mark.slow
def test_confidences_that_are_none_are_refused(here, command):
    assert command("calibrate", "runs/tiny/seed-1", "--recall", 0.9)[0] == 0
    call = ("monitor", "--calibration", "selective.safetensors", "--confidences")
    Path("words.csv").write_text("confidence\n1.5\nhigh\n", encoding="utf-8")
    Path("other.csv").write_text("score\n1.5\n", encoding="utf-8")
    Path("empty.csv").touch()
    Path("no.txt").touch()
    Path("junk.npz").write_text("junk", encoding="utf-8")
    np.savez("named.npz", scores=np.ones(3))
    np.save("objects.npy", np.array([{}]), allow_pickle=True)
    np.save("two.npy", np.zeros((3, 2)))
    np.save("nan.npy", np.array([1.0, np.nan]))
    np.save("complex.npy", np.array([1.0 + 2j]))
    np.save("flags.npy", np.array([True, False]))
    for name, code, words in (
        (
            "words.csv",
            1,
            "must hold plain numbers, those of `--column confidence`: could not convert string to float: 'high'",
        ),
        ("other.csv", 2, "`--column` must be one of 'other.csv', score; got 'confidence'"),
        ("empty.csv", 1, "No columns to parse"),
        ("no.txt", 2, "must be a .parquet, .csv, .npy or .npz file"),
        ("none.csv", 1, "there is no file"),
        ("objects.npy", 1, "plain numbers"),
        ("two.npy", 1, "production"),
        ("complex.npy", 1, "it holds complex128"),
        ("flags.npy", 1, "it holds bool"),
        ("nan.npy", 1, "NaN"),
        ("named.npz", 2, "`--column` must be an array of 'named.npz', `scores`; got 'confidence'"),
        ("junk.npz", 1, "error: 'junk.npz' cannot be trusted: not a whole .npz file"),
    ):
        got, out, err = command(*call, name)
        assert (got, out) == (code, ""), name
        assert words in err, err
        assert err.count(name) <= 1
    assert command(*call, "words.csv", "--delta", "2")[0] == 2
    Path("commas.csv").write_text("confidence,time\n0.1,7,\n0.2,8,\n", encoding="utf-8")
    assert read_log(Path("commas.csv"), "confidence").values.tolist() == [0.1, 0.2]


@pytest.mark.parametrize("name", ["calibrate", "predict", "export", "serve", "monitor"])
def test_help_has_an_example(name, command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    code, out, _ = command(name, "--help")
    assert code == 0
    assert f"Example: sirc {name} " in " ".join(out.split())


@pytest.mark.slow
@pytest.mark.usefixtures("few_figures")
def test_every_line_of_the_tutorial_runs(tmp_path, monkeypatch, command):
    """The Python blocks make the files; the lines of the shell run as they stand, but for the port."""
    monkeypatch.chdir(tmp_path)
    port, server, ran = "0", None, []  # 0: the system chooses a free one
    blocks = re.findall(r"^```(python|sh)\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    namespace = {"__name__": "docs"}
    # Only what the shell's lines need: the others run in test_docs.
    scripts = [text for kind, text in blocks if kind == "python"]
    exec(compile(scripts[0].partition("torch.manual_seed")[0], str(PAGE), "exec"), namespace)
    exec(compile(scripts[-1], str(PAGE), "exec"), namespace)
    try:
        for line in "".join(text for kind, text in blocks if kind == "sh").splitlines():
            program, *arguments = shlex.split(line.replace("8000", port))
            ran.append((program, arguments[0]))
            if arguments[0] == "serve":
                server = Interpreter("-m", program, *arguments)
                address, port = server.first_line().rsplit(":", 1)  # it listens already
                assert address == "serving colours.onnx on http://127.0.0.1"
            elif program == "sirc":
                code, _, err = command(*arguments)
                assert code == 0, f"{line}: {err}"
            elif program == "curl":
                _curl(arguments, line)
            else:
                pytest.fail(f"what is `{line}`?")
    finally:
        if server is not None:
            server.process.terminate()
            server.end(120)
    assert {("sirc", name) for name in ("run", "calibrate", "export", "predict", "monitor", "serve")} <= set(ran)
    table, by_graph = (pd.read_csv(name, keep_default_na=False) for name in ("colours.csv", "colours-by-graph.csv"))
    assert list(table["accepted"]) == list(by_graph["accepted"])


def _curl(arguments, line):
    if shutil.which("curl") is None:
        return
    done = subprocess.run(["curl", "-sS", "--fail", *arguments], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, f"{line}: {done.stderr}"
    if "predict" in line:
        rows = json.loads(done.stdout)["decisions"]
        assert len(rows) == max(1, line.count("-F"))
        assert {row["class"] for row in rows} <= {"red", "green", "blue"}
    elif "monitor" in line:
        assert json.loads(done.stdout)["report"]["sizes"]["production"] == 3
    else:
        assert ("sirc_accepted_total" in done.stdout) or (json.loads(done.stdout) == {"ready": True})


def confidences(run, spec, rows=None):
    store = sirc.OutputStore(run.store("validation"))
    values = sirc.Scorer.load(run.scorer)(store.load())[spec].double().cpu()
    return values if rows is None else values[rows]


@pytest.mark.slow
def test_the_images_that_choose_the_score_do_not_set_the_threshold(here, command):
    study = Experiment.read("tiny.toml")
    for run in study.runs:
        extract_run(study, run, ["validation"])
    call = ("calibrate", "runs/tiny", "--seed", 1, "--coverage", 0.5, "--overwrite", "--device", "cpu")
    code, _, err = command(*call)
    assert code == 0, err
    assert "the score is `sirc(msp, residual)`, the default" in err
    saved = SelectiveClassifier.load("selective.safetensors", _network(1))
    assert torch.equal(saved.calibration.sort()[0], confidences(study.run(1), saved.spec).sort()[0])

    code, out, err = command("select", "runs/tiny", "--score", "msp", "--score", "l1", "--draws", 20)
    assert code == 0, err
    assert out.count("Chosen on a random half of the validation images; `sirc calibrate` takes this score and the") == 2
    half = re.search(r"(\d+) ID✓ and (\d+) ID✗", out.replace("\n", " "))
    assert int(half[1]) + int(half[2]) == 60
    chosen = json.loads(study.run(1).choice.read_text(encoding="utf-8"))["select"]["score"]
    assert chosen in ("msp", "l1")

    same = ("--val", study.run(1).store("validation"))
    named = f"the score is `{chosen}`, which `sirc select` chose"
    for more, words in (((), named), (("--score", "msp", "--plain"), ""), (("--score", "msp", *same), "")):
        code, out, err = command(*call, *more)
        assert code == 0, err
        assert words in err
        assert "`sirc select` chose a score on one half of the validation images; the other half, 60 rows" in err
        assert "promise" not in err  # `--plain` makes none
    assert out.startswith("msp\n")
    saved = SelectiveClassifier.load("selective.safetensors", _network(1))
    rows = torch.randperm(120, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(saved.calibration, confidences(study.run(1), "msp", rows[1::2].sort()[0]))
    chooser = outputs_to_choose(study, study.run(1), "validation")
    store = sirc.OutputStore(study.run(1).store("validation")).load()
    assert torch.equal(chooser.logits, store.logits[rows[::2].sort()[0]])


@pytest.mark.slow
def test_a_chosen_score_is_known_however_it_is_written(here, command):
    study = Experiment.read("tiny.toml")
    keep_choice(study.run(1), "select", "sirc( msp,residual)", "test", half=False)
    code, _, err = command("calibrate", "runs/tiny", "--seed", 1, "--coverage", 0.5, "--device", "cpu")
    assert code == 0, err
    assert "the score is `sirc(msp, residual)`, which `sirc select` chose" in err


@pytest.mark.slow
def test_a_chosen_part_of_a_combination_sets_the_threshold_and_one_that_is_gone_is_told(here, command):
    study = Experiment.read("tiny.toml")
    extract_run(study, study.run(1), ["validation"])
    call = ("calibrate", "runs/tiny", "--seed", 1, "--coverage", 0.5, "--overwrite", "--device", "cpu")
    for score, words, taken in (
        ("residual", "the score is `residual`, which `sirc check` chose", "residual"),
        ("knn", "`sirc check` chose `knn`, which is no longer a score of the run", "sirc(msp, residual)"),
    ):
        keep_choice(study.run(1), "check", score, "validation", half=False)
        code, out, err = command(*call)
        assert code == 0, err
        assert words in err
        assert out.startswith(f"{taken}\n")
    keep_choice(study.run(1), "check", "residual", "validation", half=False)
    assert command(*call)[0] == 0
    saved = SelectiveClassifier.load("selective.safetensors", _network(1))
    store = sirc.OutputStore(study.run(1).store("validation")).load()
    torch.testing.assert_close(saved.calibration, saved.scorer(store)["residual"].cpu())


@pytest.mark.slow
def test_a_damaged_choice_is_told_and_one_for_another_network_does_not_count(here, command):
    study = Experiment.read("tiny.toml")
    run = study.run(1)
    for text in ("{", "[]", '{"select": 3}', '{"select": {"score": "msp"}}', '{"select": {"score": 1, "x": 2}}'):
        run.choice.write_text(text, encoding="utf-8")
        code, _, err = command("calibrate", "runs/tiny", "--seed", 1, "--coverage", 0.5, "--device", "cpu")
        assert code == 1
        assert "must hold the chosen scores, as `sirc select` writes them; it is damaged. Delete it, and" in err
    other = {"command": "select", "score": "l1", "images": "validation", "data": "elsewhere", "half": True}
    other["model"] = "another"
    run.choice.write_text(json.dumps({"select": other}), encoding="utf-8")
    code, out, err = command("calibrate", "runs/tiny", "--seed", 1, "--coverage", 0.5, "--device", "cpu")
    assert code == 0, err
    assert "the score is `sirc(msp, residual)`, the default" in err
    assert "120 ID" in out
    other["data"] = sirc.OutputStore(run.store("validation")).data
    run.choice.write_text(json.dumps({"select": {**other, "half": False}}), encoding="utf-8")
    code, out, err = command("calibrate", "runs/tiny", "--seed", 1, "--coverage", 0.5, "--device", "cpu", "--overwrite")
    assert code == 0, err
    assert "`sirc select` chose a score on all of the validation images" in err
    assert "Run `sirc select` again" in err
    assert "120 ID" in out


@pytest.mark.slow
def test_a_threshold_of_least_cost_is_set_on_ood_sets_by_name(here, command):
    study = Experiment.read("tiny.toml")
    test = sirc.OutputStore(study.run(1).store("test")).load()
    for name, part in {"a": test[:10], "b": test[10:]}.items():
        sirc.Outputs(part.logits, part.features).save(f"{name}.npz")
    call = ("calibrate", "runs/tiny", "--seed", 1, "--score", "msp", "--device", "cpu", "--overwrite")
    sets = ("--ood", "a=a.npz", "--ood", "b=b.npz")
    code, _, err = command(*call, "--beta", 0.4)
    assert code == 2
    assert "`--beta` would do nothing: for the least cost, give `--alpha` too." in err
    code, out, err = command(*call, "--alpha", 0.7, "--beta", 0.4, "--reject-cost", 0.1, *sets)
    assert code == 0, err
    assert "the least cost on these rows for α = 0.7, β = 0.4, where a rejected input costs 0.1" in out.replace(
        "\n             ", " "
    )
    assert "30 OOD" in out
    saved = SelectiveClassifier.load("selective.safetensors", _network(1)).threshold
    scorer = sirc.Scorer.load(study.run(1).scorer)
    by_hand = SelectiveClassifier(_network(1), scorer, "msp")
    val = sirc.OutputStore(study.run(1).store("validation"))
    ood = {name: sirc.Outputs.load(f"{name}.npz") for name in "ab"}
    for given in (ood, sirc.Outputs.cat(list(ood.values()))):
        by_hand.calibrate(val, ood=given, alpha=0.7, beta=0.4, reject_cost=0.1)
        assert by_hand.threshold.value == saved.value
    with pytest.raises(ValueError, match="at least one OOD set; got an empty dict"):
        by_hand.calibrate(val, ood={}, alpha=0.7, beta=0.4, reject_cost=0.1)
    for wrong, words in (
        (("--alpha", 0.7, "--reject-cost", 0.1), "needs OOD data; the run has none: give `--ood NAME=PATH`"),
        (("--alpha", 0.7), "needs `--reject-cost` or `--recall`"),
        (("--alpha", 0.7, "--risk", 0.1, *sets), "and no other goal"),
        (("--reject-cost", 0.1), "give `--alpha` too"),
        (("--alpha", 1.7, "--recall", 0.9, *sets), "`--alpha` must be a share, from 0 to 1; got 1.7"),
        (("--alpha", 0.7, "--beta", "nan", "--recall", 0.9, *sets), "`--beta` must be a share, from 0 to 1; got nan"),
        (("--alpha", 0.7, "--reject-cost", -1, *sets), "`--reject-cost` must be a cost, 0 or more; got -1"),
    ):
        code, _, err = command(*call, *wrong)
        assert code in (1, 2)
        assert words in err.replace("\n", " ")


def test_outputs_of_earlier_weights_are_named_for_extraction(here):
    study = Experiment.read("tiny.toml")
    with pytest.raises(StoreError, match=r"other weights than the network has now.*`sirc extract … --only test --over"):
        check_outputs(study, study.run(1), ["test"], weights="other")
