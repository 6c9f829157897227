"""Predictions for a folder: one decision for each image, also for broken ones."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, final

from torch import Tensor

from sirc._utils import distributed
from sirc._utils.checks import check_path, check_positive, check_type
from sirc._utils.files import PathLike, atomic_write, content_digest, refuse_existing
from sirc._utils.parts import Parts
from sirc._utils.text import as_csv, first_line
from sirc.data import DatasetReader, FileNames, FileSet, IndexedBatch, Preprocess, image_folder, printable
from sirc.deploy.onnx import OnnxModel
from sirc.deploy.saved import contents
from sirc.deploy.selective import SelectiveClassifier
from sirc.errors import ImageError
from sirc.extraction import raise_fatal
from sirc.progress import Progress, as_progress

if TYPE_CHECKING:
    import pandas as pd
    from PIL.Image import Image

COLUMNS = ["path", "accepted", "label", "class", "confidence", "reason", "error"]
_DecisionRow: TypeAlias = tuple[bool, int | None, float | None, str, str]
DecisionRows: TypeAlias = dict[int, _DecisionRow]
"""Accepted, label, confidence, reason and error, by the number of the image."""
_PIXELS = 178_956_970  # the most that Pillow decodes


def predict_folder(
    classifier: SelectiveClassifier | PathLike,
    folder: PathLike,
    *,
    path: PathLike | None = None,
    overwrite: bool = False,
    preprocess: Preprocess | None = None,
    batch_size: int = 32,
    workers: int = 0,
    progress: Progress | bool | None = None,
) -> pd.DataFrame:
    """Decide about every image below a folder with a calibrated classifier, or with an exported graph by its path.

    The columns are path, accepted, label, class, confidence, reason and error; rows are sorted by path. The reason of a
    rejection is that of `SelectiveClassifier.explain`, or "rejected" from a graph that an earlier version exported. An
    image that cannot be read gets an error and no label, and is not accepted. `preprocess` is needed if the classifier
    has none.

    With `path` the table is written there as CSV. An interrupted call leaves its decisions in a hidden folder beside
    the file, and the same call resumes from them; `overwrite=True` replaces the file and starts again. Inside
    `sirc.distributed.process_group()` the processes share the images, and each returns the whole table.
    """
    distributed.require_joined("predict_folder")
    progress = as_progress(progress)
    path = None if path is None else check_path("path", path)
    decider = Decider(classifier, preprocess, batch_size)
    files = image_folder(folder, labelled=False)
    names = sorted(files._names)
    images = FileSet(files.root, FileNames(names), name=files.name, transform=decider.prepare)
    size = decider.batch_size
    parts: Parts | None = None
    rows: DecisionRows = {}
    if path is not None:
        work = {"batch": str(size), "preprocess": repr(decider.preprocess)}
        work["images"] = _digest_of_files(files.root, names)
        parts = Parts(path.with_name(f".{path.name}.parts"), work | {"classifier": _digest_of(classifier)})
        with distributed.failing_together():
            if overwrite and distributed.is_main():
                parts.remove()
        with distributed.failing_together():
            rows = dict(pair for _, about in parts.read() for pair in _loaded(about["rows"]))
            refuse_existing(path, overwrite or bool(rows))  # an interrupted call that was replacing a file may resume
    batches = [range(len(names))[start : start + size] for start in range(0, len(names), size)]
    mine = [batch for batch in batches if batch.start not in rows][distributed.rank() :: distributed.world()]
    with distributed.failing_together():
        done, total = len(rows), len(rows) + sum(map(len, mine))
        new: DecisionRows = {}
        with progress.task(distributed.of_process("predict"), total, done=done) as task, _saving(parts, new) as save:
            for reading in DatasetReader(images, size, workers).read(mine):
                # A file that is gone or unreadable is no failure of the machine.
                there = [item for item in reading.lost if os.access(images.path(item.index), os.R_OK)]
                raise_fatal(there, images.where)
                new |= decider.rows(reading)
                task.advance(len(reading.index) + len(reading.lost))
                save()
    for text in distributed.gather_texts(json.dumps([*new.items()])):
        rows |= _loaded(text)
    table = decider.table(rows)
    table.insert(0, "path", [printable(names[index]) for index in sorted(rows)])
    with distributed.failing_together():
        if path is not None and parts is not None and distributed.is_main():
            save_decisions(table, path, overwrite=True)
            parts.remove()
    return table


def save_decisions(table: pd.DataFrame, path: PathLike, *, overwrite: bool = False) -> None:
    """Write the table as CSV, atomically."""
    refuse_existing(path, overwrite)
    text = as_csv(table)
    atomic_write(path, lambda file: file.write(text.encode()))


def _digest_of(classifier: SelectiveClassifier | PathLike) -> str:
    """A digest of everything that a classifier's decisions depend on."""
    if isinstance(classifier, SelectiveClassifier):
        return content_digest(*contents(classifier))
    with open(classifier, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _digest_of_files(root: PathLike, names: Sequence[str]) -> str:
    """A digest of the images' names, sizes and modification times."""
    digest = hashlib.sha256()
    for name in names:
        digest.update(os.fsencode(name) + b"\0")
        with suppress(OSError):  # a dangling link is a broken image
            status = os.stat(Path(root, name))
            digest.update(f"{status.st_size} {status.st_mtime_ns}".encode())
    return digest.hexdigest()


def _loaded(text: str) -> list[tuple[int, _DecisionRow]]:
    return [(index, tuple(row)) for index, row in json.loads(text)]


@contextmanager
def _saving(parts: Parts | None, rows: Mapping[int, _DecisionRow]) -> Iterator[Callable[[], None]]:
    """Yield a function that saves new rows when it is time. If the work ends early, the rest is saved too."""
    count = 0

    def write() -> None:
        nonlocal count
        if parts is not None and (new := list(rows.items())[count:]):
            parts.write(new[0][0], {}, {"rows": json.dumps(new)})
            count = len(rows)

    try:
        yield lambda: write() if parts is not None and parts.due else None
    except BaseException:
        with suppress(OSError):
            write()
        raise


@final
class Decider:
    """A classifier or exported graph with its preprocessing; broken images get a row too."""

    def __init__(
        self,
        classifier: SelectiveClassifier | PathLike,
        preprocess: Preprocess | None = None,
        batch_size: int = 32,
        *,
        threads: int = 0,
    ) -> None:
        what = "a SelectiveClassifier or the path of an exported graph"
        check_type("classifier", classifier, SelectiveClassifier | str | os.PathLike, what)
        if isinstance(classifier, SelectiveClassifier):
            classifier._check_threshold()
            self._model: OnnxModel | SelectiveClassifier = classifier
        else:
            self._model = OnnxModel(classifier, threads=threads)
        chosen = preprocess or self._model.preprocess
        if chosen is None:
            raise ValueError(
                "images must be prepared as the model was trained; this classifier does not say how. Pass "
                "`preprocess=…`, or give the classifier a `preprocess` before it is saved"
            )
        self.preprocess, self._steps = chosen, chosen.test()
        # Images of different sizes cannot form a batch.
        self._one_size = chosen.crop is not None or isinstance(chosen.resize, tuple)
        self.batch_size = check_positive("batch_size", batch_size) if self._one_size else 1

    def prepare(self, image: Image) -> Tensor:
        """Prepare an image; refuse one that would take too much memory."""
        check_pixels(image.size, self.preprocess, _PIXELS)
        return self._steps(image)

    def rows(self, reading: IndexedBatch) -> DecisionRows:
        """The rows of a batch, by image number."""
        rows: DecisionRows = {item.index: (False, None, None, "", item.why) for item in reading.lost}
        if isinstance(reading.batch, Tensor):
            rows.update(zip(reading.index, self._decide(reading.batch), strict=True))
        return rows

    @contextmanager
    def refusing_sizes(self, images: Tensor) -> Iterator[None]:
        """Refuse images of a size that the model cannot take. If all have the same size, its errors are its own."""
        height, width = images.shape[-2:]
        if isinstance(self._model, OnnxModel):
            self._model.check_size("the image", height, width)
        try:
            yield
        except RuntimeError as error:
            if self._one_size:
                raise
            why = first_line(error)
            raise ImageError(f"the network cannot take an image of {width} × {height} pixels: {why}") from error

    def _decide(self, images: Tensor) -> list[_DecisionRow]:
        try:
            with self.refusing_sizes(images):
                decision, reasons = self._model.explain(images)
        except ImageError as error:
            return [(False, None, None, "", str(error))] * len(images)
        label, confidence, accepted = (column.tolist() for column in decision[:3])
        if reasons is None:  # a graph of an earlier version
            reasons = ["" if ok else "rejected" for ok in accepted]
        return list(zip(accepted, label, confidence, reasons, [""] * len(label), strict=True))

    def table(self, rows: DecisionRows) -> pd.DataFrame:
        """The rows as a table with class names, sorted by image number."""
        import pandas as pd

        classes = dict[int | None, str](enumerate(self._model.classes or ()))
        cells = [(accepted, label, classes.get(label), *rest) for _, (accepted, label, *rest) in sorted(rows.items())]
        table = pd.DataFrame(cells, columns=COLUMNS[1:])
        return table.astype({"accepted": "bool", "label": "Int64", "confidence": "float64"})


@final
class PixelsError(ImageError):
    """An image that would take too much memory."""


def check_pixels(size: tuple[int, int], preprocess: Preprocess, max_pixels: int) -> int:
    """Return an image's number of pixels before or after scaling, whichever is larger; refuse too many."""
    width, height = size
    if width * height > max_pixels:
        raise PixelsError(f"it has {width} × {height} pixels; at most {max_pixels:,} are taken. Scale it down")
    # An image one pixel high and a million wide is small; scaled to a shorter side of 256 it would fill the memory.
    short, wanted = min(width, height), preprocess.resize
    scaled = math.ceil(width * height * (wanted / short) ** 2) if isinstance(wanted, int) and short else 0
    if scaled > max_pixels:
        raise PixelsError(f"it has {width} × {height} pixels, too narrow to be scaled to a shorter side of {wanted}")
    return max(width * height, scaled)
