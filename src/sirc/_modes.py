"""Arithmetic that does not depend on the caller's modes: autocast, inference mode, gradients."""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import torch

_P = ParamSpec("_P")
_R = TypeVar("_R")


def exact(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Run in the precision of the tensors, without gradients, on tensors that can be updated later.

    Inside a caller's autocast region matrix products would be rounded to half precision, and state made in its
    inference mode could not be changed outside of it.
    """

    @wraps(function)
    def run(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        with (
            torch.inference_mode(False),
            torch.no_grad(),
            torch.autocast("cpu", enabled=False),
            torch.autocast("cuda", enabled=False),
        ):
            return function(*args, **kwargs)

    return run
