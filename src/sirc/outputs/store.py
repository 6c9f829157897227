"""OutputStore: outputs on disk, in shards that many processes may write and any number read."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import SupportsIndex, final

import torch
from torch import Tensor

from sirc._utils.checks import check_positive
from sirc._utils.files import PathLike
from sirc.errors import StoreError
from sirc.outputs.meta import OTHER_DATA, OTHER_MODEL, STORE_FILE, StoreMeta
from sirc.outputs.outputs import Layout, Outputs
from sirc.outputs.shards import SHARD_FILES, Shards


@final
class OutputStore:
    """A folder of shards, read as `Outputs` batches; shard i holds the dataset items [i·S, (i+1)·S).

    ```python
    store = OutputStore.create("train", size=100_000, model=fingerprint)
    for i in store.missing:                      # all of them, or those an interrupted run left
        store.write(i, outputs_of_shard(i))
    for batch in OutputStore("train").batches(1024):
        ...
    ```

    An item whose image cannot be read has no row: `size` counts items, `len` rows, `skipped` names the difference,
    and `index(i)` gives the items that the rows of shard i belong to.

    `meta.json` is never rewritten, and what it does not hold is read off the shards. Hence no file is changed by two
    processes, and writers need no lock. Each shard carries its checksum, compared when this object first reads it.
    """

    def __init__(self, path: PathLike) -> None:
        self.path = Path(path)
        self._meta = meta = StoreMeta.read(self.path)
        self._shards = Shards(self.path, meta)
        self.model, self.data, self.how = meta.model, meta.data, meta.how
        """Fingerprints of the model and of the dataset with its preprocessing, and what else decides the outputs."""
        self.size, self.shard_size, self.num_shards = meta.size, meta.shard_size, meta.num_shards
        """The number of dataset items (`len` leaves out skipped ones), of items in a shard, and of shards."""

    @classmethod
    def create(
        cls,
        path: PathLike,
        size: int,
        *,
        shard_size: int = 8192,
        model: str | None = None,
        data: str | None = None,
        how: str | None = None,
        overwrite: bool = False,
    ) -> "OutputStore":
        """Make a store for `size` items, or open the one that is there if it was made with the same settings.

        `model` is a fingerprint of whatever computes the outputs, `data` one of what it computes them from, `how` says
        what else decides them, such as the layer and the precision.
        `overwrite=True` deletes the shards of a store that is there; with several processes, one does so before
        the others start.
        """
        path = Path(path)
        meta = StoreMeta(check_positive("size", size), check_positive("shard_size", shard_size), model, data, how)
        # The listing comes first: whoever wrote a shard that is in it had written the meta.json before.
        names = [entry.name for entry in path.iterdir()] if path.is_dir() else []
        if (path / STORE_FILE).exists():
            if not overwrite:
                store = cls(path)
                if differing := store._meta.differences(meta):
                    raise StoreError(
                        f"'{path}' is another store: {differing}. Choose another folder, or pass `overwrite=True` to "
                        "delete its shards."
                    )
                return store
            # Shards before meta.json: killed in between, this leaves an incomplete store and no orphans.
            for name in filter(SHARD_FILES.fullmatch, names):
                (path / name).unlink(missing_ok=True)
        elif any(not name.startswith(".") for name in names) or path.is_file():
            raise StoreError(f"a store must have a folder of its own; '{path}' is something else. Choose another path.")
        meta.write(path)
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
        data: str | None = None,
        how: str | None = None,
        overwrite: bool = False,
    ) -> "OutputStore":
        """Write an `Outputs`, or batches of any lengths (what `Outputs.of` takes), as a new store.

        `size`, the number of rows in all, may be left out where it can be counted beforehand: for an `Outputs`, a
        store, or a list of batches. A store is cut anew: its items stay, with those that have no row, and so do
        `model`, `data` and `how` unless others are given.
        """
        path = Path(path)
        if (path / STORE_FILE).exists() and not overwrite:
            raise FileExistsError(f"'{path}' exists already. Pass `overwrite=True` to replace it.")
        batches: Iterable[object] = [source] if isinstance(source, Outputs) else source
        skipped: list[int] = []
        if isinstance(source, OutputStore):
            if source.path.resolve() == path.resolve():
                raise ValueError(f"a store cannot be made from itself; both are '{path}'. Choose another path.")
            source.require_complete()
            skipped = source.skipped
            if size not in (None, source.size):
                raise ValueError(f"`size` must be that of the store, {source.size}; got {size}. Leave it out.")
            size = source.size
            model = source.model if model is None else model
            data = source.data if data is None else data
            how = source.how if how is None else how
        elif isinstance(source, Outputs) and size is None:
            size = len(source)
        elif isinstance(source, Sequence) and size is None:
            batches = parts = [Outputs.of(batch) for batch in source]
            size = sum(map(len, parts))
        if size is None:
            raise ValueError(
                "`size` must be given for batches that come one by one, as it is fixed when a store is made. "
                "Pass the number of rows in all, or a list of batches."
            )
        empty = source.shard(0)[:0] if isinstance(source, OutputStore) else None
        store = cls.create(path, size, shard_size=shard_size, model=model, data=data, how=how, overwrite=overwrite)
        store._shards.fill(batches, skipped, empty)
        return store

    @property
    def missing(self) -> list[int]:
        """The shards not yet written."""
        return self._shards.missing

    @property
    def complete(self) -> bool:
        """Whether every shard is written."""
        return not self.missing

    @property
    def skipped(self) -> list[int]:
        """The dataset items without a row, of the shards written so far; reads their headers, once."""
        return self._shards.skipped

    @property
    def layout(self) -> Layout:
        """Sizes and types that all shards share, from the first shard that is there."""
        return self._shards.layout

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
        self._check_source(self.model, fingerprint, OTHER_MODEL)

    def check_data(self, fingerprint: str) -> None:
        """Refuse a store of other data or preprocessing; one that names none is taken as it is."""
        self._check_source(self.data, fingerprint, OTHER_DATA)

    def _check_source(self, written: str | None, fingerprint: str, other: str) -> None:
        if written not in (None, fingerprint):
            raise StoreError(
                f"'{self.path}' is a store from {other}: it has {written!r}, this one is {fingerprint!r}. Extract "
                "again into another folder, or with `overwrite=True`."
            )

    def write(self, i: int, outputs: Outputs, skipped: Iterable[SupportsIndex] = ()) -> None:
        """Write shard `i`, whole or not at all; a shard already there is replaced.

        `skipped` are the dataset items of this shard that have no row. A shard may lack all: pass an empty selection,
        `outputs[:0]`, which still says what rows look like.
        """
        self._shards.write(i, outputs, skipped)

    def shard(self, i: int) -> Outputs:
        """The rows of one shard, memory-mapped; the other shards need not be there yet."""
        return self._shards.read(i)

    def items(self, i: int) -> range:
        """The dataset items of shard `i`, with those that have no row."""
        return self._meta.items(i)

    def index(self, i: int) -> Tensor:
        """The dataset items that the rows of shard `i` belong to, int64."""
        skipped = set(self._shards.skipped_of(i))
        rows = [item for item in self._meta.items(i) if item not in skipped]
        return torch.tensor(rows, dtype=torch.int64, device="cpu")

    def __len__(self) -> int:
        # Of shards not written yet, every item counts.
        return self.size - len(self.skipped)

    def __iter__(self) -> Iterator[Outputs]:
        return self.batches(self.shard_size)

    def batches(self, batch_size: int) -> Iterator[Outputs]:
        """Iterate over all rows, in order, as memory-mapped views of at most `batch_size` rows.

        A batch never spans two shards, so the last one of each shard may be shorter. A shard is mapped only
        while its batches are in use, however many shards there are.
        """
        size = check_positive("batch_size", batch_size)
        self.require_complete()
        return (batch for i in range(self.num_shards) for batch in self._shards.read(i).batches(size))

    def load(self, device: torch.device | str = "cpu") -> Outputs:
        """Read all rows into one `Outputs`, which must fit into memory."""
        self.require_complete()
        first = self._shards.read(0)
        if self.num_shards == 1:
            return first.to(device)
        # Filled shard by shard, so that the rows are never in memory twice.
        whole = {
            field: torch.empty((len(self), *x.shape[1:]), dtype=x.dtype, device=device)
            for field, x in first._tensors().items()
        }
        start = 0
        for i in range(self.num_shards):
            shard = self._shards.read(i)
            for field, x in shard._tensors().items():
                whole[field][start : start + len(shard)] = x
            start += len(shard)
        return Outputs._trusted(**whole)

    def verify(self) -> None:
        """Compare the checksum of every shard again, and require that none is missing."""
        self._shards.forget()
        damaged = []
        for i in self._shards.present:
            try:
                self._shards.read(i)
            except StoreError as error:
                damaged.append(str(error))
        if damaged:
            raise StoreError("\n".join(damaged))
        self.require_complete()

    def __repr__(self) -> str:
        present = self._shards.present
        try:
            skipped = len(self.skipped)
        except (StoreError, OSError):  # a damaged shard is for those who read it
            skipped = 0
        rows = f"{self.size - skipped} of {self.size} rows" if skipped else f"{self.size} rows"
        return f"OutputStore('{self.path}', {rows}, {len(present)} of {self.num_shards} shards)"

    def _file(self, i: int) -> Path:
        return self._shards.file(i)

    def require_complete(self) -> None:
        """Refuse a store with shards missing, and say which."""
        if missing := self.missing:
            listed = ", ".join(map(str, missing[:10])) + (", …" if len(missing) > 10 else "")
            raise StoreError(
                f"'{self.path}' must be complete to be read; {len(missing)} of {self.num_shards} shards are "
                f"missing: {listed}. Resume the extraction: it writes only those."
            )
