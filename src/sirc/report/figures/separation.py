"""FPR against TPR: how well scores tell OOD from ID, and ID✗ and OOD from ID✓."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from sirc.evaluation import POOLED, WRONG, Evaluation, as_names
from sirc.metrics import Negative, Positive, Ranking
from sirc.report.figures.pieces import default_negative, roc
from sirc.report.figures.style import GROUPS, drawing, finish, label_of, literal, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# The pairs in each panel: name, negatives, positives.
_PANELS: Final[tuple[tuple[tuple[str, Negative, Positive], ...], ...]] = (
    (("OOD|ID", "ood", "id"),),
    (("ID✗|ID✓", "wrong", "correct"), ("OOD|ID✓", "ood", "correct")),
)
_DASHES: Final = ("-", (0, (3.2, 1.4)), (0, (1, 1.1)), (0, (6, 1.4, 1, 1.4)))
_MARKERS: Final = "osD^"


def separation(evaluation: Evaluation, scores: Sequence[str], *, negative: str | None = None) -> Figure:
    """Draw FPR against TPR of up to four scores: OOD|ID on the left; ID✗|ID✓ and OOD|ID✓ on the right; low is good.

    Colours say which negatives, dashes which score; markers stand at FPR@95 (the evaluation's `recall`).
    """
    wanted = as_names(scores)
    if not 1 <= len(wanted) <= len(_DASHES):
        raise ValueError(f"`scores` must be 1 to {len(_DASHES)} scores, to be told apart; got {len(wanted)}.")
    negative = default_negative(evaluation) if negative is None else negative
    rankings = {score: evaluation.ranking(score, negative) for score in wanted}
    pairs = [[pair for pair in panel if _there(rankings[wanted[0]], pair[1])] for panel in _PANELS]
    with drawing():
        shown = [panel for panel in pairs if panel]
        if not shown:
            raise ValueError(f"FPR needs wrong predictions or OOD data; this is {evaluation!r}.")
        figure, axes = new_figure(1, len(shown), width=2.8 * len(shown) + 0.5, height=3.0, sharey=True)
        for panel, drawn in zip(axes[0], shown, strict=True):
            for number, (score, ranking) in enumerate(rankings.items()):
                for name, negatives, positive in drawn:
                    curve = roc(ranking, negatives, positive)
                    look: dict[str, Any] = {"color": GROUPS[negatives].colour, "linestyle": _DASHES[number]}
                    label = f"{name}, {label_of(score)}"
                    panel.plot(curve.tpr, curve.fpr, label=label, gid=f"{name} {number}", **look)
                    at = ranking.fpr(negatives, recall=evaluation.recall, positive=positive)
                    panel.plot(
                        [evaluation.recall],
                        [at],
                        _MARKERS[number],
                        color=GROUPS[negatives].colour,
                        mec="white",
                        mew=0.5,
                    )
            _frame(panel, evaluation.recall, "ID" if drawn[0][2] == "id" else "ID✓")
            panel.legend(loc="upper left")
        axes[0][0].set_ylabel("FPR (share of negatives accepted)")
        if negative not in (POOLED, WRONG):
            figure.suptitle(f"OOD: {literal(negative)}")
        return finish(figure)


def _there(ranking: Ranking, negative: Negative) -> bool:
    return bool(ranking.num_wrong if negative == "wrong" else ranking.num_ood)


def _frame(axes: Axes, recall: float, positive: str) -> None:
    axes.plot([0, 1], [0, 1], color="0.8", linewidth=0.6, zorder=0)
    axes.axvline(recall, color="0.6", linewidth=0.6, linestyle=(0, (3, 2)), zorder=0)
    axes.set(xlim=(0, 1.01), ylim=(0, 1.01), aspect="equal", xlabel=f"TPR (share of {positive} accepted)")
