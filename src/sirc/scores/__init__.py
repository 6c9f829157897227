"""Confidence scores: the formulas, the grammar over them, their fit and their use."""

from sirc.scores import formulas  # noqa: F401  (registers the scores)
from sirc.scores.fitting import Fitter, fit
from sirc.scores.registry import score
from sirc.scores.scorer import Confidences, Scorer
from sirc.scores.spec import Spec, known_names, parse

__all__ = ["Confidences", "Fitter", "Scorer", "Spec", "fit", "known_names", "parse", "score"]
