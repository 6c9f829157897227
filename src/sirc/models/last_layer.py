"""The last layer of any classifier, v = W z + b: found by running the classifier once."""

import sys
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from typing import TypeGuard

import torch
from torch import Tensor, nn

from sirc._utils.checks import check_type
from sirc._utils.text import closest, quoted
from sirc.models.calling import call_model, copy_of, evaluating, model_logits, unwrap
from sirc.models.ensemble import Ensemble
from sirc.outputs import Head, Outputs

LinearLayer = nn.Linear | nn.Conv2d
JOIN = " + "
"""Joins the names of several layers whose inputs are concatenated to features."""
_BY_HAND = "Pass the layer's arrays instead: sirc.Head(W, b)."


def find_head(model: nn.Module, example: object, *, name: str | None = None) -> Head:
    """Find the linear layer, `nn.Linear` or 1×1 `nn.Conv2d`, whose output *is* the output of `model`.

    The model runs once on `example`, one batch from its loader (a tensor, a tuple that starts with the inputs, or a
    dict), in evaluation mode and without gradients; both are left unchanged. If several layers fit, the last to run is
    taken. With `name`, that layer is taken if its shapes fit.

    If an adapter such as LoRA adds to the layer's output, W and b include it; the name is the layer's.

    Example:
        >>> import sirc, torch
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
        >>> sirc.find_head(model, torch.zeros(2, 4))
        Head('2', 3 classes × 8 features)
    """
    if not isinstance(model, nn.Module):
        raise ValueError(f"`model` must be a torch.nn.Module; got {type(model).__name__}. {_BY_HAND}")
    model = unwrap(model)
    if isinstance(model, Ensemble):
        raise ValueError(
            "An ensemble has no head of its own: its logits are those of a mean softmax, not W z + b. `sirc.guard` and "
            "`sirc.extract` take the features of all its members; for scores that need a head, use one member, "
            "`ensemble.members[0]`."
        )
    calls, output = _watch(model, example)
    logits = model_logits(output)
    if len(logits) == 0:
        raise ValueError("`example` must hold at least one input; got an empty batch. Pass a batch of two.")
    if name is not None:
        layer = linear_layer(model, name)
        last = next((call for call in calls if call.layer is layer), None)
        if last is None:
            raise ValueError(f"Layer {name!r} must run when the model does; it did not. {_ran(calls)}")
        if last.rows is None:
            raise ValueError(not_rows(name, last.shape))
        if last.rows[1].shape != logits.shape:
            raise ValueError(
                f"Layer {name!r} must give the shape of the model's logits, {tuple(logits.shape)}; "
                f"it gave {tuple(last.rows[1].shape)}. {_ran(calls)}"
            )
        alone = torch.equal(last.rows[1].to(logits), logits)
        return (None if alone else _around(model, last, logits)) or _head_of(layer, name)
    for call in calls:
        if call.rows is not None and torch.equal(call.rows[1].to(logits), logits):
            if call is not (last := next(other for other in calls if other.layer is call.layer)):
                raise ValueError(
                    "The head must run last for the logits, since the features of its last run are taken; "
                    f"{call.name!r} runs again, on {last.shape}. Let the model call it once, or copies of it elsewhere."
                )
            head = _head_of(call.layer, call.name)
            if not _gives(head, *call.rows):
                raise ValueError(
                    f"The head must compute W z + b; {call.name!r}, a {type(call.layer).__name__}, gives the model's "
                    f"output, but not from its weight and bias alone. {_BY_HAND}"
                )
            return head
    for call in calls:
        if around := _around(model, call, logits):
            return around
    if logits.isnan().any():
        raise ValueError("The model must give numbers for `example`; it gave NaN. Check the inputs and the weights.")
    raise ValueError(_no_head(calls, logits))


