"""A study: train, extract, fit, evaluate, tables, page and figures; finished stages are skipped."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import final

import pandas as pd
import torch

import sirc
from sirc._utils import distributed
from sirc._utils.files import PathLike, keep_text, refuse_existing
from sirc.data import DeviceCache
from sirc.errors import ConfigError
from sirc.experiment.experiment import Experiment, Run
from sirc.experiment.images import check_data, images_for_samples
from sirc.experiment.results import (
    SCHEMA,
    STUDY_FILE,
    RunResults,
    confidences_stage,
    load_run,
    read_results,
    reported_scores,
    title_of,
    write_results,
)
from sirc.experiment.stages import (
    are_unchanged,
    check_held_out,
    check_trained,
    extract_run,
    fit_run,
    fit_stage,
    outputs_stages,
    own_code,
    train_run,
    train_stage,
    warn_again,
)
from sirc.experiment.stamp import Stage, code_of, digest, folder_digest
from sirc.experiment.trust import remember
from sirc.metrics import all_metrics
from sirc.progress import SILENT, Progress, Task
from sirc.report.figures import FORMATS
from sirc.report.figures import figures as draw_figures
from sirc.report.page import report
from sirc.report.tables import save_tables

REDO = ("train", "extract", "fit", "page", "figures")
PAGE = "report.html"
TARGETS = ("results.csv", "table.md", "table.tex", "table.html", "table.csv", PAGE)


@final
@dataclass(frozen=True)
class Step:
    """One step of a study, and whether it was skipped because it had been done before."""

    name: str
    skipped: bool


@final
@dataclass
class Study:
    """A finished study: its steps, the table of all results, and the files it wrote."""

    folder: Path
    experiments: Sequence[Experiment] = ()
    steps: list[Step] = field(default_factory=list)
    files: list[Path] = field(default_factory=list)
    results: pd.DataFrame = field(default_factory=lambda: pd.DataFrame(columns=SCHEMA))
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    _loaded: dict[Path, RunResults] = field(default_factory=dict)

    def load(self, experiment: Experiment, run: Run) -> RunResults:
        """Evaluate a run from its stored outputs, once."""
        if run.folder not in self._loaded:
            self._loaded[run.folder] = load_run(experiment, run, device=self.device, cache=True)
        return self._loaded[run.folder]

    @property
    def runs(self) -> list[RunResults]:
        """All runs, evaluated."""
        return [self.load(experiment, run) for experiment in self.experiments for run in experiment.runs]

    @property
    def reported(self) -> list[RunResults]:
        """All runs, with only the scores that tables, page and figures show."""
        return [run.reported for run in self.runs]

    @property
    def reported_results(self) -> pd.DataFrame:
        """The rows of all results with only the scores that tables, page and figures show."""
        scores = reported_scores(list(self.results["score"].unique()), self.experiments)
        return self.results[self.results["score"].isin(scores)]

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
    """Run all stages of these experiments, and combine their results in `folder`.

    One experiment uses its own folder by default; several must have the same `out`, unless `folder` is given. Under
    torchrun, all processes train, extract and fit; the first does the rest. If a setting changed, everything that
    depends on it is done again, except training: networks are trained again only if `redo` names "train". `redo` may
    also name "extract", "fit", "page" and "figures". Before anything is trained or extracted, all images are listed, so
    that mistakes in the data show at once. If nothing is left to train or extract, the images may be missing.
    """
    if not experiments:
        raise ValueError("a study must have at least one experiment; got none.")
    for what, different in (("names", {e.folder for e in experiments}), ("titles", {title_of(e) for e in experiments})):
        if len(different) < len(experiments):
            raise ValueError(f"the experiments of a study must have different {what}; two share one. Rename one.")
    if unknown := set(redo) - set(REDO):
        raise ValueError(f"`redo` must be among {', '.join(REDO)}; got {', '.join(sorted(unknown))}.")
    if folder is None:
        folders = {experiment.folder.parent for experiment in experiments}
        if len(folders) > 1:
            raise ValueError(
                "several experiments must have the same `out` to be combined; got "
                f"{', '.join(map(str, sorted(folders)))}. Pass `--out`."
            )
        folder = experiments[0].folder if len(experiments) == 1 else folders.pop()
    study = Study(Path(folder), experiments, device=torch.device(device))
    runs = [(experiment, run) for experiment in experiments for run in experiment.runs]
    steps = sum(3 + (experiment.train is not None) for experiment, _ in runs) + 2 + figures
    worker = _Worker(study, runs, frozenset(redo), progress)
    unfinished = [experiment for experiment in experiments if not worker.finished(experiment)]
    with progress.task("study", steps, unit="stages") as worker.whole:
        with worker.cache:
            for experiment in unfinished:  # before hours are spent on the first dataset
                untrained = "train" in redo or not all(run.weights.exists() for run in experiment.runs)
                trains = experiment.train is not None and untrained
                check_data(experiment, experiment.names, trains=trains, cache=worker.cache, progress=progress)
            for experiment, run in runs:
                worker.outputs(experiment, run)
                if distributed.is_main():
                    experiment.save()  # only now: it must be the configuration of what is stored
        with distributed.failing_together():
            if distributed.is_main():
                worker.results()
                worker.files(formats if figures else None)
    return study


@final
@dataclass
class _Worker:
    """Does the steps of a study, and records them."""

    study: Study
    runs: Sequence[tuple[Experiment, Run]]
    redo: frozenset[str]
    progress: Progress
    whole: Task = field(init=False)
    cache: DeviceCache = field(default_factory=DeviceCache)
    imageless: set[Path] = field(default_factory=set)  # the folders of finished experiments whose images are gone

    def __post_init__(self) -> None:
        self.own_code = code_of(metric.function for metric in all_metrics())
        for experiment, _ in self.runs:
            self.own_code |= own_code(experiment)

    @contextmanager
    def step(self, name: str, *stages: Stage) -> Iterator[bool]:
        """Record one step, whose name ends in its kind; yield True if its stages are done and not in `redo`."""
        done = name.rpartition(" ")[2] not in self.redo and all(stage.is_done() for stage in stages)
        if done:
            self.progress.note(f"{name}: there already")
        yield done
        self.study.steps.append(Step(name, done))
        self.whole.advance()

    def finished(self, experiment: Experiment) -> bool:
        """Whether nothing is left to train or extract; only then may images be missing."""
        trained = experiment.train is None or all(run.weights.exists() for run in experiment.runs)
        stages = (pair for run in experiment.runs for pair in outputs_stages(experiment, run).items())
        # Earlier versions extracted validation images only to tune scores, and other studies do not need them.
        needed = (stage for name, stage in stages if name != "validation" or experiment.tuned)
        done = not self.redo & {"train", "extract"} and trained and all(stage.is_done() for stage in needed)
        missing = ""
        try:
            experiment.require()
        except ConfigError as error:
            if not done:
                raise
            missing = str(error)
        if done and (missing := next(filter(None, distributed.gather_texts(missing)), "")):
            self.imageless.add(experiment.folder)
            if distributed.is_main():
                self.progress.note(f"stored outputs are used, and cannot be compared with their images: {missing}")
        return done

    def outputs(self, experiment: Experiment, run: Run) -> None:
        """Train the network, store its outputs, fit the scores."""
        device, progress, cache = self.study.device, self.progress, self.cache
        has_images = experiment.folder not in self.imageless

        name = f"{experiment.name}, {run.folder.name}"
        if experiment.train is not None:
            redo, trained = "train" in self.redo, train_stage(experiment, run)
            with self.step(f"{name}: train", trained):
                if has_images and (redo or experiment.model.own or not trained.is_done()):
                    cpu = device.type == "cpu"
                    train_run(experiment, run, cpu=cpu, overwrite=redo, progress=progress, cache=cache)
                else:
                    check_trained(experiment, run)
                    if has_images:
                        check_held_out(experiment, run, ["train"], cache, progress)
        outputs = outputs_stages(experiment, run)
        with self.step(f"{name}: extract", *outputs.values()):
            extract = partial(extract_run, experiment, run, device=device, progress=progress, cache=cache)
            old = [name for name, stage in outputs.items() if "extract" in self.redo or stage.is_stale()]
            others = [name for name in outputs if name not in old]
            if old:
                extract(old, overwrite=True)
            # Finished outputs too are compared with the images, which may have changed.
            if others and has_images and (old or not are_unchanged(experiment, outputs, cache)):
                extract(others, overwrite="unfinished")
            else:
                for other in others:
                    warn_again(outputs[other])
        with self.step(f"{name}: fit", fit_stage(experiment, run)) as done:
            if not done:
                fit_run(experiment, run, device=device, overwrite=True, progress=progress)
        distributed.barrier()

    def results(self) -> None:
        """Evaluate every run, and combine all results in one table."""
        study = self.study
        for experiment, run in self.runs:
            inputs = confidences_stage(experiment, run).inputs
            inputs["groups"] = {name: source.in_group for name, source in experiment.data.ood.items()}
            inputs |= {"model": title_of(experiment), "seed": run.seed}
            inputs |= self.own_code
            files = [run.folder / "results.csv", run.confidences]
            stage = Stage("results", run.folder, inputs, outputs=files)
            with self.step(f"{experiment.name}, {run.folder.name}: evaluate", stage) as done:
                if not done:
                    with stage.remade() as made:
                        write_results(study.load(experiment, run).table, files[0])
                        made += files
        tables = [read_results(run.folder / "results.csv") for _, run in self.runs]
        study.results = pd.concat(tables, ignore_index=True)
        write_results(study.results, study.folder / "results.csv")
        parts = [os.path.relpath(experiment.folder, study.folder) for experiment in study.experiments]
        keep_text(study.folder / STUDY_FILE, json.dumps({"experiments": parts}, indent=1))
        remember(study.folder / STUDY_FILE)
        study.files.append(study.folder / "results.csv")

    def files(self, formats: Sequence[str] | None) -> None:
        """Write the tables, the page and, in these formats, the figures."""
        study, folder, progress = self.study, self.study.folder, self.progress
        code = folder_digest(Path(__file__).parents[1] / "report")  # the code may change within one version
        reported = study.reported_results
        shown: dict[str, object] = {
            "runs": [[title_of(experiment), run.seed] for experiment, run in self.runs],
            "scores": [reported_scores(experiment.fit.specs, [experiment]) for experiment, _ in self.runs],
        }

        def make(name: str, write: Callable[[], Iterable[Path]], inputs: dict[str, object]) -> None:
            known = {"results": digest(folder / "results.csv"), "sirc": sirc.__version__, "code": code}
            stage = Stage(name, folder, known | inputs | self.own_code)
            with self.step(name, stage) as done:
                if not done:
                    with stage.remade() as made:
                        made += write()
            study.files += stage.made

        def draw(formats: Sequence[str]) -> list[Path]:
            first = self.runs[0][0]
            images = None if first.folder in self.imageless else images_for_samples(first)
            return draw_figures(study.reported, folder / "figures", formats=formats, images=images, progress=progress)

        scores = list(reported["score"].unique())
        make("tables", lambda: save_tables(reported, folder, overwrite=True), {"scores": scores})
        make("page", lambda: [report(study.reported, folder / PAGE, overwrite=True, progress=progress)], shown)
        if formats is not None:
            with _unless_missing(progress):
                make("figures", lambda: draw(formats), {"formats": list(formats), **shown})


@contextmanager
def _unless_missing(progress: Progress) -> Iterator[None]:
    """If matplotlib is not installed, go on without figures and say so."""
    try:
        yield
    except ImportError as error:
        progress.note(f"note: no figures were drawn; {error}")


def save_results(
    runs: Sequence[RunResults],
    folder: PathLike,
    *,
    figures: bool = True,
    formats: Sequence[str] = FORMATS,
    intervals: bool = False,
    overwrite: bool = False,
    progress: Progress = SILENT,
) -> Study:
    """Write results, tables, page and figures of runs without a study; `intervals` puts intervals into the tables."""
    tables = [run.intervals() if intervals else run.table for run in runs]
    study = save_table(pd.concat(tables, ignore_index=True), folder, overwrite=overwrite)
    study.files.append(report(runs, study.folder / PAGE, overwrite=True, progress=progress))
    if figures:
        with _unless_missing(progress):
            study.files += draw_figures(list(runs), study.folder / "figures", formats=formats, progress=progress)
    return study


def save_table(results: pd.DataFrame, folder: PathLike, *, overwrite: bool = False) -> Study:
    """Write results that come from no experiment, and their tables."""
    study = Study(Path(folder), results=results)
    for name in TARGETS:
        refuse_existing(study.folder / name, overwrite)  # before any work is done
    file = study.folder / "results.csv"
    write_results(results, file)
    with Stage("tables", study.folder, {"results": digest(file)}).remade() as made:
        made += save_tables(results, study.folder, overwrite=True)
    study.files += [file, *made]
    return study
