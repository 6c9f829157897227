"""Combinations of scores: SIRC, additive, Bayes, linear and product, evaluated on columns of values."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from sirc.scores import bayes as ratio
from sirc.scores.blocks import constant
from sirc.scores.formulas.softmax import softplus
from sirc.scores.spec import Spec

Parameters = Mapping[str, Mapping[str, Tensor]] | Mapping[str, Mapping[str, Tensor | list[float]]]


def sirc(log_gap: Tensor, others: Sequence[Tensor], a: Sequence[float], b: Sequence[float]) -> Tensor:
    """−log(S1max − S1) − Σ softplus(b(a − S2)), which is −log(−C) of C = −(S1max − S1)·Π(1 + exp(−b[S2 − a]))."""
    total = -log_gap
    for low in lowness(others, a, b):
        total = total - softplus(low)
    return total


def lowness(others: Sequence[Tensor], a: Sequence[float], b: Sequence[float]) -> list[Tensor]:
    """b(a − S2) of each S2: how far it is on the side of OOD."""
    return [
        constant(slope, value) * (constant(center, value) - value)
        for value, center, slope in zip(others, a, b, strict=True)
    ]


def additive(log_gap: Tensor, others: Sequence[Tensor], kappa: float, a: Sequence[float], b: Sequence[float]) -> Tensor:
    """−log[(S1max − S1) + κ Σ exp(−b(S2 − a))]: the order of minus that sum, without overflow."""
    total = log_gap
    for low in lowness(others, a, b):
        total = ratio.log_add(total, math.log(kappa) + low)
    return -total


def bayes(log_u: Tensor, log_g: Tensor, alpha: float, beta: float) -> Tensor:
    """−log[β(1−w)u + (1−β)w], w = (1−α)g/(α + (1−α)g): minus the log of the expected cost of accepting the row.

    u is the probability that the prediction is wrong, were the row ID; g = p_OOD/p_ID; so w is the probability that it
    is OOD. No other order has a smaller AURC. α = 1 or no sign of OOD (g → 0) leaves the order of u.
    """
    if alpha == 1:
        return -log_u - (math.log(beta) if beta else 0.0)
    log_odds = log_g + (math.log1p(-alpha) - math.log(alpha))
    # Both logarithms less the larger of 0 and log_odds, so that no digits cancel where a row is OOD beyond doubt.
    most = log_odds.clamp_min(0.0)
    return softplus(-log_odds.abs()) - ratio.log_add(log_u + _log(beta) - most, log_odds - most + _log(1 - beta))


def bayes_aurr(log_u: Tensor, log_g: Tensor, alpha: float, beta: float) -> Tensor:
    """−log([βu + ρg]/(1 − u)), ρ = (1−α)(1−β)/α: cost by the ID✓ it buys, to first order the order of least AURR."""
    return _cost(log_u, log_g, alpha, beta) + ratio.log_one_minus_exp(log_u)


def _cost(log_u: Tensor, log_g: Tensor, alpha: float, beta: float) -> Tensor:
    """−log[βu + ρg]."""
    if alpha == 1 or beta == 1:
        return -log_u - (math.log(beta) if beta else 0.0)
    return -ratio.log_add(log_u + _log(beta), log_g + (math.log1p(-alpha) + math.log1p(-beta) - math.log(alpha)))


def linear(first: Tensor, second: Tensor, c: float) -> Tensor:
    """S1 + c·S2."""
    return first + constant(c, second) * second


def product(*values: Tensor) -> Tensor:
    """S1·S2·…"""
    return torch.stack(values).prod(0)


def plain_value(
    spec: Spec, plain: Callable[[Spec], Tensor], log_gap: Callable[[Spec], Tensor], parameters: Parameters
) -> Tensor:
    """The value of a spec from the values of its leaves."""
    if spec.is_leaf:
        return plain(spec)
    if spec.has_bounded_first:
        others = [plain_value(s, plain, log_gap, parameters) for s in spec.args[1:]]
        return with_bounded_first(spec, log_gap(spec.args[0]), others, parameters)
    values = [plain_value(s, plain, log_gap, parameters) for s in spec.args]
    if spec.name == "product":
        return product(*values)
    return linear(values[0], values[1], given(spec, "c", parameters)[0])


def with_bounded_first(spec: Spec, first: Tensor, others: list[Tensor], parameters: Parameters) -> Tensor:
    """The value of a combination from log(S1max − S1) and the values of its S2 scores."""
    a, b = (given(spec, key, parameters) for key in "ab")
    if spec.name == "sirc":
        return sirc(first, others, a, b)
    if spec.name == "additive":
        return additive(first, others, given(spec, "kappa", parameters)[0], a, b)
    alpha, beta = (given(spec, key, parameters)[0] for key in ("alpha", "beta"))
    log_u = _log_u(spec, first, parameters)
    away = lowness(others, a, b)
    aurr = spec.options.get("metric") == "aurr"
    if "density" in parameters[str(spec)]:
        log_g = ratio.log_g(log_u, away, given(spec, "density", parameters))
        return (bayes_aurr if aurr else bayes)(log_u, log_g, alpha, beta)
    # Without OOD rows S2 also raises u, by what SIRC adds to log u, on the scale of log odds: where OOD input is rare
    # the order is SIRC's. It is stretched as the calibration stretched S1. For AURR, 1 − u costs more than it tells.
    log_g = ratio.surrogate_log_g(log_u, away)
    claimed, calibration = (given(spec, key, parameters) for key in ("claim", "calibration"))
    odds = ratio.error_odds(first, claimed, calibration)
    for low in away:
        odds = odds + constant(calibration[1], low) * softplus(low)
    return (_cost if aurr else bayes)(-softplus(-odds), log_g, alpha, beta)


def _log_u(spec: Spec, first: Tensor, parameters: Parameters) -> Tensor:
    return ratio.log_u(first, given(spec, "claim", parameters), given(spec, "calibration", parameters))


def given(spec: Spec, key: str, parameters: Parameters) -> Sequence[float]:
    """A parameter of a combination: as its spec has it, as it was fitted, or by default."""
    explicit = spec.numbers(key)
    if explicit is not None:
        return explicit
    found = parameters.get(str(spec), {}).get(key)
    if found is None:
        return (spec.default(key),)
    numbers: list[float] = found.tolist() if isinstance(found, Tensor) else found
    return numbers


def _log(x: float) -> float:
    return math.log(x) if x > 0 else -math.inf
