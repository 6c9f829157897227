"""Streaming statistics of training rows: counts, means, second moments, class sums and a random sample.

All are float64 and can be merged: any order of the rows and any number of workers give the single-process result.
Second moments are centred (Chan's update), so that a large common offset of the features costs no digits.

Example:
    >>> import torch
    >>> from sirc import moments
    >>> left, right = moments.Moments(), moments.Moments()
    >>> left.update(torch.tensor([[0.0], [2.0]])).merge(right.update(torch.tensor([[4.0]]))).mean
    tensor([2.], dtype=torch.float64)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias, final

import numpy as np
import torch
from torch import Tensor

from sirc._utils.arrays import ArrayLike, add_gram_, as_tensor
from sirc._utils.checks import check_finite, check_floating, check_integer, check_labels, check_shape, check_type
from sirc._utils.precision import exact

if TYPE_CHECKING:
    from sirc.outputs import Head, Outputs

_ROWS, _GPU_ROWS = 4096, 1 << 15
_LARGEST = (1 << 63) - 1  # of an int64
_INDEX = "dataset index"  # cannot be the name of a column, which may be a spec
_NAMED = "; the `solve` of a score has what its `evidence` names"

Parameters: TypeAlias = dict[str, dict[str, Tensor]]
"""Fitted and tuned numbers, by canonical spec and name."""


@final
class Moments:
    """Count, mean and scatter Σ(z − z̄)(z − z̄)ᵀ of rows read in batches; with `classes`, also Σz of each class.

    Example:
        >>> import sirc, torch
        >>> m = sirc.Moments().update(torch.tensor([[0.0], [2.0]]))
        >>> m = m.merge(sirc.Moments().update(torch.tensor([[4.0]])))
        >>> m.count, m.mean.item(), m.covariance.item()
        (3, 2.0, 2.6666666666666665)
    """

    def __init__(self, *, second: bool = True, classes: int | None = None) -> None:
        self.second = second
        self.classes = classes
        self.count = 0
        self._sums: dict[str, Tensor] = {}
        """Empty before the first row; then the mean and, if they are kept, the scatter, class_count and class_sum."""

    @exact
    def update(self, rows: ArrayLike, labels: ArrayLike | None = None) -> Moments:
        """Add (n, L) rows of any floating type, with labels if classes are counted; returns itself."""
        z = as_tensor("rows", rows)
        check_shape("rows", z, n=0, L=1, hint="Pass one row for each sample.")
        check_floating("rows", z)
        check_finite("rows", z)
        y = None if labels is None else as_tensor("labels", labels)
        if y is not None:
            check_shape("labels", y, n=0, hint="Pass one class for each row.")
        if self.classes is not None and y is not None and len(y):
            check_integer("labels", y)
            check_labels("labels", y, self.classes)
        return self.add(z, y)

    def add(self, rows: Tensor, labels: Tensor | None = None) -> Moments:
        """`update` for tensors that are known to be valid."""
        if self._sums and rows.shape[1] != len(self.mean):
            raise ValueError(f"`rows` must have the {len(self.mean)} columns of earlier ones; got {rows.shape[1]}")
        if self.classes is not None and (labels is None or len(labels) != len(rows)):
            got = "none" if labels is None else str(len(labels))
            raise ValueError(f"`labels` must give the class of each of the {len(rows)} rows; got {got}")
        size = _ROWS if rows.device.type == "cpu" else _GPU_ROWS
        for start in range(0, len(rows), size):
            block = rows[start : start + size].to(torch.float64, copy=True)
            mean = block.mean(0)
            self._shift_mean(len(block), mean)
            if self.classes is not None and labels is not None:
                here = labels[start : start + size].to(block.device)
                self._sums["class_sum"].index_add_(0, here, block)
                self._sums["class_count"] += torch.bincount(here, minlength=self.classes)
            if self.second:
                add_gram_(self._sums["scatter"], block.sub_(mean))
        return self

    @exact
    def merge(self, other: Moments) -> Moments:
        """Add all rows of another instance; returns itself."""
        check_type("other", other, Moments, "a `Moments`")
        if (self.second, self.classes) != (other.second, other.classes):
            raise ValueError(
                "moments merge when they keep the same things; got "
                f"second={self.second}, classes={self.classes} and second={other.second}, classes={other.classes}"
            )
        if not other._sums:
            return self
        if self._sums and len(self.mean) != len(other.mean):
            raise ValueError(f"moments of {len(self.mean)} and of {len(other.mean)} columns cannot merge")
        self._shift_mean(other.count, other.mean)
        for name, theirs in other._sums.items():
            if name != "mean":
                self._sums[name] += theirs.to(self.mean.device)
        return self

    def save(self) -> dict[str, Tensor]:
        """The count and all sums as named tensors, for `load`."""
        return {"count": torch.tensor(self.count, device="cpu")} | self._sums

    def load(self, saved: Mapping[str, Tensor]) -> Moments:
        """Fill these empty moments with what `save` of others returned, without a copy; returns itself."""
        self._sums = dict(saved)
        self.count = int(self._sums.pop("count"))
        return self

    def _shift_mean(self, count: int, mean: Tensor) -> None:
        """Move the mean to that of both groups, and add the scatter between their means."""
        if not self._sums:
            self._sums["mean"] = torch.zeros_like(mean)
            if self.second:
                self._sums["scatter"] = mean.new_zeros(len(mean), len(mean))
            if self.classes is not None:
                self._sums["class_count"] = mean.new_zeros(self.classes)
                self._sums["class_sum"] = mean.new_zeros(self.classes, len(mean))
        delta = mean.to(self.mean.device) - self.mean
        total = self.count + count
        if self.second and self.count:
            self._sums["scatter"].addr_(delta, delta, alpha=self.count * count / total)
        self.mean.add_(delta, alpha=count / total)
        self.count = total

    @property
    def mean(self) -> Tensor:
        """The mean of all rows, (L,)."""
        if not self._sums:
            raise ValueError(f"no rows were read yet: call `update` first{_NAMED}")
        return self._sums["mean"]

    @property
    def covariance(self) -> Tensor:
        """The population covariance (divided by n), (L, L)."""
        return self._full_scatter().div_(self.count)

    def second_moment(self, origin: Tensor) -> Tensor:
        """The mean of (z − u)(z − u)ᵀ about an origin u, (L, L)."""
        offset = self.mean - origin.to(self.mean)
        return self.covariance.addr_(offset, offset)

    def mean_square(self, origin: Tensor) -> float:
        """The mean of ‖z − u‖² about an origin u: the trace of the second moment."""
        spread = self._kept_scatter().diagonal().sum() / self.count
        return float(spread + (self.mean - origin.to(self.mean)).square().sum())

    @property
    def class_count(self) -> Tensor:
        """The number of rows of each class, (K,)."""
        return self._by_class()[0]

    @property
    def class_mean(self) -> Tensor:
        """The mean of each class, (K, L); NaN for a class without rows."""
        count, total = self._by_class()
        return total / count[:, None]

    @property
    def within_class_covariance(self) -> Tensor:
        """The tied covariance of rows about their class means, (L, L)."""
        count, total = self._by_class()
        offset = (total / count[:, None].clamp_min(1) - self.mean) * count.sqrt()[:, None]
        return self._full_scatter().sub_(offset.T @ offset).div_(self.count)

    def _by_class(self) -> tuple[Tensor, Tensor]:
        """The count and the sum of each class."""
        if "class_sum" not in self._sums:
            raise ValueError(f"per-class moments were not kept: use `Moments(classes=K)` and pass labels{_NAMED}")
        return self._sums["class_count"], self._sums["class_sum"]

    def _full_scatter(self) -> Tensor:
        upper = self._kept_scatter().triu()
        return upper.add_(upper.triu(1).T)

    def _kept_scatter(self) -> Tensor:
        if "scatter" not in self._sums:
            raise ValueError(f"second moments were not kept, or no rows were read: use `Moments(second=True)`{_NAMED}")
        return self._sums["scatter"]


def row_hash(index: Tensor, seed: int) -> Tensor:
    """An int64 hash of each dataset index (splitmix64): distinct for distinct indices, the same on every machine."""
    x = index.to("cpu", torch.int64).numpy().view(np.uint64) + np.uint64(0x9E3779B97F4A7C15 * (2 * seed + 1) % 2**64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
    return torch.from_numpy((x ^ (x >> np.uint64(31))).view(np.int64))


def fold_of(index: Tensor, folds: int, seed: int = 0) -> Tensor:
    """The fold 0…folds−1 of each dataset index, from a hash independent of the reservoir's."""
    return ((row_hash(index, 2 * seed + 1) >> 1) & _LARGEST) % folds


