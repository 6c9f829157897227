"""Metrics of selective classification with OOD data: one sort, every α and β."""

from typing import TYPE_CHECKING

from sirc.metrics.ranking import Curve, Ranking

if TYPE_CHECKING:
    from sirc.metrics.accumulator import SelectiveMetrics

__all__ = ["Curve", "Ranking", "SelectiveMetrics"]


def __getattr__(name: str) -> object:
    # torchmetrics, which the accumulator is built on where it is installed, takes seconds to import.
    if name == "SelectiveMetrics":
        from sirc.metrics.accumulator import SelectiveMetrics

        globals()[name] = SelectiveMetrics
        return SelectiveMetrics
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
