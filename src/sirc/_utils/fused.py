"""Fused kernels, tried once: where the toolchain lacks something, a slower path gives the same results."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

import torch

_R = TypeVar("_R")
_log = logging.getLogger("sirc")
_unusable: set[str] = set()


def attempt(name: str, work: Callable[[], _R]) -> _R | None:
    """What a kernel or a compiled function gives; None, and no further try under this name, where it cannot run.

    The caller then computes the same numbers by plain operations.
    """
    if name in _unusable:
        return None
    try:
        return work()
    except torch.OutOfMemoryError:
        _log.debug("out of memory in %s", name)
    except Exception as error:  # no compiler, no Triton, a device that it does not know, …
        _unusable.add(name)
        _log.debug("%s is not usable: %s", name, error)
    return None
