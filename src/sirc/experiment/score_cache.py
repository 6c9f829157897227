"""The confidences of a run, kept beside its results: what was scored is not scored again while nothing changed."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

import torch
from safetensors import safe_open
from torch import Tensor

import sirc
from sirc._utils.files import read_safetensors, write_safetensors
from sirc.errors import StoreError
from sirc.experiment.experiment import Experiment, Run
from sirc.experiment.stamps import Stamp, digest
from sirc.outputs import OutputStore

FILE: Final = "confidences.safetensors"
_FORMAT: Final = "sirc.Confidences/1"
_CORRECT: Final = "correct"
_OF: Final = "confidence of "  # before a score's name: no score can be taken for `correct`


@final
@dataclass(frozen=True)
class Confidences:
    """Confidences by score on the test images and on each OOD set, and which predictions are right."""

    inside: dict[str, Tensor]
    correct: Tensor
    outside: dict[str, dict[str, Tensor]]


@final
class Kept:
    """The confidences that a run's folder holds, if they follow from the scorer and the outputs that are there now."""

    def __init__(self, experiment: Experiment, run: Run) -> None:
        stores = {name: OutputStore(run.store(name)) for name in ("test", *experiment.data.ood)}
        self.file: Path = run.folder / FILE
        self.inputs: dict[str, object] = {
            "scorer": digest(run.scorer),
            "stores": {name: [store.model, store.data, len(store), _content(store)] for name, store in stores.items()},
            "sirc": sirc.__version__,
        }
        self._sizes = {name: len(store) for name, store in stores.items()}
        self._stamp = Stamp(run.folder, "confidences", self.inputs)

    def valid(self) -> bool:
        """Whether they are there, whole, and follow from what is there."""
        return self._stamp.valid()

    def read(self) -> Confidences | None:
        """Give them to the last bit, or nothing where they are not valid."""
        if not self.valid():
            return None
        try:
            tensors, metadata = read_safetensors(self.file, verify=False)  # the stamp has compared all of it
            scores: list[str] = json.loads(metadata["scores"])
            sizes: dict[str, int] = json.loads(metadata["sizes"])
            if metadata["format"] != _FORMAT or sizes != self._sizes:
                return None
            # By name: the sets may since stand in another order.
            parts = {
                score: dict(zip(sizes, torch.split(tensors[_OF + score], list(sizes.values())), strict=True))
                for score in scores
            }
            correct = tensors[_CORRECT]
        except (StoreError, KeyError, ValueError, RuntimeError):
            return None
        by_set = {name: {score: found[name] for score, found in parts.items()} for name in self._sizes}
        return Confidences(by_set.pop("test"), correct, by_set)

    def write(self, found: Confidences) -> None:
        """Keep them; what was there before is forgotten first."""
        self._stamp.clear()
        sets = [name for name in self._sizes if name != "test"]
        tensors = {
            _OF + score: torch.cat([values, *(found.outside[name][score] for name in sets)])
            for score, values in found.inside.items()
        }
        metadata = {
            "format": _FORMAT,
            "scores": json.dumps(list(found.inside)),
            "sizes": json.dumps(self._sizes),
        }
        write_safetensors(self.file, {**tensors, _CORRECT: found.correct}, metadata, overwrite=True)
        self._stamp.write([self.file])


def _content(store: OutputStore) -> str:
    """A digest of a store's rows, from the checksums that its shards carry: quick, however many rows there are."""
    store.require_complete()
    known = hashlib.sha256()
    for i in range(store.num_shards):
        with safe_open(store._file(i), framework="pt") as file:
            known.update(str((file.metadata() or {}).get("sha256")).encode())
    return known.hexdigest()[:32]
