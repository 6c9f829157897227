"""Downloads: fetch a file over HTTP whole or not at all, and resume after an interruption."""

from __future__ import annotations

import http.client
import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from sirc._utils.files import PathLike, atomic_write
from sirc.progress import SILENT, Progress

_BLOCK = 1 << 18
_RETRIED = {408, 425, 429, 500, 502, 503, 504}  # HTTP answers that may change in a moment
_LONGEST_WAIT = 60.0


class DownloadError(OSError):
    """A file could not be downloaded; the message says from where, why, and what to do."""


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
                    raise DownloadError(
                        f"'{url}' cannot be fetched: the server answered HTTP {error.code} {error.reason}. Look for "
                        "its new address, or fetch it with a browser and put it where it is wanted."
                    ) from error
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
    version, start = _version(part), _length(part)
    total: int | None = version.get("total") if version.get("url") == url else None
    if start == total:
        return
    headers = {"User-Agent": "sirc", "Accept-Encoding": "identity"}
    if total is not None and 0 < start < total and version.get("validator"):
        headers |= {"Range": f"bytes={start}-", "If-Range": version["validator"]}
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=timeout) as answer:
        given = answer.headers
        if answer.status != 206:  # other content than before, or a server that always sends all
            start, total = 0, int(given["Content-Length"]) if "Content-Length" in given else None
            part.unlink(missing_ok=True)  # before the version file describes it
            # A weak ETag is not enough to join two halves.
            validator = tag if (tag := given.get("ETag", "")).startswith('"') else given.get("Last-Modified")
            content = json.dumps({"url": url, "validator": validator, "total": total}).encode()
            atomic_write(_version_file(part), lambda file: file.write(content))
        elif total is None or given["Content-Range"] != f"bytes {start}-{total - 1}/{total}":
            raise ConnectionError(f"the server sent {given['Content-Range']!r} when asked for the bytes from {start}")
        with (
            open(part, "ab") as file,
            progress.task(part.name.removesuffix(".part"), total, done=start, unit="bytes") as task,
        ):
            while block := answer.read(_BLOCK):
                file.write(block)
                task.advance(len(block))
            file.flush()
            os.fsync(file.fileno())
    if total is not None and _length(part) != total:
        raise ConnectionError(f"the connection ended after {_length(part):,} of {total:,} bytes")


def _version_file(part: Path) -> Path:
    return part.with_name(part.name + ".json")


def _version(part: Path) -> dict[str, Any]:
    """Read the address, validator and length of the content that a part file is the beginning of, if it says so."""
    try:
        return dict(json.loads(_version_file(part).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return {}


def _length(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0
