"""Checks of the scores of the three groups, with one wording for all metrics."""

from __future__ import annotations

import torch
from torch import Tensor

from sirc._utils.arrays import ArrayLike, as_tensor
from sirc._utils.checks import check_same_length


def check_scores(correct: ArrayLike, wrong: ArrayLike | None, ood: ArrayLike | None) -> list[Tensor]:
    """The three groups as 1-D tensors of one floating type on one device; a missing group is empty."""
    given = {"correct": correct, "wrong": wrong, "ood": ood}
    groups = [as_scores(name, value) if value is not None else torch.empty(0) for name, value in given.items()]
    if not len(groups[0]):
        raise ValueError("`correct` must hold at least one score; got none. A ranking needs right predictions")
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
            f"`{name}` must not hold NaN, which cannot be ranked; got {int(wrong.sum())} "
            f"of {len(scores)}, the first at index {int(wrong.nonzero()[0])}"
        )
    return scores


def check_weights(weights: ArrayLike, ood: Tensor) -> Tensor:
    """One non-negative finite weight for each OOD score, not all of them 0."""
    values = _one_each("ood_weights", weights, "ood", ood).double()
    if not bool((values >= 0).all()) or not bool(values.isfinite().all()) or (len(values) and not float(values.sum())):
        raise ValueError("`ood_weights` must be finite, not negative, and not all 0")
    return values


def as_flags(name: str, value: ArrayLike, scores: Tensor) -> Tensor:
    """One True or False (or 1 or 0) for each score."""
    flags = _one_each(name, value, "confidence", scores)
    if flags.dtype != torch.bool and not bool(((flags == 0) | (flags == 1)).all()):
        hint = ". Confidences come before it" if flags.is_floating_point() else ""
        raise ValueError(f"`{name}` must hold True and False, or 1 and 0; got {flags.dtype} with other values{hint}")
    return flags.bool()


def _one_each(name: str, value: ArrayLike, other: str, scores: Tensor) -> Tensor:
    values = as_tensor(name, value).to(scores.device)
    if values.dim() != 1:
        raise ValueError(f"`{name}` must be 1-D, one value for each sample; got shape {tuple(values.shape)}")
    check_same_length(name, values, other, scores)
    return values
