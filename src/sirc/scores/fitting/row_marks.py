"""Row marks: fingerprints of a sample of the fitting rows, which recognise these rows in data that should be new."""

from __future__ import annotations

import torch
from torch import Tensor

from sirc.scores.moments import Reservoir, row_hash

_SAMPLE = 4096
_SEED = 11  # so that it samples other rows than the bank
_MARKS = 4
_CLOSE = 1e-5  # relative: recomputing a row changes its marks by less, other rows differ by more
_BLOCK = 1 << 12


def empty_sample() -> Reservoir:
    """An empty sample of marks, for up to 4096 rows: the same rows in any order and with any number of workers."""
    return Reservoir(_SAMPLE, seed=_SEED)


def mark_rows(sample: Reservoir, index: Tensor, logits: Tensor) -> None:
    """Add the marks of rows to a sample, given their dataset indices and their logits."""
    rows = sample.admits(index).nonzero()[:, 0]
    sample.update(index[rows], {"mark": row_marks(logits[rows.to(logits.device)]).cpu()})


def row_marks(logits: Tensor) -> Tensor:
    """Four random sums of each row of (n, K) logits, float64."""
    places = torch.arange(_MARKS * logits.shape[1], device="cpu")
    signs = (row_hash(places, _SEED) & 1).double() * 2 - 1
    # Weights of different sizes, so that the same logits in another order give other marks.
    weights = signs * (1 + places.double() / len(places))
    return logits.detach().double() @ weights.reshape(-1, _MARKS).to(logits.device)


def matching_rows(sample: Tensor, marks: Tensor) -> Tensor:
    """Whether each row of the sample matches one of these marks, up to rounding."""
    distance = torch.full((len(sample),), torch.inf, dtype=torch.float64, device="cpu")
    marks = marks.cpu()
    for start in range(0, len(marks), _BLOCK):
        distance = torch.minimum(distance, torch.cdist(sample, marks[start : start + _BLOCK], p=torch.inf).amin(1))
    return distance <= _CLOSE * (1 + sample.abs().amax(1))
