"""Combinations of scores: SIRC, additive, Bayes, linear and product, computed from the values of their parts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from sirc._utils.text import quoted
from sirc.scores import bayes
from sirc.scores.blocks import constant
from sirc.scores.formulas.softmax import softplus
from sirc.scores.spec import COMBINATIONS, Spec

AnyParameters: TypeAlias = Mapping[str, Mapping[str, Tensor | float | Sequence[float]]]
"""Fitted parameters by spec and name, as tensors or, for a traced graph, as plain numbers."""


def sirc(log_gap: Tensor, others: Sequence[Tensor], a: Sequence[float], b: Sequence[float]) -> Tensor:
    """−log(S1max − S1) − Σ softplus(b(a − S2)), which is −log(−C) of C = −(S1max − S1)·Π(1 + exp(−b[S2 − a]))."""
    total = -log_gap
    for low in lowness(others, a, b):
        total = total - softplus(low)
    return total


def lowness(others: Sequence[Tensor], a: Sequence[float], b: Sequence[float]) -> list[Tensor]:
    """b(a − S2) of each S2: the larger, the more it looks like OOD."""
    return [
        constant(slope, value) * (constant(center, value) - value)
        for value, center, slope in zip(others, a, b, strict=True)
    ]


def additive(log_gap: Tensor, others: Sequence[Tensor], kappa: float, a: Sequence[float], b: Sequence[float]) -> Tensor:
    """−log[(S1max − S1) + κ Σ exp(−b(S2 − a))], computed without overflow."""
    total = log_gap
    for low in lowness(others, a, b):
        total = bayes.log_add(total, math.log(kappa) + low)
    return -total


def linear(first: Tensor, second: Tensor, c: float) -> Tensor:
    """S1 + c·S2."""
    return first + constant(c, second) * second


def product(*values: Tensor) -> Tensor:
    """S1·S2·…"""
    return torch.stack(values).prod(0)


def with_bounded_first(spec: Spec, log_gap: Tensor, others: Sequence[Tensor], parameters: AnyParameters) -> Tensor:
    """The value of a combination with a bounded first score, from log(S1max − S1) and the values of its S2 scores."""
    a, b = (parameter(spec, key, parameters) for key in "ab")
    if (formula := COMBINATIONS[spec.name].compute) is not None:
        return formula(log_gap, others, a, b, **own_numbers(spec))
    if spec.name == "sirc":
        return sirc(log_gap, others, a, b)
    if spec.name == "additive":
        return additive(log_gap, others, parameter(spec, "kappa", parameters)[0], a, b)
    return _bayes(spec, log_gap, lowness(others, a, b), parameters)


def _bayes(spec: Spec, log_gap: Tensor, lows: Sequence[Tensor], parameters: AnyParameters) -> Tensor:
    """The value of a `bayes`. Its parameters tell which version fitted it, and so which rule applies."""
    alpha, beta = (parameter(spec, key, parameters)[0] for key in ("alpha", "beta"))
    fitted = {key: parameter(spec, key, parameters) for key in parameters[str(spec)]}
    claim, calibration = (parameter(spec, key, parameters) for key in ("claim", "calibration"))
    density = fitted.get("density")
    log_u = bayes.log_u(log_gap, claim, calibration)
    if density is not None:
        log_g = bayes.log_g(log_u, lows, density)
    elif "log_mean" in fitted:
        log_g = bayes.witnessed_log_g(log_u, lows, fitted["log_mean"][0])
    else:
        log_u, log_g = bayes.earlier_rule(log_gap, lows, claim, calibration)
    if spec.options.get("metric") != "aurr":
        return bayes.least_aurc(log_u, log_g, alpha, beta)
    if "levels" in fitted:
        return bayes.staged_aurr(log_u, log_g, alpha, beta, fitted["risks"], fitted["levels"], fitted.get("marks"))
    risk = fitted.get("risk", (0.0,))[0]
    confidence = bayes.least_aurr(log_u, log_g, alpha, beta, risk, bayes.fading(density, len(lows)))
    return confidence if "log_mean" in fitted or density is not None else confidence - bayes.log_one_minus_exp(log_u)


def own_numbers(spec: Spec) -> dict[str, float]:
    """The parameters of a combination that was registered with `combination`, other than a and b."""
    return {key: parameter(spec, key, {})[0] for key in COMBINATIONS[spec.name].keywords if key not in ("a", "b")}


def parameter(spec: Spec, key: str, parameters: AnyParameters) -> Sequence[float]:
    """A parameter of a combination: the one in its spec, else the fitted one, else the default."""
    given = spec.numbers(key)
    if given is not None:
        return given
    value = parameters.get(str(spec), {}).get(key, COMBINATIONS[spec.name].keywords.get(key))
    numbers = value.tolist() if isinstance(value, Tensor) else value
    if isinstance(numbers, float):
        return (numbers,)
    if not isinstance(numbers, list | tuple):
        raise ValueError(
            f"the parameters of `{spec}` must have floats for `{key}`; got {quoted(numbers)}. Make the scorer with "
            "`sirc.fit`"
        )
    return numbers
