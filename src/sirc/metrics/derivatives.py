"""Derivatives of the metrics with respect to each sample's mass: exact for smooth metrics, estimated at a recall.

A metric is a function of the accepted shares of ID✓, ID✗ and OOD at the thresholds, and a sample adds its mass to the
share of its group at every threshold that accepts it. So the derivative depends only on the sample's group and on the
first threshold that accepts it, and follows from running sums over the thresholds. The accuracy is held fixed.

Each function takes a `Ranking` and the metric's parameters (α as one number, β as a 1-D tensor). It returns, for each
group that matters, the derivative at every threshold: (thresholds,), or (β, thresholds) for a metric of the mixture.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import NormalDist
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from sirc.metrics.ranking import Negative, Ranking

ByGroup = dict[str, Tensor]
Derivative = Callable[..., ByGroup]

GROUPS = ("correct", "wrong", "ood")
_FEWEST = 4  # distinct recalls in the window that a slope needs
BEYOND = 2  # ID✓ that the threshold at a recall must reject, on average
_END = 1e-3  # recalls nearer to 0 or 1 than this have the window at this distance


def auroc(ranking: Ranking, negative: Negative) -> ByGroup:
    """DeLong's structural components: the share of the other group that is ranked below, or above."""
    c, x, o = ranking.midway
    return {"correct": 1 - (x if negative == "wrong" else o), negative: c}


def aurr(ranking: Ranking, alpha: float, beta: Tensor) -> ByGroup:
    """Derivative of AURR: the sample's own risk (ID✓ only) plus its effect on all looser thresholds."""
    return _area(ranking, alpha, beta, torch.eye(3, dtype=torch.float64, device=beta.device)[0])


def aurc(ranking: Ranking, alpha: float, beta: Tensor) -> ByGroup:
    """Derivative of AURC: the sample's own risk plus its effect on all looser thresholds."""
    return _area(ranking, alpha, beta, ranking.masses(alpha))


def augrc(ranking: Ranking, alpha: float, beta: Tensor) -> ByGroup:
    """Derivative of AUGRC, by trapezoids: the sample's own loss plus its cost over the coverage that follows."""
    halves, masses = ranking.midway, ranking.masses(alpha)
    costs = ranking.costs(alpha, beta)
    return {
        group: torch.addmm(cost[:, None], (mass * costs - masses[:, None] * cost).T, halves)
        for group, mass, cost in zip(GROUPS, masses, costs, strict=True)
        if mass
    }


def fpr(ranking: Ranking, negative: Negative, recall: float) -> ByGroup:
    """1 for an accepted negative; an accepted ID✓ raises the threshold, and so lowers the share by the slope dX/dC."""
    accepted, slopes, _ = _at_recall(ranking, recall)
    return {negative: accepted, "correct": -slopes[negative] * accepted}


def risk(ranking: Ranking, recall: float, alpha: float, beta: Tensor) -> ByGroup:
    """Derivative of the risk at a recall, through the accepted shares of ID✗ and OOD, each as in `fpr`."""
    accepted, slopes, shares = _at_recall(ranking, recall)
    masses, costs = ranking.masses(alpha), ranking.costs(alpha, beta)
    covered = masses @ shares
    value = shares @ costs / covered
    by_share = {g: (cost - mass * value) / covered for g, mass, cost in zip(GROUPS, masses, costs, strict=True)}
    by_share["correct"] = -by_share["wrong"] * slopes["wrong"] - by_share["ood"] * slopes["ood"]
    return {group: by_share[group][:, None] * accepted for group, mass in zip(GROUPS, masses, strict=True) if mass}


def _area(ranking: Ranking, alpha: float, beta: Tensor, over: Tensor) -> ByGroup:
    """Derivative of the area under the risk, over any mix of the groups' accepted shares."""
    inverse, value = ranking.risks(alpha, beta)
    along = over @ ranking.shares()
    steps = torch.diff(along, prepend=along.new_zeros(1)).mul_(inverse)
    by_loss, by_cover = _from_there_on(steps), _from_there_on(steps * value)
    found = {}
    for group, part, mass, cost in zip(GROUPS, over, ranking.masses(alpha), ranking.costs(alpha, beta), strict=True):
        if mass or part:
            found[group] = by_cover * -mass
            if group != "correct":
                found[group].addcmul_(cost[:, None], by_loss)
            if part:
                found[group].add_(value, alpha=float(part))
    return found


def overhang(ranking: Ranking, alpha: float, beta: Tensor) -> Tensor:
    """How far the steps of AURC lie above the line through their ends, for each β: its bias with few samples.

    Steps of several ID samples with equal scores do not count: more samples would leave them as they are.
    """
    inverse, value = ranking.risks(alpha, beta)
    covered = torch.where(inverse > 0, inverse, torch.inf).reciprocal_()
    correct, wrong, _ = ranking.shares().diff()
    alone = ranking.num_correct * correct + ranking.num_wrong * wrong < 1.5
    over: Tensor = torch.linalg.vecdot(covered.diff() * alone, value.diff()).clamp_min(0) / 2
    return over


def _from_there_on(values: Tensor) -> Tensor:
    """At each threshold, the sum over it and all looser ones."""
    running = values.cumsum(-1)
    total = running[..., -1:].clone()
    return torch.sub(values, running, out=running).add_(total)


def resolved(ranking: Ranking, recall: float) -> bool:
    """Whether enough recalls lie near this one for a slope: not with few or tied ID✓, nor at 0 or 1."""
    if not 0 < recall < 1 or ranking.num_correct * (1 - recall) < BEYOND:
        return False
    low, high = _ends(ranking, recall)
    return len(torch.unique(ranking.shares()[0][low : high + 1])) >= _FEWEST


def window(recall: float, correct: int) -> float:
    """The half width of the window for a slope at a recall of so many ID✓: Bofinger's h for a quantile (1975)."""
    z = NormalDist().inv_cdf(min(max(recall, _END), 1 - _END))
    return float((4.5 * NormalDist().pdf(z) ** 4 / (2 * z**2 + 1) ** 2 / correct) ** 0.2)


def _ends(ranking: Ranking, recall: float) -> tuple[int, int]:
    """The thresholds at the two ends of the window."""
    c, h = ranking.shares()[0], window(recall, ranking.num_correct)
    return int(torch.searchsorted(c, recall - h)), max(0, int(torch.searchsorted(c, recall + h, right=True)) - 1)


def _at_recall(ranking: Ranking, recall: float) -> tuple[Tensor, dict[str, Tensor], Tensor]:
    """Flags of the thresholds at or above that of a recall; there, the slopes dX/dC, dO/dC and the accepted shares.

    Slopes are those of a chord over a window of recalls, on the logit scale, where the curve is nearly straight.
    """
    shares = ranking.shares()
    low, high = _ends(ranking, recall)
    at = min(int(torch.searchsorted(shares[0], recall)), len(shares[0]) - 1)
    half = 0.5 / shares.new_tensor([ranking.num_correct, ranking.num_wrong, ranking.num_ood]).clamp_min(1)[:, None]
    near = shares[:, [low, at, high]].clamp(half, 1 - half)
    logits, middle = near.logit(), near[:, 1]
    rises = (logits[:, 2] - logits[:, 0]) * (middle * (1 - middle))
    slopes = dict(zip(GROUPS, rises / rises[0], strict=True))
    accepted = torch.zeros_like(shares[0])
    accepted[: at + 1] = 1.0
    return accepted, slopes, shares[:, at]
