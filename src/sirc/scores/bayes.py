"""The `bayes` combination: the best order of rows, given u = P(error | ID) and g = p_OOD/p_ID.

docs/bayes.md derives the formulas and shows the effect of other constants.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor

from sirc.scores.blocks import by_rows, constant
from sirc.scores.formulas.softmax import softplus

KNOTS = (-4.0, -2.0, 0.0, 1.0, 2.0, 4.0)
"""Where the slope of log g may change: standard deviations from the mean, towards OOD."""
_MEAN_TO_A = 3.0  # a = μ − 3σ
_TILT = 1e-6  # the slope of log g against log u, just large enough to keep sure rows apart in float64
# In `witnessed_log_g`: the largest p, the largest sum of all p, δ, the exponent of e³, and η.
_RESPONSE, _RESPONSES, _SHIFT, _MOST, _POWER = 0.25, 1.2, 1.0, 3.0, 0.4
STAGES = 32
"""The number of equal parts of ID✓ into which `aurr_stages` cuts the order."""
_LEAST_REACH = 1e-9  # between two marks, so that rows of different stages never tie
_FADES = 0.1  # `fades` of `least_aurr` in scorers that were saved before there were stages


def least_aurc(log_u: Tensor, log_g: Tensor, alpha: float, beta: float) -> Tensor:
    """−log[β(1−w)u + (1−β)w], w = (1−α)g/(α + (1−α)g): minus the log of the expected cost of accepting the row.

    u is the probability that the prediction is wrong if the row is ID, and g = p_OOD/p_ID; w is then the probability
    that the row is OOD. No other order has a smaller AURC. If α = 1 or g → 0, it is the order of u.
    """
    if alpha == 1:
        return -log_u - (math.log(beta) if beta else 0.0)
    log_odds = log_g + (math.log1p(-alpha) - math.log(alpha))
    # Take max(0, log_odds) out of both logarithms, so that no digits cancel if a row is surely OOD.
    most = log_odds.clamp_min(0.0)
    return softplus(-log_odds.abs()) - log_add(log_u + _log(beta) - most, log_odds - most + _log(1 - beta))


def least_aurr(
    log_u: Tensor, log_g: Tensor, alpha: float, beta: float, risk: float = 0.0, fades: float = 0.0
) -> Tensor:
    """−log([(β−R)u + (1−α)(1−β−R)/α·g]/(1 − u)): the order of least AURR where the risk of what is accepted is R.

    Of two neighbours in the order, the first should be the one that raises the risk less per ID✓ that it brings. A row
    brings 1 − u of ID✓, costs βu + (1−α)(1−β)/α·g, and adds 1 + (1−α)/α·g to what is accepted, which dilutes the risk.
    Weights are at least 0: no row is preferred because it dilutes. In scorers of earlier versions, a weight that R has
    reduced to less than the part `fades` of itself falls exponentially instead of to 0.
    """
    by_u, by_g = _weights(alpha, beta, risk, fades)
    return log_one_minus_exp(log_u) - log_add(log_u + _log(by_u), log_g + _log(by_g))


def _weights(alpha: float, beta: float, risk: float, fades: float = 0.0) -> tuple[float, float]:
    """The weights of u and g in `least_aurr`; 1 and 0 if both would be 0."""

    def less(weight: float) -> float:
        left = 1 - risk / weight if weight else 0.0
        if left <= fades:
            left = fades * math.exp(left / fades - 1) if fades else 0.0
        return weight * left

    by_u, by_g = less(beta), less(1 - beta) * (1 - alpha) / alpha
    return (by_u, by_g) if by_u or by_g else (1.0, 0.0)


def aurr_stages(
    log_u: Tensor, log_g: Tensor, alpha: float, beta: float
) -> tuple[list[float], list[float], list[float]]:
    """For each stage of the order of least AURR: the risk before it, the largest log cost of a row in it, and its mark.

    The rows are ID; each stands for 1 − u of ID✓, u of ID✗ and g of OOD input. Every stage brings an equal part of ID✓.
    It takes, from the rows that are left, those with the least cost by `least_aurr` at the risk so far. Costs at
    different risks are not comparable. Marks are comparable: two neighbours differ by about as much as the log costs of
    the rows between them.
    """
    u, g = log_u.exp(), torch.softmax(log_g, 0) * len(log_g)
    right, cost = 1 - u, alpha * beta * u + (1 - alpha) * (1 - beta) * g
    mass, left = alpha + (1 - alpha) * g, torch.arange(len(u), device=u.device)
    risks: list[float] = []
    levels: list[float] = []
    marks: list[float] = []
    risk = recall = spent = accepted = 0.0
    before = log_u[:0]  # the log costs of the rows that are left, by the last stage
    for stage in range(1, STAGES + 1):
        dear, order = (-least_aurr(log_u[left], log_g[left], alpha, beta, risk)).sort()
        recalls = recall + right[left[order]].cumsum(0)
        count = 1 + int((recalls[:-1] < stage / STAGES * float(right.sum())).sum())
        joined, left, level = left[order[:count]], left[order[count:]], float(dear[count - 1])
        mark = level
        if levels:
            # From the last level to a row by the costs of that stage, and on to this level by the costs of this one.
            reach = float(((before[order[:count]] - levels[-1]) + (level - dear[:count])).nanmedian())
            mark = marks[-1] + (max(reach, _LEAST_REACH) if math.isfinite(reach) else _LEAST_REACH)
        risks.append(risk)
        levels.append(level)
        marks.append(mark)
        before = dear[count:]
        recall = float(recalls[count - 1])
        spent, accepted = spent + float(cost[joined].sum()), accepted + float(mass[joined].sum())
        risk = spent / accepted
        if not len(left):
            break
    return risks, levels, marks


def staged_aurr(
    log_u: Tensor,
    log_g: Tensor,
    alpha: float,
    beta: float,
    risks: Sequence[float],
    levels: Sequence[float],
    marks: Sequence[float] | None = None,
) -> Tensor:
    """Minus the mark of the stage of `aurr_stages` in which a row joins, interpolated: higher means accept.

    A row joins in the first stage whose level its log cost does not exceed. Its place between two stages follows from
    its distances to both levels; before the first and after the last, from the distance to that level. Scorers of
    earlier versions have no marks and number the stages; this crowds confidences where most rows are rejected.
    """
    by_u, by_g = zip(*(map(_log, _weights(alpha, beta, risk)) for risk in risks), strict=True)
    marks = range(len(levels)) if marks is None else marks
    steps = [after - before for before, after in pairwise(marks)]

    def stage(log_u: Tensor, log_g: Tensor, log_right: Tensor) -> Tensor:
        row = partial(log_u.new_tensor, dtype=torch.float64)
        over = log_add(log_u + row(by_u), log_g + row(by_g)) - log_right - row(levels)
        waits = (over <= 0).double().cumsum(-1) == 0
        before, after = over[:, :-1], over[:, 1:]
        part = torch.where(after > 0, 1.0, before / (before - after).clamp_min(1e-300))
        between = torch.where(waits[:, :-1], part * row(steps), 0.0).sum(-1)
        return marks[0] + over[:, 0].clamp_max(0.0) + between + torch.where(waits[:, -1], over[:, -1], 0.0)

    wide = log_u[:, None].expand(-1, len(risks))  # tells `by_rows` the width of the temporaries
    return -by_rows(stage, wide, log_g[:, None], log_one_minus_exp(log_u)[:, None])


def _log(x: float) -> float:
    return math.log(x) if x > 0 else -math.inf


def claim(log_gap_of_uniform: float, classes: int) -> tuple[float, float]:
    """The logs of the factor that turns S1max − S1 into a probability of error, and of the largest probability.

    A uniform softmax is wrong with probability 1 − 1/K, which is the largest. For MSP the factor is 1: u = 1 − max π.
    """
    most = math.log1p(-1 / classes)
    return most - log_gap_of_uniform, most


def claimed_odds(log_gap: Tensor, claimed: Sequence[float]) -> Tensor:
    """The claimed probability of error as log odds.

    If an S1 is lower than at a uniform softmax (`gen` with more than m classes), the log odds rise with log(S1max − S1)
    itself, so that rows do not tie.
    """
    scale, most = claimed
    log_p = log_gap + constant(scale, log_gap)
    inside = log_p.clamp_max(most)
    return inside - log_one_minus_exp(inside) + (log_p - inside)


def error_odds(log_gap: Tensor, claimed: Sequence[float], calibration: Sequence[float]) -> Tensor:
    """The log odds of an error: the claimed ones, with the offset and slope fitted on validation data."""
    offset, slope = calibration
    return constant(offset, log_gap) + constant(slope, log_gap) * claimed_odds(log_gap, claimed)


def log_u(log_gap: Tensor, claimed: Sequence[float], calibration: Sequence[float]) -> Tensor:
    """log u, the log of the probability of an error."""
    return -softplus(-error_odds(log_gap, claimed, calibration))


def basis(log_u: Tensor, lows: Sequence[Tensor], center: Sequence[float]) -> Tensor:
    """The terms of log g, (n, terms), to be summed with weights ≥ 0: those of `witnessed_terms`, and ramps.

    The ramps rise with u, and as each S2 falls. `lows` is b(a − S2) of each S2; `center` is the mean and standard
    deviation of log u on ID data.
    """
    mean, deviation = center
    columns = [(log_u - mean) / deviation, *(value + _MEAN_TO_A for value in lows)]
    ramps = [softplus(2 * (x - knot)) / 2 for x in columns for knot in KNOTS]
    return torch.stack([*witnessed_terms(log_u, lows), *ramps], -1)


def log_g(log_u: Tensor, lows: Sequence[Tensor], density: Sequence[float]) -> Tensor:
    """log g learnt from OOD rows. `density`: mean and deviation of log u, the constant, a weight for each term.

    Ramps are flat for predictions that are surer than most; a tiny slope against log u keeps such rows from tying.
    """
    center, constant, weights = density[:2], density[2], density[3:]
    terms = basis(log_u, lows, center)[:, -len(weights) :]  # earlier versions had only ramps
    return constant + terms @ torch.as_tensor(weights, dtype=terms.dtype, device=terms.device) + _TILT * log_u


def fading(density: Sequence[float] | None, others: int) -> float:
    """The `fades` of `least_aurr` in scorers that were saved without stages; 0 if their g has today's terms."""
    return _FADES if density is None or len(density) - 3 == (1 + others) * len(KNOTS) else 0.0


