"""File lists: read a dataset from a text file with one path on each line."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

from sirc._utils.files import PathLike
from sirc.data.base import Transform
from sirc.data.decode import printable
from sirc.data.folder import FileNames, FileSet, file_sizes, require_folder, with_examples

_LABEL = re.compile(r"[+-]?[0-9]{1,18}")


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

    The last word is the label if it is a whole number; paths may hold spaces. `labelled=None` takes labels if every
    line has one. A leading folder named in `within` is dropped from the paths: not all lists have it.
    """
    path, root = Path(path), Path(root)
    names, labels = read_list(path, within)
    require_folder(root)
    name = path.stem if name is None else name
    if len(gone := np.flatnonzero(file_sizes(root, names) < 0)):
        raise FileNotFoundError(
            f"every file that '{printable(path)}' lists must be below '{printable(root)}'; "
            f"{with_examples(names, gone)} of {len(names):,} are missing. Pass the folder that its paths start "
            "from, or unpack the data again."
        )
    if labelled is False or (labelled is None and labels is None):
        return FileSet(root, names, name=name, transform=transform)
    if labels is None:
        raise ValueError(
            f"every line of '{printable(path)}' must end in a label, a whole number; some or all have none. "
            "Add them, or pass `labelled=False` for an OOD set."
        )
    numbers = torch.from_numpy(np.array(labels, dtype=np.int64))
    if int(numbers.min()) < 0:
        row = int((numbers < 0).nonzero()[0])
        raise ValueError(
            f"the labels of '{printable(path)}' must be 0 or more; got {labels[row]} for '{printable(names[row])}'. "
            "Pass `labelled=False` for an OOD set."
        )
    return FileSet(root, names, name=name, labels=numbers, transform=transform)


def read_list(path: PathLike, within: Sequence[str] = ()) -> tuple[FileNames, array[int] | None]:
    """Read the paths of a list, and the labels if every line has one."""
    labels = array("q")

    def parse(text: str) -> Iterator[str]:
        for line in filter(None, map(str.strip, text.splitlines())):
            head, *last = line.rsplit(None, 1)
            if last and _LABEL.fullmatch(last[0]):
                labels.append(int(last[0]))
                line = head
            first, slash, below = line.removeprefix("./").partition("/")
            yield below if slash and first in within else first + slash + below

    try:
        names = FileNames(parse(Path(path).read_text(encoding="utf-8-sig")))
    except (FileNotFoundError, IsADirectoryError) as error:
        raise FileNotFoundError(
            f"there is no list file '{printable(path)}'. Pass the text file that names the images."
        ) from error
    except UnicodeDecodeError as error:
        raise ValueError(
            f"'{printable(path)}' must be a text file in UTF-8 with one path on each line; it has byte "
            f"0x{error.object[error.start]:02x} at {error.start}. Did you pass an image or an archive?"
        ) from error
    if not len(names):
        raise ValueError(f"'{printable(path)}' must list at least one image; it is empty. Fetch it again.")
    return names, labels if len(labels) == len(names) else None
