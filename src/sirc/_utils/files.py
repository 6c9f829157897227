"""Files: atomic writes, safetensors with checksums, `.npz` without pickle, JSON."""

import errno
import hashlib
import json
import os
import platform
import re
import secrets
import struct
import sys
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from sirc._utils.arrays import bytes_of
from sirc._utils.checks import check_path
from sirc._utils.text import first_line, quoted, shorten
from sirc._utils.written import WRITTEN
from sirc.errors import StoreError

if sys.platform != "win32":
    import fcntl

PathLike: TypeAlias = str | os.PathLike[str]
_DIGEST = "sha256"
_MUCH = 1 << 24  # bytes
DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""Error numbers of a full disk or quota."""
_TEMPORARY = re.compile(r"\..+?\.(?:([0-9a-f]{8})-)?\d+-[0-9a-f]{8}\.tmp")  # the group is the computer's name
_SWEPT: set[Path] = set()  # folders that this process has swept
_CODES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


def atomic_write(path: PathLike, writer: Callable[[BinaryIO], object]) -> None:
    """Let `writer` fill a file that appears at `path` whole or not at all; make its folder if need be.

    The data go to a temporary file in the same folder, which is synced and renamed to `path`. After a kill or a power
    cut the old file is still there, beside a temporary one that the next process deletes.
    """
    path = Path(path)
    temporary = _temporary_name(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        while (opened := _open_locked(temporary)) is None:
            temporary = _temporary_name(path)
        with opened as file:
            _sweep_folder(path.parent.absolute(), now=os.fstat(file.fileno()).st_mtime)
            writer(file)
            file.flush()
            os.fsync(file.fileno())
            if sys.platform != "win32":  # while it is locked; Windows cannot rename an open file
                os.replace(temporary, path)
        if sys.platform == "win32":
            os.replace(temporary, path)
    except BaseException as error:
        with suppress(OSError):
            temporary.unlink()
        # The error of a full disk names no file, and users do not know the temporary file.
        if isinstance(error, OSError) and (
            error.errno in DISK_FULL or _TEMPORARY.fullmatch(Path(str(error.filename)).name)
        ):
            text = f"'{path}' cannot be written: {error.strerror}. Repair that, or choose another path"
            raise OSError(error.errno, text) from error
        raise
    WRITTEN.add(path.absolute())
    if sys.platform != "win32":  # the rename must survive a power cut; Windows needs no such call
        handle = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def keep_text(path: PathLike, text: str) -> None:
    """Write a file unless it already holds this text: a finished result is not touched, and may be read-only."""
    data = text.encode()
    with suppress(FileNotFoundError, NotADirectoryError):
        if Path(path).read_bytes() == data:
            return
    atomic_write(path, lambda file: file.write(data))


@cache
def _computer() -> str:
    """A short name of this computer until it restarts: processes with the same name see each other's locks."""
    try:
        name = Path("/proc/sys/kernel/random/boot_id").read_bytes()  # containers share the kernel, and so this
    except OSError:
        name = os.fsencode(platform.node())
    return hashlib.sha256(name).hexdigest()[:8]


def _temporary_name(path: Path) -> Path:
    # Not `tempfile`, whose files only the owner can read, even after the rename.
    return path.with_name(f".{path.name}.{_computer()}-{os.getpid()}-{secrets.token_hex(4)}.tmp")


def _open_locked(temporary: Path) -> BinaryIO | None:
    """Make a file that is locked until it is closed, which tells other processes that its writer is alive.

    None if another process deleted it before it was locked.
    """
    file = open(temporary, "xb")  # noqa: SIM115
    if sys.platform != "win32":
        with suppress(OSError):  # without locks, nothing is swept
            fcntl.flock(file, fcntl.LOCK_EX)
        if not temporary.exists():
            file.close()
            return None
    return file


def _sweep_folder(folder: Path, now: float) -> None:
    """Delete the temporary files that killed writers left in a folder; a process does so once for each folder.

    The locks of other computers may not show here, so their files are deleted only if nobody has written to them for a
    minute; until then the folder is swept at each write. `now` is the time by the clock of the file system, which may
    differ from that of this computer.
    """
    if folder in _SWEPT:
        return
    _SWEPT.add(folder)
    for file in folder.glob(".*.tmp"):
        if (name := _TEMPORARY.fullmatch(file.name)) is None:
            continue
        with suppress(OSError):  # on Windows, a living writer has its file open
            if name[1] != _computer() and file.stat().st_mtime > now - 60:
                _SWEPT.discard(folder)
                continue
            if sys.platform == "win32":
                file.unlink()
                continue
            with open(file, "r+b") as handle:
                if try_lock(handle):
                    file.unlink()


def try_lock(file: BinaryIO) -> bool | None:
    """Lock an open file until it is closed, and return True.

    False if another process has locked it; None on Windows and on file systems without locks.
    """
    if sys.platform == "win32":
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return False if error.errno in (errno.EAGAIN, errno.EACCES) else None  # NFS may answer with the second
    return True


