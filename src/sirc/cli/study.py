"""The commands that take an experiment's TOML: train, extract, fit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sirc.cli.console import reporting, result
from sirc.errors import ConfigError

if TYPE_CHECKING:
    import torch

    from sirc.experiment import Experiment, Run
    from sirc.progress import Progress


class OnErrorChoice(StrEnum):
    """What to do with an image that cannot be read."""

    stop = "stop"
    skip = "skip"


ExperimentFile = Annotated[
    Path, typer.Argument(metavar="EXPERIMENT.toml", help="The experiment; see `studies/paper/` for the paper's five.")
]
Seeds = Annotated[
    list[int] | None,
    typer.Option("--seed", metavar="N", help="Which of the experiment's seeds; repeat for several. Default: all."),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a setting: `--set train.lr=0.05`. Repeat for several."),
]
OnErrorOption = Annotated[
    OnErrorChoice | None,
    typer.Option(help="At an unreadable image: `stop`, or `skip` it, counted and named. Default: the TOML's."),
]
Device = Annotated[str, typer.Option(help="`auto` (a GPU if there is one), `cpu`, `cuda`, `cuda:1`, …")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Delete what an earlier run left, and start anew.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress, only results and errors.")]


def train(
    experiment: ExperimentFile,
    seed: Seeds = None,
    set_: Overrides = None,
    on_error: OnErrorOption = None,
    device: Device = "auto",
    overwrite: Overwrite = False,
    quiet: Quiet = False,
) -> None:
    """Train the networks of an experiment, one for each seed.

    A checkpoint after every epoch lets the same command go on where it was stopped. Weights end up in
    `OUT/NAME/seed-N/model.safetensors`, with `history.csv` beside them.

    Example: `sirc train studies/paper/resnet50_imagenet200.toml --seed 1`

    On four GPUs, same global batch: `torchrun --nproc-per-node 4 -m sirc train …`
    """
    set_ = [*(set_ or ()), *([f"train.on_error={on_error.value}"] if on_error else [])]
    study, runs = _read(experiment, set_, seed)
    names = ["train", "validation" if study.data.validates else "test"]
    study.require(names)
    from sirc.data import DeviceCache

    with started(device, quiet) as (where, progress), DeviceCache() as holding:
        from sirc.experiment import check_data, train_run

        if overwrite or not all(run.weights.exists() for run in runs):
            check_data(study, names, trains=True, holding=holding, progress=progress)
        for run in runs:
            history = train_run(
                study, run, cpu=where.type == "cpu", overwrite=overwrite, progress=progress, holding=holding
            )
            keep(study)
            last = history[-1]
            error = last.error if last.validation_error is None else last.validation_error
            kind = "training" if last.validation_error is None else "validation"
            result(f"{run.weights}  {len(history)} epochs, {kind} error {error:.2%}")


def extract(
    experiment: ExperimentFile,
    seed: Seeds = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            "--only", metavar="NAME", help="`train`, `test`, `validation` or an OOD set; repeat. Default: all needed."
        ),
    ] = None,
    set_: Overrides = None,
    on_error: OnErrorOption = None,
    device: Device = "auto",
    overwrite: Overwrite = False,
    quiet: Quiet = False,
) -> None:
    """Run the networks over the datasets and store logits, features and labels.

    Validation images are among them where `fit.specs` has scores that are tuned on them. Stores end up in
    `OUT/NAME/seed-N/outputs/`. A stopped run is taken up by the same command: finished shards stay.

    Example: `sirc extract studies/paper/resnet50_imagenet200.toml --seed 1 --only test --only Textures`

    With four processes: `torchrun --nproc-per-node 4 -m sirc extract …`
    """
    study, runs = _read(experiment, set_, seed)
    names = only or study.stored
    for name in names:
        if name not in study.names:
            raise ConfigError(f"`--only` must be one of {', '.join(study.names)}; got {name!r}.")
    study.require(names)
    from sirc.data import DeviceCache

    with started(device, quiet) as (where, progress), DeviceCache() as holding:
        from sirc.experiment import extract_run

        for run in runs:
            stores = extract_run(
                study,
                run,
                names,
                device=where,
                on_error=on_error.value if on_error else None,
                overwrite=overwrite,
                progress=progress,
                holding=holding,
            )
            keep(study)
            for store in stores.values():
                skipped = f", {len(store.skipped)} unreadable" if store.skipped else ""
                features = "" if store.num_features is None else f", {store.num_features} features"
                result(f"{store.path}  {len(store)} rows, {store.num_classes} logits{features}{skipped}")


def fit(
    experiment: ExperimentFile,
    seed: Seeds = None,
    set_: Overrides = None,
    device: Device = "auto",
    overwrite: Overwrite = False,
    quiet: Quiet = False,
) -> None:
    """Fit the experiment's scores on the stored outputs of its training images.

    Scores that can be tuned are, on the outputs of the validation images, where the experiment has some.
    The scorer ends up in `OUT/NAME/seed-N/scorer.safetensors`; load it with `sirc.Scorer.load`.

    Example: `sirc fit studies/paper/resnet50_imagenet200.toml --seed 1`

    With four processes, same result: `torchrun --nproc-per-node 4 -m sirc fit …`
    """
    study, runs = _read(experiment, set_, seed)
    with started(device, quiet) as (where, progress):
        from sirc.experiment import fit_run

        for run in runs:
            scorer = fit_run(study, run, device=where, overwrite=overwrite, progress=progress)
            keep(study)
            result(f"{run.scorer}  {len(scorer.specs)} scores")


def keep(study: Experiment) -> None:
    """Write the effective configuration beside its results, once there are any; each stage has compared its part."""
    from sirc._utils import distributed

    if distributed.is_main():
        study.save(overwrite=True)


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    for command in (train, extract, fit):
        app.command()(command)


def _read(path: Path, overrides: list[str] | None, seeds: list[int] | None) -> tuple[Experiment, tuple[Run, ...]]:
    """The experiment and the runs of it that are asked for."""
    from sirc.experiment import Experiment

    study = Experiment.read(path, overrides or ())
    if not seeds:
        return study, study.runs
    known = {run.seed: run for run in study.runs}
    for seed in seeds:
        if seed not in known:
            listed = ", ".join(map(str, known)) if study.seeds else "none, as its model is pretrained"
            raise ConfigError(
                f"{path}: `--seed` must be one of the experiment's seeds ({listed}); got {seed}. Add it: "
                f"`--set seeds=[{seed}]`."
            )
    return study, tuple(known[seed] for seed in dict.fromkeys(seeds))


@contextmanager
def started(device: str, quiet: bool) -> Iterator[tuple[torch.device, Progress]]:
    """Join the other processes, if there are any, and open the progress display."""
    import torch

    from sirc._utils import distributed

    name = ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
    try:
        where = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"`--device` must be auto, cpu, cuda or cuda:N; got {device!r}.") from error
    if where.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            f"`--device {device}` needs a GPU that this PyTorch can use; there is none. Use `--device cpu`."
        )
    with distributed.process_group(where), reporting(quiet=quiet) as progress:
        if where.type == "cuda":
            where = torch.device("cuda", torch.cuda.current_device() if where.index is None else where.index)
            torch.cuda.set_device(where)  # accelerate trains on the current one
        yield where, progress
