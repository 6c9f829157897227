"""Names for people: how tables and figures write scores, negatives and metrics, in plain text, HTML and LaTeX."""

from __future__ import annotations

import html
import re
import unicodedata
import warnings
from typing import Final, Literal

from sirc.evaluation import POOLED, WRONG
from sirc.metrics import find_metric
from sirc.scores import spec as grammar

Style = Literal["text", "latex", "html"]

_STYLES: Final[tuple[Style, ...]] = ("text", "latex", "html")

# On its own, and as a part of a combination; each in text, LaTeX and HTML.
_NORM = ("‖z‖₁", r"$\|\mathbf{z}\|_1$", "‖<b>z</b>‖<sub>1</sub>")
_ENTROPY = ("−H", r"$-\mathcal{H}$", "−<i>H</i>")
_SCORES: Final[dict[str, tuple[tuple[str, str, str], tuple[str, str, str]]]] = {
    "msp": (("MSP",) * 3, ("MSP",) * 3),
    "doctor": (("DOCTOR",) * 3, ("DR",) * 3),
    "entropy": (_ENTROPY, _ENTROPY),
    "max_logit": (("Max Logit",) * 3, ("Max Logit",) * 3),
    "energy": (("Energy",) * 3, ("Energy",) * 3),
    "l1": (_NORM, _NORM),
    "residual": (("Residual",) * 3, ("Res.",) * 3),
    "gradnorm": (("GradNorm",) * 3, ("GradNorm",) * 3),
    "vim": (("ViM",) * 3, ("ViM",) * 3),
    "mahalanobis": (("Mahalanobis",) * 3, ("Mahal.",) * 3),
    "knn": (("KNN",) * 3, ("KNN",) * 3),
    "margin": (("Margin",) * 3, ("Margin",) * 3),
    "tempered_msp": (("MSP (T)", "MSP ($T$)", "MSP (<i>T</i>)"),) * 2,
    "tempered_entropy": (("−H (T)", r"$-\mathcal{H}$ ($T$)", "−<i>H</i> (<i>T</i>)"),) * 2,
    "max_logit_pnorm": (("MaxLogit-pNorm", "MaxLogit-$p$Norm", "MaxLogit-<i>p</i>Norm"),) * 2,
    "gen": (("GEN",) * 3, ("GEN",) * 3),
    "mahalanobis_pp": (("Mahalanobis++",) * 3, ("Mahal.++",) * 3),
    "relative_mahalanobis": (("Rel. Mahalanobis",) * 3, ("Rel. Mahal.",) * 3),
    "nnguide": (("NNGuide",) * 3, ("NNGuide",) * 3),
    "react": (("ReAct",) * 3, ("ReAct",) * 3),
    "scale": (("SCALE",) * 3, ("SCALE",) * 3),
    "ash": (("ASH",) * 3, ("ASH",) * 3),
    "nci": (("NCI",) * 3, ("NCI",) * 3),
    "fdbd": (("fDBD",) * 3, ("fDBD",) * 3),
    "cop": (("CoP",) * 3, ("CoP",) * 3),
}
_COMBINATIONS: Final = {"sirc": "SIRC", "additive": "Additive", "bayes": "Bayes"}
# At a temperature that is given, T stands with its value: MSP(T=2).
_AT_ONE: Final = {"tempered_msp": "msp", "tempered_entropy": "entropy"}
_OPTIONS: Final[dict[str, tuple[str, str, str]]] = {
    "temperature": ("T", "$T$", "<i>T</i>"),
    "alpha": ("α", r"$\alpha$", "α"),
    "beta": ("β", r"$\beta$", "β"),
    "gamma": ("γ", r"$\gamma$", "γ"),
    "kappa": ("κ", r"$\kappa$", "κ"),
}
_NEGATIVES: Final = {WRONG: "ID✗", POOLED: "All OOD"}

_LATEX: Final = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "_": r"\_",
    "%": r"\%",
    "&": r"\&",
    "#": r"\#",
    "$": r"\$",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "|": r"\textbar{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    '"': "{''}",
    "`": "{`}",
    "'": "{'}",
    "✓": r"$\surd$",
    "✗": r"$\times$",
    "−": "$-$",
    "–": r"\textendash{}",
    "—": r"\textemdash{}",
    "…": r"\dots{}",
    "±": r"$\pm$",
    "×": r"$\times$",
    "·": r"$\cdot$",
    "‖": r"$\|$",
    "↑": r"$\uparrow$",
    "↓": r"$\downarrow$",
    "→": r"$\rightarrow$",
    "≤": r"$\leq$",
    "≥": r"$\geq$",
    "∞": r"$\infty$",
    "°": r"$^\circ$",
    "ß": r"\ss{}",
    "æ": r"\ae{}",
    "Æ": r"\AE{}",
    "œ": r"\oe{}",
    "Œ": r"\OE{}",
    "ø": r"\o{}",
    "Ø": r"\O{}",
    "ł": r"\l{}",
    "Ł": r"\L{}",
    "\N{NO-BREAK SPACE}": "~",
}
_ACCENTS: Final = {
    "\u0300": "`",
    "\u0301": "'",
    "\u0302": "^",
    "\u0303": "~",
    "\u0304": "=",
    "\u0306": "u",
    "\u0307": ".",
    "\u0308": '"',
    "\u030a": "r",
    "\u030b": "H",
    "\u030c": "v",
    "\u0327": "c",
}
# Those that look like Latin letters have no command of their own.
_GREEK: Final = {
    letter: rf"$\{command}$"
    for letter, command in re.findall(
        r"(\w)(\w+)",
        "αalpha βbeta γgamma δdelta εepsilon ζzeta ηeta θtheta ιiota κkappa λlambda μmu νnu ξxi πpi ρrho σsigma τtau "
        "υupsilon φphi χchi ψpsi ωomega ΓGamma ΔDelta ΘTheta ΛLambda ΞXi ΠPi ΣSigma ΥUpsilon ΦPhi ΨPsi ΩOmega",
    )
}


