"""The sums under risk curves as one GPU kernel: the counts at each threshold read once for every α."""

# mypy: disable-error-code="import-not-found,import-untyped,no-untyped-call,no-untyped-def,untyped-decorator"
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 2048  # thresholds of one program


def area_sums(counts: tuple[Tensor, Tensor, Tensor], totals: tuple[float, ...], p: float, alpha: Tensor) -> Tensor:
    """Σ Δ·bad/coverage for each α and, in a last row, the areas by trapezoids, (A + 1, 6) float64.

    The order is that of `areas.Steps`: ID✗ and OOD over recall, ID✗ over ID and OOD, OOD likewise; the last row holds
    the four of `Steps.generalised` and two zeros.
    """
    n = len(counts[0])
    programs = triton.cdiv(n, _BLOCK)
    parts = torch.empty(programs, len(alpha) + 1, 6, dtype=torch.float64, device=alpha.device)
    scales = torch.tensor([*totals, p], dtype=torch.float64).to(alpha.device, non_blocking=True)
    with torch.cuda.device_of(alpha):
        _sums[(programs,)](*counts, scales, alpha.contiguous(), parts, n, len(alpha), block=_BLOCK, num_warps=8)
    return parts.sum(0)


@triton.jit
def _sums(correct, wrong, ood, scales, alpha, parts, n, alphas, block: tl.constexpr):
    """One block of thresholds: the shares accepted at each, their growth since the one before, and all the sums."""
    program = tl.program_id(0).to(tl.int64)
    at = program * block + tl.arange(0, block)
    inside, before = at < n, (at > 0) & (at <= n)
    c, c_before = _share(correct, at, inside, before, tl.load(scales))
    x, x_before = _share(wrong, at, inside, before, tl.load(scales + 1))
    o, o_before = _share(ood, at, inside, before, tl.load(scales + 2))
    p = tl.load(scales + 3)
    within, within_before = p * c + (1 - p) * x, p * c_before + (1 - p) * x_before
    bad, bad_before = (1 - p) * x, (1 - p) * x_before
    rise = tl.where(inside, c - c_before, 0.0)
    rise_id = tl.where(inside, within - within_before, 0.0)
    rise_ood = tl.where(inside, o - o_before, 0.0)
    out = parts + program * (alphas + 1) * 6
    for i in range(alphas):
        a = tl.load(alpha + i)
        covered = a * within + (1 - a) * o
        inverse = tl.where(covered > 0, 1 / covered, 0.0)
        by_wrong, by_ood = inverse * bad, inverse * o
        tl.store(out, tl.sum(rise * by_wrong, 0))
        tl.store(out + 1, tl.sum(rise * by_ood, 0))
        tl.store(out + 2, tl.sum(rise_id * by_wrong, 0))
        tl.store(out + 3, tl.sum(rise_ood * by_wrong, 0))
        tl.store(out + 4, tl.sum(rise_id * by_ood, 0))
        tl.store(out + 5, tl.sum(rise_ood * by_ood, 0))
        out += 6
    tl.store(out, tl.sum(rise_id * (bad + bad_before), 0) / 2)
    tl.store(out + 1, tl.sum(rise_ood * (bad + bad_before), 0) / 2)
    tl.store(out + 2, tl.sum(rise_id * (o + o_before), 0) / 2)
    tl.store(out + 3, tl.sum(rise_ood * (o + o_before), 0) / 2)
    tl.store(out + 4, 0.0)
    tl.store(out + 5, 0.0)


@triton.jit
def _share(counts, at, inside, before, total):
    """The accepted share of a group at each threshold and at the one before it."""
    here = tl.load(counts + at, mask=inside, other=0).to(tl.float64)
    last = tl.load(counts + at - 1, mask=before, other=0).to(tl.float64)
    return here / total, last / total