def refuse_existing(path: PathLike, overwrite: bool, *, folder: bool = False) -> None:
    """Refuse to replace an existing file without `overwrite`; refuse a folder in any case, unless one is written."""
    path = check_path("path", path)
    if path.is_dir() and not folder:
        raise IsADirectoryError(f"'{path}' is a folder. Give the path of a file.")
    if not overwrite and path.exists():
        raise FileExistsError(f"'{path}' exists already. Pass `overwrite=True` to replace it.")


def write_safetensors(
    path: PathLike, tensors: Mapping[str, Tensor], metadata: Mapping[str, str], *, overwrite: bool = False
) -> None:
    """Write tensors and their checksum into one safetensors file; equal content gives equal bytes.

    The safetensors library would write metadata in random order and, before 0.8, first copy every tensor.
    """
    refuse_existing(path, overwrite)
    for name, tensor in tensors.items():
        if tensor.dtype not in _CODES:
            known = ", ".join(_CODES.values())
            raise ValueError(f"`{name}` must have a dtype among {known}; got {tensor.dtype}. Convert it first.")
    # Widest first, so that every tensor starts at a multiple of its item size, as memory mapping needs; then by name.
    names = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    buffers = {name: tensors[name].detach().cpu().contiguous() for name in names}
    described: dict[str, object] = {}
    end = 0
    for name, buffer in buffers.items():
        start, end = end, end + buffer.nbytes
        described[name] = {**_describe(tensors[name]), "data_offsets": [start, end]}

    def header(digest: str) -> bytes:
        content = {"__metadata__": {**metadata, _DIGEST: digest}, **described}
        text = json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        return struct.pack("<Q", len(text)) + text

    def write(file: BinaryIO) -> None:
        if end <= _MUCH:
            file.write(header(content_digest(buffers, metadata)))
            file.writelines(map(bytes_of, buffers.values()))
            return
        with ThreadPoolExecutor(1) as pool:  # computes the checksum of large data while they are written
            digest = pool.submit(content_digest, buffers, metadata)
            file.write(header("0" * 64))
            file.writelines(map(bytes_of, buffers.values()))
            file.flush()
            os.fsync(file.fileno())
            file.seek(0)
            file.write(header(digest.result()))

    atomic_write(path, write)


