"""The `bayes` combination: the best order of rows, given u = P(error | ID) and g = p_OOD/p_ID.

docs/bayes.md has the theory, and the effect of other constants.
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
"""Where the slope of log g may change, in standard deviations on the side of OOD."""
_MEAN_TO_A = 3.0  # a = μ − 3σ
_TILT = 1e-6  # of log g against log u: the least that keeps the order of sure rows in float64
# Without OOD rows: the most that a witness responds with, and all together; how far its response lies in standard
# deviations; the log of the most it may count; the power of u.
_RESPONSE, _RESPONSES, _SHIFT, _MOST, _POWER = 0.25, 1.2, 1.0, 3.0, 0.4
STAGES = 32
"""Into how many equal parts of ID✓ `aurr_stages` cuts the order."""
_LEAST_REACH = 1e-9  # between two marks, so that rows of different stages never tie
_FADES = 0.1  # of `least_aurr`, in scorers that were saved before there were stages


def least_aurc(log_u: Tensor, log_g: Tensor, alpha: float, beta: float) -> Tensor:
    """−log[β(1−w)u + (1−β)w], w = (1−α)g/(α + (1−α)g): minus the log of the expected cost of accepting the row.

    u is the probability that the prediction is wrong if the row is ID, g = p_OOD/p_ID, and so w is the probability that
    the row is OOD. No other order has a smaller AURC. If α = 1, or without a sign of OOD (g → 0), it is the order of u.
    """
    if alpha == 1:
        return -log_u - (math.log(beta) if beta else 0.0)
    log_odds = log_g + (math.log1p(-alpha) - math.log(alpha))
    # Subtract the larger of 0 and log_odds from both logarithms, so that no digits cancel if a row is surely OOD.
    most = log_odds.clamp_min(0.0)
    return softplus(-log_odds.abs()) - log_add(log_u + _log(beta) - most, log_odds - most + _log(1 - beta))


def least_aurr(
    log_u: Tensor, log_g: Tensor, alpha: float, beta: float, risk: float = 0.0, fades: float = 0.0
) -> Tensor:
    """−log([(β−R)u + (1−α)(1−β−R)/α·g]/(1 − u)): the order of least AURR where the risk of what is accepted is R.

    Of two neighbours in the order, the first should be the one that raises the risk less for the ID✓ it brings. A row
    costs βu + (1−α)(1−β)/α·g and adds 1 + (1−α)/α·g to what is accepted, which dilutes the risk; it brings 1 − u of
    ID✓. A weight is never negative: no row is preferred because it dilutes. Scorers of earlier versions have `fades`: a
    weight that R has brought below this part of itself falls exponentially instead of to 0.
    """
    by_u, by_g = _weights(alpha, beta, risk, fades)
    return log_one_minus_exp(log_u) - log_add(log_u + _log(by_u), log_g + _log(by_g))


def _weights(alpha: float, beta: float, risk: float, fades: float = 0.0) -> tuple[float, float]:
    """The weights of u and g in `least_aurr`; u alone counts where nothing costs more than what is accepted anyway."""

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
    """The risk before each stage of the order of least AURR, the log cost of the dearest row in it, and its mark.

    The rows are ID; each stands for 1 − u of ID✓, u of ID✗ and g of OOD input. Every stage brings an equal part of ID✓:
    of the rows that are left, those with the least cost by `least_aurr` at the risk so far. Costs at different risks
    are not comparable. Marks are on one scale: two neighbours differ by about as much as the log costs of the rows
    between them.
    """
    u, g = log_u.exp(), torch.softmax(log_g, 0) * len(log_g)
    right, cost = 1 - u, alpha * beta * u + (1 - alpha) * (1 - beta) * g
    mass, left = alpha + (1 - alpha) * g, torch.arange(len(u), device=u.device)
    risks: list[float] = []
    levels: list[float] = []
    marks: list[float] = []
    risk = recall = spent = accepted = 0.0
    before = log_u[:0]  # the log costs, in the last stage, of the rows that are left
    for stage in range(1, STAGES + 1):
        dear, order = (-least_aurr(log_u[left], log_g[left], alpha, beta, risk)).sort()
        found = recall + right[left[order]].cumsum(0)
        count = 1 + int((found[:-1] < stage / STAGES * float(right.sum())).sum())
        joined, left, level = left[order[:count]], left[order[count:]], float(dear[count - 1])
        mark = level
        if levels:  # above the last level by the costs in its stage, and below this level by those in this one
            reach = (before[order[:count]] - levels[-1]) + (level - dear[:count])
            middle = float(reach.nanmedian())
            mark = marks[-1] + (max(middle, _LEAST_REACH) if math.isfinite(middle) else _LEAST_REACH)
        risks.append(risk)
        levels.append(level)
        marks.append(mark)
        before = dear[count:]
        recall = float(found[count - 1])
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
    """Minus the mark of the stage in which a row joins, by `aurr_stages`, as a continuous number: higher means accept.

    A row joins in the first stage whose level its log cost does not exceed. Between two stages the distances from both
    levels say where; before the first and after the last, the distance from that level does. By the marks a confidence
    changes about as much as a log cost does. Scorers of earlier versions have none: they number the stages, whose
    confidences are crowded where most rows are rejected.
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

    wide = log_u[:, None].expand(-1, len(risks))  # by its width, blocks of rows are cut
    return -by_rows(stage, wide, log_g[:, None], log_one_minus_exp(log_u)[:, None])


