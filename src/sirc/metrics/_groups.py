"""Checks of the scores of the three groups, with one wording for all metrics."""

from __future__ import annotations

import torch
from torch import Tensor

from sirc._arrays import ArrayLike, as_tensor
from sirc._checks import check_same_length


def check_scores(correct: ArrayLike, wrong: ArrayLike | None, ood: ArrayLike | None) -> list[Tensor]:
    """The three groups as 1-D tensors of one floating type on one device; absent groups are empty."""
    given = {"correct": correct, "wrong": wrong, "ood": ood}
    groups = [as_scores(name, value) if value is not None else torch.empty(0) for name, value in given.items()]
    if not len(groups[0]):
        raise ValueError("`correct` must hold at least one score: with no right prediction there is nothing to accept")
    single = all(group.dtype == torch.float32 for group in groups if len(group))
    return [group.to(groups[0].device, torch.float32 if single else torch.float64) for group in groups]


def as_scores(name: str, value: ArrayLike) -> Tensor:
    """Confidences as a 1-D tensor without NaN: float32 stays, all else becomes float64."""
    scores = as_tensor(name, value)
    if scores.dim() != 1:
        raise ValueError(f"`{name}` must be 1-D, one score for each sample; got shape {tuple(scores.shape)}")
    if scores.is_complex():
        raise ValueError(f"`{name}` must be real numbers; got {scores.dtype}")
    if scores.dtype != torch.float32:
        scores = scores.double()
    wrong = scores.isnan()
    if bool(wrong.any()):
        raise ValueError(
            f"`{name}` must not hold NaN: a score that is no number cannot be ranked; got {int(wrong.sum())} "
            f"of {len(scores)}, the first at index {int(wrong.nonzero()[0])}"
        )
    return scores


def check_weights(weights: ArrayLike, ood: Tensor) -> Tensor:
    """One non-negative finite weight for each OOD score, not all of them 0."""
    values = as_tensor("ood_weights", weights).to(ood.device, torch.float64)
    check_same_length("ood_weights", values, "ood", ood)
    if not bool((values >= 0).all()) or not bool(values.isfinite().all()) or (len(values) and not float(values.sum())):
        raise ValueError("`ood_weights` must be finite, not negative, and not all 0")
    return values
