"""ONNX graphs of calibrated classifiers, from images to decisions: written, checked and run."""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import repeat
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from sirc._utils.arrays import ArrayLike, as_tensor
from sirc._utils.checks import check_at_least, check_path, check_same_length, dtype_name
from sirc._utils.files import PathLike, atomic_write, refuse_existing
from sirc._utils.imports import needing
from sirc._utils.text import first_line, shorten
from sirc._utils.warn import warn
from sirc.data import Preprocess
from sirc.deploy.saved import about, calibration_sample, preprocess_from, stored_classes
from sirc.deploy.selective import Decision, SelectiveClassifier
from sirc.deploy.threshold import Threshold
from sirc.errors import ImageError, StoreError
from sirc.models import LABEL_KEYS

_FACTS, _SEAL = "sirc", b"sirc-sha256"
_FACTS_DIGEST = "sirc-digest"  # earlier versions had only this one
_OUTPUTS = ("label", "confidence", "accepted")
_REASON = "reason"  # graphs of earlier versions have none


def export(
    selective: SelectiveClassifier,
    path: Path,
    example: Tensor | Mapping[str, Tensor],
    *,
    overwrite: bool,
    opset: int | None = None,
) -> None:
    """Export a classifier, and compare the graph with it on the example in several batch sizes."""
    refuse_existing(path, overwrite)
    with needing("exporting", "onnx, onnxruntime and onnxscript", "onnx"):
        import onnx
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    # The exporter would take a batch size of one for a constant.
    inputs = {name: torch.cat([value] * 3) for name, value in _inputs(example).items()}
    if any(weight.dtype == torch.bfloat16 for weight in selective.model.parameters()):
        raise ValueError("a model in bfloat16 cannot be exported: runtimes lack that type. Use float32 or float16")
    selective(example)  # finds the head, and fails early
    size = torch.export.Dim("batch")
    with _exporting(selective.model):
        program = torch.onnx.export(
            _Explaining(selective, list(inputs)).eval(),
            tuple(inputs.values()),
            dynamo=True,
            input_names=list(inputs),
            output_names=[*_OUTPUTS, "logits", _REASON],
            dynamic_shapes=(tuple({0: size} for _ in inputs),),
            opset_version=opset,
            optimize=True,
            verbose=False,
        )
    assert program is not None
    graph: Any = program.model_proto
    for node in graph.graph.node:
        node.ClearField("metadata_props")  # the exporter's stack traces, with the paths of this machine
    graph.metadata_props.append(onnx.StringStringEntryProto(key=_FACTS, value=described(selective)))
    data = graph.SerializeToString()
    data += _seal(data)
    try:
        session = _session_of(data, threads=0)
    except StoreError as error:
        raise ValueError(
            f"to be exported, a classifier must use only what onnxruntime has; {error}. Write the score, or the "
            "model, with other functions"
        ) from error
    _check(session, selective, inputs)
    atomic_write(path, lambda file: file.write(data))


@final
class _Explaining(nn.Module):
    """A classifier that also gives the index of each reason.

    It takes its inputs by position, as the exporter cannot compare the sizes of tensors inside a dict.
    """

    def __init__(self, selective: SelectiveClassifier, names: list[str]) -> None:
        super().__init__()
        self.selective, self.names = selective, names

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        logits, features = self.selective.outputs(_batch(dict(zip(self.names, inputs, strict=True))))
        label, confidence, accepted, reason = self.selective.scoring.explain(logits, features)
        return label, confidence, accepted, logits, reason


def described(selective: SelectiveClassifier) -> str:
    """A graph's metadata: what `save` writes, the words of the reasons, and the calibration's confidences."""
    rows = calibration_sample(selective.calibration).numpy().astype("<f8")
    kept = base64.b64encode(rows.tobytes()).decode() if len(rows) else None
    return json.dumps({**about(selective), "reasons": selective.scoring.reasons, "confidences": kept})


