"""Unpacking of untrusted archives: only plain files, and only inside the given folder."""

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

from sirc._utils.text import first_line
from sirc.data.catalogue.download import DownloadError
from sirc.data.decode import printable
from sirc.progress import SILENT, Progress

_DAMAGED = (tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, zlib.error, lzma.LZMAError, EOFError, ValueError)
_BLOCK = 1 << 20
_RESERVE = 10**8  # bytes of the disk that stay free


def unpack(archive: Path, members: Sequence[str], folder: Path, *, progress: Progress = SILENT) -> Path:
    """Unpack a file or folder of an archive (.tar, .tar.gz, .zip, .gz, …) below `folder`; return its path.

    Each of `members` but the last is itself an archive, which contains the next one. An archive is refused if it has a
    link, which no dataset needs, or a name that leads out of `folder`, or if it would fill the disk.
    """
    found = archive
    for number, member in enumerate(members):
        found = _unpack_member(found, member, folder / str(number), progress)
    return found


def _unpack_member(archive: Path, member: str, folder: Path, progress: Progress) -> Path:
    wanted = PurePosixPath(member).parts
    try:
        folder.mkdir(parents=True, exist_ok=True)
        room = shutil.disk_usage(folder).free - _RESERVE
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
                    while block := source.read(_BLOCK):
                        if (room := room - len(block)) < 0:
                            raise _refused(archive, f"with '{printable(name)}' it takes more room than the disk has")
                        copy.write(block)
                task.advance()
    except DownloadError:
        raise
    except RuntimeError as error:  # `zipfile` raises it for encryption, and for a compression method that it lacks
        raise _refused(archive, f"this Python cannot read it ({error})") from error
    except (*_DAMAGED, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # errors of `gzip` and `bz2` have no number
            raise DownloadError(
                f"'{printable(archive)}' cannot be unpacked into '{printable(error.filename or folder)}': "
                f"{error.strerror}. Solve that, and run this again."
            ) from error
        raise DownloadError(
            f"'{printable(archive)}' is not a complete archive ({first_line(error).rstrip(':')}). Delete it, and run "
            "this again."
        ) from error
    if not (found := folder.joinpath(*wanted)).exists():
        raise _refused(archive, f"it has no '{member}': it may be a new version")
    return found


def _files(archive: Path) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield the name of each file of an archive, in its order, with a function that opens it."""
    if archive.name.endswith(".gz") and not archive.name.endswith(".tar.gz"):
        yield archive.stem, partial(gzip.open, archive)
    elif zipfile.is_zipfile(archive) and not tarfile.is_tarfile(archive):  # a tar may end with a zip
        with zipfile.ZipFile(archive) as zipped:
            for entry in zipped.infolist():
                if stat.S_ISLNK(entry.external_attr >> 16):
                    raise _refused(archive, f"'{printable(entry.filename)}' is a link")
                if not entry.is_dir():
                    yield entry.filename, partial(zipped.open, entry)
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
