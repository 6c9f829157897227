"""Commands that show stored results: table, plot, report."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sirc.cli.console import open_page, reporting, result
from sirc.cli.options import FigureFormat, Formats, Open, Quiet, Replace, refuse_existing
from sirc.errors import ConfigError

if TYPE_CHECKING:
    import pandas as pd


TableFormat = StrEnum("TableFormat", ["text", "csv", "markdown", "html", "latex"])
_ENDINGS = {"csv": ".csv", "markdown": ".md", "html": ".html", "latex": ".tex"}

Studies = Annotated[
    list[Path], typer.Argument(metavar="RUN...", help="Folders that `sirc run` made, or `results.csv` files.")
]
Stored = Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders that `sirc run` or `sirc demo` made.")]


def table(
    runs: Studies,
    format_: Annotated[TableFormat, typer.Option("--format", help="How to print it.")] = TableFormat.text,
    metric: Annotated[
        list[str] | None, typer.Option(help="A metric of the results, such as `auroc`, `fpr@95` or `aurr`; repeat.")
    ] = None,
    negative: Annotated[
        list[str] | None, typer.Option(help="`wrong`, `OOD mean`, an OOD set or a group; repeat. Default: all.")
    ] = None,
    score: Annotated[
        list[str] | None, typer.Option(help="A score to show; repeat. Default: those of `[report]`, or all.")
    ] = None,
    spread: Annotated[bool, typer.Option("--spread", help="Mean ± 2 std over seeds instead of the mean.")] = False,
    out: Annotated[Path | None, typer.Option(help="Write to this file; its ending chooses the format.")] = None,
    overwrite: Replace = False,
) -> None:
    """Print the paper's table of one or more studies: best bold, second and third underlined.

    Example: `sirc table runs/resnet50_imagenet200 --format latex --spread`
    """
    from sirc.report.tables import table as make
    from sirc.scores import parse

    if out is not None:
        if out.suffix != _ENDINGS.get(format_, out.suffix):
            raise ConfigError(f"`--format {format_}` must go to a file ending in {_ENDINGS[format_]}; got '{out}'.")
        refuse_existing(out, overwrite)
    results = _results(runs)
    made = make(
        results,
        metrics=metric or ("auroc", "fpr@95"),
        negatives=negative or None,
        scores=[str(parse(text)) for text in score] if score else _shown(results, runs),
        spread=spread,
    )
    if out is not None:
        made.save(out, overwrite=True)
        result(str(out))
    else:
        typer.echo(getattr(made, format_)())


def plot(
    runs: Stored,
    out: Annotated[
        Path | None, typer.Option(help="The folder for the figures. Default: `figures` in the first.")
    ] = None,
    format_: Formats = None,
    quiet: Quiet = False,
) -> None:
    """Draw the paper's figures of one or more studies.

    Example: `sirc plot runs/resnet50_imagenet200 --format pdf --out figures`
    """
    from sirc.experiment import load_runs, load_studies, sample_images
    from sirc.report.figures import figures

    folder = out or runs[0] / "figures"
    with reporting(quiet=quiet) as progress:
        try:
            images = sample_images(load_studies(runs[0])[0])
        except (ValueError, OSError) as error:
            images = None
            progress.note(f"without samples of the images, which cannot be opened: {error}")
        shown = [run.reported for run in load_runs(runs)]
        made = figures(shown, folder, formats=list(format_ or FigureFormat), images=images, progress=progress)
    for path in made:
        result(str(path))


def report(
    runs: Stored,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE.html", help="The file to write. Default: `report.html` in the first.")
    ] = None,
    title: Annotated[str | None, typer.Option(help="The page's heading. Default: the names of the models.")] = None,
    open_: Open = False,
    overwrite: Replace = False,
    quiet: Quiet = False,
) -> None:
    """Write the page of one or more studies: one HTML file in which α, β, the recall and the OOD sets can be changed.

    It opens from disk, needs no network and sends nothing anywhere. Without `--out` an earlier page is replaced.

    Example: `sirc report runs/resnet50_imagenet200 --open`
    """
    from sirc.experiment import PAGE, load_runs
    from sirc.report.page import report as write

    if out is not None:
        refuse_existing(out, overwrite)
    with reporting(quiet=quiet) as progress:
        shown = [run.reported for run in load_runs(runs)]
        page = write(shown, out or runs[0] / PAGE, title=title, overwrite=True, progress=progress)
    result(str(page))
    if open_:
        open_page(page)


def _shown(results: pd.DataFrame, paths: Sequence[Path]) -> list[str] | None:
    """The scores that the studies ask to be shown; None, for all, if a path is not the folder of a study."""
    from sirc.experiment import load_studies, reported_scores

    try:
        studies = [study for path in paths for study in load_studies(path)]
    except FileNotFoundError:
        return None
    if not any(study.report.specs for study in studies):
        return None
    return reported_scores(list(results["score"].unique()), studies)


def _results(paths: Sequence[Path]) -> pd.DataFrame:
    import pandas as pd

    from sirc.experiment import read_results

    files = [path / "results.csv" if path.is_dir() else path for path in paths]
    for file in files:
        if not file.is_file():
            raise FileNotFoundError(f"there are no results at '{file}'. Make them: `sirc run EXPERIMENT.toml`.")
    return pd.concat([read_results(file) for file in files], ignore_index=True)
