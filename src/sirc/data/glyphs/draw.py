"""Glyph drawing: one character as an image with random font, size, place, slant, colours, blur and noise."""

from __future__ import annotations

import hashlib
import math
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from sirc.data.glyphs.fonts import CANVAS, CAPITAL, bitmap

SIDE = 32
_FINE = 2  # glyphs are rotated and blurred on a grid this much finer, so that edges stay smooth

HEIGHT = (11.0, 24.0)  # of a capital, in pixels
SHIFT = 4.0  # at most, in pixels, along either side
TURN = 20.0  # at most, in degrees
SHEAR = 0.3  # at most
BLUR = (0.3, 2.2)  # standard deviation, in pixels
CONTRAST = (0.2, 0.9)  # between ink and paper, of the whole range
TINT = 0.12  # at most, of each colour channel
NOISE = (0.05, 0.6)  # standard deviation, of the contrast


@lru_cache(maxsize=64)
def _key(stream: str) -> npt.NDArray[np.uint64]:
    return np.frombuffer(hashlib.sha256(stream.encode()).digest()[:16], "<u8").astype(np.uint64)


def generator(stream: str, index: int) -> np.random.Generator:
    """Make the random generator of image `index` of a stream; images and streams share no random numbers."""
    # The index is the counter's highest word: an image would need 2¹⁹² numbers to reach the next one's.
    return np.random.Generator(np.random.Philox(key=_key(stream), counter=np.array([0, 0, 0, index], np.uint64)))


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
    """Map pixels to places in the bitmap: a, b, c, d, e, f of x' = a·x + b·y + c, y' = d·x + e·y + f."""
    scale = CAPITAL / (height * _FINE)
    cos, sin = scale * math.cos(turn), scale * math.sin(turn)
    a, b, d, e = cos - shear * sin, sin + shear * cos, -sin, cos
    x, y = _FINE * (SIDE / 2 + right), _FINE * (SIDE / 2 + down)
    return a, b, CANVAS / 2 - a * x - b * y, d, e, CANVAS / 2 - d * x - e * y
