"""Confidence scores: the formulas, the grammar over them, their fit and their use."""

from sirc.scores import formulas, functional, moments, registry
from sirc.scores.blocks import working_dtype
from sirc.scores.evaluator import (
    Evaluator,
    all_parts,
    array_reads,
    is_bounded,
    needed_leaves,
    option_of,
    ranks_by_gap,
    reads_features,
)
from sirc.scores.fitting import Fitter, fit
from sirc.scores.fitting.state import Crossfit, check_crossfit
from sirc.scores.formulas.softmax import Softmax
from sirc.scores.moments import Moments
from sirc.scores.needs import Needs
from sirc.scores.registry import score
from sirc.scores.scorer import Scorer, check_specs, missing_features, parameters_in
from sirc.scores.spec import COMBINATIONS, Spec, combination, known_names, parse

__all__ = [
    "COMBINATIONS",
    "Crossfit",
    "Evaluator",
    "Fitter",
    "Moments",
    "Needs",
    "Scorer",
    "Softmax",
    "Spec",
    "all_parts",
    "array_reads",
    "check_crossfit",
    "check_specs",
    "combination",
    "fit",
    "formulas",
    "functional",
    "is_bounded",
    "known_names",
    "missing_features",
    "moments",
    "needed_leaves",
    "option_of",
    "parameters_in",
    "parse",
    "ranks_by_gap",
    "reads_features",
    "registry",
    "score",
    "working_dtype",
]
