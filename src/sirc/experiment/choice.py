"""The score that a command chose for a run, and the images it was chosen on; other images set the threshold."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import final

import torch
from torch import Tensor

from sirc._utils.files import keep_text, read_json
from sirc.errors import StoreError
from sirc.experiment.experiment import Experiment, Run
from sirc.outputs import Outputs, OutputStore

_SEED = 0  # decides which rows are in which half


def calibration_set(experiment: Experiment) -> str:
    """The dataset that sets a threshold: validation, or test if there is none or scores were tuned on it."""
    return "validation" if experiment.data.validates and not experiment.tuned else "test"


def outputs_to_choose(experiment: Experiment, run: Run, name: str) -> Outputs | OutputStore:
    """The outputs that a score is chosen on: a random half of the dataset that sets a threshold, or all of another.

    The half depends only on the number of rows, so the rows of the other half are unseen and can back a guarantee.
    """
    store = OutputStore(run.store(name))
    return store.load()[_half(store, 0)] if name == calibration_set(experiment) else store


def rows_to_calibrate(run: Run, store: OutputStore, name: str) -> tuple[Tensor | None, str]:
    """The rows that set a threshold, and the command that chose a score on the other rows, if one did.

    None means all rows: no command chose a score, or one used every row, which the caller must report.
    """
    past = [one for one in choices(run) if (one.images, one.data) == (name, store.data)]
    halves = bool(past) and all(one.half for one in past)
    return (_half(store, 1) if halves else None), next((one.command for one in past if one.half == halves), "")


@final
@dataclass(frozen=True)
class Chosen:
    """A score that a command chose for a model, on the images with this fingerprint or on a random half of them."""

    command: str
    score: str
    images: str
    data: str | None
    half: bool
    model: str | None


def choices(run: Run) -> list[Chosen]:
    """The last choice of each command for a run, the latest last."""
    try:
        return [Chosen(**about) for about in read_json(run.choice).values()]
    except FileNotFoundError:
        return []
    except (StoreError, TypeError) as error:  # then nobody knows which rows a threshold may be set on
        raise StoreError(
            f"'{run.choice}' must say which images chose a score, as `sirc select` wrote it; it is damaged. Delete it, "
            "and choose again."
        ) from error


def latest_choice(run: Run, model: str) -> Chosen | None:
    """The latest choice, if it was made for this model."""
    past = choices(run)
    return past[-1] if past and past[-1].model == model else None


def keep_choice(run: Run, command: str, score: str, name: str, *, half: bool) -> None:
    """Write a choice into the run's folder; it replaces the command's last one."""
    others = [past for past in choices(run) if past.command != command]
    store = OutputStore(run.store(name))
    latest = Chosen(command, score, name, store.data, half, store.model)
    kept = {one.command: asdict(one) for one in (*others, latest)}
    keep_text(run.choice, json.dumps(kept, indent=1))


def _half(store: OutputStore, number: int) -> Tensor:
    rows = torch.randperm(len(store), generator=torch.Generator().manual_seed(_SEED))
    return rows[number::2].sort().values
