"""Confidence scores: the formulas, the grammar over them, their fit and their use."""

# Registers the scores, in the order in which they are listed: those that others need come first.
# isort: off
from sirc.scores.formulas import (
    softmax,
    temperature,
    pnorm,
    gen,
    logit,
    feature,
    distance,
    boundary,
    shaping,
)

# isort: on
from sirc.scores.fitting.fitter import Fitter, fit
from sirc.scores.registry import score
from sirc.scores.scorer import Confidences, Scorer
from sirc.scores.spec import Spec, known_names, parse

__all__ = ["Confidences", "Fitter", "Scorer", "Spec", "fit", "known_names", "parse", "score"]
