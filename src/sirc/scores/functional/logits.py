"""The plain formulas of scores that read the logits."""

from __future__ import annotations

from torch import Tensor

from sirc._utils.arrays import ArrayLike
from sirc.outputs import Outputs
from sirc.scores import registry
from sirc.scores.formulas import gen as generalized
from sirc.scores.formulas import logit, pnorm
from sirc.scores.formulas import softmax as _softmax
from sirc.scores.formulas import temperature as tempered
from sirc.scores.formulas.softmax import Softmax
from sirc.scores.functional.inputs import checked_options, summary
from sirc.scores.spec import parse


def softmax(logits: ArrayLike, *, compile: bool | None = None) -> Softmax:
    """All that one pass over (n, K) logits gives; the other functions of the logits also take this in their place."""
    return Softmax.of(Outputs(logits).logits, compile=compile)


def msp(logits: ArrayLike | Softmax) -> Tensor:
    """The largest softmax probability, max π."""
    return _softmax.msp(summary(logits))


def doctor(logits: ArrayLike | Softmax) -> Tensor:
    """The 2-norm of the softmax, ‖π‖₂."""
    return _softmax.doctor(summary(logits))


def entropy(logits: ArrayLike | Softmax) -> Tensor:
    """The negative entropy of the softmax, Σ π log π."""
    return _softmax.entropy(summary(logits))


def margin(logits: ArrayLike | Softmax) -> Tensor:
    """The distance between the two largest logits, v₁ − v₂."""
    return _softmax.margin(summary(logits))


def tempered_msp(logits: ArrayLike, temperature: float = 1.0) -> Tensor:
    """The largest probability of softmax(v/T)."""
    options = checked_options("tempered_msp", temperature=temperature)
    return tempered.tempered_msp(Outputs(logits).logits, **options)


def tempered_entropy(logits: ArrayLike, temperature: float = 1.0) -> Tensor:
    """The negative entropy of softmax(v/T)."""
    options = checked_options("tempered_entropy", temperature=temperature)
    return tempered.tempered_entropy(Outputs(logits).logits, **options)


def max_logit_pnorm(logits: ArrayLike, p: int = 4) -> Tensor:
    """The largest centred logit over the p-norm of all, (v₁ − v̄)/‖v − v̄‖_p; p = 0: v₁ − v̄; p = −1: `msp`."""
    v = Outputs(logits).logits
    return pnorm.max_logit_pnorm(v, Softmax.of(v), **checked_options("max_logit_pnorm", p=p))


def gen(logits: ArrayLike, gamma: float = 0.1, m: int = 100) -> Tensor:
    """The negative generalised entropy, −Σ π^γ(1 − π)^γ over the min(m, K) largest π."""
    v = Outputs(logits).logits
    return generalized.gen(v, Softmax.of(v), **checked_options("gen", gamma=gamma, m=m))


def max_logit(logits: ArrayLike | Softmax) -> Tensor:
    """The largest logit, max v."""
    return logit.max_logit(summary(logits))


def energy(logits: ArrayLike | Softmax) -> Tensor:
    """The logsumexp of the logits."""
    return logit.energy(summary(logits))


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
        return score.log_gap(summary(logits), **{**score.options, **spec.options})
    if isinstance(logits, Softmax):
        raise ValueError(f"`{spec.name}` reads every logit, of which `softmax` keeps a summary only. Pass the logits")
    v = Outputs(logits).logits
    inputs = [v if need == "logits" else Softmax.of(v) for need in score.needs]
    return score.log_gap(*inputs, **{**score.options, **spec.options})
