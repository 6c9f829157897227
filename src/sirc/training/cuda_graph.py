"""CUDA graph of a training step: one launch in place of many, for small networks."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from sirc.progress import Progress
from sirc.training.batches import IGNORED, Batch
from sirc.training.preflight import step_undone

_WARM_UP = 3  # steps in which libraries choose their kernels; such choices cannot be captured


@final
class CapturedStep:
    """Forward and backward pass of a full batch, replayed with the same results as the kernels run one by one.

    Gradients stay in the graph's memory, and each replay overwrites them, so they must not be set to None.
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
        with step_undone(model), torch.cuda.stream(side):
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
        """Check that the graph is for batches of this size."""
        return batch.total == self.total and batch.images.shape == self.images.shape

    def __call__(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Compute the gradients of this batch; the loss and logits returned are valid until the next."""
        self.images.copy_(batch.images)
        self.labels.copy_(batch.labels)
        self.graph.replay()
        return self.loss, self.out


def capture_step(
    logits: Callable[[Tensor], Tensor],
    model: nn.Module,
    batch: Batch,
    scale: float,
    *,
    channels_last: bool,
    progress: Progress,
) -> CapturedStep | None:
    """Capture the step as a graph; None, with a note that says why, where that is not possible."""
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
