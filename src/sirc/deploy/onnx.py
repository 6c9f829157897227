"""ONNX: a calibrated classifier as one graph, from images to decisions; written with a digest, checked and run."""

from __future__ import annotations

import hashlib
import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sirc._utils.checks import check_at_least
from sirc._utils.files import PathLike, atomic_write, refuse_existing
from sirc.data import Preprocess
from sirc.deploy.saved import about, preprocess_from
from sirc.deploy.selective import Decision, SelectiveClassifier
from sirc.deploy.threshold import Threshold
from sirc.errors import ImageError, StoreError

_FACTS, _SEAL = "sirc", b"sirc-sha256"
_FACTS_DIGEST = "sirc-digest"  # all that earlier versions had
_OUTPUTS = ("label", "confidence", "accepted")


def export(
    selective: SelectiveClassifier, path: Path, example: Tensor, *, overwrite: bool, opset: int | None = None
) -> None:
    """Export, and compare with the module on the example, whole and in other batch sizes."""
    refuse_existing(path, overwrite)
    try:
        import onnx
        import onnxruntime
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise ImportError("exporting needs onnx, onnxruntime and onnxscript: pip install 'sirc[onnx]'") from error
    if not isinstance(example, Tensor) or example.ndim < 2 or not len(example):
        raise ValueError("`example` must be a batch of at least one image, as the model takes it: (n, 3, H, W)")
    if any(weight.dtype == torch.bfloat16 for weight in selective.model.parameters()):
        raise ValueError("a model in bfloat16 cannot be exported, as runtimes do not know it: use float32 or float16")
    selective(example)  # finds the head, and says early what is wrong
    facts = json.dumps(about(selective))
    # Two rows at least: a batch of one would be taken for a constant.
    batch = example if len(example) > 1 else torch.cat((example, example))
    with _quiet(), torch.no_grad():
        program = torch.onnx.export(
            selective,
            (batch,),
            dynamo=True,
            input_names=["images"],
            output_names=["label", "confidence", "accepted", "logits"],
            dynamic_shapes={"images": {0: torch.export.Dim("batch")}},
            opset_version=opset,
            optimize=True,
            verbose=False,
        )
    assert program is not None
    graph: Any = program.model_proto
    for node in graph.graph.node:
        node.ClearField("metadata_props")  # the exporter's stack traces, with the paths of this machine
    graph.metadata_props.append(onnx.StringStringEntryProto(key=_FACTS, value=facts))
    data = graph.SerializeToString()
    data += _seal(data)
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    _check(session, selective, example)
    atomic_write(path, lambda file: file.write(data))


def _check(session: Any, selective: SelectiveClassifier, example: Tensor) -> None:
    """Compare the graph with the module, for batches of one, of two and of more."""
    wide = torch.cat((example, example, example))
    share, threshold = selective.tolerance(example.dtype), selective._check_threshold()
    margin = threshold.margin or share
    for rows in sorted({1, 2, len(example), len(wide)}):
        expected = Decision(*(value.cpu() for value in selective(wide[:rows])))
        outputs = session.run(None, {"images": wide[:rows].cpu().numpy()})
        got = Decision(*(torch.as_tensor(value) for value in outputs))
        close = all(
            torch.allclose(value.double(), want.double(), rtol=share, atol=near, equal_nan=True)
            for value, want, near in (
                (got.confidence, expected.confidence, margin),
                (got.logits, expected.logits, share),
            )
        )
        first, second = expected.logits.topk(2).values.unbind(1)
        clear = first - second > 10 * share * (1 + first.abs())
        sure = (expected.confidence - threshold.value).abs() > margin
        same = (got.accepted == expected.accepted)[sure].all() and (got.label == expected.label)[clear].all()
        if not (close and same):
            raise ValueError(
                f"the exported graph must give what the model gives, to a share of {share:g}; on {rows} images it does "
                "not. Export from float32 on the CPU, or report the model"
            )


def _seal(body: bytes | memoryview) -> bytes:
    """The end of a file: the digest of all bytes before it, as one more entry of the graph's metadata in protobuf."""
    entry = b"\x0a%c%s\x12\x40%s" % (len(_SEAL), _SEAL, hashlib.sha256(body).hexdigest().encode())
    return b"\x72%c%s" % (len(entry), entry)


