"""Rankings of confidences beyond memory: sorted blocks on disk, merged chunk by chunk into counts on disk."""

from __future__ import annotations

import mmap
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from pathlib import Path
from tempfile import TemporaryFile
from typing import final

import numpy as np
import numpy.typing as npt

from sirc._utils.arrays import Floats, as_tensor, counts_from_above
from sirc._utils.files import DISK_FULL
from sirc.metrics.ranking import Ranking

_CHUNK = 1 << 20  # confidences merged at a time
_LEAST = 1 << 10  # the fewest of them from one block, so that a read pays off


@final
@dataclass(frozen=True)
class SortedBlock:
    """Confidences from the lowest to the highest, as float64 in a file between two byte offsets."""

    path: Path
    start: int
    end: int

    def __len__(self) -> int:
        return (self.end - self.start) // 8

    def __getitem__(self, place: int) -> float:
        return float(self.read(place, place + 1)[0])

    def read(self, first: int, after: int) -> Floats:
        """Read only the confidences at these places."""
        return np.fromfile(self.path, np.float64, after - first, offset=self.start + 8 * first)


def ranking_of_blocks(
    correct: Sequence[SortedBlock],
    wrong: Sequence[SortedBlock],
    ood: Sequence[Sequence[SortedBlock]],
    folder: Path,
    *,
    equal_sets: bool = False,
) -> Ranking:
    """The ranking of the blocks of ID✓, ID✗ and each OOD set; its counts are in an unnamed file in `folder`.

    With `equal_sets` OOD sets weigh the same, else samples do. The file disappears with the ranking, or the process.
    """
    groups = [correct, wrong, *ood]
    sizes = [sum(map(len, blocks)) for blocks in groups]
    total = sum(sizes)
    weighted = equal_sets and len(ood) > 1
    weights = np.array([1 / size for size in sizes[2:]]) if weighted else np.ones(len(ood), dtype=np.int64)
    count = np.dtype(np.int32 if total < 1 << 31 else np.int64)
    kinds = [np.dtype(np.float64), count, count, weights.dtype if weighted else count]
    starts = [0, *accumulate(total * kind.itemsize for kind in kinds)]  # space that is not written takes none on disk
    length = 0
    try:
        with TemporaryFile(dir=folder) as file:
            for thresholds, counts in merged(groups):
                columns = (thresholds, *counts[:2], weights @ counts[2:])
                for column, kind, start in zip(columns, kinds, starts, strict=False):
                    file.seek(start + length * kind.itemsize)
                    file.write(column.astype(kind).data)
                length += len(thresholds)
            file.truncate(starts[-1])
            pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        if error.errno not in DISK_FULL:
            raise
        text = f"'{folder}' cannot take the counts of {total:,} rows, about 20 bytes for each: {error.strerror}"
        raise OSError(error.errno, f"{text}. Make room, or choose another folder") from error
    mapped = (np.frombuffer(pages, kind, length, start) for kind, start in zip(kinds, starts, strict=False))
    tensors = [as_tensor("counts", column) for column in mapped]
    return Ranking._of_counts(tensors, (*sizes[:2], sum(sizes[2:])), partial(_release, pages))


def _release(pages: mmap.mmap) -> None:
    """Drop the pages of a mapped file from memory, which else stay as long as there is room."""
    if hasattr(pages, "madvise"):  # not on Windows
        pages.madvise(mmap.MADV_DONTNEED)


def merged(groups: Sequence[Sequence[SortedBlock]]) -> Iterator[tuple[Floats, npt.NDArray[np.int64]]]:
    """Chunks of thresholds, the strictest first, and how many of each group they accept, (groups, thresholds).

    Memory depends neither on the length of the blocks nor on how many of their values are equal.
    """
    blocks = [(number, block) for number, group in enumerate(groups) for block in group]
    left = [len(block) for _, block in blocks]
    each = max(_LEAST, _CHUNK // max(1, len(blocks)))
    before = np.zeros((len(groups), 1), dtype=np.int64)
    while any(left):
        # The values above the cut are among the last `each` of every block; further ones may equal it.
        starts = [max(0, end - each) for end in left]
        lasts = [block.read(start, end) for (_, block), start, end in zip(blocks, starts, left, strict=True)]
        cut = max((last[0] for last, start in zip(lasts, starts, strict=True) if start), default=-np.inf)
        pieces: list[list[Floats]] = [[] for _ in groups]
        more = np.zeros(len(groups), dtype=np.int64)
        for i, (number, block) in enumerate(blocks):
            below = int(np.searchsorted(lasts[i], cut))
            pieces[number].append(lasts[i][below:])
            left[i] = starts[i] + below
            if starts[i] and not below:
                left[i] = bisect_left(block, cut, 0, starts[i])
                more[number] += starts[i] - left[i]
        thresholds, counts = counts_from_above([np.concatenate([np.empty(0), *parts]) for parts in pieces])
        counts += before
        counts[:, -1] += more
        before = counts[:, -1:].copy()
        yield thresholds, counts
