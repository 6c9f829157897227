"""Extraction of a dataset shard by shard, written to disk while the model goes on."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias, final
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from sirc._utils import distributed
from sirc._utils.files import PathLike
from sirc.data import Reader, Unreadable, data_fingerprint
from sirc.errors import ImageError, OnError, StoreError
from sirc.extraction.from_device import raise_fatal
from sirc.extraction.runner import Runner
from sirc.models import fingerprint
from sirc.outputs import Outputs, OutputStore
from sirc.progress import Progress, Task

_FINGERPRINTS: WeakKeyDictionary[nn.Module, str] = WeakKeyDictionary()
_SKIP = (
    "skip, count and name such images: `--set extract.on_error=skip`, or "
    '`on_error = "skip"` in [extract]; in Python `on_error="skip"`.'
)
_Rows: TypeAlias = tuple[Tensor, Tensor | None, Tensor | None]


@contextmanager
def known_weights(model: nn.Module) -> Iterator[str]:
    """Take the model's fingerprint once for all datasets; inside, nothing may change its weights."""
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

    def in_memory(self, block: int) -> Outputs:
        """All rows, on the CPU."""
        size = len(self.reader)
        spans = [range(start, min(start + block, size)) for start in range(0, size, block)]
        with self.progress.task(self.name, size) as task:
            parts = [outputs for _, outputs, _ in self._outputs(spans, task) if len(outputs)]
        if not parts:
            raise ImageError(f"no image of {size} could be read; the first: {self.lost[0].why}")
        return Outputs.cat(parts)

    def on_disk(self, path: PathLike, shard_size: int, overwrite: bool) -> OutputStore:
        """The store, after this process wrote those of its shards that were missing and all others did too."""
        rank, world = distributed.rank(), distributed.world()
        with distributed.failing_together():
            model = _FINGERPRINTS.get(self.runner.model) or fingerprint(self.runner.model)
            data = data_fingerprint(self.reader.dataset)
            if self.runner.layer is None and not overwrite:  # a finished store names the layer of its features
                with suppress(StoreError):
                    store = OutputStore(path)
                    if store.complete and (match := re.match(r"features of '(.*)', (?:no )?labels, ", store.how or "")):
                        self.runner.layer = match[1]
            self.runner.find_layer(self.reader)
            create = partial(OutputStore.create, path, len(self.reader), shard_size=shard_size)
            create = partial(create, model=model, data=data, how=self.runner.how())
            if overwrite and distributed.is_main():
                create(overwrite=True)
        with distributed.failing_together():
            store = create()
            mine = range(rank, store.num_shards, world)
            missing = sorted(set(store.missing).intersection(mine))
            for i in mine:
                if i not in missing:
                    store.shard(i)  # compares its checksum, to report a damaged one now and not at the end
            if self.on_error == "stop" and (skipped := store.skipped):
                raise StoreError(
                    f"'{store.path}' lacks {len(skipped)} images that could not be read, such as "
                    f"{self.reader.where(skipped[0])}. Mend them and delete the shards that lack them, or {_SKIP}"
                )
        with distributed.failing_together():
            spans = [store.items(i) for i in missing]
            rows = sum(len(store.items(i)) for i in mine)
            done = rows - sum(map(len, spans))
            name = self.name if world == 1 else f"{self.name}, process {rank + 1} of {world}"
            last: Future[None] | None = None
            with self.progress.task(name, rows, done=done) as task, ThreadPoolExecutor(1) as pool:
                for number, outputs, skipped in self._outputs(spans, task):
                    if last is not None:
                        last.result()  # the model goes on while one shard is written, and no more than one waits
                    last = pool.submit(store.write, missing[number], outputs, skipped)
            if last is not None:
                last.result()
        return store

    def _outputs(self, spans: list[range], task: Task) -> Iterator[tuple[int, Outputs, list[int]]]:
        """The number, the outputs and the unreadable rows of each span in turn."""
        pin = self.runner.device.type == "cuda"
        parts: list[_Rows] = []
        number, rows_read, skipped = 0, 0, list[int]()
        empty: Outputs | None = None
        with self.runner.running():
            for got in self.reader.read(spans, pin=pin):
                self.lost += got.lost
                raise_fatal(got.lost, self.reader.where)
                if got.lost and self.on_error == "stop":
                    raise ImageError(
                        f"every image must be readable; {self.reader.where(got.lost[0].index)} is not: "
                        f"{got.lost[0].why} Mend or remove it, or {_SKIP}"
                    )
                skipped += [item.index for item in got.lost]
                if got.batch is not None:
                    parts.append(self.runner(got.batch))
                rows = len(got.index) + len(got.lost)
                rows_read += rows
                task.advance(rows)
                if rows_read == len(spans[number]):
                    outputs = self._join(parts, spans[number], empty)
                    empty = empty or outputs[:0]
                    yield number, outputs, skipped
                    parts, number, rows_read, skipped = [], number + 1, 0, []

    def _join(self, parts: list[_Rows], rows: range, empty: Outputs | None) -> Outputs:
        if not parts:
            if empty is None:
                raise ImageError(
                    f"none of the first {len(rows)} images can be read; the first: {self.lost[0].why} Check the path."
                )
            return empty
        columns = [None if column[0] is None else torch.cat(column).cpu() for column in zip(*parts, strict=True)]
        try:
            return Outputs(*columns)  # type: ignore[arg-type]
        except ValueError as error:
            hint = " Pass `labels=False` for OOD data with labels of their own." if "`labels`" in str(error) else ""
            raise ValueError(f"{error}{hint} Rows are counted from item {rows.start} of the data.") from error
