"""Extraction of a dataset shard by shard, written to disk while the model goes on."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
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
from sirc._utils.parts import Parts
from sirc.data import Reader, Unreadable, data_fingerprint
from sirc.errors import ImageError, OnError, StoreError
from sirc.extraction.from_device import raise_fatal
from sirc.extraction.runner import Runner
from sirc.models import fingerprint
from sirc.outputs import Outputs, OutputStore, Overwrite
from sirc.progress import Progress, Task

_FINGERPRINTS: WeakKeyDictionary[nn.Module, str] = WeakKeyDictionary()
_SKIP = 'skip, count and name such images: `on_error="skip"`.'
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
        shards = [_Shard(range(size)[start : start + block]) for start in range(0, size, block)]
        with self.progress.task(self.name, size) as task:
            parts = [outputs for outputs, _ in self._outputs(shards, task) if len(outputs)]
        if not parts:
            raise ImageError(f"no image of {size} could be read; the first: {self.lost[0].why}")
        return Outputs.cat(parts)

    def on_disk(self, path: PathLike, shard_size: int, overwrite: Overwrite) -> OutputStore:
        """The store, after this process wrote those of its shards that were missing and all others did too."""
        rank, world = distributed.rank(), distributed.world()
        with distributed.failing_together():
            model = _FINGERPRINTS.get(self.runner.model) or fingerprint(self.runner.model)
            data = data_fingerprint(self.reader.dataset)
            if self.runner.layer is None and overwrite is not True:  # a finished store names the layer of its features
                with suppress(StoreError):
                    store = OutputStore(path)
                    if store.complete and (match := re.match(r"features of '(.*)', (?:no )?labels, ", store.how or "")):
                        self.runner.layer = match[1]
            self.runner.find_layer(self.reader)
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
                    store.shard(i)  # compares its checksum, to report a damaged one now and not at the end
                    store.parts(i).remove()  # where its writer was killed before it did
            if self.on_error == "stop" and (skipped := store.skipped):
                raise StoreError(
                    f"'{store.path}' lacks {len(skipped)} images that could not be read, such as "
                    f"{self.reader.where(skipped[0])}. Mend them and delete the shards that lack them, or {_SKIP}"
                )
        with distributed.failing_together():
            shards = [_Shard(store.items(i), store.parts(i), skips=self.on_error == "skip") for i in missing]
            rows = sum(len(store.items(i)) for i in mine)
            done = rows - sum(len(shard.left) for shard in shards)
            last: Future[None] | None = None
            with (
                self.progress.task(distributed.of_process(self.name), rows, done=done) as task,
                ThreadPoolExecutor(1) as pool,
            ):
                for i, (outputs, skipped) in zip(missing, self._outputs(shards, task), strict=True):
                    before, last = last, pool.submit(store.write, i, outputs, skipped)
                    if before is not None:
                        before.result()  # the model goes on while one shard is written, and no more than one waits
            if last is not None:
                last.result()
        return store

    def _outputs(self, shards: Sequence[_Shard], task: Task) -> Iterator[tuple[Outputs, list[int]]]:
        """The outputs and the unreadable rows of each shard in turn."""
        empty: Outputs | None = None
        with self.runner.running():
            spans = [shard.left for shard in shards if shard.left]
            batches = self.reader.read(spans, pin=self.runner.device.type == "cuda")
            for shard in shards:
                try:
                    while shard.left:
                        got = next(batches)
                        self._check(got.lost)
                        rows = None if got.batch is None else self.runner(got.batch)
                        read = len(got.index) + len(got.lost)
                        shard.add(read, rows, [item.index for item in got.lost])
                        task.advance(read)
                        if shard.parts is not None and shard.parts.due:
                            shard.keep()
                except BaseException:
                    with suppress(OSError):
                        shard.keep()
                    raise
                outputs = self._join(shard, empty)
                shard.rows.clear()
                empty = empty or outputs[:0]
                yield outputs, shard.skipped

    def _check(self, lost: list[Unreadable]) -> None:
        """Stop at images that cannot be read, unless they are to be skipped."""
        self.lost += lost
        raise_fatal(lost, self.reader.where)
        if lost and self.on_error == "stop":
            raise ImageError(
                f"every image must be readable; {self.reader.where(lost[0].index)} is not: "
                f"{lost[0].why} Mend or remove it, or {_SKIP}"
            )

    def _join(self, shard: _Shard, empty: Outputs | None) -> Outputs:
        if not shard.rows:
            if empty is None:
                why = f"; the first: {self.lost[0].why}" if self.lost else "."
                raise ImageError(f"none of the first {len(shard.items)} images can be read{why} Check the path.")
            return empty
        try:
            return Outputs(**_columns(shard.rows))
        except ValueError as error:
            hint = " Pass `labels=False` for OOD data with labels of their own." if "`labels`" in str(error) else ""
            raise ValueError(f"{error}{hint} Rows are counted from item {shard.items.start} of the data.") from error


@final
class _Shard:
    """A shard in the making: its rows so far, beginning with those that an earlier run kept in `parts`."""

    def __init__(self, items: range, parts: Parts | None = None, *, skips: bool = False) -> None:
        self.items, self.left, self.parts = items, items, parts
        self.rows: list[_Rows] = []
        self.skipped: list[int] = []
        for tensors, about in () if parts is None else parts.read():
            first, end, *skipped = json.loads(about["items"])
            if first == self.left.start and (skips or not skipped):
                columns = (tensors["logits"], tensors.get("features"), tensors.get("labels")) if tensors else None
                with suppress(ValueError):  # what does not add up is computed again
                    self.add(end - first, columns, skipped)
        self._kept = self.left.start, len(self.rows), len(self.skipped)

    def add(self, count: int, rows: _Rows | None, skipped: list[int]) -> None:
        """Take the rows of the next `count` items, some of which may be skipped."""
        given = 0 if rows is None else len(rows[0])
        if given != count - len(skipped):
            raise ValueError(
                f"a model must give one row of logits for each input; got {given} for {count - len(skipped)}. Drop, "
                "merge or repeat none in its `forward`."
            )
        self.left = self.left[count:]
        self.rows += [] if rows is None else [rows]
        self.skipped += skipped

    def keep(self) -> None:
        """Write what came since the last part as one more."""
        first, rows, skipped = self._kept
        if self.parts is not None and self.left.start > first:
            items = [first, self.left.start, *self.skipped[skipped:]]
            self.parts.write(first, _columns(self.rows[rows:]), {"items": json.dumps(items)})
            self._kept = self.left.start, len(self.rows), len(self.skipped)


def _columns(rows: list[_Rows]) -> dict[str, Tensor]:
    """Logits, features and labels of several batches as one, on the CPU; those of an earlier run are there already."""
    named = zip(("logits", "features", "labels"), zip(*rows, strict=True), strict=False)
    return {name: torch.cat([x.cpu() for x in column]) for name, column in named if column[0] is not None}
