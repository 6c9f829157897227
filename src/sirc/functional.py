"""The plain formulas, one function each: arrays in, a 1-D float64 tensor of confidences out. Nothing is fitted here.

Arguments are torch tensors, NumPy arrays, or anything `Outputs` takes. `msp`, `doctor` and `entropy` are the plain
values of the paper, which reach their maximum when the softmax saturates; `log_gap` keeps confident rows apart.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from sirc._arrays import ArrayLike, as_tensor
from sirc._checks import check_fraction, check_number, check_positive
from sirc.head import Head
from sirc.outputs import Outputs
from sirc.scores import boundary, combine, distance, feature, generalized, logit, pnorm, registry, shaping, tempered
from sirc.scores import softmax as _softmax
from sirc.scores.columns import working_dtype
from sirc.scores.softmax import Softmax
from sirc.scores.spec import parse

__all__ = [
    "additive",
    "ash",
    "bayes",
    "cop",
    "doctor",
    "energy",
    "entropy",
    "fdbd",
    "gen",
    "gradnorm",
    "knn",
    "l1",
    "linear",
    "log_gap",
    "mahalanobis",
    "mahalanobis_pp",
    "margin",
    "max_logit",
    "max_logit_pnorm",
    "msp",
    "nci",
    "nnguide",
    "product",
    "react",
    "relative_mahalanobis",
    "residual",
    "scale",
    "sirc",
    "sirc_literal",
    "softmax",
    "tempered_entropy",
    "tempered_msp",
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


def margin(logits: ArrayLike | Softmax) -> Tensor:
    """The distance between the two largest logits, v₁ − v₂."""
    return _softmax.margin(_summary(logits))


def tempered_msp(logits: ArrayLike, temperature: float = 1.0) -> Tensor:
    """The largest probability of softmax(v/T)."""
    options = _options("tempered_msp", temperature=temperature)
    return tempered.tempered_msp(Outputs(logits).logits, **options)


def tempered_entropy(logits: ArrayLike, temperature: float = 1.0) -> Tensor:
    """The negative entropy of softmax(v/T)."""
    options = _options("tempered_entropy", temperature=temperature)
    return tempered.tempered_entropy(Outputs(logits).logits, **options)


def max_logit_pnorm(logits: ArrayLike, p: int = 4) -> Tensor:
    """The largest centred logit over the p-norm of all, (v₁ − v̄)/‖v − v̄‖_p; p = 0: v₁ − v̄; p = −1: `msp`."""
    v = Outputs(logits).logits
    return pnorm.max_logit_pnorm(v, Softmax.of(v), **_options("max_logit_pnorm", p=p))


def gen(logits: ArrayLike, gamma: float = 0.1, m: int = 100) -> Tensor:
    """The negative generalised entropy, −Σ π^γ(1 − π)^γ over the min(m, K) largest π."""
    v = Outputs(logits).logits
    return generalized.gen(v, Softmax.of(v), **_options("gen", gamma=gamma, m=m))


def max_logit(logits: ArrayLike | Softmax) -> Tensor:
    """The largest logit, max v."""
    return logit.max_logit(_summary(logits))


def energy(logits: ArrayLike | Softmax) -> Tensor:
    """The logsumexp of the logits."""
    return logit.energy(_summary(logits))


def log_gap(logits: ArrayLike | Softmax, name: str) -> Tensor:
    """log(S1max − S1) of a bounded score, computed without cancellation: `msp`, or with options `gen(gamma=0.5)`."""
    spec = parse(name)
    score = registry.get(spec.name) if spec.is_leaf else None
    if score is None or score.log_gap is None:
        bounded = [n for n in registry.names() if registry.get(n).log_gap]
        raise ValueError(f"`name` must be a bounded score, one of {', '.join(bounded)}; got `{name}`")
    if not set(score.needs) <= {"logits", "softmax"}:
        raise ValueError(f"`name` must be a score of the logits alone; `{spec.name}` needs {', '.join(score.needs)}")
    if "logits" not in score.needs:
        return score.log_gap(_summary(logits), **{**score.options, **spec.options})
    if isinstance(logits, Softmax):
        raise ValueError(f"`{spec.name}` reads every logit, of which `softmax` keeps a summary only. Pass the logits")
    v = Outputs(logits).logits
    inputs = [v if need == "logits" else Softmax.of(v) for need in score.needs]
    return score.log_gap(*inputs, **{**score.options, **spec.options})


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
    return _nearest_class(_features(features).double(), means, precision)


def mahalanobis_pp(features: ArrayLike, means: ArrayLike, precision: ArrayLike) -> Tensor:
    """`mahalanobis` of the features scaled to unit length; means and precision are those of unit features."""
    unit = torch.nn.functional.normalize(_features(features).double(), dim=-1)
    return _nearest_class(unit, means, precision)


def relative_mahalanobis(
    features: ArrayLike, means: ArrayLike, precision: ArrayLike, mean: ArrayLike, total_precision: ArrayLike
) -> Tensor:
    """`mahalanobis` + (z − μ)ᵀ P₀ (z − μ): less the distance to all data, with their mean μ and precision P₀."""
    z = _features(features).double()
    center = as_tensor("mean", mean).to(z)
    if center.shape != z.shape[1:]:
        raise ValueError(f"`mean` must be (L,) for features with L = {z.shape[1]}; got {tuple(center.shape)}")
    root = _root("total_precision", total_precision, z)
    return _nearest_class(z, means, precision) + ((z - center) @ root).square().sum(-1)


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


def cop(features: ArrayLike, mean: ArrayLike, basis: ArrayLike) -> Tensor:
    """Minus the part of ẑ − μ outside the main directions of unit features: −‖(ẑ − μ)N‖₂, N orthonormal, (L, L − D)."""
    z = _features(features)
    mu, n = as_tensor("mean", mean).to(z), as_tensor("basis", basis).to(z)
    if mu.shape != z.shape[1:] or n.dim() != 2 or len(n) != z.shape[1]:
        raise ValueError(
            f"`mean` must be (L,) and `basis` (L, L − D) for features with L = {z.shape[1]}; got "
            f"{tuple(mu.shape)} and {tuple(n.shape)}"
        )
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
    p, z, k = _summary(logits), _features(features), check_positive("k", k)
    _same_rows(p.top, z)
    rows = _features(bank).to(z)
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
    z = _features(features)
    w, b = _head(z, weight, bias)
    return shaping.react(z, weight=w, bias=b, clip=z.new_tensor([check_number("clip", clip)]))


def scale(logits: ArrayLike, features: ArrayLike, bias: ArrayLike | None, percentile: float = 85.0) -> Tensor:
    """The energy of scaled features, logsumexp(eʳ(v − b) + b), r = Σz/Σz′ with z′ those at the percentile or above."""
    v, z = Outputs(logits).logits, _features(features)
    _same_rows(v, z)
    b = z.new_zeros(v.shape[1]) if bias is None else as_tensor("bias", bias).to(z)
    if b.shape != v.shape[1:]:
        raise ValueError(f"`bias` must be (K,) for logits with K = {v.shape[1]}; got {tuple(b.shape)}")
    return shaping.scale(v, z, bias=b, **_options("scale", percentile=percentile))


def ash(features: ArrayLike, weight: ArrayLike, bias: ArrayLike | None, percentile: float = 90.0) -> Tensor:
    """The energy of pruned and scaled features, logsumexp(eʳ Wz′ + b), r = Σz/Σz′: ASH-S."""
    z = _features(features)
    w, b = _head(z, weight, bias)
    return shaping.ash(z, weight=w, bias=b, **_options("ash", percentile=percentile))


def nci(
    logits: ArrayLike | Softmax, features: ArrayLike, weight: ArrayLike, mean: ArrayLike, scale: float = 1e-4
) -> Tensor:
    """w_ŷ·(z − μ)/‖z − μ‖ + scale·‖z‖₁, with the mean μ of training features and ŷ the class of the largest logit."""
    p, z = _summary(logits), _features(features)
    w, mu = _head_and_mean(p, z, weight, mean)
    _check_classes(logits, p, w)
    return boundary.nci(p, z, weight=w, center=mu, **_options("nci", scale=scale))


def fdbd(logits: ArrayLike, features: ArrayLike, weight: ArrayLike, mean: ArrayLike) -> Tensor:
    """The mean of (v_ŷ − v_k)/‖w_ŷ − w_k‖ over k ≠ ŷ, divided by ‖z − μ‖, with the mean μ of training features."""
    v, z = Outputs(logits).logits, _features(features)
    p = Softmax.of(v)
    w, mu = _head_and_mean(p, z, weight, mean)
    _check_classes(v, p, w)
    inverse = boundary.inverse_distances(w.double())
    return boundary.fdbd(v, p, z, center=mu, inverse=inverse)


def sirc(
    log_gap: ArrayLike, s2: ArrayLike | Sequence[ArrayLike], a: float | Sequence[float], b: float | Sequence[float]
) -> Tensor:
    """−log(S1max − S1) − Σ softplus(b(a − S2)): the order of the paper's C, without overflow.

    One S2 with numbers a and b, or a list of several with a list of each.
    """
    return combine.sirc(*_terms(log_gap, s2, a, b))


def additive(
    log_gap: ArrayLike,
    s2: ArrayLike | Sequence[ArrayLike],
    a: float | Sequence[float],
    b: float | Sequence[float],
    kappa: float = 0.1,
) -> Tensor:
    """−log[(S1max − S1) + κ Σ exp(−b(S2 − a))]: the order of minus that sum, without overflow."""
    if not (math.isfinite(kappa) and kappa > 0):
        raise ValueError(f"`kappa` must be positive: it is the weight of S2's part; got {kappa!r}")
    first, others, centers, slopes = _terms(log_gap, s2, a, b)
    return combine.additive(first, others, float(kappa), centers, slopes)


def bayes(
    log_u: ArrayLike,
    log_g: ArrayLike,
    alpha: float = 0.5,
    beta: float = 0.5,
    metric: Literal["aurc", "aurr"] = "aurc",
) -> Tensor:
    """−log[β(1−w)u + (1−β)w], w = (1−α)g/(α + (1−α)g): the order of least AURC where u and g are known.

    u is the probability that the prediction on an ID row is wrong, g = p_OOD/p_ID; both come as logarithms. With
    `metric="aurr"` it is −log([βu + ρg]/(1 − u)), ρ = (1−α)(1−β)/α: to first order, that of least AURR.
    """
    check_fraction("alpha", alpha)
    check_fraction("beta", beta)
    if not alpha:
        raise ValueError("`alpha`, the share of ID input, must be above 0: without ID input there is nothing to accept")
    if metric not in ("aurc", "aurr"):
        raise ValueError(f'`metric` must be "aurc" or "aurr"; got {metric!r}')
    u, g = _columns(log_u, log_g, name="`log_u` and `log_g`")
    form = combine.bayes if metric == "aurc" else combine.bayes_aurr
    return form(u, g, float(alpha), float(beta))


def _terms(
    log_gap: ArrayLike, s2: ArrayLike | Sequence[ArrayLike], a: float | Sequence[float], b: float | Sequence[float]
) -> tuple[Tensor, list[Tensor], list[float], list[float]]:
    """log(S1max − S1) and the S2 columns, with as many a and b as there are of these."""
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
    return others[0], others[1:], slopes[0], slopes[1]


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


def _options(name: str, **given: float) -> dict[str, Any]:
    """Options of a score, within the limits that a spec's are held to."""
    text = ", ".join(f"{key}={check_number(key, value)!r}" for key, value in given.items())
    return {**registry.get(name).options, **parse(f"{name}({text})").options}


def _columns(*values: ArrayLike, name: str = "scores") -> list[Tensor]:
    """Float64 scores of the same rows: nothing here may broadcast one against another."""
    columns = [as_tensor(name, value).double() for value in values]
    shapes = [tuple(column.shape) for column in columns]
    if len(set(shapes)) != 1 or len(shapes[0]) != 1:
        raise ValueError(f"{name} must be 1-D, one number for each of the same rows; got shapes {shapes}")
    return columns


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
    _same_rows(p.top, z)
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


def _same_rows(logits: Tensor, features: Tensor) -> None:
    if len(logits) != len(features):
        raise ValueError(
            f"`logits` and `features` must be of the same rows; got {len(logits)} and {len(features)}. Pass both for "
            "the same samples, in the same order"
        )


def _features(features: ArrayLike) -> Tensor:
    z = as_tensor("features", features)
    if z.dim() != 2:
        raise ValueError(f"`features` must have shape (n, L); got {tuple(z.shape)}")
    return z.to(working_dtype(z.dtype))
