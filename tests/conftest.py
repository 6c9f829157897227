"""What the tests of scores share."""

import os

import pytest
import torch

from sirc.scores import registry, spec

if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)  # workers share the cores


@pytest.fixture
def scratch_registry():
    """Scores registered in a test are gone after it."""
    before = dict(registry._SCORES)
    yield
    registry._SCORES.clear()
    registry._SCORES.update(before)
    spec._parse.cache_clear()


@pytest.fixture
def command(capfd):
    """Run a command as the shell would: its exit code, what it printed, what it told."""
    from sirc.cli import main

    def run(*arguments):
        with pytest.raises(SystemExit) as stop:
            main([str(argument) for argument in arguments])
        out, err = capfd.readouterr()
        return stop.value.code or 0, out, err

    return run
