"""The tables of an experiment's TOML: what each setting means, what it may be, and what it is by default."""

from __future__ import annotations

import math
import re
from dataclasses import asdict, dataclass, field
from typing import Literal, final

from sirc._utils.checks import check_positive
from sirc._utils.choices import OnError, Precision
from sirc.data.source import Source
from sirc.evaluation.mixtures import (
    MEAN,
    ORACLE,
    POOLED,
    WRONG,
)
from sirc.experiment.toml import dotted
from sirc.models.stems import Stem

PAPER_SPECS = (
    *("msp", "doctor", "entropy"),
    *("sirc(msp, l1)", "sirc(msp, residual)", "sirc(doctor, l1)", "sirc(doctor, residual)"),
    *("sirc(entropy, l1)", "sirc(entropy, residual)"),
    *("l1", "residual", "max_logit", "energy", "gradnorm", "vim", "mahalanobis"),
)
"""The sixteen scores of the paper's tables."""

_ODD = re.compile(r'[\x00-\x1f\x7f/\\:*?"<>|]|^[. ]|[. ]$')
_DEVICES = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)  # no names for files on Windows
_TAKEN = ("train", "test", "validation")
_MEANT = (WRONG, MEAN, POOLED, ORACLE, "Close", "Far")  # rows that result tables have anyway


