"""Evaluating scores on ID and OOD data: the tidy table, comparisons, selection, checks of SIRC's premise."""

from sirc.evaluation.confidences import score_labelled
from sirc.evaluation.evaluation import COLUMNS, LOWER_IS_BETTER, Evaluation, evaluate
from sirc.evaluation.mixtures import MEAN, ORACLE, POOLED, WRONG, as_fractions, as_names
from sirc.evaluation.runs import combine
from sirc.evaluation.selection import Choice, select

__all__ = [
    "COLUMNS",
    "LOWER_IS_BETTER",
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
