"""Combinations of scores: SIRC, linear and product, evaluated on columns of values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from sirc.scores.softmax import softplus
from sirc.scores.spec import Spec

Parameters = Mapping[str, Mapping[str, Tensor]] | Mapping[str, Mapping[str, Tensor | list[float]]]


def sirc(log_gap: Tensor, others: Sequence[Tensor], a: Sequence[float], b: Sequence[float]) -> Tensor:
    """−log(S1max − S1) − Σ softplus(b(a − S2)), which is −log(−C) of C = −(S1max − S1)·Π(1 + exp(−b[S2 − a]))."""
    total = -log_gap
    for value, center, slope in zip(others, a, b, strict=True):
        total = total - softplus(slope * (center - value))
    return total


def linear(first: Tensor, second: Tensor, c: float) -> Tensor:
    """S1 + c·S2."""
    return first + c * second


def product(*values: Tensor) -> Tensor:
    """S1·S2·…"""
    return torch.stack(values).prod(0)


def plain_value(
    spec: Spec, plain: Callable[[Spec], Tensor], log_gap: Callable[[Spec], Tensor], parameters: Parameters
) -> Tensor:
    """The value of a spec from the values of its leaves."""
    if spec.is_leaf:
        return plain(spec)
    if spec.name == "sirc":
        others = [plain_value(s, plain, log_gap, parameters) for s in spec.args[1:]]
        a, b = (_given(spec, key, parameters) for key in "ab")
        return sirc(log_gap(spec.args[0]), others, a, b)
    values = [plain_value(s, plain, log_gap, parameters) for s in spec.args]
    if spec.name == "product":
        return product(*values)
    return linear(values[0], values[1], _given(spec, "c", parameters)[0])


def _given(spec: Spec, key: str, parameters: Parameters) -> Sequence[float]:
    explicit = spec.numbers(key)
    if explicit is not None:
        return explicit
    fitted = parameters[str(spec)][key]
    numbers: list[float] = fitted.tolist() if isinstance(fitted, Tensor) else fitted
    return numbers
