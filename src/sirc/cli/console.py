"""Console output: results on stdout; progress bars, log lines and errors on stderr."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, final

from sirc.progress import SILENT, Progress, Task

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as Bars
    from rich.progress import TaskID

_LINE_SECONDS = 10.0  # between two log lines about the same work


def stderr() -> Console:
    """The console for progress and errors."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, markup=False, soft_wrap=True, emoji=False)


def stdout() -> Console:
    """The console for results; lines to a pipe are not wrapped."""
    from rich.console import Console

    console = Console(highlight=False, markup=False, soft_wrap=True, emoji=False)
    if not console.is_terminal:
        console.width = 200
    return console


def say(text: str) -> None:
    """Print a message that is not a result."""
    stderr().print(text)


def result(text: str) -> None:
    """Print a result, once however many processes there are."""
    if is_main():
        stdout().print(text)


def is_main() -> bool:
    """Tell whether this process speaks for all of them."""
    from sirc._utils import distributed

    return distributed.is_main()


def open_page(path: Path) -> None:
    """Open a page in the browser, or say that there is none."""
    import webbrowser

    try:
        opened = webbrowser.open(path.resolve().as_uri())
    except webbrowser.Error:
        opened = False
    if not opened:
        say(f"no browser could be opened; open '{path}' yourself")


@contextmanager
def reporting(*, quiet: bool = False) -> Iterator[Progress]:
    """Report progress to the terminal or to a log; all processes but the first stay silent."""
    console = stderr()
    if quiet or not is_main():
        yield SILENT
    elif console.is_terminal:
        from rich import progress

        columns = (
            progress.TextColumn("{task.description}", markup=False),
            progress.BarColumn(),
            progress.MofNCompleteColumn(),
            progress.TextColumn("{task.fields[unit]} {task.fields[facts]}"),
            progress.TimeElapsedColumn(),
            progress.TimeRemainingColumn(),
        )
        with progress.Progress(*columns, console=console, transient=True) as bars:
            yield _Terminal(bars)
    else:
        yield _Log()


@final
class _Terminal(Progress):
    """Bars that vanish when their work is done."""

    def __init__(self, bars: Bars) -> None:
        self._bars = bars

    @contextmanager
    def task(self, name: str, total: int | None, *, done: int = 0, unit: str = "images") -> Iterator[Task]:
        bar = self._bars.add_task(name, total=total, completed=done, unit=unit, facts="")
        try:
            yield _Bar(self._bars, bar)
        finally:
            self._bars.remove_task(bar)

    def note(self, text: str) -> None:
        self._bars.console.print(text)


@final
class _Bar(Task):
    def __init__(self, bars: Bars, bar: TaskID) -> None:
        self._bars = bars
        self._bar = bar

    def advance(self, steps: int = 1, **facts: float) -> None:
        self._bars.advance(self._bar, steps)
        if facts:
            self._bars.update(self._bar, facts=_format(facts))


@final
class _Log(Progress):
    """A line now and then."""

    @contextmanager
    def task(self, name: str, total: int | None, *, done: int = 0, unit: str = "images") -> Iterator[Task]:
        line = _LogLine(name, total, done, unit)
        began = time.monotonic()
        yield line
        line.print(f" in {time.monotonic() - began:.1f} s")

    def note(self, text: str) -> None:
        say(text)


@final
class _LogLine(Task):
    def __init__(self, name: str, total: int | None, done: int, unit: str) -> None:
        self._name, self._total, self._done, self._unit = name, total, done, unit
        self._printed = time.monotonic()
        self._facts = ""

    def advance(self, steps: int = 1, **facts: float) -> None:
        self._done += steps
        self._facts = _format(facts) or self._facts
        if time.monotonic() - self._printed >= _LINE_SECONDS:
            self.print()

    def print(self, ending: str = "") -> None:
        """Print how far the work is."""
        self._printed = time.monotonic()
        total = "" if self._total is None else f"/{self._total}"
        say(f"{self._name}: {self._done}{total} {self._unit}{ending} {self._facts}".rstrip())


def _format(facts: dict[str, float]) -> str:
    return ", ".join(f"{key} {value:.4g}" for key, value in facts.items())
