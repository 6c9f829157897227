"""Check of SIRC's premise for a model: `check_assumptions`, and the `Assumptions` that it returns."""

from sirc.evaluation.premise.assumptions import Assumptions, check_assumptions, of_evaluation

__all__ = ["Assumptions", "check_assumptions", "of_evaluation"]
