"""Fused kernels: if one cannot run, it is not tried again, and a slower path computes the same numbers."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

import torch

_R = TypeVar("_R")
_log = logging.getLogger("sirc")
_unusable: set[str] = set()


def attempt(name: str, work: Callable[[], _R]) -> _R | None:
    """The result of a kernel or a compiled function; None if it cannot run, or could not before."""
    if name in _unusable:
        return None
    try:
        return work()
    except torch.OutOfMemoryError:
        _log.debug("out of memory in %s", name)
    except Exception as error:  # no compiler, no Triton, an unknown device, …
        _unusable.add(name)
        _log.debug("%s is not usable: %s", name, error)
    return None
