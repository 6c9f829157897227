"""Dataset readers, which report unreadable items; fingerprints of any dataset."""

from __future__ import annotations

import hashlib
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, final

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    default_collate,
)
from torch.utils.data.distributed import DistributedSampler

from sirc._utils.arrays import bytes_of
from sirc.errors import ImageError

READ_ERRORS = (ImageError, OSError, SyntaxError, EOFError)  # Pillow raises the last three for incomplete files
_WORKER_OPTIONS = ("prefetch_factor", "multiprocessing_context", "timeout", "worker_init_fn")
_SAMPLED = 8  # items that represent a dataset
_REPEATS = 3  # readings of an item that must agree; with two, half of all random flips would go unnoticed


@dataclass(frozen=True)
class Unreadable:
    """An item that could not be read, and why."""

    index: int
    why: str
    fatal: bool = False
    """True if the machine failed, not the image: no file handle, no disk."""

    @classmethod
    def because(cls, index: int, error: Exception) -> Unreadable:
        """Describe an item by the error that reading it raised."""
        why = re.sub(r"^\[Errno \d+\] ", "", str(error))
        return cls(index, why or type(error).__name__, is_system_error(error))

    def at(self, where: str) -> str:
        """The reason, after the name of the item unless that is in it already."""
        return self.why if where in self.why else f"{where}: {self.why}"


@dataclass(frozen=True)
class IndexedBatch:
    """A batch: the dataset indices of its rows, the model's input (None without rows), and the unreadable items."""

    index: Sequence[int]
    batch: object
    lost: list[Unreadable]


class Reader(ABC):
    """A dataset that is read in batches."""

    dataset: Dataset[Any]
    batch_size: int

    def __len__(self) -> int:
        return len(self.dataset)  # type: ignore[arg-type]

    @abstractmethod
    def read(self, spans: Sequence[range], *, pin: bool = False, workers: int | None = None) -> Iterator[IndexedBatch]:
        """Read these rows in order. Each span starts a new batch, so any number of processes makes the same batches."""

    def first(self, count: int) -> object:
        """Read the first `count` items, or the next ones if none of these can be read; None if no item can be."""
        for start in range(0, len(self), count):
            for got in self.read([range(start, min(start + count, len(self)))], workers=0):
                if got.batch is not None:
                    return got.batch
        return None

    def batches(self, spans: Sequence[range]) -> list[range]:
        """Cut each span into batches."""
        size = self.batch_size
        return [span[start : start + size] for span in spans for start in range(0, len(span), size)]

    def where(self, index: int) -> str:
        """Name an item for messages."""
        dataset: Any = self.dataset
        while isinstance(dataset, Subset):
            dataset, index = dataset.dataset, int(dataset.indices[index])
        return str(dataset.where(index)) if hasattr(dataset, "where") else f"item {index}"


@final
@dataclass(frozen=True)
class DatasetReader(Reader):
    """Reads the items of a dataset with a `DataLoader` of its own."""

    dataset: Dataset[Any]
    batch_size: int
    workers: int = 0
    collate: Callable[[list[Any]], object] = default_collate
    options: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments of the `DataLoader` if it has workers."""

    def read(self, spans: Sequence[range], *, pin: bool = False, workers: int | None = None) -> Iterator[IndexedBatch]:
        """Read these rows in order, in worker processes if there are any."""
        batches = self.batches(spans)
        # Start no process that would get no batch.
        count = min(usable_workers(self.workers if workers is None else workers), len(batches))
        loader = DataLoader(
            _Batches(self.dataset, self.collate),
            batch_size=None,
            sampler=batches,
            num_workers=count,
            collate_fn=tuple,  # the batch as it is
            pin_memory=pin,
            generator=torch.Generator(),  # so that torch's global generator is not used
            **(self.options if count else {}),
        )
        try:
            for parts in loader:
                yield IndexedBatch(*parts)
        except (TypeError, RuntimeError) as error:
            if self.collate is not default_collate or not re.search("default_collate|equal size", str(error)):
                raise
            raise ValueError(
                "`data` must give tensors, arrays or numbers of one size, to form batches; got: "
                f"{str(error).splitlines()[-1]}. Prepare images with a transform that resizes and crops, such as "
                "`sirc.data.Preprocess().test()`, or pass a DataLoader with a `collate_fn`."
            ) from error


def is_system_error(error: BaseException) -> bool:
    """Whether the machine failed, not the image: errors of the system have a number, Pillow's have none."""
    return isinstance(error, OSError) and error.errno is not None


def usable_workers(wanted: int) -> int:
    """Limit the number of worker processes to the number of available processors."""
    on_linux = hasattr(os, "sched_getaffinity")
    return min(wanted, len(os.sched_getaffinity(0)) if on_linux else os.cpu_count() or 1)


