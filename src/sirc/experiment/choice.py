"""The choice of a score in a run's folder: which command made it, on which images; others set the threshold."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import final

import torch

from sirc._utils.files import keep_text, read_json
from sirc.errors import StoreError
from sirc.experiment.experiment import Experiment, Run
from sirc.outputs import Outputs, OutputStore

_SEED = 0  # of the halves


def calibration_set(experiment: Experiment) -> str:
    """The images that set a threshold: validation, unless there are none or scores were tuned on them; then test."""
    return "validation" if experiment.data.validates and not experiment.tuned else "test"


def outputs_to_choose(experiment: Experiment, run: Run, name: str) -> Outputs | OutputStore:
    """The outputs of images that a score is chosen on: a random half of those that set a threshold, or all of others.

    The half depends on the number of rows alone: the rows of the other half are as good as new for a guarantee.
    """
    store = OutputStore(run.store(name))
    return _half(store, 0) if name == calibration_set(experiment) else store


def outputs_to_calibrate(run: Run, name: str) -> tuple[Outputs | OutputStore, str]:
    """The outputs that set a threshold, and which command chose a score on images of this set, if one did.

    They are the half that it did not see; all, if it saw all of them, as those who ask must then say.
    """
    store = OutputStore(run.store(name))
    past = [one for one in choices(run) if (one.images, one.data) == (name, store.data)]
    halves = bool(past) and all(one.half for one in past)
    return (_half(store, 1) if halves else store), next((one.command for one in past if one.half == halves), "")


@final
@dataclass(frozen=True)
class Chosen:
    """A score that a command chose, on images of this fingerprint or a random half of them."""

    command: str
    score: str
    images: str
    data: str | None
    half: bool


def choices(run: Run) -> list[Chosen]:
    """The choices of each command in a run's folder, the latest last; none that is damaged."""
    with suppress(FileNotFoundError, StoreError, TypeError):
        return [Chosen(**about) for about in read_json(run.choice).values()]
    return []


def keep_choice(run: Run, command: str, score: str, name: str, *, half: bool) -> None:
    """Write a choice down in the run's folder, in place of the command's last one."""
    others = [past for past in choices(run) if past.command != command]
    latest = Chosen(command, score, name, OutputStore(run.store(name)).data, half)
    kept = {one.command: asdict(one) for one in (*others, latest)}
    keep_text(run.choice, json.dumps(kept, indent=1))


def _half(store: OutputStore, number: int) -> Outputs:
    rows = torch.randperm(len(store), generator=torch.Generator().manual_seed(_SEED))
    return store.load()[rows[number::2].sort().values]
