"""Change in FPR@95 against a baseline: how OOD detectors trade ID✗|ID✓ for OOD|ID."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
import pandas as pd

from sirc.evaluation import WRONG, Evaluation, as_names
from sirc.report.figures.style import GROUPS, Look, drawn, label_of, literal, new_figure, side_legend
from sirc.report.names import metric_name

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAIRS: Final = {
    "ID✗|ID✓": GROUPS["wrong"],
    "OOD|ID✓": GROUPS["ood"],
    "OOD|ID": Look("#56B4E9", hatch="\\\\\\\\"),
}


def _fpr_table(evaluation: Evaluation, scores: Sequence[str] | None = None) -> pd.DataFrame:
    """Give FPR at the evaluation's recall by score (rows) for ID✗|ID✓, OOD|ID✓ and OOD|ID, the mean over OOD sets."""
    rows = {}
    recall = evaluation.recall
    for score in evaluation.scores if scores is None else as_names(scores):
        row: dict[str, float] = {}
        if not bool(evaluation.correct.all()):
            row["ID✗|ID✓"] = evaluation.ranking(score, WRONG).fpr("wrong", recall=recall)
        if evaluation.ood:
            rankings = [evaluation.ranking(score, name) for name in evaluation.ood]
            row["OOD|ID✓"] = sum(r.fpr("ood", recall=recall) for r in rankings) / len(rankings)
            row["OOD|ID"] = sum(r.fpr("ood", recall=recall, positive="id") for r in rankings) / len(rankings)
        rows[score] = row
    return pd.DataFrame.from_dict(rows, orient="index")


def change_table(
    evaluations: Sequence[Evaluation], *, baseline: str = "msp", scores: Sequence[str] | None = None
) -> pd.DataFrame:
    """Give `score, pair, mean, std, runs`: the change in FPR against the baseline, over training runs."""
    changed: dict[tuple[str, str], list[float]] = {}
    for evaluation in evaluations:
        evaluation.only([baseline])  # refuses an unknown one
        chosen = evaluation.scores if scores is None else as_names(scores)
        table = _fpr_table(evaluation, list(dict.fromkeys([baseline, *chosen])))
        for pair, change in (table - table.loc[baseline]).items():
            for score in (name for name in chosen if name != baseline):
                changed.setdefault((score, str(pair)), []).append(float(change[score]))
    if not changed:
        raise ValueError(f"a change needs a run, `{baseline}` and another score, and data to reject; got none.")
    rows = [
        (*key, float(np.mean(runs)), float(np.std(runs, ddof=1)) if len(runs) > 1 else float("nan"), len(runs))
        for key, runs in changed.items()
    ]
    return pd.DataFrame(rows, columns=["score", "pair", "mean", "std", "runs"])


@drawn
def changes(
    models: Mapping[str, Sequence[Evaluation]], *, baseline: str = "msp", scores: Sequence[str] | None = None
) -> Figure:
    """Draw a panel for each model (its training runs): bars of the change in %FPR@95 by score; left of 0 is better.

    The mean over OOD sets, then over runs; whiskers are ± std over runs.
    """
    tables = {name: change_table(runs, baseline=baseline, scores=scores) for name, runs in models.items()}
    if not tables:
        raise ValueError("`models` must hold at least one model with its evaluations; got none.")
    names = list(dict.fromkeys(score for table in tables.values() for score in table["score"]))
    recall = next(iter(models.values()))[0].recall
    columns = min(3, len(tables))
    rows = -(-len(tables) // columns)
    width = 7.0 if columns > 1 else 4.6
    figure, axes = new_figure(
        rows, columns, width=width, height=rows * (0.75 + 0.27 * len(names)) + 0.35, sharey=True, sharex=True
    )
    panels = [panel for row in axes for panel in row]
    for panel, (model, table) in zip(panels, tables.items(), strict=False):
        shown = [pair for pair in PAIRS if pair in set(table["pair"])]
        for number, pair in enumerate(shown):
            rows_of = table[table["pair"] == pair].set_index("score").reindex(names)
            offset = (number - (len(shown) - 1) / 2) * 0.26
            look = PAIRS[pair]
            panel.barh(
                np.arange(len(names)) + offset,
                100 * rows_of["mean"].to_numpy(),
                height=0.26,
                color=look.colour,
                hatch=look.hatch,
                edgecolor="white",
                linewidth=0.3,
                label=pair,
                xerr=100 * rows_of["std"].to_numpy() if int(table["runs"].max()) > 1 else None,
                error_kw={"elinewidth": 0.6, "ecolor": "0.2"},
            )
        panel.axvline(0, color="0.2", linewidth=0.6)
        panel.grid(axis="x")
        panel.set_title(literal(model, 26 if columns > 2 else 40))
        panel.set_yticks(np.arange(len(names)), [label_of(name) for name in names])
        panel.tick_params(axis="y", length=0)
        panel.spines["left"].set_visible(False)
    for panel in panels[len(tables) :]:
        panel.set_visible(False)
    panels[0].set_ylim(len(names) - 0.45, -0.55)
    unit = metric_name(f"fpr@{100 * recall:g}", arrow=True, unit=True)
    figure.supxlabel(f"change in {unit} against {label_of(baseline)}", fontsize=8)
    side_legend(figure, panels[0], columns=3, above=True)
    return figure
