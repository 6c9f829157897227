"""Device cache: images are decoded once and kept on the device for all networks of a study."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sirc.data.preprocess import Preprocess
from sirc.data.reading import DatasetReader, Unreadable

if TYPE_CHECKING:
    from sirc.data.base import ImageSet
    from sirc.progress import Progress

_SHARE_OF_FREE = 0.8  # of the free memory, for one set
_SHARE_OF_ALL = 0.5  # of all memory, for all sets together; networks need the rest
_BLOCK = 128  # images that a worker decodes at a time
_PER_WORKER = 256  # images for which one more worker is worth starting

OnUnreadable = Callable[[Sequence[Unreadable]], object]
"""Called with the images that could not be read; it may raise."""


@final
@dataclass(frozen=True)
class CachedImages:
    """The images of a set on the device, uint8 (N, 3, H, W); unreadable ones are black."""

    pixels: Tensor
    rows: Tensor | None
    """The row of each image in `pixels`; None if the images are all rows in order."""
    lost: tuple[Unreadable, ...]

    def __len__(self) -> int:
        return len(self.pixels if self.rows is None else self.rows)

    def __getitem__(self, part: slice | Tensor) -> Tensor:
        return self.pixels[part if self.rows is None else self.rows[part]]


@dataclass(frozen=True, eq=False)
class _Entry:
    """Some images of a set, with their numbers in it in increasing order, and why some could not be read."""

    key: tuple[str, ...]
    numbers: npt.NDArray[np.int64]
    pixels: Tensor
    lost: dict[int, str]


@final
class DeviceCache:
    """The datasets that a study has opened, and their pixels on the device.

    Pixels are kept for each combination of images, resize, crop and device. If memory is short, the least recently used
    are dropped. As a context manager, the cache frees all memory at the end.
    """

    def __init__(self) -> None:
        self._entries: list[_Entry] = []  # the least recently used first
        self._opened: dict[str, ImageSet] = {}

    def __enter__(self) -> DeviceCache:
        return self

    def __exit__(self, *_: object) -> None:
        self._entries.clear()
        self._opened.clear()
        torch.cuda.empty_cache()

    def opened(self, key: str, open_it: Callable[[], ImageSet]) -> ImageSet:
        """Open a set, or return the one already opened with this key, so that folders are listed once."""
        if key not in self._opened:
            self._opened[key] = open_it()
        return self._opened[key]

    def pixels(
        self,
        images: ImageSet,
        geometry: Preprocess,
        *,
        device: torch.device,
        workers: int,
        on_unreadable: OnUnreadable,
        progress: Progress,
    ) -> CachedImages:
        """Get the images, resized and cropped by `geometry`; `workers` processes decode them if they are not cached."""
        if device.type == "cuda" and device.index is None:
            device = torch.device("cuda", torch.cuda.current_device())  # so that the device has one name
        origin, numbers = images.origin()
        key = (origin.cache_key, repr((geometry.resize, geometry.crop, geometry.interpolation)), str(device))
        cached = [entry for entry in self._entries if entry.key == key and np.isin(numbers, entry.numbers).all()]
        if cached:
            entry = cached[-1]
            self._entries.remove(entry)
        else:
            decoded, lost = self._decode(images, geometry, device, workers, on_unreadable, progress)
            entry = _Entry(key, numbers, decoded, {int(numbers[item.index]): item.why for item in lost})
        self._entries.append(entry)
        whole = len(numbers) == len(entry.numbers)
        rows = None if whole else torch.from_numpy(np.searchsorted(entry.numbers, numbers)).to(device)
        places = np.flatnonzero(np.isin(numbers, list(entry.lost)))
        lost_here = tuple(Unreadable(int(place), entry.lost[int(numbers[place])]) for place in places)
        on_unreadable(lost_here)
        return CachedImages(entry.pixels, rows, lost_here)

    def _decode(
        self,
        images: ImageSet,
        geometry: Preprocess,
        device: torch.device,
        workers: int,
        on_unreadable: OnUnreadable,
        progress: Progress,
    ) -> tuple[Tensor, list[Unreadable]]:
        """Decode all images into one tensor, where unreadable ones are black; list the unreadable ones too."""
        plain = images.unlabelled().with_transform(geometry.pixels())
        decoded: Tensor | None = None
        lost: list[Unreadable] = []
        sizes_differ = ValueError(
            f'`cache = "device"` needs images of one size; those of `{images.name}` differ. Set `preprocess.resize` '
            "and `preprocess.crop`."
        )
        reader = DatasetReader(plain, _BLOCK, min(workers, -(-len(plain) // _PER_WORKER)), collate=torch.stack)
        with progress.task(f"load {images.name}", len(plain)) as task:
            try:
                for got in reader.read([range(len(plain))], pin=device.type == "cuda"):
                    on_unreadable(got.lost)
                    lost += got.lost
                    task.advance(len(got.index) + len(got.lost))
                    if not isinstance(got.batch, Tensor):
                        continue
                    if decoded is None:
                        self._make_room(len(plain) * got.batch[0].numel(), device, images.name)
                        decoded = torch.zeros(len(plain), *got.batch.shape[1:], dtype=torch.uint8, device=device)
                    if got.batch.shape[1:] != decoded.shape[1:]:
                        raise sizes_differ
                    decoded[torch.tensor(got.index, device=device)] = got.batch.to(device, non_blocking=True)
            except RuntimeError as error:
                if "equal size" not in str(error):
                    raise
                raise sizes_differ from error
        if decoded is None:
            raise images.none_readable()
        return decoded, lost

    def _make_room(self, needed: int, device: torch.device, name: str) -> None:
        """Drop the least recently used sets until there is room; raise if that is not enough."""
        while True:
            entries = [entry for entry in self._entries if entry.pixels.device == device]
            torch.cuda.empty_cache()  # else memory that torch keeps from earlier networks is not counted as free
            free, total = device_memory(device)
            cached = sum(entry.pixels.nbytes for entry in entries)
            if needed <= _SHARE_OF_FREE * free and (not entries or cached + needed <= _SHARE_OF_ALL * total):
                return
            if not entries:
                break
            self._entries.remove(entries[0])
        are = "are free on" if device.type == "cuda" else "is all the memory for"
        raise ValueError(
            f'`cache = "device"` needs {needed / 2**30:.1f} GiB for `{name}`; {free / 2**30:.1f} GiB {are} '
            f'{device}. Use `cache = "none"`, or a smaller `preprocess.resize`.'
        )


def device_memory(device: torch.device) -> tuple[float, float]:
    """Get the free and total bytes of a device; infinite if the system does not say."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)
    try:
        total: float = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not on Windows
        total = float("inf")
    return total, total  # the system's free memory excludes caches that it would give up
