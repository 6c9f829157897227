"""Metrics of selective classification with OOD data: one sort, every α and β."""

from sirc.metrics.ranking import Curve, Ranking
from sirc.metrics.stream import SelectiveMetrics

__all__ = ["Curve", "Ranking", "SelectiveMetrics"]
