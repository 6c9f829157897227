"""Regret over an (α, β) grid: its intervals, and which candidates may be the best, from draws of the values."""

from __future__ import annotations

from statistics import NormalDist
from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sirc._utils.arrays import Floats
from sirc.evaluation.error_bars import EQUAL

By = Literal["worst", "average"]
Flags = NDArray[np.bool_]
Bounds = tuple[Floats, Floats]

_TINY = float(np.finfo(np.float64).tiny)
_LEAST = 1e-3  # values relative to the best one are raised to this: a smaller draw tells nothing about the regret


def regrets(values: Floats, scale: Floats) -> Floats:
    """(value − the best candidate's) / scale at each point; `values` is (…, scores, α, β)."""
    grid: Floats = (values - values.min(-3, keepdims=True)) / scale
    return grid


def normal_draws(
    values: Floats, covariance: Tensor, freedom: int, beta: Tensor, relative: bool, draws: int, seed: int
) -> Floats:
    """Random draws of the values, (draws, scores, α, β), from Student's distribution; with `relative`, of their logs.

    `covariance` is that of the values at β = 1 and 0, by α and score, with its degrees of `freedom`.
    """
    spreads, directions = torch.linalg.eigh(covariance)
    freedom, generator = min(freedom, 1000), torch.Generator().manual_seed(seed)
    normals = torch.randn(draws, len(spreads) + freedom, generator=generator, dtype=torch.float64)
    normals = normals[:, freedom:] / normals[:, :freedom].square().mean(1, keepdim=True).sqrt()
    parts = (normals * spreads.clamp_min(0).sqrt()) @ directions.T
    of_wrong, of_ood = parts.reshape(draws, values.shape[1], values.shape[0], 2).transpose(1, 2).unbind(-1)
    off: Floats = (of_wrong[..., None] * beta + of_ood[..., None] * (1 - beta)).numpy()
    if relative:
        off = np.where(values > 0, values * np.expm1(off / np.where(values > 0, values, 1.0)), off)
    return values + off


def summary(grid: Floats, by: str) -> Floats:
    """One number for each candidate (and draw): its regret at the worst point of the grid, or the mean over it."""
    summaries: Floats = grid.max((-2, -1)) if by == "worst" else grid.mean((-2, -1))
    return summaries


def intervals(
    values: Floats, draws: Floats, scale: Floats, *, relative: bool, level: float
) -> tuple[dict[str, Bounds], Bounds]:
    """The intervals of each candidate's worst and average regret, and of its regret at each point.

    The regret of t at a point is the largest d = value_t − value_s over all s (relative: of value_t/value_s − 1, whose
    logarithm is drawn). Noise raises the largest of many, so an interval around it would be too high. Instead each d
    has an interval, and then the largest ends are taken. Low ends hold for all s and points at once: they are c
    standard errors below d, with c the quantile over draws of the largest (d* − d)/se. A high end must hold only for
    the d that is truly the largest: it is z standard errors above, as for a normal distribution. For the regret at one
    point, low ends hold for all s there.
    """
    count = len(values)
    if relative:
        at, drawn = (np.log(np.maximum(x / scale, _LEAST)) for x in (values, draws))
    else:
        at, drawn = values, draws
    least = EQUAL if relative else max(EQUAL * float(np.abs(values).max()), _TINY)
    # Candidates first, so that the draws of each are side by side in memory.
    at, drawn = at.reshape(count, -1), np.ascontiguousarray(drawn.reshape(len(draws), count, -1).swapaxes(0, 1))
    z = NormalDist().inv_cdf((1 + level) / 2)
    bounds = {name: (np.zeros(count), np.zeros(count)) for name in get_args(By)}
    by_point = np.zeros(values.shape), np.zeros(values.shape)
    for t in range(count):
        differences, spreads, furthest = at[t] - at, np.empty_like(at), np.zeros_like(drawn[t])
        for s in range(count):
            off = drawn[t] - drawn[s]
            spreads[s] = np.maximum(off.std(0, ddof=1), least)
            off -= differences[s]
            off /= spreads[s]
            np.maximum(furthest, off, out=furthest)
        c = max(z, float(np.quantile(furthest.max(1), (1 + level) / 2)))
        there = np.maximum(z, np.quantile(furthest, (1 + level) / 2, axis=0))
        ends = ((differences + k * spreads).max(0) for k in (-c, z, -there))
        low, high, low_there = (np.maximum(0.0, np.expm1(end) if relative else end) for end in ends)
        for which, end in enumerate((low, high)):
            bounds["worst"][which][t], bounds["average"][which][t] = end.max(), end.mean()
        by_point[0][t], by_point[1][t] = (end.reshape(values.shape[1:]) for end in (low_there, high))
    return bounds, by_point


def contenders(value: Floats, draws: Floats, level: float, resolution: float) -> Flags:
    """The candidates that may be the best: those that are not shown to be worse than another.

    t is worse than s if d = value_t − value_s exceeds q·se. Here se is the standard deviation of d over the draws, and
    q the `level` quantile over draws of the largest |d* − d|/se of all pairs, as in Tukey's test for means. So with
    probability of about `level` no pair is judged wrongly, whichever candidate leads.
    """
    count = len(value)
    largest = np.zeros(len(draws))
    exceeds = np.zeros(count)
    for t in range(count):
        difference = value[t] - value
        drawn = draws[:, [t]] - draws
        # Candidates that rank alike differ only by rounding.
        spread = np.maximum(drawn.std(0, ddof=1), max(resolution, _TINY))
        largest = np.maximum(largest, (np.abs(drawn - difference) / spread).max(1))
        exceeds[t] = (difference / spread).max()
    may_be_best: Flags = exceeds <= np.quantile(largest, level)
    return may_be_best


def wins(draws: Floats, resolution: float) -> Floats:
    """The share of draws in which each candidate has the lowest value; ties share the draw."""
    lowest = draws <= draws.min(1, keepdims=True) + resolution
    shares: Floats = (lowest / lowest.sum(1, keepdims=True)).mean(0)
    return shares
