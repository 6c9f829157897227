"""The plain formulas of scores that read the features, some of them the logits too."""

from __future__ import annotations

import torch
from torch import Tensor

from sirc._utils.arrays import ArrayLike, as_tensor
from sirc._utils.checks import check_number, check_positive
from sirc.outputs import Head, Outputs
from sirc.scores.formulas import boundary, distance, feature, shaping
from sirc.scores.formulas.softmax import Softmax
from sirc.scores.functional.combinations import linear
from sirc.scores.functional.inputs import checked_options, columns, features_of, same_rows, summary
from sirc.scores.functional.logits import energy


def l1(features: ArrayLike) -> Tensor:
    """The 1-norm of the features, ‖z‖₁."""
    return feature.l1(features_of(features)).double()


def gradnorm(logits: ArrayLike | Softmax, features: ArrayLike) -> Tensor:
    """The softmax's distance from uniform times the features' norm, ‖π − 1/K‖₁ · ‖z‖₁."""
    p, norm = summary(logits), l1(features)
    columns(p.top, norm, name="`logits` and `features`")
    return feature.gradnorm(p, norm)


def residual(features: ArrayLike, origin: ArrayLike, basis: ArrayLike) -> Tensor:
    """Minus the part of z − u outside the principal subspace: −‖(z − u)N‖₂, with N an orthonormal (L, L − D) basis."""
    z = features_of(features)
    u, n = _subspace(z, "origin", origin, basis)
    return feature.residual(z, origin=u, basis=n).double()


def vim(logits: ArrayLike | Softmax, residual: ArrayLike, c: float) -> Tensor:
    """energy − c·‖z^{P⊥}‖₂, given `residual` = −‖z^{P⊥}‖₂."""
    return linear(energy(logits), residual, c)


def mahalanobis(features: ArrayLike, means: ArrayLike, precision: ArrayLike) -> Tensor:
    """−min_k (z − μ_k)ᵀ P (z − μ_k) for (K, L) means and a symmetric positive semi-definite (L, L) precision P."""
    return _nearest_class(features_of(features).double(), means, precision)


def mahalanobis_pp(features: ArrayLike, means: ArrayLike, precision: ArrayLike) -> Tensor:
    """`mahalanobis` of the features scaled to unit length; means and precision are those of unit features."""
    unit = torch.nn.functional.normalize(features_of(features).double(), dim=-1)
    return _nearest_class(unit, means, precision)


def relative_mahalanobis(
    features: ArrayLike, means: ArrayLike, precision: ArrayLike, mean: ArrayLike, total_precision: ArrayLike
) -> Tensor:
    """`mahalanobis` + (z − μ)ᵀ P₀ (z − μ): less the distance to all data, with their mean μ and precision P₀."""
    z = features_of(features).double()
    center = as_tensor("mean", mean).to(z)
    if center.shape != z.shape[1:]:
        raise ValueError(f"`mean` must be (L,) for features with L = {z.shape[1]}; got {tuple(center.shape)}")
    root = _root("total_precision", total_precision, z)
    return _nearest_class(z, means, precision) + ((z - center) @ root).square().sum(-1)


def knn(features: ArrayLike, bank: ArrayLike, k: int = 10) -> Tensor:
    """Minus the squared distance to the k-th neighbour in a bank of features, all scaled to unit length."""
    z = features_of(features)
    k = check_positive("k", k)
    rows = torch.nn.functional.normalize(features_of(bank).to(z), dim=-1)
    if rows.shape[1] != z.shape[1]:
        raise ValueError(f"`bank` must have the {z.shape[1]} columns of the features; got {rows.shape[1]}")
    if len(rows) < k:
        raise ValueError(f"`bank` must hold at least k = {k} rows; got {len(rows)}")
    return feature.knn(z, bank=rows, k=k)


