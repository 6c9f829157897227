"""The score cache of a run: confidences kept beside its results, valid while outputs and scorer are the same."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

import torch
from safetensors import safe_open
from torch import Tensor

import sirc
from sirc._utils.files import read_safetensors, write_safetensors
from sirc.experiment.experiment import Experiment, Run
from sirc.experiment.stage import Inputs, Stage, digest
from sirc.outputs import OutputStore

_FORMAT: Final = "sirc.Confidences/1"
_CORRECT: Final = "correct"
_PREFIX: Final = "confidence of "  # so that no score is taken for `correct`


@final
@dataclass(frozen=True)
class RunScores:
    """Confidences by score on the test images and on each OOD set, and which predictions are right."""

    test: dict[str, Tensor]
    correct: Tensor
    ood: dict[str, dict[str, Tensor]]


@final
class ScoreCache:
    """The file of a run's confidences, and the stage that makes it."""

    def __init__(self, experiment: Experiment, run: Run) -> None:
        stores = {name: OutputStore(run.store(name)) for name in ("test", *experiment.data.ood)}
        self.file: Path = run.folder / "confidences.safetensors"
        self.inputs: Inputs = {
            "scorer": digest(run.scorer),
            "stores": {name: [store.model, store.data, len(store), _digest(store)] for name, store in stores.items()},
            "sirc": sirc.__version__,
        }
        self._folder = run.folder
        self._sizes = {name: len(store) for name, store in stores.items()}

    def read(self) -> RunScores | None:
        """Give the confidences to the last bit; None where the file is missing, damaged or of other inputs."""
        if not self._stage().is_done():
            return None
        tensors, metadata = read_safetensors(self.file, verify=False)  # the stage has compared all of it
        if metadata["format"] != _FORMAT:
            return None
        sizes: dict[str, int] = json.loads(metadata["sizes"])
        # By name: the sets may since stand in another order.
        parts = {
            score: dict(zip(sizes, torch.split(tensors[_PREFIX + score], list(sizes.values())), strict=True))
            for score in json.loads(metadata["scores"])
        }
        by_set = {name: {score: values[name] for score, values in parts.items()} for name in self._sizes}
        return RunScores(by_set.pop("test"), tensors[_CORRECT], by_set)

    def write(self, scores: RunScores) -> None:
        """Replace whatever is there."""
        self._stage(scores).run()

    def _stage(self, scores: RunScores | None = None) -> Stage:
        def save() -> Iterable[Path]:
            assert scores is not None
            sets = [name for name in self._sizes if name != "test"]
            tensors = {
                _PREFIX + score: torch.cat([values, *(scores.ood[name][score] for name in sets)])
                for score, values in scores.test.items()
            }
            metadata = {
                "format": _FORMAT,
                "scores": json.dumps(list(scores.test)),
                "sizes": json.dumps(self._sizes),
            }
            write_safetensors(self.file, {**tensors, _CORRECT: scores.correct}, metadata, overwrite=True)
            return [self.file]

        return Stage("confidences", self._folder, self.inputs, outputs=[self.file], run=save)


def _digest(store: OutputStore) -> str:
    """A digest of a store's rows, from the checksums that its shards carry: quick, however many rows there are."""
    store.require_complete()
    content = hashlib.sha256()
    for i in range(store.num_shards):
        with safe_open(store._file(i), framework="pt") as file:
            content.update(str((file.metadata() or {}).get("sha256")).encode())
    return content.hexdigest()[:32]
