"""Numbers do not depend on what a process was told about the precision of its matrix products."""

import json
import os
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
import torch

from sirc._utils.precision import Convolutions, exact, full_products, may_convolve_in_tf32
from support.interpreters import python

_WAYS = {
    "the older function": 'torch.set_float32_matmul_precision("high")',
    "the older function, lower": 'torch.set_float32_matmul_precision("medium")',
    "the older switch": "torch.backends.cuda.matmul.allow_tf32 = True",
    "the newer switch": 'torch.backends.cuda.matmul.fp32_precision = "tf32"',
    "the newer switch for all": 'torch.backends.fp32_precision = "tf32"',
    "the older function and a newer switch": (
        'torch.set_float32_matmul_precision("high"); torch.backends.mkldnn.matmul.fp32_precision = "bf16"'
    ),
    "nothing": "pass",
}
_PROGRAM = """
import json, os, sys, torch
from sirc._utils.precision import full_products
from support.interpreters import python

def now():
    found = []
    newer = getattr(torch._C, "_get_fp32_precision_getter", lambda *where: None)
    for ask in (torch.get_float32_matmul_precision, lambda: torch.backends.cuda.matmul.allow_tf32):
        try:
            found.append(ask())
        except RuntimeError:
            found.append("refused")
    return [*found, newer("cuda", "matmul"), newer("mkldnn", "matmul")]

def check(way):
    exec(way)
    before = now()
    with full_products():
        inside = now()
        with full_products():
            pass
        assert now() == inside
    assert inside[:2] == ["highest", False], inside
    assert all(value in (None, "none", "ieee") for value in inside[2:]), inside
    assert now() == before, (before, now())

for name, way in json.loads(sys.argv[1]).items():
    if os.fork() == 0:  # a switch that was set cannot be unset: each way has a process of its own
        check(way)
        os.write(1, f"{name}\\n".encode())
        os._exit(0)
    os.wait()
"""


@pytest.fixture(scope="module")
def kept():
    """The ways in which every assertion held, and what the others printed."""
    if not hasattr(os, "fork"):
        pytest.skip("needs os.fork")
    done = python("-c", _PROGRAM, json.dumps(_WAYS))
    return done.stdout.splitlines(), done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("way", _WAYS)
def test_products_are_full_inside_and_as_told_afterwards(kept, way):
    if "newer" in way and not hasattr(torch._C, "_get_fp32_precision_getter"):
        pytest.skip("torch before 2.9 has no such switch")
    ways, told = kept
    assert way in ways, told


@pytest.mark.skipif(not hasattr(torch._C, "_get_fp32_precision_getter"), reason="torch before 2.9 has no such switch")
def test_a_switch_for_all_backends_still_leads_afterwards():
    for backend in (torch.backends.cuda.matmul, torch.backends.mkldnn.matmul):
        backend.fp32_precision = "none"  # whatever another test left
    try:
        torch.backends.fp32_precision = "tf32"
        with full_products():
            pass
        assert torch.backends.cuda.matmul.fp32_precision == "tf32"
        torch.backends.fp32_precision = "ieee"
        assert torch.backends.cuda.matmul.fp32_precision == "ieee"
        assert torch.backends.mkldnn.matmul.fp32_precision == "ieee"
    finally:
        torch.backends.fp32_precision = "none"


def test_threads_that_overlap_leave_it_as_it_was():
    torch.set_float32_matmul_precision("high")
    try:
        together = Barrier(4)

        def work(number):
            with full_products():
                together.wait(timeout=600)
                return torch.get_float32_matmul_precision()

        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(work, range(4))) == ["highest"] * 4
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision("highest")


def test_an_error_inside_leaves_it_as_it_was():
    @exact
    def fails():
        assert torch.get_float32_matmul_precision() == "highest"
        raise KeyError("inside")

    torch.set_float32_matmul_precision("medium")
    try:
        with pytest.raises(KeyError, match="inside"):
            fails()
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision("highest")


def test_convolutions_read_what_is_rounded_to_tf32_and_nothing_else_does():
    torch.manual_seed(0)
    x, w, b = torch.randn(2, 3, 8, 8), torch.randn(4, 3, 3, 3), torch.randn(4)

    def rounded(values):  # to 10 bits after the leading one, in float64
        exponent = torch.frexp(values.double()).exponent
        return torch.ldexp(torch.ldexp(values.double(), 11 - exponent).round(), exponent - 11)

    convolve = torch.nn.functional.conv2d
    with Convolutions(rounded=True):
        got, product, double = convolve(x, w, b), x[0, 0] @ x[0, 1], convolve(x.double(), w.double())
    torch.testing.assert_close(got.double(), convolve(rounded(x), rounded(w), b.double()), rtol=1e-5, atol=1e-5)
    assert not torch.allclose(got, convolve(x, w, b), rtol=1e-5, atol=1e-5)
    assert torch.equal(product, x[0, 0] @ x[0, 1])
    assert torch.equal(double, convolve(x.double(), w.double()))
    with Convolutions(rounded=False):
        assert torch.equal(convolve(x, w, b), convolve(x, w, b))


def test_torch_may_convolve_in_tf32_until_it_is_told_not_to(monkeypatch):
    assert may_convolve_in_tf32()
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    assert not may_convolve_in_tf32()
