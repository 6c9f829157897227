"""OnnxModel: run an exported graph, with its threshold, classes and preprocessing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np
import numpy.typing as npt

from sirc._utils.files import PathLike
from sirc.data import Preprocess
from sirc.deploy.onnx import facts_of
from sirc.deploy.saved import preprocess_from
from sirc.deploy.threshold import Threshold

_OUTPUTS = ("label", "confidence", "accepted")


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
        self.path = Path(path)
        if not self.path.is_file():
            raise FileNotFoundError(f"there is no file '{path}'. Make it with `sirc export` or `export_onnx`.")
        self._session = _session(self.path, threads)
        try:
            self.facts = facts_of(self._session)
            self.spec = str(self.facts["spec"])
            self.classes: list[str] | None = self.facts["classes"]
            self.threshold = Threshold.from_dict(self.facts["threshold"])
            preprocess = preprocess_from(self.facts["preprocess"])
            shape = self._session.get_inputs()[0].shape
            missing = set(_OUTPUTS) - {output.name for output in self._session.get_outputs()}
        except (KeyError, TypeError, json.JSONDecodeError) as error:
            raise ValueError(
                f"'{path}' must say how it was calibrated; what it says is damaged. Export it again."
            ) from error
        except ValueError as error:
            raise ValueError(f"'{path}': {error}") from error
        if missing or len(shape) != 4:
            raise ValueError(
                f"'{path}' must be a graph from images to decisions, as `export_onnx` writes it; it is another."
            )
        if preprocess is None:
            raise ValueError(
                f"'{path}' must say how images are prepared; it does not. Give `SelectiveClassifier` a "
                "`preprocess=sirc.data.Preprocess(…)`, calibrate, and export again."
            )
        self.preprocess: Preprocess = preprocess
        height, width = (side if isinstance(side, int) else None for side in shape[2:])
        self.size: tuple[int | None, int | None] = (height, width)

    def fits(self, image: npt.NDArray[np.float32]) -> bool:
        """Tell whether a prepared image has the height and width that the graph takes."""
        return all(side in (None, got) for side, got in zip(self.size, image.shape[-2:], strict=True))

    def __call__(self, images: npt.NDArray[np.float32]) -> OnnxDecision:
        """Decide about prepared images, (n, 3, H, W)."""
        return OnnxDecision(*self._session.run(list(_OUTPUTS), {"images": images}))

    def blank(self) -> npt.NDArray[np.float32]:
        """A batch of one black image, to try the graph with."""
        height, width = (side or 32 for side in self.size)
        return np.zeros((1, 3, height, width), dtype=np.float32)

    def name_of(self, label: int) -> str | None:
        """The name of a class, if classes have names."""
        return None if self.classes is None else self.classes[label]


def _session(path: Path, threads: int) -> Any:
    if not isinstance(threads, int) or threads < 0:
        raise ValueError(f"`threads` must be a whole number, 0 for one on each core; got {threads!r}")
    try:
        import onnxruntime
    except ImportError as error:
        raise ImportError("running an exported graph needs onnxruntime: pip install 'sirc[onnx]'") from error
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    # Threads that spin while they wait would take the cores from other requests.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime has errors of its own, which share no class
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise ValueError(
            f"'{path}' must be an ONNX graph that onnxruntime can run: {reason}. Export it again."
        ) from error
