"""Fitting scores to ID training data: two streaming passes, out-of-sample statistics, tuned options."""

from sirc.scores.fitting.fitter import Fitter, fit

__all__ = ["Fitter", "fit"]
