"""Folders of small images for the tests of training and of the commands."""

import numpy as np
from PIL import Image


def write_images(root, count=21, side=16, seed=0):
    """Three classes of colour, with noise; returns the folder."""
    random = np.random.default_rng(seed)
    for number in range(count):
        folder = root / "rgb"[number % 3]
        folder.mkdir(parents=True, exist_ok=True)
        pixels = random.integers(0, 120, (side, side, 3))
        pixels[..., number % 3] += 100
        Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{number:03}.png")
    return root
