"""Metadata of a store, in meta.json: its size, how it is cut into shards, its model and data."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from sirc._utils.checks import check_positive, differences
from sirc._utils.files import atomic_write
from sirc.errors import StoreError

STORE_FILE = "meta.json"
"""The file that every store has, and nothing else."""
OTHER_MODEL, OTHER_DATA = "another model", "other data (or preprocessing)"
FORMAT, VERSION = "sirc.OutputStore", 2


@dataclass(frozen=True)
class StoreMeta:
    """The content of meta.json, written once, so that processes that share a store cannot disagree on it."""

    size: int
    shard_size: int
    model: str | None
    data: str | None
    how: str | None = None

    def __post_init__(self) -> None:
        for name in ("size", "shard_size"):
            object.__setattr__(self, name, check_positive(name, getattr(self, name)))
        for name in ("model", "data", "how"):
            value = getattr(self, name)
            if not (value is None or isinstance(value, str)):
                raise ValueError(f"`{name}` must be a string that names the {name}, or None; got {value!r}.")

    @property
    def num_shards(self) -> int:
        """The number of shards that hold `size` items."""
        return -(-self.size // self.shard_size)

    def items(self, shard: int) -> range:
        """The dataset items of a shard."""
        return range(shard * self.shard_size, min((shard + 1) * self.shard_size, self.size))

    def differences(self, other: "StoreMeta") -> str:
        """Say what differs; empty where nothing does."""
        mine, theirs = asdict(self), asdict(other)
        parts = []
        for name, whose in (("model", OTHER_MODEL), ("data", OTHER_DATA)):
            written, given = mine.pop(name), theirs.pop(name)
            if written != given:
                parts.append(f"it belongs to {whose}: it has {written!r}, this one is {given!r}")
        if settings := differences(mine, theirs):
            parts.append(f"it has other settings: {settings}")
        return "; ".join(parts)

    def of_shard(self, i: int) -> dict[str, str]:
        """The metadata that ties shard `i` to its place, so that one copied from elsewhere is noticed."""
        return {
            "format": f"{FORMAT}/{VERSION}",
            "shard": str(i),
            **{key: str(value) for key, value in asdict(self).items()},
        }

    def write(self, folder: Path) -> None:
        """Write meta.json."""
        text = json.dumps({"format": FORMAT, "version": VERSION, **asdict(self)}, indent=1)
        atomic_write(folder / STORE_FILE, lambda file: file.write(text.encode()))

    @classmethod
    def read(cls, folder: Path) -> "StoreMeta":
        """Read meta.json; anything but what `write` wrote is a `StoreError`."""
        file = folder / STORE_FILE
        try:
            meta = json.loads(file.read_bytes())
        except (FileNotFoundError, NotADirectoryError) as error:
            raise StoreError(
                f"there is no store at '{folder}': it has no {STORE_FILE}. Make one with `OutputStore.create`."
            ) from error
        except ValueError as error:
            raise _damaged(file, error) from error
        written = (meta.pop("format", None), meta.pop("version", None)) if isinstance(meta, dict) else None
        if written != (FORMAT, VERSION):
            raise StoreError(
                f"'{folder}' must be a store, of format {FORMAT} and version {VERSION}; its {STORE_FILE} has "
                f"{written}. Check the path, make the store again with `overwrite=True`, or update sirc to read it."
            )
        try:
            return cls(**meta)
        except (TypeError, ValueError) as error:
            raise _damaged(file, error) from error


def _damaged(file: Path, why: Exception) -> StoreError:
    return StoreError(
        f"'{file}' is damaged: {why}. Restore it, or make the store again with `create(..., overwrite=True)`."
    )
