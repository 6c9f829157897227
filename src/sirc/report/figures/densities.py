"""Densities of scores for OOD, ID✗ and ID✓, grouped as in OOD detection and as in SCOD."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Literal

import numpy as np

from sirc._utils.arrays import Floats
from sirc._utils.text import percent
from sirc.evaluation import Evaluation, parse_or_none
from sirc.metrics import Positive, Ranking
from sirc.report.figures.kernels import density, span
from sirc.report.figures.pairs import fprs
from sirc.report.figures.style import GROUPS, array, drawn, label_of, name_ood, new_figure
from sirc.report.names import metric_name
from sirc.scores import ranks_by_gap

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Each task's groups: those to reject, then those to accept.
TASKS: Final = {
    "OOD detection": (("ood",), ("wrong", "correct")),
    "SCOD": (("ood", "wrong"), ("correct",)),
}
_POINTS = 400
_SIDES: Final = (slice(None, _POINTS // 3), slice(-_POINTS // 3, None))


@drawn
def densities(evaluation: Evaluation, scores: str | Sequence[str], *, negative: str | None = None) -> Figure:
    """Draw the three groups' densities, with a row for each score and a column for each of the two tasks.

    Groups that the task should reject are hatched. The dashed line is the threshold that accepts 95% (the evaluation's
    `recall`) of the task's positives; the FPR there is written beside it. Two scores show where one gains for OOD
    detection and loses for SCOD. `negative` is an OOD set, a group, or `pooled`.

    Example:
        >>> import sirc
        >>> from sirc.report.figures import densities
        >>> ev = sirc.evaluate({"msp": ([0.9, 0.8, 0.4], [True, True, False])}, ood={"far": {"msp": [0.3, 0.85]}})
        >>> figure = densities(ev, "msp")
        >>> len(figure.axes)  # OOD detection, and SCOD
        2
    """
    wanted = evaluation._wanted(scores)
    negative = negative or evaluation._usual_negative
    figure, axes = new_figure(len(wanted), 2, height=0.55 + 1.45 * len(wanted), sharey="row")
    for row, score in zip(axes, wanted, strict=True):
        ranking = evaluation.ranking(score, negative)
        samples, shares = evaluation._samples(score, negative)
        groups = dict(zip(GROUPS, map(array, samples), strict=True))
        weights = None if shares is None else array(shares)
        grid = np.linspace(*span(list(groups.values())), _POINTS)
        # The least and the greatest confidence serve as bounds of the score, unless all are equal.
        finite = np.concatenate([values[np.isfinite(values)] for values in groups.values()])
        several = len(finite) > 0 and finite.min() < finite.max()
        ends = (float(finite.min()), float(finite.max())) if several else (-np.inf, np.inf)
        heights = {
            name: density(values, grid, weights if name == "ood" else None, bounds=ends)
            for name, values in groups.items()
        }
        left, right = (max(float(h[part].max()) for h in heights.values()) for part in _SIDES)
        for panel, task in zip(row, TASKS, strict=True):
            _draw(panel, task, grid, {name: h for name, h in heights.items() if len(groups[name])})
            _mark(panel, task, ranking, evaluation.recall, side="right" if right <= left else "left")
        row[0].set_ylabel(f"density of\n{label_of(score)}{_scale(score)}")
    for panel, task in zip(axes[0], TASKS, strict=True):
        _header(panel, task, [name for name, values in groups.items() if len(values)])
    for panel in axes[-1]:
        panel.set_xlabel("confidence: reject low, accept high")
    name_ood(figure, negative)
    return figure


def _scale(score: str) -> str:
    """The scale of a score's confidences, if it is not that of its plain values."""
    spec = parse_or_none(score)
    if spec is None:
        return ""  # a score of the user's own
    if spec.name == "bayes":
        return "\n(−log of its\nexpected cost)"
    if spec.name == "both":
        return "\n(logit of the\nleast ID quantile)"
    # Confidences of a bounded score are −log of the distance to its bound, so that confident samples never tie.
    return "\n(−log of distance\nto its maximum)" if spec.has_bounded_first or ranks_by_gap(spec) else ""


def _draw(axes: Axes, task: str, grid: Floats, heights: dict[str, Floats]) -> None:
    from matplotlib.colors import to_rgba

    for name, height in heights.items():
        look, rejected = GROUPS[name], name in TASKS[task][0]
        axes.fill_between(
            grid,
            height,
            facecolor=to_rgba(look.colour, 0.10 if rejected else 0.28),
            hatch="////" if rejected else None,
            edgecolor=to_rgba(look.colour, 0.55) if rejected else "none",
            linewidth=0,
        )
        axes.plot(grid, height, label=GROUPS[name].name, **look.line)
    axes.set_ylim(bottom=0)
    axes.margins(x=0)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)


def _mark(axes: Axes, task: str, ranking: Ranking, recall: float, *, side: Literal["left", "right"]) -> None:
    """Draw the task's threshold, and write the FPR of each negative at this side of the panel."""
    positive: Positive = "correct" if task == "SCOD" else "id"
    threshold = ranking._threshold_of(ranking._reaching(recall, positive))
    accepted = fprs(ranking, positive, recall)
    if math.isfinite(threshold):
        axes.axvline(threshold, color="0.25", linewidth=0.8, linestyle=(0, (3, 2)))
    if accepted:
        lines = [metric_name(f"fpr@{100 * recall:g}"), *(f"{pair} {percent(fpr)}" for pair, fpr in accepted.items())]
        axes.annotate(
            "\n".join(lines),
            (0.99 if side == "right" else 0.01, 0.97),
            xycoords="axes fraction",
            ha=side,
            va="top",
            fontsize=7,
            linespacing=1.35,
            zorder=5,
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 1},
        )


def _header(axes: Axes, task: str, present: list[str]) -> None:
    """Write the grouping as a title in the groups' colours: OOD | ID✗ ID✓."""
    from matplotlib.artist import Artist
    from matplotlib.offsetbox import AnchoredOffsetbox, HPacker, OffsetBox, TextArea

    def bold(text: str, **look: object) -> OffsetBox:
        return TextArea(text, textprops={"fontsize": 8, "fontweight": "bold", **look})

    rejected, accepted = (
        [bold(f" {GROUPS[name].name} ", color=GROUPS[name].colour) for name in side if name in present]
        for side in TASKS[task]
    )
    line = [bold("  |  ", color="0.25", fontweight="normal")] if rejected else []
    parts: list[Artist] = [bold(f"{task}:  "), *rejected, *line, *accepted]
    box = AnchoredOffsetbox(
        loc="lower center",
        child=HPacker(children=parts, align="baseline", pad=0, sep=0),
        bbox_to_anchor=(0.5, 1.0),
        bbox_transform=axes.transAxes,
        frameon=False,
        pad=0.2,
        borderpad=0.2,
    )
    axes.add_artist(box)
