"""The plain formulas of combinations, from columns of scores."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from sirc._utils.arrays import ArrayLike, as_tensor
from sirc._utils.checks import check_fraction
from sirc.scores import combine
from sirc.scores.functional.inputs import columns


def sirc(
    log_gap: ArrayLike, s2: ArrayLike | Sequence[ArrayLike], a: float | Sequence[float], b: float | Sequence[float]
) -> Tensor:
    """−log(S1max − S1) − Σ softplus(b(a − S2)): the order of the paper's C, without overflow.

    One S2 with numbers a and b, or a list of several with a list of each.
    """
    return combine.sirc(*_terms(log_gap, s2, a, b))


def additive(
    log_gap: ArrayLike,
    s2: ArrayLike | Sequence[ArrayLike],
    a: float | Sequence[float],
    b: float | Sequence[float],
    kappa: float = 0.1,
) -> Tensor:
    """−log[(S1max − S1) + κ Σ exp(−b(S2 − a))]: the order of minus that sum, without overflow."""
    if not (math.isfinite(kappa) and kappa > 0):
        raise ValueError(f"`kappa` must be positive: it is the weight of S2's part; got {kappa!r}")
    first, others, centers, slopes = _terms(log_gap, s2, a, b)
    return combine.additive(first, others, float(kappa), centers, slopes)


def bayes(
    log_u: ArrayLike,
    log_g: ArrayLike,
    alpha: float = 0.5,
    beta: float = 0.5,
    metric: Literal["aurc", "aurr"] = "aurc",
) -> Tensor:
    """−log[β(1−w)u + (1−β)w], w = (1−α)g/(α + (1−α)g): the order of least AURC where u and g are known.

    u is the probability that the prediction on an ID row is wrong, g = p_OOD/p_ID; both come as logarithms. With
    `metric="aurr"` it is −log([βu + ρg]/(1 − u)), ρ = (1−α)(1−β)/α: to first order, that of least AURR.
    """
    check_fraction("alpha", alpha)
    check_fraction("beta", beta)
    if not alpha:
        raise ValueError("`alpha`, the share of ID input, must be above 0: without ID input there is nothing to accept")
    if metric not in ("aurc", "aurr"):
        raise ValueError(f'`metric` must be "aurc" or "aurr"; got {metric!r}')
    u, g = columns(log_u, log_g, name="`log_u` and `log_g`")
    form = combine.bayes if metric == "aurc" else combine.bayes_aurr
    return form(u, g, float(alpha), float(beta))


def sirc_literal(s1: ArrayLike, s2: ArrayLike, a: float, b: float, s1_max: float) -> Tensor:
    """The paper's C = −(S1max − S1)(1 + exp(−b[S2 − a])) as printed; overflows and cancels where `sirc` does not."""
    first, second = columns(s1, s2)
    return -(s1_max - first) * (1 + torch.exp(-b * (second - a)))


def linear(s1: ArrayLike, s2: ArrayLike, c: float) -> Tensor:
    """S1 + c·S2."""
    first, second = columns(s1, s2)
    return combine.linear(first, second, c)


def product(*scores: ArrayLike) -> Tensor:
    """S1·S2·…, the plain values multiplied."""
    return combine.product(*columns(*scores))


def _terms(
    log_gap: ArrayLike, s2: ArrayLike | Sequence[ArrayLike], a: float | Sequence[float], b: float | Sequence[float]
) -> tuple[Tensor, list[Tensor], list[float], list[float]]:
    """log(S1max − S1) and the S2 columns, with as many a and b as there are of these."""
    single = not isinstance(a, Sequence) and as_tensor("a", a).dim() == 0
    others = columns(log_gap, *([s2] if single else s2), name="`log_gap` and each S2")  # type: ignore[misc]
    slopes = [as_tensor(name, value).double().reshape(-1).tolist() for name, value in (("a", a), ("b", b))]
    if not len(others) - 1 == len(slopes[0]) == len(slopes[1]):
        raise ValueError(
            "`a` and `b` must give one number for each S2; "
            f"got {len(slopes[0])} and {len(slopes[1])} numbers for {len(others) - 1} S2"
        )
    if any(not slope > 0 for slope in slopes[1]):
        raise ValueError(f"`b` must be positive: it is the slope against S2, 1/σ; got {slopes[1]}")
    return others[0], others[1:], slopes[0], slopes[1]
