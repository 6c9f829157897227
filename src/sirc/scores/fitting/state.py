"""FitState: statistics of the rows that a fit has read; merges, saves, loads and solves parameters."""

from __future__ import annotations

import json
import operator
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal, Self, TypeAlias, final

import torch
from torch import Tensor

from sirc._utils.arrays import ArrayLike, as_tensor
from sirc._utils.checks import check_integer, check_same_length, check_shape, check_type, differences, dtype_name
from sirc._utils.files import content_digest
from sirc._utils.precision import exact
from sirc._utils.text import quoted
from sirc.outputs import Head, Outputs
from sirc.scores import registry
from sirc.scores.blocks import unit
from sirc.scores.evaluator import needed_leaves
from sirc.scores.fitting.row_marks import empty_sample, mark_rows
from sirc.scores.fitting.rows import RowBuffer, checksums
from sirc.scores.fitting.second_pass import check_bank, each_or_why, evidence_of, fitted_combinations, fitted_terms
from sirc.scores.fitting.unfit import HEAD_ADVICE, missing_labels
from sirc.scores.formulas.feature import BANK_SIZE
from sirc.scores.moments import Evidence, Moments, Parameters, Reservoir, counts_classes, part_of, under
from sirc.scores.scorer import check_features, check_specs, learns
from sirc.scores.spec import Spec, parse

_FOLDS = 5
_ROWS_PER_FEATURE = 100  # with fewer, `crossfit="auto"` leaves rows out
_MOST_FOLDS = 20  # each has its own second moments
_UNIT_ROWS = 4096  # scaled to unit length at a time, in float64
# Of raw and of unit features: the names of the evidence that needs their mean, second moments, and sums by class.
_KINDS = {"raw": ("mean", "second", "by_class"), "unit": ("", "unit", "unit_by_class")}

Crossfit = int | Literal["auto"]
FeatureMoments: TypeAlias = dict[str, Moments]
"""Moments of features ("raw") and of their unit vectors ("unit")."""


