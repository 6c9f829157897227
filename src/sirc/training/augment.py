"""Augmentation: seeded random crops and flips, one image at a time or batched on the device."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Literal, final

import torch
from torch import Tensor
from torch.nn import functional

from sirc.data import CachedImages, Preprocess

if TYPE_CHECKING:
    from PIL.Image import Image

    from sirc.training.recipe import Augment

_TRIES = 10  # before the central crop is taken, as in torchvision's RandomResizedCrop


def random_key(use: Literal["order", "image", "boxes", "network"], *numbers: int) -> int:
    """Mix several numbers into one seed; `use` makes what is drawn for one use independent of the others."""
    # NumPy's SeedSequence gives (1, 2) and (1, 2, 0) the same seed.
    digest = hashlib.blake2b(" ".join([use, *map(str, numbers)]).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def training_transform(augment: Augment, preprocess: Preprocess) -> Callable[[Image], Tensor]:
    """Make the transform of one image to uint8 (3, H, W), which draws from torch's default generator.

    Images are normalised on the device: floats would be four times as many bytes to transfer.
    """
    from torchvision.transforms import InterpolationMode, v2

    mode = InterpolationMode(preprocess.interpolation)
    if augment.crop == "resized":
        size = crop_size(preprocess)
        steps = [v2.RandomResizedCrop(size, list(augment.scale), list(augment.ratio), interpolation=mode)]
    else:
        steps = [preprocess.geometry()]
        if augment.crop == "padded":
            steps.append(v2.RandomCrop(crop_size(preprocess), padding=augment.padding))
    if augment.flip:
        steps.append(v2.RandomHorizontalFlip(augment.flip))
    transform: Callable[[Image], Tensor] = v2.Compose([*steps, v2.PILToTensor()])
    return transform


def crop_size(preprocess: Preprocess) -> list[int]:
    """Get the (height, width) that random crops are scaled to."""
    size = preprocess.size
    if size is None:
        raise ValueError(
            "`preprocess.crop` or `preprocess.resize` must be given for random crops, as their size; both are absent. "
            'Set one, or `train.augment.crop = "none"`.'
        )
    return [size, size] if isinstance(size, int) else list(size)


@final
class DeviceAugment:
    """Augments batches of uint8 images of one size, on their device.

    Crops are bilinear without antialiasing. If a crop is smaller than the output, as nearly always for small images,
    the result is torchvision's.
    """

    def __init__(self, augment: Augment, preprocess: Preprocess, images: CachedImages, *, seed: int) -> None:
        self.augment = augment
        self.images = images
        self.seed = seed
        self.sides = images.pixels.shape[-2:]
        whole = augment.crop != "resized" or preprocess.size is None
        self.output = self.sides if whole else crop_size(preprocess)
        self._normalise = normaliser(preprocess, images.pixels.device)
        self._boxes: Tensor

    def start(self, epoch: int) -> None:
        """Draw the crops and flips of all images of an epoch, before its first batch."""
        generator = torch.Generator().manual_seed(random_key("boxes", self.seed, epoch))
        height, width = self.sides
        boxes = _draw(len(self.images), height, width, self.augment, generator)
        self._boxes = boxes.to(self.images.pixels.device, non_blocking=True)

    def __call__(self, index: Tensor) -> Tensor:
        """Augment and normalise the images of these indices."""
        images = self.images[index].float()  # crops have fractions
        clamp = self.augment.crop == "resized"
        return self._normalise(resample(images, self._boxes[index], self.output, clamp=clamp))


def normaliser(preprocess: Preprocess, device: torch.device) -> Callable[[Tensor], Tensor]:
    """Make the function (x/255 − mean)/std of uint8 images, or of floats on that scale, on a device."""
    mean, std = (torch.tensor(values, device=device)[:, None, None] for values in (preprocess.mean, preprocess.std))
    scale, shift = 1 / (255 * std), -mean / std
    return lambda images: torch.addcmul(shift, images.float(), scale)


def resample(images: Tensor, boxes: Tensor, output: Sequence[int], *, clamp: bool) -> Tensor:
    """Cut a box out of each float image (N, C, H, W) and scale it to `output`, bilinearly.

    A box is (top, left, height, width, flip), in pixels. With `clamp` no pixel outside the box is used, as if the image
    were cropped first; without it, the surroundings of the image are black.
    """
    height, width = images.shape[-2:]
    top, left, tall, wide, flip = boxes.to(images.dtype).unbind(-1)
    y = _positions(top, tall, output[0], clamp)
    x = _positions(left, wide, output[1], clamp)
    x = torch.where(flip[:, None] > 0, x.flip(-1), x)
    grid_x = (2 / max(width - 1, 1) * x - 1)[:, None, :].expand(-1, output[0], -1)
    grid_y = (2 / max(height - 1, 1) * y - 1)[:, :, None].expand(-1, -1, output[1])
    padding = "border" if clamp else "zeros"
    return functional.grid_sample(images, torch.stack([grid_x, grid_y], -1), "bilinear", padding, align_corners=True)


def _positions(start: Tensor, length: Tensor, count: int, clamp: bool) -> Tensor:
    """Locate the pixel centres of the output in the image, (N, count)."""
    steps = (torch.arange(count, device=start.device, dtype=start.dtype) + 0.5) / count
    at = start[:, None] + steps * length[:, None] - 0.5
    return at.clamp(start[:, None], (start + length - 1)[:, None]) if clamp else at


def _draw(count: int, height: int, width: int, augment: Augment, generator: torch.Generator) -> Tensor:
    """Draw a box for each image: (count, 5) float32."""
    uniform = partial(torch.rand, generator=generator, dtype=torch.float64, device="cpu")
    if augment.crop == "resized":
        top, left, tall, wide = _resized_crops(uniform, count, height, width, augment)
    else:
        tall, wide = torch.full((count,), height), torch.full((count,), width)
        shifts = 2 * augment.padding + 1 if augment.crop == "padded" else 1
        top, left = ((uniform(count) * shifts).floor() - shifts // 2 for _ in range(2))
    flip = uniform(count) < augment.flip
    return torch.stack([column.float() for column in (top, left, tall, wide, flip)], -1)


def _resized_crops(
    uniform: Callable[..., Tensor], count: int, height: int, width: int, augment: Augment
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Draw boxes of random area and shape; if ten in a row do not fit, take a central crop."""
    (low, high), (narrow, broad) = augment.scale, augment.ratio
    area = height * width * (low + (high - low) * uniform(count, _TRIES))
    ratio = (math.log(narrow) + (math.log(broad) - math.log(narrow)) * uniform(count, _TRIES)).exp()
    wide, tall = (area * ratio).sqrt().round(), (area / ratio).sqrt().round()
    fits = (wide > 0) & (wide <= width) & (tall > 0) & (tall <= height)
    first = fits.int().argmax(-1, keepdim=True)
    wide, tall = wide.gather(1, first)[:, 0], tall.gather(1, first)[:, 0]
    shape = min(max(width / height, narrow), broad)
    central = float(round(min(width, height * shape))), float(round(min(height, width / shape)))
    none = ~fits.any(-1)
    wide, tall = wide.masked_fill(none, central[0]), tall.masked_fill(none, central[1])
    top = torch.where(none, (height - tall) / 2, uniform(count) * (height - tall + 1)).floor()
    left = torch.where(none, (width - wide) / 2, uniform(count) * (width - wide + 1)).floor()
    return top, left, tall, wide
