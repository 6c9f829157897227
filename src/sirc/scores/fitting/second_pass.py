"""The second pass over training rows: statistics of S2 scores, for the a and b of `sirc` and the c of `vim`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias, TypeVar, final

import torch
from torch import Tensor

from sirc.outputs import Outputs
from sirc.scores import registry
from sirc.scores.blocks import working_dtype
from sirc.scores.evaluator import Evaluator, array_reads, needed_leaves
from sirc.scores.fitting.rows import IndexedBatches, RowBuffer, checksums
from sirc.scores.fitting.standing import Standing
from sirc.scores.formulas.feature import BANK_SIZE
from sirc.scores.moments import Evidence, Moments, Parameters, Reservoir, counts_classes, fold_of, part_of, under
from sirc.scores.scorer import cast_parameters, check_values
from sirc.scores.spec import WITNESSES, Spec, is_vim, parse

_MAX_LOGIT = Spec("max_logit")
_ROWS, _SEED = 4096, 12  # of the sample of values; with this seed its rows are not those of the bank
_BEYOND_BANK = 1.1  # with more training rows than this times the bank, rows outside the bank give the statistics
_BELOW = 0.15865525393145707  # the share of a normal distribution that lies more than σ below its mean
_JUDGING = 2000  # about so many judging rows measure how far in-sample statistics are off
_PARTS = ("all", "outside", "judged")  # whose moments are kept: all rows, those outside the bank, the judging rows
_T = TypeVar("_T")

IdRows: TypeAlias = Mapping[str, tuple[Tensor, list[Tensor]]]
"""For each `bayes`, log(S1max − S1) and the S2 scores of some ID rows."""


def fitted_combinations(specs: Iterable[Spec]) -> list[Spec]:
    """The distinct combinations inside these specs whose parameters are statistics of training rows; `vim` first."""
    fitted = {str(part): part for spec in specs for part in spec.walk() if is_vim(part) or part.finds_spread}
    return sorted(fitted.values(), key=lambda spec: not is_vim(spec))


def fitted_terms(combinations: Iterable[Spec]) -> list[Spec]:
    """The fitted scores whose statistics over training rows these combinations need."""
    return [leaf for leaf in needed_leaves(_all_terms(combinations).values()) if registry.get(leaf.name).solve]


def searching_terms(combinations: Iterable[Spec]) -> list[Spec]:
    """The fitted terms that search the bank."""
    return [leaf for leaf in fitted_terms(combinations) if "bank" in registry.get(leaf.name).evidence]


def evidence_of(specs: Iterable[Spec]) -> frozenset[str]:
    """All evidence that the scores inside these specs need."""
    return frozenset().union(*(registry.get(leaf.name).evidence for leaf in needed_leaves(specs)))


def each_or_why(specs: Iterable[Spec], function: Callable[[Spec], _T]) -> tuple[dict[str, _T], dict[Spec, str]]:
    """A function's results for each spec, and the error's text for specs where it raised a `ValueError`."""
    results: dict[str, _T] = {}
    unfit: dict[Spec, str] = {}
    for spec in specs:
        try:
            results[str(spec)] = function(spec)
        except ValueError as error:
            unfit[spec] = str(error)
    return results, unfit


def check_bank(leaf: Spec, rows: int, *, excluding_self: bool = False) -> None:
    """Require enough training rows for a score that searches the bank."""
    score = registry.get(leaf.name)
    options = {**score.options, **(_excluding_self(leaf) if excluding_self else leaf).options}
    least = 1 if score.least_rows is None else score.least_rows(**options)
    if rows < least:
        itself = ", as no row searches for itself" if excluding_self else ""
        raise ValueError(
            f"`{leaf}` needs at least {least} training rows to search{itself}; got {rows}. Choose a smaller k, or fit "
            f"on more rows; no more than {BANK_SIZE} are searched"
        )


@final
class SecondPass:
    """Means and covariances, over training rows, of the terms that S2 scores are linear forms of.

    One pass suffices even for an S2 with a fitted c inside: μ and σ of energy + c·residual follow from the means and
    the covariance of energy and residual, for any c.

    `held_out` has functions of scores that leave each row out by a formula. `folds` has the parameters of the other
    scores: for each fold, those fitted without its rows; last, those fitted without the judging rows. The values of
    judging rows show how far new rows will lie from the statistics. If the statistics are in-sample, `judge_of` is the
    number of training rows, and the `held_out` values of some rows judge; else it is 0.
    """

    def __init__(
        self,
        combinations: list[Spec],
        parameters: Parameters,
        evidence: Evidence,
        folds: Sequence[Parameters],
        held_out: Mapping[str, registry.HeldOut],
        judge_of: int,
    ) -> None:
        self._clear()
        self._combinations = combinations
        self._evidence = evidence
        self._parameters = parameters
        self._terms = _all_terms(combinations)
        if any(spec.is_default for spec in combinations):  # a `scod` that loses all witnesses falls back to the last
            self._terms.setdefault(str(WITNESSES[-1]), WITNESSES[-1])
        # `bayes` takes its statistics from a sample: terms that only it needs are computed for sampled rows alone.
        self._of_all_rows = list(_all_terms(spec for spec in combinations if spec.name != "bayes"))
        self._searching = {name for name, term in self._terms.items() if "bank" in evidence_of([term])}
        self._folds = folds
        self._held_out = held_out
        self._judge_of = judge_of
        self._labelled = counts_classes(evidence_of(map(parse, held_out)))
        self._bank: Reservoir | None = None
        self._sampled = False
        self._scales: Parameters = {}  # the c of each `vim`, once settled
        self._firsts = {str(spec.args[0]): spec.args[0] for spec in combinations if spec.name == "bayes"}
        self._cast: dict[tuple[torch.device, torch.dtype, int], Parameters] = {}

    def _clear(self) -> None:
        self.rows_read = 0
        self.checksums = torch.zeros(2, dtype=torch.float64, device="cpu")
        self._moments = {part: Moments() for part in _PARTS}
        self._rows = Reservoir(_ROWS, _SEED)

    def leave_out_bank(self, bank: Reservoir, rows: int) -> None:
        """Take the statistics of scores that search the bank from rows outside it.

        If too few rows are outside, all count, and a row's search leaves out the row itself, or its nearest neighbour.
        """
        if not self._searching:
            return
        if rows > _BEYOND_BANK * len(bank):
            self._bank = bank
            return
        for name in self._searching:
            self._terms[name] = _excluding_self(self._terms[name])
        leaves = searching_terms(self._combinations)
        excluding = {str(_excluding_self(leaf)): self._parameters[str(leaf)] for leaf in leaves}
        self._parameters = {**self._parameters, **excluding}

    def read(self, batches: IndexedBatches, check_batch: Callable[[Outputs], None]) -> None:
        """Read the batches of the second pass."""
        buffer = RowBuffer(self._add)
        for index, batch in batches:
            check_batch(batch)
            buffer.add(index, Outputs._trusted(batch.logits, batch.features, batch.labels if self._labelled else None))
            self.rows_read += len(batch)
            if self._ordered or self._held_out:
                self.checksums += checksums(index, batch)
        buffer.flush()

    @property
    def _ordered(self) -> bool:
        """Whether rows must come with the index of the first pass, which gives their fold or place in the bank."""
        return bool(self._folds) or self._bank is not None

    def read_sample(self, index: Tensor, columns: Mapping[str, Tensor]) -> None:
        """Read rows kept from the first pass in place of a second pass."""
        self._add(index, Outputs._trusted(**columns))
        self._sampled = True

    def _add(self, index: Tensor, batch: Outputs) -> None:
        if self._judge_of and self._held_out:
            self._judge(batch, fold_of(index, 1 + self._judge_of // _JUDGING, seed=2) == 0, -1)
        if not self._folds:
            self._add_rows(index, batch, -1)
            return
        folds = len(self._folds) - 1
        part = part_of(index, folds)
        for number in range(folds):
            rows = (part % folds == number).nonzero()[:, 0]
            if len(rows):
                self._add_rows(index[rows], batch[rows.to(batch.device)], number)
        if self._folds[-1]:
            self._judge(batch, part == folds, folds)

    def _judge(self, batch: Outputs, judging: Tensor, fold: int) -> None:
        """Add the values of the judging rows, scored with the parameters of a fold or, if it is −1, of all rows."""
        if len(rows := judging.nonzero()[:, 0]):
            columns, _ = self._columns(batch[rows.to(batch.device)], fold, self._held_out, self._terms)
            self._moments["judged"].add(_stacked(columns))

    def _add_rows(self, index: Tensor, batch: Outputs, fold: int) -> None:
        held_out = {} if self._judge_of else self._held_out
        outside = torch.ones(len(index), dtype=torch.bool, device="cpu")
        if self._bank is not None:
            outside = ~self._bank.holds(index)
        columns: dict[str, Tensor] = {}
        if self._of_all_rows:
            columns, _ = self._columns(batch, fold, held_out, self._of_all_rows)
            values = _stacked(columns)
            self._moments["all"].add(values)
            if self._bank is not None:
                self._moments["outside"].add(values[outside.to(values.device)])
        if len(some := (outside & self._rows.admits(index)).nonzero()[:, 0]):
            here = some.to(batch.device)
            others = [name for name in self._terms if name not in columns]
            sampled = {name: column[here] for name, column in columns.items()}
            log_gaps: dict[str, Tensor] = {}
            if others or self._firsts:
                further, log_gaps = self._columns(batch[here], fold, held_out, others, self._firsts)
                sampled |= further
            values = _stacked({name: sampled[name] for name in self._terms})
            self._rows.update(index[some], {"values": values, **log_gaps})

    def _columns(
        self,
        batch: Outputs,
        fold: int,
        held_out: Mapping[str, registry.HeldOut],
        names: Iterable[str],
        firsts: Mapping[str, Spec] = {},
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The values of the terms of these names, and log(S1max − S1) of these first scores."""
        dtype = torch.float64 if batch.features is None else working_dtype(batch.features.dtype)
        key = (batch.device, dtype, fold)
        if key not in self._cast:
            parameters = self._parameters | (self._folds[fold] if self._folds else {})
            self._cast[key] = cast_parameters(parameters, batch.device, dtype)
        terms = {name: self._terms[name] for name in names}
        reads = array_reads([*terms.values(), *firsts.values()])
        evaluator = Evaluator(
            batch.logits, batch.features, reads, self._cast[key], held_out=held_out, labels=batch.labels
        )
        values = {name: evaluator.value(term) for name, term in terms.items()}
        log_gaps = {name: evaluator.log_gap(s1) for name, s1 in firsts.items()}
        check_values(values | log_gaps, batch)
        return values, log_gaps

    def save(self) -> dict[str, Tensor]:
        """All statistics as named tensors, for `load`."""
        tensors = {"rows_read": torch.tensor(self.rows_read, device="cpu"), "checksums": self.checksums}
        for part, moments in self._moments.items():
            tensors |= {f"{part} {name}": x for name, x in moments.save().items()}
        return tensors | {f"row {name}": x for name, x in self._rows.save().items()}

    def load(self, passes: Iterable[Mapping[str, Tensor]], device: torch.device) -> None:
        """Replace all statistics by the sum of saved passes, added in their order, on `device`."""
        self._clear()
        for tensors in passes:
            self.rows_read += int(tensors["rows_read"])
            self.checksums += tensors["checksums"].cpu()
            for part, moments in self._moments.items():
                moments.merge(Moments().load(under(f"{part} ", tensors, device)))
            self._rows.load(under("row ", tensors, device))

    def check_rows(self, count: int, checksums: Tensor) -> None:
        """Require as many rows as the `count` of the first pass, and the same rows if each is scored without itself."""
        if self._sampled:
            return
        if self.rows_read != count:
            raise ValueError(
                f"the second pass over `train` must bring the rows of the first; got {self.rows_read} rows after "
                f"{count}. Pass a list, an `OutputStore`, or a one-shot iterator"
            )
        out_of_sample = self._held_out and not self._judge_of
        changed, moved = ((self.checksums - checksums).abs() > 1e-6 * (1 + checksums.abs())).tolist()
        if (self._ordered and moved) or (out_of_sample and changed):
            itself = "itself" if self._bank is None else "itself in the bank"
            left_out = "its own fold" if self._folds else itself
            order = " in the same order" if self._ordered else ""
            raise ValueError(
                f"the second pass over `train` must bring the same rows{order} as the first: each row is scored "
                f"without {left_out}. Does a DataLoader {'shuffle or ' if order else ''}augment? "
                f"{'Set `shuffle=False`, or pass' if order else 'Pass'} an `OutputStore`"
            )
        if changed:
            self._moments["judged"] = Moments()

    def settle(self, combinations: Sequence[Spec]) -> tuple[Parameters, dict[Spec, str]]:
        """The parameters of some combinations, and the reasons why some have none.

        c = mean max logit / mean residual norm; a = μ − 3σ and b = 1/σ of each S2. For `bayes`, μ and σ are the median
        of a sample and its distance to the quantile that lies σ below a normal mean: a few rows cannot distort them.
        """
        scales, unfit = each_or_why(filter(is_vim, combinations), lambda spec: {"c": self._vim_scale(spec)})
        self._scales = scales

        def spreads(spec: Spec) -> dict[str, Tensor]:
            spread = [self._center_and_scale(spec, s2) for s2 in spec.args[1:]]
            mu, sigma = (torch.tensor(x, dtype=torch.float64, device="cpu") for x in zip(*spread, strict=True))
            return {"a": mu - 3 * sigma, "b": 1 / sigma}

        others = [spec for spec in combinations if unfit.keys().isdisjoint(spec.walk()) and not is_vim(spec)]
        parameters, also_unfit = each_or_why(others, spreads)
        return scales | parameters, unfit | also_unfit

    def settle_each(self, spec: Spec) -> dict[Spec, str]:
        """The S2 scores of a combination that `settle` cannot settle, each with the reason."""
        alone = [spec.with_only(other) for other in spec.args[1:]]
        _, unfit = self.settle([*filter(is_vim, self._combinations), *alone])
        return {part.args[1] if part in alone else part: why for part, why in unfit.items()}

    def _vim_scale(self, spec: Spec) -> Tensor:
        mean, terms = self._moments["all"].mean, self._of_all_rows
        norm = -mean[terms.index(str(spec.args[1]))]
        if not float(norm) > self._resolution(str(spec.args[1])):
            raise ValueError(
                "`vim` needs features with a part outside their principal subspace; the residual is 0 on all "
                "training rows. Leave it out, or give c= yourself: `linear(energy, residual, c=…)`"
            )
        top = mean[terms.index(str(_MAX_LOGIT))]
        if not float(top) > 0:
            raise ValueError(
                f"`vim` scales the residual by the mean largest logit, which must be positive; it is "
                f"{float(top):.3g}. Are these log-probabilities? Pass the logits, or give c=: "
                "`linear(energy, residual, c=…)`"
            )
        return (top / norm).reshape(1)

    def _center_and_scale(self, spec: Spec, s2: Spec) -> tuple[float, float]:
        """The μ and σ of an S2 that this combination uses."""
        return (self._typical if spec.name == "bayes" else self._spread)(spec, s2)

    def _spread(self, spec: Spec, s2: Spec) -> tuple[float, float]:
        """Mean and standard deviation of an S2."""
        form = self._linear_form(s2)
        outside = self._bank is not None and self._searching & set(form)
        mean, sigma = _moments_of(form, self._moments["outside" if outside else "all"], self._of_all_rows)
        self._check_spread(spec, s2, mean, sigma)
        return mean, sigma

    def _check_spread(self, spec: Spec, s2: Spec, mean: float, sigma: float) -> None:
        if not math.isfinite(mean) or not math.isfinite(sigma):
            raise ValueError(
                f"`{s2}` must be finite on the training rows for `{spec}`; its mean is {mean}, σ is {sigma}"
            )
        form = self._linear_form(s2).items()
        floor = max([1e-12 * abs(mean), *(abs(c) * self._resolution(name) for name, c in form)])
        if sigma <= floor:
            advice = "fit on more rows"
            if spec.name != "bayes":
                advice += ", or leave rows out of their own statistics if you did not (`crossfit=5`), or give a and b"
            raise ValueError(
                f"`{s2}` does not vary over the training rows by more than rounding (σ = {sigma:.3g}, of which up to "
                f"{floor:.3g} is rounding), so `{spec}` has no scale to read it on. Choose another S2, {advice}"
            )

    def _typical(self, spec: Spec, s2: Spec) -> tuple[float, float]:
        """The median of an S2 and its distance to the quantile one σ below; the standard deviation if these two tie."""
        values = self._sampled_values(s2)
        mean, sigma = float(values.mean()), float(values.std(correction=0))
        self._check_spread(spec, s2, mean, sigma)
        low, middle = torch.quantile(values, values.new_tensor([_BELOW, 0.5])).tolist()
        return middle, middle - low if middle - low > 1e-6 * sigma else sigma

    def _sampled_values(self, s2: Spec) -> Tensor:
        form, (_, columns) = self._linear_form(s2), self._rows.rows()
        return columns["values"] @ columns["values"].new_tensor([form.get(name, 0.0) for name in self._terms])

    def sample(self, combinations: Iterable[Spec]) -> IdRows:
        """For each `bayes`, log(S1max − S1) and the S2 scores of a sample of training rows."""
        _, columns = self._rows.rows()
        return {
            str(spec): (columns[str(spec.args[0])], [self._sampled_values(s2) for s2 in spec.args[1:]])
            for spec in combinations
            if spec.name == "bayes"
        }

    def standings(self, combinations: Iterable[Spec]) -> Iterator[Standing]:
        """Where the judging rows stand on the scale of each S2."""
        judged = self._moments["judged"]
        for spec in combinations if judged.count else ():
            for s2 in () if is_vim(spec) else spec.args[1:]:
                form = self._linear_form(s2)
                if self._folds and self._searching & set(form):  # judging rows may be in the bank
                    continue
                center, scale = self._center_and_scale(spec, s2)
                mean, sigma = _moments_of(form, judged, list(self._terms))
                yield Standing(s2, (mean - center) / scale, sigma / scale, judged.count)

    def typical_standings(self, combinations: Iterable[Spec]) -> Iterator[Standing]:
        """Where typical training rows stand: far from 0 if a few huge values determine μ and σ of an S2."""
        for spec in combinations:
            for s2 in () if spec.name == "bayes" or is_vim(spec) else spec.args[1:]:
                mean, sigma = self._spread(spec, s2)
                median, below = self._typical(spec, s2)
                yield Standing(s2, (median - mean) / sigma, below / sigma, len(self._rows))

    def _linear_form(self, spec: Spec) -> dict[str, float]:
        """The coefficient of each term of a linear form."""
        if spec.name != "linear":
            return {str(spec): 1.0}
        c = (spec.numbers("c") or (float(self._scales[str(spec)]["c"]),))[0]
        form = self._linear_form(spec.args[0])
        for term, weight in self._linear_form(spec.args[1]).items():
            form[term] = form.get(term, 0.0) + c * weight
        return form

    def _resolution(self, term: str) -> float:
        leaf = self._terms[term]
        resolution = registry.get(leaf.name).resolution if leaf.is_leaf else None
        return resolution(self._evidence) if resolution else 0.0


