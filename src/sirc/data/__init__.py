"""Datasets of images: folders, file lists, torchvision's, the paper's benchmarks, and Noise, which needs no files."""

from sirc.data.base import ImageSet
from sirc.data.catalogue import (
    Benchmark,
    benchmark,
    benchmarks,
    ood_sets,
)
from sirc.data.catalogue.colonoscopy import fetch_colonoscopy
from sirc.data.check import Report, check
from sirc.data.folder import image_folder
from sirc.data.glyphs import Glyphs
from sirc.data.lists import file_list
from sirc.data.noise import Noise, write_noise
from sirc.data.source import Source, open_source

__all__ = [
    "Benchmark",
    "Glyphs",
    "ImageSet",
    "Noise",
    "Report",
    "Source",
    "benchmark",
    "benchmarks",
    "check",
    "fetch_colonoscopy",
    "file_list",
    "image_folder",
    "ood_sets",
    "open_source",
    "write_noise",
]
