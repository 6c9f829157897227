"""A CPU's threads: independent steps side by side, and steps that other programs do not hold up."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event, Thread
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
    OpenMP of torch on Linux, lets them sleep after microseconds while a process has more OpenMP threads than cores. So
    the block gets that many if it is late. They change no number, since they do none of its work.
    """
    threads = torch.get_num_threads()
    if device.type != "cpu" or threads == 1:
        yield
        return
    ended = Event()

    def crowd() -> None:
        if ended.wait(after):
            return
        torch.set_num_threads((os.cpu_count() or 1) + 1)  # of this thread, and of those to come
        torch.ones(1 << 16)  # large enough for all threads, which then stay until this one ends
        torch.set_num_threads(threads)
        ended.wait()

    helper = Thread(target=crowd)
    helper.start()
    try:
        yield
    finally:
        ended.set()
        helper.join()
