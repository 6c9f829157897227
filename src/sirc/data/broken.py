"""Decodes every image of a dataset, in several processes if asked, and tells which cannot be read."""

import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from itertools import islice
from pathlib import Path

from sirc.data.decode import FIND_ALL, read_image
from sirc.data.file_names import Names
from sirc.errors import ImageError
from sirc.progress import Progress

_CHUNK = 64
_WINDOW = 16  # chunks waiting for each process, so that millions of names are not all in the queue


def broken_images(root: Path, names: Names, *, workers: int, progress: Progress) -> list[str]:
    """What is wrong with each image that cannot be decoded, in order; `workers=0` decodes in this process."""
    chunks = _chunks(root, names)
    found: list[str] = []
    # Spawned, not forked: torch and PIL have threads, which a fork would cut off in the middle.
    spawn = multiprocessing.get_context("spawn")
    with (
        ProcessPoolExecutor(workers, mp_context=spawn) if workers else nullcontext() as pool,
        progress.task("decode", len(names)) as task,
    ):
        while window := list(islice(chunks, _WINDOW * max(1, workers))):
            for chunk, bad in zip(window, pool.map(_broken, window) if pool else map(_broken, window), strict=True):
                found += bad
                task.advance(len(chunk))
    return found


def _chunks(root: Path, names: Names) -> Iterator[list[Path]]:
    for start in range(0, len(names), _CHUNK):
        yield [root / names[i] for i in range(start, min(start + _CHUNK, len(names)))]


def _broken(paths: list[Path]) -> list[str]:
    bad = []
    for path in paths:
        try:
            read_image(path)
        except ImageError as error:
            bad.append(str(error).removesuffix(FIND_ALL))
    return bad