@final
class FitState:
    """The statistics of training rows that some specs need: moments of each fold, a sample of rows, row marks.

    If each row comes with its dataset index, the states of parts of the rows, merged in any order, give the state of a
    single pass.
    """

    @exact  # tensors made in a caller's inference mode could not be changed
    def __init__(
        self,
        specs: str | Sequence[str],
        *,
        head: Head | None,
        crossfit: Crossfit = "auto",
        one_pass: bool = False,
        reduced: Mapping[str, Spec] | None = None,
    ) -> None:
        check_type("head", head, Head | None, "a `sirc.Head`", HEAD_ADVICE)
        self.head = head
        self.crossfit = check_crossfit(crossfit)
        self.one_pass = one_pass
        self.reduced = dict(reduced or {})
        """The `scod` specs that have lost witnesses, by their text."""
        self.choose(specs)
        self.count = 0
        self.checksums = torch.zeros(2, dtype=torch.float64, device="cpu")
        self.learns = learns(self.parsed)  # only then are the rows marked
        self.marks = empty_sample()
        self._evidence = evidence_of(self.leaves)
        self._keeps_bank = not self._evidence.isdisjoint({"bank", "sample"})
        self._keeps_logits = one_pass and bool(self.combinations)
        self._keeps_features = bool(self._evidence) or any(
            "features" in registry.get(leaf.name).needs for leaf in needed_leaves(self.combinations)
        )
        self._keeps_rows = self._keeps_bank or self._keeps_logits
        self.reservoir = Reservoir(BANK_SIZE)
        self._sample: tuple[Tensor, dict[str, Tensor]] | None = None
        self._folds: list[FeatureMoments] = []
        self._rows: dict[str, Any] = {}  # types, widths and device of the rows read
        self._indexed = False
        self._buffer = RowBuffer(self._consume)

    def choose(self, specs: str | Sequence[str]) -> None:
        """Fit these specs: all at first, fewer if some turn out to be unfit."""
        self.specs = check_specs(specs)
        self.parsed = [parse(text).with_defaults(lambda scod: self.reduced.get(str(scod), scod)) for text in self.specs]
        self.leaves = [leaf for leaf in needed_leaves(self.parsed) if registry.get(leaf.name).solve]
        self.combinations = fitted_combinations(self.parsed)
        # Out of sample, a row is left out by a formula, out of the bank, or, for all other scores, with its fold.
        terms = [leaf for leaf in fitted_terms(self.combinations) if registry.get(leaf.name).evidence]
        self.held_out = [leaf for leaf in terms if registry.get(leaf.name).held_out]
        self.crossfitted = [
            leaf for leaf in terms if leaf not in self.held_out and "bank" not in registry.get(leaf.name).evidence
        ]

    def empty(self, specs: Sequence[str] | None = None) -> FitState:
        """A state without rows for the same fit, or for these specs."""
        return FitState(
            specs or self.specs, head=self.head, crossfit=self.crossfit, one_pass=self.one_pass, reduced=self.reduced
        )

    @property
    def num_classes(self) -> int | None:
        """K of the rows read so far."""
        return self._rows.get("num_classes")

    @property
    def num_features(self) -> int | None:
        """L of the rows read so far."""
        return self._rows.get("num_features")

    @property
    def device(self) -> torch.device:
        """The device of the rows read so far."""
        return torch.device(self._rows.get("device", "cpu"))

    @property
    def scarce(self) -> bool:
        """Whether the rows read so far are so few for their features that in-sample statistics mislead."""
        return self.num_features is not None and self.count < _ROWS_PER_FEATURE * self.num_features

    @property
    def folds(self) -> int:
        """The number of folds for the rows read so far; 0 for in-sample statistics."""
        if self.crossfit == "auto":
            return _FOLDS if self.scarce else 0
        return self.crossfit

    def update(self, outputs: Outputs, index: ArrayLike | None = None) -> None:
        """Read rows; `index` holds their dataset indices, by default those that follow the rows so far."""
        self.check_batch(outputs)
        self._indexed |= index is not None
        if index is None:
            index = torch.arange(self.count, self.count + len(outputs), device="cpu")
        places = as_tensor("index", index).cpu()
        check_integer("index", places)
        check_shape("index", places, rows=0, hint="Pass one dataset index for each row.")
        check_same_length("index", places, "batch", outputs.logits)
        places = places.to(torch.int64)
        self.count += len(outputs)
        if self.learns:
            mark_rows(self.marks, places, outputs.logits)
        if self._evidence or self._keeps_rows:
            logits = outputs.logits if self._keeps_logits else outputs.logits[:, :1]
            features = outputs.features if self._keeps_features else None
            labels = outputs.labels if counts_classes(self._evidence) else None
            self._buffer.add(places, Outputs._trusted(logits, features, labels))

    def check_batch(self, outputs: Outputs) -> None:
        """Require the features and labels that the specs need, and rows like those before."""
        check_features(self.parsed, outputs)
        if counts_classes(self._evidence) and outputs.labels is None:
            counting = (leaf for leaf in self.leaves if counts_classes(registry.get(leaf.name).evidence))
            raise ValueError(missing_labels(counting))
        rows = {
            "logits": dtype_name(outputs.dtype),
            "features": "none" if outputs.features is None else dtype_name(outputs.features.dtype),
            "num_classes": outputs.num_classes,
            "num_features": outputs.num_features,
            "device": str(outputs.device),
        }
        if self._rows and (differing := differences(self._rows, rows)):
            raise ValueError(
                f"all batches of `train` must be alike and of one model: {differing}. Convert with `.to(device, dtype)`"
            )
        if not self._rows and self.head is not None and any(registry.get(leaf.name).head for leaf in self.leaves):
            self.head.check(outputs)
        self._rows = rows

    def flush(self) -> None:
        """Process the rows that wait in the buffer."""
        self._buffer.flush()

    def _consume(self, index: Tensor, outputs: Outputs) -> None:
        features, labels, self._sample = outputs.features, outputs.labels, None
        self.checksums += checksums(index, outputs)
        if self._keeps_rows:
            columns = outputs._tensors()
            if not self._keeps_logits:
                del columns["logits"]
            if not (self._keeps_logits and counts_classes(evidence_of(self.held_out))):
                columns.pop("labels", None)
            self.reservoir.update(index, columns)
        if features is None or not self._empty_moments():
            return
        if not self._folds:
            parts = self.folds + 1 if self.crossfitted and self.folds else 1
            self._folds = [self._empty_moments() for _ in range(parts)]
        if len(self._folds) == 1:
            _add(self._folds[0], features, labels)
        else:
            fold = part_of(index, len(self._folds) - 1).to(features.device)
            for number, moments in enumerate(self._folds):
                rows = (fold == number).nonzero()[:, 0]
                _add(moments, features[rows], None if labels is None else labels[rows])
        self._join_folds()

    def _empty_moments(self) -> FeatureMoments:
        """Moments without rows, of the kinds that the evidence names."""
        moments: FeatureMoments = {}
        for part, (mean, second, sums) in _KINDS.items():
            if self._evidence & {mean, second, sums}:
                classes = self.num_classes if sums in self._evidence else None
                moments[part] = Moments(second=bool(self._evidence & {second, sums}), classes=classes)
        return moments

    def _join_folds(self) -> None:
        """Join the folds as soon as `crossfit="auto"` has enough rows to do without them."""
        if len(self._folds) > 1 and not self.folds:
            self._folds = [_union(self._folds)]

    def merge(self, other: FitState) -> Self:
        """Add the rows of another state for the same fit; returns itself."""
        mine, theirs = ((state.specs, state.crossfit, state.one_pass) for state in (self, other))
        if mine != theirs:
            raise ValueError(f"fitters merge when specs, crossfit and one_pass are the same; got {mine} and {theirs}")
        if self._rows and other._rows and (differing := differences(self._rows, other._rows)):
            raise ValueError(f"fitters merge when their rows are alike and of one model; {differing}")
        if self.count and other.count and self.reduced != other.reduced:
            raise ValueError(
                "fitters merge when their `scod` has the same witnesses; only one of them has rows with labels or "
                "features"
            )
        if self.head is not other.head and head_digest(self.head) != head_digest(other.head):
            raise ValueError(
                "fitters merge when they have the same head; these have different weights, or one has none"
            )
        indexed = self._indexed and other._indexed
        if self.count and other.count and not indexed and (self.crossfitted or self._keeps_rows):
            raise ValueError(
                "fitters with different rows merge when each row came with its dataset index, which decides its fold: "
                "pass `update(batch, index=…)`"
            )
        self._indexed |= other._indexed
        self._rows = self._rows or other._rows
        self.flush()
        other.flush()
        self.count += other.count
        self.checksums += other.checksums
        self._sample = None
        self.marks.merge(other.marks)
        self.reservoir.merge(other.reservoir)
        if not self._folds:
            self._folds = [self._empty_moments() for _ in other._folds]
        if other._folds and len(self._folds) != len(other._folds):
            self._folds = [_union(self._folds)]
        for position, moments in enumerate(other._folds):
            for part, sums in self._folds[position if len(self._folds) > 1 else 0].items():
                sums.merge(moments[part])
        self._join_folds()
        return self

    def save(self) -> dict[str, Tensor]:
        """All statistics as named tensors, for `load`."""
        self.flush()
        facts = {
            "count": self.count,
            "checksums": self.checksums.tolist(),
            "indexed": self._indexed,
            "rows": self._rows,
            "folds": len(self._folds),
        }
        tensors = {"facts": torch.frombuffer(bytearray(json.dumps(facts).encode()), dtype=torch.uint8)}
        for i, moments in enumerate(self._folds):
            for part, sums in moments.items():
                tensors |= {f"fold {i} {part} {name}": x for name, x in sums.save().items()}
        tensors |= {f"row {name}": x for name, x in self.reservoir.save().items()}
        return tensors | {f"marked {name}": x for name, x in self.marks.save().items()}

    def load(self, tensors: Mapping[str, Tensor], device: torch.device) -> Self:
        """Fill this empty state with the tensors that another saved, on `device`; returns itself."""
        facts = json.loads(bytes(tensors["facts"].cpu().numpy()))
        self.count, self._indexed = facts["count"], facts["indexed"]
        self.checksums = torch.tensor(facts["checksums"], dtype=torch.float64, device="cpu")
        self._rows = facts["rows"] and {**facts["rows"], "device": str(device)}
        for i in range(facts["folds"]):
            moments = self._empty_moments()
            for part, sums in moments.items():
                sums.load(under(f"fold {i} {part} ", tensors, device))
            self._folds.append(moments)
        self.reservoir.load(under("row ", tensors, device))
        self.marks.load(under("marked ", tensors, torch.device("cpu")))
        return self

    def sample(self) -> tuple[Tensor, dict[str, Tensor]]:
        """The dataset indices and the columns of the rows in the reservoir."""
        if self._sample is None:
            self._sample = self.reservoir.rows()
        return self._sample

    def evidence(self, val: Outputs | None, without_fold: int | None = None) -> Evidence:
        """What parameters are solved from: all training rows, or all but those of one fold.

        Fold number `folds` stands for the judging rows, which are part of fold 0.
        """
        index, columns = self.sample()
        bank = columns.get("features") if self._keeps_bank else None
        left_out = [] if without_fold is None else [without_fold]
        if without_fold == 0:
            left_out.append(self.folds)
        folds = [fold for number, fold in enumerate(self._folds) if number not in left_out]
        moments = _union(folds) if folds else {}
        if without_fold is not None:
            if bank is not None:
                outside = torch.isin(part_of(index, self.folds), torch.tensor(left_out, device="cpu"), invert=True)
                bank = bank[outside.to(bank.device)]
            if not any(part.count for part in moments.values()) and (bank is None or not len(bank)):
                raise ValueError(
                    f"cross-fitting needs rows in at least two folds; {self.count} came, all of fold {without_fold} of "
                    f"{self.folds}. Fit on more rows, or pass `crossfit=0`"
                )
        resolution = 1e-11 if self._rows.get("features") == "float64" else 1e-6
        raw, scaled = (moments.get(part, Moments()) for part in _KINDS)
        return Evidence(raw, bank, self.head, resolution, scaled, val)

    def solve_without(self, fold: int, val: Outputs | None) -> tuple[Parameters, dict[Spec, str]]:
        """The parameters of scores that need folds, fitted without one fold, and why some have none."""
        solve_rest = partial(solve, evidence=self.evidence(val, without_fold=fold))
        parameters, unfit = each_or_why(self.crossfitted, solve_rest)
        advice = f"Cross-fitting leaves one of {self.folds} folds out; `crossfit=0` leaves none"
        return parameters, {leaf: f"{why}. {advice}" for leaf, why in unfit.items()}


