"""A table in HTML: a fragment for any page, that brings its own style, or a page of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sirc.report.names import escape, metric_name, negative_name, score_name
from sirc.report.tables.cells import is_sirc
from sirc.report.tables.text import caption, error_line, figure

if TYPE_CHECKING:
    from sirc.report.tables import Cell, Part, Table

_STYLE = """<style>
.sirc-table { overflow-x: auto; font: 14px/1.5 system-ui, sans-serif; }
.sirc-table table { border-collapse: collapse; border-block: 2px solid; margin-block: 1em; white-space: nowrap; }
.sirc-table caption { caption-side: bottom; text-align: start; white-space: normal; padding-block: .5em; }
.sirc-table th, .sirc-table td { padding: .1em .6em; text-align: right; font-variant-numeric: tabular-nums; }
.sirc-table th { font-weight: 600; }
.sirc-table tbody th { font-weight: 400; text-align: start; }
.sirc-table tbody th[scope=rowgroup] { font-weight: 600; padding-block-start: .5em; }
.sirc-table thead tr:first-child th { text-align: center; }
.sirc-table tbody, .sirc-table tr.others { border-block-start: 1px solid; }
.sirc-table small { opacity: .7; }
</style>"""
_MARKS = {"bold": "<b>{}</b>", "underline": "<u>{}</u>", "": "{}"}
_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>Results</title>
</head>
<body>
{}</body>
</html>
"""


def html(table: Table, *, page: bool) -> str:
    """One table for all models that have the same negatives, with a body of rows for each model."""
    parts = table.parts()
    tables = [_table(table, part, last=part is parts[-1]) for part in parts]
    fragment = "\n".join(['<div class="sirc-table">', _STYLE, *tables, "</div>"]) + "\n"
    return _PAGE.format(fragment) if page else fragment


def _table(table: Table, part: Part, *, last: bool) -> str:
    columns = [(negative, metric) for negative in part.negatives for metric in table.metrics]
    count = len(table.metrics)
    groups = [f'<th scope="colgroup" colspan="{count}">{negative_name(n, "html")}</th>' for n in part.negatives]
    heads = [f'<th scope="col">{metric_name(metric, "html", unit=True, arrow=True)}</th>' for _, metric in columns]
    lines = ["<table>", *([f"<caption>{caption(table, 'html')}</caption>"] if last else [])]
    lines += ["<colgroup></colgroup>", *(f'<colgroup span="{count}"></colgroup>' for _ in part.negatives)]
    lines += ["<thead>", f'<tr><th scope="col" rowspan="2">Method</th>{"".join(groups)}</tr>']
    lines += [f"<tr>{''.join(heads)}</tr>", "</thead>"]
    for model in part.models:
        about = ", ".join(line for line in (escape(model, "html"), error_line(table, model, "html")) if line)
        lines.append("<tbody>")
        if about:
            lines.append(f'<tr><th scope="rowgroup" colspan="{len(columns) + 1}">{about}</th></tr>')
        before = ""
        for score in table.scores_of(model):
            cells = [_cell(table, table.cell(model, score, n, m), m) for n, m in columns]
            row = '<tr class="others">' if is_sirc(before) and not is_sirc(score) else "<tr>"
            lines.append(f'{row}<th scope="row">{score_name(score, "html")}</th>{"".join(cells)}</tr>')
            before = score
        lines.append("</tbody>")
    return "\n".join([*lines, "</table>"])


def _cell(table: Table, cell: Cell, metric: str) -> str:
    value, spread = figure(cell, metric, spread=table.spread)
    inside = _MARKS[cell.mark].format(value) + (f" <small>{spread}</small>" if spread else "")
    return f"<td>{inside}</td>"