def cop(features: ArrayLike, mean: ArrayLike, basis: ArrayLike) -> Tensor:
    """Minus the part of ẑ − μ outside the main directions of unit features: −‖(ẑ − μ)N‖₂, N orthonormal, (L, L − D)."""
    z = features_of(features)
    mu, n = _subspace(z, "mean", mean, basis)
    return feature.cop(z, center=mu, outside=n.T).double()


def nnguide(
    logits: ArrayLike | Softmax,
    features: ArrayLike,
    bank: ArrayLike,
    weight: ArrayLike,
    bias: ArrayLike | None = None,
    k: int = 10,
) -> Tensor:
    """E(z) · mean of the k largest E(zᵢ) cos(z, zᵢ) over a bank of features zᵢ, with E(zᵢ) = logsumexp(Wzᵢ + b)."""
    p, z, k = summary(logits), features_of(features), check_positive("k", k)
    same_rows(p.top, z)
    rows = features_of(bank).to(z)
    w, b = _head(z, weight, bias)
    _check_classes(logits, p, w)
    if rows.shape[1] != z.shape[1] or len(rows) < k:
        raise ValueError(
            f"`bank` must hold at least k = {k} rows with the {z.shape[1]} columns of the features; got "
            f"{tuple(rows.shape)}"
        )
    energies = shaping.head_energy(rows.double(), w.double(), b.double())[:, None]
    return distance.nnguide(energy(p), z, bank=feature.unit_bank(rows), energy=energies.to(z), k=k)


def react(features: ArrayLike, weight: ArrayLike, bias: ArrayLike | None, clip: float) -> Tensor:
    """The energy of clipped features, logsumexp(W min(z, c) + b); `bias=None` for a head that has none."""
    z = features_of(features)
    w, b = _head(z, weight, bias)
    return shaping.react(z, weight=w, bias=b, clip=z.new_tensor([check_number("clip", clip)]))


def scale(logits: ArrayLike, features: ArrayLike, bias: ArrayLike | None, percentile: float = 85.0) -> Tensor:
    """The energy of scaled features, logsumexp(eʳ(v − b) + b), r = Σz/Σz′ with z′ those at the percentile or above."""
    v, z = Outputs(logits).logits, features_of(features)
    same_rows(v, z)
    b = z.new_zeros(v.shape[1]) if bias is None else as_tensor("bias", bias).to(z)
    if b.shape != v.shape[1:]:
        raise ValueError(f"`bias` must be (K,) for logits with K = {v.shape[1]}; got {tuple(b.shape)}")
    return shaping.scale(v, z, bias=b, **checked_options("scale", percentile=percentile))


def ash(features: ArrayLike, weight: ArrayLike, bias: ArrayLike | None, percentile: float = 90.0) -> Tensor:
    """The energy of pruned and scaled features, logsumexp(eʳ Wz′ + b), r = Σz/Σz′: ASH-S."""
    z = features_of(features)
    w, b = _head(z, weight, bias)
    return shaping.ash(z, weight=w, bias=b, **checked_options("ash", percentile=percentile))


def nci(
    logits: ArrayLike | Softmax, features: ArrayLike, weight: ArrayLike, mean: ArrayLike, scale: float = 1e-4
) -> Tensor:
    """w_ŷ·(z − μ)/‖z − μ‖ + scale·‖z‖₁, with the mean μ of training features and ŷ the class of the largest logit."""
    p, z = summary(logits), features_of(features)
    w, mu = _head_and_mean(p, z, weight, mean)
    _check_classes(logits, p, w)
    return boundary.nci(p, z, weight=w, center=mu, **checked_options("nci", scale=scale))


def fdbd(logits: ArrayLike, features: ArrayLike, weight: ArrayLike, mean: ArrayLike) -> Tensor:
    """The mean of (v_ŷ − v_k)/‖w_ŷ − w_k‖ over k ≠ ŷ, divided by ‖z − μ‖, with the mean μ of training features."""
    v, z = Outputs(logits).logits, features_of(features)
    p = Softmax.of(v)
    w, mu = _head_and_mean(p, z, weight, mean)
    _check_classes(v, p, w)
    inverse = boundary.inverse_distances(w.double())
    return boundary.fdbd(v, p, z, center=mu, inverse=inverse)


