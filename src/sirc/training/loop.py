"""Training by the paper's recipe: SGD, stepped learning rate, the same global batch on any number of processes."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from sirc._utils import distributed
from sirc.data import Holding, Preprocess
from sirc.models import fingerprint, model_logits
from sirc.progress import SILENT, Progress
from sirc.training.augment import random_key
from sirc.training.batches import IGNORED, Batch, Feed, LoaderFeed, Order, Share, input_shape
from sirc.training.checkpoint import Epoch, Records
from sirc.training.cuda_graph import CapturedStep, captured
from sirc.training.device_batches import DeviceFeed
from sirc.training.logging import list_of, tensorboard, words
from sirc.training.preflight import check_labels, compiled

if TYPE_CHECKING:
    from sirc.data import ImageSet
    from sirc.training.recipe import Train


_FIRST = 0.01  # of the learning rate: where a warm-up begins
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
    holding: Holding | None = None,
) -> list[Epoch]:
    """Train `model` in place on `images` and return the history; the weights are in `folder`/model.safetensors.

    After every epoch `folder` gets a checkpoint and the history. Started again, the run goes on after the last whole
    epoch and ends with the weights of an uninterrupted one; a finished run only loads its weights. What is random in
    an epoch is seeded by (seed, epoch), and in an image by its index too, so nothing else has to be kept. Another
    recipe, other images or other starting weights are refused.

    Under `torchrun` or `accelerate launch` each process takes its share of every global batch. The gradient is that of
    the mean loss over the global batch, whatever the number of processes. They must share `folder`.

    With `cache = "device"`, images that are in `holding` already are not decoded again, and others stay in it.
    """
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=cpu, mixed_precision="no")
    share = Share(accelerator.process_index, accelerator.num_processes, accelerator.device)
    main = accelerator.is_main_process
    progress = progress if main else SILENT
    records = Records(folder, _recipe(model, images, recipe, preprocess, seed))
    with distributed.failing_together():
        finished = None if overwrite else records.finished(model)
    _check_agreement(model, finished)
    if finished is not None:
        progress.note(f"{name}: already trained, {records.weights}")
        return finished

    with distributed.failing_together():
        shape = input_shape(images, recipe.augment, preprocess)
        check_labels(model, shape, images, validation)
        optimizer = _optimizer(model, recipe, share.device)
        history = [] if overwrite else records.resume(model, optimizer)
    _check_agreement(model, history)
    if history:
        progress.note(f"{name}: going on after epoch {len(history)} of {recipe.epochs}")
    with distributed.failing_together():
        feed = _feed(images, validation, recipe, preprocess, seed, share, progress, holding)
    network = _compiled(model, feed.order, shape, recipe, progress) if recipe.compile else model
    loop = _Loop(accelerator, model, accelerator.prepare(network), optimizer, feed, recipe)
    if recipe.graph and not loop.records_graph:
        progress.note(f"{name}: `graph` is for one process on a GPU; each kernel is launched by itself")

    told: set[str] = set()
    with tensorboard(folder, recipe.tensorboard and main, len(history)) as log:
        if main:
            records.clear() if overwrite else records.sweep()
        for epoch in range(len(history), recipe.epochs):
            _seed_everything(random_key("network", seed, epoch, share.rank))
            began = time.perf_counter()
            means = _train_epoch(loop, epoch, f"{name}, epoch {epoch + 1}/{recipe.epochs}", progress)
            seconds = time.perf_counter() - began
            tested = _validate(loop)
            lost = _unreadable(feed)
            speed = feed.order.count / seconds
            line = Epoch(epoch + 1, learning_rate(recipe, epoch), *means, *tested, seconds, speed, len(lost))
            history.append(line)
            if lost - told:
                progress.note(f"{name}: {list_of(lost - told)}")
                told |= lost
            if main:
                records.save(model, optimizer, history)
                log(line)
            progress.note(f"{name}, {words(line)}")
    optimizer.zero_grad()
    if main:
        records.finish(model, history)
    accelerator.wait_for_everyone()
    return history


@dataclass(frozen=True)
class _Loop:
    """What every epoch works with; `network` is `model`, perhaps compiled, wrapped to average gradients."""

    accelerator: Any
    model: nn.Module
    network: nn.Module
    optimizer: torch.optim.Optimizer
    feed: Feed
    recipe: Train
    step: list[CapturedStep | None] = field(default_factory=list)
    """The training step as a graph, once that was tried; None where it is not possible."""

    @property
    def records_graph(self) -> bool:
        """Whether full batches are to go through a CUDA graph."""
        share = self.feed.order.share
        return self.recipe.graph and share.world == 1 and share.device.type == "cuda"

    def gradients(self, batch: Batch, progress: Progress) -> tuple[Tensor, Tensor]:
        """Leave the gradient of the global mean loss in the weights; the summed loss and the logits."""
        # Processes average their gradients, so each counts for its part of the global mean.
        scale = self.feed.order.share.world / batch.total
        if self.records_graph and not self.step and batch.total == self.feed.order.batch_size:
            self.step.append(
                captured(
                    lambda images: self.logits(self.network, images),
                    self.model,
                    batch,
                    scale,
                    channels_last=self.recipe.channels_last,
                    progress=progress,
                )
            )
        graph = self.step[0] if self.step else None
        if graph is not None and graph.takes(batch):
            return graph(batch)
        # What a graph has for gradients stays where it is; it is compiled for batches of its own size, too.
        self.optimizer.zero_grad(set_to_none=graph is None)
        logits = self.logits(self.network if graph is None else self.model, batch.images)
        loss = cross_entropy(logits, batch.labels, reduction="sum", ignore_index=IGNORED)
        self.accelerator.backward(loss * scale)
        return loss, logits

    def logits(self, network: nn.Module, images: Tensor) -> Tensor:
        """The network's logits in float32."""
        with _autocast(self.recipe, images.device)():
            return model_logits(network(_formatted(images, self.recipe))).float()