def score_name(spec: str, style: Style = "text", *, bare: bool = False) -> str:
    """The name of a score: `sirc(entropy, residual)` is SIRC(−H, Res.), and with `bare` just (−H, Res.).

    What is no spec of the grammar is printed as it is, escaped.
    """
    at = _index(style)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python's parser warns about odd literals
            parsed = grammar.parse(spec)
    except ValueError:
        return escape(str(spec), style)
    return _written(parsed, at, short=False, bare=bare)


def negative_name(name: str, style: Style = "text") -> str:
    """The name of what ID✓ is compared with: `wrong` is ID✗, `pooled` is All OOD, sets and groups have their own."""
    _index(style)
    return escape(_NEGATIVES.get(name, str(name)), style)


def metric_name(label: str, style: Style = "text", *, arrow: bool = False, unit: bool = False) -> str:
    """The name of a metric, `fpr@95` is FPR@95; with the arrow of its better direction, and the unit it is shown in."""
    _index(style)
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
    """Any text made safe for HTML, or for LaTeX (`pdflatex` too); controls become spaces."""
    _index(style)
    plain = "".join(" " if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp") else c for c in text)
    if style == "html":
        return html.escape(plain)
    if style == "latex":
        written = "".join(map(_latex, unicodedata.normalize("NFC", plain)))
        return re.sub("-(?=-)", "-{}", written)  # two hyphens would join into a dash
    return plain


def _latex(character: str) -> str:
    if character in _LATEX:
        return _LATEX[character]
    if character.isascii():
        return character
    if character in _GREEK:
        return _GREEK[character]
    parts = unicodedata.normalize("NFD", character)
    if len(parts) == 2 and parts[0].isascii() and parts[1] in _ACCENTS:
        return rf"\{_ACCENTS[parts[1]]}{{{parts[0]}}}"
    # pdflatex stops at a character that it has no glyph for: its number is better than no document.
    return f"[U+{ord(character):04X}]"


def _written(spec: grammar.Spec, at: int, *, short: bool, bare: bool = False) -> str:
    style = _STYLES[at]
    name = str(spec)
    if name in _SCORES:
        return _SCORES[name][short][at]
    parts = [_written(arg, at, short=True) for arg in spec.args]
    options = [f"{_OPTIONS[key][at] if key in _OPTIONS else key}={_number(v, at)}" for key, v in spec.options.items()]
    if spec.name == "linear":
        factor = spec.numbers("c") or (1.0,)
        sign = escape("−" if factor[0] < 0 else "+", style)
        return f"{parts[0]} {sign} {abs(factor[0]):g}{escape('·', style)}{_grouped(spec.args[1], parts[1])}"
    if spec.name == "product":
        return escape("·", style).join(_grouped(arg, part) for arg, part in zip(spec.args, parts, strict=True))
    inside = ", ".join(parts) + ("; " if parts and options else "") + ", ".join(options)
    if spec.name in _COMBINATIONS:
        return f"{'' if bare and spec.name == 'sirc' else _COMBINATIONS[spec.name]}({inside})"
    own = _AT_ONE.get(spec.name, spec.name)
    head = _SCORES[own][short][at] if own in _SCORES else escape(spec.name, style)
    return f"{head}({inside})" if inside else head


def _grouped(spec: grammar.Spec, written: str) -> str:
    return f"({written})" if spec.name == "linear" and str(spec) != "vim" else written


def _number(value: grammar.Value, at: int) -> str:
    if isinstance(value, str):
        return metric_name(value, _STYLES[at])
    if isinstance(value, tuple):
        return f"({', '.join(_number(v, at) for v in value)})"
    return escape(f"{value:g}".replace("-", "−"), _STYLES[at])


def _index(style: str) -> int:
    if style not in _STYLES:
        raise ValueError(f"`style` must be one of {', '.join(_STYLES)}; got {style!r}.")
    return _STYLES.index(style)
