"""Training recipe: optimiser, schedule, precision and augmentation, by default the paper's."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Literal, final

from sirc._utils.checks import check_at_least, check_fraction, check_positive
from sirc._utils.precision import Precision
from sirc._utils.text import quoted
from sirc.errors import OnError


@final
@dataclass(frozen=True)
class Augment:
    """Random variation of the training images."""

    crop: Literal["resized", "padded", "none"] = "resized"
    """`"resized"` scales a random part of the image to the network's size; "padded" resizes as at test time, pads all
    sides and crops at random; "none" prepares the image as at test time."""
    scale: tuple[float, float] = (0.08, 1.0)
    """The area of the part that "resized" takes, least and greatest, as a share of the image."""
    ratio: tuple[float, float] = (0.75, 4 / 3)
    """The ratio of width to height of that part, least and greatest."""
    padding: int = 4
    """Black pixels that "padded" adds on each side."""
    flip: float = 0.5
    """The probability that an image is mirrored."""

    def __post_init__(self) -> None:
        if not 0 < self.scale[0] <= self.scale[1] <= 1:
            raise ValueError(f"`scale` must be shares of the area, least first, in (0, 1]; got {list(self.scale)}.")
        if not 0 < self.ratio[0] <= self.ratio[1] < math.inf:
            raise ValueError(f"`ratio` must be two positive numbers, least first; got {list(self.ratio)}.")
        check_at_least("padding", self.padding, 0)
        check_fraction("flip", self.flip)


@final
@dataclass(frozen=True)
class Train:
    """SGD with momentum, a learning rate that steps down or follows a cosine, random crops and flips."""

    epochs: int = 90
    """Passes over the training images."""
    batch_size: int = 256
    """Images in a batch, over all processes together."""
    lr: float = 0.1
    """The learning rate at the start."""
    momentum: float = 0.9
    """The momentum of SGD."""
    weight_decay: float = 1e-4
    """The weight decay of SGD."""
    nesterov: bool = False
    """Whether the momentum is Nesterov's."""
    schedule: Literal["steps", "cosine"] = "steps"
    """`"steps"` multiplies the learning rate by `gamma` at each milestone; "cosine" lowers it to 0 along a cosine."""
    milestones: tuple[int, ...] = (30, 60)
    """The epochs at which "steps" lowers the learning rate."""
    gamma: float = 0.1
    """The factor at each milestone."""
    warmup: float = 0.0
    """The number of epochs at the start in which the learning rate rises linearly from a hundredth of its value."""
    precision: Precision = "fp32"
    """The precision in which the network computes."""
    channels_last: bool = False
    """Whether images have their channels last in memory, which is often faster on a GPU."""
    compile: bool = False
    """Whether `torch.compile` compiles the network."""
    graph: bool = False
    """Whether to capture a step as a CUDA graph, if one process trains on a GPU."""
    workers: int = 8
    """Processes that read images."""
    cache: Literal["none", "device"] = "none"
    """`"device"` keeps all images, resized, on the accelerator."""
    on_error: OnError = "stop"
    """`"skip"` leaves out images that cannot be read."""
    tensorboard: bool = False
    """Whether to write a log for TensorBoard."""
    augment: Augment = field(default_factory=Augment)
    """Random crops and flips."""

    def __post_init__(self) -> None:
        check_positive("epochs", self.epochs)
        check_positive("batch_size", self.batch_size)
        for name in ("lr", "gamma"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"`{name}` must be positive and finite; got {getattr(self, name)}.")
        if not 0 <= self.momentum < 1:
            raise ValueError(f"`momentum` must be in [0, 1); got {self.momentum}.")
        if not 0 <= self.weight_decay < math.inf:
            raise ValueError(f"`weight_decay` must be at least 0 and finite; got {self.weight_decay}.")
        if self.nesterov and self.momentum == 0:
            raise ValueError("`nesterov` must be false if `momentum` is 0; got true.")
        if any(a >= b for a, b in pairwise((0, *self.milestones))):
            raise ValueError(f"`milestones` must be epochs ≥ 1 that increase; got {quoted(list(self.milestones))}.")
        if not 0 <= self.warmup <= self.epochs:
            raise ValueError(f"`warmup` must be between 0 and the {self.epochs} epochs; got {self.warmup}.")
        check_at_least("workers", self.workers, 0)

    def hyperparameters(self) -> dict[str, object]:
        """The settings that decide the weights, flat and ready for JSON; a run is resumed only with the same ones.

        They leave out what only changes speed, memory or rounding (`workers`, `compile`, `graph`, `channels_last`), the
        logging, and `on_error`, which a user changes to get past a damaged image.
        """
        settings = asdict(self)
        for name in ("workers", "compile", "graph", "channels_last", "tensorboard", "on_error"):
            del settings[name]
        if not self.warmup:  # so that runs of older versions, which had none, are resumed
            del settings["warmup"]
        augment = {f"augment.{name}": value for name, value in settings.pop("augment").items()}
        flat = settings | augment
        return {name: list(value) if isinstance(value, tuple) else value for name, value in flat.items()}