def _train_epoch(loop: _Loop, epoch: int, title: str, progress: Progress) -> tuple[float, float]:
    """Take the steps of one epoch; the mean loss and error over all processes."""
    feed, optimizer, recipe, share = loop.feed, loop.optimizer, loop.recipe, loop.feed.order.share
    sums = torch.zeros(3, dtype=torch.float64, device=share.device)
    reported = time.perf_counter()
    loop.network.train()
    with progress.task(title, feed.order.count) as task:
        for step, batch in enumerate(feed.epoch(epoch)):
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(recipe, epoch + step / len(feed.order))
            loss, logits = loop.gradients(batch, progress)
            optimizer.step()
            sums += _sums(loss, logits, batch.labels)
            facts = {}
            if time.perf_counter() - reported > _REPORT_SECONDS:
                facts["loss"] = float(loss.detach()) / max(1, len(batch.labels))
                reported = time.perf_counter()
            task.advance(batch.total, **facts)
    loss_mean, error = _means(loop.accelerator.reduce(sums, "sum"))
    if not math.isfinite(loss_mean):
        raise ValueError(
            f"the training loss must stay finite; it is {loss_mean} in epoch {epoch + 1} at a learning rate "
            f"of {optimizer.param_groups[0]['lr']:g}. Lower `train.lr`; the last checkpoint is kept."
        )
    return loss_mean, error


@torch.no_grad()
def _validate(loop: _Loop) -> tuple[float | None, float | None]:
    """Loss and error of the weights that are saved, on the validation images of all processes."""
    # Each process has seen other images, and batch norm keeps their moments; those of process 0 are saved.
    if distributed.world() > 1:
        buffers = dict(loop.model.named_buffers())
        for name, value in distributed.broadcast_tensors(buffers).items():
            buffers[name].copy_(value)
    loop.network.eval()
    sums = torch.zeros(3, dtype=torch.float64, device=loop.feed.order.share.device)
    for images, labels in loop.feed.validation():
        # Processes may have different numbers of batches, so none goes through the wrapper that waits for the others.
        logits = loop.logits(loop.model, images)
        sums += _sums(cross_entropy(logits, labels, reduction="sum"), logits, labels)
    sums = loop.accelerator.reduce(sums, "sum")
    return _means(sums) if sums[2] else (None, None)


