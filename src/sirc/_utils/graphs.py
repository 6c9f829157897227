"""CUDA graphs: the kernels of a function, recorded once and launched together, with the same results."""

from __future__ import annotations

import gc
import logging
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, TypeAlias, TypeVar, final

import torch
from torch import Tensor, nn

_R = TypeVar("_R")
_Hook = TypeVar("_Hook", bound=Callable[..., object])
Shapes: TypeAlias = tuple[object, ...]
"""The stream of a call, and the shapes, strides and types of its tensors: calls with equal ones can share a graph."""

_log = logging.getLogger("sirc")
_EAGER = 4  # calls without a graph: the fifth shows that recording is worth its time
_MOST_SHAPES = 32  # limits the memory of graphs


def record(
    work: Callable[[], _R], warm_up: Callable[[], object], pool: tuple[int, int] | None = None
) -> tuple[torch.cuda.CUDAGraph, _R]:
    """The graph of the kernels that `work` launches on this device, and its result, which each replay overwrites.

    `warm_up` runs first, so that libraries choose their kernels, which cannot be recorded. Graphs that never run at the
    same time may share the memory of a `pool`.
    """
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        warm_up()
        side.synchronize()
        torch.cuda.empty_cache()  # nothing can be freed while recording
        # The workspace of cuBLAS then is in the graph's own memory, so that nobody can clear it later.
        clear: Callable[[], None] = getattr(torch._C, "_cuda_clearCublasWorkspaces", lambda: None)
        clear()
        graph = torch.cuda.CUDAGraph()
        collects = gc.isenabled()
        gc.disable()  # it might free something on the device while recording
        try:
            # Not `torch.cuda.graph`, which also frees pinned memory. Other threads may do what this one may not.
            shared: dict[str, Any] = {} if pool is None else {"pool": pool}
            graph.capture_begin(**shared, capture_error_mode="thread_local")
            try:
                result = work()
            finally:
                graph.capture_end()
        finally:
            if collects:
                gc.enable()
            clear()
    torch.cuda.current_stream().wait_stream(side)
    return graph, result


@contextmanager
def _not_waiting() -> Iterator[None]:
    """Raise a RuntimeError if something inside waits for the device, which torch cannot record."""
    before = torch.cuda.get_sync_debug_mode()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns that it may not find every wait
            torch.cuda.set_sync_debug_mode("error")
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


@final
class Recorded:
    """A function of CUDA tensors as a graph, for tensors with the shapes, types and strides of the examples.

    It is a RuntimeError if the graph does not give exactly the function's numbers, or if a `third_party` function waits
    for the device, which a graph cannot do.
    """

    @torch.inference_mode(False)
    @torch.no_grad()
    def __init__(
        self,
        function: Callable[..., tuple[Tensor, ...]],
        *examples: Tensor,
        third_party: bool = False,
        pool: tuple[int, int] | None = None,
    ) -> None:
        self._given = [x.clone() for x in examples]
        expected: list[Tensor] = []

        def warm_up() -> None:
            with _not_waiting() if third_party else nullcontext():
                expected[:] = [x.clone() for x in function(*self._given)]

        self._graph, self._results = record(lambda: function(*self._given), warm_up, pool)
        for result in self._results:
            result.logical_not_()  # changes every value, to notice results that a replay does not write
        if not all(map(torch.equal, self(*examples), expected)):
            raise RuntimeError("a CUDA graph of this function gives other numbers than the function")

    def __call__(self, *values: Tensor) -> tuple[Tensor, ...]:
        """The results for new values."""
        for given, value in zip(self._given, values, strict=True):
            given.copy_(value)
        self._graph.replay()
        return tuple(result.clone() for result in self._results)


@final
class Repeats:
    """Calls a function of CUDA tensors, through a graph once tensors of the same shapes have come a few times.

    The numbers are the same, in any thread. A function that cannot be recorded is called without a graph. A graph reads
    the function's other tensors at their old addresses: make a new `Repeats` when they move. Copies start without
    graphs.

    A `third_party` function may keep a tensor for the last size. It therefore has one graph, which is dropped when
    another size comes; each time more calls pass before it is recorded again.
    """

    def __init__(self, *, third_party: bool = False) -> None:
        self._third_party, self._patience = third_party, _EAGER
        self._lock = threading.Lock()
        self._calls: dict[Shapes, int] = {}
        self._graphs: dict[Shapes, Recorded] = {}
        self._pools: dict[object, tuple[int, int]] = {}

    def __call__(self, function: Callable[..., tuple[Tensor, ...]], *tensors: Tensor) -> tuple[Tensor, ...]:
        """`function(*tensors)`."""
        # After a network has run, this code is not in the processor's caches: a line costs as much as a small launch.
        index = tensors[0].get_device()
        if index != torch.cuda.current_device():
            with torch.cuda.device(index):
                return self(function, *tensors)
        if torch.cuda.is_current_stream_capturing():  # the caller records a graph
            return function(*tensors)
        # Each stream has its own graphs, since the memory of a graph serves one replay at a time.
        stream = index, torch._C._cuda_getCurrentRawStream(index)
        shapes: Shapes = (stream, *[(x.shape, x.stride(), x.dtype) for x in tensors])
        with self._lock:
            graph = self._graphs.get(shapes) or self._recorded(shapes, stream, function, tensors)
            if graph is not None:
                return graph(*tensors)
        return function(*tensors)

    def _recorded(
        self, shapes: Shapes, stream: object, function: Callable[..., tuple[Tensor, ...]], tensors: tuple[Tensor, ...]
    ) -> Recorded | None:
        """The graph for tensors of these shapes, if they have just come often enough and it can be recorded."""
        if self._third_party and shapes not in self._calls:
            self._patience *= 2 if self._graphs else 1
            self._graphs.clear()
            self._calls.clear()
        if shapes not in self._calls and len(self._calls) >= _MOST_SHAPES:
            return None
        self._calls[shapes] = self._calls.get(shapes, 0) + 1
        if self._calls[shapes] != self._patience + 1:
            return None
        pool = self._pools.setdefault(stream, torch.cuda.graph_pool_handle())
        try:
            self._graphs[shapes] = Recorded(function, *tensors, third_party=self._third_party, pool=pool)
        except RuntimeError as error:
            _log.debug("no CUDA graph is recorded: %s", error)
        return self._graphs.get(shapes)

    def __reduce__(self) -> tuple[type[Repeats], tuple[()]]:
        return Repeats, ()


def for_new_shapes(hook: _Hook) -> _Hook:
    """Mark a module's hook that does nothing for shapes that came before: `Repeats` runs it for each new one."""
    hook.__dict__["for_new_shapes"] = True
    return hook


def prevents_graphs(model: nn.Module) -> bool:
    """Whether some module has a hook that must run at every call, since a graph runs no hooks."""
    hooks = (hook for m in model.modules() for hook in (*m._forward_hooks.values(), *m._forward_pre_hooks.values()))
    return not all(getattr(hook, "for_new_shapes", False) for hook in hooks)
