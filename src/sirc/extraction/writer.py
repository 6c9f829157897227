"""Extraction of a dataset shard by shard; threads write to disk while the model runs on."""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar, final
from weakref import WeakKeyDictionary

import torch
from torch import nn

from sirc._utils import distributed
from sirc._utils.files import PathLike
from sirc._utils.parts import Parts
from sirc.data import Reader, Unreadable, data_fingerprint
from sirc.errors import ImageError, OnError, StoreError
from sirc.extraction.from_device import raise_fatal
from sirc.extraction.runner import Runner
from sirc.extraction.streams import Columns, arrived, moved_ahead
from sirc.models import fingerprint
from sirc.outputs import Outputs, OutputStore, Overwrite
from sirc.progress import Progress, Task

_FINGERPRINTS: WeakKeyDictionary[nn.Module, str] = WeakKeyDictionary()
_SKIP = 'skip, count and name such images: `on_error="skip"`.'
_WRITERS = 2  # threads that finish shards: each computes a checksum and waits for the disk
_R = TypeVar("_R")


@contextmanager
def known_weights(model: nn.Module) -> Iterator[str]:
    """Compute the model's fingerprint once for several datasets; its weights must not change inside."""
    _FINGERPRINTS[model] = fingerprint(model)
    try:
        yield _FINGERPRINTS[model]
    finally:
        del _FINGERPRINTS[model]


