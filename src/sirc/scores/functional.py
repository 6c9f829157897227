"""Plain formulas as functions: arrays in, a 1-D float64 tensor of confidences out; nothing is fitted.

Arguments are torch tensors, NumPy arrays, or anything `Outputs` takes. `msp`, `doctor` and `entropy` are the plain
values of the paper, which reach their maximum when the softmax saturates; `log_gap` keeps confident rows apart.

Example:
    >>> import sirc, torch
    >>> logits = torch.tensor([[4.0, 0, 0], [900, 0, 0]])
    >>> sirc.functional.msp(logits)
    tensor([0.9647, 1.0000], dtype=torch.float64)
    >>> sirc.functional.log_gap(logits, "msp")
    tensor([  -3.3428, -899.3069], dtype=torch.float64)
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from sirc._utils.arrays import ArrayLike, as_tensor
from sirc._utils.checks import check_choice, check_finite, check_fraction, check_number, check_same_length, check_shape
from sirc._utils.text import quoted
from sirc.outputs import Head, Outputs
from sirc.scores import combine, registry
from sirc.scores.bayes import least_aurc, least_aurr
from sirc.scores.blocks import unit, working_dtype
from sirc.scores.evaluator import Evaluator, is_bounded, reads_features
from sirc.scores.formulas.boundary import inverse_distances
from sirc.scores.formulas.feature import head_energy, unit_bank
from sirc.scores.formulas.softmax import Softmax
from sirc.scores.spec import Spec, parse

# The arguments that replace fitted parameters, and their shapes.
_SHAPES = {
    "weight": "(K, L)",
    "bias": "(K,)",
    "origin": "(L,)",
    "mean": "(L,)",
    "means": "(K, L)",
    "basis": "(L, L − D)",
    "precision": "(L, L)",
    "total_precision": "(L, L)",
    "right_means": "(classes, L)",
    "wrong_means": "(classes, L)",
    "bank": "(rows, L)",
    "right_bank": "(rows, L)",
    "wrong_bank": "(rows, L)",
    "clip": "(1,)",
}


def softmax(logits: ArrayLike, *, compile: bool | None = None) -> Softmax:
    """The summary of one pass over (n, K) logits, which functions of the softmax accept in place of the logits."""
    return Softmax.of(Outputs(logits).logits, compile=compile)


def _formula(
    name: str, parameters: Callable[..., dict[str, Tensor]] | None = None, without: str = ""
) -> Callable[..., Tensor]:
    """A registered score as a function of the arrays that it reads, the arguments of `parameters`, and its options.

    `parameters` makes the fitted parameters from its arguments, as checked tensors; only a fit reads the option
    `without`.
    """
    score = registry.get(name)
    needs = {need for part in registry.closure(name) for need in registry.get(part).needs}
    arrays = ["logits"] * bool(needs & {"logits", "softmax"}) + ["features"] * ("features" in needs)
    given = inspect.signature(parameters).parameters if parameters else {}
    options = {option: default for option, default in score.options.items() if option != without}
    defaults = dict.fromkeys(arrays, inspect.Parameter.empty)
    defaults |= {argument: parameter.default for argument, parameter in given.items()} | options
    kinds = {"logits": "ArrayLike" if "logits" in needs else "ArrayLike | Softmax", "bias": "ArrayLike | None"}
    kinds |= {"clip": "float"} | {option: type(default).__name__ for option, default in options.items()}
    either = inspect.Parameter.POSITIONAL_OR_KEYWORD
    signature = inspect.Signature(
        [
            inspect.Parameter(argument, either, default=default, annotation=kinds.get(argument, "ArrayLike"))
            for argument, default in defaults.items()
        ],
        return_annotation="Tensor",
    )

    def formula(*args: Any, **kwargs: Any) -> Tensor:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        values = bound.arguments
        spec = parse(f"{name}({', '.join(f'{key}={check_number(key, values[key])!r}' for key in options)})")
        v = _logits(name, values["logits"]) if "logits" in values else None
        z = _features(values["features"], exact="precision" in values) if "features" in values else None
        fitted = parameters(**_checked(values, v, z)) if parameters and z is not None else {}
        confidence = _evaluator(spec, v, z, fitted).value(spec)
        check_finite(name, confidence)
        return confidence

    formula.__name__ = formula.__qualname__ = name
    formula.__doc__ = inspect.getdoc(score.compute)
    if given:
        formula.__doc__ = f"{formula.__doc__}\n\nGiven {', '.join(f'`{key}` {_SHAPES[key]}' for key in given)}."
    formula.__signature__ = signature  # type: ignore[attr-defined]
    return formula


def _whitened(means: Tensor, precision: Tensor, center: Tensor | None = None) -> dict[str, Tensor]:
    """The parameters of `mahalanobis`. The distances are the same for any center."""
    center, whitener = means.mean(0) if center is None else center, _root("precision", precision)
    return {"center": center, "whitener": whitener, "means": (means - center) @ whitener}


def _whitened_pair(right_means: Tensor, wrong_means: Tensor, precision: Tensor) -> dict[str, Tensor]:
    """The parameters of `delta_mahalanobis`."""
    space = _whitened(right_means, precision)
    wrong = (wrong_means - space["center"]) @ space["whitener"]
    return {"center": space["center"], "whitener": space["whitener"], "right": space["means"], "wrong": wrong}


def _root(name: str, precision: Tensor) -> Tensor:
    """R with RRᵀ = P, for a symmetric positive semi-definite P."""
    values, vectors = torch.linalg.eigh(precision)
    if float(values[0]) < -1e-9 * float(values.abs().max()):
        raise ValueError(f"`{name}` must be positive semi-definite; its least eigenvalue is {float(values[0]):.3g}")
    root: Tensor = vectors * values.clamp_min(0).sqrt()
    return root


msp = _formula("msp")
doctor = _formula("doctor")
entropy = _formula("entropy")
margin = _formula("margin")
tempered_msp = _formula("tempered_msp")
tempered_entropy = _formula("tempered_entropy")
max_logit_pnorm = _formula("max_logit_pnorm")
gen = _formula("gen")
max_logit = _formula("max_logit")
energy = _formula("energy")
l1 = _formula("l1")
gradnorm = _formula("gradnorm")
residual = _formula("residual", lambda origin, basis: {"origin": origin, "basis": basis})
cop = _formula("cop", lambda mean, basis: {"center": mean, "outside": basis.T}, without="variance")
mahalanobis = _formula("mahalanobis", lambda means, precision: _whitened(means, precision))
mahalanobis_pp = _formula("mahalanobis_pp", lambda means, precision: _whitened(means, precision))
relative_mahalanobis = _formula(
    "relative_mahalanobis",
    lambda means, precision, mean, total_precision: {
        **_whitened(means, precision, mean),
        "total": _root("total_precision", total_precision),
    },
)
knn = _formula("knn", lambda bank: {"bank": unit(bank)})
nnguide = _formula(
    "nnguide",
    lambda bank, weight, bias=None: {
        "bank": unit_bank(bank),
        "energy": head_energy(bank.double(), weight.double(), bias.double())[:, None].to(bank),
    },
    without="skip",
)
react = _formula(
    "react", lambda weight, bias, clip: {"weight": weight, "bias": bias, "clip": clip}, without="percentile"
)
scale = _formula("scale", lambda bias: {"bias": bias})
ash = _formula("ash", lambda weight, bias: {"weight": weight, "bias": bias})
nci = _formula("nci", lambda weight, mean: {"weight": weight, "center": mean})
fdbd = _formula("fdbd", lambda weight, mean: {"center": mean, "inverse": inverse_distances(weight.double())})

delta_mahalanobis = _formula("delta_mahalanobis", _whitened_pair)
delta_knn = _formula("delta_knn", lambda right_bank, wrong_bank: {"right": unit(right_bank), "wrong": unit(wrong_bank)})


def __getattr__(name: str) -> Callable[..., Tensor]:
    """The formula of any other registered score that needs no fit."""
    if name in registry.names() and not any(registry.get(part).parameters for part in registry.closure(name)):
        return _formula(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def log_gap(logits: ArrayLike | Softmax, name: str) -> Tensor:
    """log(S1max − S1) of a bounded score, such as `msp` or `gen(gamma=0.5)`, computed without cancellation."""
    spec = parse(name)
    if not is_bounded(spec) or reads_features([spec]):
        bounded = [score for score in registry.names() if is_bounded(Spec(score)) and not reads_features([Spec(score)])]
        raise ValueError(f"`name` must be a bounded score of the logits, one of {', '.join(bounded)}; got `{name}`")
    return _evaluator(spec, _logits(spec.name, logits), None, {}).log_gap(spec)


def vim(logits: ArrayLike | Softmax, residual: ArrayLike, c: float) -> Tensor:
    """energy − c·‖z^{P⊥}‖₂, given `residual` = −‖z^{P⊥}‖₂."""
    return linear(energy(logits), residual, c)


def sirc(
    log_gap: ArrayLike, s2: ArrayLike | Sequence[ArrayLike], a: float | Sequence[float], b: float | Sequence[float]
) -> Tensor:
    """−log(S1max − S1) − Σ softplus(b(a − S2)): the order of the paper's C, without overflow.

    Pass one S2 with numbers a and b, or a list of several with lists of their a and b.
    """
    return combine.sirc(*_terms(log_gap, s2, a, b))


def additive(
    log_gap: ArrayLike,
    s2: ArrayLike | Sequence[ArrayLike],
    a: float | Sequence[float],
    b: float | Sequence[float],
    kappa: float = 0.1,
) -> Tensor:
    """−log[(S1max − S1) + κ Σ exp(−b(S2 − a))], computed without overflow."""
    if not (math.isfinite(check_number("kappa", kappa)) and kappa > 0):
        raise ValueError(f"`kappa` must be positive: it is the weight of S2's part; got {quoted(kappa)}")
    first, others, centers, slopes = _terms(log_gap, s2, a, b)
    return combine.additive(first, others, float(kappa), centers, slopes)


def bayes(
    log_u: ArrayLike,
    log_g: ArrayLike,
    alpha: float = 0.5,
    beta: float = 0.5,
    metric: Literal["aurc", "aurr"] = "aurc",
    risk: float = 0.0,
) -> Tensor:
    """−log[β(1−w)u + (1−β)w], w = (1−α)g/(α + (1−α)g): the order of least AURC, given log u and log g.

    u is the probability that the prediction on an ID row is wrong, and g = p_OOD/p_ID. With `metric="aurr"` it is
    −log([(β−R)u + (1−α)(1−β−R)/α·g]/(1 − u)), the order of least AURR where the risk R of what is accepted is `risk`.
    If risks are small, R = 0 is good enough.
    """
    alpha, beta, risk = (check_fraction(*given) for given in (("alpha", alpha), ("beta", beta), ("risk", risk)))
    if not alpha:
        raise ValueError("`alpha`, the share of ID input, must be above 0: without ID input there is nothing to accept")
    check_choice("metric", metric, ("aurc", "aurr"))
    u, g = _columns(log_u, log_g, name="`log_u` and `log_g`")
    if metric == "aurc":
        return least_aurc(u, g, alpha, beta)
    return least_aurr(u, g, alpha, beta, risk)


def sirc_literal(s1: ArrayLike, s2: ArrayLike, a: float, b: float, s1_max: float) -> Tensor:
    """The paper's C = −(S1max − S1)(1 + exp(−b[S2 − a])) as printed; overflows and cancels where `sirc` does not."""
    first, second = _columns(s1, s2)
    most, center, slope = (check_number(name, x) for name, x in (("s1_max", s1_max), ("a", a), ("b", b)))
    return -(most - first) * (1 + torch.exp(-slope * (second - center)))


