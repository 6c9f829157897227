"""Image sets: the base class of all datasets, with labels, subsets and a fingerprint."""

from __future__ import annotations

import contextlib
import copy
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Literal, Self, TypeVar, final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import Dataset

from sirc._utils.checks import check_at_least, check_positive
from sirc._utils.text import quoted, shorten
from sirc.data.reading import READ_ERRORS, without_address
from sirc.errors import ImageError

if TYPE_CHECKING:
    from PIL.Image import Image

T = TypeVar("T")
Transform = Callable[["Image"], Tensor]
SPLITS: tuple[Literal["train", "test"], ...] = ("train", "test")


class ImageSet(ABC, Dataset[object]):
    """Numbered RGB images. An item is (input, label), or the input alone in OOD sets, which have no labels.

    `transform` turns an image into the input; without one the input is the image itself. Nothing here is random: an
    item is the same each time it is read.
    """

    def __init__(
        self,
        *,
        name: str,
        labels: npt.ArrayLike | Tensor | None = None,
        classes: Sequence[str] = (),
        transform: Transform | None = None,
    ) -> None:
        self.name = name
        self.labels = None if labels is None else torch.as_tensor(labels, dtype=torch.int64)
        self.classes = tuple(classes)
        self.transform = transform

    @abstractmethod
    def __len__(self) -> int:
        """The number of images."""

    @abstractmethod
    def image(self, index: int) -> Image:
        """Read one image as RGB; an `ImageError` names a file that cannot be read."""

    @abstractmethod
    def where(self, index: int) -> str:
        """Name one image for messages: by its path, or its number."""

    @property
    @abstractmethod
    def _identity(self) -> str:
        """What identifies the images without labels and transform: their names, sizes and order, or a seed."""

    def __getitem__(self, index: int) -> object:
        index = self._resolve_index(index)
        image = self.image(index)
        x = image if self.transform is None else self.transform(image)
        return x if self.labels is None else (x, int(self.labels[index]))

    @cached_property
    def fingerprint(self) -> str:
        """A digest of the images, their order, labels and preprocessing."""
        digest = hashlib.sha256(self._identity.encode())
        digest.update(b"" if self.labels is None else self.labels.numpy().tobytes())
        description = repr(self.transform)
        stable = without_address(description)
        digest.update(stable.encode())
        # The repr of a plain function does not say what it does: its result on the first readable image stands for it.
        if stable != description and self.transform is not None:
            for index in range(len(self)):
                with contextlib.suppress(ImageError):
                    x = self.transform(self.image(index))
                    digest.update(repr(x.tolist() if isinstance(x, Tensor) else x).encode())
                    break
        return digest.hexdigest()[:32]

    def numbered_by(self, classes: Sequence[str]) -> Self:
        """Renumber the labels by the classes of the training images.

        A small test set may lack a class, and would then give other numbers to the classes after it.
        """
        if self.labels is None or self.classes == tuple(classes):
            return self
        number = {name: index for index, name in enumerate(classes)}
        if unknown := [name for name in self.classes if name not in number]:
            raise ValueError(
                f"the classes of '{self.name}' must be among those of the training images, "
                f"{shorten(', '.join(classes))}; {quoted(unknown[0])} is not ({len(unknown)} of {len(self.classes)} "
                "are missing). Remove such classes, or train on them; or is one of the two paths not the folder that "
                "holds the class folders?"
            )
        renumbered = torch.tensor([number[name] for name in self.classes])
        return self._copy(labels=renumbered[self.labels], classes=tuple(classes))

    def with_transform(self, transform: Transform | None) -> Self:
        """Copy the set with another preprocessing."""
        return self._copy(transform=transform)

    def unlabelled(self) -> Self:
        """Copy the set without labels, as an OOD set."""
        return self._copy(labels=None, classes=())

    def first_readable(self, read: Callable[[int], T]) -> T:
        """Return `read(index)` for the first image that can be read."""
        for index in range(len(self)):
            with contextlib.suppress(*READ_ERRORS):
                return read(index)
        raise self.none_readable()

    def none_readable(self) -> ImageError:
        """The error for a set of which no image can be read."""
        return ImageError(f"none of the {len(self)} images of `{self.name}` can be read. Check the path.")

    def named(self, name: str) -> Self:
        """Copy the set under another name."""
        return self._copy(name=name)

    def subset(self, count: int, *, seed: int) -> ImageSet:
        """Choose `count` images at random, by the seed; they keep their order."""
        count = check_positive("count", count)
        if count > len(self):
            raise ValueError(
                f"`count` must be at most the number of images; got {count} of the {len(self)} of '{self.name}'. "
                "Leave `count` out to take them all."
            )
        return Subset(self, np.random.default_rng(check_at_least("seed", seed, 0)).permutation(len(self))[:count])

    def held_out(self, count: int, *, seed: int) -> tuple[ImageSet, ImageSet]:
        """Split the images in two: the rest, and `count` images of each class, which the seed chooses."""
        check_positive("count", count)
        check_at_least("seed", seed, 0)
        if self.labels is None:
            raise ValueError(
                f"images must have labels to be held out by class; those of '{self.name}' have none. Use a folder for "
                "each class."
            )
        labels = self.labels.numpy()
        chosen = np.zeros(len(self), dtype=bool)
        for label in np.unique(labels):
            members = np.flatnonzero(labels == label)
            if count >= len(members):
                class_name = self.classes[label] if label < len(self.classes) else label
                raise ValueError(
                    f"`holdout` must be smaller than every class, so that each keeps training images; got {count}, "
                    f"and {quoted(class_name)} of '{self.name}' has {len(members)}. Hold out fewer, or drop the class."
                )
            # The seed includes the class, so that the images chosen do not depend on the other classes.
            order = np.random.default_rng([seed, int(label)]).permutation(len(members))
            chosen[members[order[:count]]] = True
        return Subset(self, np.flatnonzero(~chosen)), Subset(self, np.flatnonzero(chosen))

    def origin(self) -> tuple[ImageSet, npt.NDArray[np.int64]]:
        """Get the full set that these images come from, and their numbers in it."""
        return self, np.arange(len(self))

    @property
    def cache_key(self) -> str:
        """A key for caches in memory: the images and their location.

        Unlike the fingerprint, it differs between two folders whose files have the same names and sizes.
        """
        return f"{self._identity} {self.where(0)} {self.where(len(self) - 1)}" if len(self) else self._identity

    def __repr__(self) -> str:
        classes = f", {len(self.classes)} classes" if self.classes else ""
        return f"{type(self).__name__}('{self.name}', {len(self)} images{classes})"

    def _copy(self, **changes: object) -> Self:
        other = copy.copy(self)
        other.__dict__.pop("fingerprint", None)
        other.__dict__.update(changes)
        return other

    def _resolve_index(self, index: int) -> int:
        """Count a negative index from the end, as lists do; the IndexError after the last image ends iteration."""
        number = index + len(self) if index < 0 else index
        if not 0 <= number < len(self):
            raise IndexError(f"`index` must be in 0…{len(self) - 1} for '{self.name}'; got {index}.")
        return number


@final
class Subset(ImageSet):
    """Some images of another set, in its order."""

    def __init__(self, whole: ImageSet, indices: npt.ArrayLike) -> None:
        self.indices = np.sort(np.asarray(indices, dtype=np.int64))
        labels = None if whole.labels is None else whole.labels[torch.from_numpy(self.indices)]
        super().__init__(name=whole.name, labels=labels, classes=whole.classes, transform=whole.transform)
        self.whole = whole

    def __len__(self) -> int:
        return len(self.indices)

    def origin(self) -> tuple[ImageSet, npt.NDArray[np.int64]]:
        """Get the full set that these images come from, and their numbers in it."""
        whole, indices = self.whole.origin()
        return whole, indices[self.indices]

    def image(self, index: int) -> Image:
        """Read one of the chosen images."""
        return self.whole.image(int(self.indices[index]))

    def where(self, index: int) -> str:
        """Name one of the chosen images as the whole set does."""
        return self.whole.where(int(self.indices[index]))

    @property
    def _identity(self) -> str:
        chosen = hashlib.sha256(self.indices.astype("<i8").tobytes()).hexdigest()
        return f"{self.whole._identity} {chosen}"
