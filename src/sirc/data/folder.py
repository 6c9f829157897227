"""Images that lie in files: the set itself, and how a folder is read."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sirc._utils.files import PathLike
from sirc.data.base import ImageSet, Transform
from sirc.data.decode import printable, read_image
from sirc.data.file_names import Names
from sirc.data.scan import class_folders, images_below, images_of_class
from sirc.errors import ImageError

if TYPE_CHECKING:
    from PIL.Image import Image

_SHOWN = 5
_EXPECTED = "Pass the folder that holds the images (.jpg, .png, .tif, .webp, …)."


@final
class FileSet(ImageSet):
    """Image files below one folder; made by `image_folder` and `file_list`."""

    def __init__(
        self,
        root: PathLike,
        names: Names,
        *,
        name: str,
        labels: Sequence[int] | Tensor | None = None,
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
        return self.root / self._names[self._number(index)]

    def image(self, index: int) -> Image:
        """Read one file as RGB; an `ImageError` names it if it cannot be read."""
        return read_image(self.path(index))

    def where(self, index: int) -> str:
        """The path of one image."""
        return printable(self.path(index))

    @cached_property
    def _files(self) -> str:
        """A digest of names and sizes, in order; the folder above may move."""
        sizes = file_sizes(self.root, self._names)
        if len(gone := np.flatnonzero(sizes < 0)):
            raise ImageError(
                f"every image of '{self.name}' must still be in '{printable(self.root)}'; "
                f"{some(self._names, gone)} of {len(self)} are gone. Restore them, or open the dataset again."
            )
        return f"files {self._names.digest()} {hashlib.sha256(sizes.astype('<i8').tobytes()).hexdigest()}"

    def _identity(self) -> str:
        return self._files


def image_folder(
    path: PathLike,
    *,
    labelled: bool = True,
    allow_empty: bool = False,
    name: str | None = None,
    transform: Transform | None = None,
) -> FileSet:
    """Read a folder with one folder for each class, as torchvision's `ImageFolder` does: same order, same numbers.

    `labelled=False` takes every image below the folder, however deep. An empty class folder is an error, since it is
    most often a download cut short, unless `allow_empty`: then the class keeps its number. Hidden files are ignored.
    """
    path = Path(path)
    require_folder(path)
    name = path.resolve().name if name is None else name
    if not labelled:
        names = Names(images_below(path))
        if not len(names):
            raise FileNotFoundError(f"there is no image in or below '{printable(path)}'. {_EXPECTED}")
        return FileSet(path, names, name=name, transform=transform)
    names, classes, counts = images_of_classes(path)
    if not len(names):
        direct = next(images_below(path), None)
        why = f"its images lie directly in it, such as '{printable(direct)}'" if direct else "it has no image at all"
        raise FileNotFoundError(
            f"'{printable(path)}' must have one folder of images for each class; {why}. "
            "Sort them into folders, or pass `labelled=False` for an OOD set."
        )
    empty = [number for number, count in enumerate(counts) if not count]
    if empty and not allow_empty:
        raise FileNotFoundError(
            f"every class folder of '{printable(path)}' must have images; {some(classes, empty)} of {len(classes)} "
            "have none. Unpack the data again, delete a folder that is no class, or pass `allow_empty=True`."
        )
    labels = torch.repeat_interleave(torch.arange(len(classes)), torch.tensor(counts))
    return FileSet(path, names, name=name, labels=labels, classes=classes, transform=transform)


def images_of_classes(path: Path) -> tuple[Names, list[str], list[int]]:
    """The images of every class folder, the names of the folders, and how many images each has."""
    classes = class_folders(path)
    counts = [0] * len(classes)

    def counted() -> Iterator[str]:
        for label, folder in enumerate(classes):
            for file in images_of_class(path, folder):
                counts[label] += 1
                yield file

    return Names(counted()), classes, counts


def file_sizes(root: Path, names: Names) -> npt.NDArray[np.int64]:
    """The size of each file, −1 where there is none; by threads, as network file systems answer slowly."""

    def sizes(part: range) -> list[int]:
        return [_size(os.path.join(root, names[i])) for i in part]

    parts = [range(start, min(start + 4096, len(names))) for start in range(0, len(names), 4096)]
    with ThreadPoolExecutor(min(16, max(1, len(parts)))) as pool:
        return np.array([size for part in pool.map(sizes, parts) for size in part], dtype=np.int64)


def require_folder(path: Path) -> None:
    """Refuse a path that is no folder, and say what it is."""
    if not path.is_dir():
        what = "a file, not a folder; unpack it if it is an archive" if path.exists() else "not there"
        raise FileNotFoundError(f"the folder '{printable(path)}' is {what}. {_EXPECTED}")


def some(names: Names | Sequence[str], chosen: Sequence[int] | npt.NDArray[np.int64]) -> str:
    """Say "3 (a, b, c)" of the chosen names; the first few stand for many."""
    shown = ", ".join(printable(names[int(i)]) for i in chosen[:_SHOWN]) + (", …" if len(chosen) > _SHOWN else "")
    return f"{len(chosen):,} ({shown})"


def _size(path: str) -> int:
    try:
        status = os.stat(path)
    except (OSError, ValueError):  # ValueError: a list may hold a null byte
        return -1
    return status.st_size if stat.S_ISREG(status.st_mode) else -1
