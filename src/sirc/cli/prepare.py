"""Commands for single stages of an experiment: train, extract, fit."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

from typer import Argument, Option

from sirc._utils.text import quoted
from sirc.cli.console import is_main, result
from sirc.cli.options import Device, Names, OnErrorOption, Overrides, Overwrite, Quiet, Trust, on_device, read_runs
from sirc.errors import ConfigError

if TYPE_CHECKING:
    from sirc.experiment import Experiment


class StageOptions(NamedTuple):
    """Options of every stage: an experiment, the seeds of its networks, and how to work."""

    experiment: Annotated[Path, Argument(metavar="EXPERIMENT.toml", help="The paper's are in `studies/paper/`.")]
    seed: Annotated[list[int] | None, Option("--seed", metavar="N", help="A seed of the experiment; repeat.")] = None
    set_: Overrides = None
    device: Device = "auto"
    overwrite: Overwrite = False
    trust: Trust = False
    quiet: Quiet = False


def train(options: StageOptions, on_error: OnErrorOption = None) -> None:
    """Train the networks of an experiment, one for each seed.

    A checkpoint is written after every epoch, from which the same command resumes. Weights go to
    `OUT/NAME/seed-N/model.safetensors`, with `history.csv` beside them.

    Example: `sirc train studies/paper/resnet50_imagenet200.toml --seed 1`

    On four GPUs, same global batch: `torchrun --nproc-per-node 4 -m sirc train …`
    """
    overrides = [*(options.set_ or ()), *([f"train.on_error={on_error}"] if on_error else [])]
    study, runs = read_runs(options.experiment, overrides, options.seed, options.trust)
    names = ["train", "validation" if study.data.validates else "test"]
    study.require(names)
    from sirc.data import DeviceCache
    from sirc.experiment import check_data, train_run

    with on_device(options.device, options.quiet) as (where, progress), DeviceCache() as cache:
        if options.overwrite or not all(run.weights.exists() for run in runs):
            check_data(study, names, trains=True, cache=cache, progress=progress)
        for run in runs:
            history = train_run(
                study, run, cpu=where.type == "cpu", overwrite=options.overwrite, progress=progress, cache=cache
            )
            _save_config(study)
            last = history[-1]
            error = last.error if last.validation_error is None else last.validation_error
            kind = "training" if last.validation_error is None else names[1]
            result(f"{run.weights}  {len(history)} epochs, {kind} error {error:.2%}")


def extract(
    options: StageOptions,
    only: Annotated[Names, Option(metavar="NAME", help="`train`, `test`, `validation` or an OOD set; repeat.")] = None,
    on_error: OnErrorOption = None,
) -> None:
    """Run the networks over the datasets and store logits, features and labels.

    Stores go to `OUT/NAME/seed-N/outputs/`. Finished shards stay, and the same command resumes a stopped one.

    Example: `sirc extract studies/paper/resnet50_imagenet200.toml --seed 1 --only test --only Textures`

    With four processes: `torchrun --nproc-per-node 4 -m sirc extract …`
    """
    study, runs = read_runs(options.experiment, options.set_, options.seed, options.trust)
    names = only or study.names
    for name in names:
        if name not in study.names:
            raise ConfigError(f"`--only` must be one of {', '.join(study.names)}; got {quoted(name)}.")
    study.require(names)
    from sirc.data import DeviceCache
    from sirc.experiment import extract_run

    with on_device(options.device, options.quiet) as (where, progress), DeviceCache() as cache:
        for run in runs:
            stores = extract_run(
                study,
                run,
                names,
                device=where,
                on_error=on_error,
                overwrite=options.overwrite,
                progress=progress,
                cache=cache,
            )
            _save_config(study)
            for store in stores.values():
                skipped = f", {len(store.skipped)} unreadable" if store.skipped else ""
                features = "" if store.num_features is None else f", {store.num_features} features"
                result(f"{store.path}  {len(store)} rows, {store.num_classes} logits{features}{skipped}")


def fit(options: StageOptions) -> None:
    """Fit the experiment's scores on the stored outputs of its training images.

    Scores that can be tuned are tuned on the outputs of the validation images, if there are any. The scorer goes
    to `OUT/NAME/seed-N/scorer.safetensors`; load it with `sirc.Scorer.load`.

    Example: `sirc fit studies/paper/resnet50_imagenet200.toml --seed 1`

    With four processes, same result: `torchrun --nproc-per-node 4 -m sirc fit …`
    """
    from sirc.experiment import fit_run

    study, runs = read_runs(options.experiment, options.set_, options.seed, options.trust)
    with on_device(options.device, options.quiet) as (where, progress):
        for run in runs:
            scorer = fit_run(study, run, device=where, overwrite=options.overwrite, progress=progress)
            _save_config(study)
            result(f"{run.scorer}  {len(scorer.specs)} scores")


def _save_config(study: Experiment) -> None:
    """Write the configuration beside the results of a stage, which has checked its part of it."""
    if is_main():
        study.save()
