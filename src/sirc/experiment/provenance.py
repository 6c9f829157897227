"""What the stages of a run are made from: whether weights, outputs and scores still belong together."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

from torch import nn

from sirc import models
from sirc._utils import distributed
from sirc._utils.checks import differences
from sirc._utils.files import read_metadata, read_safetensors, write_safetensors
from sirc._utils.imports import stored_name
from sirc.errors import StoreError
from sirc.experiment.experiment import Experiment, Run
from sirc.experiment.stamps import Stamp
from sirc.outputs import FILE as STORE_FILE
from sirc.outputs import Head, OutputStore

_HEAD_FORMAT = "sirc.Head/1"
_PRINTS: dict[tuple[object, ...], str] = {}  # several stages of one command ask for the same


def check_outputs(experiment: Experiment, run: Run, names: Iterable[str]) -> None:
    """Refuse stored outputs that this experiment's settings and this run's weights would not give."""
    check_trained(experiment, run)
    for name in names:
        stamp = extract_stamp(experiment, run, name)
        if stamp.inputs_before is None or not (run.store(name) / STORE_FILE).is_file():
            raise FileNotFoundError(
                f"there are no finished outputs at '{run.store(name)}'. Extract them first: "
                f"`sirc extract … --only {name}`."
            )
        if words := differences(stamp.inputs_before, stamp.inputs):
            raise StoreError(
                f"'{run.store(name)}' was extracted with other settings: {words}. Use those, or extract again: "
                f"`sirc extract … --only {name} --overwrite`."
            )
    weights = fingerprint_of(experiment, run)
    made_by = {run.head: load_head(run.head)[1]} | {
        run.store(name): OutputStore(run.store(name)).model for name in names
    }
    for path, found in made_by.items():
        if found != weights:
            raise StoreError(
                f"'{path}' comes from other weights than '{run.weights}' has now. Extract again: "
                "`sirc extract … --overwrite`."
            )


def check_trained(experiment: Experiment, run: Run) -> None:
    """Refuse weights that this experiment's recipe would not give."""
    if experiment.train is None or not run.weights.exists():
        return
    known = json.loads(read_metadata(run.weights).get("recipe", "{}"))
    settings = experiment.train.decisive() | {f"preprocess.{k}": v for k, v in asdict(experiment.preprocess).items()}
    # Not every note has every key: older ones lack some, and no warm-up is not written down.
    asked = {key: json.dumps(value) for key, value in settings.items() if key in known or key == "warmup"}
    kept = {key: value for key, value in known.items() if key in asked or key == "warmup"}
    if words := differences(kept, asked):
        raise StoreError(
            f"'{run.weights}' was trained with other settings: {words}. Use those, or train again: "
            "`sirc train … --overwrite`."
        )


def extract_stamp(experiment: Experiment, run: Run, name: str) -> Stamp:
    """The note of the settings that a store's outputs follow from."""
    extract, fitting = experiment.extract, experiment.fit
    settings: dict[str, object] = {
        **{f"model.{key}": value for key, value in _model_settings(experiment).items()},
        **{f"preprocess.{key}": value for key, value in asdict(experiment.preprocess).items()},
        **{f"data.{name}.{key}": value for key, value in asdict(experiment.source(name)).items() if key != "group"},
        **{f"extract.{key}": getattr(extract, key) for key in ("precision", "dtype", "shard_size")},
        **({"fit.count": fitting.count, "fit.seed": fitting.seed} if name == "train" else {}),
        **_held_out(experiment, name),
    }
    return Stamp(run.folder, f"extract-{name}", settings)


def _model_settings(experiment: Experiment) -> dict[str, object]:
    settings = asdict(experiment.model) | {"name": stored_name(experiment.model.name)}
    if settings["stem"] == "own":  # so that outputs from before there was another are still good
        del settings["stem"]
    return settings


def fitted_from(run: Run) -> dict[str, object] | None:
    """What a finished fit was made from; None where there is none, or its note cannot be read."""
    try:
        known: dict[str, object] = json.loads(fit_note(run).read_bytes())
    except (FileNotFoundError, ValueError):
        return None
    return known if run.scorer.exists() else None


