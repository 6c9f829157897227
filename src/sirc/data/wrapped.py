"""Image sets made of other libraries' datasets: torchvision's by name, or any that a function returns."""

from __future__ import annotations

import hashlib
import inspect
import json
import operator
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import numpy as np
import torch
from torch import Tensor

from sirc._utils.checks import iterates
from sirc._utils.imports import check_options, current_folder, import_function, needing
from sirc._utils.text import quoted
from sirc.data.base import ImageSet
from sirc.data.catalogue.benchmarks import unknown_name
from sirc.data.decode import to_rgb
from sirc.data.reading import READ_ERRORS, is_system_error
from sirc.errors import ImageError

if TYPE_CHECKING:
    from PIL.Image import Image

_FORMS = 'a benchmark, "folder", "list", `torchvision:NAME` or `package.module:function`'
_SPLIT_NAMES = {"train": ("train", "train-standard"), "test": ("test", "val")}  # of torchvision's classes
_UNPICKLING = ("LSUN", "LSUNClass")  # they unpickle a list of their images, which can run code
_SAMPLED = 16  # images that represent the set in the fingerprint


@final
class Wrapped(ImageSet):
    """A map-style dataset whose items are PIL images, or (PIL image, label)."""

    def __init__(self, dataset: Any, *, name: str, source: Sequence[object], labelled: bool = True) -> None:
        classes: Any = getattr(dataset, "classes", None)
        named = labelled and iterates(classes) and all(isinstance(label, str) for label in classes)
        labels = find_labels(dataset, name) if labelled else None
        super().__init__(name=name, labels=labels, classes=classes if named else ())
        self._dataset = dataset
        self._source = json.dumps(source, sort_keys=True, default=repr)

    def __len__(self) -> int:
        return len(self._dataset)

    def image(self, index: int) -> Image:
        """Get the image of one item, as RGB."""
        from PIL.Image import Image

        try:
            item = self._dataset[self._resolve_index(index)]
        except READ_ERRORS as error:
            if is_system_error(error):
                raise
            raise ImageError(f"{self.where(index)} cannot be read: {error}. Repair or remove it.") from error
        image = item[0] if isinstance(item, tuple | list) and item else item
        if not isinstance(image, Image):
            raise ImageError(
                f"{self.where(index)} must be a PIL image, or (PIL image, label); got {type(image).__name__}. "
                "Make the dataset without a transform: `sirc` preprocesses the images itself."
            )
        return to_rgb(image)

    def where(self, index: int) -> str:
        """Name one image by its number and the dataset."""
        return f"image {index} of '{self.name}'"

    @cached_property
    def _identity(self) -> str:
        # There are no file names, so a few images represent the set.
        digest = hashlib.sha256()
        for index in np.unique(np.linspace(0, len(self) - 1, _SAMPLED).astype(int)):
            try:
                image = self.image(int(index))
            except ImageError as error:
                digest.update(str(error).encode())
                continue
            digest.update(f"{image.size}".encode() + image.tobytes())
        return f"{self._source} {len(self)} {digest.hexdigest()}"


def torchvision_set(
    kind: str, root: Path, split: str | None, options: Mapping[str, object], *, labelled: bool, split_required: bool
) -> Wrapped:
    """Make a torchvision dataset by its class name; it is only downloaded if `options` have `download = true`."""
    with needing(f"torchvision:{kind}", "torchvision"):
        from torchvision import datasets
    known = {name: each for name in sorted(datasets.__all__) if inspect.isclass(each := getattr(datasets, name))}
    if kind in _UNPICKLING:
        raise ValueError(
            f"`dataset` must not unpickle files, as that can run code; torchvision:{kind} does. Write its images to "
            'files, and read them as a "folder".'
        )
    if kind not in known:
        raise ValueError(unknown_name("`dataset` after `torchvision:`", kind, list(known)))
    parameters = _parameters(known[kind])
    arguments = {**({"root": str(root)} if "root" in parameters else {}), **options}
    splits: list[dict[str, object]] = [{}]
    if split is not None and "train" not in arguments and ("train" in parameters or "split" not in arguments):
        if "train" in parameters:
            splits = [{"train": split == "train"}]
        elif "split" in parameters:
            splits = [{"split": name} for name in _SPLIT_NAMES[split]]
        elif split_required:
            raise ValueError(
                f"`split` must be left out for torchvision:{kind}, which has no train and test parts; got "
                f"{quoted(split)}. Write a function that splits it, and name that: `package.module:function`."
            )
    dataset = _make(f"torchvision:{kind}", known[kind], arguments, splits)
    return Wrapped(dataset, name=kind, source=[f"torchvision:{kind}", split, options], labelled=labelled)


