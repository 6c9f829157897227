"""Write the folders of images of the ImageNet studies from repositories and packages that the reader downloaded.

Run it from the repository's root: python -m studies.tools.folders imagenet_1k DOWNLOADS --out data/imagenet_1k, and
likewise imagenet_20. studies/imagenet_1k/README.md says what to download, and which classes are left out and why.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import random
import sys
import zipfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from PIL import Image

from sirc.data import to_rgb

ENDINGS = (".jpg", ".jpeg", ".png", ".webp")
MOST = 1000
"""Images of an OOD set, chosen at random with the seed 0."""
VALIDATION = "Small-ImageNet-Validation-Dataset-1000-Classes"
SAMPLES = "imagenet-sample-images"


@dataclass(frozen=True)
class Picture:
    """An image to be written: its file, in an archive or by itself, and its class."""

    file: Path
    kind: str
    member: str = ""

    @property
    def name(self) -> str:
        """The name of the written file; the folder before it tells apart files of one name."""
        path = Path(self.member) if self.member else self.file
        return f"{path.stem}.jpg"

    def open(self) -> Image.Image:
        """Decode the image."""
        if not self.member:
            return Image.open(self.file)
        with zipfile.ZipFile(self.file) as archive:
            return Image.open(io.BytesIO(archive.read(self.member)))


def write(picture: Picture, folder: Path, side: int) -> None:
    """Write an image as RGB JPEG of quality 95; its shorter side is at most `side` pixels."""
    with picture.open() as image:
        image.draft("RGB", (2 * side, 2 * side))  # a JPEG far larger than that is decoded at a fraction of its size
        rgb = to_rgb(image)
        scale = side / min(rgb.size)
        if scale < 1:
            width, height = (max(side, round(length * scale)) for length in rgb.size)
            rgb = rgb.resize((width, height), Image.Resampling.BICUBIC, reducing_gap=3)
        target = folder / picture.kind / picture.name
        target.parent.mkdir(parents=True, exist_ok=True)
        rgb.save(target, quality=95)


def some(pictures: Sequence[Picture], most: int = MOST) -> list[Picture]:
    """At most so many of them, chosen at random, in their old order."""
    chosen = random.Random(0).sample(range(len(pictures)), min(most, len(pictures)))
    return [pictures[i] for i in sorted(chosen)]


def once(pictures: Iterable[Picture]) -> list[Picture]:
    """The first of those with one name: PlantDoc has a few images twice."""
    return list({(picture.kind, picture.name): picture for picture in reversed(list(pictures))}.values())[::-1]


def classes(folder: Path, *, without: Iterable[str] = (), only: Iterable[str] = ()) -> list[Picture]:
    """The images of a folder of classes, by name; `without` some classes, or `only` some."""
    dropped, kept = set(without), set(only)
    names = {path.name for path in folder.iterdir() if path.is_dir()}
    if missing := sorted((dropped | kept) - names):
        raise ValueError(f"'{folder}' must have the classes {', '.join(missing)}; it does not. Is the download whole?")
    chosen = sorted(kept or names - dropped)
    return [
        Picture(file, kind)
        for kind in chosen
        for file in sorted((folder / kind).iterdir())
        if file.suffix.lower() in ENDINGS
    ]


# ID


def imagenet_1k(downloads: Path) -> dict[str, list[Picture]]:
    """ImageNet-1k: of each class three images to fit on, one to validate on and two to test on.

    One image to fit on is a training image; the other five are of ImageNet's validation set, by number.
    """
    sets: dict[str, list[Picture]] = {"train": [], "validation": [], "test": []}
    for kind, files in _validation_images(downloads):
        (sample,) = (downloads / SAMPLES).glob(f"{kind}_*.JPEG")
        sets["train"] += [Picture(file, kind) for file in (sample, *files[:2])]
        sets["validation"] += [Picture(file, kind) for file in files[2:3]]
        sets["test"] += [Picture(file, kind) for file in files[3:]]
    return sets


def imagenet_20(downloads: Path) -> dict[str, list[Picture]]:
    """The ten classes of Imagenette and the ten of Imagewoof, as their authors divided them."""
    sets = {
        name: [
            picture
            for repository in ("imagenette", "imagewoof2-320")
            for picture in _jpegs(downloads / repository / folder)
        ]
        for name, folder in (("train", "train"), ("test", "val"))
    }
    kinds = {picture.kind for picture in sets["train"]}
    others = [
        Picture(file, kind)
        for index, (kind, files) in enumerate(_validation_images(downloads))
        if kind not in kinds and index not in NEAR_20
        for file in files
    ]
    return {**sets, "imagenet-other": others}


NEAR_20 = {*range(151, 276), 442, 481, 485, 513, 663, 668, 675, 848, 864, 867, 875}
"""Classes of ImageNet-1k that resemble the 20: all dogs and wild dogs; then bell cote, cassette, CD player, cornet,
monastery, mosque, moving van, tape player, tow truck, trailer truck and trombone."""


def _validation_images(downloads: Path) -> list[tuple[str, list[Path]]]:
    """ImageNet's classes in order, with the files of each."""
    folder = downloads / VALIDATION
    names = json.loads((folder / "imagenet_class_index.json").read_text(encoding="utf-8"))
    kinds = [names[str(index)][0] for index in range(len(names))]
    if kinds != sorted(kinds):
        raise ValueError("ImageNet's classes must be in the order of their names; they are not")
    return [
        (kind, sorted((folder / "ILSVRC2012_img_val_subset" / str(index)).glob("*.JPEG")))
        for index, kind in enumerate(kinds)
    ]