def check_crossfit(crossfit: Crossfit) -> Crossfit:
    """Require "auto" or a possible number of folds, and return it as a plain int."""
    if crossfit == "auto":
        return crossfit
    try:
        folds = -1 if isinstance(crossfit, bool) else operator.index(crossfit)
    except TypeError:
        folds = -1
    if folds == 0 or 2 <= folds <= _MOST_FOLDS:
        return folds
    raise ValueError(
        f'`crossfit` must be "auto", 0 (in-sample) or a number of folds from 2 to {_MOST_FOLDS}; got {quoted(crossfit)}'
    )


def _add(moments: FeatureMoments, features: Tensor, labels: Tensor | None) -> None:
    for part, sums in moments.items():
        if part == "raw":
            sums.add(features, labels)
            continue
        for start in range(0, len(features), _UNIT_ROWS):
            here = slice(start, start + _UNIT_ROWS)
            sums.add(unit(features[here].double()), None if labels is None else labels[here])


def _union(folds: Sequence[FeatureMoments]) -> FeatureMoments:
    """The moments of all folds together, which are those of the fold itself if there is only one."""
    if len(folds) == 1:
        return folds[0]
    total = {part: Moments(second=sums.second, classes=sums.classes) for part, sums in folds[0].items()}
    for moments in folds:
        for part, sums in moments.items():
            total[part].merge(sums)
    return total


