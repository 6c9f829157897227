"""The batches of an epoch, the same for any number of processes: from files, or from memory on the device."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from sirc._reading import UNREADABLE, Plan, usable_workers
from sirc.augment import DeviceAugment, Normalise, random_key, training_transform
from sirc.data.base import ImageSet
from sirc.errors import ImageError
from sirc.preprocess import Preprocess
from sirc.progress import Progress

if TYPE_CHECKING:
    from PIL.Image import Image

    from sirc.experiment import Augment

IGNORED = -100  # the label that cross-entropy leaves out
_SHARE_OF_MEMORY = 0.8


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
        generator = torch.Generator().manual_seed(random_key(self.seed, epoch, 1))
        order = torch.randperm(self.count, generator=generator).to(device)
        for start in range(0, self.count, self.batch_size):
            whole = order[start : start + self.batch_size]
            mine = whole[self.share.rank :: self.share.world]
            yield (mine, len(whole), True) if len(mine) else (whole[:1], len(whole), False)


class Feed(ABC):
    """Where a training loop gets its batches from."""

    order: Order

    @abstractmethod
    def epoch(self, epoch: int) -> Iterator[Batch]:
        """The batches of an epoch."""

    @abstractmethod
    def validation(self) -> Iterator[tuple[Tensor, Tensor]]:
        """This process's share of the validation images, with their labels."""


