"""Datasets and loaders read in shards: which rows, in which batches, with unreadable items named and not fatal."""

from __future__ import annotations

import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, final

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    Subset,
    default_collate,
)
from torch.utils.data.distributed import DistributedSampler

from sirc.errors import ImageError

Items: TypeAlias = Dataset[Any]

UNREADABLE = (ImageError, OSError, SyntaxError, EOFError)  # what Pillow raises for files that are no whole image
_FOR_WORKERS = ("prefetch_factor", "multiprocessing_context", "timeout", "worker_init_fn")
_PROBES = 8
_READINGS = 3


@dataclass(frozen=True)
class Unreadable:
    """An item that could not be read, and why."""

    index: int
    why: str
    fatal: bool = False
    """Whether it is the machine that failed, not the image: no space, no handle, no disk."""


@dataclass(frozen=True)
class Reading:
    """One batch: the dataset indices of its rows, what the model is given (None if no row is left), what was lost."""

    index: Sequence[int]
    batch: object
    lost: list[Unreadable]


class Reader(ABC):
    """Where extraction gets its batches from."""

    dataset: Items
    batch_size: int

    def __len__(self) -> int:
        return len(self.dataset)  # type: ignore[arg-type]

    @abstractmethod
    def read(self, spans: Sequence[range], *, pin: bool = False, workers: int | None = None) -> Iterator[Reading]:
        """Read these rows in order; batches restart with each span, so they do not depend on who reads which."""

    def where(self, index: int) -> str:
        """Name an item for messages."""
        dataset: Any = self.dataset
        while isinstance(dataset, Subset):
            dataset, index = dataset.dataset, int(dataset.indices[index])
        return str(dataset.where(index)) if hasattr(dataset, "where") else f"item {index}"


@final
@dataclass(frozen=True)
class Plan(Reader):
    """How a dataset is read: its items, how many at a time, and by whom."""

    dataset: Items
    batch_size: int
    workers: int = 0
    collate: Callable[[list[Any]], object] = default_collate
    options: Mapping[str, Any] | None = None

    def read(self, spans: Sequence[range], *, pin: bool = False, workers: int | None = None) -> Iterator[Reading]:
        """Read these rows in order; batches restart with each span, so they do not depend on who reads which."""
        if not spans:
            return
        batches = _SpanBatches(spans, self.batch_size)
        # Starting a process takes longer than most batches; one that gets none would only delay.
        count = min(usable_workers(self.workers if workers is None else workers), len(batches))
        options = {k: v for k, v in (self.options or {}).items() if count or k not in _FOR_WORKERS}
        loader = DataLoader(
            _Marked(self.dataset),
            batch_sampler=batches,
            num_workers=count,
            collate_fn=_Collate(self.collate),
            pin_memory=pin,
            generator=torch.Generator(),  # reading leaves the caller's random numbers alone
            **options,
        )
        for index, batch, lost in loader:
            yield Reading(index, batch, [Unreadable(*item) for item in lost])


def is_fatal(error: BaseException) -> bool:
    """Whether the machine failed and not the image: the system's own errors have a number, Pillow's do not."""
    return isinstance(error, OSError) and error.errno is not None


def usable_workers(wanted: int) -> int:
    """No more processes than this one has processors; their number changes nothing but the speed."""
    try:
        processors = len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS and Windows
        processors = os.cpu_count() or 1
    return min(wanted, processors)


def plan(data: object, *, batch_size: int, workers: int) -> Plan | None:
    """Find out how to read `data`; None for what can only be read as it comes."""
    if isinstance(data, DataLoader):
        return _plan_of_loader(data)
    indexed = isinstance(data, Dataset) and not isinstance(data, IterableDataset) and hasattr(data, "__len__")
    return Plan(data, batch_size, workers) if indexed and isinstance(data, Dataset) else None


def _plan_of_loader(loader: DataLoader[Any]) -> Plan | None:
    if isinstance(loader.sampler, RandomSampler | DistributedSampler):
        raise _shuffles(loader.sampler)
    if isinstance(loader.dataset, IterableDataset) or loader.batch_sampler is None:
        return None
    if loader.batch_size is None:
        indices = _fixed_order([i for batch in loader.batch_sampler for i in batch] for _ in range(2))
        batch_size = max(map(len, loader.batch_sampler), default=1)
    else:
        batch_size = loader.batch_size
        if isinstance(loader.sampler, SequentialSampler):
            indices = None
        else:
            indices = _fixed_order(list(loader.sampler) for _ in range(2))
    options = {name: getattr(loader, name) for name in _FOR_WORKERS}
    dataset = loader.dataset if indices is None else Subset(loader.dataset, indices)
    return Plan(dataset, batch_size, loader.num_workers, loader.collate_fn, options)


