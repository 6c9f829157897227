"""Console output: results on stdout; progress bars, log lines and errors on stderr."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sirc.errors import DataWarning
from sirc.progress import SILENT, Bars, Log, Progress

if TYPE_CHECKING:
    from rich.console import Console


def console(*, stderr: bool = False) -> Console:
    """The console for results, or with `stderr` for the rest; lines to a pipe are not wrapped."""
    from rich.console import Console

    made = Console(stderr=stderr, highlight=False, markup=False, soft_wrap=True, emoji=False)
    if not made.is_terminal:
        made.width = 200
    return made


def say(text: str) -> None:
    """Print a message that is not a result."""
    console(stderr=True).print(_harmless(text))


def result(text: str) -> None:
    """Print a result; of several processes, only the first prints."""
    if is_main():
        try:
            console().print(_harmless(text))
        except OSError as error:  # it names no file
            raise OSError(error.errno, f"the result cannot be printed: {error.strerror}") from error


def _harmless(text: str) -> str:
    """Escape control characters, with which a name in someone else's file could drive the terminal."""
    return re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", lambda found: f"\\x{ord(found[0]):02x}", text)


def is_main() -> bool:
    """Whether this is the process that prints."""
    from sirc._utils import distributed

    return distributed.is_main()


def open_page(page: Path | str) -> None:
    """Open a file or an address in the browser, or say that no browser could be opened."""
    import webbrowser

    try:
        opened = webbrowser.open(page.resolve().as_uri() if isinstance(page, Path) else page)
    except webbrowser.Error:
        opened = False
    if not opened:
        say(f"no browser could be opened; open '{page}' yourself")


@contextmanager
def printing_warnings(translate: Callable[[str], str]) -> Iterator[None]:
    """Print each warning about the data once, translated for the command."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", DataWarning)
        plain, printed = warnings.showwarning, set()

        def show(message: Warning | str, category: type[Warning], *rest: Any, **named: Any) -> None:
            if not issubclass(category, DataWarning):
                plain(message, category, *rest, **named)
            elif str(message) not in printed and is_main():
                printed.add(str(message))
                say(f"warning: {translate(str(message))}")

        warnings.showwarning = show
        yield


def reporting(quiet: bool) -> Progress:
    """A progress display: bars on a terminal, lines elsewhere; only the first process has one."""
    if quiet or not is_main():
        return SILENT
    terminal = console(stderr=True)
    return Bars(terminal) if terminal.is_terminal else Log(say)
