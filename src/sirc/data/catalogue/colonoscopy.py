"""Colonoscopy: the paper's OOD set, made by downloading videos and writing their frames as images."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from sirc._utils.checks import check_positive
from sirc._utils.files import PathLike
from sirc._utils.imports import needing
from sirc.data.catalogue.download import download
from sirc.data.decode import printable
from sirc.errors import ImageError
from sirc.progress import SILENT, Progress

BASE = "http://www.depeca.uah.es/colonoscopy_dataset"
LESIONS = ("Hyperplasic", "Serrated", "Adenoma")
FRAMES = 12_312  # of the first ten videos of each lesion


@final
@dataclass(frozen=True)
class ColonoscopyFrames:
    """The frames of each video in `folder/images`: how many there are, and how many the paper has in all."""

    folder: Path
    frames: Mapping[str, int]
    expected: int | None

    @property
    def total(self) -> int:
        """The total number of frames."""
        return sum(self.frames.values())

    @property
    def ok(self) -> bool:
        """Whether the total is the paper's; also true if the paper gives none for this choice of videos."""
        return self.expected in (None, self.total)

    def __str__(self) -> str:
        lines = [f"{video}: {count:,} frames" for video, count in self.frames.items()]
        against = "" if self.expected is None else f" (the paper has {self.expected:,})"
        return "\n".join([*lines, f"{self.total:,} frames in '{printable(self.folder / 'images')}'{against}"])


def fetch_colonoscopy(
    folder: PathLike, *, base: str = BASE, videos: int = 10, progress: Progress = SILENT
) -> ColonoscopyFrames:
    """Fetch the first `videos` NBI videos of each lesion into `folder/videos`, and their frames into `folder/images`.

    The next call continues a stopped one: complete videos are not fetched again, and only those with missing frames are
    decoded again. An error lists the videos that cannot be decoded, after all others are done.
    """
    folder, videos = Path(folder), check_positive("videos", videos)
    _av()  # fail before the downloads, not after them
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
                _remove_frames(folder, name)  # those of a killed call, or of another version of the video
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
            "Delete those files and run this again: only they are fetched again."
        )
    return ColonoscopyFrames(folder, frames, FRAMES if videos == 10 else None)


def write_frames(video: PathLike, folder: PathLike, name: str, *, progress: Progress = SILENT) -> int:
    """Write every frame of a video as `name_00000.jpg`, …; return the number of frames.

    The format is JPEG at quality 95 with full colour. The videos are compressed already: PNG would take ten times the
    space to keep compression errors exactly.
    """
    av, folder = _av(), Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    count = 0
    try:
        with av.open(str(video)) as container, progress.task(name, None, unit="frames") as task:
            stream = container.streams.video[0]
            stream.thread_type = "AUTO"
            for frame in container.decode(stream):
                frame.to_image().save(folder / _frame(name, count), quality=95, subsampling=0)
                count += 1
                task.advance()
    except (av.error.FFmpegError, IndexError) as error:  # IndexError: a file without a video stream
        why = "it has no video stream" if isinstance(error, IndexError) else error.strerror
        raise ImageError(f"'{printable(video)}' is damaged after {count} frames ({why})") from error
    if not count:
        raise ImageError(f"'{printable(video)}' has no frames")
    return count


def _finished(folder: Path, name: str, done: Path) -> int | None:
    """Get the number of frames of a video if an earlier call wrote them all and they still exist, else None."""
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
    with needing("cutting videos into frames", "PyAV and Pillow", "video"):
        import av
        import PIL.Image  # noqa: F401
    return av
