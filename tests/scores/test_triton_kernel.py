"""The GPU's kernel for the pass over the logits, run by Triton's interpreter: no GPU is needed for its arithmetic."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="needs Triton")
pytestmark = pytest.mark.slow

_PROGRAM = """
import contextlib, json, sys, warnings
import numpy as np, torch
warnings.simplefilter("ignore")  # of NumPy, which stands in for the GPU: exp overflows to inf where it should
sys.path.insert(0, sys.argv[1])
from sirc.scores import row_sums, triton_kernel
from sirc.scores.formulas.softmax import Softmax, log_entropy, log_one_minus_max, log_one_minus_norm
torch.cuda.device_of = lambda tensor: contextlib.nullcontext()

def differences(v):
    prediction, sums = triton_kernel.kernel_sums(v)
    fast, slow = Softmax(prediction, *sums), Softmax.of(v.double(), compile=False)
    found = {"prediction": float((fast.prediction != slow.prediction).sum())}
    for name in ("top", "second", "deviation"):
        found[name] = float((getattr(fast, name) - getattr(slow, name)).abs().max())
    for name in ("t", "w", "q"):
        found[name] = float(((getattr(fast, name) - getattr(slow, name)) / (slow.t + slow.q)).abs().max())
    for gap in (log_entropy, log_one_minus_max, log_one_minus_norm):
        found[gap.__name__] = float((gap(fast) - gap(slow)).abs().max())
    found["finite"] = float(sums.isfinite().all())
    return found

random = np.random.default_rng(0)
results = {}
for dtype in ("float16", "bfloat16", "float32", "float64"):
    # The interpreter is slow, and the kernel reads both kinds of 16 bits as float32 before all else.
    for classes in (2, 130) if dtype.endswith("16") else (2, 3, 130, 1000):
        v = random.normal(size=(6, classes)) * random.choice([0.01, 1, 5], size=(6, 1))
        v[:4, 0] += np.geomspace(1, 1000, 4)
        v[4], v[5, : classes // 2 + 1] = 1.5, 9.0
        results[f"{dtype} {classes}"] = differences(torch.as_tensor(v).to(getattr(torch, dtype)))
big = float(np.finfo(np.float32).max)
extreme = [[big, -big, 0, 1], [big] * 4, [-big] * 4, [0, 0, -big, -big], [-0.0, 0.0, 0.0, 0.0], [0, 0, 3, 3]]
extreme += [[0, 0, -1030, -2000], [1e4, 0, -1e4, -700]]  # so far below that nothing is left of them
results["extreme"] = differences(torch.tensor(extreme, dtype=torch.float32))
results["one row"] = differences(torch.tensor([[0.5, 2.0, -1.0]]))
strided = torch.as_tensor(random.normal(size=(6, 9)))
results["columns apart"] = differences(strided.T.contiguous().T)
results["rows apart"] = differences(strided[::2, 1:6])
print(json.dumps(results))
"""


@pytest.fixture(scope="module")
def results():
    source = Path(__file__).parents[2] / "src"
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(source)],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_the_winner_and_the_two_largest_logits_are_exact(results):
    for case, found in results.items():
        assert found["prediction"] == found["top"] == found["second"] == 0, case
        assert found["finite"] == 1, case


def test_float64_logits_keep_float64(results):
    cases = [case for case in results if case.startswith("float64") or case.endswith("apart")]
    assert len(cases) == 6
    for case in cases:
        assert all(value < 1e-13 for name, value in results[case].items() if name != "finite"), (case, results[case])


def test_narrower_logits_have_the_sums_of_logits_moved_by_less_than_a_millionth(results):
    for case, found in results.items():
        for name in ("t", "w", "q", "deviation", "log_entropy", "log_one_minus_max", "log_one_minus_norm"):
            assert found[name] < 5e-7, (case, name, found[name])
