"""Figures that compare scores: FPR against TPR, risk curves, metrics against α and β, changes in FPR."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import numpy as np
import pandas as pd
from torch import Tensor

from sirc._utils.arrays import ArrayLike, Floats
from sirc._utils.checks import check_choice, check_fraction
from sirc.evaluation import ORACLE, POOLED, WRONG, Evaluation, as_fractions, as_names, combine
from sirc.metrics import Negative, Positive, Ranking, find_metric
from sirc.report.figures.pairs import PAIRS, fprs
from sirc.report.figures.style import (
    GROUPS,
    array,
    drawn,
    label_of,
    literal,
    method_look,
    name_ood,
    new_figure,
    side_legend,
)
from sirc.report.names import metric_name, negative_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_DASHES: Final = ("-", (0, (3.2, 1.4)), (0, (1, 1.1)), (0, (6, 1.4, 1, 1.4)))
_MARKERS: Final = "osD^"
_GRID: Final = tuple(round(0.05 * k, 2) for k in range(1, 20))
_SYMBOLS: Final = {"alpha": "α", "beta": "β"}


class Roc(NamedTuple):
    """Accepted shares of positives and negatives, from none on, then at each threshold from the strictest."""

    tpr: Floats
    fpr: Floats


def roc(ranking: Ranking, negative: Negative, positive: Positive = "correct") -> Roc:
    """The ROC curve of a ranking; `positive="id"` with the negative `"ood"` is OOD detection.

    Example:
        >>> import sirc
        >>> from sirc.report.figures import roc
        >>> curve = roc(sirc.Ranking([0.9, 0.8], [0.4], [0.3, 0.85]), "ood")
        >>> curve.tpr.tolist(), curve.fpr.tolist()
        ([0.0, 0.5, 0.5, 1.0, 1.0, 1.0], [0.0, 0.0, 0.5, 0.5, 0.5, 1.0])
    """
    tpr, fpr = ranking.roc(negative, positive)
    return Roc(np.append(0.0, array(tpr)), np.append(0.0, array(fpr)))


@drawn
def separation(evaluation: Evaluation, scores: Sequence[str], *, negative: str | None = None) -> Figure:
    """Draw FPR against TPR of up to four scores: OOD|ID on the left, ID✗|ID✓ and OOD|ID✓ on the right. Low is good.

    Colours stand for negatives, dashes for scores; markers are at FPR@95 (the evaluation's `recall`).

    Example:
        >>> import sirc
        >>> from sirc.report.figures import separation
        >>> ev = sirc.evaluate({"msp": ([0.9, 0.8, 0.4], [True, True, False])}, ood={"far": {"msp": [0.3, 0.85]}})
        >>> [panel.get_xlabel() for panel in separation(ev, ["msp"]).axes]
        ['TPR (share of ID accepted)', 'TPR (share of ID✓ accepted)']
    """
    wanted, at = as_names(scores), evaluation.recall
    if not 1 <= len(wanted) <= len(_DASHES):
        raise ValueError(f"`scores` must be 1 to {len(_DASHES)} scores, one for each kind of dash; got {len(wanted)}.")
    negative = negative or evaluation._usual_negative
    rankings = {score: evaluation.ranking(score, negative) for score in wanted}
    positives: list[Positive] = [one for one in ("id", "correct") if fprs(rankings[wanted[0]], one, at)]
    if not positives:
        raise ValueError(f"FPR needs wrong predictions or OOD data; this is {evaluation!r}.")
    figure, axes = new_figure(1, len(positives), width=2.8 * len(positives) + 0.5, height=3.0, sharey=True)
    for panel, positive in zip(axes[0], positives, strict=True):
        for number, (score, ranking) in enumerate(rankings.items()):
            for name, fpr in fprs(ranking, positive, at).items():
                negatives = PAIRS[name].negative
                curve, colour = roc(ranking, negatives, positive), GROUPS[negatives].colour
                line: dict[str, Any] = {"color": colour, "linestyle": _DASHES[number], "gid": f"{name} {number}"}
                panel.plot(*curve, label=f"{name}, {label_of(score)}", **line)
                panel.plot([at], [fpr], _MARKERS[number], color=colour, mec="white", mew=0.5)
        panel.plot([0, 1], [0, 1], color="0.8", linewidth=0.6, zorder=0)
        panel.axvline(at, color="0.6", linewidth=0.6, linestyle=(0, (3, 2)), zorder=0)
        accepted = "ID" if positive == "id" else "ID✓"
        panel.set(xlim=(0, 1.01), ylim=(0, 1.01), aspect="equal", xlabel=f"TPR (share of {accepted} accepted)")
        panel.legend(loc="upper left")
    axes[0][0].set_ylabel("FPR (share of negatives accepted)")
    name_ood(figure, negative)
    return figure


@drawn
def risks(
    evaluation: Evaluation,
    scores: Sequence[str],
    *,
    negative: str | None = None,
    alpha: float | None = None,
    beta: float | None = None,
) -> Figure:
    """Draw risk–coverage curves with the oracle's on the left, and risk–recall curves with Risk@95 on the right.

    The legend has the AURC and AURR (×10²) of each score. α and β are the evaluation's own by default.

    Example:
        >>> import sirc
        >>> from sirc.report.figures import risks
        >>> ev = sirc.evaluate({"msp": ([0.9, 0.8, 0.4], [True, True, False])}, ood={"far": {"msp": [0.3, 0.85]}})
        >>> risks(ev, ["msp"], alpha=0.7).get_suptitle()
        'All OOD,  α = 0.7,  β = 0.5'
    """
    wanted, at = as_names(scores), evaluation.recall
    negative = negative or evaluation._usual_negative
    a = 1.0 if alpha is None and not evaluation.ood else _single("alpha", alpha, evaluation.alpha)
    b = _single("beta", beta, evaluation.beta)
    covered = evaluation.curves("risk_coverage", negative=negative, alpha=a, beta=b, scores=wanted)
    recalled = evaluation.curves("risk_recall", negative=negative, alpha=a, beta=b, scores=wanted)
    figure, axes = new_figure(1, 2, height=3.2, sharey=True)
    left, right = axes[0]
    for score in wanted:
        look, ranking, name = method_look(score), evaluation.ranking(score, negative), label_of(score)
        areas = ",  ".join(f"{100 * float(area):.1f}" for area in (ranking.aurc(a, b), ranking.aurr(a, b)))
        left.plot(array(covered[score].x), array(covered[score].risk), label=f"{name}:  {areas}", **look.line)
        right.plot(array(recalled[score].x), array(recalled[score].risk), label=name, **look.line)
        point = float(ranking.risk_at_recall(at, a, b))
        right.plot([at], [point], look.marker, color=look.colour, mec="white", mew=0.5, zorder=4)
    oracle = covered[ORACLE]
    left.plot(array(oracle.x), array(oracle.risk), color="0.6", linewidth=1.8, zorder=0, label="oracle")
    right.axvline(at, color="0.6", linewidth=0.6, linestyle=(0, (3, 2)), zorder=0)
    right.annotate(
        metric_name(f"risk@{100 * at:g}"),
        (at, 0.0),
        xycoords=("data", "axes fraction"),
        xytext=(-3, 4),
        textcoords="offset points",
        ha="right",
        va="bottom",
        fontsize=7,
        color="0.35",
    )
    left.set(xlabel="coverage", ylabel="risk", xlim=(0, 1.01), ylim=(0, None))
    right.set(xlabel="recall of ID✓", xlim=(0, 1.01))
    side_legend(figure, left, columns=3, title="AURC and AURR (×10²)")
    figure.suptitle(f"{literal(negative_name(negative))},  α = {a:g},  β = {b:g}", fontsize=8)
    return figure


def _single(name: str, given: float | None, evaluated: Tensor) -> float:
    """One α or β: the given one, else the evaluation's own if it is single, else ½."""
    if given is not None:
        return check_fraction(name, given)
    return float(evaluated[0]) if len(evaluated) == 1 else 0.5


def sweep_table(
    evaluations: Sequence[Evaluation],
    over: Literal["alpha", "beta"],
    *,
    scores: Sequence[str] | None = None,
    values: ArrayLike = _GRID,
    other: float = 0.5,
) -> pd.DataFrame:
    """Mean and std over training runs of every metric along α or β, with the other one fixed.

    Example:
        >>> import sirc
        >>> from sirc.report.figures import sweep_table
        >>> ev = sirc.evaluate({"msp": ([0.9, 0.8, 0.4], [True, True, False])}, ood={"far": {"msp": [0.3, 0.85]}})
        >>> swept = sweep_table([ev], "alpha", values=[0.25, 0.75])
        >>> swept[swept["metric"] == "aurr"]["mean"].round(3).tolist()
        [0.173, 0.05]
    """
    check_choice("over", over, tuple(_SYMBOLS))
    grid = as_fractions("values", values)
    frames = []
    for evaluation in evaluations:
        if not evaluation.ood:
            raise ValueError(f"a sweep over {_SYMBOLS[over]} needs OOD data; this is {evaluation!r}.")
        alphas, betas = (grid, other) if over == "alpha" else (other, grid)
        frames.append(evaluation.sweep(alphas, betas, scores=scores))
    return combine(frames)


@drawn
def sweeps(
    evaluations: Sequence[Evaluation],
    over: Literal["alpha", "beta"],
    scores: Sequence[str],
    *,
    values: ArrayLike = _GRID,
    other: float = 0.5,
) -> Figure:
    """Draw mean ± std over the runs along α or β, with a row for each metric and columns for All, Close and Far.

    `evaluations` are the training runs of one model; a single one has no bands. Values are ×10².

    Example:
        >>> import sirc
        >>> from sirc.report.figures import sweeps
        >>> ev = sirc.evaluate({"msp": ([0.9, 0.8, 0.4], [True, True, False])}, ood={"far": {"msp": [0.3, 0.85]}})
        >>> [panel.get_ylabel() for panel in sweeps([ev], "alpha", ["msp"]).axes]
        ['AURR↓ ×10²', 'Risk@95↓ ×10²', 'AURC↓ ×10²']
    """
    table = sweep_table(evaluations, over, scores=as_names(scores), values=values, other=other)
    metrics = [label for label in dict.fromkeys(table["metric"]) if (known := find_metric(label)) and known.swept]
    negatives = list(dict.fromkeys(table["negative"]))
    held = "beta" if over == "alpha" else "alpha"
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
    return figure


def change_table(
    evaluations: Sequence[Evaluation], *, baseline: str = "msp", scores: Sequence[str] | None = None
) -> pd.DataFrame:
    """The change in FPR against the baseline over training runs: `score, pair, mean, std, runs`.

    Example:
        >>> import sirc
        >>> from sirc.report.figures import change_table
        >>> scores = {"msp": ([0.9, 0.8, 0.4], [True, True, False]), "energy": ([5, 6, 2], [True, True, False])}
        >>> ev = sirc.evaluate(scores, ood={"far": {"msp": [0.3, 0.85], "energy": [1, 3]}})
        >>> change_table([ev])[["score", "pair", "mean"]].iloc[1].to_dict()
        {'score': 'energy', 'pair': 'OOD|ID✓', 'mean': -0.5}
    """
    rows = []
    for evaluation in evaluations:
        usual = _mean_fprs(evaluation, baseline)
        others = [name for name in (evaluation.scores if scores is None else as_names(scores)) if name != baseline]
        by_score = {score: _mean_fprs(evaluation, score) for score in others}
        rows += [(score, pair, by_score[score][pair] - usual[pair]) for pair in usual for score in others]
    if not rows:
        raise ValueError(f"a change needs a run, `{baseline}` and another score, and data to reject; got none.")
    frame = pd.DataFrame(rows, columns=["score", "pair", "change"])
    by_pair = frame.groupby(["score", "pair"], sort=False)["change"]
    return by_pair.agg(mean="mean", std="std", runs="count").reset_index()


def _mean_fprs(evaluation: Evaluation, score: str) -> dict[str, float]:
    """FPR at the evaluation's recall for ID✗|ID✓, OOD|ID✓ and OOD|ID; for OOD the mean over the sets."""
    recall, rankings = evaluation.recall, [evaluation.ranking(score, name) for name in evaluation.ood or [WRONG]]
    each = [fprs(ranking, "correct", recall) | fprs(ranking, "id", recall) for ranking in rankings]
    of_ood = [pair for pair in each[0] if PAIRS[pair].negative == "ood"]
    # For ID✗ it is the same with each set.
    return each[0] | {pair: sum(one[pair] for one in each) / len(each) for pair in of_ood}


@drawn
def changes(
    models: Mapping[str, Sequence[Evaluation]], *, baseline: str = "msp", scores: Sequence[str] | None = None
) -> Figure:
    """Draw a panel for each model, with bars for the change in %FPR@95 of each score; left of 0 is better.

    `models` has the runs of each model. Bars are means over OOD sets, then over runs; whiskers are ± std over runs.

    Example:
        >>> import sirc
        >>> from sirc.report.figures import changes
        >>> scores = {"msp": ([0.9, 0.8, 0.4], [True, True, False]), "energy": ([5, 6, 2], [True, True, False])}
        >>> ev = sirc.evaluate(scores, ood={"far": {"msp": [0.3, 0.85], "energy": [1, 3]}})
        >>> changes({"A network": [ev]}).get_supxlabel()
        'change in %FPR@95↓ against MSP'
    """
    tables = {name: change_table(runs, baseline=baseline, scores=scores) for name, runs in models.items()}
    if not tables:
        raise ValueError("`models` must hold at least one model with its evaluations; got none.")
    names = list(dict.fromkeys(score for table in tables.values() for score in table["score"]))
    recall = next(iter(models.values()))[0].recall
    rows = -(-len(tables) // 3)
    columns = -(-len(tables) // rows)  # four are two by two
    width = 7.0 if columns > 1 else 4.6
    figure, axes = new_figure(
        rows, columns, width=width, height=rows * (0.75 + 0.27 * len(names)) + 0.35, sharey=True, sharex=True
    )
    panels = [panel for row in axes for panel in row]
    for panel, (model, table) in zip(panels, tables.items(), strict=False):
        _draw_changes(panel, table, names)
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


def _draw_changes(panel: Axes, table: pd.DataFrame, scores: list[str]) -> None:
    """Draw a bar for each pair of each score, with whiskers if there are several runs."""
    shown = [pair for pair in PAIRS if pair in set(table["pair"])]
    for number, pair in enumerate(shown):
        rows = table[table["pair"] == pair].set_index("score").reindex(scores)
        panel.barh(
            np.arange(len(scores)) + (number - (len(shown) - 1) / 2) * 0.26,
            100 * rows["mean"].to_numpy(),
            height=0.26,
            color=PAIRS[pair].look.colour,
            hatch=PAIRS[pair].look.hatch,
            edgecolor="white",
            linewidth=0.3,
            label=pair,
            xerr=100 * rows["std"].to_numpy() if int(table["runs"].max()) > 1 else None,
            error_kw={"elinewidth": 0.6, "ecolor": "0.2"},
        )
