"""Callables for engines that map over batches, such as Ray Data: they decide about images, or score outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from os import PathLike as AnyPath
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, final

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from sirc._utils.checks import check_type, iterates
from sirc._utils.files import PathLike
from sirc._utils.text import quoted, shorten
from sirc.data import DatasetReader, Preprocess, printable, read_image
from sirc.deploy.predict import COLUMNS, Decider, DecisionRows
from sirc.deploy.selective import SelectiveClassifier
from sirc.errors import ImageError
from sirc.outputs import Outputs
from sirc.scores import Scorer

if TYPE_CHECKING:
    import pandas as pd

Batch: TypeAlias = Mapping[str, Any]
"""Columns by name: a dict of arrays, or a data frame."""
_TEXTS = ("class", "reason", "error")


class DecideImages:
    """Decides about batches of encoded images. It keeps the other columns and adds those of `sirc predict`.

    ```python
    photos = ray.data.read_binary_files("photos", include_paths=True)
    photos.map_batches(DecideImages("model.onnx"), batch_size=64).write_parquet("decisions")
    ```

    `classifier` is a calibrated classifier, a function that loads one, or the path of an exported graph, which must be
    on every machine. `column` holds the bytes of image files, or dicts with these as `bytes`; with several columns, a
    row has its image in one of them. An image that cannot be read gets an error and is not accepted. `keep` names the
    columns to keep, by default all except those of the images.
    """

    def __init__(
        self,
        classifier: SelectiveClassifier | PathLike | Callable[[], SelectiveClassifier],
        column: str | Sequence[str] = "bytes",
        *,
        keep: Sequence[str] | None = None,
        preprocess: Preprocess | None = None,
    ) -> None:
        self.classifier, self.preprocess = classifier, preprocess
        self.columns = _names("column", column)
        self.keep = None if keep is None else _names("keep", keep)

    @cached_property
    def _decider(self) -> Decider:
        # Loaded with the first batch, as this object is first sent to other machines.
        classifier = self.classifier
        if callable(classifier) and not isinstance(classifier, SelectiveClassifier):
            classifier = classifier()
        return Decider(classifier, self.preprocess, batch_size=1 << 30, threads=torch.get_num_threads())

    def __call__(self, batch: Batch) -> pd.DataFrame:
        """Decide about one batch, all of it in one forward pass."""
        import pandas as pd

        _check_columns(batch)
        columns = [name for name in self.columns if name in batch]
        kept = [name for name in batch if name not in columns] if self.keep is None else self.keep
        missing = [name for name in kept if name not in batch] if columns else ["` or `".join(self.columns)]
        if missing:
            has = shorten(", ".join(map(str, batch)))
            raise ValueError(f"batches must have a column `{missing[0]}`; these have {has}")
        if clash := [name for name in kept if name in COLUMNS[1:]]:
            raise ValueError(
                f"decisions have a column `{clash[0]}` of their own, and these batches have one too. Rename it, or "
                "name the columns to keep, `keep=[…]`"
            )
        names = next((list(batch[name]) for name in ("path", "__key__") if name in batch), None)
        images = _Images([*zip(*(batch[name] for name in columns), strict=True)], names, self._decider)
        rows: DecisionRows = {}
        for reading in DatasetReader(images, self._decider.batch_size).read([range(len(images))]):
            rows |= self._decider.rows(reading)
        decisions = self._decider.table(rows).astype(dict.fromkeys(_TEXTS, "string"))  # even if all are missing
        others = {name: pd.Series(list(batch[name]), dtype=getattr(batch[name], "dtype", None)) for name in kept}
        return pd.concat([pd.DataFrame(others), decisions], axis=1)


def _names(argument: str, given: str | Sequence[str]) -> list[str]:
    """Column names as a list, from one name or several."""
    names: list[Any] = list(given) if iterates(given) and not isinstance(given, str) else [given]
    if not all(isinstance(name, str) for name in names):
        raise ValueError(f"`{argument}` must be the name of a column, or a list of names; got {quoted(given)}")
    return names


def _check_columns(batch: object) -> None:
    if not (hasattr(batch, "keys") and hasattr(batch, "__getitem__")):
        raise ValueError(f"a batch must be columns by name, a dict or a data frame; got {type(batch).__name__}")


@final
class _Images(Dataset[Tensor]):
    """Encoded images, each in one cell of its row, decoded and prepared for the network."""

    def __init__(self, rows: Sequence[tuple[Any, ...]], names: Sequence[object] | None, decider: Decider) -> None:
        self._rows, self._names, self._decider = rows, names, decider

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Tensor:
        name = f"row {index} of its batch" if self._names is None else str(self._names[index])
        for cell in self._rows[index]:
            data = cell.get("bytes") if isinstance(cell, Mapping) else cell
            if isinstance(data, bytes | bytearray | memoryview):
                return self._decider.prepare(read_image(name, bytes(data)))
        kinds = ", ".join(type(cell).__name__ for cell in self._rows[index])
        raise ImageError(f"image '{printable(name)}' must be the bytes of a file; got {kinds}")


@final
class ScoreOutputs:
    """Scores batches of outputs, which have a column `logits` and, if a score needs it, `features`.

    It keeps the other columns and adds `prediction` and one column for each score. `scorer` is a `Scorer`, or the path
    of one, which must be on every machine.
    """

    def __init__(self, scorer: Scorer | PathLike) -> None:
        check_type("scorer", scorer, Scorer | str | AnyPath, "a `sirc.Scorer`, or the path of one")
        self.scorer = scorer

    @cached_property
    def _scorer(self) -> Scorer:
        return self.scorer if isinstance(self.scorer, Scorer) else Scorer.load(Path(self.scorer))

    def __call__(self, batch: Batch) -> dict[str, Any]:
        """The confidences of one batch."""
        _check_columns(batch)
        arrays = {name: np.stack(list(batch[name])) for name in ("logits", "features") if name in batch}
        outputs = Outputs.of(arrays)
        others = {name: values for name, values in batch.items() if name not in arrays}
        if clash := [name for name in ("prediction", *self._scorer.specs) if name in others]:
            raise ValueError(
                f"confidences come with a column `{clash[0]}` of their own, and these batches have one too. Rename it"
            )
        scored = {"prediction": outputs.predictions, **self._scorer(outputs)}
        return {**others, **{name: values.numpy() for name, values in scored.items()}}
