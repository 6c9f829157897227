"""The tables of an experiment's TOML: each setting with its meaning, allowed values and default."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal, final

from sirc._utils.checks import check_at_least, check_positive
from sirc._utils.precision import Precision
from sirc.data import Source
from sirc.errors import OnError
from sirc.evaluation import MEAN, ORACLE, POOLED, WRONG
from sirc.experiment.toml import LATER, dotted
from sirc.models import Stem, check_settings
from sirc.scores import check_crossfit, check_specs, parse

PAPER_SPECS = (
    *("msp", "doctor", "entropy"),
    *("sirc(msp, l1)", "sirc(msp, residual)", "sirc(doctor, l1)", "sirc(doctor, residual)"),
    *("sirc(entropy, l1)", "sirc(entropy, residual)"),
    *("l1", "residual", "max_logit", "energy", "gradnorm", "vim", "mahalanobis"),
)
"""The sixteen scores of the paper's tables."""
DEFAULT_SPECS = (*PAPER_SPECS, "scod")
"""The scores of an experiment that names none."""

_FORBIDDEN = re.compile(r'[\x00-\x1f\x7f/\\:*?"<>|]|^[. ]|[. ]$')
_RESERVED = ("correct", WRONG, MEAN, POOLED, ORACLE, "Close", "Far")  # names in results tables


@final
@dataclass(frozen=True)
class Model:
    """The network and the source of its weights."""

    name: str
    """`timm:NAME`, `torchvision:NAME` or `package.module:function`."""
    num_classes: int | None = None
    """The number of logits; by default the library's own."""
    pretrained: bool | str = False
    """True for the library's default weights, or the name of others."""
    checkpoint: str | None = None
    """A file of weights."""
    stem: Stem = "own"
    """`"half"` is for images of about 64 px: the first layers reduce an image half as much (a 3×3 convolution without
    the pooling after it, or one of stride 1)."""
    options: dict[str, object] = field(default_factory=dict)
    """Keyword arguments for whatever builds the model."""

    def __post_init__(self) -> None:
        check_settings(self.name, self.num_classes, self.pretrained, self.checkpoint, self.stem)

    @property
    def own(self) -> bool:
        """Whether the user's own function builds the network; it may load weights too."""
        return self.name.partition(":")[0] not in ("timm", "torchvision")


@final
@dataclass(frozen=True)
class Extract:
    """Settings for computing and storing outputs."""

    batch_size: int = 256
    """Images at once; a CPU takes large images in smaller steps, which is faster."""
    workers: int = 8
    """Processes that read images."""
    shard_size: int = 8192
    """Rows in one file of the store."""
    precision: Precision = "fp32"
    """The precision in which the network computes."""
    channels_last: bool = False
    """Whether images lie in memory with the channels last, which is often faster for convolutions."""
    dtype: Literal["model", "float32", "float16"] = "model"
    """The type of stored logits and features; "model" stores what the network gives."""
    cache: Literal["none", "device"] = "none"
    """`"device"` decodes the images once and keeps them on the accelerator, for all networks of a study."""
    on_error: OnError = "stop"
    """`"skip"` leaves out images that cannot be read, and counts them."""

    def __post_init__(self) -> None:
        check_positive("batch_size", self.batch_size)
        check_at_least("workers", self.workers, 0)
        check_positive("shard_size", self.shard_size)