def read_safetensors(
    path: PathLike, *, verify: bool = True, foreign: bool = False
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors of a file, as memory-mapped views, and its metadata without the checksum.

    `verify` reads everything once to compare the checksum. `foreign` accepts files of other programs, which have none.
    The mapping is private: writing to a tensor does not change the file.
    """
    require_file(path)
    inode = os.stat(path).st_ino
    with _opened(path) as file:
        metadata: dict[str, str] = dict(file.metadata() or {})
        tensors: dict[str, Tensor] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    written = metadata.pop(_DIGEST, None)
    if written is None and not foreign:
        raise damaged(path, "it has no checksum, so sirc did not write it")
    if verify and written not in (None, content_digest(tensors, metadata)):
        if os.stat(path).st_ino != inode:  # replaced between the two times that safetensors opens it
            return read_safetensors(path, verify=verify, foreign=foreign)
        raise damaged(path, "its content does not match its checksum")
    return tensors, metadata


def read_metadata(path: PathLike) -> dict[str, str]:
    """The metadata in the header of a file, without the checksum: quick, but not verified."""
    with _opened(path) as file:
        return {key: value for key, value in (file.metadata() or {}).items() if key != _DIGEST}


def read_checksum(path: PathLike) -> str | None:
    """The checksum in the header of a file."""
    with _opened(path) as file:
        return dict(file.metadata() or {}).get(_DIGEST)


def tensor_places(path: PathLike) -> dict[str, tuple[int, int]]:
    """The first byte of each tensor in a safetensors file, and the byte after its last; nothing is verified."""
    with open(path, "rb") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(size))
    described = {name: about["data_offsets"] for name, about in header.items() if name != "__metadata__"}
    return {name: (8 + size + start, 8 + size + end) for name, (start, end) in described.items()}


def is_npz(path: PathLike, what: str, hint: str = "") -> bool:
    """Whether a path ends in `.npz`; it must end in that or in `.safetensors`."""
    suffix = check_path("path", path).suffix
    if suffix not in (".npz", ".safetensors"):
        raise ValueError(
            f"a path for {what} must end in `.npz` or `.safetensors`; got {quoted(str(path))}. {hint}".rstrip()
        )
    return suffix == ".npz"


def write_npz(path: PathLike, tensors: Mapping[str, Tensor], *, overwrite: bool = False) -> None:
    """Write tensors for NumPy users, uncompressed."""
    refuse_existing(path, overwrite)
    for name, tensor in tensors.items():
        if tensor.dtype == torch.bfloat16:
            raise ValueError(
                f"`.npz` must hold types NumPy knows; `{name}` is bfloat16. "
                "Save as `.safetensors`, or convert with `.to(dtype=torch.float32)`."
            )
    arrays: dict[str, Any] = {name: tensor.detach().cpu().numpy() for name, tensor in tensors.items()}
    atomic_write(path, lambda file: np.savez(file, **arrays))


def read_npz(path: PathLike, names: Iterable[str]) -> dict[str, npt.NDArray[Any]]:
    """Read the arrays of these names, of which only the first must exist. Pickled objects are never read."""
    required, *optional = names
    with _opened_npz(path) as archive:
        require_array(path, required, archive.files)
        return {name: archive[name] for name in (required, *optional) if name in archive.files}


def array_names(path: PathLike) -> set[str]:
    """The names of the arrays in a `.npz` file."""
    with _opened_npz(path) as archive:
        return set(archive.files)


@contextmanager
def _opened_npz(path: PathLike) -> Iterator[Any]:
    require_file(path)
    try:
        with open(path, "rb") as file:  # NumPy leaves it open when it fails
            if file.read(6) == b"\x93NUMPY":
                raise ValueError("it holds a single array")
            if not zipfile.is_zipfile(file):
                raise ValueError("it is not an archive such as `np.savez` writes, or its end is missing")
            file.seek(0)
            yield np.load(file, allow_pickle=False)
    except StoreError:
        raise
    except (ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        if "Object arrays" in str(error):
            raise StoreError(
                f"'{path}' must hold plain numbers; got an array of Python objects, which is never read because it can "
                "run code. Save it with `np.savez(path, logits=logits.astype('float32'))`."
            ) from error
        raise damaged(path, f"not a whole .npz file ({error})") from error


def require_array(path: PathLike, name: str, found: Collection[str]) -> None:
    """Require an array in a file; the error lists the arrays that it has."""
    if name not in found:
        raise StoreError(
            f"'{path}' must have an array named `{name}`; it has {listed_arrays(found)}. Rename the array."
        )


def listed_arrays(names: Collection[str]) -> str:
    """The names of what a file holds, for error messages."""
    return shorten(", ".join(f"`{name}`" for name in sorted(names))) or "nothing"


def require_file(path: PathLike) -> None:
    """Require an existing file."""
    if Path(path).is_dir():
        raise FileNotFoundError(f"there is no file '{path}': it is a folder.")
    if not Path(path).is_file():
        is_network = str(path).startswith(("timm:", "torchvision:"))
        swapped = ": it is the name of a network. Were two arguments swapped?" if is_network else "."
        raise FileNotFoundError(f"there is no file '{path}'{swapped}")


def read_json(path: PathLike, text: str | bytes | None = None) -> dict[str, Any]:
    """The JSON object in a file, or in a `text` read from it; anything else is a `StoreError`."""
    try:
        value: object = json.loads(Path(path).read_bytes() if text is None else text)
    except (ValueError, RecursionError) as error:
        why = "it nests too deeply" if isinstance(error, RecursionError) else first_line(error)
        raise damaged(path, f"not whole JSON ({why})") from error
    if not isinstance(value, dict):
        raise damaged(path, f"it must hold a JSON object, not a {type(value).__name__}")
    return value


def read_header(path: PathLike, metadata: Mapping[str, str], what: str, version: int) -> dict[str, Any]:
    """The JSON header in the metadata of a saved `what`, such as "scorer"; it must have this version."""
    header, name = read_json(path, metadata.get("sirc", "{}")), what.split()[0]
    if header.get("format") != f"sirc-{name}":
        raise StoreError(f"'{path}' is not a saved {what}: write one with `{name}.save(path)`")
    if (written := header.get("version")) != version:
        raise StoreError(
            f"'{path}' has {what} format {shorten(str(written))} and this version of sirc reads {version}: use the "
            "version that wrote it, or make and save it again"
        )
    return header


@contextmanager
def _opened(path: PathLike) -> Iterator[Any]:
    require_file(path)
    try:
        with safe_open(os.fspath(path), framework="pt") as file:
            yield file
    except (SafetensorError, OSError, RuntimeError, ValueError) as error:
        raise damaged(path, f"not a whole safetensors file ({error})") from error


def damaged(path: PathLike, why: str) -> StoreError:
    """The error for a file whose content is not what sirc wrote."""
    return StoreError(f"'{path}' cannot be trusted: {why}. If sirc wrote it, delete it and run again what made it.")


def _describe(tensor: Tensor) -> dict[str, object]:
    # A damaged header can name a dtype that sirc never writes: a wrong checksum, not a KeyError.
    return {"dtype": _CODES.get(tensor.dtype, "unknown"), "shape": list(tensor.shape)}


def content_digest(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> str:
    """The checksum of a file's tensors and metadata."""
    described = {name: _describe(tensor) for name, tensor in tensors.items()}
    digest = hashlib.sha256(json.dumps([dict(metadata), described], sort_keys=True).encode())
    for name in sorted(tensors):
        digest.update(bytes_of(tensors[name]))
    return digest.hexdigest()
