"""Checks that public functions share, so that one mistake has one wording."""

import operator
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import Any, SupportsIndex, TypeGuard

import numpy.typing as npt
import torch
from torch import Tensor

from sirc._utils.arrays import ArrayLike, as_tensor
from sirc._utils.text import quoted, shorten

_LONGEST_NAME = 255  # bytes: no usual file system takes more
FLOATING = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def check_type(name: str, value: object, kind: type | UnionType, what: str, hint: str = "") -> None:
    """Require an object of some type; `what` names the type in words, and `hint` says what to do."""
    if not isinstance(value, kind):
        raise ValueError(f"`{name}` must be {what}; got {type(value).__name__}. {hint}".rstrip())


def check_path(name: str, value: str | os.PathLike[str]) -> Path:
    """Require a path; it need not exist."""
    check_type(name, value, str | os.PathLike, "a path, as text or `pathlib.Path`")
    path = Path(value)
    if any(len(os.fsencode(part)) > _LONGEST_NAME for part in path.parts):
        raise ValueError(f"`{name}` must be a path of names of at most {_LONGEST_NAME} bytes; got {quoted(str(path))}.")
    return path


def expand_path(name: str, text: str) -> Path:
    """Expand `~` and variables in a path; all variables must be set."""
    expanded = os.path.expanduser(os.path.expandvars(text))
    if unset := re.search(r"\$(\w+|\{\w+\})", expanded):
        raise ValueError(f"`{name}` must use variables that are set; got {quoted(text)}. Set {unset[0]}.")
    return Path(expanded)


def check_device(value: torch.device | str) -> torch.device:
    """Require an available device."""
    try:
        return torch.empty(0, device=value).device
    except (TypeError, RuntimeError, AssertionError):
        raise ValueError(f"`device` must be an available one, such as cpu or cuda:0; got {quoted(value)}.") from None


def iterates(value: object) -> TypeGuard[Iterable[Any]]:
    """Whether a `for` loop can run over it: arrays can, unless they have no dimension."""
    return isinstance(value, Iterable) and getattr(value, "ndim", 1) != 0


def check_shape(name: str, x: Tensor | npt.NDArray[Any], *, hint: str, **least: int) -> None:
    """Require one dimension for each keyword, at least that long: `check_shape("logits", x, n=1, K=2, …)`."""
    if x.ndim == len(least) and all(size >= low for size, low in zip(x.shape, least.values(), strict=True)):
        return
    dims = f"({', '.join(least)}{',' if len(least) == 1 else ''})"
    lows = ", ".join(f"{dim} ≥ {low}" for dim, low in least.items())
    raise ValueError(f"`{name}` must have shape {dims} with {lows}; got {tuple(x.shape)}. {hint}")


def check_floating(name: str, x: Tensor | torch.dtype) -> None:
    """Require one of the four dtypes that scores can be computed from."""
    dtype = x.dtype if isinstance(x, Tensor) else x
    if dtype not in FLOATING:
        raise ValueError(
            f"`{name}` must be float16, bfloat16, float32 or float64; got {dtype_name(dtype)}. Use float32."
        )


def check_finite(
    name: str,
    x: Tensor,
    hint: str = "Drop those rows, or repair what made them (float16 overflows beyond 65504: compute in float32).",
) -> None:
    """Refuse NaN and infinity. If there are none, this reads `x` once and makes no large temporary."""
    # aminmax returns NaN if there is one and, unlike a sum, cannot overflow.
    if x.numel() == 0 or torch.stack(x.aminmax()).isfinite().all():
        return
    x = x.reshape(1) if x.ndim == 0 else x
    wrong = x.isfinite().logical_not_()
    first = torch.unravel_index(wrong.flatten().byte().argmax(), x.shape)
    raise ValueError(
        f"`{name}` must be finite; got {int(wrong.sum())} NaN or infinite of {x.numel()} values, the first is "
        f"{x[first].item()} at {[int(i) for i in first]}. {hint}"
    )


def check_integer(name: str, x: Tensor) -> None:
    """Require a signed or unsigned integer dtype; bool is a mask, not a number."""
    if x.dtype.is_floating_point or x.dtype.is_complex or x.dtype == torch.bool:
        raise ValueError(
            f"`{name}` must be integers; got {dtype_name(x.dtype)}. "
            "Convert whole numbers with `.long()` (torch) or `.astype(int)` (NumPy)."
        )


