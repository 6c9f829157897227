"""Arithmetic: exact results under the caller's autocast, modes and TF32."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, final

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

Precision = Literal["fp32", "bf16"]
"""The arithmetic of a network: plain float32, or bfloat16 by autocast."""

_BACKENDS = ("cuda", "mkldnn")
_FULL = ("none", "ieee")

_lock = threading.Lock()
_inside = 0
_restore: Callable[[], None] | None = None


@contextmanager
def full_products() -> Iterator[None]:
    """Compute float32 matrix products in full precision, whatever torch is set to.

    The setting is that of the whole process: the first thread to enter changes it, the last to leave restores it.
    """
    global _inside, _restore
    with _lock:
        if not _inside:
            _restore = _set_full()
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if not _inside and _restore is not None:
                _restore()
                _restore = None


@contextmanager
def _exactly() -> Iterator[None]:
    with (
        torch.inference_mode(False),
        torch.no_grad(),
        torch.autocast("cpu", enabled=False),
        torch.autocast("cuda", enabled=False),
        full_products(),
    ):
        yield


exact = _exactly()
"""Decorate a function to run in the precision of its tensors, without gradients, and outside of inference mode.

Autocast around the caller would round matrix products to half precision, TF32 to 10 bits. Tensors made in inference
mode could not be changed outside of it.
"""


def _set_full() -> Callable[[], None] | None:
    """Set torch to full precision; return a function that restores the setting, or None if nothing had to change."""
    if not hasattr(torch._C, "_get_fp32_precision_getter"):  # torch before 2.9
        before = torch.get_float32_matmul_precision()
        if before == "highest":
            return None
        torch.set_float32_matmul_precision("highest")
        return lambda: torch.set_float32_matmul_precision(before)
    kept = _precisions()
    # torch gives the older setting only while the newer switches are at full precision.
    if all(value in _FULL for value in kept.values()) and torch.get_float32_matmul_precision() == "highest":
        return None
    # A switch at "none" follows the one for all backends, and must still follow it after it is restored.
    _set_precisions(dict.fromkeys(_BACKENDS, "none"))
    followed = _precisions()
    kept = {backend: "none" if value == followed[backend] else value for backend, value in kept.items()}
    _set_precisions(dict.fromkeys(_BACKENDS, "ieee"))
    # torch refuses to multiply if the older setting disagrees.
    older = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")

    def restore() -> None:
        torch.set_float32_matmul_precision(older)
        _set_precisions(kept)

    return restore


def _precisions() -> dict[str, str]:
    return {backend: torch._C._get_fp32_precision_getter(backend, "matmul") for backend in _BACKENDS}


def _set_precisions(precisions: dict[str, str]) -> None:
    for backend, value in precisions.items():
        torch._C._set_fp32_precision_setter(backend, "matmul", value)


def may_convolve_in_tf32() -> bool:
    """Whether torch may round float32 to TF32 in convolutions on a GPU, which is its default."""
    if not hasattr(torch._C, "_get_fp32_precision_getter"):  # torch before 2.9
        return torch.backends.cudnn.allow_tf32
    return torch._C._get_fp32_precision_getter("cuda", "conv") not in _FULL


@final
class Convolutions(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Computes float32 convolutions in full precision on any device or, if `rounded`, from TF32 values as GPUs do."""

    def __init__(self, *, rounded: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._rounded = rounded

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run one operation of torch."""
        if func is not torch.ops.aten.convolution.default or args[0].dtype != torch.float32:
            return func(*args, **(kwargs or {}))
        values = [x if x is None or not (self._rounded and i < 2) else _as_tf32(x) for i, x in enumerate(args[:3])]
        if args[0].is_cuda:  # where float32 would be rounded
            values = [None if x is None else x.double() for x in values]
        return func(*values, *args[3:], **(kwargs or {})).float()


def _as_tf32(x: Tensor) -> Tensor:
    """Round to the nearest numbers with 10 bits after the leading bit."""
    return ((x.contiguous().view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)
