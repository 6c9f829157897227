"""Names for people: scores, negatives and metrics in plain text, HTML and LaTeX."""

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

# Symbols for which LaTeX needs a command; it reads other letters from UTF-8 by itself.
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
    """The name of a score: `sirc(entropy, residual)` is SIRC(−H, Res.), and with `bare` just (−H, Res.).

    Text that is not a spec of the grammar is printed as it is, escaped.
    """
    parsed = parse_or_none(spec)
    return escape(str(spec), style) if parsed is None else _written(parsed, style, short=False, bare=bare)


def score_family(spec: str) -> str:
    """The family of a score; of a combination its name, and `other` for text that is not a spec."""
    parsed = parse_or_none(spec)
    if parsed is None:
        return "other"
    return registry.get(parsed.name).family if parsed.is_leaf else parsed.name


def negative_name(name: str, style: Style = "text") -> str:
    """The name of what ID✓ is compared with: `wrong` is ID✗, `pooled` is All OOD, sets and groups have their own."""
    return escape(_NEGATIVES.get(name, str(name)), style)


def metric_name(label: str, style: Style = "text", *, arrow: bool = False, unit: bool = False) -> str:
    """The name of a metric, `fpr@95` is FPR@95; with the arrow of its better direction, and the unit it is shown in."""
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
    """Make any text safe for HTML, or for LaTeX that reads UTF-8; control characters become spaces."""
    check_choice("style", style, ("text", "latex", "html"))
    plain = "".join(" " if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp") else c for c in text)
    if style == "html":
        return html.escape(plain)
    if style == "latex":
        written = "".join(_LATEX.get(c, c) for c in unicodedata.normalize("NFC", plain))
        return re.sub("-(?=-)", "-{}", written)  # two hyphens would join into a dash
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
