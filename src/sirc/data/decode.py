"""Decoding of image files to RGB, as torchvision does it, with errors that name the file."""

from __future__ import annotations

import errno
import io
import os
import warnings
from typing import TYPE_CHECKING

import numpy as np

from sirc._utils.files import PathLike
from sirc._utils.imports import needing
from sirc.errors import ImageError

if TYPE_CHECKING:
    from PIL.Image import Image

FIND_ALL = " `sirc data check NAME PATH --decode` finds all such files."


def read_image(path: PathLike, data: bytes | None = None) -> Image:
    """Read one file, or its content `data`, as RGB; the EXIF orientation is ignored, as in torchvision."""
    with needing("reading images", "Pillow"):
        from PIL import Image
    try:
        # PIL warns of odd metadata and of large images; it raises an error if pixels are missing.
        with open(path, "rb") if data is None else io.BytesIO(data) as file, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if (image := Image.open(file)).format == "EPS":
                raise ImageError("it is an EPS, which another program would have to draw")
            return to_rgb(image)
    except MemoryError:
        raise
    except Exception as error:  # PIL raises many kinds for a damaged file: OSError, SyntaxError, struct.error, …
        if isinstance(error, OSError) and error.errno not in (None, errno.ELOOP):
            # The machine failed: too many open files or a lost disk must not look like broken images. ELOOP is the
            # image's fault: its link leads to itself.
            raise OSError(error.errno, _message(path, error)) from error
        raise ImageError(_message(path, error)) from error


def to_rgb(image: Image) -> Image:
    """Convert any image to RGB: drop transparency, keep the high byte of 16-bit grey (PIL alone would clip it)."""
    from PIL import Image

    if image.mode.startswith("I;16") or (image.mode == "I" and image.format in ("PNG", "PPM")):
        return Image.fromarray((np.asarray(image) >> 8).clip(0, 255).astype(np.uint8)).convert("RGB")
    if image.mode in ("I", "F"):
        raise ImageError(f"its pixels are 32-bit numbers (mode {image.mode}), whose range is not defined")
    if image.mode == "P" and "transparency" in image.info:
        return image.convert("RGBA").convert("RGB")  # the same colours as in one step, without PIL's warning
    return image.convert("RGB")


def printable(path: PathLike) -> str:
    """Write a path so that any terminal and encoding can show it: undecodable bytes become escapes."""
    text = str(path).encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def is_unknown(error: Exception) -> bool:
    """Whether PIL does not know the file's format; Ultralytics patches it to import a package, which may be missing."""
    from PIL import UnidentifiedImageError

    return isinstance(error, UnidentifiedImageError | ImportError)


def reason_of(error: Exception) -> str:
    """Describe what is wrong with an image that could not be decoded."""
    from PIL import Image

    if isinstance(error, ImageError):
        return str(error)
    if isinstance(error, Image.DecompressionBombError | Image.DecompressionBombWarning):
        return f"it is too large ({error})"
    if is_unknown(error):
        return "it is empty or no image that PIL knows"
    return f"it is damaged ({printable(str(error)) or type(error).__name__})"


def _message(path: PathLike, error: Exception) -> str:
    from PIL import Image

    name = printable(path)
    if isinstance(error, FileNotFoundError) and os.path.islink(path):
        return f"image '{name}' is a link to a file that does not exist. Restore that file, or remove the link."
    if isinstance(error, FileNotFoundError):
        return f"image '{name}' is gone since the dataset was opened. Restore it, or open the dataset again."
    if isinstance(error, OSError) and error.errno in (errno.EISDIR, errno.EACCES, errno.EPERM, errno.ELOOP):
        return f"image '{name}' cannot be opened: {error.strerror}. Change its permissions, or remove it."
    advice = "Fetch or unpack it again, or remove it."
    if isinstance(error, Image.DecompressionBombError):
        advice = "Scale it down, or raise `PIL.Image.MAX_IMAGE_PIXELS`."
    elif isinstance(error, ImageError):
        advice = "Convert it to 8 bits a channel, in a PNG for example."
    return f"image '{name}' cannot be read: {reason_of(error)}. {advice}{FIND_ALL}"
