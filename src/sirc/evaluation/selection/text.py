"""Text report of a choice between scores: a few sentences, then the regrets in aligned columns."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from sirc._utils.text import aligned, listed
from sirc.metrics import find_metric

if TYPE_CHECKING:
    from sirc.evaluation.selection.choice import Choice

_FEW = 50  # samples of a group below which intervals are known to be too narrow


def written(choice: Choice) -> str:
    """The whole report."""
    lines = [line for text in _sentences(choice) for line in textwrap.wrap(text, 110, break_on_hyphens=False)]
    return "\n".join([*lines, "", *aligned(list(_columns(choice)))])


def _sentences(choice: Choice) -> Iterator[str]:
    leader, *others = choice.table["score"]
    lowest = f"the lowest {'worst-case' if choice.by == 'worst' else 'average'} regret"
    if choice.tie:
        yield (
            f"A tie: {leader} has {lowest}, but its lead over "
            f"{listed([score for score in choice.tied if score != leader])} is within noise. Use {choice.best}, the "
            "simplest of them (the fewest parts, then the first one given); more rows may tell them apart."
        )
    else:
        over = others[0] if len(others) == 1 else f"all {len(others)} others"
        yield f"Use {leader}. It has {lowest}, and its lead over {over} is more than noise ({100 * choice.level:g}%)."
    if len(choice.sizes) == 2:
        yield (
            "No OOD data was given, so only the ranking of ID✗ and ID✓ was measured (α = 1). Nothing here shows how "
            "these scores do on OOD input: those that are alike on ID data may differ much there."
        )
    groups = {"correct": "ID✓", "wrong": "ID✗"}
    sizes = [f"{count:,} {groups.get(name, name)}" for name, count in choice.sizes.items()]
    if few := [text for text, count in zip(sizes, choice.sizes.values(), strict=True) if count < _FEW]:
        yield f"With only {listed(few)}, noise is somewhat larger than the intervals say."
    metric = find_metric(choice.metric)
    title = choice.metric.replace(metric.name, metric.title, 1) if metric else choice.metric
    number = len(choice.alpha) * len(choice.beta)
    points = f"{len(choice.alpha)} × {len(choice.beta)} points" if number > 1 else "1 point"
    above = "in percent of the best candidate's at each" if choice.relative else "in points (hundredths) above the best"
    last = (
        " The last column, for information, is the largest regret if one OOD set were all the OOD input: there "
        "another candidate may be nearly perfect."
    )
    drawn = "of a bootstrap" if choice.method == "bootstrap" else "from the influence of each row"
    yield (
        f"Measured: the regret of {title} over α {_span(choice.alpha)}, β {_span(choice.beta)} ({points}), {above}; on "
        f"{listed(sizes)}. Intervals: {100 * choice.level:g}%, {choice.draws:,} draws {drawn}."
        f"{last if len(choice.sizes) > 3 else ''}"
    )


def _columns(choice: Choice) -> Iterator[list[str]]:
    table, unit = choice.table, "%" if choice.relative else ""
    yield ["score", *table["score"]]
    for name in ("worst", "average"):
        rows = table[[f"{name}_regret", f"{name}_low", f"{name}_high"]].to_numpy()
        cells = [f"{100 * v:.2f}{unit} [{100 * low:.2f}, {100 * high:.2f}]" for v, low, high in rows]
        yield [f"{name} regret", *cells]
        if name == "worst" and len(choice.alpha) * len(choice.beta) > 1 and len(choice.sizes) > 2:
            at = zip(table["worst_alpha"], table["worst_beta"], strict=True)
            yield ["at α, β", *(f"{a:g}, {b:g}" for a, b in at)]
    yield ["lowest in draws", *(f"{100 * share:.0f}%" for share in table["wins"])]
    if len(choice.sizes) > 3:
        worst = zip(table["worst_set_regret"], table["worst_set"], strict=True)
        yield ["worst OOD set", *(f"{100 * regret:.2f}{unit} {name}" for regret, name in worst)]
    if choice.tie:
        yield ["", *("tie" if tied else "" for tied in table["tied"])]


def _span(points: Sequence[float]) -> str:
    return f"{points[0]:g}" if len(points) == 1 else f"{min(points):g}…{max(points):g}"
