"""Commands that help to choose a score: check, select."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

import typer
from typer import Option

from sirc._utils.text import quoted
from sirc.cli.console import reporting, result
from sirc.cli.options import (
    RUN_FOLDERS,
    Fitting,
    Quiet,
    TuningFile,
    named_values,
    note_test_images,
    refuse_unused,
)
from sirc.errors import ConfigError

if TYPE_CHECKING:
    from sirc.evaluation import Choice
    from sirc.evaluation.premise import Assumptions
    from sirc.experiment import Run
    from sirc.outputs import Outputs, OutputStore
    from sirc.progress import Progress
    from sirc.scores import Scorer

RunFolders = Annotated[list[Path] | None, RUN_FOLDERS]
Judge = Callable[["Case"], "Assumptions | Choice"]
Level = Annotated[float, Option(help="The level of the confidence intervals.")]


class Files(NamedTuple):
    """Files that a user brings instead of runs, and how to fit scores on them."""

    val: Annotated[Path | None, Option(help="Labelled ID outputs that nothing was fitted on.")] = None
    fitting: Fitting = Fitting()
    tune: TuningFile = None
    scorer: Annotated[Path | None, Option(help="Instead of `--train`: a scorer that `scorer.save` wrote.")] = None


def check(
    files: Files,
    runs: RunFolders = None,
    level: Level = 0.95,
    as_json: Annotated[bool, Option("--json", help="Print JSON: a list with one report for each model.")] = False,
    quiet: Quiet = False,
) -> None:
    """Check whether SIRC's premise holds for each S2, and recommend a score.

    The premise: right predictions do not have a lower S2 than wrong ones, and few ID inputs have an unusually low S2. A
    run is checked on its test images, or on a random half of them if the other half sets the threshold. Without OOD
    data the recommendation rests on ID data alone.

    Example: `sirc check --val val.npz --train train.npz --ood textures=dtd.npz`

    A study, with its OOD sets: `sirc check runs/resnet50_imagenet200`
    """
    from sirc.evaluation.premise import check_assumptions

    def premise(case: Case) -> Assumptions:
        return check_assumptions(case.scorer, case.id, case.ood, level=level)

    _judge("check", runs, files, premise, as_json, quiet)


def select(
    files: Files,
    runs: RunFolders = None,
    alpha: Annotated[str, Option(metavar="LOW,HIGH", help="The share of ID input: a range or a number.")] = "0.1,0.9",
    beta: Annotated[str, Option(metavar="LOW,HIGH", help="The cost of accepting ID✗; of OOD, 1 − β.")] = "0.1,0.9",
    metric: Annotated[str, Option(help="A metric of the mixture, such as `aurr`, `aurc` or `risk@95`.")] = "aurr",
    by: Annotated[Literal["worst", "average"], Option(help="`worst` or `average` regret over the range.")] = "worst",
    absolute: Annotated[bool, Option("--absolute", help="Absolute regret, not relative to the best score.")] = False,
    pool: Annotated[Literal["datasets", "samples"], Option(help="What has equal weight in OOD data.")] = "datasets",
    method: Annotated[Literal["auto", "bootstrap"], Option(help="Intervals: `auto` resamples if needed.")] = "auto",
    draws: Annotated[int, Option(help="Random draws for an interval.")] = 1000,
    level: Level = 0.95,
    seed: Annotated[int, Option(help="The seed of the draws.")] = 0,
    as_json: Annotated[bool, Option("--json", help="Print JSON: a list with one choice for each model.")] = False,
    quiet: Quiet = False,
) -> None:
    """Choose the score with the least regret over a range of α and β, or report a tie.

    The regret of a score is how much worse it is than the best score at the same α and β. For a run, the choice uses a
    random half of the validation images, or of the test images if there are none; `sirc calibrate` then uses the chosen
    score and the other half. Without OOD data the choice rests on ID✗|ID✓ alone. Candidates are the scores of the run
    or of `--scorer`; with `--train`, the paper's scores that can be fitted. `--alpha` and `--beta` take one number, a
    range, or at least three points.

    Example: `sirc select --val val.npz --train train.npz --ood textures=dtd.npz --alpha 0.5,0.9 --beta 0.5`

    A study, with its OOD sets: `sirc select runs/resnet50_imagenet200`
    """
    from sirc.evaluation import select as select_score

    alphas, betas = _numbers("--alpha", alpha), _numbers("--beta", beta)

    def choice(case: Case) -> Choice:
        return select_score(
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
    """A model to judge, with its ID and OOD outputs; if it is a run, `images` names the split of its ID outputs."""

    name: str
    scorer: Scorer
    id: Outputs | OutputStore
    ood: dict[str, Outputs | OutputStore]
    run: Run | None = None
    images: str = ""


def _judge(command: str, runs: list[Path] | None, files: Files, judge: Judge, as_json: bool, quiet: bool) -> None:
    """Print the verdict on each model as soon as it is known, or at the end a JSON list of all."""
    if bool(runs) == (files.val is not None):
        raise ConfigError(f"`sirc {command}` needs either RUN folders or your own outputs, `--val VAL.npz`.")
    if runs and any((files.tune, files.scorer, *files.fitting._replace(score=None))):
        raise ConfigError("RUN folders have their own scorer, head and OOD sets: such options are only for `--val`.")
    progress = reporting(quiet)
    cases = _of_runs(command, runs, progress) if runs else _of_files(command, files, progress)
    verdicts = []
    for case in cases:
        named = files.fitting.score or ()
        if files.fitting.on_unfit == "skip":
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
    """Save the choice in a run's folder for `sirc calibrate`, and give a line about it."""
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
        progress.note(f"note: `sirc calibrate` will not know of this choice, which cannot be saved: {error}")
        return f"Chosen on {rows}.\n"
    return f"Chosen on {rows}; `sirc calibrate` takes this score{' and the other half' if half else ''}.\n"


