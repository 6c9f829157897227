"""The second pass over training rows: means and spreads of S2 scores, for SIRC's a, b and ViM's c."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import final

import torch
from torch import Tensor

from sirc.outputs import Outputs
from sirc.scores import registry
from sirc.scores.blocks import working_dtype
from sirc.scores.fitting.rows import IndexedBatches, RowBuffer, order_checksum
from sirc.scores.formulas.feature import BANK_SIZE
from sirc.scores.moments import Evidence, Moments, Parameters, Reservoir, fold_of, under
from sirc.scores.scorer import cast_parameters, check_values
from sirc.scores.spec import Spec, is_vim
from sirc.scores.values import Evaluator, array_reads, needed_leaves

_MAX_LOGIT = Spec("max_logit")


def fitted_combinations(specs: Iterable[Spec]) -> list[Spec]:
    """The combinations inside these specs whose parameters are statistics of training rows, each once."""
    fitted = {str(part): part for spec in specs for part in spec.walk() if is_vim(part) or part.finds_spread}
    # c comes before the a and b of a `sirc` with `vim` inside.
    return sorted(fitted.values(), key=lambda spec: not is_vim(spec))


def fitted_terms(combinations: Iterable[Spec]) -> list[Spec]:
    """The scores, themselves fitted on training rows, whose statistics these combinations need."""
    return [leaf for leaf in needed_leaves(_all_terms(combinations).values()) if registry.get(leaf.name).solve]


def evidence_of(specs: Iterable[Spec]) -> frozenset[str]:
    """The kinds of evidence that the scores inside these specs are solved from."""
    return frozenset().union(*(registry.get(leaf.name).evidence for leaf in needed_leaves(specs)))


def attempt(specs: Iterable[Spec], solve: Callable[[Spec], dict[str, Tensor]]) -> tuple[Parameters, dict[Spec, str]]:
    """The parameters that `solve` finds of each of these specs, and why it finds none of some."""
    parameters: Parameters = {}
    unfit: dict[Spec, str] = {}
    for spec in specs:
        try:
            parameters[str(spec)] = solve(spec)
        except ValueError as error:
            unfit[spec] = str(error)
    return parameters, unfit


def check_bank(leaf: Spec, rows: int, *, excluding_self: bool = False) -> None:
    """Require the training rows that a score's search of the bank takes."""
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
    the covariance of energy and residual, for any c. `folds` are the parameters without each fold, for its rows.
    """

    def __init__(
        self, combinations: list[Spec], parameters: Parameters, evidence: Evidence, folds: Sequence[Parameters] = ()
    ) -> None:
        self.rows_read = 0
        self.checksum = 0.0
        self._combinations = combinations
        self._evidence = evidence
        self._parameters = parameters
        self._terms = _all_terms(combinations)
        self._searching = {name for name, term in self._terms.items() if "bank" in evidence_of([term])}
        self._folds = folds
        self._bank: Reservoir | None = None
        self._sampled = False
        self._all = Moments()
        self._outside_bank = Moments()
        self._cast: dict[tuple[torch.device, torch.dtype, int], Parameters] = {}

    def leave_out_bank(self, bank: Reservoir, rows: int) -> None:
        """Let scores that search the bank count rows outside it alone.

        Where all rows are in the bank, each row is left out of its own search instead.
        """
        if not self._searching:
            return
        if rows > len(bank):
            self._bank = bank
            return
        for name in self._searching:
            self._terms[name] = _excluding_self(self._terms[name])
        leaves = [leaf for leaf in fitted_terms(self._combinations) if "bank" in registry.get(leaf.name).evidence]
        for leaf in leaves:
            check_bank(leaf, len(bank), excluding_self=True)
        excluding = {str(_excluding_self(leaf)): self._parameters[str(leaf)] for leaf in leaves}
        self._parameters = {**self._parameters, **excluding}

    def read(self, batches: IndexedBatches, check_batch: Callable[[Outputs], None]) -> None:
        """Take in the batches of the second pass."""
        buffer = RowBuffer(self._add, _copy)
        for index, batch in batches:
            check_batch(batch)
            buffer.add(index, batch)
            self.rows_read += len(batch)
            # A row must come back under the index it had in the first pass where its fold or the bank leaves it out.
            self.checksum += order_checksum(index, batch) if self._folds or self._bank is not None else 0.0
        buffer.flush()

    def read_sample(self, index: Tensor, columns: Mapping[str, Tensor]) -> None:
        """Take in rows kept from the first pass in place of a second."""
        self._add(index, Outputs._trusted(columns["logits"], columns.get("features"), None))
        self._sampled = True

    def _add(self, index: Tensor, batch: Outputs) -> None:
        if self._folds:
            fold = fold_of(index, len(self._folds)).to(batch.device)
            for number in range(len(self._folds)):
                rows = (fold == number).nonzero()[:, 0]
                if len(rows):
                    self._all.add(self._values(batch[rows], number))
            return
        values = self._values(batch, -1)
        self._all.add(values)
        if self._bank is not None:
            self._outside_bank.add(values[~self._bank.holds(index).to(values.device)])

    def _values(self, batch: Outputs, fold: int) -> Tensor:
        dtype = torch.float64 if batch.features is None else working_dtype(batch.features.dtype)
        key = (batch.device, dtype, fold)
        if key not in self._cast:
            parameters = self._folds[fold] if self._folds else self._parameters
            self._cast[key] = cast_parameters(parameters, batch.device, dtype)
        evaluator = Evaluator(batch.logits, batch.features, array_reads(self._terms.values()), self._cast[key])
        values = {name: evaluator.value(term) for name, term in self._terms.items()}
        check_values(values, batch)
        return torch.stack(list(values.values()), -1)

    def save(self) -> dict[str, Tensor]:
        """All that was read as named tensors, which `load` takes."""
        parts = {"all": self._all, "outside": self._outside_bank}
        tensors = {f"{part} {name}": x for part, moments in parts.items() for name, x in moments.save().items()}
        checksum = torch.tensor(self.checksum, dtype=torch.float64)
        return tensors | {"rows_read": torch.tensor(self.rows_read), "checksum": checksum}

    def load(self, passes: Iterable[Mapping[str, Tensor]], device: torch.device) -> None:
        """Become the sum of saved passes, added in their order, on `device`."""
        self.rows_read, self.checksum = 0, 0.0
        self._all, self._outside_bank = Moments(), Moments()
        for tensors in passes:
            self.rows_read += int(tensors["rows_read"])
            self.checksum += float(tensors["checksum"])
            for part, moments in (("all", self._all), ("outside", self._outside_bank)):
                moments.merge(Moments.load(under(f"{part} ", tensors, device)))

    def settle(self, count: int, checksum: float) -> tuple[Parameters, dict[Spec, str]]:
        """The parameters of the combinations, and why some have none.

        The first pass must have read as many rows, in the same order.

        c = mean max logit / mean residual norm; a = μ − 3σ and b = 1/σ of each S2.
        """
        if not self._sampled and self.rows_read != count:
            raise ValueError(
                f"the second pass over `train` must bring the rows of the first; got {self.rows_read} rows after "
                f"{count}. Pass a list, an `OutputStore`, or a one-shot iterator"
            )
        moved = abs(self.checksum - checksum) > 1e-6 * (1 + abs(checksum))
        if not self._sampled and (self._folds or self._bank is not None) and moved:
            left_out = "its own fold" if self._folds else "itself in the bank"
            raise ValueError(
                "the second pass over `train` must bring the same rows in the same order as the first: each row is "
                f"scored without {left_out}. Does a DataLoader shuffle or augment? Set `shuffle=False`, or pass an "
                "`OutputStore`"
            )
        vims = [spec for spec in self._combinations if is_vim(spec)]
        scales, unfit = attempt(vims, lambda spec: {"c": self._vim_scale(spec)})

        def spreads(spec: Spec) -> dict[str, Tensor]:
            spread = [self._spread(spec, s2, scales) for s2 in spec.args[1:]]
            mu, sigma = (torch.tensor(x, dtype=torch.float64, device="cpu") for x in zip(*spread, strict=True))
            return {"a": mu - 3 * sigma, "b": 1 / sigma}

        others = [spec for spec in self._combinations if unfit.keys().isdisjoint(spec.walk()) and not is_vim(spec)]
        parameters, also_unfit = attempt(others, spreads)
        return scales | parameters, unfit | also_unfit

    def _vim_scale(self, spec: Spec) -> Tensor:
        mean, terms = self._all.mean, list(self._terms)
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

    def _spread(self, spec: Spec, s2: Spec, parameters: Parameters) -> tuple[float, float]:
        """μ and σ of an S2."""
        form = _linear_form(s2, parameters)
        outside = self._bank is not None and self._searching & set(form)
        moments = self._outside_bank if outside else self._all
        weight = moments.mean.new_tensor([form.get(name, 0.0) for name in self._terms])
        mean = float(weight @ moments.mean)
        sigma = float((weight @ moments.covariance @ weight).clamp_min(0).sqrt())
        if not math.isfinite(mean) or not math.isfinite(sigma):
            raise ValueError(
                f"`{s2}` must be finite on the training rows for `{spec}`; its mean is {mean}, σ is {sigma}"
            )
        floor = max([1e-12 * abs(mean), *(abs(c) * self._resolution(name) for name, c in form.items())])
        if sigma <= floor:
            raise ValueError(
                f"`{s2}` does not vary over the training rows by more than rounding (σ = {sigma:.3g}, of which up to "
                f"{floor:.3g} is rounding), so `{spec}` has no scale to read it on. Choose another S2, fit on more "
                "rows, cross-fit if you did not (`crossfit=5`), or give a= and b="
            )
        return mean, sigma

    def _resolution(self, term: str) -> float:
        leaf = self._terms[term]
        resolution = registry.get(leaf.name).resolution if leaf.is_leaf else None
        return resolution(self._evidence) if resolution else 0.0


def _all_terms(combinations: Iterable[Spec]) -> dict[str, Spec]:
    """The terms whose means and covariances settle these combinations, each once."""
    distinct: dict[str, Spec] = {}
    for spec in combinations:
        terms = [_MAX_LOGIT, spec.args[1]] if is_vim(spec) else [t for s2 in spec.args[1:] for t in _terms(s2)]
        distinct |= {str(term): term for term in terms}
    return distinct


def _excluding_self(spec: Spec) -> Spec:
    """The same spec for a row that is in the bank, with scores that do not find the row itself."""
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


def _linear_form(spec: Spec, parameters: Parameters) -> dict[str, float]:
    """The coefficient of each term."""
    if spec.name != "linear":
        return {str(spec): 1.0}
    c = (spec.numbers("c") or (float(parameters[str(spec)]["c"]),))[0]
    form = _linear_form(spec.args[0], parameters)
    for term, weight in _linear_form(spec.args[1], parameters).items():
        form[term] = form.get(term, 0.0) + c * weight
    return form


def _copy(outputs: Outputs) -> Outputs:
    features = None if outputs.features is None else outputs.features.clone()
    return Outputs._trusted(outputs.logits.clone(), features, None)
