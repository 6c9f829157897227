"""Metrics of selective classification with OOD data: one sort, every α and β."""

from typing import TYPE_CHECKING

from sirc.metrics.binomial import interval, least_count, lower_limit, rejects, upper_limit
from sirc.metrics.bootstrap import METRICS, bootstrap
from sirc.metrics.checks import as_flags, as_scores
from sirc.metrics.draws import AURC, AURR, RISK, grids
from sirc.metrics.merge import Inside, sorted_scores
from sirc.metrics.rank_measures import Components, Estimate, FloatArray, components, kendall, share, spearman
from sirc.metrics.ranking import Curve, Negative, Positive, Ranking

if TYPE_CHECKING:
    from sirc.metrics.accumulator import SelectiveMetrics

__all__ = [
    "AURC",
    "AURR",
    "METRICS",
    "RISK",
    "Components",
    "Curve",
    "Estimate",
    "FloatArray",
    "Inside",
    "Negative",
    "Positive",
    "Ranking",
    "SelectiveMetrics",
    "as_flags",
    "as_scores",
    "bootstrap",
    "components",
    "grids",
    "interval",
    "kendall",
    "least_count",
    "lower_limit",
    "rejects",
    "share",
    "sorted_scores",
    "spearman",
    "upper_limit",
]


def __getattr__(name: str) -> object:
    # torchmetrics, which the accumulator is built on where it is installed, takes seconds to import.
    if name == "SelectiveMetrics":
        from sirc.metrics.accumulator import SelectiveMetrics

        globals()[name] = SelectiveMetrics
        return SelectiveMetrics
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
