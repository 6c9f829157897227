"""The paper's benchmarks: the name, source and size of each image set, and its layout on disk."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, final

from sirc._utils.imports import needing
from sirc._utils.text import closest, quoted
from sirc.data.base import SPLITS
from sirc.data.decode import printable

if TYPE_CHECKING:
    from sirc.data.preprocess import Interpolation


@final
@dataclass(frozen=True)
class Split:
    """One part of a benchmark: the possible names of its folder, and the number of its images if it is known."""

    name: Literal["train", "test"]
    folders: tuple[str, ...]
    size: int | None


@final
@dataclass(frozen=True)
class Benchmark:
    """One of the paper's image sets.

    `folder` is its folder below the data root. ID sets have one folder per class. `lists` are the possible names of a
    file in `folder` that lists the images to use. `overlaps` names the ID sets that share classes with this OOD set,
    and are therefore evaluated without it. `scaled` is the interpolation for small images, which are resized to the
    network's size without cropping.
    """

    key: str
    title: str
    role: Literal["ID", "OOD"]
    folder: str
    splits: tuple[Split, ...]
    source: str
    group: Literal["Close", "Far"] | None = None
    classes: int | None = None
    lists: tuple[str, ...] = ()
    list_source: str = ""
    overlaps: tuple[str, ...] = ()
    scaled: Interpolation | None = None
    licence: str = ""
    note: str = ""

    def split(self, name: str | None) -> Split:
        """Get a part by its name; the error for another name lists the parts."""
        for part in self.splits:
            if part.name == name:
                return part
        parts = " or ".join(f'"{part.name}"' for part in self.splits)
        raise ValueError(f"`split` must be {parts} for {self.title}; got {quoted(name)}. Pass one of those.")

    @property
    def how_to_get(self) -> str:
        """How to get its files, for error messages: the command, and the address of its source."""
        from sirc.data.catalogue.public import public_datasets  # here, since it imports this module

        if all(known.name != self.key for known in public_datasets()):
            return f"Get it from {self.source}"
        return f"Get it with `sirc data get {self.key} ROOT`, or from {self.source}"

    @property
    def layout(self) -> str:
        """The expected files, one line for each part."""
        lines = []
        for part in self.splits:
            below = "one folder for each class" if self.role == "ID" else "images, in folders or not"
            place = self.folder if part.folders[0] == "." else f"{self.folder}/{part.folders[0]}"
            size = f", {part.size:,} of them" if part.size else ""
            lines.append(f"{place}/  {below}{size} ({part.name})")
        lines += [f"{self.folder}/{self.lists[0]}  which of them count"] if self.lists else []
        return "\n".join(lines)


@cache
def benchmarks() -> tuple[Benchmark, ...]:
    """List all benchmarks: the ID sets, then the OOD sets in the order of the paper's columns."""
    listed = []
    for table in tomllib.loads(Path(__file__).with_name("benchmarks.toml").read_text(encoding="utf-8"))["benchmark"]:
        parts = [(name, table.pop(name)) for name in SPLITS if name in table]
        table["splits"] = [Split(name, tuple(part["folders"]), part.get("size")) for name, part in parts]
        fields: dict[str, Any] = {key: tuple(x) if isinstance(x, list) else x for key, x in table.items()}
        listed.append(Benchmark(**fields))
    return tuple(listed)


# The parts of a user's own folder.
FOLDER_PARTS = (Split("train", ("train",), None), Split("test", ("test", "val", "validation", "valid"), None))
TARS = {"train": "ILSVRC2012_img_train.tar", "test": "ILSVRC2012_img_val.tar"}
DEVKIT = "ILSVRC2012_devkit_t12.tar.gz"


def benchmark(name: str) -> Benchmark:
    """Find a benchmark by its key or title, in any letter case; the error for another name lists all keys."""
    return find_benchmark("`name`", name)


def find_benchmark(what: str, name: str, others: Sequence[str] = ()) -> Benchmark:
    """Find a benchmark; the error calls the argument `what`, and lists `others` as valid names too."""
    for known in benchmarks():
        if str(name).strip().lower() in (known.key, known.title.lower()):
            return known
    raise ValueError(unknown_name(what, name, [*(known.key for known in benchmarks()), *others]))


def ood_sets(id_name: str) -> tuple[Benchmark, ...]:
    """List the OOD sets for an ID set, in the order of the paper's columns, without those that share its classes."""
    chosen = benchmark(id_name)
    if chosen.role != "ID":
        known = ", ".join(one.key for one in benchmarks() if one.role == "ID")
        raise ValueError(f"`id_name` must be an ID set, one of {known}; got {quoted(id_name)}, which is an OOD set.")
    return tuple(one for one in benchmarks() if one.role == "OOD" and chosen.key not in one.overlaps)


def unknown_name(what: str, name: str, known: Sequence[str]) -> str:
    """Write the error message for an unknown name, with the known ones and the closest."""
    return f"{what} must be one of {', '.join(known)}; got {quoted(name)}.{closest(name, known)}"


def find_folder(path: Path, split: Split) -> Path | None:
    """Find the folder of a part, by the first of its names that exists."""
    return next((path / name for name in split.folders if (path / name).is_dir()), None)


def find_list(path: Path, benchmark: Benchmark) -> Path | None:
    """Find the list file of a benchmark, by the first of its names that exists."""
    return next((path / name for name in benchmark.lists if (path / name).is_file()), None)


def has_archives(path: Path, benchmark: Benchmark, split: Split) -> bool:
    """Whether `path` has the archives from which torchvision can unpack this part of ImageNet-1k."""
    if benchmark.key != "imagenet1k" or not (path / TARS[split.name]).is_file():
        return False
    return (path / DEVKIT).is_file() or (path / "meta.bin").is_file()


def unfinished_unpacking(path: Path, split: Split) -> str | None:
    """Describe an unfinished unpacking of this part, whose folder looks complete but is not; None if there is none."""
    mark = path / f".unpacking-{split.name}"
    if not mark.exists():
        return None
    return (
        f"'{printable(path / split.folders[0])}' is being unpacked, or the process that did so was killed. "
        f"If it was killed, delete the folder and '{printable(mark)}', and open the dataset again."
    )


def missing_list(path: Path, benchmark: Benchmark) -> str:
    """Write the message for a benchmark without its list of images."""
    names = " or ".join(benchmark.lists)
    return f"the list of its images, {names}, is not in '{printable(path)}'. Get it from {benchmark.list_source}."


def unpack_imagenet(path: Path, split: Split) -> Path:
    """Unpack ImageNet's archives into class folders with torchvision; this takes a while."""
    with needing("unpacking ImageNet-1k", "torchvision"):
        from torchvision.datasets import ImageNet
    mark = path / f".unpacking-{split.name}"
    mark.touch()
    try:
        ImageNet(str(path), split="train" if split.name == "train" else "val")
    except (ImportError, RuntimeError) as error:  # torchvision raises both before it unpacks a file
        mark.unlink()
        raise FileNotFoundError(f"ImageNet-1k cannot be unpacked in '{printable(path)}': {error}") from error
    mark.unlink()
    return path / split.folders[0]