@final
@dataclass
class Extraction:
    """The rows of an indexable dataset, shard by shard."""

    runner: Runner
    reader: Reader
    on_error: OnError
    progress: Progress
    name: str
    lost: list[Unreadable] = field(default_factory=list)
    _empty: Outputs | None = None
    """No rows, with the sizes and types of all rows."""

    def in_memory(self, block: int) -> Outputs:
        """Extract all rows to the CPU."""
        size = len(self.reader)
        shards = [Shard(range(size)[start : start + block], start // block) for start in range(0, size, block)]
        with self.progress.task(self.name, size) as task:
            return Outputs.cat(list(finished(self._filled(shards, task), self._unpinned)))

    def on_disk(self, path: PathLike, shard_size: int, overwrite: Overwrite) -> OutputStore:
        """Write the missing shards of this process, wait for the other processes, and return the store."""
        rank, world = distributed.rank(), distributed.world()
        with distributed.failing_together():
            model = _FINGERPRINTS.get(self.runner.model) or fingerprint(self.runner.model)
            data = data_fingerprint(self.reader.dataset)
            if self.runner.head is None and overwrite is not True:
                with suppress(StoreError):  # a complete store records the layer that its features come from
                    store = OutputStore(path)
                    if store.complete and (match := re.match(r"features of '(.*)', (?:no )?labels, ", store.how or "")):
                        self.runner.head = match[1]
            self.runner.find_head(self.reader)
            create = partial(OutputStore.create, path, len(self.reader), shard_size=shard_size)
            create = partial(create, model=model, data=data, how=self.runner.how())
            if overwrite and distributed.is_main():
                create(overwrite=overwrite)
        with distributed.failing_together():
            store = create()
            mine = range(rank, store.num_shards, world)
            missing = sorted(set(store.missing).intersection(mine))
            for i in mine:
                if i not in missing:
                    store.shard(i)  # compares its checksum, to report damage now and not at the end
                    store.parts(i).remove()  # in case its writer was killed before it did so
            if self.on_error == "stop" and (skipped := store.skipped):
                raise StoreError(
                    f"'{store.path}' lacks {len(skipped)} images that could not be read, such as "
                    f"{self.reader.where(skipped[0])}. Repair them and delete the shards that lack them, or {_SKIP}"
                )
        with distributed.failing_together():
            skips = self.on_error == "skip"
            shards = [Shard(store.items(i), i, store.parts(i), skips=skips) for i in missing]
            rows = sum(len(store.items(i)) for i in mine)
            done = rows - sum(len(shard.left) for shard in shards)

            def write(shard: Shard) -> None:
                store.write(shard.number, self._join(shard), shard.skipped)

            with self.progress.task(distributed.of_process(self.name), rows, done=done) as task:
                for _ in finished(self._filled(shards, task), write):
                    pass  # the shard is on disk
        return store

    def _filled(self, shards: Sequence[Shard], task: Task) -> Generator[Shard, None, None]:
        """Yield each shard once the model has run on all of it; the device may still be copying its rows."""
        device = self.runner.device
        with self.runner.running():
            spans = [shard.left for shard in shards if shard.left]
            batches = moved_ahead(self.reader.read(spans, pin=device.type == "cuda"), device)
            for shard in shards:
                try:
                    while shard.left:
                        got = next(batches)
                        self._check(got.lost)
                        rows = {} if got.batch is None else self.runner(got.batch)
                        read = len(got.index) + len(got.lost)
                        shard.add(read, rows, [item.index for item in got.lost])
                        task.advance(read)
                        if shard.parts is not None and shard.parts.due:
                            shard.keep()
                except BaseException:
                    with suppress(OSError, RuntimeError):  # the device may have failed
                        shard.keep()
                    raise
                shard.computed()
                if self._empty is None:
                    columns = shard.columns
                    if not columns and shard.items.start:  # an earlier call or another process has the shards before
                        batch = self.reader.first(2)
                        columns = {} if batch is None else self.runner(batch)
                    if not columns:
                        end, why = shard.items.stop, f"; the first: {self.lost[0].why}" if self.lost else "."
                        raise ImageError(f"none of the first {end} images can be read{why} Check the path.")
                    self._empty = Outputs._trusted(**{name: x[:0].to("cpu", copy=True) for name, x in columns.items()})
                yield shard

    def _check(self, lost: list[Unreadable]) -> None:
        """Raise for images that cannot be read, unless they are skipped."""
        self.lost += lost
        raise_fatal(lost, self.reader.where)
        if lost and self.on_error == "stop":
            raise ImageError(
                f"every image must be readable; {self.reader.where(lost[0].index)} is not: "
                f"{lost[0].why} Repair or remove it, or {_SKIP}"
            )

    def _unpinned(self, shard: Shard) -> Outputs:
        """The rows of a shard in ordinary memory, since pinned memory is scarce."""
        outputs = self._join(shard)
        return Outputs._trusted(**{name: x.clone() if x.is_pinned() else x for name, x in outputs._tensors().items()})

    def _join(self, shard: Shard) -> Outputs:
        if not shard.filled:
            assert self._empty is not None
            return self._empty
        try:
            return Outputs(**shard.take())
        except ValueError as error:
            hint = " Pass `labels=False` for OOD data that has labels of its own." if "`labels`" in str(error) else ""
            raise ValueError(f"{error}{hint} Rows are counted from item {shard.items.start} of the data.") from error


@final
class Shard:
    """An unfinished shard: its rows so far, starting with those that an earlier call kept in `parts`."""

    def __init__(self, items: range, number: int, parts: Parts | None = None, *, skips: bool = False) -> None:
        self.items, self.left, self.number, self.parts = items, items, number, parts
        self.columns: Columns = {}
        self.filled = 0
        self.skipped: list[int] = []
        self._wait: Callable[[], object] = lambda: None
        for tensors, about in () if parts is None else parts.read():
            first, end, *skipped = json.loads(about["items"])
            if first == self.left.start and (skips or not skipped):
                with suppress(ValueError):  # inconsistent rows are computed again
                    self.add(end - first, tensors, skipped)
        self._kept = self.left.start, self.filled, len(self.skipped)

    def add(self, count: int, rows: Columns, skipped: list[int]) -> None:
        """Add the rows of the next `count` items without the skipped ones; their copies to the host begin here."""
        given = len(rows["logits"]) if rows else 0
        if given != count - len(skipped):
            raise ValueError(
                f"a model must give one row of logits for each input; got {given} for {count - len(skipped)}. Drop, "
                "merge or repeat none in its `forward`."
            )
        for name, x in rows.items():
            if len(x) != given:
                raise ValueError(
                    f"`{name}` must have as many rows as `logits`; got {len(x)} and {given}. If the head runs several "
                    "times in a forward pass, let it run once, or name a layer that does, `head=…`, or pass "
                    "`features=False`."
                )
        if not self.filled:
            size = len(self.items)
            self.columns = {
                name: torch.empty(size, *x.shape[1:], dtype=x.dtype, pin_memory=x.is_cuda) for name, x in rows.items()
            }
        looks = [{name: (tuple(x.shape[1:]), x.dtype) for name, x in some.items()} for some in (self.columns, rows)]
        if rows and looks[0] != looks[1]:
            raise ValueError(
                f"all batches must give rows of the same shapes and types; got {looks[0]}, then {looks[1]}. Let the "
                "model and the data give the same for each batch, or pass `dtype=…`."
            )
        for name, x in rows.items():
            self.columns[name][self.filled : self.filled + given].copy_(x, non_blocking=x.is_cuda)
        self.left = self.left[count:]
        self.filled += given
        self.skipped += skipped

    def computed(self) -> None:
        """Note that the model has run on all rows so far, for `take` to wait for the last of them."""
        self._wait = arrived()

    def take(self) -> Columns:
        """Hand over the columns; the shard no longer holds them."""
        self._wait()
        columns, self.columns = self.columns, {}
        return {name: x[: self.filled] for name, x in columns.items()}

    def keep(self) -> None:
        """Write the rows added since the last call as one more part."""
        first, rows, skipped = self._kept
        if self.parts is not None and self.left.start > first:
            arrived()()
            items = [first, self.left.start, *self.skipped[skipped:]]
            new = {name: x[rows : self.filled] for name, x in self.columns.items()} if self.filled > rows else {}
            self.parts.write(first, new, {"items": json.dumps(items)})
            self._kept = self.left.start, self.filled, len(self.skipped)


def finished(shards: Generator[Shard, None, None], finish: Callable[[Shard], _R]) -> Generator[_R, None, None]:
    """Yield the result of `finish` for each shard, in order; threads call it while the model runs on the next ones."""
    waiting: deque[Future[_R]] = deque()
    # Closed at once if something fails, since the model is restored then.
    with ThreadPoolExecutor(_WRITERS) as pool, closing(shards):
        for shard in shards:
            waiting.append(pool.submit(finish, shard))
            # Results are passed on at once, and only these shards stay in memory.
            while waiting and (len(waiting) > _WRITERS or waiting[0].done()):
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
