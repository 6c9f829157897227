"""What a person sees while a command works: bars on a terminal, lines in a log, all of it on stderr."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import final

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

from sirc._utils import distributed
from sirc.progress import SILENT, Progress, Task

_LINE_SECONDS = 10.0  # between two lines about the same work


def stderr() -> Console:
    """Where progress and errors go."""
    return Console(stderr=True, highlight=False, soft_wrap=True, emoji=False)


def stdout() -> Console:
    """Where results go; a pipe gets lines as long as they are."""
    console = Console(highlight=False, soft_wrap=True, emoji=False)
    return console if console.is_terminal else Console(highlight=False, width=200, soft_wrap=True, emoji=False)


def say(text: str) -> None:
    """Tell the user something that is no result."""
    stderr().print(escape(text))


def result(text: str) -> None:
    """Print a result, once however many processes there are."""
    if distributed.is_main():
        stdout().print(escape(text))


@contextmanager
def reporting(*, quiet: bool = False) -> Iterator[Progress]:
    """Give somewhere to report to: the terminal, a log, or, in all processes but the first, nowhere."""
    console = stderr()
    if quiet or not distributed.is_main():
        yield SILENT
    elif console.is_terminal:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[unit]} {task.fields[facts]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        with Bars(*columns, console=console, transient=True) as bars:
            yield _Terminal(bars)
    else:
        yield _Lines()


@final
class _Terminal(Progress):
    """Bars that vanish when their work is done."""

    def __init__(self, bars: Bars) -> None:
        self._bars = bars

    @contextmanager
    def task(self, name: str, total: int | None, *, done: int = 0, unit: str = "images") -> Iterator[Task]:
        bar = self._bars.add_task(escape(name), total=total, completed=done, unit=unit, facts="")
        try:
            yield _Bar(self._bars, bar)
        finally:
            self._bars.remove_task(bar)

    def note(self, text: str) -> None:
        self._bars.console.print(escape(text))


@final
class _Bar(Task):
    def __init__(self, bars: Bars, bar: TaskID) -> None:
        self._bars = bars
        self._bar = bar

    def advance(self, steps: int = 1, **facts: float) -> None:
        self._bars.advance(self._bar, steps)
        if facts:
            self._bars.update(self._bar, facts=_written(facts))


@final
class _Lines(Progress):
    """A line now and then, for logs."""

    @contextmanager
    def task(self, name: str, total: int | None, *, done: int = 0, unit: str = "images") -> Iterator[Task]:
        line = _Line(name, total, done, unit)
        yield line
        line.end()

    def note(self, text: str) -> None:
        say(text)


@final
class _Line(Task):
    def __init__(self, name: str, total: int | None, done: int, unit: str) -> None:
        self.name, self.total, self.done, self.unit = name, total, done, unit
        self.began = self.told = time.monotonic()
        self.facts = ""

    def advance(self, steps: int = 1, **facts: float) -> None:
        self.done += steps
        self.facts = _written(facts) or self.facts
        if time.monotonic() - self.told >= _LINE_SECONDS:
            self._tell()

    def end(self) -> None:
        self._tell(f" in {time.monotonic() - self.began:.1f} s")

    def _tell(self, ending: str = "") -> None:
        self.told = time.monotonic()
        total = "" if self.total is None else f"/{self.total}"
        say(f"{self.name}: {self.done}{total} {self.unit}{ending} {self.facts}".rstrip())


def _written(facts: dict[str, float]) -> str:
    return ", ".join(f"{key} {value:.4g}" for key, value in facts.items())
