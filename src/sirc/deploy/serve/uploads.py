"""Uploads: read the images of a request within limits, and decode them as RGB."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from io import BytesIO
from typing import IO, TYPE_CHECKING, final

from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect, Request

from sirc._utils.checks import check_positive
from sirc._utils.imports import missing_package
from sirc.data import printable, to_rgb
from sirc.deploy.predict import PixelsError, check_pixels
from sirc.errors import ImageError

if TYPE_CHECKING:
    from PIL.Image import Image

    from sirc.data import Preprocess

# The formats of photographs; PIL knows dozens more, some of which start other programs.
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM")
_SCANS = 200  # of a JPEG: cameras and editors write about ten
_BAND = 1 << 18  # pixels of a 16-bit image that are converted together
_DRAINED = 256 << 20  # bytes at most that are read and thrown away
_DRAIN_SECONDS = 10.0
_QUOTED = 80  # characters of the client's text that an answer repeats
_BINARY = "application/octet-stream"


@final
class RefusedError(Exception):
    """A request that gets no decision: the HTTP status, the kind that is counted, and the message to the client."""

    def __init__(self, status: int, kind: str, message: str) -> None:
        super().__init__(message)
        self.status, self.kind, self.message = status, kind, message


@final
@dataclass(frozen=True)
class Limits:
    """The largest request that is answered."""

    max_bytes: int
    max_images: int
    max_pixels: int
    max_body: int
    read_seconds: float

    @property
    def max_request_pixels(self) -> int:
        """Pixels of all images of a request together; they bound the time that it takes."""
        return 4 * self.max_pixels

    def __post_init__(self) -> None:
        for name in ("max_bytes", "max_images", "max_pixels", "max_body"):
            check_positive(name, getattr(self, name))
        if not self.read_seconds > 0:
            raise ValueError(f"`read_seconds` must be positive; got {self.read_seconds}")


@final
@dataclass(frozen=True)
class Upload:
    """One image as it was sent, and its name in messages."""

    name: str
    file: IO[bytes]


@final
class Reader:
    """Reads requests, which together hold at most `max_held` bytes; one more is refused until others are answered."""

    def __init__(self, limits: Limits, max_held: int) -> None:
        self.limits = limits
        self.max_held = check_positive("max_held", max_held)
        self.held = 0

    @contextlib.asynccontextmanager
    async def uploads(self, request: Request) -> AsyncGenerator[list[Upload], None]:
        """Give the images of a request; its bytes and temporary files are gone afterwards."""
        uploads: list[Upload] = []
        body = _Body(request, self)
        try:
            try:
                async with asyncio.timeout(self.limits.read_seconds):
                    uploads = await _read(request, body, self.limits)
            except TimeoutError as error:
                text = f"the body must arrive within {self.limits.read_seconds:g} s; it did not"
                raise RefusedError(408, "timeout", text) from error
            except ClientDisconnect as error:
                raise RefusedError(400, "disconnected", "the client went away before it had sent all") from error
            except RefusedError:
                body.release()
                # A client that is still sending would see a closed connection in place of the reason.
                if request.headers.get("expect", "").lower() != "100-continue":
                    await body.drain()
                raise
            yield uploads
        finally:
            body.release()
            for upload in uploads:
                upload.file.close()


@final
class _Body:
    """The body of a request, piece by piece."""

    def __init__(self, request: Request, reader: Reader) -> None:
        self._pieces = request.stream()
        self._reader = reader
        self._size = 0

    async def pieces(self, limit: int, what: str) -> AsyncGenerator[bytes, None]:
        """Give the pieces, and refuse more than the limit of this request or of all requests together."""
        async for piece in self._pieces:
            self._size += len(piece)
            self._reader.held += len(piece)
            if self._size > limit:
                raise _too_large(f"the {what}", limit)
            if self._reader.held > max(self._reader.max_held, self._size):  # a request alone is always read
                raise busy()
            yield piece

    def release(self) -> None:
        """Give back the bytes that this request holds."""
        self._reader.held -= self._size
        self._size = 0

    async def drain(self) -> None:
        """Let the client finish sending, within reason, and throw it away."""
        left = _DRAINED
        with contextlib.suppress(TimeoutError, ClientDisconnect):
            async with asyncio.timeout(_DRAIN_SECONDS):
                async for piece in self._pieces:
                    left -= len(piece)
                    if left < 0:
                        return


async def _read(request: Request, body: _Body, limits: Limits) -> list[Upload]:
    kind = _media_type(request.headers.get("content-type", ""))
    if kind == "multipart/form-data":
        _check_length(request, limits.max_body, "request")
        return await _read_form(request, body, limits)
    if not _may_be_image(kind):
        text = "Content-Type must be image/… with the image as the body, or multipart/form-data with files"
        raise RefusedError(415, "content_type", f"{text}; got {printable(kind[:_QUOTED]) or 'none'!r}")
    _check_length(request, limits.max_bytes, "image")
    file = BytesIO()
    async for piece in body.pieces(limits.max_bytes, "image"):
        file.write(piece)
    if not file.tell():
        raise RefusedError(400, "no_image", "the body must be an image; it is empty")
    file.seek(0)
    return [Upload("the image", file)]


async def _read_form(request: Request, body: _Body, limits: Limits) -> list[Upload]:
    async def pieces() -> AsyncGenerator[bytes, None]:
        try:
            async for piece in body.pieces(limits.max_body, "request"):
                yield piece
        except RefusedError as error:
            raise _StoppedError(error) from error
        if not parser.ended:
            text = "the form is malformed: it ends before its last boundary"
            raise _StoppedError(RefusedError(400, "malformed", text))

    parser = _Parser(request.headers, pieces(), max_files=limits.max_images, max_fields=limits.max_images)
    try:
        form = await parser.parse()
    except _StoppedError as error:
        raise error.refused from error
    except MultiPartException as error:
        if error.message.startswith("Too many files"):
            text = f"a request must have at most {limits.max_images} images; it has more. Send several requests"
            raise RefusedError(413, "too_many", text) from error
        raise RefusedError(400, "malformed", f"the form is malformed: {printable(error.message)}") from error
    except (UnicodeError, ValueError) as error:
        raise RefusedError(400, "malformed", "the form is malformed") from error
    files = [value for _, value in form.multi_items() if isinstance(value, UploadFile)]
    try:
        _check_files(files, limits)
    except RefusedError:
        await form.close()
        raise
    return [Upload(_file_name(i, file), file.file) for i, file in enumerate(files)]


def _check_files(files: list[UploadFile], limits: Limits) -> None:
    if not files:
        text = "the form must have at least one file; it has none. `curl -F image=@photo.jpg …`"
        raise RefusedError(400, "no_image", text)
    for index, file in enumerate(files):
        name, kind = _file_name(index, file), _media_type(file.content_type or _BINARY)
        if not _may_be_image(kind):
            text = f"{name} must be an image; its type is {printable(kind[:_QUOTED])}"
            raise RefusedError(415, "content_type", text)
        if (file.size or 0) > limits.max_bytes:
            raise _too_large(name, limits.max_bytes)


def _media_type(content_type: str) -> str:
    return content_type.partition(";")[0].strip().lower()


def _may_be_image(media_type: str) -> bool:
    return media_type.startswith("image/") or media_type == _BINARY


def _file_name(index: int, file: UploadFile) -> str:
    return f"image {index} ('{printable(file.filename or '')[:_QUOTED]}')"


def _check_length(request: Request, limit: int, what: str) -> None:
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > limit:
        raise _too_large(f"the {what}", limit)


@final
class _Parser(MultiPartParser):
    """Starlette's parser, which also notes whether the form was whole."""

    ended = False

    def on_end(self) -> None:
        """Note the last boundary."""
        self.ended = True