def linear(s1: ArrayLike, s2: ArrayLike, c: float) -> Tensor:
    """S1 + c·S2."""
    first, second = _columns(s1, s2)
    total = combine.linear(first, second, check_number("c", c))
    check_finite("linear", total)
    return total


def product(*scores: ArrayLike) -> Tensor:
    """S1·S2·…, the plain values multiplied."""
    return combine.product(*_columns(*scores))


def _evaluator(
    spec: Spec, logits: Tensor | Softmax | None, features: Tensor | None, parameters: dict[str, Tensor]
) -> Evaluator:
    summary, array = (logits, None) if isinstance(logits, Softmax) else (None, logits)
    if logits is not None and features is not None:
        check_same_length("features", features, "logits", logits.top if isinstance(logits, Softmax) else logits)
    return Evaluator(array, features, [], {str(spec): parameters}, softmax=summary)


def _logits(name: str, logits: ArrayLike | Softmax) -> Tensor | Softmax:
    """Validated (n, K) logits, or their summary if the score of that name reads no more."""
    if not isinstance(logits, Softmax):
        return Outputs(logits).logits
    if "logits" in registry.get(name).needs:
        raise ValueError(f"`{name}` reads every logit, and `softmax` keeps only a summary of them. Pass the logits")
    return logits


