"""A CPU's threads: independent steps side by side, decompositions that other programs do not hold up."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch
from torch import Tensor

from sirc._utils.precision import exact

_R = TypeVar("_R")


def side_by_side(steps: Sequence[Callable[[], _R]], device: torch.device) -> Iterator[_R]:
    """The results of independent steps, in order; a CPU runs as many at a time as torch has threads, one thread each.

    A second thread speeds a matrix decomposition up less than a second decomposition beside it.
    """
    threads = torch.get_num_threads()
    if device.type != "cpu" or threads == 1:  # two threads must not use a GPU's linear algebra at once
        yield from (step() for step in steps)
        return
    with ThreadPoolExecutor(max(1, min(len(steps), threads)), initializer=torch.set_num_threads, initargs=(1,)) as pool:
        try:
            # `exact` again, since modes such as `inference_mode` hold for one thread only.
            yield from pool.map(lambda step: exact(step)(), steps)
        finally:
            torch.set_num_threads(threads)


def eigh(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """The eigenvalues and eigenvectors that `torch.linalg.eigh` finds, in little more time if other programs are busy.

    At every column all threads wait for the slowest, and while they wait they keep their cores: best if the cores are
    free, but else the slowest may not get one for long, and all take up to a hundred times as long. Started from a
    second thread, they outnumber the cores, and OpenMP lets the waiting sleep. The numbers are the same.
    """
    threads = torch.get_num_threads()
    if not matrix.is_cpu or threads == 1 or _cores_are_free(matrix, threads):
        values, vectors = torch.linalg.eigh(matrix)
    else:
        with ThreadPoolExecutor(1, initializer=torch.set_num_threads, initargs=(threads,)) as pool:
            values, vectors = pool.submit(exact(torch.linalg.eigh), matrix).result()
    return values, vectors


def _cores_are_free(matrix: Tensor, threads: int) -> bool:
    """Whether each thread has a core to itself during a product that takes a few percent of a decomposition's time."""
    began, used = time.perf_counter(), time.process_time()
    matrix @ matrix[:, : len(matrix) // 8]
    return time.process_time() - used > 0.75 * threads * (time.perf_counter() - began)
