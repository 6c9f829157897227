"""What is tried on a network before it is trained: how many classes it tells apart, and whether it compiles."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import torch
from torch import Tensor, nn

from sirc._utils import distributed
from sirc.data import ImageSet
from sirc.models import call_model, evaluating, model_logits
from sirc.progress import Progress
from sirc.training.batches import required_labels

_BACKEND = "inductor"
_COMPILERS = ("torch._dynamo", "torch._inductor", "triton")
_OF_A_COMPILER = re.compile(r"compiler|torch\.compile|dynamo|inductor|triton", re.IGNORECASE)


def check_labels(model: nn.Module, shape: tuple[int, ...], *sets: ImageSet | None) -> None:
    """Refuse labels that the model has no output for; two blank images of this shape tell how many it has."""
    given = [(images, required_labels(images)) for images in sets if images is not None]
    with evaluating(model), _random_state_kept(model):
        count = model_logits(call_model(model, torch.zeros(2, *shape))).shape[1]
    for images, labels in given:
        refuse_labels(images, labels, count, f"the model has {count} outputs")


def refuse_labels(images: ImageSet, labels: Tensor, count: int, why: str) -> None:
    """Refuse labels that are none of `count` outputs."""
    outside = (labels < 0) | (labels >= count)
    if not outside.any():
        return
    row, top = int(outside.nonzero()[0]), int(labels.max())
    way_out = f"Set `model.num_classes = {top + 1}`" if top >= count else "Number the classes from 0"
    raise ValueError(
        f"the labels of `{images.name}` must be in 0…{count - 1}, as {why}; got {int(labels[row])} for "
        f"{images.where(row)}, and labels up to {top}. {way_out}, or use other images."
    )


def compiled(
    model: nn.Module, images: Tensor, autocast: Callable[[], AbstractContextManager[None]], progress: Progress
) -> nn.Module:
    """The model compiled; as it is where a process cannot compile it, which changes the speed alone.

    One step is tried with these images, and undone.
    """
    network, why = model, ""
    with distributed.failing_together():
        try:
            network = torch.compile(model, backend=_BACKEND)  # type: ignore[assignment]
            with undone(model), autocast():
                loss = model_logits(network(images)).float().sum()
                loss.backward()  # type: ignore[no-untyped-call]
        except Exception as error:
            if not _is_of_a_compiler(error):
                raise
            why = (str(error).strip() or type(error).__name__).splitlines()[0]
    if found := [words for words in distributed.gather_texts(why) if words]:
        progress.note(f"torch.compile is not usable here, training runs without it: {found[0]}")
        return model
    return network


def _is_of_a_compiler(error: Exception) -> bool:
    """Whether compiling failed, and not the model or its input."""
    if any(kind.__module__.startswith(_COMPILERS) for kind in type(error).__mro__):
        return True
    return isinstance(error, RuntimeError | ImportError) and bool(_OF_A_COMPILER.search(str(error)))


@contextmanager
def undone(model: nn.Module) -> Iterator[None]:
    """Train, and put back what a step changes: gradients, buffers, training flags, random numbers."""
    flags = [(module, module.training) for module in model.modules()]
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    gradients = [(parameter, parameter.grad) for parameter in model.parameters()]
    for parameter, _ in gradients:
        parameter.grad = None
    model.train()
    try:
        with _random_state_kept(model):
            yield
    finally:
        for module, training in flags:
            module.training = training
        with torch.no_grad():
            for buffer, value in buffers:
                buffer.copy_(value)
        for parameter, gradient in gradients:
            parameter.grad = gradient


@contextmanager
def _random_state_kept(model: nn.Module) -> Iterator[None]:
    """Draw from torch's random numbers, and put their state back."""
    devices = {parameter.device for parameter in model.parameters() if parameter.device.type == "cuda"}
    with torch.random.fork_rng(list(devices)):
        yield