def _subspace(z: Tensor, name: str, origin: ArrayLike, basis: ArrayLike) -> tuple[Tensor, Tensor]:
    """An origin, called `name`, and a basis of what lies outside the main directions."""
    u, n = as_tensor(name, origin).to(z), as_tensor("basis", basis).to(z)
    if u.shape != z.shape[1:] or n.dim() != 2 or len(n) != z.shape[1]:
        raise ValueError(
            f"`{name}` must be (L,) and `basis` (L, L − D) for features with L = {z.shape[1]}; got "
            f"{tuple(u.shape)} and {tuple(n.shape)}"
        )
    return u, n


def _nearest_class(z: Tensor, means: ArrayLike, precision: ArrayLike) -> Tensor:
    mu = as_tensor("means", means).to(z)
    size = z.shape[1]
    if mu.dim() != 2 or mu.shape[1] != size or as_tensor("precision", precision).shape != (size, size):
        raise ValueError(
            f"`means` must be (K, L) and `precision` (L, L) for features with L = {size}; got {tuple(mu.shape)} and "
            f"{tuple(as_tensor('precision', precision).shape)}"
        )
    whitener, center = _root("precision", precision, z), mu.mean(0)
    return feature.mahalanobis(z, center=center, whitener=whitener, means=(mu - center) @ whitener)


def _root(name: str, precision: ArrayLike, z: Tensor) -> Tensor:
    """R with RRᵀ = P, for a symmetric positive semi-definite P."""
    p, size = as_tensor(name, precision).to(z), z.shape[1]
    if p.shape != (size, size):
        raise ValueError(f"`{name}` must be (L, L) for features with L = {size}; got {tuple(p.shape)}")
    values, vectors = torch.linalg.eigh(p)
    if float(values[0]) < -1e-9 * float(values.abs().max()):
        raise ValueError(f"`{name}` must be positive semi-definite; its least eigenvalue is {float(values[0]):.3g}")
    root: Tensor = vectors * values.clamp_min(0).sqrt()
    return root


def _head(z: Tensor, weight: ArrayLike, bias: ArrayLike | None) -> tuple[Tensor, Tensor]:
    """The last layer in the type and on the device of the features; zeros for a bias that it has not."""
    head = Head(weight, bias)
    if head.num_features != z.shape[1]:
        raise ValueError(f"`weight` must be (K, L) for features with L = {z.shape[1]}; got {tuple(head.weight.shape)}")
    w = head.weight.detach().to(z)
    return w, w.new_zeros(len(w)) if head.bias is None else head.bias.detach().to(z)


def _head_and_mean(p: Softmax, z: Tensor, weight: ArrayLike, mean: ArrayLike) -> tuple[Tensor, Tensor]:
    same_rows(p.top, z)
    mu = as_tensor("mean", mean).to(z)
    if mu.shape != z.shape[1:]:
        raise ValueError(f"`mean` must be (L,) for features with L = {z.shape[1]}; got {tuple(mu.shape)}")
    return _head(z, weight, None)[0], mu


def _check_classes(logits: ArrayLike | Softmax, p: Softmax, weight: Tensor) -> None:
    """A row of the weight for each logit; of a summary, which does not tell their number, for each prediction."""
    if isinstance(logits, Softmax):
        wrong, least = int(p.prediction.max()) >= len(weight), f"more than {int(p.prediction.max())}"
    else:
        classes = as_tensor("logits", logits).shape[1]
        wrong, least = classes != len(weight), str(classes)
    if wrong:
        raise ValueError(
            f"`weight` must have a row for each logit, {least} of them; got {len(weight)}. Is it the head of this "
            "model?"
        )
