"""Shards: cut, write, read and verify the files that hold the rows of a store."""

import operator
import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import SupportsIndex, final

from sirc._utils.checks import differences
from sirc._utils.files import read_metadata, read_safetensors, write_safetensors
from sirc.errors import StoreError
from sirc.outputs.meta import StoreMeta
from sirc.outputs.outputs import Layout, Outputs

SHARD_FILES = re.compile(r"shard-\d{5,}\.safetensors|\.shard-.*\.tmp")  # temporary files of killed writers too


@final
class Shards:
    """Reads and writes the shards in a folder, and remembers whose checksums were compared."""

    def __init__(self, folder: Path, meta: StoreMeta) -> None:
        self.folder = folder
        self._meta = meta
        self._layout: Layout | None = None
        self._verified: set[int] = set()
        self._skipped: dict[int, list[int]] = {}

    def file(self, i: int) -> Path:
        """The file of shard `i`."""
        return self.folder / f"shard-{i:05}.safetensors"

    @property
    def missing(self) -> list[int]:
        """The shards not yet written."""
        names = {entry.name for entry in self.folder.iterdir()}
        return [i for i in range(self._meta.num_shards) if self.file(i).name not in names]

    @property
    def present(self) -> list[int]:
        """The shards written so far."""
        return sorted(set(range(self._meta.num_shards)).difference(self.missing))

    @property
    def layout(self) -> Layout:
        """Sizes and types that all shards share, from the first shard that is there."""
        if self._layout is None:
            present = self.present
            if not present:
                raise StoreError(f"'{self.folder}' has no shard yet. Write one with `store.write(i, outputs)`.")
            self.read(present[0])
        assert self._layout is not None
        return self._layout

    @property
    def skipped(self) -> list[int]:
        """The items without a row, of the shards written so far; reads their headers, once."""
        all_read = len(self._skipped) == self._meta.num_shards
        return [item for i in (sorted(self._skipped) if all_read else self.present) for item in self.skipped_of(i)]

    def skipped_of(self, i: int) -> list[int]:
        """The items of shard `i` without a row."""
        if i not in self._skipped:
            self._require(i)
            self._skipped[i] = self._check_metadata(i, read_metadata(self.file(i)))
        return self._skipped[i]

    def read(self, i: int) -> Outputs:
        """Map shard `i`; its checksum is compared the first time only."""
        self._require(i)
        tensors, metadata = read_safetensors(self.file(i), verify=i not in self._verified)
        skipped, items = self._check_metadata(i, metadata), len(self._meta.items(i))
        shard = Outputs._trusted(tensors["logits"], tensors.get("features"), tensors.get("labels"))
        if len(shard) + len(skipped) != items:
            raise self._wrong(i, f"it has {len(shard)} rows and skips {len(skipped)} of {items} items")
        self._layout = self._layout or shard.layout
        self._check_layout(f"'{self.file(i)}'", shard.layout)  # racing writers may have disagreed
        self._verified.add(i)
        self._skipped[i] = skipped
        return shard

    def forget(self) -> None:
        """Compare all checksums again."""
        self._verified.clear()

    def write(self, i: int, outputs: Outputs, skipped: Iterable[SupportsIndex]) -> None:
        """Write shard `i`, whole or not at all; equal rows give equal bytes."""
        self._check_number(i)
        no_row = _check_skipped(i, self._meta.items(i), skipped, len(outputs))
        if self._layout is not None or self.present:
            self._check_layout(f"shard {i}", outputs.layout)
        metadata = {**self._meta.of_shard(i), "skipped": ",".join(map(str, no_row))}
        write_safetensors(self.file(i), outputs._tensors(), metadata, overwrite=True)
        self._layout = outputs.layout
        self._verified.discard(i)
        self._skipped[i] = no_row

    def fill(self, batches: Iterable[object], skipped: list[int], empty: Outputs | None) -> None:
        """Write all shards from batches with the rows of all items but those `skipped`, in order.

        `empty` is a selection without rows, for shards of which every item was skipped.
        """
        shards = [self._meta.items(i) for i in range(self._meta.num_shards)]
        starts = [bisect_left(skipped, items.start) for items in shards]
        no_row = [skipped[start:stop] for start, stop in pairwise([*starts, len(skipped)])]
        lengths = [len(items) - len(lacking) for items, lacking in zip(shards, no_row, strict=True)]
        filled = [i for i, length in enumerate(lengths) if length]
        for i, length in enumerate(lengths):
            if not length and empty is not None:
                self.write(i, empty, no_row[i])
        # The last shard asks for one row more than it holds, to notice rows that are left over.
        wanted = [lengths[i] + (i == filled[-1]) for i in filled]
        rows = 0
        for i, shard in zip(filled, _rechunk(map(Outputs.of, batches), wanted), strict=False):
            rows += len(shard)
            if len(shard) != lengths[i]:
                break
            self.write(i, shard, no_row[i])
        if rows != sum(lengths):
            raise ValueError(
                f"`size` must be the number of rows in all; got {self._meta.size}, but the batches have "
                f"{'at least ' if rows > sum(lengths) else ''}{rows}. Pass that, and `overwrite=True`."
            )

    def _check_number(self, i: int) -> None:
        last = self._meta.num_shards - 1
        if not 0 <= i <= last:
            raise ValueError(f"`i` must be a shard in 0…{last}; got {i}. See `store.missing`.")

    def _require(self, i: int) -> None:
        self._check_number(i)
        if not self.file(i).exists():
            raise StoreError(f"'{self.folder}' has no shard {i} yet. Write it with `store.write({i}, outputs)`.")

    def _check_layout(self, what: str, layout: Layout) -> None:
        if differing := self.layout.differences(layout):
            raise StoreError(
                f"all shards of '{self.folder}' must be alike; {what} is not: {differing}. "
                "Write it as the others are, or start anew with `create(..., overwrite=True)`."
            )

    def _check_metadata(self, i: int, metadata: Mapping[str, str]) -> list[int]:
        """Require that a shard was written for this place; return the items that it skips."""
        expected = self._meta.of_shard(i)
        if differing := differences(expected, {key: metadata.get(key) for key in expected}):
            raise StoreError(
                f"'{self.file(i)}' was written for another place: {differing}. Delete it and write it again."
            )
        text, items = metadata.get("skipped"), self._meta.items(i)
        # This may run before the checksum was compared, so the header can hold anything.
        try:
            no_row = [int(number) for number in text.split(",")] if text else []
        except ValueError:
            no_row = [-1]
        if text is None or any(item not in items for item in no_row) or no_row != sorted(set(no_row)):
            raise self._wrong(i, f"it gives the items it skips as {text!r}")
        return no_row

    def _wrong(self, i: int, why: str) -> StoreError:
        return StoreError(f"'{self.file(i)}' cannot be trusted: {why}. Delete it and write it again.")


