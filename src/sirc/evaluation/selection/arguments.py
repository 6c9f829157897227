"""Arguments of `select`, checked: its settings, the points of a range, candidates on rows they were not fitted on."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from sirc._utils.arrays import ArrayLike
from sirc._utils.checks import check_fraction, check_positive
from sirc.evaluation.inputs import (
    ConfidenceArrays,
    Data,
    as_fractions,
    as_names,
    check_scorer,
    id_confidences,
    score_labelled,
)
from sirc.metrics import Metric, all_metrics, parse_metric
from sirc.outputs import Outputs, OutputStore
from sirc.scores import Scorer

POINTS = 9  # of a range: 0.1, 0.2, … 0.9 for the default one
_MAY_OVERLAP = 0.01  # the largest share of rows that may be among those the scorer was fitted on


def check_settings(metric: str, by: str, pool: str, draws: int, level: float) -> tuple[Metric, float]:
    """Check the settings; give the metric and the recall it is at."""
    parsed = parse_metric(metric)
    if not parsed or not parsed[0].of_mixture or not parsed[0].lower_is_better:
        losses = [one.label(0.95) for one in all_metrics() if one.of_mixture and one.lower_is_better]
        raise ValueError(f"`metric` must be one of {', '.join(losses)}, a recall being in percent; got {metric!r}")
    if by not in ("worst", "average"):
        raise ValueError(f'`by` must be "worst" or "average"; got {by!r}')
    if pool not in ("samples", "datasets"):
        raise ValueError(f'`pool` must be "samples" or "datasets"; got {pool!r}')
    if not 0 < check_fraction("level", level) < 1:
        raise ValueError(f"`level` must lie between 0 and 1, such as 0.95; got {level:g}")
    if check_positive("draws", draws) < (least := math.ceil(1 / (1 - level) - 1e-9)):
        raise ValueError(f"a level of {level:g} needs at least {least} draws; got {draws}. Use 1000")
    return parsed


def as_points(name: str, value: ArrayLike) -> Tensor:
    """A number, a range (low, high), or the points themselves, as distinct fractions."""
    points = as_fractions(name, value)
    if len(points) != 2:
        return points
    low, high = points.tolist()
    if low > high:
        raise ValueError(f"`{name}` must be a range (low, high); got ({low:g}, {high:g}). Swap the two")
    # Rounded, for the decimal numbers that are meant: 0.3, not 0.30000000000000004.
    return torch.tensor([round(low + (high - low) * i / (POINTS - 1), 12) for i in range(POINTS)], dtype=torch.float64)


def candidates(
    scorer: Scorer | ConfidenceArrays, val: Data | None, scores: Sequence[str] | None
) -> tuple[dict[str, Tensor], Tensor]:
    """Confidences of the candidates, two or more, on ID data, and which predictions are right."""
    check_scorer(scorer)
    fitted = list(scorer.specs if isinstance(scorer, Scorer) else scorer)
    wanted = list(dict.fromkeys(fitted if scores is None else as_names(scores)))
    if len(wanted) < 2:
        raise ValueError(f"a choice is between two scores or more; got {', '.join(wanted) or 'none'}. Fit or name more")
    if not isinstance(scorer, Scorer):
        if val is not None:
            raise ValueError(
                "with confidences from elsewhere, `val` is part of them: pass `select({score: (confidence, correct)}, "
                "ood={set: {score: confidence}})`"
            )
        return id_confidences(scorer, None, wanted)
    if not isinstance(val, Outputs | Iterable):
        got = "none" if val is None else type(val).__name__
        raise ValueError(f"`val` must be labelled ID outputs, a store or batches of them; got {got}")
    chosen = scorer.only(wanted)
    check_fresh(chosen, "val", val)
    return score_labelled(chosen, "val", val)


def check_fresh(scorer: Scorer | ConfidenceArrays, name: str, data: object) -> None:
    """Refuse rows that the scorer was fitted on; a generator can be read only once, so its rows are not checked."""
    if not isinstance(scorer, Scorer) or not isinstance(data, Outputs | OutputStore | list | tuple) or not len(data):
        return
    if (share := scorer.seen(data)) > _MAY_OVERLAP:
        raise ValueError(
            f"`{name}` must be rows that the scorer was not fitted on; about {share:.0%} of them are. On its own rows "
            "a fitted score looks better than it is: pass data that `sirc.fit` did not see"
        )
