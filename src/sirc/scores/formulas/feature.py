"""Feature scores and their fits: norms, residuals, distances to classes and to neighbours."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sirc.scores.blocks import by_rows, unit
from sirc.scores.formulas.leave_one_out import PSEUDO_INVERSE_CUTOFF, held_out_mahalanobis, squared_part_outside
from sirc.scores.formulas.softmax import Softmax
from sirc.scores.moments import Evidence, Moments
from sirc.scores.products import product
from sirc.scores.registry import HeldOut, score

BANK_SIZE = 12_500
"""Rows of ID training features that `knn` searches."""


@score(needs="features", title="‖z‖₁", latex=r"$\|\mathbf{z}\|_1$", html="‖<b>z</b>‖<sub>1</sub>", family="norm")
def l1(features: Tensor) -> Tensor:
    """The 1-norm of the features: ‖z‖₁. Huang et al. 2021."""
    return _norm(features, 1)


@score(needs=("softmax", "l1"), title="GradNorm", family="norm")
def gradnorm(p: Softmax, l1: Tensor) -> Tensor:
    """The softmax's distance from uniform times the features' norm: ‖π − 1/K‖₁ · ‖z‖₁. Huang et al. 2021."""
    return p.deviation * l1


def principal_dimension(features: int) -> int:
    """D, the dimension of the principal subspace of L features: ViM's rule, extended to L/2 for small L."""
    if features > 1500:
        return 1000
    return 512 if features > 512 else features // 2


def solve_residual(evidence: Evidence) -> dict[str, Tensor]:
    """The origin u = −W⁺b and an orthonormal basis of the space outside the min(D, rank) leading directions.

    For `held_out`, also the eigenvalues and eigenvectors of the second moment about u.
    """
    moments, head = evidence.moments, evidence.head
    assert head is not None
    origin = head.origin.to(moments.mean)
    values, vectors = torch.linalg.eigh(moments.second_moment(origin))
    size = len(values)
    rank = int((values > values[-1].abs() * size * torch.finfo(values.dtype).eps).sum())
    basis = vectors[:, : size - min(principal_dimension(size), rank)].contiguous()
    return {"origin": origin, "basis": basis, "values": values, "vectors": vectors}


def _residual_held_out(evidence: Evidence, solved: dict[str, Tensor]) -> HeldOut:
    values, origin, rows = solved["values"], solved["origin"], evidence.moments.count
    leading = principal_dimension(len(values))
    part = squared_part_outside(values, solved["vectors"], leading, rows, lambda z: z - origin.to(z))
    return lambda features, labels: -part(features).sqrt()


def _residual_resolution(evidence: Evidence) -> float:
    """The rounding error of the residual; features inside the subspace have no other residual."""
    moments, head = evidence.moments, evidence.head
    assert head is not None
    return evidence.resolution * math.sqrt(moments.mean_square(head.origin))


@score(
    needs="features",
    solve=solve_residual,
    evidence=("second",),
    head=True,
    held_out=_residual_held_out,
    resolution=_residual_resolution,
    short="Res.",
    family="residual",
)
def residual(features: Tensor, *, origin: Tensor, basis: Tensor) -> Tensor:
    """Minus the length of the part of z outside the principal subspace of ID data: −‖z^{P⊥}‖₂. Wang et al. 2022."""
    return -_norm(product(features - origin, basis), 2)


def whitened_classes(moments: Moments, name: str) -> dict[str, Tensor]:
    """The map that turns the within-class covariance into the identity on its range, and the class means under it."""
    whitener, largest = whitening(moments.within_class_covariance)
    noise = len(whitener) * torch.finfo(whitener.dtype).eps * moments.mean_square(moments.mean)
    if largest <= noise:
        raise ValueError(
            f"`{name}` needs features that vary within classes; every row equals its class mean. "
            "Fit on more rows per class"
        )
    center = moments.mean
    means = moments.class_mean[moments.class_count > 0]
    return {"center": center, "whitener": whitener, "means": (means - center) @ whitener}


def whitening(covariance: Tensor) -> tuple[Tensor, float]:
    """The map M that turns a covariance into the identity on its range (MMᵀ is its pseudo-inverse), and its λmax."""
    values, vectors = torch.linalg.eigh(covariance)
    kept = values > PSEUDO_INVERSE_CUTOFF * values[-1]
    return vectors[:, kept] / values[kept].sqrt(), float(values[-1])


