"""Products of features with a fitted matrix: on a GPU by its units for half precision, nearly as exact as float32."""

from __future__ import annotations

from functools import cache, partial

import torch
from torch import Tensor

from sirc._utils.fused import attempt

# Below these the plain product takes no longer than splitting its factors does.
_FEWEST_ROWS, _SMALLEST = 1 << 10, 1 << 16
_TOP = 13  # the largest of a row or column is scaled to 2¹² or more, below 2¹³: float16 ends at 2¹⁶
_TINIEST = -100  # exponents are taken no lower, so that scales stay finite


def product(rows: Tensor, matrix: Tensor, plus: Tensor | None = None) -> Tensor:
    """`rows @ matrix + plus`, where the terms of each sum have both signs.

    A large product of float32 on a GPU is made of products of float16, which are more than ten times as fast. Each
    factor is split in two: its leading 11 bits, and the next 11. Of the four products the least, of the ends, is left
    out, as what it adds is about what float32 rounds off. Rows and columns are scaled by powers of two, which round
    nothing for sizes from 1e-25 to 1e25. The units add in float32, but cut off what does not fit: where terms have both
    signs the error is about twice that of float32, where all have one it grows with their number. So products of what
    is all positive, such as unit features with one another, are not for this.
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
    """Whether the device multiplies float16 and this torch hands over the sums as they are."""
    return torch.cuda.get_device_capability(device) >= (8, 0) and "dtype" in torch.ops.aten.mm.overloads()  # type: ignore[no-untyped-call]


def _halves(x: Tensor, axis: int) -> tuple[Tensor, Tensor]:
    """The leading bits and the next ones of a matrix, side by side along an axis, and what they are to be scaled by."""
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
    """2 to these int32, exactly, as float32: `ldexp` rounds."""
    return ((exponent + 127) << 23).view(torch.float32)
