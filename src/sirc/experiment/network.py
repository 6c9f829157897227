"""The network of a run: building it, its weights, their fingerprint, and its head."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path

import torch
from torch import nn

from sirc import models
from sirc._utils import distributed
from sirc._utils.checks import differences
from sirc._utils.files import read_json, read_metadata, read_safetensors
from sirc._utils.text import shorten
from sirc.errors import StoreError
from sirc.experiment.experiment import Experiment, Run
from sirc.experiment.stamp import digest
from sirc.outputs import HEAD_FORMAT, Head
from sirc.progress import Progress

_REPEATABLE: set[str] = set()  # models whose function gave the same weights twice
_FINGERPRINTS: dict[tuple[object, ...], str] = {}  # by weights file, as several stages of a command ask for one


def build(experiment: Experiment) -> nn.Module:
    """Build the network of an experiment with its initial weights."""
    return models.build(**asdict(experiment.model))


def network(experiment: Experiment, run: Run) -> nn.Module:
    """Build the network of a run with its trained or pretrained weights, in evaluation mode."""
    model = build(experiment)
    if experiment.train is not None:
        if not run.weights.exists():
            raise FileNotFoundError(
                f"there are no trained weights at '{run.weights}'. Train them first: `sirc train … --seed {run.seed}`."
            )
        models.load_weights(model, run.weights)
    elif experiment.model.own and experiment.model.checkpoint is None and repr(experiment.model) not in _REPEATABLE:
        if models.fingerprint(model) != models.fingerprint(build(experiment)):
            raise experiment.error(
                ("model", "name"),
                f"must have weights where there is no [train] table; `{shorten(experiment.model.name)}` "
                "returns other weights at each call, so they are random. Let it load some, or add `checkpoint = …` or "
                "[train].",
            )
        _REPEATABLE.add(repr(experiment.model))
    return model.eval()


def note_preprocessing(experiment: Experiment, progress: Progress) -> None:
    """Note if [preprocess] differs from that of the published weights: nothing fails, but accuracy is lost."""
    model = experiment.model
    if not model.pretrained or model.own or experiment.train is not None or not distributed.is_main():
        return
    with suppress(ValueError):  # not every network is published with a preprocessing
        published = asdict(models.preprocess_of(model.name, model.pretrained))
        if others := differences(published, asdict(experiment.preprocess)):
            progress.note(
                f"note: `{shorten(model.name)}` was published with another preprocessing than [preprocess] has: its "
                f"{others}. Unless you want that, write the published values."
            )


def network_key(experiment: Experiment, run: Run) -> str:
    """Text that determines a network without building it; empty for a user's function, which may change in any way."""
    model, file = experiment.model, run.weights
    if experiment.train is None:
        file = Path(os.path.expanduser(os.path.expandvars(model.checkpoint or "")))
    if model.own or not (file.is_file() or model.pretrained):
        return ""
    versions = [version("torch"), version(model.name.partition(":")[0])]
    return json.dumps([repr(model), digest(file) if file.is_file() else "", versions])


def fingerprint_of(experiment: Experiment, run: Run) -> str:
    """The fingerprint of a run's network; that of trained weights is computed once for each version of their file."""
    if experiment.train is None or not run.weights.exists():
        return models.fingerprint(network(experiment, run))
    file = run.weights.stat()
    key = (repr(experiment.model), run.weights.resolve(), file.st_ino, file.st_size, file.st_mtime_ns)
    if key not in _FINGERPRINTS:
        _FINGERPRINTS[key] = models.fingerprint(network(experiment, run))
    return _FINGERPRINTS[key]


def recipe_of(run: Run) -> dict[str, str] | None:
    """The recipe stored in the trained weights, each setting as JSON; None if there are no weights."""
    if not run.weights.exists():
        return None
    return read_json(run.weights, read_metadata(run.weights).get("recipe", "{}"))


def save_head(head: Head, path: Path, model: str) -> None:
    """Write the head with the fingerprint of its model, unless the file has both already."""
    with distributed.failing_together():
        if distributed.is_main():
            with suppress(FileNotFoundError, StoreError):
                there, of = load_head(path)
                if (there.name, of) == (head.name, model):
                    return
            head.save(path, model=model, overwrite=True)


def load_head(path: Path) -> tuple[Head, str]:
    """Read the head that `extract_run` wrote, and the fingerprint of its model."""
    if not path.exists():
        raise FileNotFoundError(f"there is no '{path}'. Extract the outputs first: `sirc extract …`.")
    tensors, metadata = read_safetensors(path)
    if metadata.get("format") != HEAD_FORMAT:
        raise StoreError(f"'{path}' does not hold a head. Extract the outputs again: `sirc extract …`.")
    return Head(tensors["weight"], tensors.get("bias"), metadata["name"]), metadata["model"]


def has_head(run: Run, head: Head) -> bool:
    """Whether the trained weights contain this head; true if only building the network could tell."""
    weight = read_safetensors(run.weights)[0].get(f"{head.name}.weight".lstrip(".")) if run.weights.exists() else None
    return weight is None or torch.equal(weight.flatten().to(head.weight), head.weight.flatten())
