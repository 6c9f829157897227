"""Products of features with a fitted matrix: on a GPU in half precision, yet nearly as exact as in float32."""

from __future__ import annotations

from functools import cache, partial

import torch
from torch import Tensor

from sirc._utils.fused import attempt

# For smaller products, splitting the factors costs more time than it saves.
_FEWEST_ROWS, _SMALLEST = 1 << 10, 1 << 16
_TOP = 13  # the largest value of a row or column is scaled to at least 2¹² and below 2¹³; float16 ends at 2¹⁶
_TINIEST = -100  # the lowest exponent of a scale, so that scales stay finite


def product(rows: Tensor, matrix: Tensor, plus: Tensor | None = None) -> Tensor:
    """`rows @ matrix + plus`, where the terms of each sum have both signs.

    On a GPU, a large float32 product is computed as a sum of float16 products, which are more than ten times as fast.
    Each factor is split into its leading 11 bits and the next 11. Of the four products, that of the two lower parts is
    left out: it is about as small as float32's rounding. Rows and columns are scaled by powers of two, which is exact
    for sizes from 1e-25 to 1e25. The GPU adds in float32, but truncates: if the terms have both signs, the error is
    about twice that of float32; if all have one sign, it grows with their number. So do not use it for products of
    positive numbers, such as those between unit features.
    """
    if _split_pays(rows, matrix):
        made = attempt("the product by halves", partial(_by_halves, rows, matrix))
        if made is not None:
            return made if plus is None else made.add_(plus)
    return rows @ matrix if plus is None else torch.addmm(plus, rows, matrix)


def _by_halves(rows: Tensor, matrix: Tensor) -> Tensor:
    left, by_row = _halves(rows, 1)
    right, by_column = _halves(matrix, 0)
    heads = right[: len(matrix)]
    made = torch.mm(left, torch.cat((heads, heads)), out_dtype=torch.float32)
    made += torch.mm(left[:, : len(matrix)], right[len(matrix) :], out_dtype=torch.float32)
    return made.mul_(by_row).mul_(by_column)


def _split_pays(rows: Tensor, matrix: Tensor) -> bool:
    return (
        not torch.compiler.is_compiling()
        and rows.device.type == "cuda"
        and rows.dtype == matrix.dtype == torch.float32
        and len(rows) >= _FEWEST_ROWS
        and matrix.numel() >= _SMALLEST
        and not (rows.requires_grad or matrix.requires_grad)
        and _sums_in_float32(rows.device)
    )


@cache
def _sums_in_float32(device: torch.device) -> bool:
    """Whether the device multiplies float16 and this torch can return the float32 sums."""
    return torch.cuda.get_device_capability(device) >= (8, 0) and "dtype" in torch.ops.aten.mm.overloads()  # type: ignore[no-untyped-call]


def _halves(x: Tensor, axis: int) -> tuple[Tensor, Tensor]:
    """The leading and the next bits of a scaled matrix, concatenated along an axis, and the factors to undo it."""
    low, high = x.aminmax(dim=axis, keepdim=True)
    exponent = torch.frexp(torch.maximum(-low, high)).exponent.clamp_min(_TINIEST) - _TOP
    scaled = x * _power_of_two(-exponent)
    size = x.shape[axis]
    both = x.new_empty([2 * n if i == axis else n for i, n in enumerate(x.shape)], dtype=torch.float16)
    head, tail = both.narrow(axis, 0, size), both.narrow(axis, size, size)
    head.copy_(scaled)
    torch.sub(scaled, head, out=tail)
    return both, _power_of_two(exponent)


def _power_of_two(exponent: Tensor) -> Tensor:
    """2 to the power of an int32, exactly, as float32: `ldexp` rounds."""
    return ((exponent + 127) << 23).view(torch.float32)
