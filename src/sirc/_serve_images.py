"""Uploaded bytes to what the network sees; what is no whole image of a sensible size is refused, in words."""

from __future__ import annotations

from typing import IO, TYPE_CHECKING, final

from sirc.data._decode import missing_package, printable, to_rgb
from sirc.errors import ImageError

if TYPE_CHECKING:
    from PIL.Image import Image

    from sirc.preprocess import Preprocess

# The formats of photographs; PIL knows dozens more, some of which start other programs.
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM")


@final
class RefusedError(Exception):
    """A request that gets no decision: the HTTP status, a word for the counters, and what to tell the client."""

    def __init__(self, status: int, kind: str, message: str) -> None:
        super().__init__(message)
        self.status, self.kind, self.message = status, kind, message


def open_image(file: IO[bytes], name: str, preprocess: Preprocess, max_pixels: int) -> Image:
    """Decode one image as RGB, after its header has said that it is not too large."""
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError as error:
        raise missing_package("reading images", "Pillow", "serve") from error
    try:
        with Image.open(file, formats=FORMATS) as image:
            check_pixels(image.size, preprocess, max_pixels)
            return to_rgb(image)
    except UnidentifiedImageError as error:
        known = ", ".join(FORMATS)
        raise RefusedError(422, "not_an_image", f"{name} is empty or no image; send one of {known}") from error
    except (Image.DecompressionBombError, Image.DecompressionBombWarning, PixelsError) as error:
        raise RefusedError(413, "too_many_pixels", f"{name} {error}") from error
    except MemoryError:
        raise
    except ImageError as error:
        raise RefusedError(422, "not_an_image", f"{name} cannot be used: {error}") from error
    except Exception as error:  # a damaged file reaches every corner of PIL: OSError, SyntaxError, struct.error, …
        words = printable(str(error)) or type(error).__name__
        raise RefusedError(422, "damaged", f"{name} is damaged: {words}") from error


@final
class PixelsError(ImageError):
    """An image that would take more memory than it may."""


def check_pixels(size: tuple[int, int], preprocess: Preprocess, max_pixels: int) -> None:
    """Refuse an image that has too many pixels, or would have once its shorter side is scaled."""
    width, height = size
    if width * height > max_pixels:
        raise PixelsError(f"has {width} × {height} pixels; at most {max_pixels:,} are taken. Scale it down")
    # One pixel high and a million wide, it is a few bytes; with the shorter side at 256, it would fill the memory.
    short = min(width, height)
    if isinstance(preprocess.resize, int) and short:
        scale = preprocess.resize / short
        if width * scale * height * scale > max(max_pixels, 1):
            raise PixelsError(
                f"has {width} × {height} pixels, too narrow to be scaled to a shorter side of {preprocess.resize}"
            )
