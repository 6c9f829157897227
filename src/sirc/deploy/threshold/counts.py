"""Counts of accepted rows at every threshold, from one sort; equal confidences stay together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray

from sirc._utils.arrays import ArrayLike, Floats, counts_from_above
from sirc._utils.checks import check_fraction
from sirc.metrics import as_flags, as_scores, least_reaching

Counts = NDArray[np.int64]


@final
@dataclass(frozen=True)
class ConfidenceCounts:
    """The distinct confidences, highest first, and how many rows of each group are at or above each."""

    values: Floats
    correct: Counts
    wrong: Counts
    ood: Counts
    sizes: dict[str, int]
    scale: float

    @property
    def accepted(self) -> Counts:
        """ID rows at or above each value."""
        return self.correct + self.wrong

    def estimates(self, at: int) -> dict[str, float]:
        """Recall, ID coverage and ID risk when accepting down to the value at this index; −1 accepts nothing."""
        right, wrong = (int(self.correct[at]), int(self.wrong[at])) if at >= 0 else (0, 0)
        return {
            "recall": right / max(1, self.sizes["correct"]),
            "coverage": (right + wrong) / max(1, self.sizes["correct"] + self.sizes["wrong"]),
            "risk": wrong / max(1, right + wrong),
        }

    def under(self, tolerance: float, values: Floats | None = None) -> tuple[Floats, Counts]:
        """The tolerance's margin below each value, and the index of the lowest value that is accepted within it."""
        values = self.values if values is None else values
        margins: Floats = check_fraction("tolerance", tolerance) * sizes(values, self.scale)
        return margins, np.searchsorted(-self.values, margins - values, side="right") - 1

    def with_errors_raised(self, share: float) -> tuple[Floats, Counts, Counts]:
        """Values from the highest down, with their accepted rows and errors, after each error is raised.

        An error is raised to the value v that lies above it by this share of max(|v|, scale).
        """
        raised = self.values + share * self.scale
        raised = np.where(raised > self.scale, self.values / (1 - share), raised)
        raised = np.where(raised < -self.scale, self.values / (1 + share), raised)
        right, wrong = (np.diff(counts, prepend=0) for counts in (self.correct, self.wrong))
        values, place = np.unique(-np.concatenate((self.values, raised)), return_inverse=True)
        both = np.bincount(place, np.concatenate((right, wrong))).cumsum().astype(np.int64)
        errors = np.bincount(place, np.concatenate((np.zeros_like(right), wrong))).cumsum().astype(np.int64)
        last = np.flatnonzero(np.diff(both, prepend=0))  # where there is a row
        return -values[last], both[last], errors[last]

    def nothing(self) -> float:
        """A threshold that accepts none of these rows: +inf, or NaN if a confidence is itself +inf."""
        return float("nan") if self.values[0] == np.inf else float("inf")


def count_rows(confidence: ArrayLike, correct: ArrayLike | None, ood: ArrayLike | None = None) -> ConfidenceCounts:
    """Check and count ID confidences, and OOD ones if given; without labels, all rows count as correct."""
    values = as_confidences("confidence", confidence)
    right = np.full(len(values), True)
    if correct is not None:
        right = as_flags("correct", correct, torch.from_numpy(values)).numpy()
    outside = values[:0] if ood is None else as_confidences("ood", ood)
    distinct, (of_right, of_wrong, of_ood) = counts_from_above([values[right], values[~right], outside])
    sizes = {"correct": int(right.sum()), "wrong": int((~right).sum())}
    if ood is not None:
        sizes["ood"] = len(outside)
    return ConfidenceCounts(distinct, of_right, of_wrong, of_ood, sizes, typical_size(values))


def as_confidences(name: str, values: ArrayLike) -> Floats:
    """Check confidences without labels; at least one."""
    confidences: Floats = as_scores(name, values).cpu().double().numpy()
    if not len(confidences):
        raise ValueError(f"`{name}` must hold at least one confidence; got none. Pass those of some rows.")
    return confidences


def rank_reaching(count: int, share: float) -> int:
    """How many of `count` correct rows must be accepted to reach a share in (0, 1]: 19 of 20 for 0.95."""
    if not count:
        raise ValueError("`correct` must hold at least one True: with no right prediction there is no recall")
    return least_reaching(share, count)


def typical_size(values: Floats) -> float:
    """The median |confidence|. Tolerances are shares of at least this: confidences near 0 are no more exact."""
    finite = np.abs(values[np.isfinite(values)])
    return float(np.median(finite)) if len(finite) else 0.0


def sizes(values: Floats, scale: float) -> Floats:
    """The sizes that tolerances are shares of: |confidence| or the typical size, if larger; 0 where infinite."""
    return np.where(np.isfinite(values), np.maximum(np.abs(values), scale), 0.0)


def check_inner(name: str, value: float) -> float:
    """Require a number strictly between 0 and 1."""
    share = check_fraction(name, value)
    if share in (0, 1):
        raise ValueError(f"`{name}` must lie strictly between 0 and 1: no sample can show more; got {share:g}")
    return share
