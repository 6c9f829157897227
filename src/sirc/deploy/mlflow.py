"""MLflow models of exported graphs: images or arrays in, a table of decisions out, without pickle."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import numpy as np
import pandas as pd

from sirc._utils.files import PathLike
from sirc._utils.imports import DISTRIBUTION, needing
from sirc.deploy.batch_callables import DecideImages
from sirc.deploy.onnx import ROW, OnnxGraph
from sirc.deploy.predict import COLUMNS

if TYPE_CHECKING:
    from mlflow.models.model import ModelInfo
    from mlflow.models.signature import ModelSignature

_BYTES = "bytes"  # the column of encoded images
_DECISION = COLUMNS[1:6]  # accepted, label, class, confidence, reason
_AT_ONCE = 64  # images in one call of the network


def save_model(graph: PathLike, path: PathLike, **options: Any) -> None:
    """Write a graph of `export_onnx` as an MLflow model into a new folder, for `mlflow.pyfunc.load_model`.

    If the graph knows how to prepare images, the model takes a table with image files in the column `bytes` and returns
    the columns of `sirc predict`. Otherwise it takes the network's inputs, an array or a dict of arrays. The signature
    says which, and the metadata state the threshold's promise. `options` go to `mlflow.pyfunc.save_model`.
    """
    with _pyfunc() as pyfunc:
        pyfunc.save_model(path=Path(path), **_described(graph, **options))


def log_model(graph: PathLike, name: str = "model", **options: Any) -> ModelInfo:
    """Log a graph in the current run, as `save_model` writes it; `options` go to `mlflow.pyfunc.log_model`.

    `registered_model_name="flowers"` registers it too.
    """
    with _pyfunc() as pyfunc:
        made: ModelInfo = pyfunc.log_model(name=name, **_described(graph, **options))
    return made


def load_model(uri: str) -> OnnxGraph:
    """Load the graph itself, with its `threshold` and `classes`, from an MLflow model."""
    with _pyfunc():
        from mlflow.artifacts import download_artifacts
        from mlflow.models import Model

    folder = Path(download_artifacts(artifact_uri=uri)).resolve()
    flavour = Model.load(folder).flavors.get("python_function", {})
    place = (folder / str(flavour.get("data"))).resolve()
    if flavour.get("loader_module") != __name__ or not place.is_relative_to(folder):
        raise ValueError(f"'{uri}' must be a model that `save_model` or `log_model` wrote, with its graph inside")
    return OnnxGraph(place)


def _load_pyfunc(path: str) -> _ImageModel | _ArrayModel:
    """Load the model; MLflow calls this by name."""
    graph = OnnxGraph(path)
    return _ImageModel(path) if graph.takes_images else _ArrayModel(graph)


@final
class _ImageModel:
    """A graph that takes image files, with the method that MLflow calls."""

    def __init__(self, path: str) -> None:
        self._decide = DecideImages(path, _BYTES, keep=())

    def predict(self, images: pd.DataFrame, params: dict[str, Any] | None = None) -> pd.DataFrame:
        """Decide about images, a few at a time; `params` are ignored."""
        files, names = list(images[_BYTES]), [f"row {number}" for number in range(len(images))]
        spans = [slice(start, start + _AT_ONCE) for start in range(0, len(files) or 1, _AT_ONCE)]
        parts = [self._decide({_BYTES: files[span], "path": names[span]}) for span in spans]
        return pd.concat(parts, ignore_index=True)


@final
class _ArrayModel:
    """A graph that takes the network's inputs, with the method that MLflow calls."""

    def __init__(self, graph: OnnxGraph) -> None:
        self._graph = graph

    def predict(self, batch: Any, params: dict[str, Any] | None = None) -> pd.DataFrame:
        """Decide about an array or a dict of arrays; `params` are ignored."""
        return pd.DataFrame(self._graph.rows(batch), columns=ROW)[_DECISION]


def _described(graph: PathLike, **options: Any) -> dict[str, Any]:
    """The arguments that describe a graph to MLflow, with the caller's own `options`."""
    from sirc import __version__

    opened = OnnxGraph(graph)  # refuses other graphs
    extras = "onnx,vision" if opened.takes_images else "onnx"
    threshold = opened.threshold
    metadata = {"score": opened.spec, "threshold": threshold.value, "promise": threshold.guarantee}
    return {
        "signature": _signature(opened),
        "pip_requirements": [f"{DISTRIBUTION}[{extras}]=={__version__}"],
        **options,
        "metadata": metadata | (options.get("metadata") or {}),
        "loader_module": __name__,
        "data_path": str(graph),
    }


def _signature(graph: OnnxGraph) -> ModelSignature:
    from mlflow.models.signature import ModelSignature
    from mlflow.types import ColSpec, Schema, TensorSpec

    kinds = {"accepted": "boolean", "label": "long", "confidence": "double"}  # the others are texts
    columns = COLUMNS[1:] if graph.takes_images else _DECISION
    # An image that cannot be read has a row, but no label.
    outputs = Schema([ColSpec(kinds.get(name, "string"), name, required=name == "accepted") for name in columns])
    if graph.takes_images:
        return ModelSignature(Schema([ColSpec("binary", _BYTES)]), outputs)
    alone = graph.inputs == ["images"]
    tensors: list[ColSpec | TensorSpec] = [
        TensorSpec(np.dtype(dtype), tuple(-1 if side is None else side for side in shape), None if alone else name)
        for name, dtype, shape in graph.takes
    ]
    return ModelSignature(Schema(tensors), outputs)


@contextmanager
def _pyfunc() -> Iterator[Any]:
    """Import MLflow's pyfunc; silence its warnings about its own types and about the missing input example."""
    with needing("an MLflow model", "mlflow", "mlflow"), warnings.catch_warnings(action="ignore"):
        import mlflow.pyfunc
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*An input example was not provided")
        yield mlflow.pyfunc
