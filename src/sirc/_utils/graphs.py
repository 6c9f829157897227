"""CUDA graphs: what a function launches, recorded once and started together, with the same results."""

from __future__ import annotations

import gc
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import TypeAlias, TypeVar, final

import torch
from torch import Tensor

_R = TypeVar("_R")
Look: TypeAlias = tuple[object, ...]
"""The stream of a call, and what its tensors have in common with those of another call that a graph could serve."""

_EAGER = 4  # calls that run launch by launch; with a fifth, recording is expected to pay
_LOOKS = 32  # of which calls are counted, so that no more graphs take memory
_WARM_UP = 3  # calls in which libraries choose their kernels; such choices cannot be recorded


def record(
    work: Callable[[], _R], warm_up: AbstractContextManager[object] | None = None
) -> tuple[torch.cuda.CUDAGraph, _R]:
    """The graph of what `work` launches, and its result, which each replay overwrites.

    It runs a few times before, inside `warm_up`. A RuntimeError if it waits for the device, which no graph can.
    """
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        with warm_up or nullcontext():
            for _ in range(_WARM_UP):
                work()
        side.synchronize()
        graph = torch.cuda.CUDAGraph()
        # Not torch.cuda.graph, which gives all unused memory back first. Errors are those of this thread alone, as
        # others may allocate memory meanwhile; nor may the collector free, in between, what uses the device.
        collects = gc.isenabled()
        gc.disable()
        graph.capture_begin(capture_error_mode="thread_local")
        try:
            result = work()
        finally:
            graph.capture_end()
            if collects:
                gc.enable()
    torch.cuda.current_stream().wait_stream(side)
    return graph, result


@final
class Recorded:
    """A function of CUDA tensors as a graph, for tensors of the shapes, types and strides of the examples.

    Made only where the graph gives the very numbers that the function does: else a RuntimeError.
    """

    @torch.inference_mode(False)
    @torch.no_grad()
    def __init__(self, function: Callable[..., tuple[Tensor, ...]], *examples: Tensor) -> None:
        self._given = [x.clone() for x in examples]
        expected = [x.clone() for x in function(*self._given)]
        self._graph, self._results = record(lambda: function(*self._given))
        if not all(map(torch.equal, self(*examples), expected)):
            raise RuntimeError("a CUDA graph of this function gives other numbers than the function")

    def __call__(self, *values: Tensor) -> tuple[Tensor, ...]:
        """The results for other values."""
        for mine, value in zip(self._given, values, strict=True):
            mine.copy_(value)
        self._graph.replay()
        return tuple(result.clone() for result in self._results)


@final
class Repeats:
    """Calls a function of CUDA tensors, by a graph once tensors that look the same have come a few times.

    The numbers are the same, in any thread. A function that cannot be recorded goes on launch by launch. A graph reads
    the function's other tensors where they were: begin anew when these move. Copies begin anew.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: Counter[Look] = Counter()
        self._graphs: dict[Look, Recorded] = {}

    def __call__(self, function: Callable[..., tuple[Tensor, ...]], *tensors: Tensor) -> tuple[Tensor, ...]:
        """`function(*tensors)`."""
        # Each stream has graphs of its own: one graph's memory is for one replay at a time.
        look: Look = (torch.cuda.current_stream(), *((x.shape, x.stride(), x.dtype, x.device) for x in tensors))
        with self._lock:
            if look in self._seen or len(self._seen) < _LOOKS:
                self._seen[look] += 1
            if self._seen[look] == _EAGER + 1:
                with suppress(RuntimeError):
                    self._graphs[look] = Recorded(function, *tensors)
            if look in self._graphs:
                return self._graphs[look](*tensors)
        return function(*tensors)

    def __reduce__(self) -> tuple[type[Repeats], tuple[()]]:
        return Repeats, ()
