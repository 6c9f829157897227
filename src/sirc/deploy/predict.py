"""Predictions for a folder: one row of decisions for each image, broken ones included."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, final

from torch import Tensor

from sirc._utils.checks import check_positive
from sirc._utils.files import PathLike, atomic_write, refuse_existing
from sirc._utils.text import as_csv
from sirc.data import DatasetReader, FileNames, FileSet, Preprocess, image_folder, printable
from sirc.deploy.onnx import OnnxModel
from sirc.deploy.selective import SelectiveClassifier
from sirc.errors import ImageError
from sirc.progress import SILENT, Progress

if TYPE_CHECKING:
    import pandas as pd
    from PIL.Image import Image

COLUMNS = ["path", "accepted", "label", "class", "confidence", "reason", "error"]
_PIXELS = 178_956_970  # what PIL decodes at most


def predict_folder(
    classifier: SelectiveClassifier | PathLike,
    folder: PathLike,
    *,
    preprocess: Preprocess | None = None,
    batch_size: int = 32,
    workers: int = 0,
    progress: Progress = SILENT,
) -> pd.DataFrame:
    """Decide about every image below a folder, by a calibrated classifier or the path of an exported graph.

    The columns are path, accepted, label, class, confidence, reason and error; rows are sorted by path. The reason of a
    rejection is "softmax", or the S2 that took the confidence away; an exported graph gives only "rejected". An image
    that cannot be read has its error, no label, and is not accepted. `preprocess` is needed where the classifier has
    none.
    """
    import pandas as pd

    if isinstance(classifier, str | Path):
        model: OnnxModel | SelectiveClassifier = OnnxModel(classifier)
    elif isinstance(classifier, SelectiveClassifier):
        classifier._check_threshold()
        model = classifier
    else:
        kind = type(classifier).__name__
        raise ValueError(f"`classifier` must be a SelectiveClassifier or the path of an exported graph; got {kind}")
    preprocess = preprocess or model.preprocess
    if preprocess is None:
        raise ValueError(
            "images must be prepared as the model was trained; this classifier does not say how. Pass `preprocess=` "
            "here, or to `SelectiveClassifier`"
        )
    files = image_folder(folder, labelled=False)
    names = sorted(files._names)
    prepare = partial(_prepare, preprocess=preprocess, steps=preprocess.test())
    images = FileSet(files.root, FileNames(names), name=files.name, transform=prepare)
    # Images of different sizes cannot form a batch.
    one_size = preprocess.crop is not None or isinstance(preprocess.resize, tuple)
    reader = DatasetReader(images, check_positive("batch_size", batch_size) if one_size else 1, workers)
    rows: dict[int, tuple[object, ...]] = {}
    with progress.task("predict", len(names)) as task:
        for reading in reader.read([range(len(names))]):
            for lost in reading.lost:
                # Else it was deleted, or may not be read.
                if lost.fatal and os.access(Path(files.root) / names[lost.index], os.R_OK):
                    name = printable(names[lost.index])
                    raise OSError(f"'{name}' could not be read, for a reason that is not its own: {lost.why}")
            broken = {lost.index: lost.why for lost in reading.lost}
            try:
                answers = _answers(model, reading.batch) if isinstance(reading.batch, Tensor) else []
            except (ImageError, RuntimeError) as error:
                # A model may be unable to take one image of any size; in a batch of equal sizes the fault is its own.
                if isinstance(error, RuntimeError) and one_size:
                    raise
                answers = []
                broken |= {index: str(error) for index in reading.index}
            for index, (accepted, label, confidence, reason) in zip(reading.index, answers, strict=False):
                rows[index] = (accepted, label, model.classes and model.classes[label], confidence, reason, "")
            rows |= {index: (False, None, None, None, "", why) for index, why in broken.items()}
            task.advance(len(reading.index) + len(reading.lost))
    table = pd.DataFrame([(printable(names[index]), *rows[index]) for index in sorted(rows)], columns=COLUMNS)
    return table.astype({"accepted": "bool", "label": "Int64", "confidence": "float64"})


def save_decisions(table: pd.DataFrame, path: PathLike, *, overwrite: bool = False) -> None:
    """Write the table as CSV, whole or not at all."""
    refuse_existing(path, overwrite)
    text = as_csv(table)
    atomic_write(path, lambda file: file.write(text.encode()))


def _answers(model: OnnxModel | SelectiveClassifier, images: Tensor) -> list[tuple[bool, int, float, str]]:
    """Accepted, label, confidence and reason for each image."""
    if isinstance(model, OnnxModel):
        array = images.numpy()
        model.check_size("the image", *array.shape[-2:])
        label, confidence, accepted = (column.tolist() for column in model(array))
        reasons = ["" if ok else "rejected" for ok in accepted]
    else:
        decision, reasons = model.explain(images)
        label, confidence, accepted = (column.tolist() for column in decision[:3])
    return list(zip(accepted, label, confidence, reasons, strict=True))


def _prepare(image: Image, preprocess: Preprocess, steps: Callable[[Image], Tensor]) -> Tensor:
    """Prepare an image, unless that would take too much memory."""
    check_pixels(image.size, preprocess, _PIXELS)
    return steps(image)


@final
class PixelsError(ImageError):
    """An image that would take more memory than it may."""


def check_pixels(size: tuple[int, int], preprocess: Preprocess, max_pixels: int) -> None:
    """Refuse an image that has too many pixels, or would have once its shorter side is scaled."""
    width, height = size
    if width * height > max_pixels:
        raise PixelsError(f"it has {width} × {height} pixels; at most {max_pixels:,} are taken. Scale it down")
    # One pixel high and a million wide, an image has few bytes; with the shorter side at 256 it would fill the memory.
    short, wanted = min(width, height), preprocess.resize
    if isinstance(wanted, int) and short and width * height * (wanted / short) ** 2 > max_pixels:
        raise PixelsError(f"it has {width} × {height} pixels, too narrow to be scaled to a shorter side of {wanted}")
