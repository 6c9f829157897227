"""Colonoscopy: download the videos of the paper's OOD set and write their frames as images."""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, final

from sirc._utils.checks import check_positive
from sirc._utils.files import PathLike, atomic_write
from sirc._utils.imports import missing_package
from sirc._utils.text import quoted
from sirc.data.decode import printable
from sirc.errors import ImageError
from sirc.progress import SILENT, Progress

BASE = "http://www.depeca.uah.es/colonoscopy_dataset"
LESIONS = ("Hyperplasic", "Serrated", "Adenoma")
FRAMES = 12_312  # of the first ten videos of each lesion
_QUALITY = 95
_BLOCK = 1 << 18
_RETRIED = {408, 425, 429, 500, 502, 503, 504}  # HTTP answers that may change in a moment
_TIMEOUT, _LONGEST_WAIT = 30.0, 60.0  # seconds


class DownloadError(OSError):
    """A file could not be downloaded; the message says from where, why, and what to do."""


@final
@dataclass(frozen=True)
class ColonoscopyFrames:
    """The frames that were written: their number for each video, in `folder/images`."""

    folder: Path
    frames: Mapping[str, int]
    expected: int | None

    @property
    def total(self) -> int:
        """The number of all frames."""
        return sum(self.frames.values())

    @property
    def ok(self) -> bool:
        """True if the number is the paper's, or if the paper has none for this choice of videos."""
        return self.expected in (None, self.total)

    def __str__(self) -> str:
        lines = [f"{video}: {count:,} frames" for video, count in self.frames.items()]
        against = "" if self.expected is None else f" (the paper has {self.expected:,})"
        return "\n".join([*lines, f"{self.total:,} frames in '{printable(self.folder / 'images')}'{against}"])


def fetch_colonoscopy(
    folder: PathLike, *, base: str = BASE, videos: int = 10, progress: Progress = SILENT
) -> ColonoscopyFrames:
    """Fetch the first `videos` NBI videos of each lesion into `folder/videos`, and their frames into `folder/images`.

    An interrupted run continues: complete videos are not fetched again, and only those with missing frames are decoded
    again. Videos that cannot be decoded are named once all others are done.
    """
    folder, videos = Path(folder), check_positive("videos", videos)
    _av()  # fail before hours of downloads, not after
    frames: dict[str, int] = {}
    broken: list[str] = []
    wanted = [(lesion, number) for lesion in LESIONS for number in range(1, videos + 1)]
    with progress.task("colonoscopy", len(wanted), unit="videos") as task:
        for lesion, number in wanted:
            case = f"{lesion.lower()}_{number:02}"
            name = f"{case}_NBI"
            done = folder / "videos" / f"{name}.json"
            count = _finished(folder, name, done)
            if count is None:
                video = folder / "videos" / f"{name}.mp4"
                url = f"{base.rstrip('/')}/{lesion}/{case}/videos/NBI.mp4"
                download(url, video, progress=progress)
                _remove_frames(folder, name)  # of a run that was killed, or of another version of the video
                try:
                    count = write_frames(video, folder / "images", name, progress=progress)
                except ImageError as error:
                    _remove_frames(folder, name)
                    broken.append(str(error))
                    continue
                done.write_text(json.dumps({"frames": count}), encoding="utf-8")
            frames[name] = count
            task.advance()
    if broken:
        raise ImageError(
            f"{len(broken)} of {len(wanted)} videos cannot be decoded: {'; '.join(broken)}. "
            "Delete those files and run this again: they are fetched anew, the others are kept."
        )
    return ColonoscopyFrames(folder, frames, FRAMES if videos == 10 else None)


