"""Metrics on a whole (α, β) grid in every draw of a stratified bootstrap, for several scores on the same draws.

As in `metrics.resample` a draw is a set of counts on an order that was sorted once. Risk is linear in β, so that a grid
costs one reciprocal for each α and sample:

    AURR(α, β) = β·Σ w·α(1−p)x/k + (1−β)·Σ w·(1−α)o/k        k = α[pc + (1−p)x] + (1−α)o

with c, x, o the accepted shares of ID✓, ID✗ and OOD at an ID✓ sample's score, and w how much the draw holds of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from sirc.metrics.bootstrap import Draws

AURR, AURC, RISK = "aurr", "aurc", "risk"

# Counts worked on at a time. On a CPU they stay in its cache, and are too few for PyTorch to divide among threads:
# thousands of small operations that wait for one another's threads crawl on a machine that has other work, too.
_CHUNK = (1 << 15) - 1
_CHUNK_ELSEWHERE = 1 << 25


def grids(
    confidences: Mapping[str, Tensor],
    correct: Tensor,
    ood: Mapping[str, Mapping[str, Tensor]],
    *,
    equal_sets: bool,
    metric: str,
    recall: float,
    alpha: Tensor,
    beta: Tensor,
    draws: int,
    seed: int,
) -> Iterator[Tensor]:
    """For each block of draws the metric of every score, (draws of the block, scores, α, β), float64 on the CPU.

    ID✓, ID✗ and each OOD set are resampled separately. With `equal_sets` OOD sets weigh the same, else samples do.
    """
    sizes = {name: len(next(iter(by_score.values()))) for name, by_score in ood.items()}
    right = int(correct.sum())
    groups = {"correct": right, "wrong": len(correct) - right, **{f"ood {name}": n for name, n in sizes.items()}}
    orders = [
        _Order(own[correct], own[~correct], _joined([ood[name][score] for name in ood], own), metric, recall)
        for score, own in confidences.items()
    ]
    for counts in Draws(groups, draws, seed, correct.device).blocks():
        parts = [counts[f"ood {name}"] / (n if equal_sets else 1) for name, n in sizes.items()]
        outside = torch.cat(parts) if parts else counts["wrong"][:0]
        # A group of very many rows is counted in float64, and its shares meet those of the others.
        dtype = torch.promote_types(torch.promote_types(counts["correct"].dtype, counts["wrong"].dtype), outside.dtype)
        correct_mass, wrong_mass, outside = (m.to(dtype) for m in (counts["correct"], counts["wrong"], outside))
        found = torch.stack([one.values(correct_mass, wrong_mass, outside, alpha) for one in orders])
        # (scores, 2, α, draws): what ID✗ and OOD add, for β to weigh.
        wrong, other = found.cpu().permute(1, 3, 0, 2)[..., None]
        yield wrong * beta + other * (1 - beta)


def _joined(parts: list[Tensor], like: Tensor) -> Tensor:
    return torch.cat(parts) if parts else like[:0]


class _Order:
    """One score's order of the three groups, and where each sample at which risk is taken stands in the others."""

    def __init__(self, correct: Tensor, wrong: Tensor, ood: Tensor, metric: str, recall: float) -> None:
        self._metric = metric
        self._accuracy = len(correct) / (len(correct) + len(wrong))
        # The least count of ID✓ whose share, as a float64, reaches the recall.
        least = math.ceil(recall * len(correct))
        self._least = least - 1 if (least - 1) / len(correct) >= recall else least
        groups = [group.double().sort(descending=True) for group in (correct, wrong, ood)]
        self._orders = [order for _, order in groups]
        # Negated, as searchsorted wants an ascending order.
        ascending = [-values for values, _ in groups]
        at = groups if metric == AURC else groups[:1]
        self._places = [[torch.searchsorted(other, -own, right=True) for other in ascending] for own, _ in at]

    def values(self, correct: Tensor, wrong: Tensor, ood: Tensor, alpha: Tensor) -> Tensor:
        """What ID✗ and OOD add to the metric at β = 1 and β = 0, from the mass of each sample, (2, α, draws)."""
        sums = [
            _running(mass.index_select(0, order))
            for mass, order in zip((correct, wrong, ood), self._orders, strict=True)
        ]
        weights, running = [weight for weight, _ in sums], [run for _, run in sums]
        if self._metric == RISK:
            return self._at_recall(running, alpha)
        p, a = self._accuracy, alpha.to(correct.device)[:, None]
        found = [self._areas(group, weights[group], running, alpha) for group in range(len(self._places))]
        if self._metric == AURR:
            return found[0]
        return a * (p * found[0] + (1 - p) * found[1]) + (1 - a) * found[2]

    def _areas(self, group: int, weights: Tensor, running: list[Tensor], alpha: Tensor) -> Tensor:
        """The mean risk at the samples of a group."""
        draws = weights.shape[1]
        total = torch.zeros(2, len(alpha), draws, dtype=torch.float64, device=weights.device)
        size = max(1, (_CHUNK if weights.device.type == "cpu" else _CHUNK_ELSEWHERE) // draws)
        for start in range(0, len(weights), size):
            some = slice(start, start + size)
            c, x, o = (run.index_select(0, at[some]) for run, at in zip(running, self._places[group], strict=True))
            x *= 1 - self._accuracy
            inside = c.mul_(self._accuracy).add_(x)
            bad = (x.mul_(weights[some]), torch.mul(o, weights[some]))
            inverse, term = torch.empty_like(o), torch.empty_like(o)
            for number, a in enumerate(alpha.tolist()):
                # Where nothing is accepted the loss is 0, and so is the risk.
                torch.lerp(o, inside, a, out=inverse).clamp_min_(torch.finfo(o.dtype).tiny).reciprocal_()
                for which, share in enumerate((a, 1 - a)):
                    if share > 0:  # 0 times what may be infinite
                        total[which, number].add_(torch.mul(inverse, bad[which], out=term).sum(0), alpha=share)
        return total

    def _at_recall(self, running: list[Tensor], alpha: Tensor) -> Tensor:
        """The risk at the highest threshold that accepts enough of ID✓."""
        draws = running[0].shape[1]
        if not self._least:  # reached by accepting nothing
            return torch.zeros(2, len(alpha), draws, dtype=torch.float64, device=running[0].device)
        # Shares are counts over n, rounded: half a count tells the least count from the one below it.
        own = running[0].index_select(0, self._places[0][0])
        at = (own < (self._least - 0.5) / len(own)).sum(0).clamp_max(len(own) - 1)
        c, x, o = (
            run.double().gather(0, place[at][None])[0] for run, place in zip(running, self._places[0], strict=True)
        )
        p, a = self._accuracy, alpha.to(c.device)[:, None]
        covered = a * (p * c + (1 - p) * x) + (1 - a) * o
        bad = torch.stack((a * (1 - p) * x, (1 - a) * o))
        return bad / covered.clamp_min(torch.finfo(covered.dtype).tiny)


def _running(masses: Tensor) -> tuple[Tensor, Tensor]:
    """Masses scaled to add up to 1, and their running sum from 0 on (summed first: counts add up without rounding)."""
    running = masses.new_zeros(len(masses) + 1, masses.shape[1])
    torch.cumsum(masses, 0, out=running[1:])
    scale = running[-1].clamp_min(torch.finfo(running.dtype).tiny).reciprocal()
    return masses.mul_(scale), running.mul_(scale)
