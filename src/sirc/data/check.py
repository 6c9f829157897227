"""Looks at a dataset's files before anything depends on them: what is there, what is missing, what to do."""

from __future__ import annotations

from pathlib import Path
from typing import final

import numpy as np

from sirc._utils.files import PathLike
from sirc.data import places
from sirc.data.broken import broken_images
from sirc.data.catalogue import Benchmark, Split, benchmark, benchmarks, unknown
from sirc.data.catalogue.layout import DEVKIT, TARS, TESTS, archives_of, cut_short, find_folder, find_list
from sirc.data.decode import printable
from sirc.data.file_names import Names
from sirc.data.folder import file_sizes, images_of_classes, some
from sirc.data.lists import read_list
from sirc.data.report import Finding, Report
from sirc.data.scan import class_folders, images_below, is_image, other_files
from sirc.progress import SILENT, Progress

__all__ = ["Finding", "Report", "check"]

_NAMED = 50  # broken images told one by one


def check(
    name: str,
    path: PathLike | None,
    *,
    split: str | None = None,
    root: PathLike | None = None,
    decode: bool = False,
    workers: int = 0,
    progress: Progress = SILENT,
) -> Report:
    """Look at a benchmark, or at data of your own as `folder` or `list`, and say what is wrong and what to do.

    `split` looks at one part only. For `list`, `path` is the list file, whose paths start from `root`, or from where it
    lies. `decode` reads every image, in `workers` processes, and names those that cannot be read.
    """
    known = None if name in ("folder", "list") else _benchmark(name)
    if split not in (None, "train", "test"):
        raise ValueError(f'`split` must be "train" or "test"; got {split!r}. Leave it out to look at all parts.')
    look = _Look(decode, workers, progress)
    if path is None:
        if known is None or known.key != "noise":
            raise ValueError(f"`path` must be given for {name}; only noise needs no files.")
        look.good("noise needs no files: it is made as it is read")
    elif name == "list":
        look.own_list(Path(path), root)
    elif look.is_folder(Path(path), known):
        if known is not None:
            look.benchmark(known, Path(path), known.splits if split is None else (known.split(split),))
        else:
            look.own_folder(Path(path), split)
    title = known.title if known else name
    return Report(title, None if path is None else Path(path), tuple(look.findings), look.counts, look.classes)


