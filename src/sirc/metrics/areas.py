"""Areas under risk curves: sums over thresholds that hold for every β, and the grids of metrics made of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from sirc.metrics import core

_FILLING = 1 << 24  # shares looked at together on a GPU


@final
@dataclass(frozen=True)
class Steps:
    """A run of thresholds: accepted shares, the first before it, and how the steps along it make recall, … grow."""

    inside: Tensor
    """The accepted share of ID input."""
    wrong: Tensor
    """The accepted share of ID input that is ID✗."""
    accepted_ood: Tensor
    recall: Tensor
    id: Tensor
    ood: Tensor

    def areas(self, alpha: Tensor) -> Tensor:
        """Σ Δ·bad/coverage for each α, (A, 6): ID✗ and OOD over recall, ID✗ over ID and OOD, OOD likewise."""
        o = self.accepted_ood
        rises = (self.recall, self.id, self.ood)
        columns = torch.stack([step * bad[1:] for bad in (self.wrong, o) for step in rises])
        total = torch.empty(len(alpha), 6, dtype=torch.float64, device=alpha.device)
        # One α at a time stays in a CPU's cache; elsewhere as many as fill the device.
        size = 1 if alpha.device.type == "cpu" else max(1, _FILLING // len(o))
        for first in range(0, len(alpha), size):
            some = slice(first, first + size)
            covered = torch.lerp(o[None, 1:], self.inside[None, 1:], alpha[some, None])
            # Where nothing is covered there is nothing to count.
            inverse = covered.reciprocal_().nan_to_num_(posinf=0.0)
            total[some] = inverse @ columns.T
        return total[:, [0, 3, 1, 2, 4, 5]]

    def generalised(self) -> Tensor:
        """The areas under ID✗, then OOD, over ID and over OOD, by trapezoids."""
        rises = (self.id, self.ood)
        return torch.stack([core.trapezoids_of(k, bad) for bad in (self.wrong, self.accepted_ood) for k in rises])


def aurr(s: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """AURR on the (α, β) grid, from the sums of `Steps.areas`."""
    return over_beta(a * s[:, 0], (1 - a) * s[:, 1], b)


def aurc(s: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """AURC on the grid, from the same sums."""
    wrong = a * (a * s[:, 2] + (1 - a) * s[:, 3])
    return over_beta(wrong, (1 - a) * (a * s[:, 4] + (1 - a) * s[:, 5]), b)


def augrc(t: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """AUGRC on the grid, from `Steps.generalised`."""
    return over_beta(a * (a * t[0] + (1 - a) * t[1]), (1 - a) * (a * t[2] + (1 - a) * t[3]), b)


def over_beta(wrong: Tensor, ood: Tensor, beta: Tensor) -> Tensor:
    """β·wrong + (1−β)·ood on the (α, β) grid."""
    return wrong[:, None] * beta + ood[:, None] * (1 - beta)
