"""A CPU's threads: independent steps side by side, and steps that other programs do not hold up."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event
from typing import TypeVar

import torch

from sirc._utils.precision import exact

_R = TypeVar("_R")


def side_by_side(steps: Sequence[Callable[[], _R]], device: torch.device) -> Iterator[_R]:
    """The results of independent steps, in order; a CPU runs as many at once as torch has threads, one thread each."""
    threads = torch.get_num_threads()
    if device.type != "cpu" or threads == 1:  # two threads must not use a GPU's linear algebra at once
        yield from (step() for step in steps)
        return
    workers = max(1, min(len(steps), threads))
    try:
        with ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            # `exact` again, since modes such as `inference_mode` hold for one thread only.
            yield from pool.map(lambda step: exact(step)(), steps)
    finally:
        torch.set_num_threads(threads)


@contextmanager
def waiting_asleep(after: float, device: torch.device) -> Iterator[None]:
    """Let a CPU's threads sleep while they wait for each other if the block takes longer than `after` seconds.

    A matrix decomposition has thousands of steps, each on all threads, and at the end of each step the threads wait for
    the slowest. By default they keep their cores busy meanwhile, for milliseconds: the quickest way if each thread has
    a core, but if another program runs on one, the decomposition takes up to a hundred times as long. libgomp, the
    OpenMP of torch's packages for Linux, lets them sleep after microseconds while a process has more OpenMP threads
    than cores. So a late block gets idle threads until there are more. They change no number, since they do no work.
    """
    if device.type != "cpu" or torch.get_num_threads() == 1 or sys.platform != "linux":
        yield
        return
    cores, ended = len(os.sched_getaffinity(0)), Event()

    def crowd() -> None:
        if not ended.wait(after):
            torch.get_num_threads()  # torch gives a thread its number once, and must not do so below
            # `torch.set_num_threads` would also change the number of the threads to come.
            ctypes.CDLL(torch._C.__file__).omp_set_num_threads(cores + 1)
            torch.ones(1 << 16)  # large enough for all threads, which then stay until this one ends
            ended.wait()

    with ThreadPoolExecutor(1) as pool:
        try:
            pool.submit(crowd)
            yield
        finally:
            ended.set()
