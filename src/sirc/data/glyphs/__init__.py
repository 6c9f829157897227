"""Glyphs: letters drawn with matplotlib's fonts, and OOD sets that are close to or far from them, without downloads.

Image i of a set depends only on the set's name, split, seed and i: splits share no random numbers, and a longer set
begins with the shorter one. An experiment names one of these functions: `dataset = "sirc.data.glyphs:letters"`.
"""

from sirc.data.glyphs.sets import (
    CYRILLIC,
    DIGITS,
    GREEK,
    LETTERS,
    Glyphs,
    cyrillic,
    digits,
    greek,
    handwritten,
    letters,
    noise,
    photos,
)

__all__ = [
    "CYRILLIC",
    "DIGITS",
    "GREEK",
    "LETTERS",
    "Glyphs",
    "cyrillic",
    "digits",
    "greek",
    "handwritten",
    "letters",
    "noise",
    "photos",
]
