"""Steps that share the threads, and decompositions whose numbers do not depend on what else a computer does."""

import threading
from functools import partial
from threading import Barrier
from types import SimpleNamespace

import pytest
import torch

from sirc._utils import threads
from sirc._utils.threads import eigh, side_by_side


@pytest.fixture
def three_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def test_steps_side_by_side_have_one_thread_each_and_leave_the_number_as_it_was(three_threads):
    together = Barrier(3)

    def step(number):
        together.wait(timeout=600)  # all three are at work at once
        return number, torch.get_num_threads(), torch.is_grad_enabled()

    steps = [partial(step, number) for number in range(3)]
    assert list(side_by_side(steps, torch.device("cpu"))) == [(number, 1, False) for number in range(3)]
    assert torch.get_num_threads() == 3
    with pytest.raises(ZeroDivisionError):
        list(side_by_side([lambda: 1 / 0], torch.device("cpu")))
    assert torch.get_num_threads() == 3
    assert list(side_by_side([], torch.device("cpu"))) == []


@pytest.mark.parametrize("share", [1.0, 0.3])
def test_other_programs_change_the_thread_of_a_decomposition_not_its_numbers(three_threads, monkeypatch, share):
    z = torch.randn(600, 300, dtype=torch.float64)
    matrix = z.T @ z
    expected, places, decompose = torch.linalg.eigh(matrix), [], torch.linalg.eigh
    # Time goes by, and all threads together get this share of three cores.
    clocks = SimpleNamespace(perf_counter=iter([0.0, 1.0]).__next__, process_time=iter([0.0, 3 * share]).__next__)
    monkeypatch.setattr(threads, "time", clocks)

    def noted(matrix):
        places.append((threading.current_thread() is threading.main_thread(), torch.get_num_threads()))
        return decompose(matrix)

    monkeypatch.setattr(torch.linalg, "eigh", noted)
    with torch.inference_mode():
        found = eigh(matrix)
    assert places == [(share == 1, 3)]
    assert all(map(torch.equal, found, expected))
    assert torch.get_num_threads() == 3


def test_a_single_thread_is_not_asked_whether_cores_are_free(monkeypatch):
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        monkeypatch.setattr(threads, "_cores_are_free", None)
        values, vectors = eigh(torch.diag(torch.tensor([2.0, 1.0])))
    finally:
        torch.set_num_threads(before)
    assert values.tolist() == [1, 2]
    assert vectors.abs().tolist() == [[0, 1], [1, 0]]
