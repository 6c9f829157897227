"""Formulas of single scores, one file each for related ones; importing this room registers them."""

# In the order in which scores are listed: those that others need come first.
# isort: off
from sirc.scores.formulas import softmax, temperature, pnorm, gen, feature, boundary, shaping

__all__ = ["boundary", "feature", "gen", "pnorm", "shaping", "softmax", "temperature"]
