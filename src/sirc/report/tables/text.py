"""What every format of a table says alike: its figures, its caption, and the line about a model."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from sirc.evaluation import WRONG
from sirc.metrics import find_metric
from sirc.report.names import Style, escape, metric_name

if TYPE_CHECKING:
    from sirc.report.tables import Cell, Table

MISSING = "–"


def figure(cell: Cell, metric: str, *, spread: bool) -> tuple[str, str]:
    """A mean with two decimals, ×100, and with `spread` its 2 std, ±0.2; a missing figure is a dash."""
    if math.isnan(cell.mean):
        return MISSING, ""
    # Percentages vary by tenths and more between runs; what is shown ×10² by less.
    kind = find_metric(metric)
    decimals = 1 if kind and kind.unit == "%" else 2
    shown = spread and not math.isnan(cell.two_std)
    return f"{100 * cell.mean:.2f}", f"±{100 * cell.two_std:.{decimals}f}" if shown else ""


def error_line(table: Table, model: str, style: Style) -> str:
    """The ID error of a model, or nothing where it is unknown."""
    error, two_std = table.errors[model]
    if math.isnan(error):
        return ""
    spread = f" ±{100 * two_std:.1f}" if table.spread and not math.isnan(two_std) else ""
    return escape(f"ID %error: {100 * error:.2f}{spread}", style)


def caption(table: Table, style: Style) -> str:
    """What the figures are, of how many runs, and what the marks mean."""
    names = " and ".join([metric_name(m, style, unit=True) for m in table.metrics])
    words = f" with ID✓ as the positive class{_mixture(table)}{_runs(table)}."
    marks = " Bold: best; underlined: second and third." if len(table.scores) > 1 else ""
    return names + escape(words + marks, style)


def _mixture(table: Table) -> str:
    """The α and β of metrics that depend on them."""
    cells = table.cells[table.cells["beta"].notna()]
    alphas, betas = cells["alpha"][cells["negative"] != WRONG].unique(), cells["beta"].unique()
    if not len(betas):
        return ""
    at = [f"α = {x:g}" for x in alphas] + [f"β = {x:g}" for x in betas]
    alone = " (ID✗: α = 1)" if len(alphas) and (cells["negative"] == WRONG).any() else ""
    return f", at {', '.join(at)}{alone}"


def _runs(table: Table) -> str:
    counts = sorted({int(runs) for runs in table.cells["runs"][table.cells["mean"].notna()]})
    if not counts or counts == [1]:
        return ""
    several = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return f"; mean{' ± 2 std' if table.spread else ''} over {several} training runs"
