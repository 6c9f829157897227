"""Stages and their stamps: notes of what a stage used and made, so that no work is done twice."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias, final

from sirc._utils.files import atomic_write, read_json
from sirc.errors import StoreError
from sirc.outputs import OutputStore

Inputs: TypeAlias = dict[str, object]
_FOLDER = ".made-from"


@final
@dataclass(eq=False)
class Stage:
    """A piece of work that is not done twice.

    Its stamp, a file in `folder`, holds the inputs of the stage and a digest of each file that it made. Inputs are
    everything that decides the outputs; an input file counts by its digest. The stage is done if the stamp has these
    inputs and all outputs are there, unchanged; it is stale if the stamp has other inputs.

    `recorded` is for outputs that know themselves what they were made from, and for the notes of earlier versions: it
    takes the inputs in the stamp, or None without a stamp, and returns those to compare.
    """

    name: str
    folder: Path
    inputs: Inputs
    outputs: Sequence[Path] = ()
    recorded: Callable[[Inputs | None], Inputs | None] = lambda stamped: stamped

    def __post_init__(self) -> None:
        self.inputs = json.loads(json.dumps(self.inputs, default=str))  # comparable with those of a stamp
        self._stamp = self.folder / _FOLDER / f"{self.name}.json"

    @property
    def is_stamped(self) -> bool:
        """Whether there is a stamp, with any inputs."""
        return bool(self._read())

    @property
    def inputs_before(self) -> Inputs | None:
        """The inputs with which the stage was done; None if it was not done."""
        return self.recorded(self._read().get("inputs"))

    @property
    def made(self) -> list[Path]:
        """The files that the stage made."""
        return [self.folder / name for name in self._read().get("made", ())]

    @property
    def fingerprints(self) -> dict[str, str]:
        """Fingerprints of the images and network that the stage used; empty for a stamp of an earlier version."""
        return self._read().get("seen", {})

    def is_done(self) -> bool:
        """Whether the stage was done with these inputs, and everything that it made is still there, unchanged."""
        made = self._read().get("made", {})
        return (
            self.inputs_before == self.inputs
            and all(map(_is_whole, self.outputs))
            and all(_is_whole(self.folder / name) and digest(self.folder / name) == made[name] for name in made)
        )

    def is_stale(self) -> bool:
        """Whether the stage was done with other inputs."""
        return self.inputs_before not in (None, self.inputs)

    @contextmanager
    def remade(self) -> Iterator[list[Path]]:
        """Do the work inside, which adds the files that it makes to the list, and stamp the stage at the end."""
        self.forget()
        made: list[Path] = []
        yield made
        self.record(made)

    def forget(self) -> None:
        """Remove the stamp before the work is done again: a stage that is killed halfway must not look done."""
        self._stamp.unlink(missing_ok=True)

    def record(self, made: Iterable[Path] = (), *, fingerprints: Mapping[str, str] | None = None) -> None:
        """Stamp the stage as done; later commands compare `fingerprints` first, as that is quick."""
        files = {str(path.relative_to(self.folder)): digest(path) for path in made}
        stamp = {"inputs": self.inputs, "made": files} | ({"seen": {**fingerprints}} if fingerprints else {})
        atomic_write(self._stamp, lambda file: file.write(json.dumps(stamp, indent=1).encode()))

    def _read(self) -> dict[str, dict[str, Any]]:
        """The stamp: "inputs", the digests of what was "made", and "seen", the fingerprints; empty if it is not valid.

        No stage writes a stamp that names a file outside its folder: such a stamp is not valid.
        """
        with suppress(FileNotFoundError, StoreError):
            stamp = {"seen": {}, **read_json(self._stamp)}
            whole = all(isinstance(stamp.get(part), dict) for part in ("inputs", "made", "seen"))
            if whole and all(is_inside(self.folder / name, self.folder) for name in stamp["made"]):
                return stamp
        return {}


def kept_digest(results: Path) -> object:
    """The digest of a results.csv in the stamps beside it, of the evaluation or the tables; None if neither has it."""
    if results.name != "results.csv":
        return None
    evaluation, tables = (Stage(name, results.parent, {})._read() for name in ("results", "tables"))
    return evaluation.get("made", {}).get("results.csv") or tables.get("inputs", {}).get("results")


def is_inside(path: Path, folder: Path) -> bool:
    """Whether a path is the folder or lies in it, with links resolved."""
    try:
        return path.resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError, ValueError):  # a loop of links, or a character that no path may have
        return False


def digest(path: Path) -> str:
    """A digest of a file's content."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:32]


def folder_digest(folder: Path) -> str:
    """A digest of all source files below a folder."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc")
    return hashlib.sha256("".join(map(digest, files)).encode()).hexdigest()[:32]


def code_of(functions: Iterable[Callable[..., object] | None]) -> Inputs:
    """The files outside of sirc that define these functions, as inputs of a stage: their code may change."""
    return {key: value for function in functions if function for key, value in _code(function).items()}


@cache  # a file may change while a study runs, which goes on with the code that it began with
def _code(function: Callable[..., object]) -> dict[str, str]:
    module = function.__module__
    file = Path(getattr(sys.modules.get(module), "__file__", None) or "")  # not a file if read from stdin or a zip
    return {f"code of {module}": digest(file)} if file.is_file() and not module.startswith("sirc.") else {}


def _is_whole(path: Path) -> bool:
    """Whether a file exists, or a store with all its shards."""
    if not path.is_dir():
        return path.is_file()
    try:
        return OutputStore(path).complete
    except ValueError:
        return False
