"""Rank statistics and shares with analytic intervals: AUROC, its paired differences, Spearman, Wilson."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from sirc._utils.arrays import Floats
from sirc.metrics.influence import Estimate, Influences, Placed, mean_influences, normal_estimate, student_quantile
from sirc.metrics.registry import REGISTRY


@final
@dataclass(frozen=True)
class AurocInfluences:
    """An AUROC, or its mean over several negative groups, and the influence of each sample on it."""

    auroc: float
    influences: Influences

    def interval(self, level: float) -> Estimate:
        """The AUROC with DeLong's interval."""
        return normal_estimate(self.auroc, self.influences, level, least=0.0)

    def less(self, other: AurocInfluences, level: float) -> Estimate:
        """This AUROC minus another score's on the same samples, with DeLong's interval for correlated AUROCs."""
        difference = self.auroc - other.auroc
        return normal_estimate(difference, self.influences, level, least=-1.0, less=other.influences)


def auroc_influences(positive: Tensor, negatives: Sequence[Tensor]) -> AurocInfluences:
    """The AUROC of one group against one or more others, with influences."""
    metric, nothing = REGISTRY["auroc"], positive[:0]
    placed = [Placed(positive, nothing, {f"{k}": one}, equal_sets=False) for k, one in enumerate(negatives)]
    parts = [one.influences([metric], "ood", 0.95, 0.5, torch.ones(1)) for one in placed]
    return AurocInfluences(sum(one.ranking.auroc("ood") for one in placed) / len(placed), mean_influences(parts))


def spearman(x: Floats, y: Floats, level: float) -> Estimate:
    """Spearman's ρ (ties have their mean rank) with Bonett and Wright's interval; NaN if x or y is constant."""
    from scipy.stats import rankdata

    a, b = (rankdata(v) - (len(v) + 1) / 2 for v in (x, y))
    size = math.sqrt(float(a @ a)) * math.sqrt(float(b @ b))
    if not size:
        return Estimate(math.nan)
    rho = max(-1.0, min(1.0, float(a @ b) / size))
    if len(x) < 4:
        return Estimate(rho, -1.0, 1.0)
    if abs(rho) == 1:
        return Estimate(rho, rho, rho)
    half = float(student_quantile(level, math.inf)) * math.sqrt((1 + rho**2 / 2) / (len(x) - 3))
    return Estimate(rho, math.tanh(math.atanh(rho) - half), math.tanh(math.atanh(rho) + half))


def wilson_interval(count: int, of: int, level: float) -> Estimate:
    """A share with Wilson's interval, which keeps a width where the share is 0 or 1."""
    from scipy.stats import binomtest

    low, high = binomtest(count, of).proportion_ci(level, "wilson")
    return Estimate(count / of, float(low), float(high))
