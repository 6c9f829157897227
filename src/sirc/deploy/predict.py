"""A folder of images to a table of decisions: one row for each image, in sorted order, broken ones included."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, final

import pandas as pd
from torch import Tensor

from sirc._utils.checks import check_positive
from sirc._utils.files import PathLike, atomic_write, refuse_existing
from sirc.data import DatasetReader, FileNames, FileSet, IndexedBatch, Preprocess, image_folder, printable
from sirc.deploy.onnx_model import Deployed
from sirc.deploy.selective import SelectiveClassifier
from sirc.deploy.serve.images import check_pixels
from sirc.errors import ImageError, NotFittedError
from sirc.progress import SILENT, Progress

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["COLUMNS", "decisions", "predict_folder", "save_decisions"]

_PIXELS = 178_956_970  # what PIL decodes at most


class Row(NamedTuple):
    """What is said of one image."""

    path: str
    """Relative to the folder, with forward slashes."""
    accepted: bool
    label: int | None
    name: str | None
    """The class, where classes have names."""
    confidence: float | None
    reason: str
    """Of a rejection: "softmax", or the S2 that took the confidence away; an exported graph tells only "rejected"."""
    error: str
    """Why the image could not be read."""


COLUMNS = ["path", "accepted", "label", "class", "confidence", "reason", "error"]


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
    """The rows of `predict_folder` as they are found, batch by batch."""
    decider = _Module(classifier) if isinstance(classifier, SelectiveClassifier) else _Graph(classifier)
    how = preprocess or decider.preprocess
    if how is None:
        raise ValueError(
            "images must be prepared as the model was trained; this classifier does not say how. Pass `preprocess=` "
            "here, or to `SelectiveClassifier`"
        )
    found = image_folder(folder, labelled=False)
    names = sorted(found._names)
    images = FileSet(found.root, FileNames(names), name=found.name, transform=_Prepared(how))
    # Images of different sizes make no batch.
    one_size = how.crop is not None or isinstance(how.resize, tuple)
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
            yield from _rows_of(decider, reading, names, root, alone=plan.batch_size == 1 and not one_size)
            task.advance(len(reading.index) + len(reading.lost))


def _rows_of(
    decider: _Module | _Graph, reading: IndexedBatch, names: list[str], root: Path, *, alone: bool
) -> list[Row]:
    """Ask about a batch; `alone`: one image of any size, which the model may be unable to take."""
    for lost in reading.lost:
        if lost.fatal and os.access(root / names[lost.index], os.R_OK):  # else it went away, or is not for us to read
            which = printable(names[lost.index])
            raise OSError(f"'{which}' could not be read, for a reason that is not its own: {lost.why}")
    rows = {lost.index: _broken(names[lost.index], lost.why) for lost in reading.lost}
    if reading.index:
        assert isinstance(reading.batch, Tensor)
        try:
            answers = decider.decide(reading.batch)
        except (ImageError, RuntimeError) as error:
            if isinstance(error, RuntimeError) and not alone:
                raise  # not an image's fault
            rows |= {index: _broken(names[index], str(error)) for index in reading.index}
        else:
            for index, answer in zip(reading.index, answers, strict=True):
                accepted, label, confidence, reason = answer
                name = None if decider.classes is None else decider.classes[label]
                rows[index] = Row(printable(names[index]), accepted, label, name, confidence, reason, "")
    return [rows[index] for index in sorted(rows)]


def _broken(name: str, why: str) -> Row:
    return Row(printable(name), False, None, None, None, "", why)


_Answer = tuple[bool, int, float, str]


@final
class _Module:
    """Asks a calibrated classifier."""

    def __init__(self, classifier: SelectiveClassifier) -> None:
        if classifier.threshold is None:
            raise NotFittedError("there is no threshold yet: call `calibrate(val, recall=0.95)` first")
        self.classifier, self.preprocess, self.classes = classifier, classifier.preprocess, classifier.classes

    def decide(self, images: Tensor) -> list[_Answer]:
        found, reasons = self.classifier.explain(images)
        columns = (found.accepted.tolist(), found.label.tolist(), found.confidence.tolist(), reasons)
        return list(zip(*columns, strict=True))


@final
class _Graph:
    """Asks an exported graph, which does not tell what drove a rejection."""

    def __init__(self, path: PathLike) -> None:
        if not isinstance(path, str | Path):
            kind = type(path).__name__
            raise ValueError(f"`classifier` must be a SelectiveClassifier or the path of an exported graph; got {kind}")
        self.model = Deployed(path)
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
class _Prepared:
    """The preprocessing, for images that it would not blow up."""

    def __init__(self, preprocess: Preprocess) -> None:
        self.preprocess = preprocess
        self.steps = preprocess.test()

    def __call__(self, image: Image) -> Tensor:
        try:
            check_pixels(image.size, self.preprocess, _PIXELS)
        except ImageError as error:
            raise ImageError(f"it {error}") from error
        return self.steps(image)
