"""The pass over the logits: sums of each row, in blocks that fit a CPU's cache or in one GPU kernel."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import TypeAlias

import torch
from torch import Tensor

from sirc._utils.checks import check_type
from sirc._utils.fused import attempt

# Elements of a float64 block: on a CPU a few MB, which the cache holds; elsewhere enough to fill the device.
_BLOCK = {"cpu": 1 << 19}
_BLOCK_ELSEWHERE = 1 << 25
_SMALL, _LARGE = 1 << 12, 1 << 24  # one expression is fastest up to the first; compiling pays on a GPU from the second
_WIDEST = 1 << 15  # classes: a row of more does not fit the kernel's registers

RowSums: TypeAlias = tuple[Tensor, ...]
"""Prediction (int64), v₁, v₂, t, w, q and ‖π − 1/K‖₁ (float64) of each row; `softmax.py` defines them."""


def row_sums(logits: Tensor, *, compile: bool | None = None) -> RowSums:
    """The sums of each row of (n, K) logits, in the fastest way or as `compile` says (`Softmax.of`)."""
    if torch.compiler.is_compiling():
        return _sums(logits)
    check_type("compile", compile, bool | None, "True, False or None")
    kind, size = logits.device.type, logits.numel()
    fused: list[tuple[str, Callable[[Tensor], RowSums]]] = []
    if compile is None and kind == "cuda" and size and 1 < logits.shape[1] <= _WIDEST:
        fused.append(("kernel", _kernel_sums))
    if size and (compile or (compile is None and kind == "cuda" and size >= _LARGE)):
        fused.append((f"compiled form on {kind}", _compiled_sums))
    for name, way in fused:
        if (sums := attempt(f"the {name} of the pass over the logits", partial(way, logits.detach()))) is not None:
            return sums
    return _sums(logits.contiguous()) if size <= _SMALL else _blocked_sums(logits)


def _kernel_sums(logits: Tensor) -> RowSums:
    from sirc.scores.triton_kernel import kernel_sums  # which needs Triton

    prediction, sums = kernel_sums(logits)
    return prediction, *sums


def _compiled_sums(logits: Tensor) -> RowSums:
    torch._dynamo.maybe_mark_dynamic(logits, 0)
    return _compiler()(logits)


@cache
def _compiler() -> Callable[[Tensor], RowSums]:
    return torch.compile(_sums)


def _blocked_sums(logits: Tensor) -> RowSums:
    n, k = logits.shape
    rows = max(1, _BLOCK.get(logits.device.type, _BLOCK_ELSEWHERE) // k)
    work = torch.empty(2, min(rows, n), k, dtype=torch.float64, device=logits.device)
    parts = []
    for block in torch.split(logits, rows):
        d, f = work[:, : len(block)]
        d.copy_(block)
        top, winner = d.max(-1, keepdim=True)
        d.scatter_(1, winner, -torch.inf)
        second = d.amax(-1, keepdim=True)
        d.sub_(second)
        torch.exp(d, out=f)
        d.scatter_(1, winner, 0.0)
        t = f.sum(-1, keepdim=True)
        q = d.mul_(f).sum(-1).neg_()
        w = torch.mul(f, f, out=d).sum(-1)
        others = f.mul_(_share(top, second, t)).sub_(1 / k).abs_().sum(-1)
        deviation = _deviation(others, top, second, t, k)
        parts.append((winner[:, 0], top[:, 0], second[:, 0], t[:, 0], w, q, deviation))
    return tuple(map(torch.cat, zip(*parts, strict=True)))


def _sums(logits: Tensor) -> RowSums:
    """The same sums as one expression, for small batches, the compiler and traced graphs."""
    x = logits.double()
    k = x.shape[-1]
    column = torch.arange(k, device=x.device)
    top = x.amax(-1, keepdim=True)
    winner = torch.where(x == top, column, k).amin(-1, keepdim=True)
    loser = column != winner
    second = torch.where(loser, x, -torch.inf).amax(-1, keepdim=True)
    d = torch.where(loser, x - second, 0.0)
    f = torch.where(loser, d.exp(), 0.0)
    t = f.sum(-1, keepdim=True)
    w = (f * f).sum(-1)
    q = -(f * d).sum(-1)
    others = (f * _share(top, second, t) - 1 / k).abs().sum(-1)
    return winner[:, 0], top[:, 0], second[:, 0], t[:, 0], w, q, _deviation(others, top, second, t, k)


def _share(top: Tensor, second: Tensor, t: Tensor) -> Tensor:
    """π_k/f_k of the classes other than the winner."""
    shrink = torch.exp(second - top)
    return shrink / (1 + t * shrink)


def _deviation(others: Tensor, top: Tensor, second: Tensor, t: Tensor, k: int) -> Tensor:
    """‖π − 1/K‖₁ from the sum over all classes, in which the winner's f was 0 and so its term 1/K."""
    winner = 1 / (1 + t * torch.exp(second - top))
    return others + (winner[:, 0] - 2 / k)
