"""Files of a training run: a checkpoint and the history after each epoch, the weights at the end."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import final

import torch
from torch import Tensor, nn

from sirc._utils.checks import differences
from sirc._utils.files import atomic_write, read_safetensors, write_safetensors
from sirc.errors import StoreError

_FORMAT = "sirc.training/1"
_TIMES = ("seconds", "images_per_second")


@final
@dataclass(frozen=True)
class Epoch:
    """One line of the history. Errors are shares of wrong predictions; `error` is on augmented training images.

    `unreadable` is the number of training and validation images that were left out because they cannot be read.
    """

    epoch: int
    lr: float
    loss: float
    error: float
    validation_loss: float | None
    validation_error: float | None
    seconds: float
    images_per_second: float
    unreadable: int = 0


@final
class RunFiles:
    """The files of one run, which record its recipe: a run with another recipe is refused."""

    def __init__(self, folder: Path, recipe: Mapping[str, object]) -> None:
        self.folder = folder
        self.recipe = {key: json.dumps(value) for key, value in recipe.items()}
        self.weights = folder / "model.safetensors"
        self.checkpoint = folder / "checkpoint.safetensors"
        self.history = folder / "history.csv"

    def delete(self) -> None:
        """Delete the files of an earlier run."""
        for file in (self.weights, self.checkpoint, self.history):
            file.unlink(missing_ok=True)

    def finished(self, model: nn.Module) -> list[Epoch] | None:
        """Load the final weights and return the history; None if the run is not finished."""
        if not self.weights.exists():
            return None
        tensors, history = self._read(self.weights)
        model.load_state_dict(tensors)
        self.checkpoint.unlink(missing_ok=True)  # left if training was killed before it did this
        return history

    def resume(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> list[Epoch]:
        """Load the last checkpoint, if there is one, and return the history of the finished epochs."""
        if not self.checkpoint.exists():
            return []
        tensors, history = self._read(self.checkpoint)
        weights: dict[str, Tensor] = {}
        state: dict[int, dict[str, Tensor]] = {}
        for name, value in tensors.items():
            kind, key = name.split(".", 1)
            if kind == "model":
                weights[key] = value
            else:
                number, key = key.split(".", 1)
                state.setdefault(int(number), {})[key] = value.clone()
        model.load_state_dict(weights)
        optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
        return history

    def save(self, model: nn.Module, optimizer: torch.optim.Optimizer, history: list[Epoch]) -> None:
        """Write the checkpoint, then the history: if killed in between, the next run writes the same line again."""
        tensors = {f"model.{name}": value for name, value in model.state_dict().items()}
        for number, state in optimizer.state_dict()["state"].items():
            for key, value in state.items():
                if value is not None:
                    tensors[f"optimizer.{number}.{key}"] = torch.as_tensor(value)
        write_safetensors(self.checkpoint, tensors, self._metadata(history), overwrite=True)
        self._write_history(history)

    def finish(self, model: nn.Module, history: list[Epoch]) -> None:
        """Write the final weights and delete the checkpoint."""
        metadata = self._metadata(history, without=_TIMES)  # equal weights make equal files
        write_safetensors(self.weights, model.state_dict(), metadata, overwrite=True)
        self._write_history(history)
        self.checkpoint.unlink(missing_ok=True)

    def _metadata(self, history: list[Epoch], without: Collection[str] = ()) -> dict[str, str]:
        rows = [{key: value for key, value in asdict(line).items() if key not in without} for line in history]
        return {"format": _FORMAT, "recipe": json.dumps(self.recipe, sort_keys=True), "history": json.dumps(rows)}

    def _read(self, path: Path) -> tuple[dict[str, Tensor], list[Epoch]]:
        tensors, metadata = read_safetensors(path)
        if metadata.get("format") != _FORMAT:
            raise StoreError(f"'{path}' was not written by a training run of sirc. Choose another folder.")
        if differing := differences(json.loads(metadata["recipe"]), self.recipe):
            raise StoreError(
                f"'{path}' comes from another recipe: {differing}. Train into another folder (`out` or `name` in the "
                "TOML), or replace this run with `train(…, overwrite=True)`."
            )
        rows, times = json.loads(metadata["history"]), self._times()
        return tensors, [Epoch(**dict.fromkeys(_TIMES, math.nan) | times.get(row["epoch"], {}) | row) for row in rows]

    def _times(self) -> dict[int, dict[str, float]]:
        """Read the times of each epoch from the history; empty if that file is gone."""
        with suppress(OSError, KeyError, TypeError, ValueError):
            rows = csv.DictReader(self.history.read_text(encoding="utf-8").splitlines())
            return {int(row["epoch"]): {key: float(row[key]) for key in _TIMES} for row in rows}
        return {}

    def _write_history(self, history: list[Epoch]) -> None:
        text = io.StringIO()
        writer = csv.DictWriter(text, [field.name for field in fields(Epoch)])
        writer.writeheader()
        writer.writerows(asdict(line) for line in history)
        atomic_write(self.history, lambda file: file.write(text.getvalue().encode()))