def _inputs(example: Tensor | Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The inputs of the graph by name: one called images, or those of a dict without its labels."""
    named = {"images": example} if isinstance(example, Tensor) else example
    if isinstance(named, Mapping):
        inputs = {name: value for name, value in named.items() if name not in LABEL_KEYS}
        if inputs and all(isinstance(x, Tensor) and x.ndim > 1 and len(x) for x in inputs.values()):
            return inputs
    raise ValueError(
        "`example` must be a batch of at least one input, as the model takes it: images (n, 3, H, W), or a dict "
        "of tensors with two dimensions or more"
    )


def _batch(inputs: dict[str, Any]) -> Any:
    """The argument of the model: the images, or the dict."""
    return inputs["images"] if list(inputs) == ["images"] else inputs


def _check(session: Any, selective: SelectiveClassifier, inputs: dict[str, Tensor]) -> None:
    """Compare the graph with the module, for batches of one, of two and of all."""
    share, threshold = selective.tolerance(*(value.dtype for value in inputs.values())), selective._check_threshold()
    margin = threshold.margin or share
    for rows in (1, 2, len(next(iter(inputs.values())))):
        some = {name: value[:rows] for name, value in inputs.items()}
        expected = Decision(*(value.cpu() for value in selective(_batch(some))))
        outputs = session.run(None, {name: value.cpu().numpy() for name, value in some.items()})
        got = Decision(*(torch.as_tensor(value) for value in outputs[:4]))
        close = torch.allclose(got.confidence, expected.confidence, rtol=share, atol=margin)
        close &= torch.allclose(got.logits.double(), expected.logits.double(), rtol=share, atol=share, equal_nan=True)
        first, second = expected.logits.topk(2).values.unbind(1)
        clear = first - second > 10 * share * (1 + first.abs())
        sure = (expected.confidence - threshold.value).abs() > margin
        same = (got.accepted == expected.accepted)[sure].all() and (got.label == expected.label)[clear].all()
        if not (close and same):
            raise ValueError(
                f"the exported graph must agree with the model up to a share of {share:g}; on {rows} images it does "
                "not. Export from float32 on the CPU, or report the model"
            )


def _seal(body: bytes | memoryview) -> bytes:
    """The last bytes of a file: the digest of all bytes before, as one more metadata entry in protobuf."""
    entry = b"\x0a%c%s\x12\x40%s" % (len(_SEAL), _SEAL, hashlib.sha256(body).hexdigest().encode())
    return b"\x72%c%s" % (len(entry), entry)


def _is_sealed(data: bytes) -> bool:
    """Whether a file ends in its digest. Files of earlier versions, or from elsewhere, have none."""
    if data.endswith(_seal(memoryview(data)[: -len(_seal(b""))])):
        return True
    if _SEAL in data:  # refused before onnxruntime reads it
        raise StoreError("its digest shows a later change of the graph, weights, threshold or classes")
    return False


def _facts_of(session: Any, sealed: bool) -> dict[str, Any]:
    """Read the facts about the calibration from a graph's metadata."""
    metadata = session.get_modelmeta().custom_metadata_map
    facts = metadata.get(_FACTS)
    if facts is None:
        raise StoreError("it does not say how it was calibrated")
    if not sealed and metadata.get(_FACTS_DIGEST) != hashlib.sha256(facts.encode()).hexdigest():
        raise StoreError("its digest shows a later change of what it says about its calibration")
    return dict(json.loads(facts))


@contextmanager
def _exporting(model: nn.Module) -> Iterator[None]:
    """Silence the exporter; turn its report about a model that it cannot trace into one line."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(action="ignore"), torch.no_grad():
            yield
    except torch.onnx.OnnxExporterError as error:
        why = shorten(first_line(error.__cause__ or error), 200)
        raise ValueError(
            f"a model must be traceable to be exported; torch cannot trace {type(model).__name__} ({why}). "
            "`torch.onnx.export(model, …, dynamo=True)` shows where"
        ) from error
    finally:
        logging.disable(before)


class OnnxDecision(NamedTuple):
    """The decisions about a batch, one row for each image."""

    label: npt.NDArray[np.int64]
    confidence: npt.NDArray[np.float64]
    accepted: npt.NDArray[np.bool_]


class OnnxRow(NamedTuple):
    """The decision about one input."""

    label: int
    class_name: str | None
    """None if the graph does not name its classes."""
    confidence: float
    accepted: bool
    reason: str | None
    """None in a graph that an earlier version exported."""


ROW = ("label", "class", "confidence", "accepted", "reason")
"""The fields of an `OnnxRow`, as tables and answers name them."""


class OnnxTensor(NamedTuple):
    """An input or output of a graph, with one row for each image: its name, NumPy type and shape."""

    name: str
    dtype: str
    shape: tuple[int | None, ...]
    """None stands for any size."""

    @classmethod
    def of(cls, value: Any) -> OnnxTensor:
        """Convert onnxruntime's description."""
        kind = value.type[len("tensor(") : -1]
        sides = (side if isinstance(side, int) else None for side in value.shape)
        return cls(value.name, {"float": "float32", "double": "float64"}.get(kind, kind), tuple(sides))


class OnnxGraph:
    """A graph that `export_onnx` wrote, run on the CPU; several threads may call it at the same time.

    onnxruntime uses `threads` threads for one batch; 0 means one for each core.
    """

    def __init__(self, path: PathLike, *, threads: int = 0) -> None:
        path = check_path("path", path)
        if not path.is_file():
            raise FileNotFoundError(f"there is no file '{path}'. Make it with `sirc export` or `export_onnx`.")
        if path.suffix == ".safetensors":
            raise StoreError(f"'{path}' is no graph: make one of it with `sirc export` or `export_onnx`.")
        check_at_least("threads", threads, 0)
        data = path.read_bytes()  # read once: the bytes that are checked are those that run
        try:
            sealed = _is_sealed(data)
            self._session = _session_of(data, threads)
            self.takes = [OnnxTensor.of(value) for value in self._session.get_inputs()]
            """The inputs."""
            self.gives = [OnnxTensor.of(value) for value in self._session.get_outputs()]
            """The outputs; a call returns some of them."""
            self.inputs = [tensor.name for tensor in self.takes]
            facts, outputs = _facts_of(self._session, sealed), {tensor.name for tensor in self.gives}
            if missing := set(_OUTPUTS) - outputs:
                raise ValueError(f"it lacks the outputs {', '.join(sorted(missing))}")
            self._outputs = [*_OUTPUTS, *({_REASON} & outputs)]
            self._read(facts)
        except (KeyError, TypeError, ValueError) as error:
            text = f"'{path}' must be an ONNX graph as `export_onnx` wrote it: {error}. Export it again."
            raise StoreError(text) from error
        if not sealed:
            warn(
                f"'{path}' was exported by an earlier version of sirc, without a digest of its weights: damage to them "
                "goes unnoticed. Export it again.",
            )

    def _read(self, facts: dict[str, Any]) -> None:
        self.facts = facts
        self.spec = str(facts["spec"])
        self.classes = stored_classes(facts, {tensor.name: tensor.shape for tensor in self.gives}["logits"][1])
        self.threshold = Threshold.from_dict(facts["threshold"])
        self._reasons = [str(words) for words in facts["reasons"]] if _REASON in self._outputs else None
        self.quantiles = [float(value) for value in facts.get("quantiles") or ()]
        """The calibration's quantiles at 5%, 10%, …, 95%; none if the threshold was given."""
        kept = facts.get("confidences")
        self.calibration = None if kept is None else np.frombuffer(base64.b64decode(kept, validate=True), "<f8")
        """Confidences of the ID rows that set the threshold, for `sirc.monitor`; None in graphs of earlier versions."""

    @property
    def takes_images(self) -> bool:
        """Whether it takes images and knows how to prepare them, as an `OnnxModel` must."""
        return self.facts["preprocess"] is not None and self.inputs == ["images"]

    def __call__(self, batch: ArrayLike | Mapping[str, ArrayLike]) -> OnnxDecision:
        """Decide about a batch as the model took it: an array or tensor, or a dict of them by the names in `inputs`."""
        return self.explain(batch)[0]

    def explain(self, batch: ArrayLike | Mapping[str, ArrayLike]) -> tuple[OnnxDecision, list[str] | None]:
        """Decide, and give the reasons as `SelectiveClassifier.explain` does; None in graphs of earlier versions."""
        named = batch if isinstance(batch, Mapping) else {"images": batch}
        if not set(self.inputs) <= set(named):
            raise ValueError(f"the graph takes {', '.join(self.inputs)}; got {shorten(', '.join(map(str, named)))}")
        given = {taken.name: _fitting(taken, named[taken.name]) for taken in self.takes}
        for name, values in given.items():
            check_same_length(name, values, self.inputs[0], given[self.inputs[0]])
        columns = self._session.run(self._outputs, {name: x.numpy() for name, x in given.items()})
        reasons = None if self._reasons is None else [self._reasons[number] for number in columns[3].tolist()]
        return OnnxDecision(*columns[:3]), reasons

    def rows(self, batch: ArrayLike | Mapping[str, ArrayLike]) -> list[OnnxRow]:
        """Decide; return one row for each input."""
        decision, reasons = self.explain(batch)
        labels, confidences, accepted = (column.tolist() for column in decision)
        names = [self.classes[label] if self.classes else None for label in labels]
        return list(map(OnnxRow, labels, names, confidences, accepted, reasons or repeat(None)))


def _session_of(data: bytes, threads: int) -> Any:
    with needing("running an exported graph", "onnxruntime", "onnx"):
        import onnxruntime
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    # Waiting threads that spin would take the cores from other requests.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    # The digest covers only this file: weights in another one are not read.
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", os.devnull)
    try:
        return onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime has errors of its own, which share no class
        raise StoreError(f"onnxruntime cannot run it ({first_line(error)})") from error


def _fitting(taken: OnnxTensor, values: ArrayLike) -> Tensor:
    """Check that values have the type and shape of a graph's input."""
    name, dtype, shape = taken
    x = as_tensor(name, values).cpu()
    if dtype_name(x.dtype) != dtype:
        raise ValueError(f"`{name}` must be {dtype}, as the model took it; got {dtype_name(x.dtype)}. Convert it")
    if len(shape) != x.ndim or any(side not in (None, has) for side, has in zip(shape, x.shape, strict=True)):
        wanted = ", ".join(["n", *("any" if side is None else str(side) for side in shape[1:])])
        raise ValueError(f"`{name}` must have the shape ({wanted}), a row for each input; got {tuple(x.shape)}")
    return x


@final
class OnnxModel(OnnxGraph):
    """A graph that decides about images, and knows how to prepare them."""

    def _read(self, facts: dict[str, Any]) -> None:
        super()._read(facts)
        preprocess = preprocess_from(facts["preprocess"])
        if preprocess is None or not self.takes_images:
            raise ValueError("it must take images and say how they are prepared: give the classifier a `preprocess=`")
        self.preprocess: Preprocess = preprocess
        _, _, *self.size = self.takes[0].shape

    def check_size(self, name: str, height: int, width: int) -> None:
        """Refuse prepared images of a height or width that the graph does not take."""
        if any(side not in (None, actual) for side, actual in zip(self.size, (height, width), strict=True)):
            wanted, has = (" × ".join(map(str, reversed(size))) for size in (self.size, (height, width)))
            raise ImageError(f"{name} must have {wanted} pixels once prepared; it has {has}")
