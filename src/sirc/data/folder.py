"""Datasets of image files: those of a folder, in torchvision's order, or those in a list."""

from __future__ import annotations

import hashlib
import os
import re
import stat
from array import array
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Literal, final

import numpy as np
import numpy.typing as npt
from torch import Tensor

from sirc._utils.checks import check_choice, check_path, iterates
from sirc._utils.files import PathLike
from sirc._utils.text import quoted
from sirc.data.base import ImageSet, Transform
from sirc.data.decode import printable, read_image
from sirc.errors import ImageError

if TYPE_CHECKING:
    from PIL.Image import Image

EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")  # torchvision's
Sort = Literal["name", "natural"]
"""The order of class folders: as text, which is torchvision's, or with numbers by their value."""
_EXAMPLES = 5
_CHUNK = 4096  # files that a thread looks up at a time
_LABEL = re.compile(r"[+-]?[0-9]{1,18}")
_EXPECTED = "Pass the folder that holds the images (.jpg, .png, .tif, .webp, …)."


@final
class FileNames:
    """An immutable sequence of relative file names with forward slashes, stored as one `bytes` and their ends in it.

    A list of `str` would take 100 bytes per name, and each worker process would copy it when it counts references.
    """

    def __init__(self, names: Iterable[str]) -> None:
        text, ends = bytearray(), array("Q")
        for name in names:
            text += os.fsencode(name)
            ends.append(len(text))
        self._text, self._ends = bytes(text), ends

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, index: int) -> str:
        return os.fsdecode(self._text[self._ends[index - 1] if index else 0 : self._ends[index]])

    def __iter__(self) -> Iterator[str]:
        return (self[index] for index in range(len(self)))

    def digest(self) -> str:
        """Digest the names and their order."""
        ends = np.asarray(self._ends, dtype="<u8")
        return hashlib.sha256(self._text + ends.tobytes()).hexdigest()


@final
class FileSet(ImageSet):
    """Image files below one folder; `image_folder` and `file_list` make them."""

    def __init__(
        self,
        root: PathLike,
        names: FileNames,
        *,
        name: str,
        labels: npt.ArrayLike | Tensor | None = None,
        classes: Sequence[str] = (),
        transform: Transform | None = None,
    ) -> None:
        super().__init__(name=name, labels=labels, classes=classes, transform=transform)
        self.root = Path(root)
        self._names = names

    def __len__(self) -> int:
        return len(self._names)

    def path(self, index: int) -> Path:
        """The file of one image."""
        return self.root / self._names[self._resolve_index(index)]

    def image(self, index: int) -> Image:
        """Read one file as RGB; an `ImageError` names it if it cannot be read."""
        return read_image(self.path(index))

    def where(self, index: int) -> str:
        """The path of one image."""
        return printable(self.path(index))

    @cached_property
    def _identity(self) -> str:
        """A digest of names and sizes, in order; moving the folder does not change it."""
        sizes = file_sizes(self.root, self._names)
        if gone := missing_files(self._names, sizes):
            raise ImageError(
                f"every image of '{self.name}' must still be in '{printable(self.root)}'; "
                f"{with_examples(gone)} of {len(self)} are gone. Restore them, or open the dataset again."
            )
        return f"files {self._names.digest()} {hashlib.sha256(sizes.astype('<i8').tobytes()).hexdigest()}"


def image_folder(
    path: PathLike,
    *,
    labelled: bool = True,
    allow_empty: bool = False,
    classes: Sequence[str] | None = None,
    sort: Sort = "name",
    name: str | None = None,
    transform: Transform | None = None,
) -> FileSet:
    """Open a folder with one subfolder for each class, in the order and with the labels of torchvision's `ImageFolder`.

    That order is by name, as text: 0, 1, 10, 2. `sort="natural"` gives 0, 1, 2, 10. `classes` lists the folders in the
    order of the network's outputs; a class without a folder keeps its number.

    `labelled=False` takes every image below the folder, at any depth. An empty class folder is an error, since it
    usually comes from an interrupted download; with `allow_empty` the class keeps its number. Hidden files are ignored.
    """
    path = check_path("path", path)
    require_folder(path)
    name = path.resolve().name if name is None else name
    ordered = ordered_classes(path, classes, sort) if labelled else []
    names, counts = images_of_classes(path, ordered) if labelled else (FileNames(images_below(path)), {})
    if not len(names):
        if direct := next(images_below(path), None):
            raise FileNotFoundError(
                f"'{printable(path)}' must have one folder of images for each class; its images lie directly in it, "
                f"such as '{printable(direct)}'. Sort them into folders, or pass `labelled=False` for an OOD set."
            )
        raise FileNotFoundError(f"there is no image in or below '{printable(path)}'. {_EXPECTED}")
    if (empty := [folder for folder, count in counts.items() if not count]) and not allow_empty:
        raise FileNotFoundError(
            f"every class folder of '{printable(path)}' must have images; {with_examples(empty)} of {len(ordered)} "
            "have none. Unpack the data again, or delete a folder that is no class, or pass `allow_empty=True`."
        )
    labels = np.repeat(np.arange(len(ordered)), [counts.get(folder, 0) for folder in ordered]) if labelled else None
    return FileSet(path, names, name=name, labels=labels, classes=ordered, transform=transform)


