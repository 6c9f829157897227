"""Training batches: the same for any number of processes, read from files by workers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, final

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler, default_collate

from sirc.data import READ_ERRORS, ImageSet, Preprocess, Unreadable, usable_workers
from sirc.errors import ImageError
from sirc.training.augment import Normalise, crop_size, random_key, training_transform

if TYPE_CHECKING:
    from PIL.Image import Image

    from sirc.training.recipe import Augment

IGNORED = -100  # the label that cross-entropy leaves out

_Item: TypeAlias = tuple["Tensor | Unreadable", int]
_Collated: TypeAlias = tuple["Tensor | None", "Tensor | None", list[Unreadable]]


@dataclass(frozen=True)
class Batch:
    """This process's share of a global batch, which has `total` images over all processes."""

    images: Tensor
    labels: Tensor
    total: int


@dataclass(frozen=True)
class Process:
    """One of `world` processes that train together, and its device."""

    rank: int
    world: int
    device: torch.device


@final
@dataclass(frozen=True)
class Order:
    """The order of the images in each epoch, in global batches of which process r takes every world-th image from r."""

    count: int
    batch_size: int
    seed: int
    process: Process

    def __len__(self) -> int:
        return -(-self.count // self.batch_size)

    def batches(self, epoch: int, device: torch.device | str = "cpu") -> Iterator[tuple[Tensor, int, bool]]:
        """Yield this process's indices of each global batch, the size of that batch, and whether they count.

        Where the last batch has fewer images than there are processes, some get one image that does not count.
        """
        generator = torch.Generator().manual_seed(random_key("order", self.seed, epoch))
        order = torch.randperm(self.count, generator=generator).to(device)
        for start in range(0, self.count, self.batch_size):
            batch = order[start : start + self.batch_size]
            mine = batch[self.process.rank :: self.process.world]
            yield (mine, len(batch), True) if len(mine) else (batch[:1], len(batch), False)

    def blocks(self, count: int) -> list[range]:
        """List this process's share of `count` validation images: every world-th block."""
        rank, world = self.process.rank, self.process.world
        size = max(1, self.batch_size // world)
        return [range(start, min(start + size, count)) for start in range(rank * size, count, world * size)]


class Batches(ABC):
    """The batches of a training loop, and the images that this process could not read in this epoch."""

    order: Order
    unreadable: set[str]

    @abstractmethod
    def epoch(self, epoch: int) -> Iterator[Batch]:
        """Yield the batches of an epoch."""

    @abstractmethod
    def validation(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield this process's share of the validation images, with their labels."""


@final
class LoaderBatches(Batches):
    """Batches that worker processes read and augment when they are needed, normalised on the device."""

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
        self._normalise = Normalise(preprocess, order.process.device)
        self._batches = _EpochBatches(order)
        blank = torch.zeros(input_shape(train, augment, preprocess), dtype=torch.uint8)
        dataset = _Augmented(train, training_transform(augment, preprocess), order.seed)
        self._loader = self._loading(dataset, self._batches, partial(_collate, blank=blank), workers)
        self._validation: tuple[ImageSet, DataLoader[Any]] | None = None
        if validation is not None:
            blocks = [list(block) for block in order.blocks(len(validation))]
            labelled = _Labelled(validation, preprocess.pixels())
            self._validation = validation, self._loading(labelled, blocks, _collate, workers)

    def _loading(
        self, dataset: Dataset[Any], batches: Any, collate: Callable[[Sequence[_Item]], _Collated], workers: int
    ) -> DataLoader[Any]:
        return DataLoader(
            dataset,
            batch_sampler=batches,
            num_workers=usable_workers(workers),
            collate_fn=collate,
            persistent_workers=workers > 0,
            pin_memory=self.order.process.device.type == "cuda",
            generator=torch.Generator(),  # so that the network's dropout keeps its random numbers
        )

    def epoch(self, epoch: int) -> Iterator[Batch]:
        """Yield the batches of an epoch; workers are given the epoch with each index."""
        self.unreadable.clear()
        self._batches.epoch = epoch
        sizes = (total for _, total, _ in self.order.batches(epoch))
        for (images, labels, lost), total in zip(self._loader, sizes, strict=True):
            self.unreadable |= check_unreadable("training", self._train, lost, skip=self._skip)
            yield Batch(*self._on_device(images, labels), total)

    def validation(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield this process's share of the validation images, with their labels."""
        if self._validation is None:
            return
        validation, loader = self._validation
        for images, labels, lost in loader:
            self.unreadable |= check_unreadable("validation", validation, lost, skip=self._skip)
            if images is not None:
                yield self._on_device(images, labels)

    def _on_device(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        device = self.order.process.device
        return self._normalise(images.to(device, non_blocking=True)), labels.to(device, non_blocking=True)


def required_labels(images: ImageSet) -> Tensor:
    """Get the labels of a set; an error if it has none."""
    if images.labels is None:
        raise ValueError(f"training needs labels; `{images.name}` has none. Use a folder for each class.")
    return images.labels


def input_shape(images: ImageSet, augment: Augment, preprocess: Preprocess) -> tuple[int, int, int]:
    """Get the shape (3, H, W) of the training input, from the first image where the settings do not fix it."""
    if augment.crop != "none" and preprocess.size is not None:
        height, width = crop_size(preprocess)
        return 3, height, width
    transform = preprocess.pixels()
    for index in range(len(images)):
        try:
            _, height, width = transform(images.image(index)).shape
        except READ_ERRORS:
            continue
        return 3, height, width
    raise ImageError(f"none of the {len(images)} images of `{images.name}` can be read. Check the path.")


def check_unreadable(kind: str, images: ImageSet, lost: Sequence[Unreadable], *, skip: bool) -> set[str]:
    """Describe each image that could not be read; an error unless `skip`, and always where the machine failed."""
    descriptions = set()
    for item in lost:
        where = images.where(item.index)
        why = item.why if where in item.why else f"{where}: {item.why}"
        if not skip or item.fatal:
            advice = ' Or set `on_error = "skip"` in [train], which counts and names such images.'
            raise ImageError(f"every {kind} image must be readable; {why}{'' if item.fatal else advice}")
        descriptions.add(f"{kind}: {why}")
    return descriptions


@final
class _EpochBatches(Sampler[list[tuple[int, int, bool]]]):
    """The keys of each batch: (epoch, index, whether it counts)."""

    def __init__(self, order: Order) -> None:
        self.order = order
        self.epoch = 0

    def __iter__(self) -> Iterator[list[tuple[int, int, bool]]]:
        for index, _, counts in self.order.batches(self.epoch):
            yield [(self.epoch, i, counts) for i in index.tolist()]

    def __len__(self) -> int:
        return len(self.order)


@final
class _Labelled(Dataset[_Item]):
    """Images and labels of the validation set, transformed; an image that cannot be read comes as an `Unreadable`."""

    def __init__(self, images: ImageSet, transform: Callable[[Image], Tensor]) -> None:
        self.images = images
        self.labels = required_labels(images)
        self.transform = transform

    def __getitem__(self, index: int) -> _Item:
        label = int(self.labels[index])
        try:
            image = self.images.image(index)
        except READ_ERRORS as error:
            return Unreadable.because(index, error), label
        return self.transform(image), label


@final
class _Augmented(Dataset[_Item]):
    """Images and labels of the training set; all randomness comes from (seed, epoch, index)."""

    def __init__(self, images: ImageSet, transform: Callable[[Image], Tensor], seed: int) -> None:
        self.items = _Labelled(images, transform)
        self.seed = seed

    def __getitem__(self, key: tuple[int, int, bool]) -> _Item:
        epoch, index, counts = key
        state = torch.default_generator.get_state()
        try:
            # Not torch.manual_seed, which would seed the GPU as well.
            torch.default_generator.manual_seed(random_key("image", self.seed, epoch, index))
            x, label = self.items[index]
        finally:
            torch.default_generator.set_state(state)
        return x, label if counts else IGNORED


def _collate(items: Sequence[_Item], blank: Tensor | None = None) -> _Collated:
    """Collate the readable items; an unreadable one is left out, or replaced by `blank` with an ignored label."""
    readable: list[tuple[Tensor, int]] = []
    lost: list[Unreadable] = []
    for x, label in items:
        if not isinstance(x, Unreadable):
            readable.append((x, label))
            continue
        lost.append(x)
        if blank is not None:
            readable.append((blank, IGNORED))
    images, labels = default_collate(readable) if readable else (None, None)
    return images, labels, lost
