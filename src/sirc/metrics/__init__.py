"""Metrics of selective classification with OOD data: one sort, every α and β, one registry."""

from typing import TYPE_CHECKING

from sirc.metrics.binomial import at_least, binomial_interval, least_count, lower_limit
from sirc.metrics.bootstrap import bootstrap_grids, bootstrap_metrics, draws_of
from sirc.metrics.checks import as_flags, as_scores
from sirc.metrics.intervals import AurocComponents, Estimate, auroc_components, kendall, spearman, wilson_interval
from sirc.metrics.merge import SortedID, sorted_scores
from sirc.metrics.ranking import Curve, Negative, Positive, Ranking
from sirc.metrics.registry import Metric, all_metrics, find_metric, lower_is_better, metric, parse_metric
from sirc.metrics.runs import Run, ranking_of_runs

if TYPE_CHECKING:
    from sirc.metrics.accumulator import SelectiveMetrics

__all__ = [
    "AurocComponents",
    "Curve",
    "Estimate",
    "Metric",
    "Negative",
    "Positive",
    "Ranking",
    "Run",
    "SelectiveMetrics",
    "SortedID",
    "all_metrics",
    "as_flags",
    "as_scores",
    "at_least",
    "auroc_components",
    "binomial_interval",
    "bootstrap_grids",
    "bootstrap_metrics",
    "draws_of",
    "find_metric",
    "kendall",
    "least_count",
    "lower_is_better",
    "lower_limit",
    "metric",
    "parse_metric",
    "ranking_of_runs",
    "sorted_scores",
    "spearman",
    "wilson_interval",
]


def __getattr__(name: str) -> object:
    # torchmetrics, which the accumulator is built on where it is installed, takes seconds to import.
    if name == "SelectiveMetrics":
        from sirc.metrics.accumulator import SelectiveMetrics

        globals()[name] = SelectiveMetrics
        return SelectiveMetrics
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
