"""MaxLogit-pNorm: the largest centred logit divided by the p-norm of all, exact near its bound.

With v̄ the mean logit, ŷ the winner, x_k = (v̄ − v_k)/(v₁ − v̄) for the K − 1 others and R = Σ|x_k|^p,

    (v₁ − v̄)/‖v − v̄‖_p = (1 + R)^(−1/p),   R ≥ (K − 1)^(1−p).

The bound: Σx = 1, so that by Jensen's inequality Σ|x|^p ≥ (K − 1)·|1/(K − 1)|^p = (K − 1)^(1−p), with equality where
all other logits are equal (p > 1); (1 + R)^(−1/p) falls with R, so S1max = (1 + (K − 1)^(1−p))^(−1/p).

The excess R − (K − 1)^(1−p) is a sum of nonnegative terms: with h = 1/(K − 1), as Σ(x − h) = 0,

    |x|^p − h^p − p·h^(p−1)·(x − h) = (|x| − h)²·Q_p(|x|) + 2p·h^(p−1)·max(−x, 0),
    Q_1 = 0,  Q_{p+1}(y) = y·Q_p(y) + p·h^(p−1)

and for x ≥ 0, |x| − h = x − h is K·h·(v̄' − v_k)/(v₁ − v̄') with v̄' the mean of the others. All in float64. As
|x| < K, nothing overflows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from sirc.metrics import Ranking
from sirc.scores.blocks import by_rows, constant
from sirc.scores.formulas.softmax import Softmax, log_one_minus_max, msp
from sirc.scores.registry import Option, score

MSP = -1
"""The p that stands for `msp`; chosen if no norm ranks better."""
_LARGEST = 9
_FLOOR = 2.0**-1000  # the least excess: rows at the bound, where it is 0, tie above all other rows


def _excesses(logits: Tensor, p: Softmax, powers: Sequence[int]) -> Tensor:
    """R − (K − 1)^(1−p) of each row for each p in ascending `powers`, (len(powers), n)."""
    k = logits.shape[1]
    h = 1 / (k - 1)

    def number(value: float) -> Tensor | float:
        return constant(value, p.top)

    def formula(v: Tensor, prediction: Tensor, second: Tensor, gap: Tensor) -> Tensor:
        winner = prediction[:, None]
        below = (second[:, None] - v.double()).scatter_(1, winner, 0.0)
        mean = below.sum(-1, keepdim=True) / (k - 1)
        size = gap[:, None] + mean
        equal = size == 0
        deviation = (below - mean).div_(torch.where(equal, 1.0, size)).mul_(number(k * h)).scatter_(1, winner, 0.0)
        x = deviation + number(h)
        y = x.abs()
        square = torch.where(x < 0, y - number(h), deviation).square_()
        negative = (y - x).sum(-1)  # twice Σ max(−x, 0)
        q = torch.zeros_like(y)
        excesses = []
        for power in range(1, powers[-1] + 1):
            if power > 1:
                q = q * y + number((power - 1) * h ** (power - 2))
            if power in powers:
                excess = (square * q).sum(-1) + negative * number(power * h ** (power - 1))
                # If all logits are equal, take the largest R that K logits can have: K − 1 equal ones and one lower.
                most = number(k - 2 + (k - 1.0) ** power - h ** (power - 1))
                excesses.append(torch.where(equal[:, 0], most, excess))
        return torch.stack(excesses)

    return by_rows(formula, logits, p.prediction, p.second, p.gap)


def _log_ratio(excess: Tensor, k: int, p: int) -> Tensor:
    """log(S1max/S1)."""
    return torch.log1p(excess / constant(1 + (k - 1.0) ** (1 - p), excess)) / p


def bound(k: int, p: int) -> float:
    """S1max = (1 + (K − 1)^(1−p))^(−1/p), the largest value that K logits can have, for p ≥ 1."""
    return float((1 + (k - 1.0) ** (1 - p)) ** (-1 / p))


def _centred_max(logits: Tensor, p: Softmax) -> Tensor:
    """v₁ − v̄."""
    return by_rows(lambda v, top: (top[:, None] - v.double()).mean(-1), logits, p.top)


def log_gap_to_bound(logits: Tensor, softmax: Softmax, *, p: int) -> Tensor:
    """log(S1max − S1) for p ≥ 1; rows at the bound get one finite value. p = −1: log(1 − π_max)."""
    if p == MSP:
        return log_one_minus_max(softmax)
    if p == 0:
        raise ValueError(
            "`max_logit_pnorm` must have p ≥ 1 to have a bound; got p = 0, the centred largest logit, which has none. "
            "Choose p from 1 to 9, or use `margin`"
        )
    k = logits.shape[1]
    ratio = _log_ratio(_excesses(logits, softmax, [p])[0].clamp_min(_FLOOR), k, p)
    return torch.log(-torch.expm1(-ratio)) + constant(math.log(bound(k, p)), ratio)


def choose_p(logits: Tensor, labels: Tensor) -> dict[str, Option]:
    """`p`, from 0 to 9, with the least AURC on labelled rows, and `p_bounded`, from 1 to 9.

    Each is −1, which means `msp`, unless its AURC is strictly less; also without a wrong or without a right row.
    """
    softmax = Softmax.of(logits)
    right = softmax.prediction == labels
    if bool(right.all()) or not bool(right.any()):
        return {"p": MSP, "p_bounded": MSP}
    k, powers = logits.shape[1], range(1, _LARGEST + 1)
    columns = {MSP: -log_one_minus_max(softmax), 0: _centred_max(logits, softmax)}
    excesses = _excesses(logits, softmax, powers)
    columns |= {p: _plain(excess, k, p) for p, excess in zip(powers, excesses, strict=True)}
    area = {p: Ranking(column[right], column[~right]).aurc(1.0, 1.0) for p, column in columns.items()}
    # `min` takes the first of equal ones: −1 before all p, then the smallest p.
    bounded = [p for p in area if p != 0]
    return {"p": min(area, key=area.__getitem__), "p_bounded": min(bounded, key=area.__getitem__)}


def _plain(excess: Tensor, k: int, p: int) -> Tensor:
    return torch.exp(-_log_ratio(excess, k, p)) * constant(bound(k, p), excess)


@score(
    needs=("logits", "softmax"),
    log_gap=log_gap_to_bound,
    tune=choose_p,
    confidence_kind="plain",
    limits={"p": (MSP, _LARGEST), "p_bounded": (1, _LARGEST)},
    title="MaxLogit-pNorm",
    latex="MaxLogit-$p$Norm",
    html="MaxLogit-<i>p</i>Norm",
    family="softmax",
)
def max_logit_pnorm(logits: Tensor, softmax: Softmax, *, p: int = 4) -> Tensor:
    """The largest centred logit divided by the p-norm of all: (v₁ − v̄)/‖v − v̄‖_p. Cattelan & Silva 2023.

    p = 0 leaves out the norm; p = −1 is `msp`. `fit` chooses p on labelled validation data (`choose_p`); without them,
    p = 4. Equal logits, 0/0, get the smallest value that K logits can have (p = 0: 0).
    """
    if p == MSP:
        return msp(softmax)
    if p == 0:
        return _centred_max(logits, softmax)
    return _plain(_excesses(logits, softmax, [p])[0], logits.shape[1], p)
