"""For formulas that make an (n, K) float64 table of the logits: rows in blocks, and constants that a graph keeps."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

# Elements of one block: on a CPU what the cache holds with a few temporaries, elsewhere enough to fill the device.
_BLOCK = {"cpu": 1 << 17}
_BLOCK_ELSEWHERE = 1 << 24


def row_blocks(logits: Tensor) -> Iterator[slice]:
    """The rows of (n, K) logits in turn; one empty block where there are none."""
    rows = max(1, _BLOCK.get(logits.device.type, _BLOCK_ELSEWHERE) // logits.shape[1])
    for start in range(0, max(1, len(logits)), rows):
        yield slice(start, start + rows)


def by_rows(formula: Callable[[Tensor, slice], Tensor], logits: Tensor) -> Tensor:
    """`formula` of each block of logits and its place, put together along the last dimension, which is that of rows."""
    if torch.compiler.is_compiling():  # batches of deployment, in a graph that is not for one batch size
        return formula(logits, slice(None))
    return torch.cat([formula(logits[rows], rows) for rows in row_blocks(logits)], -1)


def constant(value: float, like: Tensor) -> Tensor | float:
    """A number for float64 formulas; a tensor while tracing, as the ONNX exporter rounds plain numbers to float32."""
    if torch.compiler.is_compiling():
        return like.new_tensor(value, dtype=torch.float64)
    return value