def file_list(
    path: PathLike,
    root: PathLike,
    *,
    labelled: bool | None = None,
    within: Sequence[str] = (),
    name: str | None = None,
    transform: Transform | None = None,
) -> FileSet:
    """Open the images below `root` that a text file lists, one `path label` or `path` on each line.

    The last word is the label if it is a whole number; paths may contain spaces. `labelled=None` takes labels if every
    line has one. If a path starts with a folder that is named in `within`, that folder is removed from it.
    """
    path, root = check_path("path", path), check_path("root", root)
    names, labels = read_list(path, within)
    require_folder(root)
    name = path.stem if name is None else name
    if gone := missing_files(names, file_sizes(root, names)):
        raise FileNotFoundError(
            f"every file that '{printable(path)}' lists must be below '{printable(root)}'; "
            f"{with_examples(gone)} of {len(names):,} are missing. Pass the folder that its paths start "
            "from, or unpack the data again."
        )
    if labelled is False or (labelled is None and labels is None):
        return FileSet(root, names, name=name, transform=transform)
    if labels is None:
        raise ValueError(
            f"every line of '{printable(path)}' must end in a label, a whole number; some or all have none. "
            "Add them, or pass `labelled=False` for an OOD set."
        )
    numbers = np.asarray(labels, dtype=np.int64)
    if numbers.min() < 0:
        row = int(np.argmax(numbers < 0))
        raise ValueError(
            f"the labels of '{printable(path)}' must be 0 or more; got {labels[row]} for '{printable(names[row])}'. "
            "Pass `labelled=False` for an OOD set."
        )
    return FileSet(root, names, name=name, labels=numbers, transform=transform)


def read_lines(path: Path, what: str) -> list[str]:
    """Read a text file with one `what` on each line; empty lines are left out."""
    try:
        lines = list(filter(None, map(str.strip, path.read_text(encoding="utf-8-sig").splitlines())))
    except UnicodeDecodeError as error:
        raise ValueError(
            f"'{printable(path)}' must be a text file in UTF-8 with one {what} on each line; it has byte "
            f"0x{error.object[error.start]:02x} at {error.start}. Did you pass an image or an archive?"
        ) from error
    if not lines:
        raise ValueError(f"'{printable(path)}' must name at least one {what}; it is empty. Fetch or write it again.")
    return lines


def read_list(path: Path, within: Sequence[str] = ()) -> tuple[FileNames, array[int] | None]:
    """Read the paths of a list, and the labels if every line has one."""
    labels = array("q")

    def parse(lines: list[str]) -> Iterator[str]:
        for line in lines:
            head, *last = line.rsplit(None, 1)
            if last and _LABEL.fullmatch(last[0]):
                labels.append(int(last[0]))
                line = head
            first, slash, below = line.removeprefix("./").partition("/")
            yield below if slash and first in within else first + slash + below

    try:
        names = FileNames(parse(read_lines(path, "image")))
    except (FileNotFoundError, IsADirectoryError) as error:
        raise FileNotFoundError(
            f"there is no list file '{printable(path)}'. Pass the text file that names the images."
        ) from error
    return names, labels if len(labels) == len(names) else None


def images_of_classes(path: Path, classes: Sequence[str]) -> tuple[FileNames, dict[str, int]]:
    """List the images of every class, and count those of each class folder that exists."""
    there = {*class_folders(path)}
    counts = {folder: 0 for folder in classes if folder in there}

    def count_images() -> Iterator[str]:
        for folder in counts:
            for file in images_of_class(path, folder):
                counts[folder] += 1
                yield file

    return FileNames(count_images()), counts


def ordered_classes(path: Path, classes: Sequence[str] | None, sort: Sort) -> list[str]:
    """List the class folders in the order of their numbers: as listed in `classes`, or sorted."""
    check_choice("sort", sort, ("name", "natural"))
    there = class_folders(path)
    if classes is None:
        return sorted(there, key=natural_key) if sort == "natural" else there
    if isinstance(classes, str) or not iterates(classes):
        raise ValueError(f"`classes` must be a list of names; got {quoted(classes)}. Pass the names themselves.")
    if sort != "name":
        raise ValueError(f"`sort` must be left out if `classes` gives the order; got {quoted(sort)}. Drop one.")
    ordered = list(classes)
    if len(set(ordered)) < len(ordered):
        twice = next(name for name in ordered if ordered.count(name) > 1)
        raise ValueError(f"`classes` must name each class once; got '{printable(twice)}' twice. Drop one.")
    if unlisted := sorted(set(there) - set(ordered)):
        raise ValueError(
            f"`classes` must name every class folder of '{printable(path)}'; {with_examples(unlisted)} of {len(there)} "
            "are not among the names. Add them in the order of the network's outputs, or delete the folders."
        )
    return ordered


