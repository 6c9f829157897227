"""`sirc guard`: from a network's name and two folders to decisions, and mistakes answered in words."""

import json
import shutil
from pathlib import Path

import pandas as pd
import pytest
import timm
import torch
from torch import nn

import sirc
from sirc.data import Preprocess
from sirc.models import save_weights
from support.tiny_images import write_images

MODEL = """
import timm
import torch
from torch import nn

def mostly_blue(num_classes):
    torch.manual_seed(0)
    model = timm.create_model("test_resnet", num_classes=num_classes)
    nn.init.constant_(model.fc.bias[:1], 2)
    return model

def plain(num_classes):
    torch.manual_seed(0)
    return random(num_classes)

def random(num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(432, num_classes))

def larger(num_classes):
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(99, num_classes))
"""
NETWORK = "timm:test_resnet=weights.safetensors"
PREPARED = ("--interpolation", "lanczos", "--mean", 0, 0, 0, "--std", 1, 1, 0.5)
FEW = ("--resize", 12, "--crop", 12, "--recall", 0.5, "--quiet")


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    write_images(Path("train"), 60)
    write_images(Path("val"), 60, seed=1)
    write_images(Path("new"), 9, seed=2)
    Path("guarded_model.py").write_text(MODEL, encoding="utf-8")
    model = timm.create_model("test_resnet", num_classes=3)
    nn.init.constant_(model.fc.bias[:1], 2)
    save_weights(model, "weights.safetensors")
    return tmp_path


def test_a_name_and_two_folders_lead_to_decisions(here, command):
    code, out, err = command("guard", NETWORK, "train", "val", *FEW[:-1], "--report", "page.html", "--path", "kept")
    assert code == 0, err
    normalised = "normalised with mean 0.5, 0.5, 0.5 and std 0.5, 0.5, 0.5"  # as timm published it
    assert err.startswith(
        f"images are resized to 12, cropped to 12 and {normalised}; the model must have been trained so"
    )
    lines = out.splitlines()
    assert lines[0].startswith('ResNet that may say "I don\'t know": score `scod`, fitted on 60 training rows')
    assert lines[-2:] == ["page.html", "guard.safetensors"]
    assert len(sirc.OutputStore("kept/val")) == 60
    code, out, err = command("predict", "new", "--model", "guard.safetensors", "--run", NETWORK, "--quiet")
    assert code == 0, err
    table = pd.read_csv("decisions.csv", keep_default_na=False)
    assert set(table["class"]) <= set("bgr")
    assert out.startswith(f"accepted {table['accepted'].sum()} of 9")
    code, _, err = command(
        "predict", "new", "--model", "guard.safetensors", "--run", NETWORK, "--seed", 1, "--overwrite"
    )
    assert code == 2
    assert "`--seed` would do nothing: they are for the folder of a run" in err


def test_a_guard_is_exported_for_the_service(here, command, monkeypatch):
    assert command("guard", NETWORK, "train", "val", *FEW, "--score", "msp")[0] == 0
    write = lambda self, path, example, **_: Path(path).write_text(self.spec, encoding="utf-8")  # noqa: E731 - which takes long
    monkeypatch.setattr(sirc.SelectiveClassifier, "export_onnx", write)
    code, out, err = command("export", NETWORK, "--model", "guard.safetensors")
    assert code == 0, err
    assert "images (n, 3, 12, 12)" in out


def test_a_risk_that_cannot_be_shown_writes_nothing(here, command):
    code, out, err = command("guard", NETWORK, "train", "val", *FEW[:4], "--risk", 0.1, "--score", "msp", "--quiet")
    assert code == 1
    assert "It accepts nothing: no threshold keeps the promise." in out
    assert "nothing was written, as no threshold keeps this promise" in err
    assert not Path("guard.safetensors").exists()


def test_a_function_of_one_s_own_makes_the_network(here, command):
    code, out, err = command("guard", "guarded_model:mostly_blue", "train", *FEW, "--plain", "--score", "msp")
    assert code == 0, err
    assert "warning: VAL was not given: 12 of the 60 rows" in err
    assert "Promise: None, an estimate" in out