@score(
    needs="features",
    solve=lambda evidence: whitened_classes(evidence.moments, "mahalanobis"),
    evidence=("second", "by_class"),
    held_out=lambda evidence, solved: held_out_mahalanobis(evidence.moments, solved),
    short="Mahal.",
    family="distance",
)
def mahalanobis(features: Tensor, *, center: Tensor, whitener: Tensor, means: Tensor) -> Tensor:
    """Minus the squared distance to the nearest class: −min_k (z−μ_k)ᵀ Σ⁺ (z−μ_k). Lee et al. 2018."""
    white = product(features - center, whitener)
    # ‖y‖² − 2·y·m + ‖m‖² finds the nearest mean. Then y − m gives the distance without cancellation.
    nearest = product(white, means.T, plus=means.square().sum(-1).div(-2)).argmax(-1)
    return -white.sub_(means[nearest]).square_().sum(-1, dtype=torch.float64)


def unit_bank(bank: Tensor) -> Tensor:
    """Rows scaled to unit length in float64, then cast to the working type of features."""
    return unit(bank.double()).to(bank.dtype if bank.dtype == torch.float64 else torch.float32)


@score(
    needs="features",
    solve=lambda evidence, k: {"bank": unit_bank(evidence.bank)},
    evidence=("bank",),
    least_rows=lambda k: k,
    exclude_self=lambda options: {**options, "k": options["k"] + 1},
    title="KNN",
    family="distance",
)
def knn(features: Tensor, *, bank: Tensor, k: int = 10) -> Tensor:
    """Minus the squared distance to the k-th neighbour among unit training features: −‖ẑ − ẑ₍ₖ₎‖². Sun et al. 2022."""
    directions = unit(features)

    def neighbour(rows: Tensor) -> Tensor:
        return (rows @ bank.T).topk(k, dim=-1, sorted=True).indices[:, -1]

    return -(directions - bank[by_rows(neighbour, directions, product=len(bank))]).square().sum(-1, dtype=torch.float64)


def head_of(evidence: Evidence, rows: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """W and b of the head in float64, on the device of `rows` if given; b is 0 if the head has none."""
    head = evidence.head
    assert head is not None
    weight = head.weight.detach().to(None if rows is None else rows.device, torch.float64)
    return weight, weight.new_zeros(len(weight)) if head.bias is None else head.bias.detach().to(weight)


def head_energy(features: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """logsumexp(Wz + b) of each row, float64."""

    def energy(rows: Tensor) -> Tensor:
        return torch.addmm(bias, rows, weight.T).double().logsumexp(-1)

    return by_rows(energy, features, product=len(weight))


def solve_cop(evidence: Evidence, *, variance: float) -> dict[str, Tensor]:
    """The mean of the unit features and, as rows, the directions outside the leading ones.

    For `held_out`, also the eigenvalues and eigenvectors of the covariance.
    """
    moments = evidence.unit
    values, vectors = torch.linalg.eigh(moments.covariance)
    size, total = len(values), float(values.clamp_min(0).sum())
    if size < 2 or math.sqrt(total) <= evidence.resolution:
        received = f"L = {size}" if size < 2 else "rows that all point in one direction"
        raise ValueError(
            f"`cop` needs at least two features, and rows of different directions, so that a direction is left beside "
            f"the leading ones; got {received}. Use `knn` or `l1`"
        )
    explained = values.clamp_min(0).flip(0).cumsum(0) / total
    leading = min(int((explained < variance).sum()) + 1, size - 1)
    outside = vectors[:, : size - leading].T.contiguous()
    return {"center": moments.mean, "outside": outside, "values": values, "vectors": vectors}


def _cop_held_out(evidence: Evidence, solved: dict[str, Tensor], *, variance: float) -> HeldOut:
    """Keep the number of leading directions: one row hardly changes their share of the variance."""
    values, center, rows = solved["values"], solved["center"], evidence.unit.count
    k = rows / max(1, rows - 1)  # a row at d from the mean is at k·d from the mean of the others; it scatters by k·ddᵀ
    leading = len(values) - len(solved["outside"])
    part = squared_part_outside(values, solved["vectors"], leading, rows, lambda z: k**0.5 * (unit(z) - center.to(z)))
    return lambda features, labels: -(k * part(features)).sqrt()


@score(
    needs="features",
    solve=solve_cop,
    evidence=("unit",),
    held_out=_cop_held_out,
    limits={"variance": (0, 1)},
    resolution=lambda evidence: evidence.resolution,  # of features of length 1
    title="CoP",
    family="residual",
)
def cop(features: Tensor, *, center: Tensor, outside: Tensor, variance: float = 0.99) -> Tensor:
    """Minus the length of the part of ẑ outside the main directions of ID data: −‖(ẑ − μ)^{P⊥}‖₂. Fang et al. 2024.

    The main directions explain 0.99 of the variance of unit training features; at least one direction is left out.
    """
    return -_norm(product(unit(features) - center, outside.T), 2)


def _norm(rows: Tensor, order: int) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(rows, order, dim=-1)
    return norm
