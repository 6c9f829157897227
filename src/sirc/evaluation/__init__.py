"""Evaluating scores on ID and OOD data: the tidy table, comparisons, selection, checks of SIRC's premise."""

from sirc.evaluation.evaluation import COLUMNS, Evaluation, evaluate
from sirc.evaluation.inputs import MEAN, ORACLE, POOLED, WRONG, as_fractions, as_names, score_labelled
from sirc.evaluation.runs import combine
from sirc.evaluation.selection import Choice, select

__all__ = [
    "COLUMNS",
    "MEAN",
    "ORACLE",
    "POOLED",
    "WRONG",
    "Choice",
    "Evaluation",
    "as_fractions",
    "as_names",
    "combine",
    "evaluate",
    "score_labelled",
    "select",
]
