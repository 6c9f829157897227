"""Style of all figures: fonts, literal text, and looks safe for colour blindness and grey print."""

from __future__ import annotations

import re
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, ParamSpec, final

import numpy as np
from torch import Tensor

from sirc._utils.arrays import Floats
from sirc._utils.imports import needing
from sirc._utils.text import shorten
from sirc.evaluation import POOLED, WRONG
from sirc.report.names import escape, score_name
from sirc.scores import registry

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Options = ParamSpec("Options")
WIDTH: Final = 7.0  # inches: a page's text
_LONGEST = 40
_SETTINGS = Path(__file__).with_name("house.mplstyle")
_DRAWING = threading.RLock()  # matplotlib's settings are global, so figures are drawn one at a time

Dash = str | tuple[int, tuple[float, ...]]
_SOLID, _DASHED, _DOTTED, _MIXED, _LONG = "-", (0, (4.5, 1.6)), (0, (1, 1.3)), (0, (5, 1.4, 1, 1.4)), (0, (8, 2))
_DASHES: Final[tuple[Dash, ...]] = (_SOLID, _DASHED, _MIXED, _DOTTED, _LONG)
_MARKERS: Final = "osD^vP*X<>p"


@final
@dataclass(frozen=True)
class Look:
    """The look of a score or group in all figures: a colour, and for grey print dashes, a marker or a hatch.

    Example:
        >>> from sirc.report.figures import Look
        >>> Look("#D55E00", marker="X").line
        {'color': '#D55E00', 'linestyle': '-'}
    """

    colour: str
    dash: Dash = _SOLID
    marker: str = "o"
    hatch: str = ""
    name: str = ""

    @property
    def line(self) -> dict[str, Any]:
        """Keyword arguments of a line."""
        return {"color": self.colour, "linestyle": self.dash}


# Okabe and Ito's colours, for the three groups only.
GROUPS: Final = {
    "correct": Look("#0072B2", _SOLID, "o", name="ID✓"),
    "wrong": Look("#D55E00", _DASHED, "X", "////", "ID✗"),
    "ood": Look("#009E73", (0, (1.4, 1)), "^", "....", "OOD"),
}


def _looks(colours: Sequence[str], dashes: Sequence[Dash], markers: str) -> tuple[Look, ...]:
    return tuple(map(Look, colours, dashes, markers))


# Tol's muted colours, one for each family. The scores of a family get its looks in the order of the registry.
_BLACK, _DARK, _GREY = "#000000", "#555555", "#7F7F7F"
_FAMILIES: Final = {
    "softmax": _looks(
        (_BLACK, _DARK, _GREY, _BLACK, _BLACK, _GREY, _DARK, _GREY),
        (_SOLID, _MIXED, _DASHED, _DOTTED, _LONG, _LONG, _SOLID, _DOTTED),
        "opsdhDv^",
    ),
    "logit": _looks(["#DDAA33"] * 5, (_MIXED, _SOLID, _DASHED, _DOTTED, _LONG), "<^oDP"),
    "norm": _looks(["#88CCEE"] * 4, (_DOTTED, _SOLID, _DASHED, _LONG), "v>*h"),
    "residual": _looks(["#44AA99"] * 2, (_DOTTED, _DASHED), "Xs"),
    "distance": _looks(["#999933"] * 5, (_LONG, _DOTTED, _SOLID, _DASHED, _MIXED), "PdXps"),
}
# SIRC has a colour for each S2, and dashes and lightness for each S1.
_FIRST: Final[tuple[tuple[str, Dash], ...]] = (("msp", _SOLID), ("doctor", _MIXED), ("entropy", _DASHED))
_SECOND: Final = {
    "residual": (("#882255", "D"), ("#A6467A", "X"), ("#C2699E", "d")),
    "l1": (("#117733", "s"), ("#4A9A62", "p"), ("#7DBB8C", "h")),
}
_COMBINED: Final = {
    "vim": Look("#332288", _LONG, "*"),
    **{
        f"sirc({first}, {second})": Look(colour, dash, marker)
        for second, shades in _SECOND.items()
        for (first, dash), (colour, marker) in zip(_FIRST, shades, strict=True)
    },
}
_OTHERS: Final = ("#661100", "#AA4499", "#44AA99", "#999933", "#DDAA33", "#332288", "#CC6677")


