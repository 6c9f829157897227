"""The two quantities that `bayes` weighs: u, the probability of a wrong prediction on ID input, and g = p_OOD/p_ID."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from sirc.scores.blocks import constant
from sirc.scores.formulas.softmax import softplus

KNOTS = (-4.0, -2.0, 0.0, 1.0, 2.0, 4.0)
"""Where the slope of log g may change, in standard deviations on the side of OOD."""
_MEAN_TO_A = 3.0  # a = μ − 3σ
_TILT = 1e-6  # of log g against log u: the least that keeps the order of sure rows in float64
# q, δ, η and ε of the surrogate; docs/bayes.md has what others would cost and gain.
_SHOWN, _SHIFT, _POWER, _ERRORS = 0.1, 1.5, 0.75, 0.3


def claim(log_gap_of_uniform: float, classes: int) -> tuple[float, float]:
    """The scale that makes S1max − S1 a probability of error, and its largest value, both as logarithms.

    A uniform softmax is wrong with probability 1 − 1/K; the distance of S1 from S1max is scaled to say so. For MSP the
    scale is 1: u = 1 − max π.
    """
    most = math.log1p(-1 / classes)
    return most - log_gap_of_uniform, most


def doubt(log_gap: Tensor, claimed: Sequence[float]) -> Tensor:
    """The claimed probability of error as log odds.

    Some S1 are lower still than at a uniform softmax (`gen` of more than m classes); there the log odds rise with
    log(S1max − S1) itself, so that no two rows tie.
    """
    scale, most = claimed
    log_p = log_gap + constant(scale, log_gap)
    inside = log_p.clamp_max(most)
    return inside - log_one_minus_exp(inside) + (log_p - inside)


def error_odds(log_gap: Tensor, claimed: Sequence[float], calibration: Sequence[float]) -> Tensor:
    """The log odds of an error: those claimed, shifted and stretched as validation data asked for."""
    offset, slope = calibration
    return constant(offset, log_gap) + constant(slope, log_gap) * doubt(log_gap, claimed)


def log_u(log_gap: Tensor, claimed: Sequence[float], calibration: Sequence[float]) -> Tensor:
    """log u, the probability of an error."""
    return -softplus(-error_odds(log_gap, claimed, calibration))


def basis(log_u: Tensor, away: Sequence[Tensor], center: Sequence[float]) -> Tensor:
    """What log g is a sum of with weights ≥ 0: ramps that rise with u and as each S2 falls, (n, terms).

    `away` is b(a − S2) of each S2. `center` is the mean and standard deviation of log u on ID data.
    """
    mean, deviation = center
    columns = [(log_u - mean) / deviation, *(value + _MEAN_TO_A for value in away)]
    return torch.stack([softplus(2 * (x - knot)) / 2 for x in columns for knot in KNOTS], -1)


def log_g(log_u: Tensor, away: Sequence[Tensor], density: Sequence[float]) -> Tensor:
    """log g as learnt: mean and deviation of log u, then the constant, then one weight for each ramp.

    The ramps are flat where a prediction is surer than most. There g falls with u as good as not at all, but so that no
    two rows tie for having the same w.
    """
    center, constant, weights = density[:2], density[2], density[3:]
    ramps = basis(log_u, away, center)
    return constant + ramps @ torch.as_tensor(weights, dtype=ramps.dtype, device=ramps.device) + _TILT * log_u


def surrogate_log_g(log_u: Tensor, away: Sequence[Tensor]) -> Tensor:
    """log g from ID statistics alone: g = (1−q)·u/ε + q·(u/ε)^η·exp(−δz − δ²/2), z = (S2 − μ)/σ.

    OOD input is taken for a mixture. A part 1 − q looks like the ID input that is misclassified (its density is
    p_ID·u/ε, ε the share of errors), and S2 says nothing of it. A part q lies δ standard deviations lower in S2, for
    which a normal S2 has that density ratio, and its u tells less. With several S2, each shows an equal share of it.
    """
    z = [-value - _MEAN_TO_A for value in away]
    tilts = [-_SHIFT * (value + _SHIFT / 2) for value in z]
    tilt = tilts[0] if len(tilts) == 1 else torch.logsumexp(torch.stack(tilts), 0) - math.log(len(tilts))
    claimed = log_u - math.log(_ERRORS)
    return log_add(claimed + math.log1p(-_SHOWN), _POWER * claimed + tilt + math.log(_SHOWN))


def log_add(x: Tensor, y: Tensor) -> Tensor:
    """log(eˣ + eʸ), where one of them may be −∞."""
    high = torch.maximum(x, y)
    return high + torch.log1p(torch.exp(torch.minimum(x, y) - high))


def log_one_minus_exp(x: Tensor) -> Tensor:
    """log(1 − eˣ) for x < 0, with all digits on both sides of −log 2; finite where x is 0."""
    x = x.clamp_max(-1e-300)
    near = torch.log(-torch.expm1(x.clamp_min(-1.0)))
    return torch.where(x > -0.6931471805599453, near, torch.log1p(-torch.exp(x)))
