"""Uploads: the images of a request, read within limits and decoded as RGB."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import AsyncGenerator, Generator
from dataclasses import dataclass
from io import BytesIO
from typing import IO, NamedTuple, final

from PIL import Image
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse

from sirc._utils.checks import check_number, check_positive
from sirc.data import Preprocess, is_unknown, printable, reason_of, to_rgb
from sirc.deploy.predict import PixelsError, check_pixels
from sirc.errors import ImageError

_log = logging.getLogger("sirc.deploy.serve")
# The formats of photographs. Pillow knows dozens more, and some of them start other programs.
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM")
REQUEST_IMAGES = 4  # a request may have as many pixels as this many images of the largest size
_SCANS = 20  # scans of a JPEG that count as one image: cameras write about ten, and each scan visits every pixel
_QUOTED = 80  # most characters of the client's text that an answer repeats
_BINARY = "application/octet-stream"
_HEADERS = {408: {"Connection": "close"}, 503: {"Retry-After": "1"}}
BUSY = (503, "busy", "too many requests wait already; try again in a moment")


@final
class RefusedError(MultiPartException):  # the form parser closes its files at this error
    """A refused request: its HTTP status, the kind that is counted, and the message to the client."""

    def __init__(self, status: int, kind: str, message: str) -> None:
        super().__init__(message)
        self.status, self.kind = status, kind

    @classmethod
    def because(cls, error: Exception) -> RefusedError:
        """The refusal for any error. Its text is repeated if the client can correct it, and only logged if not."""
        if isinstance(error, RefusedError):
            return error
        if isinstance(error, ImageError):
            return cls(422, "wrong_size", str(error))
        if isinstance(error, ClientDisconnect):
            return cls(400, "disconnected", "the client went away before it was answered")
        _log.error("a request failed", exc_info=error)
        return cls(500, "internal", "the request failed; the log says why")

    def answer(self) -> JSONResponse:
        """The answer in JSON."""
        return JSONResponse({"error": self.message, "kind": self.kind}, self.status, headers=_HEADERS.get(self.status))


@final
@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of each request, and of all requests together."""

    max_bytes: int = 10 << 20  # of an image
    max_images: int = 64  # of a request
    max_pixels: int = 50_000_000  # of an image
    max_body: int = 64 << 20  # bytes of a form
    max_held: int = 256 << 20  # bytes of the bodies of all requests
    max_memory: int = 1 << 30  # bytes of decoded and prepared images, beside the bodies
    max_waiting: int = 256  # requests being read at once; as many may wait for their answer
    concurrency: int = 2  # batches decoded or decided at once
    read_seconds: float = 30.0  # time for the body to arrive
    answer_seconds: float = 30.0  # time for the answer, once the body has arrived

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not name.endswith("seconds"):
                check_positive(name, value)
            elif not 0 < check_number(name, value) < math.inf:
                raise ValueError(f"`{name}` must be a finite number of seconds > 0; got {value:g}. The default is 30.")


class Upload(NamedTuple):
    """One image as it was sent, and its name in messages."""

    name: str
    file: IO[bytes]


