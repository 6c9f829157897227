"""Display names of scores, negatives and metrics, in plain text, HTML and LaTeX."""

from __future__ import annotations

import html
import re
import unicodedata
from typing import Final, Literal

from sirc._utils.checks import check_choice
from sirc.evaluation import POOLED, WRONG, parse_or_none
from sirc.metrics import find_metric
from sirc.scores import COMBINATIONS, Spec, registry

Style = Literal["text", "latex", "html"]

_TEMPERATURE: Final = {"text": "T", "latex": "$T$", "html": "<i>T</i>"}
_GREEK: Final = {"alpha": "α", "beta": "β", "gamma": "γ", "kappa": "κ"}
_NEGATIVES: Final = {WRONG: "ID✗", POOLED: "All OOD"}

# LaTeX needs a command for these symbols, and reads all others from UTF-8.
_TEXT: Final = {"\\": "backslash", "~": "asciitilde", "^": "asciicircum", "|": "bar", "<": "less", ">": "greater"}
_MATHS: Final = {
    "✓": "surd", "✗": "times", "±": "pm", "×": "times", "·": "cdot", "‖": "|", "≤": "leq", "≥": "geq", "∞": "infty",
    "↑": "uparrow", "↓": "downarrow", "→": "rightarrow", "α": "alpha", "β": "beta", "γ": "gamma", "κ": "kappa",
    "Δ": "Delta",
}  # fmt: skip
_LATEX: Final = {
    **{character: f"\\{character}" for character in "{}_%&#$"},
    **{character: rf"\text{name}{{}}" for character, name in _TEXT.items()},
    **{character: rf"$\{name}$" for character, name in _MATHS.items()},
    '"': "{''}", "`": "{`}", "'": "{'}", "−": "$-$", "–": r"\textendash{}", "\N{NO-BREAK SPACE}": "~",
}  # fmt: skip


def score_name(spec: str, style: Style = "text", *, bare: bool = False) -> str:
    r"""The name of a score; `bare` leaves out the word SIRC. Text that is not a spec is only escaped.

    Example:
        >>> from sirc.report.names import score_name
        >>> score_name("sirc(entropy, residual)")
        'SIRC(−H, Res.)'
        >>> score_name("sirc(entropy, residual)", "latex", bare=True)
        '($-\\mathcal{H}$, Res.)'
    """
    parsed = parse_or_none(spec)
    return escape(str(spec), style) if parsed is None else _written(parsed, style, short=False, bare=bare)


def score_family(spec: str) -> str:
    """The family of a score; for a combination its name, and `other` for text that is not a spec.

    Example:
        >>> from sirc.report.names import score_family
        >>> [score_family(spec) for spec in ("energy", "sirc(msp, l1)", "my own")]
        ['logit', 'sirc', 'other']
    """
    parsed = parse_or_none(spec)
    if parsed is None:
        return "other"
    return registry.get(parsed.name).family if parsed.is_leaf else parsed.name


def negative_name(name: str, style: Style = "text") -> str:
    """The name of the inputs that ID✓ is compared with; OOD sets and groups keep their own.

    Example:
        >>> from sirc.report.names import negative_name
        >>> [negative_name(name) for name in ("wrong", "pooled", "Textures")]
        ['ID✗', 'All OOD', 'Textures']
    """
    return escape(_NEGATIVES.get(name, str(name)), style)


def metric_name(label: str, style: Style = "text", *, arrow: bool = False, unit: bool = False) -> str:
    """The name of a metric; `arrow` adds its better direction, `unit` its unit in tables.

    Example:
        >>> from sirc.report.names import metric_name
        >>> metric_name("fpr@95"), metric_name("fpr@95", arrow=True, unit=True)
        ('FPR@95', '%FPR@95↓')
    """
    metric = find_metric(label)
    if metric is None:
        return escape(str(label), style)
    name = metric.title + str(label).removeprefix(metric.name) + ("↓" if metric.lower_is_better else "↑") * arrow
    if unit and metric.unit == "%":
        name = "%" + name
    if unit and metric.unit == "×10²":
        return escape(name + " ×10", style) + {"text": "²", "latex": "$^2$", "html": "<sup>2</sup>"}[style]
    return escape(name, style)


def escape(text: str, style: Style) -> str:
    r"""Escape text for HTML, or for LaTeX with UTF-8; control characters become spaces.

    Example:
        >>> from sirc.report.names import escape
        >>> escape("A & B <1>", "html"), escape("50%_x", "latex")
        ('A &amp; B &lt;1&gt;', '50\\%\\_x')
    """
    check_choice("style", style, ("text", "latex", "html"))
    plain = "".join(" " if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp") else c for c in text)
    if style == "html":
        return html.escape(plain)
    if style == "latex":
        written = "".join(_LATEX.get(c, c) for c in unicodedata.normalize("NFC", plain))
        return re.sub("-(?=-)", "-{}", written)  # LaTeX would join two hyphens into a dash
    return plain


def _written(spec: Spec, style: Style, *, short: bool, bare: bool = False) -> str:
    if str(spec) == "vim":
        return "ViM"
    options = [f"{_symbol(key, style)}={_number(value, style)}" for key, value in spec.given.items()]
    if spec.is_default:
        return f"SCOD({', '.join(options)})" if options else "SCOD"
    if spec.is_leaf:
        score = registry.get(spec.name)
        title = {"latex": score.latex, "html": score.html}.get(style) or escape(
            score.short if short else score.title, style
        )
        for key in spec.options:  # `MSP (T)` with its value is `MSP(T=2)`
            title = title.removesuffix(f" ({_symbol(key, style)})")
        return f"{title}({', '.join(options)})" if options else title
    parts = [_written(arg, style, short=True) for arg in spec.args]
    if spec.name == "linear":
        (factor,) = spec.numbers("c") or (1.0,)
        sign = escape("−" if factor < 0 else "+", style)
        return f"{parts[0]} {sign} {abs(factor):g}{escape('·', style)}{_grouped(spec.args[1], parts[1])}"
    if spec.name == "product":
        return escape("·", style).join(map(_grouped, spec.args, parts))
    inside = "; ".join(filter(None, (", ".join(parts), ", ".join(options))))
    return f"{'' if bare and spec.name == 'sirc' else COMBINATIONS[spec.name].title}({inside})"


def _grouped(spec: Spec, written: str) -> str:
    return f"({written})" if spec.name == "linear" and str(spec) != "vim" else written


def _symbol(option: str, style: Style) -> str:
    return _TEMPERATURE[style] if option == "temperature" else escape(_GREEK.get(option, option), style)


def _number(value: float | tuple[float, ...] | str, style: Style) -> str:
    if isinstance(value, str):
        return metric_name(value, style)
    if isinstance(value, tuple):
        return f"({', '.join(_number(v, style) for v in value)})"
    return escape(f"{value:g}".replace("-", "−"), style)
