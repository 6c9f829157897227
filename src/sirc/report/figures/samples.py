"""Sample images of each dataset, with how many there are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from sirc._utils.checks import check_positive
from sirc.data import ImageSet, check_seed
from sirc.report.figures.style import drawn, literal, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from PIL.Image import Image


@drawn
def sample_images(images: Mapping[str, ImageSet], *, count: int = 8, seed: int = 0) -> Figure:
    """Draw a row of images for each dataset, under the name it has here, with its size."""
    if not images:
        raise ValueError("`images` must hold at least one dataset; got none.")
    count, seed = check_positive("count", count), check_seed(seed)
    side = 5.6 / count
    figure, axes = new_figure(len(images), count, height=0.2 + (side + 0.06) * len(images), pad=0.05)
    for row, (name, some) in zip(axes, images.items(), strict=True):
        for panel in row:
            panel.set_axis_off()
        picked = np.random.default_rng(seed).permutation(len(some))[:count]
        for panel, number in zip(row, np.sort(picked), strict=False):
            panel.imshow(_square(some.image(int(number))), interpolation="nearest")
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
    return figure


def _square(image: Image, longest: int = 160) -> np.ndarray[tuple[int, int, int], np.dtype[np.uint8]]:
    """The centre of an image as a square, not larger than a figure shows."""
    width, height = image.size
    side = min(width, height)
    left, top = (width - side) // 2, (height - side) // 2
    square = image.convert("RGB").crop((left, top, left + side, top + side))
    if side > longest:
        square = square.resize((longest, longest))
    return np.asarray(square)
