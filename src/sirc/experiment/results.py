"""What runs found, read back from disk: one evaluation for each network, and one tidy table for all of them."""

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

from sirc._utils.files import PathLike
from sirc.evaluation import COLUMNS, Evaluation, score_labelled
from sirc.experiment.experiment import FILE, Experiment, Run
from sirc.experiment.provenance import check_outputs
from sirc.experiment.score_cache import Confidences, Kept
from sirc.outputs import Outputs, OutputStore
from sirc.scores import Scorer, parse

SCHEMA = ["model", "seed", *COLUMNS]


@final
@dataclass(frozen=True)
class RunResults:
    """One network: what it is called, its evaluation, the outputs and scorer that it comes from, and the experiment.

    Outputs that came as arrays have no experiment.
    """

    model: str
    seed: int
    evaluation: Evaluation
    scorer: Scorer
    test: Outputs | OutputStore
    ood: Mapping[str, Outputs | OutputStore]
    experiment: Experiment | None = None

    @property
    def table(self) -> pd.DataFrame:
        """Its rows of the results."""
        table = self.evaluation.table.copy()
        table.insert(0, "model", self.model)
        table.insert(1, "seed", self.seed)
        return table

    @property
    def shown(self) -> RunResults:
        """The same with the scores alone that its experiment wants in tables, page and figures."""
        wanted = shown_scores(self.evaluation.scores, [self.experiment] if self.experiment else [])
        return self if wanted == self.evaluation.scores else replace(self, evaluation=self.evaluation.only(wanted))


def load_run(experiment: Experiment, run: Run, *, device: torch.device | str = "cpu", keep: bool = False) -> RunResults:
    """Evaluate a run from its stored outputs and its scorer, which scores them on `device`.

    Confidences that an earlier call kept are taken as they are while outputs and scorer are those that they come from;
    with `keep`, those that had to be computed are kept in the run's folder.
    """
    check_outputs(experiment, run, ["test", *experiment.data.ood])
    scorer = Scorer.load(run.scorer)
    test = OutputStore(run.store("test"))
    ood = {name: OutputStore(run.store(name)) for name in experiment.data.ood}
    kept = Kept(experiment, run)
    found = kept.read()
    if found is None:
        found = _scored(scorer, test, ood, device)
        if keep:
            kept.write(found)
    evaluation = Evaluation(found.inside, found.correct, found.outside, groups=groups_of(experiment))
    return RunResults(title_of(experiment), run.seed, evaluation, scorer, test, ood, experiment)


def load_runs(folders: Sequence[PathLike], *, device: torch.device | str = "cpu") -> list[RunResults]:
    """Evaluate all runs of the studies in these folders."""
    studies = [study for folder in folders for study in load_studies(folder)]
    return [load_run(study, run, device=device) for study in studies for run in study.runs]


def load_studies(folder: PathLike) -> list[Experiment]:
    """Read the experiments of a study: the one in this folder, or those that were put together in it."""
    path = Path(folder)
    try:
        parts = json.loads((path / "study.json").read_bytes())["experiments"]
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


def shown_scores(scores: Sequence[str], experiments: Sequence[Experiment]) -> list[str]:
    """Those of the scores that the experiments want in tables, page and figures: all, unless `report.specs` says."""
    wanted = {str(parse(text)) for experiment in experiments for text in experiment.report.specs}
    if not all(experiment.report.specs for experiment in experiments):
        return list(scores)
    return [score for score in scores if str(parse(score)) in wanted] or list(scores)


def results_table(runs: Sequence[RunResults]) -> pd.DataFrame:
    """Put the rows of all runs into one table."""
    return pd.concat([run.table for run in runs], ignore_index=True)[SCHEMA]


def _scored(
    scorer: Scorer, test: OutputStore, ood: Mapping[str, OutputStore], device: torch.device | str
) -> Confidences:
    inside, correct = score_labelled(scorer, "test", _placed(test, device))
    outside = {name: _on_cpu(scorer(_placed(store, device))) for name, store in ood.items()}
    return Confidences(_on_cpu(inside), correct.cpu(), outside)


def _placed(store: OutputStore, device: torch.device | str) -> Iterator[Outputs]:
    """The shards of a store, each on the device in its turn."""
    return (outputs.to(device) for outputs in store)


def _on_cpu(confidences: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {score: values.cpu() for score, values in confidences.items()}