def is_fitted(experiment: Experiment, run: Run) -> bool:
    """Whether the scores that the experiment asks for were fitted on the outputs that are there."""
    try:
        return fitted_from(run) == fit_inputs(experiment, *fit_stores(experiment, run))
    except StoreError:
        return False


def stale_outputs(experiment: Experiment, run: Run) -> list[str]:
    """Name the datasets whose stored outputs come from other settings or other weights than there are now."""
    weights = fingerprint_of(experiment, run)
    stale = []
    for name in experiment.stored:
        stamp = extract_stamp(experiment, run, name)
        try:
            model = OutputStore(run.store(name)).model
        except StoreError:
            continue  # there is none yet
        if model != weights or stamp.inputs_before not in (None, stamp.inputs):
            stale.append(name)
    return stale


def fit_note(run: Run) -> Path:
    """Where a fit notes what it was made from."""
    return run.scorer.with_suffix(".json")


def fit_stores(experiment: Experiment, run: Run) -> tuple[OutputStore, OutputStore | None]:
    """The stored outputs of the training images and, where they tune scores, of the validation images."""
    return OutputStore(run.store("train")), OutputStore(run.store("validation")) if experiment.tuned else None


def fit_inputs(experiment: Experiment, store: OutputStore, val: OutputStore | None) -> dict[str, object]:
    """What a fit follows from."""
    inputs: dict[str, object] = {
        "specs": list(experiment.fit.specs),
        "crossfit": experiment.fit.crossfit,
        "rows": len(store),
        "model": store.model,
        "data": store.data,
    }
    if val is not None:
        source = json.dumps(asdict(experiment.source("validation")), sort_keys=True, default=str)
        inputs |= {"validation": source, "validation rows": len(val), "validation data": val.data}
    return inputs


def _held_out(experiment: Experiment, name: str) -> dict[str, object]:
    """How many images of each class are held out, where that decides which a set has."""
    held = experiment.data.holdout
    return {"data.holdout": held} if held and name in ("train", "validation") else {}


def network(experiment: Experiment, run: Run) -> nn.Module:
    """Build the network of a run, with the weights that it was trained to or came with, in evaluation mode."""
    model = built(experiment)
    if experiment.train is not None:
        if not run.weights.exists():
            raise FileNotFoundError(
                f"there are no trained weights at '{run.weights}'. Train them first: `sirc train … --seed {run.seed}`."
            )
        models.load_weights(model, run.weights)
    return model.eval()


def fingerprint_of(experiment: Experiment, run: Run) -> str:
    """The fingerprint of a run's network; that of trained weights is taken once, while their file is the same."""
    if experiment.train is None or not run.weights.exists():
        return models.fingerprint(network(experiment, run))
    file = run.weights.stat()
    settings = json.dumps(asdict(experiment.model), sort_keys=True, default=str)
    key = (settings, str(run.weights.resolve()), file.st_ino, file.st_size, file.st_mtime_ns)
    if key not in _PRINTS:
        _PRINTS[key] = models.fingerprint(network(experiment, run))
    return _PRINTS[key]


def built(experiment: Experiment) -> nn.Module:
    """Build the network of an experiment with the weights that it starts from."""
    config = experiment.model
    return models.build(
        config.name,
        num_classes=config.num_classes,
        pretrained=config.pretrained,
        checkpoint=config.checkpoint,
        stem=config.stem,
        options=config.options,
    )


def save_head(head: Head, path: Path, model: str) -> None:
    """Write the last layer, with the fingerprint of the model it is from."""
    with distributed.failing_together():
        if distributed.is_main():
            tensors = {"weight": head.weight} | ({} if head.bias is None else {"bias": head.bias})
            metadata = {"format": _HEAD_FORMAT, "name": head.name, "model": model}
            write_safetensors(path, tensors, metadata, overwrite=True)


def load_head(path: Path) -> tuple[Head, str]:
    """Read the last layer that `extract_run` left, and the fingerprint of its model."""
    if not path.exists():
        raise FileNotFoundError(f"there is no '{path}'. Extract the outputs first: `sirc extract …`.")
    tensors, metadata = read_safetensors(path)
    if metadata.get("format") != _HEAD_FORMAT:
        raise StoreError(f"'{path}' does not hold a head. Extract the outputs again: `sirc extract …`.")
    return Head(tensors["weight"], tensors.get("bias"), metadata["name"]), metadata["model"]
