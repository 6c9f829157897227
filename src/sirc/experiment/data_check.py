"""What is told of a study's images before its first network is trained: none is decoded, folders are only listed."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from sirc._utils import distributed
from sirc.data import DeviceCache
from sirc.errors import ConfigError
from sirc.experiment.experiment import Experiment, Run
from sirc.experiment.provenance import extract_stamp, stale_outputs
from sirc.experiment.stages import images_of
from sirc.outputs import OutputStore
from sirc.progress import Progress
from sirc.training import refuse_labels


def needed(experiment: Experiment) -> list[str]:
    """The datasets that a study reads."""
    reads = experiment.train is not None or experiment.tuned
    return [name for name in experiment.names if name != "validation" or reads]


def check_data(
    experiment: Experiment, names: Iterable[str], *, trains: bool, holding: DeviceCache, progress: Progress
) -> None:
    """Open these datasets, which must have images, of classes that were trained, each with an output of the network.

    A network with outputs for more classes than it is trained on may be meant, and is only told.
    """
    outputs = experiment.model.num_classes
    for name in names:
        images = images_of(experiment, name, augmented=True, holding=holding)
        if outputs is None or images.labels is None:
            continue
        why = f"`model.num_classes` of '{experiment.name}' is {outputs}"
        refuse_labels(images, images.labels, outputs, why)
        found = len(images.classes) or len(np.unique(images.labels.numpy()))
        if trains and name == "train" and found < outputs and distributed.is_main():
            progress.note(
                f"note: '{experiment.name}' asks for {outputs} classes (`model.num_classes`), and its training images "
                f"have {found}: the other outputs learn to stay low. Unless that is meant, stop, and set "
                f"`model.num_classes = {found}`, or check that all class folders are in the training data."
            )


def is_complete(path: Path) -> bool:
    """Whether there is a store that lacks no shard."""
    try:
        return OutputStore(path).complete
    except ValueError:
        return False


def is_extracted(experiment: Experiment, run: Run) -> bool:
    """Whether a run is trained and all its outputs are there, of its weights and settings: images have no more use."""
    if experiment.train is not None and not run.weights.exists():
        return False
    stamps = {name: extract_stamp(experiment, run, name) for name in experiment.stored}
    there = all(is_complete(run.store(name)) and stamp.inputs_before == stamp.inputs for name, stamp in stamps.items())
    return there and not stale_outputs(experiment, run)


def missing_files(experiment: Experiment) -> str:
    """Say which datasets have no files, in all processes the same; nothing where they all have."""
    words = ""
    try:
        experiment.require(needed(experiment))
    except ConfigError as error:
        words = str(error)
    return next((found for found in distributed.gather_texts(words) if found), "")
