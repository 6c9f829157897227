"""The training loop: SGD by the recipe, with the same result on any number of processes."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from sirc._utils import distributed
from sirc._utils.graphs import record
from sirc._utils.imports import needing
from sirc._utils.text import first_line, with_lines
from sirc.data import DeviceCache, Preprocess
from sirc.models import fingerprint, model_logits
from sirc.progress import SILENT, Progress
from sirc.training.augment import random_key
from sirc.training.batches import IGNORED, Batch, DeviceBatches, LoaderBatches, Order, input_shape
from sirc.training.checkpoint import Epoch, RunFiles
from sirc.training.preflight import check_num_outputs, step_undone, try_compile

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

    from sirc.data import ImageSet
    from sirc.training.recipe import Train


_WARMUP_START = 0.01  # of the learning rate
_WARM_UP = 3  # steps before one is recorded
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
    validated_on: str = "validation",
    cpu: bool = False,
    overwrite: bool = False,
    progress: Progress = SILENT,
    name: str = "train",
    cache: DeviceCache | None = None,
) -> list[Epoch]:
    """Train `model` in place on `images` and return the history; write the weights to `folder`/model.safetensors.

    After every epoch a checkpoint and the history are written to `folder`. Started again, the run continues after the
    last complete epoch and ends with the weights of an uninterrupted run; a finished run only loads its weights. All
    randomness is seeded by (seed, epoch), and for an image by its index too, so a checkpoint needs no random state. A
    checkpoint of another recipe, other images or other starting weights is refused.

    Under `torchrun` or `accelerate launch` each process takes its share of every global batch, and the gradient is that
    of the mean loss over the global batch. All processes must share `folder`.

    `validated_on` is the name of the validation images in notes. If the recipe has `cache = "device"`, images are read
    from `cache`, which decodes them on first use.
    """
    files = RunFiles(folder, _settings(model, images, recipe, seed, preprocess))
    with distributed.failing_together():
        finished = None if overwrite else files.finished(model)
    _check_agreement(model, finished)
    if finished is not None:
        if distributed.is_main():
            progress.note(f"{name}: already trained, {files.weights}")
        return finished

    with needing("training", "accelerate"):
        from accelerate import Accelerator

    accelerator = Accelerator(cpu=cpu, mixed_precision="no")
    main = accelerator.is_main_process
    progress = progress if main else SILENT
    with distributed.failing_together():
        shape = input_shape(images, recipe.augment, preprocess)
        check_num_outputs(model, shape, images, validation)
        optimizer = _prepare(model, recipe, accelerator.device)
        history = [] if overwrite else files.resume(model, optimizer)
    _check_agreement(model, history)
    if history:
        progress.note(f"{name}: resuming after epoch {len(history)} of {recipe.epochs}")
    with distributed.failing_together():
        share = accelerator.process_index, accelerator.num_processes
        order = Order(len(images), recipe.batch_size, seed, *share, accelerator.device)
        arguments = images, validation, order, recipe, preprocess
        on_device = recipe.cache == "device"
        batches = DeviceBatches(*arguments, progress, cache) if on_device else LoaderBatches(*arguments)
    network = _compiled(model, shape, order, recipe, progress) if recipe.compile else model
    loop = _Loop(accelerator, model, accelerator.prepare(network), optimizer, batches, recipe, progress, name)
    if recipe.graph and not loop.uses_graph:
        progress.note(f"{name}: `graph` is for one process on a GPU; training runs without a CUDA graph")

    tensorboard = _tensorboard(folder, len(history)) if recipe.tensorboard and main else None
    with tensorboard or nullcontext():
        if main and overwrite:
            files.delete()
        for epoch in range(len(history), recipe.epochs):
            line = loop.epoch(epoch)
            history.append(line)
            if main:
                files.save(model, optimizer, history)
            if tensorboard is not None:
                for key, value in asdict(line).items():
                    if key != "epoch" and value is not None:
                        tensorboard.add_scalar(key, value, line.epoch)
            progress.note(f"{name}, {_epoch_text(line, validated_on)}")
    optimizer.zero_grad()
    if main:
        files.finish(model, history)
    accelerator.wait_for_everyone()
    return history


def _settings(
    model: nn.Module, images: ImageSet, recipe: Train, seed: int, preprocess: Preprocess
) -> dict[str, object]:
    """Everything that decides the weights of a run."""
    return {
        **recipe.hyperparameters(),
        **{f"preprocess.{key}": value for key, value in asdict(preprocess).items()},
        "seed": seed,
        "training images": images.with_transform(None).fingerprint,
        "starting weights": fingerprint(model),
    }


def _prepare(model: nn.Module, recipe: Train, device: torch.device) -> torch.optim.Optimizer:
    """Move the model to the device, drop its gradients, and make its optimiser."""
    model.to(device)
    if recipe.channels_last:
        model.to(memory_format=torch.channels_last)
    model.zero_grad()
    options = {name: getattr(recipe, name) for name in ("lr", "momentum", "weight_decay", "nesterov")}
    return torch.optim.SGD(model.parameters(), **options)


def _compiled(model: nn.Module, shape: tuple[int, ...], order: Order, recipe: Train, progress: Progress) -> nn.Module:
    """Compile the model for full batches, if that is possible here."""
    size = -(-min(order.batch_size, order.count) // order.world)
    blank = _formatted(torch.zeros(size, *shape, device=order.device), recipe)
    return try_compile(model, blank, lambda: _autocast(recipe, order.device), progress)


@dataclass
class _Loop:
    """The loop over batches; `network` is `model`, compiled if the recipe says so and wrapped to average gradients."""

    accelerator: Any
    model: nn.Module
    network: nn.Module
    optimizer: torch.optim.Optimizer
    batches: LoaderBatches | DeviceBatches
    recipe: Train
    progress: Progress
    name: str
    _graph: CapturedStep | None = None
    _graph_tried: bool = False
    _reported: set[str] = field(default_factory=set)
    """The unreadable images that earlier notes named."""

    @property
    def uses_graph(self) -> bool:
        """True if full batches go through a CUDA graph."""
        order = self.batches.order
        return self.recipe.graph and order.world == 1 and order.device.type == "cuda"

    def epoch(self, epoch: int) -> Epoch:
        """Train for one epoch and validate; note images that could not be read and were not noted before."""
        from accelerate.utils import set_seed

        order, name = self.batches.order, self.name
        set_seed(random_key("network", order.seed, epoch, order.rank) % 2**32)  # NumPy takes 32 bits
        began = time.perf_counter()
        means = self._train(epoch)
        seconds = time.perf_counter() - began
        tested = self._validate()
        texts = distributed.gather_texts(json.dumps(sorted(self.batches.unreadable)))
        unreadable = {why for text in texts for why in json.loads(text)}
        if new := sorted(unreadable - self._reported):
            count = f"{len(new)} image{'s' if len(new) > 1 else ''}"
            self.progress.note(with_lines(f"{name}: {count} could not be read, and training goes on without:", new))
            self._reported |= unreadable
        lr, speed = learning_rate(self.recipe, epoch), order.count / seconds
        return Epoch(epoch + 1, lr, *means, *tested, seconds, speed, len(unreadable))

    def _train(self, epoch: int) -> tuple[float, float]:
        """Train for one epoch; return the mean loss and error over all processes."""
        order, optimizer, recipe = self.batches.order, self.optimizer, self.recipe
        sums = torch.zeros(3, dtype=torch.float64, device=order.device)
        reported = time.perf_counter()
        self.network.train()
        with self.progress.task(f"{self.name}, epoch {epoch + 1}/{recipe.epochs}", order.count) as task:
            for step, batch in enumerate(self.batches.epoch(epoch)):
                for group in optimizer.param_groups:
                    group["lr"] = learning_rate(recipe, epoch + step / len(order))
                loss, logits = self._gradients(batch)
                optimizer.step()
                sums += _sums(loss, logits, batch.labels)
                facts = {}
                if time.perf_counter() - reported > _REPORT_SECONDS:
                    facts["loss"] = float(loss) / max(1, len(batch.labels))
                    reported = time.perf_counter()
                task.advance(batch.total, **facts)
        mean, error = _means(self.accelerator.reduce(sums, "sum"))
        if not math.isfinite(mean):
            raise ValueError(
                f"the training loss must stay finite; it is {mean} in epoch {epoch + 1} at a learning rate "
                f"of {optimizer.param_groups[0]['lr']:g}. Lower `train.lr`; the last checkpoint is kept."
            )
        return mean, error

    @torch.no_grad()
    def _validate(self) -> tuple[float | None, float | None]:
        """Compute the loss and error of the saved weights on the validation images of all processes."""
        # Each process has its own batch norm statistics; those of process 0 are saved.
        if distributed.world() > 1:
            buffers = dict(self.model.named_buffers())
            for name, value in distributed.broadcast_tensors(buffers).items():
                buffers[name].copy_(value)
        self.network.eval()
        sums = torch.zeros(3, dtype=torch.float64, device=self.batches.order.device)
        for images, labels in self.batches.validation():
            # Not `self.network`, which waits for the other processes: they may have fewer batches.
            logits = self._logits(self.model, images)
            sums += _sums(cross_entropy(logits, labels, reduction="sum"), logits, labels)
        sums = self.accelerator.reduce(sums, "sum")
        return _means(sums) if sums[2] else (None, None)

    def _gradients(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Compute the gradient of the global mean loss; return the summed loss and the logits."""
        # Processes average their gradients, so each is scaled to its part of the global mean.
        scale = self.batches.order.world / batch.total
        if self.uses_graph and not self._graph_tried and batch.total == self.batches.order.batch_size:
            self._graph, self._graph_tried = self._capture(batch, scale), True
        graph = self._graph
        if graph is not None and graph.takes(batch):
            return graph(batch)
        # A graph keeps its gradients in place, and its network may be compiled for full batches only.
        self.optimizer.zero_grad(set_to_none=graph is None)
        network = self.network if graph is None else self.model
        return _backward(partial(self._logits, network), batch.images, batch.labels, scale)

    def _capture(self, batch: Batch, scale: float) -> CapturedStep | None:
        """Capture the step as a graph; if that is not possible, note why and return None."""
        try:
            logits = partial(self._logits, self.network)
            return CapturedStep(logits, self.model, batch, scale, self.recipe.channels_last)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            self.model.zero_grad(set_to_none=True)
            torch.cuda.synchronize()
            self.progress.note(f"no CUDA graph of the training step is possible, it runs without: {first_line(error)}")
            return None

    def _logits(self, network: nn.Module, images: Tensor) -> Tensor:
        """Run the network and return its logits in float32."""
        with _autocast(self.recipe, images.device):
            return model_logits(network(_formatted(images, self.recipe))).float()


