"""The commands that end in results: run, demo, evaluate, table, plot."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sirc.cli._screen import reporting, result
from sirc.cli.study import Device, Overrides, Overwrite, Quiet, started
from sirc.errors import ConfigError

if TYPE_CHECKING:
    import pandas as pd

    from sirc.results import RunResults
    from sirc.study import Study


class TableFormat(StrEnum):
    """How a table is printed."""

    text = "text"
    csv = "csv"
    markdown = "markdown"
    html = "html"
    latex = "latex"


_ENDINGS = {
    TableFormat.csv: ".csv",
    TableFormat.markdown: ".md",
    TableFormat.html: ".html",
    TableFormat.latex: ".tex",
}


class FigureFormat(StrEnum):
    """How a figure is written."""

    pdf = "pdf"
    svg = "svg"
    png = "png"


class Stage(StrEnum):
    """What may be done again though it is there."""

    train = "train"
    extract = "extract"
    fit = "fit"
    figures = "figures"


Redo = Annotated[
    list[Stage] | None,
    typer.Option("--redo", help="Do a stage again though its result is there; repeat for several. Only this retrains."),
]
Formats = Annotated[
    list[FigureFormat] | None,
    typer.Option("--format", help="Formats of the figures; repeat for several. Default: all."),
]
Figures = Annotated[bool, typer.Option("--figures/--no-figures", help="Whether to draw figures.")]
Studies = Annotated[
    list[Path], typer.Argument(metavar="RUN...", help="Folders that `sirc run` made, or `results.csv` files.")
]


def run(
    experiment: Annotated[list[Path], typer.Argument(metavar="EXPERIMENT.toml...", help="One experiment, or several.")],
    set_: Overrides = None,
    out: Annotated[
        Path | None, typer.Option(help="Where to put the results together. Default: the experiment's own folder.")
    ] = None,
    device: Device = "auto",
    figures: Figures = True,
    format_: Formats = None,
    redo: Redo = None,
    quiet: Quiet = False,
) -> None:
    """Do a whole study: train, extract, fit, evaluate, tables, figures.

    What is there and still valid is not done again, so a stopped study is taken up by the same command. Where settings
    changed, what follows from them is done again; networks are never trained anew without `--redo train`.

    Example: `sirc run experiments/resnet50_imagenet200.toml --set data.root=~/data`

    On four GPUs: `torchrun --nproc-per-node 4 -m sirc run …`
    """
    from sirc.experiment import Experiment
    from sirc.study import run_study

    studies = [Experiment.read(path, set_ or ()) for path in experiment]
    with started(device, quiet) as (where, progress):
        study = run_study(
            studies,
            folder=out,
            device=where,
            figures=figures,
            formats=_formats(format_),
            redo=[stage.value for stage in redo or ()],
            progress=progress,
        )
    _tell(study)


def demo(
    out: Annotated[Path, typer.Option(help="The folder for all that it makes.")] = Path("sirc-demo"),
    device: Device = "cpu",
    figures: Figures = True,
    redo: Redo = None,
    quiet: Quiet = False,
) -> None:
    """Train small networks on rendered letters, and compare every score of the paper on six kinds of OOD input.

    Two architectures, two seeds each, no download, a few minutes on two cores. It ends with a table, what it says of
    the paper's findings, and the paths of all it made. A stopped demo is taken up by the same command.

    Example: `sirc demo --out sirc-demo`
    """
    from sirc.demo import run_demo

    with started(device, quiet) as (where, progress):
        again = [stage.value for stage in redo or ()]
        study, found = run_demo(out, device=where, figures=figures, redo=again, progress=progress)
    _tell(study, negatives=["wrong", "OOD mean", "Close", "Far"])
    for finding in found:
        result(f"{finding.claim}: {finding.verdict}. {finding.measured}.")


def evaluate(
    id_: Annotated[Path, typer.Option("--id", help="ID test outputs, with labels.")],
    train: Annotated[
        Path | None, typer.Option(help="ID training outputs, to fit on; `head_weight` and `head_bias` may be in it.")
    ] = None,
    ood: Annotated[
        list[str] | None, typer.Option("--ood", metavar="NAME=PATH", help="OOD outputs; repeat for several.")
    ] = None,
    head: Annotated[Path | None, typer.Option(help="A file with the `weight` and `bias` of the last layer.")] = None,
    spec: Annotated[
        list[str] | None, typer.Option("--score", metavar="SPEC", help="`msp`, `sirc(entropy, residual)`, …; repeat.")
    ] = None,
    group: Annotated[
        list[str] | None, typer.Option("--group", metavar="NAME=SET,SET", help="A group of OOD sets, such as `Close`.")
    ] = None,
    crossfit: Annotated[str, typer.Option(help="`auto`, 0 (in sample), or a number of folds.")] = "auto",
    name: Annotated[str, typer.Option(help="What to call the model in tables.")] = "model",
    out: Annotated[Path, typer.Option(help="The folder for results, tables and figures.")] = Path("sirc-results"),
    figures: Figures = True,
    format_: Formats = None,
    overwrite: Overwrite = False,
    quiet: Quiet = False,
) -> None:
    """Evaluate outputs that you bring as arrays: `.npz` or `.safetensors` files with `logits`, `features`, `labels`.

    Example: `sirc evaluate --train train.npz --id test.npz --ood textures=dtd.npz --ood svhn=svhn.npz`
    """
    from sirc import arrays
    from sirc.study import check_targets, save_results

    check_targets(out, overwrite)
    sets = {key: arrays.load_outputs(path) for key, path in _pairs("--ood", ood)}
    groups = {key: value.split(",") for key, value in _pairs("--group", group)}
    with reporting(quiet=quiet) as progress:
        training = None if train is None else arrays.load_outputs(train)
        layer = next((h for h in (arrays.load_head(p) for p in (head, train) if p is not None) if h is not None), None)
        if head is not None and layer is None:
            raise ValueError(f"'{head}' must hold `weight` (and `bias`), the last layer's; it has no such array.")
        found = arrays.evaluate_arrays(
            training,
            arrays.load_outputs(id_),
            sets,
            specs=spec,
            head=layer,
            crossfit="auto" if crossfit == "auto" else _whole("--crossfit", crossfit),
            groups=groups or None,
            model=name,
            progress=progress,
        )
        if not spec and len(found.scorer.specs) < 16:
            progress.note(_left_out(found))
        study = save_results(
            [found], out, figures=figures, formats=_formats(format_), overwrite=overwrite, progress=progress
        )
    _tell(study)


def table(
    runs: Studies,
    format_: Annotated[TableFormat, typer.Option("--format", help="How to print it.")] = TableFormat.text,
    metric: Annotated[
        list[str] | None, typer.Option(help="`auroc`, `fpr@95`, `aurr`, `risk@95`, `aurc`, `augrc`; repeat.")
    ] = None,
    negative: Annotated[
        list[str] | None, typer.Option(help="`wrong`, `OOD mean`, an OOD set or a group; repeat. Default: all.")
    ] = None,
    score: Annotated[list[str] | None, typer.Option(help="A score to show; repeat. Default: all.")] = None,
    spread: Annotated[bool, typer.Option("--spread", help="Mean ± 2 std over seeds instead of the mean.")] = False,
    out: Annotated[Path | None, typer.Option(help="Write to this file; its ending chooses the format.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file.")] = False,
) -> None:
    """Print the paper's table of one or more studies: best bold, second and third underlined.

    Example: `sirc table runs/resnet50_imagenet200 --format latex --spread`
    """
    from sirc.scores.spec import parse
    from sirc.tables import table as make

    if out is not None and format_ is not TableFormat.text and out.suffix != _ENDINGS[format_]:
        raise ConfigError(f"`--format {format_.value}` must go to a file ending in {_ENDINGS[format_]}; got '{out}'.")
    made = make(
        _results(runs),
        metrics=metric or ("auroc", "fpr@95"),
        negatives=negative or None,
        scores=[str(parse(text)) for text in score] if score else None,
        spread=spread,
    )
    if out is not None:
        made.save(out, overwrite=overwrite)
        result(str(out))
    else:
        typer.echo(getattr(made, format_.value)())


def plot(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders that `sirc run` or `sirc demo` made.")],
    out: Annotated[
        Path | None, typer.Option(help="The folder for the figures. Default: `figures` in the first.")
    ] = None,
    format_: Formats = None,
    quiet: Quiet = False,
) -> None:
    """Draw the paper's figures of one or more studies.

    Example: `sirc plot runs/resnet50_imagenet200 --format pdf --out figures`
    """
    from sirc.figures import figures
    from sirc.results import load_runs, load_studies
    from sirc.study import sample_sets

    folder = out or runs[0] / "figures"
    with reporting(quiet=quiet) as progress:
        try:
            images = sample_sets(load_studies(runs[0])[0])
        except (ValueError, OSError) as error:
            images = None
            progress.note(f"without samples of the images, which cannot be opened: {error}")
        made = figures(load_runs(runs), folder, formats=_formats(format_), images=images, progress=progress)
    for path in made:
        result(str(path))


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    for command in (run, demo, evaluate, table, plot):
        app.command()(command)


def _tell(study: Study, negatives: Sequence[str] | None = None) -> None:
    """End with the table and the paths of what was made."""
    from sirc.tables import table as make

    if not len(study.results):
        return  # another process tells
    known = set(study.results["negative"])
    result(make(study.results, negatives=[n for n in negatives if n in known] if negatives else None).text())
    for path in study.files:
        if path.suffix in (".csv", ".md", ".tex", ".html") or path.suffix == ".npz":
            result(str(path))
    if figures := sorted({path.parent for path in study.files if path.suffix in (".pdf", ".svg", ".png")}):
        result("\n".join(f"{folder}/" for folder in figures))


def _results(paths: Sequence[Path]) -> pd.DataFrame:
    import pandas as pd

    from sirc.study import read_results

    tables = []
    for path in paths:
        file = path / "results.csv" if path.is_dir() else path
        if not file.is_file():
            raise FileNotFoundError(f"there are no results at '{path}'. Make them: `sirc run EXPERIMENT.toml`.")
        tables.append(read_results(file))
    return pd.concat(tables, ignore_index=True)


def _formats(chosen: list[FigureFormat] | None) -> tuple[str, ...]:
    return tuple(dict.fromkeys(kind.value for kind in chosen or FigureFormat))


def _pairs(option: str, texts: list[str] | None) -> list[tuple[str, str]]:
    pairs = []
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not (name and equals and value):
            raise ConfigError(f"`{option}` must be NAME=VALUE; got {text!r}.")
        pairs.append((name, value))
    if len(dict(pairs)) < len(pairs):
        raise ConfigError(f"`{option}` must have each name once; got {', '.join(name for name, _ in pairs)}.")
    return pairs


def _whole(option: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ConfigError(f"`{option}` must be auto or a whole number; got {text!r}.") from None


def _left_out(found: RunResults) -> str:
    from sirc.experiment import PAPER_SPECS

    missing = [spec for spec in PAPER_SPECS if spec not in found.scorer.specs]
    return (
        f"left out for want of features, training outputs, labels or head weights: {', '.join(missing)}. A `--train` "
        "file with `features`, `labels`, `head_weight` and `head_bias` allows all."
    )
