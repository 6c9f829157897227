"""Reads the images of a request, never more of it than is allowed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from io import BytesIO
from typing import IO, final

from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect, Request

from sirc._utils.checks import check_positive
from sirc.data import printable
from sirc.deploy.serve.budget import Share
from sirc.deploy.serve.images import RefusedError

_DRAINED = 256 << 20  # bytes at most that are read and thrown away
_DRAIN_SECONDS = 10.0
_SHOWN = 80  # characters of a client's words that an answer repeats
_ANYTHING = "application/octet-stream"


@final
@dataclass(frozen=True)
class Limits:
    """What a request may ask for."""

    max_bytes: int
    max_images: int
    max_pixels: int
    max_body: int
    read_seconds: float

    @property
    def max_request_pixels(self) -> int:
        """Pixels of all images of a request together: the time that one may take."""
        return 4 * self.max_pixels

    def __post_init__(self) -> None:
        for name in ("max_bytes", "max_images", "max_pixels", "max_body"):
            check_positive(name, getattr(self, name))
        if not self.read_seconds > 0:
            raise ValueError(f"`read_seconds` must be positive; got {self.read_seconds}")


@final
@dataclass(frozen=True)
class Upload:
    """One image as it was sent, and what messages call it."""

    name: str
    file: IO[bytes]


@contextlib.asynccontextmanager
async def uploads(request: Request, limits: Limits, share: Share) -> AsyncGenerator[list[Upload], None]:
    """Give the images of a request; its temporary files are gone afterwards."""
    found: list[Upload] = []
    body = _Body(request, share)
    try:
        try:
            async with asyncio.timeout(limits.read_seconds):
                found = await _read(request, body, limits)
            share.whole()
        except TimeoutError as error:
            if share.waits:
                raise busy() from error
            text = f"the body must arrive within {limits.read_seconds:g} s; it did not"
            raise RefusedError(408, "timeout", text) from error
        except ClientDisconnect as error:
            raise RefusedError(400, "disconnected", "the client went away before it had sent all") from error
        except RefusedError:
            # It would otherwise see a closed connection and not the reason, unless it waits for a word before it sends.
            share.give_back()
            if request.headers.get("expect", "").lower() != "100-continue":
                await body.drain()
            raise
        yield found
    finally:
        for upload in found:
            upload.file.close()


@final
class _Body:
    """What a client sends, piece by piece."""

    def __init__(self, request: Request, share: Share) -> None:
        self._pieces = request.stream()
        self._share = share

    async def limited(self, limit: int, what: str) -> AsyncGenerator[bytes, None]:
        """Give the pieces; more than the limit is refused."""
        size = 0
        async for piece in self._pieces:
            size += len(piece)
            if size > limit:
                raise _too_large(f"the {what}", limit)
            await self._share.take(len(piece))
            yield piece

    async def drain(self) -> None:
        """Let the client finish sending, in reason, and throw it away."""
        left = _DRAINED
        with contextlib.suppress(TimeoutError, ClientDisconnect):
            async with asyncio.timeout(_DRAIN_SECONDS):
                async for piece in self._pieces:
                    left -= len(piece)
                    if left < 0:
                        return


async def _read(request: Request, body: _Body, limits: Limits) -> list[Upload]:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "multipart/form-data":
        _check_length(request, limits.max_body, "request")
        return await _read_form(request, body, limits)
    if not (kind.startswith("image/") or kind == _ANYTHING):
        got = printable(kind[:_SHOWN]) or "none"
        text = "Content-Type must be image/… with the image as the body, or multipart/form-data with files"
        raise RefusedError(415, "content_type", f"{text}; got {got!r}")
    _check_length(request, limits.max_bytes, "image")
    file = BytesIO()
    async for piece in body.limited(limits.max_bytes, "image"):
        file.write(piece)
    if not file.tell():
        raise RefusedError(400, "no_image", "the body must be an image; it is empty")
    file.seek(0)
    return [Upload("the image", file)]


async def _read_form(request: Request, body: _Body, limits: Limits) -> list[Upload]:
    async def pieces() -> AsyncGenerator[bytes, None]:
        try:
            async for piece in body.limited(limits.max_body, "request"):
                yield piece
        except RefusedError as error:
            raise _Cut(error) from error
        if not parser.ended:
            raise _Cut(RefusedError(400, "malformed", "the form is malformed: it ends before its last boundary"))

    parser = _Parser(request.headers, pieces(), max_files=limits.max_images, max_fields=limits.max_images)
    try:
        form = await parser.parse()
    except _Cut as error:
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
    return [Upload(_named(i, file), file.file) for i, file in enumerate(files)]


def _check_files(files: list[UploadFile], limits: Limits) -> None:
    if not files:
        raise RefusedError(
            400, "no_image", "the form must have at least one file; it has none. `curl -F image=@photo.jpg …`"
        )
    for index, file in enumerate(files):
        kind = (file.content_type or _ANYTHING).partition(";")[0].strip().lower()
        if not (kind.startswith("image/") or kind == _ANYTHING):
            raise RefusedError(
                415, "content_type", f"{_named(index, file)} must be an image; its type is {printable(kind[:_SHOWN])}"
            )
        if (file.size or 0) > limits.max_bytes:
            raise _too_large(_named(index, file), limits.max_bytes)


def _named(index: int, file: UploadFile) -> str:
    return f"image {index} ('{printable(file.filename or '')[:_SHOWN]}')"


def _check_length(request: Request, limit: int, what: str) -> None:
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > limit:
        raise _too_large(f"the {what}", limit)


@final
class _Parser(MultiPartParser):
    """Starlette's, which also knows whether the form was whole."""

    ended = False

    def on_end(self) -> None:
        """See the last boundary."""
        self.ended = True


@final
class _Cut(MultiPartException):
    """Stops the parser in the way that makes it close its files."""

    def __init__(self, refused: RefusedError) -> None:
        super().__init__(refused.message)
        self.refused = refused


def busy() -> RefusedError:
    """A request for which there is no room now."""
    return RefusedError(503, "busy", "too many requests wait already; try again in a moment")


def _too_large(what: str, limit: int) -> RefusedError:
    size = f"{limit / (1 << 20):.3g} MiB" if limit >= 1 << 20 else f"{limit:,} bytes"
    return RefusedError(413, "too_large", f"{what} must have at most {size}; it has more")
