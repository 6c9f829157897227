"""The sets of glyphs: what each draws, and its images, drawn when they are read."""

from __future__ import annotations

import importlib
import importlib.util
import string
from functools import cache, lru_cache
from typing import TYPE_CHECKING, final

import numpy as np
import numpy.typing as npt
import torch

from sirc._utils.checks import check_at_least, check_choice, check_positive
from sirc._utils.imports import missing_package
from sirc.data.base import SPLITS, ImageSet
from sirc.data.glyphs.draw import FONTS, SCRIPTS, SIDE, draw_character, fonts_digest, generator
from sirc.data.noise import Noise

if TYPE_CHECKING:
    from PIL.Image import Image

LETTERS = string.ascii_uppercase
# Without Α Β Ε Ζ Η Ι Κ Μ Ν Ο Ρ Τ Υ Χ, which look like Latin letters.
GREEK = "ΓΔΘΛΞΠΣΦΨΩ"
# Without А В Е Ё З І Ј К М Н О Р С Ѕ Т У Х Ь, for the same reason, and without Г П Ф, which are among the Greek.
CYRILLIC = "БДЖИЛЦЧШЩЪЫЭЮЯ"
# Without 0 and 1, which many fonts draw as O and I.
DIGITS = "23456789"
COUNT = 3000

_VERSION = 1  # of the rendering; it is part of the fingerprint
_CACHED = 40_960  # images, 126 MB: enough for a process to draw each set of a study once
_HANDWRITTEN = 1797
_PATCH = (32, 400)  # the side of a patch of a photograph before it is scaled

Pixels = npt.NDArray[np.uint8]
_DRAWN = {
    "letters": (LETTERS, FONTS),
    "greek": (GREEK, SCRIPTS),
    "cyrillic": (CYRILLIC, SCRIPTS),
    "digits": (DIGITS, FONTS),
}
_NEEDS = {"handwritten": ("PIL", "sklearn"), "photos": ("PIL", "sklearn"), "noise": ("PIL",)}
_PACKAGES = {"PIL": "Pillow", "sklearn": "scikit-learn"}


@final
class Glyphs(ImageSet):
    """A set of 32×32 images, drawn when they are read; `letters` and the other functions here make one."""

    def __init__(self, what: str, *, split: str = "test", count: int = COUNT, seed: int = 0) -> None:
        check_choice("what", what, (*_DRAWN, *_NEEDS))
        check_choice("split", split, SPLITS)
        self.what, self.split = what, split
        self._count, self.seed = check_positive("count", count), check_at_least("seed", seed, 0)
        if what == "handwritten" and count > _HANDWRITTEN:
            raise ValueError(
                f"`count` must be at most {_HANDWRITTEN}, the number of digits; got {count}. Leave it out for all."
            )
        for module in _NEEDS.get(what, ("PIL", "matplotlib")):
            if importlib.util.find_spec(module) is None:  # fail before an hour of training, not after it
                raise missing_package(f"the set '{what}'", _PACKAGES.get(module, module), "demo")
        # Classes take turns, which keeps them balanced for any count.
        labels = torch.arange(self._count) % len(LETTERS) if what == "letters" else None
        super().__init__(name=what, labels=labels, classes=() if labels is None else tuple(LETTERS))

    def __len__(self) -> int:
        return self._count

    def image(self, index: int) -> Image:
        """Draw one image, or take it from the cache."""
        from PIL import Image

        return Image.fromarray(_draw(self.what, self.split, self.seed, self._resolve_index(index)))

    def where(self, index: int) -> str:
        """Name one image by its number, set, split and seed."""
        return f"image {index} of {self.what} ({self.split}, seed {self.seed})"

    @property
    def _identity(self) -> str:
        characters, fonts = _DRAWN.get(self.what, ("", ()))
        drawn = f"{characters} {fonts_digest(fonts)}" if fonts else ""
        return f"glyphs {_VERSION} {self.what} {self.split} {self.seed} {self._count} {drawn}"


def letters(split: str = "test", count: int = COUNT, seed: int = 0) -> Glyphs:
    """Letters A–Z, classes 0–25, in 21 fonts; the ID set."""
    return Glyphs("letters", split=split, count=count, seed=seed)


def greek(count: int = COUNT, seed: int = 0) -> Glyphs:
    """Greek capitals that do not look like Latin ones, drawn like `letters`; Close."""
    return Glyphs("greek", count=count, seed=seed)


def cyrillic(count: int = COUNT, seed: int = 0) -> Glyphs:
    """Cyrillic capitals that look neither like Latin nor like Greek ones, drawn like `letters`; Close."""
    return Glyphs("cyrillic", count=count, seed=seed)


def digits(count: int = COUNT, seed: int = 0) -> Glyphs:
    """Digits 2–9, drawn like `letters`; Close."""
    return Glyphs("digits", count=count, seed=seed)


def handwritten(count: int = _HANDWRITTEN) -> Glyphs:
    """Scikit-learn's handwritten digits, 8×8 pixels scaled up; there are 1,797; Far."""
    return Glyphs("handwritten", count=count)


def photos(count: int = COUNT, seed: int = 0) -> Glyphs:
    """Square patches of scikit-learn's two photographs, at random places and sizes; Far."""
    return Glyphs("photos", count=count, seed=seed)


def noise(count: int = COUNT, seed: int = 0) -> Glyphs:
    """The paper's Noise, scaled to 32×32 pixels: the same draws as `sirc.data.Noise`; Far."""
    return Glyphs("noise", count=count, seed=seed)


@lru_cache(maxsize=_CACHED)
def _draw(what: str, split: str, seed: int, index: int) -> Pixels:
    random = generator(f"{what} {split} {seed}", index)
    if what == "handwritten":
        return _handwritten_digit(index)
    if what == "photos":
        return _photo_patch(random)
    if what == "noise":
        return np.asarray(Noise(index + 1, seed, size=SIDE).image(index))
    characters, fonts = _DRAWN[what]
    return draw_character(characters[index % len(characters)], fonts, random)


def _handwritten_digit(index: int) -> Pixels:
    from PIL import Image

    # Dark on light like the letters, so that they differ in their shape only.
    grey = np.rint(255 - _digit_images()[index] * (255 / 16)).astype(np.uint8)
    return np.asarray(Image.fromarray(grey).resize((SIDE, SIDE), Image.Resampling.BICUBIC).convert("RGB"))


def _photo_patch(random: np.random.Generator) -> Pixels:
    from PIL import Image

    photo = _photographs()[int(random.integers(2))]
    low, high = _PATCH
    # The side is log-uniform: as many patches have 40 to 80 pixels as have 160 to 320.
    side = round(low * (high / low) ** random.random())
    left, top = (int(random.integers(length - side + 1)) for length in photo.size)
    box = (left, top, left + side, top + side)
    return np.asarray(photo.resize((SIDE, SIDE), Image.Resampling.BILINEAR, box=box))


@cache
def _digit_images() -> npt.NDArray[np.float64]:
    images: npt.NDArray[np.float64] = importlib.import_module("sklearn.datasets").load_digits().images
    return images


@cache
def _photographs() -> tuple[Image, ...]:
    from PIL import Image

    images = importlib.import_module("sklearn.datasets").load_sample_images().images
    return tuple(Image.fromarray(image) for image in images)
