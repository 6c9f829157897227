"""The batches of an epoch, the same for any number of processes, read from files as each is needed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, final

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler, default_collate

from sirc.data import UNREADABLE, ImageSet, Preprocess, Unreadable, is_fatal, pixels, usable_workers
from sirc.errors import ImageError
from sirc.training.augment import Normalise, crop_size, random_key, training_transform

if TYPE_CHECKING:
    from PIL.Image import Image

    from sirc.training.recipe import Augment

IGNORED = -100  # the label that cross-entropy leaves out

_Item: TypeAlias = tuple["Tensor | Unreadable", int]
_Stack: TypeAlias = tuple["Tensor | None", "Tensor | None", list[Unreadable]]


@dataclass(frozen=True)
class Batch:
    """This process's share of one global batch, which has `total` images over all processes."""

    images: Tensor
    labels: Tensor
    total: int


@dataclass(frozen=True)
class Share:
    """Which part of the work is whose."""

    rank: int
    world: int
    device: torch.device


@final
@dataclass(frozen=True)
class Order:
    """The order of the images in each epoch, cut into global batches; process r takes every world-th from r."""

    count: int
    batch_size: int
    seed: int
    share: Share

    def __len__(self) -> int:
        return -(-self.count // self.batch_size)

    def batches(self, epoch: int, device: torch.device | str = "cpu") -> Iterator[tuple[Tensor, int, bool]]:
        """The indices of each share, the size of its global batch, and whether the share counts.

        A last batch with fewer images than processes leaves some with none: they take one that does not count.
        """
        generator = torch.Generator().manual_seed(random_key("order", self.seed, epoch))
        order = torch.randperm(self.count, generator=generator).to(device)
        for start in range(0, self.count, self.batch_size):
            whole = order[start : start + self.batch_size]
            mine = whole[self.share.rank :: self.share.world]
            yield (mine, len(whole), True) if len(mine) else (whole[:1], len(whole), False)

    def blocks(self, count: int) -> list[range]:
        """This process's share of `count` validation images: every world-th block of them."""
        size, world = max(1, self.batch_size // self.share.world), self.share.world
        return [range(start, min(start + size, count)) for start in range(self.share.rank * size, count, world * size)]


class Feed(ABC):
    """Where a training loop gets its batches from, and which images this process could not read in this epoch."""

    order: Order
    unreadable: set[str]

    @abstractmethod
    def epoch(self, epoch: int) -> Iterator[Batch]:
        """The batches of an epoch."""

    @abstractmethod
    def validation(self) -> Iterator[tuple[Tensor, Tensor]]:
        """This process's share of the validation images, with their labels."""


@final
class LoaderFeed(Feed):
    """Images read and augmented by worker processes, as each batch is needed; normalised on the device."""

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
    ) -> None:
        self.order = order
        self.unreadable = set()
        self._skip = skip
        self._train = train
        self._normalise = Normalise(preprocess, order.share.device)
        self._batches = _EpochBatches(order)
        blank = torch.zeros(input_shape(train, augment, preprocess), dtype=torch.uint8)
        dataset = _Augmented(train, training_transform(augment, preprocess), order.seed)
        self._loader = self._loading(dataset, self._batches, partial(_stacked, blank=blank), workers)
        self._validation: tuple[ImageSet, DataLoader[Any]] | None = None
        if validation is not None:
            blocks = [list(block) for block in order.blocks(len(validation))]
            tested = _Tested(validation, pixels(preprocess))
            self._validation = validation, self._loading(tested, blocks, _stacked, workers)

    def _loading(
        self, dataset: Dataset[Any], batches: Any, collate: Callable[[Sequence[_Item]], _Stack], workers: int
    ) -> DataLoader[Any]:
        return DataLoader(
            dataset,
            batch_sampler=batches,
            num_workers=usable_workers(workers),
            collate_fn=collate,
            persistent_workers=workers > 0,
            pin_memory=self.order.share.device.type == "cuda",
            generator=torch.Generator(),  # so that loading takes no numbers from the network's dropout
        )

    def epoch(self, epoch: int) -> Iterator[Batch]:
        """The batches of an epoch; workers see the epoch in what they are asked for."""
        self.unreadable.clear()
        self._batches.epoch = epoch
        sizes = (total for _, total, _ in self.order.batches(epoch))
        for (images, labels, lost), total in zip(self._loader, sizes, strict=True):
            self.unreadable |= unreadable("training", self._train, lost, skip=self._skip)
            yield Batch(*self._placed(images, labels), total)

    def validation(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Every world-th block of the validation images."""
        if self._validation is None:
            return
        whole, loader = self._validation
        for images, labels, lost in loader:
            self.unreadable |= unreadable("validation", whole, lost, skip=self._skip)
            if images is not None:
                yield self._placed(images, labels)

    def _placed(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        device = self.order.share.device
        return self._normalise(images.to(device, non_blocking=True)), labels.to(device, non_blocking=True)


def required_labels(images: ImageSet) -> Tensor:
    """The labels of a set to train on or to test with."""
    if images.labels is None:
        raise ValueError(f"training needs labels; `{images.name}` has none. Use a folder for each class.")
    return images.labels


def input_shape(images: ImageSet, augment: Augment, preprocess: Preprocess) -> tuple[int, int, int]:
    """(3, H, W) of what the network is trained on; where the settings leave it open, the first image tells."""
    if augment.crop != "none" and preprocess.size is not None:
        height, width = crop_size(preprocess)
        return 3, height, width
    shape = pixels(preprocess)
    for index in range(len(images)):
        try:
            _, height, width = shape(images.image(index)).shape
        except UNREADABLE:
            continue
        return 3, height, width
    raise ImageError(f"none of the {len(images)} images of `{images.name}` can be read. Check the path.")


def unreadable(kind: str, images: ImageSet, lost: Sequence[Unreadable], *, skip: bool) -> set[str]:
    """Words for each image that could not be read; an error unless such images are skipped.

    Where the machine failed and not the image, it is an error always.
    """
    words = set()
    for item in lost:
        where = images.where(item.index)
        why = item.why if where in item.why else f"{where}: {item.why}"
        if not skip or item.fatal:
            instead = (
                "" if item.fatal else ' Or set `on_error = "skip"` in [train], which counts and names such images.'
            )
            raise ImageError(f"every {kind} image must be readable; {why}{instead}")
        words.add(f"{kind}: {why}")
    return words


@final
class _EpochBatches(Sampler[list[tuple[int, int, bool]]]):
    """What a loader asks its dataset for: (epoch, index, whether it counts)."""

    def __init__(self, order: Order) -> None:
        self.order = order
        self.epoch = 0

    def __iter__(self) -> Iterator[list[tuple[int, int, bool]]]:
        for index, _, counts in self.order.batches(self.epoch):
            yield [(self.epoch, i, counts) for i in index.tolist()]

    def __len__(self) -> int:
        return len(self.order)


@final
class _Augmented(Dataset[_Item]):
    """Training images and labels; all randomness comes from (seed, epoch, index)."""

    def __init__(self, images: ImageSet, transform: Callable[[Image], Tensor], seed: int) -> None:
        self.images = images
        self.labels = required_labels(images)
        self.transform = transform
        self.seed = seed

    def __getitem__(self, key: tuple[int, int, bool]) -> _Item:
        epoch, index, counts = key
        state = torch.default_generator.get_state()
        try:
            # Not torch.manual_seed, which would seed the GPU as well.
            torch.default_generator.manual_seed(random_key("image", self.seed, epoch, index))
            x = _read(self.images, index, self.transform)
        finally:
            torch.default_generator.set_state(state)
        return x, int(self.labels[index]) if counts else IGNORED


@final
class _Tested(Dataset[_Item]):
    """Validation images and labels."""

    def __init__(self, images: ImageSet, transform: Callable[[Image], Tensor]) -> None:
        self.images = images
        self.labels = required_labels(images)
        self.transform = transform

    def __getitem__(self, index: int) -> _Item:
        return _read(self.images, index, self.transform), int(self.labels[index])


def _read(images: ImageSet, index: int, transform: Callable[[Image], Tensor]) -> Tensor | Unreadable:
    try:
        image = images.image(index)
    except UNREADABLE as error:
        return Unreadable(index, str(error) or type(error).__name__, is_fatal(error))
    return transform(image)


def _stacked(items: Sequence[_Item], blank: Tensor | None = None) -> _Stack:
    """Batches of what could be read, and what could not; that is left out, or becomes blank with an ignored label."""
    kept: list[tuple[Tensor, int]] = []
    lost: list[Unreadable] = []
    for x, label in items:
        if not isinstance(x, Unreadable):
            kept.append((x, label))
            continue
        lost.append(x)
        if blank is not None:
            kept.append((blank, IGNORED))
    images, labels = default_collate(kept) if kept else (None, None)
    return images, labels, lost
