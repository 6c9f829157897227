"""Sampling error of one run: for some inputs of each group, the threshold that first accepts each by every score."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Final

import numpy as np

from sirc._utils.arrays import Floats
from sirc.metrics import window
from sirc.report.page.grid import Grid

INPUTS: Final = 500
"""Inputs of each group that a page carries at most; their spread stands for the group's."""


def first_accepted(groups: Sequence[Sequence[Floats]], grids: Sequence[Grid]) -> list[str]:
    """For each score, the points of its grid at which the inputs of each group are first accepted, as packed text.

    `groups` has the confidences of ID✓, ID✗ and each OOD set by each score. The inputs are the same for all scores.
    """
    rng = np.random.default_rng(0)
    chosen = [np.sort(rng.permutation(len(values))[:INPUTS]) for values in groups[0]]
    packed = []
    for some, grid in zip(groups, grids, strict=True):
        inputs = np.concatenate([values[rows] for values, rows in zip(some, chosen, strict=True)])
        # Point 0 of a page is the one where nothing is accepted.
        points = np.searchsorted(-grid.thresholds, -inputs, side="left") + 1
        packed.append(base64.b64encode(points.astype("<u2").tobytes()).decode())
    return packed


def windows(levels: Sequence[float], correct: int) -> list[float]:
    """The window around each recall in which the slope of a curve is taken, for so many ID✓."""
    return [float(f"{window(level, correct):.3g}") for level in levels]
