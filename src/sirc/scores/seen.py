"""Which rows a fit has seen: digests of a sample of them, to tell data that may not judge the fit."""

from __future__ import annotations

import torch
from torch import Tensor

from sirc.moments import Reservoir, row_hash

SAMPLE = 4096
_SEED = 11  # other rows than those of the bank
_VIEWS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


class SeenRows:
    """Digests of up to 4096 random rows out of all that were shown, whatever their order or the number of workers."""

    def __init__(self) -> None:
        self._sample = Reservoir(SAMPLE, seed=_SEED)

    def update(self, index: Tensor, logits: Tensor) -> None:
        """Take in rows: their dataset indices, and the logits by which they are known."""
        # Rows that the sample has no room for are not read.
        likely = (row_hash(index, _SEED) < self._sample._keys.max()).nonzero()[:, 0]
        self._sample.update(index[likely], {"digest": row_digests(logits[likely.to(logits.device)]).cpu()})

    def merge(self, other: SeenRows) -> None:
        """Take in what another has seen."""
        self._sample.merge(other._sample)

    def rows(self) -> tuple[Tensor, Tensor]:
        """The dataset indices of the rows kept, and their digests."""
        index, columns = self._sample.rows()
        return index, columns.get("digest", torch.empty(0, dtype=torch.int64, device="cpu"))

    def restore(self, index: Tensor, digests: Tensor) -> None:
        """Take in rows that another process kept."""
        if len(index):
            self._sample.update(index, {"digest": digests.cpu()})


def row_digests(logits: Tensor) -> Tensor:
    """One number for each row of (n, K) logits, that two rows share only if they have the same bits."""
    bits = logits.detach().contiguous().view(_VIEWS[logits.element_size()]).to(torch.int64)
    column = torch.arange(1, bits.shape[1] + 1, device="cpu")
    weights = row_hash(column, _SEED) * 2 + 1  # odd: a change of one column always shows
    return (bits * weights.to(bits.device)).sum(-1)
