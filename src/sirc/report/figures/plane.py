"""Figures of the (S1, S2) plane: densities of the groups over the decision contours of combinations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, final

import numpy as np
from torch import Tensor

from sirc._utils.arrays import Floats
from sirc.evaluation import parse_or_none
from sirc.outputs import Outputs, OutputStore
from sirc.report.figures.kernels import density_2d, mass_levels, span
from sirc.report.figures.style import GROUPS, array, drawn, label_of, literal, name_ood, new_figure
from sirc.report.names import score_name
from sirc.scores import Evaluator, Scorer, functional, parse

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Rule = Callable[[Floats, Floats], Floats]

_POINTS = 140
_SHARES: Final = (0.4, 0.8)  # of a group inside each of its contours
_STEPS: Final = (0.05, 0.2, 0.35, 0.5, 0.65, 0.8, 0.95)  # the share of samples below each decision contour


@final
@dataclass(frozen=True)
class Plane:
    """The three groups on the (S1, S2) plane, each a (2, n) array; S1's upper bound; SIRC's a and b.

    SIRC uses S1max − S1. If that does not follow from the plain value of S1, as for `margin`, S1 is 1 − (S1max − S1)
    here and its name, `first`, ends in "bounded".

    Example:
        >>> import numpy as np
        >>> from sirc.report.figures import Plane
        >>> groups = {"correct": [[0.9, 0.8], [3, 4]], "wrong": [[0.5], [3]], "ood": [[0.6, 0.7], [1, 2]]}
        >>> plane = Plane("msp", "l1", {name: np.array(group) for name, group in groups.items()}, s1_max=1, a=2, b=1)
        >>> round(plane.balance, 3)
        0.17
    """

    first: str
    second: str
    groups: Mapping[str, Floats]
    s1_max: float
    a: float
    b: float

    @classmethod
    def of(cls, scorer: Scorer, spec: str, test: Outputs | OutputStore, ood: Outputs | OutputStore) -> Plane:
        """The plane of a SIRC pair of a fitted scorer, from labelled test outputs and those of an OOD set."""
        return planes(scorer, [spec], test, ood)[spec]

    @property
    def balance(self) -> float:
        """The c of S1 + c·S2 that gives both terms the same spread over ID data."""
        id_pairs = np.concatenate([self.groups["correct"], self.groups["wrong"]], axis=1)
        return float(id_pairs[0].std()) * self.b or 1.0


def is_pair(spec: str) -> bool:
    """Whether a score is SIRC with one S2, which a plane can show."""
    parsed = parse_or_none(spec)
    return parsed is not None and parsed.name == "sirc" and len(parsed.args) == 2


def planes(
    scorer: Scorer, specs: Sequence[str], test: Outputs | OutputStore, ood: Outputs | OutputStore
) -> dict[str, Plane]:
    """The planes of several pairs, for which the outputs are read only once."""
    if unfit := [spec for spec in specs if not is_pair(spec)]:
        raise ValueError(f"`spec` must be sirc with one S2, such as `sirc(msp, l1)`; got `{unfit[0]}`.")
    chosen, parsed = scorer.only(specs), {spec: parse(spec) for spec in specs}

    def compute(evaluator: Evaluator) -> dict[str, Tensor]:
        return {f"{name} of {s}": values for s in specs for name, values in evaluator.plane(parsed[s]).items()}

    columns = [chosen.compute(outputs, compute) for outputs in (test, ood)]
    correct = np.concatenate([batch.correct.cpu().numpy() for batch in ([test] if isinstance(test, Outputs) else test)])
    by_spec = {}
    for spec in specs:
        s1, s2, log_gap = (
            np.concatenate([array(part[f"{name} of {spec}"]) for part in columns]) for name in ("s1", "s2", "log_gap")
        )
        gap = np.exp(log_gap)
        first, second = map(str, parsed[spec].args)
        bound = float(np.max(s1 + gap))  # in every row S1 + (S1max − S1) is S1max, up to rounding
        if not np.allclose(s1, bound - gap, rtol=1e-6, atol=1e-6):
            first, s1, bound = f"{score_name(first)}, bounded", 1 - gap, 1.0
        inside, outside = np.split(np.stack([s1, s2]), [len(correct)], axis=1)
        groups = {"correct": inside[:, correct], "wrong": inside[:, ~correct], "ood": outside}
        a, b = ((parsed[spec].numbers(key) or scorer.parameters[str(parsed[spec])][key].tolist())[0] for key in "ab")
        by_spec[spec] = Plane(first, second, groups, round(bound, 9), float(a), float(b))
    return by_spec


def plane_rules(plane: Plane, *, c: float | None = None) -> dict[str, Rule]:
    """Combinations as functions of S1 and S2: S1 + c·S2, S1·S2, SIRC, and SIRC with lower a and higher b.

    By default c gives both terms the same spread over ID data. The second SIRC has a lowered by 2/b, and b doubled.

    Example:
        >>> import numpy as np
        >>> from sirc.report.figures import Plane, plane_rules
        >>> empty = {name: np.empty((2, 0)) for name in ("correct", "wrong", "ood")}
        >>> rules = plane_rules(Plane("msp", "l1", empty, s1_max=1, a=2, b=1), c=0.5)
        >>> rules["S₁ + c·S₂"](np.array([0.9]), np.array([3.0])).tolist()
        [2.4]
    """
    slope = plane.balance if c is None else c

    def sirc(a: float, b: float) -> Rule:
        return lambda s1, s2: array(functional.sirc(np.log(np.maximum(plane.s1_max - s1, 1e-300)), s2, a, b))

    return {
        "S₁ + c·S₂": lambda s1, s2: array(functional.linear(s1, s2, slope)),
        "S₁·S₂": lambda s1, s2: array(functional.product(s1, s2)),
        "SIRC": sirc(plane.a, plane.b),
        "SIRC, lower a, higher b": sirc(plane.a - 2 / plane.b, 2 * plane.b),
    }


@drawn
def plane(values: Plane, *, c: float | None = None, title: str = "") -> Figure:
    """Draw a panel for each of four combinations: contours of the groups' densities over its decision contours.

    A lighter grey is a higher combined score. Between neighbouring decision contours lie equal shares of the samples.
    `title` is the name of the OOD set.

    Example:
        >>> import numpy as np
        >>> from sirc.report.figures import Plane, plane
        >>> groups = {"correct": [[0.9, 0.8], [3, 4]], "wrong": [[0.5], [3]], "ood": [[0.6, 0.7], [1, 2]]}
        >>> values = Plane("msp", "l1", {name: np.array(group) for name, group in groups.items()}, s1_max=1, a=2, b=1)
        >>> [panel.get_title() for panel in plane(values).axes]
        ['S₁ + c·S₂', 'S₁·S₂', 'SIRC', 'SIRC, lower a, higher b']
    """
    combined = plane_rules(values, c=c)
    figure, axes = new_figure(1, len(combined), height=2.5 if title else 2.3, sharex=True, sharey=True)
    grid = _grid(values)
    for panel, (name, rule) in zip(axes[0], combined.items(), strict=True):
        _draw(panel, values, rule, grid)
        panel.set_title(name)
        panel.set_xlabel(f"S₁: {label_of(values.first)}")
    axes[0][0].set_ylabel(f"S₂: {label_of(values.second)}")
    _legend(figure, values)
    name_ood(figure, title)
    return figure


@drawn
def plane_grid(planes: Mapping[str, Mapping[str, Plane]], *, title: str = "") -> Figure:
    """Draw SIRC pairs (rows) by models (columns), `{model: {pair: Plane}}`, with SIRC's decision contours.

    Example:
        >>> import numpy as np
        >>> from sirc.report.figures import Plane, plane_grid
        >>> groups = {"correct": [[0.9, 0.8], [3, 4]], "wrong": [[0.5], [3]], "ood": [[0.6, 0.7], [1, 2]]}
        >>> values = Plane("msp", "l1", {name: np.array(group) for name, group in groups.items()}, s1_max=1, a=2, b=1)
        >>> figure = plane_grid({"A network": {"sirc(msp, l1)": values}})
        >>> figure.axes[0].get_title(), figure.axes[0].get_xlabel()
        ('A network', 'S₁: MSP')
    """
    pairs = list(dict.fromkeys(pair for by_pair in planes.values() for pair in by_pair))
    if not pairs:
        raise ValueError("`planes` must hold at least one model with one pair; got none.")
    width = min(7.0, 0.9 + 2.1 * len(planes))
    figure, axes = new_figure(len(pairs), len(planes), width=max(3.0, width), height=0.6 + 1.55 * len(pairs))
    for column, (model, by_pair) in zip(zip(*axes, strict=True), planes.items(), strict=True):
        column[0].set_title(literal(model, 28))
        for panel, pair in zip(column, pairs, strict=True):
            if pair not in by_pair:
                panel.set_visible(False)
                continue
            values = by_pair[pair]
            _draw(panel, values, plane_rules(values)["SIRC"], _grid(values))
            panel.set_xlabel(f"S₁: {label_of(values.first)}", labelpad=1)
            panel.set_ylabel(f"S₂: {label_of(values.second)}", labelpad=1)
    _legend(figure, next(plane for by_pair in planes.values() for plane in by_pair.values()))
    name_ood(figure, title)
    return figure


def _draw(axes: Axes, plane: Plane, rule: Rule, grid: tuple[Floats, Floats]) -> None:
    """Draw the groups' density contours over the decision contours of a rule."""
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


def _grid(plane: Plane) -> tuple[Floats, Floats]:
    groups = [group for group in plane.groups.values() if group.size]
    low, high = span([group[0] for group in groups], tail=0.01)
    bottom, top = span([group[1] for group in groups], tail=0.01, margin=0.12)
    high = min(high, plane.s1_max)
    low = min(low, high - 1e-6 * max(1.0, abs(high)))
    return np.linspace(low, high, _POINTS), np.linspace(bottom, top, _POINTS)


def _legend(figure: Figure, plane: Plane) -> None:
    from matplotlib.lines import Line2D

    shown: Sequence[str] = [name for name, group in plane.groups.items() if group.size]
    handles = [Line2D([], [], **GROUPS[name].line, label=GROUPS[name].name) for name in shown]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))
