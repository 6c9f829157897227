"""Long work shows itself where a person looks on, and nowhere else."""

import io
import sys
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console
from rich.live import Live

import sirc
from sirc.progress import SILENT, Bars, Log, Progress, as_progress

Z = torch.randn(60, 6, generator=torch.Generator().manual_seed(0))
HEAD = sirc.Head(torch.eye(3, 6), torch.ones(3))
TRAIN = sirc.Outputs(Z @ HEAD.weight.T, Z)


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Told(Progress):
    def __init__(self):
        self.names = []

    def task(self, name, total, **options):
        self.names.append((name, total))
        return super().task(name, total, **options)


def test_bars_are_for_terminals_and_notebooks(monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)
    monkeypatch.delenv("RANK", raising=False)
    assert as_progress(None) is SILENT
    assert isinstance(as_progress(True), Log)  # in a file, bars leave empty lines
    with as_progress(True).task("reading", 2) as task:
        task.advance(2)
    assert sys.stderr.getvalue().startswith("reading: 2/2 images in ")
    assert as_progress(False) is SILENT
    mine = Told()
    assert as_progress(mine) is mine
    monkeypatch.setitem(sys.modules, "ipykernel", sys)
    assert isinstance(as_progress(None), Bars)
    monkeypatch.delitem(sys.modules, "ipykernel")
    monkeypatch.setattr(sys, "stderr", Terminal())
    assert isinstance(as_progress(None), Bars)
    monkeypatch.setenv("RANK", "1")
    assert as_progress(None) is SILENT
    monkeypatch.delenv("RANK")
    monkeypatch.setattr(sys, "stderr", None)  # a program without a console
    assert as_progress(True) is SILENT
    with pytest.raises(ValueError, match=r"`progress` must be True, False or a .*; got str"):
        as_progress("yes")


def test_fit_and_extract_show_bars_that_vanish(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stderr", screen := Terminal())
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.delenv("RANK", raising=False)
    sirc.fit("sirc(msp, residual)", TRAIN, head=HEAD)
    for step in ("fit, first pass", "fit, solving residual", "fit, second pass"):
        assert step in screen.getvalue()
    sirc.extract(torch.nn.Linear(6, 3), [Z])
    assert "extract" in screen.getvalue()
    length = len(screen.getvalue())
    sirc.fit("sirc(msp, residual)", TRAIN, head=HEAD, progress=False)
    sirc.extract(torch.nn.Linear(6, 3), [Z], progress=False)
    assert len(screen.getvalue()) == length
    assert capsys.readouterr().out == ""


def test_a_notebook_without_widgets_shows_bars_that_vanish(monkeypatch):
    pictures = []

    class Handle:
        update = staticmethod(pictures.append)

    notebook = SimpleNamespace(display=lambda picture, display_id: Handle(), HTML=str)
    monkeypatch.setitem(sys.modules, "IPython.display", notebook)
    with Bars(Console(force_jupyter=True)).task("solving", 2, unit="steps") as task:
        assert text_of(pictures[-1]).split()[0] == "solving"  # before the first step is done
        monkeypatch.setattr("sirc.progress._FRAME_SECONDS", 0.0)
        task.advance(loss=0.5)
        assert "1/2 steps loss 0.5" in text_of(pictures[-1])
        monkeypatch.setattr("sirc.progress._FRAME_SECONDS", 1e9)
        task.advance()
        assert len(pictures) == 2
    assert pictures[-1] == ""


def test_work_goes_on_where_ipython_has_no_shell_to_display_in(monkeypatch):
    without_shell = SimpleNamespace(display=lambda picture, display_id: None, HTML=str)
    monkeypatch.setitem(sys.modules, "IPython.display", without_shell)
    with Bars(Console(force_jupyter=True)).task("solving", 2) as task:
        task.advance(2)


def text_of(table):
    console = Console(file=io.StringIO(), width=120)
    console.print(table)
    return console.file.getvalue()


def test_nothing_is_shown_where_nobody_looks(capsys):
    sirc.fit("sirc(msp, residual)", TRAIN, head=HEAD)
    assert capsys.readouterr() == ("", "")


def test_a_fit_names_its_steps():
    told = Told()
    sirc.fit(["sirc(msp, react)", "cop"], TRAIN, head=HEAD, crossfit=5, progress=told)
    assert told.names == [("fit, first pass", 60), ("fit, solving react, cop", 8), ("fit, second pass", 60)]
    told = Told()
    sirc.fit("msp", TRAIN, progress=told)  # which has no parameters
    assert told.names == [("fit, first pass", 60)]


def test_bars_do_not_quarrel_with_a_display_of_the_user():
    console = Console(file=Terminal(), force_terminal=True)
    with Live(console=console), Bars(console).task("work", 2) as task:
        task.advance(loss=0.5)
    with Bars(console).task("work", 2) as task, Bars(console).task("more", None) as other:
        task.advance()
        other.advance()


def test_a_log_has_a_line_at_the_end_and_its_notes():
    lines = []
    log = Log(lines.append)
    with log.task("work", 3, unit="rows", done=1) as task:
        task.advance(2, loss=0.5)
        log.note("note: look")
    assert lines[0] == "note: look"
    assert lines[1].startswith("work: 3/3 rows in ")
    assert lines[1].endswith(" s loss 0.5")