def _is_sealed(data: bytes) -> bool:
    """Tell whether a file is as it was written; a file of an earlier version, or from elsewhere, has no seal."""
    if data.endswith(_seal(memoryview(data)[: -len(_seal(b""))])):
        return True
    if _SEAL in data:  # known before onnxruntime is let near it
        raise StoreError("its digest tells that graph, weights, threshold or classes were changed since")
    return False


def _facts_of(session: Any, sealed: bool) -> dict[str, Any]:
    """What a graph says of its calibration."""
    metadata = session.get_modelmeta().custom_metadata_map
    facts = metadata.get(_FACTS)
    if facts is None:
        raise StoreError("it does not say how it was calibrated")
    if not sealed and metadata.get(_FACTS_DIGEST) != hashlib.sha256(facts.encode()).hexdigest():
        raise StoreError("its digest tells that what it says of its calibration was changed since")
    return dict(json.loads(facts))


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the exporter's logs and warnings; errors are still raised."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        logging.disable(before)


class OnnxDecision(NamedTuple):
    """The decisions about a batch, one row for each image."""

    label: npt.NDArray[np.int64]
    confidence: npt.NDArray[np.float64]
    accepted: npt.NDArray[np.bool_]


@final
class OnnxModel:
    """A graph that `export_onnx` wrote, run on the CPU; several threads may call it at the same time.

    `threads` is how many threads onnxruntime uses for one batch; 0 is one for each core.
    """

    def __init__(self, path: PathLike, *, threads: int = 0) -> None:
        if not Path(path).is_file():
            raise FileNotFoundError(f"there is no file '{path}'. Make it with `sirc export` or `export_onnx`.")
        check_at_least("threads", threads, 0)
        try:
            import onnxruntime
        except ImportError as error:
            raise ImportError("running an exported graph needs onnxruntime: pip install 'sirc[onnx]'") from error
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3
        # Threads that spin while they wait would take the cores from other requests.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        data = Path(path).read_bytes()  # the bytes that are checked are run, whatever becomes of the file
        try:
            sealed = _is_sealed(data)
            try:
                self._session: Any = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
            except Exception as error:  # onnxruntime has errors of its own, which share no class
                raise StoreError(f"onnxruntime cannot run it ({str(error).partition(chr(10))[0]})") from error
            self.facts = _facts_of(self._session, sealed)
            self.spec = str(self.facts["spec"])
            self.classes: list[str] | None = self.facts["classes"]
            self.threshold = Threshold.from_dict(self.facts["threshold"])
            preprocess = preprocess_from(self.facts["preprocess"])
            if preprocess is None:
                raise ValueError("it must say how images are prepared: give `SelectiveClassifier` a `preprocess=`")
            if missing := set(_OUTPUTS) - {output.name for output in self._session.get_outputs()}:
                raise ValueError(f"it lacks the outputs {', '.join(sorted(missing))}")
            _, _, height, width = self._session.get_inputs()[0].shape
        except (KeyError, TypeError, ValueError) as error:
            text = f"'{path}' must be an ONNX graph as `export_onnx` wrote it: {error}. Export it again."
            raise StoreError(text) from error
        if not sealed:
            warnings.warn(
                f"'{path}' was exported by an earlier version of sirc, without a digest of its weights: damage to them "
                "goes unnoticed. Export it again.",
                stacklevel=2,
            )
        self.preprocess: Preprocess = preprocess
        self.size = tuple(side if isinstance(side, int) else None for side in (height, width))

    def check_size(self, name: str, height: int, width: int) -> None:
        """Refuse prepared images whose height and width the graph does not take."""
        if any(side not in (None, actual) for side, actual in zip(self.size, (height, width), strict=True)):
            wanted, has = (" × ".join(map(str, reversed(size))) for size in (self.size, (height, width)))
            raise ImageError(f"{name} must have {wanted} pixels once prepared; it has {has}")

    def __call__(self, images: npt.NDArray[np.float32]) -> OnnxDecision:
        """Decide about prepared images, (n, 3, H, W)."""
        return OnnxDecision(*self._session.run(list(_OUTPUTS), {"images": images}))
