"""Kernel densities on even grids, as smoothed histograms, which are fast for any number of samples."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sirc._utils.arrays import Floats

Bounds = tuple[float, float]
_FREE: Bounds = (-np.inf, np.inf)
_NARROW = 0.02  # the bandwidth of equal samples, which have no spread, as a part of the grid's length


def span(groups: Sequence[Floats], *, tail: float = 0.005, margin: float = 0.05) -> tuple[float, float]:
    """A range for all groups, without their outermost samples; infinite values are ignored."""
    finite = [group[np.isfinite(group)] for group in groups]
    ends = [np.quantile(group, [tail, 1 - tail]) for group in finite if len(group)]
    if not ends:
        return 0.0, 1.0
    low, high = float(min(e[0] for e in ends)), float(max(e[1] for e in ends))
    room = margin * (high - low)
    if room <= 1e-9 * max(abs(low), abs(high)):
        room = 0.5 * max(1.0, abs(low))
    return low - room, high + room


def bandwidth(values: Floats, dimensions: int = 1) -> float:
    """Silverman's rule, with the smaller of the two estimates of spread; 0 if all values are equal."""
    if len(values) < 2:
        return 0.0
    deviation = float(values.std(ddof=1))
    quarter, three = np.quantile(values, [0.25, 0.75])
    spread = min(deviation, (three - quarter) / 1.349) or deviation
    return float((4 / (dimensions + 2)) ** (1 / (dimensions + 4)) * spread * len(values) ** (-1 / (dimensions + 4)))


def density(values: Floats, grid: Floats, weights: Floats | None = None, *, bounds: Bounds = _FREE) -> Floats:
    """The Gaussian kernel density of samples at the points of an even grid; zero without samples.

    Kernels are reflected at the bounds, beyond which no sample can lie. Samples outside the grid still count.
    """
    if not len(values):
        return np.zeros(len(grid))
    mass = np.ones(len(values)) if weights is None else weights
    finite = np.isfinite(values)
    edges, step = _edges(grid)
    counts, _ = np.histogram(values[finite], edges, weights=mass[finite])
    width = bandwidth(values[finite]) or _NARROW * len(grid) * step
    return _smooth(counts, [width / step], _bins(edges, bounds)) / (float(mass.sum()) * step)


def density_2d(x: Floats, y: Floats, grid_x: Floats, grid_y: Floats, *, bounds: Bounds = _FREE) -> Floats:
    """The same in two dimensions, (y, x), with one bandwidth for each axis, and bounds on x."""
    finite = np.isfinite(x) & np.isfinite(y)
    if not finite.any():
        return np.zeros((len(grid_y), len(grid_x)))
    (edges_y, step_y), (edges_x, step_x) = _edges(grid_y), _edges(grid_x)
    counts, _, _ = np.histogram2d(y[finite], x[finite], bins=[edges_y, edges_x])
    widths = [bandwidth(y[finite], 2) / step_y, bandwidth(x[finite], 2) / step_x]
    return _smooth(counts, widths, _bins(edges_x, bounds)) / (len(x) * step_x * step_y)


def mass_levels(field: Floats, shares: Sequence[float]) -> list[float]:
    """The heights of contours that enclose these shares of a density, ascending and distinct."""
    ordered = np.sort(field, axis=None)[::-1]
    total = ordered.cumsum()
    if not len(total) or total[-1] <= 0:
        return []
    places = np.searchsorted(total, [share * total[-1] for share in shares])
    levels = ordered[np.minimum(places, len(ordered) - 1)]
    return sorted({float(level) for level in levels if 0 < level < ordered[0]})


def _edges(grid: Floats) -> tuple[Floats, float]:
    """The edges and the width of bins centred on the points of a grid."""
    step = float(grid[1] - grid[0])
    return np.append(grid - step / 2, grid[-1] + step / 2), step


def _bins(edges: Floats, bounds: Bounds) -> slice:
    """The bins within the bounds."""
    low, high = np.searchsorted(edges, bounds, side="right")
    return slice(max(int(low) - 1, 0), int(high))


def _smooth(counts: Floats, widths: Sequence[float], inside: slice) -> Floats:
    """Smooth by a Gaussian of these widths, at least half a bin, reflected at the bounds of the last axis."""
    from scipy.ndimage import gaussian_filter

    smoothed = np.zeros_like(counts)
    gaussian_filter(
        counts[..., inside],
        [max(width, 0.5) for width in widths],
        mode="reflect",
        truncate=5,
        output=smoothed[..., inside],
    )
    return smoothed
