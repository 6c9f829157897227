"""The GPU's kernel for the sums under risk curves, run by Triton's interpreter: no GPU is needed for its arithmetic."""

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("triton", reason="needs Triton")
pytestmark = pytest.mark.slow

_PROGRAM = """
import contextlib, json, torch
torch.cuda.device_of = lambda tensor: contextlib.nullcontext()
from sirc.metrics import Ranking
generator = torch.Generator().manual_seed(0)
worst = 0.0
for sizes in ((1, 0, 0), (3, 1, 2), (900, 150, 1100), (40, 3, 0)):
    for decimals in (1, 9):
        groups = [torch.randn(n, generator=generator).double().round(decimals=decimals) for n in sizes]
        weights = torch.rand(sizes[2], generator=generator).double() + 0.1 if sizes[2] > 2 else None
        ranking = Ranking(*groups, ood_weights=weights)
        alpha = torch.linspace(0, 1, 3, dtype=torch.float64) if sizes[2] else torch.ones(1, dtype=torch.float64)
        for found, expected in zip(ranking._kernel_sums(alpha), ranking._area_sums(alpha), strict=True):
            assert found.shape == expected.shape
            worst = max(worst, float((found - expected).abs().max()))
print(json.dumps(worst))
"""


def test_the_kernel_gives_the_plain_sums():
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) < 1e-12
