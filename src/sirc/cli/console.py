"""Console output: results on stdout; progress bars, log lines and errors on stderr."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from sirc.errors import DataWarning
from sirc.progress import SILENT, Progress, Task

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as Bars

_LINE_SECONDS = 10.0  # between two log lines about the same work


def console(*, stderr: bool = False) -> Console:
    """The console for results, or for progress and errors; lines to a pipe are not wrapped."""
    from rich.console import Console

    made = Console(stderr=stderr, highlight=False, markup=False, soft_wrap=True, emoji=False)
    if not made.is_terminal:
        made.width = 200
    return made


def say(text: str) -> None:
    """Print a message that is not a result."""
    console(stderr=True).print(text)


def result(text: str) -> None:
    """Print a result, once however many processes there are."""
    if is_main():
        console().print(text)


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
def telling_warnings() -> Iterator[None]:
    """Print each warning about the data as a message, once."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", DataWarning)
        plain, told = warnings.showwarning, set()

        def tell(message: Warning | str, category: type[Warning], *rest: Any, **named: Any) -> None:
            if not issubclass(category, DataWarning):
                plain(message, category, *rest, **named)
            elif str(message) not in told and is_main():
                told.add(str(message))
                say(f"warning: {message}")

        warnings.showwarning = tell
        yield


@contextmanager
def reporting(*, quiet: bool = False) -> Iterator[Progress]:
    """Report progress to the terminal or to a log; all processes but the first stay silent."""
    if quiet or not is_main():
        yield SILENT
    elif (terminal := console(stderr=True)).is_terminal:
        from rich import progress

        columns = (
            progress.TextColumn("{task.description}", markup=False),
            progress.BarColumn(),
            progress.MofNCompleteColumn(),
            progress.TextColumn("{task.fields[unit]} {task.fields[facts]}"),
            progress.TimeElapsedColumn(),
            progress.TimeRemainingColumn(),
        )
        with progress.Progress(*columns, console=terminal, transient=True) as bars:
            yield _Terminal(bars)
    else:
        yield _Log()


@final
class _Reported(Task):
    """Work whose steps, with the facts as text, go to a function."""

    def __init__(self, show: Callable[[int, str], None]) -> None:
        self._show = show

    def advance(self, steps: int = 1, **facts: float) -> None:
        self._show(steps, ", ".join(f"{key} {value:.4g}" for key, value in facts.items()))


@final
class _Terminal(Progress):
    """Bars that vanish when their work is done."""

    def __init__(self, bars: Bars) -> None:
        self._bars = bars

    @contextmanager
    def task(self, name: str, total: int | None, *, done: int = 0, unit: str = "images") -> Iterator[Task]:
        bar = self._bars.add_task(name, total=total, completed=done, unit=unit, facts="")

        def show(steps: int, facts: str) -> None:
            self._bars.advance(bar, steps)
            if facts:
                self._bars.update(bar, facts=facts)

        try:
            yield _Reported(show)
        finally:
            self._bars.remove_task(bar)

    def note(self, text: str) -> None:
        self._bars.console.print(text)


@final
class _Log(Progress):
    """A line now and then."""

    @contextmanager
    def task(self, name: str, total: int | None, *, done: int = 0, unit: str = "images") -> Iterator[Task]:
        began = printed = time.monotonic()
        latest = ""

        def line(ending: str = "") -> None:
            nonlocal printed
            printed = time.monotonic()
            say(f"{name}: {done}{'' if total is None else f'/{total}'} {unit}{ending} {latest}".rstrip())

        def show(steps: int, facts: str) -> None:
            nonlocal done, latest
            done, latest = done + steps, facts or latest
            if time.monotonic() - printed >= _LINE_SECONDS:
                line()

        yield _Reported(show)
        line(f" in {time.monotonic() - began:.1f} s")

    def note(self, text: str) -> None:
        say(text)
