"""Test-time preprocessing: resize, crop and normalise images for a network."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, final, get_args

import torch
from torch import Tensor

from sirc._utils.checks import check_choice, check_number, check_positive, iterates
from sirc._utils.imports import needing
from sirc._utils.text import quoted

if TYPE_CHECKING:
    from PIL.Image import Image

Interpolation = Literal["bilinear", "bicubic", "lanczos"]
_MAX_SIDE = 13_377  # pixels: the largest square that PIL decodes; larger inputs could fill the memory


@final
@dataclass(frozen=True)
class Preprocess:
    """Resize, centre crop, scale to [0, 1], subtract `mean` and divide by `std`. The defaults are ImageNet's."""

    resize: int | tuple[int, int] | None = 256
    """The length of the shorter side, or (height, width), or None for no resizing."""
    crop: int | None = 224
    """The side of the central square, or None for no cropping."""
    interpolation: Interpolation = "bilinear"
    """How pixels are interpolated when an image is resized."""
    mean: tuple[float, float, float] = (0.485, 0.456, 0.406)
    """The mean of each colour channel, in [0, 1]."""
    std: tuple[float, float, float] = (0.229, 0.224, 0.225)
    """The standard deviation of each colour channel."""

    def __post_init__(self) -> None:
        plain: dict[str, object] = {"crop": _checked_side("crop", self.crop)}
        if isinstance(self.resize, list | tuple):
            if len(self.resize) != 2 or None in self.resize:
                raise ValueError(f"`resize` must be one side, or height and width; got {quoted(self.resize)}.")
            plain["resize"] = tuple(_checked_side("resize", side) for side in self.resize)
        else:
            plain["resize"] = _checked_side("resize", self.resize)
        check_choice("interpolation", self.interpolation, get_args(Interpolation))
        for name, values in (("mean", self.mean), ("std", self.std)):
            # An int stays one: fingerprints of existing stores have 0, not 0.0.
            numbers = tuple(x if type(x) is int else check_number(name, x) for x in values) if iterates(values) else ()
            if len(numbers) != 3 or not all(map(math.isfinite, numbers)) or (name == "std" and min(numbers) <= 0):
                kind = "three numbers above 0" if name == "std" else "three finite numbers"
                raise ValueError(f"`{name}` must be {kind}, one for each colour; got {quoted(values)}.")
            plain[name] = numbers
        vars(self).update(plain)  # so that equal settings compare equal, and can be saved

    @property
    def size(self) -> int | tuple[int, int] | None:
        """The size of the network's input: the side of a square, or (height, width)."""
        return self.crop if self.crop is not None else self.resize

    def test(self) -> Callable[[Image], Tensor]:
        """Make the whole preprocessing for test, fitting and OOD images; it is deterministic."""
        return _compose(self.geometry(), self.normalise())

    def pixels(self) -> Callable[[Image], Tensor]:
        """Make the preprocessing without normalisation, from an image to uint8 (3, H, W)."""
        v2 = _transforms()
        return _compose(self.geometry(), v2.PILToTensor())

    def geometry(self) -> Callable[[Image], Image]:
        """Make the first steps alone, resize and crop, from image to image."""
        v2 = _transforms()
        crop = None if self.crop is None else v2.CenterCrop(self.crop)
        return _compose(_resize(self.resize, self.interpolation), crop)

    def scaled(self, interpolation: Interpolation) -> Callable[[Image], Tensor]:
        """Make the preprocessing of small images: resize to `size` without cropping, and normalise."""
        return _compose(_resize(self.size, interpolation), self.normalise())

    def normalise(self) -> Callable[[Image | Tensor], Tensor]:
        """Make the last step alone, from an image or uint8 images (N, 3, H, W) to a normalised float tensor."""
        v2 = _transforms()
        return _compose(
            v2.ToImage(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(list(self.mean), list(self.std)),
            v2.ToPureTensor(),
        )

    def normalise_on(self, device: torch.device) -> Callable[[Tensor], Tensor]:
        """Make `normalise` for uint8 images (N, 3, H, W) on a device: same values, no synchronisation."""
        mean, std = (torch.tensor(values, device=device)[:, None, None] for values in (self.mean, self.std))
        return lambda pixels: (pixels * (1 / 255)).sub_(mean).div_(std)


def _checked_side(name: str, side: int | None) -> int | None:
    if side is None:
        return None
    if (number := check_positive(name, side)) > _MAX_SIDE:
        raise ValueError(f"`{name}` must be at most {_MAX_SIDE:,} pixels a side; got {number}.")
    return number


def _resize(size: int | tuple[int, int] | None, interpolation: Interpolation) -> Any:
    if size is None:
        return None
    v2 = _transforms()
    sides = size if isinstance(size, int) else list(size)
    return v2.Resize(sides, interpolation=v2.InterpolationMode(interpolation))


def _compose(*steps: Callable[..., object] | None) -> Callable[..., Any]:
    v2 = _transforms()
    composed: Callable[..., Any] = v2.Compose([step for step in steps if step is not None] or [v2.Identity()])
    return composed


def _transforms() -> Any:
    with needing("preprocessing images", "torchvision"):
        from torchvision.transforms import v2
    return v2
