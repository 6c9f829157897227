"""FitState: all that a fit has read so far; takes in batches, merges, saves, loads and solves parameters."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Self, final

import torch
from torch import Tensor
from torch.nn.functional import normalize

from sirc._utils.arrays import ArrayLike, as_tensor
from sirc._utils.checks import differences, dtype_name
from sirc.outputs import Head, Outputs
from sirc.scores import registry
from sirc.scores.fitting.crossfit import Crossfit, check_crossfit, fold_count
from sirc.scores.fitting.row_marks import RowMarks
from sirc.scores.fitting.rows import RowBuffer, order_checksum
from sirc.scores.fitting.second_pass import evidence_of, fitted_combinations, fitted_terms
from sirc.scores.formulas.feature import BANK_SIZE
from sirc.scores.moments import Evidence, Moments, Parameters, Reservoir, counts_classes, fold_of, under
from sirc.scores.scorer import check_features, check_specs, learns
from sirc.scores.spec import Spec, parse
from sirc.scores.values import needed_leaves

_UNIT_ROWS = 4096  # scaled to unit length at a time, in float64
_SAME_DIRECTIONS = 0.95


@final
class FitState:
    """Statistics of the training rows that some specs need: moments for each fold, a sample of rows, row marks.

    Any split of the rows over states that are then merged, in any order, gives the state of a single pass, provided
    that each row comes with its dataset index.
    """

    def __init__(
        self, specs: str | Sequence[str], *, head: Head | None, crossfit: Crossfit = "auto", one_pass: bool = False
    ) -> None:
        self.specs = check_specs(specs)
        self.head = head
        self.crossfit = check_crossfit(crossfit)
        self.one_pass = one_pass
        self.parsed = [parse(text) for text in self.specs]
        self.leaves = [leaf for leaf in needed_leaves(self.parsed) if registry.get(leaf.name).solve]
        self.combinations = fitted_combinations(self.parsed)
        _check_head(head, self.leaves)
        # Only statistics of scores that are themselves fitted to rows need cross-fitting.
        terms = fitted_terms(self.combinations)
        self.crossfitted = terms if any(registry.get(leaf.name).evidence for leaf in terms) else []

        self.count = 0
        self.num_classes: int | None = None
        self.num_features: int | None = None
        self.checksum = 0.0
        self.marks = RowMarks() if learns(self.parsed) else None
        self._evidence = evidence_of(self.leaves)
        self._samples_rows = not self._evidence.isdisjoint({"bank", "sample"})
        self._keeps_logits = one_pass and bool(self.combinations)
        self._keeps_features = bool(self._evidence) or any(
            "features" in registry.get(leaf.name).needs for leaf in needed_leaves(self.combinations)
        )
        self.reservoir = Reservoir(BANK_SIZE) if self._samples_rows or self._keeps_logits else None
        self._sample: tuple[Tensor, dict[str, Tensor]] | None = None
        self._folds: list[_FeatureMoments] = []
        self._row_type: dict[str, str] = {}
        self._indexed = False
        self._buffer = RowBuffer(self._consume, self._copy)

    def empty(self) -> FitState:
        """A state for the same fit that has read nothing."""
        return FitState(self.specs, head=self.head, crossfit=self.crossfit, one_pass=self.one_pass)

    @property
    def folds(self) -> int:
        """The number of folds for the rows read so far."""
        return fold_count(self.crossfit, self.count, self.num_features)

    def update(self, outputs: Outputs, index: ArrayLike | None = None) -> None:
        """Take in rows; `index` gives their places in the dataset, by default those after the rows so far."""
        self.check_batch(outputs)
        self._indexed |= index is not None
        if index is None:
            index = torch.arange(self.count, self.count + len(outputs), device="cpu")
        places = as_tensor("index", index).cpu()
        if places.shape != (len(outputs),) or places.is_floating_point():
            raise ValueError(
                f"`index` must give one whole number for each of the {len(outputs)} rows; got {places.dtype} of shape "
                f"{tuple(places.shape)}"
            )
        self.count += len(outputs)
        if self.marks is not None:
            self.marks.update(places, outputs.logits)
        if self._evidence or self.reservoir is not None:
            self._buffer.add(places, outputs)

    def check_batch(self, outputs: Outputs) -> None:
        """Require what the specs need of the rows, and rows like those before."""
        check_features(self.parsed, outputs)
        if counts_classes(self._evidence) and outputs.labels is None:
            wanting = [str(leaf) for leaf in self.leaves if counts_classes(registry.get(leaf.name).evidence)]
            raise ValueError(
                f"labels are needed to fit {_quoted(wanting)}: the class of each training row. "
                "Pass `Outputs(logits, features, labels)`"
            )
        row_type = {
            "logits": dtype_name(outputs.dtype),
            "features": "none" if outputs.features is None else dtype_name(outputs.features.dtype),
            "device": str(outputs.device),
        }
        if self._row_type and (differing := differences(self._row_type, row_type)):
            raise ValueError(f"all batches of `train` must be alike: {differing}. Convert with `.to(device, dtype)`")
        before, now = (self.num_classes, self.num_features), (outputs.num_classes, outputs.num_features)
        if self.num_classes is not None and before != now:
            what, position = ("logits", 0) if before[0] != now[0] else ("features", 1)
            raise ValueError(
                f"all batches must come from one model; got {now[position]} {what} after batches with "
                f"{before[position]}"
            )
        if self.num_classes is None and self.head is not None and outputs.num_features is not None:
            mapped = (self.head.num_classes, self.head.num_features)
            if now != mapped:
                raise ValueError(
                    f"`head` must map the features to the logits; it maps {mapped[1]} features to {mapped[0]} logits, "
                    f"the data have {now[1]} and {now[0]}. Is it the head of this model?"
                )
        self._row_type = row_type
        self.num_classes, self.num_features = now

    def flush(self) -> None:
        """Work off the rows that still wait for a whole block."""
        self._buffer.flush()

    def _copy(self, outputs: Outputs) -> Outputs:
        """A copy of the parts that will be used."""
        logits = outputs.logits.clone() if self._keeps_logits else outputs.logits[:, :1].clone()
        features = outputs.features.clone() if self._keeps_features and outputs.features is not None else None
        labels = outputs.labels.clone() if counts_classes(self._evidence) and outputs.labels is not None else None
        return Outputs._trusted(logits, features, labels)

    def _consume(self, index: Tensor, outputs: Outputs) -> None:
        features, self._sample = outputs.features, None
        self.checksum += order_checksum(index, outputs)
        if self.reservoir is not None:
            columns = {"logits": outputs.logits} if self._keeps_logits else {}
            if features is not None and self._keeps_features:
                columns["features"] = features
            self.reservoir.update(index, columns)
        if features is None or not _FeatureMoments.needed_for(self._evidence):
            return
        if not self._folds:
            folds = self.folds if self.crossfitted else 0
            self._folds = [_FeatureMoments(self._evidence, self.num_classes) for _ in range(max(1, folds))]
        if len(self._folds) == 1:
            self._folds[0].add(features, outputs.labels)
        else:
            fold = fold_of(index, len(self._folds)).to(features.device)
            for number, moments in enumerate(self._folds):
                rows = (fold == number).nonzero()[:, 0]
                moments.add(features[rows], None if outputs.labels is None else outputs.labels[rows])
        self._join_folds()

    def _join_folds(self) -> None:
        """Keep one fold from the moment that `auto` has rows enough to do without."""
        if len(self._folds) > 1 and not self.folds:
            self._folds = [_union(self._folds)]

    def merge(self, other: FitState) -> Self:
        """Add all that another state for the same fit has read; returns itself."""
        mine, theirs = ((state.specs, state.crossfit, state.one_pass) for state in (self, other))
        if mine != theirs:
            raise ValueError(f"fitters merge when specs, crossfit and one_pass are the same; got {mine} and {theirs}")
        for name in ("num_classes", "num_features"):
            before, new = getattr(self, name), getattr(other, name)
            if before is not None and new is not None and before != new:
                raise ValueError(f"fitters merge when their rows are of one model; got {name} {before} and {new}")
            setattr(self, name, new if before is None else before)
        if differing := _head_differences(self.head, other.head):
            raise ValueError(f"fitters merge when they have the same head; {differing}")
        if self._row_type and other._row_type and (differing := differences(self._row_type, other._row_type)):
            raise ValueError(f"fitters merge when their rows have one type; {differing}")
        indexed = self._indexed and other._indexed
        if self.count and other.count and not indexed and (self.crossfitted or self.reservoir is not None):
            raise ValueError(
                "fitters with different rows merge when each row came with its place in the dataset, from which its "
                "fold follows: pass `update(batch, index=…)`"
            )
        self._indexed |= other._indexed
        self._row_type = self._row_type or other._row_type
        self.flush()
        other.flush()
        self.count += other.count
        self.checksum += other.checksum
        self._sample = None
        if self.marks is not None and other.marks is not None:
            self.marks.add(*other.marks.sample())
        if self.reservoir is not None and other.reservoir is not None:
            self.reservoir.merge(other.reservoir)
        if not self._folds:
            self._folds = [moments.empty() for moments in other._folds]
        if other._folds and len(self._folds) != len(other._folds):
            self._folds = [_union(self._folds)]
        for position, moments in enumerate(other._folds):
            self._folds[position if len(self._folds) > 1 else 0].merge(moments)
        self._join_folds()
        return self

    def save(self) -> dict[str, Tensor]:
        """All that was read as named tensors, to send or keep; `load` takes them."""
        self.flush()
        facts = {
            "count": self.count,
            "num_classes": self.num_classes,
            "num_features": self.num_features,
            "checksum": self.checksum,
            "indexed": self._indexed,
            "row_type": self._row_type,
            "folds": len(self._folds),
        }
        tensors = {"facts": torch.frombuffer(bytearray(json.dumps(facts).encode()), dtype=torch.uint8)}
        for i, moments in enumerate(self._folds):
            tensors |= {f"fold {i} {name}": x for name, x in moments.save().items()}
        if self.reservoir is not None:
            index, columns = self.reservoir.rows()
            tensors |= {"row index": index} | {f"row {name}": x for name, x in columns.items()}
        if self.marks is not None:
            tensors["mark index"], tensors["mark values"] = self.marks.sample()
        return tensors

    def load(self, tensors: Mapping[str, Tensor], device: torch.device) -> Self:
        """Fill this empty state with what another saved, on `device`; returns itself."""
        facts = json.loads(bytes(tensors["facts"].cpu().numpy()))
        self.count, self.checksum, self._indexed = facts["count"], facts["checksum"], facts["indexed"]
        self.num_classes, self.num_features = facts["num_classes"], facts["num_features"]
        self._row_type = facts["row_type"] and {**facts["row_type"], "device": str(device)}
        for i in range(facts["folds"]):
            moments = _FeatureMoments(self._evidence, self.num_classes)
            moments.load(under(f"fold {i} ", tensors, device))
            self._folds.append(moments)
        columns = under("row ", tensors, device)
        if self.reservoir is not None and len(index := columns.pop("index")):
            self.reservoir.update(index, columns)
        if self.marks is not None:
            self.marks.add(tensors["mark index"].cpu(), tensors["mark values"])
        return self

    def sample(self) -> tuple[Tensor, dict[str, Tensor]]:
        """The dataset indices and the columns of the rows in the reservoir; none without one."""
        if self._sample is None:
            self._sample = (torch.empty(0, device="cpu"), {}) if self.reservoir is None else self.reservoir.rows()
        return self._sample

    def evidence(self, without_fold: int | None = None) -> Evidence:
        """All that parameters are solved from, or the same from all rows but those of one fold."""
        index, columns = self.sample()
        bank = columns.get("features") if self._samples_rows else None
        folds = [fold for number, fold in enumerate(self._folds) if number != without_fold]
        moments = _union(folds) if folds else None
        if without_fold is not None:
            if moments is not None and not moments.count:
                raise ValueError(
                    f"cross-fitting needs rows in at least two folds; {self.count} came, all of fold {without_fold} of "
                    f"{self.folds}. Fit on more rows, or pass `crossfit=0`"
                )
            if bank is not None:
                bank = bank[(fold_of(index, self.folds) != without_fold).to(bank.device)]
        raw, unit = (None, None) if moments is None else (moments.parts.get("raw"), moments.parts.get("unit"))
        resolution = 1e-11 if self._row_type.get("features") == "float64" else 1e-6
        return Evidence(raw, bank, self.head, resolution, unit)

    def solve_without(self, fold: int, final: Parameters) -> Parameters:
        """The parameters of cross-fitted scores from all rows but those of one fold.

        Its statistics describe the `final` parameters, of all rows, only where both measure the same directions.
        """
        evidence = self.evidence(without_fold=fold)
        parameters = {}
        for leaf in self.crossfitted:
            try:
                parameters[str(leaf)] = solve(leaf, evidence)
            except ValueError as error:
                raise ValueError(
                    f"{error}. Cross-fitting leaves one of {self.folds} folds out; `crossfit=0` leaves none"
                ) from None
            for name, whole in final[str(leaf)].items():
                part = parameters[str(leaf)][name]
                if part.shape[-1] < _SAME_DIRECTIONS * whole.shape[-1]:
                    raise ValueError(
                        f"`{leaf}` inside `sirc` needs more training rows: it measures {whole.shape[-1]} directions of "
                        f"the features, and only {part.shape[-1]} when a fold of the {self.count} rows is left out. "
                        f"Fit on at least {2 * (self.num_features or 0) + (self.num_classes or 0)} rows, use "
                        "`residual` or `l1`, or give a= and b="
                    )
        return parameters


@final
class _FeatureMoments:
    """Moments of features ("raw") and of their unit vectors ("unit"), as far as the evidence names them."""

    _KINDS = (("raw", "mean", "second", "by_class"), ("unit", "", "unit", "unit_by_class"))

    def __init__(self, evidence: frozenset[str], classes: int | None) -> None:
        self.evidence = evidence
        self.classes = classes
        self.parts: dict[str, Moments] = {}
        for part, mean, second, by_class in self._KINDS:
            if evidence & {mean, second, by_class}:
                scatter = bool(evidence & {second, by_class})
                self.parts[part] = Moments(second=scatter, classes=classes if by_class in evidence else None)

    @classmethod
    def needed_for(cls, evidence: frozenset[str]) -> bool:
        """Whether scores with this evidence need any moments."""
        return any(evidence & {*kinds} for _, *kinds in cls._KINDS)

    @property
    def count(self) -> int:
        """The number of rows read."""
        return max(moments.count for moments in self.parts.values())

    def add(self, features: Tensor, labels: Tensor | None) -> None:
        """Take in rows that were validated before, with labels where classes are counted."""
        for part, moments in self.parts.items():
            counted = None if moments.classes is None else labels
            if part == "raw":
                moments.add(features, counted)
                continue
            for start in range(0, len(features), _UNIT_ROWS):
                here = slice(start, start + _UNIT_ROWS)
                unit = normalize(features[here].double(), dim=-1)
                moments.add(unit, None if counted is None else counted[here])

    def merge(self, other: _FeatureMoments) -> None:
        """Add the rows of another."""
        for part, moments in self.parts.items():
            moments.merge(other.parts[part])

    def empty(self) -> _FeatureMoments:
        """The same moments of no rows."""
        return _FeatureMoments(self.evidence, self.classes)

    def save(self) -> dict[str, Tensor]:
        """All sums as named tensors."""
        return {f"{part} {name}": x for part, moments in self.parts.items() for name, x in moments.save().items()}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Become what was saved; the tensors are shared, not copied."""
        for part, moments in self.parts.items():
            saved = under(f"{part} ", tensors)
            self.parts[part] = Moments.load(saved, second=moments.second, classes=moments.classes)


