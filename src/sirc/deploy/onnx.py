"""ONNX export: a calibrated classifier as one graph, from images to decisions."""

from __future__ import annotations

import hashlib
import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from sirc._utils.files import atomic_write, refuse_existing
from sirc.errors import StoreError

if TYPE_CHECKING:
    from sirc.deploy.selective import SelectiveClassifier

OUTPUTS = ("label", "confidence", "accepted", "logits")
KEY, DIGEST = "sirc", "sirc-digest"
_CLOSE = 1e-4


def export(
    selective: SelectiveClassifier, path: Path, example: Tensor, *, overwrite: bool, opset: int | None = None
) -> None:
    """Export, and compare with the module on the example, whole and in other batch sizes."""
    from sirc.deploy.saved import about

    refuse_existing(path, overwrite)
    onnx, runtime = _libraries()
    if not isinstance(example, Tensor) or example.ndim < 2 or not len(example):
        raise ValueError("`example` must be a batch of at least one image, as the model takes it: (n, 3, H, W)")
    if any(weight.dtype == torch.bfloat16 for weight in selective.model.parameters()):
        raise ValueError("a model in bfloat16 cannot be exported, as runtimes do not know it: use float32 or float16")
    selective(example)  # finds the head, and says early what is wrong
    facts = json.dumps(about(selective))
    graph = _traced(selective, example, opset)
    for key, text in ((KEY, facts), (DIGEST, _digest(facts))):
        graph.metadata_props.append(onnx.StringStringEntryProto(key=key, value=text))
    data = graph.SerializeToString()
    session = runtime.InferenceSession(data, providers=["CPUExecutionProvider"])
    _check(session, selective, example)
    atomic_write(path, lambda file: file.write(data))


def facts_of(session: Any) -> dict[str, Any]:
    """The description in a graph's metadata; a graph from elsewhere is refused."""
    metadata = session.get_modelmeta().custom_metadata_map
    written = metadata.get(KEY)
    if written is None:
        raise ValueError("the graph must be one that `export_onnx` wrote; it does not say how it was calibrated")
    if metadata.get(DIGEST) != _digest(written):
        raise StoreError("what the graph says of its calibration was changed after `export_onnx`: export it again")
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


def _check(session: Any, selective: SelectiveClassifier, example: Tensor) -> None:
    """Compare the graph with the module, for batches of one, of two and of more."""
    wide = torch.cat((example, example, example))
    for rows in sorted({1, 2, len(example), len(wide)}):
        expected = selective(wide[:rows])
        outputs = session.run(None, {"images": wide[:rows].cpu().numpy()})
        label, confidence, accepted, logits = (torch.as_tensor(value) for value in outputs)
        half = expected.logits.dtype == torch.float16 or wide.dtype == torch.float16
        for name, got, want in (("confidence", confidence, expected.confidence), ("logits", logits, expected.logits)):
            off = (got.double() - want.cpu().double()).abs()
            if got.shape != want.shape or bool((off > (1e-2 if half else _CLOSE) * (1 + want.cpu().abs())).any()):
                raise ValueError(
                    f"the exported graph must give the model's {name}; on {rows} images it gives others. Export from "
                    "float32 on the CPU, or report the model"
                )
        top = expected.logits.topk(2).values.cpu()
        clear = (top[:, 0] - top[:, 1]) > 10 * _CLOSE * (1 + top[:, 0].abs())
        sure = (expected.confidence - selective.limit.value).abs().cpu() > (1e-2 if half else 10 * _CLOSE)
        same = (accepted == expected.accepted.cpu())[sure].all() and (label == expected.label.cpu())[clear].all()
        if not bool(same):
            raise ValueError("the exported graph must decide as the model does; it decides otherwise. Report the model")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the exporter's logs and warnings; errors are still raised."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "torch.export", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _libraries() -> tuple[Any, Any]:
    try:
        import onnx
        import onnxruntime
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise ImportError("exporting needs onnx, onnxruntime and onnxscript: pip install 'sirc[onnx]'") from error
    return onnx, onnxruntime
