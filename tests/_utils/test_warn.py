"""A warning names the user's line, from whatever depth of the library."""

import inspect
import warnings

import pytest
import torch

import sirc
from sirc.outputs import warn_of_labels

LABELS = torch.arange(400) // 20
SHIFTED = torch.where(LABELS < 5, LABELS, (LABELS + 1) % 20)


def of_labels():
    warn_of_labels("test", LABELS, SHIFTED)


def of_evaluate():
    logits = torch.nn.functional.one_hot(LABELS, 20) + torch.rand(400, 20)
    sirc.evaluate(sirc.Scorer(["msp"]), sirc.Outputs(logits, labels=SHIFTED))


def of_head():
    z = torch.randn(400, 8)
    W = torch.randn(5, 8)
    sirc.fit("residual", sirc.Outputs(1.2 * z @ W.T, z), head=sirc.Head(W))


@pytest.mark.parametrize("call", [of_labels, of_evaluate, of_head])
def test_a_warning_shows_the_line_that_called_sirc(call):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    (told,) = caught
    assert issubclass(told.category, sirc.DataWarning)
    lines, first = inspect.getsourcelines(call)
    assert (told.filename, told.lineno) == (__file__, first + len(lines) - 1)
