"""Cost of extraction beyond the model, and of a guard beyond extraction; memory for any number of rows, two processes.

Run it from a checkout: `PYTHONPATH=src python benchmarks/extract.py`. The images are random and in memory, so that
the loader's work is the same for both sides. Memory and processes are measured in interpreters of their own.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import torch
import torchvision
from _timing import Row, peak_memory, report, reset_peak, standard_options, versus
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import sirc
from sirc import distributed

_GIB = 1 << 30
_SIDE, _USUAL_SIDE = 64, 224
_GUARDED = (128, 512, 1024)  # validation images of a guard, with twice as many for training


class Images(Dataset[tuple[Tensor, int]]):
    """Random images, made from a small pool whose rows come round again."""

    def __init__(self, count: int, *shape: int) -> None:
        self.count = count
        self.fingerprint = f"{count} random images {shape}"
        self._pool = torch.randn(256, *shape, generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self._pool[index % 256], index % 100


def resnet(device: torch.device) -> nn.Module:
    """A network that keeps the processor busy."""
    torch.manual_seed(0)
    return torchvision.models.resnet18().to(device).eval()


@torch.no_grad()
def bare_loop(model: nn.Module, loader: DataLoader[tuple[Tensor, int]], device: torch.device) -> None:
    for x, _ in loader:
        model(x.to(device))


def against_the_bare_loop(options: argparse.Namespace, device: torch.device) -> Row:
    model, images = resnet(device), Images(options.rows, 3, _SIDE, _SIDE)
    loader = DataLoader(images, batch_size=64)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "store"
        pair = versus(
            [lambda: sirc.extract(model, loader, path, shard_size=512, overwrite=True)],
            [lambda: bare_loop(model, loader, device)],
            device=device,
            repeats=options.repeats,
            budget=60.0,
        )
    what = f"extract {options.rows} images, ResNet-18 at {_SIDE} px, into a store"
    return Row(what, pair.ours, "for x in loader: model(x)", pair.reference, pair.ratio, limit=1.05)


def guarded(options: argparse.Namespace, device: torch.device, few: int) -> Row:
    """A whole guard of images as most networks take them, against extracting the outputs of its two datasets.

    On a CPU by the processor's time of one thread, which says the same on a busy machine.
    """
    model, draw = resnet(device), torch.Generator().manual_seed(0)

    def labelled(count: int) -> TensorDataset:
        images = torch.randn(count, 3, _USUAL_SIDE, _USUAL_SIDE, generator=draw)
        outputs = sirc.extract(model, TensorDataset(images), labels=False, features=False)
        return TensorDataset(images, outputs.predictions)

    on_cpu, threads = device.type == "cpu", torch.get_num_threads()
    torch.set_num_threads(1 if on_cpu else threads)
    train, val = labelled(2 * few), labelled(few)
    with warnings.catch_warnings(action="ignore", category=sirc.DataWarning):  # the network is not trained
        pair = versus(
            [lambda: sirc.guard(model, train, val, progress=False)],
            [lambda: [sirc.extract(model, one, batch_size=64) for one in (train, val)]],
            device=device,
            repeats=min(2, options.repeats),
            budget=60.0,
            clock=time.process_time if on_cpu else time.perf_counter,
        )
    torch.set_num_threads(threads)
    what = f"guard by {2 * few:,} and {few:,} images, ResNet-18 at {_USUAL_SIDE} px, `scod`, one thread"
    return Row(what, pair.ours, "extracting their outputs", pair.reference, pair.ratio, limit=1.1)


def memory(rows: int) -> float:
    """Peak growth, in GiB, of an extraction of this many rows by a network that is quick."""
    return float(_alone("memory", rows)["growth"])


def processes(options: argparse.Namespace) -> Row:
    one = float(_alone("share", options.rows, launch=1)["seconds"])
    two = float(_alone("share", options.rows, launch=2)["seconds"])
    what = f"two processes of one thread each, {options.rows} images, ResNet-18"
    return Row(what, two, "one such process", one, one / two, limit=1.6, faster=True)


def _alone(part: str, rows: int, launch: int = 0) -> dict[str, float]:
    """Run a part of this file in interpreters of its own and read what the first of them prints."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(launch)] if launch else []
    environment = {**os.environ, "OMP_NUM_THREADS": "1"} if launch else dict(os.environ)
    command = [sys.executable, *launcher, __file__, "--part", part, "--rows", str(rows)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    return json.loads(done.stdout.splitlines()[-1])


def _part_memory(rows: int) -> dict[str, float]:
    device = torch.device("cpu")
    model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 100))
    loader = DataLoader(Images(rows, 64), batch_size=512)
    with tempfile.TemporaryDirectory() as folder:
        sirc.extract(model, Images(20_000, 64), Path(folder) / "warm")
        before = reset_peak(device) or 0
        sirc.extract(model, loader, Path(folder) / "store")
        return {"growth": ((peak_memory(device) or 0) - before) / _GIB}


def _part_share(rows: int) -> dict[str, float]:
    device = torch.device("cpu")
    torch.set_num_threads(1)
    model, images = resnet(device), Images(rows, 3, _SIDE, _SIDE)
    bare_loop(model, DataLoader(images, batch_sampler=[list(range(64))]), device)
    with distributed.process_group(device):
        folder = Path(tempfile.gettempdir()) / f"sirc-benchmark-{os.environ['TORCHELASTIC_RUN_ID']}"
        distributed.barrier()
        began = time.perf_counter()
        sirc.extract(model, images, folder, batch_size=64, shard_size=64)
        distributed.barrier()
        taken = time.perf_counter() - began
        if distributed.is_main():
            shutil.rmtree(folder)
    return {"seconds": taken}


def main() -> None:
    parser = standard_options(__doc__.splitlines()[0], "python benchmarks/extract.py", rows=1024, repeats=5)
    parser.add_argument("--only-guards", action="store_true", help="measure guards alone")
    parser.add_argument("--part", choices=("memory", "share"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part:
        found = {"memory": _part_memory, "share": _part_share}[options.part](options.rows)
        if int(os.environ.get("RANK", "0")) == 0:
            print(json.dumps(found), flush=True)
        return
    device = torch.device(options.device)
    rows = [] if options.only_guards else [against_the_bare_loop(options, device)]
    rows += [guarded(options, device, few) for few in _GUARDED]
    if device.type == "cpu" and not options.only_guards:
        small, large = memory(40_000), memory(400_000)
        rows += [
            Row("peak memory growth, 40,000 rows of 100 logits and 512 features", small, unit="GiB"),
            Row("peak memory growth, 400,000 rows", large, unit="GiB"),
            Row("what ten times the rows add to it", large - small, limit=0.05, unit="GiB", limit_of="measured"),
            processes(options),
        ]
    notes = ["the fingerprint of the model, the search for its head and the writing of the shards are included"]
    report("Extraction: what it costs beyond the model.", rows, notes, options, device)


if __name__ == "__main__":
    main()
