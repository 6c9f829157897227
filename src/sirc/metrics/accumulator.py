"""Streaming accumulator of the metrics for training loops; a `torchmetrics.Metric` where that is installed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sirc._utils.arrays import ArrayLike
from sirc._utils.checks import check_fraction, check_type
from sirc.metrics.checks import as_flags, as_scores
from sirc.metrics.ranking import Negative, Ranking
from sirc.metrics.registry import Metric, all_metrics


class _Plain:
    """The little of `torchmetrics.Metric` that the accumulator uses."""

    def __init__(self) -> None:
        self._defaults: dict[str, list[Tensor]] = {}
        self._computed: object = None
        self._update_count = 0

    def add_state(self, name: str, default: list[Tensor], dist_reduce_fx: str) -> None:
        self._defaults[name] = default
        setattr(self, name, list(default))

    def set_dtype(self, dtype: torch.dtype) -> None:
        """States are already of the one type that `update` gives them."""

    def reset(self) -> None:
        for name, default in self._defaults.items():
            setattr(self, name, list(default))


if TYPE_CHECKING:
    _Base = _Plain
else:
    try:
        from torchmetrics import Metric as _Base
    except ImportError:
        _Base = _Plain


class SelectiveMetrics(_Base):
    """Collect confidences batch by batch and give all metrics at the end.

    ```python
    metric = SelectiveMetrics(alpha=0.5, beta=0.5)
    metric.update(confidence, correct, is_ood)
    metric.compute()["aurr"]
    ```

    Across processes, torchmetrics gathers the batches by itself; without it, `merge` takes in another accumulator.
    """

    full_state_update = False
    is_differentiable = False

    confidence: list[Tensor]
    group: list[Tensor]

    def __init__(self, *, alpha: float = 0.5, beta: float = 0.5, recall: float = 0.95, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.alpha, self.beta = check_fraction("alpha", alpha), check_fraction("beta", beta)
        self.recall = check_fraction("recall", recall)
        self.add_state("confidence", default=[], dist_reduce_fx="cat")
        self.add_state("group", default=[], dist_reduce_fx="cat")
        # One type for all states: processes gather only what agrees, an idle one an empty state of this type.
        self.set_dtype(torch.float64)

    def update(self, confidence: ArrayLike, correct: ArrayLike, is_ood: ArrayLike | None = None) -> None:
        """Take in a batch: confidences, whether each prediction is right, whether each input is OOD (by default none).

        What `correct` says of an OOD input does not matter.
        """
        scores = as_scores("confidence", confidence)
        right = as_flags("correct", correct, scores)
        outside = torch.zeros_like(right) if is_ood is None else as_flags("is_ood", is_ood, scores)
        # Copied, as the caller may fill the same memory with the next batch.
        self.confidence.append(scores.to(torch.float64, copy=True))
        self.group.append(torch.where(outside, 2.0, torch.where(right, 0.0, 1.0)).double())

    def merge(self, other: SelectiveMetrics) -> SelectiveMetrics:
        """Take in all that another accumulator has seen; returns itself."""
        check_type("other", other, SelectiveMetrics, "a SelectiveMetrics")
        mine, theirs = ((m.alpha, m.beta, m.recall) for m in (self, other))
        if mine != theirs:
            raise ValueError(f"accumulators merge when α, β and recall are the same; got {mine} and {theirs}")
        self.confidence = [*_parts(self.confidence), *_parts(other.confidence)]
        self.group = [*_parts(self.group), *_parts(other.group)]
        # torchmetrics keeps the last result until the next update, and warns of a metric without any.
        self._computed, self._update_count = None, self._update_count + other._update_count
        return self

    def ranking(self) -> Ranking:
        """The `Ranking` of all that was seen, for any other α, β or threshold."""
        return Ranking(*self._scores())

    def compute(self) -> dict[str, Tensor]:
        """All metrics that the inputs so far allow: without OOD inputs, those of the mixture only for α = 1.

        `error` alone without right predictions, nothing without ID inputs: a batch of them, such as `forward` looks
        at by itself, may have none.
        """
        scores = self._scores()
        if not len(scores[0]):
            return {"error": torch.ones((), dtype=torch.float64)} if len(scores[1]) else {}
        r = Ranking(*scores)
        alpha, beta = (torch.tensor([share], dtype=torch.float64) for share in (self.alpha, self.beta))
        sizes: dict[Negative, int] = {"wrong": r.num_wrong, "ood": r.num_ood}
        metrics = [m for m in all_metrics() if not m.of_mixture or r.num_ood or self.alpha == 1]
        cells: list[tuple[str, Metric, Negative]] = [
            *((m.label(self.recall), m, "ood") for m in metrics if not m.per_negative),
            *((f"{m.label(self.recall)}_{n}", m, n) for n in sizes if sizes[n] for m in metrics if m.of_negative),
            *((m.label(self.recall), m, "ood") for m in metrics if m.of_mixture and not m.of_negative),
        ]
        return {name: m.grid(r, negative, self.recall, alpha, beta)[0, 0] for name, m, negative in cells}

    def _scores(self) -> list[Tensor]:
        """The scores of ID✓, ID✗ and OOD."""
        if not _parts(self.confidence):
            raise ValueError("nothing was seen yet: call `update` first")
        scores, group = torch.cat(_parts(self.confidence)), torch.cat(_parts(self.group))
        return [scores[group == number] for number in range(3)]


def _parts(state: list[Tensor] | Tensor) -> list[Tensor]:
    """A state as a list: torchmetrics leaves one tensor after it has gathered."""
    return [state] if isinstance(state, Tensor) else state
