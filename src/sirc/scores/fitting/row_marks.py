"""Which rows a fit has seen: marks of a sample of them, to tell data that may not judge the fit."""

from __future__ import annotations

import torch
from torch import Tensor

from sirc.scores.moments import Reservoir, row_hash

SAMPLE = 4096
_SEED = 11  # other rows than those of the bank
_MARKS = 4
_CLOSE = 1e-5  # of the marks' size: a row that is computed anew differs by rounding, another row by much more
_BLOCK = 1 << 12


class SeenRows:
    """Marks of up to 4096 random rows out of all that were shown, whatever their order or the number of workers."""

    def __init__(self) -> None:
        self._sample = Reservoir(SAMPLE, seed=_SEED)

    def update(self, index: Tensor, logits: Tensor) -> None:
        """Take in rows: their dataset indices, and the logits by which they are known."""
        # Rows that the sample has no room for are not read.
        likely = (row_hash(index, _SEED) < self._sample._keys.max()).nonzero()[:, 0]
        self._sample.update(index[likely], {"mark": row_marks(logits[likely.to(logits.device)]).cpu()})

    def merge(self, other: SeenRows) -> None:
        """Take in what another has seen."""
        self._sample.merge(other._sample)

    def rows(self) -> tuple[Tensor, Tensor]:
        """The dataset indices of the rows kept, and their marks."""
        index, columns = self._sample.rows()
        return index, columns.get("mark", torch.empty(0, _MARKS, dtype=torch.float64, device="cpu"))

    def restore(self, index: Tensor, marks: Tensor) -> None:
        """Take in rows that another process kept."""
        if len(index):
            self._sample.update(index, {"mark": marks.cpu()})


def row_marks(logits: Tensor) -> Tensor:
    """Four random sums of each row of (n, K) logits, float64."""
    places = torch.arange(_MARKS * logits.shape[1], device="cpu")
    signs = (row_hash(places, _SEED) & 1).double() * 2 - 1
    # Weights that differ, so that rows with the same logits in another order differ too.
    weights = signs * (1 + places.double() / len(places))
    return logits.detach().double() @ weights.reshape(-1, _MARKS).to(logits.device)


def met(sample: Tensor, marks: Tensor) -> Tensor:
    """Which rows of the sample are among rows with these marks, up to rounding."""
    near = torch.full((len(sample),), torch.inf, dtype=torch.float64, device="cpu")
    marks = marks.cpu()
    for start in range(0, len(marks), _BLOCK):
        near = torch.minimum(near, torch.cdist(sample, marks[start : start + _BLOCK], p=torch.inf).amin(1))
    return near <= _CLOSE * (1 + sample.abs().amax(1))
