"""Extraction from images cached on the device, with the same batches as from files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch.utils.data import Dataset

from sirc.data import CachedImages, ImageSet, IndexedBatch, Preprocess, Reader, Unreadable


@final
@dataclass(frozen=True, eq=False)
class CachedSet(Reader, Dataset[object]):
    """Images to extract from, in a cache on the device that `load` fills if it is empty.

    Rows, values and batches are those of a `DatasetReader`; no worker processes are needed.
    """

    dataset: ImageSet
    preprocess: Preprocess
    load: Callable[[], CachedImages]
    batch_size: int = 256

    def read(self, spans: Sequence[range], *, pin: bool = False, workers: int | None = None) -> Iterator[IndexedBatch]:
        """Read these rows in order; the cache is not filled if there are none."""
        if not spans:
            return
        cache, labels = self.load(), self.dataset.labels
        normalise = self.preprocess.normalise_on(cache.pixels.device)
        unreadable = {item.index: item for item in cache.lost}
        for span in self.batches(spans):
            index = [i for i in span if i not in unreadable]
            lost = [unreadable[i] for i in span if i in unreadable]
            rows = torch.tensor(index) if lost else slice(span.start, span.stop)
            batch: object = None
            if index:
                x = normalise(cache[rows])
                batch = x if labels is None else (x, labels[rows])
            yield IndexedBatch(index, batch, lost)


def raise_fatal(lost: Sequence[Unreadable], where: Callable[[int], str]) -> None:
    """Raise if an image could not be read because the machine failed, such as its disk; ignore bad images."""
    for item in lost:
        if item.fatal:
            raise OSError(f"{where(item.index)} cannot be opened; the machine failed, not the image: {item.why}")
