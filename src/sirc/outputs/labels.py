"""Labels: conversion of a dataset's class numbers or names to columns of the logits."""

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sirc._utils.arrays import ArrayLike, as_tensor
from sirc._utils.checks import check_integer, check_labels, check_same_length, check_shape
from sirc._utils.text import quoted

_Names: TypeAlias = Tensor | npt.NDArray[Any]


def as_columns(labels: ArrayLike, logits: Tensor, classes: ArrayLike | None = None) -> Tensor:
    """Convert labels to int64 columns on the device of the logits; `classes` has the label of each column."""
    columns = _names("labels", labels)
    check_shape("labels", columns, n=1, hint="For one-hot labels, pass `labels.argmax(1)`.")
    if isinstance(columns, Tensor):
        check_integer("labels", columns)
    if classes is not None:
        columns = torch.from_numpy(_look_up(columns, _names("classes", classes), logits.shape[1]))
    if not isinstance(columns, Tensor):
        raise ValueError(
            "`labels` must be integers; got strings. Number them as the logits are, or pass the name of each logit's "
            "class: `Outputs(..., classes=…)`."
        )
    check_same_length("labels", columns, "logits", logits)
    columns = columns.to(device=logits.device, dtype=torch.int64)
    check_labels("labels", columns, logits.shape[1])
    return columns


def _look_up(names: _Names, class_names: _Names, num_classes: int) -> npt.NDArray[np.int64]:
    """Find the column of each label."""
    if isinstance(class_names, Tensor):
        check_integer("classes", class_names)
    labels, classes = (x.cpu().numpy() if isinstance(x, Tensor) else x for x in (names, class_names))
    distinct = len(np.unique(classes))
    if classes.shape != (num_classes,) or distinct != num_classes:
        raise ValueError(
            f"`classes` must give one label for each of the {num_classes} logits, all different; "
            f"got shape {classes.shape} with {distinct} different labels. List them in the order of the logits."
        )
    if (labels.dtype.kind == "U") != (classes.dtype.kind == "U"):
        raise ValueError(
            "`labels` and `classes` must both be integers or both be strings; "
            f"got {labels.dtype} and {classes.dtype}. Convert one of them."
        )
    order = np.argsort(classes)
    place = np.searchsorted(classes, labels, sorter=order).clip(max=len(classes) - 1)
    columns: npt.NDArray[np.int64] = order[place].astype(np.int64)
    wrong = np.flatnonzero(classes[columns] != labels)
    if len(wrong):
        raise ValueError(
            f"`labels` must be among the {len(classes)} `classes`; got {quoted(labels[wrong[0]].item())} "
            f"at row {wrong[0]}. Drop samples of other classes, or pass them as OOD data, without labels."
        )
    return columns


def _names(name: str, value: ArrayLike) -> _Names:
    """Convert numbers to a tensor; convert strings, which torch cannot hold, to a NumPy array."""
    in_list = isinstance(value, list | tuple) and len(value) > 0 and isinstance(value[0], str)
    in_frame = hasattr(value, "__array__") and not hasattr(value, "__dlpack__")  # pandas
    if in_list or in_frame or isinstance(value, np.ndarray):
        array = np.asarray(value)
        if array.dtype.kind == "O" and all(isinstance(item, str) for item in array.flat):
            array = array.astype(str)
        if array.dtype.kind == "U":
            return array
    return as_tensor(name, value)
