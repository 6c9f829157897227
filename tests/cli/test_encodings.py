"""Terminals that are not UTF-8: every command does its work, and shows "?" for what the encoding lacks."""

import json
import os
import subprocess
import sys

import pytest
import torch

import sirc
from sirc.cli import COMMANDS

ENCODINGS = ("cp1252", "latin-1", "ascii")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("arrays")
    make = torch.Generator().manual_seed(0)
    head = sirc.Head(torch.randn(3, 8, generator=make), torch.randn(3, generator=make))
    for name, rows in (("train", 200), ("id", 100), ("far", 60)):
        features = torch.randn(rows, 8, generator=make)
        logits = features @ head.weight.T + head.bias
        labels = (logits + torch.randn(rows, 3, generator=make)).argmax(-1) if name != "far" else None
        sirc.Outputs(logits, features, labels).save(folder / f"{name}.npz")
    return folder


@pytest.mark.slow
def test_every_help_is_shown(command_in):
    for name in ([], *([function.__name__] for commands in COMMANDS.values() for function in commands), ["data"]):
        code, out, _ = command_in("ascii", *name, "--help")
        assert code == 0, name
        assert "Usage: sirc" in out


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_what_the_encoding_lacks_is_replaced(command_in, encoding):
    code, out, _ = command_in(encoding, "calibrate", "--help")
    assert code == 0
    assert "ID?" in out
    assert ("1 − δ" in out, "1 ? ?" in out) == (False, True)


@pytest.mark.slow
def test_results_are_written_and_shown(command_in, files, tmp_path):
    out = tmp_path / "results"
    sources = ["--train", files / "train.npz", "--ood", f"Größe ✓={files / 'far.npz'}"]
    arguments = ["--id", files / "id.npz", *sources, "--score", "sirc(msp, l1)", "--out", out, "--no-figures"]
    code, shown, err = command_in("ascii", "evaluate", *arguments)
    assert code == 0, err
    assert "Größe ✓" in (out / "results.csv").read_text(encoding="utf-8")
    assert "Gr??e ?" in shown
    for name in ("csv", "markdown", "html", "latex", "text"):
        code, shown, err = command_in("ascii", "table", out, "--format", name)
        assert code == 0, err
        assert "Gr??e" in shown
    code, shown, _ = command_in("ascii", "select", "--val", files / "id.npz", *sources, "--draws", "20")
    assert code == 0
    assert "?" in shown
    code, shown, _ = command_in("ascii", "check", "--val", files / "id.npz", *sources, "--json")
    assert code == 0
    assert "Größe ✓" in str(json.loads(shown))  # JSON loses nothing
    assert command_in("ascii", "data", "list")[0] == 0


def test_without_matplotlib_all_but_the_figures_is_written(command, files, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    out = tmp_path / "results"
    code, shown, told = command("evaluate", "--id", files / "id.npz", "--score", "msp", "--out", out)
    assert code == 0
    assert "open " in shown
    assert "note: no figures were drawn; drawing needs matplotlib: pip install 'torch-sirc[plots]'" in told
    assert {path.name for path in out.iterdir()} >= {"results.csv", "report.html", "table.md"}


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_errors_are_shown(command_in, encoding):
    # As the shell passes it: where the locale lacks ✓ its bytes are surrogates, and shown as escapes too.
    code, _, err = command_in(encoding, "table", os.fsdecode("nowhere ✓".encode()))
    assert code == 1
    assert "there are no results at 'nowhere \\u" in err


def test_a_locale_without_unicode_is_enough():
    environment = {**os.environ, "PYTHONUTF8": "0", "LC_ALL": "C"}
    environment.pop("PYTHONIOENCODING", None)
    done = subprocess.run([sys.executable, "-m", "sirc", "calibrate", "--help"], env=environment, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert b"ID?" in done.stdout
