"""A whole study: train, extract, fit, evaluate, tables, page, figures; what is valid is not done again."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import final

import pandas as pd
import torch

import sirc
from sirc._utils import distributed
from sirc._utils.files import PathLike, atomic_write, refuse_existing
from sirc.data import DeviceCache, ImageSet, open_source
from sirc.experiment.data_check import check_data, is_complete, is_extracted, missing_files, needed
from sirc.experiment.experiment import Experiment, Run
from sirc.experiment.provenance import is_fitted, stale_outputs
from sirc.experiment.results import SCHEMA, RunResults, load_run, results_table, shown_scores, title_of
from sirc.experiment.results_file import read_results, write_results
from sirc.experiment.score_cache import Kept
from sirc.experiment.stages import extract_run, fit_run, train_run
from sirc.experiment.stamps import Stamp, digest
from sirc.progress import SILENT, Progress, Task

FORMATS = ("pdf", "svg", "png")
REDO = ("train", "extract", "fit", "page", "figures")
TABLES = ("table.md", "table.tex", "table.html", "table.csv")
PAGE = "report.html"
TARGETS = ("results.csv", *TABLES, PAGE)
FILE = "study.json"


@final
@dataclass(frozen=True)
class Step:
    """One stage of one run, how long it took, and whether there was nothing to do."""

    name: str
    seconds: float
    skipped: bool


@final
@dataclass
class Study:
    """What a study left: the steps that were taken, the table of all results, and the files."""

    folder: Path
    experiments: Sequence[Experiment] = ()
    steps: list[Step] = field(default_factory=list)
    files: list[Path] = field(default_factory=list)
    results: pd.DataFrame = field(default_factory=lambda: pd.DataFrame(columns=SCHEMA))
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    _loaded: dict[Path, RunResults] = field(default_factory=dict)

    def load(self, experiment: Experiment, run: Run) -> RunResults:
        """Evaluate a run from what is stored, once."""
        if run.folder not in self._loaded:
            self._loaded[run.folder] = load_run(experiment, run, device=self.device, keep=True)
        return self._loaded[run.folder]

    @property
    def runs(self) -> list[RunResults]:
        """All runs, evaluated."""
        return [self.load(experiment, run) for experiment in self.experiments for run in experiment.runs]

    @property
    def shown(self) -> list[RunResults]:
        """All runs with the scores that tables, page and figures are to show."""
        return [run.shown for run in self.runs]

    @property
    def page(self) -> Path | None:
        """The HTML page; under torchrun only the first process has one."""
        return next((path for path in self.files if path.name == PAGE), None)


def run_study(
    experiments: Sequence[Experiment],
    *,
    folder: PathLike | None = None,
    device: torch.device | str = "cpu",
    figures: bool = True,
    formats: Sequence[str] = FORMATS,
    redo: Collection[str] = (),
    progress: Progress = SILENT,
) -> Study:
    """Do all stages of these experiments, and put their results together in `folder`.

    With one experiment `folder` is its own by default; several must have the same `out`, or `folder` be given. Under
    torchrun, all processes train, extract and fit; the first does the rest. Where settings changed, what follows from
    them is done again, but networks are never trained anew unless `redo` says "train"; it may also name "extract",
    "fit", "page" and "figures". Where something is to be trained or extracted, all images are listed before, so that
    mistakes in the data are told at once. Where nothing is, they are not needed.
    """
    _check_distinct(experiments)
    if unknown := set(redo) - set(REDO):
        raise ValueError(f"`redo` must be among {', '.join(REDO)}; got {', '.join(sorted(unknown))}.")
    where = Path(folder) if folder is not None else _common_folder(experiments)
    study = Study(where, experiments, device=torch.device(device))
    runs = [(experiment, run) for experiment in experiments for run in experiment.runs]
    stages = sum(3 + (experiment.train is not None) for experiment, _ in runs) + 2 + figures
    worker = _Worker(study, torch.device(device), frozenset(redo), progress)
    unfinished = [experiment for experiment in experiments if not worker.finished(experiment)]
    with progress.task("study", stages, unit="stages") as worker.whole:
        with worker.holding:
            for experiment in unfinished:
                worker.check(experiment)
            for experiment, run in runs:
                worker.outputs(experiment, run)
                if distributed.is_main():
                    experiment.save(overwrite=True)  # each stage has compared its part with what is there
        with distributed.failing_together():
            if distributed.is_main():
                worker.results(runs)
                worker.tables()
                worker.page(runs)
                if figures:
                    worker.figures(runs, formats)
    return study


@final
class _Worker:
    """Takes the steps of a study and writes down what it did."""

    whole: Task

    def __init__(self, study: Study, device: torch.device, redo: frozenset[str], progress: Progress) -> None:
        self.study = study
        self.device = device
        self.redo = redo
        self.progress = progress
        self.holding = DeviceCache()
        self.imageless: set[Path] = set()  # the folders of experiments that are finished, and whose images are gone

    @contextmanager
    def step(self, name: str, skipped: Callable[[], bool] = lambda: False) -> Iterator[bool]:
        """Time a step; yields whether there is nothing to do."""
        nothing = name.rpartition(" ")[2] not in self.redo and skipped()
        if nothing:
            self.progress.note(f"{name}: there already")
        began = time.perf_counter()
        yield nothing
        self.study.steps.append(Step(name, time.perf_counter() - began, nothing))
        self.whole.advance()

    def finished(self, experiment: Experiment) -> bool:
        """Whether nothing is to be trained or extracted; only then may images be missing."""
        done = not self.redo & {"train", "extract"} and all(is_extracted(experiment, run) for run in experiment.runs)
        if not done:
            experiment.require(needed(experiment))
        elif words := missing_files(experiment):
            self.imageless.add(experiment.folder)
            if distributed.is_main():
                self.progress.note(f"stored outputs are used without a look at the images they are of: {words}")
        return done

    def check(self, experiment: Experiment) -> None:
        """Look at all datasets of an experiment, before hours are spent on the first of them."""
        left = "train" in self.redo or not all(run.weights.exists() for run in experiment.runs)
        trains = experiment.train is not None and left
        names = needed(experiment)
        check_data(experiment, names, trains=trains, holding=self.holding, progress=self.progress)

    def outputs(self, experiment: Experiment, run: Run) -> None:
        """Train the network, store its outputs, fit the scores."""
        name = f"{experiment.name}, {run.folder.name}"
        cpu = self.device.type == "cpu"
        comparable = experiment.folder not in self.imageless  # what is there is compared with the images it is of
        if experiment.train is not None:
            with self.step(f"{name}: train", run.weights.exists):
                overwrite = "train" in self.redo
                if comparable:
                    train_run(
                        experiment, run, cpu=cpu, overwrite=overwrite, progress=self.progress, holding=self.holding
                    )
        names = list(experiment.stored)
        stale = names if "extract" in self.redo else stale_outputs(experiment, run)
        with self.step(f"{name}: extract", lambda: not stale and all(is_complete(run.store(n)) for n in names)):
            given = partial(
                extract_run, experiment, run, device=self.device, progress=self.progress, holding=self.holding
            )
            if stale:
                given(stale, overwrite=True)
            if comparable:
                given()
        with self.step(f"{name}: fit", lambda: is_fitted(experiment, run)) as nothing:
            fit_run(experiment, run, device=self.device, overwrite=not nothing, progress=self.progress)
        distributed.barrier()

    def results(self, runs: Sequence[tuple[Experiment, Run]]) -> None:
        """Evaluate every run, and put all results into one table."""
        tables = []
        for experiment, run in runs:
            kept = Kept(experiment, run)
            stamp = Stamp(run.folder, "results", _evaluated(experiment, run, kept))
            file = run.folder / "results.csv"
            valid = partial(_both, stamp, kept)
            with self.step(f"{experiment.name}, {run.folder.name}: evaluate", valid) as nothing:
                if not nothing:
                    stamp.clear()
                    write_results(self.study.load(experiment, run).table, file)
                    stamp.write([file])
            tables.append(read_results(file))
        self.study.results = pd.concat(tables, ignore_index=True)
        write_results(self.study.results, self.study.folder / "results.csv")
        parts = [os.path.relpath(experiment.folder, self.study.folder) for experiment in self.study.experiments]
        text = json.dumps({"experiments": parts}, indent=1)
        atomic_write(self.study.folder / FILE, lambda file: file.write(text.encode()))
        self.study.files.append(self.study.folder / "results.csv")

    def tables(self) -> None:
        """Write the tables in every format."""
        from sirc.report.tables import save_tables

        results = self.study.results
        scores = shown_scores(list(results["score"].unique()), self.study.experiments)
        shown = results[results["score"].isin(scores)]
        self._make("tables", lambda: save_tables(shown, self.study.folder, overwrite=True), scores=scores)

    def page(self, runs: Sequence[tuple[Experiment, Run]]) -> None:
        """Write the page in which α, β and the recall can be dragged."""
        from sirc.report.page import report

        file = self.study.folder / PAGE
        self._make(
            "page",
            lambda: [report(self.study.shown, file, overwrite=True, progress=self.progress)],
            runs=_named(runs),
            scores=_shown(runs),
        )

    def figures(self, runs: Sequence[tuple[Experiment, Run]], formats: Sequence[str]) -> None:
        """Draw the figures."""
        from sirc.report.figures import figures

        def draw() -> list[Path]:
            first, folder = runs[0][0], self.study.folder / "figures"
            images = None if first.folder in self.imageless else sample_sets(first)
            return figures(self.study.shown, folder, formats=formats, images=images, progress=self.progress)

        self._make("figures", draw, formats=list(formats), runs=_named(runs), scores=_shown(runs))

    def _make(self, stage: str, make: Callable[[], list[Path]], **inputs: object) -> None:
        """Make files that follow from the results and from `inputs`, unless they are there."""
        folder = self.study.folder
        known = {"results": digest(folder / "results.csv"), "sirc": sirc.__version__, **inputs}
        stamp = Stamp(folder, stage, known)
        with self.step(stage, stamp.valid) as nothing:
            if not nothing:
                stamp.clear()
                stamp.write(make())
        self.study.files += stamp.made


def save_results(
    runs: Sequence[RunResults],
    folder: PathLike,
    *,
    figures: bool = True,
    formats: Sequence[str] = FORMATS,
    overwrite: bool = False,
    progress: Progress = SILENT,
) -> Study:
    """Write results, tables, page and figures of runs that are no experiments."""
    from sirc.report.figures import figures as draw
    from sirc.report.page import report
    from sirc.report.tables import save_tables

    study = Study(Path(folder), results=results_table(runs))
    check_targets(folder, overwrite)
    file = study.folder / "results.csv"
    write_results(study.results, file)
    study.files += [file, *save_tables(study.results, study.folder, overwrite=True)]
    study.files.append(report(runs, study.folder / PAGE, overwrite=True, progress=progress))
    if figures:
        study.files += draw(list(runs), study.folder / "figures", formats=formats, progress=progress)
    return study


def check_targets(folder: PathLike, overwrite: bool) -> None:
    """Refuse to replace results that are there, before any work is done."""
    for name in TARGETS:
        refuse_existing(Path(folder) / name, overwrite)


def sample_sets(experiment: Experiment) -> dict[str, ImageSet]:
    """Open the datasets of an experiment to look at: test images first, then the OOD sets, without preprocessing."""
    return {
        name: open_source(
            experiment.source(name),
            root=experiment.root,
            split="test" if name == "test" else None,
            preprocess=None,
            labelled=name == "test",
            name=name,
        )
        for name in ("test", *experiment.data.ood)
    }


def _named(runs: Sequence[tuple[Experiment, Run]]) -> list[list[object]]:
    return [[title_of(experiment), run.seed] for experiment, run in runs]


def _shown(runs: Sequence[tuple[Experiment, Run]]) -> list[list[str]]:
    return [shown_scores(experiment.fit.specs, [experiment]) for experiment, _ in runs]


def _both(stamp: Stamp, kept: Kept) -> bool:
    return stamp.valid() and kept.valid()


def _evaluated(experiment: Experiment, run: Run, kept: Kept) -> dict[str, object]:
    """What an evaluation follows from."""
    return {
        **kept.inputs,
        "groups": {name: source.in_group for name, source in experiment.data.ood.items()},
        "model": title_of(experiment),
        "seed": run.seed,
    }


def _check_distinct(experiments: Sequence[Experiment]) -> None:
    if not experiments:
        raise ValueError("a study must have at least one experiment; got none.")
    if len({experiment.folder for experiment in experiments}) < len(experiments):
        raise ValueError("the experiments of a study must have different names; two have the same folder. Rename one.")
    if len({title_of(experiment) for experiment in experiments}) < len(experiments):
        raise ValueError("the experiments of a study must have different titles, as tables name models by them.")


def _common_folder(experiments: Sequence[Experiment]) -> Path:
    if len(experiments) == 1:
        return experiments[0].folder
    parents = {experiment.folder.parent for experiment in experiments}
    if len(parents) > 1:
        listed = ", ".join(f"'{parent}'" for parent in sorted(parents))
        raise ValueError(
            f"several experiments must have the same `out` to be put together; got {listed}. Pass `--out`."
        )
    return parents.pop()
