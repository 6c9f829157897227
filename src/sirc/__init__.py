"""Selective classification with out-of-distribution data: scores that accept what a classifier gets right.

Start with `Outputs` (what a model said about a dataset), `find_head`, `fit` and the `Scorer` it returns. Each name is
imported when it is first asked for, so that `import sirc` and the command line start at once.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sirc import data, metrics, models
    from sirc._utils import distributed
    from sirc.deploy import Decision, SelectiveClassifier, monitor, threshold
    from sirc.errors import NotFittedError, StoreError
    from sirc.evaluation import Choice, Evaluation, combine, evaluate, select
    from sirc.extraction import extract
    from sirc.metrics import Ranking, SelectiveMetrics
    from sirc.models import find_head
    from sirc.outputs import Head, Outputs, OutputStore
    from sirc.scores import Fitter, Moments, Scorer, fit, functional, known_names, moments, score

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

_MODULES = {
    "data": "sirc.data",
    "distributed": "sirc._utils.distributed",
    "functional": "sirc.scores.functional",
    "metrics": "sirc.metrics",
    "models": "sirc.models",
    "moments": "sirc.scores.moments",
    "monitor": "sirc.deploy.monitor",
    "threshold": "sirc.deploy.threshold",
}
_NAMES = {
    "sirc.deploy": ("Decision", "SelectiveClassifier"),
    "sirc.errors": ("NotFittedError", "StoreError"),
    "sirc.evaluation": ("Choice", "Evaluation", "combine", "evaluate", "select"),
    "sirc.extraction": ("extract",),
    "sirc.metrics": ("Ranking", "SelectiveMetrics"),
    "sirc.models": ("find_head",),
    "sirc.outputs": ("Head", "OutputStore", "Outputs"),
    "sirc.scores": ("Fitter", "Moments", "Scorer", "fit", "known_names", "score"),
}
_HOMES = {name: room for room, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> object:
    if name in _MODULES:
        value: object = importlib.import_module(_MODULES[name])
    elif name in _HOMES:
        value = getattr(importlib.import_module(_HOMES[name]), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value  # asked for once
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