@final
class _StoppedError(MultiPartException):
    """Stops the parser so that it closes its files, as it does for errors of its own."""

    def __init__(self, refused: RefusedError) -> None:
        super().__init__(refused.message)
        self.refused = refused


def busy() -> RefusedError:
    """The answer to a request for which there is no room now."""
    return RefusedError(503, "busy", "too many requests wait already; try again in a moment")


def _too_large(what: str, limit: int) -> RefusedError:
    size = f"{limit / (1 << 20):.3g} MiB" if limit >= 1 << 20 else f"{limit:,} bytes"
    return RefusedError(413, "too_large", f"{what} must have at most {size}; it has more")


def open_image(upload: Upload, preprocess: Preprocess, max_pixels: int, left: int | None = None) -> Image:
    """Decode one image as RGB, after checking the size in its header.

    `left` is how many pixels the request may still have.
    """
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError as error:
        raise missing_package("reading images", "Pillow", "serve") from error
    name, file = upload.name, upload.file
    try:
        _check_binary(upload)
        with Image.open(file, formats=FORMATS) as image:
            check_pixels(image.size, preprocess, max_pixels)
            if left is not None and image.width * image.height > left:
                raise PixelsError("is one too many: the request's images have too many pixels. Send several requests")
            _check_scans(image, upload)
            return _in_bands(image)
    except (RefusedError, MemoryError):
        raise
    except UnidentifiedImageError as error:
        formats = ", ".join(FORMATS)
        raise RefusedError(422, "not_an_image", f"{name} is empty or no image; send one of {formats}") from error
    except (Image.DecompressionBombError, Image.DecompressionBombWarning, PixelsError) as error:
        raise RefusedError(413, "too_many_pixels", f"{name} {error}") from error
    except ImageError as error:
        raise RefusedError(422, "not_an_image", f"{name} cannot be used: {error}") from error
    except Exception as error:  # a damaged file may raise anything in PIL: OSError, SyntaxError, struct.error, …
        reason = printable(str(error)) or type(error).__name__
        raise RefusedError(422, "damaged", f"{name} is damaged: {reason}") from error


