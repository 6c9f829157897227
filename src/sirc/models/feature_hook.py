"""Feature hooks: catch the input of a model's head while the model runs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from sirc._utils.checks import check_type
from sirc.models.calling import unwrap
from sirc.models.last_layer import JOIN, LinearLayer, as_rows, is_whole, layer_input, layer_size, linear_layer, not_rows
from sirc.outputs import Head


@contextmanager
def capture_features(model: nn.Module, name: str) -> Iterator[Callable[[], Tensor]]:
    """Catch the features (N, L), the input of layer `name`, while the model runs in this thread.

    Yields a function that returns the features of the latest forward pass, once. The inputs of several layers,
    `"a + b"`, are concatenated. Only the unwrapped model has the hook: replicas and code compiled earlier run without.

        with capture_features(model, head.name) as take:
            logits = model(images)
            features = take()
    """
    hook = FeatureHook()
    with hook.attach(model, name):
        hook.open()
        yield hook.take


@final
class FeatureHook:
    """A hook that catches features in each thread separately; a selective classifier keeps one on its model.

    `width` and `classes`, if given, are the numbers of features and logits that the scorer was fitted on.
    """

    def __init__(self, width: int | None = None, classes: int | None = None) -> None:
        self.name: str | None = None
        self.is_last = False
        self._width = width
        self._classes = classes
        self._layers: dict[str, LinearLayer] = {}
        self._thread = threading.local()
        self._traced: dict[str, Tensor] = {}
        self._tracing = False

    def attach(self, model: nn.Module, head: Head | str) -> ExitStack:
        """Hook the layer of a head, or the layers of a name; closing the returned stack removes the hooks."""
        name = head.name if isinstance(head, Head) else head
        is_last = isinstance(head, Head) and is_whole(model, head)  # other layers may follow one that was named
        check_type("name", name, str, "the name of a layer")
        layers = {key: linear_layer(unwrap(model), key) for key in name.split(JOIN)}
        sizes = [layer_size(layer) for layer in layers.values()]
        outputs, inputs = sizes[-1][0], sum(size for _, size in sizes)
        if is_last and self._classes not in (None, outputs):
            raise ValueError(f"this scorer was fitted on {self._classes} logits; layer {name!r} gives {outputs}.")
        if self._width not in (None, inputs):
            raise ValueError(f"this scorer was fitted on {self._width} features; layer {name!r} receives {inputs}.")
        self.name, self._layers, self.is_last = name, layers, is_last
        hooks = ExitStack()
        for key, layer in layers.items():
            hooks.enter_context(layer.register_forward_pre_hook(partial(self._catch, key), with_kwargs=True))
        return hooks

    def open(self) -> None:
        """Start catching in this thread."""
        # A traced graph has no threads, and no thread-local storage.
        if torch.compiler.is_compiling():
            self._tracing = True
        else:
            self._thread.caught = {}

    def _caught(self) -> dict[str, Tensor] | None:
        if torch.compiler.is_compiling():
            return self._traced if self._tracing else None
        caught: dict[str, Tensor] | None = getattr(self._thread, "caught", None)
        return caught

    def _catch(self, name: str, _: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Tensor]) -> None:
        caught = self._caught()
        if caught is not None:  # otherwise this thread did not ask for features
            caught[name] = layer_input(args, kwargs)

    def close(self) -> None:
        """Stop catching in this thread."""
        self._thread.caught = None

    def take(self) -> Tensor:
        """Return the features of this forward pass."""
        caught = self._caught() or {}
        if len(caught) < len(self._layers):
            raise ValueError(
                f"layer {self.name!r} did not run since its features were last taken. Call the model first; if you "
                "did, the layer is no longer its head."
            )
        rows = []
        for name, layer in self._layers.items():
            features = as_rows(caught[name], layer_size(layer)[1])
            if features is None:
                raise ValueError(not_rows(name, caught[name].shape))
            rows.append(features)
        caught.clear()
        if torch.compiler.is_compiling():
            self._tracing = False
        return rows[0] if len(rows) == 1 else torch.cat(rows, 1)

    def exact_logits(self, features: Tensor) -> Tensor:
        """Compute the logits of the hooked layer in float32: in bfloat16, confident samples would tie."""
        (layer,) = self._layers.values()
        bias = None if layer.bias is None else layer.bias.float()
        return functional.linear(features.float(), layer.weight.flatten(1).float(), bias)

    def __getstate__(self) -> dict[str, Any]:
        # A copy of a model copies its hooks too; it must not copy what a thread has caught.
        return {key: value for key, value in vars(self).items() if key not in ("_thread", "_traced")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _thread=threading.local(), _traced={})
