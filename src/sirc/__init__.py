"""Selective classification with out-of-distribution data: scores that accept what a classifier gets right.

Start with `Outputs` (what a model said about a dataset), `find_head`, `fit` and the `Scorer` it returns.
"""

import importlib
from typing import TYPE_CHECKING

from sirc import distributed, functional, metrics, models, moments
from sirc.errors import NotFittedError, StoreError
from sirc.evaluate import Evaluation, evaluate
from sirc.extract import extract
from sirc.head import Head, find_head
from sirc.metrics import Ranking
from sirc.moments import Moments
from sirc.outputs import Outputs
from sirc.runs import combine
from sirc.scores import Fitter, Scorer, fit, known_names, score
from sirc.store import OutputStore

if TYPE_CHECKING:
    from sirc import data
    from sirc.metrics import SelectiveMetrics

__version__ = "0.1.0"

__all__ = [
    "Evaluation",
    "Fitter",
    "Head",
    "Moments",
    "NotFittedError",
    "OutputStore",
    "Outputs",
    "Ranking",
    "Scorer",
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
    "score",
]


def __getattr__(name: str) -> object:
    if name == "SelectiveMetrics":
        globals()[name] = metrics.SelectiveMetrics
        return globals()[name]
    if name in ("data", "experiment", "figures", "report", "results", "study", "tables"):
        return importlib.import_module(f"sirc.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
