"""For formulas that make a table of many columns for each row: rows in blocks, and constants that a graph keeps."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

# Elements of one block: on a CPU what the cache holds with a few temporaries, elsewhere enough to fill the device.
_BLOCK = {"cpu": 1 << 17}
_BLOCK_ELSEWHERE = 1 << 24
# Where the table is a product of matrices, which is faster the larger it is.
_PRODUCT = 1 << 25


def row_blocks(logits: Tensor) -> Iterator[slice]:
    """The rows of (n, K) logits in turn; one empty block where there are none."""
    return _slices(len(logits), _BLOCK.get(logits.device.type, _BLOCK_ELSEWHERE) // logits.shape[1])


def by_rows(formula: Callable[..., Tensor], *columns: Tensor, product: int | None = None) -> Tensor:
    """`formula(*columns)` of blocks of rows, put together along the last dimension, which is that of rows.

    What it makes is as wide as the first column, or is a product of matrices with `product` columns.
    """
    if torch.compiler.is_compiling():  # batches of deployment, in a graph that is not for one batch size
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
    """A number for float64 formulas; a tensor while tracing, as the ONNX exporter rounds plain numbers to float32."""
    if torch.compiler.is_compiling():
        return like.new_tensor(value, dtype=torch.float64)
    return value
