"""A study that is killed inside its writes, again and again, ends with the files of one that was not."""

import contextlib
import os
import signal
from pathlib import Path

import pytest

from support.interpreters import python
from support.tiny_images import write_images
from support.tiny_study import MODEL, TOML

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")]

# One interpreter; each attempt is a fork of it, and is killed before a rename of its own.
_PROGRAM = """
import os, signal, sys
import accelerate, pandas, torch, torchvision
import sirc.extraction, sirc.report.page, sirc.report.tables, sirc.training.loop
from sirc.experiment import Experiment, run_study

survived = int(sys.argv[1])
status, attempt = 1, 0
while status:
    child = os.fork()
    if child == 0:
        renames, rename = 0, os.replace

        def dying(source, target):
            global renames
            renames += 1
            if survived and renames > survived + attempt % 3:
                os.kill(os.getpid(), signal.SIGKILL)
            rename(source, target)

        os.replace = dying
        torch.set_num_threads(1)  # torch's pool of threads, made before a fork, fails in two threads after it
        run_study([Experiment.read("tiny.toml")], device="cpu", figures=False)
        os._exit(0)
    status, attempt = os.waitpid(child, 0)[1], attempt + 1
    print(status, flush=True)
    if status not in (0, signal.SIGKILL):
        break
"""


def run(folder, survived):
    """Run a study until it is finished, each attempt killed after a few renames; how each attempt ended."""
    write_images(folder / "data" / "images", count=90)
    write_images(folder / "data" / "held-out", count=12)
    write_images(folder / "data" / "grey", count=7)
    (folder / "tiny_model.py").write_text(MODEL, encoding="utf-8")
    (folder / "tiny.toml").write_text(TOML.replace("[1, 2]", "[1]"), encoding="utf-8")
    with contextlib.chdir(folder):
        done = python("-c", _PROGRAM, survived)
    return [int(line) for line in done.stdout.split()], done.stderr


def contents(folder):
    return {path.relative_to(folder): path for path in Path(folder).rglob("*") if path.is_file()}


def test_killed_inside_every_few_writes_it_leaves_the_same_files(tmp_path, attack):
    (tmp_path / "whole").mkdir()
    ends, told = run(tmp_path / "whole", 0)
    assert ends == [0], told
    whole = contents(tmp_path / "whole" / "runs")
    for renames in range(9, 9 - min(5, attack.trials(1)), -1):
        folder = tmp_path / f"killed-{renames}"
        folder.mkdir()
        ends, told = run(folder, renames)
        assert set(ends[:-1]) == {signal.SIGKILL}, told
        assert ends[-1] == 0
        assert len(ends) > 3
        killed = contents(folder / "runs")
        assert killed.keys() == whole.keys()  # no temporary file among them
        differing = [str(name) for name in whole if whole[name].read_bytes() != killed[name].read_bytes()]
        assert differing == ["tiny/seed-1/history.csv"]  # which has times
        attack.tried("kills inside a write of a study", len(ends) - 1, "resumed to the same files, nothing left over")
