"""`sirc check`: does SIRC's premise hold for this model, and which score should be used?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sirc.cli.cases import Fitted, HeadFile, Ood, Train, Tune, Val, case_of_arrays, cases_of_runs, check_given
from sirc.cli.console import reporting, result
from sirc.cli.study import Quiet

if TYPE_CHECKING:
    from sirc.evaluation.premise import Assumptions


def check(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[RUN...]", help="Folders that `sirc run` or `sirc demo` made; their test data counts."),
    ] = None,
    val: Val = None,
    train: Train = None,
    tune: Tune = None,
    scorer: Fitted = None,
    ood: Ood = None,
    head: HeadFile = None,
    spec: Annotated[
        list[str] | None, typer.Option("--score", metavar="SPEC", help="`sirc(msp, l1)`, …; repeat. Default: all.")
    ] = None,
    level: Annotated[float, typer.Option(help="Of the intervals.")] = 0.95,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: a list with one report for each model.")] = False,
    quiet: Quiet = False,
) -> None:
    """Check whether SIRC's premise holds for each S2, and recommend a score.

    Without OOD data the recommendation rests on ID data alone.

    Example: `sirc check --val val.npz --train train.npz --ood textures=dtd.npz`

    Of a study, with its OOD sets: `sirc check runs/resnet50_imagenet200`
    """
    from sirc.evaluation.premise import check_assumptions

    check_given("check", runs, val, train, tune, scorer, ood, head)
    reports: list[dict[str, object]] = []
    with reporting(quiet=quiet) as progress:
        if val is None:
            cases = cases_of_runs(runs or [], lambda study, run: "test")
        else:
            files = (val, train, tune, scorer, ood, head)
            cases = iter([case_of_arrays(*files, spec, progress, lambda text: text.startswith("sirc("))])
        for name, fitted, inside, outside in cases:
            found = check_assumptions(fitted.only(spec) if spec else fitted, inside, outside, level=level)
            if as_json:
                reports.append({"model": name, **found.to_dict()})
            else:
                _tell(name if runs else "", found)
    if as_json:
        typer.echo(json.dumps(reports, ensure_ascii=False, indent=1))


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command()(check)


def _tell(name: str, found: Assumptions) -> None:
    result(f"{name}\n{found}\n" if name else str(found))
