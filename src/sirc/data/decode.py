"""One image file to RGB pixels, the same that torchvision's loader gives, or an error that names the file."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import numpy as np

from sirc._utils.files import PathLike
from sirc.errors import ImageError

if TYPE_CHECKING:
    from PIL.Image import Image

FIND_ALL = " `sirc data check --decode` finds all such files."


def read_image(path: PathLike) -> Image:
    """Read one file as RGB; its EXIF orientation is left alone, as torchvision leaves it."""
    try:
        from PIL import Image
    except ImportError as error:
        raise missing_package("reading images", "Pillow") from error
    try:
        # PIL warns of odd metadata and of sizes below its limit; the pixels are whole, or it raises.
        with open(path, "rb") as file, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return to_rgb(Image.open(file))
    except (KeyboardInterrupt, MemoryError):
        raise
    except OSError as error:
        if error.errno is None:  # PIL's own
            raise ImageError(_what_is_wrong(path, error)) from error
        # The system failed, not the image: a full table of handles or a lost disk must not look like broken images.
        raise OSError(error.errno, _what_is_wrong(path, error)) from error
    except Exception as error:  # a damaged file reaches every corner of PIL: OSError, SyntaxError, struct.error, …
        raise ImageError(_what_is_wrong(path, error)) from error


def to_rgb(image: Image) -> Image:
    """Make any image RGB: transparency is dropped, 16-bit grey keeps its high byte (PIL alone would clip it)."""
    from PIL import Image

    if image.mode.startswith("I;16") or (image.mode == "I" and image.format in ("PNG", "PPM")):
        high = (np.asarray(image).astype(np.int64) >> 8).clip(0, 255).astype(np.uint8)
        return Image.fromarray(high).convert("RGB")
    if image.mode in ("I", "F"):
        raise ImageError(f"its pixels are 32-bit numbers (mode {image.mode}), whose range nobody has agreed upon")
    if image.mode == "P" and "transparency" in image.info:
        return image.convert("RGBA").convert("RGB")  # the same colours as straight to RGB, without PIL's warning
    return image.convert("RGB")


def missing_package(what: str, package: str, extra: str = "vision") -> ImportError:
    """Name the extra that brings a package which is not installed."""
    return ImportError(f"{what} needs {package}: pip install 'sirc[{extra}]'")


def printable(path: PathLike) -> str:
    """A path that any terminal and any encoding can show; undecodable bytes become escapes."""
    text = str(path).encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def _what_is_wrong(path: PathLike, error: Exception) -> str:
    from PIL import Image, UnidentifiedImageError

    name = printable(path)
    if isinstance(error, FileNotFoundError):
        return (
            f"image '{name}' is gone. It was there when the dataset was opened: restore it, or open the dataset again."
        )
    if isinstance(error, IsADirectoryError | PermissionError):
        return f"image '{name}' cannot be opened: {error.strerror}. Change its permissions, or remove it."
    if isinstance(error, Image.DecompressionBombError):
        why, way_out = f"it is too large ({error})", "Scale it down, or raise `PIL.Image.MAX_IMAGE_PIXELS`."
    elif isinstance(error, UnidentifiedImageError):
        why, way_out = "it is empty or no image that PIL knows", "Fetch or unpack it again, or remove it."
    elif isinstance(error, ImageError):
        why, way_out = str(error), "Convert it to 8 bits a channel."
    else:
        words = printable(f"{error}") or type(error).__name__
        why, way_out = f"it is damaged ({words})", "Fetch or unpack it again, or remove it."
    return f"image '{name}' cannot be read: {why}. {way_out}{FIND_ALL}"
