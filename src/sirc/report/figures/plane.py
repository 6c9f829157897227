"""Figures of the (S1, S2) plane: densities of the three groups over the contours of combinations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from sirc.report.figures.kernels import density_2d, mass_levels, span
from sirc.report.figures.pieces import array
from sirc.report.figures.plane_values import Plane
from sirc.report.figures.style import GROUP_NAMES, GROUPS, drawing, finish, label_of, literal, new_figure
from sirc.scores import functional

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FloatArray = npt.NDArray[np.float64]
Rule = Callable[[FloatArray, FloatArray], FloatArray]

_POINTS = 140
_SHARES: Final = (0.4, 0.8)  # of a group, inside its contours
_STEPS: Final = (0.05, 0.2, 0.35, 0.5, 0.65, 0.8, 0.95)  # of the samples, below each decision contour


def plane_rules(plane: Plane, *, c: float | None = None) -> dict[str, Rule]:
    """Give the combinations as functions of S1 and S2: S1 + c·S2, S1·S2, SIRC, and SIRC with lower a and higher b.

    By default c gives both terms the same spread over ID data. The other SIRC has a lower by 2/b and b doubled.
    """
    slope = plane.balance if c is None else c

    def linear(s1: FloatArray, s2: FloatArray) -> FloatArray:
        return array(functional.linear(s1, s2, slope))

    def product(s1: FloatArray, s2: FloatArray) -> FloatArray:
        return array(functional.product(s1, s2))

    def sirc(a: float, b: float) -> Rule:
        def combined(s1: FloatArray, s2: FloatArray) -> FloatArray:
            gap = np.log(np.maximum(plane.s1_max - s1, 1e-300))
            return array(functional.sirc(gap, s2, a, b))

        return combined

    return {
        "S₁ + c·S₂": linear,
        "S₁·S₂": product,
        "SIRC": sirc(plane.a, plane.b),
        "SIRC, lower a, higher b": sirc(plane.a - 2 / plane.b, 2 * plane.b),
    }


def plane(values: Plane, *, c: float | None = None, title: str = "") -> Figure:
    """Draw four panels, one for each combination: contours of the groups' densities over its decision contours.

    Lighter is a higher combined score. Each band between decision contours holds the same share of the samples.
    `title` names the OOD set.
    """
    with drawing():
        combined = plane_rules(values, c=c)
        figure, axes = new_figure(1, len(combined), height=2.5 if title else 2.3, sharex=True, sharey=True)
        grid = _grid(values)
        for panel, (name, rule) in zip(axes[0], combined.items(), strict=True):
            draw_plane(panel, values, rule, grid)
            panel.set_title(name)
            panel.set_xlabel(f"S₁: {label_of(values.first)}")
        axes[0][0].set_ylabel(f"S₂: {label_of(values.second)}")
        _legend(figure, values)
        if title:
            figure.suptitle(f"OOD: {literal(title)}")
        return finish(figure)


def plane_grid(planes: Mapping[str, Mapping[str, Plane]], *, title: str = "") -> Figure:
    """Draw SIRC pairs (rows) against models (columns), `{model: {pair: Plane}}`, with SIRC's decision contours."""
    pairs = list(dict.fromkeys(pair for by_pair in planes.values() for pair in by_pair))
    if not pairs:
        raise ValueError("`planes` must hold at least one model with one pair; got none.")
    with drawing():
        width = min(7.0, 0.9 + 2.1 * len(planes))
        figure, axes = new_figure(len(pairs), len(planes), width=max(3.0, width), height=0.6 + 1.55 * len(pairs))
        for column, (model, by_pair) in zip(zip(*axes, strict=True), planes.items(), strict=True):
            column[0].set_title(literal(model, 28))
            for panel, pair in zip(column, pairs, strict=True):
                if pair not in by_pair:
                    panel.set_visible(False)
                    continue
                values = by_pair[pair]
                draw_plane(panel, values, plane_rules(values)["SIRC"], _grid(values))
                panel.set_xlabel(f"S₁: {label_of(values.first)}", labelpad=1)
                panel.set_ylabel(f"S₂: {label_of(values.second)}", labelpad=1)
        _legend(figure, next(plane for by_pair in planes.values() for plane in by_pair.values()))
        if title:
            figure.suptitle(f"OOD: {literal(title)}")
        return finish(figure)


def draw_plane(axes: Axes, plane: Plane, rule: Rule, grid: tuple[FloatArray, FloatArray]) -> None:
    """Draw one panel: the decision contours of a rule below, the groups' density contours above."""
    x, y = grid
    s1, s2 = np.meshgrid(x, y)
    field = rule(s1.ravel(), s2.ravel()).reshape(s1.shape)
    everyone = np.concatenate([group for group in plane.groups.values() if group.size], axis=1)
    inside = (everyone[0] >= x[0]) & (everyone[1] >= y[0]) & (everyone[1] <= y[-1])
    levels = np.unique(np.quantile(rule(*everyone[:, inside]), _STEPS)) if inside.any() else np.empty(0)
    if len(levels) and np.isfinite(levels).all() and float(levels[-1]) > float(levels[0]):
        greys = [str(grey) for grey in np.linspace(0.66, 1.0, len(levels) + 1)]
        axes.contourf(x, y, field, levels=levels, colors=greys, extend="both", zorder=0)
        axes.contour(x, y, field, levels=levels, colors="0.45", linewidths=0.4, linestyles="solid", zorder=1)
    for name, group in plane.groups.items():
        look = GROUPS[name]
        heights = density_2d(group[0], group[1], x, y, bounds=(-np.inf, plane.s1_max))
        if shares := mass_levels(heights, _SHARES):
            axes.contour(
                x, y, heights, levels=shares, colors=look.colour, linewidths=1.1, linestyles=[look.dash], zorder=3
            )
        elif group.size:  # a handful of equal points has no contours
            axes.plot(group[0], group[1], look.marker, color=look.colour, markersize=3, zorder=3)
    axes.set(xlim=(x[0], x[-1]), ylim=(y[0], y[-1]))


def _grid(plane: Plane) -> tuple[FloatArray, FloatArray]:
    groups = [group for group in plane.groups.values() if group.size]
    low, high = span([group[0] for group in groups], tail=0.01)
    bottom, top = span([group[1] for group in groups], tail=0.01, margin=0.12)
    high = min(high, plane.s1_max)
    low = min(low, high - 1e-6 * max(1.0, abs(high)))
    return np.linspace(low, high, _POINTS), np.linspace(bottom, top, _POINTS)


def _legend(figure: Figure, plane: Plane) -> None:
    from matplotlib.lines import Line2D

    shown: Sequence[str] = [name for name, group in plane.groups.items() if group.size]
    handles = [Line2D([], [], **GROUPS[name].line, label=GROUP_NAMES[name]) for name in shown]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))
