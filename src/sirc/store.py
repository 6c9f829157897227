"""The outputs of a model on a dataset too large for memory: shards on disk that many processes may write."""

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import final

import torch
from torch import Tensor

from sirc import _settings
from sirc._checks import check_positive, differences
from sirc._files import PathLike, read_safetensors, write_safetensors
from sirc._settings import Settings
from sirc.errors import StoreError
from sirc.outputs import Layout, Outputs

_SHARD = re.compile(r"shard-\d{5,}\.safetensors|\.shard-.*\.tmp")  # and what killed writers left


@final
class OutputStore:
    """A folder of shards, read as `Outputs` batches; shard i holds the dataset rows [i·S, (i+1)·S).

    ```python
    store = OutputStore.create("train", size=100_000, model=fingerprint)
    for i in store.missing:                      # all of them, or those an interrupted run left
        store.write(i, outputs_of_shard(i))
    for batch in OutputStore("train").batches(1024):
        ...
    ```

    `meta.json` holds what is fixed at creation and is never rewritten; what the outputs look like is read off
    the shards. Hence no file is changed by two processes, and writers need no lock. Each shard carries its
    checksum, compared when this object first reads it.
    """

    def __init__(self, path: PathLike) -> None:
        self.path = Path(path)
        self._settings = Settings.read(self.path)
        self._layout: Layout | None = None
        self._verified: set[int] = set()

    @classmethod
    def create(
        cls,
        path: PathLike,
        size: int,
        *,
        shard_size: int = 8192,
        model: str | None = None,
        overwrite: bool = False,
    ) -> "OutputStore":
        """Make a store for `size` rows, or open the one that is there if it was made with the same settings.

        `model` is a fingerprint of whatever computes the outputs. `overwrite=True` deletes the shards of a
        store that is there; with several processes, one does so before the others start.
        """
        path = Path(path)
        settings = Settings(check_positive("size", size), check_positive("shard_size", shard_size), model)
        # The listing comes first: whoever wrote a shard that is in it had written the meta.json before.
        names = [entry.name for entry in path.iterdir()] if path.is_dir() else []
        if (path / _settings.FILE).exists():
            if not overwrite:
                store = cls(path)
                if words := store._settings.differences(settings):
                    raise StoreError(
                        f"'{path}' is a store with other settings: {words}. Use those, choose another "
                        "folder, or pass `overwrite=True` to delete its shards."
                    )
                return store
            # Shards before meta.json: killed in between, this leaves an incomplete store and no orphans.
            for name in filter(_SHARD.fullmatch, names):
                (path / name).unlink(missing_ok=True)
        elif any(not name.startswith(".") for name in names) or path.is_file():
            raise StoreError(f"a store must have a folder of its own; '{path}' is something else. Choose another path.")
        settings.write(path)
        return cls(path)

    @classmethod
    def from_outputs(
        cls,
        path: PathLike,
        source: "Outputs | OutputStore | Iterable[object]",
        *,
        size: int | None = None,
        shard_size: int = 8192,
        model: str | None = None,
        overwrite: bool = False,
    ) -> "OutputStore":
        """Write an `Outputs`, or batches of any lengths (what `Outputs.of` takes), as a new store.

        `size`, the number of rows in all, may be left out where it can be counted beforehand: for an
        `Outputs`, a store, or a list of batches.
        """
        path = Path(path)
        if (path / _settings.FILE).exists() and not overwrite:
            raise FileExistsError(f"'{path}' exists already. Pass `overwrite=True` to replace it.")
        if isinstance(source, OutputStore) and source.path.resolve() == path.resolve():
            raise ValueError(f"a store cannot be made from itself; both are '{path}'. Choose another path.")
        batches: Iterable[object] = [source] if isinstance(source, Outputs) else source
        if size is None and isinstance(source, Outputs | OutputStore):
            size = len(source)
        elif size is None and isinstance(source, Sequence):
            batches = parts = [Outputs.of(batch) for batch in source]
            size = sum(map(len, parts))
        if size is None:
            raise ValueError(
                "`size` must be given for batches that come one by one, as it is fixed when a store is made. "
                "Pass the number of rows in all, or a list of batches."
            )
        store = cls.create(path, size, shard_size=shard_size, model=model, overwrite=overwrite)
        found = 0
        for i, shard in enumerate(_rechunk(map(Outputs.of, batches), shard_size)):
            found += len(shard)
            if len(shard) != len(store._settings.rows(i)):
                break
            store.write(i, shard)
        if found != size:
            raise ValueError(
                f"`size` must be the number of rows in all; got {size}, but the batches have "
                f"{'at least ' if found > size else ''}{found}. Pass that, and `overwrite=True`."
            )
        return store

    @property
    def model(self) -> str | None:
        """The fingerprint of the model, if one was given."""
        return self._settings.model

    @property
    def shard_size(self) -> int:
        """S, the rows of each shard but perhaps the last."""
        return self._settings.shard_size

    @property
    def num_shards(self) -> int:
        """How many shards a complete store has."""
        return self._settings.num_shards

    @property
    def missing(self) -> list[int]:
        """The shards not yet written."""
        names = {entry.name for entry in self.path.iterdir()}
        return [i for i in range(self.num_shards) if self._file(i).name not in names]

    @property
    def complete(self) -> bool:
        """Whether every shard is written."""
        return not self.missing

    @property
    def layout(self) -> Layout:
        """What all shards share; read off the first one there is."""
        if self._layout is None:
            present = self._present()
            if not present:
                raise StoreError(f"'{self.path}' has no shard yet. Write one with `store.write(i, outputs)`.")
            self._layout = self._read(present[0]).layout
        return self._layout

    @property
    def num_classes(self) -> int:
        """K, the number of logits per row."""
        return self.layout.num_classes

    @property
    def num_features(self) -> int | None:
        """L, the number of features per row, or None without features."""
        return self.layout.num_features

    @property
    def has_labels(self) -> bool:
        """Whether the rows have labels."""
        return self.layout.labels

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the logits."""
        return self.layout.dtype

    def check_model(self, fingerprint: str) -> None:
        """Refuse a store that another model wrote; one that names no model is taken as it is."""
        if self.model not in (None, fingerprint):
            raise StoreError(
                f"'{self.path}' is a store from another model: it has {self.model!r}, this one is "
                f"{fingerprint!r}. Extract again into another folder, or with `overwrite=True`."
            )

    def write(self, i: int, outputs: Outputs) -> None:
        """Write shard `i`, whole or not at all; a shard already there is replaced."""
        if not 0 <= i < self.num_shards:
            raise ValueError(f"`i` must be a shard in 0…{self.num_shards - 1}; got {i}. See `store.missing`.")
        rows = self._settings.rows(i)
        if len(outputs) != len(rows):
            raise ValueError(
                f"shard {i} must have {len(rows)} rows, those of dataset rows {rows.start}…{rows.stop - 1}; "
                f"got {len(outputs)}. Use `OutputStore.from_outputs` for batches of other lengths."
            )
        if self._layout is not None or self._present():
            self._check_layout(f"shard {i}", outputs.layout)
        fields = {"logits": outputs.logits, "features": outputs.features, "labels": outputs.labels}
        tensors = {field: value for field, value in fields.items() if value is not None}
        write_safetensors(self._file(i), tensors, self._settings.label(i), overwrite=True)
        self._layout = outputs.layout
        self._verified.discard(i)

    def __len__(self) -> int:
        return self._settings.size

    def __iter__(self) -> Iterator[Outputs]:
        return self.batches(self.shard_size)

    def batches(self, batch_size: int) -> Iterator[Outputs]:
        """Iterate over all rows, in order, as memory-mapped views of at most `batch_size` rows.

        A batch never spans two shards, so the last one of each shard may be shorter. A shard is mapped only
        while its batches are in use, however many shards there are.
        """
        size = check_positive("batch_size", batch_size)
        self._require_complete()
        return (batch for i in range(self.num_shards) for batch in self._read_like(i).batches(size))

    def load(self, device: torch.device | str = "cpu") -> Outputs:
        """Read all rows into one `Outputs`, which must fit into memory."""
        self._require_complete()
        first = self._read_like(0)
        if self.num_shards == 1:
            return first.to(device)

        def room(like: Tensor) -> Tensor:
            return torch.empty((len(self), *like.shape[1:]), dtype=like.dtype, device=device)

        logits = room(first.logits)
        features = None if first.features is None else room(first.features)
        labels = None if first.labels is None else room(first.labels)
        # Filled shard by shard, so that the whole is never there twice.
        for i in range(self.num_shards):
            shard, rows = self._read_like(i), self._settings.rows(i)
            for whole, part in ((logits, shard.logits), (features, shard.features), (labels, shard.labels)):
                if whole is not None and part is not None:
                    whole[rows.start : rows.stop] = part
        return Outputs._trusted(logits, features, labels)

    def verify(self) -> None:
        """Compare the checksum of every shard again, and see that none is missing."""
        self._verified.clear()
        damaged = []
        for i in self._present():
            try:
                self._read_like(i)
            except StoreError as error:
                damaged.append(str(error))
        if damaged:
            raise StoreError("\n".join(damaged))
        self._require_complete()

    def __repr__(self) -> str:
        shards = f"{len(self._present())} of {self.num_shards} shards"
        return f"OutputStore('{self.path}', {len(self)} rows, {shards})"

    def _file(self, i: int) -> Path:
        return self.path / f"shard-{i:05}.safetensors"

    def _present(self) -> list[int]:
        return sorted(set(range(self.num_shards)).difference(self.missing))

    def _read(self, i: int) -> Outputs:
        """Map shard `i`; its checksum is compared the first time only."""
        file = self._file(i)
        tensors, metadata = read_safetensors(file, verify=i not in self._verified)
        if words := differences(self._settings.label(i), metadata):
            raise StoreError(f"'{file}' was written for another place: {words}. Delete it and write it again.")
        self._verified.add(i)
        return Outputs._trusted(tensors["logits"], tensors.get("features"), tensors.get("labels"))

    def _read_like(self, i: int) -> Outputs:
        """Map shard `i` and see that it is like the others: racing writers may have disagreed."""
        shard = self._read(i)
        self._layout = self._layout or shard.layout
        self._check_layout(f"'{self._file(i)}'", shard.layout)
        return shard

    def _check_layout(self, what: str, layout: Layout) -> None:
        if words := self.layout.differences(layout):
            raise StoreError(
                f"all shards of '{self.path}' must be alike; {what} is not: {words}. "
                "Write it as the others are, or start anew with `create(..., overwrite=True)`."
            )

    def _require_complete(self) -> None:
        if missing := self.missing:
            listed = ", ".join(map(str, missing[:10])) + (", …" if len(missing) > 10 else "")
            raise StoreError(
                f"'{self.path}' must be complete to be read; {len(missing)} of {self.num_shards} shards are "
                f"missing: {listed}. Resume the extraction: it writes only those."
            )


def _rechunk(batches: Iterable[Outputs], rows: int) -> Iterator[Outputs]:
    """Cut and join batches of any lengths into ones of `rows` rows; the last may be shorter."""
    waiting: list[Outputs] = []
    room = rows
    for batch in batches:
        for part in (batch[:room], *batch[room:].batches(rows)):
            waiting.append(part)
            room -= len(part)
            if room == 0:
                yield Outputs.cat(waiting)
                waiting, room = [], rows
    if waiting:
        yield Outputs.cat(waiting)
