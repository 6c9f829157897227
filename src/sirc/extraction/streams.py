"""Copies between host and device that overlap with the work of the model."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TypeAlias

import torch
from torch import Tensor

from sirc.data import IndexedBatch
from sirc.models import map_inputs

Columns: TypeAlias = dict[str, Tensor]
"""The logits of some rows and, if kept, their features and labels, by the names of `Outputs`."""

_AHEAD = 3  # batches launched but not finished on the device; more would only take memory


def moved_ahead(batches: Iterator[IndexedBatch], device: torch.device) -> Iterator[IndexedBatch]:
    """Copy the inputs of each batch to the model's device while it works on earlier batches."""
    if device.type != "cuda":
        yield from batches
        return
    side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    launched: deque[torch.cuda.Event] = deque()

    def move(value: object) -> object:
        if not isinstance(value, Tensor) or value.device.type != "cpu":
            return value
        moved = value.to(device, non_blocking=True)
        moved.record_stream(now)
        return moved

    for got in batches:
        now = torch.cuda.current_stream(device)
        with torch.cuda.stream(side):
            batch = map_inputs(got.batch, move)
        now.wait_stream(side)
        yield replace(got, batch=batch)
        launched.append(_marked(now))
        if len(launched) > _AHEAD:
            launched.popleft().synchronize()


def arrived() -> Callable[[], object]:
    """Make a function that waits for all copies begun so far."""
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return lambda: None
    event = _marked(torch.cuda.current_stream())
    return lambda: event.synchronize()


def _marked(stream: torch.cuda.Stream) -> torch.cuda.Event:
    """Record an event at the stream's current position; waiting for it does not spin the CPU."""
    event: torch.cuda.Event = stream.record_event(torch.cuda.Event(blocking=True))  # type: ignore[no-untyped-call]
    return event
