"""Evaluator of specs: values, confidences and their parts for one batch of rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, TypeAlias, final

import torch
from torch import Tensor

from sirc.scores import combine, registry
from sirc.scores.blocks import working_dtype
from sirc.scores.formulas.softmax import Softmax, softplus
from sirc.scores.id_quantiles import least_quantile
from sirc.scores.spec import COMBINATIONS, Spec

# Bytes of one block of features in float64: a score's temporaries stay small, however many rows there are.
_BLOCK = {"cpu": 1 << 25}
_BLOCK_ELSEWHERE = 1 << 29
_BOUNDED = "_bounded"  # suffix of an option that was tuned separately for the S1 of a combination

Quantity: TypeAlias = Literal["plain", "plain as S1", "log gap"]
"""What a leaf is evaluated to: its plain value, its plain value with the options of an S1, or log(S1max − S1)."""

Read: TypeAlias = tuple[Spec, Quantity]


@final
class Evaluator:
    """Evaluates specs on rows of logits and features; every result is a 1-D float64 tensor.

    One pass over the logits serves all scores of the softmax. Scores that read the logits or features themselves share
    one pass over blocks of rows. It is made by the constructor, for all `reads`: those that `array_reads` finds in the
    specs to be evaluated.

    `parameters` are by spec; those of leaves must have the features' device and working type (`working_dtype`).
    `logits` may be None if no spec reads them, or only the given `softmax` summary. `held_out` has functions, by spec,
    that replace the plain values of scores on training rows; they also receive the `labels`.
    """

    def __init__(
        self,
        logits: Tensor | None,
        features: Tensor | None,
        reads: Sequence[Read],
        parameters: combine.AnyParameters,
        *,
        softmax: Softmax | None = None,
        compile: bool | None = None,
        held_out: Mapping[str, registry.HeldOut] | None = None,
        labels: Tensor | None = None,
    ) -> None:
        self._logits = logits
        self._features = features
        self._parameters = parameters
        self._compile = compile
        self._held_out, self._labels = held_out or {}, labels
        self._softmax = softmax
        columns = (logits, features, None if softmax is None else softmax.top)
        rows = next(column for column in columns if column is not None)
        self._num_rows, self._device = rows.shape[0], rows.device
        self._known: dict[tuple[str, Quantity], Tensor] = {}
        self._read_arrays(reads)  # everything else is computed on first use

    @property
    def softmax(self) -> Softmax:
        """The summary of the one pass over the logits."""
        if self._softmax is None:  # not a `cached_property`, whose lock in Python 3.11 cannot be traced
            assert self._logits is not None
            self._softmax = Softmax.of(self._logits, compile=self._compile)
        return self._softmax

    def value(self, spec: Spec) -> Tensor:
        """The plain value of a spec."""
        if spec.is_leaf:
            return self._leaf(spec, "plain")
        if spec.has_bounded_first:
            values = combine.with_bounded_first(spec, *self.gap_and_others(spec), self._parameters)
            return _column(spec, values, self._num_rows)
        if spec.name == "both":
            return least_quantile([self.confidence(arg) for arg in spec.args], self._knots(spec))
        parts = [self.value(arg) for arg in spec.args]
        if (formula := COMBINATIONS[spec.name].compute) is not None:
            return _column(spec, formula(*parts, **combine.own_numbers(spec)), self._num_rows)
        if spec.name == "product":
            return combine.product(*parts)
        return combine.linear(parts[0], parts[1], combine.parameter(spec, "c", self._parameters)[0])

    def log_gap(self, leaf: Spec) -> Tensor:
        """log(S1max − S1) of a bounded leaf."""
        return self._leaf(leaf, "log gap")

    def gap_and_others(self, spec: Spec) -> tuple[Tensor, list[Tensor]]:
        """log(S1max − S1) of the first score of a combination, and the plain values of the others."""
        return self.log_gap(spec.args[0]), [self.value(other) for other in spec.args[1:]]

    def confidence(self, spec: Spec) -> Tensor:
        """What a scorer returns: −log(S1max − S1) for a score whose values tie near S1max, else the plain value."""
        return -self.log_gap(spec) if ranks_by_gap(spec) else self.value(spec)

    def parts(self, spec: Spec) -> tuple[Tensor, Tensor]:
        """The softmax's part of a confidence, and what the features subtract: confidence = part − subtracted.

        For `sirc`, `additive` and `bayes`, the softmax's part is the confidence of a row that looks like ID to every
        S2: −log(S1max − S1) for `sirc` and `additive`. Any other spec has only one part, that of the features if it
        reads them.
        """
        confidence = self.confidence(spec)
        if spec.has_bounded_first:
            others = [torch.full_like(confidence, torch.inf)] * (len(spec.args) - 1)
            first = combine.with_bounded_first(spec, self.log_gap(spec.args[0]), others, self._parameters)
            return first, first - confidence
        nothing = torch.zeros_like(confidence)
        return (nothing, -confidence) if reads_features([spec]) else (confidence, nothing)

    def ood_terms(self, spec: Spec) -> dict[str, Tensor]:
        """softplus(b(a − S2)) for each S2 of a `sirc`, `additive` or `bayes`: how much the row looks OOD to this S2."""
        if not spec.has_bounded_first:
            return {}
        a, b = (combine.parameter(spec, key, self._parameters) for key in "ab")
        lows = combine.lowness(self.gap_and_others(spec)[1], a, b)
        return {str(other): softplus(low) for other, low in zip(spec.args[1:], lows, strict=True)}

    def plane(self, spec: Spec) -> dict[str, Tensor]:
        """For `sirc(S1, S2)`: the plain `s1`, with its options as an S1, the plain `s2`, and the `log_gap`."""
        first, second = spec.args
        return {"s1": self._leaf(first, "plain as S1"), "s2": self.value(second), "log_gap": self.log_gap(first)}

    def learn(self, spec: Spec, parameters: Mapping[str, Tensor]) -> None:
        """Add the parameters of a combination, so that specs that contain it can be evaluated."""
        self._parameters = {**self._parameters, str(spec): parameters}

    def _knots(self, spec: Spec) -> list[tuple[Tensor, Tensor]]:
        """The scores and the levels of the knots of each part of a `both`."""
        as_column = partial(torch.as_tensor, dtype=torch.float64, device=self._device)
        stored, places = self._parameters[str(spec)], range(1, len(spec.args) + 1)
        return [(as_column(stored[f"score_{place}"]), as_column(stored[f"level_{place}"])) for place in places]

    def _leaf(self, leaf: Spec, quantity: Quantity) -> Tensor:
        key = str(leaf), quantity
        if key not in self._known and _reads_arrays(leaf):
            self._read_arrays([(leaf, quantity)])
        elif key not in self._known:
            self._known[key] = self._compute(leaf, quantity, None, None)
        return self._known[key]

    def _read_arrays(self, wanted: Sequence[Read]) -> None:
        """Compute and cache leaves that read the logits or the features, in one pass over blocks of rows."""
        if not wanted:
            return
        features = self._features if any("features" in registry.get(leaf.name).needs for leaf, _ in wanted) else None
        width = max(array.shape[1] for array in (self._logits, features) if array is not None)
        rows = max(1, _BLOCK.get(self._device.type, _BLOCK_ELSEWHERE) // (8 * width))
        tracing = torch.compiler.is_compiling()  # a graph takes batches of any size, so it has no blocks
        blocks: list[slice | None] = [None]
        if not tracing and self._num_rows > rows:
            blocks = [slice(at, min(self._num_rows, at + rows)) for at in range(0, self._num_rows, rows)]
        parts = []
        for here in blocks:
            block = features if features is None or here is None else features[here]
            block = None if block is None else block.to(working_dtype(block.dtype))
            parts.append([self._compute(*read, here, block) for read in wanted])
        for (leaf, quantity), column in zip(wanted, zip(*parts, strict=True), strict=True):
            # `cat` copies, even a single block: a score may return a view of its input.
            self._known[str(leaf), quantity] = column[0] if tracing else torch.cat(column)

    def _compute(self, leaf: Spec, quantity: Quantity, rows: slice | None, features: Tensor | None) -> Tensor:
        """The registered formula of a leaf, on all rows or a slice of them."""
        score = registry.get(leaf.name)
        formula = score.log_gap if quantity == "log gap" else score.compute
        assert formula is not None
        inputs: list[Tensor | Softmax] = []
        for need in score.needs:
            if need == "features":
                assert features is not None
                inputs.append(features)
            elif need == "logits":
                assert self._logits is not None
                logits = self._logits if rows is None else self._logits[rows]
                inputs.append(logits.to(working_dtype(logits.dtype)))
            else:
                column = self.softmax if need == "softmax" else self.value(Spec(need))
                inputs.append(column if rows is None else column[rows])
        if quantity == "plain" and str(leaf) in self._held_out:
            labels = self._labels if self._labels is None or rows is None else self._labels[rows]
            values = self._held_out[str(leaf)](*inputs, labels)
        else:
            values = formula(*inputs, **keywords(leaf, self._parameters.get(str(leaf), {}), as_s1=quantity != "plain"))
        return _column(leaf, values, self._num_rows if rows is None else rows.stop - rows.start)


def is_bounded(spec: Spec) -> bool:
    """Whether a spec is a leaf with a bound S1max, so that it can be the S1 of a combination."""
    return spec.is_leaf and registry.get(spec.name).log_gap is not None


def ranks_by_gap(spec: Spec) -> bool:
    """Whether a scorer returns −log(S1max − S1) for this spec, whose plain values tie near their bound."""
    return is_bounded(spec) and registry.get(spec.name).confidence_kind == "log_gap"


def _column(spec: Spec, values: object, n: int) -> Tensor:
    """The result of a registered function for `n` rows, in float64."""
    if isinstance(values, Tensor) and values.shape == (n,):
        return values.double()
    kind = "score" if spec.is_leaf else "combination"
    got = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
    raise ValueError(f"{kind} `{spec}` must return one value for each row, shape ({n},); it returned {got}")


def keywords(leaf: Spec, parameters: Mapping[str, Any], *, as_s1: bool = False) -> dict[str, Any]:
    """The keyword arguments of a leaf's formula: its options (given, tuned or default) and its fitted parameters.

    `as_s1` chooses the values of options that were tuned separately for the S1 of a combination.
    """
    defaults = registry.get(leaf.name).options
    arguments: dict[str, Any] = {**defaults, **leaf.options, **parameters}
    for name, default in defaults.items():
        for_s1 = arguments.pop(f"{name}{_BOUNDED}", None)
        if name in parameters:
            arguments[name] = type(default)(arguments[name] if for_s1 is None or not as_s1 else for_s1)
    return arguments


def option_of(leaf: Spec, parameter: str) -> str | None:
    """The option that a tuned number belongs to; None for the name of a fitted parameter."""
    option = parameter.removesuffix(_BOUNDED)
    return option if option in registry.get(leaf.name).options else None


def needed_leaves(specs: Iterable[Spec]) -> list[Spec]:
    """The distinct leaves inside some specs, and the scores that they need; each comes after those that it needs."""
    return list({str(leaf): leaf for leaf, _ in _leaf_quantities(specs)}.values())


def all_parts(spec: Spec) -> tuple[Spec, ...]:
    """The scores that a spec needs, and all specs inside it."""
    return (*needed_leaves([spec]), *spec.walk())


def reads_features(specs: Iterable[Spec]) -> list[Spec]:
    """The leaves inside some specs that read the features."""
    return [leaf for leaf in needed_leaves(specs) if "features" in registry.get(leaf.name).needs]


def array_reads(specs: Iterable[Spec]) -> list[Read]:
    """The leaves inside some specs that read the logits or the features, and what each is evaluated to."""
    return [(leaf, quantity) for leaf, quantity in _leaf_quantities(specs) if _reads_arrays(leaf)]


def _leaf_quantities(specs: Iterable[Spec]) -> list[Read]:
    """The leaves of `needed_leaves`, with what each is evaluated to."""
    wanted: dict[tuple[str, Quantity], Spec] = {}

    def visit(spec: Spec, quantity: Quantity) -> None:
        if spec.is_leaf:
            for needed in registry.closure(spec.name)[:-1]:
                wanted.setdefault((needed, "plain"), Spec(needed))
            wanted.setdefault((str(spec), quantity), spec)
        for position, arg in enumerate(spec.args):
            as_gap = (spec.has_bounded_first and position == 0) or (spec.name == "both" and ranks_by_gap(arg))
            visit(arg, "log gap" if as_gap else "plain")

    for spec in specs:
        visit(spec, "log gap" if ranks_by_gap(spec) else "plain")
    return [(leaf, quantity) for (_, quantity), leaf in wanted.items()]


def _reads_arrays(leaf: Spec) -> bool:
    return not {"features", "logits"}.isdisjoint(registry.get(leaf.name).needs)