def part_of(index: Tensor, folds: int) -> Tensor:
    """The fold of each dataset index; `folds` stands for half of fold 0, the rows that judge a fit to all others."""
    fold = fold_of(index, folds)
    return fold.where((fold > 0) | (fold_of(index, 2, seed=2) > 0), folds)


@final
class Reservoir:
    """The `capacity` rows whose seeded hash of the dataset index is smallest: a uniform sample, whatever the order."""

    def __init__(self, capacity: int, seed: int = 0) -> None:
        self.capacity = capacity
        self.seed = seed
        self._keys = torch.full((capacity,), _LARGEST, device="cpu")  # in empty places, the largest key
        self._index = torch.full((capacity,), -1, device="cpu")
        self._columns: dict[str, Tensor] = {}

    @exact
    def update(self, index: Tensor, columns: dict[str, Tensor]) -> Reservoir:
        """Offer rows, by their dataset indices and named columns; returns itself."""
        index = index.cpu()
        keys = row_hash(index, self.seed)
        offered = self.admits(index).nonzero()[:, 0]
        both = torch.cat((self._keys, keys[offered]))
        stays = torch.zeros(len(both), dtype=torch.bool, device="cpu")
        stays[both.argsort()[: self.capacity]] = True
        # New rows take the places of evicted ones (empty places first), so that rows that stay are not copied.
        arrivals = offered[stays[self.capacity :]]
        places = (~stays[: self.capacity]).nonzero()[:, 0]
        self._keys[places], self._index[places] = keys[arrivals], index[arrivals]
        for name, value in columns.items():
            if name not in self._columns:
                self._columns[name] = value.new_empty(self.capacity, *value.shape[1:])
            column = self._columns[name]
            column[places.to(column.device)] = value[arrivals.to(value.device)].to(column)
        return self

    def admits(self, index: Tensor) -> Tensor:
        """Whether it would keep the rows with these dataset indices; others need not be offered."""
        return row_hash(index, self.seed) < self._keys.max()

    def merge(self, other: Reservoir) -> Reservoir:
        """Add the rows of another reservoir with the same capacity and seed; returns itself."""
        if (self.capacity, self.seed) != (other.capacity, other.seed):
            raise ValueError(
                "reservoirs merge when their capacity and seed are the same; "
                f"got {self.capacity}, {self.seed} and {other.capacity}, {other.seed}"
            )
        return self.update(*other.rows()) if len(other) else self

    def save(self) -> dict[str, Tensor]:
        """The rows that it keeps as named tensors, for `load`."""
        index, columns = self.rows()
        return {_INDEX: index, **columns}

    def load(self, saved: Mapping[str, Tensor]) -> Reservoir:
        """Add the rows that another saved; returns itself."""
        return self.update(saved[_INDEX], {name: column for name, column in saved.items() if name != _INDEX})

    def __len__(self) -> int:
        return int((self._keys != _LARGEST).sum())

    def rows(self) -> tuple[Tensor, dict[str, Tensor]]:
        """The dataset indices and the columns of the rows that it keeps, in the order of their hashes."""
        order = self._keys.argsort()[: len(self)]
        return self._index[order], {name: value[order.to(value.device)] for name, value in self._columns.items()}

    def holds(self, index: Tensor) -> Tensor:
        """Whether it keeps the rows with these dataset indices."""
        return torch.isin(row_hash(index, self.seed), self._keys)


@dataclass(frozen=True)
class Evidence:
    """What the `solve` of a score receives: at least the statistics that the score's `evidence` names."""

    moments: Moments = field(default_factory=Moments)
    """The moments of the training features."""
    bank: Tensor | None = None
    """Random rows of training features."""
    head: Head | None = None
    """The last layer, if it was passed to `fit`."""
    resolution: float = 1e-6
    """The smallest difference, relative to the size of the features, that is more than rounding error."""
    unit: Moments = field(default_factory=Moments)
    """The moments of the same features, each row scaled to unit length."""
    val: Outputs | None = None
    """Labelled ID rows that the network was not trained on."""


def counts_classes(evidence: frozenset[str]) -> bool:
    """Whether scores with this evidence need the labels of training rows."""
    return not evidence.isdisjoint({"by_class", "unit_by_class"})


def under(prefix: str, tensors: Mapping[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    """The tensors whose names start with a prefix, on `device` and without the prefix in their names."""
    return {name.removeprefix(prefix): x.to(device) for name, x in tensors.items() if name.startswith(prefix)}
