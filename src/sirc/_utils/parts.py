"""Parts of unfinished work, saved in a folder so that the work can resume."""

import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import final

from torch import Tensor

from sirc._utils.files import read_safetensors, write_safetensors
from sirc.errors import StoreError

SECONDS = 30.0  # between parts; a kill costs this much work and the batch after it


@final
class Parts:
    """Files with checksums, each a part of the work that `work` describes; files of other work are ignored."""

    def __init__(self, folder: Path, work: Mapping[str, str]) -> None:
        self.folder, self._work = folder, {**work}
        self._since: float | None = None

    @property
    def due(self) -> bool:
        """Whether to write a part: `SECONDS` have passed since the last one, or since this was first asked."""
        self._since = time.monotonic() if self._since is None else self._since
        return time.monotonic() - self._since >= SECONDS

    def path(self, number: int) -> Path:
        """The file of one part."""
        return self.folder / f"part-{number:012}.safetensors"

    def has(self, number: int, metadata: Mapping[str, str], *, verify: bool = True) -> bool:
        """Whether a part of this work exists with these metadata; `verify` compares its checksum."""
        with suppress(StoreError, OSError):
            written = read_safetensors(self.path(number), verify=verify)[1]
            return {**self._work, **metadata}.items() <= written.items()
        return False

    def read(self) -> Iterator[tuple[dict[str, Tensor], dict[str, str]]]:
        """The tensors and metadata of each part, by number; damaged parts are skipped, to be computed again."""
        for path in sorted(self.folder.glob("part-*.safetensors")):
            with suppress(StoreError, OSError):
                tensors, metadata = read_safetensors(path)
                if self._work.items() <= metadata.items():
                    # Clones, since the file may be deleted.
                    yield {name: tensor.clone() for name, tensor in tensors.items()}, metadata

    def write(self, number: int, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
        """Write one part atomically; its number says where in the work it begins."""
        write_safetensors(self.path(number), tensors, {**self._work, **metadata}, overwrite=True)
        self._since = time.monotonic()

    def remove(self) -> None:
        """Delete the folder, when the work is finished or starts over."""
        shutil.rmtree(self.folder, ignore_errors=True)
