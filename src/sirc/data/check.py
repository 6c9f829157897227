"""Dataset check: list what is there and missing, and advise, before anything depends on it."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import final

import numpy as np

from sirc._utils.files import PathLike
from sirc._utils.hints import closest_match
from sirc.data.catalogue import Benchmark, Split, benchmark, benchmarks, unknown_name
from sirc.data.catalogue.layout import DEVKIT, TARS, TESTS, archives_of, find_folder, find_list, unfinished_unpacking
from sirc.data.decode import FIND_ALL, printable, read_image
from sirc.data.file_names import FileNames
from sirc.data.folder import (
    class_folders,
    file_sizes,
    images_below,
    images_of_classes,
    is_image,
    other_files,
    with_examples,
)
from sirc.data.lists import read_list
from sirc.errors import ImageError
from sirc.progress import SILENT, Progress

_ARCHIVES = (".zip", ".tar", ".tgz", ".tar.gz", ".tar.bz2", ".tar.xz", ".rar", ".7z")
_LEVELS_UP, _LEVELS_DOWN, _MOST_FOLDERS = 4, 2, 200  # how far to look for a benchmark that is not at its path
_LISTED = 50  # broken images listed one by one
_CHUNK = 64  # images decoded by one call of a worker
_WINDOW = 16  # chunks queued for each worker, so that millions of names are not all in the queue


@final
@dataclass(frozen=True)
class CheckLine:
    """One line of the report: whether all is well, what was found, and what to do if it is not."""

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
        """True if there is no problem."""
        return not self.problems

    @property
    def problems(self) -> tuple[CheckLine, ...]:
        """The lines that ask for action."""
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
    decode: bool = False,
    workers: int = 0,
    progress: Progress = SILENT,
) -> DataReport:
    """Check a benchmark, or data of your own as `folder` or `list`: report what is wrong and what to do.

    `split` checks one part only. For `list`, `path` is the list file, and its paths start from `root` or, without it,
    from the folder of the list. `decode` reads every image, in `workers` processes, and names those that are broken.
    """
    known = None if name in ("folder", "list") else _benchmark(name)
    if split not in (None, "train", "test"):
        raise ValueError(f'`split` must be "train" or "test"; got {split!r}. Leave it out to check all parts.')
    checker = _Checker(decode, workers, progress)
    if path is None:
        if known is None or known.key != "noise":
            raise ValueError(f"`path` must be given for {name}; only noise needs no files.")
        checker.good("noise needs no files: it is made as it is read")
    elif name == "list":
        checker.check_list(Path(path), root)
    elif checker.is_folder(Path(path), known):
        if known is not None:
            checker.check_benchmark(known, Path(path), known.splits if split is None else (known.split(split),))
        else:
            checker.check_folder(Path(path), split)
    title = known.title if known else name
    where = None if path is None else Path(path)
    return DataReport(title, where, tuple(checker.lines), checker.counts, checker.classes)


@final
class _Checker:
    """The report so far, and the rules that add to it."""

    def __init__(self, decode: bool, workers: int, progress: Progress) -> None:
        self.lines: list[CheckLine] = []
        self.counts: dict[str, int] = {}
        self.classes: dict[str, int] = {}
        self._decode, self._workers, self._progress = decode, workers, progress

    def good(self, text: str) -> None:
        self.lines.append(CheckLine(True, text))

    def bad(self, text: str, advice: str) -> None:
        self.lines.append(CheckLine(False, text, advice))

    def is_folder(self, path: Path, known: Benchmark | None) -> bool:
        if path.is_dir():
            return True
        if path.is_file():
            advice = "Unpack it, and pass the folder." if _is_archive(path.name) else "Pass a folder."
            self.bad(f"'{printable(path)}' is a file", advice)
            return False
        siblings = sorted(os.listdir(path.parent)) if path.parent.is_dir() else []
        archives = [name for name in siblings if _is_archive(name) and name.startswith(path.name)]
        if archives:
            advice = f"Unpack '{printable(path.parent / archives[0])}'."
        elif similar := closest_match(path.name, siblings, cutoff=0.7):
            advice = f"Did you mean '{printable(path.parent / similar)}'?"
        else:
            advice = f"Get it from {known.source}, as\n{known.layout}" if known else "Pass a folder that is there."
        self.bad(f"'{printable(path)}' is not there", advice)
        return False

    def check_benchmark(self, known: Benchmark, path: Path, parts: tuple[Split, ...]) -> None:
        there = [part for part in parts if find_folder(path, part) or archives_of(path, known, part)]
        if not there and (right := _right_level(path, known)):
            level = "above" if right in path.resolve().parents else "below"
            self.bad(f"{known.title} is not at this level, but {level} it", f"Pass '{printable(right)}'.")
            return
        classes: dict[str, list[str]] = {}
        for part in parts:
            folder = find_folder(path, part)
            if known.key == "imagenet1k" and (unfinished := unfinished_unpacking(path, part)):
                self.bad(f"{part.name}: {unfinished}", "")
            elif folder is None:
                self._missing_folder(known, path, part)
            elif known.lists:
                self._list_of_benchmark(known, path, part, folder)
            else:
                self._images(part.name, folder, known.role == "ID", part.size, known)
                classes[part.name] = class_folders(folder) if known.role == "ID" else []
        if len(classes) == 2 and (differing := sorted(set(classes["train"]) ^ set(classes["test"]))):
            self.bad(
                f"train and test must have the same classes; {with_examples(differing)} are in one only",
                "Unpack the data again: labels are the places of the folders in sorted order.",
            )
        if known.note and any(part.size is None for part in parts):
            self.good(known.note)

    def check_folder(self, path: Path, split: str | None) -> None:
        names = {"train": ("train",), "test": TESTS}
        parts = {
            part: folder
            for part, options in names.items()
            if (folder := next((path / name for name in options if (path / name).is_dir()), None))
        }
        if split is not None and split not in parts:
            self.bad(f"there is no folder for split {split!r} in '{printable(path)}'", f"Make one, '{split}'.")
            return
        for part, folder in ({split: parts[split]} if split else parts or {"all": path}).items():
            labelled = bool(class_folders(folder)) and not _loose_images(folder)
            self._images(part, folder, labelled, None, None)

    def check_list(self, path: Path, root: PathLike | None) -> None:
        if path.is_file():
            self._listed("all", path, path.parent if root is None else Path(root))
        else:
            what = "is a folder" if path.is_dir() else "is not there"
            self.bad(f"'{printable(path)}' {what}", "Pass the text file that names the images, one on each line.")

    def _images(self, part: str, folder: Path, labelled: bool, size: int | None, known: Benchmark | None) -> None:
        """Count the images of one part, as they would be read, and check its class folders."""
        names = self._labelled(part, folder, known) if labelled else FileNames(images_below(folder))
        self._count(part, folder, len(names), size, known)
        others = list(other_files(folder))
        if archives := [name for name in others if _is_archive(name)]:
            self.bad(f"{part}: {with_examples(archives)} archives lie among the images", "Unpack them.")
        elif others:
            self.good(f"{part}: {with_examples(others)} other files are ignored")
        self._decode_all(part, folder, names)

    def _listed(
        self, part: str, path: Path, folder: Path, size: int | None = None, within: tuple[str, ...] = ()
    ) -> None:
        """Count the images of a list, and check that each is there."""
        try:
            names, labels = read_list(path, within)
        except (OSError, ValueError) as error:
            self.bad(str(error), "Fetch the list again.")
            return
        sizes = file_sizes(folder, names)
        if len(missing := np.flatnonzero(sizes < 0)):
            self.bad(
                f"{part}: {with_examples(names, missing)} of {len(names):,} listed files are missing in "
                f"'{printable(folder)}'",
                "Unpack or fetch them again, or see from which folder the paths of the list start.",
            )
        if repeated := len(names) - len(set(names)):
            self.bad(f"{part}: {repeated:,} lines name an image again", "Fetch the list again.")
        if labels is not None:
            self.classes[part] = len(set(labels))
        self._count(part, folder, len(names) - len(missing), size, None)
        self._decode_all(part, folder, FileNames(names[int(i)] for i in np.flatnonzero(sizes >= 0)))

    def _missing_folder(self, known: Benchmark, path: Path, part: Split) -> None:
        if archives_of(path, known, part):
            self.good(f"{part.name}: '{TARS[part.name]}' is there, and is unpacked when first opened")
            return
        if known.key == "imagenet1k" and (path / TARS[part.name]).is_file():
            advice = f"'{TARS[part.name]}' is there; put '{DEVKIT}' beside it, and it is unpacked when first opened."
        elif archives := sorted(name for name in os.listdir(path) if _is_archive(name) and name[0] != "."):
            advice = f"Unpack {', '.join(map(printable, archives[:3]))}."
        elif any(map(is_image, os.listdir(path))):
            advice = f"Images lie directly in '{printable(path)}': move them into '{part.folders[0]}'."
        else:
            advice = f"Get it from {known.source}, as\n{known.layout}"
        folders = "' or '".join(part.folders)
        self.bad(f"{part.name}: there is no folder '{folders}'", advice)

    def _list_of_benchmark(self, known: Benchmark, path: Path, part: Split, folder: Path) -> None:
        if listed := find_list(path, known):
            self._listed(part.name, listed, folder, part.size, part.folders)
        else:
            self.bad(
                f"{part.name}: the list of its images, {' or '.join(known.lists)}, is not in '{printable(path)}'",
                f"Get it from {known.list_source}.",
            )

    def _labelled(self, part: str, folder: Path, known: Benchmark | None) -> FileNames:
        names, folders, counts = images_of_classes(folder)
        self.classes[part] = len(folders)
        if loose := _loose_images(folder):
            self.bad(
                f"{part}: {with_examples(loose)} images lie outside the class folders",
                "Move each into the folder of its class; they are not read where they are.",
            )
        if empty := [label for label, count in zip(folders, counts, strict=True) if not count]:
            self.bad(
                f"{part}: {with_examples(empty)} of {len(folders)} class folders are empty",
                "Unpack the data again, or delete a folder that is no class.",
            )
        if known and known.classes and len(folders) != known.classes:
            self.bad(f"{part}: {len(folders)} class folders of {known.classes}", "Unpack the data again.")
        return names

    def _count(self, part: str, folder: Path, count: int, size: int | None, known: Benchmark | None) -> None:
        self.counts[part] = count
        text = f"{part}: {count:,} images in '{printable(folder)}'"
        if count == 0:
            self.bad(text, f"Get them from {known.source}." if known else "Pass the folder that holds the images.")
        elif size is None or count == size:
            self.good(text)
        elif known and (right := _right_level(folder, known)):
            self.bad(f"{text}, of {size:,}", f"Pass '{printable(right)}'.")
        else:
            advice = "Are other files among them?" if count > size else "Unpack or fetch the data again."
            self.bad(f"{text}, of {size:,}", advice)

    def _decode_all(self, part: str, folder: Path, names: FileNames) -> None:
        if not self._decode or not len(names):
            return
        broken = _broken_images(folder, names, self._workers, self._progress)
        for text in broken[:_LISTED]:
            self.bad(f"{part}: {text}", "")
        if len(broken) > _LISTED:
            self.bad(f"{part}: {len(broken) - _LISTED:,} more images cannot be read", "")
        if not broken:
            self.good(f"{part}: every image can be read")


def _benchmark(name: str) -> Benchmark:
    try:
        return benchmark(name)
    except ValueError:
        keys = [known.key for known in benchmarks()]
        raise ValueError(unknown_name("`name`", name, [*keys, "folder", "list"])) from None


def _is_archive(name: str) -> bool:
    return name.lower().endswith(_ARCHIVES)


def _loose_images(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir() if is_image(entry.name) and entry.is_file())


def _right_level(path: Path, known: Benchmark) -> Path | None:
    """Find the folder above or below `path` at which the benchmark is, if only one fits."""
    for folder in islice(path.resolve().parents, _LEVELS_UP):
        if _is_at(folder, known):
            return folder
    below = [folder for folder in _folders_below(path, _LEVELS_DOWN) if _is_at(folder, known)]
    named = [folder for folder in below if folder.name == known.folder]
    return (named or below)[0] if named or len(below) == 1 else None


def _folders_below(path: Path, depth: int) -> Iterator[Path]:
    if depth == 0 or not path.is_dir():
        return
    for name in class_folders(path)[:_MOST_FOLDERS]:
        yield path / name
        yield from _folders_below(path / name, depth - 1)


def _is_at(place: Path, known: Benchmark) -> bool:
    """Look for a part of the benchmark with an image in it; where any folder would do, its name decides."""
    for part in known.splits:
        for name in part.folders:
            unsure = name == "." or (known.lists and find_list(place, known) is None)
            if unsure and place.name != known.folder:
                continue
            if (place / name).is_dir() and next(images_below(place / name), None) is not None:
                return True
    return False


def _broken_images(root: Path, names: FileNames, workers: int, progress: Progress) -> list[str]:
    """Decode every image and describe those that are broken, in order; `workers=0` decodes in this process."""
    paths = (root / name for name in names)
    broken: list[str] = []
    # Spawned, not forked: torch and PIL have threads, which a fork would cut off in the middle.
    spawn = multiprocessing.get_context("spawn")
    with (
        ProcessPoolExecutor(workers, mp_context=spawn) if workers else nullcontext() as pool,
        progress.task("decode", len(names)) as task,
    ):
        while window := [chunk for _ in range(_WINDOW * max(1, workers)) if (chunk := list(islice(paths, _CHUNK)))]:
            results = pool.map(_decode_chunk, window) if pool else map(_decode_chunk, window)
            for chunk, messages in zip(window, results, strict=True):
                broken += messages
                task.advance(len(chunk))
    return broken


def _decode_chunk(paths: list[Path]) -> list[str]:
    broken = []
    for path in paths:
        try:
            read_image(path)
        except ImageError as error:
            broken.append(str(error).removesuffix(FIND_ALL))
    return broken
