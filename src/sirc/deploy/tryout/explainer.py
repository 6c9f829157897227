"""The explainer: the decision about one image, and everything that the page shows with it."""

from __future__ import annotations

import base64
import math
from io import BytesIO
from typing import Any, final

import numpy as np
import numpy.typing as npt
import torch
from PIL.Image import Image
from torch import Tensor

from sirc._utils.text import percent
from sirc.deploy.confidence_graph import LOWEST
from sirc.deploy.predict import Decider
from sirc.deploy.selective import SelectiveClassifier
from sirc.deploy.serve.uploads import Limits, Upload, count_pixels, decode
from sirc.deploy.tryout.neighbours import Neighbours
from sirc.scores import registry

_TOP = 5  # classes to list
_BARS = (12, 40)  # the fewest and most bars of the histogram
_TAIL = 0.005  # share of calibration rows at each end that is left out if the others would have little room
_SHOWN = 320  # longest side, in pixels, of the picture of what the network sees
_NO_FOLDER = (
    "Not shown: it is not known where they are. Start the page with `--train FOLDER`, their folder, and `--outputs "
    "KEPT`, the folder of `sirc guard --path KEPT`."
)
# What a low S2 means for an image; the name of the score alone says little.
_SIGNS = {
    "residual": "its features stray from the directions in which those of training images vary",
    "cop": "its features stray from the directions in which those of training images vary",
    "vim": "its features stray from the directions in which those of training images vary, by more than its outputs "
    "make up for",
    "mahalanobis": "its features lie far from those of every class",
    "mahalanobis_pp": "its features lie far from those of every class",
    "knn": "its features lie far from those of the training images nearest to it",
    "l1": "its features are weaker than those of training images",
    "energy": "the network's outputs are weaker than for training images",
}
_UNLIKE = "its features are unlike those of training images"


@final
class Explainer:
    """Decides about one image as `sirc predict` does, and gathers the other things that the page shows."""

    def __init__(self, guard: SelectiveClassifier, neighbours: Neighbours | None, limits: Limits) -> None:
        self.guard, self._neighbours, self._limits = guard, neighbours, limits
        self._decider = Decider(guard)  # refuses a guard that cannot decide about files
        preprocess = self._decider.preprocess
        self._geometry, self._normalise = preprocess.geometry(), preprocess.normalise()
        self._threshold = guard._check_threshold().value
        self._right, self._wrong = _groups(guard)

    def about(self) -> dict[str, object]:
        """What the page shows before there is an image."""
        return {
            "model": type(self.guard.model).__name__,
            "spec": self.guard.spec,
            "classes": self.guard.scorer.num_classes,
            "lines": str(self.guard).splitlines(),
            "histogram": histogram(self._right, self._wrong, self._threshold),
            "neighbours": _NO_FOLDER if self._neighbours is None else "",
        }

    def explain(self, upload: Upload) -> dict[str, object]:
        """The decision about an image, its reason, where its confidence falls, its top classes and nearest images."""
        count_pixels([upload], self._decider.preprocess, self._limits)
        prepared = self._geometry(decode(upload))
        images = self._normalise(prepared)[None]
        with self._decider.refusing_sizes(images):
            logits, features = self.guard.outputs(images)
        columns = self.guard.scoring.explain(logits, features)
        label, confidence, accepted, number = (column.tolist()[0] for column in columns)
        reason = self.guard.scoring.reasons[number]
        return {
            "accepted": accepted,
            "class": self._name(label),
            "confidence": confidence if confidence != LOWEST else None,
            "threshold": self._threshold if math.isfinite(self._threshold) else None,
            "reason": reason,
            "words": self._accepted_words() if accepted else rejection_words(reason, confidence, self.guard.spec),
            "standing": self._standing(confidence),
            "top": self._top(logits[0]),
            "nearest": [] if self._neighbours is None or features is None else self._neighbours.nearest(features[0]),
            "seen": _as_png(prepared),
            "size": f"{prepared.width} × {prepared.height}",
        }

    def _name(self, label: int) -> str:
        return self.guard.classes[label] if self.guard.classes else f"class {label}"

    def _top(self, logits: Tensor) -> list[dict[str, object]]:
        """The most probable classes; none if the network gives no numbers."""
        shares = logits.double().softmax(-1)
        if not shares.isfinite().all():
            return []
        values, labels = shares.topk(min(_TOP, len(shares)))
        return [
            {"class": self._name(label), "probability": value}
            for value, label in zip(values.tolist(), labels.tolist(), strict=True)
        ]

    def _accepted_words(self) -> str:
        """What acceptance means: the class may still be wrong."""
        right, wrong = (int((rows >= self._threshold).sum()) for rows in (self._right, self._wrong))
        first = "Its confidence reaches the threshold."
        if self.guard.calibration_correct is None or not right + wrong:
            return first
        return f"{first} Of the validation images whose confidence does, {percent(wrong / (right + wrong))} are wrong."

    def _standing(self, confidence: float) -> str:
        """Where a confidence falls among those of the calibration."""
        if not len(self._right) + len(self._wrong):
            return "The threshold was given, not calibrated: there is nothing to compare with."
        if confidence == LOWEST:
            return "It has no place among the validation images."
        groups = {"what the network gets right": self._right, "what it gets wrong": self._wrong}
        if self.guard.calibration_correct is None:
            groups = {"the validation images": self._right}
        parts = [f"{percent(float((rows < confidence).mean()))} of {who}" for who, rows in groups.items() if len(rows)]
        shown = f"{confidence:.4g}".replace("-", "−")
        return f"Its confidence, {shown}, is higher than {' and '.join(parts)}."


