"""Cuts outputs, batches of any lengths, and stores cut otherwise into the shards of a store."""

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from itertools import pairwise

from sirc.outputs.meta import Settings
from sirc.outputs.outputs import Outputs
from sirc.outputs.shards import Shards


def fill(
    shards: Shards, settings: Settings, batches: Iterable[object], skipped: list[int], empty: Outputs | None
) -> None:
    """Write all shards from batches with the rows of all items but those `skipped`, in order.

    `empty` is a selection without rows, for shards of which every item was skipped.
    """
    starts = [bisect_left(skipped, settings.items(i).start) for i in range(settings.num_shards)]
    lacking = [skipped[start:stop] for start, stop in pairwise([*starts, len(skipped)])]
    lengths = [len(settings.items(i)) - len(items) for i, items in enumerate(lacking)]
    filled = [i for i, length in enumerate(lengths) if length]
    for i, length in enumerate(lengths):
        if not length and empty is not None:
            shards.write(i, empty, lacking[i])
    # One row more than wanted is asked for at the end, to see whether there are too many.
    wanted = [lengths[i] + (i == filled[-1]) for i in filled]
    found = 0
    for i, shard in zip(filled, _rechunk(map(Outputs.of, batches), wanted), strict=False):
        found += len(shard)
        if len(shard) != lengths[i]:
            break
        shards.write(i, shard, lacking[i])
    if found != sum(lengths):
        raise ValueError(
            f"`size` must be the number of rows in all; got {settings.size}, but the batches have "
            f"{'at least ' if found > sum(lengths) else ''}{found}. Pass that, and `overwrite=True`."
        )


def _rechunk(batches: Iterable[Outputs], lengths: Iterable[int]) -> Iterator[Outputs]:
    """Cut and join batches into ones of these lengths; the last is shorter where rows run out."""
    source = iter(batches)
    rest: Outputs | None = None
    for length in lengths:
        waiting: list[Outputs] = []
        room = length
        while room and (rest := rest if rest is not None and len(rest) else next(source, None)) is not None:
            part, rest = rest[:room], rest[room:]
            waiting.append(part)
            room -= len(part)
        if waiting:
            yield Outputs.cat(waiting)
