"""OutputStore: outputs on disk, in shards that several processes can write and read."""

import hashlib
import json
import operator
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, SupportsIndex, TypeAlias, final

import torch
from torch import Tensor

from sirc._utils.checks import check_path, check_positive, check_type, differences, iterates
from sirc._utils.files import (
    PathLike,
    atomic_write,
    damaged,
    read_checksum,
    read_metadata,
    read_safetensors,
    refuse_existing,
    write_safetensors,
)
from sirc._utils.parts import Parts
from sirc._utils.text import quoted
from sirc.errors import StoreError
from sirc.outputs.outputs import Layout, Outputs

Overwrite: TypeAlias = bool | Literal["unfinished", "differing"]
STORE_FILE = "meta.json"
"""The file that tells a store from other folders."""
_FORMAT, _VERSION = "sirc.OutputStore", 2
_SHARD_FILES = re.compile(r"shard-\d{5,}\.safetensors|\.shard-.*\.(tmp|parts)")  # also what killed writers left


@final
class OutputStore:
    """A folder of shards, read as `Outputs` batches; shard i holds the dataset items [i·S, (i+1)·S).

    `create` makes an empty store, `missing` lists the shards to write, and `write(i, outputs)` writes one;
    `sirc.extract` does all of this. An item whose image cannot be read has no row: `size` counts items, `len` counts
    rows, `skipped` lists the items without a row, and `index(i)` gives the item of each row of shard i.

    `meta.json` is written once, and each shard by one process, so writers need no lock. Each shard has a checksum,
    which is compared when this object first reads the shard.

    Example:
        >>> import sirc, tempfile
        >>> outputs = sirc.Outputs([[2.0, 0.5], [0.1, 1.3], [0.7, 0.2]], labels=[0, 1, 1])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     store = sirc.OutputStore.from_outputs(folder, outputs, shard_size=2)
        ...     [len(batch) for batch in store], store.load().correct.tolist()
        ([2, 1], [True, True, False])
    """

    def __init__(self, path: PathLike) -> None:
        self.path = check_path("path", path)
        self._meta = meta = _Meta.read(self.path)
        self._layout: Layout | None = None
        self._verified: set[int] = set()
        self._skipped: dict[int, list[int]] = {}
        self.model, self.data, self.how = meta.model, meta.data, meta.how
        """Fingerprints of the model and of the dataset with its preprocessing, and other settings of the extraction."""
        self.size, self.shard_size, self.num_shards = meta.size, meta.shard_size, -(-meta.size // meta.shard_size)
        """The number of dataset items (also those without a row), of items in a shard, and of shards."""

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
        overwrite: Overwrite = False,
    ) -> "OutputStore":
        """Make a store for `size` items, or open an existing one that was made with the same settings.

        `model` is a fingerprint of the network, `data` one of its input, and `how` states the other settings that
        matter, such as the layer and the precision. `overwrite=True` deletes the shards of an existing store;
        "differing" does so only if it was made with other settings, and "unfinished" only if it is also incomplete.
        With several processes, one must call this before the others start.
        """
        path = check_path("path", path)
        meta = _Meta(size, shard_size, model, data, how)
        # Look here first: if another process is making this store, its meta.json exists before any shard.
        occupied = path.is_file() or any(path.glob("[!.]*"))
        if (path / STORE_FILE).exists():
            if overwrite is not True:
                store = cls(path)
                if not (differing := differences(asdict(store._meta), asdict(meta))):
                    return store
                if not overwrite or (store.complete and overwrite != "differing"):
                    raise StoreError(
                        f"'{path}' is another store, with other settings: {differing}. `model` and `data` are "
                        "fingerprints of the network and of the prepared images. Choose another folder or delete this "
                        "one, or pass `create(…, overwrite=True)` to delete its shards."
                    )
            # Delete shards before meta.json changes: a kill in between leaves an incomplete store, not orphans.
            cls.clear(path)
        elif occupied:
            raise StoreError(f"a store must have a folder of its own; '{path}' is something else. Choose another path.")
        text = json.dumps({"format": _FORMAT, "version": _VERSION, **asdict(meta)}, indent=1)
        atomic_write(path / STORE_FILE, lambda file: file.write(text.encode()))
        return cls(path)

    @staticmethod
    def clear(path: PathLike) -> None:
        """Delete all shards of a store, finished or not; do nothing if there is no store."""
        if not (Path(path) / STORE_FILE).exists():
            return
        for file in Path(path).glob("*shard-*"):
            if _SHARD_FILES.fullmatch(file.name):
                shutil.rmtree(file) if file.is_dir() else file.unlink(missing_ok=True)

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
        """Write an `Outputs`, or batches of any length (whatever `Outputs.of` takes), as a new store.

        `size`, the total number of rows, is needed only for an iterable without a length. Pass a store to change its
        `shard_size`: the new store has the same items without a row, and the same `model`, `data` and `how` unless you
        give others.
        """
        path = check_path("path", path)
        if (path / STORE_FILE).exists():
            refuse_existing(path, overwrite, folder=True)
        skipped: list[int] = []
        empty: Outputs | None = None
        if isinstance(source, OutputStore):
            if source.path.resolve() == path.resolve():
                raise ValueError(f"a store cannot be made from itself; both are '{path}'. Choose another path.")
            source.require_complete()
            if size not in (None, source.size):
                raise ValueError(f"`size` must be that of the store, {source.size}; got {size}. Leave it out.")
            size, skipped, empty = source.size, source.skipped, source.shard(0)[:0]
            model = source.model if model is None else model
            data = source.data if data is None else data
            how = source.how if how is None else how
        elif isinstance(source, Outputs):
            source = [source]
        elif not iterates(source):
            raise ValueError(f"`source` must be outputs, or batches of them; got {type(source).__name__}.")
        if size is None and isinstance(source, Sequence):
            source = parts = [Outputs.of(batch) for batch in source]
            if not (size := sum(map(len, parts))):
                raise ValueError("`source` must have at least one row; got none. Check that it has batches.")
        if size is None:
            raise ValueError(
                "`size` must be given for batches that come one by one, since a store needs its size first. "
                "Pass the total number of rows, or a list of batches."
            )
        store = cls.create(path, size, shard_size=shard_size, model=model, data=data, how=how, overwrite=overwrite)
        store._fill(map(Outputs.of, source), skipped, empty)
        return store

    @property
    def missing(self) -> list[int]:
        """The shards not yet written."""
        names = {entry.name for entry in self.path.iterdir()}
        return [i for i in range(self.num_shards) if self.shard_path(i).name not in names]

    @property
    def complete(self) -> bool:
        """Whether every shard is written."""
        return not self.missing

    @property
    def skipped(self) -> list[int]:
        """The dataset items without a row in the shards written so far; the header of each shard is read once."""
        shards = sorted(self._skipped) if len(self._skipped) == self.num_shards else self._present
        return [item for i in shards for item in self._skipped_of(i)]

    @property
    def layout(self) -> Layout:
        """The sizes and types that all shards share, read from the first one present."""
        if self._layout is None:
            if not (present := self._present):
                raise StoreError(f"'{self.path}' has no shard yet. Write one with `store.write(i, outputs)`.")
            self._layout = self.shard(present[0]).layout
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
        """Refuse a store that another model wrote; one without a fingerprint passes."""
        self._check_fingerprint("another model", self.model, fingerprint)

    def check_data(self, fingerprint: str) -> None:
        """Refuse a store of other data or preprocessing; one without a fingerprint passes."""
        self._check_fingerprint("other data (or preprocessing)", self.data, fingerprint)

    def _check_fingerprint(self, other: str, written: str | None, given: str) -> None:
        if written not in (None, given):
            raise StoreError(
                f"'{self.path}' is a store from {other}: it has {quoted(written)}, this one is {quoted(given)}. "
                "Extract again, into another folder or after deleting this one."
            )

    def write(self, i: int, outputs: Outputs, skipped: Iterable[SupportsIndex] = ()) -> None:
        """Write shard `i` atomically, in place of an existing one.

        `skipped` are the dataset items of this shard that have no row. If all are skipped, pass an empty selection,
        `outputs[:0]`, which still has the sizes and types.
        """
        self._check_number(i)
        items, no_row = self.items(i), sorted(map(operator.index, skipped))
        span = f"{items.start}…{items.stop - 1}"
        if no_row != sorted(set(no_row).intersection(items)):
            raise ValueError(
                f"`skipped` must be different dataset items of shard {i}, {span}; got {quoted(no_row)}. Count from the "
                "start of the dataset."
            )
        if len(outputs) + len(no_row) != len(items):
            raise ValueError(
                f"shard {i} must have one row for each of the dataset items {span} that is not skipped, "
                f"{len(items) - len(no_row)} rows; got {len(outputs)}. Name items without a row in `skipped`; use "
                "`OutputStore.from_outputs` for batches of other lengths."
            )
        if self._layout is not None or self._present:
            self._check_layout(f"shard {i}", outputs.layout)
        metadata = {**self._place(i), "skipped": ",".join(map(str, no_row))}
        write_safetensors(self.shard_path(i), outputs._tensors(), metadata, overwrite=True)
        self._layout = outputs.layout
        self._verified.discard(i)
        self._skipped[i] = no_row
        self.parts(i).remove()

    def parts(self, i: int) -> Parts:
        """The rows of an unfinished shard `i` that its writer has saved."""
        return Parts(self.path / f".shard-{i:05}.parts", self._place(i))

    def shard(self, i: int) -> Outputs:
        """Read the rows of one shard, memory-mapped; other shards may still be missing."""
        self._require(i)
        tensors, metadata = read_safetensors(self.shard_path(i), verify=i not in self._verified)
        skipped = self._check_metadata(i, metadata)
        rows = len(tensors.get("logits", ()))
        if not tensors.keys() <= {"logits", "features", "labels"} or rows + len(skipped) != len(self.items(i)):
            why = f"it has {rows} rows and skips {len(skipped)} of {len(self.items(i))} items"
            raise damaged(self.shard_path(i), why)
        shard = Outputs._trusted(**tensors)
        self._layout = self._layout or shard.layout
        self._check_layout(f"'{self.shard_path(i)}'", shard.layout)  # processes that wrote at once may disagree
        self._verified.add(i)
        self._skipped[i] = skipped
        return shard

    def items(self, i: int) -> range:
        """The dataset items of shard `i`, including those without a row."""
        return range(i * self.shard_size, min((i + 1) * self.shard_size, self.size))

    def index(self, i: int) -> Tensor:
        """The dataset items that the rows of shard `i` belong to, int64."""
        skipped = set(self._skipped_of(i))
        rows = [item for item in self.items(i) if item not in skipped]
        return torch.tensor(rows, dtype=torch.int64, device="cpu")

    def __len__(self) -> int:
        return self.size - len(self.skipped)  # all items of a missing shard count

    def __iter__(self) -> Iterator[Outputs]:
        return self.batches(self.shard_size)

    def batches(self, batch_size: int) -> Iterator[Outputs]:
        """Iterate over all rows, in order, as memory-mapped views of at most `batch_size` rows.

        A batch never spans two shards, so the last batch of a shard may be shorter. A shard is mapped into memory only
        while its batches are in use.
        """
        size = check_positive("batch_size", batch_size)
        self.require_complete()
        return (batch for i in range(self.num_shards) for batch in self.shard(i).batches(size))

    def load(self, device: torch.device | str = "cpu") -> Outputs:
        """Read all rows into one `Outputs`, which must fit into memory.

        Example:
            >>> import sirc, tempfile
            >>> outputs = sirc.Outputs([[2.0, 0.5], [0.1, 1.3], [0.7, 0.2]])
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     sirc.OutputStore.from_outputs(folder, outputs, shard_size=2).load()
            Outputs(3 rows, 2 classes, no features, no labels, float64 on cpu)
        """
        self.require_complete()
        first = self.shard(0)
        if self.num_shards == 1:
            return first.to(device)
        # Copy shard by shard, so that no row is in memory twice.
        whole = {
            field: torch.empty((len(self), *x.shape[1:]), dtype=x.dtype, device=device)
            for field, x in first._tensors().items()
        }
        start = 0
        for i in range(self.num_shards):
            shard = self.shard(i)
            for field, x in shard._tensors().items():
                whole[field][start : start + len(shard)] = x
            start += len(shard)
        return Outputs._trusted(**whole)

    def verify(self) -> None:
        """Compare the checksum of every shard again, and require that none is missing."""
        self._verified.clear()
        errors = []
        for i in self._present:
            try:
                self.shard(i)
            except StoreError as error:
                errors.append(str(error))
        if errors:
            raise StoreError("\n".join(errors))
        self.require_complete()

    def digest(self, shards: range | None = None) -> str:
        """Digest the checksums of these shards, by default all; quick, since only headers are read."""
        numbers = range(self.num_shards) if shards is None else shards
        checksums = "".join(str(read_checksum(self.shard_path(i))) for i in numbers)
        return hashlib.sha256(checksums.encode()).hexdigest()[:32]

    def __repr__(self) -> str:
        try:
            skipped = len(self.skipped)
        except (StoreError, OSError):  # whoever reads a damaged shard gets the error
            skipped = 0
        rows = f"{self.size - skipped} of {self.size} rows" if skipped else f"{self.size} rows"
        return f"OutputStore('{self.path}', {rows}, {len(self._present)} of {self.num_shards} shards)"

    def require_complete(self) -> None:
        """Raise a `StoreError` that lists the missing shards, if there are any."""
        if missing := self.missing:
            listed = ", ".join(map(str, missing[:10])) + (", …" if len(missing) > 10 else "")
            raise StoreError(
                f"'{self.path}' must be complete to be read; {len(missing)} of {self.num_shards} shards are "
                f"missing: {listed}. Resume the extraction: it writes only those."
            )

    def shard_path(self, i: int) -> Path:
        """The file of shard i."""
        return self.path / f"shard-{i:05}.safetensors"

    @property
    def _present(self) -> list[int]:
        return sorted({*range(self.num_shards)}.difference(self.missing))

    def _place(self, i: int) -> dict[str, str]:
        """The metadata of shard `i`, by which a shard copied from elsewhere is noticed."""
        settings = {key: str(value) for key, value in asdict(self._meta).items()}
        return {"format": f"{_FORMAT}/{_VERSION}", "shard": str(i), **settings}

    def _skipped_of(self, i: int) -> list[int]:
        if i not in self._skipped:
            self._require(i)
            self._skipped[i] = self._check_metadata(i, read_metadata(self.shard_path(i)))
        return self._skipped[i]

    def _fill(self, batches: Iterator[Outputs], skipped: Sequence[int], empty: Outputs | None) -> None:
        """Write all shards from batches of the rows, in order, of all items that are not `skipped`.

        `empty` is a selection without rows, for shards in which every item is skipped.
        """
        rest, written = empty, 0
        for i in range(self.num_shards):
            no_row = [item for item in skipped if item in self.items(i)]
            wanted = len(self.items(i)) - len(no_row)
            last = i == self.num_shards - 1
            parts = [] if rest is None else [rest]
            rows = sum(map(len, parts))
            # Ask for one row more than the last shard holds, to notice rows that are left over.
            while rows < wanted + last and (batch := next(batches, None)) is not None:
                parts.append(batch)
                rows += len(batch)
            if rows < wanted or (last and rows > wanted):
                raise ValueError(
                    f"`size` must be the total number of rows; got {self.size}, and the batches have "
                    f"{'at least ' if rows > wanted else ''}{written + rows}. Pass that, and `overwrite=True`."
                )
            joined = Outputs.cat([part for part in parts if len(part)] or parts[:1])
            self.write(i, joined[:wanted], no_row)
            rest = joined[wanted:]
            written += wanted

    def _check_number(self, i: int) -> None:
        if not 0 <= i < self.num_shards:
            raise ValueError(f"`i` must be a shard in 0…{self.num_shards - 1}; got {i}. See `store.missing`.")

    def _require(self, i: int) -> None:
        self._check_number(i)
        if not self.shard_path(i).exists():
            raise StoreError(f"'{self.path}' has no shard {i} yet. Write it with `store.write({i}, outputs)`.")

    def _check_layout(self, what: str, layout: Layout) -> None:
        if differing := differences(vars(self.layout), vars(layout)):
            raise StoreError(
                f"all shards of '{self.path}' must be alike; {what} is not: {differing}. "
                "Write it like the others, or delete the folder and start again."
            )

    def _check_metadata(self, i: int, metadata: Mapping[str, str]) -> list[int]:
        """Require the metadata of `_place`, and return the items without a row."""
        expected = self._place(i)
        if differing := differences(expected, {key: metadata.get(key) for key in expected}):
            raise damaged(self.shard_path(i), f"it was written for another place: {differing}")
        text = metadata.get("skipped", "none")
        # The checksum may not have been compared yet, so the header can hold anything.
        try:
            no_row = [int(number) for number in text.split(",")] if text else []
        except ValueError:
            no_row = [-1]
        if no_row != sorted(set(no_row).intersection(self.items(i))):
            raise damaged(self.shard_path(i), f"it gives the items it skips as {quoted(text)}")
        return no_row


