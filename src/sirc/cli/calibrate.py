"""The command that sets a threshold: calibrate."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sirc.cli.console import result, say
from sirc.cli.options import Device, Quiet, Replace, RunFolder, RunSeed, find_runs, on_device, refuse_existing
from sirc.errors import ConfigError

if TYPE_CHECKING:
    import torch
    from torch import nn

    from sirc.experiment import Experiment, Run
    from sirc.outputs import Outputs, OutputStore
    from sirc.progress import Progress
    from sirc.scores import Scorer

_PREFERRED = ("sirc(entropy, residual)", "sirc(msp, residual)", "sirc(doctor, residual)")


def calibrate(
    run: RunFolder,
    seed: RunSeed = None,
    score: Annotated[
        str | None, typer.Option(metavar="SPEC", help="Default: `sirc(entropy, residual)`, or the first `sirc(…)`.")
    ] = None,
    recall: Annotated[float | None, typer.Option(help="Accept at least this share of ID✓. Default: 0.95.")] = None,
    coverage: Annotated[float | None, typer.Option(help="Or: accept at least this share of ID input.")] = None,
    risk: Annotated[
        float | None, typer.Option(help="Or: at most this share of errors among accepted ID input.")
    ] = None,
    delta: Annotated[float, typer.Option(help="The promise holds with probability 1 − δ.")] = 0.05,
    plain: Annotated[
        bool, typer.Option("--plain", help="The estimate alone, without a promise (not with --risk).")
    ] = False,
    val: Annotated[
        Path | None,
        typer.Option(help="Labelled ID outputs that nothing was fitted on: a file, or the folder of a store."),
    ] = None,
    out: Annotated[Path, typer.Option(help="The file to write.")] = Path("selective.safetensors"),
    overwrite: Replace = False,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Set the threshold of a run's network on labelled ID data, and print what it promises.

    The data is that of `--val`; or else the experiment's validation images, if no score was tuned on them; or else its
    test images, whose own figures are then no longer honest. A promise that the data cannot support writes nothing.

    Example: `sirc calibrate runs/resnet50_imagenet200 --seed 1 --recall 0.95 --delta 0.05 --out selective.safetensors`
    """
    from sirc.deploy import SelectiveClassifier
    from sirc.experiment import load_head, network
    from sirc.scores import Scorer

    goals = {"recall": recall, "coverage": coverage, "risk": risk}
    target = {name: value for name, value in goals.items() if value is not None} or {"recall": 0.95}
    if len(target) > 1:
        raise ConfigError(
            f"give one of --recall, --coverage and --risk; got {' and '.join(f'--{name}' for name in target)}."
        )
    if plain and risk is not None:
        raise ConfigError("`--plain` is not for `--risk`: a risk without a promise would be too low a figure.")
    for name, value in {**target, "delta": delta}.items():
        if not 0 < value <= 1 or (name == "delta" and value == 1):
            raise ConfigError(f"`--{name}` must lie between 0 and 1; got {value:g}.")
    study, chosen_run = _find_run(run, seed)
    refuse_existing(out, overwrite)
    with on_device(device, quiet) as (where, progress):
        if not chosen_run.scorer.exists():
            raise FileNotFoundError(f"there is no '{chosen_run.scorer}'. Fit the scores first: `sirc fit …`.")
        scorer = Scorer.load(chosen_run.scorer)
        spec = _choose_score(scorer, score)
        model = network(study, chosen_run)
        data = _calibration_data(study, chosen_run, val, model, device=where, progress=progress)
        selective = SelectiveClassifier(
            model,
            scorer,
            spec,
            head=load_head(chosen_run.head)[0],
            classes=_class_names(study, scorer.num_classes, progress),
            preprocess=study.preprocess,
        )
        if val is None and study.extract.precision != "fp32":
            progress.note(
                f"note: the outputs that set the threshold were computed in {study.extract.precision}; decisions are "
                "in fp32, with confidences that differ a little. The promise needs `extract.precision` to be fp32."
            )
        promise: dict[str, Any] = {**target, "delta": None if plain else delta}
        selective.calibrate(data, **promise)
    assert selective.threshold is not None
    result(f"{spec}\n{selective.threshold}")
    if not selective.threshold.feasible:
        say("error: nothing was written, as no threshold keeps this promise; see the advice above")
        raise typer.Exit(1)
    selective.save(out, overwrite=overwrite)
    result(str(out))


def _find_run(folder: Path, seed: int | None) -> tuple[Experiment, Run]:
    """The experiment and its run with this seed, which may be left out where there is only one."""
    study, runs = find_runs(folder, seed)
    if len(runs) > 1:
        listed = ", ".join(str(run.seed) for run in runs)
        raise ConfigError(f"'{folder}' has runs of the seeds {listed}: say which with `--seed {runs[0].seed}`.")
    return study, runs[0]


def _choose_score(scorer: Scorer, name: str | None) -> str:
    """The score asked for, or the preferred one of those that were fitted."""
    from sirc.scores import parse

    fitted = {str(parse(spec)): spec for spec in scorer.specs}
    if name is not None:
        try:
            spec = str(parse(name))
        except ValueError as error:
            raise ConfigError(f"`--score`: {error}") from error
        if spec not in fitted:
            raise ConfigError(f"`--score` must be one of the run's: {'; '.join(fitted)}; got {name!r}.")
        return fitted[spec]
    sirc_specs = [spec for spec in fitted if spec.startswith("sirc(")]
    return fitted[next(spec for spec in (*_PREFERRED, *sirc_specs, *fitted) if spec in fitted)]


def _calibration_data(
    study: Experiment,
    run: Run,
    val: Path | None,
    model: nn.Module,
    *,
    device: torch.device,
    progress: Progress,
) -> Outputs | OutputStore:
    """The outputs that set the threshold: from a file, of the validation images, or at worst of the test images."""
    from sirc.errors import StoreError
    from sirc.experiment import arrays, check_outputs, extract_run
    from sirc.models import fingerprint
    from sirc.outputs import OutputStore

    if val is not None:
        outputs = arrays.load_outputs(val)
        if isinstance(outputs, OutputStore) and outputs.model not in (None, fingerprint(model)):
            raise StoreError(
                f"'{val}' must hold outputs of this run's network; they are another's. Extract them again."
            )
        return outputs
    if not study.data.validates or study.tuned:
        check_outputs(study, run, ["test"])
        reason = "tuned scores on its validation images" if study.tuned else "has no validation images"
        advice = "give `--val`" if study.tuned else "give `--val`, or `data.validation` or `data.holdout` in the TOML"
        progress.note(
            f"note: the experiment {reason}, so its test images set the threshold. What the test set says of this "
            f"threshold is then no longer honest: {advice}."
        )
        return OutputStore(run.store("test"))
    try:
        check_outputs(study, run, ["validation"])
    except FileNotFoundError:
        extract_run(study, run, ["validation"], device=device, progress=progress)
    return OutputStore(run.store("validation"))


def _class_names(study: Experiment, count: int | None, progress: Progress) -> list[str] | None:
    """The names of the classes, from the training images; None if these cannot be opened."""
    from sirc.experiment import images_of

    try:
        names = images_of(study, "train", augmented=True).classes
    except (ValueError, OSError, ImportError) as error:
        progress.note(f"note: without names of classes, as the training images cannot be opened: {error}")
        return None
    return list(names) if names and len(names) == count else None
