"""Images of one size decoded into uint8 on a device, by worker processes, if there is room for them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sirc.data.reading import Plan, Unreadable
from sirc.errors import ImageError

if TYPE_CHECKING:
    from sirc.data.base import ImageSet
    from sirc.data.preprocess import Preprocess
    from sirc.progress import Progress

SHARE_OF_FREE = 0.8  # of the free memory that one set may take
_BLOCK = 128  # images that a worker hands over at a time
_EACH = 256  # images for which starting another worker is worth it

Lose = Callable[[Sequence[Unreadable]], object]
"""What is told of images that cannot be read, and may raise."""


def decode(
    images: ImageSet,
    geometry: Preprocess,
    *,
    device: torch.device,
    workers: int,
    lose: Lose,
    progress: Progress,
    room: Callable[[int], None],
) -> tuple[Tensor, list[Unreadable]]:
    """All images, resized and cropped as in a test, and those that cannot be read, which are blank.

    `room` is asked for as many bytes before they are taken.
    """
    from sirc.data.preprocess import pixels

    plain = images.unlabelled().with_transform(pixels(geometry))
    whole: Tensor | None = None
    lost: list[Unreadable] = []
    # A worker that is given little costs more to start than it saves.
    plan = Plan(plain, _BLOCK, min(workers, -(-len(plain) // _EACH)))
    with progress.task(f"load {images.name}", len(plain)) as task:
        try:
            for got in plan.read([range(len(plain))], pin=device.type == "cuda"):
                lose(got.lost)
                lost += got.lost
                task.advance(len(got.index) + len(got.lost))
                if not isinstance(got.batch, Tensor):
                    continue
                if whole is None:
                    room(len(plain) * got.batch[0].numel())
                    whole = torch.zeros(len(plain), *got.batch.shape[1:], dtype=torch.uint8, device=device)
                if got.batch.shape[1:] != whole.shape[1:]:
                    raise _of_many_sizes(images.name)
                whole[_run_of(got.index, device)] = got.batch.to(device, non_blocking=True)
        except RuntimeError as error:
            if "equal size" not in str(error):
                raise
            raise _of_many_sizes(images.name) from error
    if whole is None:
        raise ImageError(f"none of the {len(plain)} images of `{images.name}` can be read. Check the path.")
    return whole, lost


def _run_of(index: Sequence[int], device: torch.device) -> slice | Tensor:
    """These places, as a slice where none is missing."""
    if index[-1] - index[0] == len(index) - 1:
        return slice(index[0], index[-1] + 1)
    return torch.tensor(index, device=device)


def _of_many_sizes(name: str) -> ValueError:
    return ValueError(
        f'`cache = "device"` needs images of one size; those of `{name}` differ. Set `preprocess.resize` and '
        "`preprocess.crop`."
    )


def check_room(needed: int, device: torch.device, name: str) -> None:
    """Refuse a set that the device has no memory for."""
    room = memory(device)[0]
    if needed > SHARE_OF_FREE * room:
        are = "are free on" if device.type == "cuda" else "is all the memory for"
        raise ValueError(
            f'`cache = "device"` needs {needed / 2**30:.1f} GiB for `{name}`; {room / 2**30:.1f} GiB {are} '
            f'{device}. Use `cache = "none"`, or a smaller `preprocess.resize`.'
        )


def memory(device: torch.device) -> tuple[float, float]:
    """Free bytes, and all there are; without end where nothing tells."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)
    try:
        total: float = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not on Windows
        total = float("inf")
    return total, total  # what the system says is free leaves out what it would give back
