"""Training by the paper's recipe: SGD, stepped learning rate, the same global batch on any number of processes."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from sirc._calls import model_logits, unwrap
from sirc._checkpoint import Epoch, Records
from sirc._feeding import IGNORED, DeviceFeed, Feed, LoaderFeed, Order, Share, required_labels
from sirc.augment import random_key
from sirc.models import fingerprint
from sirc.preprocess import Preprocess
from sirc.progress import SILENT, Progress

if TYPE_CHECKING:
    from sirc.data.base import ImageSet
    from sirc.experiment import Train

_REPORT_SECONDS = 1.0  # reading the loss waits for the device


def train(
    model: nn.Module,
    images: ImageSet,
    recipe: Train,
    folder: Path,
    *,
    seed: int,
    preprocess: Preprocess,
    validation: ImageSet | None = None,
    cpu: bool = False,
    overwrite: bool = False,
    progress: Progress = SILENT,
    name: str = "train",
) -> list[Epoch]:
    """Train `model` in place on `images` and return the history; the weights are in `folder`/model.safetensors.

    After every epoch `folder` gets a checkpoint and the history. Started again, the run goes on after the last whole
    epoch and ends with the weights of an uninterrupted one; a finished run only loads its weights. What is random in
    an epoch is seeded by (seed, epoch), and in an image by its index too, so nothing else has to be kept. Another
    recipe, other images or other starting weights are refused.

    Under `torchrun` or `accelerate launch` each process takes its share of every global batch. The gradient is that of
    the mean loss over the global batch, whatever the number of processes.
    """
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=cpu, mixed_precision="no")
    share = Share(accelerator.process_index, accelerator.num_processes, accelerator.device)
    main = accelerator.is_main_process
    progress = progress if main else SILENT
    check_labels(model, images)
    records = Records(folder, _recipe(model, images, recipe, preprocess, seed))
    if overwrite:
        if main:
            records.clear()
        accelerator.wait_for_everyone()
    history = records.finished(model)
    if history is not None:
        progress.note(f"{name}: already trained, {records.weights}")
        return history

    model.to(share.device)
    if recipe.channels_last:
        model.to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(
        model.parameters(),
        lr=recipe.lr,
        momentum=recipe.momentum,
        weight_decay=recipe.weight_decay,
        nesterov=recipe.nesterov,
    )
    history = records.resume(model, optimizer)
    if history:
        progress.note(f"{name}: going on after epoch {len(history)} of {recipe.epochs}")
    feed = _feed(images, validation, recipe, preprocess, seed, share, progress)
    network = accelerator.prepare(_compiled(model, feed, recipe, progress) if recipe.compile else model)
    autocast = _autocast(recipe, share.device)

    with _tensorboard(folder, recipe.tensorboard and main, len(history)) as log:
        for epoch in range(len(history), recipe.epochs):
            _seed_everything(random_key(seed, epoch, 2, share.rank))
            began = time.perf_counter()
            sums = torch.zeros(3, dtype=torch.float64, device=share.device)
            network.train()
            with progress.task(f"{name}, epoch {epoch + 1}/{recipe.epochs}", feed.order.count) as task:
                reported = began
                for step, batch in enumerate(feed.epoch(epoch)):
                    _set_lr(optimizer, learning_rate(recipe, epoch + step / len(feed.order)))
                    with autocast():
                        logits = model_logits(network(_formatted(batch.images, recipe)))
                    loss = cross_entropy(logits.float(), batch.labels, reduction="sum", ignore_index=IGNORED)
                    # Processes average their gradients, so each counts for its part of the global mean.
                    accelerator.backward(loss * (share.world / batch.total))
                    optimizer.step()
                    optimizer.zero_grad()
                    sums += _sums(loss, logits, batch.labels)
                    facts = {}
                    if time.perf_counter() - reported > _REPORT_SECONDS:
                        facts["loss"] = float(loss.detach()) / max(1, len(batch.labels))
                        reported = time.perf_counter()
                    task.advance(batch.total, **facts)
            seconds = time.perf_counter() - began
            loss_mean, error = _means(accelerator.reduce(sums, "sum"))
            if not math.isfinite(loss_mean):
                raise ValueError(
                    f"the training loss must stay finite; it is {loss_mean} in epoch {epoch + 1} at a learning rate "
                    f"of {optimizer.param_groups[0]['lr']:g}. Lower `train.lr`; the last checkpoint is kept."
                )
            tested = _validate(network, feed, recipe, autocast, accelerator)
            speed = feed.order.count / seconds
            lr = learning_rate(recipe, epoch)
            history.append(Epoch(epoch + 1, lr, loss_mean, error, *tested, seconds, speed))
            if main:
                records.save(model, optimizer, history)
                log(history[-1])
            progress.note(f"{name}, {_words(history[-1])}")
    if isinstance(feed, LoaderFeed) and feed.unreadable:
        listed = "".join(f"\n  {words}" for words in sorted(feed.unreadable)[:20])
        progress.note(f"{len(feed.unreadable)} training images could not be read and did not count:{listed}")
    if main:
        records.finish(model, history)
    accelerator.wait_for_everyone()
    return history


def learning_rate(recipe: Train, epoch: float) -> float:
    """The learning rate at a point in training, in epochs; a pure function, so that it has no state to lose."""
    if recipe.schedule == "cosine":
        return recipe.lr * 0.5 * (1 + math.cos(math.pi * epoch / recipe.epochs))
    return recipe.lr * recipe.gamma ** sum(epoch >= milestone for milestone in recipe.milestones)


def check_labels(model: nn.Module, images: ImageSet) -> None:
    """Refuse labels that the last layer of the model has no output for."""
    top = int(required_labels(images).max())
    widths = [m.out_features for m in model.modules() if isinstance(m, nn.Linear)]
    if widths and top >= max(widths):
        raise ValueError(
            f"the model must have an output for each class; `{images.name}` has labels up to {top}, and no linear "
            f"layer has more than {max(widths)} outputs. Set `model.num_classes = {top + 1}`."
        )


def _recipe(model: nn.Module, images: ImageSet, recipe: Train, preprocess: Preprocess, seed: int) -> dict[str, object]:
    """Everything that decides the weights."""
    return {
        **recipe.decisive(),
        **{f"preprocess.{key}": value for key, value in asdict(preprocess).items()},
        "seed": seed,
        "training images": images.with_transform(None).fingerprint,
        "starting weights": fingerprint(model),
    }


def _feed(
    images: ImageSet,
    validation: ImageSet | None,
    recipe: Train,
    preprocess: Preprocess,
    seed: int,
    share: Share,
    progress: Progress,
) -> Feed:
    order = Order(len(images), recipe.batch_size, seed, share)
    if recipe.cache == "device":
        return DeviceFeed(
            images, validation, order, recipe.augment, preprocess, workers=recipe.workers, progress=progress
        )
    skip = recipe.on_error == "skip"
    return LoaderFeed(images, validation, order, recipe.augment, preprocess, workers=recipe.workers, skip=skip)


def _formatted(images: Tensor, recipe: Train) -> Tensor:
    return images.contiguous(memory_format=torch.channels_last) if recipe.channels_last else images


def _autocast(recipe: Train, device: torch.device) -> Callable[[], AbstractContextManager[None]]:
    if recipe.precision == "fp32":
        return nullcontext
    return lambda: torch.autocast(device.type, torch.bfloat16)


def _sums(loss: Tensor, logits: Tensor, labels: Tensor) -> Tensor:
    counted = labels != IGNORED
    wrong = (logits.detach().argmax(-1) != labels) & counted
    return torch.stack([loss.detach().double(), wrong.sum().double(), counted.sum().double()])


def _means(sums: Tensor) -> tuple[float, float]:
    loss, wrong, count = sums.tolist()
    return loss / max(count, 1), wrong / max(count, 1)


@torch.no_grad()
def _validate(
    network: nn.Module,
    feed: Feed,
    recipe: Train,
    autocast: Callable[[], AbstractContextManager[None]],
    accelerator: Any,
) -> tuple[float | None, float | None]:
    """Loss and error on the validation images of all processes."""
    network.eval()
    sums = torch.zeros(3, dtype=torch.float64, device=accelerator.device)
    # Processes may have different numbers of batches here, so none goes through the wrapper that waits for the others.
    model = unwrap(network)
    for images, labels in feed.validation():
        with autocast():
            logits = model_logits(model(_formatted(images, recipe)))
        sums += _sums(cross_entropy(logits.float(), labels, reduction="sum"), logits, labels)
    sums = accelerator.reduce(sums, "sum")
    return _means(sums) if sums[2] else (None, None)


def _set_lr(optimizer: torch.optim.Optimizer, lr: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = lr


def _seed_everything(key: int) -> None:
    from accelerate.utils import set_seed

    set_seed(key % 2**32)  # what NumPy takes


def _compiled(model: nn.Module, feed: Feed, recipe: Train, progress: Progress) -> nn.Module:
    """The model compiled; as it is where there is no compiler, which changes the speed alone."""
    try:
        compiled = torch.compile(model)
        images = _formatted(next(iter(feed.epoch(0))).images, recipe)
        with torch.no_grad(), _autocast(recipe, images.device)():
            model.eval()
            compiled(images)
    except Exception as error:
        progress.note(f"torch.compile is not usable here, training runs without it: {str(error).splitlines()[0]}")
        return model
    return compiled  # type: ignore[return-value]


@contextmanager
def _tensorboard(folder: Path, wanted: bool, done: int) -> Iterator[Callable[[Epoch], None]]:
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


def _words(line: Epoch) -> str:
    tested = "" if line.validation_error is None else f", validation error {line.validation_error:.2%}"
    return (
        f"epoch {line.epoch}: loss {line.loss:.4f}, error {line.error:.2%}{tested}, learning rate {line.lr:g}, "
        f"{line.images_per_second:.0f} images/s"
    )
