"""Commands that help to choose a score: check SIRC's premise, select by regret."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

import typer
from typer import Argument, Option

from sirc._utils.text import quoted
from sirc.cli.console import reporting, result
from sirc.cli.options import (
    CrossfitOption,
    HeadFile,
    OnUnfit,
    OodFiles,
    Quiet,
    Specs,
    TrainFile,
    TuningFile,
    folds_of,
    named_pairs,
    note_test_images,
    refuse_unused,
    unfit_of,
)
from sirc.errors import ConfigError

if TYPE_CHECKING:
    from sirc.evaluation import Choice
    from sirc.evaluation.premise import Assumptions
    from sirc.experiment import Run
    from sirc.outputs import Outputs, OutputStore
    from sirc.progress import Progress
    from sirc.scores import Scorer

Stored = Annotated[list[Path] | None, Argument(metavar="RUN", help="Folders that `sirc run` or `sirc demo` made.")]
ValFile = Annotated[Path | None, Option(help="Labelled ID outputs that nothing was fitted on.")]
Judge = Callable[["Case"], "Assumptions | Choice"]
By = Literal["worst", "average"]
Pool = Literal["datasets", "samples"]
Method = Literal["auto", "bootstrap"]
ScorerFile = Annotated[Path | None, Option(help="Instead of `--train`: a fitted scorer, as `scorer.save` writes it.")]


class Files(NamedTuple):
    """The options with which a user brings arrays, and how a scorer is fitted on them."""

    val: ValFile = None
    train: TrainFile = None
    tune: TuningFile = None
    scorer: ScorerFile = None
    ood: OodFiles = None
    head: HeadFile = None
    spec: Specs = None
    crossfit: CrossfitOption = None
    on_unfit: OnUnfit = None


def check(
    files: Files,
    runs: Stored = None,
    level: Annotated[float, Option(help="The level of the intervals.")] = 0.95,
    as_json: Annotated[bool, Option("--json", help="Print JSON: a list with one report for each model.")] = False,
    quiet: Quiet = False,
) -> None:
    """Check whether SIRC's premise holds for each S2, and recommend a score.

    For a run, it uses the outputs of the test images, or of a random half of them if the other half sets the
    threshold. Without OOD data the recommendation rests on ID data alone.

    Example: `sirc check --val val.npz --train train.npz --ood textures=dtd.npz`

    For a study, with its OOD sets: `sirc check runs/resnet50_imagenet200`
    """
    from sirc.evaluation.premise import check_assumptions

    def premise(case: Case) -> Assumptions:
        return check_assumptions(case.scorer, case.id, case.ood, level=level)

    _judge("check", runs, files, premise, as_json, quiet)


def select(
    files: Files,
    runs: Stored = None,
    alpha: Annotated[str, Option(metavar="LOW,HIGH", help="The share of ID input: a range or a number.")] = "0.1,0.9",
    beta: Annotated[str, Option(metavar="LOW,HIGH", help="The cost of accepting ID✗; of OOD, 1 − β.")] = "0.1,0.9",
    metric: Annotated[str, Option(help="A metric of the mixture, such as `aurr`, `aurc` or `risk@95`.")] = "aurr",
    by: Annotated[By, Option(help="`worst` or `average` regret over the range.")] = "worst",
    absolute: Annotated[bool, Option("--absolute", help="Absolute regret, not relative to the best score.")] = False,
    pool: Annotated[Pool, Option(help="What has equal weight in OOD data: `datasets` or `samples`.")] = "datasets",
    method: Annotated[Method, Option(help="How to compute intervals: `auto` resamples only if needed.")] = "auto",
    draws: Annotated[int, Option(help="Random draws for the intervals.")] = 1000,
    level: Annotated[float, Option(help="The level of the intervals, and of a lead.")] = 0.95,
    seed: Annotated[int, Option(help="The seed of the draws.")] = 0,
    as_json: Annotated[bool, Option("--json", help="Print JSON: a list with one choice for each model.")] = False,
    quiet: Quiet = False,
) -> None:
    """Choose the score with the least regret over a range of α and β, or say that it is a tie.

    For a run, it uses the outputs of a random half of the validation images, or of the test images if there are none;
    `sirc calibrate` then uses the chosen score and the other half. Without OOD data the choice rests on ID✗|ID✓ alone.
    Candidates are the scorer's scores; with `--train`, those of the paper that can be fitted. `--alpha` and `--beta`
    take a range, one number, or three and more points.

    Example: `sirc select --val val.npz --train train.npz --ood textures=dtd.npz --alpha 0.5,0.9 --beta 0.5`

    For a study, with its OOD sets: `sirc select runs/resnet50_imagenet200`
    """
    from sirc.evaluation import select as choose

    alphas, betas = _numbers("--alpha", alpha), _numbers("--beta", beta)

    def choice(case: Case) -> Choice:
        return choose(
            case.scorer,
            case.id,
            case.ood,
            alpha=alphas,
            beta=betas,
            metric=metric,
            by=by,
            relative=not absolute,
            pool=pool,
            method=method,
            draws=draws,
            level=level,
            seed=seed,
        )

    _judge("select", runs, files, choice, as_json, quiet)


class Case(NamedTuple):
    """A model to judge: its scorer, ID outputs and OOD outputs; its run and set of images, if it has them."""

    name: str
    scorer: Scorer
    id: Outputs | OutputStore
    ood: dict[str, Outputs | OutputStore]
    run: Run | None = None
    images: str = ""


def _judge(command: str, runs: list[Path] | None, files: Files, judge: Judge, as_json: bool, quiet: bool) -> None:
    """Print the verdict on each model as soon as it is known, or all of them as one JSON list."""
    if bool(runs) == (files.val is not None):
        raise ConfigError(f"`sirc {command}` is for RUN folders or for arrays, `--val VAL.npz`: give one of the two.")
    if runs and any(files._replace(spec=None)):
        raise ConfigError("RUN folders have their own scorer, head and OOD sets; leave these options to `--val`.")
    progress = reporting(quiet)
    cases = _of_runs(command, runs, progress) if runs else _of_files(command, files, progress)
    verdicts = []
    for case in cases:
        named = files.spec or ()
        if files.on_unfit == "skip":
            named = [text for text in named if text in case.scorer.specs]
        verdict = judge(case._replace(scorer=case.scorer.only(named)) if named else case)
        kept = _keep(command, case, verdict, progress)
        if as_json:
            verdicts.append({"model": case.name, **verdict.to_dict()})
        else:
            result(f"{case.name}\n{verdict}\n{kept}" if runs else str(verdict))
    if as_json:
        typer.echo(json.dumps(verdicts, indent=1))


def _keep(command: str, case: Case, verdict: Assumptions | Choice, progress: Progress) -> str:
    """Save the choice in the run's folder for `sirc calibrate`, and say so."""
    from sirc.evaluation import Choice
    from sirc.experiment import keep_choice
    from sirc.outputs import Outputs

    if case.run is None:
        return ""
    half = isinstance(case.id, Outputs)
    rows = f"{'a random half of ' if half else ''}the {case.images} images"
    try:
        score = verdict.best if isinstance(verdict, Choice) else verdict.recommended
        keep_choice(case.run, command, score, case.images, half=half)
    except OSError as error:
        progress.note(f"note: `sirc calibrate` will not know of this choice, as it cannot be kept: {error}")
        return f"Chosen on {rows}.\n"
    return f"Chosen on {rows}; `sirc calibrate` takes this score{' and the other half' if half else ''}.\n"


