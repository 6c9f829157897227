"""Labels: from the numbers or names that a dataset uses to columns of the logits."""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sirc._utils.arrays import ArrayLike, as_tensor
from sirc._utils.checks import check_integer, check_labels, check_same_length, check_shape

_ONE_HOT = "For one-hot labels, pass `labels.argmax(1)`."


def as_columns(labels: ArrayLike, logits: Tensor, classes: ArrayLike | None = None) -> Tensor:
    """Validated int64 columns on the device of the logits; `classes` has the label of each column."""
    if classes is None:
        if _strings(labels) is not None:
            raise ValueError(
                "`labels` must be integers; got strings. Pass the string of each logit as `Outputs(..., classes=…)`."
            )
        columns = as_tensor("labels", labels)
        check_shape("labels", columns, n=1, hint=_ONE_HOT)
        check_integer("labels", columns)
    else:
        columns = torch.from_numpy(_look_up(_names("labels", labels), _class_names(classes, logits.shape[1])))
    check_same_length("labels", columns, "logits", logits)
    columns = columns.to(device=logits.device, dtype=torch.int64)
    check_labels("labels", columns, logits.shape[1])
    return columns


def _look_up(labels: npt.NDArray[Any], classes: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    if (labels.dtype.kind == "U") != (classes.dtype.kind == "U"):
        raise ValueError(
            "`labels` and `classes` must both be integers or both be strings; "
            f"got {labels.dtype} and {classes.dtype}. Convert one of them."
        )
    check_shape("labels", labels, n=1, hint=_ONE_HOT)
    order = np.argsort(classes)
    place = np.searchsorted(classes, labels, sorter=order).clip(max=len(classes) - 1)
    columns: npt.NDArray[np.int64] = order[place].astype(np.int64)
    wrong = np.flatnonzero(classes[columns] != labels)
    if len(wrong):
        raise ValueError(
            f"`labels` must be among the {len(classes)} `classes`; got {labels[wrong[0]].item()!r} "
            f"at row {wrong[0]}. Drop samples of other classes, or pass them as OOD data, without labels."
        )
    return columns


def _class_names(classes: ArrayLike, num_classes: int) -> npt.NDArray[Any]:
    names = _names("classes", classes)
    distinct = len(np.unique(names))
    if names.shape != (num_classes,) or distinct != num_classes:
        raise ValueError(
            f"`classes` must give one label for each of the {num_classes} logits, all different; "
            f"got shape {names.shape} with {distinct} different labels. List them in the order of the logits."
        )
    return names


def _names(name: str, value: ArrayLike) -> npt.NDArray[Any]:
    """Integers or strings as a NumPy array."""
    strings = _strings(value)
    if strings is not None:
        return strings
    numbers = as_tensor(name, value)
    check_integer(name, numbers)
    array: npt.NDArray[Any] = numbers.cpu().numpy()
    return array


def _strings(value: ArrayLike) -> npt.NDArray[np.str_] | None:
    """The strings in `value` as a NumPy array, as torch has none; None if it holds anything else."""
    if isinstance(value, Tensor):
        return None
    in_list = isinstance(value, list | tuple) and len(value) > 0 and isinstance(value[0], str)
    in_frame = hasattr(value, "__array__") and not hasattr(value, "__dlpack__")  # pandas
    if not (in_list or in_frame or isinstance(value, np.ndarray)):
        return None
    array = np.asarray(value)
    if array.dtype.kind == "O" and all(isinstance(item, str) for item in array.flat):
        array = array.astype(str)
    return array if array.dtype.kind == "U" else None
