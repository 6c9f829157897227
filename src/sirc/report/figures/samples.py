"""Sample images of each dataset, with how many there are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from sirc._utils.checks import check_positive
from sirc.data import ImageSet, check_seed
from sirc.report.figures.style import drawing, finish, literal, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from PIL.Image import Image


def chosen(images: ImageSet, count: int, seed: int) -> list[int]:
    """Which images are shown: at random by a seed, in their order."""
    picked = np.random.default_rng(check_seed(seed)).permutation(len(images))[: check_positive("count", count)]
    return [int(number) for number in np.sort(picked)]


def sample_images(images: Mapping[str, ImageSet], *, count: int = 8, seed: int = 0) -> Figure:
    """Draw a row of images for each dataset, under the name it has here, with its size."""
    if not images:
        raise ValueError("`images` must hold at least one dataset; got none.")
    count = check_positive("count", count)
    with drawing():
        side = 5.6 / count
        figure, axes = new_figure(len(images), count, height=0.2 + (side + 0.06) * len(images), pad=0.05)
        for row, (name, some) in zip(axes, images.items(), strict=True):
            for panel in row:
                panel.set_axis_off()
            for panel, number in zip(row, chosen(some, count, seed), strict=False):
                panel.imshow(_square(some.image(number)), interpolation="nearest")
            row[0].annotate(
                f"{literal(name, 20)}\n{len(some):,} images",
                (0, 0.5),
                xycoords="axes fraction",
                xytext=(-6, 0),
                textcoords="offset points",
                ha="right",
                va="center",
                fontsize=7.5,
                linespacing=1.4,
            )
        return finish(figure)


def _square(image: Image, longest: int = 160) -> np.ndarray[tuple[int, int, int], np.dtype[np.uint8]]:
    """The centre of an image as a square, not larger than a figure shows."""
    width, height = image.size
    side = min(width, height)
    left, top = (width - side) // 2, (height - side) // 2
    square = image.convert("RGB").crop((left, top, left + side, top + side))
    if side > longest:
        square = square.resize((longest, longest))
    return np.asarray(square)