def _check_skipped(i: int, items: range, skipped: Iterable[SupportsIndex], rows: int) -> list[int]:
    """Require that the rows and the skipped items make up shard `i`; return the items, sorted."""
    no_row = sorted(map(operator.index, skipped))
    outside = [item for item in no_row if item not in items]
    if outside or len(set(no_row)) != len(no_row):
        raise ValueError(
            f"`skipped` must be different dataset items of shard {i}, {items.start}…{items.stop - 1}; got "
            f"{outside[0] if outside else 'one of them twice'}. Count from the start of the dataset."
        )
    if rows + len(no_row) != len(items):
        less = f" less the {len(no_row)} skipped" if no_row else ""
        raise ValueError(
            f"shard {i} must have {len(items)} rows{less}, those of dataset rows {items.start}…{items.stop - 1}; got "
            f"{rows}. Name items without a row with `skipped=`; use `OutputStore.from_outputs` for batches of other "
            "lengths."
        )
    return no_row


def _rechunk(batches: Iterable[Outputs], lengths: Iterable[int]) -> Iterator[Outputs]:
    """Cut and join batches into ones of these lengths; the last is shorter where rows run out."""
    source = iter(batches)
    rest: Outputs | None = None
    for length in lengths:
        parts: list[Outputs] = []
        room = length
        while room and (rest := rest if rest is not None and len(rest) else next(source, None)) is not None:
            part, rest = rest[:room], rest[room:]
            parts.append(part)
            room -= len(part)
        if parts:
            yield Outputs.cat(parts)
