"""Images decoded once and kept on the device, so that every network of a study is given the same ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sirc.data.decoding import SHARE_OF_FREE, Lose, check_room, decode, memory
from sirc.data.reading import Unreadable

if TYPE_CHECKING:
    from sirc.data.base import ImageSet
    from sirc.data.preprocess import Preprocess
    from sirc.progress import Progress

_SHARE_KEPT = 0.5  # of all memory that sets may take together, so that networks have the rest


@final
@dataclass(frozen=True)
class Held:
    """The images of a set as uint8 (N, 3, H, W) on the device; those that could not be read are blank."""

    pixels: Tensor
    rows: Tensor | None
    """Where each image lies in `pixels`; None if they are all of them, in order."""
    lost: tuple[Unreadable, ...]

    def __len__(self) -> int:
        return len(self.pixels if self.rows is None else self.rows)

    def __getitem__(self, part: slice | Tensor) -> Tensor:
        return self.pixels[part if self.rows is None else self.rows[part]]


@dataclass(frozen=True)
class _Decoded:
    """Some images of a set, by their numbers in it, which increase."""

    key: tuple[str, ...]
    device: torch.device
    numbers: npt.NDArray[np.int64]
    pixels: Tensor
    lost: dict[int, Unreadable]

    def has(self, key: tuple[str, ...], numbers: npt.NDArray[np.int64]) -> bool:
        return self.key == key and bool(np.isin(numbers, self.numbers, assume_unique=True).all())

    def part(self, numbers: npt.NDArray[np.int64]) -> Held:
        """These of the images, which are all here."""
        whole = len(numbers) == len(self.numbers)
        rows = None if whole else torch.from_numpy(np.searchsorted(self.numbers, numbers)).to(self.device)
        lost = []
        for number in sorted(self.lost):
            place = int(np.searchsorted(numbers, number))
            if place < len(numbers) and numbers[place] == number:
                lost.append(Unreadable(place, self.lost[number].why))
        return Held(self.pixels, rows, tuple(lost))


@final
class Holding:
    """What a study keeps of its images while it runs: the sets that were opened, and their pixels on the device.

    Pixels are known by the images they are of, how these are resized and cropped, and the device. Where memory is
    short, the set not used for longest goes. As a context manager it gives all memory back at the end.
    """

    def __init__(self) -> None:
        self._decoded: list[_Decoded] = []  # the least recently used first
        self._opened: dict[str, ImageSet] = {}

    def __enter__(self) -> Holding:
        return self

    def __exit__(self, *_: object) -> None:
        on_gpu = any(held.device.type == "cuda" for held in self._decoded)
        self._decoded.clear()
        self._opened.clear()
        if on_gpu:
            torch.cuda.empty_cache()

    def opened(self, key: str, open_it: Callable[[], ImageSet]) -> ImageSet:
        """Open a set, or give the one that was opened by this key: folders are listed once."""
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
        lose: Lose,
        progress: Progress,
    ) -> Held:
        """The images, resized and cropped by `geometry`; decoded by `workers` processes if they are not here yet."""
        if device.type == "cuda" and device.index is None:
            device = torch.device("cuda", torch.cuda.current_device())  # one name for one device
        origin, numbers = images.origin()
        shape = repr((geometry.resize, geometry.crop, geometry.interpolation))
        key = (origin.whereabouts, shape, str(device))
        found = next((held for held in reversed(self._decoded) if held.has(key, numbers)), None)
        if found is None:
            pixels, lost = decode(
                images,
                geometry,
                device=device,
                workers=workers,
                lose=lose,
                progress=progress,
                room=lambda needed: self._make_room(needed, device, images.name),
            )
            found = _Decoded(key, device, numbers, pixels, {int(numbers[item.index]): item for item in lost})
        else:
            self._decoded = [held for held in self._decoded if held is not found]
        self._decoded.append(found)
        held = found.part(numbers)
        lose(held.lost)
        return held

    def _make_room(self, needed: int, device: torch.device, name: str) -> None:
        """Let sets go that were not used for longest, until there is room; an error if there is none even then."""
        if device.type == "cuda" and needed > SHARE_OF_FREE * memory(device)[0]:
            torch.cuda.empty_cache()  # what earlier networks left is kept by torch, and does not count as free
        while (old := next((held for held in self._decoded if held.device == device), None)) is not None:
            kept = sum(held.pixels.nbytes for held in self._decoded if held.device == device)
            free, total = memory(device)
            if needed <= SHARE_OF_FREE * free and kept + needed <= _SHARE_KEPT * total:
                break
            self._decoded = [held for held in self._decoded if held is not old]
            if device.type == "cuda":
                torch.cuda.empty_cache()
        check_room(needed, device, name)
