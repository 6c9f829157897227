"""Uploaded bytes to what the network sees; what is no whole image of a sensible size is refused, in words."""

from __future__ import annotations

from typing import IO, TYPE_CHECKING, final

from sirc._utils.imports import missing_package
from sirc.data import printable, to_rgb
from sirc.errors import ImageError

if TYPE_CHECKING:
    from PIL.Image import Image

    from sirc.data import Preprocess

# The formats of photographs; PIL knows dozens more, some of which start other programs.
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM")
_SCANS = 200  # of a JPEG: cameras and editors write about ten
_BAND = 1 << 18  # pixels of a 16-bit image that are converted together


@final
class RefusedError(Exception):
    """A request that gets no decision: the HTTP status, a word for the counters, and what to tell the client."""

    def __init__(self, status: int, kind: str, message: str) -> None:
        super().__init__(message)
        self.status, self.kind, self.message = status, kind, message


def open_image(file: IO[bytes], name: str, preprocess: Preprocess, max_pixels: int, left: int | None = None) -> Image:
    """Decode one image as RGB, after its header has said that it is not too large.

    `left` is how many pixels the request may still have.
    """
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError as error:
        raise missing_package("reading images", "Pillow", "serve") from error
    try:
        _check_plain(file, name)
        with Image.open(file, formats=FORMATS) as image:
            check_pixels(image.size, preprocess, max_pixels)
            if left is not None and image.width * image.height > left:
                raise PixelsError("is one too many: the request's images have too many pixels. Send several requests")
            _check_scans(image, file, name)
            return _in_bands(image)
    except RefusedError:
        raise
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


def _check_plain(file: IO[bytes], name: str) -> None:
    """Refuse pixels written as text, whose comments PIL reads in quadratic time."""
    head = file.read(2)
    file.seek(0)
    if head in (b"P1", b"P2", b"P3"):
        text = f"{name} is a PPM in plain text; only binary ones are taken. Convert it, to PNG for example"
        raise RefusedError(422, "not_an_image", text)


def _check_scans(image: Image, file: IO[bytes], name: str) -> None:
    """Refuse a JPEG whose few bytes are work for minutes: each scan, however short, visits every pixel."""
    if image.format == "TIFF" and "jpeg" in str(image.info.get("compression")):
        text = f"{name} is a TIFF with a JPEG in it, which is not taken. Send the JPEG, or convert it"
        raise RefusedError(422, "not_an_image", text)
    if image.format not in ("JPEG", "MPO"):
        return
    place = file.tell()
    file.seek(0)
    scans, last = 0, b""
    while piece := file.read(1 << 20):
        scans += (last + piece).count(b"\xff\xda")  # one that lies across two pieces is seen too
        last = piece[-1:]
    file.seek(place)
    if scans > _SCANS:
        text = f"{name} is damaged: a JPEG must have at most {_SCANS} scans; it has {scans:,}"
        raise RefusedError(422, "damaged", text)


def _in_bands(image: Image) -> Image:
    """Make it RGB; of 16-bit pixels a band at a time, as each takes eight bytes on the way."""
    from PIL import Image

    if not image.mode.startswith("I"):
        return to_rgb(image)
    made = Image.new("RGB", image.size)
    rows = max(1, _BAND // image.width)
    for top in range(0, image.height, rows):
        band = image.crop((0, top, image.width, min(top + rows, image.height)))
        band.format = image.format  # it says which numbers these are
        made.paste(to_rgb(band), (0, top))
    return made


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