def check_labels(name: str, labels: Tensor, num_classes: int) -> None:
    """Require class numbers 0…K−1; the error names the first row with another one."""
    low, high = (int(bound) for bound in labels.aminmax())
    if low >= 0 and high < num_classes:
        return
    row = int(((labels < 0) | (labels >= num_classes)).nonzero()[0])
    value = int(labels[row])
    if value < 0:
        advice = "Leave `labels` out for data that has none, such as OOD sets."
    else:
        advice = (
            "Did you pass labels of another class set, say ImageNet-1k? Number them as the logits are, or use "
            "`Outputs(..., classes=…)`."
        )
    raise ValueError(
        f"`{name}` must be in 0…{num_classes - 1} for {num_classes} logits; got {value} at row {row}. {advice}"
    )


def check_same_length(name: str, x: Tensor, other: str, y: Tensor) -> None:
    """Require equal lengths: row i of both describes the same sample."""
    if len(x) != len(y):
        raise ValueError(
            f"`{name}` must have as many rows as `{other}`; got {len(x)} and {len(y)}. "
            "Pass both for the same samples, in the same order."
        )


def check_same_device(name: str, x: Tensor, other: str, y: Tensor) -> None:
    """Require the same device: large arrays are never moved without the user knowing."""
    if x.device != y.device:
        raise ValueError(
            f"`{name}` must be on the same device as `{other}`; got {x.device} and {y.device}. "
            f"Use `{name}.to({other}.device)`."
        )


def check_unit_interval(name: str, value: ArrayLike) -> None:
    """Require a number, or an array of numbers, in [0, 1]: a share or a cost such as α or β."""
    numbers = as_tensor(name, value).reshape(-1)
    if numbers.is_complex() or numbers.numel() == 0:
        got = "complex numbers" if numbers.is_complex() else "an empty array"
        raise ValueError(f"`{name}` must be numbers in [0, 1]; got {got}. Pass a fraction such as 0.5.")
    least, most = numbers.double().aminmax()  # NaN if any is
    if not (float(least) >= 0 and float(most) <= 1):
        at = int(((numbers >= 0) & (numbers <= 1)).logical_not_().nonzero()[0])
        got = f"{numbers[at].item():g}{f' at index {at}' if len(numbers) > 1 else ''}"
        raise ValueError(f"`{name}` must lie in [0, 1]; got {got}. Pass a fraction, not a percentage.")


def check_fraction(name: str, value: float) -> float:
    """Require one number in [0, 1], such as a recall, and return it as a plain float."""
    number = check_number(name, value)
    if not 0 <= number <= 1:
        check_unit_interval(name, number)
    return number


def check_number(name: str, value: float) -> float:
    """Require one real number and return it as a plain float."""
    try:
        if isinstance(value, str | bytes):
            raise TypeError  # `float` would parse it
        return float(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"`{name}` must be one number; got {type(value).__name__}. Loop over several.") from error


def check_positive(name: str, value: SupportsIndex) -> int:
    """Require a count of at least one and return it as a plain int."""
    return check_at_least(name, value, 1)


def check_at_least(name: str, value: SupportsIndex, least: int) -> int:
    """Require a whole number that is not below `least` and return it as a plain int."""
    try:
        number = operator.index(value)
    except TypeError:
        number = least - 1
    if number < least or isinstance(value, bool) or number > sys.maxsize:
        raise ValueError(
            f"`{name}` must be a whole number ≥ {least}{' and < 2⁶³' * (number > sys.maxsize)}; got "
            f"{quoted(value)}. Pass an int such as {256 if least else 0}."
        )
    return number


def check_choice(name: str, value: object, choices: Sequence[str]) -> None:
    """Require one of these texts."""
    if value not in choices:
        *others, last = (f'"{choice}"' for choice in choices)
        raise ValueError(f"`{name}` must be {', '.join(others)} or {last}; got {quoted(value)}.")


def differences(before: Mapping[str, object], now: Mapping[str, object]) -> str:
    """List the settings that differ, such as "size is 100, got 200"; empty if none does."""
    keys = [key for key in {**before, **now} if before.get(key) != now.get(key)]
    parts = ((key, before.get(key, "not known"), now.get(key, "nothing")) for key in keys)
    return ", ".join("{} is {}, got {}".format(*(shorten(str(word)) for word in part)) for part in parts)


def dtype_name(dtype: torch.dtype) -> str:
    """The name of a dtype as NumPy has it: `float32` rather than `torch.float32`."""
    return str(dtype).removeprefix("torch.")
