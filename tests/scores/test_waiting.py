"""A fit beside other programs: its threads sleep while they wait for each other, once its decompositions are late."""

import os
import subprocess
import sys
import threading
from contextlib import contextmanager

import pytest
import torch

import sirc
from sirc.scores.fitting import fitter

CPU = torch.device("cpu")


@pytest.fixture
def three_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


LATE = """
import os, time, torch
from concurrent.futures import ThreadPoolExecutor
from sirc.scores.fitting.fitter import _waiting_asleep

def running():
    return len(os.listdir("/proc/self/task"))

def wait_until(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, running()
        time.sleep(0.01)

def threads_of_a_new_thread():
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(torch.get_num_threads).result()

torch.ones(1 << 16)  # starts the threads of this one
before, cores, threads = running(), len(os.sched_getaffinity(0)), torch.get_num_threads()
for error in (None, ZeroDivisionError()):
    try:
        with _waiting_asleep(0.0, torch.device("cpu")):
            wait_until(lambda: running() > before + cores)
            assert threads == threads_of_a_new_thread() == torch.get_num_threads()
            if error:
                raise error
    except ZeroDivisionError as came:
        assert came is error
    wait_until(lambda: running() <= before)
    assert threads == threads_of_a_new_thread() == torch.get_num_threads()
"""


@pytest.mark.skipif(sys.platform != "linux" or os.cpu_count() == 1, reason="starts nothing")
def test_a_late_block_has_more_threads_than_cores_until_it_ends():
    # In a process of its own, since the first `torch.set_num_threads` starts threads that stay.
    usual = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    assert subprocess.run([sys.executable, "-c", LATE], env=usual, check=False).returncode == 0


def test_a_block_that_ends_in_time_starts_one_thread_that_ends_with_it(three_threads):
    before = threading.active_count()
    with fitter._waiting_asleep(1e6, CPU):
        assert threading.active_count() == before + 1
    assert threading.active_count() == before


@pytest.mark.parametrize(("threads", "device"), [(1, "cpu"), (3, "cuda")])
def test_nothing_is_started_where_no_threads_wait_for_each_other(three_threads, threads, device):
    torch.set_num_threads(threads)
    before = threading.active_count()
    with fitter._waiting_asleep(0.0, torch.device(device)):
        assert threading.active_count() == before


def test_all_that_a_fit_decomposes_may_wait_asleep(monkeypatch):
    inside, allowed, places = [], [], []

    @contextmanager
    def noted(after, device):
        allowed.append(after)
        inside.append(device)
        yield
        inside.clear()

    decompose = torch.linalg.eigh

    def eigh(matrix):
        places.extend(inside or ["outside"])
        return decompose(matrix)

    monkeypatch.setattr(fitter, "_waiting_asleep", noted)
    monkeypatch.setattr(torch.linalg, "eigh", eigh)
    z = torch.randn(60, 8)
    head = sirc.Head(torch.randn(3, 8), torch.randn(3))
    train = sirc.Outputs(z @ head.weight.T + head.bias, z, torch.arange(60) % 3)
    # All rows for each score; then without each of two folds, and without the rows that judge.
    for spec, count in (("residual", 1), ("product(residual, mahalanobis)", 2), ("sirc(msp, delta_mahalanobis)", 4)):
        allowed.clear()
        places.clear()
        sirc.fit(spec, train, head=head, val=train, crossfit=2)
        assert allowed == [pytest.approx(count * (0.05 + 2e-10 * 8**3), rel=1e-9)]
        assert set(places) == {CPU}