def witnessed_log_g(log_u: Tensor, lows: Sequence[Tensor], log_mean: float = 0.0) -> Tensor:
    """log g from ID statistics alone: g ∝ u^η·Π[(1−p) + p·min(exp(−δz − δ²/2), e³)], z of each S2 in deviations.

    OOD input looks strange to some witnesses, the S2 scores, and normal to others. Each witness responds to it with
    probability p, independently, by a value δ lower than on ID input; for a normal S2 this gives the density ratio
    above. No witness counts more than e³. The power η of u says that predictions on OOD input are unsure, but less so
    than errors. `log_mean` is the log of the mean over ID rows; subtracted, it gives g the mean 1 there, as a density
    ratio has, even if witnesses depend on each other.
    """
    of_u, *of_witnesses = witnessed_terms(log_u, lows)
    return sum(of_witnesses, of_u - log_mean)


def witnessed_terms(log_u: Tensor, lows: Sequence[Tensor]) -> list[Tensor]:
    """The terms of `witnessed_log_g`, of u and of each S2."""
    p = min(_RESPONSE, _RESPONSES / len(lows))
    responses = [(_SHIFT * (value + _MEAN_TO_A - _SHIFT / 2)).clamp_max(_MOST) for value in lows]
    return [_POWER * log_u, *(torch.log((1 - p) + p * response.exp()) for response in responses)]


