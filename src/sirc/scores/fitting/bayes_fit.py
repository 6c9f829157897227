"""Fits of `bayes`: the calibration of u, the density ratio g, the ID share of a mixture."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sirc.scores.formulas.softmax import softplus

_STEPS, _HALVINGS = 200, 34
_PENALTY = 1e-3  # on squared weights, beside the mean log-likelihood: keeps them finite on separable rows
_PRIOR = 0.1  # the penalty if each side has one row: how strongly the weights are held to those without OOD rows
_LEAST_SLOPE = 1e-3  # for log odds divided by their standard deviation, as a network may have huge logits
_SLACK = 0.1  # probability that the bound behind the estimated share fails


def calibrate(log_odds: Tensor, wrong: Tensor) -> tuple[float, float]:
    """Offset and positive slope of the log odds under which the wrong rows are likeliest (Platt scaling).

    A Cauchy prior keeps the odds at the mean, and the log of the slope, near what is claimed. It counts as much as a
    row or two: few rows leave the odds as claimed, and many rows of a badly calibrated network overrule it. The numbers
    are finite even if all rows are right, or perfectly separated.
    """
    from scipy.optimize import minimize
    from scipy.special import expit

    mean, deviation = mean_and_deviation(log_odds)
    t = (log_odds.cpu().numpy() - mean) / deviation
    target = wrong.cpu().numpy()
    claimed = np.array([mean, math.log(deviation)])

    def loss(theta: npt.NDArray[np.float64]) -> tuple[float, npt.NDArray[np.float64]]:
        """The value, and its derivatives by the shift and the log of the slope."""
        steepness, away = np.exp(theta[1]), theta - claimed
        z = theta[0] + steepness * t
        excess = expit(z) - target
        value = (np.logaddexp(0, z) - target * z).mean() + np.log1p(away**2).sum() / len(t)
        by_data = np.array([excess.mean(), (excess * t).mean() * steepness])
        return value, by_data + 2 * away / (1 + away**2) / len(t)

    with np.errstate(over="ignore", invalid="ignore"):  # the search may try steps that are far too large
        start = min((claimed, np.zeros(2)), key=lambda theta: loss(theta)[0])
        shift, log_slope = minimize(loss, start, jac=True, method="BFGS", options={"gtol": 1e-10}).x
    slope = max(math.exp(log_slope), _LEAST_SLOPE) / deviation
    return float(shift - slope * mean), slope


def mean_and_deviation(x: Tensor) -> tuple[float, float]:
    """Mean and standard deviation; a deviation of 0 is returned as 1."""
    mean, deviation = float(x.mean()), float(x.std(correction=0))
    return mean, deviation if deviation > 1e-9 * (1 + abs(mean)) else 1.0


def equal_weights(rows: Tensor) -> Tensor:
    """The same weight for each row; they sum to 1."""
    return torch.full((len(rows),), 1 / len(rows), dtype=torch.float64, device=rows.device)


@dataclass(frozen=True)
class Contrast:
    """Rows to tell from ID rows by the terms of log g: OOD rows, or a mixture with a known share of ID rows."""

    terms: Tensor
    weight: Tensor
    """The weight of each row; they sum to 1."""
    share: float = 0.0


def density_ratio(id_terms: Tensor, contrasts: Sequence[Contrast], witnessed: int) -> tuple[float, Tensor]:
    """The constant and the weights ≥ 0 of log g, by logistic regression of each contrast against the ID rows.

    Both sides weigh the same, however many rows they have, so that the log odds equal log g (for a mixture,
    log(share + (1 − share)·g)). The fewer rows there are, the nearer the weights stay to those without OOD rows: 1 for
    the first `witnessed` terms, and 0 for the others.
    """
    sides = []  # the terms with a column for the constant, the weights of rows, the sign of the loss, the ID share
    for contrast in contrasts:
        for terms, weight, sign in ((id_terms, equal_weights(id_terms), 1.0), (contrast.terms, contrast.weight, -1.0)):
            sides.append((torch.cat([torch.ones_like(terms[:, :1]), terms], 1), weight, sign, contrast.share))
    few = sum(float(weight.square().sum()) for _, weight, _, _ in sides) / len(contrasts)  # 1/n of each side
    pull = torch.full_like(sides[0][0][0], max(_PENALTY, _PRIOR * few))
    pull[0] = 0.0
    prior = torch.zeros_like(pull)
    prior[1 : 1 + witnessed] = 1.0

    def loss(theta: Tensor) -> float:
        total = pull @ (theta - prior).square()
        for x, weight, sign, share in sides:
            total = total + weight @ softplus(sign * _mixed(x @ theta, share))
        return float(total)

    def slopes(theta: Tensor) -> tuple[Tensor, Tensor]:
        slope, curvature = 2 * pull * (theta - prior), torch.diag(2 * pull)
        for x, weight, sign, share in sides:
            g = x @ theta
            odds = _mixed(g, share)
            chance = torch.sigmoid(sign * odds)
            tilt = torch.exp(g + math.log1p(-share) - odds)  # d odds / d log g
            slope = slope + x.T @ (weight * sign * chance * tilt)
            curvature = curvature + x.T @ (x * (weight * chance * (1 - chance) * tilt.square())[:, None])
        return slope, curvature

    theta = _minimise_above_zero(loss, slopes, torch.zeros_like(prior))
    return float(theta[0]), theta[1:]


def _mixed(g: Tensor, share: float) -> Tensor:
    """log(share + (1 − share)·g), from log g."""
    return torch.logaddexp(g + math.log1p(-share), torch.full_like(g, math.log(share))) if share else g


def _minimise_above_zero(
    loss: Callable[[Tensor], float], slopes: Callable[[Tensor], tuple[Tensor, Tensor]], theta: Tensor
) -> Tensor:
    """Minimise by projected Newton steps, with all numbers but the first at or above 0.

    These reach the minimum to the last digits, so that rows in another order give the same numbers. A Newton step that
    is clipped at 0 may go uphill; then take a step along the slope, scaled for each number.
    """
    value = loss(theta)
    for _ in range(_STEPS):
        slope, curvature = slopes(theta)
        free = (theta > 0) | (slope < 0)
        free[0] = True
        inside = curvature[free][:, free]
        least = 1e-12 * inside.diagonal().max()
        inside = inside + least * torch.eye(len(inside), dtype=theta.dtype, device=theta.device)
        newton, scaled = torch.linalg.solve(inside, slope[free]), slope[free] / inside.diagonal()
        for step, halvings in product((newton, scaled), range(_HALVINGS)):
            following = theta.clone()
            following[free] -= step * 0.5**halvings
            following[1:].clamp_min_(0.0)
            if (lower := loss(following)) < value:
                break
        else:
            return theta
        theta, value = following, lower
    return theta


def id_share(id_odds: Tensor, mixed_odds: Tensor) -> tuple[float, float]:
    """The share of ID rows in a mixture and its standard error, from log odds of coming from the mixture.

    A threshold that accepts no OOD rows accepts a fraction of the mixture that is the ID share times the accepted
    fraction of the ID rows. So the share is the smallest ratio of the two fractions over all thresholds, each with its
    sampling error added (Garg et al. 2021, best bin).
    """
    id_sorted, mixed = id_odds.double().sort().values, mixed_odds.double().sort().values
    n_id, n_mixed = len(id_sorted), len(mixed)
    of_mixed = torch.searchsorted(mixed, id_sorted, right=True).double() / n_mixed
    of_id = torch.arange(1, n_id + 1, dtype=torch.float64, device=mixed.device) / n_id
    slack = sum(math.sqrt(math.log(4 / _SLACK) / (2 * n)) for n in (n_id, n_mixed))
    best = int(((of_mixed + slack) / of_id).argmin())
    p, q = float(of_mixed[best]), float(of_id[best])
    ratio = p / q
    # Both counts are binomial; a fraction of 0 has the error of one row.
    variance = max(p * (1 - p), 1 / n_mixed) / n_mixed + ratio**2 * q * (1 - q) / n_id
    return min(1.0, ratio), math.sqrt(variance) / q
