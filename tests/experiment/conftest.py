"""A tiny study, as it is written and as it is finished."""

import contextlib
import shutil

import pytest

from sirc.experiment import Experiment, run_study
from support.tiny_images import write_images
from support.tiny_study import MODEL, TOML


def write_study(folder):
    write_images(folder / "data" / "images", count=90)
    write_images(folder / "data" / "held-out", count=30, seed=1)
    write_images(folder / "data" / "grey", count=20, seed=2)
    (folder / "tiny_model.py").write_text(MODEL, encoding="utf-8")
    # A learning rate so low that the network errs, as metrics of ID✗ need.
    text = TOML.replace("lr = 0.02", "lr = 0.0005").replace("count = 6", 'count = 20\ngroup = "Far"')
    (folder / "tiny.toml").write_text(text, encoding="utf-8")


@pytest.fixture
def experiment(once, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    shutil.copytree(once("new-study", write_study), tmp_path, dirs_exist_ok=True)
    return Experiment.read("tiny.toml")


@pytest.fixture
def finished(once, experiment):
    """The experiment was run before, without figures."""

    def make(folder):
        with contextlib.chdir(folder):
            write_study(folder)
            run_study([Experiment.read("tiny.toml")], figures=False)

    shutil.copytree(once("study", make) / "runs", "runs")
