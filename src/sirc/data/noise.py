"""Noise, the paper's OOD set that needs no files: Gaussian pixels of random contrast and scale."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, final

import numpy as np
import numpy.typing as npt

from sirc._utils.checks import check_positive, differences
from sirc._utils.files import PathLike, atomic_write
from sirc.data.base import ImageSet, Transform, check_seed
from sirc.data.decode import missing_package, printable
from sirc.errors import StoreError
from sirc.progress import SILENT, Progress

if TYPE_CHECKING:
    from PIL.Image import Image

COUNT = 10_000
WIDTHS = (2, 256)
_META = "noise.json"
_PNG = re.compile(r"\d{5,}\.png")
_PNG_END = b"\x00\x00\x00\x00IEND\xaeB`\x82"


@final
@dataclass(frozen=True)
class Draw:
    """One image before it is scaled: `pixels` (width, width, 3), and the standard deviation `std` behind them."""

    std: float
    width: int
    pixels: npt.NDArray[np.uint8]


def draw_noise(seed: int, index: int) -> Draw:
    """Draw image `index`: s = g², g ~ N(0, 1); width ~ U{2, …, 256}; values ~ N(½, s²), clipped to [0, 1], 8-bit.

    Nothing but `seed` and `index` matters, so any part of the set can be made anywhere.
    """
    # The generator is named, not NumPy's default, and values are scaled outside it: the same bits everywhere.
    random = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, index])))
    std = float(random.standard_normal()) ** 2
    width = int(random.integers(WIDTHS[0], WIDTHS[1], endpoint=True))
    values = 0.5 + std * random.standard_normal((width, width, 3))
    return Draw(std, width, np.rint(values.clip(0, 1) * 255).astype(np.uint8))


@final
class Noise(ImageSet):
    """`count` square images of Gaussian noise, made as they are read, scaled to `size` with Lanczos."""

    def __init__(self, count: int = COUNT, seed: int = 0, transform: Transform | None = None, size: int = 256) -> None:
        super().__init__(name="Noise", transform=transform)
        self._count = check_positive("count", count)
        self.seed = check_seed(seed)
        self.size = check_positive("size", size)

    def __len__(self) -> int:
        return self._count

    def image(self, index: int) -> Image:
        """Make one image."""
        try:
            from PIL import Image
        except ImportError as error:
            raise missing_package("Noise", "Pillow") from error
        drawn = Image.fromarray(draw_noise(self.seed, self._number(index)).pixels)
        return drawn.resize((self.size, self.size), Image.Resampling.LANCZOS)

    def where(self, index: int) -> str:
        """Name the seed and the number."""
        return f"noise image {index} of seed {self.seed}"

    def _identity(self) -> str:
        return f"noise {self._count} {self.seed} {self.size}"


def write_noise(
    folder: PathLike, count: int = COUNT, seed: int = 0, *, progress: Progress = SILENT, overwrite: bool = False
) -> int:
    """Write the images of `Noise(count, seed)` as `images/00000.png` …; return how many were written now.

    PNG, because JPEG would blur exactly what noise is made of: the files hold the pixels of the set without files.
    Images that are there whole are kept, so that a killed run goes on, and a larger `count` adds to a smaller. A folder
    with noise of another seed is refused unless `overwrite`, one with other files always.
    """
    noise, folder = Noise(count, seed), Path(folder)
    _claim(folder, {"seed": noise.seed, "size": noise.size, "count": len(noise)}, overwrite)
    files = [folder / "images" / f"{index:05}.png" for index in range(len(noise))]
    todo = [index for index, file in enumerate(files) if not _whole(file)]
    with progress.task("noise", len(noise), done=len(noise) - len(todo)) as task:
        for index in todo:
            image = noise.image(index)
            # Stronger compression would save little on noise, and take most of the time.
            atomic_write(files[index], partial(image.save, format="PNG", compress_level=1))
            task.advance()
    return len(todo)


def _claim(folder: Path, made: dict[str, int], overwrite: bool) -> None:
    """See that the folder is ours or empty, and say in it what it holds, before the first image."""
    meta, name = folder / _META, printable(folder)
    if folder.exists() and not folder.is_dir():
        raise StoreError(f"noise must have a folder of its own; '{name}' is a file. Choose another path.")
    others = [entry.name for entry in folder.iterdir() if not entry.name.startswith(".")] if folder.is_dir() else []
    if meta.is_file():
        try:
            there = {key: int(value) for key, value in json.loads(meta.read_text(encoding="utf-8")).items()}
        except (ValueError, TypeError, AttributeError) as error:
            raise StoreError(f"'{printable(meta)}' is not what `write_noise` wrote. Choose another folder.") from error
        kind = ("seed", "size")
        words = differences({key: there.get(key) for key in kind}, {key: made[key] for key in kind})
        if there.get("count", 0) > made["count"]:
            words = ", ".join(filter(None, [words, f"count is {there['count']}, got {made['count']}"]))
        if words and not overwrite:
            raise StoreError(
                f"'{name}' holds other noise: {words}. Use those, choose another folder, or pass `overwrite=True`."
            )
        for file in (folder / "images").glob("*.png") if overwrite else ():
            if _PNG.fullmatch(file.name):
                file.unlink()
    elif others:
        raise StoreError(
            f"noise must have a folder of its own; '{name}' holds {', '.join(map(printable, sorted(others)[:3]))}. "
            "Choose another path."
        )
    atomic_write(meta, lambda file: file.write(json.dumps(made).encode()))


def _whole(file: Path) -> bool:
    """Whether a PNG is there to its end; one cut short lacks its last chunk."""
    try:
        with open(file, "rb") as opened:
            return opened.read()[-len(_PNG_END) :] == _PNG_END
    except FileNotFoundError:
        return False
