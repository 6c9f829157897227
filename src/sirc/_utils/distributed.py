"""Processes that share a task: ranks, exchange of texts and tensors, failing together.

Example:
    Without a launcher there is one process; under torchrun, each process gets the texts of all.

    >>> import sirc
    >>> with sirc.distributed.process_group():
    ...     texts = sirc.distributed.gather_texts(f"process {sirc.distributed.rank()}")
    >>> texts
    ['process 0']
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from sirc._utils.checks import dtype_name

# The error of one process is raised in the others as the first of these types that fits, or else as the last.
_KINDS: tuple[type[Exception], ...] = (ValueError, OSError, ImportError, MemoryError, RuntimeError)
_LAUNCHED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def _joined() -> bool:
    return dist.is_available() and dist.is_initialized()


def rank() -> int:
    """The number of this process; 0 if it is the only one."""
    return dist.get_rank() if _joined() else 0


def world() -> int:
    """The number of processes; 1 if this is the only one."""
    return dist.get_world_size() if _joined() else 1


def is_main() -> bool:
    """Whether this is process 0, which does what must be done once."""
    return rank() == 0


def barrier() -> None:
    """Wait until every process is here."""
    gather_texts("")  # unlike `dist.barrier`, it works on any device


def require_joined(function: str) -> None:
    """Refuse to run if several processes were launched but have not joined: each would do all of the work."""
    launched = int(os.environ.get("WORLD_SIZE") or 1)
    if launched > 1 and world() == 1:
        raise ValueError(
            f"the {launched} processes that were launched must join to share the work; this one has not. Call "
            f"`{function}` inside `with sirc.distributed.process_group():`."
        )


def of_process(name: str) -> str:
    """The name of a shared task, with the number of this process if there are several."""
    return name if world() == 1 else f"{name}, process {rank() + 1} of {world()}"


@contextmanager
def process_group(device: torch.device | None = None, timeout: timedelta = timedelta(days=1)) -> Iterator[None]:
    """Join the processes that torchrun or accelerate launched, and leave them at the end; without these, do nothing.

    On CUDA they communicate over NCCL, and the current device becomes that of `LOCAL_RANK`; on a CPU, over gloo.
    Without `device`, CUDA is used if each process of this machine has its own GPU. `timeout` is how long a process
    waits for the others.
    """
    if _joined() or not dist.is_available() or not all(os.environ.get(name) for name in _LAUNCHED):
        yield
        return
    # Imported later, this module would keep the group alive until the interpreter exits, which its threads then abort.
    import torch.distributed.nn

    local = int(os.environ.get("LOCAL_RANK", "0"))
    if device is None:
        gpus = torch.cuda.device_count() if dist.is_nccl_available() else 0
        device = torch.device("cuda" if int(os.environ.get("LOCAL_WORLD_SIZE", "1")) <= gpus else "cpu")
    if device.type == "cuda":
        number = local if device.index is None else device.index
        if number >= torch.cuda.device_count():
            raise ValueError(
                f"each process on CUDA must have a GPU; process {local} of this machine asks for GPU {number} of "
                f"{torch.cuda.device_count()}. Launch one process for each GPU (`--nproc-per-node`), or use the CPU."
            )
        torch.cuda.set_device(number)
        dist.init_process_group("nccl", timeout=timeout, device_id=torch.device("cuda", number))
    else:
        dist.init_process_group("gloo", timeout=timeout)
    try:
        yield
        barrier()  # a process that leaves early would cut off the others
    except BaseException:
        # Leaving an NCCL group may wait forever for the other processes, which the launcher ends.
        if device.type != "cuda":
            dist.destroy_process_group()
        raise
    dist.destroy_process_group()


@contextmanager
def failing_together() -> Iterator[None]:
    """Raise in all processes if one fails inside, so that none waits for it; inside, they must exchange nothing.

    Every process must enter this context the same number of times.
    """
    if world() == 1:
        yield
        return
    error: Exception | None = None
    try:
        yield
    except Exception as caught:
        error = caught
    message = "" if error is None else f"{type(error).__name__}: {error}"
    kind = next((number for number, known in enumerate(_KINDS) if isinstance(error, known)), len(_KINDS) - 1)
    everyone = [json.loads(text) for text in gather_texts(json.dumps([message, kind]))]
    if error is not None:
        error.add_note(f"This was process {rank()} of {world()}; the others stopped too.")
        raise error
    for number, (message, kind) in enumerate(everyone):
        if message:
            raise _KINDS[kind](f"process {number} of {world()} failed: {message}")


def gather_texts(text: str) -> list[str]:
    """The texts of all processes, in the order of their numbers."""
    if world() == 1:
        return [text]
    # As bytes, since torch's `all_gather_object` would unpickle what other processes send.
    mine = torch.frombuffer(bytearray(text.encode() + b" "), dtype=torch.uint8).to(_device())  # never empty
    sizes = [torch.zeros(1, dtype=torch.int64, device=_device()) for _ in range(world())]
    dist.all_gather(sizes, torch.tensor([len(mine)], device=_device()))
    lengths = [int(size) for size in sizes]
    padded = torch.nn.functional.pad(mine, (0, max(lengths) - len(mine)))
    texts = [torch.empty_like(padded) for _ in lengths]
    dist.all_gather(texts, padded)
    return [bytes(text[: length - 1].cpu().numpy()).decode() for text, length in zip(texts, lengths, strict=True)]


def gather_tensors(tensors: Mapping[str, Tensor]) -> Iterator[dict[str, Tensor]]:
    """The tensors of each process in turn, in the order of their numbers; names, shapes and types may differ.

    Only the tensors of one process are in memory at a time, on the CPU or, with NCCL, on the current GPU. Every process
    must exhaust the iterator.
    """
    for source in range(world()):
        yield broadcast_tensors(tensors, source)


def broadcast_tensors(tensors: Mapping[str, Tensor], source: int = 0) -> dict[str, Tensor]:
    """The tensors of process `source`, whatever the others pass."""
    if world() == 1:
        return dict(tensors)
    described = {name: [dtype_name(tensor.dtype), list(tensor.shape)] for name, tensor in tensors.items()}
    header = json.loads(gather_texts(json.dumps(described))[source])
    device = _device()
    received = {}
    for name, (dtype, shape) in header.items():
        if source == rank():
            tensor = tensors[name].detach().to(device).contiguous()
        else:
            tensor = torch.empty(shape, dtype=getattr(torch, dtype), device=device)
        if tensor.numel():
            # As bytes, since no backend supports every dtype.
            dist.broadcast(tensor.view(-1).view(torch.uint8), src=source)
        received[name] = tensor
    return received


def _device() -> torch.device:
    """The device that the backend sends tensors from."""
    return torch.device("cuda", torch.cuda.current_device()) if dist.get_backend() == "nccl" else torch.device("cpu")
