"""Rankings of one score with many OOD sets, by merging: ID data and each set are sorted once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sirc._utils.arrays import ascending_order
from sirc.metrics.ranking import Ranking

Negated = npt.NDArray[Any]  # float32 or float64, negated: the strictest threshold comes first
Counts = npt.NDArray[np.int32]


@final
class SortedID:
    """The sorted ID confidences of one score on the CPU, to rank with one OOD set after another."""

    def __init__(self, confidence: Tensor, correct: Tensor) -> None:
        values, right = -confidence.numpy(), correct.numpy()
        order = ascending_order(values)
        values, right = values[order], right[order]
        last = _last(values)
        self._values: Negated = values[last]
        # Starting with 0, for a place before the first threshold.
        self._correct = _from_zero(np.cumsum(right, dtype=np.int32)[last])
        self._wrong = _from_zero(np.cumsum(~right, dtype=np.int32)[last])

    def ranking(self, sets: Sequence[Negated]) -> Ranking:
        """The ranking with these OOD sets, each as `sorted_scores` returned it."""
        ood = np.concatenate([self._values[:0], *sets])
        if len(sets) > 1:
            ood.sort(kind="stable")  # merges sorted parts, which costs less than sorting anew
        # Of equal scores the ID one comes last, and is their threshold.
        place = np.searchsorted(self._values, ood, side="left") + np.arange(len(ood))
        outside = np.zeros(len(self._values) + len(ood), dtype=bool)
        outside[place] = True
        values = np.empty(len(outside), dtype=ood.dtype)
        values[place], values[~outside] = ood, self._values
        accepted = np.cumsum(outside, dtype=np.int32)
        last = _last(values)
        passed = (np.arange(1, len(outside) + 1, dtype=np.int32) - accepted)[last]
        columns = -values[last], self._correct[passed], self._wrong[passed], accepted[last]
        return Ranking._of_counts(*map(torch.from_numpy, columns))


def sorted_scores(confidence: Tensor) -> Negated:
    """The confidences of an OOD set, sorted for a merge."""
    return np.sort(-confidence.numpy())


def _last(values: Negated) -> slice | npt.NDArray[np.bool_]:
    """The last of equal scores, which are accepted together."""
    last = np.ones(len(values), dtype=bool)
    np.not_equal(values[:-1], values[1:], out=last[:-1])
    return slice(None) if last.all() else last


def _from_zero(counts: Counts) -> Counts:
    return np.concatenate([np.zeros(1, dtype=np.int32), counts])
