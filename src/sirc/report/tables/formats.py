"""Formats of a table: terminal, Markdown, HTML and LaTeX."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich import box
from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.table import Table as Grid
from rich.text import Text

from sirc._utils.text import as_markdown
from sirc.evaluation import WRONG
from sirc.metrics import find_metric
from sirc.report.names import Style, escape, metric_name, negative_name, score_name
from sirc.report.tables.cells import is_sirc

if TYPE_CHECKING:
    from sirc.report.tables.table import Part, Table

CellText = tuple[str, str, str]
"""A cell as text: its mark; its mean × 100, or a dash; its 2 std (±0.2), its interval ([80.1, 83.4]) or nothing."""
_MISSING = "–"
_SIGNS = {"bold": "*", "underline": "_", "": ""}  # before the number, to keep decimal points aligned
_MARKDOWN_MARKS = {"bold": "**{}**", "underline": "<u>{}</u>", "": "{}"}
_HTML_MARKS = {"bold": "<b>{}</b>", "underline": "<u>{}</u>", "": "{}"}
_LATEX_MARKS = {"bold": r"\textbf{%s}", "underline": r"\underline{%s}", "": "%s"}
_GAP = 3  # between columns of text
_NAME, _HEAD = 40, 20  # longer names are broken
_COLUMNS, _ROWS = 12, 54  # of values, on a page of LaTeX
_LEFT = 3  # columns before the values: model, group, method
_PER_ROW = 2.2  # letters of rotated text for the height of a row
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
_PACKAGES = r"""\usepackage{booktabs}
\usepackage{multirow}
\usepackage{graphicx}"""
# A table that is wider than the page is shrunk.
_FLOAT = r"""\begin{table}[htbp]
\centering
\caption{%s}
\sbox2{%%
%s%%
}%%
\ifdim\wd2>\textwidth\resizebox{\textwidth}{!}{\usebox2}\else\usebox2\fi
\end{table}
"""
_DOCUMENT = r"""\documentclass{article}
\usepackage[a4paper,margin=15mm]{geometry}
%s
\begin{document}
%s\end{document}
"""


def _rows(table: Table, part: Part, model: str) -> Iterator[tuple[str, list[CellText], bool]]:
    """Yield each score with its cells, and whether it is the first after SIRC's scores."""
    before = ""
    for score in table.scores_of(model):
        entries = [_entry(table, model, score, *column) for column in part.columns]
        yield score, entries, is_sirc(before) and not is_sirc(score)
        before = score


def _entry(table: Table, model: str, score: str, negative: str, metric: str) -> CellText:
    cell = table.cell(model, score, negative, metric)
    if math.isnan(cell.mean):
        return cell.mark, _MISSING, ""
    # Between runs, percentages vary by at least tenths; values shown ×10² vary less.
    known = find_metric(metric)
    decimals = 1 if known and known.unit == "%" else 2
    beside = ""
    if table.spread and not math.isnan(cell.two_std):
        beside = f"±{100 * cell.two_std:.{decimals}f}"
    elif not math.isnan(cell.low):
        beside = f"[{100 * cell.low:.{decimals}f}, {100 * cell.high:.{decimals}f}]"
    return cell.mark, f"{100 * cell.mean:.2f}", beside


def _about(table: Table, model: str, style: Style) -> str:
    """The name of a model and its metrics of ID data."""
    return ", ".join(filter(None, (escape(model, style), _of_id(table, model, style))))


def _of_id(table: Table, model: str, style: Style) -> str:
    """A model's metrics of ID data, such as its error."""
    entries = []
    for label, (mean, two_std) in table.of_id[model].items():
        spread = f" ±{100 * two_std:.1f}" if table.spread and not math.isnan(two_std) else ""
        entries.append(f"ID {metric_name(label, style, unit=True)}" + escape(f": {100 * mean:.2f}{spread}", style))
    return ", ".join(entries)


def _caption(table: Table, style: Style) -> str:
    """The metrics, the number of runs and the meaning of the marks."""
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
        return "; 95% intervals over samples in brackets" if table.intervals else ""
    several = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return f"; mean{' ± 2 std' if table.spread else ''} over {several} training runs"


def text(table: Table, width: int) -> str:
    """Plain text; it is wider than `width` if one negative needs more."""
    label, each = _widths(table)
    width = max(width, label + each)
    console = Console(file=io.StringIO(), width=width, force_terminal=False, color_system=None, legacy_windows=False)
    with console.capture() as captured:
        for part in renderables(table, width, styled=False):
            console.print(part)
    return "\n".join(line.rstrip() for line in captured.get().splitlines()).strip("\n") + "\n"


