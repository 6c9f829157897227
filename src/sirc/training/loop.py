"""The training loop: SGD by the recipe, with the same result on any number of processes."""

from __future__ import annotations

import json
import math
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from sirc._utils import distributed
from sirc.data import DeviceCache, Preprocess
from sirc.models import fingerprint, model_logits
from sirc.progress import SILENT, Progress
from sirc.training.augment import random_key
from sirc.training.batches import IGNORED, Batch, Batches, LoaderBatches, Order, Process, input_shape
from sirc.training.checkpoint import Epoch, RunFiles
from sirc.training.cuda_graph import CapturedStep, capture_step
from sirc.training.device_batches import DeviceBatches
from sirc.training.logging import epoch_summary, tensorboard, unreadable_summary
from sirc.training.preflight import check_outputs, try_compile

if TYPE_CHECKING:
    from sirc.data import ImageSet
    from sirc.training.recipe import Train


_WARMUP_START = 0.01  # of the learning rate
_REPORT_SECONDS = 1.0  # between reports of the loss, since reading it waits for the device


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
    cache: DeviceCache | None = None,
) -> list[Epoch]:
    """Train `model` in place on `images` and return the history; write the weights to `folder`/model.safetensors.

    After every epoch a checkpoint and the history are written to `folder`. Started again, the run continues after the
    last complete epoch and ends with the weights of an uninterrupted run; a finished run only loads its weights. All
    randomness is seeded by (seed, epoch), for an image also by its index, so a checkpoint needs no random state. A
    checkpoint of another recipe, other images or other starting weights is refused.

    Under `torchrun` or `accelerate launch` each process takes its share of every global batch, and the gradient is that
    of the mean loss over the global batch. All processes must share `folder`.

    If the recipe has `cache = "device"`, images are taken from `cache`, and added to it if they are not there.
    """
    from accelerate import Accelerator
    from accelerate.utils import set_seed

    accelerator = Accelerator(cpu=cpu, mixed_precision="no")
    process = Process(accelerator.process_index, accelerator.num_processes, accelerator.device)
    main = accelerator.is_main_process
    progress = progress if main else SILENT
    files = RunFiles(folder, _recipe(model, images, recipe, preprocess, seed))
    with distributed.failing_together():
        finished = None if overwrite else files.finished(model)
    _check_agreement(model, finished)
    if finished is not None:
        progress.note(f"{name}: already trained, {files.weights}")
        return finished

    with distributed.failing_together():
        shape = input_shape(images, recipe.augment, preprocess)
        check_outputs(model, shape, images, validation)
        optimizer = _optimizer(model, recipe, process.device)
        history = [] if overwrite else files.resume(model, optimizer)
    _check_agreement(model, history)
    if history:
        progress.note(f"{name}: going on after epoch {len(history)} of {recipe.epochs}")
    with distributed.failing_together():
        order = Order(len(images), recipe.batch_size, seed, process)
        arguments = images, validation, order, recipe.augment, preprocess
        workers, skip = recipe.workers, recipe.on_error == "skip"
        batches = (
            DeviceBatches(*arguments, workers=workers, skip=skip, progress=progress, cache=cache)
            if recipe.cache == "device"
            else LoaderBatches(*arguments, workers=workers, skip=skip)
        )
    network = model
    if recipe.compile:
        size = -(-min(order.batch_size, order.count) // process.world)
        blank = _formatted(torch.zeros(size, *shape, device=process.device), recipe)
        network = try_compile(model, blank, lambda: _autocast(recipe, process.device), progress)
    loop = _Loop(accelerator, model, accelerator.prepare(network), optimizer, batches, recipe)
    if recipe.graph and not loop.uses_graph:
        progress.note(f"{name}: `graph` is for one process on a GPU; each kernel is launched by itself")

    reported: set[str] = set()
    with tensorboard(folder, recipe.tensorboard and main, len(history)) as log:
        if main:
            files.clear() if overwrite else files.sweep()
        for epoch in range(len(history), recipe.epochs):
            set_seed(random_key("network", seed, epoch, process.rank) % 2**32)  # NumPy takes 32 bits
            began = time.perf_counter()
            means = _train_epoch(loop, epoch, f"{name}, epoch {epoch + 1}/{recipe.epochs}", progress)
            seconds = time.perf_counter() - began
            tested = _validate(loop)
            texts = distributed.gather_texts(json.dumps(sorted(batches.unreadable)))
            unreadable = {why for text in texts for why in json.loads(text)}
            speed = order.count / seconds
            line = Epoch(epoch + 1, learning_rate(recipe, epoch), *means, *tested, seconds, speed, len(unreadable))
            history.append(line)
            if new := unreadable - reported:
                progress.note(f"{name}: {unreadable_summary(new)}")
                reported |= new
            if main:
                files.save(model, optimizer, history)
                log(line)
            progress.note(f"{name}, {epoch_summary(line)}")
    optimizer.zero_grad()
    if main:
        files.finish(model, history)
    accelerator.wait_for_everyone()
    return history


@dataclass(frozen=True)
class _Loop:
    """The objects that every epoch uses; `network` is `model`, perhaps compiled, wrapped to average gradients."""

    accelerator: Any
    model: nn.Module
    network: nn.Module
    optimizer: torch.optim.Optimizer
    batches: Batches
    recipe: Train
    step: list[CapturedStep | None] = field(default_factory=list)
    """The training step as a graph, once that was tried: None where it is not possible."""

    @property
    def uses_graph(self) -> bool:
        """True if full batches go through a CUDA graph."""
        process = self.batches.order.process
        return self.recipe.graph and process.world == 1 and process.device.type == "cuda"

    def gradients(self, batch: Batch, progress: Progress) -> tuple[Tensor, Tensor]:
        """Compute the gradient of the global mean loss; return the summed loss and the logits."""
        # Processes average their gradients, so each is scaled to its part of the global mean.
        scale = self.batches.order.process.world / batch.total
        if self.uses_graph and not self.step and batch.total == self.batches.order.batch_size:
            self.step.append(
                capture_step(
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
        # A graph keeps its gradients in place, and its network may be compiled for full batches only.
        self.optimizer.zero_grad(set_to_none=graph is None)
        logits = self.logits(self.network if graph is None else self.model, batch.images)
        loss = cross_entropy(logits, batch.labels, reduction="sum", ignore_index=IGNORED)
        self.accelerator.backward(loss * scale)
        return loss, logits

    def logits(self, network: nn.Module, images: Tensor) -> Tensor:
        """Run the network and return its logits in float32."""
        with _autocast(self.recipe, images.device):
            return model_logits(network(_formatted(images, self.recipe))).float()


def _train_epoch(loop: _Loop, epoch: int, title: str, progress: Progress) -> tuple[float, float]:
    """Take the steps of one epoch; return the mean loss and error over all processes."""
    batches, optimizer, recipe = loop.batches, loop.optimizer, loop.recipe
    sums = torch.zeros(3, dtype=torch.float64, device=batches.order.process.device)
    reported = time.perf_counter()
    loop.network.train()
    with progress.task(title, batches.order.count) as task:
        for step, batch in enumerate(batches.epoch(epoch)):
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(recipe, epoch + step / len(batches.order))
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
    """Compute the loss and error of the weights that are saved, on the validation images of all processes."""
    # Batch norm keeps moments of the images that each process has seen; those of process 0 are saved.
    if distributed.world() > 1:
        buffers = dict(loop.model.named_buffers())
        for name, value in distributed.broadcast_tensors(buffers).items():
            buffers[name].copy_(value)
    loop.network.eval()
    sums = torch.zeros(3, dtype=torch.float64, device=loop.batches.order.process.device)
    for images, labels in loop.batches.validation():
        # Not `loop.network`, which waits for the other processes: they may have fewer batches.
        logits = loop.logits(loop.model, images)
        sums += _sums(cross_entropy(logits, labels, reduction="sum"), logits, labels)
    sums = loop.accelerator.reduce(sums, "sum")
    return _means(sums) if sums[2] else (None, None)


def learning_rate(recipe: Train, epoch: float) -> float:
    """Compute the learning rate at a point in training, in epochs; a schedule without state needs no checkpoint."""
    if recipe.schedule == "cosine":
        lr = recipe.lr * 0.5 * (1 + math.cos(math.pi * epoch / recipe.epochs))
    else:
        lr = recipe.lr * recipe.gamma ** sum(epoch >= milestone for milestone in recipe.milestones)
    if epoch < recipe.warmup:
        lr *= _WARMUP_START + (1 - _WARMUP_START) * epoch / recipe.warmup
    return lr


def _recipe(model: nn.Module, images: ImageSet, recipe: Train, preprocess: Preprocess, seed: int) -> dict[str, object]:
    """Collect everything that decides the weights."""
    return {
        **recipe.hyperparameters(),
        **{f"preprocess.{key}": value for key, value in asdict(preprocess).items()},
        "seed": seed,
        "training images": images.with_transform(None).fingerprint,
        "starting weights": fingerprint(model),
    }


def _optimizer(model: nn.Module, recipe: Train, device: torch.device) -> torch.optim.Optimizer:
    """Move the model to the device, clear its gradients and make its optimiser."""
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
    """Refuse to start if the processes have different checkpoints or weights."""
    if distributed.world() == 1:
        return
    mine = json.dumps([-1 if history is None else len(history), fingerprint(model)])
    states = [json.loads(text) for text in distributed.gather_texts(mine)]
    for number, state in enumerate(states):
        if state != states[0]:
            first, other = (
                f"{max(epochs, 0)} epochs and weights {weights[:8]}" for epochs, weights in (states[0], state)
            )
            raise ValueError(
                f"all processes must start from the same checkpoint; process 0 has {first}, process {number} {other}. "
                "The folder of a run must be shared by all machines, and the model built with the same seed."
            )


def _formatted(images: Tensor, recipe: Train) -> Tensor:
    return images.contiguous(memory_format=torch.channels_last) if recipe.channels_last else images


def _autocast(recipe: Train, device: torch.device) -> AbstractContextManager[None]:
    return nullcontext() if recipe.precision == "fp32" else torch.autocast(device.type, torch.bfloat16)


def _sums(loss: Tensor, logits: Tensor, labels: Tensor) -> Tensor:
    counted = labels != IGNORED
    wrong = (logits.detach().argmax(-1) != labels) & counted
    return torch.stack([loss.detach().double(), wrong.sum().double(), counted.sum().double()])


def _means(sums: Tensor) -> tuple[float, float]:
    loss, wrong, count = sums.tolist()
    return loss / max(count, 1), wrong / max(count, 1)
