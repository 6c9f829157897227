"""Scores that commands chose for a run, and the images they chose them on: other images must set the threshold."""

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
    """The dataset that sets a threshold: validation, or test if there is no validation or scores were tuned on it."""
    return "validation" if experiment.data.validates and not experiment.tuned else "test"


def outputs_to_choose(experiment: Experiment, run: Run, name: str) -> Outputs | OutputStore:
    """The outputs to choose a score on: all of a dataset, or a random half if the dataset also sets the threshold.

    The half depends only on the number of rows, so the other half stays unseen and can back a guarantee.
    """
    store = OutputStore(run.store(name))
    return store.load()[_half(store, 0)] if name == calibration_set(experiment) else store


def rows_to_calibrate(run: Run, store: OutputStore) -> tuple[Tensor | None, Choice | None]:
    """The rows that set a threshold, and the choice that a command made on these images, if any.

    The rows are the half that no command has seen, or None for all rows: then no command chose a score on these images,
    or one has seen every row, which the caller must report.
    """
    past = [choice for choice in choices(run) if choice.data == store.data]
    halves = bool(past) and all(choice.half for choice in past)
    return (_half(store, 1) if halves else None), next((choice for choice in past if choice.half == halves), None)


@final
@dataclass(frozen=True)
class Choice:
    """A score that a command chose for a model, on all or half of these images; `data` is their fingerprint."""

    command: str
    score: str
    images: str
    data: str | None
    half: bool
    model: str | None


def choices(run: Run) -> list[Choice]:
    """The last choice of each command for a run, the latest last."""
    try:
        return [Choice(**about) for about in read_json(run.choice).values()]
    except FileNotFoundError:
        return []
    except (StoreError, TypeError) as error:  # not to be ignored: the rows that were used are unknown
        raise StoreError(
            f"'{run.choice}' must hold the chosen scores, as `sirc select` writes them; it is damaged. Delete it, and "
            "choose again."
        ) from error


def latest_choice(run: Run, model: str) -> Choice | None:
    """The latest choice, if it was made for this model."""
    past = choices(run)
    return past[-1] if past and past[-1].model == model else None


def keep_choice(run: Run, command: str, score: str, name: str, *, half: bool) -> None:
    """Write a choice into the run's folder; it replaces the command's last one."""
    store = OutputStore(run.store(name))
    others = [choice for choice in choices(run) if choice.command != command]
    latest = Choice(command, score, name, store.data, half, store.model)
    keep_text(run.choice, json.dumps({choice.command: asdict(choice) for choice in (*others, latest)}, indent=1))


def _half(store: OutputStore, number: int) -> Tensor:
    rows = torch.randperm(len(store), generator=torch.Generator().manual_seed(_SEED))
    return rows[number::2].sort().values
