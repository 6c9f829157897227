"""Fit: ID-dependent parameters from one pass for the moments and one for the statistics of the S2 scores."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import final

import torch
from torch import Tensor

from sirc._utils.arrays import ArrayLike, as_tensor
from sirc._utils.checks import differences
from sirc._utils.distributed import world
from sirc._utils.precision import exact
from sirc.outputs import Head, Outputs, OutputStore
from sirc.progress import SILENT, Progress
from sirc.scores import registry
from sirc.scores.fitting.crossfit import Crossfit, check_crossfit, folds_of
from sirc.scores.fitting.kept import FeatureMoments, counts_classes, keeps_moments, keeps_sample, union
from sirc.scores.fitting.row_marks import SeenRows
from sirc.scores.fitting.rows import Gatherer, kind, numbered, probe, shown
from sirc.scores.fitting.second_pass import SecondPass
from sirc.scores.fitting.solving import Seen
from sirc.scores.fitting.statistics import Solved, Statistics, fitted_leaves, unsettled
from sirc.scores.fitting.tuning import Data, Tuning
from sirc.scores.formulas.feature import BANK_SIZE
from sirc.scores.moments import Reservoir, fold_of
from sirc.scores.needs import warn_unsuited
from sirc.scores.scorer import Scorer, check_features, check_specs, learns
from sirc.scores.spec import parse
from sirc.scores.values import needed_leaves


def fit(
    specs: str | Sequence[str],
    train: Outputs | Iterable[object],
    *,
    head: Head | None = None,
    crossfit: Crossfit = "auto",
    val: Data | None = None,
    ood: Data | Mapping[str, Data] | None = None,
    unlabelled: Data | None = None,
    device: torch.device | str | None = None,
    distributed: bool = False,
    progress: Progress = SILENT,
) -> Scorer:
    """Find all parameters of the specs on ID training data and return a `Scorer`.

    `train` is an `Outputs`, an `OutputStore`, or any iterable of batches (`Outputs`, dicts or tuples of arrays).
    What can be iterated again is read twice; a one-shot iterator once, its statistics then coming from a random
    sample of 12,500 rows. Memory does not grow with the number of rows.

    `head` is the final linear layer (`sirc.find_head(model, example)`), needed by `residual` and `vim`.
    `crossfit`: the number of folds for the statistics of fitted scores inside `sirc` and `vim`, so that each row is
    scored with parameters it had no part in; 0 is the paper's in-sample rule; `"auto"` is 5 below 100 rows for each
    feature, else 0.
    `val`: labelled ID rows that the network was not trained on, for what is tuned on them: the options of
    `max_logit_pnorm`, `tempered_msp` and `tempered_entropy`, the calibration of `bayes`, a `budget` of `sirc`.
    `ood` (rows, or a dict of sets that weigh the same) and `unlabelled` (a mixture of ID and OOD rows, as met in use)
    are what `bayes` may learn from how OOD rows differ from those of `val`.
    `device`: where to compute, if not where the rows are; batches are moved there one by one.
    `distributed=True`: every process of the default torch.distributed group calls this with the same arguments, `train`
    being an `OutputStore` or an `Outputs`; each reads its share of the rows, and all get the scorer of one process.
    `progress`: where both passes are reported, and which of the scores are not for networks with such features.
    """
    if device is not None and head is not None:
        head = head.to(device)
    if distributed and world() > 1:
        from sirc.scores.fitting.distributed import fit_together  # which is made of the parts below

        return fit_together(
            lambda: Fitter(specs, head=head, crossfit=crossfit, val=val, ood=ood, unlabelled=unlabelled),
            train,
            device=device,
            progress=progress,
        )
    one_shot = isinstance(train, Iterator)
    fitter = Fitter(specs, head=head, crossfit=crossfit, one_pass=one_shot, val=val, ood=ood, unlabelled=unlabelled)
    for index, batch in shown(numbered(train), device, progress, "fit, first pass", _length(train)):
        if not fitter.count:
            warn_unsuited(fitter.specs, batch, progress)
        fitter.update(batch, index=index)
    return fitter.finish(None if one_shot else train, device=device, progress=progress)


@final
class Fitter:
    """The same in steps, for data in several places: `update` with batches, `merge` with others, `finish`.

    Give each batch its dataset indices when workers see different parts; then any split of the rows over workers, in
    any order, gives the parameters of a single pass. `finish(train)` makes the second pass over `train`; without it,
    and with `one_pass=True` from the start, a random sample of the rows seen stands in for it.
    """

    def __init__(
        self,
        specs: str | Sequence[str],
        *,
        head: Head | None = None,
        crossfit: Crossfit = "auto",
        one_pass: bool = False,
        val: Data | None = None,
        ood: Data | Mapping[str, Data] | None = None,
        unlabelled: Data | None = None,
    ) -> None:
        self.specs = check_specs(specs)
        self.head = head
        self.crossfit = check_crossfit(crossfit)
        self.one_pass = one_pass
        self.count = 0
        self.num_classes: int | None = None
        self.num_features: int | None = None
        self._parsed = [parse(text) for text in self.specs]
        self._leaves = [leaf for leaf in needed_leaves(self._parsed) if registry.get(leaf.name).solve]
        self._evidence = frozenset().union(*(registry.get(leaf.name).evidence for leaf in self._leaves))
        self._statistics = unsettled(self._parsed)
        # Cross-fitting is for statistics of scores that are themselves fitted; all others have nothing to hug.
        fitted = fitted_leaves(self._statistics)
        self._crossfitted = fitted if any(registry.get(leaf.name).evidence for leaf in fitted) else []
        if head is not None and not isinstance(head, Head):
            raise ValueError(
                f"`head` must be a `sirc.Head`; got {type(head).__name__}. Pass `sirc.find_head(model, example)` or "
                "`sirc.Head(layer.weight, layer.bias)`"
            )
        if head is None and (wanting := [str(s) for s in self._leaves if registry.get(s.name).head]):
            raise ValueError(
                f"`head` is needed for {', '.join(f'`{s}`' for s in wanting)}: the weight and bias of the final linear "
                "layer. Pass `head=sirc.find_head(model, example)` or `head=sirc.Head(weight, bias)`"
            )
        keeps_rows = keeps_sample(self._evidence) or (one_pass and bool(self._statistics))
        self._reservoir = Reservoir(BANK_SIZE) if keeps_rows else None
        self._keeps_logits = one_pass and bool(self._statistics)
        inside = needed_leaves(self._statistics)
        self._keeps_features = bool(self._evidence) or any("features" in registry.get(s.name).needs for s in inside)
        self._folds: list[FeatureMoments] = []
        self._gatherer = Gatherer(self._take, self._copy)
        self._kind: dict[str, str] = {}
        self._own_index = False
        self._probe = 0.0
        self._seen = SeenRows() if learns(self._parsed) else None
        self._tuning = Tuning.of(self._parsed, val, ood, unlabelled)

    @exact
    def update(self, batch: object, *, index: ArrayLike | None = None) -> Fitter:
        """Take in a batch; `index` gives the rows' places in the dataset, by default those after the rows so far."""
        outputs = Outputs.of(batch)
        self._check_batch(outputs)
        given = index is not None
        if index is None:
            index = torch.arange(self.count, self.count + len(outputs), device="cpu")
        places = as_tensor("index", index).cpu()
        if places.shape != (len(outputs),) or places.is_floating_point():
            raise ValueError(
                f"`index` must give one whole number for each of the {len(outputs)} rows; got {places.dtype} of shape "
                f"{tuple(places.shape)}"
            )
        self._own_index |= given
        self.count += len(outputs)
        if self._seen is not None:
            self._seen.update(places, outputs.logits)
        if self._evidence or self._reservoir is not None:
            self._gatherer.add(places, outputs)
        return self

    @exact
    def merge(self, other: Fitter) -> Fitter:
        """Take in all that another fitter with the same settings has seen; returns itself."""
        mine = (self.specs, self.crossfit, self.one_pass)
        theirs = (other.specs, other.crossfit, other.one_pass)
        if mine != theirs:
            raise ValueError(f"fitters merge when specs, crossfit and one_pass are the same; got {mine} and {theirs}")
        for name in ("num_classes", "num_features"):
            known, new = getattr(self, name), getattr(other, name)
            if known is not None and new is not None and known != new:
                raise ValueError(f"fitters merge when they saw the same model; got {name} {known} and {new}")
            setattr(self, name, new if known is None else known)
        if words := _head_differs(self.head, other.head):
            raise ValueError(f"fitters merge when they have the same head; {words}")
        if self._kind and other._kind and (words := differences(self._kind, other._kind)):
            raise ValueError(f"fitters merge when their rows have one type; {words}")
        placed = self._own_index and other._own_index
        if self.count and other.count and not placed and (self._crossfitted or self._reservoir is not None):
            raise ValueError(
                "fitters that saw different rows merge when each row came with its place in the dataset, from which "
                "its fold follows: pass `update(batch, index=…)`"
            )
        self._own_index |= other._own_index
        self._kind = self._kind or other._kind
        self._gatherer.flush()
        other._gatherer.flush()
        self.count += other.count
        self._probe += other._probe
        if self._seen is not None and other._seen is not None:
            self._seen.merge(other._seen)
        if self._reservoir is not None and other._reservoir is not None:
            self._reservoir.merge(other._reservoir)
        if not self._folds:
            self._folds = [moments.empty() for moments in other._folds]
        if other._folds and len(self._folds) != len(other._folds):
            self._folds = [union(self._folds)]
        for position, moments in enumerate(other._folds):
            self._folds[position if len(self._folds) > 1 else 0].merge(moments)
        self._settle_folds()
        return self

    @exact
    def finish(
        self,
        train: Outputs | Iterable[object] | None = None,
        *,
        device: torch.device | str | None = None,
        progress: Progress = SILENT,
    ) -> Scorer:
        """Solve all parameters, with a second pass over `train` where the specs need one."""
        if device is not None:
            self._tuning = self._tuning.to(device)
        parameters, second = self._solve(sampled=train is None)
        if second is not None and train is not None:
            second.read(shown(numbered(train), device, progress, "fit, second pass", self.count))
        if second is not None:
            parameters |= second.settle(self.count, self._probe)
        return self._scorer(parameters)

    def _solve(self, *, sampled: bool) -> tuple[Solved, SecondPass | None]:
        """The parameters of single scores and, where there are combinations to fit, the second pass to make.

        `sampled`: the rows kept stand in for it, and are taken in already.
        """
        self._gatherer.flush()
        if not self.count or self.num_classes is None:
            raise ValueError("`train` must hold at least one row of ID training data; got an empty iterable")
        index, rows = self._reservoir.rows() if self._reservoir is not None else (torch.empty(0, device="cpu"), {})
        sizes = (self.count, self.num_classes, self.num_features)
        seen = Seen(*sizes, self._folds, index, rows, keeps_sample(self._evidence), self.head, self._resolution)
        tuned = self._tuning.options(self._parsed)
        parameters = tuned | seen.solve(self._leaves)
        if not self._statistics:
            return parameters, None
        if sampled and not self.one_pass:
            raise ValueError(
                f"`{self._statistics[0]}` needs statistics of the training rows: pass `finish(train)` for a second "
                "pass, or make the fitter with `one_pass=True`"
            )
        statistics = Statistics(self._statistics, parameters, seen.everything)
        folds = self._active_folds()
        if folds and self._crossfitted:
            statistics.use_folds(
                folds, lambda fold: tuned | seen.solve_without(fold, folds, self._crossfitted, parameters)
            )
        elif self._reservoir is not None and statistics.searches_bank:
            statistics.use_bank(self._reservoir, len(index) if sampled else self.count)
        second = SecondPass(statistics, self._check_batch)
        if sampled:
            second.read_sample(index, Outputs._trusted(rows["logits"], rows.get("features"), None))
        return parameters, second

    def _scorer(self, parameters: Solved) -> Scorer:
        """All parameters, those of tuned combinations too, in a scorer that knows which rows it learnt from."""
        tuned = self._tuning.combinations(
            Scorer(self.specs, parameters, num_classes=self.num_classes, num_features=self.num_features)
        )
        parameters = {**parameters, **{key: {**parameters.get(key, {}), **part} for key, part in tuned.items()}}
        seen, count = self._seen, 0 if self._seen is None else self.count
        if self._tuning.used(self._parsed):
            seen = seen or SeenRows()
            for outputs in self._tuning.rows():
                seen.update(torch.arange(count, count + len(outputs), device="cpu"), outputs.logits)
                count += len(outputs)
        return Scorer(
            self.specs,
            parameters,
            num_classes=self.num_classes,
            num_features=self.num_features,
            fitted_on=None if seen is None else seen.rows()[1],
            fitted_rows=0 if seen is None else count,
        )

    def _check_batch(self, outputs: Outputs) -> None:
        check_features(self._parsed, outputs)
        if counts_classes(self._evidence) and outputs.labels is None:
            wanting = [str(s) for s in self._leaves if counts_classes(registry.get(s.name).evidence)]
            raise ValueError(
                f"labels are needed to fit {', '.join(f'`{s}`' for s in wanting)}: the class of each training row. "
                "Pass `Outputs(logits, features, labels)`"
            )
        if self._kind and (words := differences(self._kind, kind(outputs))):
            raise ValueError(f"all batches of `train` must be alike: {words}. Convert with `.to(device, dtype)`")
        self._kind = self._kind or kind(outputs)
        for name in ("num_classes", "num_features"):
            known, new = getattr(self, name), getattr(outputs, name)
            if self.num_classes is not None and known != new:
                what = "logits" if name == "num_classes" else "features"
                raise ValueError(f"all batches must come from one model; got {new} {what} after batches with {known}")
        if self.num_classes is None and self.head is not None and outputs.num_features is not None:
            got, want = (
                (outputs.num_classes, outputs.num_features),
                (self.head.num_classes, self.head.num_features),
            )
            if got != want:
                raise ValueError(
                    f"`head` must map the features to the logits; it maps {want[1]} features to {want[0]} logits, "
                    f"the data have {got[1]} and {got[0]}. Is it the head of this model?"
                )
        self.num_classes, self.num_features = outputs.num_classes, outputs.num_features

    def _copy(self, outputs: Outputs) -> Outputs:
        """The parts that will be used, in memory of their own."""
        logits = outputs.logits.clone() if self._keeps_logits else outputs.logits[:, :1].clone()
        features = outputs.features.clone() if self._keeps_features and outputs.features is not None else None
        labels = outputs.labels.clone() if counts_classes(self._evidence) and outputs.labels is not None else None
        return Outputs._trusted(logits, features, labels)

    @property
    def _resolution(self) -> float:
        """Differences, relative to the size of the features, that are more than rounding."""
        return 1e-11 if self._kind.get("features") == "float64" else 1e-6

    def _take(self, index: Tensor, outputs: Outputs) -> None:
        features = outputs.features
        self._probe += probe(index, outputs)
        if self._reservoir is not None:
            columns = {"logits": outputs.logits} if self._keeps_logits else {}
            if features is not None and self._keeps_features:
                columns["features"] = features
            self._reservoir.update(index, columns)
        if not keeps_moments(self._evidence) or features is None:
            return
        if not self._folds:
            folds = self._active_folds() if self._crossfitted else 0
            self._folds = [FeatureMoments(self._evidence, self.num_classes) for _ in range(max(1, folds))]
        if len(self._folds) == 1:
            self._folds[0].add(features, outputs.labels)
        else:
            fold = fold_of(index, len(self._folds)).to(features.device)
            for number, moments in enumerate(self._folds):
                rows = (fold == number).nonzero()[:, 0]
                moments.add(features[rows], None if outputs.labels is None else outputs.labels[rows])
        self._settle_folds()

    def _settle_folds(self) -> None:
        """Once there are rows enough for `auto` to do without folds, keep one."""
        if len(self._folds) > 1 and not self._active_folds():
            self._folds = [union(self._folds)]

    def _active_folds(self) -> int:
        return folds_of(self.crossfit, self.count, self.num_features)


def _length(train: object) -> int | None:
    return len(train) if isinstance(train, Outputs | OutputStore) else None


def _head_differs(mine: Head | None, theirs: Head | None) -> str:
    if mine is theirs:
        return ""
    if mine is None or theirs is None:
        return "one has none"
    pairs = ((mine.weight, theirs.weight), (mine.bias, theirs.bias))
    same = all(a is b or (a is not None and b is not None and torch.equal(a, b.to(a))) for a, b in pairs)
    return "" if same else "their weights differ"
