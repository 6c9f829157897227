"""Public datasets: their files, sizes and licences, and fetching them into the data root."""

from __future__ import annotations

import json
import os
import shutil
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import final

from sirc._utils.files import PathLike, atomic_write, read_json
from sirc.data.catalogue.benchmarks import benchmark, benchmarks, unknown_name
from sirc.data.catalogue.colonoscopy import fetch_colonoscopy
from sirc.data.catalogue.download import DownloadError, download, file_digest, lock, remote_size
from sirc.data.catalogue.unpack import unpack
from sirc.data.check import check
from sirc.data.decode import printable
from sirc.progress import SILENT, Progress

WORK = ".downloads"  # below the data root: unfinished downloads, and the digests of finished ones


@final
@dataclass(frozen=True)
class RemoteFile:
    """A file to fetch: its address, and `path`, the file or folder that it becomes below the data root.

    `members` names the wanted file or folder of an archive; if that is in an archive inside the archive, it names both
    in turn. `checksum` is "md5:…" or "sha256:…", empty if none is published. `size` is in bytes.
    """

    url: str
    path: str
    members: tuple[str, ...] = ()
    checksum: str = ""
    size: int | None = None


@final
@dataclass(frozen=True)
class PublicDataset:
    """A dataset of `sirc data get`: files to fetch, or `steps` for a person if it needs an account or a click.

    `folder` is its folder below the data root, and `use` is the line for an experiment's TOML.
    """

    name: str
    title: str
    licence: str
    source: str
    use: str
    folder: str = "."
    files: tuple[RemoteFile, ...] = ()
    steps: tuple[str, ...] = ()

    @property
    def fetchable(self) -> bool:
        """Whether a program can fetch it."""
        return not self.steps

    @property
    def size(self) -> int | None:
        """The number of bytes to fetch; None if the catalogue does not know it."""
        sizes = [file.size for file in self.files if file.size is not None]
        return sum(sizes) if sizes and len(sizes) == len(self.files) else None

    def asked_size(self) -> int | None:
        """Get the number of bytes to fetch, from the server if the catalogue does not know it; None if neither does."""
        sizes = [file.size or remote_size(file.url) for file in self.files]
        return sum(filter(None, sizes)) if sizes and None not in sizes else None

    def is_in(self, root: PathLike) -> bool:
        """Whether its files are below this data root, and complete."""
        root = Path(root)
        if self.files:
            return all((root / file.path).exists() for file in self.files)
        return check(self.name, root / self.folder).ok

    def instructions(self, root: PathLike) -> str:
        """Write the steps for a person, each on a line."""
        folder = Path(root) / self.folder
        steps = [step.format(place=f"'{printable(folder)}'") for step in self.steps]
        steps.append(f"Check that nothing is missing: `sirc data check {self.name} {folder}`")
        heading = f"{self.title} must be fetched by hand ({self.licence or 'no licence stated'}):"
        return "\n".join([heading, *(f"  {number}. {step}" for number, step in enumerate(steps, 1))])


@cache
def public_datasets() -> tuple[PublicDataset, ...]:
    """List all datasets of `sirc data get`."""
    keys, datasets = {one.key for one in benchmarks()}, []
    for table in tomllib.loads(Path(__file__).with_name("datasets.toml").read_text(encoding="utf-8"))["dataset"]:
        if table["name"] in keys:
            same = benchmark(table["name"])
            table |= {"title": same.title, "licence": same.licence, "source": same.source, "folder": same.folder}
            table["use"] = f'dataset = "{same.key}"'
        files = [RemoteFile(**{**file, "members": tuple(file.get("members", ()))}) for file in table.pop("files", ())]
        datasets.append(PublicDataset(**{**table, "files": tuple(files), "steps": tuple(table.get("steps", ()))}))
    return tuple(datasets)


def public_dataset(name: str) -> PublicDataset:
    """Find a public dataset by its name; the error for another name lists them and the closest."""
    for dataset in public_datasets():
        if dataset.name == str(name).strip().lower():
            return dataset
    raise ValueError(unknown_name("`name`", name, [dataset.name for dataset in public_datasets()]))


def fetch_dataset(dataset: PublicDataset | str, root: PathLike, *, progress: Progress = SILENT) -> Mapping[str, str]:
    """Fetch a public dataset into the data root, in the layout that experiments expect; return the digest of each file.

    Existing files are kept, and the next call continues a stopped one. A file or folder appears at its place when it is
    complete. The digests, by address, are also written to `.downloads/NAME.json` below the root. It is a
    `DownloadError` if another process is fetching the dataset.
    """
    dataset = public_dataset(dataset) if isinstance(dataset, str) else dataset
    root = Path(root)
    if not dataset.fetchable:
        raise ValueError(dataset.instructions(root))
    work, record = root / WORK / dataset.name, root / WORK / f"{dataset.name}.json"
    if work.exists() or not dataset.is_in(root):  # a complete dataset may be on a read-only disk
        try:
            (root / WORK).mkdir(parents=True, exist_ok=True)
            # The lock is beside `work`, which is deleted.
            opened = open(root / WORK / f".{dataset.name}.lock", "ab")  # noqa: SIM115
        except OSError as error:
            raise DownloadError(
                f"'{printable(root)}' must be a writable folder; got: {error.strerror}. Change its permissions, or "
                "choose another folder."
            ) from error
        with opened as held:
            lock(held, f"{dataset.title} into '{printable(root)}'")
            _fetch_missing(dataset, root, work, record, progress)
    return _digests(record)


def _fetch_missing(dataset: PublicDataset, root: Path, work: Path, record: Path, progress: Progress) -> None:
    """Fetch the missing files one after the other, then delete `work`."""
    if dataset.name == "colonoscopy":
        fetch_colonoscopy(root / dataset.folder, progress=progress)
    digests, unpacked = _digests(record), work / "unpacked"
    for file in dataset.files:
        if (target := root / file.path).exists():
            continue
        shutil.rmtree(unpacked, ignore_errors=True)  # from a call that was killed
        archive = work / Path(file.url).name
        _require_room(root, file, archive)
        download(file.url, archive, checksum=file.checksum, progress=progress)
        digests[file.url] = file.checksum or f"sha256:{file_digest(archive)}"
        try:
            found = unpack(archive, file.members, unpacked, progress=progress)
            target.parent.mkdir(parents=True, exist_ok=True)
            os.replace(found, target)
        finally:
            shutil.rmtree(unpacked, ignore_errors=True)
        atomic_write(record, lambda out: out.write(json.dumps(digests, indent=1).encode()))
        archive.unlink(missing_ok=True)
    shutil.rmtree(work, ignore_errors=True)


def _digests(record: Path) -> dict[str, str]:
    return read_json(record) if record.exists() else {}


def _require_room(root: Path, file: RemoteFile, archive: Path) -> None:
    """Refuse a download if the disk has no room for it and for its unpacked files, which are about as large.

    What an earlier call has fetched needs no more room.
    """
    fetched = sum(one.stat().st_size for one in (archive, archive.with_name(archive.name + ".part")) if one.exists())
    needed = (file.size or 0) * (2 if file.members else 1) - fetched
    if (free := shutil.disk_usage(root).free) < needed:
        raise DownloadError(
            f"'{printable(root)}' must have room for {needed / 1e9:.1f} GB to fetch and unpack '{file.url}'; "
            f"{free / 1e9:.1f} GB are free. Make room, or choose another folder."
        )
