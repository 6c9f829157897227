"""Download of one file over HTTP, which can be resumed and compares the file's checksum."""

from __future__ import annotations

import errno
import hashlib
import http.client
import json
import os
import ssl
import sys
import time
import urllib.error
import urllib.request
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO, final

from sirc._utils.files import DISK_FULL, try_lock
from sirc._utils.text import quoted
from sirc._utils.written import WRITTEN
from sirc.data.decode import printable
from sirc.progress import SILENT, Progress

_BLOCK = 1 << 18
_RETRIED = {408, 425, 429, 500, 502, 503, 504}  # HTTP status codes of temporary errors
_RETRIES = 5  # without a new byte
_TIMEOUT, _LONGEST_WAIT = 30.0, 60.0  # seconds
_BEYOND_THE_END = 416
_UNWRITABLE = {errno.EROFS, errno.EACCES, errno.EPERM}  # errors of the disk: urllib wraps those of a connection


class DownloadError(OSError):
    """A file could not be downloaded or unpacked; the message says from where, why, and what to do."""


def download(url: str, path: Path, *, checksum: str = "", progress: Progress = SILENT) -> Path:
    """Download `url` to `path`, unless that file exists; return `path`.

    The bytes go to `path.part`, and the server's version of the file to `path.part.json`. A later call continues there,
    unless the file on the server has changed. If the connection is lost, the rest is requested after 1, 2, 4, …
    seconds, at most five times without a new byte. A file that differs from its `checksum`, "md5:…" or "sha256:…", is
    deleted.
    """
    if not url.startswith(("http://", "https://")):
        raise ValueError(f"an address must start with http:// or https://; got {quoted(url)}.")
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    part, notes = (path.with_name(path.name + ending) for ending in (".part", ".part.json"))
    with open(part, "ab") as file:
        lock(file, f"'{printable(path)}'")
        if path.exists():  # the process that held the lock has finished it
            return path
        if not part.exists():  # that process has deleted it
            raise _busy(f"'{printable(path)}'")
        WRITTEN.add(part.absolute())
        try:
            _receive(url, file, notes, bool(checksum), progress)
        except BaseException:
            if not file.tell():
                part.unlink()
            raise
        file.flush()
        os.fsync(file.fileno())
        if sys.platform != "win32":  # while the file is locked; Windows cannot rename an open file
            _finish(url, part, notes, path, checksum)
    if sys.platform == "win32":
        _finish(url, part, notes, path, checksum)
    return path


def _finish(url: str, part: Path, notes: Path, path: Path, checksum: str) -> None:
    """Compare the checksum of a complete file, and rename it."""
    notes.unlink(missing_ok=True)
    kind, _, expected = checksum.partition(":")
    if checksum and (found := file_digest(part, kind)) != expected:
        part.unlink()
        raise DownloadError(
            f"'{url}' must have the {kind.upper()} checksum {expected}; got {found}, so the file was deleted. It was "
            "damaged in transfer, or replaced by a new version: run this again, and if that does not help, see its web "
            "page."
        )
    os.replace(part, path)


