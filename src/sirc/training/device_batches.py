"""Batches from the device cache: images kept on the device as uint8 and augmented there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, final

import torch
from torch import Tensor

from sirc.data import CachedImages, DeviceCache, ImageSet, Preprocess, Unreadable
from sirc.progress import Progress
from sirc.training.augment import DeviceAugment, Normalise
from sirc.training.batches import IGNORED, Batch, Batches, Order, check_unreadable, required_labels

if TYPE_CHECKING:
    from sirc.training.recipe import Augment


@final
class DeviceBatches(Batches):
    """Batches of images that are all cached on the device as uint8 and augmented there."""

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
        cache: DeviceCache | None = None,
    ) -> None:
        self.order = order
        self.unreadable = set()
        device = order.process.device
        cache = cache or DeviceCache()

        def load(kind: str, images: ImageSet, geometry: Preprocess) -> tuple[CachedImages, Tensor]:
            def count(lost: Sequence[Unreadable]) -> None:
                self.unreadable |= check_unreadable(kind, images, lost, skip=skip)

            cached = cache.pixels(
                images, geometry, device=device, workers=workers, on_unreadable=count, progress=progress
            )
            labels = required_labels(images).clone()
            labels[[item.index for item in cached.lost]] = IGNORED
            return cached, labels.to(device)

        # A random crop may be anywhere in the image, so the cache has the image before the test-time crop.
        side = preprocess.resize if augment.crop == "resized" and isinstance(preprocess.resize, int) else None
        geometry = preprocess if side is None else Preprocess(side, side, preprocess.interpolation)
        images, self._labels = load("training", train, geometry)
        self._augment = DeviceAugment(augment, preprocess, images.pixels, seed=order.seed, rows=images.rows)
        self._normalise = Normalise(preprocess, device)
        self._validation: tuple[CachedImages, Tensor, Tensor | None] | None = None
        if validation is not None:
            cached, labels = load("validation", validation, preprocess)
            readable = (labels != IGNORED).nonzero()[:, 0] if cached.lost else None
            self._validation = cached, labels, readable

    def epoch(self, epoch: int) -> Iterator[Batch]:
        """Yield the batches of an epoch."""
        self._augment.start(epoch)
        for index, total, counts in self.order.batches(epoch, self.order.process.device):
            labels = self._labels[index]
            yield Batch(self._augment(index), labels if counts else torch.full_like(labels, IGNORED), total)

    def validation(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield this process's share of the validation images, with their labels."""
        if self._validation is None:
            return
        images, labels, readable = self._validation
        for block in self.order.blocks(len(images if readable is None else readable)):
            part: slice | Tensor = slice(block.start, block.stop)
            part = part if readable is None else readable[part]
            yield self._normalise(images[part]), labels[part]
