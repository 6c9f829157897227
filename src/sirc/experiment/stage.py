"""A stage of a study: its inputs, its outputs, and the stamp that says whether it is done."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias, final

from sirc._utils.files import atomic_write
from sirc.outputs import OutputStore

Inputs: TypeAlias = dict[str, object]
_FOLDER = ".made-from"


@final
class Stage:
    """A piece of work that is not done twice.

    Its stamp, a note in `folder`, has the inputs that the stage was done with and a digest of each file it made. The
    stage is done if those are the inputs of now and all outputs are there, as they were made; it is stale if the stamp
    has other inputs. Inputs are all that decides the outputs, with digests of files among them: a file that is made
    again and comes out the same leaves what depends on it done.

    `run` does the work and gives the files it made. `recorded` is for stages whose outputs say themselves what they
    were made from, and for notes of older versions: it gets the inputs of the stamp, None where there is no stamp, and
    gives those to compare.
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        inputs: Mapping[str, object],
        *,
        outputs: Sequence[Path] = (),
        run: Callable[[], Iterable[Path]] = tuple,
        recorded: Callable[[Inputs | None], Inputs | None] = lambda stamped: stamped,
    ) -> None:
        self.name = name
        self.folder = folder
        self.inputs: Inputs = json.loads(json.dumps(inputs))  # as they will be read back
        self.outputs = outputs
        self._run, self._recorded = run, recorded
        self._stamp = folder / _FOLDER / f"{name}.json"

    @property
    def is_stamped(self) -> bool:
        """Whether there is a stamp, of whatever inputs."""
        return self._read() is not None

    @property
    def inputs_before(self) -> Inputs | None:
        """The inputs that the stage was done with, if it was."""
        stamp = self._read()
        return self._recorded(None if stamp is None else stamp["inputs"])

    @property
    def made(self) -> list[Path]:
        """The files that the stage made."""
        return [self.folder / name for name in (self._read() or {"made": {}})["made"]]

    def is_done(self) -> bool:
        """Whether the stage was done with these inputs, and all it made is still there as it was."""
        made: dict[str, str] = (self._read() or {"made": {}})["made"]
        return (
            self.inputs_before == self.inputs
            and all(map(_is_whole, self.outputs))
            and all(_is_whole(self.folder / name) and digest(self.folder / name) == made[name] for name in made)
        )

    def is_stale(self) -> bool:
        """Whether the stage was done with other inputs."""
        return self.inputs_before not in (None, self.inputs)

    def run(self) -> None:
        """Do the work, whatever is there, and stamp it."""
        self.forget()
        self.record(self._run())

    def forget(self) -> None:
        """Remove the stamp before the work is done again: killed halfway it must not look done."""
        self._stamp.unlink(missing_ok=True)

    def record(self, made: Iterable[Path] = ()) -> None:
        """Stamp the stage as done."""
        files = {str(path.relative_to(self.folder)): digest(path) for path in made}
        stamp = {"inputs": self.inputs, "made": files}
        atomic_write(self._stamp, lambda file: file.write(json.dumps(stamp, indent=1).encode()))

    def _read(self) -> dict[str, Any] | None:
        try:
            stamp = json.loads(self._stamp.read_bytes())
        except (FileNotFoundError, ValueError):
            return None
        known = isinstance(stamp, dict) and all(isinstance(stamp.get(key), dict) for key in ("inputs", "made"))
        return stamp if known else None


def digest(path: Path) -> str:
    """A digest of a file's content."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:32]


def _is_whole(path: Path) -> bool:
    """Whether there is a file, or a store that lacks no shard."""
    if not path.is_dir():
        return path.is_file()
    try:
        return OutputStore(path).complete
    except ValueError:
        return False
