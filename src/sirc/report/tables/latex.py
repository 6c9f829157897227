"""Tables as LaTeX with booktabs, in the paper's layout: models and groups at the left, negatives above."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from sirc.evaluation import WRONG
from sirc.report.names import escape, metric_name, negative_name, score_name
from sirc.report.tables.cells import is_sirc
from sirc.report.tables.render import MISSING, caption, error_line, figure

if TYPE_CHECKING:
    from sirc.report.tables import Part, Table

_COLUMNS, _ROWS = 12, 54  # of figures, on a page
_LEFT = 3  # columns before the figures: model, group, method
_PER_ROW = 2.2  # letters of a rotated line that are as long as a row is high
_MARKS = {"bold": r"\textbf{%s}", "underline": r"\underline{%s}", "": "%s"}
_PACKAGES = r"""\usepackage{booktabs}
\usepackage{multirow}
\usepackage{graphicx}"""
_DOCUMENT = r"""\documentclass{article}
\usepackage[a4paper,margin=15mm]{geometry}
%s
\begin{document}
%s\end{document}
"""


def latex(table: Table, *, document: bool) -> str:
    """The floats of all parts; the caption of the first says what they show."""
    floats = [_float(table, part, first=n == 0) for n, part in enumerate(table.parts(_COLUMNS, _ROWS))]
    body = "\n".join(floats)
    if document:
        return _DOCUMENT % (_PACKAGES, body)
    preamble = "".join(f"% {line}\n" for line in _PACKAGES.splitlines())
    return f"% The preamble needs:\n{preamble}{body}"


def _float(table: Table, part: Part, *, first: bool) -> str:
    words = caption(table, "latex") if first else "Continued."
    # Shrunk where it is wider than the page, and never enlarged.
    return "\n".join(
        [
            r"\begin{table}[htbp]",
            r"\centering",
            rf"\caption{{{words}}}",
            r"\sbox2{%",
            _tabular(table, part) + "%",
            r"}%",
            r"\ifdim\wd2>\textwidth\resizebox{\textwidth}{!}{\usebox2}\else\usebox2\fi",
            r"\end{table}",
            "",
        ]
    )


def _tabular(table: Table, part: Part) -> str:
    count = len(table.metrics)
    above = [rf"\multicolumn{{{count}}}{{c}}{{\textbf{{{negative_name(n, 'latex')}}}}}" for n in part.negatives]
    below = [metric_name(metric, "latex", unit=True, arrow=True) for _, metric in part.columns]
    lines = [
        rf"\begin{{tabular}}{{lll{'r' * len(part.columns)}}}",
        r"\toprule",
        _row(["", "", "", *above]),
        _row([r"\textbf{Model}", "", r"\textbf{Method}", *below]),
    ]
    for model in part.models:
        lines.append(_rule(table, part, 1))
        lines += _model_rows(table, part, model)
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"])


def _model_rows(table: Table, part: Part, model: str) -> list[str]:
    scores = table.scores_of(model)
    lines: list[str] = []
    for sirc, same in groupby(scores, is_sirc):
        group = list(same)
        for place, score in enumerate(group):
            left = _model(table, model, len(scores)) if not lines else ""
            label = _rotated("SIRC", len(group)) if sirc and place == 0 else ""
            cells = [_cell(*figure(table, model, score, *column)) for column in part.columns]
            lines.append(_row([left, label, score_name(score, "latex", bare=True), *cells]))
        if len(lines) < len(scores):
            lines.append(_rule(table, part, 2))
    return lines


def _row(cells: list[str]) -> str:
    return " & ".join(cells) + r" \\"


def _rule(table: Table, part: Part, start: int) -> str:
    """A line below a group, broken between ID✗ and the OOD sets, as they answer two questions."""
    last = _LEFT + len(part.columns)
    cut = _LEFT + len(table.metrics)
    if part.negatives[0] != WRONG or cut == last:
        return rf"\cmidrule{{{start}-{last}}}"
    return rf"\cmidrule(r){{{start}-{cut}}} \cmidrule{{{cut + 1}-{last}}}"


def _model(table: Table, model: str, rows: int) -> str:
    name, error = escape(model, "latex"), error_line(table, model, "latex")
    lines = [line for line in (rf"\textbf{{{name}}}" if name.strip() else "", error) if line]
    longest = max(len(model), len(error_line(table, model, "text")))
    if rows < 2 * len(lines) or not lines:
        return " ".join(lines)
    stack = r"\shortstack[l]{" + r" \\ ".join(lines) + "}"
    turned = rf"\rotatebox[origin=c]{{90}}{{{stack}}}" if longest <= _PER_ROW * rows else stack
    return rf"\multirow{{{rows}}}{{*}}{{{turned}}}"


def _rotated(label: str, rows: int) -> str:
    label = rf"\textbf{{{label}}}"
    return rf"\multirow{{{rows}}}{{*}}{{\rotatebox[origin=c]{{90}}{{{label}}}}}" if rows > 1 else label


def _cell(mark: str, value: str, spread: str) -> str:
    if value == MISSING:
        return escape(MISSING, "latex")
    small = rf" {{\scriptsize {escape(spread, 'latex')}}}" if spread else ""
    return _MARKS[mark] % (value + small)
