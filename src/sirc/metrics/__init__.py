"""Metrics of selective classification with OOD data: the `Ranking` that gives them all, and their registry.

The statistics of their error bars are here too, and the binomial limits that other packages use.

Example:
    >>> from sirc import metrics
    >>> ranking = metrics.Ranking(correct=[0.9, 0.8, 0.7, 0.4], wrong=[0.6, 0.3], ood=[0.5, 0.2])
    >>> float(ranking.auroc("wrong"))
    0.875
    >>> round(float(ranking.aurr(alpha=0.5, beta=0.5)), 3)
    0.062
"""

from typing import TYPE_CHECKING

from sirc.metrics import derivatives, influence
from sirc.metrics.areas import largest_risk, least_reaching
from sirc.metrics.binomial import at_least, binomial_interval, least_count, lower_limit
from sirc.metrics.bootstrap import bootstrap_grids, bootstrap_id_metrics, bootstrap_metrics
from sirc.metrics.checks import as_flags, as_scores
from sirc.metrics.influence import Estimate, Placed
from sirc.metrics.intervals import auroc_influences, spearman, wilson_interval
from sirc.metrics.ranking import Curve, Negative, Positive, Ranking, pooled
from sirc.metrics.registry import Metric, all_metrics, find_metric, lower_is_better, metric, parse_metric
from sirc.metrics.sorted_blocks import SortedBlock, ranking_of_blocks

if TYPE_CHECKING:
    from sirc.metrics.accumulator import SelectiveMetrics

__all__ = [
    "Curve",
    "Estimate",
    "Metric",
    "Negative",
    "Placed",
    "Positive",
    "Ranking",
    "SelectiveMetrics",
    "SortedBlock",
    "all_metrics",
    "as_flags",
    "as_scores",
    "at_least",
    "auroc_influences",
    "binomial_interval",
    "bootstrap_grids",
    "bootstrap_id_metrics",
    "bootstrap_metrics",
    "derivatives",
    "find_metric",
    "influence",
    "largest_risk",
    "least_count",
    "least_reaching",
    "lower_is_better",
    "lower_limit",
    "metric",
    "parse_metric",
    "pooled",
    "ranking_of_blocks",
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
