"""Saving figures: atomic, as PDF, SVG and PNG, and equal figures as equal bytes."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from sirc._utils.files import PathLike, atomic_write
from sirc.report.figures.style import drawing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS: Final = ("pdf", "svg", "png")
# Dates and versions would make two equal figures differ.
_METADATA: Final[dict[str, dict[str, Any]]] = {
    "pdf": {"CreationDate": None, "Creator": "sirc", "Producer": None},
    "svg": {"Date": None, "Creator": "sirc"},
    "png": {"Software": "sirc"},
}


def check_formats(formats: Sequence[str]) -> tuple[str, ...]:
    """Require formats among pdf, svg and png, each once, in the order given."""
    wanted = tuple(dict.fromkeys([formats] if isinstance(formats, str) else formats))
    if not wanted or any(name not in FORMATS for name in wanted):
        raise ValueError(f"`formats` must be among {', '.join(FORMATS)}, at least one; got {list(wanted)}.")
    return wanted


def save(figure: Figure, stem: PathLike, formats: Sequence[str] = FORMATS) -> list[Path]:
    """Write `stem.pdf`, `stem.svg` and `stem.png`, or those asked for; text stays text. Equal figures, equal bytes."""
    wanted = check_formats(formats)
    paths = [Path(f"{Path(stem)}.{name}") for name in wanted]  # with_suffix would cut "resnet-1.5"
    with drawing(), warnings.catch_warnings():
        # A dataset's name may need a script that the font lacks; the figure has boxes there, and is a figure still.
        warnings.filterwarnings("ignore", message=r"(?s).*[Gg]lyph .* missing from")
        with _laid_out(figure):
            for path, name in zip(paths, wanted, strict=True):

                def write(file: BinaryIO, name: str = name) -> None:
                    figure.savefig(file, format=name, metadata=_METADATA[name])

                atomic_write(path, write)
    return paths


@contextmanager
def _laid_out(figure: Figure) -> Iterator[None]:
    """Lay a figure out once for all formats: it takes as long as drawing, and each would do it again."""
    engine = figure.get_layout_engine()
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    try:
        yield
    finally:
        figure.set_layout_engine(engine)
