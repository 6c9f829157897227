"""Values of many scores on one dataset: the logits read once, the features cast and projected once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from sirc.outputs import Outputs
from sirc.scores import combine, registry
from sirc.scores.formulas.softmax import Softmax
from sirc.scores.registry import Score
from sirc.scores.spec import Spec

# Bytes of one block of features, so that what a score makes of it stays small whatever the number of rows.
_BLOCK = {"cpu": 1 << 25}
_BLOCK_ELSEWHERE = 1 << 29
BOUNDED = "_bounded"
"""Ends the name under which an option is kept that was tuned for a score as the S1 of a combination."""


class Columns:
    """The leaves of some specs on one dataset, as 1-D float64 tensors.

    `parameters` are looked up by leaf and must already have the features' device and working type (`working_dtype`).
    """

    def __init__(
        self,
        outputs: Outputs,
        specs: Iterable[Spec],
        parameters: Mapping[str, Mapping[str, Tensor]],
        *,
        compile: bool | None = None,
    ) -> None:
        self._outputs = outputs
        self._parameters = parameters
        self._compile = compile
        self._values: dict[str, Tensor] = {}
        self._log_gaps: dict[str, Tensor] = {}
        # What reads the big arrays is computed now, block by block; all else when it is asked for.
        plain, gaps = asked_of(specs)
        self._fill_by_rows([s for s in plain if _reads_arrays(s)], [s for s in gaps if _reads_arrays(s)])

    @cached_property
    def softmax(self) -> Softmax:
        """The summary of the one pass over the logits."""
        return Softmax.of(self._outputs.logits, compile=self._compile)

    def plain(self, leaf: Spec) -> Tensor:
        """The plain value of a leaf."""
        key = str(leaf)
        if key not in self._values and _reads_arrays(leaf):
            self._fill_by_rows([leaf], [])
        elif key not in self._values:
            self._values[key] = self._compute(leaf, slice(None))
        return self._values[key]

    def log_gap(self, leaf: Spec) -> Tensor:
        """log(S1max − S1) of a bounded leaf."""
        key = str(leaf)
        if key not in self._log_gaps and _reads_arrays(leaf):
            self._fill_by_rows([], [leaf])
        elif key not in self._log_gaps:
            self._log_gaps[key] = self._compute(leaf, slice(None), gap=True)
        return self._log_gaps[key]

    def value(self, spec: Spec) -> Tensor:
        """The plain value of any spec."""
        return combine.plain_value(spec, self.plain, self.log_gap, self._parameters)

    def confidence(self, spec: Spec) -> Tensor:
        """What a scorer returns: −log(S1max − S1) for a score that would tie near S1max, the plain value for others."""
        return -self.log_gap(spec) if ranks_by_gap(spec) else self.value(spec)

    def _fill_by_rows(self, plain: list[Spec], gaps: list[Spec]) -> None:
        """Compute what reads the big arrays, each block of rows once for all."""
        if not plain and not gaps:
            return
        outputs = self._outputs
        n = len(outputs)
        for leaves, columns in ((plain, self._values), (gaps, self._log_gaps)):
            columns |= {str(leaf): torch.empty(n, dtype=torch.float64, device=outputs.device) for leaf in leaves}
        read = {need for leaf in (*plain, *gaps) for need in registry.get(leaf.name).needs}
        features = outputs.features if "features" in read else None
        width = max(outputs.logits.shape[1], 0 if features is None else features.shape[1])
        rows = max(1, _BLOCK.get(outputs.device.type, _BLOCK_ELSEWHERE) // (8 * width))
        for start in range(0, n, rows):
            here = slice(start, min(n, start + rows))
            block = None if features is None else features[here].to(working_dtype(features.dtype))
            for leaf in plain:
                self._values[str(leaf)][here] = self._compute(leaf, here, block)
            for leaf in gaps:
                self._log_gaps[str(leaf)][here] = self._compute(leaf, here, block, gap=True)

    def _compute(self, leaf: Spec, rows: slice, features: Tensor | None = None, *, gap: bool = False) -> Tensor:
        score = registry.get(leaf.name)
        formula = score.log_gap if gap else score.compute
        assert formula is not None
        given = keywords(leaf, self._parameters.get(str(leaf), {}), first=gap)
        values = formula(*self._inputs(score, rows, features), **given)
        return _column(leaf, values, len(range(len(self._outputs))[rows]))

    def _inputs(self, score: Score, rows: slice, features: Tensor | None) -> list[Tensor | Softmax]:
        given: list[Tensor | Softmax] = []
        for need in score.needs:
            if need == "softmax":
                given.append(self.softmax if rows == slice(None) else self.softmax[rows])
            elif need == "logits":
                given.append(self._outputs.logits[rows])
            elif need == "features":
                assert features is not None
                given.append(features)
            else:
                given.append(self.plain(Spec(need))[rows])
        return given


def _column(leaf: Spec, values: Tensor, rows: int) -> Tensor:
    """Values as float64; a score must give one for each row."""
    if values.shape != (rows,):
        raise ValueError(
            f"score `{leaf}` must return one value for each row, shape ({rows},); it returned {tuple(values.shape)}"
        )
    return values.double()


def working_dtype(features: torch.dtype) -> torch.dtype:
    """The type features are projected in: float64 stays, all others become float32."""
    return torch.float64 if features == torch.float64 else torch.float32


def ranks_by_gap(spec: Spec) -> bool:
    """Whether a scorer returns −log(S1max − S1) for this spec: a score whose plain values tie near their bound."""
    score = registry.get(spec.name) if spec.is_leaf else None
    return score is not None and score.log_gap is not None and score.confidence_kind == "log_gap"


def keywords(
    leaf: Spec, parameters: Mapping[str, Tensor] | Mapping[str, float], *, first: bool = False
) -> dict[str, Any]:
    """What a leaf's formula is called with: its options, as given, tuned or by default, and its fitted parameters.

    `first`: as the S1 of a combination, for which an option may have been tuned apart.
    """
    defaults = registry.get(leaf.name).options
    found: dict[str, Any] = {**defaults, **leaf.options}
    tuned = {name: value for name, value in parameters.items() if option_of(leaf, name)}
    found |= {name: value for name, value in parameters.items() if name not in tuned}
    for name, default in defaults.items():
        apart = f"{name}{BOUNDED}"
        if name in tuned:
            found[name] = type(default)(tuned[apart if first and apart in tuned else name])
    return found


def option_of(leaf: Spec, parameter: str) -> str | None:
    """The option that was tuned under this name, if it is not a parameter of the fit."""
    option = parameter.removesuffix(BOUNDED)
    return option if option in registry.get(leaf.name).options else None


def asked_of(specs: Iterable[Spec]) -> tuple[list[Spec], list[Spec]]:
    """The leaves whose plain value some specs ask for, each after what it needs, and those whose log(S1max − S1)."""
    plain: dict[str, Spec] = {}
    gaps: dict[str, Spec] = {}

    def visit(spec: Spec, first: bool) -> None:
        if spec.is_leaf:
            for needed in registry.closure([spec.name])[:-1]:
                plain.setdefault(needed, Spec(needed))
            (gaps if first else plain).setdefault(str(spec), spec)
        for position, arg in enumerate(spec.args):
            visit(arg, spec.has_bounded_first and position == 0)

    for spec in specs:
        visit(spec, ranks_by_gap(spec))
    return list(plain.values()), list(gaps.values())


def _reads_arrays(leaf: Spec) -> bool:
    return not {"features", "logits"}.isdisjoint(registry.get(leaf.name).needs)


def needed_leaves(specs: Iterable[Spec]) -> list[Spec]:
    """The leaves inside some specs and the scores these are made from, each once and after what it needs."""
    order: dict[str, Spec] = {}
    for spec in specs:
        for leaf in spec.walk():
            if leaf.is_leaf:
                for needed in registry.closure([leaf.name])[:-1]:
                    order.setdefault(needed, Spec(needed))
                order.setdefault(str(leaf), leaf)
    return list(order.values())
