"""From what the first pass saw to parameters: of all rows, or of all but one fold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from sirc.outputs import Head
from sirc.scores import registry
from sirc.scores.fitting.kept import FeatureMoments, union
from sirc.scores.fitting.statistics import Solved
from sirc.scores.moments import Evidence, fold_of
from sirc.scores.spec import Spec

_SAME_DIRECTIONS = 0.95


@dataclass(frozen=True)
class Seen:
    """What the first pass saw of the training rows."""

    count: int
    num_classes: int
    num_features: int | None
    folds: list[FeatureMoments]
    """The moments of each fold, those of all rows where there are no folds, none where no score asks."""
    index: Tensor
    """The dataset indices of the rows kept."""
    rows: dict[str, Tensor]
    """The rows kept: a random sample."""
    has_sample: bool
    head: Head | None
    resolution: float
    """Differences, relative to the size of the features, that are more than rounding."""

    @property
    def bank(self) -> Tensor | None:
        """The features that `knn` searches, and percentiles are taken of."""
        return self.rows.get("features") if self.has_sample else None

    @cached_property
    def everything(self) -> Evidence:
        """All there is to solve parameters from."""
        return self._evidence(union(self.folds) if self.folds else None, self.bank)

    def _evidence(self, moments: FeatureMoments | None, bank: Tensor | None) -> Evidence:
        raw, unit = (None, None) if moments is None else (moments.raw, moments.unit)
        return Evidence(raw, bank, self.head, self.resolution, unit)

    def solve(self, leaves: Sequence[Spec]) -> Solved:
        """The parameters of these scores, from all rows."""
        return {str(leaf): _solve(leaf, self.everything) for leaf in leaves}

    def solve_without(self, fold: int, folds: int, leaves: Sequence[Spec], whole: Solved) -> Solved:
        """The parameters that statistics rest on, from all rows but those of one fold."""
        moments, bank = None, self.bank
        if self.folds:
            moments = union([m for number, m in enumerate(self.folds) if number != fold])
            if not moments.count:
                raise ValueError(
                    f"cross-fitting needs rows in at least two folds; {self.count} came, all of fold {fold} of "
                    f"{folds}. Fit on more rows, or pass `crossfit=0`"
                )
        if bank is not None:
            bank = bank[(fold_of(self.index, folds) != fold).to(bank.device)]
        evidence = self._evidence(moments, bank)
        solved = {}
        for leaf in leaves:
            try:
                solved[str(leaf)] = _solve(leaf, evidence)
            except ValueError as error:
                raise ValueError(
                    f"{error}. Cross-fitting leaves one of {folds} folds out; `crossfit=0` leaves none"
                ) from None
            self._check_directions(leaf, solved[str(leaf)], whole[str(leaf)])
        return solved

    def _check_directions(self, leaf: Spec, part: dict[str, Tensor], whole: dict[str, Tensor]) -> None:
        """Statistics of the folds describe the final score only if the folds see the directions that it measures."""
        for name, value in whole.items():
            if part[name].shape[-1] < _SAME_DIRECTIONS * value.shape[-1]:
                raise ValueError(
                    f"`{leaf}` inside `sirc` needs more training rows: it measures {value.shape[-1]} directions of the "
                    f"features, and only {part[name].shape[-1]} when a fold of the {self.count} rows is left out. Fit "
                    f"on at least {2 * (self.num_features or 0) + self.num_classes} rows, use `residual` or "
                    "`l1`, or give a= and b="
                )


def _solve(leaf: Spec, evidence: Evidence) -> dict[str, Tensor]:
    score = registry.get(leaf.name)
    assert score.solve is not None
    return score.solve(evidence, **{**score.options, **leaf.options})
