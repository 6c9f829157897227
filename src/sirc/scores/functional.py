"""Plain formulas as functions: arrays in, a 1-D float64 tensor of confidences out; nothing is fitted.

Arguments are torch tensors, NumPy arrays, or anything `Outputs` takes. Each function calls the registered formula of
its name through the evaluator of specs. `msp`, `doctor` and `entropy` are the plain values of the paper, which reach
their maximum when the softmax saturates; `log_gap` keeps confident rows apart.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from sirc._utils.arrays import ArrayLike, as_tensor
from sirc._utils.checks import check_fraction, check_number
from sirc.outputs import Head, Outputs
from sirc.scores import combine, registry
from sirc.scores.bayes import least_aurc, least_aurr
from sirc.scores.blocks import working_dtype
from sirc.scores.formulas.boundary import inverse_distances
from sirc.scores.formulas.feature import unit_bank
from sirc.scores.formulas.shaping import head_energy
from sirc.scores.formulas.softmax import Softmax
from sirc.scores.spec import Spec, parse
from sirc.scores.values import Evaluator, is_bounded, keywords, reads_features

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
    """The summary of one pass over (n, K) logits, which functions of the softmax take in place of the logits."""
    return Softmax.of(Outputs(logits).logits, compile=compile)


def _from_registry(name: str) -> Callable[..., Tensor]:
    """A registered score that fits nothing, as a function of the arrays that it reads and of its options."""
    score = registry.get(name)
    needs = {need for part in registry.closure([name]) for need in registry.get(part).needs}
    annotations = {}
    if not needs.isdisjoint({"logits", "softmax"}):
        annotations["logits"] = "ArrayLike" if "logits" in needs else "ArrayLike | Softmax"
    if "features" in needs:
        annotations["features"] = "ArrayLike"
    annotations |= {option: type(default).__name__ for option, default in score.options.items()}
    parameters = [
        inspect.Parameter(
            argument,
            inspect.Parameter.POSITIONAL_OR_KEYWORD,
            default=score.options.get(argument, inspect.Parameter.empty),
            annotation=annotation,
        )
        for argument, annotation in annotations.items()
    ]
    signature = inspect.Signature(parameters, return_annotation="Tensor")

    def formula(*args: Any, **kwargs: Any) -> Tensor:
        arguments = signature.bind(*args, **kwargs).arguments
        spec = _spec(name, **{key: value for key, value in arguments.items() if key in score.options})
        v = _logits(name, arguments["logits"]) if "logits" in arguments else None
        z = _features(arguments["features"]) if "features" in arguments else None
        return _evaluate(spec, v, z)

    formula.__name__ = formula.__qualname__ = name
    formula.__doc__ = inspect.getdoc(score.compute)
    formula.__signature__ = signature  # type: ignore[attr-defined]
    return formula


msp = _from_registry("msp")
doctor = _from_registry("doctor")
entropy = _from_registry("entropy")
margin = _from_registry("margin")
tempered_msp = _from_registry("tempered_msp")
tempered_entropy = _from_registry("tempered_entropy")
max_logit_pnorm = _from_registry("max_logit_pnorm")
gen = _from_registry("gen")
max_logit = _from_registry("max_logit")
energy = _from_registry("energy")
l1 = _from_registry("l1")
gradnorm = _from_registry("gradnorm")


def log_gap(logits: ArrayLike | Softmax, name: str) -> Tensor:
    """log(S1max − S1) of a bounded score, computed without cancellation: `msp`, or with options `gen(gamma=0.5)`."""
    spec = parse(name)
    if not is_bounded(spec):
        bounded = [score for score in registry.names() if is_bounded(Spec(score))]
        raise ValueError(f"`name` must be a bounded score, one of {', '.join(bounded)}; got `{name}`")
    if reads_features([spec]):
        needs = registry.get(spec.name).needs
        raise ValueError(f"`name` must be a score of the logits alone; `{spec.name}` needs {', '.join(needs)}")
    return _evaluator(spec, _logits(spec.name, logits), None, {}).log_gap(spec)


def residual(features: ArrayLike, origin: ArrayLike, basis: ArrayLike) -> Tensor:
    """Minus the part of z − u outside the principal subspace: −‖(z − u)N‖₂, with N an orthonormal (L, L − D) basis."""
    z = _features(features)
    u, n = _parameter("origin", origin, z, "(L,)"), _parameter("basis", basis, z, "(L, L − D)")
    return _evaluate(Spec("residual"), None, z, origin=u, basis=n)


def cop(features: ArrayLike, mean: ArrayLike, basis: ArrayLike) -> Tensor:
    """Minus the part of ẑ − μ outside the main directions of unit features: −‖(ẑ − μ)N‖₂, N orthonormal, (L, L − D)."""
    z = _features(features)
    mu, n = _parameter("mean", mean, z, "(L,)"), _parameter("basis", basis, z, "(L, L − D)")
    return _evaluate(Spec("cop"), None, z, center=mu, outside=n.T)


def vim(logits: ArrayLike | Softmax, residual: ArrayLike, c: float) -> Tensor:
    """energy − c·‖z^{P⊥}‖₂, given `residual` = −‖z^{P⊥}‖₂."""
    return linear(energy(logits), residual, c)


def mahalanobis(features: ArrayLike, means: ArrayLike, precision: ArrayLike) -> Tensor:
    """−min_k (z − μ_k)ᵀ P (z − μ_k) for (K, L) means and a symmetric positive semi-definite (L, L) precision P."""
    z = _features(features).double()
    return _evaluate(Spec("mahalanobis"), None, z, **_whitened(z, means, precision))


def mahalanobis_pp(features: ArrayLike, means: ArrayLike, precision: ArrayLike) -> Tensor:
    """`mahalanobis` of the features scaled to unit length; means and precision are those of unit features."""
    z = _features(features).double()
    return _evaluate(Spec("mahalanobis_pp"), None, z, **_whitened(z, means, precision))


def relative_mahalanobis(
    features: ArrayLike, means: ArrayLike, precision: ArrayLike, mean: ArrayLike, total_precision: ArrayLike
) -> Tensor:
    """`mahalanobis` + (z − μ)ᵀ P₀ (z − μ): less the distance to all data, with their mean μ and precision P₀."""
    z = _features(features).double()
    total, center = _root("total_precision", total_precision, z), _parameter("mean", mean, z, "(L,)")
    return _evaluate(Spec("relative_mahalanobis"), None, z, **_whitened(z, means, precision, center), total=total)


def knn(features: ArrayLike, bank: ArrayLike, k: int = 10) -> Tensor:
    """Minus the squared distance to the k-th neighbour in a bank of features, all scaled to unit length."""
    z, spec = _features(features), _spec("knn", k=k)
    return _evaluate(spec, None, z, bank=torch.nn.functional.normalize(_bank(spec, z, bank), dim=-1))


def nnguide(
    logits: ArrayLike | Softmax,
    features: ArrayLike,
    bank: ArrayLike,
    weight: ArrayLike,
    bias: ArrayLike | None = None,
    k: int = 10,
) -> Tensor:
    """E(z) · mean of the k largest E(zᵢ) cos(z, zᵢ) over a bank of features zᵢ, with E(zᵢ) = logsumexp(Wzᵢ + b)."""
    spec = _spec("nnguide", k=k)
    v, z = _logits("nnguide", logits), _features(features)
    w, b = _head(z, weight, bias, v)
    rows = _bank(spec, z, bank)
    energies = head_energy(rows.double(), w.double(), b.double())[:, None]
    return _evaluate(spec, v, z, bank=unit_bank(rows), energy=energies.to(z))


def react(features: ArrayLike, weight: ArrayLike, bias: ArrayLike | None, clip: float) -> Tensor:
    """The energy of clipped features, logsumexp(W min(z, c) + b); `bias=None` for a head that has none."""
    z = _features(features)
    w, b = _head(z, weight, bias)
    return _evaluate(Spec("react"), None, z, weight=w, bias=b, clip=z.new_tensor([check_number("clip", clip)]))


def scale(logits: ArrayLike, features: ArrayLike, bias: ArrayLike | None, percentile: float = 85.0) -> Tensor:
    """The energy of scaled features, logsumexp(eʳ(v − b) + b), r = Σz/Σz′ with z′ those at the percentile or above."""
    v, z = _logits("scale", logits), _features(features)
    assert isinstance(v, Tensor)
    b = z.new_zeros(v.shape[1]) if bias is None else as_tensor("bias", bias).to(z)
    if b.shape != v.shape[1:]:
        raise ValueError(f"`bias` must be (K,) for logits with K = {v.shape[1]}; got {tuple(b.shape)}")
    return _evaluate(_spec("scale", percentile=percentile), v, z, bias=b)


def ash(features: ArrayLike, weight: ArrayLike, bias: ArrayLike | None, percentile: float = 90.0) -> Tensor:
    """The energy of pruned and scaled features, logsumexp(eʳ Wz′ + b), r = Σz/Σz′: ASH-S."""
    z = _features(features)
    w, b = _head(z, weight, bias)
    return _evaluate(_spec("ash", percentile=percentile), None, z, weight=w, bias=b)


def nci(
    logits: ArrayLike | Softmax, features: ArrayLike, weight: ArrayLike, mean: ArrayLike, scale: float = 1e-4
) -> Tensor:
    """w_ŷ·(z − μ)/‖z − μ‖ + scale·‖z‖₁, with the mean μ of training features and ŷ the class of the largest logit."""
    v, z = _logits("nci", logits), _features(features)
    w, _ = _head(z, weight, None, v)
    return _evaluate(_spec("nci", scale=scale), v, z, weight=w, center=_parameter("mean", mean, z, "(L,)"))


def fdbd(logits: ArrayLike, features: ArrayLike, weight: ArrayLike, mean: ArrayLike) -> Tensor:
    """The mean of (v_ŷ − v_k)/‖w_ŷ − w_k‖ over k ≠ ŷ, divided by ‖z − μ‖, with the mean μ of training features."""
    v, z = _logits("fdbd", logits), _features(features)
    w, _ = _head(z, weight, None, v)
    return _evaluate(
        Spec("fdbd"), v, z, center=_parameter("mean", mean, z, "(L,)"), inverse=inverse_distances(w.double())
    )


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
    return (least_aurc if metric == "aurc" else least_aurr)(u, g, float(alpha), float(beta))


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


def _spec(name: str, **options: float) -> Spec:
    """A leaf with these options, within the limits of the grammar."""
    return parse(f"{name}({', '.join(f'{key}={check_number(key, value)!r}' for key, value in options.items())})")


def _evaluate(spec: Spec, logits: Tensor | Softmax | None, features: Tensor | None, **parameters: Tensor) -> Tensor:
    """The plain value of a leaf on checked arrays; None stands for an array that it does not read."""
    return _evaluator(spec, logits, features, parameters).value(spec)


def _evaluator(
    spec: Spec, logits: Tensor | Softmax | None, features: Tensor | None, parameters: dict[str, Tensor]
) -> Evaluator:
    if logits is not None and features is not None and len(logits) != len(features):
        raise ValueError(
            f"`logits` and `features` must be of the same rows; got {len(logits)} and {len(features)}. Pass both for "
            "the same samples, in the same order"
        )
    summary, array = (logits, None) if isinstance(logits, Softmax) else (None, logits)
    return Evaluator(array, features, [], {str(spec): parameters}, softmax=summary)


def _logits(name: str, logits: ArrayLike | Softmax) -> Tensor | Softmax:
    """(n, K) logits for the score of that name, or their summary where it reads no more."""
    if not isinstance(logits, Softmax):
        return Outputs(logits).logits
    if "logits" in registry.get(name).needs:
        raise ValueError(f"`{name}` reads every logit, of which `softmax` keeps a summary only. Pass the logits")
    return logits


def _features(features: ArrayLike) -> Tensor:
    """(n, L) features in the type that they are projected in."""
    z = as_tensor("features", features)
    if z.dim() != 2:
        raise ValueError(f"`features` must have shape (n, L); got {tuple(z.shape)}")
    return z.to(working_dtype(z.dtype))


def _parameter(name: str, value: ArrayLike, z: Tensor, shape: str) -> Tensor:
    """An array of a shape such as "(K, L)", where L is the number of features, in their type and on their device."""
    array, letters = as_tensor(name, value).to(z), shape.strip("(,)").split(", ")
    wrong = (letter == "L" and size != z.shape[1] for letter, size in zip(letters, array.shape, strict=False))
    if array.dim() != len(letters) or any(wrong):
        raise ValueError(f"`{name}` must be {shape} for features with L = {z.shape[1]}; got {tuple(array.shape)}")
    return array


def _columns(*values: ArrayLike, name: str = "scores") -> list[Tensor]:
    """Float64 scores of the same rows; none is broadcast against another."""
    columns = [as_tensor(name, value).double() for value in values]
    shapes = [tuple(column.shape) for column in columns]
    if len(set(shapes)) != 1 or len(shapes[0]) != 1:
        raise ValueError(f"{name} must be 1-D, one number for each of the same rows; got shapes {shapes}")
    return columns


def _terms(
    log_gap: ArrayLike, s2: ArrayLike | Sequence[ArrayLike], a: float | Sequence[float], b: float | Sequence[float]
) -> tuple[Tensor, list[Tensor], list[float], list[float]]:
    """log(S1max − S1) and the S2 columns, with an a and a b for each S2."""
    single = not isinstance(a, Sequence) and as_tensor("a", a).dim() == 0
    first, *others = _columns(log_gap, *([s2] if single else s2), name="`log_gap` and each S2")  # type: ignore[misc]
    centers, slopes = (as_tensor(name, value).double().reshape(-1).tolist() for name, value in (("a", a), ("b", b)))
    if not len(others) == len(centers) == len(slopes):
        raise ValueError(
            "`a` and `b` must give one number for each S2; "
            f"got {len(centers)} and {len(slopes)} numbers for {len(others)} S2"
        )
    if any(not slope > 0 for slope in slopes):
        raise ValueError(f"`b` must be positive: it is the slope against S2, 1/σ; got {slopes}")
    return first, others, centers, slopes


def _whitened(z: Tensor, means: ArrayLike, precision: ArrayLike, center: Tensor | None = None) -> dict[str, Tensor]:
    """The parameters of `mahalanobis`; any center gives the same distances, the mean of the means by default."""
    mu, whitener = _parameter("means", means, z, "(K, L)"), _root("precision", precision, z)
    center = mu.mean(0) if center is None else center
    return {"center": center, "whitener": whitener, "means": (mu - center) @ whitener}


def _root(name: str, precision: ArrayLike, z: Tensor) -> Tensor:
    """R with RRᵀ = P, for a symmetric positive semi-definite P."""
    values, vectors = torch.linalg.eigh(_parameter(name, precision, z, "(L, L)"))
    if float(values[0]) < -1e-9 * float(values.abs().max()):
        raise ValueError(f"`{name}` must be positive semi-definite; its least eigenvalue is {float(values[0]):.3g}")
    root: Tensor = vectors * values.clamp_min(0).sqrt()
    return root


def _bank(spec: Spec, z: Tensor, bank: ArrayLike) -> Tensor:
    """The rows that the features are compared with, at least k of them."""
    rows, k = _parameter("bank", bank, z, "(rows, L)"), keywords(spec, {})["k"]
    if len(rows) < k:
        raise ValueError(f"`bank` must hold at least k = {k} rows; got {len(rows)}")
    return rows


def _head(
    z: Tensor, weight: ArrayLike, bias: ArrayLike | None, logits: Tensor | Softmax | None = None
) -> tuple[Tensor, Tensor]:
    """The last layer in the type and on the device of the features, with zeros for a bias that it lacks."""
    head = Head(weight, bias)
    if head.num_features != z.shape[1]:
        raise ValueError(f"`weight` must be (K, L) for features with L = {z.shape[1]}; got {tuple(head.weight.shape)}")
    w = head.weight.detach().to(z)
    if isinstance(logits, Softmax):
        largest = int(logits.prediction.max())
        fits, classes = largest < len(w), f"more than {largest}"
    else:
        fits, classes = logits is None or logits.shape[1] == len(w), "" if logits is None else str(logits.shape[1])
    if not fits:
        raise ValueError(
            f"`weight` must have a row for each logit, {classes} of them; got {len(w)}. Is it the head of this model?"
        )
    return w, w.new_zeros(len(w)) if head.bias is None else head.bias.detach().to(w)
