"""From an image to what the network sees: scale, crop, normalise, the same for every dataset that a model meets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, final

import torch
from torch import Tensor

if TYPE_CHECKING:
    from PIL.Image import Image

Interpolation = Literal["bilinear", "bicubic", "lanczos"]


@final
@dataclass(frozen=True)
class Preprocess:
    """Resize, centre crop, scale to [0, 1], subtract `mean`, divide by `std`.

    `resize` is the length of the shorter side, or (height, width), or None to leave the image as it is; `crop` is the
    side of the central square, or None. The defaults are ImageNet's.
    """

    resize: int | tuple[int, int] | None = 256
    crop: int | None = 224
    interpolation: Interpolation = "bilinear"
    mean: tuple[float, float, float] = (0.485, 0.456, 0.406)
    std: tuple[float, float, float] = (0.229, 0.224, 0.225)

    @property
    def size(self) -> int | tuple[int, int] | None:
        """What the network sees: the side of a square, or (height, width)."""
        return self.crop if self.crop is not None else self.resize

    def test(self) -> Callable[[Image], Tensor]:
        """Give the preprocessing of test, fitting and OOD images; nothing in it is random."""
        whole: Callable[[Image], Tensor] = _compose(self.geometry(), self.normalise())
        return whole

    def geometry(self) -> Callable[[Image], Image]:
        """Give the first steps of it alone: resize and crop, an image to an image."""
        steps: Callable[[Image], Image] = _compose(_resize(self.resize, self.interpolation), _crop(self.crop))
        return steps

    def scaled(self, interpolation: Interpolation) -> Callable[[Image], Tensor]:
        """Give the one for sets of small images: scaled straight to `size`, uncropped, the normalisation the same."""
        whole: Callable[[Image], Tensor] = _compose(_resize(self.size, interpolation), self.normalise())
        return whole

    def normalise(self) -> Callable[[Image], Tensor]:
        """Give the last step alone: an image to a float tensor (3, H, W)."""
        transforms = _transforms()
        steps: Callable[[Image], Tensor] = _compose(
            transforms.ToImage(),
            transforms.ToDtype(torch.float32, scale=True),
            transforms.Normalize(list(self.mean), list(self.std)),
            transforms.ToPureTensor(),
        )
        return steps


def _resize(size: int | tuple[int, int] | None, interpolation: Interpolation) -> Callable[[Image], Image] | None:
    if size is None:
        return None
    from torchvision.transforms import InterpolationMode

    mode = InterpolationMode(interpolation)
    step: Callable[[Image], Image] = _transforms().Resize(
        size if isinstance(size, int) else list(size), interpolation=mode
    )
    return step


def _crop(side: int | None) -> Callable[[Image], Image] | None:
    return None if side is None else _transforms().CenterCrop(side)


def _compose(*steps: Callable[..., object] | None) -> Any:
    some = [step for step in steps if step is not None]
    return _transforms().Compose(some or [_transforms().Identity()])


def _transforms() -> Any:
    from torchvision.transforms import v2

    return v2


def pixels(preprocess: Preprocess) -> Callable[[Image], Tensor]:
    """The preprocessing of a test up to the normalisation: an image to uint8 (3, H, W)."""
    from torchvision.transforms import v2

    whole: Callable[[Image], Tensor] = v2.Compose([preprocess.geometry(), v2.PILToTensor()])
    return whole
