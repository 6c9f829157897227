"""Text report of a choice between scores: a few sentences, then the figures in aligned columns."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from sirc._utils.text import listed
from sirc.metrics import find_metric

if TYPE_CHECKING:
    from sirc.evaluation.selection import Choice

_FEW = 50  # samples of a group below which a bootstrap is known to be too sure of itself
_CRITERION = {"worst": "worst-case", "average": "average"}


def written(choice: Choice) -> str:
    """The whole report."""
    paragraphs = [_verdict(choice), *_cautions(choice), _how(choice)]
    lines = [line for text in paragraphs for line in textwrap.wrap(text, 110, break_on_hyphens=False)]
    return "\n".join([*lines, "", *_figures(choice)])


def _verdict(choice: Choice) -> str:
    leader, regret = choice.table["score"][0], _CRITERION[choice.by]
    if not choice.tie:
        others = list(choice.table["score"][1:])
        over = others[0] if len(others) == 1 else f"all {len(others)} others"
        return (
            f"Use {choice.best}. It has the lowest {regret} regret, and its lead over {over} is more than noise "
            f"({100 * choice.level:g}%)."
        )
    others = [score for score in choice.tied if score != leader]
    lead = f"{leader} has the lowest {regret} regret, but its lead over {listed(others)} is within noise."
    return (
        f"A tie: {lead} Use {choice.best}, the simplest of them (the fewest parts, then the first one given); more "
        "rows may tell them apart."
    )


def _cautions(choice: Choice) -> list[str]:
    cautions = []
    if len(choice.sizes) == 2:
        cautions.append(
            "No OOD data was given, so only the ranking of ID✗ and ID✓ was measured (α = 1). Nothing here tells how "
            "these scores do on OOD input: those that are alike on ID data may differ much there."
        )
    if few := [f"{count:,} {_group(name)}" for name, count in choice.sizes.items() if count < _FEW]:
        cautions.append(f"With only {listed(few)}, noise is somewhat larger than the intervals say.")
    return cautions


def _how(choice: Choice) -> str:
    sizes = listed([f"{count:,} {_group(name)}" for name, count in choice.sizes.items()])
    points = (
        f"{len(choice.alpha)} × {len(choice.beta)} points" if len(choice.alpha) * len(choice.beta) > 1 else "1 point"
    )
    above = "in percent of the best candidate's at each" if choice.relative else "in points (hundredths) above the best"
    return (
        f"Measured: the regret of {_title(choice.metric)} over α {_span(choice.alpha)}, β {_span(choice.beta)} "
        f"({points}), {above}; on {sizes}. Intervals: {100 * choice.level:g}%, {choice.draws:,} draws."
        + (
            " The last column is for information: the largest regret were one set all the OOD input, on which another "
            "candidate may be nearly perfect."
            if len(choice.sizes) > 3
            else ""
        )
    )


def _figures(choice: Choice) -> list[str]:
    table, unit = choice.table, "%" if choice.relative else ""
    columns = [["score", *table["score"]]]
    for name in ("worst", "average"):
        rows = table[[f"{name}_regret", f"{name}_low", f"{name}_high"]].to_numpy()
        cells = [f"{100 * v:.2f}{unit} [{100 * low:.2f}, {100 * high:.2f}]" for v, low, high in rows]
        columns.append([f"{name} regret", *cells])
        if name == "worst" and len(choice.alpha) * len(choice.beta) > 1 and len(choice.sizes) > 2:
            at = zip(table["worst_alpha"], table["worst_beta"], strict=True)
            columns.append(["at α, β", *(f"{a:g}, {b:g}" for a, b in at)])
    columns.append(["lowest in draws", *(f"{100 * share:.0f}%" for share in table["wins"])])
    if len(choice.sizes) > 3:
        worst = zip(table["worst_set_regret"], table["worst_set"], strict=True)
        columns.append(["worst OOD set", *(f"{100 * regret:.2f}{unit} {name}" for regret, name in worst)])
    if choice.tie:
        columns.append(["", *("tie" if tied else "" for tied in table["tied"])])
    widths = [max(map(len, column)) for column in columns]
    padded = [[cell.ljust(width) for cell in column] for column, width in zip(columns, widths, strict=True)]
    lines = zip(*padded, strict=True)
    return ["  ".join(line).rstrip() for line in lines]


def _title(label: str) -> str:
    metric = find_metric(label)
    return label.replace(metric.name, metric.title, 1) if metric else label


def _group(name: str) -> str:
    return {"correct": "ID✓", "wrong": "ID✗"}.get(name, name)


def _span(points: Sequence[float]) -> str:
    return f"{points[0]:g}" if len(points) == 1 else f"{min(points):g}…{max(points):g}"