@final
@dataclass(frozen=True)
class Fit:
    """The scores and settings of their fit on ID training images.

    Scores that are tuned on labelled ID rows (see `val` of `sirc.fit`) are tuned on the validation images, if there are
    any.
    """

    specs: tuple[str, ...] = DEFAULT_SPECS
    """The scores; by default the paper's sixteen, and `scod`."""
    crossfit: int | Literal["auto"] = "auto"
    """The number of folds, as in `sirc.fit`; 0 is the paper's rule."""
    count: int | None = None
    """How many training images to fit on, chosen at random; by default all."""
    seed: int = 0
    """The seed of that choice."""
    on_unfit: OnError = field(default="stop", metadata=LATER)
    """`"skip"` leaves out scores that cannot be fitted, with a warning."""

    def __post_init__(self) -> None:
        try:
            check_specs(self.specs)
        except ValueError as error:
            text = str(error)
            raise ValueError(text if text.startswith("`specs`") else f"`specs` must be scores: {text}") from error
        specs = [str(parse(text)) for text in self.specs]
        if twice := [spec for spec in specs if specs.count(spec) > 1]:
            raise ValueError(f"`specs` must be distinct; `{twice[0]}` is there twice. Drop one.")
        check_crossfit(self.crossfit)
        if self.count is not None:
            check_positive("count", self.count)
        check_at_least("seed", self.seed, 0)


@final
@dataclass(frozen=True)
class Reported:
    """What tables, page and figures show; `results.csv` has every score."""

    specs: tuple[str, ...] = ()
    """The scores to show, some of `fit.specs`; by default all."""

    def __post_init__(self) -> None:
        for text in self.specs:
            parse(text)


@final
@dataclass(frozen=True)
class Data:
    """The images: ID training and test sets, an ID validation set, and OOD sets."""

    train: Source
    """The ID training images."""
    test: Source
    """The ID test images."""
    root: str = "data"
    """The folder where relative paths of datasets start; itself relative to the current folder."""
    validation: Source | None = None
    """ID images that are neither trained, fitted nor tested on."""
    holdout: int = 0
    """How many training images of each class to hold out as the validation set, the same ones for every seed. A network
    that was trained elsewhere must not have seen them."""
    ood: dict[str, Source] = field(default_factory=dict)
    """The OOD sets, by the names that tables print."""

    def __post_init__(self) -> None:
        check_at_least("holdout", self.holdout, 0)
        if self.holdout and self.validation is not None:
            raise ValueError("`holdout` must be left out where `validation` is given: both choose the validation set.")
        ours = {"train": self.train, "test": self.test, "validation": self.validation}
        for name, source in ours.items():
            if source is None:
                continue
            if source.benchmark is not None and source.benchmark.role == "OOD":
                raise ValueError(f"`{name}` must be a labelled ID set; got {source.benchmark.title}, an OOD set.")
            if source.class_order and source.class_order != self.train.class_order:
                raise ValueError(
                    f"`{name}` must have the `classes` and `sort` of `train`, or neither: its classes are numbered as "
                    "there. Write them in `data.train`."
                )
        benchmarks = {source.benchmark.key for source in (self.train, self.test) if source.benchmark is not None}
        taken = set(ours)
        for name, source in self.ood.items():
            key = dotted(("ood", name))
            check_folder_name(key, name)
            if name.casefold() in taken or name in _RESERVED:
                raise ValueError(
                    f"`{key}` must have a name of its own, not only in upper or lower case; '{name}' is taken. "
                    "Rename it."
                )
            taken.add(name.casefold())
            if source.class_order:
                raise ValueError(f"`{key}` must have neither `classes` nor `sort`: OOD sets have no labels. Drop them.")
            if source.benchmark is not None and (shared := benchmarks.intersection(source.benchmark.overlaps)):
                raise ValueError(
                    f"`{key}` must share no class with the ID set; it does with {shared.pop()}. Leave it out, or read "
                    'its images as a "folder".'
                )

    @property
    def validates(self) -> bool:
        """Whether there are validation images: a dataset of their own, or held-out training images."""
        return self.validation is not None or self.holdout > 0


def check_folder_name(key: str, name: str) -> None:
    """Raise if some operating system does not allow a folder of this name; Windows reserves names of devices."""
    device = re.fullmatch(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", name, re.IGNORECASE)
    if not 0 < len(name.encode(errors="replace")) <= 200 or _FORBIDDEN.search(name) or device:
        raise ValueError(
            f"`{key}` must be a possible name of a folder: at most 200 bytes, no dot or space at either end, none of "
            f'/ \\ : * ? " < > |; got {name!a}. Rename it.'
        )
