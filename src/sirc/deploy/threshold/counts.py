"""Counts of accepted rows at every threshold, from one sort; equal confidences go together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from sirc._utils.arrays import ArrayLike
from sirc.metrics import as_flags, as_scores

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]


@final
@dataclass(frozen=True)
class Rows:
    """The distinct confidences in falling order, and how many rows of each group are at or above each."""

    values: Floats
    correct: Counts
    wrong: Counts
    ood: Counts
    sizes: tuple[int, int, int]

    @property
    def accepted(self) -> Counts:
        """ID rows at or above each value."""
        return self.correct + self.wrong

    def estimates(self, at: int) -> dict[str, float]:
        """Recall, coverage of ID and risk on ID when accepting down to the value at this index; −1 accepts nothing."""
        right, wrong = (int(self.correct[at]), int(self.wrong[at])) if at >= 0 else (0, 0)
        return {
            "recall": right / max(1, self.sizes[0]),
            "coverage": (right + wrong) / max(1, self.sizes[0] + self.sizes[1]),
            "risk": wrong / max(1, right + wrong),
        }

    def nothing(self) -> float:
        """A threshold that accepts none of these rows: +inf, or NaN where a confidence is itself +inf."""
        return float("nan") if self.values[0] == np.inf else float("inf")


def as_rows(confidence: ArrayLike, correct: ArrayLike, ood: ArrayLike | None = None) -> Rows:
    """Check labelled ID confidences, and OOD ones if given, and sort them."""
    scores = as_scores("confidence", confidence)
    right = as_flags("correct", correct, scores).cpu().numpy()
    inside = _nonempty("confidence", scores.cpu().double().numpy())
    groups = np.where(right, 0, 1).astype(np.int8)
    if ood is not None:
        outside = _nonempty("ood", as_scores("ood", ood).cpu().double().numpy())
        inside = np.concatenate((inside, outside))
        groups = np.concatenate((groups, np.full(len(outside), 2, dtype=np.int8)))
    order = np.argsort(-inside)
    values, groups = inside[order], groups[order]
    last = np.append(values[:-1] != values[1:], True)
    counts = [np.cumsum(groups == group, dtype=np.int64) for group in range(3)]
    sizes = (int(counts[0][-1]), int(counts[1][-1]), int(counts[2][-1]))
    return Rows(values[last], counts[0][last], counts[1][last], counts[2][last], sizes)


def _nonempty(name: str, values: Floats) -> Floats:
    """Refuse an empty sample."""
    if not len(values):
        raise ValueError(f"`{name}` must hold at least one confidence; got none. Pass those of the calibration rows.")
    return values


def as_confidences(name: str, values: ArrayLike) -> Floats:
    """Check confidences without labels; at least one."""
    return _nonempty(name, as_scores(name, values).cpu().double().numpy())


def first_reaching(count: int, share: float) -> int:
    """The smallest j with j/count ≥ share as float64, for a share in (0, 1]: 19/20 reaches 0.95."""
    near = int(share * count)
    return next(j for j in range(max(1, near - 1), count + 1) if j / count >= share)
