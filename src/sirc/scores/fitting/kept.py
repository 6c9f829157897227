"""The moments kept of training features: of the features, of their unit vectors, or of both, as the scores ask."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Self, final

from torch import Tensor
from torch.nn.functional import normalize

from sirc.scores.moments import Moments

_ROWS = 4096  # scaled to unit length at a time, in float64


@final
class FeatureMoments:
    """Count, mean and scatter of some rows' features, by class where a score asks for classes; merges."""

    def __init__(self, evidence: frozenset[str], classes: int | None) -> None:
        self.evidence = evidence
        self.classes = classes
        self.raw = self._moments("mean", "second", "by_class")
        self.unit = self._moments("", "unit", "unit_by_class")

    def _moments(self, mean: str, second: str, by_class: str) -> Moments | None:
        scatter = bool(self.evidence & {second, by_class})
        if not scatter and mean not in self.evidence:
            return None
        return Moments(second=scatter, classes=self.classes if by_class in self.evidence else None)

    def _parts(self) -> Iterator[tuple[str, Moments]]:
        for name in ("raw", "unit"):
            moments = getattr(self, name)
            if moments is not None:
                yield name, moments

    @property
    def count(self) -> int:
        """How many rows were seen."""
        return max((moments.count for _, moments in self._parts()), default=0)

    def add(self, features: Tensor, labels: Tensor | None) -> None:
        """Take in rows that are known to be finite, with labels where classes are counted."""
        if self.raw is not None:
            self.raw.add(features, labels if self.raw.classes is not None else None)
        if self.unit is not None:
            for start in range(0, len(features), _ROWS):
                here = slice(start, start + _ROWS)
                counted = labels[here] if labels is not None and self.unit.classes is not None else None
                self.unit.add(normalize(features[here].double(), dim=-1), counted)

    def merge(self, other: FeatureMoments) -> Self:
        """Take in all that another has seen; returns itself."""
        for name, moments in self._parts():
            moments.merge(getattr(other, name))
        return self

    def empty(self) -> FeatureMoments:
        """Another that keeps the same things and has seen nothing."""
        return FeatureMoments(self.evidence, self.classes)

    def state(self) -> dict[str, Tensor]:
        """Everything seen, as named tensors."""
        return {f"{name} {key}": x for name, moments in self._parts() for key, x in moments.state().items()}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Become what has this `state`; its tensors are shared, not copied."""
        for name, moments in self._parts():
            own = {key.removeprefix(f"{name} "): x for key, x in state.items() if key.startswith(f"{name} ")}
            setattr(self, name, Moments.restored(own, second=moments.second, classes=moments.classes))


def union(folds: Sequence[FeatureMoments]) -> FeatureMoments:
    """One instance with all that these have seen; the only one itself, where there is one."""
    if len(folds) == 1:
        return folds[0]
    total = folds[0].empty()
    for moments in folds:
        total.merge(moments)
    return total


def keeps_moments(evidence: frozenset[str]) -> bool:
    """Whether scores with this evidence ask for any moments."""
    return not evidence.isdisjoint({"mean", "second", "by_class", "unit", "unit_by_class"})


def counts_classes(evidence: frozenset[str]) -> bool:
    """Whether scores with this evidence ask for the classes of the rows."""
    return not evidence.isdisjoint({"by_class", "unit_by_class"})


def keeps_sample(evidence: frozenset[str]) -> bool:
    """Whether scores with this evidence ask for some of the rows themselves."""
    return not evidence.isdisjoint({"bank", "sample"})
