"""Drawing of a character in matplotlib's fonts, with random size, place, slant, colours, blur and noise."""

from __future__ import annotations

import hashlib
import math
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

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

SIDE = 32
CANVAS = 128  # the side of a bitmap
CAPITAL = 48  # the height of an H in it
_FINE = 2  # glyphs are rotated and blurred at this multiple of the resolution, which keeps edges smooth

HEIGHT = (11.0, 24.0)  # of a capital, in pixels
SHIFT = 4.0  # at most, in pixels, along either side
TURN = 20.0  # at most, in degrees
SHEAR = 0.3  # at most
BLUR = (0.3, 2.2)  # standard deviation, in pixels
CONTRAST = (0.2, 0.9)  # between ink and paper, of the whole range
TINT = 0.12  # at most, of each colour channel
NOISE = (0.05, 0.6)  # standard deviation, of the contrast


def generator(stream: str, index: int) -> np.random.Generator:
    """Make the random generator for one image; no two indices and no two streams share random numbers."""
    key = np.frombuffer(hashlib.sha256(stream.encode()).digest()[:16], "<u8").astype(np.uint64)
    # The index is the counter's highest word: an image would need 2¹⁹² numbers to reach those of the next.
    return np.random.Generator(np.random.Philox(key=key, counter=np.array([0, 0, 0, index], np.uint64)))


def draw_character(character: str, fonts: tuple[str, ...], random: np.random.Generator) -> npt.NDArray[np.uint8]:
    """Draw one character as (32, 32, 3) pixels."""
    from PIL import Image, ImageFilter

    font = fonts[random.integers(len(fonts))]
    uniform = random.random(12).tolist()
    height, blur, contrast, noise = (
        _between(*limits, at) for limits, at in zip((HEIGHT, BLUR, CONTRAST, NOISE), uniform, strict=False)
    )
    right, down, turn, shear = (
        _between(-most, most, at) for most, at in zip((SHIFT, SHIFT, TURN, SHEAR), uniform[4:], strict=False)
    )
    matrix = _affine(height, right, down, math.radians(turn), shear)
    side = SIDE * _FINE
    drawn = bitmap(font, character).transform((side, side), Image.Transform.AFFINE, matrix, Image.Resampling.BILINEAR)
    drawn = drawn.filter(ImageFilter.GaussianBlur(blur * _FINE)).reduce(_FINE)
    ink = np.asarray(drawn, np.float32)[:, :, None] / np.float32(255)

    middle = _between(contrast / 2, 1 - contrast / 2, uniform[8])
    tint = TINT * (2 * np.array(uniform[9:12], np.float32) - 1)
    paper = np.float32(middle + contrast / 2) + tint
    pixels = paper - ink * np.float32(contrast)
    pixels += np.float32(noise * contrast) * random.standard_normal((SIDE, SIDE, 3), np.float32)
    drawn_8bit: npt.NDArray[np.uint8] = np.rint(pixels.clip(0, 1) * 255).astype(np.uint8)
    return drawn_8bit


def _between(low: float, high: float, at: float) -> float:
    return low + (high - low) * at


def _affine(height: float, right: float, down: float, turn: float, shear: float) -> tuple[float, ...]:
    """Compute the map from pixels to the bitmap: a to f of x' = a·x + b·y + c, y' = d·x + e·y + f."""
    scale = CAPITAL / (height * _FINE)
    cos, sin = scale * math.cos(turn), scale * math.sin(turn)
    a, b, d, e = cos - shear * sin, sin + shear * cos, -sin, cos
    x, y = _FINE * (SIDE / 2 + right), _FINE * (SIDE / 2 + down)
    return a, b, CANVAS / 2 - a * x - b * y, d, e, CANVAS / 2 - d * x - e * y


@cache
def bitmap(font: str, character: str) -> Image:
    """Draw one character, white on black and centred, so large that an H is 48 pixels high."""
    from PIL import Image, ImageDraw

    wide = Image.new("L", (3 * CANVAS, 3 * CANVAS))
    ImageDraw.Draw(wide).text((CANVAS, CANVAS), character, fill=255, font=_font(font))
    ink = wide.crop(wide.getbbox())
    drawn = Image.new("L", (CANVAS, CANVAS))
    drawn.paste(ink, ((CANVAS - ink.width) // 2, (CANVAS - ink.height) // 2))
    return drawn


@cache
def fonts_digest(fonts: tuple[str, ...]) -> str:
    """Digest the names and files of fonts, since another version of a font draws other letters."""
    digest = hashlib.sha256()
    for font in fonts:
        digest.update(font.encode() + hashlib.sha256(font_file(font).read_bytes()).digest())
    return digest.hexdigest()[:16]


def font_file(font: str) -> Path:
    """Find the file of one of matplotlib's fonts, if possible without importing matplotlib, which is slow."""
    place = f"fonts/ttf/{font}.ttf"
    spec = find_spec("matplotlib")
    if spec and spec.origin and (file := Path(spec.origin).with_name("mpl-data") / place).is_file():
        return file
    import matplotlib

    return Path(matplotlib.get_data_path()) / place  # some systems have the fonts elsewhere


@cache
def _font(font: str) -> FreeTypeFont:
    from PIL import ImageFont

    # The Raqm layout engine is not installed everywhere, and is no better for a single letter.
    basic, file = ImageFont.Layout.BASIC, str(font_file(font))
    trial = 200
    _, top, _, bottom = ImageFont.truetype(file, trial, layout_engine=basic).getbbox("H")
    return ImageFont.truetype(file, round(trial * CAPITAL / (bottom - top)), layout_engine=basic)