def features_at(model: nn.Module, example: object, *, name: str | None = None) -> Head | str:
    """Find the layer whose input is the features: the head, or in an ensemble the names of the members' heads.

    `name` is the name of the head; in an ensemble, of each member's head.
    """
    model = unwrap(model)
    if not isinstance(model, Ensemble):
        return find_head(model, example, name=name)
    if name is not None and JOIN in name:
        return name
    names = []
    for place, member in enumerate(model.members):
        try:
            names.append(f"members.{place}.{find_head(member, example, name=name).name}".removesuffix("."))
        except ValueError as error:
            raise ValueError(f"Member {place} of the ensemble: {error}") from error
    return JOIN.join(names)


def head_of(model: nn.Module, outputs: Outputs, *, name: str | None = None) -> Head:
    """Find the linear layer that maps the features of stored outputs to their logits, without running the model."""
    model = unwrap(model)
    names = [key for key, layer in model.named_modules() if is_linear_layer(layer)] if name is None else [name]
    for key in reversed(names):
        layer = linear_layer(model, key)
        if outputs.features is not None and layer_size(layer) == (outputs.num_classes, outputs.num_features):
            head = _head_of(layer, key)
            if _gives(head.to(outputs.device), outputs.features, outputs.logits):
                return head
    which = f"layer {name!r} does not" if name else "no linear layer of the model does"
    raise ValueError(f"The head must map these features to these logits, W z + b; {which}. {_BY_HAND}")


def is_whole(model: nn.Module, head: Head) -> bool:
    """Whether the head is its layer alone, without an adapter such as LoRA."""
    weight = linear_layer(unwrap(model), head.name).weight
    return torch.equal(weight.flatten(1), head.weight.to(weight))


@dataclass(frozen=True)
class _Call:
    """A call of a linear layer: its input's shape, and (input, output) if they have one row for each sample."""

    name: str
    layer: LinearLayer
    shape: tuple[int, ...]
    rows: tuple[Tensor, Tensor] | None


def _watch(model: nn.Module, example: object) -> tuple[list[_Call], object]:
    """Run the model once; return the calls of its linear layers, the last first, and its output."""
    calls: list[_Call] = []

    def record(
        name: str, layer: LinearLayer, args: tuple[Tensor, ...], kwargs: dict[str, Tensor], output: object
    ) -> None:
        inputs = layer_input(args, kwargs)
        K, L = layer_size(layer)
        features = as_rows(inputs, L)
        outputs = as_rows(output, K) if isinstance(output, Tensor) else None
        # Cloned, since later code may work in place: x = fc(x); x /= temperature.
        rows = None if features is None or outputs is None else (features.clone(), outputs.clone())
        calls.append(_Call(name, layer, tuple(inputs.shape), rows))

    with ExitStack() as stack:
        stack.enter_context(evaluating(model))
        if "torch._dynamo" in sys.modules and hasattr(torch.compiler, "set_stance"):
            # Code compiled earlier would run without the hooks.
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        for name, layer in model.named_modules():
            if is_linear_layer(layer):
                stack.enter_context(layer.register_forward_hook(partial(record, name), with_kwargs=True))
        output = call_model(model, copy_of(example))
    return calls[::-1], output


def _head_of(layer: LinearLayer, name: str) -> Head:
    # Clones, so that training the model further does not change the head.
    return Head(layer.weight.clone(), None if layer.bias is None else layer.bias.clone(), name)


def _gives(head: Head, features: Tensor, outputs: Tensor) -> bool:
    """Whether the outputs are W z + b; a subclass of `nn.Linear` may compute something else."""
    z, W = features.double(), head.weight.double()
    b = W.new_zeros(len(W)) if head.bias is None else head.bias.double()
    # Autocast and TF32 multiply in a narrower dtype than the result has, with about three digits.
    tolerance = max(torch.finfo(outputs.dtype).eps, 1e-3) * (z.abs() @ W.abs().T + b.abs())
    return not bool(((z @ W.T + b - outputs).abs() > tolerance).any())


