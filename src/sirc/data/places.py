"""Guesses what a user meant by a path at which a benchmark is not: another level, a like name, an archive."""

import difflib
import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from sirc.data.catalogue import Benchmark
from sirc.data.catalogue.layout import find_list
from sirc.data.scan import class_folders, images_below

_ARCHIVES = (".zip", ".tar", ".tgz", ".tar.gz", ".tar.bz2", ".tar.xz", ".rar", ".7z")
_UP, _DOWN, _WIDE = 4, 2, 200  # how far to look


def is_archive(name: str) -> bool:
    """Whether a file is an archive, by its name."""
    return name.lower().endswith(_ARCHIVES)


def archives_in(folder: Path) -> list[str]:
    """The archives in a folder, sorted."""
    if not folder.is_dir():
        return []
    return sorted(name for name in os.listdir(folder) if is_archive(name) and not name.startswith("."))


def right_level(path: Path, known: Benchmark) -> Path | None:
    """The folder above or below `path` at which the benchmark is, if there is just one."""
    above = [place for place in islice(path.resolve().parents, _UP) if _is_at(place, known)]
    if above:
        return above[0]
    below = [place for place in _below(path, _DOWN) if _is_at(place, known)]
    named = [place for place in below if place.name == known.folder]
    if named or len(below) == 1:
        return (named or below)[0]
    return None


def like_named(path: Path) -> str | None:
    """The name beside a missing path that is most like it."""
    if not path.parent.is_dir():
        return None
    close = difflib.get_close_matches(path.name.lower(), names := sorted(os.listdir(path.parent)), n=1, cutoff=0.7)
    lowered = {name.lower(): name for name in names}
    close = close or [name for name in lowered if name == path.name.lower()]
    return lowered.get(close[0].lower()) if close else None


def _below(path: Path, depth: int) -> Iterator[Path]:
    if depth == 0 or not path.is_dir():
        return
    for name in class_folders(path)[:_WIDE]:
        yield path / name
        yield from _below(path / name, depth - 1)


def _is_at(place: Path, known: Benchmark) -> bool:
    """Whether a part of the benchmark is here, with an image in it; where that could be any folder its name decides."""
    for part in known.splits:
        for name in part.folders:
            unsure = name == "." or (known.lists and find_list(place, known) is None)
            if unsure and place.name != known.folder:
                continue
            if (place / name).is_dir() and next(images_below(place / name), None) is not None:
                return True
    return False