@final
class _Look:
    """The findings so far, and the rules that add to them."""

    def __init__(self, decode: bool, workers: int, progress: Progress) -> None:
        self.findings: list[Finding] = []
        self.counts: dict[str, int] = {}
        self.classes: dict[str, int] = {}
        self._decode, self._workers, self._progress = decode, workers, progress

    def good(self, text: str) -> None:
        self.findings.append(Finding(True, text))

    def bad(self, text: str, advice: str) -> None:
        self.findings.append(Finding(False, text, advice))

    def is_folder(self, path: Path, known: Benchmark | None) -> bool:
        if path.is_dir():
            return True
        if path.is_file():
            advice = "Unpack it, and pass the folder." if places.is_archive(path.name) else "Pass a folder."
            self.bad(f"'{printable(path)}' is a file", advice)
            return False
        packed = [name for name in places.archives_in(path.parent) if name.startswith(path.name)]
        like = places.like_named(path)
        if packed:
            advice = f"Unpack '{printable(path.parent / packed[0])}'."
        elif like:
            advice = f"Did you mean '{printable(path.parent / like)}'?"
        else:
            advice = f"Get it from {known.source}, as\n{known.layout}" if known else "Pass a folder that is there."
        self.bad(f"'{printable(path)}' is not there", advice)
        return False

    def benchmark(self, known: Benchmark, path: Path, parts: tuple[Split, ...]) -> None:
        there = [part for part in parts if find_folder(path, part) or archives_of(path, known, part)]
        if not there and (right := places.right_level(path, known)):
            level = "above" if right in path.resolve().parents else "below"
            self.bad(f"{known.title} is not at this level, but {level} it", f"Pass '{printable(right)}'.")
            return
        seen: dict[str, list[str]] = {}
        for part in parts:
            folder = find_folder(path, part)
            if known.key == "imagenet1k" and (words := cut_short(path, part)):
                self.bad(f"{part.name}: {words}", "")
            elif folder is None:
                self._no_folder(known, path, part)
            elif known.lists:
                self._list_of(known, path, part, folder)
            else:
                self.images(part.name, folder, known.role == "ID", part.size, known)
                seen[part.name] = class_folders(folder) if known.role == "ID" else []
        if len(seen) == 2 and (apart := sorted(set(seen["train"]) ^ set(seen["test"]))):
            self.bad(
                f"train and test must have the same classes; {some(apart, range(len(apart)))} are in one only",
                "Unpack the data again: labels are the places of the folders in sorted order.",
            )
        if known.note and any(part.size is None for part in parts):
            self.good(known.note)

    def own_folder(self, path: Path, split: str | None) -> None:
        train = [path / "train"] if (path / "train").is_dir() else []
        test = [path / name for name in TESTS if (path / name).is_dir()][:1]
        parts = {name: found[0] for name, found in (("train", train), ("test", test)) if found}
        if split is not None and split not in parts:
            return self.bad(f"there is no folder for split {split!r} in '{printable(path)}'", f"Make one, '{split}'.")
        wanted = {split: parts[split]} if split else parts or {"all": path}
        for name, folder in wanted.items():
            loose = any(map(is_image, (entry.name for entry in folder.iterdir() if entry.is_file())))
            self.images(name, folder, bool(class_folders(folder)) and not loose, None, None)
        return None

    def own_list(self, path: Path, root: PathLike | None) -> None:
        if path.is_file():
            return self.listed("all", path, path.parent if root is None else Path(root))
        what = "is a folder" if path.is_dir() else "is not there"
        return self.bad(f"'{printable(path)}' {what}", "Pass the text file that names the images, one on each line.")

    def images(self, part: str, folder: Path, labelled: bool, size: int | None, known: Benchmark | None) -> None:
        """Count the images of one part, as they would be read, and look at its class folders."""
        names = self._labelled(part, folder, known) if labelled else Names(images_below(folder))
        self._count(part, folder, len(names), size, known)
        others = list(other_files(folder))
        if packed := [name for name in others if places.is_archive(name)]:
            self.bad(f"{part}: {some(packed, range(len(packed)))} archives lie among the images", "Unpack them.")
        elif others:
            self.good(f"{part}: {some(others, range(len(others)))} other files are ignored")
        self._read_all(part, folder, names)

    def listed(
        self, part: str, path: Path, folder: Path, size: int | None = None, within: tuple[str, ...] = ()
    ) -> None:
        """Count the images of a list, and see that each is there."""
        try:
            names, labels = read_list(path, within)
        except (OSError, ValueError) as error:
            return self.bad(str(error), "Fetch the list again.")
        sizes = file_sizes(folder, names)
        if len(gone := np.flatnonzero(sizes < 0)):
            self.bad(
                f"{part}: {some(names, gone)} of {len(names):,} listed files are missing in '{printable(folder)}'",
                "Unpack or fetch them again, or see from which folder the paths of the list start.",
            )
        if len(set(names)) < len(names):
            self.bad(f"{part}: {len(names) - len(set(names)):,} lines name an image again", "Fetch the list again.")
        if labels is not None:
            self.classes[part] = len(set(labels))
        self._count(part, folder, len(names) - len(gone), size, None)
        there = Names(names[int(i)] for i in np.flatnonzero(sizes >= 0))
        return self._read_all(part, folder, there)

    def _no_folder(self, known: Benchmark, path: Path, part: Split) -> None:
        if archives_of(path, known, part):
            return self.good(f"{part.name}: '{TARS[part.name]}' is there, and is unpacked when first opened")
        wanted = "' or '".join(part.folders)
        if known.key == "imagenet1k" and (path / TARS[part.name]).is_file():
            advice = f"'{TARS[part.name]}' is there; put '{DEVKIT}' beside it, and it is unpacked when first opened."
        elif packed := places.archives_in(path):
            advice = f"Unpack {', '.join(map(printable, packed[:3]))}."
        elif any(map(is_image, (entry.name for entry in path.iterdir()))):
            advice = f"Images lie directly in '{printable(path)}': move them into '{part.folders[0]}'."
        else:
            advice = f"Get it from {known.source}, as\n{known.layout}"
        return self.bad(f"{part.name}: there is no folder '{wanted}'", advice)

    def _list_of(self, known: Benchmark, path: Path, part: Split, folder: Path) -> None:
        if listed := find_list(path, known):
            return self.listed(part.name, listed, folder, part.size, part.folders)
        names = " or ".join(known.lists)
        return self.bad(
            f"{part.name}: the list of its images, {names}, is not in '{printable(path)}'",
            f"Get it from {known.list_source}.",
        )

    def _labelled(self, part: str, folder: Path, known: Benchmark | None) -> Names:
        names, folders, counts = images_of_classes(folder)
        loose = [entry.name for entry in folder.iterdir() if is_image(entry.name) and entry.is_file()]
        self.classes[part] = len(folders)
        if loose:
            self.bad(
                f"{part}: {some(sorted(loose), range(len(loose)))} images lie outside the class folders",
                "Move each into the folder of its class; they are not read where they are.",
            )
        if empty := [label for label, count in zip(folders, counts, strict=True) if not count]:
            self.bad(
                f"{part}: {some(empty, range(len(empty)))} of {len(folders)} class folders are empty",
                "Unpack the data again, or delete a folder that is no class.",
            )
        if known and known.classes and len(folders) != known.classes:
            self.bad(f"{part}: {len(folders)} class folders of {known.classes}", "Unpack the data again.")
        return names

    def _count(self, part: str, folder: Path, found: int, size: int | None, known: Benchmark | None) -> None:
        self.counts[part] = found
        text = f"{part}: {found:,} images in '{printable(folder)}'"
        if found == 0:
            self.bad(text, f"Get them from {known.source}." if known else "Pass the folder that holds the images.")
        elif size is None or found == size:
            self.good(text)
        else:
            right = places.right_level(folder, known) if known else None
            way_out = "Are other files among them?" if found > size else "Unpack or fetch the data again."
            self.bad(f"{text}, of {size:,}", f"Pass '{printable(right)}'." if right else way_out)

    def _read_all(self, part: str, folder: Path, names: Names) -> None:
        if not self._decode or not len(names):
            return
        broken = broken_images(folder, names, workers=self._workers, progress=self._progress)
        for text in broken[:_NAMED]:
            self.bad(f"{part}: {text}", "")
        if len(broken) > _NAMED:
            self.bad(f"{part}: {len(broken) - _NAMED:,} more images cannot be read", "")
        if not broken:
            self.good(f"{part}: every image can be read")


def _benchmark(name: str) -> Benchmark:
    try:
        return benchmark(name)
    except ValueError:
        raise ValueError(unknown("`name`", name, [*(one.key for one in benchmarks()), "folder", "list"])) from None
