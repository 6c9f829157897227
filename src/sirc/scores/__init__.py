"""Confidence scores: the formulas, the grammar over them, their fit and their use."""

from sirc.scores import combine, formulas, functional, registry, spec
from sirc.scores.fitting import Fitter, fit
from sirc.scores.fitting.crossfit import Crossfit, check_crossfit
from sirc.scores.formulas.softmax import Softmax, softplus
from sirc.scores.moments import Moments
from sirc.scores.needs import Needs
from sirc.scores.registry import score
from sirc.scores.row_sums import _sums
from sirc.scores.scorer import Confidences, Scorer, cast_parameters, check_features, check_specs, parameters_in
from sirc.scores.spec import COMBINATIONS, Spec, known_names, parse
from sirc.scores.values import BOUNDED, Columns, keywords, needed_leaves, option_of, ranks_by_gap, working_dtype

__all__ = [
    "BOUNDED",
    "COMBINATIONS",
    "Columns",
    "Confidences",
    "Crossfit",
    "Fitter",
    "Moments",
    "Needs",
    "Scorer",
    "Softmax",
    "Spec",
    "_sums",
    "cast_parameters",
    "check_crossfit",
    "check_features",
    "check_specs",
    "combine",
    "fit",
    "formulas",
    "functional",
    "keywords",
    "known_names",
    "needed_leaves",
    "option_of",
    "parameters_in",
    "parse",
    "ranks_by_gap",
    "registry",
    "score",
    "softplus",
    "spec",
    "working_dtype",
]