def rejection_words(reason: str, confidence: float, spec: str) -> str:
    """Why an image is rejected, from the reason that `explain` gives."""
    if confidence == LOWEST:
        return "No confidence can be computed for it: what the network gives are no finite numbers."
    if reason == "softmax":
        return "The network itself is unsure: its outputs alone do not reach the threshold."
    name = reason.partition("(")[0]
    title = registry.get(name).title if name in registry.names() else {"vim": "ViM"}.get(name, reason)
    sign = f"{_SIGNS.get(name, _UNLIKE)} ({title})"
    if reason == spec:  # a score without parts
        return f"{sign[:1].upper()}{sign[1:]}."
    return f"The network's outputs alone would reach the threshold, but {sign}."


def histogram(
    right: npt.NDArray[np.float64], wrong: npt.NDArray[np.float64], threshold: float
) -> dict[str, Any] | None:
    """Counts of right and wrong rows in equal bins, one of which begins at the threshold; None without rows.

    A few rows at both ends may be left out; `outside` counts these and the rows without a confidence.
    """
    rows = np.concatenate([right, wrong])
    finite = rows[np.abs(rows) < -LOWEST]
    if not len(finite):
        return None
    known = math.isfinite(threshold)
    ends = np.quantile(finite, [0, _TAIL, 1 - _TAIL, 1])
    most = (ends[2] - ends[1]) / 2
    low = float(ends[0] if ends[1] - ends[0] <= most else ends[1])
    high = float(ends[3] if ends[3] - ends[2] <= most else ends[2])
    if known:
        low, high = min(low, threshold), max(high, threshold)
    bars = int(np.clip(2 * len(finite) ** 0.5, *_BARS))
    width = (high - low) / bars or max(abs(low), 1.0) / bars
    start = threshold if known else low
    first, last = math.floor((low - start) / width), math.floor((high - start) / width) + 1
    edges = start + width * np.arange(first, last + 1)
    counts = [np.histogram(group, edges)[0].tolist() for group in (right, wrong)]
    return {
        "edges": edges.tolist(),
        "right": counts[0],
        "wrong": counts[1],
        "threshold": threshold if known else None,
        "outside": len(rows) - sum(map(sum, counts)),
    }


def _groups(guard: SelectiveClassifier) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """The calibration's confidences of right and of wrong rows; if that is not known, all are in the first group."""
    rows = torch.empty(0, dtype=torch.float64) if guard.calibration is None else guard.calibration.double()
    right = torch.ones(len(rows), dtype=torch.bool) if guard.calibration_correct is None else guard.calibration_correct
    return rows[right].numpy(), rows[~right].numpy()


def _as_png(image: Image) -> str:
    """A picture as a data URL."""
    shown, file = image.copy(), BytesIO()
    shown.thumbnail((_SHOWN, _SHOWN))
    shown.save(file, "PNG")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
