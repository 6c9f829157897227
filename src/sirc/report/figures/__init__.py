"""The paper's figures: each function draws what metrics return as a matplotlib Figure."""

from sirc.report.figures.comparisons import Roc, change_table, changes, risks, roc, separation, sweep_table, sweeps
from sirc.report.figures.densities import densities
from sirc.report.figures.plane import Plane, plane, plane_grid, plane_rules
from sirc.report.figures.study import FORMATS, figures, sample_images, save
from sirc.report.figures.style import GROUPS, Look, method_look

__all__ = [
    "FORMATS",
    "GROUPS",
    "Look",
    "Plane",
    "Roc",
    "change_table",
    "changes",
    "densities",
    "figures",
    "method_look",
    "plane",
    "plane_grid",
    "plane_rules",
    "risks",
    "roc",
    "sample_images",
    "save",
    "separation",
    "sweep_table",
    "sweeps",
]
