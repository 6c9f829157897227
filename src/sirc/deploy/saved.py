"""Saved classifiers: one file with everything but the model, which is recognised by its fingerprint."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from sirc._utils.checks import check_type
from sirc._utils.files import PathLike, read_header, read_safetensors
from sirc.data import Preprocess
from sirc.deploy.hub import local_path
from sirc.deploy.threshold import Threshold
from sirc.errors import StoreError
from sirc.models import fingerprint
from sirc.scores import Scorer, all_parts, parameters_in

if TYPE_CHECKING:
    from sirc.deploy.selective import SelectiveClassifier

_VERSION = 1
SAMPLE = 100_000  # most calibration confidences to save; a random sample of more


def contents(selective: SelectiveClassifier) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The contents of a file: the scorer's tensors, the calibration's confidences, and the rest as JSON."""
    scorer, spec = selective.scorer, selective.scorer.parsed(selective.spec)
    used = {str(part) for part in all_parts(spec)}  # the scorer may have parameters of other specs too
    parameters = {key: part for key, part in scorer.parameters.items() if key in used}
    tensors = {f"{key}/{name}": value for key, part in parameters.items() for name, value in part.items()}
    tensors["calibration"] = calibration_sample(selective.calibration)
    if selective.calibration_correct is not None:
        tensors["calibration_correct"] = calibration_sample(selective.calibration_correct).bool()
    if scorer.fitted_on is not None:
        tensors["fitted_on"] = scorer.fitted_on
    return tensors, {"sirc": json.dumps(about(selective))}


def about(selective: SelectiveClassifier) -> dict[str, Any]:
    """The description of a calibrated classifier, as JSON values."""
    threshold = selective._check_threshold()
    model = fingerprint(selective.model)
    if selective._calibrated_for not in (None, model):
        raise ValueError(
            "a guarantee holds only for the model it was made with; this one was changed since `calibrate` (trained, "
            "or cast to another type). Calibrate again"
        )
    scorer, preprocess = selective.scorer, selective.preprocess
    return {
        "format": "sirc-selective",
        "version": _VERSION,
        "spec": selective.spec,
        "num_classes": scorer.num_classes,
        "num_features": scorer.num_features,
        "fitted_rows": scorer.fitted_rows,
        "head": selective.head_name,
        "head_is_last": selective._hook.is_last,
        "threshold": threshold.to_dict(),
        "classes": selective.classes,
        "preprocess": None if preprocess is None else dataclasses.asdict(preprocess),
        "model": model,
        "quantiles": _quantiles(selective.calibration),
        "remarks": selective.remarks,
    }


def load(path: PathLike, model: nn.Module) -> SelectiveClassifier:
    """Load a classifier that was calibrated for this model."""
    from sirc.deploy.selective import SelectiveClassifier

    facts, tensors = read(path)
    if (actual := fingerprint(model)) != facts.get("model"):
        raise StoreError(
            f"'{path}' was calibrated for another model: its fingerprint is {facts.get('model')}, this one's is "
            f"{actual}. A threshold holds for the weights it was set with: load those, or calibrate again"
        )
    with _whole(path):
        sizes = {name: facts[name] for name in ("num_classes", "num_features", "fitted_rows")}
        for name, size in sizes.items():
            check_type(name, size, int | None, "a whole number")
        check_type("head_is_last", facts["head_is_last"], bool, "true or false")
        fitted_on = tensors.get("fitted_on")
        if fitted_on is not None and (fitted_on.ndim != 2 or fitted_on.dtype != torch.float64):
            raise ValueError("the marks of the rows that it was fitted on must be a table of float64")
        spec, head, preprocess = facts["spec"], facts["head"], preprocess_from(facts["preprocess"])
        scorer = Scorer(spec, parameters_in(tensors), fitted_on=fitted_on, **sizes)
        names = stored_classes(facts, scorer.num_classes)
        selective = SelectiveClassifier(model, scorer, spec, head=head, classes=names, preprocess=preprocess)
        selective._hook.is_last = facts["head_is_last"]
        selective._use(Threshold.from_dict(facts["threshold"]))
        calibration = _calibration_in(tensors)
        selective.calibration = calibration.clone() if len(calibration) else None
        correct = tensors.get("calibration_correct")  # files of earlier versions have none, and no remarks
        if correct is not None and (correct.dtype != torch.bool or correct.shape != calibration.shape):
            raise ValueError("it must say of each row that set the threshold whether the model was right")
        selective.calibration_correct = None if correct is None else correct.clone()
        selective.remarks = tuple(_texts_in(facts.get("remarks", []), "remarks"))
        _try_out(selective)
    return selective


