"""Stages that need not run again: a note of what each was made from, kept beside what it made."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import final

from sirc._utils.files import atomic_write

_FOLDER = ".made-from"


@final
class Stamp:
    """A note in `folder` about one stage: the inputs it was made from, and the files it made.

    Inputs are what decides the result, digests of files among them; so a result that is made again and comes out the
    same leaves what depends on it valid.
    """

    def __init__(self, folder: Path, stage: str, inputs: Mapping[str, object]) -> None:
        self.folder = folder
        self.inputs = json.loads(json.dumps(inputs))  # as they will be read back
        self._file = folder / _FOLDER / f"{stage}.json"

    def valid(self) -> bool:
        """Whether the stage was done with these inputs, and all it made is still there as it was."""
        try:
            known = json.loads(self._file.read_bytes())
            made: dict[str, str] = known["made"]
            return bool(known["inputs"] == self.inputs) and all(
                (self.folder / name).is_file() and digest(self.folder / name) == content
                for name, content in made.items()
            )
        except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
            return False

    @property
    def inputs_before(self) -> dict[str, object] | None:
        """The inputs that the stage was done with, if it was."""
        try:
            known: dict[str, object] = json.loads(self._file.read_bytes())["inputs"]
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None
        return known

    @property
    def made(self) -> list[Path]:
        """The files that the stage made."""
        names: dict[str, str] = json.loads(self._file.read_bytes())["made"]
        return [self.folder / name for name in names]

    def clear(self) -> None:
        """Forget the stage, before it is done again: killed halfway it must not look done."""
        self._file.unlink(missing_ok=True)

    def write(self, made: Iterable[Path]) -> None:
        """Note that the stage is done."""
        files = {str(path.relative_to(self.folder)): digest(path) for path in made}
        content = {"inputs": self.inputs, "made": files}
        atomic_write(self._file, lambda file: file.write(json.dumps(content, indent=1).encode()))


def digest(path: Path) -> str:
    """A digest of a file's content."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:32]
