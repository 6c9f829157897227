"""How any PyTorch classifier is called, read and watched: batches in, logits (N, K) out, layers seen."""

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
    """Run `model` as in deployment: evaluation mode, no gradients; every training flag is put back."""
    flags = [(module, module.training) for module in model.modules()]
    try:
        # Flags are set one by one since some models override train() to merge or freeze weights.
        for module, _ in flags:
            module.training = False
        # Not inference_mode: tensors that lazy layers or caches create in this run must still train later.
        with torch.no_grad():
            yield
    finally:
        for module, training in flags:
            module.training = training


def call_model(model: nn.Module, batch: object) -> object:
    """Call `model(batch)` on the model's device, floating inputs in its dtype.

    Of a tuple or list, (inputs, labels, …), the first element is passed. A dict becomes keyword arguments,
    without its labels; a single input under a key that the model does not know is passed by position.
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
    """Read the logits (N, K) from what a model returned.

    A tensor is the logits; an object has them as `.logits`, a dict as `"logits"` or as its only 2-D tensor;
    in a tuple or list they are the first 2-D tensor. (N, K, 1, 1), from a 1×1 convolution, counts as (N, K).
    """
    found = getattr(output, "logits", None)
    if found is None and isinstance(output, Mapping):
        found = output.get("logits")
    if found is None:
        found = output
    if isinstance(found, Tensor):
        logits = _logit_rows(found)
        if logits is None:
            raise ValueError(
                f"Logits must be (N, K): one row per input, one column per class; the model gave "
                f"{tuple(found.shape)}. Wrap the model so that it returns one row per input."
            )
        return logits
    if isinstance(found, Mapping):
        matrices = [r for v in found.values() if isinstance(v, Tensor) and (r := _logit_rows(v)) is not None]
        if len(matrices) == 1:
            return matrices[0]
        raise ValueError(
            f'A model that returns a dict must have "logits" in it, or exactly one 2-D tensor; got '
            f"{_shapes(found)}. Wrap the model so that it returns the logits."
        )
    if isinstance(found, tuple | list):
        for value in found:
            if isinstance(value, Tensor) and (rows := _logit_rows(value)) is not None:
                return rows
        raise ValueError(
            f"A model that returns a {type(found).__name__} must have the logits, a 2-D tensor, in it; got "
            f"{_shapes(dict(enumerate(found)))}. Wrap the model so that it returns the logits."
        )
    raise ValueError(
        f"A model must return a tensor, a tuple, a dict or an object with `.logits`; got "
        f"{type(output).__name__}. Wrap the model so that it returns the logits."
    )


@dataclass(frozen=True)
class LayerRun:
    """One execution of a linear layer: the shape it was given; its rows in and out, if one per input."""

    name: str
    layer: LinearLayer
    shape: tuple[int, ...]
    rows: tuple[Tensor, Tensor] | None


def watch(model: nn.Module, example: object) -> tuple[list[LayerRun], object]:
    """Run the model once: every execution of a linear layer, in order, and what the model returned."""
    runs: list[LayerRun] = []

    def watcher(name: str, layer: LinearLayer) -> Callable[..., None]:
        def hook(_: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Tensor], output: object) -> None:
            given = layer_input(args, kwargs)
            K, L = layer_size(layer)
            features = as_rows(given, L)
            outputs = as_rows(output, K) if isinstance(output, Tensor) else None
            rows = None
            if features is not None and outputs is not None:
                # Cloned, since what follows may work in place: x = fc(x); x /= temperature.
                rows = features.clone(), outputs.clone()
            runs.append(LayerRun(name, layer, tuple(given.shape), rows))

        return hook

    with ExitStack() as stack:
        stack.enter_context(evaluating(model))
        if "torch._dynamo" in sys.modules and hasattr(torch.compiler, "set_stance"):
            # Parts that were compiled earlier would run without the hooks.
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        for name, layer in model.named_modules():
            if is_linear_layer(layer):
                stack.enter_context(layer.register_forward_hook(watcher(name, layer), with_kwargs=True))
        output = call_model(model, example)
    return runs, output


def is_linear_layer(layer: nn.Module | None) -> TypeGuard[LinearLayer]:
    """Whether `layer` is an `nn.Linear` or a 1×1 `nn.Conv2d` that mixes all its channels."""
    if isinstance(layer, nn.Conv2d):
        return layer.kernel_size == (1, 1) and layer.groups == 1
    return isinstance(layer, nn.Linear)


def layer_size(layer: LinearLayer) -> tuple[int, int]:
    """(K, L): the number of outputs and of inputs."""
    if isinstance(layer, nn.Linear):
        return layer.out_features, layer.in_features
    return layer.out_channels, layer.in_channels


def layer_input(args: tuple[Tensor, ...], kwargs: dict[str, Tensor]) -> Tensor:
    """Return the input that a hook was shown: `layer(x)` or `layer(input=x)`."""
    return args[0] if args else kwargs["input"]


def as_rows(values: Tensor, width: int) -> Tensor | None:
    """(N, width) from (N, width), (N, width, 1, 1) or (N, 1, width); None for several rows per input."""
    rows = values.shape[0] if values.ndim else 0  # not len(): a graph for any batch size is traced through here
    if values.ndim < 2 or values.numel() != rows * width:
        return None
    return values.reshape(rows, width)


def _is_array(value: object) -> bool:
    return hasattr(value, "__dlpack__") or hasattr(value, "__array__")


def _prepare(model: nn.Module, value: object) -> Tensor:
    """`value` as a tensor where the model is; floating values in the dtype of the model's first weights."""
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
    """(N, K) from (N, K) or (N, K, 1, 1); None for any other shape."""
    if output.ndim == 4 and output.shape[2:] == (1, 1):
        return output.flatten(1)
    return output if output.ndim == 2 else None


def _shapes(values: Mapping[object, object]) -> str:
    return ", ".join(
        f"{key!r}: {tuple(v.shape) if isinstance(v, Tensor) else type(v).__name__}" for key, v in values.items()
    )
