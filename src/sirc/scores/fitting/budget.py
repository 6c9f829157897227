"""Budgeted SIRC: the strongest influence of S2 that costs at most so many points of AUROC of ID✗|ID✓."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from sirc.metrics import Ranking
from sirc.scores import combine

_STEP = 0.05
_FURTHEST = 6.0
_SILENT = 1e9  # in σ: softplus of minus that is 0 for any S2 that is not beyond it


def spend(
    log_gap: Tensor,
    others: Sequence[Tensor],
    a: Sequence[float],
    b: Sequence[float],
    correct: Tensor,
    budget: float,
    spec: str,
) -> dict[str, Tensor | Sequence[float]]:
    """a and b of SIRC, with a = μ − 3σ moved towards ID data as far as the budget allows."""
    right = int(correct.sum())
    if right in (0, len(correct)):
        raise ValueError(
            f"`val` must hold right and wrong predictions for `{spec}`, whose budget is in AUROC of ID✗|ID✓; got "
            f"{right} right and {len(correct) - right} wrong. Pass more validation rows"
        )

    def auroc(confidence: Tensor) -> float:
        return float(Ranking(confidence[correct], confidence[~correct]).auroc("wrong"))

    floor = auroc(-log_gap) - budget / 100
    steps = round(2 * _FURTHEST / _STEP)
    for shift in (_FURTHEST - step * _STEP for step in range(steps + 1)):
        moved = [center + shift / slope for center, slope in zip(a, b, strict=True)]
        if auroc(combine.sirc(log_gap, others, moved, b)) >= floor:
            break
    else:  # not even the weakest: S2 is not heard at all
        moved = [center - _SILENT / slope for center, slope in zip(a, b, strict=True)]
    return {"a": moved, "b": list(b)}
