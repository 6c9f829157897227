"""Cross-fitting: the number of folds that statistics of fitted scores are computed with."""

import operator
from typing import Literal

Crossfit = int | Literal["auto"]

_FOLDS = 5
_ROWS_PER_FEATURE = 100  # `crossfit="auto"` cross-fits below this many rows for each feature
_MOST_FOLDS = 20  # each keeps second moments of its own


def check_crossfit(crossfit: Crossfit) -> Crossfit:
    """Require "auto" or a possible number of folds, and return it as a plain int."""
    if crossfit == "auto":
        return crossfit
    try:
        folds = -1 if isinstance(crossfit, bool) else operator.index(crossfit)
    except TypeError:
        folds = -1
    if folds == 0 or 2 <= folds <= _MOST_FOLDS:
        return folds
    raise ValueError(
        f'`crossfit` must be "auto", 0 (in-sample) or a number of folds from 2 to {_MOST_FOLDS}; got {crossfit!r}'
    )


def fold_count(crossfit: Crossfit, rows: int, features: int | None) -> int:
    """The number of folds for so many rows; `"auto"` uses none where there are many rows for each feature."""
    if crossfit != "auto":
        return crossfit
    return _FOLDS if features is not None and rows < _ROWS_PER_FEATURE * features else 0