@final
@dataclass(frozen=True)
class Model:
    """Which network, and where its weights come from.

    `name` is `timm:NAME`, `torchvision:NAME` or `package.module:function`. `pretrained` is true for the library's
    default weights or names others; `checkpoint` is a file of weights; `options` go to whatever builds the model.
    `stem = "half"`, for images of about 64 px: the first layers reduce an image half as much (a 3×3 convolution without
    the pooling after it, or one of stride 1).
    """

    name: str
    num_classes: int | None = None
    pretrained: bool | str = False
    checkpoint: str | None = None
    stem: Stem = "own"
    options: dict[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        source, _, rest = self.name.partition(":")
        if not (source and rest):
            raise ValueError(
                f'`name` must be "timm:NAME", "torchvision:NAME" or "package.module:function"; got "{self.name}". '
                f'Write for example "torchvision:{self.name.strip(":") or "resnet50"}".'
            )
        if self.num_classes is not None:
            check_positive("num_classes", self.num_classes)
        if self.pretrained == "":
            raise ValueError("`pretrained` must be true, false or the name of weights; got an empty string.")
        if self.pretrained and self.checkpoint is not None:
            raise ValueError("`checkpoint` must be left out where `pretrained` is given; got both. Choose one.")
        if self.pretrained and self.stem != "own":
            raise ValueError('`stem` must be left out where `pretrained` is given, as the weights are for "own".')

    @property
    def own(self) -> bool:
        """Whether a function of the user's builds it, and may bring weights of its own."""
        return self.name.partition(":")[0] not in ("timm", "torchvision")


@final
@dataclass(frozen=True)
class Augment:
    """How training images are varied.

    `crop`: "resized" takes a random part of `scale` of the area, `ratio` wide to high, scaled to the network's size;
    "padded" resizes as in a test, adds `padding` black pixels all around and crops at random; "none" is as in a test.
    `flip` is the probability of a mirror image.
    """

    crop: Literal["resized", "padded", "none"] = "resized"
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (0.75, 4 / 3)
    padding: int = 4
    flip: float = 0.5

    def __post_init__(self) -> None:
        if not 0 < self.scale[0] <= self.scale[1] <= 1:
            raise ValueError(f"`scale` must be shares of the area, least first, in (0, 1]; got {list(self.scale)}.")
        if not 0 < self.ratio[0] <= self.ratio[1] < math.inf:
            raise ValueError(f"`ratio` must be two positive numbers, least first; got {list(self.ratio)}.")
        _at_least("padding", self.padding, 0)
        if not 0 <= self.flip <= 1:
            raise ValueError(f"`flip` must be a probability in [0, 1]; got {self.flip}.")


@final
@dataclass(frozen=True)
class Train:
    """The recipe: SGD with momentum, a learning rate that steps down or follows a cosine, random crops and flips.

    `batch_size` is that of all processes together. "steps" multiplies `lr` by `gamma` at each epoch in `milestones`.
    In the first `warmup` epochs the learning rate rises in a straight line, from a hundredth of what it would be.
    `cache = "device"` keeps all images, resized, on the accelerator. `graph` records the step as a CUDA graph, where
    one process trains on a GPU. `on_error = "skip"` goes on without images that cannot be read.
    """

    epochs: int = 90
    batch_size: int = 256
    lr: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 1e-4
    nesterov: bool = False
    schedule: Literal["steps", "cosine"] = "steps"
    milestones: tuple[int, ...] = (30, 60)
    gamma: float = 0.1
    warmup: float = 0.0
    precision: Precision = "fp32"
    channels_last: bool = False
    compile: bool = False
    graph: bool = False
    workers: int = 8
    cache: Literal["none", "device"] = "none"
    on_error: OnError = "stop"
    tensorboard: bool = False
    augment: Augment = field(default_factory=Augment)

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
            raise ValueError("`nesterov` must be false where `momentum` is 0; got true.")
        if any(a >= b for a, b in zip((0, *self.milestones), self.milestones, strict=False)):
            raise ValueError(f"`milestones` must be epochs ≥ 1 that increase; got {list(self.milestones)}.")
        if not 0 <= self.warmup <= self.epochs:
            raise ValueError(f"`warmup` must be between 0 and the {self.epochs} epochs; got {self.warmup}.")
        _at_least("workers", self.workers, 0)

    def decisive(self) -> dict[str, object]:
        """Give the settings that decide the weights, flat and ready for JSON; a run is only resumed with the same.

        Not among them: what only changes speed, memory or rounding (`workers`, `compile`, `graph`, `channels_last`),
        what is logged, and `on_error`, which is changed to get past a damaged image.
        """
        settings = asdict(self)
        for name in ("workers", "compile", "graph", "channels_last", "tensorboard", "on_error"):
            del settings[name]
        if not self.warmup:  # so that runs from before there was one are taken up
            del settings["warmup"]
        augment = {f"augment.{name}": value for name, value in settings.pop("augment").items()}
        flat = settings | augment
        return {name: list(value) if isinstance(value, tuple) else value for name, value in flat.items()}


@final
@dataclass(frozen=True)
class Extract:
    """How outputs are computed and stored.

    `dtype` is that of stored logits and features, "model" as they come. `shard_size` rows go to one file.
    `cache = "device"` decodes the images once and keeps them on the accelerator, for all networks of a study.
    """

    batch_size: int = 256
    workers: int = 8
    shard_size: int = 8192
    precision: Precision = "fp32"
    channels_last: bool = False
    dtype: Literal["model", "float32", "float16"] = "model"
    cache: Literal["none", "device"] = "none"
    on_error: OnError = "stop"

    def __post_init__(self) -> None:
        check_positive("batch_size", self.batch_size)
        _at_least("workers", self.workers, 0)
        check_positive("shard_size", self.shard_size)


@final
@dataclass(frozen=True)
class Fit:
    """Which scores, by default the paper's sixteen, and how their parameters are found on ID training images.

    `count` of those, chosen at random by `seed`, or all. `crossfit`: see `sirc.fit`; 0 is the paper's rule. Scores that
    are tuned on labelled ID rows (see `val` of `sirc.fit`) take the validation images for it, where there are any.
    """

    specs: tuple[str, ...] = PAPER_SPECS
    crossfit: int | Literal["auto"] = "auto"
    count: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        from sirc.scores.fitting.crossfit import check_crossfit
        from sirc.scores.scorer import check_specs
        from sirc.scores.spec import parse

        try:
            check_specs(self.specs)
        except ValueError as error:
            words = str(error)
            raise ValueError(words if words.startswith("`specs`") else f"`specs` must be scores: {words}") from error
        seen: dict[str, str] = {}
        for text in self.specs:
            other = seen.setdefault(str(parse(text)), text)
            if other is not text:
                raise ValueError(f"`specs` must be distinct; `{text}` is there twice, also as `{other}`. Drop one.")
        check_crossfit(self.crossfit)
        if self.count is not None:
            check_positive("count", self.count)
        _at_least("seed", self.seed, 0)

    @property
    def needs_validation(self) -> str | None:
        """The first of the specs that cannot be fitted without validation images."""
        from sirc.scores.needs import Needs

        return next((spec for spec in self.specs if Needs.of([spec]).val), None)

    @property
    def tunes(self) -> bool:
        """Whether validation images are of use: some score is tuned on them."""
        from sirc.scores.needs import Needs

        return Needs.of(self.specs).tuned


@final
@dataclass(frozen=True)
class Report:
    """Which of the scores are in tables, page and figures; all by default. `results.csv` has every one."""

    specs: tuple[str, ...] = ()


@final
@dataclass(frozen=True)
class Data:
    """Where the images are: ID training and test sets, an ID validation set, and OOD sets by the names tables print.

    Relative paths of datasets start at `root`, which is relative to the current folder. `holdout` training images of
    each class are neither trained nor fitted on, and are the validation set; the same ones for every seed. A network
    that was trained elsewhere must not have seen them.
    """

    train: Source
    test: Source
    root: str = "data"
    validation: Source | None = None
    holdout: int = 0
    ood: dict[str, Source] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _at_least("holdout", self.holdout, 0)
        if self.holdout and self.validation is not None:
            raise ValueError(
                f"`holdout` must be left out where `validation` is given, as both say which images validate; got "
                f"{self.holdout}. Drop one of the two."
            )
        for name, source in (("train", self.train), ("test", self.test), ("validation", self.validation)):
            known = source.benchmark if source is not None else None
            if known is not None and known.role == "OOD":
                raise ValueError(f"`{name}` must be a labelled ID set; got {known.title}, an OOD set.")
        ours = {source.benchmark.key for source in (self.train, self.test) if source.benchmark is not None}
        seen: dict[str, str] = {}
        for name, source in self.ood.items():
            key = dotted(("ood", name))
            if words := folder_name(name):
                raise ValueError(f"`{key}` must have a name that can be a folder's; {words}. Rename it.")
            if name.casefold() in _TAKEN or name in _MEANT:
                raise ValueError(f"`{key}` must have a name of its own; '{name}' means something else. Rename it.")
            if other := seen.get(name.casefold()):
                raise ValueError(f"`{key}` must differ from '{other}' in more than case. Rename it.")
            seen[name.casefold()] = name
            shared = ours & set(source.benchmark.overlaps) if source.benchmark else set()
            if shared:
                raise ValueError(
                    f"`{key}` must share no class with the ID set; it does with {shared.pop()}. Leave it out, or read "
                    'its images as a "folder".'
                )

    @property
    def validates(self) -> bool:
        """Whether there are validation images: a set of their own, or some that are held out of the training set."""
        return self.validation is not None or self.holdout > 0


def folder_name(name: str) -> str:
    """Say why a name cannot be a folder's on every system; nothing if it can."""
    if not name or len(name.encode(errors="replace")) > 200:
        return "it is empty" if not name else "it is too long"
    if found := _ODD.search(name):
        return f"got {name!a}, where {found[0]!a} cannot be"
    return f"'{name}' is a device on Windows" if _DEVICES.fullmatch(name) else ""


def _at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise ValueError(f"`{name}` must be a whole number ≥ {least}; got {value}.")