def _all_terms(combinations: Iterable[Spec]) -> dict[str, Spec]:
    """The distinct terms whose means and covariances settle these combinations."""
    distinct: dict[str, Spec] = {}
    for spec in combinations:
        terms = [_MAX_LOGIT, spec.args[1]] if is_vim(spec) else [t for s2 in spec.args[1:] for t in _terms(s2)]
        distinct |= {str(term): term for term in terms}
    return distinct


def _excluding_self(spec: Spec) -> Spec:
    """The same spec with options under which a row of the bank does not find itself."""
    if not spec.is_leaf:
        return Spec(spec.name, tuple(_excluding_self(arg) for arg in spec.args), spec.options)
    score = registry.get(spec.name)
    if "bank" not in score.evidence:
        return spec
    assert score.exclude_self is not None
    options = score.exclude_self({**score.options, **spec.options})  # type: ignore[dict-item]
    return Spec(spec.name, (), {key: value for key, value in options.items() if value != score.options[key]})


def _terms(spec: Spec) -> list[Spec]:
    """The terms that a spec is a linear form of."""
    return [t for s in spec.args for t in _terms(s)] if spec.name == "linear" else [spec]


def _stacked(columns: Mapping[str, Tensor]) -> Tensor:
    return torch.stack(list(columns.values()), -1)


def _moments_of(form: Mapping[str, float], moments: Moments, names: Sequence[str]) -> tuple[float, float]:
    """Mean and standard deviation of a linear form, from the moments of the terms of these names."""
    weight = moments.mean.new_tensor([form.get(name, 0.0) for name in names])
    return float(weight @ moments.mean), float((weight @ moments.covariance @ weight).clamp_min(0).sqrt())