def _around(model: nn.Module, call: _Call, logits: Tensor) -> Head | None:
    """Find W and b of a layer and its adapter, such as LoRA, by calling the module that holds both."""
    module = model.get_submodule(call.name.rpartition(".")[0])
    if module is model or call.rows is None or call.rows[1].shape != logits.shape:
        return None
    z = call.rows[0]
    with evaluating(model), suppress(Exception):  # a module that takes something else may raise anything
        if torch.equal(module(z).to(logits), logits):
            b, columns = module(torch.zeros_like(z[:1]))[0], module(torch.eye(z.shape[1]).to(z))
            head = Head((columns - b).T.contiguous(), b, call.name)
            return head if _gives(head, z, logits) else None
    return None


def _no_head(calls: list[_Call], logits: Tensor) -> str:
    """Explain why no layer was found, what ran, and what to do."""
    hints = []
    for call in calls:
        if call.rows is None and layer_size(call.layer)[0] == logits.shape[1]:
            hints.append(not_rows(call.name, call.shape))
        elif call.rows is not None and call.rows[1].shape == logits.shape:
            for end in (torch.softmax, torch.log_softmax):
                if torch.allclose(end(call.rows[1].double(), -1), logits.double(), rtol=1e-2, atol=1e-6):
                    hints.append(f"The model ends with a {end.__name__} of {call.name!r}: pass the network without it.")
    return (
        "A model must end in an nn.Linear or 1×1 nn.Conv2d that gives its output, "
        f"{tuple(logits.shape)}; this one does not. {_ran(calls)} {''.join(hint + ' ' for hint in hints[:2])}"
        "Let the network end in such a layer, or name the one that it has, `head=…`, or "
        '`find_head(model, example, name="…")`, or pass its arrays, `sirc.Head(W, b)`.'
    )


def _ran(calls: list[_Call]) -> str:
    if not calls:
        return "No linear layer ran (calls of F.linear and scripted models cannot be seen)."
    sizes = [(call, *layer_size(call.layer)) for call in calls[3::-1]]
    layers = ", ".join(f"{call.name!r} ({L} → {K}, on {call.shape})" for call, K, L in sizes)
    return f"The last linear layers that ran: {layers}."


def is_linear_layer(layer: nn.Module | None) -> TypeGuard[LinearLayer]:
    """Tell an `nn.Linear`, or a 1×1 `nn.Conv2d` that mixes all its channels, from other layers."""
    if isinstance(layer, nn.Conv2d):
        return layer.kernel_size == (1, 1) and layer.groups == 1
    return isinstance(layer, nn.Linear)


def linear_layer(model: nn.Module, name: str) -> LinearLayer:
    """Get a linear layer by its name; the error lists those that the model has."""
    check_type("name", name, str, "the name of a layer")
    modules = dict(model.named_modules(remove_duplicate=False))
    layer = modules.get(name)
    if is_linear_layer(layer):
        return layer
    known = [key for key, module in modules.items() if is_linear_layer(module)]
    wrong = f"{type(model).__name__} has no {quoted(name)}" if layer is None else f"{name!r} is {_class_of(layer)}"
    if inside := [key for key in known if key.startswith(f"{name}.")]:
        wrong += f" with {', '.join(map(repr, inside[:3]))} in it"
    raise ValueError(
        f"`name` must be an nn.Linear or a 1×1 nn.Conv2d of the model; {wrong}.{closest(name, known, cutoff=0.4)} "
        f"The last of its linear layers: {', '.join(map(repr, known[-5:])) or 'none'}."
    )


def _class_of(layer: nn.Module) -> str:
    """Name a layer's class, with its package unless that is PyTorch: other packages have a `Linear` too."""
    package = type(layer).__module__.partition(".")[0]
    return type(layer).__name__ if package == "torch" else f"{package}'s {type(layer).__name__}"


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
    if values.ndim == 2 and values.shape[1] == width:
        return values
    rows = values.shape[0] if values.ndim else 0  # not len(), so that graphs for any batch size can be traced
    if values.ndim < 2 or values.numel() != rows * width:
        return None
    return values.reshape(rows, width)


def not_rows(name: str, shape: Sequence[int]) -> str:
    """Word the error for a layer that has several rows per input."""
    return (
        f"A head's features are (N, L), one row per input; layer {name!r} ran on {tuple(shape)}. "
        f"Pool tokens or pixels before the layer, not after."
    )