def method_look(score: str) -> Look:
    """The look of a score, the same in every figure.

    A known score has the colour of its family; other text, such as a score with options, a look computed from it.

    Example:
        >>> from sirc.report.figures import method_look
        >>> method_look("msp").colour, method_look("vim").marker
        ('#000000', '*')
    """
    if score in _COMBINED:
        return _COMBINED[score]
    family = registry.get(score).family if score in registry.names() else None
    if family in _FAMILIES:
        looks = _FAMILIES[family]
        place = [name for name in registry.names() if registry.get(name).family == family].index(score)
        look = looks[place % len(looks)]
        return replace(look, colour=_lighter(look.colour, place // len(looks)))
    number = zlib.crc32(score.encode("utf-8", "surrogatepass"))
    return Look(_OTHERS[number % 7], _DASHES[number // 7 % 5], _MARKERS[number // 35 % len(_MARKERS)])


def _lighter(colour: str, times: int) -> str:
    """Mix a colour with white, for the scores of a family beyond its looks."""
    channels = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return "#" + "".join(f"{round(255 - (255 - channel) * 0.6**times):02X}" for channel in channels)


def literal(text: str, longest: int = _LONGEST) -> str:
    """Clean and shorten a text for one line of a figure."""
    plain = re.sub("[\ufffe\uffff]", "�", escape(str(text), "text")).strip()  # SVG cannot hold these two
    return shorten(plain, longest)


def label_of(score: str) -> str:
    """The name of a score for a legend."""
    return literal(score_name(score))


def array(values: Tensor) -> Floats:
    """A tensor on any device as a float64 array."""
    return np.asarray(values.detach().cpu().double().numpy())


@contextmanager
def drawing() -> Iterator[None]:
    """Use the house style inside; the user's own settings return afterwards."""
    with needing("drawing", "matplotlib", "plots"):
        import matplotlib
    with _DRAWING, matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(matplotlib.rc_params_from_file(_SETTINGS, use_default_template=False))
        yield


def new_figure(
    rows: int, columns: int, *, width: float = WIDTH, height: float, pad: float = 0.04, **options: Any
) -> tuple[Figure, list[list[Axes]]]:
    """An empty figure and its rows of axes. Pyplot does not know it, so it need not be closed."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    engine = ConstrainedLayoutEngine(w_pad=pad, h_pad=pad, wspace=0.02, hspace=0.02)
    figure = Figure(figsize=(width, height), layout=engine)
    return figure, [list(row) for row in figure.subplots(rows, columns, squeeze=False, **options)]


def drawn(draw: Callable[Options, Figure]) -> Callable[Options, Figure]:
    """Decorate a function that draws: house style, and all text shown literally, never as mathematics or TeX."""

    @wraps(draw)
    def styled(*arguments: Options.args, **options: Options.kwargs) -> Figure:
        with drawing():
            from matplotlib.text import Text

            figure = draw(*arguments, **options)
            for text in figure.findobj(Text):
                assert isinstance(text, Text)
                text.set_parse_math(False)
                text.set_usetex(False)
            return figure

    return styled


def name_ood(figure: Figure, name: str) -> None:
    """Write the name of an OOD set or group above the figure, but nothing for pooled or absent OOD data."""
    if name not in (POOLED, WRONG, ""):
        figure.suptitle(f"OOD: {literal(name)}")


def side_legend(figure: Figure, axes: Axes, *, columns: int, title: str = "", above: bool = False) -> None:
    """Draw the legend of one panel below or above all of them."""
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        figure.legend(
            handles,
            labels,
            loc="outside upper center" if above else "outside lower center",
            ncols=min(columns, len(handles)),
            columnspacing=1.4,
            title=title or None,
            title_fontsize=7,
        )
