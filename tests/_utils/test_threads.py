"""Steps that share the threads, and threads that sleep while they wait."""

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Barrier

import pytest
import torch

import sirc
from sirc._utils.threads import side_by_side, waiting_asleep
from sirc.scores.fitting import fitter

CPU = torch.device("cpu")
TASKS = Path("/proc/self/task")


@pytest.fixture
def three_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def threads_of_a_new_thread():
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(torch.get_num_threads).result()


def running():
    return len(list(TASKS.iterdir()))


def wait_until(condition):
    deadline = time.monotonic() + 600
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_steps_side_by_side_have_one_thread_each_and_leave_the_number_as_it_was(three_threads):
    together = Barrier(3)

    def step(number):
        together.wait(timeout=600)  # all three are at work at once
        return number, torch.get_num_threads(), torch.is_grad_enabled()

    steps = [partial(step, number) for number in range(3)]
    assert list(side_by_side(steps, CPU)) == [(number, 1, False) for number in range(3)]
    assert (torch.get_num_threads(), threads_of_a_new_thread()) == (3, 3)
    with pytest.raises(ZeroDivisionError):
        list(side_by_side([lambda: 1 / 0], CPU))
    assert (torch.get_num_threads(), threads_of_a_new_thread()) == (3, 3)
    assert list(side_by_side([], CPU)) == []


@pytest.mark.skipif(not TASKS.exists(), reason="counts threads by /proc")
def test_a_late_block_has_more_threads_than_cores_until_it_ends(three_threads):
    torch.ones(1 << 16).sum()  # starts the threads of this one
    before, cores = running(), os.cpu_count()
    with waiting_asleep(0.0, CPU):
        wait_until(lambda: running() > before + cores)
        wait_until(lambda: threads_of_a_new_thread() == 3)
    assert (torch.get_num_threads(), threads_of_a_new_thread()) == (3, 3)
    wait_until(lambda: running() <= before)
    with pytest.raises(ZeroDivisionError), waiting_asleep(0.0, CPU):
        _ = 1 / 0
    wait_until(lambda: running() <= before)


def test_a_block_that_ends_in_time_starts_one_thread_that_ends_with_it(three_threads):
    before = threading.active_count()
    with waiting_asleep(1e6, CPU):
        assert threading.active_count() == before + 1
    assert threading.active_count() == before


@pytest.mark.parametrize(("threads", "device"), [(1, "cpu"), (3, "cuda")])
def test_nothing_is_started_where_no_threads_wait_for_each_other(three_threads, threads, device):
    torch.set_num_threads(threads)
    before = threading.active_count()
    with waiting_asleep(0.0, torch.device(device)):
        assert threading.active_count() == before


def test_all_that_a_fit_solves_may_wait_asleep(monkeypatch):
    inside, allowed = [], []

    @contextmanager
    def noted(after, device):
        allowed.append(after)
        inside.append(device)
        yield
        inside.clear()

    decompose = torch.linalg.eigh

    def eigh(matrix):
        assert inside == [CPU]
        return decompose(matrix)

    monkeypatch.setattr(fitter, "waiting_asleep", noted)
    monkeypatch.setattr(torch.linalg, "eigh", eigh)
    z = torch.randn(60, 8)
    head = sirc.Head(torch.randn(3, 8), torch.randn(3))
    train = sirc.Outputs(z @ head.weight.T + head.bias, z, torch.arange(60) % 3)
    sirc.fit(["residual"], train, head=head)
    sirc.fit(["residual", "mahalanobis"], train, head=head)
    assert allowed == [pytest.approx(0.05, rel=1e-5), pytest.approx(0.1, rel=1e-5)]
    assert not inside
