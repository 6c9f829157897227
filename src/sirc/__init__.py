"""Selective classification with out-of-distribution data: scores that accept what a classifier gets right.

Start with `Outputs` (what a model said about a dataset), `find_head`, `fit` and the `Scorer` it returns.
"""

import importlib
from typing import TYPE_CHECKING

from sirc import metrics, models
from sirc._utils import distributed
from sirc.errors import NotFittedError, StoreError
from sirc.evaluation.evaluation import Evaluation, evaluate
from sirc.evaluation.runs import combine
from sirc.evaluation.selection import Choice, select
from sirc.extraction.pipeline import extract
from sirc.metrics import Ranking
from sirc.models.head import find_head
from sirc.outputs.head import Head
from sirc.outputs.outputs import Outputs
from sirc.outputs.store import OutputStore
from sirc.scores import Fitter, Scorer, fit, functional, known_names, moments, score
from sirc.scores.moments import Moments

if TYPE_CHECKING:
    from sirc import data
    from sirc.deploy import monitor, threshold
    from sirc.deploy.selective import Decision, SelectiveClassifier
    from sirc.metrics import SelectiveMetrics

__version__ = "0.1.0"

__all__ = [
    "Choice",
    "Decision",
    "Evaluation",
    "Fitter",
    "Head",
    "Moments",
    "NotFittedError",
    "OutputStore",
    "Outputs",
    "Ranking",
    "Scorer",
    "SelectiveClassifier",
    "SelectiveMetrics",
    "StoreError",
    "combine",
    "data",
    "distributed",
    "evaluate",
    "extract",
    "find_head",
    "fit",
    "functional",
    "known_names",
    "metrics",
    "models",
    "moments",
    "monitor",
    "score",
    "select",
    "threshold",
]


_MODULES = frozenset(
    [
        "assumptions",
        "data",
        "experiment",
        "figures",
        "monitor",
        "predict",
        "report",
        "results",
        "serve",
        "study",
        "tables",
        "threshold",
    ]
)  # imported when first asked for


def __getattr__(name: str) -> object:
    if name == "SelectiveMetrics":
        globals()[name] = metrics.SelectiveMetrics
        return globals()[name]
    if name in ("Decision", "SelectiveClassifier"):
        globals()[name] = getattr(importlib.import_module("sirc.deploy.selective"), name)
        return globals()[name]
    if name in _MODULES:
        return importlib.import_module(f"sirc.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
