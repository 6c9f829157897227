"""Arithmetic of selective classification on accepted shares: coverage, risk, the oracle, areas under curves.

The last axis of an array runs over thresholds, the strictest first, after a point that accepts nothing, (…, 1 + m).
c, x, o are the accepted shares of ID✓, ID✗ and OOD; p is the accuracy on ID data.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import final

import torch
from torch import Tensor

_GPU_CHUNK = 1 << 24  # shares worked on together on a GPU


def ratio(loss: Tensor, coverage: Tensor) -> Tensor:
    """The risk: loss over coverage, and 0 where nothing is accepted."""
    return torch.where(coverage > 0, loss / coverage.clamp_min(torch.finfo(coverage.dtype).tiny), 0.0)


def trapezoids(steps: Tensor, y: Tensor) -> Tensor:
    """The area Σ (xᵢ − xᵢ₋₁)·(yᵢ + yᵢ₋₁)/2, given the steps xᵢ − xᵢ₋₁."""
    return (y[..., 1:] + y[..., :-1]).mul_(steps).sum(-1) / 2


def halfway(share: Tensor) -> Tensor:
    """The share above each threshold plus half of that at it; `share` has no point before the first threshold."""
    half = share / 2
    half[..., 1:] += half[..., :-1].clone()
    return half


def least_reaching(share: float, total: int) -> int:
    """The smallest count with count/total ≥ share in float64: 19 of 20 reach 0.95, although 0.95·20 rounds above 19."""
    near = math.ceil(share * total)
    return next(count for count in (near - 1, near, near + 1) if count / total >= share)


def oracle_parts(p: float, alpha: float | Tensor, beta: float | Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The oracle's order: the mass of ID✓, the mass and the cost of the cheaper mistake, the cost of the other one."""
    alpha, beta = torch.as_tensor(alpha, dtype=torch.float64), torch.as_tensor(beta, dtype=torch.float64)
    first = torch.where(beta <= 0.5, alpha * (1 - p), 1 - alpha)
    return alpha * p, first, torch.minimum(beta, 1 - beta), torch.maximum(beta, 1 - beta)


def largest_risk(p: float, alpha: float, beta: float, recall: float = 0.0) -> float:
    """The risk at a recall if all ID✗ and OOD were accepted; at a recall of 0 it bounds every area."""
    loss = beta * alpha * (1 - p) + (1 - beta) * (1 - alpha)
    return loss / (1 - alpha * p * (1 - recall)) if loss else 0.0


def oracle_loss(coverage: Tensor, p: float, alpha: float, beta: float) -> Tensor:
    """The smallest possible loss at each coverage."""
    good, first, cheap, dear = (part.to(coverage.device) for part in oracle_parts(p, alpha, beta))
    bad = (coverage - good).clamp_min(0)
    return cheap * bad.minimum(first) + dear * (bad - first).clamp_min(0)


def oracle_area(p: float, alpha: Tensor, beta: Tensor) -> Tensor:
    """The area under the oracle's risk–coverage curve, in the limit of many samples: ∫ loss(k)/k dk.

    Over the cheaper mistakes the loss is cheap·(k − good), over the others cheap·first + dear·(k − knee). The oracle's
    risk rises, so steps that hold their last value have at least this area: it bounds every AURC from below.
    """
    good, first, cheap, dear = oracle_parts(p, alpha, beta)
    knee = good + first
    tiny = torch.finfo(knee.dtype).tiny
    # The logarithm of a mass of 0 is multiplied by 0.
    rise = cheap * (first - good * torch.log(knee.clamp_min(tiny) / good.clamp_min(tiny)))
    rest = dear * (1 - knee) - (cheap * first - dear * knee) * torch.log(knee.clamp(tiny, 1.0))
    return rise + rest


def oracle_generalised_area(p: float, alpha: Tensor, beta: Tensor) -> Tensor:
    """The area under the oracle's loss over coverage, ∫ loss(k) dk: it bounds every AUGRC from below."""
    good, first, cheap, dear = oracle_parts(p, alpha, beta)
    rest = 1 - good - first
    return cheap * first * (first / 2 + rest) + dear * rest**2 / 2


@final
class Steps:
    """A chunk of thresholds: the accepted shares, with one point before it, and their growth at each threshold."""

    def __init__(self, shares: Tensor, p: float) -> None:
        self.shares, self._p = shares, p
        self.c, self.x, self.ood = shares.unbind()

    @cached_property
    def id_share(self) -> Tensor:
        """The accepted share of ID input."""
        return self._p * self.c + (1 - self._p) * self.x

    @cached_property
    def wrong(self) -> Tensor:
        """The accepted share of ID input that is ID✗."""
        return (1 - self._p) * self.x

    @cached_property
    def id_steps(self) -> Tensor:
        """The growth of the accepted ID input."""
        return self.id_share.diff()

    @cached_property
    def ood_steps(self) -> Tensor:
        """The growth of the accepted OOD input."""
        return self.ood.diff()

    def areas(self, alpha: Tensor) -> Tensor:
        """Σ Δ·bad/coverage for each α, (A, 6): ID✗ and OOD over recall, ID✗ over ID and OOD, OOD likewise."""
        columns = torch.empty(6, len(self.ood) - 1, dtype=torch.float64, device=alpha.device)
        for number, step in enumerate((self.c.diff(), self.id_steps, self.ood_steps)):
            torch.mul(step, self.wrong[1:], out=columns[number])
            torch.mul(step, self.ood[1:], out=columns[3 + number])
        total = torch.empty(len(alpha), 6, dtype=torch.float64, device=alpha.device)
        # One α at a time stays in a CPU's cache; a GPU takes as many as fill it.
        size = 1 if alpha.device.type == "cpu" else max(1, _GPU_CHUNK // len(self.ood))
        for first in range(0, len(alpha), size):
            some = slice(first, first + size)
            covered = torch.lerp(self.ood[None, 1:], self.id_share[None, 1:], alpha[some, None])
            # Where nothing is covered, nothing is counted.
            inverse = covered.reciprocal_().nan_to_num_(posinf=0.0)
            total[some] = inverse @ columns.T
        return total[:, [0, 3, 1, 2, 4, 5]]

    def generalised(self) -> Tensor:
        """The areas under ID✗, then OOD, over ID and over OOD, by trapezoids."""
        steps = (self.id_steps, self.ood_steps)
        return torch.stack([trapezoids(step, bad) for bad in (self.wrong, self.ood) for step in steps])


def over_beta(wrong: Tensor, ood: Tensor, beta: Tensor) -> Tensor:
    """β·wrong + (1−β)·ood on the (α, β) grid."""
    return wrong[:, None] * beta + ood[:, None] * (1 - beta)
