"""Noise: the paper's OOD set of Gaussian pixels, generated when read or written as PNG files."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, final

import numpy as np
import numpy.typing as npt

from sirc._utils.checks import check_at_least, check_positive, differences
from sirc._utils.files import PathLike, atomic_write, read_json
from sirc._utils.imports import needing
from sirc.data.base import ImageSet, Transform
from sirc.data.decode import printable
from sirc.errors import StoreError
from sirc.progress import SILENT, Progress

if TYPE_CHECKING:
    from PIL.Image import Image

COUNT = 10_000
_META = "noise.json"
_PNG_END = b"\x00\x00\x00\x00IEND\xaeB`\x82"  # the last chunk, which a truncated file lacks


def draw_noise(seed: int, index: int) -> npt.NDArray[np.uint8]:
    """Draw image `index`, w × w: s = g², g ~ N(0, 1); w ~ U{2, …, 256}; values ~ N(½, s²), clipped to [0, 1], 8-bit.

    It depends only on `seed` and `index`, so any process can make any part of the set.
    """
    # NumPy may change its default generator; a named one, and scaling by hand, give the same bits in every version.
    random = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, index])))
    std = float(random.standard_normal()) ** 2
    width = int(random.integers(2, 256, endpoint=True))
    values = 0.5 + std * random.standard_normal((width, width, 3))
    pixels: npt.NDArray[np.uint8] = np.rint(values.clip(0, 1) * 255).astype(np.uint8)
    return pixels


@final
class Noise(ImageSet):
    """`count` square images of Gaussian noise, made when they are read and scaled to `size` with Lanczos."""

    def __init__(self, count: int = COUNT, seed: int = 0, transform: Transform | None = None, size: int = 256) -> None:
        super().__init__(name="Noise", transform=transform)
        self._count = check_positive("count", count)
        self.seed = check_at_least("seed", seed, 0)
        self.size = check_positive("size", size)

    def __len__(self) -> int:
        return self._count

    def image(self, index: int) -> Image:
        """Make one image."""
        with needing("Noise", "Pillow"):
            from PIL import Image
        drawn = Image.fromarray(draw_noise(self.seed, self._resolve_index(index)))
        return drawn.resize((self.size, self.size), Image.Resampling.LANCZOS)

    def where(self, index: int) -> str:
        """Name the image by seed and number."""
        return f"noise image {index} of seed {self.seed}"

    @property
    def _identity(self) -> str:
        return f"noise {self._count} {self.seed} {self.size}"


def write_noise(
    folder: PathLike, count: int = COUNT, seed: int = 0, *, progress: Progress = SILENT, overwrite: bool = False
) -> int:
    """Write the images of `Noise(count, seed)` as `images/00000.png` …; return the number of files written.

    The files are PNG, since JPEG would blur the noise, and have exactly the pixels of `Noise`. Complete images are
    kept, so the next call continues a stopped one, and a larger `count` adds images. A folder with noise of another
    seed is refused unless `overwrite`; a folder with other files is always refused.
    """
    noise, folder = Noise(count, seed), Path(folder)
    _claim(folder, {"seed": noise.seed, "size": noise.size, "count": len(noise)}, overwrite)
    files = [folder / "images" / f"{index:05}.png" for index in range(len(noise))]
    todo = [i for i, file in enumerate(files) if not (file.is_file() and file.read_bytes().endswith(_PNG_END))]
    with progress.task("noise", len(noise), done=len(noise) - len(todo)) as task:
        for index in todo:
            image = noise.image(index)
            # Stronger compression would gain little on noise and take most of the time.
            atomic_write(files[index], partial(image.save, format="PNG", compress_level=1))
            task.advance()
    return len(todo)


def _claim(folder: Path, made: dict[str, int], overwrite: bool) -> None:
    """Check that the folder is empty or holds this noise, and record its settings before the first image is written."""
    meta, name = folder / _META, printable(folder)
    if meta.is_file():
        there = read_json(meta)
        count = there.setdefault("count", made["count"])
        # A larger count only adds images; with a smaller one, some would be left over.
        larger = isinstance(count, int) and count <= made["count"]
        differing = differences(there, {**made, "count": count} if larger else made)
        if differing and not overwrite:
            raise StoreError(
                f"'{name}' holds other noise: {differing}. Use those, choose another folder, or pass `overwrite=True`."
            )
        for file in (folder / "images").glob("[0-9]*[0-9].png") if overwrite else ():
            file.unlink()
    elif folder.is_file() or (others := sorted(printable(entry.name) for entry in folder.glob("[!.]*"))):
        content = "is a file" if folder.is_file() else f"holds {', '.join(others[:3])}"
        raise StoreError(f"noise must have a folder of its own; '{name}' {content}. Choose another path.")
    atomic_write(meta, lambda file: file.write(json.dumps(made).encode()))
