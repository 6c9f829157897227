"""A table in Markdown, as GitHub and most other readers show it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from sirc.report.names import escape, metric_name, negative_name, score_name
from sirc.report.tables.text import caption, error_line, figure

if TYPE_CHECKING:
    from sirc.report.tables import Cell, Table

_MARKS = {"bold": "**{}**", "underline": "<u>{}</u>", "": "{}"}


def markdown(table: Table) -> str:
    """One table for each model, and the caption."""
    blocks = []
    for part in table.parts():
        for model in part.models:
            about = [f"**{safe(model)}**" if model.strip() else "", safe(error_line(table, model, "text"))]
            blocks += [", ".join(line for line in about if line), _rows(table, model, part.negatives)]
    return "\n\n".join([*(block for block in blocks if block), safe(caption(table, "text"))]) + "\n"


def safe(text: str) -> str:
    """Any text so that Markdown shows it as it is, in a cell of a table too."""
    plain = " ".join(escape(text, "text").split())
    for character, entity in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;")):
        plain = plain.replace(character, entity)
    return re.sub(r"([\\`*_\[\]|~$])", r"\\\1", plain)


def _rows(table: Table, model: str, negatives: list[str]) -> str:
    columns = [(negative, metric) for negative in negatives for metric in table.metrics]
    heads = [f"{safe(negative_name(n))} {safe(metric_name(m, unit=True, arrow=True))}" for n, m in columns]
    lines = [["Method", *heads], ["---", *("---:" for _ in heads)]]
    for score in table.scores_of(model):
        cells = [_cell(table, table.cell(model, score, n, m), m) for n, m in columns]
        lines.append([safe(score_name(score)), *cells])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(table: Table, cell: Cell, metric: str) -> str:
    return _MARKS[cell.mark].format(" ".join(figure(cell, metric, spread=table.spread)).strip())
