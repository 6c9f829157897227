"""The paper's figures: each function draws what the metric functions return, as a matplotlib Figure."""

from sirc.report.figures.changes import change_table, changes
from sirc.report.figures.curves import Roc, risks, roc, separation, sweep_table, sweeps
from sirc.report.figures.densities import densities
from sirc.report.figures.plane import Plane, plane, plane_grid, plane_rules
from sirc.report.figures.samples import sample_images
from sirc.report.figures.study import FORMATS, figures, save
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
