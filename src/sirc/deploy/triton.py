"""Triton model folders: an exported graph and the config.pbtxt that describes it."""

from __future__ import annotations

import json
from pathlib import Path

from sirc._utils.checks import check_path, check_positive
from sirc._utils.files import PathLike, atomic_write, refuse_existing
from sirc.deploy.onnx import OnnxGraph, OnnxTensor


def write_triton(graph: PathLike, folder: PathLike, *, max_batch_size: int = 64, overwrite: bool = False) -> Path:
    """Write a folder for Triton or KServe to serve a graph of `export_onnx`; the model gets the folder's name.

    Triton joins requests into batches of up to `max_batch_size`; the threshold's margin covers that. Label,
    confidence, accepted and reason have the shape (n, 1).
    """
    place = check_path("folder", folder)
    check_positive("max_batch_size", max_batch_size)
    refuse_existing(place, overwrite, folder=True)
    opened, data = OnnxGraph(graph), Path(graph).read_bytes()
    text = config(opened, place.absolute().name, max_batch_size)
    atomic_write(place / "1" / "model.onnx", lambda file: file.write(data))
    atomic_write(place / "config.pbtxt", lambda file: file.write(text.encode()))
    return place


def config(graph: OnnxGraph, name: str, max_batch_size: int) -> str:
    """The text of a config.pbtxt for a graph."""
    lines = [
        f"name: {json.dumps(name, ensure_ascii=False)}",
        'backend: "onnxruntime"',
        f"max_batch_size: {max_batch_size}",
        "dynamic_batching { }",
    ]
    for side, tensors in (("input", graph.takes), ("output", graph.gives)):
        lines += [f"{side} [", ",\n".join(map(_described, tensors)), "]"]
    return "\n".join(lines) + "\n"


def _described(tensor: OnnxTensor) -> str:
    """One input or output. For Triton the batch is no dimension, and at least one other is needed."""
    sides = [-1 if side is None else side for side in tensor.shape[1:]]
    dims = f"dims: [ {', '.join(map(str, sides))} ]" if sides else "dims: [ 1 ] reshape: { shape: [ ] }"
    code = tensor.dtype.upper().replace("FLOAT", "FP")
    return f"  {{ name: {json.dumps(tensor.name)} data_type: TYPE_{code} {dims} }}"
