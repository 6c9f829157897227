"""Fixtures of the deployment's tests: a graph, exported once."""

import pytest

from support.tiny_selective import exported


@pytest.fixture(scope="session")
def graph(once):
    """The calibrated classifier of `support.tiny_selective` as a graph."""
    return once("graph", lambda folder: exported(folder / "model.onnx")) / "model.onnx"
