"""Training rows: batches with their dataset indices, and a buffer that joins small batches."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TypeAlias, final

import torch
from torch import Tensor

from sirc._utils.checks import iterates
from sirc.outputs import Outputs, OutputStore
from sirc.progress import Progress
from sirc.scores.moments import fold_of

OutputsLike: TypeAlias = Outputs | Iterable[object]
"""An `Outputs`, an `OutputStore`, or any iterable of batches that `Outputs.of` accepts."""
IndexedBatches: TypeAlias = Iterable[tuple[Tensor, Outputs]]
"""Batches with the dataset indices of their rows."""
BLOCK_ROWS = 8192
_GPU_BLOCK_ROWS = 1 << 15  # with smaller blocks a GPU would wait for kernel launches


def indexed_batches(train: OutputsLike, name: str = "train") -> Iterator[tuple[Tensor, Outputs]]:
    """All batches of the data, with indices that count the rows from 0."""
    batches: Iterable[object]
    if isinstance(train, Outputs):
        batches = train.batches(BLOCK_ROWS if train.device.type == "cpu" else _GPU_BLOCK_ROWS)
    elif iterates(train) and not isinstance(train, dict | str | bytes):
        batches = train
    else:
        raise ValueError(
            f"`{name}` must be an `Outputs`, an `OutputStore` or an iterable of batches; got "
            f"{type(train).__name__}. Wrap whole arrays: `sirc.Outputs(logits, features, labels)`; of a dataset, "
            "`sirc.extract(model, data)` makes them"
        )
    start = 0
    for batch in batches:
        if isinstance(batch, Tensor):
            raise ValueError(
                f"each batch of `{name}` must be an `Outputs`, a dict, or a tuple (logits, features, labels); got a "
                "tensor. Wrap whole arrays: `sirc.Outputs(logits, features, labels)`"
            )
        outputs = Outputs.of(batch)
        yield torch.arange(start, start + len(outputs), device="cpu"), outputs
        start += len(outputs)


def share_of(train: Outputs | OutputStore, rank: int, world: int) -> list[tuple[range, Callable[[], Outputs]]]:
    """Every `world`-th block or shard from `rank` on: its row indices, as in `indexed_batches`, and how to read it."""
    if isinstance(train, Outputs):
        starts = range(rank * BLOCK_ROWS, len(train), world * BLOCK_ROWS)
        blocks = [range(start, min(start + BLOCK_ROWS, len(train))) for start in starts]
        return [(rows, partial(train.__getitem__, slice(rows.start, rows.stop))) for rows in blocks]
    skipped, items = train.skipped, [*range(0, train.size, train.shard_size), train.size]
    bounds = [item - bisect_left(skipped, item) for item in items]
    return [(range(*bounds[i : i + 2]), partial(train.shard, i)) for i in range(rank, train.num_shards, world)]


def with_progress(
    batches: IndexedBatches, device: torch.device | str | None, progress: Progress, name: str, total: int | None
) -> Iterator[tuple[Tensor, Outputs]]:
    """The same batches, moved to `device`, with a progress bar."""
    with progress.task(name, total, unit="rows") as task:
        for index, batch in batches:
            yield index, batch if device is None else batch.to(device)
            task.advance(len(batch))


@final
class RowBuffer:
    """Joins small batches into blocks of at least `BLOCK_ROWS` rows, and passes these to `consume`."""

    def __init__(self, consume: Callable[[Tensor, Outputs], None]) -> None:
        self._consume = consume
        self._pending: list[tuple[Tensor, Outputs]] = []
        self._rows = 0

    def add(self, index: Tensor, outputs: Outputs) -> None:
        """Add a batch. A small one waits as a copy, since its owner may reuse the memory."""
        if len(outputs) >= BLOCK_ROWS:
            self.flush()
            self._consume(index, outputs)
            return
        copy = Outputs._trusted(**{name: column.clone() for name, column in outputs._tensors().items()})
        self._pending.append((index.clone(), copy))
        self._rows += len(outputs)
        if self._rows >= BLOCK_ROWS:
            self.flush()

    def flush(self) -> None:
        """Pass on the rows that wait."""
        if self._pending:
            index = torch.cat([rows for rows, _ in self._pending])
            outputs = Outputs.cat([part for _, part in self._pending])
            self._pending, self._rows = [], 0
            self._consume(index, outputs)


def checksums(index: Tensor, outputs: Outputs) -> Tensor:
    """Two checksums of some columns of the rows: the first ignores the order of the rows, the second does not."""
    rows = outputs.logits if outputs.features is None else outputs.features
    some = rows[:, :: max(1, rows.shape[1] // 16)].double()
    # The columns have different weights: often all rows have the same plain sum (after LayerNorm or softmax).
    column = torch.arange(1, some.shape[1] + 1, device=some.device).to(some)
    weight = torch.stack((torch.ones_like(index), fold_of(index, 1009, seed=1)))
    return (weight.to(some) @ (some @ column)).cpu()