def renderables(table: Table, width: int, *, styled: bool) -> Iterator[RenderableType]:
    """Yield what rich prints: a table for each model and part, then the legend."""
    heads = _heads(table)
    label, each = _widths(table)
    for part in table.parts(columns=max(1, (width - label) // each) * len(heads)):
        for model in part.models:
            title = Text(_about(table, model, "text")) or None
            grid = Grid(box=box.SIMPLE_HEAD, title=title, title_justify="left", title_style="bold", pad_edge=False)
            grid.add_column("Method", no_wrap=True)
            for negative in part.negatives:
                above = _broken(negative_name(negative), _HEAD)
                for head in (f"{above}\n{heads[0]}", *heads[1:]):
                    grid.add_column(Text(head), justify="right", no_wrap=True)
            for score, entries, first_other in _rows(table, part, model):
                if first_other:
                    grid.add_section()
                cells = [_text_cell(*entry, styled=styled) for entry in entries]
                grid.add_row(Text(_broken(score_name(score), _NAME)), *cells)
            yield grid
    legend = _caption(table, "text")
    yield Text(legend if styled else legend.replace("Bold: best; underlined: second", "* best; _ second"))


def _heads(table: Table) -> list[str]:
    return [metric_name(metric, unit=True, arrow=True) for metric in table.metrics]


def _widths(table: Table) -> tuple[int, int]:
    """The width of the score names, and that of one negative's columns."""
    entry = 22 if table.intervals else 13 if table.spread else 7
    entries = [max(len(head), entry) + _GAP for head in _heads(table)]
    longest = max(cell_len(negative_name(negative)) for negative in table.negatives)
    label = max(6, *(cell_len(score_name(score)) for score in table.scores))
    each = max(entries[0], min(longest, _HEAD) + _GAP) + sum(entries[1:])
    return min(label, _NAME) + _GAP, each


def _broken(name: str, width: int) -> str:
    lines = Text(name).wrap(Console(file=io.StringIO()), width, overflow="fold")
    return "\n".join(line.plain.rstrip() for line in lines)


def _text_cell(mark: str, value: str, spread: str, *, styled: bool) -> Text:
    written = f"{value} {spread:>5}" if spread else value
    # The style is for the characters, not for the padding before them.
    return Text().append(written, mark) if styled else Text(_SIGNS[mark] + written)


def markdown(table: Table) -> str:
    """One Markdown table for each model, and the caption."""
    blocks = []
    for part in table.parts():
        heads = [
            f"{_literal(negative_name(negative))} {_literal(metric_name(metric, unit=True, arrow=True))}"
            for negative, metric in part.columns
        ]
        for model in part.models:
            about = [f"**{_literal(model)}**" if model.strip() else "", _literal(_of_id(table, model, "text"))]
            lines = [["Method", *heads], ["---", *("---:" for _ in heads)]]
            for score, entries, _ in _rows(table, part, model):
                cells = [_MARKDOWN_MARKS[mark].format(f"{value} {spread}".strip()) for mark, value, spread in entries]
                lines.append([_literal(score_name(score)), *cells])
            blocks += [", ".join(filter(None, about)), "\n".join(f"| {' | '.join(line)} |" for line in lines)]
    return "\n\n".join([*filter(None, blocks), _literal(_caption(table, "text"))]) + "\n"


def _literal(text: str) -> str:
    """A name as Markdown that shows it literally."""
    return as_markdown(escape(text, "text"))


def html(table: Table, *, page: bool) -> str:
    """One HTML table for all models with the same negatives, with a `tbody` for each model."""
    parts = table.parts()
    tables = [_html_table(table, part, last=part is parts[-1]) for part in parts]
    fragment = "\n".join(['<div class="sirc-table">', _STYLE, *tables, "</div>"]) + "\n"
    return _PAGE.format(fragment) if page else fragment


def _html_table(table: Table, part: Part, *, last: bool) -> str:
    count = len(table.metrics)
    groups = [f'<th scope="colgroup" colspan="{count}">{negative_name(n, "html")}</th>' for n in part.negatives]
    heads = [f'<th scope="col">{metric_name(metric, "html", unit=True, arrow=True)}</th>' for _, metric in part.columns]
    lines = ["<table>", *([f"<caption>{_caption(table, 'html')}</caption>"] if last else [])]
    lines += ["<colgroup></colgroup>", *(f'<colgroup span="{count}"></colgroup>' for _ in part.negatives)]
    lines += ["<thead>", f'<tr><th scope="col" rowspan="2">Method</th>{"".join(groups)}</tr>']
    lines += [f"<tr>{''.join(heads)}</tr>", "</thead>"]
    for model in part.models:
        lines.append("<tbody>")
        if about := _about(table, model, "html"):
            lines.append(f'<tr><th scope="rowgroup" colspan="{len(part.columns) + 1}">{about}</th></tr>')
        for score, entries, first_other in _rows(table, part, model):
            row = '<tr class="others">' if first_other else "<tr>"
            lines.append(
                f'{row}<th scope="row">{score_name(score, "html")}</th>{"".join(map(_html_cell, entries))}</tr>'
            )
        lines.append("</tbody>")
    return "\n".join([*lines, "</table>"])


def _html_cell(entry: CellText) -> str:
    mark, value, spread = entry
    return f"<td>{_HTML_MARKS[mark].format(value)}{f' <small>{spread}</small>' if spread else ''}</td>"


def latex(table: Table, *, document: bool) -> str:
    """A float for each part; the first caption describes all."""
    parts = table.parts(_COLUMNS, _ROWS)
    captions = [_caption(table, "latex"), *["Continued."] * (len(parts) - 1)]
    body = "\n".join(_FLOAT % (words, _tabular(table, part)) for words, part in zip(captions, parts, strict=True))
    if document:
        return _DOCUMENT % (_PACKAGES, body)
    preamble = "".join(f"% {line}\n" for line in _PACKAGES.splitlines())
    return f"% The preamble needs:\n{preamble}{body}"


def _tabular(table: Table, part: Part) -> str:
    count = len(table.metrics)
    above = [rf"\multicolumn{{{count}}}{{c}}{{\textbf{{{negative_name(n, 'latex')}}}}}" for n in part.negatives]
    below = [metric_name(metric, "latex", unit=True, arrow=True) for _, metric in part.columns]
    lines = [rf"\begin{{tabular}}{{lll{'r' * len(part.columns)}}}", r"\toprule", _row(["", "", "", *above])]
    lines.append(_row([r"\textbf{Model}", "", r"\textbf{Method}", *below]))
    for model in part.models:
        lines.append(_rule(table, part, 1))
        rows = list(_rows(table, part, model))
        ours = sum(is_sirc(score) for score, *_ in rows)
        left = [_model(table, model, len(rows)), _several_rows(r"\textbf{SIRC}", ours, turned=True) if ours else ""]
        for score, entries, first_other in rows:
            if first_other:
                lines.append(_rule(table, part, 2))
            cells = [_latex_cell(*entry) for entry in entries]
            lines.append(_row([*left, score_name(score, "latex", bare=True), *cells]))
            left = ["", ""]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"])


def _row(cells: list[str]) -> str:
    return " & ".join(cells) + r" \\"


def _rule(table: Table, part: Part, start: int) -> str:
    """A rule below a group, with a gap between ID✗ and the OOD sets, which answer different questions."""
    last = _LEFT + len(part.columns)
    cut = _LEFT + len(table.metrics)
    if part.negatives[0] != WRONG or cut == last:
        return rf"\cmidrule{{{start}-{last}}}"
    return rf"\cmidrule(r){{{start}-{cut}}} \cmidrule{{{cut + 1}-{last}}}"


def _model(table: Table, model: str, rows: int) -> str:
    name, of_id = escape(model, "latex"), _of_id(table, model, "latex")
    lines = [line for line in (rf"\textbf{{{name}}}" if name.strip() else "", of_id) if line]
    if rows < 2 * len(lines) or not lines:
        return " ".join(lines)
    longest = max(len(model), len(_of_id(table, model, "text")))
    stack = r"\shortstack[l]{" + r" \\ ".join(lines) + "}"
    return _several_rows(stack, rows, turned=longest <= _PER_ROW * rows)


def _several_rows(content: str, rows: int, *, turned: bool) -> str:
    inside = rf"\rotatebox[origin=c]{{90}}{{{content}}}" if turned else content
    return rf"\multirow{{{rows}}}{{*}}{{{inside}}}" if rows > 1 else content


def _latex_cell(mark: str, value: str, spread: str) -> str:
    if value == _MISSING:
        return escape(_MISSING, "latex")
    small = rf" {{\scriptsize {escape(spread, 'latex')}}}" if spread else ""
    return _LATEX_MARKS[mark] % (value + small)
