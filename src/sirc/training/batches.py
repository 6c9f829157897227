"""Training batches, the same for any number of processes: from worker processes, or from a cache on the device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, final

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, default_collate

from sirc.data import READ_ERRORS, CachedImages, DeviceCache, ImageSet, Preprocess, Unreadable, usable_workers
from sirc.errors import ImageError
from sirc.progress import Progress
from sirc.training.augment import DeviceAugment, crop_size, normaliser, random_key, training_transform

if TYPE_CHECKING:
    from PIL.Image import Image

    from sirc.training.recipe import Augment, Train

IGNORED = -100  # the label that cross-entropy leaves out

_Key: TypeAlias = tuple[int, int, bool]
_Item: TypeAlias = tuple["Tensor | Unreadable", int]
_Collated: TypeAlias = tuple["Tensor | None", "Tensor | None", list[Unreadable]]


@dataclass(frozen=True)
class Batch:
    """This process's share of a global batch, which has `total` images over all processes."""

    images: Tensor
    labels: Tensor
    total: int


@final
@dataclass(frozen=True)
class Order:
    """The order of the images in each epoch, and this process's share of each batch: images rank, rank + world, …"""

    count: int
    batch_size: int
    seed: int
    rank: int
    world: int
    device: torch.device

    def __len__(self) -> int:
        return -(-self.count // self.batch_size)

    def batches(self, epoch: int, device: torch.device | str = "cpu") -> Iterator[tuple[Tensor, int, bool]]:
        """Yield this process's indices of each global batch, the size of that batch, and whether the indices count.

        If the last batch has fewer images than there are processes, the others get an image that does not count.
        """
        generator = torch.Generator().manual_seed(random_key("order", self.seed, epoch))
        order = torch.randperm(self.count, generator=generator).to(device)
        for start in range(0, self.count, self.batch_size):
            batch = order[start : start + self.batch_size]
            mine = batch[self.rank :: self.world]
            yield (mine, len(batch), True) if len(mine) else (batch[:1], len(batch), False)

    def blocks(self, count: int) -> list[range]:
        """List this process's share of `count` validation images: every world-th block."""
        size = max(1, self.batch_size // self.world)
        return [range(start, min(start + size, count)) for start in range(self.rank * size, count, self.world * size)]


class _Batches:
    """The order of the batches, and the images that this process could not read."""

    def __init__(self, order: Order, recipe: Train, preprocess: Preprocess) -> None:
        self.order = order
        self.unreadable: set[str] = set()
        self._skip = recipe.on_error == "skip"
        self._normalise = normaliser(preprocess, order.device)

    def _note_unreadable(self, kind: str, images: ImageSet, lost: Sequence[Unreadable]) -> None:
        """Record unreadable images; raise if the recipe does not skip them, or if the machine failed."""
        for item in lost:
            why = item.at(images.where(item.index))
            if not self._skip or item.fatal:
                advice = ' Or set `on_error = "skip"` in [train], which counts and names such images.'
                raise ImageError(f"every {kind} image must be readable; {why}{'' if item.fatal else advice}")
            self.unreadable.add(f"{kind}: {why}")


@final
class LoaderBatches(_Batches):
    """Batches that worker processes read and augment as needed; the device normalises them."""

    def __init__(
        self, train: ImageSet, validation: ImageSet | None, order: Order, recipe: Train, preprocess: Preprocess
    ) -> None:
        super().__init__(order, recipe, preprocess)
        self._keys = _EpochKeys(order)
        blank = torch.zeros(input_shape(train, recipe.augment, preprocess), dtype=torch.uint8)

        def load(images: ImageSet, transform: Callable[[Image], Tensor], keys: Any, collate: Any) -> DataLoader[Any]:
            return DataLoader(
                _Items(images, transform, order.seed),
                batch_sampler=keys,
                num_workers=usable_workers(recipe.workers),
                collate_fn=collate,
                persistent_workers=recipe.workers > 0,
                pin_memory=order.device.type == "cuda",
                generator=torch.Generator(),  # leaves the random numbers of the network's dropout alone
            )

        transform = training_transform(recipe.augment, preprocess)
        self._train = train, load(train, transform, self._keys, partial(_collate, blank=blank))
        self._validation = None
        if validation is not None:
            blocks = [[(0, index, True) for index in block] for block in order.blocks(len(validation))]
            self._validation = validation, load(validation, preprocess.pixels(), blocks, _collate)

    def epoch(self, epoch: int) -> Iterator[Batch]:
        """Yield the batches of an epoch."""
        self.unreadable.clear()
        self._keys.epoch = epoch
        sizes = (total for _, total, _ in self.order.batches(epoch))
        for (images, labels), total in zip(self._read("training", *self._train), sizes, strict=True):
            yield Batch(images, labels, total)

    def validation(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield this process's share of the validation images, with their labels."""
        if self._validation is not None:
            yield from self._read("validation", *self._validation)

    def _read(self, kind: str, images: ImageSet, loader: DataLoader[Any]) -> Iterator[tuple[Tensor, Tensor]]:
        device = self.order.device
        for pixels, labels, lost in loader:
            self._note_unreadable(kind, images, lost)
            if pixels is not None:
                yield self._normalise(pixels.to(device, non_blocking=True)), labels.to(device, non_blocking=True)


@final
class DeviceBatches(_Batches):
    """Batches of images that are all cached on the device as uint8 and augmented there."""

    def __init__(
        self,
        train: ImageSet,
        validation: ImageSet | None,
        order: Order,
        recipe: Train,
        preprocess: Preprocess,
        progress: Progress,
        cache: DeviceCache | None = None,
    ) -> None:
        super().__init__(order, recipe, preprocess)
        device, augment, cache = order.device, recipe.augment, cache or DeviceCache()

        def load(kind: str, images: ImageSet, geometry: Preprocess) -> tuple[CachedImages, Tensor]:
            cached = cache.pixels(
                images,
                geometry,
                device=device,
                workers=recipe.workers,
                on_unreadable=partial(self._note_unreadable, kind, images),
                progress=progress,
            )
            labels = required_labels(images).clone()
            labels[[item.index for item in cached.lost]] = IGNORED
            return cached, labels.to(device)

        # A random crop may lie anywhere in the image, so the cache holds it before the test-time crop.
        side = preprocess.resize if augment.crop == "resized" and isinstance(preprocess.resize, int) else None
        geometry = preprocess if side is None else Preprocess(side, side, preprocess.interpolation)
        images, self._labels = load("training", train, geometry)
        self._augment = DeviceAugment(augment, preprocess, images, seed=order.seed)
        self._validation = None if validation is None else load("validation", validation, preprocess)

    def epoch(self, epoch: int) -> Iterator[Batch]:
        """Yield the batches of an epoch."""
        self._augment.start(epoch)
        for index, total, counts in self.order.batches(epoch, self.order.device):
            labels = self._labels[index]
            yield Batch(self._augment(index), labels if counts else torch.full_like(labels, IGNORED), total)

    def validation(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield this process's share of the validation images, with their labels."""
        if self._validation is None:
            return
        images, labels = self._validation
        readable = (labels != IGNORED).nonzero()[:, 0]
        for block in self.order.blocks(len(readable)):
            rows = readable[block.start : block.stop]
            yield self._normalise(images[rows]), labels[rows]


def required_labels(images: ImageSet) -> Tensor:
    """Get the labels of a set; raise if it has none."""
    if images.labels is None:
        raise ValueError(f"training needs labels; `{images.name}` has none. Use a folder for each class.")
    return images.labels


def input_shape(images: ImageSet, augment: Augment, preprocess: Preprocess) -> tuple[int, int, int]:
    """Get the shape (3, H, W) of the network's input: from the settings, or else from the first image."""
    if augment.crop != "none" and preprocess.size is not None:
        height, width = crop_size(preprocess)
        return 3, height, width
    transform = preprocess.pixels()
    _, height, width = images.first_readable(lambda index: transform(images.image(index))).shape
    return 3, height, width


@final
class _EpochKeys:
    """A batch sampler: the keys of each batch of `epoch`, which workers get with each index."""

    def __init__(self, order: Order) -> None:
        self.order = order
        self.epoch = 0

    def __iter__(self) -> Iterator[list[_Key]]:
        for index, _, counts in self.order.batches(self.epoch):
            yield [(self.epoch, i, counts) for i in index.tolist()]


@final
class _Items(Dataset[_Item]):
    """Images and labels by (epoch, index, whether it counts); all randomness comes from (seed, epoch, index).

    An image that cannot be read becomes an `Unreadable`.
    """

    def __init__(self, images: ImageSet, transform: Callable[[Image], Tensor], seed: int) -> None:
        self.images, self.labels = images, required_labels(images)
        self.transform = transform
        self.seed = seed

    def __getitem__(self, key: _Key) -> _Item:
        epoch, index, counts = key
        label = int(self.labels[index]) if counts else IGNORED
        with torch.random.fork_rng(devices=[]):
            # Not torch.manual_seed, which would seed the GPU as well.
            torch.default_generator.manual_seed(random_key("image", self.seed, epoch, index))
            try:
                return self.transform(self.images.image(index)), label
            except READ_ERRORS as error:
                return Unreadable.because(index, error), label


def _collate(items: Sequence[_Item], blank: Tensor | None = None) -> _Collated:
    """Collate readable items; an unreadable one becomes `blank` with an ignored label, or is left out without it."""
    lost = [x for x, _ in items if isinstance(x, Unreadable)]
    filled = [(blank, IGNORED) if isinstance(x, Unreadable) else (x, label) for x, label in items]
    readable = [(x, label) for x, label in filled if x is not None]
    images, labels = default_collate(readable) if readable else (None, None)
    return images, labels, lost
