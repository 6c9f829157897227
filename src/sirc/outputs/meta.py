"""What is fixed when a store is made, kept in its meta.json: how many rows, how they are cut, which model and data."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from sirc._utils.checks import check_positive, differences
from sirc._utils.files import atomic_write
from sirc.errors import StoreError

FILE = "meta.json"
OTHER_MODEL, OTHER_DATA = "another model", "other data (or preprocessing)"
FORMAT, VERSION = "sirc.OutputStore", 2


@dataclass(frozen=True)
class Settings:
    """The content of meta.json. It is written once, so processes that share a store cannot disagree on it."""

    size: int
    shard_size: int
    model: str | None
    data: str | None
    how: str | None = None

    def __post_init__(self) -> None:
        check_positive("size", self.size)
        check_positive("shard_size", self.shard_size)
        for name in ("model", "data", "how"):
            value = getattr(self, name)
            if not (value is None or isinstance(value, str)):
                raise ValueError(f"`{name}` must be a string that names the {name}, or None; got {value!r}.")

    @property
    def num_shards(self) -> int:
        """How many shards hold `size` items."""
        return -(-self.size // self.shard_size)

    def items(self, shard: int) -> range:
        """Give the dataset items of a shard."""
        return range(shard * self.shard_size, min((shard + 1) * self.shard_size, self.size))

    def differences(self, given: "Settings") -> str:
        """Say what differs, or nothing."""
        found = [
            f"it belongs to {whose}: it has {getattr(self, name)!r}, this one is {getattr(given, name)!r}"
            for name, whose in (("model", OTHER_MODEL), ("data", OTHER_DATA))
            if getattr(self, name) != getattr(given, name)
        ]
        cut = ("size", "shard_size", "how")
        if words := differences(*({name: getattr(one, name) for name in cut} for one in (self, given))):
            found.append(f"it has other settings: {words}")
        return "; ".join(found)

    def label(self, shard: int) -> dict[str, str]:
        """Give the metadata that ties a shard to its place, so that one copied from elsewhere is noticed."""
        words = {key: str(value) for key, value in asdict(self).items()}
        return {"format": f"{FORMAT}/{VERSION}", "shard": str(shard), **words}

    def write(self, folder: Path) -> None:
        """Write meta.json."""
        text = json.dumps({"format": FORMAT, "version": VERSION, **asdict(self)}, indent=1)
        atomic_write(folder / FILE, lambda file: file.write(text.encode()))

    @classmethod
    def read(cls, folder: Path) -> "Settings":
        """Read meta.json; anything but what `write` wrote is a `StoreError`."""
        file = folder / FILE
        try:
            meta = json.loads(file.read_bytes())
        except (FileNotFoundError, NotADirectoryError) as error:
            raise StoreError(
                f"there is no store at '{folder}': it has no {FILE}. Make one with `OutputStore.create`."
            ) from error
        except ValueError as error:
            raise _unreadable(file, str(error)) from error
        if not isinstance(meta, dict) or meta.get("format") != FORMAT:
            raise StoreError(
                f"'{folder}' is no store: the format in its {FILE} is not {FORMAT}. "
                "Check the path, or make a store in another folder."
            )
        version = meta.get("version")
        if version != VERSION:
            older = isinstance(version, int) and version < VERSION
            way_out = "Make it again, with `overwrite=True`" if older else "Update sirc to read it"
            raise StoreError(f"'{folder}' must be a store of version {VERSION}; got {version!r}. {way_out}.")
        try:
            return cls(meta["size"], meta["shard_size"], meta["model"], meta["data"], meta["how"])
        except (KeyError, ValueError) as error:
            raise _unreadable(file, str(error)) from error


def _unreadable(file: Path, why: str) -> StoreError:
    return StoreError(
        f"'{file}' is damaged: {why}. Restore it, or make the store again with `create(..., overwrite=True)`."
    )
