"""Softmax scores at a temperature T, and the T under which validation labels are likeliest."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

from torch import Tensor

from sirc.scores.blocks import by_rows, constant, row_blocks
from sirc.scores.formulas.softmax import Softmax, entropy, log_entropy, log_one_minus_max, msp
from sirc.scores.registry import Option, score

# The range of T: without a wrong prediction T would go to 0, without a right one to ∞.
_COLDEST, _HOTTEST = 0.05, 20.0
_LIMITS = {"temperature": (0.001, 1000.0)}


def divided(logits: Tensor, temperature: float) -> Softmax:
    """The summary of softmax(v/T), in float64."""
    v = logits.double()
    # Subtract the largest logit, so that the rounding of v/T is relative to the distance from it.
    x = (v - v.amax(-1, keepdim=True)) / constant(temperature, v)
    return Softmax.of(x, compile=False)


def fit_temperature(logits: Tensor, labels: Tensor) -> dict[str, Option]:
    """T that minimises the negative log-likelihood of the labels, from 0.05 to 20. Guo et al. 2017.

    The mean of logsumexp(b·v) − b·v_y is convex in b = 1/T, so that its slope changes sign at the minimum. T = 1 if the
    likelihood does not depend on T.
    """
    from scipy.optimize import brentq

    slope = cache(partial(_slope, logits, labels))
    if slope(1.0) == 0:
        return {"temperature": 1.0}
    end = 1 / (_HOTTEST if slope(1.0) > 0 else _COLDEST)
    if (slope(end) > 0) == (slope(1.0) > 0):
        return {"temperature": 1 / end}
    return {"temperature": 1 / brentq(slope, 1.0, end, xtol=1e-15, rtol=1e-12)}


def _slope(logits: Tensor, labels: Tensor, b: float) -> float:
    """The derivative of the mean of logsumexp(b·v) − b·v_y: E_π[v] − v_y."""
    slope = 0.0
    for rows in row_blocks(logits):
        v = logits[rows].double()
        d = v - v.amax(-1, keepdim=True)
        f = (b * d).exp()
        f /= f.sum(-1, keepdim=True)
        mean = (f * d).sum(-1, keepdim=True)
        slope += float((mean - d.gather(1, labels[rows, None].long())).sum())
    return slope / len(logits)


def _tempered(formula: Callable[[Softmax], Tensor]) -> Callable[..., Tensor]:
    """A formula of the softmax as a formula of logits and a temperature."""
    return lambda logits, *, temperature: by_rows(lambda v: formula(divided(v, temperature)), logits)


@score(
    needs="logits",
    log_gap=_tempered(log_one_minus_max),
    tune=fit_temperature,
    limits=_LIMITS,
    title="MSP (T)",
    latex="MSP ($T$)",
    html="MSP (<i>T</i>)",
    family="softmax",
)
def tempered_msp(logits: Tensor, *, temperature: float = 1.0) -> Tensor:
    """The largest probability of the softmax at temperature T: max softmax(v/T). Guo et al. 2017.

    `fit` finds T on labelled validation data (`fit_temperature`); without them, T = 1: `msp`.
    """
    return _tempered(msp)(logits, temperature=temperature)


@score(
    needs="logits",
    log_gap=_tempered(log_entropy),
    tune=fit_temperature,
    limits=_LIMITS,
    title="−H (T)",
    latex=r"$-\mathcal{H}$ ($T$)",
    html="−<i>H</i> (<i>T</i>)",
    family="softmax",
)
def tempered_entropy(logits: Tensor, *, temperature: float = 1.0) -> Tensor:
    """The negative entropy of the softmax at temperature T: −H[softmax(v/T)]. Guo et al. 2017.

    `fit` finds T on labelled validation data (`fit_temperature`); without them, T = 1: `entropy`.
    """
    return _tempered(entropy)(logits, temperature=temperature)
