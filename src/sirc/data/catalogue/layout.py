"""Benchmark files on disk: find the folder and list of a split, unpack ImageNet's archives."""

from __future__ import annotations

from pathlib import Path

from sirc._utils.imports import missing_package
from sirc.data.catalogue import Benchmark, Split
from sirc.data.decode import printable
from sirc.data.folder import FileSet, image_folder
from sirc.data.lists import file_list

# The parts of a folder of a user's own.
FOLDER_PARTS = (Split("train", ("train",), None), Split("test", ("test", "val", "validation", "valid"), None))
TARS = {"train": "ILSVRC2012_img_train.tar", "test": "ILSVRC2012_img_val.tar"}
DEVKIT = "ILSVRC2012_devkit_t12.tar.gz"


def find_folder(path: Path, split: Split) -> Path | None:
    """Find the folder of a part, by the first of its names that exists."""
    return next((path / name for name in split.folders if (path / name).is_dir()), None)


def find_list(path: Path, known: Benchmark) -> Path | None:
    """Find the list file of a benchmark, by the first of its names that exists."""
    return next((path / name for name in known.lists if (path / name).is_file()), None)


def archives_of(path: Path, known: Benchmark, split: Split) -> bool:
    """Check for the archives from which torchvision can unpack this part of ImageNet-1k."""
    if known.key != "imagenet1k" or not (path / TARS[split.name]).is_file():
        return False
    return (path / DEVKIT).is_file() or (path / "meta.bin").is_file()


def unfinished_unpacking(path: Path, split: Split) -> str | None:
    """Describe an unpacking of this part that has not ended: its folder looks complete, but is not."""
    if not (mark := _marker(path, split)).exists():
        return None
    folder = path / split.folders[0]
    return (
        f"'{printable(folder)}' is being unpacked, or a run that did so was killed. "
        f"In that case delete it and '{printable(mark)}', and open it again."
    )


def open_split(known: Benchmark, path: Path, part: Split, *, labelled: bool, list_name: str | None = None) -> FileSet:
    """Open one part of a benchmark in the folder `path`; the error says what is missing there."""
    folder = find_folder(path, part)
    if unfinished := unfinished_unpacking(path, part):
        raise FileNotFoundError(f"{known.title} cannot be read: {unfinished}")
    if folder is None and archives_of(path, known, part):
        folder = _unpack(path, part)
    if folder is None:
        names = "' or '".join(part.folders)
        raise FileNotFoundError(
            f"{known.title} must have its {part.name} images in '{names}' below '{printable(path)}'; there is no such "
            f"folder. Get it from {known.source}, and see `sirc data check {known.key} {printable(path)}`."
        )
    if not known.lists:
        return image_folder(folder, labelled=labelled, name=known.title)
    listed = path / list_name if list_name else find_list(path, known)
    if listed is None:
        raise FileNotFoundError(
            f"{known.title} must have the list of its images, {' or '.join(known.lists)}, in '{printable(path)}'. "
            f"Get it from {known.list_source}."
        )
    return file_list(listed, folder, labelled=False, within=part.folders, name=known.title)


def split_folder(path: Path, split: str, *, required: bool) -> Path:
    """Find the folder of a split of a user's own data: `path/train`, `path/test` or `path/val`; else `path` itself.

    With `required`, or where the other split has a folder, this split must have one.
    """
    part = next(part for part in FOLDER_PARTS if part.name == split)
    if folder := find_folder(path, part):
        return folder
    other = [name for part in FOLDER_PARTS for name in part.folders if (path / name).is_dir()]
    if required or other:
        has = f"it has {', '.join(other)}" if other else "it has neither train nor test"
        raise FileNotFoundError(
            f"'{printable(path)}' must have a folder {' or '.join(part.folders)} for split {split!r}; {has}. "
            "Make it, or pass the folder of that part as `path`."
        )
    return path


def _unpack(path: Path, split: Split) -> Path:
    """Let torchvision sort ImageNet's archives into class folders; this takes a while, once."""
    try:
        from torchvision.datasets import ImageNet
    except ImportError as error:
        raise missing_package("unpacking ImageNet-1k", "torchvision") from error
    mark = _marker(path, split)
    mark.touch()
    try:
        ImageNet(str(path), split="train" if split.name == "train" else "val")
    except (ImportError, RuntimeError) as error:  # both before a file is unpacked
        mark.unlink()
        if isinstance(error, ImportError):
            raise ImportError(f"unpacking '{DEVKIT}' needs SciPy: pip install scipy") from error
        raise FileNotFoundError(f"ImageNet-1k cannot be unpacked in '{printable(path)}': {error}") from error
    mark.unlink()
    return path / split.folders[0]


def _marker(path: Path, split: Split) -> Path:
    return path / f".unpacking-{split.name}"