@final
class CapturedStep:
    """A CUDA graph of the forward and backward pass of a full batch: one launch instead of many, the same results.

    Gradients stay in the graph's memory, and each replay overwrites them, so they must not be set to None.
    """

    def __init__(
        self, logits: Callable[[Tensor], Tensor], model: nn.Module, batch: Batch, scale: float, channels_last: bool
    ) -> None:
        layout = torch.channels_last if channels_last else torch.contiguous_format
        self.total = batch.total
        self.images = batch.images.clone(memory_format=layout)
        self.labels = batch.labels.clone()
        step = partial(_backward, logits, self.images, self.labels, scale)

        def warm_up() -> None:
            with step_undone(model):
                for _ in range(_WARM_UP):
                    step()

        self.graph, (self.loss, self.out) = record(step, warm_up)

    def takes(self, batch: Batch) -> bool:
        """Check that the graph is for batches of this size."""
        return batch.total == self.total and batch.images.shape == self.images.shape

    def __call__(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Compute the gradients of this batch; the loss and logits returned are valid until the next call."""
        self.images.copy_(batch.images)
        self.labels.copy_(batch.labels)
        self.graph.replay()
        return self.loss, self.out


def _backward(
    logits_of: Callable[[Tensor], Tensor], images: Tensor, labels: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """Compute the gradient of `scale` times the summed loss; return the summed loss and the logits."""
    logits = logits_of(images)
    loss = cross_entropy(logits, labels, reduction="sum", ignore_index=IGNORED)
    (loss * scale).backward()  # type: ignore[no-untyped-call]
    return loss.detach(), logits.detach()


def _epoch_text(line: Epoch, validated_on: str) -> str:
    tested = "" if line.validation_error is None else f", {validated_on} error {line.validation_error:.2%}"
    return (
        f"epoch {line.epoch}: loss {line.loss:.4f}, error {line.error:.2%}{tested}, learning rate {line.lr:g}, "
        f"{line.images_per_second:.0f} images/s"
    )


def learning_rate(recipe: Train, epoch: float) -> float:
    """Compute the learning rate at a point in training, in epochs; being stateless, it needs no checkpoint."""
    if recipe.schedule == "cosine":
        lr = recipe.lr * 0.5 * (1 + math.cos(math.pi * epoch / recipe.epochs))
    else:
        lr = recipe.lr * recipe.gamma ** sum(epoch >= milestone for milestone in recipe.milestones)
    if epoch < recipe.warmup:
        lr *= _WARMUP_START + (1 - _WARMUP_START) * epoch / recipe.warmup
    return lr


def _tensorboard(folder: Path, done: int) -> SummaryWriter:
    """Make the writer of a TensorBoard log, which continues after `done` epochs."""
    with needing("`train.tensorboard`", "TensorBoard", "tensorboard"):
        from torch.utils.tensorboard import SummaryWriter
    return SummaryWriter(folder / "tensorboard", purge_step=done + 1)


def _check_agreement(model: nn.Module, history: list[Epoch] | None) -> None:
    """Refuse to start if processes have different checkpoints or weights."""
    if distributed.world() == 1:
        return
    first, *others = distributed.gather_texts(f"{len(history or [])} epochs and weights {fingerprint(model)[:8]}")
    for number, other in enumerate(others, start=1):
        if other != first:
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
    wrong = (logits.argmax(-1) != labels) & counted
    return torch.stack([loss.double(), wrong.sum().double(), counted.sum().double()])


def _means(sums: Tensor) -> tuple[float, float]:
    loss, wrong, count = sums.tolist()
    return loss / max(count, 1), wrong / max(count, 1)
