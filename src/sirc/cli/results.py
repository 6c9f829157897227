"""The commands that end in results: run, demo, evaluate."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sirc._utils import distributed
from sirc.cli.console import reporting, result
from sirc.cli.show import Formats, Open, chosen_formats, open_page, refuse_existing
from sirc.cli.study import Device, Overrides, Overwrite, Quiet, started
from sirc.errors import ConfigError

if TYPE_CHECKING:
    from sirc.experiment import RunResults, Study


class Stage(StrEnum):
    """What may be done again though it is there."""

    train = "train"
    extract = "extract"
    fit = "fit"
    page = "page"
    figures = "figures"


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
    with started(device, quiet) as (where, progress):
        study = run_study(
            studies,
            folder=out,
            device=where,
            figures=figures,
            formats=chosen_formats(format_),
            redo=[stage.value for stage in redo or ()],
            progress=progress,
        )
    _tell(study)
    _end(study, open_)


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

    with started(device, quiet) as (where, progress):
        again = [stage.value for stage in redo or ()]
        study, found = run_demo(out, device=where, figures=figures, redo=again, progress=progress)
    _tell(study, negatives=["wrong", "OOD mean", "Close", "Far"])
    for finding in found:
        result(f"{finding.claim}: {finding.verdict}. {finding.measured}.")
    _end(study, open_)


def evaluate(
    id_: Annotated[Path, typer.Option("--id", help="ID test outputs, with labels.")],
    train: Annotated[
        Path | None, typer.Option(help="ID training outputs, to fit on; `head_weight` and `head_bias` may be in it.")
    ] = None,
    val: Annotated[
        Path | None, typer.Option(help="Other labelled ID outputs, which scores such as `tempered_msp` are tuned on.")
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
    from sirc.experiment import TARGETS, arrays, save_results
    from sirc.scores import Needs

    if val is not None and train is None:
        raise ConfigError("`--val` is for tuning what is fitted on `--train TRAIN.npz`; give that too.")
    if val is not None and val.exists() and id_.exists() and val.samefile(id_):
        raise ConfigError(f"`--val` must be other outputs than `--id`, as scores are tuned on it; both are '{val}'.")
    for target in TARGETS:
        refuse_existing(out / target, overwrite)
    sets = {key: arrays.load_outputs(path) for key, path in named_pairs("--ood", ood)}
    groups = {key: value.split(",") for key, value in named_pairs("--group", group)}
    with reporting(quiet=quiet) as progress:
        training = None if train is None else arrays.load_outputs(train)
        layer = arrays.find_head_in(head, train)
        found = arrays.evaluate_arrays(
            training,
            arrays.load_outputs(id_),
            sets,
            specs=spec,
            head=layer,
            crossfit="auto" if crossfit == "auto" else _whole("--crossfit", crossfit),
            val=None if val is None else arrays.load_outputs(val),
            groups=groups or None,
            model=name,
            progress=progress,
        )
        if not spec and len(found.scorer.specs) < 16:
            progress.note(_left_out(found))
        if val is not None and not Needs.of(found.scorer.specs).tuned:
            progress.note(f"note: '{val}' was not used, as none of the scores is tuned on validation outputs.")
        study = save_results(
            [found], out, figures=figures, formats=chosen_formats(format_), overwrite=overwrite, progress=progress
        )
    _tell(study)
    _end(study, open_)


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    for command in (run, demo, evaluate):
        app.command()(command)


def _tell(study: Study, negatives: Sequence[str] | None = None) -> None:
    """End with the table and the paths of what was made."""
    from sirc.experiment import reported_scores
    from sirc.report.tables import table as make

    if not len(study.results):
        return  # another process tells
    known = set(study.results["negative"])
    wanted = [n for n in negatives if n in known] if negatives else None
    scores = reported_scores(list(study.results["score"].unique()), study.experiments)
    result(make(study.results[study.results["score"].isin(scores)], negatives=wanted).text())
    for path in study.files:
        if path.suffix in (".csv", ".md", ".tex", ".html", ".npz") and path != study.page:
            result(str(path))
    if figures := sorted({path.parent for path in study.files if path.suffix in (".pdf", ".svg", ".png")}):
        result("\n".join(f"{folder}/" for folder in figures))


def _end(study: Study, open_: bool) -> None:
    """Leave the page as the last thing that is read."""
    if study.page is not None:
        result(f"\nopen {study.page}")
        if open_ and distributed.is_main():
            open_page(study.page)


def named_pairs(option: str, texts: list[str] | None) -> list[tuple[str, str]]:
    """Read the NAME=VALUE of an option that may be repeated."""
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
