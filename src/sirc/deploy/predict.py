"""Predictions for a folder: one row of decisions for each image, broken ones included."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, final

from torch import Tensor

from sirc._utils.checks import check_positive
from sirc._utils.files import PathLike, atomic_write, refuse_existing
from sirc.data import DatasetReader, FileNames, FileSet, IndexedBatch, Preprocess, image_folder, printable
from sirc.deploy.onnx_model import OnnxModel
from sirc.deploy.selective import SelectiveClassifier
from sirc.errors import ImageError, NotFittedError
from sirc.progress import SILENT, Progress

if TYPE_CHECKING:
    import pandas as pd
    from PIL.Image import Image

COLUMNS = ["path", "accepted", "label", "class", "confidence", "reason", "error"]
_PIXELS = 178_956_970  # what PIL decodes at most


class Row(NamedTuple):
    """The decision about one image."""

    path: str
    """Relative to the folder, with forward slashes."""
    accepted: bool
    label: int | None
    name: str | None
    """The class, if classes have names."""
    confidence: float | None
    reason: str
    """Of a rejection: "softmax", or the S2 that took the confidence away; an exported graph gives only "rejected"."""
    error: str
    """The reason why the image could not be read."""


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

    The columns are path, accepted, label, class, confidence, reason and error; rows are sorted by path. An image that
    cannot be read has its error, no label, and is not accepted. `preprocess` is needed where the classifier has none.
    """
    import pandas as pd

    rows = decisions(
        classifier, folder, preprocess=preprocess, batch_size=batch_size, workers=workers, progress=progress
    )
    table = pd.DataFrame(list(rows), columns=COLUMNS)
    return table.astype({"accepted": "bool", "label": "Int64", "confidence": "float64"})


def decisions(
    classifier: SelectiveClassifier | PathLike,
    folder: PathLike,
    *,
    preprocess: Preprocess | None = None,
    batch_size: int = 32,
    workers: int = 0,
    progress: Progress = SILENT,
) -> Iterator[Row]:
    """The rows of `predict_folder`, batch by batch."""
    decider = _Module(classifier) if isinstance(classifier, SelectiveClassifier) else _Graph(classifier)
    preprocess = preprocess or decider.preprocess
    if preprocess is None:
        raise ValueError(
            "images must be prepared as the model was trained; this classifier does not say how. Pass `preprocess=` "
            "here, or to `SelectiveClassifier`"
        )
    found = image_folder(folder, labelled=False)
    names = sorted(found._names)
    images = FileSet(found.root, FileNames(names), name=found.name, transform=_Prepare(preprocess))
    # Images of different sizes cannot form a batch.
    one_size = preprocess.crop is not None or isinstance(preprocess.resize, tuple)
    plan = DatasetReader(images, check_positive("batch_size", batch_size) if one_size else 1, workers)
    return _rows(decider, plan, names, Path(found.root), one_size, progress)


def save_decisions(table: pd.DataFrame, path: PathLike, *, overwrite: bool = False) -> None:
    """Write the table as CSV, whole or not at all."""
    refuse_existing(path, overwrite)
    text = table.to_csv(index=False, lineterminator="\n")
    atomic_write(path, lambda file: file.write(text.encode()))


def _rows(
    decider: _Module | _Graph, plan: DatasetReader, names: list[str], root: Path, one_size: bool, progress: Progress
) -> Iterator[Row]:
    with progress.task("predict", len(names)) as task:
        for reading in plan.read([range(len(names))]):
            yield from _rows_of(decider, reading, names, root, one_size)
            task.advance(len(reading.index) + len(reading.lost))