def _of_runs(command: str, folders: list[Path], progress: Progress) -> Iterator[Case]:
    """Yield the runs with their test outputs, or for `select` with validation outputs that tuned no score."""
    from sirc.experiment import calibration_set, check_outputs, load_experiments, outputs_to_choose, title_of
    from sirc.outputs import OutputStore
    from sirc.scores import Scorer

    for study in (study for folder in folders for study in load_experiments(folder)):
        for run in study.runs:
            honest = calibration_set(study) == "validation" and run.store("validation").exists()
            name = "validation" if command == "select" and honest else "test"
            if command == "select" and not honest:
                note_test_images(study, "choose the score", "`--val` and `--scorer` instead of RUN", progress)
            check_outputs(study, run, [name, *study.data.ood])
            title = f"{title_of(study)}, seed {run.seed}"
            ood = {other: OutputStore(run.store(other)) for other in study.data.ood}
            inside = outputs_to_choose(study, run, name)
            yield Case(title, Scorer.load(run.scorer), inside, {**ood}, run, name)


def _of_files(command: str, files: Files, progress: Progress) -> Iterator[Case]:
    """Read the files, and load or fit a scorer: by default all of the paper's scores (for `check`, SIRC's) it can."""
    from sirc.experiment import arrays
    from sirc.scores import Needs, Scorer, fit

    val, (train, ood, head, specs, crossfit, on_unfit), tune, scorer = files
    if (train is None) == (scorer is None):
        raise ConfigError("`--val` needs a scorer: give either `--train TRAIN.npz` to fit one, or `--scorer FILE`.")
    if train is None:
        without = "nothing is fitted, as a saved scorer has all it needs"
        refuse_unused(without, head=head, tune=tune, crossfit=crossfit, on_unfit=on_unfit)
    folds, unfit = files.fitting.folds, files.fitting.unfit
    assert val is not None
    inside = arrays.load_outputs(val)
    outside = {name: arrays.load_outputs(path) for name, path in named_values("--ood", ood).items()}
    if scorer is not None:
        yield Case(str(scorer), Scorer.load(scorer), inside, outside)
        return
    assert train is not None
    training, layer = arrays.load_outputs(train), arrays.find_head_in(head, train)
    tuning = None if tune is None else arrays.load_outputs(tune)
    possible = arrays.possible_specs(training, inside, layer, tuning)
    chosen = specs or [text for text in possible if command == "select" or text.startswith("sirc(")]
    if not chosen:
        raise ValueError(f"`sirc(S1, S2)` needs `features` for its S2; '{val}' or '{train}' has none.")
    untuned = next((spec for spec in chosen if Needs.of([spec]).val), None)
    if tuning is None and untuned:
        raise ConfigError(f"`{untuned}` is tuned on labelled ID outputs other than those of `--val`: give `--tune`.")
    fitted = fit(chosen, training, head=layer, crossfit=folds, val=tuning, on_unfit=unfit, progress=progress)
    yield Case(val.stem, fitted, inside, outside)


def _numbers(option: str, text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(
            f"`{option}` must be numbers with commas between them, as 0.1,0.9; got {quoted(text)}."
        ) from None
