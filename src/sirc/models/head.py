"""The head: find the final linear layer of any classifier, v = W z + b, by running it."""

import torch
from torch import Tensor, nn

from sirc.models.calling import LayerRun, LinearLayer, layer_size, linear_layer, model_logits, not_rows, unwrap, watch
from sirc.outputs import Head

_BY_HAND = "Pass the layer's arrays instead: sirc.Head(W, b)."


def find_head(model: nn.Module, example: object, *, name: str | None = None) -> Head:
    """Find the linear layer, `nn.Linear` or 1×1 `nn.Conv2d`, whose output *is* the output of `model`.

    The model runs once on `example`, one batch as its loader gives it (a tensor, a tuple that starts with the
    inputs, or a dict), in evaluation mode and without gradients, and is left as it was. Where several layers
    fit, the last to run is taken. With `name`, that layer is taken as long as its shapes fit.
    """
    if not isinstance(model, nn.Module):
        raise ValueError(f"`model` must be a torch.nn.Module; got {type(model).__name__}. {_BY_HAND}")
    model = unwrap(model)
    runs, output = watch(model, example)
    logits = model_logits(output)
    if len(logits) == 0:
        raise ValueError("`example` must hold at least one input; got an empty batch. Pass a batch of two.")
    if name is not None:
        layer = linear_layer(model, name)
        _check_shapes(layer, name, runs, logits)
        return _head_of(layer, name)
    for run in reversed(runs):
        if run.rows is not None and _same(run.rows[1], logits):
            head = _head_of(run.layer, run.name)
            _check_linear(head, type(run.layer).__name__, *run.rows)
            return head
    raise ValueError(_no_head(runs, logits, output))


def _head_of(layer: LinearLayer, name: str) -> Head:
    # Clones, so that training the model further does not change the head.
    return Head(layer.weight.clone(), None if layer.bias is None else layer.bias.clone(), name)


def _same(outputs: Tensor, logits: Tensor) -> bool:
    return outputs.shape == logits.shape and torch.equal(outputs.to(logits), logits)


def _check_linear(head: Head, kind: str, features: Tensor, outputs: Tensor) -> None:
    """Refuse a subclass of `nn.Linear` that does not compute W z + b."""
    z, W = features.double(), head.weight.double()
    b = W.new_zeros(len(W)) if head.bias is None else head.bias.double()
    # Autocast and TF32 multiply in a narrower dtype than the result has, with about three digits.
    tolerance = max(torch.finfo(outputs.dtype).eps, 1e-3) * (z.abs() @ W.abs().T + b.abs())
    if ((z @ W.T + b - outputs).abs() > tolerance).any():
        raise ValueError(
            f"The head must compute W z + b; {head.name!r}, a {kind}, gives the model's output, but not "
            f"from its weight and bias alone. {_BY_HAND}"
        )


def _check_shapes(layer: LinearLayer, name: str, runs: list[LayerRun], logits: Tensor) -> None:
    run = next((run for run in reversed(runs) if run.layer is layer), None)
    if run is None:
        raise ValueError(f"Layer {name!r} must run when the model does; it did not. {_ran(runs)}")
    if run.rows is None:
        raise ValueError(not_rows(name, run.shape))
    if run.rows[1].shape != logits.shape:
        raise ValueError(
            f"Layer {name!r} must give the shape of the model's logits, {tuple(logits.shape)}; "
            f"it gave {tuple(run.rows[1].shape)}. {_ran(runs)}"
        )


def _no_head(runs: list[LayerRun], logits: Tensor, output: object) -> str:
    """Explain why no layer was found, what ran, and how to go on."""
    hints = []
    for run in reversed(runs):
        if run.rows is None:
            if layer_size(run.layer)[0] == logits.shape[1]:
                hints.append(not_rows(run.name, run.shape))
        elif run.rows[1].shape == logits.shape:
            for end in (torch.softmax, torch.log_softmax):
                if torch.allclose(end(run.rows[1].double(), -1), logits.double(), rtol=1e-2, atol=1e-6):
                    hints.append(f"The model ends with a {end.__name__} of {run.name!r}: pass the network without it.")
    if logits.isnan().any():
        hints.append("The output holds NaN: pass an example that the model can handle.")
    if isinstance(output, tuple | list) and len(output) > 1:
        hints.append(f"The first 2-D tensor of the returned {type(output).__name__} was taken for the logits.")
    return (
        f"find_head looks for the nn.Linear or 1×1 nn.Conv2d whose output is the model's output, "
        f"{tuple(logits.shape)}; none is. {_ran(runs)} {''.join(hint + ' ' for hint in hints[:2])}"
        f'Name the layer, find_head(model, example, name="…"), or pass its arrays, sirc.Head(W, b).'
    )


def _ran(runs: list[LayerRun]) -> str:
    if not runs:
        return "No linear layer ran (a call of F.linear and a scripted model show none)."
    layers = []
    for run in runs[-4:]:
        K, L = layer_size(run.layer)
        layers.append(f"{run.name!r} ({L} → {K}, on {run.shape})")
    return f"The last linear layers that ran: {', '.join(layers)}."
