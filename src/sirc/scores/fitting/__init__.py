"""Fitting scores to ID training data: two streaming passes, cross-fitted statistics, tuned options."""

from sirc.scores.fitting.fitter import Fitter, fit

__all__ = ["Fitter", "fit"]