def learning_rate(recipe: Train, epoch: float) -> float:
    """The learning rate at a point in training, in epochs; a pure function, so that it has no state to lose."""
    if recipe.schedule == "cosine":
        lr = recipe.lr * 0.5 * (1 + math.cos(math.pi * epoch / recipe.epochs))
    else:
        lr = recipe.lr * recipe.gamma ** sum(epoch >= milestone for milestone in recipe.milestones)
    if epoch < recipe.warmup:
        lr *= _FIRST + (1 - _FIRST) * epoch / recipe.warmup
    return lr


def _recipe(model: nn.Module, images: ImageSet, recipe: Train, preprocess: Preprocess, seed: int) -> dict[str, object]:
    """Everything that decides the weights."""
    return {
        **recipe.hyperparameters(),
        **{f"preprocess.{key}": value for key, value in asdict(preprocess).items()},
        "seed": seed,
        "training images": images.with_transform(None).fingerprint,
        "starting weights": fingerprint(model),
    }


def _optimizer(model: nn.Module, recipe: Train, device: torch.device) -> torch.optim.Optimizer:
    """Put the model on the device, without gradients of earlier use; the optimiser of its weights."""
    model.to(device)
    if recipe.channels_last:
        model.to(memory_format=torch.channels_last)
    model.zero_grad()
    return torch.optim.SGD(
        model.parameters(),
        lr=recipe.lr,
        momentum=recipe.momentum,
        weight_decay=recipe.weight_decay,
        nesterov=recipe.nesterov,
    )


def _check_agreement(model: nn.Module, history: list[Epoch] | None) -> None:
    """Refuse to start where processes found different checkpoints, or have different weights."""
    if distributed.world() == 1:
        return
    mine = json.dumps([-1 if history is None else len(history), fingerprint(model)])
    found = [json.loads(text) for text in distributed.gather_texts(mine)]
    for number, other in enumerate(found):
        if other != found[0]:
            done, others = (
                f"{max(epochs, 0)} epochs and weights {weights[:8]}" for epochs, weights in (found[0], other)
            )
            raise ValueError(
                f"all processes must start from the same checkpoint; process 0 has {done}, process {number} {others}. "
                "The folder of a run must be shared by all machines, and the model built with the same seed."
            )


def _feed(
    images: ImageSet,
    validation: ImageSet | None,
    recipe: Train,
    preprocess: Preprocess,
    seed: int,
    share: Share,
    progress: Progress,
    holding: Holding | None,
) -> Feed:
    order = Order(len(images), recipe.batch_size, seed, share)
    given = images, validation, order, recipe.augment, preprocess
    skip = recipe.on_error == "skip"
    if recipe.cache == "device":
        return DeviceFeed(*given, workers=recipe.workers, skip=skip, progress=progress, holding=holding)
    return LoaderFeed(*given, workers=recipe.workers, skip=skip)


def _compiled(model: nn.Module, order: Order, shape: tuple[int, ...], recipe: Train, progress: Progress) -> nn.Module:
    """Compile the model for the batches of this process."""
    device = order.share.device
    size = -(-min(order.batch_size, order.count) // order.share.world)
    blank = _formatted(torch.zeros(size, *shape, device=device), recipe)
    return compiled(model, blank, _autocast(recipe, device), progress)


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


def _seed_everything(key: int) -> None:
    from accelerate.utils import set_seed

    set_seed(key % 2**32)  # what NumPy takes


def _unreadable(feed: Feed) -> set[str]:
    """The images that any process could not read in this epoch."""
    texts = distributed.gather_texts(json.dumps(sorted(feed.unreadable)))
    return {why for text in texts for why in json.loads(text)}