def call_function(
    name: str, path: Path | None, split: str | None, options: Mapping[str, object], *, labelled: bool
) -> ImageSet:
    """Call `package.module:function` with `options`, and with `split` and `path` if it takes them."""
    function = import_function(name, _FORMS)
    offered = {"split": split, "path": path}
    takes = _parameters(function)
    arguments = {key: value for key, value in offered.items() if value is not None and key in takes} | {**options}
    check_options(name, function, arguments)
    with current_folder():
        dataset = _make(name, function, arguments)
    if isinstance(dataset, ImageSet):
        return dataset if labelled else dataset.unlabelled()
    if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        raise ValueError(
            f"`dataset` must return an `ImageSet` or a map-style dataset, with `len` and numbered items; {quoted(name)}"
            f" returned {type(dataset).__name__}. Return for example a torchvision dataset without transform."
        )
    return Wrapped(dataset, name=name.partition(":")[2], source=[name, split, options], labelled=labelled)


def find_labels(dataset: Any, name: str) -> Tensor:
    """Get the label of every item, if possible from an attribute of the dataset, since items decode their image."""
    count = len(dataset)
    if count == 0:
        raise ValueError(f"a dataset must have at least one image; '{name}' is empty. Check its path and options.")
    if getattr(dataset, "target_transform", None) is None:
        for attribute in ("targets", "labels", "_labels", "y", "samples", "_samples"):
            labels = _as_labels(getattr(dataset, attribute, None), count)
            samples = (0, count // 2, count - 1)
            if labels is not None and all(_agrees(dataset, name, i, int(labels[i])) for i in samples):
                return labels
    return torch.tensor([_label(dataset[i], name, i) for i in range(count)])


def _agrees(dataset: Any, name: str, index: int, label: int) -> bool:
    """Whether an item has this label; an item with a broken image passes."""
    try:
        return _label(dataset[index], name, index) == label
    except READ_ERRORS:
        return True


def _as_labels(values: Any, count: int) -> Tensor | None:
    if isinstance(values, list) and values and isinstance(values[0], tuple):  # (path, label), as `ImageFolder.samples`
        values = [pair[-1] for pair in values]
    try:
        labels = np.asarray(values)
    except (TypeError, ValueError, RuntimeError):
        return None
    fits = labels.shape == (count,) and labels.dtype.kind in "iu"
    return torch.from_numpy(labels.astype(np.int64)) if fits else None


def _label(item: Any, name: str, index: int) -> int:
    parts = item if isinstance(item, tuple | list) else [item]
    try:
        return operator.index(parts[1])
    except (TypeError, IndexError) as error:
        raise ValueError(
            f"items of '{name}' must be (PIL image, whole number); got "
            f"({', '.join(type(part).__name__ for part in parts)}) for item {index}. "
            "Pass `labelled=False` for an OOD set."
        ) from error


def _make(
    name: str, make: Callable[..., Any], arguments: Mapping[str, object], splits: Sequence[dict[str, object]] = ({},)
) -> Any:
    """Call `make` with `arguments` and the first of `splits`, keyword arguments for the split, that it accepts."""
    first, *others = splits
    try:
        return make(**first, **arguments)
    except TypeError as error:
        if not inspect.isclass(make):  # its options are checked: this is an error inside the user's function
            raise
        raise ValueError(f"`options` must be what `{name}` takes: {error}.") from error
    except ValueError as error:
        if others and "split" in str(error):
            return _make(name, make, arguments, others)
        raise ValueError(f"{name} cannot be opened: {error}") from error
    except (RuntimeError, OSError) as error:
        fetches = "download" in _parameters(make) and not arguments.get("download")
        hint = " Pass `download = true` in `options` to fetch it." if fetches else ""
        raise FileNotFoundError(f"{name} cannot be opened in {arguments.get('root', '.')}: {error}{hint}") from error


def _parameters(make: Callable[..., Any]) -> set[str]:
    """List the parameters of a callable; for a class that passes keywords on, those of its bases too."""
    names: set[str] = set()
    for layer in inspect.getmro(make) if inspect.isclass(make) else [make]:
        try:
            parameters = inspect.signature(layer).parameters.values()
        except (TypeError, ValueError):
            break
        names.update(parameter.name for parameter in parameters if parameter.kind is not parameter.VAR_KEYWORD)
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
            break
    return names