def _of_runs(command: str, folders: list[Path], progress: Progress) -> Iterator[Case]:
    """Give each run of each study, with its test outputs; to select, with validation outputs that tuned no score."""
    from sirc.experiment import calibration_set, check_outputs, load_experiments, outputs_to_choose, title_of
    from sirc.outputs import OutputStore
    from sirc.scores import Scorer

    for study in (study for folder in folders for study in load_experiments(folder)):
        for run in study.runs:
            honest = calibration_set(study) == "validation" and run.store("validation").exists()
            name = "validation" if command == "select" and honest else "test"
            if command == "select" and not honest:
                note_test_images(study, "choose the score", progress)
            check_outputs(study, run, [name, *study.data.ood])
            title = f"{title_of(study)}, seed {run.seed}"
            ood = {other: OutputStore(run.store(other)) for other in study.data.ood}
            inside = outputs_to_choose(study, run, name)
            yield Case(title, Scorer.load(run.scorer), inside, {**ood}, run, name)


def _of_files(command: str, files: Files, progress: Progress) -> Iterator[Case]:
    """Read the files, and load a scorer or fit one; by default all scores of the paper (to check: SIRC's) it can."""
    from sirc.experiment import arrays
    from sirc.scores import Needs, Scorer, fit

    val, train, tune, scorer, ood, head, specs, crossfit, on_unfit = files
    if (train is None) == (scorer is None):
        raise ConfigError("`--val` needs a scorer: give either `--train TRAIN.npz` to fit one, or `--scorer FILE`.")
    if train is None:
        without = "nothing is fitted, as a saved scorer has all it needs"
        refuse_unused(without, head=head, tune=tune, crossfit=crossfit, on_unfit=on_unfit)
    folds = folds_of(crossfit)
    assert val is not None
    inside = arrays.load_outputs(val)
    outside = {name: arrays.load_outputs(path) for name, path in named_pairs("--ood", ood)}
    if train is None:
        assert scorer is not None
        yield Case(str(scorer), Scorer.load(scorer), inside, outside)
        return
    training, layer = arrays.load_outputs(train), arrays.find_head_in(head, train)
    tuning = None if tune is None else arrays.load_outputs(tune)
    possible = arrays.possible_specs(training, inside, layer, tuning)
    chosen = specs or [text for text in possible if command == "select" or text.startswith("sirc(")]
    if not chosen:
        raise ValueError(f"`sirc(S1, S2)` needs `features` for its S2; '{val}' or '{train}' has none.")
    untuned = next((spec for spec in chosen if Needs.of([spec]).val), None)
    if tuning is None and untuned:
        raise ConfigError(f"`{untuned}` is tuned on labelled ID outputs other than those of `--val`: give `--tune`.")
    unfit = unfit_of(on_unfit, specs)
    fitted = fit(chosen, training, head=layer, crossfit=folds, val=tuning, on_unfit=unfit, progress=progress)
    yield Case(val.stem, fitted, inside, outside)


def _numbers(option: str, text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(
            f"`{option}` must be numbers with commas between them, as 0.1,0.9; got {quoted(text)}."
        ) from None
