"""The confidence graph: a scorer's confidence for one spec as a module, to decide with and to export."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Self, final

import torch
from torch import Tensor, nn

from sirc._utils.graphs import Repeats
from sirc._utils.precision import full_products
from sirc.scores import (
    COMBINATIONS,
    Evaluator,
    Scorer,
    Softmax,
    array_reads,
    needed_leaves,
    option_of,
    reads_features,
    registry,
    working_dtype,
)

LOWEST = -sys.float_info.max
"""The confidence if none can be computed, as for an input that makes the network overflow."""
_FEW = 64  # rows: up to so many, a GPU takes longer to launch its kernels than to run them


@final
class ConfidenceGraph(nn.Module):
    """A scorer's confidence for one spec, without the scorer's checks: the same numbers for a batch of any size.

    Its buffers move between devices with the model, but keep their type if the model is converted to float16.
    """

    limit: Tensor
    """The threshold; at first +inf, which accepts nothing."""
    lowest: Tensor

    def __init__(self, scorer: Scorer, spec: str, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.spec = scorer.parsed(spec)
        self.needs_features = bool(reads_features([self.spec]))
        drivers = [spec if self.needs_features else "softmax"]
        if self.spec.has_bounded_first:
            drivers = ["softmax", *map(str, self.spec.args[1:])]
        self.reasons = ["", "not computable", *drivers]
        """The reasons of decisions; the first is for accepted inputs."""
        self._reads = array_reads([self.spec])
        scorer.only(spec).check_fitted()
        self.register_buffer("limit", torch.tensor(float("inf"), dtype=torch.float64), persistent=False)
        # By spec and name: a constant of the graph, such as a, b, c or a tuned option, or the name of a buffer.
        self._values: dict[tuple[str, str], str | float | list[float]] = {}
        leaves = needed_leaves([self.spec])
        combinations = [part for part in self.spec.walk() if not part.is_leaf]
        formulas = [COMBINATIONS[part.name].compute for part in combinations]
        formulas += [registry.get(leaf.name).compute for leaf in leaves]
        self._own = all(formula is None or formula.__module__.startswith("sirc.") for formula in formulas)
        for key in map(str, combinations):
            for name, value in scorer.parameters.get(key, {}).items():
                self._values[key, name] = value.tolist()
        for leaf in leaves:
            key = str(leaf)
            for name, value in scorer.parameters.get(key, {}).items():
                if option_of(leaf, name):
                    self._values[key, name] = float(value)
                    continue
                # In the type in which features are projected, to save a cast in each forward pass.
                cast = value.detach().to(working_dtype(dtype)) if value.is_floating_point() else value.detach()
                self._values[key, name] = buffer = f"parameter_{len(self._buffers) - 1}"
                self.register_buffer(buffer, cast.clone(), persistent=False)
        # Buffers are cast to the type of the features.
        self._given_features = self.needs_features or len(self._buffers) > 1
        # As a number it would be exported in float32, as −∞.
        self.register_buffer("lowest", torch.tensor(LOWEST, dtype=torch.float64), persistent=False)
        self._repeats = Repeats()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        for name, buffer in self._buffers.items():
            if buffer is not None:
                self._buffers[name] = buffer.to(fn(buffer).device)
        self._repeats = Repeats()
        return self

    def decide(self, logits: Tensor, features: Tensor | None) -> tuple[Tensor, ...]:
        """The label and confidence of each row, and whether it reaches the threshold."""
        given = (logits,) if features is None or not self._given_features else (logits, features)
        # A score from outside sirc may do what CUDA graphs cannot; a replica of DataParallel lives for one call only.
        recorded = self._own and _few_on_gpu(logits) and "_is_replica" not in vars(self)
        return self._repeats(self._decide, *given) if recorded else self._decide(*given)

    def _decide(self, logits: Tensor, features: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        with precisely(logits.device):
            confidence = self(logits, features)
            return logits.argmax(-1), confidence, confidence >= self.limit

    def explain(self, logits: Tensor, features: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The result of `decide`, and the index of each row's reason in `reasons`."""
        with precisely(logits.device):
            evaluator = self.evaluator(logits, features)
            confidence = self.confidence(evaluator)
            accepted = confidence >= self.limit
            reason = torch.full_like(confidence, 2, dtype=torch.int64)
            if terms := evaluator.ood_terms(self.spec):
                by_softmax = ~(evaluator.parts(self.spec)[0] >= self.limit)
                reason = reason + torch.where(by_softmax, 0, 1 + torch.stack(list(terms.values())).argmax(0))
        reason = torch.where(confidence == self.lowest, 1, reason)
        return logits.argmax(-1), confidence, accepted, torch.where(accepted, 0, reason)

    def forward(self, logits: Tensor, features: Tensor | None) -> Tensor:
        """The confidence of each row, float64."""
        return self.confidence(self.evaluator(logits, features))

    def confidence(self, evaluator: Evaluator) -> Tensor:
        """The confidence of each row; `LOWEST`, which is never accepted, where it is not finite."""
        confidence = evaluator.confidence(self.spec)
        return torch.where(confidence.abs() <= -LOWEST, confidence, self.lowest)

    def evaluator(self, logits: Tensor, features: Tensor | None) -> Evaluator:
        """The evaluator of a batch, for the confidence and its parts."""
        dtype = torch.float64 if features is None else working_dtype(features.dtype)
        parameters: dict[str, dict[str, Tensor | float | list[float]]] = {}
        for (key, name), value in self._values.items():
            if isinstance(value, str):
                buffer = getattr(self, value)
                value = buffer.to(dtype) if buffer.is_floating_point() else buffer
            parameters.setdefault(key, {})[name] = value
        # The logits are read in float64 on any device, as in the calibration; on a GPU by one kernel.
        softmax = Softmax.of(logits.double()) if _few_on_gpu(logits) else None
        return Evaluator(logits, features, self._reads, parameters, softmax=softmax, compile=False)


def _few_on_gpu(logits: Tensor) -> bool:
    return logits.is_cuda and len(logits) <= _FEW and not torch.compiler.is_compiling()


@contextmanager
def _unrounded(device: torch.device) -> Iterator[None]:
    with full_products(), torch.autocast(device.type, enabled=False):
        yield


def precisely(device: torch.device) -> AbstractContextManager[object]:
    """Switch off the caller's autocast and TF32: they are meant for the network, and would round the score."""
    if not torch.compiler.is_compiling():
        return _unrounded(device)
    return torch.autocast(device.type, enabled=False) if torch.is_autocast_enabled(device.type) else nullcontext()
