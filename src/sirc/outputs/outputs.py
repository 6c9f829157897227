"""Outputs: the logits of a model on a dataset, with features and labels where they are known."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Self, final

import torch
from torch import Tensor

from sirc._utils.arrays import ArrayLike, as_tensor, row_index
from sirc._utils.checks import (
    check_device,
    check_finite,
    check_floating,
    check_positive,
    check_same_device,
    check_same_length,
    check_shape,
    check_type,
    differences,
    dtype_name,
)
from sirc._utils.files import PathLike, is_npz, read_npz, read_safetensors, require_array, write_npz, write_safetensors
from sirc._utils.text import quoted
from sirc.errors import StoreError
from sirc.outputs.labels import as_columns

_FIELDS = ("logits", "features", "labels")
_FORMAT = "sirc.Outputs/1"
_MOST_TESTED, _FEWEST_TESTED = 256, 8  # rows that are tested for probabilities; with fewer, chance may explain them
_ROUNDING = 0.05  # relative error of the sum of a row of rounded probabilities


@dataclass(frozen=True)
class Layout:
    """The sizes and types of outputs; all parts of a dataset have the same."""

    num_classes: int
    num_features: int | None
    labels: bool
    dtype: torch.dtype
    features_dtype: torch.dtype | None


@final
@dataclass(frozen=True, init=False, eq=False, repr=False)
class Outputs:
    """Logits (n, K), features (n, L) and labels (n,) of the same n samples, validated once.

    Arrays come from torch, NumPy, JAX or pandas, and share their memory where possible. Logits and features are
    float16, bfloat16, float32 or float64, finite, on any device. Labels are columns of the logits, 0…K−1. If the
    dataset numbers or names its classes differently, pass `classes`, the dataset's label of each column.

    An `Outputs` is immutable. It has at least one row; a selection from it may be empty.

    Example:
        >>> import sirc
        >>> logits = [[2.0, 0.5], [0.1, 1.3], [0.7, 0.2]]
        >>> test = sirc.Outputs(logits, labels=["cat", "dog", "dog"], classes=["cat", "dog"])
        >>> test
        Outputs(3 rows, 2 classes, no features, labels, float64 on cpu)
        >>> test.correct.tolist(), len(test[:2]), len(test[test.correct])
        ([True, True, False], 2, 2)
    """

    logits: Tensor
    """The (n, K) logits v."""
    features: Tensor | None
    """The (n, L) features z that the last layer saw, or None."""
    labels: Tensor | None
    """The true columns as int64, or None."""

    def __init__(
        self,
        logits: ArrayLike,
        features: ArrayLike | None = None,
        labels: ArrayLike | None = None,
        *,
        classes: ArrayLike | None = None,
    ) -> None:
        v = as_tensor("logits", logits)
        single = "For a single sample, pass `logits[None]`."
        binary = "Give each class a column; a binary model's one logit v is the pair (0, v)."
        empty = "Was everything filtered out, or is the folder or the split empty?"
        check_shape("logits", v, n=1, K=2, hint=single if v.ndim == 1 else empty if v.shape[:1] == (0,) else binary)
        check_floating("logits", v)
        check_finite("logits", v)
        _refuse_probabilities(v)
        z = None
        if features is not None:
            z = as_tensor("features", features)
            mistaken = z.ndim == 1 and not z.is_floating_point()
            pooled = "Flatten or pool to one vector per sample first."
            check_shape("features", z, n=1, L=1, hint="Did you mean `labels`?" if mistaken else pooled)
            check_floating("features", z)
            check_same_length("features", z, "logits", v)
            check_same_device("features", z, "logits", v)
            check_finite("features", z)
        y = None if labels is None else as_columns(labels, v, classes)
        vars(self).update(logits=v, features=z, labels=y)

    @classmethod
    def _trusted(cls, logits: Tensor, features: Tensor | None = None, labels: Tensor | None = None) -> Self:
        """Wrap tensors that are already validated, without checks."""
        outputs = cls.__new__(cls)
        vars(outputs).update(logits=logits, features=features, labels=labels)
        return outputs

    def _tensors(self) -> dict[str, Tensor]:
        """The fields that are not None, by name."""
        return {field: value for field in _FIELDS if (value := getattr(self, field)) is not None}

    @classmethod
    def of(cls, batch: object) -> "Outputs":
        """Convert a batch: an `Outputs`, a dict with its fields, or (logits[, features[, labels]])."""
        if isinstance(batch, Outputs):
            return batch
        if isinstance(batch, Mapping) and "logits" in batch and set(batch) <= set(_FIELDS):
            return cls(**batch)
        if isinstance(batch, list | tuple) and 1 <= len(batch) <= len(_FIELDS):
            return cls(*batch)
        got = type(batch).__name__
        if isinstance(batch, list | tuple | Mapping):
            got += f" of {quoted(list(batch)) if isinstance(batch, Mapping) else f'{len(batch)} items'}"
        raise ValueError(
            "a batch must be an `Outputs`, a dict with `logits` and perhaps `features` and `labels`, or (logits[, "
            f"features[, labels]]); got a {got}. Wrap whole arrays: `sirc.Outputs(logits, features, labels)`."
        )

    @classmethod
    def cat(cls, parts: "Sequence[Outputs]") -> "Outputs":
        """Join the rows of all `parts`, in order, into one `Outputs`."""
        check_type("parts", parts, list | tuple, "a list of `Outputs`")
        for number, part in enumerate(parts):
            check_type(f"parts[{number}]", part, Outputs, "an `Outputs`")
        if len(parts) == 0:
            raise ValueError("`cat` must get at least one `Outputs`; got none. Check that there are batches.")
        first, *others = parts
        for number, other in enumerate(others, start=1):
            if differing := differences(vars(first.layout), vars(other.layout)):
                raise ValueError(
                    f"the parts of `cat` must have the same sizes and types; part {number} differs from part 0: "
                    f"{differing}. Convert with `.to(dtype=…)`, or drop what only some have."
                )
        if not others:
            return first
        whole = cls._trusted(
            **{field: torch.cat([getattr(part, field) for part in parts]) for field in first._tensors()}
        )
        _refuse_probabilities(whole.logits)  # parts of a few rows were not tested
        return whole

    @cached_property
    def predictions(self) -> Tensor:
        """The column of the largest logit of each row, int64; computed on first use.

        Example:
            >>> import sirc
            >>> sirc.Outputs([[2.0, 0.5], [0.1, 1.3]]).predictions
            tensor([0, 1])
        """
        return self.logits.argmax(-1)

    @property
    def correct(self) -> Tensor:
        """Whether each prediction equals its label; a `ValueError` if there are no labels.

        Example:
            >>> import sirc
            >>> sirc.Outputs([[2.0, 0.5], [0.1, 1.3]], labels=[0, 0]).correct
            tensor([ True, False])
        """
        if self.labels is None:
            raise ValueError(
                "`correct` must have labels to compare with; these outputs have none. "
                "Give `labels`; in Python `Outputs(logits, features, labels)`."
            )
        return self.predictions == self.labels

    @property
    def num_classes(self) -> int:
        """K, the number of logits per sample."""
        return self.logits.shape[1]

    @property
    def num_features(self) -> int | None:
        """L, the number of features per sample, or None without features."""
        return None if self.features is None else self.features.shape[1]

    @property
    def device(self) -> torch.device:
        """The device of the tensors."""
        return self.logits.device

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the logits."""
        return self.logits.dtype

    @property
    def layout(self) -> "Layout":
        """The sizes and types, which another `Outputs` of the same dataset must share."""
        features_dtype = None if self.features is None else self.features.dtype
        return Layout(self.num_classes, self.num_features, self.labels is not None, self.dtype, features_dtype)

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> "Outputs":
        """Move to a device, or convert logits and features to a dtype; labels stay int64. No change returns self.

        Example:
            >>> import sirc, torch
            >>> test = sirc.Outputs([[2.0, 0.5], [0.1, 1.3]], labels=[0, 1])
            >>> test.to("cpu", torch.float32)
            Outputs(2 rows, 2 classes, no features, labels, float32 on cpu)
        """
        device = None if device is None else check_device(device)
        if dtype is not None:
            check_type("dtype", dtype, torch.dtype, "a torch.dtype")
            check_floating("dtype", dtype)
        moved = {}
        for field, x in self._tensors().items():
            moved[field] = x.to(device=device, dtype=None if field == "labels" else dtype)
            to = moved[field].dtype
            if to != x.dtype and torch.finfo(to).max < torch.finfo(x.dtype).max:
                check_finite(f"{field}.to({dtype_name(to)})", moved[field])
        unchanged = all(moved[field] is x for field, x in self._tensors().items())
        return self if unchanged else self._trusted(**moved)

    def __len__(self) -> int:
        return len(self.logits)

    def __getitem__(self, key: int | slice | ArrayLike) -> "Outputs":
        index = row_index(key, len(self), self.device)
        return self._trusted(**{field: x[index] for field, x in self._tensors().items()})

    def batches(self, batch_size: int) -> "Iterator[Outputs]":
        """Iterate in order over views of at most `batch_size` rows."""
        size = check_positive("batch_size", batch_size)
        return (self[start : start + size] for start in range(0, len(self), size))

    def save(self, path: PathLike, *, overwrite: bool = False) -> None:
        """Write a `.npz` or `.safetensors` file, atomically; an existing one is kept unless `overwrite`.

        Example:
            >>> import sirc, tempfile
            >>> test = sirc.Outputs([[2.0, 0.5], [0.1, 1.3]], labels=[0, 1])
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     test.save(f"{folder}/test.npz")
            ...     len(sirc.Outputs.load(f"{folder}/test.npz"))
            2
        """
        as_npz = is_npz(path, "outputs", "For many shards in a folder, use `sirc.OutputStore`.")
        if len(self) == 0:
            raise ValueError("outputs must have at least one row to be saved; got none. Select some rows.")
        if as_npz:
            write_npz(path, self._tensors(), overwrite=overwrite)
        else:
            write_safetensors(path, self._tensors(), {"format": _FORMAT}, overwrite=overwrite)

    @classmethod
    def load(cls, path: PathLike, *, device: torch.device | str = "cpu") -> "Outputs":
        """Read what `save` wrote, or any `.npz` or `.safetensors` file with an array named `logits`.

        The arrays are validated again. A `.safetensors` file is memory-mapped, and its checksum, if any, is compared.

        Example:
            >>> import sirc, tempfile
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     sirc.Outputs([[2.0, 0.5]]).save(f"{folder}/one.safetensors")
            ...     sirc.Outputs.load(f"{folder}/one.safetensors").logits.tolist()
            [[2.0, 0.5]]
        """
        arrays: Mapping[str, ArrayLike]
        if is_npz(path, "outputs", "For many shards in a folder, use `sirc.OutputStore`."):
            arrays = read_npz(path, _FIELDS)
        else:
            arrays, metadata = read_safetensors(path, foreign=True)
            written = metadata.get("format", "")
            if written.startswith("sirc.") and written != _FORMAT:
                raise StoreError(f"'{path}' must be a {_FORMAT} file; got {written}. Open it with what wrote it.")
            require_array(path, "logits", arrays)
        return cls(arrays["logits"], arrays.get("features"), arrays.get("labels")).to(device)

    def __repr__(self) -> str:
        parts = [f"{len(self)} rows", f"{self.num_classes} classes"]
        parts.append(f"{self.num_features} features" if self.num_features else "no features")
        parts.append("labels" if self.labels is not None else "no labels")
        return f"Outputs({', '.join(parts)}, {dtype_name(self.dtype)} on {self.device})"


def _refuse_probabilities(logits: Tensor) -> None:
    """Refuse probabilities, since a score would apply the softmax a second time.

    A few rows of logits may look like probabilities by chance, and one-hot rows are allowed.
    """
    some = logits[:: 1 + len(logits) // _MOST_TESTED].double()
    if len(some) < _FEWEST_TESTED or (some < 0).any():
        return
    for whole in (1, 100):  # a table may have rounded probabilities, or percentages
        sums_agree = ((some.sum(-1) - whole).abs() <= _ROUNDING * whole).all()
        if sums_agree and (some.amax(-1) < whole).any():
            percentages = "" if whole == 1 else ", in percent"
            raise ValueError(
                f"`logits` must be the input of the softmax; got probabilities{percentages}: rows ≥ 0 that sum to "
                f"{whole}. Pass the output of the layer before the softmax, or the logarithm of the probabilities."
            )
