"""Sampling error of one run: how accepted shares stray in resamples of the inputs, the same for all scores."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Final

import numpy as np
import torch

from sirc.evaluation import Evaluation
from sirc.metrics import draws_of
from sirc.report.page.grid import Floats, Grid, Ints

DRAWS: Final = 64
_RECALLS: Final = (*(i / 40 for i in (1, 3, 6, 10, 14, 18, 22, 26, 30, 32, 34)), 0.9, 0.93, 0.95, 0.97, 0.98, 0.99, 1.0)
_BEYOND: Final = 4  # thresholds that accept more than all of ID✓


def strays(
    evaluation: Evaluation, groups: Sequence[Sequence[Floats]], grids: Sequence[Grid]
) -> list[dict[str, object]]:
    """For each score, at some of its thresholds: by how much each group's accepted share differs in each resample.

    `groups` has the confidences of ID✓, ID✗ and each OOD set by each score. Differences are bytes (draw, group,
    threshold), of 127ths of the group's `scales`.
    """
    places = [_places(grid) for grid in grids]
    found = [np.zeros((DRAWS, len(some), len(at))) for some, at in zip(groups, places, strict=True)]
    # The first of the thresholds that accepts each input.
    firsts = [
        [torch.from_numpy(np.searchsorted(-grid.thresholds[at], -values, side="left")) for values in some]
        for some, grid, at in zip(groups, grids, places, strict=True)
    ]
    begin = 0
    for counts in draws_of(evaluation.correct.cpu(), evaluation.ood, DRAWS, seed=0):
        end = begin + next(iter(counts.values())).shape[1]
        for group, drawn in enumerate(counts.values()):
            for first, grid, at, stray in zip(firsts, grids, places, found, strict=True):
                sums = torch.zeros(len(at), end - begin, dtype=drawn.dtype).index_add_(0, first[group], drawn.cpu())
                accepted = sums.cumsum(0).numpy().T - grid.counts[group, at]
                stray[begin:end, group] = accepted / max(1, len(drawn))
        begin = end
    return [_packed(at, stray) for at, stray in zip(places, found, strict=True)]


def _places(grid: Grid) -> Ints:
    """Thresholds that are enough for the noise: at some recalls, and beyond the last ID✓."""
    recalls = grid.counts[0] / grid.counts[0, -1]
    reached = np.searchsorted(recalls, _RECALLS, side="left")
    beyond = np.linspace(reached[-1], len(recalls) - 1, _BEYOND + 1).round().astype(np.int64)
    return np.unique([0, *reached, *beyond])


def _packed(places: Ints, stray: Floats) -> dict[str, object]:
    scales = np.abs(stray).max(axis=(0, 2))
    units = np.where(scales > 0, scales, 1.0)[None, :, None] / 127
    return {
        "at": places.tolist(),
        "scales": [float(f"{scale:.4g}") for scale in scales],
        "strays": base64.b64encode(np.round(stray / units).astype(np.int8).tobytes()).decode(),
    }