def test_images_are_normalised_as_the_weights_were_trained(here, command):
    code, _, err = command("guard", NETWORK, "train", "val", *FEW[:-1], *PREPARED)
    assert code == 0, err
    assert "normalised with mean 0, 0, 0 and std 1, 1, 0.5" in " ".join(err.split())
    made = sirc.load_guard("guard.safetensors", NETWORK)
    assert made.preprocess == Preprocess(12, 12, "lanczos", mean=(0, 0, 0), std=(1, 1, 0.5))


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("guard", "test_resnet", "train"), r"`name` must be `timm:NAME`"),
        (
            ("guard", "weights.safetensors", "train"),
            "a file of weights needs the name of its network, `timm:NAME=weights",
        ),
        (("guard", "os:getcwd", "train"), "is in Python's standard library"),
        (("guard", "guarded_model:plain", "train", "val"), "does not say how. Pass `--resize`, `--crop`, "),
        (("guard", "guarded_model:random", "train"), "are random, since each call gives others"),
        (("guard", "guarded_model:random", "train"), "or name their file, `guarded_model:random=FILE`"),
        (
            ("guard", NETWORK, "new/b", "val"),
            "its images lie directly in it, such as '002.png'. Sort them into folders. ",
        ),
        (("guard", NETWORK, "train", "val", "--score", "delta_knn"), "`delta_knn` is. Choose another "),
        (("guard", ".", "val"), "'.' has none. Data come after the model."),
        (("guard", "train", "val", NETWORK), "the model comes first: `sirc guard MODEL TRAIN VAL`; got 'timm:"),
        (("guard", NETWORK, "train", "nowhere"), "the folder 'nowhere' does not exist"),
        (("guard", NETWORK, "train", "val", "--recall", 0.99), "needs at least 299 ID✓ rows; got 60"),
        (("guard", NETWORK, "train", "val", "--out", "weights.safetensors"), "Pass `--overwrite` to replace it"),
        (("guard", NETWORK, "train", "val", "--classes", "two.txt"), "`--classes` must name every class folder"),
        (("guard", NETWORK, "train", "val", "--head", "fd", "--resize", 12, "--crop", 12), "Did you mean `fc`"),
        (("predict", "new", "--model", "weights.safetensors", "--run", NETWORK), "is not a saved selective classifier"),
        (("predict", "new", "--model", "model.onnx", "--run", NETWORK), "`sirc predict FOLDER --onnx model.onnx`"),
        (("guard", NETWORK, "train", "val", "--risk", 0.1, "--plain"), "`--plain` is not for `--risk`"),
        (("guard", NETWORK, "train", "--risk", 0.1), "`--risk` is a promise about new inputs, which needs VAL"),
        (("guard", NETWORK, "train", "val", "--interpolation", "cubic"), '`--interpolation` must be "bili'),
        (("guard", NETWORK, "train", "val", "--resize", 12), "`--crop` must be at most `--resize`"),
        (
            ("guard", NETWORK, "train", "val", "--std", 1, 1, 0),
            "`--std` must be three numbers above 0, one for each col",
        ),
    ],
)
def test_mistakes_are_answered_in_words(here, command, words, told):
    Path("two.txt").write_text("b\ng\n", encoding="utf-8")
    code, _, err = command(*words)
    assert code in (1, 2)
    assert told in err.replace("\n", " ")


def test_a_stopped_guard_keeps_what_lies_in_its_folder(here, command, monkeypatch):
    def stopped(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("sirc.deploy.guard", stopped)
    assert "nothing was written" in command("guard", NETWORK, "train")[2]
    kept = ("guard", NETWORK, "train", "--path", "kept", "--out", "new.safetensors")
    assert "nothing new was finished, and the same command goes on with what there is" in command(*kept)[2]
    assert "without `--overwrite` the same command goes on" in command(*kept, "--overwrite")[2]
    for option, file in (("--out", "weights.safetensors"), ("--report", "weights.safetensors")):  # which is there
        told = command(*kept, "--overwrite", option, file)[2]
        assert "with another `--out` instead of `--overwrite` the same command goes on from there" in told


class RunsCode:
    def __reduce__(self):
        return Path.touch, (Path("called"),)


ODD_FOLDERS = {
    "no weights": ({"architecture": "test_resnet", "num_classes": 3}, None),
    "a number": ({"architecture": 5}, None),
    "an unknown network": ({"architecture": "nope"}, None),
    "odd arguments": ({"architecture": "test_resnet", "model_args": {"nonsense": 1}}, None),
    "an odd list": ({"architecture": "test_resnet", "pretrained_cfg": [1]}, None),
    "no architecture": ({"model": "test_resnet"}, None),
    "text for weights": ({"architecture": "test_resnet", "num_classes": 3}, b"hello"),
    "a pickle that runs code": ({"architecture": "test_resnet", "num_classes": 3}, RunsCode()),
    "half a JSON": (b'{"a', None),
    "another encoding": (b'{"architecture": "\xe9"}', None),
    "a list": (b"[]", None),
}


def test_odd_folders_of_models_are_refused_in_words(here, command, attack):
    for name, (config, weights) in ODD_FOLDERS.items():
        Path(name).mkdir()
        Path(name, "config.json").write_bytes(config if isinstance(config, bytes) else json.dumps(config).encode())
        if isinstance(weights, bytes):
            Path(name, "model.safetensors").write_bytes(weights)
        elif weights is not None:
            torch.save({"x": weights}, Path(name, "pytorch_model.bin"))
        code, out, err = command("guard", name, "train", "val", *FEW, "--score", "msp")
        assert (code, out) == (1, ""), name
        assert f"error: '{name}" in err
        assert "TOML" not in err
        assert "weights_only" not in err
    assert "reading it would run code" in command("guard", "a pickle that runs code", "train", "val", *FEW)[2]
    assert not Path("called").exists()
    attack.tried("odd folders of models given to guard", len(ODD_FOLDERS), "refused in words, no code run")


def test_a_network_that_does_not_take_the_images_is_told_in_words(here, command):
    code, _, err = command("guard", "guarded_model:larger", "train", "val", *FEW, "--score", "msp")
    assert code == 1
    assert "Sequential fails on images of shape (2, 3, 12, 12)" in err
    assert "Prepare them as for its training, `--resize`, `--crop`, `--interpolation`, `--mean` and `--std`" in err


def test_names_of_classes_do_not_drive_the_terminal(here, command):
    for part in ("train", "val"):
        Path(part, "r").rename(Path(part, "r\x1b[31med\x07"))
    shutil.rmtree(next(Path("val").glob("r*")))
    code, out, err = command("guard", NETWORK, "train", "val", *FEW, "--score", "msp")
    assert code == 0, err
    assert "lack 1 of 3 classes: r\\x1b[31med\\x07." in out
    code, out, more = command("guard", "timm:test_resnet=weights.safetensors", "train", "nowhere\x1b[2J", *FEW)
    assert code == 1
    assert not set("\x1b\x07") & set(out + err + more)
