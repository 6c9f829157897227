"""`sirc select`: which score to use for a range of α and β, and whether its lead is noise."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sirc.cli.cases import Fitted, HeadFile, Ood, Train, Tune, Val, case_of_arrays, cases_of_runs, check_given
from sirc.cli.console import reporting, result
from sirc.cli.study import Quiet
from sirc.errors import ConfigError

if TYPE_CHECKING:
    from sirc.experiment import Experiment, Run
    from sirc.progress import Progress


def select(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[RUN...]", help="Folders that `sirc run` or `sirc demo` made."),
    ] = None,
    val: Val = None,
    train: Train = None,
    tune: Tune = None,
    scorer: Fitted = None,
    ood: Ood = None,
    head: HeadFile = None,
    spec: Annotated[
        list[str] | None,
        typer.Option(
            "--score",
            metavar="SPEC",
            help="A candidate; repeat. Default: all of the scorer's; with `--train`, the paper's that can be fitted.",
        ),
    ] = None,
    alpha: Annotated[
        str,
        typer.Option(metavar="LOW,HIGH", help="The share of ID input: a range, one number, or three points and more."),
    ] = "0.1,0.9",
    beta: Annotated[
        str, typer.Option(metavar="LOW,HIGH", help="The cost of accepting ID✗ (that of OOD is 1 − β), likewise.")
    ] = "0.1,0.9",
    metric: Annotated[str, typer.Option(help="A metric of the mixture, such as `aurr`, `aurc` or `risk@95`.")] = "aurr",
    by: Annotated[str, typer.Option(help="`worst` or `average` regret over the range.")] = "worst",
    absolute: Annotated[
        bool, typer.Option("--absolute", help="Regret as it is, not relative to the best at each point.")
    ] = False,
    pool: Annotated[
        str, typer.Option(help="What weighs the same among OOD data: `datasets` or `samples`.")
    ] = "datasets",
    draws: Annotated[int, typer.Option(help="Resamples of the bootstrap.")] = 1000,
    level: Annotated[float, typer.Option(help="Of the intervals, and of what is called a lead.")] = 0.95,
    seed: Annotated[int, typer.Option(help="Of the resamples.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: a list with one choice for each model.")] = False,
    quiet: Quiet = False,
) -> None:
    """Choose the score with the least regret over a range of α and β, or say that it is a tie.

    Of a run, on its validation images if their outputs are there, else on its test images. Without OOD data the choice
    rests on ID✗|ID✓ alone.

    Example: `sirc select --val val.npz --train train.npz --ood textures=dtd.npz --alpha 0.5,0.9 --beta 0.5`

    Of a study, with its OOD sets: `sirc select runs/resnet50_imagenet200`
    """
    import sirc

    check_given("select", runs, val, train, tune, scorer, ood, head)
    for option, given, known in (("--by", by, ("worst", "average")), ("--pool", pool, ("datasets", "samples"))):
        if given not in known:
            raise ConfigError(f"`{option}` must be {known[0]} or {known[1]}; got {given!r}.")
    a, b = _numbers("--alpha", alpha), _numbers("--beta", beta)
    found: list[dict[str, object]] = []
    with reporting(quiet=quiet) as progress:
        if val is None:
            cases = cases_of_runs(runs or [], lambda study, run: _judging(study, run, progress))
        else:
            cases = iter([case_of_arrays(val, train, tune, scorer, ood, head, spec, progress)])
        for name, fitted, inside, outside in cases:
            choice = sirc.select(
                fitted,
                inside,
                outside,
                alpha=a,
                beta=b,
                metric=metric,
                by="average" if by == "average" else "worst",
                relative=not absolute,
                scores=spec,
                pool="samples" if pool == "samples" else "datasets",
                draws=draws,
                level=level,
                seed=seed,
            )
            if as_json:
                found.append({"model": name, **choice.to_dict()})
            else:
                result(f"{name}\n{choice}\n" if runs else str(choice))
    if as_json:
        typer.echo(json.dumps(found, ensure_ascii=False, indent=1))


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command()(select)


def _numbers(option: str, text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"`{option}` must be numbers with commas between them, as 0.1,0.9; got {text!r}.") from None


def _judging(study: Experiment, run: Run, progress: Progress) -> str:
    """Which of a run's ID outputs choose: those of the validation images, if they are there and tuned nothing."""
    if study.data.validates and run.store("validation").exists() and not study.tuned:
        return "validation"
    why = "tuned its scores on the validation images" if study.tuned else "has no outputs of validation images"
    added = " With `data.validation` or `data.holdout` in the TOML: `sirc extract … --only validation`."
    way = "" if study.tuned else added
    progress.note(
        f"note: '{run.folder}' {why}, so its test images choose the score. What the test set says of the score chosen "
        f"is then no longer honest.{way}"
    )
    return "test"
