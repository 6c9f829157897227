"""Small fits on validation rows: the calibration of u, the density ratio g, and the share of ID rows in a mixture."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sirc.scores.softmax import softplus

_STEPS = 200
_PENALTY = 1e-3  # on squared weights, per mean log-likelihood: keeps them finite on rows that are all told apart
_LEAST_SLOPE = 1e-3
_SLACK = 0.1  # probability that the bound behind the estimated share fails


def calibrate(log_odds: Tensor, wrong: Tensor) -> tuple[float, float]:
    """Offset and positive slope of the log odds that make wrong rows likeliest (Platt's rule).

    The two counts are smoothed by one row each, so that rows which are all right, or all told apart, stay finite.
    """
    x = log_odds.double().cpu()
    y = wrong.cpu()
    n_wrong, n_right = int(y.sum()), int((~y).sum())
    target = torch.where(y, (n_wrong + 1) / (n_wrong + 2), 1 / (n_right + 2)).double()
    mean, deviation = x.mean(), x.std(correction=0).clamp_min(1e-9)
    t = (x - mean) / deviation
    theta = torch.zeros(2, dtype=torch.float64)

    def loss(theta: Tensor) -> Tensor:
        z = theta[0] + theta[1].exp() * t
        likelihood = (softplus(z) - target * z).mean()
        return likelihood + _PENALTY * theta[1].square() / math.sqrt(len(t))

    theta = _minimise(loss, theta)
    slope = max(float(theta[1].exp() / deviation), _LEAST_SLOPE)
    return float(theta[0] - slope * mean), slope


@dataclass(frozen=True)
class Contrast:
    """Rows to tell from ID rows: all OOD, or a mixture in which a known share is ID."""

    ramps: Tensor
    weight: Tensor
    """Of each row; they sum to 1."""
    share: float = 0.0


def density_ratio(id_ramps: Tensor, contrasts: Sequence[Contrast]) -> tuple[float, Tensor]:
    """The constant and the weights ≥ 0 of log g, by logistic regression of each contrast against the ID rows.

    Both sides weigh the same, whatever their numbers, so that the log odds are log g themselves (of a mixture,
    log(share + (1 − share)·g)).
    """
    size = id_ramps.shape[1]
    id_weight = torch.full((len(id_ramps),), 1 / len(id_ramps), dtype=torch.float64, device=id_ramps.device)

    def odds(ramps: Tensor, theta: Tensor, share: float) -> Tensor:
        g = theta[0] + ramps @ softplus(theta[1:])
        if not share:
            return g
        return torch.logaddexp(g + math.log1p(-share), torch.full_like(g, math.log(share)))

    def loss(theta: Tensor) -> Tensor:
        total = _PENALTY * softplus(theta[1:]).square().sum()
        for contrast in contrasts:
            total = total + id_weight @ softplus(odds(id_ramps, theta, contrast.share))
            total = total + contrast.weight @ softplus(-odds(contrast.ramps, theta, contrast.share))
        return total

    start = torch.full((size + 1,), -2.0, dtype=torch.float64, device=id_ramps.device)
    theta = _minimise(loss, start)
    return float(theta[0]), softplus(theta[1:])


def id_share(id_odds: Tensor, mixed_odds: Tensor) -> float:
    """The share of ID rows in a mixture, from log odds of being a mixture's row (the higher, the less ID).

    Where OOD rows are absent, the mixture has as many rows as its ID share says: the least ratio of accepted shares
    over all thresholds, each with its sampling error added (Garg et al. 2021, best bin).
    """
    own, mixed = id_odds.double().sort().values, mixed_odds.double().sort().values
    accepted = torch.searchsorted(mixed, own, right=True).double() / len(mixed)
    kept = torch.arange(1, len(own) + 1, dtype=torch.float64, device=own.device) / len(own)
    slack = sum(math.sqrt(math.log(4 / _SLACK) / (2 * n)) for n in (len(own), len(mixed)))
    best = int(((accepted + slack) / kept).argmin())
    return min(1.0, float(accepted[best] / kept[best]))


def _minimise(loss: Callable[[Tensor], Tensor], start: Tensor) -> Tensor:
    """Quasi-Newton steps to the minimum of a smooth convex-like function."""
    theta = start.clone().requires_grad_(True)
    optimizer = torch.optim.LBFGS(
        [theta], max_iter=_STEPS, tolerance_grad=1e-9, tolerance_change=1e-12, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        value = loss(theta)
        value.backward()  # type: ignore[no-untyped-call]
        return value

    with torch.enable_grad():
        optimizer.step(closure)  # type: ignore[no-untyped-call]
    return theta.detach()
