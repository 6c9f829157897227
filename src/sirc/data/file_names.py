"""File names: millions of them in two buffers that worker processes share."""

import hashlib
import os
from array import array
from collections.abc import Iterable, Iterator
from typing import final

import numpy as np


@final
class FileNames:
    """An immutable sequence of relative file names with forward slashes, stored as joined bytes and their ends.

    A list of str would take 100 bytes a name, and each worker process would copy its memory pages when it counts
    references.
    """

    def __init__(self, names: Iterable[str]) -> None:
        text, ends = bytearray(), array("Q")
        for name in names:
            text += os.fsencode(name)
            ends.append(len(text))
        self._text, self._ends = bytes(text), ends

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, index: int) -> str:
        return os.fsdecode(self._text[self._ends[index - 1] if index else 0 : self._ends[index]])

    def __iter__(self) -> Iterator[str]:
        return (self[index] for index in range(len(self)))

    def digest(self) -> str:
        """Checksum the names and their order."""
        ends = np.asarray(self._ends, dtype="<u8")
        return hashlib.sha256(self._text + ends.tobytes()).hexdigest()