def _rows_of(
    decider: _Module | _Graph, reading: IndexedBatch, names: list[str], root: Path, one_size: bool
) -> list[Row]:
    for lost in reading.lost:
        if lost.fatal and os.access(root / names[lost.index], os.R_OK):  # else it was deleted, or may not be read
            broken = printable(names[lost.index])
            raise OSError(f"'{broken}' could not be read, for a reason that is not its own: {lost.why}")
    rows = {lost.index: _broken(names[lost.index], lost.why) for lost in reading.lost}
    if reading.index:
        assert isinstance(reading.batch, Tensor)
        try:
            answers = decider.decide(reading.batch)
        except (ImageError, RuntimeError) as error:
            # A model may be unable to take one image of any size; in a batch of equal sizes the fault is the model's.
            if isinstance(error, RuntimeError) and one_size:
                raise
            rows |= {index: _broken(names[index], str(error)) for index in reading.index}
        else:
            for index, (accepted, label, confidence, reason) in zip(reading.index, answers, strict=True):
                name = None if decider.classes is None else decider.classes[label]
                rows[index] = Row(printable(names[index]), accepted, label, name, confidence, reason, "")
    return [rows[index] for index in sorted(rows)]


def _broken(name: str, error: str) -> Row:
    return Row(printable(name), False, None, None, None, "", error)


_Answer = tuple[bool, int, float, str]


@final
class _Module:
    """Decides by a calibrated classifier."""

    def __init__(self, classifier: SelectiveClassifier) -> None:
        if classifier.threshold is None:
            raise NotFittedError("there is no threshold yet: call `calibrate(val, recall=0.95)` first")
        self.classifier, self.preprocess, self.classes = classifier, classifier.preprocess, classifier.classes

    def decide(self, images: Tensor) -> list[_Answer]:
        decision, reasons = self.classifier.explain(images)
        columns = (decision.accepted.tolist(), decision.label.tolist(), decision.confidence.tolist(), reasons)
        return list(zip(*columns, strict=True))


@final
class _Graph:
    """Decides by an exported graph, which gives no reason for a rejection."""

    def __init__(self, path: PathLike) -> None:
        if not isinstance(path, str | Path):
            kind = type(path).__name__
            raise ValueError(f"`classifier` must be a SelectiveClassifier or the path of an exported graph; got {kind}")
        self.model = OnnxModel(path)
        self.preprocess, self.classes = self.model.preprocess, self.model.classes

    def decide(self, images: Tensor) -> list[_Answer]:
        array: Any = images.numpy()
        if not self.model.fits(array):
            wanted, got = (" × ".join(map(str, size)) for size in (self.model.size, array.shape[-2:]))
            raise ImageError(f"the graph takes images of {wanted} (height × width); prepared, it has {got}")
        label, confidence, accepted = (column.tolist() for column in self.model(array))
        rows = zip(accepted, label, confidence, strict=True)
        return [(ok, name, value, "" if ok else "rejected") for ok, name, value in rows]


@final
class _Prepare:
    """Prepares images, and refuses those that would take too much memory."""

    def __init__(self, preprocess: Preprocess) -> None:
        self._preprocess = preprocess
        self._steps = preprocess.test()

    def __call__(self, image: Image) -> Tensor:
        try:
            check_pixels(image.size, self._preprocess, _PIXELS)
        except PixelsError as error:
            raise ImageError(f"it {error}") from error
        return self._steps(image)


@final
class PixelsError(ImageError):
    """An image that would take more memory than it may."""


def check_pixels(size: tuple[int, int], preprocess: Preprocess, max_pixels: int) -> None:
    """Refuse an image that has too many pixels, or would have once its shorter side is scaled."""
    width, height = size
    if width * height > max_pixels:
        raise PixelsError(f"has {width} × {height} pixels; at most {max_pixels:,} are taken. Scale it down")
    # One pixel high and a million wide, an image has few bytes; with the shorter side at 256 it would fill the memory.
    short = min(width, height)
    if isinstance(preprocess.resize, int) and short:
        scale = preprocess.resize / short
        if width * scale * height * scale > max_pixels:
            raise PixelsError(
                f"has {width} × {height} pixels, too narrow to be scaled to a shorter side of {preprocess.resize}"
            )
