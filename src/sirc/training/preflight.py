"""Checks before training: labels fit the network's outputs, and the network compiles."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import torch
from torch import Tensor, nn

from sirc._utils import distributed
from sirc._utils.text import first_line
from sirc.data import ImageSet
from sirc.models import call_model, evaluating, model_logits
from sirc.progress import Progress
from sirc.training.batches import required_labels

_BACKEND = "inductor"
_COMPILER_MODULES = ("torch._dynamo", "torch._inductor", "triton")
_COMPILER_WORDS = re.compile(r"compiler|torch\.compile|dynamo|inductor|triton", re.IGNORECASE)


def check_num_outputs(model: nn.Module, shape: tuple[int, ...], *sets: ImageSet | None) -> None:
    """Refuse labels that the model has no output for; two blank images of this shape show how many it has."""
    labelled = [(images, required_labels(images)) for images in sets if images is not None]
    with evaluating(model), _random_state_restored(model):
        count = model_logits(call_model(model, torch.zeros(2, *shape))).shape[1]
    for images, labels in labelled:
        refuse_labels(images, labels, count, f"the model has {count} outputs")


def refuse_labels(images: ImageSet, labels: Tensor, count: int, why: str) -> None:
    """Refuse labels outside 0…count−1."""
    outside = (labels < 0) | (labels >= count)
    if not outside.any():
        return
    row, top = int(outside.nonzero()[0]), int(labels.max())
    advice = f"Set `model.num_classes = {top + 1}`" if top >= count else "Number the classes from 0"
    raise ValueError(
        f"the labels of `{images.name}` must be in 0…{count - 1}, as {why}; got {int(labels[row])} for "
        f"{images.where(row)}, and labels up to {top}. {advice}, or use other images."
    )


def try_compile(
    model: nn.Module, images: Tensor, autocast: Callable[[], AbstractContextManager[None]], progress: Progress
) -> nn.Module:
    """Compile the model and try one step with these images, which is undone.

    If some process cannot compile, every process trains without: that only changes the speed.
    """
    network, why = model, ""
    with distributed.failing_together():
        try:
            network = torch.compile(model, backend=_BACKEND)  # type: ignore[assignment]
            with step_undone(model), autocast():
                loss = model_logits(network(images)).float().sum()
                loss.backward()  # type: ignore[no-untyped-call]
        except Exception as error:
            compiler = any(kind.__module__.startswith(_COMPILER_MODULES) for kind in type(error).__mro__)
            if not (compiler or (isinstance(error, RuntimeError | ImportError) and _COMPILER_WORDS.search(str(error)))):
                raise  # the fault is the model's or its input's
            why = first_line(error)
    if reasons := [text for text in distributed.gather_texts(why) if text]:
        progress.note(f"torch.compile is not usable here, training runs without it: {reasons[0]}")
        return model
    return network


@contextmanager
def step_undone(model: nn.Module) -> Iterator[None]:
    """Allow a trial step inside, and undo what it changes: gradients, buffers, random numbers."""
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    model.train()
    try:
        with _random_state_restored(model):
            yield
    finally:
        with torch.no_grad():
            for buffer, value in buffers:
                buffer.copy_(value)
        model.zero_grad(set_to_none=True)


def _random_state_restored(model: nn.Module) -> AbstractContextManager[None]:
    devices = {parameter.device for parameter in model.parameters() if parameter.device.type == "cuda"}
    return torch.random.fork_rng(list(devices))
