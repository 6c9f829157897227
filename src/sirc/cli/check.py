"""`sirc check`: does SIRC's premise hold for this model, and which score should be used?"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sirc.cli._screen import reporting, result
from sirc.cli.results import _pairs
from sirc.cli.study import Quiet
from sirc.errors import ConfigError

if TYPE_CHECKING:
    from sirc.assumptions import Assumptions
    from sirc.outputs import Outputs
    from sirc.progress import Progress
    from sirc.scores import Scorer
    from sirc.store import OutputStore


def check(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[RUN...]", help="Folders that `sirc run` or `sirc demo` made; their test data counts."),
    ] = None,
    val: Annotated[Path | None, typer.Option(help="Labelled ID outputs that nothing was fitted on.")] = None,
    train: Annotated[
        Path | None, typer.Option(help="ID training outputs, to fit on; `head_weight` and `head_bias` may be in it.")
    ] = None,
    scorer: Annotated[Path | None, typer.Option(help="A fitted scorer instead, as `scorer.save` writes it.")] = None,
    ood: Annotated[
        list[str] | None, typer.Option("--ood", metavar="NAME=PATH", help="OOD outputs; repeat for several.")
    ] = None,
    head: Annotated[Path | None, typer.Option(help="A file with the `weight` and `bias` of the last layer.")] = None,
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
    from sirc.assumptions import check_assumptions

    if bool(runs) == (val is not None):
        raise ConfigError("`sirc check` is for RUN folders or for arrays, `--val VAL.npz`: give one of the two.")
    if runs and any((train, scorer, ood, head)):
        raise ConfigError("RUN folders have their own scorer, head and OOD sets; leave these options to `--val`.")
    reports: list[dict[str, object]] = []
    with reporting(quiet=quiet) as progress:
        cases = _of_runs(runs) if runs else _of_arrays(val, train, scorer, ood, head, spec, progress)
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


Case = tuple[str, "Scorer", "Outputs | OutputStore", "dict[str, Outputs | OutputStore]"]


def _of_runs(folders: list[Path]) -> Iterator[Case]:
    """Each run of each study: its scorer, its test outputs and its OOD outputs, none of them evaluated."""
    from sirc._provenance import check_outputs
    from sirc.results import load_studies, title_of
    from sirc.scores import Scorer
    from sirc.store import OutputStore

    for study in (study for folder in folders for study in load_studies(folder)):
        for run in study.runs:
            check_outputs(study, run, ["test", *study.data.ood])
            ood = {name: OutputStore(run.store(name)) for name in study.data.ood}
            yield (
                f"{title_of(study)}, seed {run.seed}",
                Scorer.load(run.scorer),
                OutputStore(run.store("test")),
                dict(ood),
            )


def _of_arrays(
    val: Path | None,
    train: Path | None,
    scorer: Path | None,
    ood: list[str] | None,
    head: Path | None,
    specs: list[str] | None,
    progress: Progress,
) -> Iterator[Case]:
    """The one case that files describe, with a scorer that is loaded or fitted."""
    from sirc import arrays
    from sirc.scores import Scorer, fit

    assert val is not None
    if (train is None) == (scorer is None):
        raise ConfigError("`--val` needs a scorer: give either `--train TRAIN.npz` to fit one, or `--scorer FILE`.")
    if train is None and head is not None:
        raise ConfigError("`--head` is for fitting on `--train`; a saved scorer has all it needs.")
    inside = arrays.load_outputs(val)
    outside = {name: arrays.load_outputs(path) for name, path in _pairs("--ood", ood)}
    if scorer is not None:
        yield str(scorer), Scorer.load(scorer), inside, outside
        return
    assert train is not None
    training = arrays.load_outputs(train)
    layer = next((h for h in (arrays.load_head(p) for p in (head, train) if p is not None) if h is not None), None)
    if head is not None and layer is None:
        raise ValueError(f"'{head}' must hold `weight` (and `bias`), the last layer's; it has no such array.")
    chosen = specs or [text for text in arrays.possible_specs(training, inside, layer) if text.startswith("sirc(")]
    if not chosen:
        raise ValueError(f"`sirc(S1, S2)` needs `features` for its S2; '{val}' or '{train}' has none.")
    yield val.stem, fit(chosen, training, head=layer, progress=progress), inside, outside
