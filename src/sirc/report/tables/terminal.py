"""Tables for the terminal: bold and underlined, or with signs for both in plain text."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich import box
from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.table import Table as Grid
from rich.text import Text

from sirc.report.names import escape, metric_name, negative_name, score_name
from sirc.report.tables.cells import is_sirc
from sirc.report.tables.render import caption, error_line, figure

if TYPE_CHECKING:
    from sirc.report.tables import Table

_SIGNS = {"bold": "*", "underline": "_", "": ""}  # as in Markdown; before the number, so that points stay aligned
_GAP = 3  # between columns
_NAME, _HEAD = 40, 20  # longer names are broken


def text(table: Table, width: int) -> str:
    """Plain text, wider than `width` if one negative needs more."""
    label, each = _widths(table)
    width = max(width, label + each)
    console = Console(file=io.StringIO(), width=width, force_terminal=False, color_system=None, legacy_windows=False)
    with console.capture() as captured:
        for part in renderables(table, width, styled=False):
            console.print(part)
    return "\n".join(line.rstrip() for line in captured.get().splitlines()).strip("\n") + "\n"


def renderables(table: Table, width: int, *, styled: bool) -> Iterator[RenderableType]:
    """The pieces that rich prints: a table for each model and part, then the legend."""
    heads = _heads(table)
    label, each = _widths(table)
    for part in table.parts(columns=max(1, (width - label) // each) * len(heads)):
        for model in part.models:
            about = [line for line in (escape(model, "text"), error_line(table, model, "text")) if line]
            grid = Grid(
                box=box.SIMPLE_HEAD,
                title=Text(", ".join(about)) if about else None,
                title_justify="left",
                title_style="bold",
                pad_edge=False,
            )
            grid.add_column("Method", no_wrap=True)
            for negative in part.negatives:
                above = _broken(negative_name(negative), _HEAD)
                for number, head in enumerate(heads):
                    both = f"{above}\n{head}" if number == 0 else head
                    grid.add_column(Text(both), justify="right", no_wrap=True)
            scores = table.scores_of(model)
            for score, following in zip(scores, [*scores[1:], ""], strict=True):
                cells = [_cell(*figure(table, model, score, *column), styled=styled) for column in part.columns]
                last_sirc = is_sirc(score) and bool(following) and not is_sirc(following)
                grid.add_row(Text(_broken(score_name(score), _NAME)), *cells, end_section=last_sirc)
            yield grid
    legend = caption(table, "text")
    if not styled:
        legend = legend.replace("Bold: best; underlined: second", "* best; _ second")
    yield Text(legend)


def _heads(table: Table) -> list[str]:
    return [metric_name(metric, unit=True, arrow=True) for metric in table.metrics]


def _widths(table: Table) -> tuple[int, int]:
    """The widths of the names of scores and of the columns of one negative."""
    figures = [max(len(head), 13 if table.spread else 7) + _GAP for head in _heads(table)]
    longest = max(cell_len(negative_name(negative)) for negative in table.negatives)
    label = max(6, *(cell_len(score_name(score)) for score in table.scores))
    each = max(figures[0], min(longest, _HEAD) + _GAP) + sum(figures[1:])
    return min(label, _NAME) + _GAP, each


def _broken(name: str, width: int) -> str:
    lines = Text(name).wrap(Console(file=io.StringIO()), width, overflow="fold")
    return "\n".join(line.plain.rstrip() for line in lines)


def _cell(mark: str, value: str, spread: str, *, styled: bool) -> Text:
    written = f"{value} {spread:>5}" if spread else value
    # The style belongs to the characters, not to the padding before them.
    return Text().append(written, mark) if styled else Text(_SIGNS[mark] + written)
