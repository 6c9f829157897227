"""Selective classification with out-of-distribution data: scores that accept what a classifier gets right.

Start with `guard`, which makes a trained model say "I don't know"; or with `Outputs` (what a model said about a
dataset), `find_head`, `fit` and the `Scorer` it returns. A name is imported on first use, so that `import sirc` and the
command line start at once.
"""

import importlib
import importlib.util
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # for type checkers and editors; a test holds it together with the table below
    from sirc import data, metrics, models, progress
    from sirc._utils import distributed
    from sirc.deploy import Decision, SelectiveClassifier, guard, load_guard, monitor, threshold
    from sirc.errors import DataWarning, NotFittedError, StoreError
    from sirc.evaluation import Choice, Evaluation, combine, evaluate, select
    from sirc.extraction import extract
    from sirc.metrics import Ranking, SelectiveMetrics
    from sirc.models import find_head
    from sirc.outputs import Head, Outputs, OutputStore
    from sirc.scores import Fitter, Moments, Scorer, fit, functional, known_names, moments, score

__version__ = "0.1.0"

__all__ = [
    "Choice",
    "DataWarning",
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
    "guard",
    "known_names",
    "load_guard",
    "metrics",
    "models",
    "moments",
    "monitor",
    "progress",
    "score",
    "select",
    "threshold",
]

_PACKAGES = {
    "sirc._utils": ("distributed",),
    "sirc.deploy": ("Decision", "SelectiveClassifier", "guard", "load_guard", "monitor", "threshold"),
    "sirc.errors": ("DataWarning", "NotFittedError", "StoreError"),
    "sirc.evaluation": ("Choice", "Evaluation", "combine", "evaluate", "select"),
    "sirc.extraction": ("extract",),
    "sirc.metrics": ("Ranking", "SelectiveMetrics"),
    "sirc.models": ("find_head",),
    "sirc.outputs": ("Head", "OutputStore", "Outputs"),
    "sirc.scores": ("Fitter", "Moments", "Scorer", "fit", "functional", "known_names", "moments", "score"),
}
"""The names that are not modules of `sirc` itself, by the package or module that has them."""


def __getattr__(name: str) -> object:
    package = next((package for package, names in _PACKAGES.items() if name in names), "sirc")
    if package != "sirc" and hasattr(module := importlib.import_module(package), name):
        value: object = getattr(module, name)
    elif not name.startswith("_") and importlib.util.find_spec(f"{package}.{name}"):
        value = importlib.import_module(f"{package}.{name}")  # `sirc.experiment.Experiment` needs no import but `sirc`
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value  # not looked for again
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
