"""A Lightning callback: logs a score's metrics in each validation and leaves a guard at the end."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any, TypeAlias, final

from torch import nn
from torch.utils.data import Dataset

from sirc._utils.checks import check_path, check_type
from sirc._utils.files import PathLike, refuse_existing
from sirc._utils.imports import missing_package
from sirc._utils.text import first_line
from sirc._utils.warn import warn
from sirc.deploy.guard_data import first_inputs, size_of
from sirc.deploy.guards import Promise, guard
from sirc.deploy.selective import SelectiveClassifier
from sirc.evaluation import evaluate
from sirc.extraction import extract
from sirc.models import features_at, load_weights, unwrap
from sirc.outputs import Head
from sirc.scores import Needs, Scorer, fit, parse, reads_features

Batches: TypeAlias = Dataset[Any] | Iterable[object]
_LOGGED = ("auroc", "aurr")


def _callback() -> Any:
    """Lightning's class `Callback`. Two packages have it; one that is imported already comes first."""
    for name in sorted(("lightning.pytorch", "pytorch_lightning"), key=lambda name: name not in sys.modules):
        try:
            return importlib.import_module(name).Callback
        except ModuleNotFoundError as error:
            if error.name not in (name, name.partition(".")[0]):
                raise
    raise missing_package("the callback", "lightning", "companions")


_Callback: Any = _callback()


@final
class GuardCallback(_Callback):  # type: ignore[misc]
    """Logs in each validation how well a score separates right from wrong and OOD, and makes a guard at the end.

    ```python
    trainer = Trainer(callbacks=[GuardCallback(train, val, ood={"other": other}, path="guard.safetensors")])
    ```

    It logs `sirc/auroc/NEGATIVE` and `sirc/aurr/NEGATIVE`, where NEGATIVE is `wrong`, the name of an OOD set, or `OOD
    mean`, as in `sirc.evaluate`. To do so, the network runs on `val` and `ood` in each validation, and on `train` if
    the score learns from it; `score="msp"` does not. The guard is made with the last weights, or with the best.

    Args:
        train: labelled ID data with the preprocessing of test time: a dataset, or a loader that does not shuffle.
        val: the same, of data that the network is not trained on.
        ood: OOD sets, by name.
        path: the file to write the guard to.
        score: the spec of the score.
        recall: as in `sirc.guard`.
        delta: as in `sirc.guard`.
        best: load the best weights of the trainer's `ModelCheckpoint(monitor=…)` first; the network keeps them.
        overwrite: replace the file of an earlier guard.
        options: further arguments of `sirc.guard`.
    """

    def __init__(
        self,
        train: Batches,
        val: Batches,
        *,
        ood: Mapping[str, Batches] | None = None,
        path: PathLike = "guard.safetensors",
        score: str = "scod",
        recall: float | None = None,
        delta: float | None = 0.05,
        best: bool = False,
        overwrite: bool = False,
        **options: Any,
    ) -> None:
        super().__init__()
        for name, data in (("train", train), ("val", val)):
            # An iterator would be used up by the first validation.
            if isinstance(data, str | os.PathLike | Iterator) or not isinstance(data, Dataset | Iterable):
                raise ValueError(f"`{name}` must be a dataset or a loader; got {type(data).__name__}")
        check_type("ood", ood, Mapping | None, "a dict of OOD sets", "Name each: `ood={'textures': data}`")
        self.guard: SelectiveClassifier | None = None
        """The guard, once the training is over."""
        self._train, self._val, self._ood = train, val, dict(ood or {})
        self._path, self._overwrite, self._best = check_path("path", path), overwrite, best
        self._score, self._spec = score, parse(score)
        self._options = {"recall": recall, "delta": delta, **options}

    def setup(self, trainer: Any, pl_module: nn.Module, stage: str) -> None:
        """Fail before the training instead of after it."""
        if stage == "fit":
            refuse_existing(self._path, self._overwrite)
            if self._best and _checkpoint_of(trainer) is None:
                raise ValueError(
                    "`best` needs to know which weights are the best; no checkpoint callback of the trainer monitors a "
                    'metric. Add `ModelCheckpoint(monitor="sirc/aurr/wrong")`, or one for another logged metric'
                )
            recall, risk, delta = (self._options.get(name) for name in ("recall", "risk", "delta"))
            Promise.of(recall, risk, delta, self._val).require_rows(size_of(self._val))

    def on_validation_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Log the metrics; warn if there are none yet, because nothing is right or outputs are not finite."""
        if trainer.sanity_checking:
            return
        try:
            values = self.measure(pl_module)
        except ValueError as error:
            warn(f"nothing is logged of `{self._score}` in this validation: {first_line(error)}")
            return
        pl_module.log_dict(values, sync_dist=trainer.world_size > 1)

    def measure(self, model: nn.Module) -> dict[str, float]:
        """The metrics of the network as it is now, by the name they are logged under."""
        network, features, head = unwrap(model), bool(reads_features([self._spec])), self._options.get("head")
        if features and not isinstance(head, Head):
            head = features_at(network, first_inputs(2, self._val), name=head)
        reading = {key: self._options[key] for key in ("batch_size", "workers", "on_error") if key in self._options}
        run = partial(extract, network, head=head, features=features, progress=False, **reading)
        scorer = Scorer(self._score)
        if Needs.of([self._score]).train or features:
            scorer = fit(self._score, run(self._train), head=head if isinstance(head, Head) else None, progress=False)
        ood = {name: run(data, labels=False) for name, data in self._ood.items()}
        table = evaluate(scorer, run(self._val), ood=ood).table
        rows = table[table["metric"].isin(_LOGGED) & (table["negative"] != "pooled")]
        return {f"sirc/{row['metric']}/{row['negative']}": row["value"] for row in rows.to_dict("records")}

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """Make the guard; the first of several processes writes its file."""
        if self._best:
            _load_best(pl_module, trainer)
        device = pl_module.device  # the trainer has moved the network to the CPU by now
        options = {"device": trainer.strategy.root_device, **self._options}
        self.guard = guard(pl_module, self._train, self._val, score=self._score, **options).to(device)
        if trainer.is_global_zero:
            self.guard.save(self._path, overwrite=self._overwrite)


def _checkpoint_of(trainer: Any) -> Any:
    """The first checkpoint callback that monitors a metric, or None."""
    return next((one for one in trainer.checkpoint_callbacks if getattr(one, "monitor", None)), None)


def _load_best(module: nn.Module, trainer: Any) -> None:
    """Load the best weights; if they were not saved or cannot be read, warn and keep the last ones."""
    path = _checkpoint_of(trainer).best_model_path
    try:
        if not path:
            raise ValueError("the trainer saved none")
        load_weights(module, path)
    except (ValueError, OSError) as error:
        warn(f"the guard is of the last weights, not of the best: {first_line(error)}")