def _log(x: float) -> float:
    return math.log(x) if x > 0 else -math.inf


def claim(log_gap_of_uniform: float, classes: int) -> tuple[float, float]:
    """The logs of the factor that turns S1max − S1 into a probability of error, and of its largest value.

    A uniform softmax is wrong with probability 1 − 1/K, and S1max − S1 is scaled to equal that there. For MSP the
    factor is 1: u = 1 − max π.
    """
    most = math.log1p(-1 / classes)
    return most - log_gap_of_uniform, most


def doubt(log_gap: Tensor, claimed: Sequence[float]) -> Tensor:
    """The claimed probability of error as log odds.

    An S1 can be lower than at a uniform softmax (`gen` with more than m classes). There the log odds rise with
    log(S1max − S1) itself, so that rows do not tie.
    """
    scale, most = claimed
    log_p = log_gap + constant(scale, log_gap)
    inside = log_p.clamp_max(most)
    return inside - log_one_minus_exp(inside) + (log_p - inside)


def error_odds(log_gap: Tensor, claimed: Sequence[float], calibration: Sequence[float]) -> Tensor:
    """The log odds of an error: the claimed ones, with the offset and slope fitted on validation data."""
    offset, slope = calibration
    return constant(offset, log_gap) + constant(slope, log_gap) * doubt(log_gap, claimed)


def log_u(log_gap: Tensor, claimed: Sequence[float], calibration: Sequence[float]) -> Tensor:
    """log u, the log of the probability of an error."""
    return -softplus(-error_odds(log_gap, claimed, calibration))


def basis(log_u: Tensor, away: Sequence[Tensor], center: Sequence[float]) -> Tensor:
    """The terms of log g, (n, terms), to be summed with weights ≥ 0: the witnessed terms of u and each S2, and ramps.

    The ramps rise with u, and as each S2 falls. `away` is b(a − S2) of each S2; `center` is the mean and standard
    deviation of log u on ID data.
    """
    mean, deviation = center
    columns = [(log_u - mean) / deviation, *(value + _MEAN_TO_A for value in away)]
    ramps = [softplus(2 * (x - knot)) / 2 for x in columns for knot in KNOTS]
    return torch.stack([*witnessed_terms(log_u, away), *ramps], -1)


def log_g(log_u: Tensor, away: Sequence[Tensor], density: Sequence[float]) -> Tensor:
    """log g as learnt. `density` has the mean and deviation of log u, the constant, and a weight for each term.

    Ramps are flat for predictions that are surer than most. A tiny slope against log u keeps such rows from tying.
    """
    center, constant, weights = density[:2], density[2], density[3:]
    terms = basis(log_u, away, center)[:, -len(weights) :]  # earlier versions had only ramps
    return constant + terms @ torch.as_tensor(weights, dtype=terms.dtype, device=terms.device) + _TILT * log_u


def fading(density: Sequence[float] | None, others: int) -> float:
    """The `fades` of `least_aurr` in scorers that were saved without stages; none where g has the terms of today."""
    return _FADES if density is None or len(density) - 3 == (1 + others) * len(KNOTS) else 0.0


def witnessed_log_g(log_u: Tensor, away: Sequence[Tensor], log_mean: float = 0.0) -> Tensor:
    """log g from ID statistics alone: g ∝ u^η·Π[(1−p) + p·min(exp(−δz − δ²/2), e³)], z of each S2 in deviations.

    OOD input looks strange to some witnesses, the S2 scores, and normal to others. Each responds with probability p, on
    its own; one that responds lies δ lower than on ID input, which for a normal S2 gives that density ratio. No witness
    counts more than e³, however strange a row looks to it. A power η of u says that OOD input is doubtful, but less so
    than errors are. `log_mean` is the log of the mean over ID rows, so that g is a density ratio: its mean there is 1,
    also where witnesses go together.
    """
    of_u, *of_witnesses = witnessed_terms(log_u, away)
    total = of_u - log_mean
    for term in of_witnesses:
        total = total + term
    return total


def witnessed_terms(log_u: Tensor, away: Sequence[Tensor]) -> list[Tensor]:
    """The terms of `witnessed_log_g`, of u and of each S2."""
    p = min(_RESPONSE, _RESPONSES / len(away))
    responses = [(_SHIFT * (value + _MEAN_TO_A - _SHIFT / 2)).clamp_max(_MOST) for value in away]
    return [_POWER * log_u, *(torch.log((1 - p) + p * response.exp()) for response in responses)]


def log_mean_exp(x: Tensor) -> float:
    """The log of the mean of eˣ."""
    return float(torch.logsumexp(x, 0)) - math.log(len(x))


def earlier_rule(
    log_gap: Tensor, lows: Sequence[Tensor], claimed: Sequence[float], calibration: Sequence[float]
) -> tuple[Tensor, Tensor]:
    """log u and log g, without OOD rows, for scorers that were saved before `witnessed_log_g` was the rule.

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
