"""Data for the benchmarks of metrics: made-up scores of ID✓, ID✗ and OOD, and their bootstrap."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

import sirc
from sirc.metrics.bootstrap import bootstrap_metrics

SCORES = 16
Groups = tuple[Tensor, Tensor, Tensor]


def make_groups(sizes: tuple[int, int, int], device: torch.device, seed: int = 0) -> Groups:
    """Scores of ID✓, ID✗ and OOD, the same on every device."""
    generator = torch.Generator().manual_seed(seed)
    shifts = (1.5, 0.3, 0.0)
    made = [torch.randn(n, generator=generator, dtype=torch.float64) + s for n, s in zip(sizes, shifts, strict=True)]
    return made[0].to(device), made[1].to(device), made[2].to(device)


def on_grid(groups: Groups, alphas: Tensor, betas: Tensor) -> None:
    """AURR, AURC and Risk@95 for every α and β."""
    r = sirc.Ranking(*groups)
    r.aurr(alphas, betas)
    r.aurc(alphas, betas)
    r.risk_at_recall(0.95, alphas, betas)


def own_metrics(groups: Groups) -> None:
    """Every metric at α = β = ½."""
    r = sirc.Ranking(*groups)
    r.auroc("wrong"), r.fpr("wrong"), r.auroc("ood"), r.fpr("ood")
    r.aurr(0.5, 0.5), r.risk_at_recall(0.95, 0.5, 0.5), r.aurc(0.5, 0.5), r.augrc(0.5, 0.5)


def repeated(groups: Groups, counts: dict[str, Tensor], draw: int) -> Groups:
    """The samples of one draw, each as often as it was drawn."""
    taken = [g.repeat_interleave(counts[name][:, draw].long()) for g, name in zip(groups, counts, strict=True)]
    return taken[0], taken[1], taken[2]


@dataclass(frozen=True)
class Noisy:
    """Several scores: one score, each time with other noise."""

    confidences: dict[str, Tensor]
    correct: Tensor
    ood: dict[str, dict[str, Tensor]]

    @classmethod
    def of(cls, groups: Groups, device: torch.device) -> Noisy:
        """Make `SCORES` noisy copies of a score."""
        generator = torch.Generator(device).manual_seed(1)
        inside = torch.cat(groups[:2])

        def noisy(x: Tensor) -> Tensor:
            return x + 0.3 * torch.randn(len(x), generator=generator, dtype=x.dtype, device=device)

        confidences = {f"score {i}": noisy(inside) for i in range(SCORES)}
        right = torch.arange(len(inside), device=device) < len(groups[0])
        return cls(confidences, right, {"ood": {name: noisy(groups[2]) for name in confidences}})

    def groups(self, name: str) -> Groups:
        """One score's values of ID✓, ID✗ and OOD."""
        own = self.confidences[name]
        return own[self.correct], own[~self.correct], self.ood["ood"][name]

    def evaluation(self) -> sirc.Evaluation:
        """The evaluation of all scores, with one OOD set."""
        return sirc.evaluate({name: (own, self.correct) for name, own in self.confidences.items()}, ood=self.ood)

    def resample(self, draws: int) -> None:
        """The bootstrap that is timed: all metrics of all scores in each draw."""
        bootstrap_metrics(
            self.confidences, self.correct, self.ood, {"pooled": ["ood"]},
            equal_sets=False, recall=0.95, alpha=0.5, beta=0.5, draws=draws, seed=0,
        )  # fmt: skip
