"""What every dataset of images is: numbered images, labels where they mean something, one fingerprint."""

from __future__ import annotations

import copy
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Self

import torch
from torch import Tensor
from torch.utils.data import Dataset

if TYPE_CHECKING:
    from PIL.Image import Image

Transform = Callable[["Image"], Tensor]


class ImageSet(ABC, Dataset[object]):
    """Numbered RGB images. An item is (input, label), or the input alone where labels mean nothing (OOD sets).

    `transform` makes the input of an image; without one the item holds the image itself. Whatever is asked for twice
    is the same twice: randomness belongs to training.
    """

    def __init__(
        self,
        *,
        name: str,
        labels: Sequence[int] | Tensor | None = None,
        classes: Sequence[str] = (),
        transform: Transform | None = None,
    ) -> None:
        self.name = name
        self.labels = None if labels is None else torch.as_tensor(labels, dtype=torch.int64)
        self.classes = tuple(classes)
        self.transform = transform

    @abstractmethod
    def __len__(self) -> int:
        """How many images there are."""

    @abstractmethod
    def image(self, index: int) -> Image:
        """Read one image, as RGB; an `ImageError` names a file that cannot be read."""

    @abstractmethod
    def where(self, index: int) -> str:
        """Name one image, for messages: its path, or its number."""

    @abstractmethod
    def _identity(self) -> str:
        """Say which images these are: a digest of names, sizes and order, or of a seed; without transform, labels."""

    def __getitem__(self, index: int) -> object:
        image = self.image(index)
        x = image if self.transform is None else self.transform(image)
        return x if self.labels is None else (x, int(self.labels[index]))

    @cached_property
    def fingerprint(self) -> str:
        """A digest of which images these are, in which order, with which labels and preprocessing."""
        digest = hashlib.sha256(self._identity().encode())
        digest.update(b"" if self.labels is None else self.labels.numpy().tobytes())
        digest.update(repr(self.transform).encode())
        return digest.hexdigest()[:32]

    def with_transform(self, transform: Transform | None) -> Self:
        """The same images with another preprocessing."""
        other = copy.copy(self)
        other.__dict__.pop("fingerprint", None)
        other.transform = transform
        return other

    def subset(self, count: int, *, seed: int) -> ImageSet:
        """Choose `count` of the images at random, seeded, kept in their order."""
        raise NotImplementedError
