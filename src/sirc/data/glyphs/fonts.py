"""Fonts: the text fonts that matplotlib ships, and their characters as large grey bitmaps."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageFont import FreeTypeFont

SCRIPTS = (  # with Greek and Cyrillic
    *("DejaVuSans", "DejaVuSans-Bold", "DejaVuSans-Oblique", "DejaVuSans-BoldOblique"),
    *("DejaVuSansMono", "DejaVuSansMono-Bold", "DejaVuSansMono-Oblique", "DejaVuSansMono-BoldOblique"),
    *("DejaVuSerif", "DejaVuSerif-Bold", "DejaVuSerif-Italic", "DejaVuSerif-BoldItalic"),
    *("STIXGeneral", "STIXGeneralBol", "STIXGeneralItalic", "STIXGeneralBolIta"),
)
FONTS = (*SCRIPTS, "cmr10", "cmb10", "cmss10", "cmti10", "cmtt10")

CANVAS = 128  # the side of a bitmap
CAPITAL = 48  # the height of an H in it


@cache
def bitmap(font: str, character: str) -> Image:
    """Draw one character white on black and centred, at the size at which an H is 48 pixels high."""
    from PIL import Image, ImageDraw

    wide = Image.new("L", (3 * CANVAS, 3 * CANVAS))
    ImageDraw.Draw(wide).text((CANVAS, CANVAS), character, fill=255, font=_opened(font))
    ink = wide.crop(wide.getbbox())
    drawn = Image.new("L", (CANVAS, CANVAS))
    drawn.paste(ink, ((CANVAS - ink.width) // 2, (CANVAS - ink.height) // 2))
    return drawn


@cache
def fonts_digest(fonts: tuple[str, ...]) -> str:
    """Digest the names and files of fonts, as another version of a font draws other letters."""
    digest = hashlib.sha256()
    for font in fonts:
        digest.update(font.encode() + hashlib.sha256(font_file(font).read_bytes()).digest())
    return digest.hexdigest()[:16]


def font_file(font: str) -> Path:
    """Find the file of a font that comes with matplotlib."""
    import matplotlib

    file = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / f"{font}.ttf"
    if not file.is_file():
        raise FileNotFoundError(
            f"Glyphs needs the fonts that come with matplotlib; '{file}' is not there. Install it anew: "
            "pip install --force-reinstall matplotlib"
        )
    return file


@cache
def _opened(font: str) -> FreeTypeFont:
    from PIL import ImageFont

    # The Raqm layout engine is not installed everywhere, and lays out a single letter no better.
    basic, file = ImageFont.Layout.BASIC, str(font_file(font))
    trial = 200
    _, top, _, bottom = ImageFont.truetype(file, trial, layout_engine=basic).getbbox("H")
    return ImageFont.truetype(file, round(trial * CAPITAL / (bottom - top)), layout_engine=basic)
