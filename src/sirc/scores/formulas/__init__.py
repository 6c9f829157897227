"""Formulas of single scores, one file per family; importing this package registers them."""

# The order in which scores are listed; a score comes after those that it needs.
# isort: off
from sirc.scores.formulas import softmax, temperature, pnorm, gen, logit, feature, shaping, distance, boundary, delta

__all__ = ["boundary", "delta", "distance", "feature", "gen", "logit", "pnorm", "shaping", "softmax", "temperature"]
