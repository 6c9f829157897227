"""Runner: a model and a hook for its features; turns a batch into logits, features and labels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import pairwise
from typing import final

import torch
from torch import Tensor, nn

from sirc._utils.checks import dtype_name
from sirc._utils.graphs import Repeats, prevents_graphs
from sirc._utils.precision import Precision
from sirc._utils.text import quoted
from sirc.data import Reader
from sirc.extraction.streams import Columns
from sirc.models import (
    LABEL_KEYS,
    FeatureHook,
    call_model,
    evaluating,
    features_at,
    map_inputs,
    model_logits,
    rows_of,
)
from sirc.outputs import Head, OutputStore

_CPU_PIXELS = 400_000
"""The pixels that a CPU gets at once: eight images of 224 × 224, but at least one image for each thread. For larger
batches the system allocates the activations of every layer anew, which costs more time than the arithmetic."""


@final
@dataclass
class Runner:
    """Runs a model on a batch and returns logits, features and labels in the dtype to store."""

    model: nn.Module
    head: Head | str | None
    features: bool
    labels: bool
    precision: Precision
    channels_last: bool
    dtype: torch.dtype | None

    def __post_init__(self) -> None:
        if isinstance(self.head, Head) and not self.head.name:  # arrays: their layer is found later
            self.head = None
        if self.features and self.head is not None:
            FeatureHook().attach(self.model, self.head).close()  # refuses a wrong layer before anything is written
        self._hook: FeatureHook | None = None
        self._repeats: Repeats | None = None

    @property
    def device(self) -> torch.device:
        """The device of the model's parameters."""
        first = next(self.model.parameters(), None)
        return torch.device("cpu") if first is None else first.device

    def find_head(self, reader: Reader) -> None:
        """Find the head, if it is not known, with the first items that can be read."""
        if self.features and self.head is None and (batch := reader.first(2)) is not None:
            with self.running():
                self._head_for(batch)

    def _head_for(self, batch: object) -> Head | str:
        if self.head is None:
            self.head = features_at(self.model, rows_of(self._formatted(batch), slice(2)))
        return self.head

    def how(self) -> str:
        """The settings, besides model and data, that decide the outputs; the store records them."""
        dtype = "as computed" if self.dtype is None else dtype_name(self.dtype)
        layer = self.head.name if isinstance(self.head, Head) else self.head
        features = f"features of {quoted(layer)}" if self.features else "no features"
        return f"{features}, {'labels' if self.labels else 'no labels'}, {self.precision}, stored {dtype}"

    @contextmanager
    def running(self) -> Iterator[None]:
        """Set evaluation mode, no gradients and the precision, and restore all at the end."""
        autocast = torch.autocast(self.device.type, torch.bfloat16) if self.precision == "bf16" else nullcontext()
        place = torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext()
        with evaluating(self.model), place, autocast, ExitStack() as self._hooks:
            self._hook = None
            # A CUDA graph reads the half-precision weights that autocast caches until the end.
            records = self.device.type == "cuda" and not prevents_graphs(self.model)
            self._repeats = Repeats(third_party=True) if records else None
            self._hooks.callback(setattr, self, "_repeats", None)
            yield

    def __call__(self, batch: object) -> Columns:
        """The logits of a batch and, if wanted, its features and labels."""
        batch = self._formatted(batch)
        if self.features and self._hook is None:
            hook = FeatureHook()
            self._hooks.enter_context(hook.attach(self.model, self._head_for(batch)))
            hook.open()
            self._hook = hook
        columns = dict(zip(("logits", "features"), self._forward(batch), strict=False))
        labels = _labels(batch, len(columns["logits"])) if self.labels else None
        if self.dtype is not None:
            columns = {name: x.to(self.dtype) for name, x in columns.items()}
        return columns if labels is None else {**columns, "labels": labels}

    def _forward(self, batch: object) -> tuple[Tensor, ...]:
        """Logits, and features if they are wanted."""
        images = _only_input(batch)
        if not isinstance(images, Tensor):
            return self._run(batch)
        if self._repeats is not None and images.is_cuda and not isinstance(batch, Mapping):
            return self._repeats(self._run, images)
        pixels = images.shape[-1] * images.shape[-2] if images.ndim == 4 and images.device.type == "cpu" else 0
        rows = max(_CPU_PIXELS // pixels, torch.get_num_threads()) if pixels else len(images)
        if len(images) <= rows:
            return self._run(batch)
        # Cut evenly, so that no image is left alone: some networks squeeze a batch of one.
        steps = -(-len(images) // rows)
        ends = [len(images) * i // steps for i in range(steps + 1)]
        parts = [self._run(rows_of(batch, slice(*step))) for step in pairwise(ends)]
        return tuple(torch.cat(some) for some in zip(*parts, strict=True))

    def _run(self, batch: object) -> tuple[Tensor, ...]:
        logits = model_logits(call_model(self.model, batch))
        if self._hook is None:
            return (logits,)
        z = self._hook.take()
        if self.precision == "bf16" and self._hook.is_last:
            with torch.autocast(z.device.type, enabled=False):  # in bfloat16, confident samples would tie
                logits = self._hook.exact_logits(z)
        return logits, z

    def _formatted(self, batch: object) -> object:
        """Give the images of a batch the memory format to run in."""
        if not self.channels_last:
            return batch

        def formatted(value: object) -> object:
            if isinstance(value, Tensor) and value.ndim == 4:
                return value.contiguous(memory_format=torch.channels_last)
            return value

        return map_inputs(batch, formatted)


def _only_input(batch: object) -> object:
    """The inputs of a batch; None for a dict with several, since some may not have a row for each sample."""
    if isinstance(batch, Mapping):
        inputs = [value for key, value in batch.items() if key not in LABEL_KEYS]
        return inputs[0] if len(inputs) == 1 else None
    return batch[0] if isinstance(batch, tuple | list) and batch else batch


def ran_in_half(store: OutputStore) -> bool:
    """Whether the network of a store ran in bfloat16, as `Runner.how` recorded; the stored dtype may differ."""
    return ", bf16, stored " in (store.how or "")


def _labels(batch: object, rows: int) -> Tensor | None:
    """The labels of (inputs, labels) or of a dict, if it has any."""
    values: object = None
    if isinstance(batch, tuple | list):
        values = batch[1] if len(batch) > 1 else None
    elif isinstance(batch, Mapping):
        values = next((batch[key] for key in sorted(LABEL_KEYS) if key in batch), None)
    if values is None:
        return None
    try:
        labels = torch.as_tensor(values)
        got = f"{labels.dtype} of shape {tuple(labels.shape)}"
        fit = labels.shape == (rows,) and not labels.is_floating_point() and not labels.is_complex()
    except (TypeError, ValueError, RuntimeError):  # such as the paths of the images
        got, fit = quoted(values), False
    if not fit:
        raise ValueError(
            f"`labels` must be one whole number for each of the {rows} inputs; got {got}. Pass `labels=False` if these "
            "are not class labels."
        )
    return labels
