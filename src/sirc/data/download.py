"""Downloads: fetch a file over HTTP whole or not at all, and resume after an interruption."""

from __future__ import annotations

import http.client
import json
import os
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from sirc._utils.files import PathLike, atomic_write
from sirc.progress import SILENT, Progress

_BLOCK = 1 << 18
_RETRIED = {408, 425, 429, 500, 502, 503, 504}  # HTTP answers that may change in a moment
_LONGEST_WAIT = 60.0
_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+)")


class DownloadError(OSError):
    """A file could not be downloaded; the message says from where, why, and what to do."""


@dataclass(frozen=True)
class _Version:
    """The content that a part file is the beginning of; a server that has other content now sends it from the start."""

    url: str
    validator: str | None = None
    total: int | None = None


def download(
    url: str,
    path: PathLike,
    *,
    progress: Progress = SILENT,
    retries: int = 5,
    timeout: float = 30.0,
    sleep: Callable[[float], object] = time.sleep,
) -> Path:
    """Download `url` to `path`, unless it is there; return `path`.

    An incomplete file is kept in `path.part`, even if the process is killed, and a later call asks for the rest. A lost
    connection is retried after 1, 2, 4, … seconds, up to `retries` times in a row without a new byte.
    """
    path = Path(path)
    if urlsplit(url).scheme not in ("http", "https"):
        raise ValueError(f"`url` must start with http:// or https://; got {url!r}.")
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    failures = 0
    while True:
        before = _length(part)
        try:
            _attempt(url, part, timeout, progress)
            break
        except urllib.error.HTTPError as error:
            with error:  # it holds the connection
                if error.code not in _RETRIED:
                    raise DownloadError(_refusal(url, error.code, error.reason)) from error
                why, retry_after = f"HTTP {error.code} {error.reason}", error.headers.get("Retry-After", "")
        except (OSError, http.client.HTTPException) as error:
            why, retry_after = str(getattr(error, "reason", None) or error or type(error).__name__), ""
        failures = 1 if _length(part) > before else failures + 1
        if failures > retries:
            raise DownloadError(
                f"'{url}' cannot be fetched: {why}, {failures} times in a row, with {_length(part):,} bytes in "
                f"'{part}'. Check the network, and run this again: it goes on from there."
            )
        wait = float(retry_after) if retry_after.isdigit() else 2.0 ** (failures - 1)
        sleep(min(wait, _LONGEST_WAIT))
    os.replace(part, path)
    _version_file(part).unlink(missing_ok=True)
    return path


def _attempt(url: str, part: Path, timeout: float, progress: Progress) -> None:
    """Request what is missing and append it; raise if less came than was announced."""
    version, have = _read_version(part, url)
    if version.total is not None and have == version.total:
        return
    headers = {"User-Agent": "sirc", "Accept-Encoding": "identity"}
    if have and version.validator:
        headers |= {"Range": f"bytes={have}-", "If-Range": version.validator}
    try:
        answer = urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=timeout)
    except urllib.error.HTTPError as error:
        if error.code != 416:
            raise
        with error:
            _discard(part)
        raise ConnectionError("the server no longer has the rest of what came before") from error
    with answer:
        start, total = _extent(answer, have if "Range" in headers else 0)
        if start and total != version.total:
            _discard(part)
            raise ConnectionError(f"the file has {total} bytes now, not {version.total}")
        if not start:
            part.unlink(missing_ok=True)  # before the version file describes it
            content = json.dumps(asdict(_Version(url, _validator(answer), total))).encode()
            atomic_write(_version_file(part), lambda file: file.write(content))
        _receive(answer, part, start, total, progress)
    if total is not None and _length(part) != total:
        raise ConnectionError(f"the connection ended after {_length(part):,} of {total:,} bytes")


def _extent(answer: Any, have: int) -> tuple[int, int | None]:
    """Get the offset of the answer, `have` if the server resumes or 0, and the full length, if it is announced."""
    length = answer.headers.get("Content-Length", "")
    if answer.status != 206:
        return 0, int(length) if length.isdigit() else None
    content_range = answer.headers.get("Content-Range", "")
    match = _RANGE.fullmatch(content_range)
    if not match or int(match[1]) != have:
        raise ConnectionError(f"the server sent {content_range!r} when asked for the bytes from {have}")
    return have, int(match[2])


def _receive(answer: Any, part: Path, have: int, total: int | None, progress: Progress) -> None:
    with (
        open(part, "r+b" if have else "wb") as file,
        progress.task(part.name.removesuffix(".part"), total, done=have, unit="bytes") as task,
    ):
        file.truncate(have)
        file.seek(have)
        while block := answer.read(_BLOCK):
            file.write(block)
            task.advance(len(block))
        file.flush()
        os.fsync(file.fileno())


def _validator(answer: Any) -> str | None:
    """Get the ETag or date that identifies this content; a weak ETag is not enough to join two halves."""
    tag = answer.headers.get("ETag", "")
    strong: str | None = tag if tag.startswith('"') else answer.headers.get("Last-Modified")
    return strong


def _version_file(part: Path) -> Path:
    return part.with_name(part.name + ".json")


def _read_version(part: Path, url: str) -> tuple[_Version, int]:
    """Get the content that the part file is the beginning of, and its length so far; 0 if it is of another address."""
    try:
        version = _Version(**json.loads(_version_file(part).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return _Version(url), 0
    return (version, _length(part)) if version.url == url else (_Version(url), 0)


def _discard(part: Path) -> None:
    part.unlink(missing_ok=True)
    _version_file(part).unlink(missing_ok=True)


def _length(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0


def _refusal(url: str, code: int, reason: str) -> str:
    if code in (404, 410):
        advice = "It has moved: look for its new address, and pass that."
    elif code in (401, 403):
        advice = "It needs permission: fetch it with a browser, and put it where it is wanted."
    else:
        advice = "Try again later, or fetch it with a browser."
    return f"'{url}' cannot be fetched: the server answered HTTP {code} {reason}. {advice}"