def _check_binary(upload: Upload) -> None:
    """Refuse pixels written as text, whose comments PIL reads in quadratic time."""
    head = upload.file.read(2)
    upload.file.seek(0)
    if head in (b"P1", b"P2", b"P3"):
        text = f"{upload.name} is a PPM in plain text; only binary ones are taken. Convert it, to PNG for example"
        raise RefusedError(422, "not_an_image", text)


def _check_scans(image: Image, upload: Upload) -> None:
    """Refuse a JPEG whose few bytes would take minutes: each scan, however short, visits every pixel."""
    if image.format == "TIFF" and "jpeg" in str(image.info.get("compression")):
        text = f"{upload.name} is a TIFF with a JPEG in it, which is not taken. Send the JPEG, or convert it"
        raise RefusedError(422, "not_an_image", text)
    if image.format not in ("JPEG", "MPO"):
        return
    file, scans, last = upload.file, 0, b""
    place = file.tell()
    file.seek(0)
    while piece := file.read(1 << 20):
        scans += (last + piece).count(b"\xff\xda")  # also where the two bytes fall into two pieces
        last = piece[-1:]
    file.seek(place)
    if scans > _SCANS:
        text = f"{upload.name} is damaged: a JPEG must have at most {_SCANS} scans; it has {scans:,}"
        raise RefusedError(422, "damaged", text)


def _in_bands(image: Image) -> Image:
    """Convert to RGB; 16-bit pixels band by band, as each takes eight bytes on the way."""
    from PIL import Image

    if not image.mode.startswith("I"):
        return to_rgb(image)
    rgb = Image.new("RGB", image.size)
    rows = max(1, _BAND // image.width)
    for top in range(0, image.height, rows):
        band = image.crop((0, top, image.width, min(top + rows, image.height)))
        band.format = image.format  # the meaning of its numbers depends on it
        rgb.paste(to_rgb(band), (0, top))
    return rgb