def _union(folds: Sequence[_FeatureMoments]) -> _FeatureMoments:
    """The moments of all folds together; where there is one fold, itself."""
    if len(folds) == 1:
        return folds[0]
    total = folds[0].empty()
    for moments in folds:
        total.merge(moments)
    return total


def solve(leaf: Spec, evidence: Evidence) -> dict[str, Tensor]:
    """The parameters of one fitted score."""
    score = registry.get(leaf.name)
    assert score.solve is not None
    return score.solve(evidence, **{**score.options, **leaf.options})


def _check_head(head: Head | None, leaves: Iterable[Spec]) -> None:
    if head is not None and not isinstance(head, Head):
        raise ValueError(
            f"`head` must be a `sirc.Head`; got {type(head).__name__}. Pass `sirc.find_head(model, example)` or "
            "`sirc.Head(layer.weight, layer.bias)`"
        )
    if head is None and (wanting := [str(leaf) for leaf in leaves if registry.get(leaf.name).head]):
        raise ValueError(
            f"`head` is needed for {_quoted(wanting)}: the weight and bias of the final linear layer. "
            "Pass `head=sirc.find_head(model, example)` or `head=sirc.Head(weight, bias)`"
        )


def _head_differences(mine: Head | None, theirs: Head | None) -> str:
    if mine is theirs:
        return ""
    if mine is None or theirs is None:
        return "one has none"
    pairs = ((mine.weight, theirs.weight), (mine.bias, theirs.bias))
    same = all(a is b or (a is not None and b is not None and torch.equal(a, b.to(a))) for a, b in pairs)
    return "" if same else "their weights differ"


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