def _features(features: ArrayLike, *, exact: bool) -> Tensor:
    """(n, L) features in their working type, or in float64."""
    z = as_tensor("features", features)
    check_shape("features", z, n=0, L=1, hint="Pass one row for each sample.")
    return z.to(torch.float64 if exact else working_dtype(z.dtype))


def _checked(values: dict[str, Any], logits: Tensor | Softmax | None, z: Tensor) -> dict[str, Tensor]:
    """The arguments that replace fitted parameters: tensors of the right shapes, of the features' type and device."""
    sizes = {"L": z.shape[1]} | ({"K": logits.shape[1]} if isinstance(logits, Tensor) else {})
    if "weight" in values:
        head = Head(values["weight"], values.get("bias"))
        values |= {name: value for name, value in (("weight", head.weight), ("bias", head.bias)) if name in values}
        if isinstance(logits, Softmax) and len(head.weight) <= int(logits.prediction.max()):
            sizes["K"] = int(logits.prediction.max()) + 1  # there are at least so many classes
    tensors = {}
    for name, shape in _SHAPES.items():
        if name not in values:
            continue
        value = [check_number(name, values[name])] if name == "clip" else values[name]
        array = z.new_zeros(sizes["K"]) if name == "bias" and value is None else as_tensor(name, value).to(z)
        letters = shape.strip("(,)").split(", ")
        known = zip(letters, array.shape, strict=False)
        if array.dim() != len(letters) or any(x in "KL" and sizes.setdefault(x, size) != size for x, size in known):
            of = {"L": "features", "K": "logits"}
            given = " and ".join(f"{of[letter]} with {letter} = {size}" for letter, size in sizes.items())
            raise ValueError(f"`{name}` must be {shape} for {given}; got {tuple(array.shape)}. Is it of this model?")
        if name.endswith("bank") and len(array) < values["k"]:
            raise ValueError(f"`{name}` must hold at least k = {values['k']} rows; got {len(array)}")
        tensors[name] = array
    return tensors


def _columns(*values: ArrayLike, name: str = "scores") -> list[Tensor]:
    """Scores of the same rows, in float64; arrays of other lengths are refused, not broadcast."""
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


_functions = {name: value for name, value in vars().items() if inspect.isfunction(value) and not name.startswith("_")}
__all__ = sorted(name for name, function in _functions.items() if function.__module__ == __name__)
