"""The second pass over the training rows: their statistics, and whether they are those of the first."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import final

from torch import Tensor

from sirc.outputs import Outputs
from sirc.scores.fitting.rows import Gatherer, copied, probe
from sirc.scores.fitting.statistics import Solved, Statistics


@final
class SecondPass:
    """Takes in all rows once more; `settle` gives the parameters of combinations."""

    def __init__(self, statistics: Statistics, check_batch: Callable[[Outputs], None]) -> None:
        self.statistics = statistics
        self.seen = 0
        self.checksum = 0.0
        self._check_batch = check_batch
        self._sampled = False

    def read(self, batches: Iterable[tuple[Tensor, Outputs]]) -> None:
        """Take in batches with the dataset indices of their rows."""
        gatherer = Gatherer(lambda where, block: self.statistics.update(block, where), copied)
        for where, batch in batches:
            self._check_batch(batch)
            gatherer.add(where, batch)
            self.seen += len(batch)
            self.checksum += probe(where, batch) if self.statistics.order_matters else 0.0
        gatherer.flush()

    def read_sample(self, index: Tensor, sample: Outputs) -> None:
        """Take in rows kept from the first pass instead."""
        self.statistics.update(sample, index)
        self._sampled = True

    def settle(self, count: int, checksum: float) -> Solved:
        """The parameters, where the first pass saw as many rows, in the same order."""
        if self._sampled:
            return self.statistics.settle()
        if self.seen != count:
            raise ValueError(
                f"the second pass over `train` must bring the rows of the first; got {self.seen} rows after {count}. "
                "Pass a list, an `OutputStore`, or a one-shot iterator"
            )
        if self.statistics.order_matters and abs(self.checksum - checksum) > 1e-6 * (1 + abs(checksum)):
            raise ValueError(
                "the second pass over `train` must bring the same rows in the same order as the first: each row is "
                f"scored without {self.statistics.left_out}. Does a DataLoader shuffle or augment? Set "
                "`shuffle=False`, or pass an `OutputStore`"
            )
        return self.statistics.settle()
