"""The work of extraction: rows in shards, unreadable ones counted, shards written while the model goes on."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import final
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from sirc._utils import distributed
from sirc._utils.choices import OnError
from sirc._utils.files import PathLike
from sirc.data import Reader, Unreadable, data_fingerprint
from sirc.errors import ImageError, StoreError
from sirc.extraction.runner import Runner
from sirc.models import fingerprint
from sirc.outputs import Outputs, OutputStore
from sirc.progress import Progress, Task

_STALE_SECONDS = 600  # a temporary file this old has no writer any more
_KNOWN: WeakKeyDictionary[nn.Module, str] = WeakKeyDictionary()


@contextmanager
def known_weights(model: nn.Module) -> Iterator[str]:
    """Take the model's fingerprint once for all datasets; inside, nothing may change its weights."""
    _KNOWN[model] = fingerprint(model)
    try:
        yield _KNOWN[model]
    finally:
        del _KNOWN[model]


@final
class Extraction:
    """The rows of an indexable dataset, shard by shard."""

    def __init__(
        self,
        runner: Runner,
        reading: Reader,
        on_error: OnError,
        progress: Progress,
        name: str,
        lost: list[Unreadable],
    ) -> None:
        self.runner = runner
        self.reading = reading
        self.on_error = on_error
        self.progress = progress
        self.name = name
        self.lost = lost

    def in_memory(self, block: int) -> Outputs:
        """All rows, on the CPU."""
        size = len(self.reading)
        spans = [range(start, min(start + block, size)) for start in range(0, size, block)]
        with self.progress.task(self.name, size) as task:
            parts = [outputs for _, outputs, _ in self._outputs(spans, task) if len(outputs)]
        if not parts:
            raise ImageError(f"no image of {size} could be read; the first: {self.lost[0].why}")
        return Outputs.cat(parts)

    def on_disk(self, path: PathLike, shard_size: int, overwrite: bool) -> OutputStore:
        """The store, with every shard of this process that is missing written, and all others waited for."""
        rank, world = distributed.rank(), distributed.world()
        with distributed.failing_together():
            model = _KNOWN.get(self.runner.model) or fingerprint(self.runner.model)
            data = data_fingerprint(self.reading.dataset)
            self._settle_layer(path, overwrite)
            if overwrite and distributed.is_main():
                self._create(path, shard_size, model, data, overwrite=True)
        with distributed.failing_together():
            store = self._create(path, shard_size, model, data)
            mine = range(rank, store.num_shards, world)
            missing = sorted(set(store.missing).intersection(mine))
            for i in mine:
                _sweep(store.path, i)
                if i not in missing:
                    store.shard(i)  # compares its checksum: a damaged one is told now, not when all the rest is done
            self._refuse_skipped(store)
        with distributed.failing_together():
            spans = [store.items(i) for i in missing]
            rows = sum(len(store.items(i)) for i in mine)
            done = rows - sum(map(len, spans))
            name = self.name if world == 1 else f"{self.name}, process {rank + 1} of {world}"
            with self.progress.task(name, rows, done=done) as task, _Writer(store) as writer:
                for number, outputs, skipped in self._outputs(spans, task):
                    writer.write(missing[number], outputs, skipped)
        return store

    def _settle_layer(self, path: PathLike, overwrite: bool) -> None:
        """Know the layer before the store does: that of a finished one, or the one that the model shows."""
        try:
            store = None if overwrite else OutputStore(path)
        except StoreError:
            store = None
        if self.runner.layer is None and store is not None and store.complete and store.how is not None:
            self.runner.layer = _layer_in(store.how)
        self.runner.find_layer(self.reading)

    def _create(self, path: PathLike, shard_size: int, model: str, data: str, overwrite: bool = False) -> OutputStore:
        return OutputStore.create(
            path,
            len(self.reading),
            shard_size=shard_size,
            model=model,
            data=data,
            how=self.runner.how(),
            overwrite=overwrite,
        )

    def _refuse_skipped(self, store: OutputStore) -> None:
        """What an earlier run skipped is no complete answer to one that must not skip."""
        if self.on_error == "stop" and (skipped := store.skipped):
            raise StoreError(
                f"'{store.path}' lacks {len(skipped)} images that could not be read, such as "
                f"{self.reading.where(skipped[0])}. Mend them and delete the shards that lack them, or do without: "
                '`--set extract.on_error=skip`, or `on_error = "skip"` in [extract]; in Python `on_error="skip"`.'
            )

    def _outputs(self, spans: list[range], task: Task) -> Iterator[tuple[int, Outputs, list[int]]]:
        """The number, the outputs and the unreadable rows of each span in turn."""
        pin = self.runner.device.type == "cuda"
        parts: list[tuple[Tensor, Tensor | None, Tensor | None]] = []
        number, seen, skipped = 0, 0, list[int]()
        layout: Outputs | None = None
        with self.runner.running():
            for got in self.reading.read(spans, pin=pin):
                self._lose(got.lost)
                skipped += [item.index for item in got.lost]
                if got.batch is not None:
                    parts.append(self.runner(got.batch))
                rows = len(got.index) + len(got.lost)
                seen += rows
                task.advance(rows)
                if seen == len(spans[number]):
                    outputs = self._join(parts, spans[number], layout)
                    layout = layout or outputs[:0]
                    yield number, outputs, skipped
                    parts, number, seen, skipped = [], number + 1, 0, []

    def _lose(self, lost: list[Unreadable]) -> None:
        self.lost += lost
        for item in lost:
            if item.fatal:
                where = self.reading.where(item.index)
                raise OSError(f"{where} cannot be opened, which is no fault of the image: {item.why}")
        if lost and self.on_error == "stop":
            raise ImageError(
                f"every image must be readable; {self.reading.where(lost[0].index)} is not: {lost[0].why} Mend or "
                "remove it, or skip, count and name such images: `--set extract.on_error=skip`, or "
                '`on_error = "skip"` in [extract]; in Python `on_error="skip"`.'
            )

    def _join(
        self, parts: list[tuple[Tensor, Tensor | None, Tensor | None]], rows: range, layout: Outputs | None
    ) -> Outputs:
        if not parts:
            if layout is None:
                raise ImageError(
                    f"none of the first {len(rows)} images can be read; the first: {self.lost[0].why} Check the path."
                )
            return layout
        columns = [None if column[0] is None else torch.cat(column).cpu() for column in zip(*parts, strict=True)]
        try:
            return Outputs(*columns)  # type: ignore[arg-type]
        except ValueError as error:
            hint = " Pass `labels=False` for OOD data with labels of their own." if "`labels`" in str(error) else ""
            raise ValueError(f"{error}{hint} Rows are counted from item {rows.start} of the data.") from error


@final
class _Writer:
    """Writes shards in a thread of its own, one ahead, so that the model need not wait for the disk."""

    def __init__(self, store: OutputStore) -> None:
        self.store = store
        self._pool = ThreadPoolExecutor(1)
        self._last: Future[None] | None = None

    def write(self, i: int, outputs: Outputs, skipped: list[int]) -> None:
        """Hand over a shard; what went wrong with the one before is raised here."""
        self._wait()
        self._last = self._pool.submit(self.store.write, i, outputs, skipped)

    def _wait(self) -> None:
        last, self._last = self._last, None
        if last is not None:
            last.result()

    def __enter__(self) -> _Writer:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            if error is None:
                self._wait()
        finally:
            self._pool.shutdown()


def _sweep(folder: Path, i: int) -> None:
    """Remove what killed writers of a shard left."""
    for file in folder.glob(f".shard-{i:05}.*.tmp"):
        with suppress(FileNotFoundError):
            if time.time() - file.stat().st_mtime > _STALE_SECONDS:
                file.unlink()


def _layer_in(how: str) -> str | None:
    found = re.match(r"features of '(.*)', (?:no )?labels, ", how)
    return found[1] if found else None
