"""Datasets of images: folders, file lists, torchvision's, the paper's benchmarks, and Noise, which needs no files.

Example:
    >>> from sirc import data
    >>> data.benchmark("textures").licence
    'for research'
    >>> data.Noise(count=3, seed=0)[2].size
    (256, 256)
"""

from sirc.data.base import ImageSet
from sirc.data.catalogue.benchmarks import Benchmark, benchmark, benchmarks, ood_sets
from sirc.data.catalogue.colonoscopy import fetch_colonoscopy
from sirc.data.catalogue.public import PublicDataset, fetch_dataset, public_dataset, public_datasets
from sirc.data.check import DataReport, check
from sirc.data.decode import is_unknown, printable, read_image, reason_of, to_rgb
from sirc.data.device_cache import CachedImages, DeviceCache
from sirc.data.folder import FileNames, FileSet, file_list, image_folder
from sirc.data.glyphs import Glyphs
from sirc.data.noise import Noise, write_noise
from sirc.data.preprocess import Preprocess
from sirc.data.reading import (
    READ_ERRORS,
    DatasetReader,
    IndexedBatch,
    Reader,
    Unreadable,
    check_repeatable,
    data_fingerprint,
    reader_of,
    usable_workers,
)
from sirc.data.source import Source, class_names, eval_geometry, eval_transform, open_source, source_path

__all__ = [
    "READ_ERRORS",
    "Benchmark",
    "CachedImages",
    "DataReport",
    "DatasetReader",
    "DeviceCache",
    "FileNames",
    "FileSet",
    "Glyphs",
    "ImageSet",
    "IndexedBatch",
    "Noise",
    "Preprocess",
    "PublicDataset",
    "Reader",
    "Source",
    "Unreadable",
    "benchmark",
    "benchmarks",
    "check",
    "check_repeatable",
    "class_names",
    "data_fingerprint",
    "eval_geometry",
    "eval_transform",
    "fetch_colonoscopy",
    "fetch_dataset",
    "file_list",
    "image_folder",
    "is_unknown",
    "ood_sets",
    "open_source",
    "printable",
    "public_dataset",
    "public_datasets",
    "read_image",
    "reader_of",
    "reason_of",
    "source_path",
    "to_rgb",
    "usable_workers",
    "write_noise",
]
