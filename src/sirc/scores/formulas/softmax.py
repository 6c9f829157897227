"""Softmax and logit scores: one pass over the logits gives them all, without cancellation.

With the runner-up factored out: v₁ and v₂ the two largest logits, g = v₁ − v₂ and f_k = exp(v_k − v₂) for
k ≠ ŷ (so that the largest f is 1), the sums t = Σf, w = Σf², q = Σf·(v₂ − v_k) give

    Z·exp(−v₁) = 1 + s,  s = t·exp(−g)                     energy = v₁ + log1p(s)
    1 − π_max  = s/(1 + s)                                  log = log t − g − log1p(s)
    H          = exp(−g)·[t·log1p(s)/s + (g·t + q)/(1 + s)]
    1 − ‖π‖₂   = exp(−g)·[2t + exp(−g)(t² − w)] / [(1 + s)²(1 + ‖π‖₂)]

where every term is positive and exp(−g) enters the logarithms as −g. All of it is float64, whatever the logits' type
(except the exponentials of narrower logits on a GPU): a confident row keeps its rank however large its gap.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from sirc.scores.registry import score
from sirc.scores.row_sums import row_sums


@dataclass(frozen=True)
class Softmax:
    """What one pass over the logits finds in each row: 1-D tensors, all float64 but `prediction`."""

    prediction: Tensor
    top: Tensor
    second: Tensor
    t: Tensor
    w: Tensor
    q: Tensor
    deviation: Tensor
    """‖π − 1/K‖₁."""

    @classmethod
    def of(cls, logits: Tensor, *, compile: bool | None = None) -> Softmax:
        """Read (n, K) logits once.

        `compile=None` chooses the fastest way: on CUDA one kernel, with float32 exponentials unless the logits are
        float64 (`triton_kernel.py` says how little that changes); elsewhere float64 in blocks that fit the cache.
        `False` chooses these blocks on any device, `True` float64 fused by `torch.compile`.
        """
        return cls(*row_sums(logits, compile=compile))

    def __len__(self) -> int:
        return len(self.prediction)

    def __getitem__(self, rows: slice) -> Softmax:
        return Softmax(*(getattr(self, f.name)[rows] for f in fields(self)))

    @property
    def gap(self) -> Tensor:
        """g = v₁ − v₂."""
        return self._once("gap", lambda: self.top - self.second)

    @property
    def rest(self) -> Tensor:
        """s = Σ_{k≠ŷ} exp(v_k − v₁); may underflow to 0."""
        return self._once("rest", lambda: self.t * torch.exp(-self.gap))

    @property
    def norm(self) -> Tensor:
        """‖π‖₂."""
        return self._once("norm", lambda: torch.sqrt(1 + torch.exp(-2 * self.gap) * self.w) / (1 + self.rest))

    def _once(self, name: str, formula: Callable[[], Tensor]) -> Tensor:
        """Compute on first use and cache; while tracing, the compiler removes repeated work."""
        if torch.compiler.is_compiling():
            return formula()
        cache: dict[str, Tensor] = self.__dict__.setdefault("_cache", {})
        if name not in cache:
            cache[name] = formula()
        return cache[name]


def log_one_minus_max(p: Softmax) -> Tensor:
    """log(1 − π_max) = −softplus(g − log t): accurate from a uniform softmax to gaps of any size."""
    return -softplus(p.gap - p.t.log())


def log_entropy(p: Softmax) -> Tensor:
    """log H[π], finite where H itself underflows."""
    s = p.rest
    if torch.compiler.is_compiling():
        # For small s, the series has all digits even if a runtime lacks log1p.
        series = 1 - s * (1 / 2 - s * (1 / 3 - s * (1 / 4 - s * (1 / 5 - s / 6))))
        ratio = torch.where(s > 1e-3, torch.log1p(s) / s.clamp_min(1e-3), series)
    else:
        ratio = torch.where(s > 1e-18, torch.log1p(s) / s, 1.0)  # 1 to the last digit for smaller s; 0/0 at 0
    return torch.log(p.t * ratio + (p.gap * p.t + p.q) / (1 + s)) - p.gap


def log_one_minus_norm(p: Softmax) -> Tensor:
    """log(1 − ‖π‖₂)."""
    s = p.rest
    norm = p.norm
    shrink = torch.exp(-p.gap)
    small = torch.log(2 * p.t + shrink * (p.t * p.t - p.w)) - p.gap - 2 * torch.log1p(s) - torch.log1p(norm)
    # For a norm below ½, 1 − ‖π‖₂ does not cancel.
    return torch.where(norm < 0.5, torch.log1p(-norm.clamp_max(0.5)), small)


def softplus(x: Tensor) -> Tensor:
    """log(1 + exp x), accurate in both tails: torch's own is linear above a threshold."""
    return x.clamp_min(0) + torch.log1p(torch.exp(-x.abs()))


@score(needs="softmax", log_gap=log_one_minus_max, title="MSP", family="softmax")
def msp(p: Softmax) -> Tensor:
    """The largest softmax probability: max π. Hendrycks & Gimpel 2017."""
    return 1 / (1 + p.rest)


@score(needs="softmax", log_gap=log_one_minus_norm, title="DOCTOR", short="DR", family="softmax")
def doctor(p: Softmax) -> Tensor:
    """The 2-norm of the softmax: ‖π‖₂. Granese et al. 2021."""
    return p.norm.clone()  # a copy: the norm itself is cached


@score(needs="softmax", log_gap=log_entropy, title="−H", latex=r"$-\mathcal{H}$", html="−<i>H</i>", family="softmax")
def entropy(p: Softmax) -> Tensor:
    """The negative entropy of the softmax: −H[π] = Σ π log π."""
    return -torch.exp(log_entropy(p))


def _log_margin_gap(p: Softmax) -> Tensor:
    """log(1 − 1/(1 + exp(−g))), the log gap of `msp` if there were only the two largest logits."""
    return -softplus(p.gap)


@score(needs="softmax", log_gap=_log_margin_gap, confidence_kind="plain", family="softmax")
def margin(p: Softmax) -> Tensor:
    """The distance between the two largest logits: v₁ − v₂. Inside `sirc`, log(S1max − S1) = −softplus(v₁ − v₂)."""
    return p.gap.clone()