def solve(leaf: Spec, evidence: Evidence) -> dict[str, Tensor]:
    """The parameters of one fitted score."""
    score = registry.get(leaf.name)
    assert score.solve is not None
    if "bank" in score.evidence and evidence.bank is not None:
        check_bank(leaf, len(evidence.bank))
    try:
        parameters = score.solve(evidence, **{**score.options, **leaf.options})
        _check_solved(score, parameters)
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
        parameters = {}
    if not parameters or not all(bool(value.isfinite().all()) for value in parameters.values()):
        raise ValueError(
            f"`{leaf}` cannot be fitted: its parameters are not finite. The squares of the training features, or of "
            "the head's weights, may be too large or too small for float64: scale them"
        )
    return parameters


def _check_solved(score: registry.Score, solved: object) -> None:
    """Require that the `solve` of a score returned a tensor for each of its parameters."""
    got = f"a {type(solved).__name__}"
    if isinstance(solved, dict):
        if solved.keys() >= {*score.parameters} and all(isinstance(value, Tensor) for value in solved.values()):
            return
        got = ", ".join(f"`{name}`: a {type(value).__name__}" for name, value in solved.items()) or "an empty dict"
    wanted = ", ".join(f"`{name}`" for name in score.parameters)
    raise ValueError(
        f"`solve` of score `{score.name}` must return a dict with a tensor for each parameter, {wanted}; got {got}. "
        "Return those that the score takes without a default"
    )


def head_digest(head: Head | None) -> str:
    """A checksum of a head's weight and bias, for any floating type and device."""
    if head is None:
        return "none"
    return content_digest({name: value.double() for name, value in head._tensors().items()}, {})[:12]