def _jpegs(folder: Path) -> list[Picture]:
    return [Picture(file, file.parent.name) for file in sorted(folder.glob("*/*.JPEG"))]


# OOD

FLOWERS = {
    "hard-leaved pocket orchid": "2, beside ImageNet's yellow lady's slipper",
    "spear thistle": "14, beside its cardoon",
    "artichoke": "29",
    "barbeton daisy": "41, beside its daisy",
    "oxeye daisy": "49",
    "osteospermum": "66, an African daisy",
}
CALTECH = (
    *("anchor", "bass", "brain", "brontosaurus", "buddha", "dollar_bill", "dolphin", "garfield", "headphone"),
    *("helicopter", "inline_skate", "joshua_tree", "lotus", "metronome", "octopus", "okapi", "pigeon", "pyramid"),
    *("rhino", "scissors", "sea_horse", "snoopy", "stapler", "stegosaurus", "sunflower", "water_lilly", "wheelchair"),
    *("wrench", "yin_yang"),
)
PLANTS = ("Apple", "Bell_pepper", "Corn", "Squash", "Strawberry")
"""Plants whose fruit is a class of ImageNet-1k."""
TEXTURES = ("bubbly", "cobwebbed")
"""Textures that are classes of ImageNet-1k: a bubble, a spider's web."""


def flowers(downloads: Path) -> list[Picture]:
    """Flowers-102 without the kinds of `FLOWERS`."""
    folder = downloads / "Flower-Classifier"
    names = json.loads((folder / "cat_to_name.json").read_text(encoding="utf-8"))
    kept = [number for number, name in names.items() if name not in FLOWERS]
    return [picture for part in ("train", "valid") for picture in classes(folder / "flowers" / part, only=kept)]


def plantdoc(downloads: Path) -> list[Picture]:
    """PlantDoc without the plants of `PLANTS`."""
    folder = downloads / "PlantDoc-Dataset"
    found = [picture for part in ("train", "test") for picture in classes(folder / part)]
    return [picture for picture in found if not picture.kind.startswith(PLANTS)]


def caltech(downloads: Path) -> list[Picture]:
    """The categories of Caltech-101 that neither are nor resemble a class of ImageNet-1k."""
    return classes(downloads / "Homework2-Caltech101" / "101_ObjectCategories", only=CALTECH)


def textures(downloads: Path) -> list[Picture]:
    """The classes of the Describable Textures Dataset that the repository has, without those of `TEXTURES`."""
    return classes(downloads / "DeepTexture" / "images", without=TEXTURES)


def chest_xray(downloads: Path) -> list[Picture]:
    """Chest radiographs, without the tomographies among them."""
    folder = downloads / "covid-chestxray-dataset"
    with (folder / "metadata.csv").open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["modality"] == "X-ray"]
    files = sorted({folder / row["folder"] / row["filename"] for row in rows})
    return [Picture(file, "xray") for file in files if file.is_file() and file.suffix.lower() in ENDINGS]


def solar_cells(downloads: Path) -> list[Picture]:
    """Electroluminescence images of solar cells, in the wheel elpv-dataset."""
    (wheel,) = downloads.glob("elpv_dataset-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return [Picture(wheel, "cell", name) for name in sorted(archive.namelist()) if name.endswith(".png")]


def svhn(downloads: Path) -> list[Picture]:
    """Cropped digits of Street View House Numbers, as image files in a folder `svhn`."""
    return [
        Picture(file, "digit") for file in sorted((downloads / "svhn").rglob("*")) if file.suffix.lower() in ENDINGS
    ]


OOD = {
    "flowers": flowers,
    "plantdoc": plantdoc,
    "caltech": caltech,
    "textures": textures,
    "chest-xray": chest_xray,
    "solar-cells": solar_cells,
    "svhn": svhn,
}
STUDIES = {"imagenet_1k": (imagenet_1k, 352), "imagenet_20": (imagenet_20, 160)}
"""The ID images of a study, and the shorter side of all its images: no TOML of it resizes them to more."""


def prepare(study: str, downloads: Path, out: Path, *, workers: int) -> None:
    """Write all sets of a study."""
    inside, side = STUDIES[study]
    sets = {**inside(downloads), **{name: some(once(find(downloads))) for name, find in OOD.items()}}
    for name, pictures in sets.items():
        if not pictures:
            raise ValueError(f"there must be images for '{name}' in '{downloads}'; there are none")
        with ProcessPoolExecutor(workers) as pool:
            list(pool.map(partial(write, folder=out / name, side=side), pictures, chunksize=16))
        kinds = len({picture.kind for picture in pictures})
        print(f"{out / name}: {len(pictures)} images of {kinds} kinds", file=sys.stderr)


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", choices=STUDIES)
    parser.add_argument("downloads", type=Path, help="the folder with the repositories and packages")
    parser.add_argument("--out", type=Path, required=True, help="the folder for the images")
    parser.add_argument("--workers", type=int, default=2, help="processes (default: 2)")
    options = parser.parse_args(arguments)
    try:
        prepare(options.study, options.downloads, options.out, workers=options.workers)
    except (ValueError, OSError) as error:
        parser.exit(1, f"{parser.prog}: {error}\n")


if __name__ == "__main__":
    main()
