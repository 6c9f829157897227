"""Batches from memory: all images held on the device as uint8, and augmented there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, final

import torch
from torch import Tensor

from sirc.data import Held, Holding, ImageSet, Preprocess, Unreadable
from sirc.progress import Progress
from sirc.training.augment import DeviceAugment, Normalise
from sirc.training.batches import IGNORED, Batch, Feed, Order, required_labels, unreadable

if TYPE_CHECKING:
    from sirc.training.recipe import Augment


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
        holding: Holding | None = None,
    ) -> None:
        self.order = order
        self.unreadable = set()
        device = order.share.device
        holding = holding or Holding()

        def held_set(kind: str, images: ImageSet, geometry: Preprocess) -> tuple[Held, Tensor]:
            def lose(lost: Sequence[Unreadable]) -> None:
                self.unreadable |= unreadable(kind, images, lost, skip=skip)

            found = holding.pixels(images, geometry, device=device, workers=workers, lose=lose, progress=progress)
            return found, _blank_labels(images, found)

        # A random crop is cut out of the whole image, so what is held is the image before the test-time crop.
        side = preprocess.resize if augment.crop == "resized" and isinstance(preprocess.resize, int) else None
        held = preprocess if side is None else Preprocess(side, side, preprocess.interpolation)
        images, self._labels = held_set("training", train, held)
        self._augment = DeviceAugment(augment, preprocess, images.pixels, seed=order.seed, rows=images.rows)
        self._normalise = Normalise(preprocess, device)
        self._tested: tuple[Held, Tensor, Tensor | None] | None = None
        if validation is not None:
            tested, labels = held_set("validation", validation, preprocess)
            kept = (labels != IGNORED).nonzero()[:, 0] if tested.lost else None
            self._tested = tested, labels, kept

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
        images, labels, kept = self._tested
        for block in self.order.blocks(len(images if kept is None else kept)):
            part: slice | Tensor = slice(block.start, block.stop)
            part = part if kept is None else kept[part]
            yield self._normalise(images[part]), labels[part]


def _blank_labels(images: ImageSet, held: Held) -> Tensor:
    """The labels, on the device, with `IGNORED` for what could not be read."""
    labels = required_labels(images).clone()
    labels[[item.index for item in held.lost]] = IGNORED
    return labels.to(held.pixels.device)
