"""The pass over the logits as one GPU kernel: each row is read once and summed in registers.

A float64 exponential of each logit would take longer than reading it. For logits in float32 or less, exponentials are
taken in float32, summed by eights (by sixteens for more than 16,384 classes), and these sums added up in float64. The
sums are then those of logits v_k moved by no more than a few 1e-7·(1 + v₂ − v_k), which is how float32 rounds logits of
size 4. For finite logits the winner, v₁, v₂ and so the gap g are exact, and with them the order of confident rows.
float64 logits keep float64 throughout.
"""

# mypy: disable-error-code="import-not-found,import-untyped,no-untyped-call,no-untyped-def,untyped-decorator"
from __future__ import annotations

import os

import torch
import triton
import triton.language as tl
from torch import Tensor

_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
_PER_WARP = 128  # what a warp reads at once: four neighbours for each of its threads


def kernel_sums(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Prediction (n), and v₁, v₂, t, w, q and ‖π − 1/K‖₁ as the rows of a (6, n) float64 tensor.

    Only for K > 1 and finite logits: others are refused before, and would not always give NaN here.
    """
    n, k = logits.shape
    if logits.stride(1) != 1:
        logits = logits.contiguous()
    prediction = torch.empty(n, dtype=torch.int64, device=logits.device)
    sums = torch.empty(6, n, dtype=torch.float64, device=logits.device)
    warps = min(16, max(1, triton.next_power_of_2(k) // 1024))
    width = _PER_WARP * warps
    deep = triton.next_power_of_2(triton.cdiv(k, 2 * width))
    wide = logits.dtype == torch.float64
    with torch.cuda.device_of(logits):
        _row[(n,)](
            logits,
            prediction,
            sums,
            n,
            # As constants, these tell the compiler that four neighbours can be read at once.
            stride=logits.stride(0),
            k=k,
            deep=deep,
            width=width,
            wide=wide,
            native=not wide and not _INTERPRETED,
            num_warps=warps,
            enable_fp_fusion=True,  # explicit, since its default differs between releases of Triton
        )
        _finish[(triton.cdiv(n, 512),)](sums, n, k=k, block=512, enable_fp_fusion=True)
    return prediction, sums


@triton.jit
def _row(
    logits,
    prediction,
    sums,
    n,
    stride: tl.constexpr,
    k: tl.constexpr,
    deep: tl.constexpr,
    width: tl.constexpr,
    wide: tl.constexpr,
    native: tl.constexpr,
):
    """One row, as two halves of `deep` lines of `width` logits; the last sum is Σ max(f_k − c, 0), for `_finish`."""
    row = tl.program_id(0).to(tl.int64)
    line, place = tl.arange(0, deep)[:, None], tl.arange(0, width)[None, :]
    x = _read(logits + row * stride, line * width + place, k, wide)
    y = _read(logits + row * stride, (deep + line) * width + place, k, wide)
    top, second = tl.reduce((tl.maximum(x, y), tl.minimum(x, y)), 0, _two_largest)
    top, second = tl.reduce((top, second), 0, _two_largest)
    found = tl.min(tl.minimum(tl.where(x == top, line, 2 * deep), tl.where(y == top, deep + line, 2 * deep)), 0)
    winner = tl.min(tl.where(found < 2 * deep, found * width + tl.arange(0, width), 2 * deep * width), 0)
    # The winner counts as f = 1 here, like the runner-up, and is subtracted from the sums: no logit needs a mask.
    below_x, below_y = _below(x, second, native), _below(y, second, native)
    f_x, f_y = _exp(below_x, native), _exp(below_y, native)
    t = _total(f_x + f_y) - 1
    w = _total(f_x * f_x + f_y * f_y) - 1
    q = _total(f_x * below_x + f_y * below_y) * 1024
    # π_k > 1/K where f_k > c.
    c = _divided(_exp((second - top) * 0.0009765625, native) + t.to(x.dtype), k, wide)
    above = _total(_excess(f_x, c, native) + _excess(f_y, c, native)) - _excess(tl.full((), 1, x.dtype), c, native)
    tl.store(prediction + row, winner.to(tl.int64))
    out, step = sums + row, tl.cast(n, tl.int64)  # 5n may be more than 32 bits hold
    tl.store(out, top.to(tl.float64))
    tl.store(out + step, second.to(tl.float64))
    tl.store(out + 2 * step, t)
    tl.store(out + 3 * step, w)
    tl.store(out + 4 * step, q)
    tl.store(out + 5 * step, above)


@triton.jit
def _finish(sums, n, k: tl.constexpr, block: tl.constexpr):
    """‖π − 1/K‖₁ = 2·Σ max(π_k − 1/K, 0), since Σ(π_k − 1/K) = 0."""
    row = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    inside = row < n
    at, step = sums + row, tl.cast(n, tl.int64)
    shrink = tl.exp(tl.load(at + step, mask=inside) - tl.load(at, mask=inside))
    largest = 1 / (1 + tl.load(at + 2 * step, mask=inside) * shrink)
    excess = shrink * largest * tl.load(at + 5 * step, mask=inside) + (largest - 1 / k)
    tl.store(at + 5 * step, 2 * tl.maximum(excess, 0.0), mask=inside)


@triton.jit
def _read(row, column, k: tl.constexpr, wide: tl.constexpr):
    x = tl.load(row + column, mask=column < k, other=-float("inf"))
    return x if wide else x.to(tl.float32)


@triton.jit
def _two_largest(a, b, c, d):
    """The two largest values of two ordered pairs."""
    return tl.maximum(a, c), tl.maximum(tl.minimum(a, c), tl.maximum(b, d))


@triton.jit
def _below(x, second, native: tl.constexpr):
    """(second − x)/1024, clamped to 0…1; dividing by a power of two rounds nothing."""
    if native:  # one instruction, which saturates; 0fBA800000 is −1/1024
        scaled = second * 0.0009765625 + tl.zeros_like(x)
        below = tl.inline_asm_elementwise(
            "fma.rn.sat.f32 $0, $1, 0fBA800000, $2;", "=r,r,r", [x, scaled], tl.float32, True, 1
        )
    else:
        below = tl.minimum(tl.maximum((second - x) * 0.0009765625, 0.0), 1.0)
    return below


@triton.jit
def _exp(below, native: tl.constexpr):
    """exp(−1024·below), which is 0 from below = 1 on."""
    if native:
        # As a power of two, with log₂e in the factor. Results below 2⁻¹²⁶ become 0, which is faster.
        f = tl.inline_asm_elementwise(
            "ex2.approx.ftz.f32 $0, $1;", "=r,r", [below * -1477.3197218702985], tl.float32, True, 1
        )
    else:
        f = tl.exp(below * -1024)
    return f


@triton.jit
def _divided(x, k: tl.constexpr, wide: tl.constexpr):
    """x/K, rounded to nearest, so that none of equal logits is above 1/K."""
    return x / k if wide else tl.div_rn(x, tl.full((), k, tl.float32))


@triton.jit
def _excess(f, c, native: tl.constexpr):
    """max(f − c, 0), for f ≤ 1 and c > 0."""
    if native:
        excess = tl.inline_asm_elementwise(
            "sub.rn.sat.f32 $0, $1, $2;", "=r,r,r", [f, c + tl.zeros_like(f)], tl.float32, True, 1
        )
    else:
        excess = tl.maximum(f - c, 0.0)
    return excess


@triton.jit
def _total(terms):
    """The sum in float64 of sums along the first axis, whose terms are in one thread."""
    return tl.sum(tl.sum(terms, 0).to(tl.float64), 0)
