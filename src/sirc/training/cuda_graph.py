"""A training step recorded once as a CUDA graph: small networks wait for launches, and a graph is one launch."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from sirc.progress import Progress
from sirc.training.batches import IGNORED, Batch
from sirc.training.preflight import undone

_WARM_UP = 3  # steps that libraries take to choose their kernels, which cannot be recorded


@final
class CapturedStep:
    """Forward and backward of a full batch, replayed; the numbers are those of the same kernels run one by one.

    Gradients stay in the graph's own memory and are overwritten by each replay, so they must not be set to None.
    """

    def __init__(
        self, logits: Callable[[Tensor], Tensor], model: nn.Module, batch: Batch, scale: float, channels_last: bool
    ) -> None:
        layout = torch.channels_last if channels_last else torch.contiguous_format
        self.total = batch.total
        self.images = batch.images.clone(memory_format=layout)
        self.labels = batch.labels.clone()
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with undone(model), torch.cuda.stream(side):
            for _ in range(_WARM_UP):
                self._step(logits, scale)[0].backward()  # type: ignore[no-untyped-call]
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        model.zero_grad(set_to_none=True)
        with torch.cuda.graph(self.graph):
            scaled, self.loss, self.out = self._step(logits, scale)
            scaled.backward()  # type: ignore[no-untyped-call]

    def _step(self, logits: Callable[[Tensor], Tensor], scale: float) -> tuple[Tensor, Tensor, Tensor]:
        out = logits(self.images)
        loss = cross_entropy(out, self.labels, reduction="sum", ignore_index=IGNORED)
        return loss * scale, loss.detach(), out.detach()

    def takes(self, batch: Batch) -> bool:
        """Whether the graph is for batches of this size."""
        return batch.total == self.total and batch.images.shape == self.images.shape

    def __call__(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Leave the gradients of this batch; its loss and logits are good until the next."""
        self.images.copy_(batch.images)
        self.labels.copy_(batch.labels)
        self.graph.replay()
        return self.loss, self.out


def captured(
    logits: Callable[[Tensor], Tensor],
    model: nn.Module,
    batch: Batch,
    scale: float,
    *,
    channels_last: bool,
    progress: Progress,
) -> CapturedStep | None:
    """The step as a graph, or None, with a word why, where the network cannot be recorded."""
    try:
        return CapturedStep(logits, model, batch, scale, channels_last)
    except RuntimeError as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise
        model.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        why = (str(error).strip() or type(error).__name__).splitlines()[0]
        progress.note(f"a CUDA graph of the training step is not possible, each kernel is launched by itself: {why}")
        return None
