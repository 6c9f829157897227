"""The pairs whose FPR figures show: ID✗|ID✓ and OOD|ID✓ for SCOD, OOD|ID for OOD detection."""

from __future__ import annotations

from typing import Final, NamedTuple

from sirc.metrics import Negative, Positive, Ranking
from sirc.report.figures.style import GROUPS, Look


class Pair(NamedTuple):
    """What to reject, what to accept, and the look of a bar for it."""

    negative: Negative
    positive: Positive
    look: Look


PAIRS: Final = {
    "ID✗|ID✓": Pair("wrong", "correct", GROUPS["wrong"]),
    "OOD|ID✓": Pair("ood", "correct", GROUPS["ood"]),
    "OOD|ID": Pair("ood", "id", Look("#56B4E9", hatch="\\\\\\\\")),
}


def fprs(ranking: Ranking, positive: Positive, recall: float) -> dict[str, float]:
    """The FPR at a recall of each pair with these positives that has negatives."""
    sizes = {"wrong": ranking.num_wrong, "ood": ranking.num_ood}
    return {
        name: ranking.fpr(pair.negative, recall=recall, positive=positive)
        for name, pair in PAIRS.items()
        if pair.positive == positive and sizes[pair.negative]
    }
