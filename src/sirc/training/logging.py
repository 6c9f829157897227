"""Training logs: a line for each epoch, TensorBoard curves, a list of unreadable images."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from sirc.training.checkpoint import Epoch

_LISTED = 20  # unreadable images in one note


@contextmanager
def tensorboard(folder: Path, wanted: bool, done: int) -> Iterator[Callable[[Epoch], None]]:
    """Yield a function that logs an epoch to TensorBoard, or does nothing if that is not wanted."""
    if not wanted:
        yield lambda line: None
        return
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ValueError("`train.tensorboard` needs TensorBoard: pip install 'sirc[tensorboard]'.") from error
    with SummaryWriter(folder / "tensorboard", purge_step=done + 1) as writer:

        def log(line: Epoch) -> None:
            for key, value in asdict(line).items():
                if key != "epoch" and value is not None:
                    writer.add_scalar(key, value, line.epoch)

        yield log


def epoch_summary(line: Epoch) -> str:
    """Describe one epoch on one line."""
    validation = "" if line.validation_error is None else f", validation error {line.validation_error:.2%}"
    return (
        f"epoch {line.epoch}: loss {line.loss:.4f}, error {line.error:.2%}{validation}, learning rate {line.lr:g}, "
        f"{line.images_per_second:.0f} images/s"
    )


def unreadable_summary(lost: set[str]) -> str:
    """Count and list the images that could not be read."""
    listed = sorted(lost)[:_LISTED]
    more = [f"and {len(lost) - _LISTED} more"] if len(lost) > _LISTED else []
    count = "1 image" if len(lost) == 1 else f"{len(lost)} images"
    return "\n  ".join([f"{count} could not be read, and training goes on without:", *listed, *more])