def file_digest(path: Path, kind: str = "sha256") -> str:
    """Compute a checksum of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.new(kind, usedforsecurity=False)).hexdigest()


def remote_size(url: str) -> int | None:
    """Ask the server for the size of a file in bytes; None if it does not say."""
    with suppress(OSError, http.client.HTTPException, ValueError), _request(url, method="HEAD") as answer:
        return int(answer.headers.get("Content-Length", ""))
    return None


@final
@dataclass
class _Remote:
    """A file on a server, with its version and its size in bytes where the server gave them."""

    url: str
    version: str = ""
    total: int | None = None

    @classmethod
    def from_notes(cls, url: str, notes: Path) -> _Remote:
        """Read what an earlier call recorded about this address."""
        with suppress(OSError, ValueError, TypeError):
            remote = cls(**json.loads(notes.read_text(encoding="utf-8")))
            if remote.url == url:
                return remote
        return cls(url)


def _receive(url: str, file: BinaryIO, notes: Path, checked: bool, progress: Progress) -> None:
    """Append to `file` until it is complete, over several connections if necessary; `notes` has its version."""
    remote, failures = _Remote.from_notes(url, notes), 0
    while remote.total is None or file.tell() != remote.total:
        start, retry_after = file.tell(), ""
        try:
            _append_rest(remote, file, notes, checked, progress)
            break
        except urllib.error.HTTPError as error:
            with error:  # it holds the connection
                why, retry_after = f"HTTP {error.code} {error.reason}", error.headers.get("Retry-After", "")
            if error.code == _BEYOND_THE_END and start:
                _empty(file)
            elif error.code not in _RETRIED:
                raise DownloadError(
                    f"'{url}' cannot be fetched: the server answered {why}. Look for its new address, or fetch it with "
                    "a browser and put it into its place."
                ) from error
        except (OSError, http.client.HTTPException) as error:
            if isinstance(error, OSError) and error.errno in DISK_FULL | _UNWRITABLE:
                raise DownloadError(
                    f"the rest of '{url}' cannot be written to '{printable(notes.parent)}': {error.strerror}. "
                    f"Make {'room' if error.errno in DISK_FULL else 'it writable'}, and run this again: it continues."
                ) from error
            reason = getattr(error, "reason", None)
            if isinstance(reason, ssl.SSLCertVerificationError):
                raise DownloadError(
                    f"'{url}' cannot be fetched: the certificate of the server is not valid "
                    f"({reason.verify_message}). Check the clock and the certificates of this computer, or fetch the "
                    "file with a browser and put it into its place."
                ) from error
            why = str(reason or error or type(error).__name__)
        failures = 1 if file.tell() > start else failures + 1
        if failures > _RETRIES:
            raise DownloadError(
                f"'{url}' cannot be fetched: {why}, {failures} times in a row. Check the network, and run this "
                "again: it continues."
            )
        time.sleep(min(float(retry_after) if retry_after.isdecimal() else 2.0 ** (failures - 1), _LONGEST_WAIT))


def _append_rest(remote: _Remote, file: BinaryIO, notes: Path, checked: bool, progress: Progress) -> None:
    """Request the rest of `file`, and append it.

    It is requested from the start unless the server can tell that the first part is of the same version, or a checksum
    is compared in the end (`checked`).
    """
    start = file.tell() if remote.version or checked else 0
    headers = {"Range": f"bytes={start}-"} if start else {}
    if start and remote.version:
        headers["If-Range"] = remote.version
    with _request(remote.url, headers=headers) as answer:
        given = answer.headers
        if answer.status != 206:  # the whole file: a first request, a new version, or a server that cannot resume
            _empty(file)
            tag = given.get("ETag", "")
            # A weak ETag does not promise equal bytes.
            remote.version = tag if tag.startswith('"') else given.get("Last-Modified", "")
            size = given.get("Content-Length", "")
            remote.total = int(size) if size.isdecimal() else None
            notes.write_text(json.dumps(asdict(remote)), encoding="utf-8")
        elif not (span := given.get("Content-Range", "")).startswith(f"bytes {start}-"):
            raise ConnectionError(f"the server sent {quoted(span)} when asked from {start}")
        elif (total := span.rpartition("/")[2]).isdecimal():
            remote.total = int(total)
        with progress.task(notes.name.removesuffix(".part.json"), remote.total, done=file.tell(), unit="bytes") as task:
            while block := answer.read(_BLOCK):
                file.write(block)
                task.advance(len(block))
    if remote.total not in (None, file.tell()):
        raise ConnectionError(f"the connection ended after {file.tell():,} of {remote.total:,} bytes")


def _request(url: str, *, method: str = "GET", headers: dict[str, str] | None = None) -> Any:
    headers = {"User-Agent": "sirc", "Accept-Encoding": "identity", **(headers or {})}
    return urllib.request.urlopen(urllib.request.Request(url, headers=headers, method=method), timeout=_TIMEOUT)


def lock(file: BinaryIO, what: str) -> None:
    """Lock an open file until it is closed; raise if another process, which is fetching `what`, has it locked.

    Windows and file systems without locks do not notice another process.
    """
    if try_lock(file) is False:
        raise _busy(what)


def _busy(what: str) -> DownloadError:
    return DownloadError(f"another process is fetching {what}. Wait for it, or stop it.")


def _empty(file: BinaryIO) -> None:
    file.seek(0)
    file.truncate()