def read(path: PathLike) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Read the facts and the tensors of a saved classifier, on this machine or on the Hub, without its model."""
    place = local_path(path)
    if place.suffix == ".onnx":
        raise StoreError(
            f"a saved classifier must be what `save`, `sirc guard` or `sirc calibrate` wrote; '{path}' is an exported "
            f"graph, which has its network in it. Use it alone: `sirc predict FOLDER --onnx {path}`"
        )
    tensors, metadata = read_safetensors(place)
    return read_header(path, metadata, "selective classifier", _VERSION), tensors


def _try_out(selective: SelectiveClassifier) -> None:
    """Score one row, so that parameters whose shapes do not match fail now and not with the first input."""
    device, scorer = selective.scoring.limit.device, selective.scorer
    if scorer.num_classes is not None:
        features = None if scorer.num_features is None else torch.zeros(1, scorer.num_features, device=device)
        with torch.no_grad():
            selective.scoring(torch.zeros(1, scorer.num_classes, device=device), features)


@contextmanager
def _whole(path: PathLike) -> Iterator[None]:
    """Report anything missing or malformed in a file as an error about this file."""
    try:
        yield
    except torch.cuda.OutOfMemoryError:
        raise
    except (LookupError, TypeError, ValueError, ArithmeticError, AssertionError, RuntimeError) as error:
        raise StoreError(f"'{path}' is not whole: {str(error).rstrip('.')}. Save the classifier again") from error


def calibration_of(path: PathLike) -> tuple[npt.NDArray[np.float64], Threshold]:
    """The confidences that set the threshold of a saved classifier or of an exported graph, and the threshold.

    There are no confidences if the threshold was given, or if an earlier version exported the graph.
    """
    if str(path).endswith(".onnx"):
        from sirc.deploy.onnx import OnnxGraph

        graph = OnnxGraph(path)
        return np.empty(0) if graph.calibration is None else graph.calibration, graph.threshold
    facts, tensors = read(path)
    with _whole(path):
        return _calibration_in(tensors).numpy(), Threshold.from_dict(facts["threshold"])


def preprocess_from(values: dict[str, Any] | None) -> Preprocess | None:
    """Read the preprocessing from its JSON values."""
    check_type("preprocess", values, dict | None, "a JSON object")
    return None if values is None else Preprocess(**values)


def stored_classes(facts: dict[str, Any], count: int | None) -> list[str] | None:
    """The class names among a file's facts, if there are any; they must be `count` names."""
    names = None if facts["classes"] is None else _texts_in(facts["classes"], "class names")
    if names is not None and count not in (None, len(names)):
        raise ValueError(f"it must name each of its {count} classes; it has {len(names)} names")
    return names


def _texts_in(values: object, name: str) -> list[str]:
    if not (isinstance(values, list) and all(isinstance(value, str) for value in values)):
        raise ValueError(f"its {name} must be a list of texts")
    return values


def _calibration_in(tensors: Mapping[str, Tensor]) -> Tensor:
    """The confidences that set the threshold; none if it was given."""
    confidences = tensors["calibration"]
    if confidences.ndim != 1 or confidences.dtype != torch.float64:
        raise ValueError(
            "the confidences that set the threshold must be one row of float64; they have "
            f"shape {tuple(confidences.shape)} and {confidences.dtype}"
        )
    return confidences


def _quantiles(confidences: Tensor | None) -> list[float] | None:
    """The 5%, 10%, …, 95% quantiles of the calibration, for the histogram of a service."""
    values = calibration_sample(None if confidences is None else confidences[confidences.isfinite()]).numpy()
    return np.quantile(values, np.arange(1, 20) / 20).tolist() if len(values) else None


def calibration_sample(confidences: Tensor | None) -> Tensor:
    """The confidences to save: all in their order, or a random sample of many; empty without a calibration."""
    if confidences is None:
        return torch.empty(0, dtype=torch.float64)
    values = confidences.double().cpu()
    if len(values) <= SAMPLE:
        return values
    return values[torch.randperm(len(values), generator=torch.Generator().manual_seed(0))[:SAMPLE]]
