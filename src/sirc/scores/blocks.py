"""Helpers of formulas: blocks of rows, their working type, constants of traced graphs."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

# Elements of one block: on a CPU, block and temporaries fit the cache; elsewhere, a block fills the device.
_BLOCK = {"cpu": 1 << 17}
_BLOCK_ELSEWHERE = 1 << 24
# The same for a product of matrices, which is faster the larger it is.
_PRODUCT = 1 << 25


def row_blocks(logits: Tensor) -> Iterator[slice]:
    """Slices over the rows of (n, K) logits; one empty slice if there are none."""
    return _slices(len(logits), _BLOCK.get(logits.device.type, _BLOCK_ELSEWHERE) // logits.shape[1])


def by_rows(formula: Callable[..., Tensor], *columns: Tensor, product: int | None = None) -> Tensor:
    """`formula(*columns)`, computed on blocks of rows; the rows are the last dimension of the result.

    The formula's temporaries are as wide as the first column, or they are matrix products with `product` columns.
    """
    if torch.compiler.is_compiling():  # a graph takes batches of any size
        return formula(*columns)
    first = columns[0]
    blocks = list(row_blocks(first) if product is None else _slices(len(first), _PRODUCT // product))
    if len(blocks) == 1:
        return formula(*columns)
    return torch.cat([formula(*(column[rows] for column in columns)) for rows in blocks], -1)


def _slices(n: int, rows: int) -> Iterator[slice]:
    rows = max(1, rows)
    for start in range(0, max(1, n), rows):
        yield slice(start, start + rows)


def constant(value: float, like: Tensor) -> Tensor | float:
    """A number of a float64 formula: a tensor while tracing, as the ONNX exporter rounds plain numbers to float32."""
    if torch.compiler.is_compiling():
        return like.new_tensor(value, dtype=torch.float64)
    return value


def unit(rows: Tensor) -> Tensor:
    """Rows scaled to length 1, like torch's `normalize`, but NaN if the length overflows."""
    length = torch.linalg.vector_norm(rows, dim=-1, keepdim=True)
    return rows / torch.where(length < torch.inf, length.clamp_min(1e-12), torch.nan)


def working_dtype(given: torch.dtype) -> torch.dtype:
    """The type in which formulas receive logits and features: float64 stays, all others become float32."""
    return torch.float64 if given == torch.float64 else torch.float32
