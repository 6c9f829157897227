"""Fetches a file over HTTP so that it is whole or absent, and goes on where an interrupted run stopped."""

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
_AGAIN = {408, 425, 429, 500, 502, 503, 504}  # answers that may be other in a moment
_LONGEST_WAIT = 60.0
_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+)")


class FetchError(OSError):
    """A file could not be fetched; the message says from where, what came, and what to do."""


@dataclass(frozen=True)
class _Version:
    """Which content a part file is the beginning of; a server that has another now sends it from the start."""

    url: str
    validator: str | None
    total: int | None


def fetch(
    url: str,
    path: PathLike,
    *,
    progress: Progress = SILENT,
    retries: int = 5,
    timeout: float = 30.0,
    sleep: Callable[[float], object] = time.sleep,
) -> Path:
    """Fetch `url` into `path`, unless it is there; return `path`.

    What has come is kept in `path.part`, also when the process is killed, and a later call asks for the rest. A lost
    connection is tried again `retries` times without a byte in between, after 1, 2, 4, … seconds.
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
                if error.code not in _AGAIN:
                    raise FetchError(_refused(url, error.code, error.reason)) from error
                why, asked = f"HTTP {error.code} {error.reason}", error.headers.get("Retry-After", "")
        except (OSError, http.client.HTTPException) as error:
            why, asked = str(getattr(error, "reason", None) or error or type(error).__name__), ""
        failures = 1 if _length(part) > before else failures + 1
        if failures > retries:
            raise FetchError(
                f"'{url}' cannot be fetched: {why}, {failures} times in a row, with {_length(part):,} bytes in "
                f"'{part}'. Check the network, and run this again: it goes on from there."
            )
        wait = float(asked) if asked.isdigit() else 2.0 ** (failures - 1)
        sleep(min(wait, _LONGEST_WAIT))
    os.replace(part, path)
    _note(part).unlink(missing_ok=True)
    return path


def _attempt(url: str, part: Path, timeout: float, progress: Progress) -> None:
    """Ask for what is missing and append it; raise if less came than was announced."""
    version, have = _recall(part, url)
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
            _forget(part)
        raise ConnectionError("the server no longer has the rest of what came before") from error
    with answer:
        start, total = _extent(answer, have if "Range" in headers else 0)
        if start and total != version.total:
            _forget(part)
            raise ConnectionError(f"the file has {total} bytes now, not {version.total}")
        if not start:
            part.unlink(missing_ok=True)  # before the note says that what is there is of this version
            noted = json.dumps(asdict(_Version(url, _validator(answer), total))).encode()
            atomic_write(_note(part), lambda file: file.write(noted))
        _receive(answer, part, start, total, progress)
    if total is not None and _length(part) != total:
        raise ConnectionError(f"the connection ended after {_length(part):,} of {total:,} bytes")


def _extent(answer: Any, have: int) -> tuple[int, int | None]:
    """Where the answer begins, at `have` if the server resumes or at 0, and how long the whole is, if it says so."""
    length = answer.headers.get("Content-Length", "")
    if answer.status != 206:
        return 0, int(length) if length.isdigit() else None
    given = answer.headers.get("Content-Range", "")
    found = _RANGE.fullmatch(given)
    if not found or int(found[1]) != have:
        raise ConnectionError(f"the server sent {given!r} when asked for the bytes from {have}")
    return have, int(found[2])


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
    """What tells this content from a later one; a weak ETag is not enough to join two halves."""
    tag = answer.headers.get("ETag", "")
    strong: str | None = tag if tag.startswith('"') else answer.headers.get("Last-Modified")
    return strong


def _note(part: Path) -> Path:
    return part.with_name(part.name + ".json")


def _recall(part: Path, url: str) -> tuple[_Version, int]:
    """What the part file is the beginning of, and how much of it is there; nothing if it is of another address."""
    try:
        version = _Version(**json.loads(_note(part).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return _Version(url, None, None), 0
    if version.url != url:
        return _Version(url, None, None), 0
    return version, _length(part)


def _forget(part: Path) -> None:
    part.unlink(missing_ok=True)
    _note(part).unlink(missing_ok=True)


def _length(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0


def _refused(url: str, code: int, reason: str) -> str:
    if code in (404, 410):
        way_out = "It has moved: look for its new address, and pass that."
    elif code in (401, 403):
        way_out = "It needs permission: fetch it with a browser, and put it where it is wanted."
    else:
        way_out = "Try again later, or fetch it with a browser."
    return f"'{url}' cannot be fetched: the server answered HTTP {code} {reason}. {way_out}"
