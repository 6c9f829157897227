"""Model calls: pass any batch to any classifier and read its logits."""

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Literal, TypeGuard

import numpy as np
import torch
from torch import Tensor, nn

from sirc._utils.arrays import as_tensor

LABEL_KEYS = frozenset({"label", "labels", "label_ids", "target", "targets"})


def unwrap(model: nn.Module) -> nn.Module:
    """Return the network inside `torch.compile`, `DataParallel`, `DistributedDataParallel` and Ultralytics' `YOLO`."""
    ultralytics = sys.modules.get("ultralytics.engine.model")
    if ultralytics is not None and isinstance(model, ultralytics.Model):
        inner = model.model
    else:
        inner = getattr(model, "module" if is_parallel(model) else "_orig_mod", None)
    return unwrap(inner) if isinstance(inner, nn.Module) else model


def is_parallel(model: nn.Module) -> bool:
    """Whether the model runs copies of a network, as `DataParallel` does."""
    return isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel)


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

    A tuple or list is (inputs, labels, …): its first element is passed, and if that is itself a tuple or list, each of
    its elements by position. A dict is passed as keyword arguments without its labels; a single input is passed by
    position if the model does not know its key.
    """
    if isinstance(batch, Tensor):  # first, since it is the usual case and the quickest test
        return _call(model, _prepare(model, batch))
    if _is_list(batch) and batch:
        if _is_list(batch[0]):
            return _call(model, *(_prepare(model, value) for value in batch[0]))
        return call_model(model, batch[0])
    if not isinstance(batch, Mapping):
        return _call(model, _prepare(model, batch))
    inputs = {
        str(key): _prepare(model, value) if _is_array(value) else value
        for key, value in batch.items()
        if key not in LABEL_KEYS
    }
    parameters = inspect.signature(unwrap(model).forward).parameters.values()
    known = {p.name for p in parameters}
    if any(p.kind is p.VAR_KEYWORD for p in parameters) or known.issuperset(inputs):
        return _call(model, **inputs)
    if len(inputs) == 1:
        return _call(model, *inputs.values())
    raise ValueError(
        f"A dict batch is passed to the model as keyword arguments; got {sorted(inputs)}, and "
        f"{type(unwrap(model)).__name__}.forward takes {sorted(known)}. Keep or rename the keys it takes."
    )


def _call(model: nn.Module, /, *inputs: object, **named: object) -> object:
    try:
        return model(*inputs, **named)
    except TypeError as error:
        network = unwrap(model)
        signature = inspect.signature(network.forward)
        try:
            signature.bind(*inputs, **named)
        except TypeError:
            raise ValueError(
                f"A batch must have the inputs that {type(network).__name__}.forward{signature} takes; got "
                f"{len(inputs) + len(named)}. A tuple is (inputs, labels): give several inputs as one, "
                "((a, b), labels), or by name in a dict."
            ) from error
        raise


def map_inputs(batch: object, change: Callable[[object], object]) -> object:
    """Change each input of any batch that `call_model` takes; labels stay as they are."""
    if _is_list(batch) and batch:
        first = batch[0]
        return [tuple(map(change, first)) if _is_list(first) else change(first), *batch[1:]]
    if isinstance(batch, Mapping):
        return {key: value if key in LABEL_KEYS else change(value) for key, value in batch.items()}
    return change(batch)


def rows_of(batch: object, which: slice) -> object:
    """Select rows of a batch's inputs; the labels keep all rows, since `call_model` ignores them."""
    return map_inputs(batch, lambda x: x[which] if isinstance(x, Tensor) and x.ndim else x)


def copy_of(batch: object) -> object:
    """Copy the inputs of a batch, since a network may change them in place."""

    def copied(value: object) -> object:
        if isinstance(value, np.ndarray):
            return value.copy()
        return value.clone() if isinstance(value, Tensor) else value

    return map_inputs(batch, copied)


def model_logits(output: object) -> Tensor:
    """Read the logits (N, K) from the output of a model.

    They are the tensor itself, `.logits` of an object, or `"logits"` or the only 2-D tensor of a dict. In a tuple or
    list they are the first 2-D tensor, or the second if the first is its softmax, as in Ultralytics' networks.
    (N, K, 1, 1), from a 1×1 convolution, counts as (N, K).
    """
    if isinstance(output, Tensor) and output.ndim == 2:
        return output
    values = getattr(output, "logits", None)
    if values is None:
        values = output.get("logits", output) if isinstance(output, Mapping) else output
    parts = values if isinstance(values, Mapping) else dict(enumerate(values if _is_list(values) else [values]))
    matrices = [
        x.flatten(1)
        for x in parts.values()
        if isinstance(x, Tensor) and (x.ndim == 2 or (x.ndim == 4 and x.shape[2:] == (1, 1)))
    ]
    if len(matrices) == 1:
        return matrices[0]
    if matrices and _is_list(values):
        first, second = matrices[:2]
        if first.shape != second.shape:
            return first
        # Row by row, since a traced graph cannot branch on values.
        is_softmax = torch.isclose(first, second.softmax(-1).to(first), rtol=1e-2, atol=1e-6).all(-1, keepdim=True)
        return torch.where(is_softmax, second.to(first), first)
    shapes = (f"{k!r}: {tuple(v.shape) if isinstance(v, Tensor) else type(v).__name__}" for k, v in parts.items())
    raise ValueError(
        "A model must return logits (N, K), one row per input, one column per class: as a tensor, the first 2-D tensor "
        'of a tuple or list, `.logits` of an object, or "logits" or the only 2-D tensor of a dict; got a '
        f"{type(output).__name__} with {', '.join(shapes) or 'nothing'}. Wrap the model so that it returns the logits."
    )


def _is_list(value: object) -> TypeGuard[tuple[object, ...] | list[object]]:
    return isinstance(value, tuple | list)


def _is_array(value: object) -> bool:
    return hasattr(value, "__dlpack__") or hasattr(value, "__array__")


def _prepare(model: nn.Module, value: object) -> Tensor:
    """Convert `value` to a tensor on the model's device, and to its dtype if it is floating."""
    if not isinstance(value, Tensor) and not _is_array(value):
        raise ValueError(
            f"A batch must be a tensor, a tuple that starts with one, or a dict of them; got "
            f"{type(value).__name__}. Pass one batch of the loader: next(iter(loader))."
        )
    tensor = value if isinstance(value, Tensor) else as_tensor("batch", value)
    first = _first_floating(model, "_parameters")
    if first is None and (first := _first_floating(model, "_buffers")) is None:
        return tensor
    if tensor.device == first.device and tensor.dtype == first.dtype:
        return tensor
    return tensor.to(first.device, first.dtype if tensor.is_floating_point() else None)


def _first_floating(model: nn.Module, kind: Literal["_parameters", "_buffers"]) -> Tensor | None:
    """Find the first floating parameter or buffer; much quicker than `model.parameters()`."""
    tensors: Mapping[str, Tensor | None] = getattr(model, kind)
    for tensor in tensors.values():
        if tensor is not None and tensor.is_floating_point():
            return tensor
    for part in model._modules.values():
        if part is not None and (found := _first_floating(part, kind)) is not None:
            return found
    return None
