"""Δ scores: how much closer a row is to right validation rows than to wrong ones. Heng & Soh 2025.

They are logs of the likelihood ratio p(z | right)/p(z | wrong), which gives the best order (Neyman and Pearson) if the
densities are estimated well.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sirc.scores.blocks import by_rows, unit
from sirc.scores.formulas.feature import BANK_SIZE, unit_bank, whitened_classes
from sirc.scores.moments import Evidence, Moments, row_hash
from sirc.scores.registry import score

_NEAREST = 1e-6  # added to squared distances, so that a row of the bank has a finite log


def _right_and_wrong(evidence: Evidence, name: str, least: int = 1) -> dict[str, tuple[Tensor, Tensor]]:
    """Features and labels of the right and of the wrong validation rows, at least `least` of either."""
    val = evidence.val
    assert val is not None
    assert val.features is not None
    assert val.labels is not None
    places = {"right": val.correct.nonzero()[:, 0], "wrong": (~val.correct).nonzero()[:, 0]}
    if min(map(len, places.values())) < least:
        needed = "right and wrong rows" if least == 1 else f"at least {least} right and {least} wrong rows"
        got = " and ".join(f"{len(rows)} {which}" for which, rows in places.items())
        raise ValueError(
            f"`{name}` needs {needed} in `val`; got {got}. Pass more validation rows"
            f"{', or choose a smaller k' if least > 1 else ''}"
        )
    return {which: (val.features[rows], val.labels[rows]) for which, rows in places.items()}


def solve_delta_mahalanobis(evidence: Evidence) -> dict[str, Tensor]:
    """The whitening of `mahalanobis`, and the class means of right and of wrong rows under it."""
    groups, moments = _right_and_wrong(evidence, "delta_mahalanobis"), evidence.moments
    space = whitened_classes(moments, "delta_mahalanobis")
    center, whitener = space["center"], space["whitener"]
    parameters = {"center": center, "whitener": whitener}
    for which, (features, labels) in groups.items():
        sums = Moments(second=False, classes=moments.classes).add(features, labels)
        parameters[which] = (sums.class_mean[sums.class_count > 0].to(center) - center) @ whitener
    return parameters


@score(
    needs="features",
    solve=solve_delta_mahalanobis,
    evidence=("second", "by_class"),
    val=True,
    title="Δ-Mahalanobis",
    short="Δ-Mahal.",
    family="distance",
)
def delta_mahalanobis(features: Tensor, *, center: Tensor, whitener: Tensor, right: Tensor, wrong: Tensor) -> Tensor:
    """Distance to wrong rows minus distance to right ones: min_k (z−μ_k✗)ᵀΣ⁺(z−μ_k✗) − min_k (z−μ_k✓)ᵀΣ⁺(z−μ_k✓).

    μ_k✓ and μ_k✗ are the means of the right and of the wrong rows of class k in `val`, for classes that have such rows;
    Σ is that of `mahalanobis`, from training rows. Heng & Soh 2025 take one Σ for right rows and one for wrong rows.
    """
    white = (features - center) @ whitener

    def nearest(means: Tensor) -> Tensor:
        # Leave out ‖y‖², which cancels in the difference.
        return torch.addmm(means.square().sum(-1), white, means.T, alpha=-2).amin(-1).double()

    return nearest(wrong) - nearest(right)


def solve_delta_knn(evidence: Evidence, *, k: int) -> dict[str, Tensor]:
    """The unit features of right and of wrong rows: at most 12,500 random ones of either."""
    banks = {}
    for which, (features, _) in _right_and_wrong(evidence, "delta_knn", k).items():
        kept = row_hash(torch.arange(len(features), device="cpu"), 0).argsort()[:BANK_SIZE]
        banks[which] = unit_bank(features[kept.to(features.device)])
    return banks


@score(needs="features", solve=solve_delta_knn, val=True, title="Δ-KNN", family="distance")
def delta_knn(features: Tensor, *, right: Tensor, wrong: Tensor, k: int = 25) -> Tensor:
    """Log distance to wrong rows minus that to right ones: mean_i log ‖ẑ − ẑ₍ᵢ₎✗‖² − mean_i log ‖ẑ − ẑ₍ᵢ₎✓‖².

    The means are over the k nearest unit features of the right and of the wrong rows of `val`. Heng & Soh 2025.
    """
    directions = unit(features)

    def distance(bank: Tensor) -> Tensor:
        def mean_log(rows: Tensor) -> Tensor:
            nearest = bank[(rows @ bank.T).topk(k, dim=-1, sorted=False).indices]
            return (rows[:, None] - nearest).square().sum(-1, dtype=torch.float64).add(_NEAREST).log().mean(-1)

        return by_rows(mean_log, directions, product=max(len(bank), k * bank.shape[1]))

    return distance(wrong) - distance(right)
