"""Uploads: read the images of a request within limits, and decode them as RGB."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from io import BytesIO
from typing import IO, NamedTuple, final

from PIL import Image, UnidentifiedImageError
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect, Request

from sirc._utils.checks import check_positive
from sirc.data import Preprocess, printable, to_rgb
from sirc.deploy.predict import PixelsError, check_pixels
from sirc.errors import ImageError

# The formats of photographs; PIL knows dozens more, some of which start other programs.
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM")
_SCANS = 200  # of a JPEG: cameras and editors write about ten
_BAND = 1 << 18  # pixels of a 16-bit image that are converted together
_DRAINED = 256 << 20  # bytes at most that are read and thrown away
_DRAIN_SECONDS = 10.0
_QUOTED = 80  # characters of the client's text that an answer repeats
_BINARY = "application/octet-stream"


@final
class RefusedError(MultiPartException):
    """A request that gets no decision: the HTTP status, the kind that is counted, and the message to the client.

    The parser of forms closes its files at a `MultiPartException`.
    """

    def __init__(self, status: int, kind: str, message: str) -> None:
        super().__init__(message)
        self.status, self.kind = status, kind


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


class Upload(NamedTuple):
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
                    uploads = await body.read()
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
    """The body of a request, read piece by piece."""

    def __init__(self, request: Request, reader: Reader) -> None:
        self._headers = request.headers
        self._stream = request.stream()
        self._reader, self._limits = reader, reader.limits
        self._size = 0

    async def read(self) -> list[Upload]:
        """The images: the body itself, or the files of a form."""
        content_type = self._headers.get("content-type", "")
        if _media_type(content_type) == "multipart/form-data":
            return await self._read_form()
        _check_type("the body", content_type)
        file = BytesIO()
        async for piece in self._pieces(self._limits.max_bytes, "the image"):
            file.write(piece)
        if not file.tell():
            raise RefusedError(400, "no_image", "the body must be an image; it is empty")
        file.seek(0)
        return [Upload("the image", file)]

    async def _read_form(self) -> list[Upload]:
        async def whole() -> AsyncGenerator[bytes, None]:
            async for piece in self._pieces(self._limits.max_body, "the request"):
                yield piece
            if not parser.ended:
                raise RefusedError(400, "malformed", "the form is malformed: it ends before its last boundary")

        most = self._limits.max_images
        parser = _Parser(self._headers, whole(), max_files=most, max_fields=most)
        try:
            form = await parser.parse()
        except RefusedError:
            raise
        except MultiPartException as error:
            if error.message.startswith("Too many files"):
                text = f"a request must have at most {most} images; it has more. Send several requests"
                raise RefusedError(413, "too_many", text) from error
            raise RefusedError(400, "malformed", f"the form is malformed: {printable(error.message)}") from error
        except (UnicodeError, ValueError) as error:
            raise RefusedError(400, "malformed", "the form is malformed") from error
        try:
            files = [value for _, value in form.multi_items() if isinstance(value, UploadFile)]
            if not files:
                text = "the form must have at least one file; it has none. `curl -F image=@photo.jpg …`"
                raise RefusedError(400, "no_image", text)
            uploads = []
            for index, file in enumerate(files):
                name = f"image {index} ('{printable(file.filename or '')[:_QUOTED]}')"
                _check_type(name, file.content_type or _BINARY)
                if (file.size or 0) > self._limits.max_bytes:
                    raise _too_large(name, self._limits.max_bytes)
                uploads.append(Upload(name, file.file))
        except RefusedError:
            await form.close()
            raise
        return uploads

    async def _pieces(self, limit: int, name: str) -> AsyncGenerator[bytes, None]:
        """Give the pieces, and refuse more than the limit of this request or of all requests together."""
        declared = self._headers.get("content-length", "")
        if declared.isdecimal() and int(declared) > limit:
            raise _too_large(name, limit)
        async for piece in self._stream:
            self._size += len(piece)
            self._reader.held += len(piece)
            if self._size > limit:
                raise _too_large(name, limit)
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
                async for piece in self._stream:
                    left -= len(piece)
                    if left < 0:
                        return


@final
class _Parser(MultiPartParser):
    """Starlette's parser, which also notes whether the form was whole."""

    ended = False

    def on_end(self) -> None:
        """Note the last boundary."""
        self.ended = True


def _media_type(content_type: str) -> str:
    return content_type.partition(";")[0].strip().lower()


def _check_type(name: str, content_type: str) -> None:
    kind = _media_type(content_type)
    if not kind.startswith("image/") and kind != _BINARY:
        text = f"{name} must be an image; its type is {printable(kind[:_QUOTED]) or 'not given'}"
        raise RefusedError(415, "content_type", f"{text}. Send image/…, or files as multipart/form-data")


def busy() -> RefusedError:
    """The answer to a request for which there is no room now."""
    return RefusedError(503, "busy", "too many requests wait already; try again in a moment")


def _too_large(name: str, limit: int) -> RefusedError:
    size = f"{limit / (1 << 20):.3g} MiB" if limit >= 1 << 20 else f"{limit:,} bytes"
    return RefusedError(413, "too_large", f"{name} must have at most {size}; it has more")


def open_image(upload: Upload, preprocess: Preprocess, max_pixels: int, left: int | None = None) -> Image.Image:
    """Decode one image as RGB, after checking the size in its header.

    `left` is how many pixels the request may still have.
    """
    name, file = upload
    try:
        if file.read(2) in (b"P1", b"P2", b"P3"):  # PIL reads the comments of pixels as text in quadratic time
            raise ImageError("it is a PPM in plain text. Convert it, to PNG for example")
        file.seek(0)
        with Image.open(file, formats=FORMATS) as image:
            check_pixels(image.size, preprocess, max_pixels)
            if left is not None and image.width * image.height > left:
                raise PixelsError("it is one too many for the pixels of one request. Send several requests")
            if image.format == "TIFF" and "jpeg" in str(image.info.get("compression")):
                raise ImageError("it is a TIFF with a JPEG in it. Send the JPEG, or convert it")
            if image.format in ("JPEG", "MPO"):
                place = file.tell()
                file.seek(0)
                scans = file.read().count(b"\xff\xda")
                file.seek(place)
                if scans > _SCANS:  # each, however short, visits every pixel: a few bytes would take minutes
                    raise OSError(f"a JPEG must have at most {_SCANS} scans; it has {scans:,}")
            return _in_bands(image)
    except MemoryError:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning, PixelsError) as error:
        raise RefusedError(413, "too_many_pixels", f"{name}: {error}") from error
    except UnidentifiedImageError as error:
        formats = ", ".join(FORMATS)
        raise RefusedError(422, "not_an_image", f"{name} is empty or no image; send one of {formats}") from error
    except ImageError as error:
        raise RefusedError(422, "not_an_image", f"{name} cannot be used: {error}") from error
    except Exception as error:  # a damaged file may raise anything in PIL: OSError, SyntaxError, struct.error, …
        reason = printable(str(error)) or type(error).__name__
        raise RefusedError(422, "damaged", f"{name} is damaged: {reason}") from error


def _in_bands(image: Image.Image) -> Image.Image:
    """Convert to RGB; 16-bit pixels band by band, as each takes eight bytes on the way."""
    if not image.mode.startswith("I"):
        return to_rgb(image)
    rgb = Image.new("RGB", image.size)
    rows = max(1, _BAND // image.width)
    for top in range(0, image.height, rows):
        band = image.crop((0, top, image.width, min(top + rows, image.height)))
        band.format = image.format  # the meaning of its numbers depends on it
        rgb.paste(to_rgb(band), (0, top))
    return rgb
