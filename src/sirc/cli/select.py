"""`sirc select`: which score to use for a range of α and β, and whether its lead is noise."""

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
    from sirc.cli.check import Case
    from sirc.progress import Progress


def select(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[RUN...]", help="Folders that `sirc run` or `sirc demo` made."),
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
        list[str] | None, typer.Option("--score", metavar="SPEC", help="A candidate; repeat. Default: all.")
    ] = None,
    alpha: Annotated[
        str, typer.Option(metavar="LOW,HIGH", help="The share of ID input: a range, one number, or three and more.")
    ] = "0.1,0.9",
    beta: Annotated[
        str, typer.Option(metavar="LOW,HIGH", help="The cost of accepting ID✗ (that of OOD is 1 − β), likewise.")
    ] = "0.1,0.9",
    metric: Annotated[str, typer.Option(help="`aurr`, `aurc` or `risk@95`.")] = "aurr",
    by: Annotated[str, typer.Option(help="`worst` or `average` regret over the range.")] = "worst",
    absolute: Annotated[
        bool, typer.Option("--absolute", help="Regret as it is, not relative to the best at each point.")
    ] = False,
    pool: Annotated[
        str, typer.Option(help="What weighs the same among OOD data: `datasets` or `samples`.")
    ] = "datasets",
    draws: Annotated[int, typer.Option(help="Of the bootstrap.")] = 1000,
    level: Annotated[float, typer.Option(help="Of the intervals, and of what is called a lead.")] = 0.95,
    seed: Annotated[int, typer.Option(help="Of the bootstrap.")] = 0,
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

    if bool(runs) == (val is not None):
        raise ConfigError("`sirc select` is for RUN folders or for arrays, `--val VAL.npz`: give one of the two.")
    if runs and any((train, scorer, ood, head)):
        raise ConfigError("RUN folders have their own scorer, head and OOD sets; leave these options to `--val`.")
    for option, given, known in (("--by", by, ("worst", "average")), ("--pool", pool, ("datasets", "samples"))):
        if given not in known:
            raise ConfigError(f"`{option}` must be {known[0]} or {known[1]}; got {given!r}.")
    a, b = _numbers("--alpha", alpha), _numbers("--beta", beta)
    found: list[dict[str, object]] = []
    with reporting(quiet=quiet) as progress:
        cases = _of_runs(runs, progress) if runs else _of_arrays(val, train, scorer, ood, head, spec, progress)
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


def _of_runs(folders: list[Path], progress: Progress) -> Iterator[Case]:
    """Each run of each study: its scorer, its validation or test outputs, and its OOD outputs."""
    from sirc._provenance import check_outputs
    from sirc.results import load_studies, title_of
    from sirc.scores import Scorer
    from sirc.store import OutputStore

    for study in (study for folder in folders for study in load_studies(folder)):
        for run in study.runs:
            if study.data.validation is not None and run.store("validation").exists():
                inside = "validation"
            else:
                inside = "test"
                progress.note(
                    f"note: '{run.folder}' has no outputs of validation images, so its test images choose the score. "
                    "What the test set says of the score chosen is then no longer honest. With `data.validation` in "
                    "the TOML: `sirc extract … --only validation`."
                )
            check_outputs(study, run, [inside, *study.data.ood])
            ood = {name: OutputStore(run.store(name)) for name in study.data.ood}
            title = f"{title_of(study)}, seed {run.seed}"
            yield title, Scorer.load(run.scorer), OutputStore(run.store(inside)), dict(ood)


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
    chosen = specs or arrays.possible_specs(training, inside, layer)
    yield val.stem, fit(chosen, training, head=layer, progress=progress), inside, outside
