"""Energies of reshaped features: activations clipped, pruned or rescaled before the head."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from sirc.scores.blocks import by_rows, working_dtype
from sirc.scores.formulas.feature import head_energy, head_of
from sirc.scores.moments import Evidence
from sirc.scores.registry import score

_UNSUITED_FOR = (
    "transformers and other networks whose features are signed: it uses the sum of the activations as their size and "
    "drops the small ones as noise, which is right only after a ReLU"
)
# Without the smallest p% of activations, at least 1 − p/100 of the sum is left, so that eʳ is finite up to p = 99.
_PERCENTILES = {"percentile": (0, 99)}


def pooled_percentile(values: Tensor, percentile: float) -> Tensor:
    """The percentile of all values together, in float64, interpolated as NumPy does."""
    flat = values.reshape(-1).to("cpu", working_dtype(values.dtype)).numpy()
    place = (len(flat) - 1) * percentile / 100
    ranks = [math.floor(place), math.ceil(place)]
    # torch.kthvalue takes quadratic time on descending values; torch.quantile accepts at most 16 million values.
    low, high = np.partition(flat, ranks)[ranks].astype(np.float64)
    return torch.tensor(low + (high - low) * (place - ranks[0]), dtype=torch.float64, device=values.device)


def solve_react(evidence: Evidence, *, percentile: float) -> dict[str, Tensor]:
    """The head, and the value at which activations are clipped."""
    sample = evidence.bank
    assert sample is not None
    clip = pooled_percentile(sample, percentile)
    if not float(clip) > float(sample.min()):
        raise ValueError(
            f"`react` needs a percentile at which some training activations lie below it; at {percentile:g} it is "
            f"{float(clip):.3g}, the least of all, and every row would be clipped to the same. Choose a higher one: "
            f"`react(percentile=99)`"
        )
    weight, bias = head_of(evidence, sample)
    return {"weight": weight, "bias": bias, "clip": clip.reshape(1)}


@score(
    needs="features",
    solve=solve_react,
    evidence=("sample",),
    head=True,
    limits={"percentile": (0, 100)},
    title="ReAct",
    family="logit",
)
def react(features: Tensor, *, weight: Tensor, bias: Tensor, clip: Tensor, percentile: float = 90.0) -> Tensor:
    """The energy of features clipped at the 90th percentile of ID data: logsumexp(W min(z, c) + b). Sun et al. 2021.

    c is the percentile of the activations of all features together, in a random sample of 12,500 training rows.
    """
    return head_energy(torch.minimum(features, clip), weight, bias)


@score(
    needs=("logits", "features"),
    solve=lambda evidence, percentile: {"bias": head_of(evidence)[1]},
    head=True,
    limits=_PERCENTILES,
    unsuited_for=_UNSUITED_FOR,
    title="SCALE",
    family="logit",
)
def scale(logits: Tensor, features: Tensor, *, bias: Tensor, percentile: float = 85.0) -> Tensor:
    """The energy of scaled features: logsumexp(eʳ(v − b) + b), r = Σz/Σz′, z′ the largest 15% of z. Xu et al. 2024.

    The sums are of the positive parts, so that r is defined for any features; r = 1 where no feature is positive.
    Features as large as the smallest of those kept are kept too.
    """
    factor = _ratio(features, _largest(features, percentile)).exp()

    def energy(v: Tensor, factor: Tensor) -> Tensor:
        return torch.addcmul(bias.double(), v.double() - bias, factor[:, None]).logsumexp(-1)

    return by_rows(energy, logits, factor)


@score(
    needs="features",
    solve=lambda evidence, percentile: dict(zip(("weight", "bias"), head_of(evidence), strict=True)),
    head=True,
    limits=_PERCENTILES,
    unsuited_for=_UNSUITED_FOR,
    title="ASH",
    family="logit",
)
def ash(features: Tensor, *, weight: Tensor, bias: Tensor, percentile: float = 90.0) -> Tensor:
    """The energy of the largest 10% of z, z′, scaled: logsumexp(eʳ Wz′ + b), r = Σz/Σz′. Djurisic et al. 2023.

    The variant ASH-S. The sums are of the positive parts, as in `scale`, and equal features are kept together.
    """
    kept = _largest(features, percentile)
    factor = _ratio(features, kept).exp()

    def energy(rows: Tensor, factor: Tensor) -> Tensor:
        return torch.addcmul(bias.double(), (rows @ weight.T).double(), factor[:, None]).logsumexp(-1)

    return by_rows(energy, kept, factor, product=len(weight))


def _largest(features: Tensor, percentile: float) -> Tensor:
    """The features, with all but the largest of each row set to 0; as many are kept as in the authors' code."""
    size = features.shape[1]
    count = max(1, size - round(size * percentile / 100))
    least = features.topk(count, dim=-1, sorted=False).values.amin(-1, keepdim=True)
    return torch.where(features >= least, features, 0.0)


def _ratio(features: Tensor, kept: Tensor) -> Tensor:
    """r, the sum of the positive features divided by that of the kept ones, (n,) float64."""
    before, after = (rows.clamp_min(0).sum(-1, dtype=torch.float64) for rows in (features, kept))
    return torch.where(after > 0, before / torch.where(after > 0, after, 1.0), 1.0)
