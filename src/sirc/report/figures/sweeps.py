"""AURR, Risk@95 and AURC against α and against β: mean ± std over training runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Literal

import numpy as np
import pandas as pd

from sirc._utils.arrays import ArrayLike
from sirc.evaluation import POOLED, Evaluation, as_fractions, as_names, combine
from sirc.report.figures.style import drawing, finish, label_of, literal, method_look, new_figure, side_legend
from sirc.report.names import metric_name

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_GRID: Final = tuple(round(0.05 * k, 2) for k in range(1, 20))
_SYMBOLS: Final = {"alpha": "α", "beta": "β"}


def sweep_table(
    evaluations: Sequence[Evaluation],
    over: Literal["alpha", "beta"],
    *,
    scores: Sequence[str] | None = None,
    values: ArrayLike = _GRID,
    other: float = 0.5,
) -> pd.DataFrame:
    """Give `sweep` of each run, combined: mean and std of every metric over α or β, the other one held."""
    if over not in _SYMBOLS:
        raise ValueError(f'`over` must be "alpha" or "beta"; got {over!r}.')
    grid = as_fractions("values", values)
    frames = []
    for evaluation in evaluations:
        if not evaluation.ood:
            raise ValueError(f"a sweep over {_SYMBOLS[over]} needs OOD data; this is {evaluation!r}.")
        alphas, betas = (grid, other) if over == "alpha" else (other, grid)
        frames.append(evaluation.sweep(alphas, betas, scores=scores))
    return combine(frames)


def sweeps(
    evaluations: Sequence[Evaluation],
    over: Literal["alpha", "beta"],
    scores: Sequence[str],
    *,
    values: ArrayLike = _GRID,
    other: float = 0.5,
) -> Figure:
    """Draw a panel for each metric (rows) and each of All, Close and Far (columns), mean ± std over the runs.

    `evaluations` are the training runs of one model; one alone has lines without a band. Values are ×10².
    """
    table = sweep_table(evaluations, over, scores=as_names(scores), values=values, other=other)
    metrics = [name for name in dict.fromkeys(table["metric"]) if name != "augrc"]
    negatives = list(dict.fromkeys(table["negative"]))
    held = "beta" if over == "alpha" else "alpha"
    with drawing():
        width = min(7.0, 1.2 + 2.1 * len(negatives))
        figure, axes = new_figure(
            len(metrics), len(negatives), width=max(width, 3.6), height=0.7 + 1.5 * len(metrics), sharex=True
        )
        for row, metric in zip(axes, metrics, strict=True):
            for panel, negative in zip(row, negatives, strict=True):
                here = table[(table["metric"] == metric) & (table["negative"] == negative)]
                for score in as_names(scores):
                    line = here[here["score"] == score].sort_values(over)
                    look = method_look(score)
                    x, mean = line[over].to_numpy(), 100 * line["mean"].to_numpy()
                    panel.plot(x, mean, label=label_of(score), **look.line)
                    if len(evaluations) > 1:
                        std = 100 * line["std"].to_numpy()
                        panel.fill_between(x, mean - std, mean + std, color=look.colour, alpha=0.15, linewidth=0)
                panel.grid(axis="y")
                panel.set_xlim(0, 1)
            row[0].set_ylabel(metric_name(metric, arrow=True, unit=True))
        for panel, negative in zip(axes[0], negatives, strict=True):
            panel.set_title("All" if negative == POOLED else literal(negative, 24))
        for panel in axes[-1]:
            panel.set_xlabel(f"{_SYMBOLS[over]}   ({_SYMBOLS[held]} = {other:g})")
            panel.set_xticks(np.linspace(0, 1, 5), ["0", "¼", "½", "¾", "1"])
        side_legend(figure, axes[0][0], columns=5 if len(negatives) > 1 else 2)
        figure.align_ylabels([row[0] for row in axes])
        return finish(figure)
