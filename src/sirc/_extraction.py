"""The work of extraction: the model with its features caught, rows in shards, shards written while it goes on."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from sirc import distributed
from sirc._calls import LABEL_KEYS, call_model, evaluating, model_logits
from sirc._checks import dtype_name
from sirc._choices import OnError, Precision
from sirc._files import PathLike
from sirc._reading import Plan, Unreadable, data_fingerprint
from sirc.errors import ImageError, StoreError
from sirc.head import Head, capture_features, find_head
from sirc.models import fingerprint
from sirc.outputs import Outputs
from sirc.progress import Progress, Task
from sirc.store import OutputStore

_STALE_SECONDS = 600  # a temporary file this old has no writer any more


@final
class Runner:
    """The model with its features caught: a batch in, (logits, features, labels) out, in the dtype to store."""

    def __init__(
        self,
        model: nn.Module,
        head: Head | str | None,
        features: bool,
        labels: bool,
        precision: Precision,
        channels_last: bool,
        dtype: torch.dtype | None,
    ) -> None:
        self.model = model
        self.layer = head.name if isinstance(head, Head) else head
        self.features = features
        self.labels = labels
        self.precision = precision
        self.channels_last = channels_last
        self.dtype = dtype
        self._take: Callable[[], Tensor] | None = None
        self._stack = ExitStack()
        # A layer that was found gives the logits and nothing else does; one that was named may be followed by more.
        self._is_last = not isinstance(head, str)

    @property
    def device(self) -> torch.device:
        first = next(self.model.parameters(), None)
        return torch.device("cpu") if first is None else first.device

    def find_layer(self, reading: Plan) -> None:
        """Find the head, if it is not known, with the first item that can be read."""
        if not self.features or self.layer is not None:
            return
        with self.running():
            for start in range(0, len(reading), reading.batch_size):
                for got in reading.read([range(start, min(start + 2, len(reading)))], workers=0):
                    if got.batch is not None:
                        self.layer = find_head(self.model, _first_rows(self._formatted(got.batch))).name
                        return

    def how(self) -> str:
        """What decides the outputs beside the model and the data, for the store to remember."""
        dtype = "as computed" if self.dtype is None else dtype_name(self.dtype)
        features = f"features of {self.layer!r}" if self.features else "no features"
        return f"{features}, {'labels' if self.labels else 'no labels'}, {self.precision}, stored {dtype}"

    @contextmanager
    def running(self) -> Iterator[None]:
        """Evaluation mode, no gradients, the asked-for precision; everything as it was afterwards."""
        with ExitStack() as self._stack:
            stack = self._stack
            stack.enter_context(evaluating(self.model))
            if self.precision == "bf16":
                stack.enter_context(torch.autocast(self.device.type, torch.bfloat16))
            try:
                yield
            finally:
                self._take = None

    def __call__(self, batch: object) -> tuple[Tensor, Tensor | None, Tensor | None]:
        batch = self._formatted(batch)
        if self.features and self._take is None:
            if self.layer is None:
                self.layer = find_head(self.model, _first_rows(batch)).name
            self._take = self._stack.enter_context(capture_features(self.model, self.layer))
        logits = model_logits(call_model(self.model, batch))
        z = self._take() if self._take is not None else None
        if z is not None and self.precision == "bf16" and self._is_last:
            logits = self._exact_logits(z)
        labels = _labels(batch, len(logits)) if self.labels else None
        return self._stored(logits), None if z is None else self._stored(z), labels

    def _exact_logits(self, features: Tensor) -> Tensor:
        """The last layer again in float32: in bfloat16, confident samples would tie."""
        layer: Any = self.model.get_submodule(self.layer or "")
        bias = None if layer.bias is None else layer.bias.float()
        with torch.autocast(features.device.type, enabled=False):
            return functional.linear(features.float(), layer.weight.flatten(1).float(), bias)

    def _formatted(self, batch: object) -> object:
        return _channels_last(batch) if self.channels_last else batch

    def _stored(self, values: Tensor) -> Tensor:
        return values if self.dtype is None else values.to(self.dtype)


@final
class Extraction:
    """The rows of an indexable dataset, shard by shard."""

    def __init__(
        self,
        runner: Runner,
        reading: Plan,
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
            model, data = fingerprint(self.runner.model), data_fingerprint(self.reading.dataset)
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
                f'{self.reading.where(skipped[0])}. Pass `on_error="skip"` (`--on-error skip`) to do without them, or '
                "mend them and delete the shards that lack them."
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
                'remove it, or pass `on_error="skip"` (`--on-error skip`), which counts and names such images.'
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


def _labels(batch: object, rows: int) -> Tensor | None:
    """The labels of (inputs, labels) or of a dict, if it has any."""
    if isinstance(batch, tuple | list):
        found = batch[1] if len(batch) > 1 else None
    elif isinstance(batch, Mapping):
        found = next((batch[key] for key in sorted(LABEL_KEYS) if key in batch), None)
    else:
        found = None
    if found is None:
        return None
    labels = torch.as_tensor(found)
    if labels.shape != (rows,) or labels.is_floating_point() or labels.is_complex():
        raise ValueError(
            f"`labels` must be one whole number for each of the {rows} inputs; got {labels.dtype} of shape "
            f"{tuple(labels.shape)}. Pass `labels=False` if these are no labels."
        )
    return labels


def _first_rows(batch: object) -> object:
    """The first two rows of a batch, to look at the model with."""
    if isinstance(batch, tuple | list):
        return [_first_rows(batch[0])]
    if isinstance(batch, Mapping):
        return {key: _first_rows(value) for key, value in batch.items()}
    return batch[:2] if isinstance(batch, Tensor) and batch.ndim else batch


def _channels_last(batch: object) -> object:
    if isinstance(batch, tuple | list):
        return [_channels_last(batch[0]), *batch[1:]]
    if isinstance(batch, Tensor) and batch.ndim == 4:
        return batch.contiguous(memory_format=torch.channels_last)
    return batch
