"""Risk against coverage, with the oracle, and against recall, with Risk@95 marked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from sirc.evaluation import ORACLE, Evaluation, as_names
from sirc.report.figures.pieces import array, default_negative, mixture
from sirc.report.figures.style import drawing, finish, label_of, literal, method_look, new_figure, side_legend
from sirc.report.names import metric_name, negative_name

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def risks(
    evaluation: Evaluation,
    scores: Sequence[str],
    *,
    negative: str | None = None,
    alpha: float | None = None,
    beta: float | None = None,
) -> Figure:
    """Draw risk–coverage curves with the oracle's on the left, risk–recall with Risk@95 marked on the right.

    The legend gives AURC and AURR (×10²) of each score. α and β are the evaluation's own unless given.
    """
    wanted = as_names(scores)
    negative = default_negative(evaluation) if negative is None else negative
    a, b = mixture(evaluation, alpha, beta)
    at = evaluation.recall
    covered = evaluation.curves("risk_coverage", negative=negative, alpha=a, beta=b, scores=wanted)
    recalled = evaluation.curves("risk_recall", negative=negative, alpha=a, beta=b, scores=wanted)
    with drawing():
        figure, axes = new_figure(1, 2, height=3.2, sharey=True)
        left, right = axes[0]
        for score in wanted:
            look, ranking = method_look(score), evaluation.ranking(score, negative)
            name = label_of(score)
            curve = covered[score]
            left.plot(
                array(curve.x),
                array(curve.risk),
                label=_with(name, ranking.aurc(a, b), ranking.aurr(a, b)),
                **look.line,
            )
            curve = recalled[score]
            right.plot(array(curve.x), array(curve.risk), label=name, **look.line)
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
        return finish(figure)


def _with(name: str, *areas: float | Tensor) -> str:
    return f"{name}:  " + ",  ".join(f"{100 * float(area):.1f}" for area in areas)
