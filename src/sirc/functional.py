"""The plain formulas, one function each: arrays in, a 1-D float64 tensor of confidences out. Nothing is fitted here.

Arguments are torch tensors, NumPy arrays, or anything `Outputs` takes. `msp`, `doctor` and `entropy` are the plain
values of the paper, which reach their maximum when the softmax saturates; `log_gap` keeps confident rows apart.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sirc._arrays import ArrayLike, as_tensor
from sirc._checks import check_positive
from sirc.outputs import Outputs
from sirc.scores import combine, feature, logit, registry
from sirc.scores import softmax as _softmax
from sirc.scores.columns import working_dtype
from sirc.scores.softmax import Softmax
from sirc.scores.spec import parse

__all__ = [
    "doctor",
    "energy",
    "entropy",
    "gradnorm",
    "knn",
    "l1",
    "linear",
    "log_gap",
    "mahalanobis",
    "max_logit",
    "msp",
    "product",
    "residual",
    "sirc",
    "sirc_literal",
    "softmax",
    "vim",
]


def softmax(logits: ArrayLike, *, compile: bool | None = None) -> Softmax:
    """All that one pass over (n, K) logits gives; the other functions of the logits also take this in their place."""
    return Softmax.of(Outputs(logits).logits, compile=compile)


def msp(logits: ArrayLike | Softmax) -> Tensor:
    """The largest softmax probability, max π."""
    return _softmax.msp(_summary(logits))


def doctor(logits: ArrayLike | Softmax) -> Tensor:
    """The 2-norm of the softmax, ‖π‖₂."""
    return _softmax.doctor(_summary(logits))


def entropy(logits: ArrayLike | Softmax) -> Tensor:
    """The negative entropy of the softmax, Σ π log π."""
    return _softmax.entropy(_summary(logits))


def max_logit(logits: ArrayLike | Softmax) -> Tensor:
    """The largest logit, max v."""
    return logit.max_logit(_summary(logits))


def energy(logits: ArrayLike | Softmax) -> Tensor:
    """The logsumexp of the logits."""
    return logit.energy(_summary(logits))


def log_gap(logits: ArrayLike | Softmax, name: str) -> Tensor:
    """log(S1max − S1) of `msp`, `doctor` or `entropy`, computed without cancellation."""
    spec = parse(name)
    function = registry.get(spec.name).log_gap if spec.is_leaf else None
    if function is None:
        bounded = [n for n in registry.names() if registry.get(n).log_gap]
        raise ValueError(f"`name` must be a bounded score, one of {', '.join(bounded)}; got `{name}`")
    return function(_summary(logits))


def l1(features: ArrayLike) -> Tensor:
    """The 1-norm of the features, ‖z‖₁."""
    return feature.l1(_features(features)).double()


def gradnorm(logits: ArrayLike | Softmax, features: ArrayLike) -> Tensor:
    """The softmax's distance from uniform times the features' norm, ‖π − 1/K‖₁ · ‖z‖₁."""
    p, norm = _summary(logits), l1(features)
    _columns(p.top, norm, name="`logits` and `features`")
    return feature.gradnorm(p, norm)


def residual(features: ArrayLike, origin: ArrayLike, basis: ArrayLike) -> Tensor:
    """Minus the part of z − u outside the principal subspace: −‖(z − u)N‖₂, with N an orthonormal (L, L − D) basis."""
    z = _features(features)
    u, n = as_tensor("origin", origin).to(z), as_tensor("basis", basis).to(z)
    if u.shape != z.shape[1:] or n.dim() != 2 or len(n) != z.shape[1]:
        raise ValueError(
            f"`origin` must be (L,) and `basis` (L, L − D) for features with L = {z.shape[1]}; got "
            f"{tuple(u.shape)} and {tuple(n.shape)}"
        )
    return feature.residual(z, origin=u, basis=n).double()


def vim(logits: ArrayLike | Softmax, residual: ArrayLike, c: float) -> Tensor:
    """energy − c·‖z^{P⊥}‖₂, given `residual` = −‖z^{P⊥}‖₂."""
    return linear(energy(logits), residual, c)


def mahalanobis(features: ArrayLike, means: ArrayLike, precision: ArrayLike) -> Tensor:
    """−min_k (z − μ_k)ᵀ P (z − μ_k) for (K, L) means and a symmetric positive semi-definite (L, L) precision P."""
    z = _features(features).double()
    mu, p = as_tensor("means", means).to(z), as_tensor("precision", precision).to(z)
    size = z.shape[1]
    if mu.dim() != 2 or mu.shape[1] != size or p.shape != (size, size):
        raise ValueError(
            f"`means` must be (K, L) and `precision` (L, L) for features with L = {size}; got {tuple(mu.shape)} and "
            f"{tuple(p.shape)}"
        )
    values, vectors = torch.linalg.eigh(p)
    if float(values[0]) < -1e-9 * float(values.abs().max()):
        raise ValueError(f"`precision` must be positive semi-definite; its least eigenvalue is {float(values[0]):.3g}")
    whitener = vectors * values.clamp_min(0).sqrt()
    center = mu.mean(0)
    return feature.mahalanobis(z, center=center, whitener=whitener, means=(mu - center) @ whitener)


def knn(features: ArrayLike, bank: ArrayLike, k: int = 10) -> Tensor:
    """Minus the squared distance to the k-th neighbour in a bank of features, all scaled to unit length."""
    z = _features(features)
    k = check_positive("k", k)
    rows = torch.nn.functional.normalize(_features(bank).to(z), dim=-1)
    if rows.shape[1] != z.shape[1]:
        raise ValueError(f"`bank` must have the {z.shape[1]} columns of the features; got {rows.shape[1]}")
    if len(rows) < k:
        raise ValueError(f"`bank` must hold at least k = {k} rows; got {len(rows)}")
    return feature.knn(z, bank=rows, k=k)


def sirc(
    log_gap: ArrayLike, s2: ArrayLike | Sequence[ArrayLike], a: float | Sequence[float], b: float | Sequence[float]
) -> Tensor:
    """−log(S1max − S1) − Σ softplus(b(a − S2)): the order of the paper's C, without overflow.

    One S2 with numbers a and b, or a list of several with a list of each.
    """
    single = not isinstance(a, Sequence) and as_tensor("a", a).dim() == 0
    others = _columns(log_gap, *([s2] if single else s2), name="`log_gap` and each S2")  # type: ignore[misc]
    slopes = [as_tensor(name, value).double().reshape(-1).tolist() for name, value in (("a", a), ("b", b))]
    if not len(others) - 1 == len(slopes[0]) == len(slopes[1]):
        raise ValueError(
            "`a` and `b` must give one number for each S2; "
            f"got {len(slopes[0])} and {len(slopes[1])} numbers for {len(others) - 1} S2"
        )
    if any(not slope > 0 for slope in slopes[1]):
        raise ValueError(f"`b` must be positive: it is the slope against S2, 1/σ; got {slopes[1]}")
    return combine.sirc(others[0], others[1:], *slopes)


def sirc_literal(s1: ArrayLike, s2: ArrayLike, a: float, b: float, s1_max: float) -> Tensor:
    """The paper's C = −(S1max − S1)(1 + exp(−b[S2 − a])) as printed; overflows and cancels where `sirc` does not."""
    first, second = _columns(s1, s2)
    return -(s1_max - first) * (1 + torch.exp(-b * (second - a)))


def linear(s1: ArrayLike, s2: ArrayLike, c: float) -> Tensor:
    """S1 + c·S2."""
    first, second = _columns(s1, s2)
    return combine.linear(first, second, c)


def product(*scores: ArrayLike) -> Tensor:
    """S1·S2·…, the plain values multiplied."""
    return combine.product(*_columns(*scores))


def _summary(logits: ArrayLike | Softmax) -> Softmax:
    return logits if isinstance(logits, Softmax) else softmax(logits)


def _columns(*values: ArrayLike, name: str = "scores") -> list[Tensor]:
    """Float64 scores of the same rows: nothing here may broadcast one against another."""
    columns = [as_tensor(name, value).double() for value in values]
    shapes = [tuple(column.shape) for column in columns]
    if len(set(shapes)) != 1 or len(shapes[0]) != 1:
        raise ValueError(f"{name} must be 1-D, one number for each of the same rows; got shapes {shapes}")
    return columns


def _features(features: ArrayLike) -> Tensor:
    z = as_tensor("features", features)
    if z.dim() != 2:
        raise ValueError(f"`features` must have shape (n, L); got {tuple(z.shape)}")
    return z.to(working_dtype(z.dtype))
