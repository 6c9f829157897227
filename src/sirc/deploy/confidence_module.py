"""One score as a module: logits and features in, its confidence out, in a graph that compiles and exports."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self, final

import torch
from torch import Tensor, nn

from sirc.scores import (
    Scorer,
    Softmax,
    Spec,
    _sums,
    combine,
    keywords,
    needed_leaves,
    option_of,
    parse,
    ranks_by_gap,
    registry,
    softplus,
    working_dtype,
)


class Kept(nn.Module):
    """A module whose buffers move between devices with the model, and keep their type when the model is halved."""

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        for name, buffer in self._buffers.items():
            if buffer is not None:
                self._buffers[name] = buffer.to(fn(buffer).device)
        return self


@final
class ConfidenceGraph(Kept):
    """What a scorer computes for one spec, without its checks and blocks: the same numbers for a batch of any size."""

    def __init__(self, scorer: Scorer, spec: str, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.spec = parse(spec)
        scorer.only(spec)._check_fitted()
        self._leaves = needed_leaves([self.spec])
        self._names: dict[tuple[str, str], str] = {}
        self._combined: dict[str, dict[str, Tensor | list[float]]] = {}
        self._tuned: dict[str, dict[str, float]] = {}
        for leaf in self._leaves:
            for name, value in scorer.parameters.get(str(leaf), {}).items():
                if option_of(leaf, name):
                    self._tuned.setdefault(str(leaf), {})[name] = float(value)
                    continue
                key = f"parameter_{len(self._names)}"
                # In the type that the model's features are projected in: to cast them in each forward would show.
                kept = value.detach().to(working_dtype(dtype)) if value.is_floating_point() else value.detach()
                self.register_buffer(key, kept.clone(), persistent=False)
                self._names[str(leaf), name] = key
        for part in self.spec.walk():
            if not part.is_leaf and str(part) in scorer.parameters:
                # a, b and c as numbers: they become constants of the graph.
                self._combined[str(part)] = {key: value.tolist() for key, value in scorer.parameters[str(part)].items()}

    @property
    def needs_features(self) -> bool:
        """Whether it looks at the features."""
        return any("features" in registry.get(leaf.name).needs for leaf in self._leaves)

    def forward(self, logits: Tensor, features: Tensor | None) -> Tensor:
        """The confidence of each row, float64."""
        return _Values(self, logits, features).confidence(self.spec)

    def parts(self, logits: Tensor, features: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """The confidence, the softmax's part of it, and what the features took away: confidence = part − taken.

        Of `sirc`, `additive` and `bayes` the first is the confidence that the row would have were nothing on the side
        of OOD in any S2: −log(S1max − S1) for the former two. Others have one part only.
        """
        columns = _Values(self, logits, features)
        spec = self.spec
        confidence = columns.confidence(spec)
        if not spec.has_bounded_first:
            nothing = torch.zeros_like(confidence)
            own = self.needs_features
            return confidence, nothing if own else confidence, -confidence if own else nothing
        first = columns.without_others(spec)
        return confidence, first, first - confidence

    def parameters_of(self, leaf: Spec, dtype: torch.dtype) -> dict[str, Tensor]:
        """What was fitted for a leaf, in the type that it is computed in."""
        found = {}
        for (owner, name), key in self._names.items():
            if owner == str(leaf):
                value = getattr(self, key)
                found[name] = value.to(dtype) if value.is_floating_point() else value
        return found


class _Values:
    """The values of a spec's leaves on one batch."""

    def __init__(self, graph: ConfidenceGraph, logits: Tensor, features: Tensor | None) -> None:
        self.graph = graph
        self.logits = logits
        self.dtype = torch.float64 if features is None else working_dtype(features.dtype)
        self.features = None if features is None else features.to(self.dtype)
        self.softmax = Softmax(*_sums(logits))
        self.known: dict[str, Tensor] = {}

    def plain(self, leaf: Spec) -> Tensor:
        if str(leaf) not in self.known:
            score = registry.get(leaf.name)
            self.known[str(leaf)] = score.compute(*self._inputs(leaf), **self._keywords(leaf)).double()
        return self.known[str(leaf)]

    def log_gap(self, leaf: Spec) -> Tensor:
        score = registry.get(leaf.name)
        assert score.log_gap is not None
        return score.log_gap(*self._inputs(leaf), **self._keywords(leaf, first=True)).double()

    def confidence(self, spec: Spec) -> Tensor:
        if ranks_by_gap(spec):
            return -self.log_gap(spec)
        return combine.plain_value(spec, self.plain, self.log_gap, self.graph._combined)

    def without_others(self, spec: Spec) -> Tensor:
        """The confidence that a combination would have were its S2 scores as far from OOD as can be."""
        everything = torch.full_like(self.softmax.top, torch.inf)
        return combine.with_bounded_first(
            spec, self.log_gap(spec.args[0]), [everything] * (len(spec.args) - 1), self.graph._combined
        )

    def _keywords(self, leaf: Spec, *, first: bool = False) -> dict[str, Any]:
        tuned = keywords(leaf, self.graph._tuned.get(str(leaf), {}), first=first)
        return {**tuned, **self.graph.parameters_of(leaf, self.dtype)}

    def _inputs(self, leaf: Spec) -> list[Tensor | Softmax]:
        given: list[Tensor | Softmax] = []
        for need in registry.get(leaf.name).needs:
            if need == "softmax":
                given.append(self.softmax)
            elif need == "logits":
                given.append(self.logits)
            elif need == "features":
                assert self.features is not None
                given.append(self.features)
            else:
                given.append(self.plain(Spec(need)))
        return given


def feature_terms(graph: ConfidenceGraph, logits: Tensor, features: Tensor | None) -> dict[str, Tensor]:
    """For a combination with S1 and S2 scores: how far each S2 is on the side of OOD, softplus(b(a − S2))."""
    spec = graph.spec
    if not spec.has_bounded_first:
        return {}
    columns = _Values(graph, logits, features)
    a, b = (combine.given(spec, key, graph._combined) for key in "ab")
    values = [combine.plain_value(other, columns.plain, columns.log_gap, graph._combined) for other in spec.args[1:]]
    lows = combine.lowness(values, a, b)
    return {str(other): softplus(low) for other, low in zip(spec.args[1:], lows, strict=True)}
