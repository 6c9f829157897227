"""Catches the features of a model while it runs: what its head receives, for whoever runs it, in each thread."""

from __future__ import annotations

import threading
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.hooks import RemovableHandle

from sirc.models.calling import as_rows, layer_input, layer_size, unwrap
from sirc.models.head import _linear_layer


@final
class Tap:
    """Catches what the head receives, in each thread for itself, while a selective classifier runs the model."""

    def __init__(self, width: int | None, classes: int | None) -> None:
        self.name: str | None = None
        self.is_last = False
        self._width = width
        self._classes = classes
        self._layer: Any = None
        self._here = threading.local()
        self._traced: list[Tensor] = []
        self._tracing = False

    def attach(self, model: nn.Module, name: str, *, last: bool = True) -> RemovableHandle:
        """Hook the layer of that name; the handle that is returned removes the hook."""
        layer = _linear_layer(unwrap(model), name)
        if last and self._classes is not None and layer_size(layer)[0] != self._classes:
            raise ValueError(
                f"this scorer was fitted on {self._classes} logits; layer {name!r} gives {layer_size(layer)[0]}. Are "
                "they of the same model?"
            )
        if self._width is not None and layer_size(layer)[1] != self._width:
            raise ValueError(
                f"this scorer was fitted on {self._width} features; layer {name!r} receives {layer_size(layer)[1]}. "
                "Are they of the same model?"
            )
        self.name, self._layer, self.is_last = name, layer, last
        return layer.register_forward_pre_hook(self._catch, with_kwargs=True)

    def open(self) -> None:
        """Begin to catch, in this thread."""
        # A traced graph has no threads, and no storage of theirs.
        if torch.compiler.is_compiling():
            self._tracing = True
        else:
            self._here.caught = []

    def _caught(self) -> list[Tensor] | None:
        if torch.compiler.is_compiling():
            return self._traced if self._tracing else None
        caught: list[Tensor] | None = getattr(self._here, "caught", None)
        return caught

    def _catch(self, _: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Tensor]) -> None:
        caught = self._caught()
        if caught is not None:  # else the model is run by someone else
            caught.clear()
            caught.append(layer_input(args, kwargs))

    def close(self) -> None:
        """Stop catching, in this thread."""
        self._here.caught = None

    def take(self) -> Tensor:
        """Hand over the features of this forward."""
        caught = self._caught()
        if not caught:
            raise ValueError(f"layer {self.name!r} did not run: is it still the model's head?")
        given = caught.pop()
        if torch.compiler.is_compiling():
            self._tracing = False
        features = as_rows(given, layer_size(self._layer)[1])
        if features is None:
            shape = tuple(given.shape)
            raise ValueError(f"features must be one row for each input; layer {self.name!r} ran on {shape}")
        return features

    def exact_logits(self, features: Tensor) -> Tensor:
        """Logits of the hooked layer in float32, whatever precision the model ran in."""
        bias = None if self._layer.bias is None else self._layer.bias.float()
        return functional.linear(features.float(), self._layer.weight.flatten(1).float(), bias)

    def __getstate__(self) -> dict[str, Any]:
        # Copies of a model carry its hooks along; what threads hold stays with them.
        return {key: value for key, value in vars(self).items() if key not in ("_here", "_traced")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _here=threading.local(), _traced=[])
