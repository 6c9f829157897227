"""Formulas of single scores, one file per family; importing this package registers them."""

# In the order in which scores are listed: those that others need come first.
# isort: off
from sirc.scores.formulas import softmax, temperature, pnorm, gen, logit, feature, boundary, shaping

__all__ = ["boundary", "feature", "gen", "logit", "pnorm", "shaping", "softmax", "temperature"]
