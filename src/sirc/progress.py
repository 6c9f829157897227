"""Progress of long work: library code reports it to bars, to a log, or to nothing at all.

Example:
    Functions that take long have an argument `progress`: a `Progress` of this module, for many also True or False.

    >>> from sirc.progress import Log
    >>> with Log(lambda line: print(line.partition(" in ")[0])).task("reading", total=2) as task:
    ...     for _ in range(2):
    ...         task.advance()
    reading: 2/2 images
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as RichBars

__all__ = ["SILENT", "Bars", "Log", "Progress", "Task"]

_LINE_SECONDS = 10.0  # between two log lines about the same work
_FRAME_SECONDS = 0.1  # between two drawings of the bars in a notebook


class Task:
    """One piece of long work, which reports its steps to the function `show`, by default to nobody."""

    def __init__(self, show: Callable[[int, str], None] = lambda steps, facts: None) -> None:
        self._show = show

    def advance(self, steps: int = 1, **facts: float) -> None:
        """Report that `steps` more are done, with numbers to show beside them, such as `loss=0.31`."""
        self._show(steps, ", ".join(f"{key} {value:.4g}" for key, value in facts.items()))


class Progress:
    """Receives reports of long work. This base class is silent; write a subclass to show them your way."""

    @contextmanager
    def task(self, name: str, total: int | None, *, done: int = 0, unit: str = "images") -> Iterator[Task]:
        """Begin a piece of work of `total` steps, of which an earlier run did `done`."""
        yield Task()

    def note(self, text: str) -> None:
        """Show a message that the user should read while the work goes on."""


SILENT = Progress()


def as_progress(progress: Progress | bool | None) -> Progress:
    """The progress that the argument `progress` of a public function asks for.

    None, the default, shows bars in a terminal and a notebook, and nothing elsewhere; True shows lines of text
    elsewhere, as in the log of a job. Of several processes only the first shows progress.
    """
    if isinstance(progress, Progress):
        return progress
    interactive = "ipykernel" in sys.modules or (sys.stderr is not None and sys.stderr.isatty())
    if progress is None:
        progress = interactive
    if not isinstance(progress, bool):
        raise ValueError(f"`progress` must be True, False or a `sirc.progress.Progress`; got {type(progress).__name__}")
    if not progress or int(os.environ.get("RANK") or 0) or not (interactive or sys.stderr):
        return SILENT
    return Bars() if interactive else Log(lambda line: print(line, file=sys.stderr, flush=True))


@final
class Bars(Progress):
    """Bars in a terminal or a notebook, which vanish when their work is done."""

    def __init__(self, console: Console | None = None) -> None:
        from rich.console import Console

        self._console = console or Console(stderr="ipykernel" not in sys.modules, highlight=False, markup=False)
        self._bars: RichBars | None = None
        self._cell: _Cell | None = None

    @contextmanager
    def task(self, name: str, total: int | None, *, done: int = 0, unit: str = "images") -> Iterator[Task]:
        """Show a bar."""
        with self._opened() as bars:
            bar = bars.add_task(name, total=total, completed=done, unit=unit, facts="")
            if self._cell is not None:
                self._cell.draw()

            def show(steps: int, facts: str) -> None:
                bars.advance(bar, steps)
                if facts:
                    bars.update(bar, facts=facts)
                if self._cell is not None:
                    self._cell.draw(_FRAME_SECONDS)

            try:
                yield Task(show)
            finally:
                bars.remove_task(bar)

    @contextmanager
    def _opened(self) -> Iterator[RichBars]:
        """The display, which the first task opens and closes; it stays hidden if the user already shows one of rich."""
        if self._bars is not None:
            yield self._bars
            return
        from rich import progress
        from rich.errors import LiveError

        columns = (
            progress.TextColumn("{task.description}", markup=False),
            progress.BarColumn(),
            progress.MofNCompleteColumn(),
            progress.TextColumn("{task.fields[unit]} {task.fields[facts]}"),
            progress.TimeElapsedColumn(),
            progress.TimeRemainingColumn(),
        )
        self._bars = progress.Progress(*columns, console=self._console, transient=True)
        try:
            if self._console.is_jupyter:
                self._cell = _Cell(self._bars)
            else:
                with suppress(LiveError):
                    self._bars.start()
            yield self._bars
        finally:
            if self._cell is not None:
                self._cell.clear()
            self._bars.stop()
            self._bars = self._cell = None

    def note(self, text: str) -> None:
        """Print the text above the bars."""
        self._console.print(text)


@final
class _Cell:
    """The bars in the output of a notebook's cell, redrawn as the work goes on; rich would need ipywidgets for that."""

    def __init__(self, bars: RichBars) -> None:
        from IPython.display import HTML, display

        self._bars, self._drawn = bars, -math.inf
        self._empty = HTML("")
        self._handle = display(self._empty, display_id=True)  # None where ipykernel is imported but no shell runs

    def draw(self, pause: float = 0.0) -> None:
        """Draw the bars, unless they were drawn less than `pause` seconds ago."""
        if self._handle is not None and time.monotonic() - self._drawn >= pause:
            self._handle.update(self._bars.make_tasks_table(self._bars.tasks))
            self._drawn = time.monotonic()

    def clear(self) -> None:
        """Leave an empty output."""
        if self._handle is not None:
            self._handle.update(self._empty)


@final
class Log(Progress):
    """Passes a line of text to a function every few seconds."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say

    @contextmanager
    def task(self, name: str, total: int | None, *, done: int = 0, unit: str = "images") -> Iterator[Task]:
        """Say every ten seconds how far the work is, and at the end how long it took."""
        began = printed = time.monotonic()
        latest = ""

        def line(ending: str = "") -> None:
            nonlocal printed
            printed = time.monotonic()
            self._say(f"{name}: {done}{'' if total is None else f'/{total}'} {unit}{ending} {latest}".rstrip())

        def show(steps: int, facts: str) -> None:
            nonlocal done, latest
            done, latest = done + steps, facts or latest
            if time.monotonic() - printed >= _LINE_SECONDS:
                line()

        yield Task(show)
        line(f" in {time.monotonic() - began:.1f} s")

    def note(self, text: str) -> None:
        """Pass the text on."""
        self._say(text)
