"""Streaming accumulator of the metrics for training loops; a `torchmetrics.Metric` if that is installed."""

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
    """The few methods of `torchmetrics.Metric` that the accumulator uses."""

    def __init__(self) -> None:
        self._defaults: dict[str, list[Tensor]] = {}
        self._computed: object = None
        self._update_count = 0

    def add_state(self, name: str, default: list[Tensor], dist_reduce_fx: str) -> None:
        self._defaults[name] = default
        setattr(self, name, list(default))

    def set_dtype(self, dtype: torch.dtype) -> None:
        """Nothing to do: `update` gives states their type."""

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
    """Collects confidences batch by batch and computes all metrics at the end.

    Across processes, torchmetrics gathers the batches; without it, use `merge`.

    Example:
        >>> import sirc
        >>> metric = sirc.SelectiveMetrics(alpha=0.5, beta=0.5)
        >>> metric.update([0.9, 0.8, 0.4], correct=[True, True, False])
        >>> metric.update([0.85, 0.1], correct=[False, False], is_ood=[True, True])
        >>> {name: float(value) for name, value in metric.compute().items() if name.startswith("auroc")}
        {'auroc_wrong': 1.0, 'auroc_ood': 0.75}
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
        # Processes gather only states of one type, and a process without batches has an empty state of this type.
        self.set_dtype(torch.float64)

    def update(self, confidence: ArrayLike, correct: ArrayLike, is_ood: ArrayLike | None = None) -> None:
        """Add a batch: confidences, whether each prediction is right, and whether each input is OOD (by default none).

        `correct` is ignored for OOD inputs.
        """
        scores = as_scores("confidence", confidence)
        right = as_flags("correct", correct, scores)
        outside = torch.zeros_like(right) if is_ood is None else as_flags("is_ood", is_ood, scores)
        # Copied, as the caller may reuse the memory for the next batch.
        self.confidence.append(scores.to(torch.float64, copy=True))
        self.group.append(torch.where(outside, 2.0, torch.where(right, 0.0, 1.0)).double())

    def merge(self, other: SelectiveMetrics) -> SelectiveMetrics:
        """Add everything that another accumulator has collected; returns this one."""
        check_type("other", other, SelectiveMetrics, "a SelectiveMetrics")
        mine, theirs = ((m.alpha, m.beta, m.recall) for m in (self, other))
        if mine != theirs:
            raise ValueError(f"accumulators merge only with the same α, β and recall; got {mine} and {theirs}")
        self.confidence = [*_parts(self.confidence), *_parts(other.confidence)]
        self.group = [*_parts(self.group), *_parts(other.group)]
        # torchmetrics keeps its last result until the next update, and warns of a metric without updates.
        self._computed, self._update_count = None, self._update_count + other._update_count
        return self

    def ranking(self) -> Ranking:
        """The `Ranking` of everything seen so far, for any other α, β or threshold."""
        return Ranking(*self._scores())

    def compute(self) -> dict[str, Tensor]:
        """All metrics that the inputs so far allow.

        Without OOD inputs, metrics of the mixture are included only for α = 1. Without right predictions there is only
        `error`, and without ID inputs nothing: the single batch that `forward` evaluates may have none.
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
            raise ValueError("there is nothing to compute yet: call `update` first")
        scores, group = torch.cat(_parts(self.confidence)), torch.cat(_parts(self.group))
        return [scores[group == number] for number in range(3)]


def _parts(state: list[Tensor] | Tensor) -> list[Tensor]:
    """A state as a list: torchmetrics leaves one tensor after it has gathered."""
    return [state] if isinstance(state, Tensor) else state
