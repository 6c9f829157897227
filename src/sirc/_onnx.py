"""A calibrated classifier as one ONNX graph: images in; label, confidence, accepted and logits out."""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from sirc._files import atomic_write, refuse_existing

if TYPE_CHECKING:
    from sirc.selective import Decision, SelectiveClassifier

OUTPUTS = ("label", "confidence", "accepted", "logits")
KEY = "sirc"
_CLOSE = 1e-4


def export(
    selective: SelectiveClassifier, path: Path, example: Tensor, *, overwrite: bool, opset: int | None = None
) -> None:
    """Export, and compare with the module on the example, whole and in other batch sizes."""
    from sirc._artifact import about

    refuse_existing(path, overwrite)
    onnx, runtime = _libraries()
    if not isinstance(example, Tensor) or example.ndim < 2 or not len(example):
        raise ValueError("`example` must be a batch of at least one image, as the model takes it: (n, 3, H, W)")
    facts = about(selective)
    expected = selective(example)  # finds the head, and says early what is wrong
    graph = _traced(selective, example, opset)
    graph.metadata_props.append(onnx.StringStringEntryProto(key=KEY, value=json.dumps(facts)))
    data = graph.SerializeToString()
    session = runtime.InferenceSession(data, providers=["CPUExecutionProvider"])
    _check(session, selective, example, expected)
    atomic_write(path, lambda file: file.write(data))


def facts_of(session: Any) -> dict[str, Any]:
    """What a graph says of itself; a graph from elsewhere is refused."""
    written = session.get_modelmeta().custom_metadata_map.get(KEY)
    if written is None:
        raise ValueError("the graph must be one that `export_onnx` wrote; it does not say how it was calibrated")
    facts: dict[str, Any] = json.loads(written)
    return facts


def _traced(selective: SelectiveClassifier, example: Tensor, opset: int | None) -> Any:
    # Two rows at least: a batch of one would be taken for a constant.
    batch = example if len(example) > 1 else torch.cat((example, example))
    with _quiet(), torch.no_grad():
        program = torch.onnx.export(
            _Plain(selective),
            (batch,),
            dynamo=True,
            input_names=["images"],
            output_names=list(OUTPUTS),
            dynamic_shapes={"images": {0: torch.export.Dim("batch")}},
            opset_version=opset,
            optimize=True,
            verbose=False,
        )
    assert program is not None
    return program.model_proto


class _Plain(nn.Module):
    """The classifier with a plain tuple as its result."""

    def __init__(self, selective: SelectiveClassifier) -> None:
        super().__init__()
        self.selective = selective

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        label, confidence, accepted, logits = self.selective(images)
        return label, confidence, accepted, logits


def _check(session: Any, selective: SelectiveClassifier, example: Tensor, expected: Decision) -> None:
    for rows in sorted({1, len(example), min(3, len(example))}):
        found = session.run(None, {"images": example[:rows].cpu().numpy()})
        _, confidence, accepted, logits = (torch.as_tensor(value) for value in found)
        for name, got, want in (
            ("confidence", confidence, expected.confidence[:rows]),
            ("logits", logits, expected.logits[:rows]),
        ):
            scale = max(1.0, float(want.abs().max()))
            if got.shape != want.shape or float((got.double() - want.cpu().double()).abs().max()) > _CLOSE * 10 * scale:
                raise ValueError(
                    f"the exported graph must give the model's {name}; on {rows} images it gives others. Export from "
                    "float32 on the CPU, or report the model"
                )
        sure = (expected.confidence[:rows] - selective.limit.value).abs().cpu() > _CLOSE * 10
        if not bool((accepted == expected.accepted[:rows].cpu())[sure].all()):
            raise ValueError("the exported graph must decide as the model does; it decides otherwise. Report the model")


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the exporter's talk to itself; what goes wrong is raised."""
    talkers = [logging.getLogger(name) for name in ("torch.onnx", "torch.export", "onnxscript", "onnx_ir")]
    levels = [talker.level for talker in talkers]
    try:
        for talker in talkers:
            talker.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for talker, level in zip(talkers, levels, strict=True):
            talker.setLevel(level)


def _libraries() -> tuple[Any, Any]:
    try:
        import onnx
        import onnxruntime
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise ImportError("exporting needs onnx, onnxruntime and onnxscript: pip install 'sirc[onnx]'") from error
    return onnx, onnxruntime
