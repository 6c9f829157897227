"""Tables as Markdown and HTML, and the pieces that all formats share: figures, caption, model line."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

from sirc.evaluation import WRONG
from sirc.metrics import find_metric
from sirc.report.names import Style, escape, metric_name, negative_name, score_name
from sirc.report.tables.cells import is_sirc

if TYPE_CHECKING:
    from sirc.report.tables import Part, Table

MISSING = "–"
_MARKDOWN_MARKS = {"bold": "**{}**", "underline": "<u>{}</u>", "": "{}"}
_HTML_MARKS = {"bold": "<b>{}</b>", "underline": "<u>{}</u>", "": "{}"}
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


def figure(table: Table, model: str, score: str, negative: str, metric: str) -> tuple[str, str, str]:
    """The mark of a cell, its mean ×100, and its 2 std, ±0.2, if the table shows it; a missing mean is a dash."""
    cell = table.cell(model, score, negative, metric)
    if math.isnan(cell.mean):
        return cell.mark, MISSING, ""
    # Percentages vary by tenths and more between runs; figures that are shown ×10² vary less.
    known = find_metric(metric)
    decimals = 1 if known and known.unit == "%" else 2
    spread = table.spread and not math.isnan(cell.two_std)
    return cell.mark, f"{100 * cell.mean:.2f}", f"±{100 * cell.two_std:.{decimals}f}" if spread else ""


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
    marks = " Bold: best; underlined: second and third." if len(table.scores) > 1 else ""
    return names + escape(f" with ID✓ as the positive class{_mixture(table)}{_runs(table)}.{marks}", style)


def _mixture(table: Table) -> str:
    """The α and β of metrics that depend on them."""
    cells = table.cells[table.cells["beta"].notna()]
    alphas, betas = cells["alpha"][cells["negative"] != WRONG].unique(), cells["beta"].unique()
    if not len(betas):
        return ""
    at = [f"α = {x:g}" for x in alphas] + [f"β = {x:g}" for x in betas]
    wrong_only = " (ID✗: α = 1)" if len(alphas) and (cells["negative"] == WRONG).any() else ""
    return f", at {', '.join(at)}{wrong_only}"


def _runs(table: Table) -> str:
    counts = sorted({int(runs) for runs in table.cells["runs"][table.cells["mean"].notna()]})
    if not counts or counts == [1]:
        return ""
    several = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return f"; mean{' ± 2 std' if table.spread else ''} over {several} training runs"


def markdown(table: Table) -> str:
    """One Markdown table for each model, and the caption."""
    blocks = []
    for part in table.parts():
        heads = [
            f"{_literal(negative_name(negative))} {_literal(metric_name(metric, unit=True, arrow=True))}"
            for negative, metric in part.columns
        ]
        for model in part.models:
            about = [f"**{_literal(model)}**" if model.strip() else "", _literal(error_line(table, model, "text"))]
            rows = [["Method", *heads], ["---", *("---:" for _ in heads)]]
            for score in table.scores_of(model):
                cells = [figure(table, model, score, *column) for column in part.columns]
                rows.append([_literal(score_name(score)), *(_markdown_cell(*cell) for cell in cells)])
            blocks += [", ".join(filter(None, about)), "\n".join(f"| {' | '.join(row)} |" for row in rows)]
    return "\n\n".join([*filter(None, blocks), _literal(caption(table, "text"))]) + "\n"


def _markdown_cell(mark: str, value: str, spread: str) -> str:
    return _MARKDOWN_MARKS[mark].format(f"{value} {spread}".strip())


def _literal(text: str) -> str:
    """Any text so that Markdown shows it as it is, in a cell of a table too."""
    plain = " ".join(escape(text, "text").split())
    for character, entity in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;")):
        plain = plain.replace(character, entity)
    return re.sub(r"([\\`*_\[\]|~$])", r"\\\1", plain)


def html(table: Table, *, page: bool) -> str:
    """One HTML table for all models that have the same negatives, with a body of rows for each model."""
    parts = table.parts()
    tables = [_html_table(table, part, last=part is parts[-1]) for part in parts]
    fragment = "\n".join(['<div class="sirc-table">', _STYLE, *tables, "</div>"]) + "\n"
    return _PAGE.format(fragment) if page else fragment


def _html_table(table: Table, part: Part, *, last: bool) -> str:
    count = len(table.metrics)
    groups = [f'<th scope="colgroup" colspan="{count}">{negative_name(n, "html")}</th>' for n in part.negatives]
    heads = [f'<th scope="col">{metric_name(metric, "html", unit=True, arrow=True)}</th>' for _, metric in part.columns]
    lines = ["<table>", *([f"<caption>{caption(table, 'html')}</caption>"] if last else [])]
    lines += ["<colgroup></colgroup>", *(f'<colgroup span="{count}"></colgroup>' for _ in part.negatives)]
    lines += ["<thead>", f'<tr><th scope="col" rowspan="2">Method</th>{"".join(groups)}</tr>']
    lines += [f"<tr>{''.join(heads)}</tr>", "</thead>"]
    for model in part.models:
        lines.append("<tbody>")
        if about := ", ".join(filter(None, (escape(model, "html"), error_line(table, model, "html")))):
            lines.append(f'<tr><th scope="rowgroup" colspan="{len(part.columns) + 1}">{about}</th></tr>')
        before = ""
        for score in table.scores_of(model):
            cells = "".join(_html_cell(*figure(table, model, score, *column)) for column in part.columns)
            row = '<tr class="others">' if is_sirc(before) and not is_sirc(score) else "<tr>"
            lines.append(f'{row}<th scope="row">{score_name(score, "html")}</th>{cells}</tr>')
            before = score
        lines.append("</tbody>")
    return "\n".join([*lines, "</table>"])


def _html_cell(mark: str, value: str, spread: str) -> str:
    return f"<td>{_HTML_MARKS[mark].format(value)}{f' <small>{spread}</small>' if spread else ''}</td>"
