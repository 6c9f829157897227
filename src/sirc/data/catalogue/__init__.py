"""The paper's benchmarks: name, source, file layout and size of each image set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, final

from sirc._utils.hints import closest

if TYPE_CHECKING:
    from sirc.data.preprocess import Interpolation


@final
@dataclass(frozen=True)
class Split:
    """One part of a benchmark: the possible names of its folder, and the number of its images (None: unknown)."""

    name: Literal["train", "test"]
    folders: tuple[str, ...]
    size: int | None


@final
@dataclass(frozen=True)
class Benchmark:
    """One of the paper's image sets.

    `folder` is its folder below the data root. ID sets have one folder a class. `lists` are the possible names of a
    file in `folder` that lists the images to use. `overlaps` are the ID sets that share classes with an OOD set, which
    is left out for them. `scaled` is the interpolation that resizes small images straight to the network's size.
    """

    key: str
    title: str
    role: Literal["ID", "OOD"]
    folder: str
    splits: tuple[Split, ...]
    source: str
    group: Literal["Close", "Far"] | None = None
    classes: int | None = None
    lists: tuple[str, ...] = ()
    list_source: str = ""
    overlaps: tuple[str, ...] = ()
    scaled: Interpolation | None = None
    licence: str = ""
    note: str = ""

    def split(self, name: str | None) -> Split:
        """Get a part by its name; the error says which parts there are."""
        for part in self.splits:
            if part.name == name:
                return part
        parts = " or ".join(f'"{part.name}"' for part in self.splits)
        raise ValueError(f"`split` must be {parts} for {self.title}; got {name!r}. Pass one of those.")

    @property
    def layout(self) -> str:
        """The expected files, for people to read: one line for each part."""
        lines = []
        for part in self.splits:
            below = "one folder for each class" if self.role == "ID" else "images, in folders or not"
            place = self.folder if part.folders[0] == "." else f"{self.folder}/{part.folders[0]}"
            size = f", {part.size:,} of them" if part.size else ""
            lines.append(f"{place}/  {below}{size} ({part.name})")
        lines += [f"{self.folder}/{self.lists[0]}  which of them count"] if self.lists else []
        return "\n".join(lines)


_KIM = "https://github.com/daintlab/unknown-detection-benchmarks (the ImageNet-based benchmark)"
_IMAGENET = "ImageNet's terms: non-commercial research and education"
_NEAR_1K = ("imagenet1k",)
_DIFFERS = (
    "Its authors publish 250,000 and 10,000 images, but their archive differs a little; so none is expected here."
)

_BENCHMARKS = (
    Benchmark(
        key="imagenet200",
        title="ImageNet-200",
        role="ID",
        folder="imagenet-bench",
        splits=(
            Split("train", ("train/imagenet200",), None),
            Split("test", ("test/imagenet200/labels",), None),
        ),
        classes=200,
        source=_KIM,
        licence=_IMAGENET,
        note=_DIFFERS,
    ),
    Benchmark(
        key="imagenet1k",
        title="ImageNet-1k",
        role="ID",
        folder="imagenet",
        splits=(Split("train", ("train",), 1_281_167), Split("test", ("val", "validation"), 50_000)),
        classes=1000,
        source="https://www.image-net.org/challenges/LSVRC/2012/",
        licence=_IMAGENET,
        note="ILSVRC2012_img_train.tar, ILSVRC2012_img_val.tar and ILSVRC2012_devkit_t12.tar.gz also do: they are "
        "unpacked when first opened.",
    ),
    Benchmark(
        key="near-imagenet200",
        title="Near-ImageNet-200",
        role="OOD",
        group="Close",
        folder="imagenet-bench",
        splits=(Split("test", ("test/near-imagenet200/labels",), 10_000),),
        overlaps=_NEAR_1K,
        source=_KIM,
        licence=_IMAGENET,
    ),
    Benchmark(
        key="caltech45",
        title="Caltech-45",
        role="OOD",
        group="Close",
        folder="imagenet-bench",
        splits=(Split("test", ("test/caltech256/labels",), 4_792),),
        overlaps=_NEAR_1K,
        source=_KIM,
    ),
    Benchmark(
        key="openimage-o",
        title="Openimage-O",
        role="OOD",
        group="Close",
        folder="openimage-o",
        splits=(Split("test", ("test", "images"), 17_632),),
        lists=("openimages_datalist.txt", "openimage_o.txt"),
        list_source="https://github.com/haoqiwang/vim (datalists/openimage_o.txt)",
        source="https://github.com/cvdfoundation/open-images-dataset (the test set)",
        licence="images listed as CC BY 2.0",
        note="The list chooses 17,632 of the 125,436 images of the Open Images test set.",
    ),
    Benchmark(
        key="inaturalist",
        title="iNaturalist",
        role="OOD",
        group="Close",
        folder="iNaturalist",
        splits=(Split("test", ("images",), 10_000),),
        source="https://github.com/deeplearning-wisc/large_scale_ood (iNaturalist.tar.gz)",
        licence="each photographer's own, most of them non-commercial",
    ),
    Benchmark(
        key="textures",
        title="Textures",
        role="OOD",
        group="Far",
        folder="dtd",
        splits=(Split("test", ("images", "dtd_images"), 5_160),),
        lists=("textures_datalist.txt", "texture.txt"),
        list_source="https://github.com/haoqiwang/vim (datalists/texture.txt)",
        source="https://www.robots.ox.ac.uk/~vgg/data/dtd/ (dtd-r1.0.1.tar.gz)",
        licence="for research",
        note="The list leaves out the four of DTD's 47 classes that ImageNet has too.",
    ),
    Benchmark(
        key="colonoscopy",
        title="Colonoscopy",
        role="OOD",
        group="Far",
        folder="colonoscopy",
        splits=(Split("test", ("images",), 12_312),),
        source="`sirc data colonoscopy`, from http://www.depeca.uah.es/colonoscopy_dataset/",
    ),
    Benchmark(
        key="colorectal",
        title="Colorectal",
        role="OOD",
        group="Far",
        folder="Kather_texture_2016_image_tiles_5000",
        splits=(Split("test", (".",), 5_000),),
        scaled="lanczos",
        source="https://zenodo.org/records/53169 (Kather_texture_2016_image_tiles_5000.zip)",
        licence="CC BY 4.0",
        note="Its images are 150 pixels wide: they are scaled with Lanczos to the network's size, and not cropped.",
    ),
    Benchmark(
        key="noise",
        title="Noise",
        role="OOD",
        group="Far",
        folder="noise",
        splits=(Split("test", ("images",), 10_000),),
        source="`sirc data noise`, or made as it is read, without files",
    ),
    Benchmark(
        key="imagenet-o",
        title="ImageNet-O",
        role="OOD",
        folder="imagenet-o",
        splits=(Split("test", (".",), 2_000),),
        source="https://github.com/hendrycks/natural-adv-examples (imagenet-o.tar)",
        licence=_IMAGENET,
    ),
)


def benchmarks() -> tuple[Benchmark, ...]:
    """List all benchmarks: the ID sets, then the OOD sets in the order of the paper's columns."""
    return _BENCHMARKS


def benchmark(name: str) -> Benchmark:
    """Find a benchmark by its key or title, in any case; the error for another name lists them and the closest."""
    wanted = name.strip().lower()
    for known in _BENCHMARKS:
        if wanted in (known.key, known.title.lower()):
            return known
    raise ValueError(unknown_name("`name`", name, [known.key for known in _BENCHMARKS]))


def ood_sets(id_name: str) -> tuple[Benchmark, ...]:
    """List the OOD sets of an ID set, in the order of the paper's columns, without those that share its classes."""
    chosen = benchmark(id_name)
    if chosen.role != "ID":
        known = ", ".join(one.key for one in _BENCHMARKS if one.role == "ID")
        raise ValueError(f"`id_name` must be an ID set, one of {known}; got {id_name!r}, which is an OOD set.")
    return tuple(one for one in _BENCHMARKS if one.role == "OOD" and chosen.key not in one.overlaps)


def unknown_name(what: str, name: str, known: Sequence[str]) -> str:
    """Word the error for an unknown name: the known ones, and the closest."""
    return f"{what} must be one of {', '.join(known)}; got {name!r}.{closest(name, known)}"
