"""The shards of a store: files with the rows of some dataset items each, and the items of which they have no row."""

import operator
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import SupportsIndex, final

from sirc._utils.checks import differences
from sirc._utils.files import read_metadata, read_safetensors, write_safetensors
from sirc.errors import StoreError
from sirc.outputs.meta import Settings
from sirc.outputs.outputs import Layout, Outputs

FILES = re.compile(r"shard-\d{5,}\.safetensors|\.shard-.*\.tmp")  # and what killed writers left
_SKIPPED = "skipped"


@final
class Shards:
    """Reads and writes the shards in a folder, and remembers which were found whole."""

    def __init__(self, folder: Path, settings: Settings) -> None:
        self.folder = folder
        self._settings = settings
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
        return [i for i in range(self._settings.num_shards) if self.file(i).name not in names]

    @property
    def present(self) -> list[int]:
        """The shards written so far."""
        return sorted(set(range(self._settings.num_shards)).difference(self.missing))

    @property
    def layout(self) -> Layout:
        """What all shards share; read off the first one there is."""
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
        known = len(self._skipped) == self._settings.num_shards
        return [item for i in (sorted(self._skipped) if known else self.present) for item in self.skipped_of(i)]

    def skipped_of(self, i: int) -> list[int]:
        """The items of shard `i` without a row."""
        if i not in self._skipped:
            self._require(i)
            self._skipped[i] = self._read_label(i, read_metadata(self.file(i)))
        return self._skipped[i]

    def read(self, i: int) -> Outputs:
        """Map shard `i`; its checksum is compared the first time only."""
        self._require(i)
        tensors, metadata = read_safetensors(self.file(i), verify=i not in self._verified)
        skipped, items = self._read_label(i, metadata), len(self._settings.items(i))
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
        lacking = _check_skipped(i, self._settings.items(i), skipped, len(outputs))
        if self._layout is not None or self.present:
            self._check_layout(f"shard {i}", outputs.layout)
        fields = {"logits": outputs.logits, "features": outputs.features, "labels": outputs.labels}
        tensors = {field: value for field, value in fields.items() if value is not None}
        metadata = {**self._settings.label(i), _SKIPPED: ",".join(map(str, lacking))}
        write_safetensors(self.file(i), tensors, metadata, overwrite=True)
        self._layout = outputs.layout
        self._verified.discard(i)
        self._skipped[i] = lacking

    def _check_number(self, i: int) -> None:
        last = self._settings.num_shards - 1
        if not 0 <= i <= last:
            raise ValueError(f"`i` must be a shard in 0…{last}; got {i}. See `store.missing`.")

    def _require(self, i: int) -> None:
        self._check_number(i)
        if not self.file(i).exists():
            raise StoreError(f"'{self.folder}' has no shard {i} yet. Write it with `store.write({i}, outputs)`.")

    def _check_layout(self, what: str, layout: Layout) -> None:
        if words := self.layout.differences(layout):
            raise StoreError(
                f"all shards of '{self.folder}' must be alike; {what} is not: {words}. "
                "Write it as the others are, or start anew with `create(..., overwrite=True)`."
            )

    def _read_label(self, i: int, metadata: Mapping[str, str]) -> list[int]:
        """The items that a shard says it skips, after seeing that it is in its place."""
        label = self._settings.label(i)
        if words := differences(label, {key: metadata.get(key) for key in label}):
            raise StoreError(f"'{self.file(i)}' was written for another place: {words}. Delete it and write it again.")
        text, items = metadata.get(_SKIPPED), self._settings.items(i)
        # A header is also read before its checksum was compared, so it is not believed unseen.
        try:
            lacking = [int(word) for word in text.split(",")] if text else []
        except ValueError:
            lacking = [-1]
        if text is None or any(item not in items for item in lacking) or lacking != sorted(set(lacking)):
            raise self._wrong(i, f"it gives the items it skips as {text!r}")
        return lacking

    def _wrong(self, i: int, why: str) -> StoreError:
        return StoreError(f"'{self.file(i)}' cannot be trusted: {why}. Delete it and write it again.")


def _check_skipped(i: int, items: range, skipped: Iterable[SupportsIndex], found: int) -> list[int]:
    """Require that the rows found and the items skipped make up a shard; return the latter, sorted."""
    lacking = sorted(map(operator.index, skipped))
    outside = [item for item in lacking if item not in items]
    if outside or len(set(lacking)) != len(lacking):
        raise ValueError(
            f"`skipped` must be different dataset items of shard {i}, {items.start}…{items.stop - 1}; got "
            f"{outside[0] if outside else 'one of them twice'}. Count from the start of the dataset."
        )
    if found + len(lacking) != len(items):
        less = f" less the {len(lacking)} skipped" if lacking else ""
        raise ValueError(
            f"shard {i} must have {len(items)} rows{less}, those of dataset rows {items.start}…{items.stop - 1}; got "
            f"{found}. Name items without a row with `skipped=`; use `OutputStore.from_outputs` for batches of other "
            "lengths."
        )
    return lacking