def download(
    url: str,
    path: Path,
    *,
    progress: Progress = SILENT,
    retries: int = 5,
    sleep: Callable[[float], object] = time.sleep,
) -> Path:
    """Download `url` to `path`, unless it is there; return `path`.

    After a lost connection the rest is asked for, in 1, 2, 4, … seconds, at most `retries` times without a new byte.
    """
    if not url.startswith(("http://", "https://")):
        raise ValueError(f"an address must start with http:// or https://; got {quoted(url)}.")

    def fetch(file: BinaryIO) -> None:
        total: int | None = None
        validator: str | None = None
        failures = 0
        while True:
            start = file.tell()
            headers = {"User-Agent": "sirc", "Accept-Encoding": "identity"}
            if start and validator:
                headers |= {"Range": f"bytes={start}-", "If-Range": validator}
            retry_after = ""
            try:
                with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=_TIMEOUT) as answer:
                    given = answer.headers
                    if answer.status != 206:  # the first answer, other content, or a server that always sends all
                        file.seek(0)
                        file.truncate()
                        total = int(given["Content-Length"]) if "Content-Length" in given else None
                        # A weak ETag is not enough to join two halves.
                        tag = given.get("ETag", "")
                        validator = tag if tag.startswith('"') else given.get("Last-Modified")
                    elif not given.get("Content-Range", "").startswith(f"bytes {start}-"):
                        raise ConnectionError(
                            f"the server sent {quoted(given['Content-Range'])} when asked from {start}"
                        )
                    with progress.task(path.name, total, done=file.tell(), unit="bytes") as task:
                        while block := answer.read(_BLOCK):
                            file.write(block)
                            task.advance(len(block))
                if total in (None, file.tell()):
                    return
                why = f"the connection ended after {file.tell():,} of {total:,} bytes"
            except urllib.error.HTTPError as error:
                with error:  # it holds the connection
                    why, retry_after = f"HTTP {error.code} {error.reason}", error.headers.get("Retry-After", "")
                if error.code not in _RETRIED:
                    raise DownloadError(
                        f"'{url}' cannot be fetched: the server answered {why}. Look for its new address, or fetch it "
                        "with a browser and put it where it is wanted."
                    ) from error
            except (OSError, http.client.HTTPException) as error:
                why = str(getattr(error, "reason", None) or error or type(error).__name__)
            failures = 1 if file.tell() > start else failures + 1
            if failures > retries:
                raise DownloadError(
                    f"'{url}' cannot be fetched: {why}, {failures} times in a row. Check the network, and run this "
                    "again."
                )
            wait = float(retry_after) if retry_after.isdigit() else 2.0 ** (failures - 1)
            sleep(min(wait, _LONGEST_WAIT))

    if not path.exists():
        atomic_write(path, fetch)
    return path


def write_frames(video: PathLike, folder: PathLike, name: str, *, progress: Progress = SILENT) -> int:
    """Write every frame of a video as `name_00000.jpg`, …; return how many there are.

    JPEG at quality 95 with full colour: the videos are compressed already, so PNG would take ten times the space to
    keep compression errors exactly.
    """
    av, folder = _av(), Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    count = 0
    try:
        with av.open(str(video)) as container, progress.task(name, None, unit="frames") as task:
            stream = container.streams.video[0]
            stream.thread_type = "AUTO"
            for frame in container.decode(stream):
                frame.to_image().save(folder / _frame(name, count), quality=_QUALITY, subsampling=0)
                count += 1
                task.advance()
    except (av.error.FFmpegError, IndexError) as error:  # IndexError: a file without a video stream
        why = "it has no video stream" if isinstance(error, IndexError) else error.strerror
        raise ImageError(f"'{printable(video)}' is damaged after {count} frames ({why})") from error
    if not count:
        raise ImageError(f"'{printable(video)}' has no frames")
    return count


def _finished(folder: Path, name: str, done: Path) -> int | None:
    """The number of frames of a video, if an earlier run wrote them all and they are still there."""
    try:
        count = int(json.loads(done.read_text(encoding="utf-8"))["frames"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    there = {file.name for file in (folder / "images").glob(f"{name}_*.jpg")}
    return count if there == {_frame(name, number) for number in range(count)} else None


def _remove_frames(folder: Path, name: str) -> None:
    for file in (folder / "images").glob(f"{name}_*.jpg"):
        file.unlink()


def _frame(name: str, number: int) -> str:
    return f"{name}_{number:05}.jpg"


def _av() -> Any:
    try:
        import av
        import PIL.Image  # noqa: F401
    except ImportError as error:
        raise missing_package("cutting videos into frames", "PyAV and Pillow", "video") from error
    return av