def reader_of(data: object, *, batch_size: int, workers: int) -> DatasetReader | None:
    """Make the reader of a dataset or loader; None for an iterable without numbered items."""
    if isinstance(data, DataLoader):
        return _reader_of_loader(data)
    if not isinstance(data, Dataset) or isinstance(data, IterableDataset) or not hasattr(data, "__len__"):
        return None
    return DatasetReader(data, batch_size, workers)


def _reader_of_loader(loader: DataLoader[Any]) -> DatasetReader | None:
    out_of_order = ValueError(
        "`data` must give all items in a fixed order, since row i of the outputs belongs to item i; this DataLoader "
        "shuffles, or takes a share of the items. Pass the dataset itself, or a DataLoader with `shuffle=False`."
    )
    if isinstance(loader.sampler, RandomSampler | DistributedSampler):
        raise out_of_order
    if isinstance(loader.dataset, IterableDataset) or loader.batch_sampler is None:
        return None
    batch_size, dataset = loader.batch_size, loader.dataset
    if batch_size is None or not isinstance(loader.sampler, SequentialSampler):
        batches = loader.batch_sampler if batch_size is None else [loader.sampler]
        order, again = (list(chain.from_iterable(batches)) for _ in range(2))
        if order != again:
            raise out_of_order
        dataset = Subset(dataset, order)
    if batch_size is None:
        batch_size = max(map(len, loader.batch_sampler), default=1)
    options = {name: getattr(loader, name) for name in _WORKER_OPTIONS}
    return DatasetReader(dataset, batch_size, loader.num_workers, loader.collate_fn, options)


@final
@dataclass(frozen=True)
class _Batches(Dataset[object]):
    """The batches of a dataset, by the indices of their rows: readable items are collated, the others reported."""

    dataset: Dataset[Any]
    collate: Callable[[list[Any]], object]

    def __getitem__(self, rows: Sequence[int]) -> tuple[list[int], object, list[Unreadable]]:
        index, items, lost = [], [], []
        for row in rows:
            try:
                items.append(self.dataset[row])
                index.append(row)
            except READ_ERRORS as error:
                lost.append(Unreadable.because(row, error))
        return index, self.collate(items) if items else None, lost


def data_fingerprint(dataset: Dataset[Any]) -> str:
    """Digest a dataset: an `ImageSet` has a fingerprint, any other is identified by its length and a few items."""
    known = getattr(dataset, "fingerprint", None)
    if isinstance(known, str):
        return known
    digest = hashlib.sha256(type(dataset).__qualname__.encode())
    if isinstance(dataset, Subset):
        digest.update(data_fingerprint(dataset.dataset).encode())
        digest.update(np.asarray(dataset.indices, dtype=np.int64).tobytes())
        return digest.hexdigest()[:32]
    digest.update(str(len(dataset)).encode())  # type: ignore[arg-type]
    for index in _sampled(dataset):
        digest.update(_item_bytes(dataset, index))
    return digest.hexdigest()[:32]


def check_repeatable(dataset: Dataset[Any]) -> None:
    """Refuse a dataset that augments at random: outputs must be those of the images at test time."""
    if not len(dataset):  # type: ignore[arg-type]
        raise ValueError("`data` must hold at least one item; it is empty. Check the path and the split.")
    for index in _sampled(dataset):
        if len({_item_bytes(dataset, index) for _ in range(_REPEATS)}) > 1:
            raise ValueError(
                f"`data` must give the same item each time; item {index} differs when read again. Extract with the "
                "test-time preprocessing, without augmentation."
            )


def _sampled(dataset: Dataset[Any]) -> list[int]:
    """A few indices from the first to the last."""
    size = len(dataset)  # type: ignore[arg-type]
    return sorted({round(k * (size - 1) / (_SAMPLED - 1)) for k in range(_SAMPLED)}) if size else []


def _item_bytes(dataset: Dataset[Any], index: int) -> bytes:
    try:
        return _as_bytes(dataset[index])
    except READ_ERRORS as error:
        return repr(str(error)).encode()


def _as_bytes(item: object) -> bytes:
    if isinstance(item, Mapping):
        return b"".join(str(key).encode() + _as_bytes(item[key]) for key in sorted(item, key=str))
    if isinstance(item, tuple | list):
        return b"".join(map(_as_bytes, item))
    if isinstance(item, Tensor):
        return f"{item.dtype}{tuple(item.shape)}".encode() + bytes_of(item)
    if hasattr(item, "__array__") or hasattr(item, "__array_interface__"):  # PIL's images have the second
        array = np.asarray(item)
        return f"{array.dtype}{array.shape}".encode() + array.tobytes()
    return without_address(repr(item)).encode()


def without_address(description: str) -> str:
    """Remove the address from the repr of an object, since it differs between processes."""
    return re.sub(r" at 0x[0-9a-fA-F]+", "", description)
