"""The paper's figures: each function draws what the metric functions return, as a matplotlib Figure."""

from sirc.report.figures.changes import change_table, changes, fpr_table
from sirc.report.figures.densities import densities
from sirc.report.figures.files import FORMATS, save
from sirc.report.figures.pieces import Roc, roc
from sirc.report.figures.plane import plane, plane_grid, plane_rules
from sirc.report.figures.plane_values import Plane, PlaneValues, plane_values
from sirc.report.figures.risks import risks
from sirc.report.figures.samples import sample_images
from sirc.report.figures.separation import separation
from sirc.report.figures.study import figures
from sirc.report.figures.style import GROUPS, Look, method_look
from sirc.report.figures.sweeps import sweep_table, sweeps

__all__ = [
    "FORMATS",
    "GROUPS",
    "Look",
    "Plane",
    "PlaneValues",
    "Roc",
    "change_table",
    "changes",
    "densities",
    "figures",
    "fpr_table",
    "method_look",
    "plane",
    "plane_grid",
    "plane_rules",
    "plane_values",
    "risks",
    "roc",
    "sample_images",
    "save",
    "separation",
    "sweep_table",
    "sweeps",
]
