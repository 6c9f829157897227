"""ConfidenceGraph: one score as a module that compiles and exports, logits and features in, confidence out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self, final

import torch
from torch import Tensor, nn

from sirc.scores import Evaluator, Scorer, needed_leaves, option_of, parse, reads_features, working_dtype


class FixedDtypeModule(nn.Module):
    """A module whose buffers move between devices with the model, but keep their type when the model is halved."""

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        for name, buffer in self._buffers.items():
            if buffer is not None:
                self._buffers[name] = buffer.to(fn(buffer).device)
        return self


@final
class ConfidenceGraph(FixedDtypeModule):
    """The confidence of a scorer for one spec, without its checks: the same numbers for a batch of any size."""

    def __init__(self, scorer: Scorer, spec: str, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.spec = parse(spec)
        scorer.only(spec).check_fitted()
        self._buffer_names: dict[tuple[str, str], str] = {}
        # Tuned options, a, b and c are plain numbers: they become constants of the graph.
        self._numbers: dict[str, dict[str, float | list[float]]] = {}
        leaves = {str(leaf): leaf for leaf in needed_leaves([self.spec])}
        for key in (*leaves, *(str(part) for part in self.spec.walk() if not part.is_leaf)):
            for name, value in scorer.parameters.get(key, {}).items():
                if key not in leaves:
                    self._numbers.setdefault(key, {})[name] = value.tolist()
                elif option_of(leaves[key], name):
                    self._numbers.setdefault(key, {})[name] = float(value)
                else:
                    # In the type that the model's features are projected in: a cast in each forward pass costs time.
                    cast = value.detach().to(working_dtype(dtype)) if value.is_floating_point() else value.detach()
                    buffer = f"parameter_{len(self._buffer_names)}"
                    self.register_buffer(buffer, cast.clone(), persistent=False)
                    self._buffer_names[key, name] = buffer

    @property
    def needs_features(self) -> bool:
        """Whether the score reads the features."""
        return bool(reads_features([self.spec]))

    def forward(self, logits: Tensor, features: Tensor | None) -> Tensor:
        """The confidence of each row, float64."""
        return self._evaluator(logits, features).confidence(self.spec)

    def parts(self, logits: Tensor, features: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """The confidence, the softmax's part of it, and what the features take away: confidence = part − taken."""
        evaluator = self._evaluator(logits, features)
        return evaluator.confidence(self.spec), *evaluator.parts(self.spec)

    def ood_terms(self, logits: Tensor, features: Tensor | None) -> dict[str, Tensor]:
        """softplus(b(a − S2)) for each S2 of a `sirc`, `additive` or `bayes`: how much it looks like OOD."""
        return self._evaluator(logits, features).ood_terms(self.spec)

    def _evaluator(self, logits: Tensor, features: Tensor | None) -> Evaluator:
        dtype = torch.float64 if features is None else working_dtype(features.dtype)
        parameters: dict[str, dict[str, Tensor | float | list[float]]] = {
            key: dict(numbers) for key, numbers in self._numbers.items()
        }
        for (key, name), buffer in self._buffer_names.items():
            value = getattr(self, buffer)
            parameters.setdefault(key, {})[name] = value.to(dtype) if value.is_floating_point() else value
        # Float64 in the pass over the logits on any device, as when the threshold was calibrated.
        return Evaluator(logits, features, [self.spec], parameters, compile=False)
