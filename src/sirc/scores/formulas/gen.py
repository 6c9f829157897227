"""GEN, a generalised entropy of the softmax, in logarithms so that saturated rows stay apart.

With v₁ and v₂ the two largest logits, a_k = v₂ − v_k, and g, t, s as in `softmax.py`, the winner's term is the largest,

    π₁(1 − π₁) = exp(L),  L = log(1 − π_max) − log1p(s)
    π_k(1 − π_k)/exp(L) = (1 − π_k)·exp(log1p(s) − log t − a_k)

and the gap g appears only in L: the other factors can neither overflow nor lose digits.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sirc.scores.blocks import by_rows, constant
from sirc.scores.formulas.softmax import Softmax, log_one_minus_max
from sirc.scores.registry import score


def log_generalized_entropy(logits: Tensor, p: Softmax, *, gamma: float, m: int) -> Tensor:
    """log Σ π^γ(1 − π)^γ over the min(m, K) largest π."""
    log_total, power = torch.log1p(p.rest), constant(gamma, p.top)
    winner = power * (log_one_minus_max(p) - log_total)
    scale, share = log_total - p.t.log(), torch.exp(-p.gap) / (1 + p.rest)

    def others(v: Tensor, prediction: Tensor, second: Tensor, scale: Tensor, share: Tensor) -> Tensor:
        below = second[:, None] - _losers(v, prediction, m)
        pi = torch.exp(-below) * share[:, None]
        # −inf marks the winner, which is not among the others.
        return torch.exp(power * (scale[:, None] - below + torch.log1p(-pi))).sum(-1)

    return winner + torch.log1p(by_rows(others, logits, p.prediction, p.second, scale, share))


def _losers(logits: Tensor, prediction: Tensor, m: int) -> Tensor:
    """The m − 1 largest logits after the winner's, in float64; the winner's place may hold −inf."""
    if m < logits.shape[1]:
        return logits.topk(m, dim=-1, sorted=True).values[:, 1:].double()
    return logits.double().scatter(1, prediction[:, None], -torch.inf)


# Above γ = 1 the sum is not concave in π, so not an entropy; near 0 every term tends to 1 and all rows tie.
@score(
    needs=("logits", "softmax"),
    log_gap=log_generalized_entropy,
    limits={"gamma": (0.001, 1.0), "m": (1, 2**31)},
    title="GEN",
    family="softmax",
)
def gen(logits: Tensor, p: Softmax, *, gamma: float = 0.1, m: int = 100) -> Tensor:
    """The negative generalised entropy: −Σ π^γ(1 − π)^γ over the min(m, K) largest π. Liu et al. 2023."""
    return -torch.exp(log_generalized_entropy(logits, p, gamma=gamma, m=m))
