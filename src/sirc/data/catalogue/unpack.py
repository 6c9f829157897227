"""Unpacking of archives from strangers: plain files only, and none outside the folder given."""

from __future__ import annotations

import gzip
import lzma
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from sirc.data.catalogue.download import DownloadError
from sirc.data.decode import printable
from sirc.progress import SILENT, Progress

_DAMAGED = (tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, zlib.error, lzma.LZMAError, EOFError)


def unpack(archive: Path, members: Sequence[str], folder: Path, *, progress: Progress = SILENT) -> Path:
    """Unpack a file or folder of an archive (.tar, .tar.gz, .zip, .gz, …) below `folder`; return its path.

    Each of `members` but the last is itself an archive, which has the next one. An archive with a link, or with a name
    that leads out of `folder`, is refused whole: no dataset needs one.
    """
    found = archive
    for number, member in enumerate(members):
        found = _unpack_member(found, member, folder / str(number), progress)
    return found


def _unpack_member(archive: Path, member: str, folder: Path, progress: Progress) -> Path:
    wanted = PurePosixPath(member).parts
    try:
        with progress.task(f"unpack {archive.name}", None, unit="files") as task:
            for name, open_file in _files(archive):
                path = PurePosixPath(name)
                if path.is_absolute() or ".." in path.parts or PureWindowsPath(name).drive or "\\" in name:
                    raise _refused(archive, f"'{printable(name)}' leads out of its folder")
                if path.parts[: len(wanted)] != wanted:
                    continue
                target = folder / path
                target.parent.mkdir(parents=True, exist_ok=True)
                with open_file() as source, open(target, "wb") as copy:
                    shutil.copyfileobj(source, copy, 1 << 20)
                task.advance()
    except _DAMAGED as error:
        raise DownloadError(
            f"'{printable(archive)}' is not a whole archive ({error}). Delete it, and run this again."
        ) from error
    if not (found := folder.joinpath(*wanted)).exists():
        raise _refused(archive, f"it has no '{member}': its makers may have changed it")
    return found


def _files(archive: Path) -> Iterator[tuple[str, Callable[[], Any]]]:
    """List the files of an archive in its order: the name of each, and how to open it."""
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as zipped:
            for entry in zipped.infolist():
                if stat.S_ISLNK(entry.external_attr >> 16):
                    raise _refused(archive, f"'{printable(entry.filename)}' is a link")
                if not entry.is_dir():
                    yield entry.filename, partial(zipped.open, entry)
    elif archive.name.endswith(".gz") and not archive.name.endswith(".tar.gz"):
        yield archive.stem, partial(gzip.open, archive)
    else:
        with tarfile.open(archive) as tarred:
            for member in tarred:
                if not (member.isfile() or member.isdir()):
                    raise _refused(archive, f"'{printable(member.name)}' is a link or a device")
                if member.isfile():
                    yield member.name, partial(tarred.extractfile, member)


def _refused(archive: Path, why: str) -> DownloadError:
    return DownloadError(
        f"'{printable(archive)}' is not unpacked: {why}. Look at it, and unpack by hand what you trust."
    )