@dataclass(frozen=True)
class _Meta:
    """The content of meta.json, which never changes, so that processes that share a store cannot disagree on it."""

    size: int
    shard_size: int
    model: str | None
    data: str | None
    how: str | None = None

    def __post_init__(self) -> None:
        for name in ("size", "shard_size"):
            object.__setattr__(self, name, check_positive(name, getattr(self, name)))
        for name in ("model", "data", "how"):
            check_type(name, getattr(self, name), str | None, "a string, or None")

    @classmethod
    def read(cls, folder: Path) -> "_Meta":
        """Read meta.json; raise a `StoreError` if it is missing, damaged or of another format."""
        file = folder / STORE_FILE
        try:
            meta = json.loads(file.read_bytes())
            written = (meta.pop("format", None), meta.pop("version", None)) if isinstance(meta, dict) else None
            if written == (_FORMAT, _VERSION):
                return cls(**meta)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise StoreError(
                f"there is no store at '{folder}': it has no {STORE_FILE}. Check the path, or make one with "
                "`OutputStore.create`."
            ) from error
        except (TypeError, ValueError, RecursionError) as error:
            raise StoreError(
                f"'{file}' is damaged: {error}. Restore it, or delete its folder and make the store again."
            ) from error
        raise StoreError(
            f"'{folder}' must be a store, of format {_FORMAT} and version {_VERSION}; its {STORE_FILE} has "
            f"{written}. Check the path, update sirc to read it, or delete the folder and make the store again."
        )
