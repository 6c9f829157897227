"""Parts of unfinished work, kept in a hidden folder so that the same work can resume."""

import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import final

from torch import Tensor

from sirc._utils.files import read_safetensors, write_safetensors
from sirc.errors import StoreError

SECONDS = 30.0  # of work that a kill costs at most


@final
class Parts:
    """Files with checksums, each a piece of the work that `work` describes; other work does not see them."""

    def __init__(self, folder: Path, work: Mapping[str, str]) -> None:
        self.folder, self._work = folder, {**work}
        self._since: float | None = None

    @property
    def due(self) -> bool:
        """Whether it is time for a part: the last one, or the first time that this was asked, is long ago."""
        self._since = time.monotonic() if self._since is None else self._since
        return time.monotonic() - self._since >= SECONDS

    def path(self, number: int) -> Path:
        """The file of one part."""
        return self.folder / f"part-{number:012}.safetensors"

    def has(self, number: int, metadata: Mapping[str, str], *, verify: bool = True) -> bool:
        """Whether a part of this work is there, whole if `verify`, and has these metadata."""
        with suppress(StoreError, OSError):
            written = read_safetensors(self.path(number), verify=verify)[1]
            return {**self._work, **metadata}.items() <= written.items()
        return False

    def read(self) -> Iterator[tuple[dict[str, Tensor], dict[str, str]]]:
        """Tensors and metadata of each part, by their numbers; a damaged one is left out, to be computed again."""
        for path in sorted(self.folder.glob("part-*.safetensors")):
            with suppress(StoreError, OSError):
                tensors, metadata = read_safetensors(path)
                if self._work.items() <= metadata.items():
                    yield {name: tensor.clone() for name, tensor in tensors.items()}, metadata  # the file may go

    def write(self, number: int, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
        """Write one part, whole or not at all; its number says where in the work it begins."""
        write_safetensors(self.path(number), tensors, {**self._work, **metadata}, overwrite=True)
        self._since = time.monotonic()

    def remove(self) -> None:
        """Delete the folder: the work is finished, or begins anew."""
        shutil.rmtree(self.folder, ignore_errors=True)
