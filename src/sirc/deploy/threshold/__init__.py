"""Thresholds at a recall, a coverage, a risk or the least cost, with guarantees.

Each function takes confidences of ID validation rows and returns a `Threshold`: accept where confidence ≥ value. With
δ, its promise holds with probability at least 1 − δ over the draw of those rows, for data from the same distribution.
The rows must be fresh: not those that trained the model, or that fitted, tuned or chose the score.

A confidence changes in its last digits with the batch size, the device and the runtime. `tolerance` says by how much it
may change, as a share of itself or of the median confidence, whichever is larger: the threshold lies that much below
the row that sets it. Repeated inputs, such as blank frames, are then accepted wherever they are scored, and the promise
holds for every change within the tolerance. A promised risk holds for the worst such change.

Example:
    >>> import numpy as np
    >>> from sirc import threshold
    >>> confidence = np.arange(100.0)
    >>> chosen = threshold.at_recall(confidence, correct=confidence >= 20, recall=0.9, delta=0.05)
    >>> chosen.value, chosen.bounds, int((confidence >= chosen.value).sum())
    (23.0, {'recall': 0.9}, 77)
"""

from sirc.deploy.threshold.result import Threshold
from sirc.deploy.threshold.rules import at_cost, at_coverage, at_recall, at_risk

__all__ = ["Threshold", "at_cost", "at_coverage", "at_recall", "at_risk"]
