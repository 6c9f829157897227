"""What the plain formulas take: arrays of any kind, checked, as tensors that the formulas of the scores know."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from sirc._utils.arrays import ArrayLike, as_tensor
from sirc._utils.checks import check_number
from sirc.outputs import Outputs
from sirc.scores import registry
from sirc.scores.formulas.softmax import Softmax
from sirc.scores.spec import parse
from sirc.scores.values import working_dtype


def summary(logits: ArrayLike | Softmax) -> Softmax:
    """What one pass over the logits gives, made or as given."""
    return logits if isinstance(logits, Softmax) else Softmax.of(Outputs(logits).logits)


def checked_options(name: str, **given: float) -> dict[str, Any]:
    """Options of a score, within the limits that a spec's are held to."""
    text = ", ".join(f"{key}={check_number(key, value)!r}" for key, value in given.items())
    return {**registry.get(name).options, **parse(f"{name}({text})").options}


def columns(*values: ArrayLike, name: str = "scores") -> list[Tensor]:
    """Float64 scores of the same rows: nothing here may broadcast one against another."""
    found = [as_tensor(name, value).double() for value in values]
    shapes = [tuple(column.shape) for column in found]
    if len(set(shapes)) != 1 or len(shapes[0]) != 1:
        raise ValueError(f"{name} must be 1-D, one number for each of the same rows; got shapes {shapes}")
    return found


def features_of(features: ArrayLike) -> Tensor:
    """(n, L) features in the type that they are projected in."""
    z = as_tensor("features", features)
    if z.dim() != 2:
        raise ValueError(f"`features` must have shape (n, L); got {tuple(z.shape)}")
    return z.to(working_dtype(z.dtype))


def same_rows(logits: Tensor, features: Tensor) -> None:
    """Refuse logits and features of different numbers of rows."""
    if len(logits) != len(features):
        raise ValueError(
            f"`logits` and `features` must be of the same rows; got {len(logits)} and {len(features)}. Pass both for "
            "the same samples, in the same order"
        )
