"""Results of runs: an evaluation of each network from what is stored, and one tidy table, results.csv."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

import pandas as pd
import torch
from torch import Tensor

from sirc._utils.files import PathLike, atomic_write
from sirc.evaluation import COLUMNS, Evaluation, score_labelled
from sirc.experiment.experiment import FILE, Experiment, Run
from sirc.experiment.score_cache import RunScores, ScoreCache
from sirc.experiment.stages import check_outputs
from sirc.outputs import Outputs, OutputStore
from sirc.scores import Scorer, parse

STUDY_FILE = "study.json"
SCHEMA = ["model", "seed", *COLUMNS]


@final
@dataclass(frozen=True)
class RunResults:
    """The evaluation of one network, with the outputs and the scorer behind it, and its experiment if it has one."""

    model: str
    seed: int
    evaluation: Evaluation
    scorer: Scorer
    test: Outputs | OutputStore
    ood: Mapping[str, Outputs | OutputStore]
    experiment: Experiment | None = None

    @property
    def table(self) -> pd.DataFrame:
        """The rows of this run in results.csv."""
        table = self.evaluation.table.copy()
        table.insert(0, "model", self.model)
        table.insert(1, "seed", self.seed)
        return table

    @property
    def reported(self) -> RunResults:
        """The same with only the scores that its experiment wants in tables, page and figures."""
        wanted = reported_scores(self.evaluation.scores, [self.experiment] if self.experiment else [])
        return self if wanted == self.evaluation.scores else replace(self, evaluation=self.evaluation.only(wanted))


def load_run(
    experiment: Experiment, run: Run, *, device: torch.device | str = "cpu", cache: bool = False
) -> RunResults:
    """Evaluate a run from its stored outputs and its scorer, which scores them on `device`.

    Confidences come from the run's cache while it is valid; with `cache`, those that had to be computed go into it.
    """
    check_outputs(experiment, run, ["test", *experiment.data.ood])
    scorer = Scorer.load(run.scorer)
    test = OutputStore(run.store("test"))
    ood = {name: OutputStore(run.store(name)) for name in experiment.data.ood}
    cached = ScoreCache(experiment, run)
    scores = cached.read()
    if scores is None:
        scores = _score(scorer, test, ood, device)
        if cache:
            cached.write(scores)
    evaluation = Evaluation(scores.test, scores.correct, scores.ood, groups=groups_of(experiment))
    return RunResults(title_of(experiment), run.seed, evaluation, scorer, test, ood, experiment)


def load_runs(folders: Sequence[PathLike], *, device: torch.device | str = "cpu") -> list[RunResults]:
    """Evaluate all runs of the studies in these folders."""
    studies = [study for folder in folders for study in load_studies(folder)]
    return [load_run(study, run, device=device) for study in studies for run in study.runs]


def load_studies(folder: PathLike) -> list[Experiment]:
    """Read the experiments of a study: the one in this folder, or those whose results are put together in it."""
    path = Path(folder)
    try:
        parts = json.loads((path / STUDY_FILE).read_bytes())["experiments"]
    except (FileNotFoundError, NotADirectoryError):
        parts = ["."]
    return [load_study(path / part) for part in parts]


def load_study(folder: PathLike) -> Experiment:
    """Read the configuration that a study left beside its results; these are in this folder, wherever it was moved."""
    path = Path(os.path.abspath(folder))
    if not (path / FILE).is_file():
        there = f" Its page is there already: '{path / 'report.html'}'." if (path / "report.html").is_file() else ""
        raise FileNotFoundError(
            f"'{folder}' holds no stored outputs: it has no {FILE}. Make them with `sirc run EXPERIMENT.toml`.{there}"
        )
    return replace(Experiment.read(path / FILE), out=str(path.parent), name=path.name)


def title_of(experiment: Experiment) -> str:
    """Give what tables call the experiment's network."""
    return experiment.title or experiment.name


def groups_of(experiment: Experiment) -> dict[str, list[str]]:
    """Give the Close and the Far of the experiment's OOD sets, where there are any."""
    names = {group: [n for n, s in experiment.data.ood.items() if s.in_group == group] for group in ("Close", "Far")}
    return {group: members for group, members in names.items() if members}


def reported_scores(scores: Sequence[str], experiments: Sequence[Experiment]) -> list[str]:
    """Choose the scores that the experiments want in tables, page and figures: all, unless `report.specs` says."""
    wanted = {str(parse(text)) for experiment in experiments for text in experiment.report.specs}
    if not all(experiment.report.specs for experiment in experiments):
        return list(scores)
    return [score for score in scores if str(parse(score)) in wanted] or list(scores)


def results_table(runs: Sequence[RunResults]) -> pd.DataFrame:
    """Put the rows of all runs into one table."""
    return pd.concat([run.table for run in runs], ignore_index=True)[SCHEMA]


def write_results(table: pd.DataFrame, path: Path) -> None:
    """Write results in the one schema that all of them have."""
    text = table[SCHEMA].to_csv(index=False, lineterminator="\n")
    atomic_write(path, lambda file: file.write(text.encode()))


def read_results(path: PathLike) -> pd.DataFrame:
    """Read results; other columns than the schema's are an error."""
    try:
        table = pd.read_csv(path, dtype=str, keep_default_na=False)
    except ValueError as error:
        raise ValueError(f"'{path}' must be a CSV table with the columns {', '.join(SCHEMA)}; {error}") from error
    if list(table.columns) != SCHEMA:
        raise ValueError(
            f"results must have the columns {', '.join(SCHEMA)}; '{path}' has {', '.join(map(str, table.columns))}. "
            "Make them with `sirc run` or `sirc evaluate`."
        )
    # Python's own float reads back every digit that was written; pandas' quick parser may not.
    numbers = {name: [float(text or "nan") for text in table[name]] for name in ("alpha", "beta", "value")}
    return table.assign(seed=table["seed"].astype(int), **numbers)


def _score(scorer: Scorer, test: OutputStore, ood: Mapping[str, OutputStore], device: torch.device | str) -> RunScores:
    """Score all stores, each shard on the device in its turn."""

    def shards(store: OutputStore) -> Iterator[Outputs]:
        return (outputs.to(device) for outputs in store)

    confidences, correct = score_labelled(scorer, "test", shards(test))
    return RunScores(
        _on_cpu(confidences), correct.cpu(), {name: _on_cpu(scorer(shards(store))) for name, store in ood.items()}
    )


def _on_cpu(confidences: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {score: values.cpu() for score, values in confidences.items()}
