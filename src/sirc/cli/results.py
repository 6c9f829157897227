"""Commands that compute results: run, demo, evaluate."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sirc.cli.console import is_main, open_page, reporting, result
from sirc.cli.options import (
    Device,
    FigureFormat,
    Formats,
    HeadFile,
    OodFiles,
    Open,
    Overrides,
    Overwrite,
    Quiet,
    ScoreSpecs,
    TrainFile,
    TuningFile,
    named_pairs,
    on_device,
    refuse_existing,
)
from sirc.errors import ConfigError

if TYPE_CHECKING:
    from sirc.experiment import Study


Stage = StrEnum("Stage", ["train", "extract", "fit", "page", "figures"])
Redo = Annotated[
    list[Stage] | None,
    typer.Option("--redo", help="Do a stage again though its result is there; repeat for several. Only this retrains."),
]
Figures = Annotated[bool, typer.Option("--figures/--no-figures", help="Whether to draw figures.")]


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
    open_: Open = False,
    quiet: Quiet = False,
) -> None:
    """Do a whole study: train, extract, fit, evaluate, tables, page, figures.

    What is there and still valid is not done again, so a stopped study is taken up by the same command. Where settings
    changed, what follows from them is done again; networks are never trained anew without `--redo train`.

    Example: `sirc run studies/paper/resnet50_imagenet200.toml --set data.root=~/data`

    On four GPUs: `torchrun --nproc-per-node 4 -m sirc run …`
    """
    from sirc.experiment import Experiment, run_study

    studies = [Experiment.read(path, set_ or ()) for path in experiment]
    with on_device(device, quiet) as (where, progress):
        study = run_study(
            studies,
            folder=out,
            device=where,
            figures=figures,
            formats=list(format_ or FigureFormat),
            redo=redo or (),
            progress=progress,
        )
    _show(study, open_)


def demo(
    out: Annotated[Path, typer.Option(help="The folder for all that it makes.")] = Path("sirc-demo"),
    device: Device = "cpu",
    figures: Figures = True,
    redo: Redo = None,
    open_: Open = False,
    quiet: Quiet = False,
) -> None:
    """Train small networks on rendered letters, and compare every score of the paper on six kinds of OOD input.

    Two architectures, two seeds each, no download, a few minutes on two cores. It ends with a table, what it says of
    the paper's findings, the paths of all it made, and the page to open. A stopped demo goes on by the same command.

    Example: `sirc demo --out sirc-demo`
    """
    from sirc.experiment.demo import run_demo

    with on_device(device, quiet) as (where, progress):
        study, findings = run_demo(out, device=where, figures=figures, redo=redo or (), progress=progress)
    verdicts = [f"{finding.claim}: {finding.verdict}. {finding.measured}." for finding in findings]
    _show(study, open_, negatives=["wrong", "OOD mean", "Close", "Far"], verdicts=verdicts)


def evaluate(
    id_: Annotated[Path, typer.Option("--id", help="ID test outputs, with labels.")],
    train: TrainFile = None,
    val: TuningFile = None,
    ood: OodFiles = None,
    head: HeadFile = None,
    spec: ScoreSpecs = None,
    group: Annotated[
        list[str] | None, typer.Option("--group", metavar="NAME=SET,SET", help="A group of OOD sets, such as `Close`.")
    ] = None,
    crossfit: Annotated[str, typer.Option(help="`auto`, 0 (in sample), or a number of folds.")] = "auto",
    name: Annotated[str, typer.Option(help="What to call the model in tables.")] = "model",
    out: Annotated[Path, typer.Option(help="The folder for results, tables, page and figures.")] = Path("sirc-results"),
    figures: Figures = True,
    format_: Formats = None,
    overwrite: Overwrite = False,
    open_: Open = False,
    quiet: Quiet = False,
) -> None:
    """Evaluate outputs that you bring as arrays: `.npz` or `.safetensors` files with `logits`, `features`, `labels`.

    Example: `sirc evaluate --train train.npz --id test.npz --ood textures=dtd.npz --ood svhn=svhn.npz`
    """
    from sirc.experiment import PAPER_SPECS, TARGETS, arrays, save_results
    from sirc.scores import Needs

    if val is not None and train is None:
        raise ConfigError("`--val` is for tuning what is fitted on `--train TRAIN.npz`; give that too.")
    if val is not None and val.exists() and id_.exists() and val.samefile(id_):
        raise ConfigError(f"`--val` must be other outputs than `--id`, as scores are tuned on it; both are '{val}'.")
    if crossfit != "auto" and not crossfit.isdecimal():
        raise ConfigError(f"`--crossfit` must be auto or a whole number; got {crossfit!r}.")
    for target in TARGETS:
        refuse_existing(out / target, overwrite)
    sets = {key: arrays.load_outputs(path) for key, path in named_pairs("--ood", ood)}
    groups = {key: value.split(",") for key, value in named_pairs("--group", group)}
    with reporting(quiet=quiet) as progress:
        training = None if train is None else arrays.load_outputs(train)
        run = arrays.evaluate_arrays(
            training,
            arrays.load_outputs(id_),
            sets,
            specs=spec,
            head=arrays.find_head_in(head, train),
            crossfit="auto" if crossfit == "auto" else int(crossfit),
            val=None if val is None else arrays.load_outputs(val),
            groups=groups or None,
            model=name,
            progress=progress,
        )
        if not spec and len(run.scorer.specs) < 16:
            missing = ", ".join(spec for spec in PAPER_SPECS if spec not in run.scorer.specs)
            progress.note(
                f"left out for want of features, training outputs, labels or head weights: {missing}. A `--train` file "
                "with `features`, `labels`, `head_weight` and `head_bias` allows all."
            )
        if val is not None and not Needs.of(run.scorer.specs).tuned:
            progress.note(f"note: '{val}' was not used, as none of the scores is tuned on validation outputs.")
        study = save_results(
            [run], out, figures=figures, formats=list(format_ or FigureFormat), overwrite=overwrite, progress=progress
        )
    _show(study, open_)


def _show(study: Study, open_: bool, *, negatives: Sequence[str] = (), verdicts: Sequence[str] = ()) -> None:
    """Print the table, the paths of the files made and the verdicts; the page comes last, and opens if asked."""
    from sirc.experiment import reported_scores
    from sirc.report.tables import table as make

    if len(study.results):  # only the main process has them
        present = set(study.results["negative"])
        scores = reported_scores(list(study.results["score"].unique()), study.experiments)
        rows = study.results[study.results["score"].isin(scores)]
        result(make(rows, negatives=[name for name in negatives if name in present] or None).text())
        for path in study.files:
            if path.suffix in (".csv", ".md", ".tex", ".html", ".npz") and path != study.page:
                result(str(path))
        if figures := sorted({path.parent for path in study.files if path.suffix in (".pdf", ".svg", ".png")}):
            result("\n".join(f"{folder}/" for folder in figures))
    for verdict in verdicts:
        result(verdict)
    if study.page is not None:
        result(f"\nopen {study.page}")
        if open_ and is_main():
            open_page(study.page)