def _fixed_order(twice: Iterable[list[int]]) -> list[int]:
    first, second = twice
    if first != second:
        raise _shuffles()
    return first


def _shuffles(sampler: object = None) -> ValueError:
    does = "takes a share" if isinstance(sampler, DistributedSampler) else "shuffles"
    return ValueError(
        "`data` must come whole and in one fixed order, as row i of the outputs belongs to item i; this DataLoader "
        f"{does}. "
        "Pass the dataset itself, or a DataLoader with `shuffle=False`."
    )


@final
class _Marked(Dataset[object]):
    """The items of a dataset, each with its index; one that cannot be read comes as an `Unreadable`."""

    def __init__(self, dataset: Items) -> None:
        self.dataset = dataset

    def __getitem__(self, index: int) -> tuple[int, object]:
        try:
            return index, self.dataset[index]
        except UNREADABLE as error:
            return index, Unreadable(index, str(error) or type(error).__name__, is_fatal(error))


@final
class _Collate:
    """Collate what could be read; say what could not. Plain tuples and lists, so that workers hand them over."""

    def __init__(self, collate: Callable[[list[Any]], object]) -> None:
        self.collate = collate

    def __call__(self, items: list[tuple[int, object]]) -> tuple[list[int], object, list[tuple[int, str, bool]]]:
        good = [(index, item) for index, item in items if not isinstance(item, Unreadable)]
        lost = [(item.index, item.why, item.fatal) for _, item in items if isinstance(item, Unreadable)]
        batch = self.collate([item for _, item in good]) if good else None
        return [index for index, _ in good], batch, lost


@final
class _SpanBatches(Sampler[list[int]]):
    """Batches of consecutive indices that never cross from one span into the next."""

    def __init__(self, spans: Sequence[range], batch_size: int) -> None:
        self.spans = spans
        self.batch_size = batch_size

    def __iter__(self) -> Iterator[list[int]]:
        for span in self.spans:
            yield from BatchSampler(span, self.batch_size, drop_last=False)

    def __len__(self) -> int:
        return sum(-(-len(span) // self.batch_size) for span in self.spans)


def data_fingerprint(dataset: Items) -> str:
    """A digest of which items these are, and in which order.

    Sets of this package know theirs. Of any other dataset a few items are read: their values and the length count.
    """
    known = getattr(dataset, "fingerprint", None)
    if isinstance(known, str):
        return known
    digest = hashlib.sha256(type(dataset).__qualname__.encode())
    if isinstance(dataset, Subset):
        digest.update(data_fingerprint(dataset.dataset).encode())
        digest.update(np.asarray(dataset.indices, dtype=np.int64).tobytes())
        return digest.hexdigest()[:32]
    digest.update(str(len(dataset)).encode())  # type: ignore[arg-type]
    for index in _probed(dataset):
        _digest_item(digest, _item(dataset, index))
    return digest.hexdigest()[:32]


def check_repeatable(dataset: Items) -> None:
    """Refuse a dataset that augments: what is extracted must be what the model sees at test time."""
    if not len(dataset):  # type: ignore[arg-type]
        raise ValueError("`data` must hold at least one item; it is empty. Check the path and the split.")
    for index in _probed(dataset):
        seen = set()
        for _ in range(_READINGS):  # half of all flips show in two readings, and few samples are never flipped
            digest = hashlib.sha256()
            _digest_item(digest, _item(dataset, index))
            seen.add(digest.digest())
        if len(seen) > 1:
            raise ValueError(
                f"`data` must give the same item each time; item {index} differs when read again. Extract with the "
                "test-time preprocessing, without augmentation."
            )


def _probed(dataset: Items) -> list[int]:
    """A few indices from the first to the last."""
    size = len(dataset)  # type: ignore[arg-type]
    return sorted({round(k * (size - 1) / (_PROBES - 1)) for k in range(_PROBES)}) if size else []


def _item(dataset: Items, index: int) -> object:
    try:
        return dataset[index]
    except UNREADABLE as error:
        return str(error)


def _digest_item(digest: Any, item: object) -> None:
    if isinstance(item, Mapping):
        for key in sorted(item, key=str):
            digest.update(str(key).encode())
            _digest_item(digest, item[key])
    elif isinstance(item, tuple | list):
        for part in item:
            _digest_item(digest, part)
    elif isinstance(item, Tensor):
        digest.update(f"{item.dtype}{tuple(item.shape)}".encode())
        digest.update(item.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    elif hasattr(item, "__array__"):
        array = np.asarray(item)
        digest.update(f"{array.dtype}{array.shape}".encode() + array.tobytes())
    else:
        digest.update(repr(item).encode())
