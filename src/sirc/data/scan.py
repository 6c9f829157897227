"""Finds the images below a folder, in torchvision's order."""

import os
from collections.abc import Iterator
from pathlib import Path

EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")  # torchvision's


def is_image(name: str) -> bool:
    """Whether a file counts as an image, by its name; hidden files (macOS leaves `._x.jpg`) do not."""
    return name.lower().endswith(EXTENSIONS) and not name.startswith(".")


def class_folders(folder: Path) -> list[str]:
    """The names of the folders in a folder, sorted; hidden ones do not count."""
    with os.scandir(folder) as entries:
        return sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))


def images_below(folder: Path) -> Iterator[str]:
    """Paths relative to `folder`, with forward slashes: its own images, then each folder's in torchvision's order."""
    with os.scandir(folder) as entries:
        own = sorted(
            e.name for e in entries if is_image(e.name) and (e.is_file() or (e.is_symlink() and not e.is_dir()))
        )
    yield from own
    for name in class_folders(folder):
        yield from images_of_class(folder, name)


def images_of_class(folder: Path, name: str) -> Iterator[str]:
    """All images below `folder/name`, however deep: folders sorted by their path, files sorted within each."""
    for place, files in sorted(_walk(folder, name, frozenset({_mark(folder)}))):
        for file in sorted(files):
            if is_image(file):
                yield f"{place}/{file}"


def other_files(folder: Path) -> Iterator[str]:
    """The files below a folder that are no images; hidden ones are left out."""
    for place, files in sorted(_walk(folder, "", frozenset())):
        yield from (f"{place}/{file}".lstrip("/") for file in sorted(files) if not is_image(file) and file[0] != ".")


def _walk(top: Path, place: str, above: frozenset[tuple[int, int]]) -> Iterator[tuple[str, list[str]]]:
    """Give each folder below `place` with its files; links are followed, but never round in a circle."""
    here = top / place if place else top
    mark = _mark(here)
    if mark in above:
        return
    files: list[str] = []
    folders: list[str] = []
    with os.scandir(here) as entries:
        for entry in entries:
            if entry.is_dir():
                folders.append(entry.name)
            elif _is_file(entry):
                files.append(entry.name)
    yield place, files
    for name in folders:
        if not name.startswith("."):
            yield from _walk(top, f"{place}/{name}" if place else name, above | {mark})


def _is_file(entry: os.DirEntry[str]) -> bool:
    """Whether it can be read as a file: a pipe would be waited for. A link that leads nowhere counts, and is told."""
    return entry.is_file() or (entry.is_symlink() and not entry.is_dir())


def _mark(folder: Path) -> tuple[int, int]:
    status = folder.stat()
    return status.st_dev, status.st_ino
