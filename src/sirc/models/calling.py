"""Model calls: pass any batch to any classifier, read its logits, watch its linear layers."""

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import TypeGuard

import torch
from torch import Tensor, nn

from sirc._utils.arrays import as_tensor
from sirc._utils.hints import closest

LinearLayer = nn.Linear | nn.Conv2d
LABEL_KEYS = frozenset({"label", "labels", "label_ids", "target", "targets"})


def unwrap(model: nn.Module) -> nn.Module:
    """Return the network inside `torch.compile`, `DataParallel` and `DistributedDataParallel`."""
    while True:
        if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
            model = model.module
        elif isinstance(inner := getattr(model, "_orig_mod", None), nn.Module):
            model = inner
        else:
            return model


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Run `model` in evaluation mode without gradients; restore every training flag afterwards."""
    flags = [(module, module.training) for module in model.modules()]
    try:
        # Set flag by flag, since some models override train() to merge or freeze weights.
        for module, _ in flags:
            module.training = False
        # Not inference_mode: tensors that lazy layers or caches create here must be trainable later.
        with torch.no_grad():
            yield
    finally:
        for module, training in flags:
            module.training = training


def call_model(model: nn.Module, batch: object) -> object:
    """Call `model(batch)` on the model's device, with floating inputs in its dtype.

    Of a tuple or list, (inputs, labels, …), the first element is passed. A dict is passed as keyword arguments without
    its labels; a single input under a key that the model does not know is passed by position.
    """
    if isinstance(batch, tuple | list):
        if not batch:
            raise ValueError("A batch must hold at least the inputs; got an empty tuple or list.")
        return call_model(model, batch[0])
    if not isinstance(batch, Mapping):
        return model(_prepare(model, batch))
    inputs = {
        str(key): _prepare(model, value) if _is_array(value) else value
        for key, value in batch.items()
        if key not in LABEL_KEYS
    }
    parameters = inspect.signature(unwrap(model).forward).parameters.values()
    known = {p.name for p in parameters}
    if any(p.kind is p.VAR_KEYWORD for p in parameters) or known.issuperset(inputs):
        return model(**inputs)
    if len(inputs) == 1:
        return model(*inputs.values())
    raise ValueError(
        f"A dict batch is passed to the model as keyword arguments; got {sorted(inputs)}, and "
        f"{type(unwrap(model)).__name__}.forward takes {sorted(known)}. Keep or rename the keys it takes."
    )


def model_logits(output: object) -> Tensor:
    """Read the logits (N, K) from the output of a model.

    A tensor is the logits; an object has them as `.logits`, a dict as `"logits"` or as its only 2-D tensor;
    in a tuple or list they are the first 2-D tensor. (N, K, 1, 1), from a 1×1 convolution, counts as (N, K).
    """
    values = getattr(output, "logits", None)
    if values is None and isinstance(output, Mapping):
        values = output.get("logits")
    if values is None:
        values = output
    if isinstance(values, Tensor):
        logits = _logit_rows(values)
        if logits is None:
            raise ValueError(
                f"Logits must be (N, K): one row per input, one column per class; the model gave "
                f"{tuple(values.shape)}. Wrap the model so that it returns one row per input."
            )
        return logits
    if isinstance(values, Mapping | tuple | list):
        named = values if isinstance(values, Mapping) else dict(enumerate(values))
        matrices = [rows for v in named.values() if isinstance(v, Tensor) and (rows := _logit_rows(v)) is not None]
        if matrices and (len(matrices) == 1 or named is not values):
            return matrices[0]
        rule = '"logits" in it, or exactly one 2-D tensor' if named is values else "the logits, a 2-D tensor, in it"
        raise ValueError(
            f"A model that returns a {'dict' if named is values else type(values).__name__} must have {rule}; got "
            f"{_shapes(named)}. Wrap the model so that it returns the logits."
        )
    raise ValueError(
        f"A model must return a tensor, a tuple, a dict or an object with `.logits`; got "
        f"{type(output).__name__}. Wrap the model so that it returns the logits."
    )


@dataclass(frozen=True)
class LayerRun:
    """One execution of a linear layer: the shape of its input; its input and output rows, if one per model input."""

    name: str
    layer: LinearLayer
    shape: tuple[int, ...]
    rows: tuple[Tensor, Tensor] | None


def watch(model: nn.Module, example: object) -> tuple[list[LayerRun], object]:
    """Run the model once; return every execution of a linear layer, in order, and the model's output."""
    runs: list[LayerRun] = []

    def watcher(name: str, layer: LinearLayer) -> Callable[..., None]:
        def hook(_: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Tensor], output: object) -> None:
            inputs = layer_input(args, kwargs)
            K, L = layer_size(layer)
            features = as_rows(inputs, L)
            outputs = as_rows(output, K) if isinstance(output, Tensor) else None
            rows = None
            if features is not None and outputs is not None:
                # Cloned, since later code may work in place: x = fc(x); x /= temperature.
                rows = features.clone(), outputs.clone()
            runs.append(LayerRun(name, layer, tuple(inputs.shape), rows))

        return hook

    with ExitStack() as stack:
        stack.enter_context(evaluating(model))
        if "torch._dynamo" in sys.modules and hasattr(torch.compiler, "set_stance"):
            # Code compiled earlier would run without the hooks.
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        for name, layer in model.named_modules():
            if is_linear_layer(layer):
                stack.enter_context(layer.register_forward_hook(watcher(name, layer), with_kwargs=True))
        output = call_model(model, example)
    return runs, output


