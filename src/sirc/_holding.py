"""Batches from memory: all images held on the device as uint8, and augmented there."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, final

import torch
from torch import Tensor

from sirc._feeding import IGNORED, Batch, Feed, Order, pixels, required_labels, unreadable
from sirc._reading import Plan
from sirc.augment import DeviceAugment, Normalise
from sirc.data.base import ImageSet
from sirc.errors import ImageError
from sirc.preprocess import Preprocess
from sirc.progress import Progress

if TYPE_CHECKING:
    from sirc.experiment import Augment

_SHARE_OF_MEMORY = 0.8


@final
class DeviceFeed(Feed):
    """All images held on the device as uint8, and augmented there."""

    def __init__(
        self,
        train: ImageSet,
        validation: ImageSet | None,
        order: Order,
        augment: Augment,
        preprocess: Preprocess,
        *,
        workers: int,
        skip: bool,
        progress: Progress,
    ) -> None:
        self.order = order
        device = order.share.device
        # A random crop is cut out of the whole image, so what is held is the image before the test-time crop.
        side = preprocess.resize if augment.crop == "resized" and isinstance(preprocess.resize, int) else None
        held = preprocess if side is None else Preprocess(side, side, preprocess.interpolation)
        loaded = partial(hold, device=device, workers=workers, skip=skip, progress=progress)
        images, self._labels, self.unreadable = loaded("training", train, held)
        self._augment = DeviceAugment(augment, preprocess, images, seed=order.seed)
        self._normalise = Normalise(preprocess, device)
        self._tested: tuple[Tensor, Tensor] | None = None
        if validation is not None:
            images, labels, lost = loaded("validation", validation, preprocess)
            self.unreadable |= lost
            kept = labels != IGNORED
            self._tested = (images[kept], labels[kept]) if lost else (images, labels)

    def epoch(self, epoch: int) -> Iterator[Batch]:
        """The batches of an epoch."""
        self._augment.start(epoch)
        for index, total, counts in self.order.batches(epoch, self.order.share.device):
            labels = self._labels[index]
            yield Batch(self._augment(index), labels if counts else torch.full_like(labels, IGNORED), total)

    def validation(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Every world-th block of the validation images."""
        if self._tested is None:
            return
        images, labels = self._tested
        for block in self.order.blocks(len(images)):
            part = slice(block.start, block.stop)
            yield self._normalise(images[part]), labels[part]


def hold(
    kind: str,
    images: ImageSet,
    preprocess: Preprocess,
    *,
    device: torch.device,
    workers: int,
    skip: bool,
    progress: Progress,
) -> tuple[Tensor, Tensor, set[str]]:
    """All images as uint8 on the device, resized and cropped as in a test, their labels, what could not be read.

    With `skip` an image that cannot be read is blank, and its label `IGNORED`.
    """
    labels = required_labels(images).clone()
    plain = images.unlabelled().with_transform(pixels(preprocess))
    whole: Tensor | None = None
    lost: set[str] = set()
    with progress.task(f"load {images.name}", len(plain)) as task:
        try:
            for got in Plan(plain, 256, workers).read([range(len(plain))], pin=device.type == "cuda"):
                lost |= unreadable(kind, images, got.lost, skip=skip)
                labels[[item.index for item in got.lost]] = IGNORED
                task.advance(len(got.index) + len(got.lost))
                if not isinstance(got.batch, Tensor):
                    continue
                if whole is None:
                    _check_room(len(plain) * got.batch[0].numel(), device, images.name)
                    whole = torch.zeros(len(plain), *got.batch.shape[1:], dtype=torch.uint8, device=device)
                if got.batch.shape[1:] != whole.shape[1:]:
                    raise _of_many_sizes(images.name)
                whole[torch.tensor(got.index, device=device)] = got.batch.to(device, non_blocking=True)
        except RuntimeError as error:
            if "equal size" not in str(error):
                raise
            raise _of_many_sizes(images.name) from error
    if whole is None:
        raise ImageError(f"none of the {len(plain)} images of `{images.name}` can be read. Check the path.")
    return whole, labels.to(device), lost


def _of_many_sizes(name: str) -> ValueError:
    return ValueError(
        f'`cache = "device"` needs images of one size; those of `{name}` differ. Set `preprocess.resize` and '
        "`preprocess.crop`."
    )


def _check_room(needed: int, device: torch.device, name: str) -> None:
    if device.type == "cuda":
        room = torch.cuda.mem_get_info(device)[0]
        if needed > _SHARE_OF_MEMORY * room:
            raise ValueError(
                f'`cache = "device"` needs {needed / 2**30:.1f} GiB for `{name}`; {room / 2**30:.1f} GiB are free on '
                f'{device}. Use `cache = "none"`, or a smaller `preprocess.resize`.'
            )
