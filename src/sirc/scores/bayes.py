"""The `bayes` combination: u, the probability of an error on ID input, g = p_OOD/p_ID, and the order they ask for."""

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


def least_aurc(log_u: Tensor, log_g: Tensor, alpha: float, beta: float) -> Tensor:
    """−log[β(1−w)u + (1−β)w], w = (1−α)g/(α + (1−α)g): minus the log of the expected cost of accepting the row.

    u is the probability that the prediction is wrong if the row is ID; g = p_OOD/p_ID; so w is the probability that the
    row is OOD. No other order has a smaller AURC. α = 1 or no sign of OOD (g → 0) leaves the order of u.
    """
    if alpha == 1:
        return -log_u - (math.log(beta) if beta else 0.0)
    log_odds = log_g + (math.log1p(-alpha) - math.log(alpha))
    # Subtract the larger of 0 and log_odds from both logarithms: no digits cancel where a row is surely OOD.
    most = log_odds.clamp_min(0.0)
    return softplus(-log_odds.abs()) - log_add(log_u + _log(beta) - most, log_odds - most + _log(1 - beta))


def least_aurr(log_u: Tensor, log_g: Tensor, alpha: float, beta: float) -> Tensor:
    """−log([βu + ρg]/(1 − u)), ρ = (1−α)(1−β)/α: cost by the ID✓ it buys, to first order the order of least AURR."""
    return low_cost(log_u, log_g, alpha, beta) + log_one_minus_exp(log_u)


def low_cost(log_u: Tensor, log_g: Tensor, alpha: float, beta: float) -> Tensor:
    """−log[βu + ρg], ρ = (1−α)(1−β)/α."""
    if alpha == 1 or beta == 1:
        return -log_u - (math.log(beta) if beta else 0.0)
    return -log_add(log_u + _log(beta), log_g + (math.log1p(-alpha) + math.log1p(-beta) - math.log(alpha)))


def _log(x: float) -> float:
    return math.log(x) if x > 0 else -math.inf


def claim(log_gap_of_uniform: float, classes: int) -> tuple[float, float]:
    """The logarithms of the factor that makes S1max − S1 a probability of error, and of its largest value.

    A uniform softmax is wrong with probability 1 − 1/K: S1max − S1 is scaled to be that there. For MSP the factor is
    1: u = 1 − max π.
    """
    most = math.log1p(-1 / classes)
    return most - log_gap_of_uniform, most


def doubt(log_gap: Tensor, claimed: Sequence[float]) -> Tensor:
    """The claimed probability of error as log odds.

    Some S1 can be lower than at a uniform softmax (`gen` of more than m classes). There the log odds rise with
    log(S1max − S1) itself, so that no two rows tie.
    """
    scale, most = claimed
    log_p = log_gap + constant(scale, log_gap)
    inside = log_p.clamp_max(most)
    return inside - log_one_minus_exp(inside) + (log_p - inside)


def error_odds(log_gap: Tensor, claimed: Sequence[float], calibration: Sequence[float]) -> Tensor:
    """The log odds of an error: the claimed ones with the offset and slope fitted to validation data."""
    offset, slope = calibration
    return constant(offset, log_gap) + constant(slope, log_gap) * doubt(log_gap, claimed)


def log_u(log_gap: Tensor, claimed: Sequence[float], calibration: Sequence[float]) -> Tensor:
    """log u, the probability of an error."""
    return -softplus(-error_odds(log_gap, claimed, calibration))


def basis(log_u: Tensor, away: Sequence[Tensor], center: Sequence[float]) -> Tensor:
    """The terms of log g, which are summed with weights ≥ 0: ramps that rise with u and as each S2 falls, (n, terms).

    `away` is b(a − S2) of each S2. `center` is the mean and standard deviation of log u on ID data.
    """
    mean, deviation = center
    columns = [(log_u - mean) / deviation, *(value + _MEAN_TO_A for value in away)]
    return torch.stack([softplus(2 * (x - knot)) / 2 for x in columns for knot in KNOTS], -1)


def log_g(log_u: Tensor, away: Sequence[Tensor], density: Sequence[float]) -> Tensor:
    """log g as learnt. `density` is the mean and deviation of log u, the constant, and one weight for each ramp.

    The ramps are flat where a prediction is surer than most. There a tiny slope against log u keeps rows from tying.
    """
    center, constant, weights = density[:2], density[2], density[3:]
    ramps = basis(log_u, away, center)
    return constant + ramps @ torch.as_tensor(weights, dtype=ramps.dtype, device=ramps.device) + _TILT * log_u


def surrogate_log_g(log_u: Tensor, away: Sequence[Tensor]) -> Tensor:
    """log g from ID statistics alone: g = (1−q)·u/ε + q·(u/ε)^η·exp(−δz − δ²/2), z = (S2 − μ)/σ.

    OOD input is modelled as a mixture. A part 1 − q looks like misclassified ID input (density p_ID·u/ε, ε the share of
    errors), and S2 carries no sign of it. A part q lies δ standard deviations lower in S2, which gives that density
    ratio for a normal S2, and depends less on u. With several S2, each shows an equal share of q.
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
