"""Limits of a GPU, measured: reading memory and multiplying matrices; figures as shares of them."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from _timing import Row, synchronize
from torch import Tensor

Work = Callable[[], object]


@dataclass(frozen=True)
class Share(Row):
    """A figure in milliseconds as a share of the time that the limit would take."""

    unit: str = "ms"
    faster: bool = True

    def cells(self) -> tuple[str, ...]:
        """The columns of the printed table, the ratio as a percentage."""
        what, measured, compared, _, _, ok = super().cells()
        share = "—" if self.ratio is None else f"{100 * self.ratio:.0f}%"
        return what, measured, compared, share, "info" if self.limit is None else f"≥ {100 * self.limit:.0f}%", ok


@dataclass(frozen=True)
class Limits:
    """Bytes read in a second, and operations of matrix products in a second by precision."""

    read: float
    products: dict[str, float]

    def reading(self, what: str, taken: float, size: int, *, limit: float | None = None) -> Share:
        """A figure against reading this many bytes once."""
        least = size / self.read
        return Share(what, taken * 1e3, "reading them once", least * 1e3, least / taken, limit)

    def multiplying(self, what: str, taken: float, operations: float, precision: str, limit: float) -> Share:
        """A figure against doing this many operations in matrix products."""
        least = operations / self.products[precision]
        return Share(what, taken * 1e3, f"its products in {precision}", least * 1e3, least / taken, limit)

    def words(self) -> str:
        """All limits, as a note below the table."""
        rates = ", ".join(f"{name} {rate / 1e12:.0f}" for name, rate in self.products.items())
        return f"measured limits: {self.read / 1e12:.2f} TB/s read; matrix products in TFLOP/s: {rates}"


def in_turns(*works: Work, device: torch.device, repeats: int, calls: int = 4) -> list[float]:
    """The best time of one call of each work, in seconds; `calls` are timed in a row, which hides the launches."""
    for work in works:
        work()
    best = [float("inf")] * len(works)
    for _ in range(repeats):
        for number, work in enumerate(works):
            synchronize(device)
            start = time.perf_counter()
            for _ in range(calls):
                work()
            synchronize(device)
            best[number] = min(best[number], (time.perf_counter() - start) / calls)
    return best


def measure_limits(large: Tensor, *, repeats: int) -> Limits:
    """Limits of the device of a large float32 tensor: the best that any of some plain kernels reaches."""
    other = torch.empty_like(large)
    moved = (large.nbytes, large.nbytes, 2 * large.nbytes)
    works = (large.sum, large.amax, lambda: other.copy_(large))
    times = in_turns(*works, device=large.device, repeats=repeats, calls=10)
    read = max(size / taken for size, taken in zip(moved, times, strict=True))
    rows = large[: 1 << 16]
    side = large.shape[1]
    square = torch.randn(side, side, device=large.device)
    operations = 2 * len(rows) * side * side
    products = {}
    for name, dtype in (("float32", None), ("TF32", None), ("bfloat16", torch.bfloat16), ("float64", torch.float64)):
        a, b = (rows, square) if dtype is None else (rows.to(dtype), square.to(dtype))
        with tf32(name == "TF32"):
            (taken,) = in_turns(lambda a=a, b=b: a @ b, device=large.device, repeats=repeats)
        products[name] = operations / taken
    (taken,) = in_turns(lambda: three_products(rows, square), device=large.device, repeats=repeats)
    products["3×TF32"] = operations / taken
    return Limits(read, products)


def three_products(a: Tensor, b: Tensor) -> Tensor:
    """ab by TF32 products of the leading bits and of what they leave, less the smallest of the four."""
    (a_high, a_low), (b_high, b_low) = _split(a), _split(b)
    with tf32(True):
        return (a_low @ b_high).addmm_(a_high, b_low).addmm_(a_high, b_high)


def _split(x: Tensor) -> tuple[Tensor, Tensor]:
    high = (x.view(torch.int32) & -(1 << 13)).view(torch.float32)
    return high, x - high


@contextmanager
def tf32(wanted: bool) -> Iterator[None]:
    """Let torch round the factors of float32 products to TF32, or not."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if wanted else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def versions() -> str:
    """Of what the figures depend on beside torch."""
    try:
        asked = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        driver = subprocess.run(asked, check=True, capture_output=True, text=True).stdout.split()[0]
    except (OSError, subprocess.CalledProcessError, IndexError):
        driver = "unknown"
    try:
        from triton import __version__ as triton
    except ImportError:
        triton = "not installed"
    return f"CUDA {torch.version.cuda}, driver {driver}, Triton {triton}"
