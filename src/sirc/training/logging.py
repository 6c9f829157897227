"""What a training run tells about itself: a line for each epoch, curves for TensorBoard, images it could not read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from sirc.training.checkpoint import Epoch

_NAMED = 20  # unreadable images that a note lists


@contextmanager
def tensorboard(folder: Path, wanted: bool, done: int) -> Iterator[Callable[[Epoch], None]]:
    """Somewhere to log epochs to, if it is wanted."""
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


def words(line: Epoch) -> str:
    """One epoch for the eye."""
    tested = "" if line.validation_error is None else f", validation error {line.validation_error:.2%}"
    return (
        f"epoch {line.epoch}: loss {line.loss:.4f}, error {line.error:.2%}{tested}, learning rate {line.lr:g}, "
        f"{line.images_per_second:.0f} images/s"
    )


def list_of(lost: set[str]) -> str:
    """The images that could not be read: how many, and which."""
    named = sorted(lost)[:_NAMED]
    more = [f"and {len(lost) - _NAMED} more"] if len(lost) > _NAMED else []
    count = "1 image" if len(lost) == 1 else f"{len(lost)} images"
    return "\n  ".join([f"{count} could not be read, and training goes on without:", *named, *more])