def natural_key(name: str) -> tuple[list[str | int], str]:
    """The key that sorts numbers in names by their value: 2 before 10."""
    parts = re.split(r"([0-9]+)", name)  # text and numbers alternate
    return [int(part) if i % 2 else part for i, part in enumerate(parts)], name


def is_image(name: str) -> bool:
    """Whether a file name has an image's extension and is not hidden (macOS leaves `._x.jpg`)."""
    return name.lower().endswith(EXTENSIONS) and not name.startswith(".")


def class_folders(folder: Path) -> list[str]:
    """List the names of the folders in a folder, sorted, without hidden ones."""
    with os.scandir(folder) as entries:
        return sorted(entry.name for entry in entries if _is_folder(entry))


def images_below(folder: Path) -> Iterator[str]:
    """List all images as relative paths: first those directly in `folder`, then subfolders in torchvision's order."""
    with os.scandir(folder) as entries:
        yield from sorted(entry.name for entry in entries if is_image(entry.name) and _is_file(entry))
    for name in class_folders(folder):
        yield from images_of_class(folder, name)


def images_of_class(folder: Path, name: str) -> Iterator[str]:
    """List all images below `folder/name`, however deep: folders sorted by path, files sorted within each."""
    for subfolder, files in sorted(_walk(folder, name, frozenset({_inode(folder)}))):
        yield from (f"{subfolder}/{file}" for file in sorted(files) if is_image(file))


def other_files(folder: Path) -> Iterator[str]:
    """List the files below a folder that are not images, without hidden ones."""
    for subfolder, files in sorted(_walk(folder, "", frozenset())):
        others = sorted(file for file in files if not is_image(file) and not file.startswith("."))
        yield from (f"{subfolder}/{file}".lstrip("/") for file in others)


def file_sizes(root: Path, names: FileNames) -> npt.NDArray[np.int64]:
    """Get the size of each file, −1 if it is missing; in threads, since network file systems are slow."""

    def sizes(start: int) -> list[int]:
        return [_size(os.path.join(root, names[i])) for i in range(start, min(start + _CHUNK, len(names)))]

    with ThreadPoolExecutor(16) as pool:
        chunks = pool.map(sizes, range(0, len(names), _CHUNK))
        return np.fromiter(chain.from_iterable(chunks), dtype=np.int64)


def missing_files(names: FileNames, sizes: npt.NDArray[np.int64]) -> list[str]:
    """List the files whose size, from `file_sizes`, says that they are missing."""
    return [names[int(i)] for i in np.flatnonzero(sizes < 0)]


def require_folder(path: Path) -> None:
    """Raise an error if a path is not a folder."""
    if not path.is_dir():
        why = "is a file, not a folder; unpack it if it is an archive" if path.exists() else "does not exist"
        raise FileNotFoundError(f"the folder '{printable(path)}' {why}. {_EXPECTED}")


def with_examples(names: Sequence[str]) -> str:
    """Count names, with the first few as examples: "3 (a, b, c)"."""
    examples = map(printable, names[:_EXAMPLES])
    return f"{len(names):,} ({', '.join(examples)}{', …' if len(names) > _EXAMPLES else ''})"


def _walk(top: Path, subfolder: str, above: frozenset[tuple[int, int]]) -> Iterator[tuple[str, list[str]]]:
    """Yield `subfolder` and each folder below it with its files; follow links, but not in a circle."""
    here = top / subfolder
    if (inode := _inode(here)) in above:
        return
    with os.scandir(here) as entries:
        listed = list(entries)
    yield subfolder, [entry.name for entry in listed if _is_file(entry)]
    for entry in listed:
        if _is_folder(entry):
            yield from _walk(top, f"{subfolder}/{entry.name}".lstrip("/"), above | {inode})


def _is_file(entry: os.DirEntry[str]) -> bool:
    """Whether it is a regular file or a link to one, or a broken link, which is reported; a pipe would block."""
    return entry.is_file(follow_symlinks=False) or (entry.is_symlink() and not os.path.isdir(entry.path))


def _is_folder(entry: os.DirEntry[str]) -> bool:
    """Whether it is a folder or a link to one, and is not hidden."""
    here = entry.is_dir(follow_symlinks=False) or (entry.is_symlink() and os.path.isdir(entry.path))
    return here and not entry.name.startswith(".")


def _inode(folder: Path) -> tuple[int, int]:
    status = folder.stat()
    return status.st_dev, status.st_ino


def _size(path: str) -> int:
    try:
        status = os.stat(path)
    except (OSError, ValueError):  # ValueError: a list may hold a null byte
        return -1
    return status.st_size if stat.S_ISREG(status.st_mode) else -1
