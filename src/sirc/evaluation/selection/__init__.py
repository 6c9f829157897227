"""Selection of the score to use, over a range of α and β: `select`, and the `Choice` that it returns."""

from sirc.evaluation.selection.choice import Choice, select

__all__ = ["Choice", "select"]