@final
class LoaderFeed(Feed):
    """Images read and augmented by worker processes, as each batch is needed."""

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
        self.unreadable: set[str] = set()
        self._skip = skip
        self._batches = _EpochBatches(order)
        dataset = _Augmented(train, training_transform(augment, preprocess), order.seed)
        self._loader: DataLoader[Any] = DataLoader(
            dataset,
            batch_sampler=self._batches,
            num_workers=usable_workers(workers),
            persistent_workers=workers > 0,
            pin_memory=order.share.device.type == "cuda",
            generator=torch.Generator(),  # so that loading takes no numbers from the network's dropout
        )
        self._validation: Plan | None = None
        if validation is not None:
            tested = validation.with_transform(preprocess.test())
            self._validation = Plan(tested, max(1, order.batch_size // order.share.world), workers)

    def epoch(self, epoch: int) -> Iterator[Batch]:
        """The batches of an epoch; workers see the epoch in what they are asked for."""
        self._batches.epoch = epoch
        device = self.order.share.device
        sizes = (total for _, total, _ in self.order.batches(epoch))
        for (images, labels, why), total in zip(self._loader, sizes, strict=True):
            if lost := [words for words in why if words]:
                if not self._skip:
                    raise ImageError(
                        f"every training image must be readable; {lost[0]} Mend or remove it, or set "
                        '`on_error = "skip"` in [train], which counts and names such images.'
                    )
                self.unreadable.update(lost)
            yield Batch(images.to(device, non_blocking=True), labels.to(device, non_blocking=True), total)

    def validation(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Every world-th block of the validation images."""
        if self._validation is None:
            return
        share = self.order.share
        block = self._validation.batch_size
        size = len(self._validation)
        starts = range(share.rank * block, size, share.world * block)
        for got in self._validation.read([range(start, min(start + block, size)) for start in starts]):
            if got.lost:
                raise ImageError(f"every validation image must be readable; {got.lost[0].why}")
            batch: tuple[Tensor, Tensor] = got.batch  # type: ignore[assignment]
            yield batch[0].to(share.device), batch[1].to(share.device)


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
        progress: Progress,
    ) -> None:
        self.order = order
        device = order.share.device
        # A random crop is cut out of the whole image, so what is held is the image before the test-time crop.
        side = preprocess.resize if augment.crop == "resized" and isinstance(preprocess.resize, int) else None
        held = preprocess if side is None else Preprocess(side, side, preprocess.interpolation)
        images, self._labels = hold(train, held, device, workers=workers, progress=progress)
        self._augment = DeviceAugment(augment, preprocess, images, seed=order.seed)
        self._normalise = Normalise(preprocess, device)
        self._held: tuple[Tensor, Tensor] | None = None
        if validation is not None:
            self._held = hold(validation, preprocess, device, workers=workers, progress=progress)

    def epoch(self, epoch: int) -> Iterator[Batch]:
        """The batches of an epoch."""
        self._augment.start(epoch)
        for index, total, counts in self.order.batches(epoch, self.order.share.device):
            labels = self._labels[index]
            yield Batch(self._augment(index), labels if counts else torch.full_like(labels, IGNORED), total)

    def validation(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Every world-th block of the validation images."""
        if self._held is None:
            return
        share = self.order.share
        images, labels = self._held
        block = max(1, self.order.batch_size // share.world)
        for start in range(share.rank * block, len(images), share.world * block):
            part = slice(start, start + block)
            yield self._normalise(images[part].float()), labels[part]


def hold(
    images: ImageSet, preprocess: Preprocess, device: torch.device, *, workers: int, progress: Progress
) -> tuple[Tensor, Tensor]:
    """All images as uint8 on the device, resized and cropped as in a test, with their labels."""
    labels = required_labels(images)
    from torchvision.transforms import v2

    pixels = images.with_transform(v2.Compose([preprocess.geometry(), v2.PILToTensor()]))
    pixels.labels = None
    plan = Plan(pixels, 256, workers)
    whole: Tensor | None = None
    with progress.task(f"load {images.name}", len(pixels)) as task:
        try:
            for got in plan.read([range(len(pixels))]):
                if got.lost:
                    raise ImageError(f"every image must be readable to be held in memory; {got.lost[0].why}")
                part: Tensor = got.batch  # type: ignore[assignment]
                if whole is None:
                    _check_room(len(pixels) * part[0].numel(), device, images.name)
                    whole = torch.empty(len(pixels), *part.shape[1:], dtype=torch.uint8, device=device)
                whole[got.index[0] : got.index[-1] + 1] = part.to(device, non_blocking=True)
                task.advance(len(part))
        except RuntimeError as error:
            if "equal size" not in str(error) and "expanded size" not in str(error):
                raise
            raise ValueError(
                f'`cache = "device"` needs images of one size; those of `{images.name}` differ. Set '
                "`preprocess.resize` and `preprocess.crop`."
            ) from error
    assert whole is not None
    return whole, labels.to(device)


def _check_room(needed: int, device: torch.device, name: str) -> None:
    if device.type == "cuda":
        room = torch.cuda.mem_get_info(device)[0]
        if needed > _SHARE_OF_MEMORY * room:
            raise ValueError(
                f'`cache = "device"` needs {needed / 2**30:.1f} GiB for `{name}`; {room / 2**30:.1f} GiB are free on '
                f'{device}. Use `cache = "none"`, or a smaller `preprocess.resize`.'
            )


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
class _Augmented(Dataset[tuple[Tensor, int, str]]):
    """Training images, labels, and why one could not be read; all randomness comes from (seed, epoch, index).

    An image that cannot be read is a blank one whose label cross-entropy leaves out.
    """

    def __init__(self, images: ImageSet, transform: Callable[[Image], Tensor], seed: int) -> None:
        self.images = images
        self.labels = required_labels(images)
        self.transform = transform
        self.seed = seed

    def __getitem__(self, key: tuple[int, int, bool]) -> tuple[Tensor, int, str]:
        epoch, index, counts = key
        why = ""
        try:
            image = self.images.image(index)
        except UNREADABLE as error:
            from PIL import Image

            image, why = Image.new("RGB", (256, 256)), str(error)
        state = torch.default_generator.get_state()
        try:
            # Not torch.manual_seed, which would seed the GPU as well.
            torch.default_generator.manual_seed(random_key(self.seed, epoch, index))
            x = self.transform(image)
        finally:
            torch.default_generator.set_state(state)
        return x, int(self.labels[index]) if counts and not why else IGNORED, why


def required_labels(images: ImageSet) -> Tensor:
    """The labels of a set to train on or to test with."""
    if images.labels is None:
        raise ValueError(f"training needs labels; `{images.name}` has none. Use a folder for each class.")
    return images.labels
