"""Evaluating scores on ID and OOD data: the tidy table, comparisons, selection, checks of SIRC's premise."""

from sirc.evaluation.error_bars import Method
from sirc.evaluation.evaluation import Evaluation, combine, evaluate
from sirc.evaluation.inputs import (
    COLUMNS,
    MEAN,
    ORACLE,
    POOLED,
    WRONG,
    as_fractions,
    as_names,
    parse_or_none,
    score_labelled,
)
from sirc.evaluation.selection import Choice, select
from sirc.evaluation.spilled import SpilledEvaluation

__all__ = [
    "COLUMNS",
    "MEAN",
    "ORACLE",
    "POOLED",
    "WRONG",
    "Choice",
    "Evaluation",
    "Method",
    "SpilledEvaluation",
    "as_fractions",
    "as_names",
    "combine",
    "evaluate",
    "parse_or_none",
    "score_labelled",
    "select",
]
