"""The arithmetic of selective classification on accepted shares, free of any class.

Arrays run along their last axis over thresholds from the strictest on and start with the point where nothing is
accepted, (…, 1 + m). c, x, o are the accepted shares of ID✓, ID✗ and OOD; p is the accuracy on ID data.
"""

from __future__ import annotations

import torch
from torch import Tensor

Number = float | Tensor


def coverage(c: Tensor, x: Tensor, o: Tensor, p: float, alpha: Number) -> Tensor:
    """The accepted share of all input: α·[p·c + (1−p)·x] + (1−α)·o."""
    return alpha * id_share(c, x, p) + (1 - alpha) * o


def loss(x: Tensor, o: Tensor, p: float, alpha: Number, beta: Number) -> Tensor:
    """The loss of what is accepted, per input: β·α·(1−p)·x + (1−β)·(1−α)·o."""
    return beta * alpha * (1 - p) * x + (1 - beta) * (1 - alpha) * o


def id_share(c: Tensor, x: Tensor, p: float) -> Tensor:
    """The accepted share of ID input."""
    return p * c + (1 - p) * x


def ratio(loss: Tensor, coverage: Tensor) -> Tensor:
    """The risk: loss over coverage, and 0 where nothing is accepted."""
    return torch.where(coverage > 0, loss / coverage.clamp_min(torch.finfo(coverage.dtype).tiny), 0.0)


def trapezoids(x: Tensor, y: Tensor) -> Tensor:
    """The area Σ (xᵢ − xᵢ₋₁)·(yᵢ + yᵢ₋₁)/2."""
    return trapezoids_of(x.diff(), y)


def trapezoids_of(steps: Tensor, y: Tensor) -> Tensor:
    """The same, given xᵢ − xᵢ₋₁."""
    return (steps * (y[..., 1:] + y[..., :-1])).sum(-1) / 2


def first_reaching(share: Tensor, target: float) -> Tensor:
    """The first point whose share is at least the target; the last point, should rounding leave it short."""
    return (share < target).sum(-1).clamp_max(share.shape[-1] - 1)


def oracle_parts(p: float, alpha: Number, beta: Number) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The oracle's order: the mass of ID✓, then the mass and the cost of the cheaper mistake, the cost of the other."""
    alpha, beta = torch.as_tensor(alpha, dtype=torch.float64), torch.as_tensor(beta, dtype=torch.float64)
    wrong_first = beta <= 0.5
    first = torch.where(wrong_first, alpha * (1 - p), 1 - alpha)
    cheap, dear = torch.minimum(beta, 1 - beta), torch.maximum(beta, 1 - beta)
    return (alpha * p).expand(first.shape), first, cheap.expand(first.shape), dear.expand(first.shape)


def oracle_loss(coverage: Tensor, p: float, alpha: float, beta: float) -> Tensor:
    """The least loss with which a coverage can be reached."""
    good, first, cheap, dear = (part.to(coverage.device) for part in oracle_parts(p, alpha, beta))
    bad = (coverage - good).clamp_min(0)
    return cheap * bad.minimum(first) + dear * (bad - first).clamp_min(0)


def oracle_area(p: float, alpha: Tensor, beta: Tensor) -> Tensor:
    """The area under the oracle's risk–coverage curve, in the limit of many samples: ∫ loss(k)/k dk.

    Over the first mistakes the loss is cheap·(k − good), over the others cheap·first + dear·(k − knee). Steps that
    each hold their last value have at least this area, as the oracle's risk rises: it bounds every AURC from below.
    """
    good, first, cheap, dear = oracle_parts(p, alpha, beta)
    knee = good + first
    tiny = torch.finfo(knee.dtype).tiny
    # Masses of 0 multiply their logarithm by 0.
    rise = cheap * (first - good * torch.log(knee.clamp_min(tiny) / good.clamp_min(tiny)))
    rest = dear * (1 - knee) - (cheap * first - dear * knee) * torch.log(knee.clamp(tiny, 1.0))
    return rise + rest
