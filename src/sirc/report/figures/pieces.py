"""Inputs of figures from an evaluation: samples of each group, ROC curves, thresholds, α and β."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np
import numpy.typing as npt
from torch import Tensor

from sirc.evaluation import POOLED, WRONG, Evaluation
from sirc.metrics import Negative, Positive, Ranking

FloatArray = npt.NDArray[np.float64]


@final
@dataclass(frozen=True)
class Roc:
    """Shares accepted at each threshold, from none accepted and the strictest threshold on."""

    tpr: FloatArray
    fpr: FloatArray


def roc(ranking: Ranking, negative: Negative, positive: Positive = "correct") -> Roc:
    """The false positive rate against the true positive rate; `positive="id"` with `"ood"` is OOD detection."""
    ranking._check_pair(negative, positive)
    tpr, fpr = ranking._pair(ranking._as_shares(slice(None)), negative, positive)
    return Roc(np.append(0.0, array(tpr)), np.append(0.0, array(fpr)))


def array(values: Tensor) -> FloatArray:
    """A tensor from any device as float64 for matplotlib."""
    return np.asarray(values.detach().cpu().double().numpy())


def samples(
    evaluation: Evaluation, score: str, negative: str = POOLED
) -> tuple[dict[str, FloatArray], FloatArray | None]:
    """The confidences of ID✓, ID✗ and OOD, and the weights of the OOD samples where these differ."""
    evaluation._check_score(score)
    inside, correct = evaluation.confidences[score], evaluation.correct
    sets = [] if negative == WRONG else evaluation._members(negative)
    outside = [array(evaluation.ood[name][score]) for name in sets]
    weights = None
    if evaluation.pool == "datasets" and len(outside) > 1:
        weights = np.concatenate([np.full(len(values), 1 / len(values)) for values in outside])
    ood = np.concatenate(outside) if outside else np.empty(0)
    return {"correct": array(inside[correct]), "wrong": array(inside[~correct]), "ood": ood}, weights


def detection_threshold(ranking: Ranking, recall: float) -> float:
    """The highest threshold that accepts at least `recall` of all ID data, as OOD detection sets it."""
    return float(ranking.thresholds[ranking._reaching(recall, "id")])


def default_negative(evaluation: Evaluation) -> str:
    """All OOD data, where there is any."""
    return POOLED if evaluation.ood else WRONG


def mixture(evaluation: Evaluation, alpha: float | None, beta: float | None) -> tuple[float, float]:
    """One α and one β: those given, else the evaluation's own where it has one, else ½ (α = 1 without OOD data)."""

    def choose(given: float | None, evaluated: Tensor) -> float:
        default = float(evaluated[0]) if len(evaluated) == 1 else 0.5
        return default if given is None else float(given)

    share = choose(alpha, evaluation.alpha) if evaluation.ood or alpha is not None else 1.0
    return share, choose(beta, evaluation.beta)
