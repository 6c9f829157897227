"""Check of a dataset on disk: what it has, what is missing, and what to do."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import final

import numpy as np

from sirc._utils.checks import check_choice
from sirc._utils.files import PathLike
from sirc._utils.text import closest_match, quoted
from sirc.data import folder as files
from sirc.data.base import SPLITS
from sirc.data.catalogue import benchmarks
from sirc.data.catalogue.benchmarks import Benchmark, Split, find_folder, find_list
from sirc.data.decode import FIND_ALL, printable
from sirc.data.folder import FileNames, FileSet, Sort, with_examples
from sirc.data.reading import DatasetReader
from sirc.data.source import PLAIN
from sirc.progress import SILENT, Progress

_ARCHIVES = (".zip", ".tar", ".tgz", ".tar.gz", ".tar.bz2", ".tar.xz", ".rar", ".7z")
_LEVELS_UP, _MOST_FOLDERS = 4, 200  # limits of the search for a benchmark that is not at its path
_FIRST = 4  # classes shown with their numbers, beside the last
_LISTED = 50  # broken images listed one by one
_CHUNK = 16  # images decoded by one call of a worker


@final
@dataclass(frozen=True)
class CheckLine:
    """One line of the report: whether all is well, what was found, and what to do."""

    ok: bool
    text: str
    advice: str = ""


@final
@dataclass(frozen=True)
class DataReport:
    """The result of `check`: its lines, and the number of images and of class folders in each part."""

    name: str
    path: Path | None
    lines: tuple[CheckLine, ...]
    counts: Mapping[str, int]
    classes: Mapping[str, int]

    @property
    def ok(self) -> bool:
        """Whether there is no problem."""
        return not self.problems

    @property
    def problems(self) -> tuple[CheckLine, ...]:
        """The lines that need action."""
        return tuple(line for line in self.lines if not line.ok)

    def __str__(self) -> str:
        wrong = len(self.problems)
        verdict = f"{wrong} problem{'s' if wrong != 1 else ''}" if wrong else "ready"
        where = "" if self.path is None else f" in '{printable(self.path)}'"
        text = [f"{self.name}{where}: {verdict}"]
        for line in self.lines:
            text.append(f"  {'ok     ' if line.ok else 'problem'}  {line.text}")
            text += [f"           {advice}" for advice in line.advice.splitlines()]
        return "\n".join(text)


def check(
    name: str,
    path: PathLike | None,
    *,
    split: str | None = None,
    root: PathLike | None = None,
    sort: Sort = "name",
    classes: Sequence[str] | None = None,
    decode: bool = False,
    workers: int = 0,
    progress: Progress = SILENT,
) -> DataReport:
    """Check a benchmark, or your own data with the name `folder` or `list`; report what is wrong and what to do.

    `split` checks one part only. For `list`, `path` is the list file, whose paths start from `root`, by default its own
    folder. For `folder`, `sort` and `classes` give the order of the classes, as in `image_folder`. `decode` reads every
    image, in `workers` processes, and names the broken ones.
    """
    benchmark = None if name in PLAIN else benchmarks.find_benchmark("`name`", name, others=PLAIN)
    if split is not None:
        check_choice("split", split, SPLITS)
    if name != "folder" and (sort != "name" or classes is not None):
        raise ValueError(f"`sort` and `classes` order the class folders of a `folder`; leave them out for {name}.")
    checker = _Checker(benchmark, decode, workers, progress, sort, classes)
    place = None if path is None else Path(path)
    if place is None:
        if benchmark is None or benchmark.key != "noise":
            raise ValueError(f"`path` must be given for {name}; only noise needs no files.")
        checker.good("noise needs no files: its images are made when they are read")
    elif name == "list":
        checker.check_list("all", place, place.parent if root is None else Path(root))
    elif not place.is_dir():
        checker.no_folder(place)
    elif benchmark is not None:
        checker.check_benchmark(benchmark, place, benchmark.splits if split is None else (benchmark.split(split),))
    else:
        checker.check_folder(place, split)
    title = benchmark.title if benchmark else name
    return DataReport(title, place, tuple(checker.lines), checker.counts, checker.classes)


@final
@dataclass
class _Checker:
    """Collects the lines of the report."""

    benchmark: Benchmark | None
    decode: bool
    workers: int
    progress: Progress
    sort: Sort
    class_order: Sequence[str] | None
    lines: list[CheckLine] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    classes: dict[str, int] = field(default_factory=dict)

    def good(self, text: str, advice: str = "") -> None:
        self.lines.append(CheckLine(True, text, advice))

    def bad(self, text: str, advice: str = "") -> None:
        self.lines.append(CheckLine(False, text, advice))

    def no_folder(self, path: Path) -> None:
        siblings = sorted(os.listdir(path.parent)) if path.parent.is_dir() else []
        archives = [name for name in siblings if _is_archive(name) and name.startswith(path.name)]
        if archives:
            advice = f"Unpack '{printable(path.parent / archives[0])}', and pass the folder."
        elif (similar := closest_match(path.name, siblings, cutoff=0.7)) and similar != path.name:
            advice = f"Did you mean '{printable(path.parent / similar)}'?"
        else:
            advice = self.where_to_get("Pass a folder that exists.")
        self.bad(f"'{printable(path)}' {'is a file' if path.exists() else 'does not exist'}", advice)

    def where_to_get(self, otherwise: str) -> str:
        return f"{self.benchmark.how_to_get}, as\n{self.benchmark.layout}" if self.benchmark else otherwise

    def check_benchmark(self, benchmark: Benchmark, path: Path, parts: tuple[Split, ...]) -> None:
        there = [part for part in parts if find_folder(path, part) or benchmarks.has_archives(path, benchmark, part)]
        if not there and (right := _right_level(path, benchmark)):
            level = "above" if right in path.resolve().parents else "below"
            self.bad(f"{benchmark.title} is not in this folder, but {level} it", f"Pass '{printable(right)}'.")
            return
        for part in parts:
            folder, listed = find_folder(path, part), find_list(path, benchmark)
            if unfinished := benchmarks.unfinished_unpacking(path, part):
                self.bad(f"{part.name}: {unfinished}")
            elif folder is None:
                self.missing_folder(benchmark, path, part)
            elif listed:
                self.check_list(part.name, listed, folder, part)
            elif benchmark.lists:
                self.bad(f"{part.name}: {benchmarks.missing_list(path, benchmark)}")
            else:
                self.check_images(part.name, folder, benchmark.role == "ID", part.size)
        counted = [folder for part in parts if part.name in self.counts and (folder := find_folder(path, part))]
        classes = [set(files.class_folders(folder)) for folder in counted]
        if len(classes) == 2 and (differing := sorted(classes[0] ^ classes[1])):
            self.bad(
                f"train and test must have the same classes; {with_examples(differing)} are in one only",
                "Unpack the data again: the labels are the positions of the sorted folders.",
            )
        if benchmark.note and any(part.size is None for part in parts):
            self.good(benchmark.note)

    def missing_folder(self, benchmark: Benchmark, path: Path, part: Split) -> None:
        tar = benchmarks.TARS[part.name]
        if benchmarks.has_archives(path, benchmark, part):
            self.good(f"{part.name}: '{tar}' is there, and is unpacked when first opened")
            return
        advice = self.where_to_get("")
        if benchmark.key == "imagenet1k" and (path / tar).is_file():
            advice = f"'{tar}' is there; put '{benchmarks.DEVKIT}' beside it, and it is unpacked when first opened."
        elif archives := sorted(name for name in os.listdir(path) if _is_archive(name) and name[0] != "."):
            advice = f"Unpack {', '.join(map(printable, archives[:3]))}."
        elif _loose_images(path):
            advice = f"Images lie directly in '{printable(path)}': move them into '{part.folders[0]}'."
        folders = "' or '".join(part.folders)
        self.bad(f"{part.name}: there is no folder '{folders}'", advice)

    def check_folder(self, path: Path, split: str | None) -> None:
        parts = {part.name: folder for part in benchmarks.FOLDER_PARTS if (folder := find_folder(path, part))}
        if split is not None and split not in parts:
            self.bad(f"there is no folder for split {quoted(split)} in '{printable(path)}'", f"Make one, '{split}'.")
            return
        for part, folder in parts.items() if parts else [("all", path)]:
            if split in (None, part):
                self.check_images(part, folder, bool(files.class_folders(folder)) and not _loose_images(folder))

    def check_images(self, part: str, folder: Path, labelled: bool, size: int | None = None) -> None:
        """Count the images of one part and check its class folders."""
        names = self.check_classes(part, folder) if labelled else FileNames(files.images_below(folder))
        self.count(part, folder, len(names), size)
        others = list(files.other_files(folder))
        if archives := [name for name in others if _is_archive(name)]:
            self.bad(f"{part}: {with_examples(archives)} archives lie among the images", "Unpack them.")
        elif others:
            self.good(f"{part}: {with_examples(others)} other files are ignored")
        self.decode_all(part, folder, names)

    def check_classes(self, part: str, folder: Path) -> FileNames:
        how = "as listed" if self.class_order is not None else "by number" if self.sort == "natural" else "by name"
        try:
            folders = files.ordered_classes(folder, self.class_order, self.sort)
        except ValueError as error:
            self.bad(f"{part}: {error}")
            folders, how = files.class_folders(folder), "by name"
        names, counts = files.images_of_classes(folder, folders)
        self.classes[part] = len(folders)
        hint = "" if self.benchmark or how != "by name" else _text_order_hint(folders)
        self.good(f"{part}: {_numbered(folders, how)}", hint)
        if loose := _loose_images(folder):
            self.bad(
                f"{part}: {with_examples(loose)} images lie outside the class folders",
                "Move each into the folder of its class; they are not read where they are.",
            )
        if empty := [name for name, count in counts.items() if not count]:
            self.bad(
                f"{part}: {with_examples(empty)} of {len(folders)} class folders are empty",
                "Unpack the data again, or delete a folder that is no class.",
            )
        if self.benchmark and len(folders) != self.benchmark.classes:
            self.bad(f"{part}: {len(folders)} class folders of {self.benchmark.classes}", "Unpack the data again.")
        return names

    def check_list(self, name: str, path: Path, folder: Path, part: Split | None = None) -> None:
        """Count the images of a list, and check that each exists."""
        try:
            names, labels = files.read_list(path, part.folders if part else ())
        except (OSError, ValueError) as error:
            self.bad(str(error), "Fetch the list again." if part else "")
            return
        sizes = files.file_sizes(folder, names)
        if missing := files.missing_files(names, sizes):
            self.bad(
                f"{name}: {with_examples(missing)} of {len(names):,} listed files are missing in '{printable(folder)}'",
                "Unpack or fetch them again, or see from which folder the paths of the list start.",
            )
        if repeated := len(names) - len(set(names)):
            self.bad(f"{name}: {repeated:,} lines name an image again", "Fetch the list again.")
        if labels is not None:
            self.classes[name] = len(set(labels))
        self.count(name, folder, len(names) - len(missing), part.size if part else None)
        self.decode_all(name, folder, FileNames(names[int(i)] for i in np.flatnonzero(sizes >= 0)))

    def count(self, part: str, folder: Path, count: int, size: int | None) -> None:
        self.counts[part] = count
        text = f"{part}: {count:,} images in '{printable(folder)}'"
        if count == 0:
            advice = f"{self.benchmark.how_to_get}." if self.benchmark else "Pass the folder that holds the images."
            self.bad(text, advice)
        elif size is None or count == size:
            self.good(text)
        elif self.benchmark and not self.benchmark.lists and (right := _right_level(folder, self.benchmark)):
            self.bad(f"{text}, of {size:,}", f"Pass '{printable(right)}'.")
        else:
            advice = "Are other files among them?" if count > size else "Unpack or fetch the data again."
            self.bad(f"{text}, of {size:,}", advice)

    def decode_all(self, part: str, folder: Path, names: FileNames) -> None:
        """Read every image if the user asked for it, and report the broken ones."""
        if not self.decode or not len(names):
            return
        broken: list[str] = []
        reader = DatasetReader(FileSet(folder, names, name=part), _CHUNK, self.workers, collate=len)
        with self.progress.task("decode", len(names)) as task:
            for got in reader.read([range(len(names))]):
                broken += [item.why.removesuffix(FIND_ALL) for item in got.lost]
                task.advance(len(got.index) + len(got.lost))
        for text in broken[:_LISTED]:
            self.bad(f"{part}: {text}")
        if len(broken) > _LISTED:
            self.bad(f"{part}: {len(broken) - _LISTED:,} more images cannot be read")
        if not broken:
            self.good(f"{part}: every image can be read")


def _is_archive(name: str) -> bool:
    return name.lower().endswith(_ARCHIVES)


def _numbered(folders: list[str], how: str) -> str:
    """Count the classes, and show the first few and the last with their numbers."""
    shown = [f"{number} is '{printable(folder)}'" for number, folder in enumerate(folders)]
    if len(shown) > _FIRST + 1:
        shown[_FIRST:-1] = ["…"]
    return f"{len(folders):,} classes {how}: {', '.join(shown)}"


def _text_order_hint(folders: list[str]) -> str:
    """Point out numbers in folder names that are not in numeric order; empty if there are none."""
    natural = sorted(folders, key=files.natural_key)
    if natural == folders:
        return ""
    number = next(i for i, pair in enumerate(zip(natural, folders, strict=True)) if pair[0] != pair[1])
    return (
        f"The numbers in these names sort as text: class {number} is '{printable(folders[number])}', and by value "
        f"'{printable(natural[number])}'.\n"
        'If the network counts by value, write `sort = "natural"` in the TOML, and `--sort natural` here; '
        "`classes = …` and `--classes FILE` give any other order."
    )


def _loose_images(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir() if files.is_image(entry.name) and entry.is_file())


def _right_level(path: Path, benchmark: Benchmark) -> Path | None:
    """Find the folder above or below `path` that has the benchmark; None if several below it may have it."""
    for folder in islice(path.resolve().parents, _LEVELS_UP):
        if _is_at(folder, benchmark):
            return folder
    near = (folder for pattern in ("*/", "*/*/") for folder in islice(path.glob(pattern), _MOST_FOLDERS))
    below = [folder for folder in near if _is_at(folder, benchmark)]
    named = [folder for folder in below if folder.name == benchmark.folder]
    return (named or below)[0] if named or len(below) == 1 else None


def _is_at(place: Path, benchmark: Benchmark) -> bool:
    """Whether a part of the benchmark is here, with an image; if any folder could be it, its name must be right."""
    for part in benchmark.splits:
        for name in part.folders:
            ambiguous = name == "." or (benchmark.lists and find_list(place, benchmark) is None)
            if ambiguous and place.name != benchmark.folder:
                continue
            if (place / name).is_dir() and any(files.images_below(place / name)):
                return True
    return False
