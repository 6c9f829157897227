"""Evaluation of arrays from files: outputs, head or confidences that a user brings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from sirc._utils.arrays import as_tensor
from sirc._utils.checks import check_integer, check_same_length, check_shape
from sirc._utils.files import PathLike, array_names, read_npz, require_array, write_npz
from sirc.errors import NotFittedError, OnError
from sirc.evaluation import evaluate
from sirc.experiment.config import DEFAULT_SPECS
from sirc.experiment.results import RunResults
from sirc.outputs import Head, Outputs, OutputStore, read_head, warn_of_labels
from sirc.progress import SILENT, Progress
from sirc.scores import Crossfit, Needs, Scorer, fit, missing_features

_CONFIDENCES = ("conf", "pred", "label")  # as OpenOOD saves them


def load_outputs(path: PathLike) -> Outputs | OutputStore:
    """Open a `.npz` or `.safetensors` file with `logits` (and `features`, `labels`), or the folder of a store."""
    path = Path(path)
    if path.is_dir():
        return OutputStore(path)
    if not path.is_file():
        raise FileNotFoundError(f"there is no file or store '{path}'.")
    try:
        return Outputs.load(path)
    except ValueError as error:
        if f"'{path}'" in str(error):
            raise
        raise type(error)(f"'{path}': {error}") from error


def save_arrays(path: PathLike, outputs: Outputs, head: Head | None = None, *, overwrite: bool = False) -> None:
    """Write outputs as a `.npz` file, and the head with them."""
    layer = {} if head is None else {f"head_{name}": value for name, value in head._tensors().items()}
    write_npz(path, outputs._tensors() | layer, overwrite=overwrite)


def find_head_in(head: PathLike | None, train: PathLike | None) -> Head | None:
    """Read the head from the file `head`; without such a file, from the training outputs, which may have none."""
    if head is not None:
        return Head.load(head)
    return None if train is None or Path(train).is_dir() else read_head(train)


def has_confidences(path: PathLike) -> bool:
    """Whether a file holds confidences, predictions and labels instead of logits, as OpenOOD saves them."""
    path = Path(path)
    names = array_names(path) if path.suffix == ".npz" and path.is_file() else set()
    return "logits" not in names and "conf" in names


def evaluate_confidences(
    test: PathLike,
    ood: Mapping[str, PathLike],
    *,
    score: str,
    groups: Mapping[str, Sequence[str]] | None = None,
    model: str = "model",
) -> RunResults:
    """Evaluate the confidences of one score; files hold `conf`, `pred` and `label`, and OOD files only need `conf`."""
    arrays = read_npz(test, _CONFIDENCES)
    for name in _CONFIDENCES[1:]:
        require_array(test, name, arrays)
    predictions, labels = (as_tensor(name, arrays[name]) for name in _CONFIDENCES[1:])
    for name, values in (("pred", predictions), ("label", labels)):
        check_same_length(name, values, "conf", as_tensor("conf", arrays["conf"]))
        check_shape(name, values, n=1, hint="Pass one number for each input.")
        check_integer(name, values)
    if int(labels.min()) < 0:
        row = int((labels < 0).nonzero()[0])
        raise ValueError(f"'{test}' must have the class of each ID input; `label` is {int(labels[row])} at row {row}.")
    warn_of_labels("test", predictions.long(), labels.long())
    outside = {name: {score: read_npz(path, _CONFIDENCES[:1])["conf"]} for name, path in ood.items()}
    evaluation = evaluate({score: (arrays["conf"], predictions == labels)}, ood=outside, groups=groups)
    return RunResults(model, 0, evaluation)


def possible_specs(
    train: Outputs | OutputStore | None,
    test: Outputs | OutputStore,
    head: Head | None,
    val: Outputs | OutputStore | None = None,
) -> list[str]:
    """The scores of the paper, and `scod`, for which the given outputs and head suffice."""
    features = all(part is None or part.num_features is not None for part in (train, test, val))
    labels = train is not None and train.layout.labels
    has = {"features": features, "train": train is not None, "labels": labels, "head": head is not None}
    possible = [spec for spec in DEFAULT_SPECS if all(has[name] for name in has if getattr(Needs.of([spec]), name))]
    if not features and train is not None and train.num_features is not None:
        possible.remove("scod")  # its witnesses would read them
    return possible


def fit_arrays(
    train: Outputs | OutputStore | None,
    test: Outputs | OutputStore,
    ood: Mapping[str, Outputs | OutputStore] | None = None,
    *,
    specs: Sequence[str] | None = None,
    head: Head | None = None,
    crossfit: Crossfit = "auto",
    val: Outputs | OutputStore | None = None,
    on_unfit: OnError = "stop",
    device: torch.device | None = None,
    progress: Progress = SILENT,
) -> Scorer:
    """Fit scores on `train`, whose rows the processes share; by default, all of `possible_specs`.

    `test` and `ood` are the outputs to be scored; if they lack features, that is an error before anything is fitted.
    Scores are tuned on `val`, labelled ID outputs that are in neither `train` nor `test`. `on_unfit` says what happens
    to scores that cannot be fitted; see `sirc.fit`.
    """
    chosen = list(specs) if specs else possible_specs(train, test, head, val)
    if train is None and val is not None:
        raise ValueError("`val` is for tuning what is fitted on `train`; got no training outputs. Pass `train` too")
    for name, part in {"test": test, **{f"ood[{key!r}]": value for key, value in (ood or {}).items()}}.items():
        if part.num_features is None and (reading := Needs.of(chosen).features):
            raise ValueError(f"`{name}`: {missing_features(reading)}")
    if train is None:
        if learning := [spec for spec in chosen if Needs.of([spec]).train]:
            raise NotFittedError(
                f"`train` is needed for {', '.join(f'`{spec}`' for spec in learning)}: outputs of ID training data to "
                "learn from. Pass `train` too"
            )
        return Scorer(chosen)
    return fit(
        chosen,
        train,
        head=head,
        crossfit=crossfit,
        val=val,
        on_unfit=on_unfit if specs else "skip",
        device=device,
        distributed=True,
        progress=progress,
    )