@final
class UploadReader:
    """Reads requests; if they become too many or too large, drops the one that was silent longest."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.held = 0
        self.reading: dict[_Body, asyncio.Timeout] = {}  # ordered by silence, the longest first

    @contextlib.asynccontextmanager
    async def uploads(self, request: Request) -> AsyncGenerator[list[Upload], None]:
        """Read the images of a request; its bytes and temporary files are freed afterwards."""
        body = _Body(request, self)
        try:
            async with asyncio.timeout(self.limits.read_seconds) as timeout:
                self.reading[body] = timeout
                if len(self.reading) > self.limits.max_waiting:
                    self._drop_most_silent()
                await body.read()
                self.reading.pop(body, None)
        except TimeoutError as error:
            text = f"the body must arrive within {self.limits.read_seconds:g} s, or sooner if others wait; it did not"
            raise RefusedError(408, "timeout", text) from error
        else:
            yield body.uploads
        finally:
            self.reading.pop(body, None)
            body.release()
            for upload in body.uploads:
                upload.file.close()

    def hold(self, body: _Body, size: int) -> None:
        """Count bytes that arrived. While all requests together hold too many, drop silent ones or refuse this one."""
        if body not in self.reading:  # dropped a moment ago
            raise TimeoutError
        self.reading[body] = self.reading.pop(body)
        body.size += size
        self.held += size
        while self.held > max(self.limits.max_held, body.size):  # a single request is always read
            if len(self.reading) == 1:
                raise RefusedError(*BUSY)
            self._drop_most_silent()

    def _drop_most_silent(self) -> None:
        body, timeout = next(iter(self.reading.items()))
        del self.reading[body]
        if not timeout.expired():  # it may have expired by itself, and its task not noticed yet
            timeout.reschedule(0)
        body.release()


@final
class _Body:
    """The body of a request, read piece by piece."""

    def __init__(self, request: Request, reader: UploadReader) -> None:
        self._headers = request.headers
        self._stream = request.stream()
        self._reader, self._limits = reader, reader.limits
        self.size = 0
        self.uploads: list[Upload] = []

    async def read(self) -> None:
        """Read the images: the body itself, or the files of a form."""
        content_type = self._headers.get("content-type", "")
        if _media_type(content_type) == "multipart/form-data":
            await self._read_form()
            return
        _check_type("the body", content_type)
        file = BytesIO()
        async for piece in self._pieces(self._limits.max_bytes, "the image"):
            file.write(piece)
        if not file.tell():
            raise RefusedError(400, "no_image", "the body must be an image; it is empty")
        self.uploads.append(Upload("the image", file))

    async def _read_form(self) -> None:
        async def whole() -> AsyncGenerator[bytes, None]:
            async for piece in self._pieces(self._limits.max_body, "the request"):
                yield piece
            if not ended.is_set():
                raise RefusedError(400, "malformed", "the form is malformed: it ends before its last boundary")

        most, ended = self._limits.max_images, asyncio.Event()
        parser = MultiPartParser(self._headers, whole(), max_files=most, max_fields=most)
        parser.on_end = ended.set  # type: ignore[method-assign]  # at the last boundary
        try:
            form = await parser.parse()
        except RefusedError:
            raise
        except (MultiPartException, ValueError) as error:
            text = error.message if isinstance(error, MultiPartException) else "its text cannot be read"
            if text.startswith("Too many files"):
                text = f"a request must have at most {most} images; it has more. Send several requests"
                raise RefusedError(413, "too_many", text) from error
            raise RefusedError(400, "malformed", f"the form is malformed: {printable(text)}") from error
        files = [value for _, value in form.multi_items() if isinstance(value, UploadFile)]
        for index, file in enumerate(files):
            self.uploads.append(Upload(f"image {index} ('{printable(file.filename or '')[:_QUOTED]}')", file.file))
        if not files:
            raise RefusedError(400, "no_image", "the form must have a file; it has none. `curl -F image=@photo.jpg …`")
        for (name, _), file in zip(self.uploads, files, strict=True):
            _check_type(name, file.content_type or _BINARY)
            if (file.size or 0) > self._limits.max_bytes:
                raise _too_large(name, self._limits.max_bytes)

    async def _pieces(self, limit: int, name: str) -> AsyncGenerator[bytes, None]:
        """Yield the pieces; refuse more than this request, or all requests together, may hold."""
        declared = self._headers.get("content-length", "")
        if declared.isdecimal() and int(declared) > limit:
            raise _too_large(name, limit)
        async for piece in self._stream:
            self._reader.hold(self, len(piece))
            if self.size > limit:
                raise _too_large(name, limit)
            yield piece

    def release(self) -> None:
        """Stop counting the bytes of this request."""
        self._reader.held -= self.size
        self.size = 0


def _media_type(content_type: str) -> str:
    return content_type.partition(";")[0].strip().lower()


def _check_type(name: str, content_type: str) -> None:
    kind = _media_type(content_type)
    if not kind.startswith("image/") and kind != _BINARY:
        text = f"{name} must be an image; its type is {printable(kind[:_QUOTED]) or 'not given'}"
        raise RefusedError(415, "content_type", f"{text}. Send image/…, or files as multipart/form-data")


def _too_large(name: str, limit: int) -> RefusedError:
    size = f"{limit / (1 << 20):.3g} MiB" if limit >= 1 << 20 else f"{limit:,} bytes"
    return RefusedError(413, "too_large", f"{name} must have at most {size}; it has more")


def count_pixels(uploads: list[Upload], preprocess: Preprocess, limits: Limits) -> list[int]:
    """Count each image's pixels at its largest from its header; refuse too many before any image is decoded."""
    counts: list[int] = []
    for upload in uploads:
        with _opened(upload) as image:
            pixels = check_pixels(image.size, preprocess, limits.max_pixels)
            if image.format == "TIFF" and "jpeg" in str(image.info.get("compression")):
                raise ImageError("it is a TIFF with a JPEG in it. Send the JPEG, or convert it")
            if image.format in ("JPEG", "MPO"):
                upload.file.seek(0)
                scans = upload.file.read().count(b"\xff\xda")
                pixels = max(pixels, image.width * image.height * scans // _SCANS)
                if pixels > limits.max_pixels:
                    raise PixelsError(f"its {scans:,} scans take as long as {pixels:,} pixels. Save it with fewer")
            counts.append(pixels)
            if sum(counts) > REQUEST_IMAGES * limits.max_pixels:
                raise PixelsError("it is one too many for the pixels of one request. Send several requests")
    return counts


def decode(upload: Upload) -> Image.Image:
    """Decode an image as RGB."""
    with _opened(upload) as image:
        return to_rgb(image)


@contextlib.contextmanager
def _opened(upload: Upload) -> Generator[Image.Image, None, None]:
    """Open an image and read its header; turn its errors, also later ones from decoding, into a refusal."""
    name, file = upload
    try:
        file.seek(0)
        if file.read(2) in (b"P1", b"P2", b"P3"):  # Pillow reads comments among such pixels in quadratic time
            raise ImageError("it is a PPM in plain text. Convert it, to PNG for example")
        file.seek(0)
        with Image.open(file, formats=FORMATS) as image:
            yield image
    except MemoryError:
        raise
    except Exception as error:  # Pillow may raise anything for a damaged file: OSError, SyntaxError, struct.error, …
        large = isinstance(error, Image.DecompressionBombError | Image.DecompressionBombWarning | PixelsError)
        known = large or isinstance(error, ImageError) or is_unknown(error)
        kind = "too_many_pixels" if large else "not_an_image" if known else "damaged"
        advice = f". Send one of {', '.join(FORMATS)}" if is_unknown(error) else ""
        raise RefusedError(413 if large else 422, kind, f"{name} cannot be used: {reason_of(error)}{advice}") from error
