"""Sources of a guard's data: folders, datasets, loaders and outputs, opened and inspected."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias, TypeGuard

from torch.utils.data import DataLoader, Dataset, Subset

from sirc._utils.files import PathLike
from sirc._utils.text import quoted
from sirc._utils.warn import warn
from sirc.data import ImageSet, image_folder, reader_of
from sirc.models import rows_of
from sirc.outputs import STORE_FILE, Outputs, OutputStore

KnownOutputs: TypeAlias = Outputs | OutputStore
Data: TypeAlias = PathLike | Dataset[Any] | Iterable[object] | KnownOutputs
"""A folder of images, a dataset, a loader, or outputs: in memory, in a file, or in a store."""


def opened(source: Any, classes: Sequence[str] | None = None, *, labelled: bool = True) -> Any:
    """Open a path as images, a store or outputs; return everything else unchanged."""
    if not isinstance(source, str | os.PathLike):
        return source
    place = Path(source)
    if (place / STORE_FILE).exists():
        return OutputStore(place)
    if place.is_file():
        return Outputs.load(place)
    return image_folder(place, labelled=labelled, classes=classes if labelled else None)


def renumbered(val: Any, names: Sequence[str]) -> Any:
    """Number the classes of validation images as the network does, or warn if only the user can do that."""
    classes = class_names_in(val)
    if not set(classes) <= set(names):  # `names` may call the same classes by other names
        return val
    if isinstance(val, ImageSet):
        return val.numbered_by(names) if classes else val
    if other := next((name for name, wanted in zip(classes, names, strict=False) if name != wanted), None):
        warn(
            f"the validation data number {quoted(other)} as class {classes.index(other)}, the network as "
            f"{list(names).index(other)}: a dataset that lacks a class gives other numbers to those after it. Number "
            "the labels as the outputs are; `sirc.data.image_folder(PATH, classes=…)` does."
        )
    return val


def class_names_in(source: Any) -> list[str]:
    """The class names of a dataset, also inside a loader or subset; empty if they are not known."""
    while not hasattr(source, "classes") and isinstance(source, DataLoader | Subset):  # other wrappers may renumber
        source = source.dataset
    known = () if getattr(source, "target_transform", None) else getattr(source, "classes", ())
    return list(known) if isinstance(known, list | tuple) and all(isinstance(name, str) for name in known) else []


def is_unprepared(source: object) -> TypeGuard[ImageSet]:
    """Whether these are images without preprocessing."""
    return isinstance(source, ImageSet) and source.transform is None


def size_of(source: Any) -> int:
    """The number of rows; 0 if it is not known."""
    known = source if isinstance(source, KnownOutputs) else reader_of(source, batch_size=1, workers=0)
    return 0 if known is None else len(known)


def require_labels(name: str, rows: KnownOutputs) -> None:
    """Require labels of outputs."""
    if not (rows.has_labels if isinstance(rows, OutputStore) else rows.labels is not None):
        raise ValueError(f"`{name}` must have labels, to know which predictions are right; it has none")


def first_inputs(count: int, *sources: Any) -> object:
    """Read the first inputs, fewer if some are broken, of the first source that can be read again."""
    return next((batch for source in sources if (batch := _first_of(source, count)) is not None), None)


def _first_of(source: Any, count: int) -> object:
    if source is None or isinstance(source, KnownOutputs | Iterator | Mapping) or hasattr(source, "__array__"):
        return None  # `extract` refuses a single batch, and says why
    reader = reader_of(source, batch_size=count, workers=0)
    if reader is None:
        return rows_of(next(iter(source), None), slice(count)) if isinstance(source, Iterable) else None
    return reader.first(count)
