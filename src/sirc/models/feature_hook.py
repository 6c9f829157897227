"""Feature hooks: catch what a model's head receives while the model runs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.hooks import RemovableHandle

from sirc.models.calling import unwrap
from sirc.models.last_layer import LinearLayer, as_rows, layer_input, layer_size, linear_layer, not_rows


@contextmanager
def capture_features(model: nn.Module, name: str) -> Iterator[Callable[[], Tensor]]:
    """Catch the features (N, L), the input of layer `name`, while the model runs.

    Yields a function that returns the features of the latest forward pass, once. The hook is in the unwrapped model:
    replicas and code compiled earlier run without it.

        with capture_features(model, head.name) as take:
            logits = model(images)
            features = take()
    """
    layer = linear_layer(unwrap(model), name)
    caught: list[Tensor] = []

    def hook(_: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Tensor]) -> None:
        caught[:] = [layer_input(args, kwargs)]

    def take() -> Tensor:
        if not caught:
            raise ValueError(f"Layer {name!r} did not run since its features were last taken: call the model first.")
        return _feature_rows(layer, name, caught.pop())

    with layer.register_forward_pre_hook(hook, with_kwargs=True):
        yield take


@final
class FeatureHook:
    """A hook that stays on the model of a selective classifier and catches features in each thread separately."""

    def __init__(self, width: int | None, classes: int | None) -> None:
        self.name: str | None = None
        self.is_last = False
        self._width = width
        self._classes = classes
        self._layer: Any = None
        self._thread = threading.local()
        self._traced: list[Tensor] = []
        self._tracing = False

    def attach(self, model: nn.Module, name: str, *, last: bool = True) -> RemovableHandle:
        """Hook the layer of that name; the returned handle removes the hook."""
        layer = linear_layer(unwrap(model), name)
        outputs, inputs = layer_size(layer)
        if last and self._classes not in (None, outputs):
            raise ValueError(f"this scorer was fitted on {self._classes} logits; layer {name!r} gives {outputs}.")
        if self._width not in (None, inputs):
            raise ValueError(f"this scorer was fitted on {self._width} features; layer {name!r} receives {inputs}.")
        self.name, self._layer, self.is_last = name, layer, last
        return layer.register_forward_pre_hook(self._catch, with_kwargs=True)

    def open(self) -> None:
        """Start catching in this thread."""
        # A traced graph has no threads, and no thread-local storage.
        if torch.compiler.is_compiling():
            self._tracing = True
        else:
            self._thread.caught = []

    def _caught(self) -> list[Tensor] | None:
        if torch.compiler.is_compiling():
            return self._traced if self._tracing else None
        caught: list[Tensor] | None = getattr(self._thread, "caught", None)
        return caught

    def _catch(self, _: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Tensor]) -> None:
        caught = self._caught()
        if caught is not None:  # else someone else runs the model
            caught.clear()
            caught.append(layer_input(args, kwargs))

    def close(self) -> None:
        """Stop catching in this thread."""
        self._thread.caught = None

    def take(self) -> Tensor:
        """Return the features of this forward pass."""
        caught = self._caught()
        if not caught:
            raise ValueError(f"layer {self.name!r} did not run: is it still the model's head?")
        inputs = caught.pop()
        if torch.compiler.is_compiling():
            self._tracing = False
        return _feature_rows(self._layer, str(self.name), inputs)

    def exact_logits(self, features: Tensor) -> Tensor:
        """Compute the logits of the hooked layer in float32, whatever precision the model ran in."""
        return exact_logits(self._layer, features)

    def __getstate__(self) -> dict[str, Any]:
        # Copies of a model copy its hooks too, but not what a thread has caught.
        return {key: value for key, value in vars(self).items() if key not in ("_thread", "_traced")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _thread=threading.local(), _traced=[])


def exact_logits(layer: LinearLayer, features: Tensor) -> Tensor:
    """Apply a linear layer in float32: in bfloat16, confident samples would tie."""
    bias = None if layer.bias is None else layer.bias.float()
    return functional.linear(features.float(), layer.weight.flatten(1).float(), bias)


def _feature_rows(layer: LinearLayer, name: str, inputs: Tensor) -> Tensor:
    features = as_rows(inputs, layer_size(layer)[1])
    if features is None:
        raise ValueError(not_rows(name, inputs.shape))
    return features
