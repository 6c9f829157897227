"""Datasets of images: folders, file lists, torchvision's, the paper's benchmarks, and Noise, which needs no files."""

from sirc.data.base import ImageSet, check_seed
from sirc.data.catalogue import Benchmark, benchmark, benchmarks, ood_sets
from sirc.data.catalogue.colonoscopy import fetch_colonoscopy
from sirc.data.check import Report, check
from sirc.data.decode import missing_package, printable, to_rgb
from sirc.data.decoding import Lose
from sirc.data.device_cache import Held, Holding
from sirc.data.file_names import Names
from sirc.data.folder import FileSet, image_folder
from sirc.data.glyphs import Glyphs
from sirc.data.lists import file_list
from sirc.data.noise import Noise, write_noise
from sirc.data.preprocess import Preprocess, pixels
from sirc.data.reading import (
    UNREADABLE,
    Plan,
    Reader,
    Reading,
    Unreadable,
    check_repeatable,
    data_fingerprint,
    is_fatal,
    plan,
    usable_workers,
)
from sirc.data.source import Source, geometry_of, open_source, source_path, tested_with

__all__ = [
    "UNREADABLE",
    "Benchmark",
    "FileSet",
    "Glyphs",
    "Held",
    "Holding",
    "ImageSet",
    "Lose",
    "Names",
    "Noise",
    "Plan",
    "Preprocess",
    "Reader",
    "Reading",
    "Report",
    "Source",
    "Unreadable",
    "benchmark",
    "benchmarks",
    "check",
    "check_repeatable",
    "check_seed",
    "data_fingerprint",
    "fetch_colonoscopy",
    "file_list",
    "geometry_of",
    "image_folder",
    "is_fatal",
    "missing_package",
    "ood_sets",
    "open_source",
    "pixels",
    "plan",
    "printable",
    "source_path",
    "tested_with",
    "to_rgb",
    "usable_workers",
    "write_noise",
]