def is_linear_layer(layer: nn.Module | None) -> TypeGuard[LinearLayer]:
    """Tell an `nn.Linear`, or a 1×1 `nn.Conv2d` that mixes all its channels, from other layers."""
    if isinstance(layer, nn.Conv2d):
        return layer.kernel_size == (1, 1) and layer.groups == 1
    return isinstance(layer, nn.Linear)


def linear_layer(model: nn.Module, name: str) -> LinearLayer:
    """Get a linear layer by its name; the error lists those that the model has."""
    modules = dict(model.named_modules(remove_duplicate=False))
    layer = modules.get(name)
    if is_linear_layer(layer):
        return layer
    known = [key for key, module in modules.items() if is_linear_layer(module)]
    wrong = f"{type(model).__name__} has no {name!r}" if layer is None else f"{name!r} is {type(layer).__name__}"
    raise ValueError(
        f"`name` must be an nn.Linear or a 1×1 nn.Conv2d of the model; {wrong}.{closest(name, known, cutoff=0.4)} "
        f"The last of its linear layers: {', '.join(map(repr, known[-5:])) or 'none'}."
    )


def layer_size(layer: LinearLayer) -> tuple[int, int]:
    """Get (K, L), the number of outputs and of inputs."""
    if isinstance(layer, nn.Linear):
        return layer.out_features, layer.in_features
    return layer.out_channels, layer.in_channels


def layer_input(args: tuple[Tensor, ...], kwargs: dict[str, Tensor]) -> Tensor:
    """Get the input from the arguments of a hook, for `layer(x)` and `layer(input=x)`."""
    return args[0] if args else kwargs["input"]


def as_rows(values: Tensor, width: int) -> Tensor | None:
    """Reshape (N, width), (N, width, 1, 1) or (N, 1, width) to (N, width); None for several rows per input."""
    rows = values.shape[0] if values.ndim else 0  # not len(), so that graphs for any batch size can be traced
    if values.ndim < 2 or values.numel() != rows * width:
        return None
    return values.reshape(rows, width)


def not_rows(name: str, shape: tuple[int, ...]) -> str:
    """Word the error for a layer that has several rows per input."""
    return (
        f"A head's features are (N, L), one row per input; layer {name!r} ran on {shape}. "
        f"Pool tokens or pixels before the layer, not after."
    )


def _is_array(value: object) -> bool:
    return hasattr(value, "__dlpack__") or hasattr(value, "__array__")


def _prepare(model: nn.Module, value: object) -> Tensor:
    """Convert `value` to a tensor on the model's device; floating values to the dtype of its first weights."""
    if not _is_array(value):
        raise ValueError(
            f"A batch must be a tensor, a tuple that starts with one, or a dict of them; got "
            f"{type(value).__name__}. Pass one batch of the loader: next(iter(loader))."
        )
    tensor = value if isinstance(value, Tensor) else as_tensor("batch", value)
    weights = (w for w in chain(model.parameters(), model.buffers()) if w.is_floating_point())
    first = next(weights, tensor)
    return tensor.to(first.device, first.dtype if tensor.is_floating_point() else None)


def _logit_rows(output: Tensor) -> Tensor | None:
    """Reshape (N, K) or (N, K, 1, 1) to (N, K); None for any other shape."""
    if output.ndim == 4 and output.shape[2:] == (1, 1):
        return output.flatten(1)
    return output if output.ndim == 2 else None


def _shapes(values: Mapping[object, object]) -> str:
    return ", ".join(
        f"{key!r}: {tuple(v.shape) if isinstance(v, Tensor) else type(v).__name__}" for key, v in values.items()
    )
