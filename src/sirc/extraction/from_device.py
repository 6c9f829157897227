"""Extraction from images that are held on the device: the batches of files, without reading any."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, final

import torch
from torch import Tensor
from torch.utils.data import Dataset

from sirc.data import CachedImages, IndexedBatch, OnUnreadable, Reader, Unreadable

if TYPE_CHECKING:
    from sirc.data import ImageSet, Preprocess


@final
class HeldSet(Dataset[object]):
    """Images to extract from, read from where they are held; `load` brings them there if need be."""

    def __init__(self, images: ImageSet, preprocess: Preprocess, load: Callable[[], CachedImages]) -> None:
        self.images = images
        self.preprocess = preprocess
        self.load = load

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> object:
        return self.images[index]

    @property
    def fingerprint(self) -> str:
        """That of the images: where they are read from changes nothing."""
        return self.images.fingerprint

    def where(self, index: int) -> str:
        """Name an image for messages."""
        return self.images.where(index)


@final
class HeldPlan(Reader):
    """Reads a `HeldSet` in the batches of a `DatasetReader`: same rows, same values, no worker."""

    dataset: HeldSet

    def __init__(self, dataset: HeldSet, batch_size: int) -> None:
        self.dataset = dataset
        self.batch_size = batch_size

    def read(self, spans: Sequence[range], *, pin: bool = False, workers: int | None = None) -> Iterator[IndexedBatch]:
        """Read these rows in order; nothing is decoded where there are none."""
        if not spans:
            return
        held, labels = self.dataset.load(), self.dataset.images.labels
        normalise = as_in_a_test(self.dataset.preprocess, held.pixels.device)
        lost_at = [item.index for item in held.lost]
        for start, stop in _batches(spans, self.batch_size):
            lost = list(held.lost[bisect_left(lost_at, start) : bisect_left(lost_at, stop)])
            index: Sequence[int] = range(start, stop)
            part: slice | Tensor = slice(start, stop)
            if lost:
                gone = {item.index for item in lost}
                index = [i for i in index if i not in gone]
                part = torch.tensor(index, dtype=torch.int64)
            batch: object = None
            if index:
                x = normalise(held[part if isinstance(part, slice) else part.to(held.pixels.device)])
                batch = x if labels is None else (x, labels[part])
            yield IndexedBatch(index, batch, lost)


def refuse_fatal(images: ImageSet) -> OnUnreadable:
    """Stop where the machine failed and not the image; what else is lost is counted when its row is read."""

    def lose(lost: Sequence[Unreadable]) -> None:
        for item in lost:
            if item.fatal:
                where = images.where(item.index)
                raise OSError(f"{where} cannot be opened, which is no fault of the image: {item.why}")

    return lose


def _batches(spans: Sequence[range], size: int) -> Iterator[tuple[int, int]]:
    for span in spans:
        for start in range(span.start, span.stop, size):
            yield start, min(start + size, span.stop)


def as_in_a_test(preprocess: Preprocess, device: torch.device) -> Callable[[Tensor], Tensor]:
    """The normalisation of `Preprocess.test`, step by step as torchvision does it, so that the values are the same."""
    mean = torch.tensor(preprocess.mean, device=device)[:, None, None]
    std = torch.tensor(preprocess.std, device=device)[:, None, None]
    return lambda images: images.to(torch.float32).mul_(1.0 / 255).sub_(mean).div_(std)
