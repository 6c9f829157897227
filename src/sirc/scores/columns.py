"""Values of many scores on one dataset: the logits read once, the features cast and projected once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property

import torch
from torch import Tensor

from sirc.outputs import Outputs
from sirc.scores import combine, registry
from sirc.scores.registry import Score
from sirc.scores.softmax import Softmax
from sirc.scores.spec import Spec

# Bytes of one block of features, so that what a score makes of it stays small whatever the number of rows.
_BLOCK = {"cpu": 1 << 25}
_BLOCK_ELSEWHERE = 1 << 29


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
        leaves = needed_leaves(specs)
        self._fill_by_rows([s for s in leaves if {"features", "logits"} & set(registry.get(s.name).needs)])

    @cached_property
    def softmax(self) -> Softmax:
        """The summary of the one pass over the logits."""
        return Softmax.of(self._outputs.logits, compile=self._compile)

    def plain(self, leaf: Spec) -> Tensor:
        """The plain value of a leaf."""
        key = str(leaf)
        if key not in self._values:
            self._values[key] = self._compute(leaf, slice(None))
        return self._values[key]

    def log_gap(self, leaf: Spec) -> Tensor:
        """log(S1max − S1) of a bounded leaf."""
        key, score = str(leaf), registry.get(leaf.name)
        assert score.log_gap is not None
        if key not in self._log_gaps:
            inputs = self._inputs(score, slice(None), None)
            self._log_gaps[key] = _column(leaf, score.log_gap(*inputs, **self._keywords(leaf)), len(self._outputs))
        return self._log_gaps[key]

    def value(self, spec: Spec) -> Tensor:
        """The plain value of any spec."""
        return combine.plain_value(spec, self.plain, self.log_gap, self._parameters)

    def confidence(self, spec: Spec) -> Tensor:
        """What a scorer returns: −log(S1max − S1) for a bounded score, the plain value for all others."""
        bounded = spec.is_leaf and registry.get(spec.name).log_gap is not None
        return -self.log_gap(spec) if bounded else self.value(spec)

    def _fill_by_rows(self, leaves: list[Spec]) -> None:
        if not leaves:
            return
        outputs = self._outputs
        n = len(outputs)
        for leaf in leaves:
            self._values[str(leaf)] = torch.empty(n, dtype=torch.float64, device=outputs.device)
        features = outputs.features
        width = outputs.logits.shape[1] if features is None else features.shape[1]
        rows = max(1, _BLOCK.get(outputs.device.type, _BLOCK_ELSEWHERE) // (8 * width))
        for start in range(0, n, rows):
            here = slice(start, min(n, start + rows))
            block = None if features is None else features[here].to(working_dtype(features.dtype))
            for leaf in leaves:
                self._values[str(leaf)][here] = self._compute(leaf, here, block)

    def _compute(self, leaf: Spec, rows: slice, features: Tensor | None = None) -> Tensor:
        score = registry.get(leaf.name)
        values = score.compute(*self._inputs(score, rows, features), **self._keywords(leaf))
        return _column(leaf, values, len(range(len(self._outputs))[rows]))

    def _keywords(self, leaf: Spec) -> dict[str, object]:
        return {**registry.get(leaf.name).options, **leaf.options, **self._parameters.get(str(leaf), {})}

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
