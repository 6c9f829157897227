"""Training rows as they come: batches numbered, seen to be of one kind, and gathered into blocks worth working on."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from typing import final

import torch
from torch import Tensor

from sirc._utils.checks import dtype_name
from sirc.outputs import Outputs, OutputStore
from sirc.progress import Progress
from sirc.scores.moments import fold_of

BLOCK_ROWS = 8192
_ROWS_ELSEWHERE = 1 << 15  # of outputs that are on a GPU already, which waits for launches with fewer


def numbered(train: Outputs | Iterable[object]) -> Iterator[tuple[Tensor, Outputs]]:
    """Batches with the dataset indices of their rows."""
    batches: Iterable[object]
    if isinstance(train, Outputs):
        size = BLOCK_ROWS if train.device.type == "cpu" else _ROWS_ELSEWHERE
        batches = [train[start : start + size] for start in range(0, len(train), size)]
    elif isinstance(train, Iterable) and not isinstance(train, dict | str | bytes):
        batches = train
    else:
        raise ValueError(
            "`train` must be an `Outputs`, an `OutputStore` or an iterable of batches; got "
            f"{type(train).__name__}. Wrap whole arrays: `sirc.Outputs(logits, features, labels)`"
        )
    start = 0
    for batch in batches:
        if isinstance(batch, Tensor):
            raise ValueError(
                "each batch of `train` must be an `Outputs`, a dict, or a tuple (logits, features, labels); got a "
                "tensor. Wrap whole arrays: `sirc.Outputs(logits, features, labels)`"
            )
        outputs = Outputs.of(batch)
        yield torch.arange(start, start + len(outputs), device="cpu"), outputs
        start += len(outputs)


def numbered_share(train: Outputs | OutputStore, rank: int, world: int) -> Iterator[tuple[Tensor, Outputs]]:
    """Every `world`-th block or shard, from the `rank`-th on, under the indices that `numbered` gives its rows."""
    if isinstance(train, Outputs):
        for start in range(rank * BLOCK_ROWS, len(train), world * BLOCK_ROWS):
            batch = train[start : start + BLOCK_ROWS]
            yield torch.arange(start, start + len(batch), device="cpu"), batch
        return
    skipped = train.skipped
    for i in range(rank, train.num_shards, world):
        batch = train.shard(i)
        item = i * train.shard_size
        start = item - bisect_left(skipped, item)
        if len(batch):
            yield torch.arange(start, start + len(batch), device="cpu"), batch


def share_length(train: Outputs | OutputStore, rank: int, world: int) -> int:
    """How many rows `numbered_share` gives, without reading any."""
    if isinstance(train, Outputs):
        starts = range(rank * BLOCK_ROWS, len(train), world * BLOCK_ROWS)
        return sum(min(BLOCK_ROWS, len(train) - start) for start in starts)
    return sum(len(train.index(i)) for i in range(rank, train.num_shards, world))


def shown(
    batches: Iterable[tuple[Tensor, Outputs]],
    device: torch.device | str | None,
    progress: Progress,
    name: str,
    total: int | None,
) -> Iterator[tuple[Tensor, Outputs]]:
    """The same batches on `device`, with a report of how far they have come."""
    with progress.task(name, total, unit="rows") as task:
        for index, batch in batches:
            yield index, batch if device is None else batch.to(device)
            task.advance(len(batch))


@final
class Gatherer:
    """Hands rows on in blocks of at least `BLOCK_ROWS`, however small the batches are that they come in."""

    def __init__(self, take: Callable[[Tensor, Outputs], None], copy: Callable[[Outputs], Outputs]) -> None:
        self._take = take
        self._copy = copy
        self._pending: list[tuple[Tensor, Outputs]] = []
        self._rows = 0

    def add(self, index: Tensor, outputs: Outputs) -> None:
        """Take in a batch; a small one waits for others, in memory of its own, as its owner may fill it again."""
        if len(outputs) >= BLOCK_ROWS:
            self.flush()
            self._take(index, outputs)
            return
        self._pending.append((index.clone(), self._copy(outputs)))
        self._rows += len(outputs)
        if self._rows >= BLOCK_ROWS:
            self.flush()

    def flush(self) -> None:
        """Hand on what waits."""
        if self._pending:
            index = torch.cat([rows for rows, _ in self._pending])
            outputs = Outputs.cat([part for _, part in self._pending])
            self._pending, self._rows = [], 0
            self._take(index, outputs)


def kind(outputs: Outputs) -> dict[str, str]:
    """What all batches of one training set share."""
    features = outputs.features
    return {
        "logits": dtype_name(outputs.dtype),
        "features": "none" if features is None else dtype_name(features.dtype),
        "device": str(outputs.device),
    }


def copied(outputs: Outputs) -> Outputs:
    """Logits and features in memory of their own."""
    features = None if outputs.features is None else outputs.features.clone()
    return Outputs._trusted(outputs.logits.clone(), features, None)


def probe(index: Tensor, outputs: Outputs) -> float:
    """A number that changes when rows change places: it weighs a few columns of each row by its index."""
    rows = outputs.logits if outputs.features is None else outputs.features
    some = rows[:, :: max(1, rows.shape[1] // 16)].double()
    # Columns weigh differently: features that sum to the same number in all rows are common (LayerNorm, softmax).
    column = torch.arange(1, some.shape[1] + 1, device=some.device).to(some)
    weight = fold_of(index, 1009, seed=1).to(some)
    return float(weight @ (some @ column))
