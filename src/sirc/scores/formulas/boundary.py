"""Boundary scores: where a feature lies between the data's centre and the decision boundaries."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sirc.scores.blocks import by_rows
from sirc.scores.formulas.feature import head_of
from sirc.scores.formulas.softmax import Softmax
from sirc.scores.moments import Evidence
from sirc.scores.registry import HeldOut, score

_NEAR = 1e-3  # of the squared lengths: a larger squared distance, computed by products, loses at most 3 digits
_LEAST_DISTANCE = 1e-12  # keeps the score of a feature at the centre finite


def _nci_held_out(evidence: Evidence, solved: dict[str, Tensor], *, scale: float) -> HeldOut:
    """The plain score: without a row, the centre moves away from it, which keeps the direction between the two."""
    return lambda p, features, labels: nci(p, features, **_like(features, solved), scale=scale)


@score(
    needs=("softmax", "features"),
    solve=lambda evidence, scale: {
        "weight": head_of(evidence, evidence.moments.mean)[0],
        "center": evidence.moments.mean,
    },
    evidence=("mean",),
    head=True,
    held_out=_nci_held_out,
    limits={"scale": (0, math.inf)},
    title="NCI",
    family="norm",
)
def nci(p: Softmax, features: Tensor, *, weight: Tensor, center: Tensor, scale: float = 1e-4) -> Tensor:
    """The centred feature's direction along the winner's weight: w_ŷ·(z − μ)/‖z − μ‖ + 10⁻⁴‖z‖₁. Liu & Qin 2025.

    `scale` weighs the 1-norm. The first term is 0 where z = μ.
    """
    away = features - center
    along = (weight[p.prediction] * away).sum(-1, dtype=torch.float64)
    size = features.abs().sum(-1, dtype=torch.float64)
    return along / _distance(away) + scale * size


def solve_fdbd(evidence: Evidence) -> dict[str, Tensor]:
    """The mean feature, and the factors of each class's logit gaps: 1/(‖w_j − w_k‖ · the number of k)."""
    center = evidence.moments.mean
    weight, _ = head_of(evidence, center)
    inverse = inverse_distances(weight)
    if not bool(inverse.any()):
        raise ValueError(
            "`fdbd` measures distances to the boundaries between classes, and needs a head whose rows differ; all "
            f"{len(weight)} rows of its weight are equal. Is it the head of this model?"
        )
    return {"center": center, "inverse": inverse}


def inverse_distances(weight: Tensor) -> Tensor:
    """1/‖w_j − w_k‖ divided by the number of classes whose weight is not w_j, (K, K); 0 where w_k = w_j."""
    distance = _distances(weight)
    apart = distance > 0
    inverse = torch.where(apart, 1 / torch.where(apart, distance, 1.0), 0.0)
    return inverse / apart.sum(-1, keepdim=True).clamp_min(1)


def _distances(weight: Tensor) -> Tensor:
    """‖w_j − w_k‖ by products; by differences for close weights, whose products cancel."""
    rows = weight - weight.mean(0)
    norm = rows.square().sum(-1)
    both = norm[:, None] + norm
    square = torch.addmm(both, rows, rows.T, alpha=-2)
    one, other = (square <= _NEAR * both).nonzero(as_tuple=True)
    distance = square.clamp_min_(0).sqrt_()
    exact = by_rows(lambda j, k: (weight[j] - weight[k]).square_().sum(-1).sqrt(), one, other, product=weight.shape[1])
    return distance.index_put_((one, other), exact)


def _fdbd_held_out(evidence: Evidence, solved: dict[str, Tensor]) -> HeldOut:
    """The mean of the other rows is N/(N−1) times as far from a row as the mean of all rows."""
    nearer = 1 - 1 / evidence.moments.count
    return lambda logits, p, features, labels: nearer * fdbd(logits, p, features, **_like(features, solved))


@score(
    needs=("logits", "softmax", "features"),
    solve=solve_fdbd,
    evidence=("mean",),
    head=True,
    held_out=_fdbd_held_out,
    title="fDBD",
    family="norm",
)
def fdbd(logits: Tensor, p: Softmax, features: Tensor, *, center: Tensor, inverse: Tensor) -> Tensor:
    """Distance to boundaries over that to the centre: mean_k (v_ŷ − v_k)/‖w_ŷ − w_k‖ / ‖z − μ‖. Liu & Qin 2024.

    The mean is over k ≠ ŷ; classes with the winner's own weight have no boundary and are left out.
    """

    def boundary(v: Tensor, top: Tensor, prediction: Tensor) -> Tensor:
        # Sum differences of logits: then a constant added to all logits costs no digits.
        return ((top[:, None] - v.double()) * inverse[prediction]).sum(-1)

    return by_rows(boundary, logits, p.top, p.prediction) / _distance(features - center)


def _distance(away: Tensor) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(away, dim=-1, dtype=torch.float64)
    return norm.clamp_min(_LEAST_DISTANCE)


def _like(features: Tensor, solved: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.to(features) for name, value in solved.items()}
