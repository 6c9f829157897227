"""The `extract` function: any model over any data to outputs, in memory or in a store."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from contextlib import closing
from dataclasses import replace
from typing import Any, TypedDict, Unpack, overload

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from sirc._utils import distributed
from sirc._utils.checks import check_at_least, check_choice, check_positive, check_type
from sirc._utils.files import PathLike
from sirc._utils.precision import Precision
from sirc._utils.text import with_lines
from sirc.data import IndexedBatch, check_repeatable, reader_of
from sirc.errors import OnError
from sirc.extraction.from_device import CachedSet
from sirc.extraction.runner import Runner
from sirc.extraction.streams import moved_ahead
from sirc.extraction.writer import Extraction, Shard, finished
from sirc.models import fingerprint, unwrap
from sirc.outputs import Head, Outputs, OutputStore, Overwrite
from sirc.progress import Progress, as_progress


class _Options(TypedDict, total=False):  # the keyword arguments of `extract`, once for both overloads
    head: Head | str | None
    features: bool
    labels: bool
    batch_size: int
    workers: int
    precision: Precision
    channels_last: bool
    dtype: torch.dtype | None
    shard_size: int
    size: int | None
    on_error: OnError
    overwrite: Overwrite
    progress: Progress | bool | None
    name: str


@overload
def extract(
    model: nn.Module, data: Dataset[Any] | Iterable[object], path: None = None, **options: Unpack[_Options]
) -> Outputs: ...
@overload
def extract(
    model: nn.Module, data: Dataset[Any] | Iterable[object], path: PathLike, **options: Unpack[_Options]
) -> OutputStore: ...
def extract(
    model: nn.Module,
    data: Dataset[Any] | Iterable[object],
    path: PathLike | None = None,
    *,
    head: Head | str | None = None,
    features: bool = True,
    labels: bool = True,
    batch_size: int = 256,
    workers: int = 0,
    precision: Precision = "fp32",
    channels_last: bool = False,
    dtype: torch.dtype | None = None,
    shard_size: int = 8192,
    size: int | None = None,
    on_error: OnError = "stop",
    overwrite: Overwrite = False,
    progress: Progress | bool | None = None,
    name: str = "extract",
) -> Outputs | OutputStore:
    """Run `model` over `data` and keep its logits, the features that its head received, and the labels.

    `data` is a `Dataset` (read `batch_size` rows at a time by `workers` processes), a `DataLoader` that does not
    shuffle, or any iterable of batches, read in order. A batch is a tensor, (inputs, labels), or a dict. The model runs
    on its device in evaluation mode, and is left unchanged.

    Without `path` the result is an `Outputs` on the CPU. With one it is an `OutputStore`: shards of `shard_size` rows,
    written as soon as they are ready, so memory does not grow with the data. The next call continues a stopped
    one; inside `sirc.distributed.process_group()` the processes share the shards; the store is the same either way. It
    records the model, the data and these settings, and refuses others. All rows of a `DataLoader` are kept, even those
    that `drop_last` drops. An iterable that cannot be indexed needs `size`, is read by one process, and cannot be
    resumed: pass `overwrite=True` to read it again.

    Args:
        model: any classifier that `sirc.find_head` understands.
        data: the inputs, with test-time preprocessing.
        path: the folder of the store, or None to keep all rows in memory.
        head: the layer whose input is the features, or its name; by default, found by `sirc.find_head`.
        features: whether to keep features.
        labels: whether to keep labels; pass False for OOD data that has labels of its own.
        batch_size: the number of rows at a time, for a `Dataset`; a CPU takes large images in smaller steps.
        workers: the number of processes that read, for a `Dataset`.
        precision: "bf16" runs the model under autocast, and its last layer in float32 so that logits keep their order.
        channels_last: whether to pass images in that memory format.
        dtype: the dtype to store logits and features in; by default the model's.
        shard_size: the number of rows in a shard.
        size: the total number of rows, for an iterable without a length.
        on_error: "stop" at an image that cannot be read, or "skip" it; skipped images are counted and listed.
        overwrite: delete the rows of a store at `path`; "differing": only if it has other settings; "unfinished": only
            if it has other settings and is incomplete.
        progress: whether to show a bar, by default in a terminal and a notebook; or a `sirc.progress.Progress`.
        name: the name of this task in the progress.

    Example:
        >>> import sirc, torch
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
        >>> batches = [(torch.zeros(2, 4), torch.tensor([0, 1])), (torch.ones(1, 4), torch.tensor([2]))]
        >>> sirc.extract(model, batches)
        Outputs(3 rows, 3 classes, 8 features, labels, float32 on cpu)
    """
    check_type("model", model, nn.Module, "a torch.nn.Module", "Build it first.")
    check_type("head", head, Head | str | None, "a `sirc.Head`, or the name of a layer")
    check_type("dtype", dtype, torch.dtype | None, "a dtype of torch, such as torch.float16")
    progress = as_progress(progress)
    check_choice("on_error", on_error, ("stop", "skip"))
    check_choice("precision", precision, ("fp32", "bf16"))
    check_positive("shard_size", shard_size)
    check_positive("batch_size", batch_size)
    check_at_least("workers", workers, 0)
    distributed.require_joined("extract")
    runner = Runner(unwrap(model), head, features, labels, precision, channels_last, dtype)
    cached = replace(data, batch_size=batch_size) if isinstance(data, CachedSet) else None
    reader = cached or reader_of(data, batch_size=batch_size, workers=workers)
    if reader is None:
        return _extract_in_order(runner, data, path, shard_size, size, overwrite, progress, name)
    if size not in (None, len(reader)):
        raise ValueError(f"`size` must be the length of the data, {len(reader)}; got {size}. Leave it out.")
    if cached is None:  # a cache always gives the same images
        check_repeatable(reader.dataset)
    work = Extraction(runner, reader, on_error, progress, name)
    result = work.in_memory(shard_size) if path is None else work.on_disk(path, shard_size, overwrite)
    lost = {item.index: item for item in work.lost}  # by this process and in this call
    skipped = result.skipped if isinstance(result, OutputStore) else list(lost)
    if skipped and distributed.is_main():
        title = f"{len(skipped)} of {len(reader)} images could not be read and were skipped:"
        places = [(index, reader.where(index)) for index in skipped]
        progress.note(with_lines(title, [lost[index].at(place) if index in lost else place for index, place in places]))
    return result


def _extract_in_order(
    runner: Runner,
    data: object,
    path: PathLike | None,
    shard_size: int,
    size: int | None,
    overwrite: Overwrite,
    progress: Progress,
    name: str,
) -> Outputs | OutputStore:
    """Extract from batches that can only be read in order, by one process."""
    if not isinstance(data, Iterable) or isinstance(data, Mapping | str | bytes | Tensor):
        raise ValueError(
            f"`data` must be a Dataset, a DataLoader or an iterable of batches; got {type(data).__name__}. "
            "Wrap a single batch: [batch]."
        )
    if distributed.world() > 1:
        raise ValueError(
            "`data` that can only be read in order must be read by one process; there are "
            f"{distributed.world()}. Pass a Dataset with a length, or start one process."
        )
    if path is not None and size is None:
        raise ValueError(
            "`size`, the number of rows, must be given to store data without a length, since a store needs it from the "
            "start. Pass `size=…`, or no `path`."
        )

    def shards() -> Generator[Shard, None, None]:
        """Make a shard of each batch."""
        with progress.task(name, size) as task, runner.running():
            batches = (IndexedBatch((), batch, []) for batch in data)
            for number, got in enumerate(moved_ahead(batches, runner.device)):
                rows = runner(got.batch)
                shard = Shard(range(len(rows["logits"])), number)
                shard.add(len(shard.items), rows, [])
                shard.computed()
                task.advance(len(shard.items))
                yield shard

    with closing(finished(shards(), lambda shard: Outputs(**shard.take()))) as outputs:
        if path is not None:
            return OutputStore.from_outputs(
                path,
                outputs,
                size=size,
                shard_size=shard_size,
                model=fingerprint(runner.model),
                overwrite=overwrite is True,
            )
        parts = list(outputs)
    if not parts:
        raise ValueError("`data` must hold at least one batch; it is empty. Was this iterator used up before?")
    return Outputs.cat(parts)
