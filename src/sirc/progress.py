"""Progress reports of long work: library code sends them here, the command line decides what is shown."""

from collections.abc import Iterator
from contextlib import contextmanager


class Task:
    """One piece of long work; this one is silent."""

    def advance(self, steps: int = 1, **facts: float) -> None:
        """Say that `steps` more are done, with what is worth knowing at this point: `loss=0.31`."""


class Progress:
    """Receives reports of long work; this one is silent, and others inherit from it."""

    @contextmanager
    def task(self, name: str, total: int | None, *, done: int = 0, unit: str = "images") -> Iterator[Task]:
        """Open a piece of work with `total` steps, `done` of which an earlier run did."""
        yield Task()

    def note(self, text: str) -> None:
        """Tell something that the user should read even when the work goes on."""


SILENT = Progress()