def log_mean_exp(x: Tensor) -> float:
    """The log of the mean of eˣ."""
    return float(torch.logsumexp(x, 0)) - math.log(len(x))


def earlier_rule(
    log_gap: Tensor, lows: Sequence[Tensor], claimed: Sequence[float], calibration: Sequence[float]
) -> tuple[Tensor, Tensor]:
    """log u and log g without OOD rows, in scorers that were saved before `witnessed_log_g` was the rule.

    g = 0.9·u/0.3 + 0.1·(u/0.3)^0.75·exp(−1.5z − 1.125), and u is SIRC's, u·(1 + exp(−z − 3)), as odds.
    """
    tilt = torch.logsumexp(torch.stack([1.5 * (low + _MEAN_TO_A - 0.75) for low in lows]), 0) - math.log(len(lows))
    alone = log_u(log_gap, claimed, calibration) - math.log(0.3)
    odds = error_odds(log_gap, claimed, calibration)
    for low in lows:
        odds = odds + constant(calibration[1], low) * softplus(low)
    return -softplus(-odds), log_add(alone + math.log(0.9), 0.75 * alone + tilt + math.log(0.1))


def log_add(x: Tensor, y: Tensor) -> Tensor:
    """log(eˣ + eʸ); one of x and y may be −∞."""
    high = torch.maximum(x, y)
    return high + torch.log1p(torch.exp(torch.minimum(x, y) - high))


def log_one_minus_exp(x: Tensor) -> Tensor:
    """log(1 − eˣ) for x < 0, accurate on both sides of −log 2; finite also at x = 0."""
    x = x.clamp_max(-1e-300)
    near = torch.log(-torch.expm1(x.clamp_min(-1.0)))
    return torch.where(x > -0.6931471805599453, near, torch.log1p(-torch.exp(x)))
