"""Commands that compute results (run, demo, evaluate) and show them (table, plot, report)."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from enum import StrEnum
from itertools import combinations, product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from typer import Argument, Option

from sirc.cli.console import is_main, open_page, reporting, result
from sirc.cli.options import (
    RUN_FOLDERS,
    Device,
    FigureFormat,
    Fitting,
    Formats,
    Names,
    Open,
    Overrides,
    Overwrite,
    Quiet,
    Replace,
    Trust,
    TuningFile,
    named_values,
    on_device,
    read_runs,
    refuse_unused,
)
from sirc.cli.translate import in_options
from sirc.errors import ConfigError

if TYPE_CHECKING:
    import pandas as pd

    from sirc.experiment import Study
    from sirc.progress import Progress


TableFormat = Literal["text", "csv", "markdown", "html", "latex"]
_ENDINGS = {"csv": ".csv", "markdown": ".md", "html": ".html", "latex": ".tex"}

RunFolders = Annotated[list[Path], RUN_FOLDERS]
StageName = StrEnum("StageName", ["train", "extract", "fit", "page", "figures"])
Redo = Annotated[
    list[StageName] | None, Option("--redo", help="Do a stage again; repeat for several. Only `train` retrains.")
]
Intervals = Annotated[bool, Option("--intervals", help="Show a 95% interval over samples beside each number.")]
Figures = Annotated[bool, Option("--figures/--no-figures", help="Whether to draw figures.")]


def run(
    experiment: Annotated[list[Path], Argument(metavar="EXPERIMENT.toml", help="One experiment, or several.")],
    set_: Overrides = None,
    out: Annotated[Path | None, Option(help="The folder for the results. Default: the experiment's own.")] = None,
    device: Device = "auto",
    figures: Figures = True,
    format_: Formats = None,
    redo: Redo = None,
    trust: Trust = False,
    open_: Open = False,
    quiet: Quiet = False,
) -> None:
    """Do a whole study: train, extract, fit and evaluate; make tables, a page and figures.

    Finished work is not repeated: the same command resumes a stopped study. After a change of settings, only what
    depends on them is done again; a network is retrained only with `--redo train`.

    Example: `sirc run studies/paper/resnet50_imagenet200.toml --set data.root=~/data`

    On four GPUs: `torchrun --nproc-per-node 4 -m sirc run …`
    """
    _check_figures(figures, format_, redo)
    from sirc.experiment import run_study

    studies = [read_runs(path, set_, None, trust)[0] for path in experiment]
    with on_device(device, quiet) as (where, progress):
        formats = list(format_ or FigureFormat)
        study = run_study(
            studies, folder=out, device=where, figures=figures, formats=formats, redo=redo or (), progress=progress
        )
    _show(study, open_)


def demo(
    out: Annotated[Path, Option(help="The folder for all results.")] = Path("sirc-demo"),
    device: Device = "cpu",
    figures: Figures = True,
    redo: Redo = None,
    open_: Open = False,
    quiet: Quiet = False,
) -> None:
    """Train small networks on rendered letters, and compare every score of the paper on six kinds of OOD input.

    It trains two architectures with two seeds each, downloads nothing, and takes one to four minutes on two idle cores.
    It prints a table, which of the paper's findings hold, the paths of its files, and the page to open. The same
    command resumes a stopped demo.

    Example: `sirc demo --out sirc-demo`
    """
    _check_figures(figures, None, redo)
    from sirc.experiment.demo import run_demo

    with on_device(device, quiet) as (where, progress):
        if not (out / "findings.md").exists():  # the last file of a demo
            progress.note("this takes one to four minutes on two idle cores; if stopped, the same command goes on")
        study, findings = run_demo(out, device=where, figures=figures, redo=redo or (), progress=progress)
    verdicts = [f"{finding.claim}: {finding.verdict}. {finding.measured}." for finding in findings]
    _show(study, open_, negatives=["wrong", "OOD mean", "Close", "Far"], verdicts=verdicts)


def evaluate(
    id_: Annotated[Path, Option("--id", help="ID test outputs, with labels.")],
    fitting: Fitting,
    val: TuningFile = None,
    group: Annotated[Names, Option(metavar="NAME=SET,SET", help="A group of OOD sets, such as `Close`.")] = None,
    name: Annotated[str, Option(help="The model's name in tables.")] = "model",
    out: Annotated[Path, Option(help="The folder for results, tables, page and figures.")] = Path("sirc-results"),
    intervals: Intervals = False,
    spill: Annotated[Path | None, Option(help="A scratch folder for stores beyond memory: no page or figures.")] = None,
    device: Annotated[str | None, Option(help="With `--spill`: where to compute. Default: a GPU if any.")] = None,
    figures: Figures = True,
    format_: Formats = None,
    overwrite: Overwrite = False,
    open_: Open = False,
    quiet: Quiet = False,
) -> None:
    """Evaluate your own outputs: `.npz` or `.safetensors` files with `logits`, `features` and `labels`.

    Outputs may also be folders of stores. Files with `conf`, `pred` and `label`, as OpenOOD saves them, hold the
    confidences of one score, which `--score` names.

    Example: `sirc evaluate --train train.npz --id test.npz --ood textures=dtd.npz --ood svhn=svhn.npz`

    Stores larger than the memory: `sirc evaluate --id test-store --ood far=far-store --spill scratch`, or with four
    processes `torchrun --nproc-per-node 4 -m -- sirc evaluate …`
    """
    from sirc._utils.files import refuse_existing
    from sirc.evaluation import evaluate
    from sirc.experiment import TARGETS, RunResults, arrays, save_results, save_table

    _check_figures(figures, format_)
    train, ood, head, specs, crossfit, on_unfit = fitting
    if spill is None:
        refuse_unused("it is for stores that `--spill` scores", device=device)
        if int(os.environ.get("WORLD_SIZE") or 1) > 1:  # each would do all of the work, into the same files
            raise ConfigError("several processes share the work with `--spill FOLDER`; without it, start one alone.")
    else:
        without = "with `--spill` there is neither a page nor a figure nor an interval"
        refuse_unused(without, format=format_, open=open_, intervals=intervals)
    folds = fitting.folds
    if train is None:
        without = "nothing is fitted without `--train TRAIN.npz`; give that too"
        refuse_unused(without, val=val, head=head, crossfit=crossfit, on_unfit=on_unfit)
    unfit = fitting.unfit
    sets = named_values("--ood", ood)
    if out.exists() and not out.is_dir():
        raise ConfigError(f"`--out` must be a folder, for the results, tables, page and figures; '{out}' is a file.")
    for target in TARGETS:
        refuse_existing(out / target, overwrite)
    grouped = named_values("--group", group, "NAME=SET,SET")
    groups = {key: names.split(",") for key, names in grouped.items()} or None
    progress = reporting(quiet)
    if arrays.has_confidences(id_):
        if train is not None or spill is not None or (specs and len(specs) > 1):
            gone = "`--train`, `--spill` and all but one `--score`"
            raise ConfigError(f"'{id_}' has the confidences of one score: leave out {gone}.")
        score = specs[0] if specs else "confidence"
        run = arrays.evaluate_confidences(id_, sets, score=score, groups=groups, model=name)
    else:
        _refuse_shared_files({"--id": id_, "--train": train, "--val": val}, sets)
        test, outside = arrays.load_outputs(id_), {key: arrays.load_outputs(path) for key, path in sets.items()}
        with on_device(device or "auto", quiet) if spill else nullcontext((None, progress)) as (where, progress):
            scorer = arrays.fit_arrays(
                None if train is None else arrays.load_outputs(train),
                test,
                outside,
                specs=specs,
                head=arrays.find_head_in(head, train),
                crossfit=folds,
                val=None if val is None else arrays.load_outputs(val),
                on_unfit=unfit,
                device=where,
                progress=progress,
            )
            _note_scores(scorer.specs, specs, val, progress)
            if spill is not None:
                assert where is not None
                spilled = evaluate(scorer, test, outside, groups=groups, spill=spill, device=where, progress=progress)
                if is_main():
                    results = spilled.table.assign(model=name, seed=0)
                    _show(save_table(results, out, overwrite=overwrite), open_)
                return
        run = RunResults(name, 0, evaluate(scorer, test, outside, groups=groups), scorer, test, outside)
    formats = list(format_ or FigureFormat)
    study = save_results(
        [run], out, figures=figures, formats=formats, intervals=intervals, overwrite=overwrite, progress=progress
    )
    _show(study, open_)


def table(
    runs: Annotated[list[Path], Argument(metavar="RUN", help="Folders of `sirc run`, or `results.csv` files.")],
    format_: Annotated[TableFormat, Option("--format", help="The format to print.")] = "text",
    metric: Annotated[Names, Option(help="A metric, such as `auroc`, `fpr@95` or `aurr`; repeat.")] = None,
    negative: Annotated[Names, Option(help="`wrong`, `OOD mean`, an OOD set or a group; repeat. Default: all.")] = None,
    score: Annotated[Names, Option(help="A score to show; repeat. Default: those of `[report]`, or all.")] = None,
    alpha: Annotated[float | None, Option(help="The α to show, if the results have several.")] = None,
    beta: Annotated[float | None, Option(help="The β to show, if the results have several.")] = None,
    spread: Annotated[bool, Option("--spread", help="Show mean ± 2 std over seeds instead of the mean.")] = False,
    intervals: Intervals = False,
    out: Annotated[Path | None, Option(help="Write to this file; its ending chooses the format.")] = None,
    overwrite: Replace = False,
) -> None:
    """Print the paper's table of one or more studies: best bold, second and third underlined.

    Example: `sirc table runs/resnet50_imagenet200 --format latex --spread`
    """
    import pandas as pd

    from sirc._utils.files import refuse_existing
    from sirc.experiment import load_runs, read_results
    from sirc.metrics import parse_metric
    from sirc.report.tables import table as make_table
    from sirc.scores import parse

    if out is not None:
        if out.suffix != _ENDINGS.get(format_, out.suffix):
            raise ConfigError(f"`--format {format_}` must go to a file ending in {_ENDINGS[format_]}; got '{out}'.")
        refuse_existing(out, overwrite)
    files = [path / "results.csv" if path.is_dir() else path for path in runs]
    for file in files:
        if not file.is_file():
            raise FileNotFoundError(f"there are no results at '{file}'. Make them: `sirc run EXPERIMENT.toml`.")
    if intervals:
        parts = [run.intervals(alpha, beta) for run in load_runs(runs)]
    else:
        parts = [read_results(file) for file in files]
    results = pd.concat(parts, ignore_index=True)
    metrics = metric or ["auroc", "fpr@95"]
    if all(found and not found[0].of_mixture for found in map(parse_metric, metrics)):
        refuse_unused("these metrics have neither α nor β; `--metric aurr` has both", alpha=alpha, beta=beta)
    if results.groupby("model")["seed"].nunique().max() == 1:
        refuse_unused("each model has one training run", spread=spread)
    elif intervals:
        raise ConfigError("`--intervals` are of one training run; these have several seeds: `--spread` shows theirs.")
    shown = make_table(
        results,
        metrics=metrics,
        negatives=negative or None,
        scores=[str(parse(text)) for text in score] if score else _shown(results, runs),
        alpha=alpha,
        beta=beta,
        spread=spread,
    )
    if out is not None:
        shown.save(out, overwrite=True)
        result(str(out))
    else:
        typer.echo(getattr(shown, format_)(), file=sys.stdout)  # else click writes UTF-8 to an ASCII stream


def plot(
    runs: RunFolders,
    out: Annotated[Path | None, Option(help="The folder for the figures. Default: `figures` in the first RUN.")] = None,
    format_: Formats = None,
    quiet: Quiet = False,
) -> None:
    """Draw the paper's figures of one or more studies.

    Example: `sirc plot runs/resnet50_imagenet200 --format pdf --out figures`
    """
    from sirc.experiment import images_for_samples, load_experiments, load_runs
    from sirc.report.figures import figures

    folder = out or runs[0] / "figures"
    progress = reporting(quiet)
    try:
        images = images_for_samples(load_experiments(runs[0])[0], run_code=False)
    except (ValueError, OSError) as error:
        images = None
        why = in_options(plot, str(error))
        progress.note(f"without a figure of sample images, which cannot be opened: {why}")
    shown = [run.reported for run in load_runs(runs)]
    for path in figures(shown, folder, formats=list(format_ or FigureFormat), images=images, progress=progress):
        result(str(path))


def report(
    runs: RunFolders,
    out: Annotated[Path | None, Option(metavar="FILE.html", help="Default: `report.html` in the first RUN.")] = None,
    title: Annotated[str | None, Option(help="The page's heading. Default: the names of the models.")] = None,
    open_: Open = False,
    overwrite: Replace = False,
    quiet: Quiet = False,
) -> None:
    """Write one HTML page about one or more studies, on which α, β, the recall and the OOD sets can be changed.

    The page opens from disk, and neither loads nor sends anything. Without `--out`, an earlier page is replaced.

    Example: `sirc report runs/resnet50_imagenet200 --open`
    """
    from sirc._utils.files import refuse_existing
    from sirc.experiment import PAGE, load_runs
    from sirc.report.page import report as write_page

    if out is not None:
        refuse_existing(out, overwrite)
    shown = [run.reported for run in load_runs(runs)]
    page = write_page(shown, out or runs[0] / PAGE, title=title, overwrite=True, progress=reporting(quiet))
    result(str(page))
    if open_:
        open_page(page)


def _refuse_shared_files(inside: Mapping[str, Path | None], ood: Mapping[str, str]) -> None:
    """Refuse one file for two roles: the results would be meaningless."""
    roles = [(option, path) for option, path in inside.items() if path is not None and path.exists()]
    outside = [(f"--ood {name}", Path(path)) for name, path in ood.items() if Path(path).exists()]
    for (one, path), (other, same) in (*combinations(roles, 2), *product(outside, roles)):
        if path.samefile(same):
            raise ConfigError(f"`{one}` and `{other}` must be different outputs; both are '{path}'.")


def _note_scores(fitted: Sequence[str], named: Sequence[str] | None, val: Path | None, progress: Progress) -> None:
    """Note which of the default scores were left out, and if validation outputs were not used."""
    from sirc.experiment import DEFAULT_SPECS
    from sirc.scores import Needs

    if not named and len(fitted) < len(DEFAULT_SPECS):
        missing = ", ".join(spec for spec in DEFAULT_SPECS if spec not in fitted)
        progress.note(
            f"left out, as features, training outputs, labels or head weights are missing: {missing}. A `--train` file "
            "with `features`, `labels`, `head_weight` and `head_bias` allows all."
        )
    if val is not None and not Needs.of(fitted).tuned:
        progress.note(f"note: '{val}' was not used, as none of the scores is tuned on validation outputs.")


def _check_figures(figures: bool, format_: Formats, redo: Redo = None) -> None:
    """Refuse options about figures where none are drawn."""
    if not figures:
        refuse_unused("`--no-figures` draws none", format=format_, redo="figures" in (redo or ()))


def _show(study: Study, open_: bool, *, negatives: Sequence[str] = (), verdicts: Sequence[str] = ()) -> None:
    """Print the table, the paths of the files and the verdicts; the page comes last, and opens if asked for."""
    from sirc.report.tables import table as make_table

    if len(study.results):  # only the main process has them
        present = set(study.results["negative"])
        chosen = [name for name in negatives if name in present] or None
        result(make_table(study.reported_results, negatives=chosen).text())
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


def _shown(results: pd.DataFrame, paths: Sequence[Path]) -> list[str] | None:
    """The scores that the studies ask to show; None, for all, if a path is not the folder of a study."""
    from sirc.experiment import load_experiments, reported_scores

    try:
        studies = [study for path in paths for study in load_experiments(path)]
    except FileNotFoundError:
        return None
    if not any(study.report.specs for study in studies):
        return None
    return reported_scores(list(results["score"].unique()), studies)
