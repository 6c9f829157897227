"""The share of extraction and of training, on a GPU, that the network itself takes."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import final

import numpy as np
import torch
import torchvision
from _gpu_limits import Share, in_turns
from _timing import Row
from PIL import Image
from torch import Tensor, nn

import sirc
from sirc.data.base import ImageSet
from sirc.data.device_cache import CachedImages
from sirc.data.preprocess import Preprocess
from sirc.extraction.from_device import CachedSet
from sirc.extraction.writer import known_weights
from sirc.models.builders import build
from sirc.training.batches import Batch
from sirc.training.loop import CapturedStep, train
from sirc.training.recipe import Train

_BATCH = 256
_EPOCHS = 3
_STEPS = 50


@final
class Pictures(ImageSet):
    """Random images in memory, for a network to be trained on."""

    def __init__(self, count: int, side: int) -> None:
        super().__init__(name="pictures", labels=torch.arange(count) % 100, classes=[str(i) for i in range(100)])
        self._count = count
        self._pool = np.random.default_rng(0).integers(0, 256, (512, side, side, 3), dtype=np.uint8)

    def __len__(self) -> int:
        return self._count

    def image(self, index: int) -> Image.Image:
        return Image.fromarray(self._pool[index % len(self._pool)])

    def where(self, index: int) -> str:
        return f"picture {index}"

    @property
    def _identity(self) -> str:
        return f"{len(self)} random pictures"


def extraction(count: int, device: torch.device, notes: list[str]) -> list[Row]:
    """Extract images that the device holds into a store, against the bare loop of the model over such batches."""
    rows: list[Row] = []
    torch.manual_seed(0)
    model = torchvision.models.resnet50().eval().to(device, memory_format=torch.channels_last)
    for side, some in ((224, count), (64, count), (64, 4 * count)):
        held = CachedImages(torch.randint(256, (some, 3, side, side), dtype=torch.uint8, device=device), None, ())
        images = CachedSet(Pictures(some, side), Preprocess(resize=side, crop=side), lambda held=held: held)
        ready = torch.randn(min(_BATCH, some), 3, side, side, device=device)
        ready = ready.contiguous(memory_format=torch.channels_last)

        @torch.no_grad()
        def bare(ready: Tensor = ready, some: int = some) -> None:
            with torch.autocast(device.type, torch.bfloat16):
                for start in range(0, some, _BATCH):
                    model(ready[: some - start])

        with tempfile.TemporaryDirectory() as folder:

            def ours(images: CachedSet = images, folder: str = folder) -> None:
                settings = {"precision": "bf16", "channels_last": True, "batch_size": _BATCH}
                sirc.extract(model, images, Path(tempfile.mkdtemp(dir=folder)) / "store", **settings)

            with known_weights(model):  # a study digests them once for all its sets
                taken, alone = in_turns(ours, bare, device=device, repeats=3, calls=1)
        what = f"extract {some:,} images on the device, ResNet-50 at {side} px, bf16, into a store"
        rows.append(Share(what, taken * 1e3, "the model over such batches", alone * 1e3, alone / taken, 0.9))
        speeds = f"{some / taken:,.0f} images/s extracted, {some / alone:,.0f} by the model alone"
        notes.append(f"ResNet-50 at {side} px: {speeds}; not counted: the digest of the weights, once for all sets")
    return rows


def training(count: int, device: torch.device, notes: list[str]) -> list[Row]:
    """A few epochs of `sirc.training.loop`, against the bare step of the same network on one batch."""
    side = 64
    gpu = device.type == "cuda"
    recipe = Train(
        epochs=_EPOCHS,
        batch_size=min(_BATCH, count),
        precision="bf16",
        channels_last=True,
        cache="device",
        graph=gpu,
        compile=gpu,
        workers=8 if gpu else 0,
    )

    def network() -> nn.Module:
        torch.manual_seed(0)
        return build("torchvision:resnet50", num_classes=100, stem="half")

    images, preprocess = Pictures(count, side), Preprocess(resize=side, crop=side)
    with tempfile.TemporaryDirectory() as folder:
        history = train(network(), images, recipe, Path(folder), seed=0, preprocess=preprocess, cpu=not gpu)
    speed = max(line.images_per_second for line in history[1:])
    alone = _bare_speed(network().to(device), recipe, side, device)
    what = f"train ResNet-50 at {side} px, bf16, compiled, in a graph, batches of {recipe.batch_size}"
    each = 1e3 * recipe.batch_size
    notes.append(f"training: {speed:,.0f} images/s, the bare step {alone:,.0f}")
    return [Share(f"{what}: a step", each / speed, "the bare step", each / alone, speed / alone)]


def _bare_speed(model: nn.Module, recipe: Train, side: int, device: torch.device) -> float:
    """Images a second of forward, backward and the optimiser's step alone, over and over on one batch."""
    model.to(memory_format=torch.channels_last).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, weight_decay=1e-4)
    images = torch.randn(recipe.batch_size, 3, side, side, device=device)
    images = images.contiguous(memory_format=torch.channels_last)
    labels = torch.arange(recipe.batch_size, device=device) % 100
    forward = torch.compile(model) if recipe.compile else model

    def logits(images: Tensor) -> Tensor:
        with torch.autocast(device.type, torch.bfloat16):
            return forward(images).float()

    if device.type == "cuda":
        batch = Batch(images, labels, len(images))
        graph = CapturedStep(logits, model, batch, 1 / len(images), channels_last=True)

        def step() -> None:
            graph.graph.replay()
            optimizer.step()

    else:

        def step() -> None:
            optimizer.zero_grad()
            nn.functional.cross_entropy(logits(images), labels).backward()
            optimizer.step()

    (taken,) = in_turns(step, device=device, repeats=3, calls=_STEPS if device.type == "cuda" else 1)
    return len(images) / taken
