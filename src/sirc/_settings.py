"""What is fixed when a store is made, kept in its meta.json: how many rows, how they are cut, which model."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from sirc._checks import check_positive, differences
from sirc._files import atomic_write
from sirc.errors import StoreError

FILE = "meta.json"
FORMAT, VERSION = "sirc.OutputStore", 1


@dataclass(frozen=True)
class Settings:
    """The content of meta.json. It is written once, so processes that share a store cannot disagree on it."""

    size: int
    shard_size: int
    model: str | None

    def __post_init__(self) -> None:
        check_positive("size", self.size)
        check_positive("shard_size", self.shard_size)
        if not (self.model is None or isinstance(self.model, str)):
            raise ValueError(f"`model` must be a string that names the model, or None; got {self.model!r}.")

    @property
    def num_shards(self) -> int:
        """How many shards hold `size` rows."""
        return -(-self.size // self.shard_size)

    def rows(self, shard: int) -> range:
        """Give the dataset rows of a shard."""
        return range(shard * self.shard_size, min((shard + 1) * self.shard_size, self.size))

    def differences(self, given: "Settings") -> str:
        """Say what differs, or nothing."""
        return differences(asdict(self), asdict(given))

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
            raise StoreError(
                f"'{folder}' must be a store of version {VERSION}; got {version!r}. Update sirc to read it."
            )
        try:
            return cls(meta["size"], meta["shard_size"], meta["model"])
        except (KeyError, ValueError) as error:
            raise _unreadable(file, str(error)) from error


def _unreadable(file: Path, why: str) -> StoreError:
    return StoreError(
        f"'{file}' is damaged: {why}. Restore it, or make the store again with `create(..., overwrite=True)`."
    )
