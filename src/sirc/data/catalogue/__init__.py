"""The paper's benchmarks: name, source, file layout and size of each image set."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, final

from sirc._utils.hints import closest

if TYPE_CHECKING:
    from sirc.data.preprocess import Interpolation

_PARTS: tuple[Literal["train", "test"], ...] = ("train", "test")


@final
@dataclass(frozen=True)
class Split:
    """One part of a benchmark: the possible names of its folder, and the number of its images (None: unknown)."""

    name: Literal["train", "test"]
    folders: tuple[str, ...]
    size: int | None


@final
@dataclass(frozen=True)
class Benchmark:
    """One of the paper's image sets.

    `folder` is its folder below the data root. ID sets have one folder a class. `lists` are the possible names of a
    file in `folder` that lists the images to use. `overlaps` are the ID sets that share classes with an OOD set, which
    is left out for them. `scaled` is the interpolation that resizes small images straight to the network's size.
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
        """Get a part by its name; the error says which parts there are."""
        for part in self.splits:
            if part.name == name:
                return part
        parts = " or ".join(f'"{part.name}"' for part in self.splits)
        raise ValueError(f"`split` must be {parts} for {self.title}; got {name!r}. Pass one of those.")

    @property
    def layout(self) -> str:
        """The expected files, for people to read: one line for each part."""
        lines = []
        for part in self.splits:
            below = "one folder for each class" if self.role == "ID" else "images, in folders or not"
            place = self.folder if part.folders[0] == "." else f"{self.folder}/{part.folders[0]}"
            size = f", {part.size:,} of them" if part.size else ""
            lines.append(f"{place}/  {below}{size} ({part.name})")
        lines += [f"{self.folder}/{self.lists[0]}  which of them count"] if self.lists else []
        return "\n".join(lines)


def _read_catalogue() -> tuple[Benchmark, ...]:
    known = []
    for table in tomllib.loads(Path(__file__).with_name("benchmarks.toml").read_text(encoding="utf-8"))["benchmark"]:
        parts = [(name, table.pop(name)) for name in _PARTS if name in table]
        table["splits"] = [Split(name, tuple(part["folders"]), part.get("size")) for name, part in parts]
        fields: dict[str, Any] = {key: tuple(x) if isinstance(x, list) else x for key, x in table.items()}
        known.append(Benchmark(**fields))
    return tuple(known)


_BENCHMARKS = _read_catalogue()


def benchmarks() -> tuple[Benchmark, ...]:
    """List all benchmarks: the ID sets, then the OOD sets in the order of the paper's columns."""
    return _BENCHMARKS


def benchmark(name: str) -> Benchmark:
    """Find a benchmark by its key or title, in any case; the error for another name lists them and the closest."""
    return find_benchmark("`name`", name)


def find_benchmark(what: str, name: str, others: Sequence[str] = ()) -> Benchmark:
    """Find a benchmark as `benchmark` does; the error calls the argument `what`, and lists `others` too."""
    for known in _BENCHMARKS:
        if name.strip().lower() in (known.key, known.title.lower()):
            return known
    raise ValueError(unknown_name(what, name, [*(known.key for known in _BENCHMARKS), *others]))


def ood_sets(id_name: str) -> tuple[Benchmark, ...]:
    """List the OOD sets of an ID set, in the order of the paper's columns, without those that share its classes."""
    chosen = benchmark(id_name)
    if chosen.role != "ID":
        known = ", ".join(one.key for one in _BENCHMARKS if one.role == "ID")
        raise ValueError(f"`id_name` must be an ID set, one of {known}; got {id_name!r}, which is an OOD set.")
    return tuple(one for one in _BENCHMARKS if one.role == "OOD" and chosen.key not in one.overlaps)


def unknown_name(what: str, name: str, known: Sequence[str]) -> str:
    """Word the error for an unknown name: the known ones, and the closest."""
    return f"{what} must be one of {', '.join(known)}; got {name!r}.{closest(name, known)}"
