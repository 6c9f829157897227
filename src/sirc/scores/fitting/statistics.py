"""The second pass: means and spreads of S2 scores on training rows, from which SIRC's a, b and ViM's c follow."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import final

import torch
from torch import Tensor

from sirc.outputs import Outputs
from sirc.scores import registry
from sirc.scores.blocks import working_dtype
from sirc.scores.moments import Evidence, Moments, Reservoir, fold_of
from sirc.scores.scorer import cast_parameters
from sirc.scores.spec import Spec, is_vim
from sirc.scores.values import Evaluator, needed_leaves

Solved = dict[str, dict[str, Tensor]]

_MAX_LOGIT = Spec("max_logit")


def unsettled(specs: Iterable[Spec]) -> list[Spec]:
    """The combinations inside these specs whose parameters are statistics of training rows, each once."""
    found = {str(part): part for spec in specs for part in spec.walk() if is_vim(part) or part.finds_spread}
    # c comes before the a and b of a `sirc` with `vim` inside.
    return sorted(found.values(), key=lambda spec: not is_vim(spec))


def fitted_leaves(specs: Iterable[Spec]) -> list[Spec]:
    """The scores, themselves fitted on training rows, whose statistics these combinations ask for."""
    return [leaf for leaf in needed_leaves(_all_terms(specs).values()) if registry.get(leaf.name).solve]


@final
class Statistics:
    """Means and covariances, over training rows, of the terms that S2 scores are linear forms of.

    One pass suffices even for an S2 with a fitted c inside: μ and σ of energy + c·residual follow from the means and
    the covariance of energy and residual, whatever c turns out to be.
    """

    def __init__(self, specs: list[Spec], parameters: Solved, evidence: Evidence) -> None:
        self._specs = specs
        self._evidence = evidence
        self._parameters = parameters
        self._terms = _all_terms(specs)
        self._banked = {name for name, term in self._terms.items() if "bank" in _evidence_of(term)}
        self._folds = 0
        self._solve_fold: Callable[[int], Solved] | None = None
        self._reservoir: Reservoir | None = None
        self._all = Moments()
        self._outside = Moments()
        self._cast: dict[tuple[torch.device, torch.dtype, int], Solved] = {}

    @property
    def searches_bank(self) -> bool:
        """Whether any of the values comes from a search of the bank."""
        return bool(self._banked)

    @property
    def left_out(self) -> str:
        """What no row is scored with."""
        return "its own fold" if self._folds else "itself in the bank"

    @property
    def order_matters(self) -> bool:
        """Whether a row must come back under the index it had in the first pass."""
        return self._folds > 0 or self._reservoir is not None

    def use_folds(self, folds: int, solve: Callable[[int], Solved]) -> None:
        """Score the rows of each fold with the parameters that `solve(fold)` gives."""
        self._folds, self._solve_fold = folds, solve

    def use_bank(self, reservoir: Reservoir, count: int) -> None:
        """In-sample, with a bank: count rows outside it; where there are none, leave each row out of its own search."""
        if count > len(reservoir):
            self._reservoir = reservoir
            return
        for name in self._banked:
            self._terms[name] = _without_itself(self._terms[name])
        banked = [leaf for leaf in fitted_leaves(self._specs) if "bank" in registry.get(leaf.name).evidence]
        for leaf in banked:
            needed = int({**registry.get(leaf.name).options, **leaf.options}.get("k", 1)) + 1  # type: ignore[arg-type]
            if len(reservoir) < needed:
                raise ValueError(
                    f"`{leaf}` inside a combination needs at least k + 1 = {needed} training rows, as no row searches "
                    f"for itself; got {len(reservoir)}. Fit on more rows, or choose a smaller k"
                )
        extra = {str(_without_itself(leaf)): self._parameters[str(leaf)] for leaf in banked}
        self._parameters = {**self._parameters, **extra}

    @property
    def moments(self) -> tuple[Moments, ...]:
        """What was seen: of all rows, and of those outside the bank. Set it to what many processes saw together."""
        return self._all, self._outside

    @moments.setter
    def moments(self, moments: tuple[Moments, ...]) -> None:
        self._all, self._outside = moments

    def update(self, batch: Outputs, index: Tensor) -> None:
        """Take in the values of these rows."""
        if self._folds:
            fold = fold_of(index, self._folds).to(batch.device)
            for number in range(self._folds):
                rows = (fold == number).nonzero()[:, 0]
                if len(rows):
                    self._all.add(self._values(batch[rows], number))
            return
        values = self._values(batch, -1)
        self._all.add(values)
        if self._reservoir is not None:
            self._outside.add(values[~self._reservoir.holds(index).to(values.device)])

    def _values(self, batch: Outputs, fold: int) -> Tensor:
        dtype = torch.float64 if batch.features is None else working_dtype(batch.features.dtype)
        key = (batch.device, dtype, fold)
        if key not in self._cast:
            solved = self._parameters
            if fold >= 0:
                assert self._solve_fold is not None
                solved = self._solve_fold(fold)
            self._cast[key] = cast_parameters(solved, batch.device, dtype)
        evaluator = Evaluator(batch.logits, batch.features, self._terms.values(), self._cast[key])
        return torch.stack([evaluator.value(term) for term in self._terms.values()], -1)

    def settle(self) -> Solved:
        """The parameters: c = mean max logit / mean residual norm; a = μ − 3σ and b = 1/σ of each S2."""
        found: Solved = {}
        for spec in self._specs:
            if is_vim(spec):
                mean = self._all.mean
                order = list(self._terms)
                norm = -mean[order.index(str(spec.args[1]))]
                if not float(norm) > self._resolution(str(spec.args[1])):
                    raise ValueError(
                        "`vim` needs features with a part outside their principal subspace; the residual is 0 on all "
                        "training rows. Leave it out, or give c= yourself: `linear(energy, residual, c=…)`"
                    )
                top = mean[order.index(str(_MAX_LOGIT))]
                if not float(top) > 0:
                    raise ValueError(
                        f"`vim` scales the residual by the mean largest logit, which must be positive; it is "
                        f"{float(top):.3g}. Are these log-probabilities? Pass the logits, or give c=: "
                        "`linear(energy, residual, c=…)`"
                    )
                found[str(spec)] = {"c": (top / norm).reshape(1)}
            else:
                spread = [self._spread(spec, s2, found) for s2 in spec.args[1:]]
                mu, sigma = (torch.tensor(x, dtype=torch.float64, device="cpu") for x in zip(*spread, strict=True))
                found[str(spec)] = {"a": mu - 3 * sigma, "b": 1 / sigma}
        return found

    def _spread(self, spec: Spec, s2: Spec, found: Solved) -> tuple[float, float]:
        """μ and σ of an S2."""
        form = _linear_form(s2, found)
        moments = self._outside if self._reservoir is not None and self._banked & set(form) else self._all
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


def _all_terms(specs: Iterable[Spec]) -> dict[str, Spec]:
    wanted: dict[str, Spec] = {}
    for spec in specs:
        for term in (_MAX_LOGIT, spec.args[1]) if is_vim(spec) else (t for s2 in spec.args[1:] for t in _terms(s2)):
            wanted[str(term)] = term
    return wanted


def _without_itself(spec: Spec) -> Spec:
    """The same spec, with scores that search the bank leaving out the row itself, which is in it."""
    if not spec.is_leaf:
        return Spec(spec.name, tuple(_without_itself(arg) for arg in spec.args), spec.options)
    score = registry.get(spec.name)
    if "bank" not in score.evidence:
        return spec
    assert score.exclude_self is not None
    options = score.exclude_self({**score.options, **spec.options})  # type: ignore[dict-item]
    return Spec(spec.name, (), {key: value for key, value in options.items() if value != score.options[key]})


def _terms(spec: Spec) -> list[Spec]:
    """What a spec is a linear form of."""
    return [t for s in spec.args for t in _terms(s)] if spec.name == "linear" else [spec]


def _linear_form(spec: Spec, found: Mapping[str, Mapping[str, Tensor]]) -> dict[str, float]:
    """The coefficient of each term."""
    if spec.name != "linear":
        return {str(spec): 1.0}
    c = (spec.numbers("c") or (float(found[str(spec)]["c"]),))[0]
    form = _linear_form(spec.args[0], found)
    for term, weight in _linear_form(spec.args[1], found).items():
        form[term] = form.get(term, 0.0) + c * weight
    return form


def _evidence_of(spec: Spec) -> frozenset[str]:
    return frozenset().union(*(registry.get(leaf.name).evidence for leaf in needed_leaves([spec])))
