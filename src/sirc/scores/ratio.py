"""The two quantities that `bayes` weighs: u, the probability of a wrong prediction on ID input, and g = p_OOD/p_ID."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from sirc.scores.softmax import softplus

KNOTS = (0.0, 1.0, 2.0, 4.0)
"""Where the slope of log g may change, in standard deviations on the side of OOD."""
_MEAN_TO_A = 3.0  # a = μ − 3σ
# q, η and ε of the surrogate: see docs/bayes.md for what others cost and gain.
_SHOWN, _POWER, _ERRORS = 0.15, 0.75, 0.3


def claim(log_gap_of_uniform: float, classes: int) -> tuple[float, float]:
    """The scale that makes S1max − S1 a probability of error, and its largest value, both as logarithms.

    A uniform softmax is wrong with probability 1 − 1/K; the distance of S1 from S1max is scaled to say so. For MSP the
    scale is 1: u = 1 − max π.
    """
    most = math.log1p(-1 / classes)
    return most - log_gap_of_uniform, most


def doubt(log_gap: Tensor, claimed: Sequence[float]) -> Tensor:
    """The claimed probability of error as log odds."""
    scale, most = claimed
    log_p = (log_gap + scale).clamp_max(most)
    return log_p - log_one_minus_exp(log_p)


def log_u(log_gap: Tensor, claimed: Sequence[float], calibration: Sequence[float]) -> Tensor:
    """log u: the claimed log odds of an error, shifted and stretched as validation data asked for."""
    offset, slope = calibration
    return -softplus(-(offset + slope * doubt(log_gap, claimed)))


def basis(log_u: Tensor, away: Sequence[Tensor], center: Sequence[float]) -> Tensor:
    """What log g is a sum of with weights ≥ 0: ramps that rise with u and as each S2 falls, (n, terms).

    `away` is b(a − S2) of each S2. `center` is the mean and standard deviation of log u on ID data.
    """
    mean, deviation = center
    columns = [(log_u - mean) / deviation, *(value + _MEAN_TO_A for value in away)]
    return torch.stack([softplus(2 * (x - knot)) / 2 for x in columns for knot in KNOTS], -1)


def log_g(log_u: Tensor, away: Sequence[Tensor], density: Sequence[float]) -> Tensor:
    """log g as learnt: mean and deviation of log u, then the constant, then one weight for each ramp."""
    center, constant, weights = density[:2], density[2], density[3:]
    ramps = basis(log_u, away, center)
    return constant + ramps @ torch.as_tensor(weights, dtype=ramps.dtype, device=ramps.device)


def surrogate_log_g(log_u: Tensor, away: Sequence[Tensor]) -> Tensor:
    """log g from ID statistics alone: g = (1−q)·u/ε + q·(u/ε)^η·exp(−z − ½), z = (S2 − μ)/σ.

    OOD input is taken for a mixture. A part 1 − q looks like the ID input that is misclassified (its density is
    p_ID·u/ε, ε the share of errors), and S2 says nothing of it. A part q lies one σ lower in S2, for which a normal S2
    has the density ratio exp(−z − ½), and its u is less telling: u^η. With several S2, each shows an equal share of it.
    """
    low = away[0] if len(away) == 1 else torch.logsumexp(torch.stack(list(away)), 0) - math.log(len(away))
    claimed = log_u - math.log(_ERRORS)
    return log_add(claimed + math.log1p(-_SHOWN), _POWER * claimed + low + (math.log(_SHOWN) + _MEAN_TO_A - 0.5))


def log_add(x: Tensor, y: Tensor) -> Tensor:
    """log(eˣ + eʸ), where one of them may be −∞."""
    high = torch.maximum(x, y)
    return high + torch.log1p(torch.exp(torch.minimum(x, y) - high))


def log_one_minus_exp(x: Tensor) -> Tensor:
    """log(1 − eˣ) for x < 0, with all digits on both sides of −log 2; finite where x is 0."""
    x = x.clamp_max(-1e-300)
    near = torch.log(-torch.expm1(x.clamp_min(-1.0)))
    return torch.where(x > -0.6931471805599453, near, torch.log1p(-torch.exp(x)))
