"""Distance scores that refine Mahalanobis and k-NN: Mahalanobis++, relative Mahalanobis and NNGuide."""

from __future__ import annotations

import torch
from torch import Tensor

from sirc.scores.blocks import by_rows, unit
from sirc.scores.formulas.feature import head_energy, head_of, mahalanobis, unit_bank, whitened_classes, whitening
from sirc.scores.formulas.leave_one_out import background_distances, held_out_mahalanobis
from sirc.scores.moments import Evidence
from sirc.scores.products import product
from sirc.scores.registry import HeldOut, score


@score(
    needs="features",
    solve=lambda evidence: whitened_classes(evidence.unit, "mahalanobis_pp"),
    evidence=("unit", "unit_by_class"),
    held_out=lambda evidence, solved: held_out_mahalanobis(evidence.unit, solved, unit),
    title="Mahalanobis++",
    short="Mahal.++",
    family="distance",
)
def mahalanobis_pp(features: Tensor, *, center: Tensor, whitener: Tensor, means: Tensor) -> Tensor:
    """`mahalanobis` of unit features: −min_k (ẑ−μ_k)ᵀ Σ⁺ (ẑ−μ_k), ẑ = z/‖z‖₂. Müller & Hein 2025."""
    return mahalanobis(unit(features), center=center, whitener=whitener, means=means)


def _relative_held_out(evidence: Evidence, solved: dict[str, Tensor]) -> HeldOut:
    plain = held_out_mahalanobis(evidence.moments, solved)
    background = background_distances(evidence.moments, solved["center"], solved["total"])
    return lambda features, labels: plain(features, labels) + background(features)


@score(
    needs="features",
    solve=lambda evidence: {
        **whitened_classes(evidence.moments, "relative_mahalanobis"),
        "total": whitening(evidence.moments.covariance)[0],
    },
    evidence=("second", "by_class"),
    held_out=_relative_held_out,
    title="Rel. Mahalanobis",
    short="Rel. Mahal.",
    family="distance",
)
def relative_mahalanobis(features: Tensor, *, center: Tensor, whitener: Tensor, means: Tensor, total: Tensor) -> Tensor:
    """`mahalanobis` relative to the distance to all data: −min_k (z−μ_k)ᵀΣ⁺(z−μ_k) + (z−μ)ᵀΣ₀⁺(z−μ). Ren et al. 2021.

    Σ₀ is the covariance of the training features about their mean μ, whatever their class.
    """
    background = product(features - center, total).square_().sum(-1, dtype=torch.float64)
    return mahalanobis(features, center=center, whitener=whitener, means=means) + background


def solve_nnguide(evidence: Evidence, *, k: int, skip: int) -> dict[str, Tensor]:
    """The bank of unit features, and the energy of each of its rows."""
    bank = evidence.bank
    assert bank is not None
    weight, bias = head_of(evidence, bank)
    return {"bank": unit_bank(bank), "energy": head_energy(bank.double(), weight, bias)[:, None]}


@score(
    needs=("energy", "features"),
    solve=solve_nnguide,
    evidence=("bank",),
    head=True,
    limits={"skip": (0, 1)},
    least_rows=lambda k, skip: k + skip,
    exclude_self=lambda options: {**options, "skip": 1},
    title="NNGuide",
    family="distance",
)
def nnguide(
    own_energy: Tensor, features: Tensor, *, bank: Tensor, energy: Tensor, k: int = 10, skip: int = 0
) -> Tensor:
    """The energy times that of near training rows: E(z) · mean of the k largest E(zᵢ) cos(z, zᵢ). Park et al. 2023.

    The energies should be positive, as those of confident rows are. If E(z) is negative, a closer neighbour lowers the
    score; if the energies of the bank are negative, the order is reversed. So a constant added to all logits changes
    the order. `skip=1` leaves out the row with the largest cosine.
    """
    scales = energy[:, 0]

    def guidance(rows: Tensor) -> Tensor:
        table = rows @ bank.T
        nearest = table.argmax(-1, keepdim=True) if skip else None
        table = table.mul_(scales)
        if nearest is not None:
            table = table.scatter_(1, nearest, -torch.inf)
        return table.topk(k, dim=-1, sorted=False).values.sum(-1, dtype=torch.float64) / k

    return own_energy * by_rows(guidance, unit(features), product=len(bank))
