"""Results of runs: the evaluation of each network from its stored outputs, and the table results.csv."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeAlias, final

import pandas as pd
import torch
from torch import Tensor

import sirc
from sirc._utils.files import PathLike, keep_text, read_json, read_safetensors, write_safetensors
from sirc._utils.text import as_csv, quoted, shorten, unquoted
from sirc.errors import StoreError
from sirc.evaluation import COLUMNS, Evaluation, score_labelled
from sirc.experiment.experiment import FILE, Experiment, Run
from sirc.experiment.stages import check_outputs, own_code
from sirc.experiment.stamp import Inputs, Stage, digest, is_inside, kept_digest
from sirc.experiment.trust import is_remembered
from sirc.outputs import Outputs, OutputStore
from sirc.scores import Scorer, parse

STUDY_FILE = "study.json"
SCHEMA = ["model", "seed", *COLUMNS]
SetConfidences: TypeAlias = dict[str, dict[str, Tensor]]  # by set, then by score
_PREFIX = "confidence of "  # in files, so that no score can be mistaken for `correct`


@final
@dataclass(frozen=True)
class RunResults:
    """The evaluation of one network and, where known, its scorer, outputs and experiment."""

    model: str
    seed: int
    evaluation: Evaluation
    scorer: Scorer | None = None
    test: Outputs | OutputStore | None = None
    ood: Mapping[str, Outputs | OutputStore] = field(default_factory=dict)
    experiment: Experiment | None = None

    @property
    def table(self) -> pd.DataFrame:
        """The rows of this run in results.csv."""
        return self.evaluation.table.assign(model=self.model, seed=self.seed)[SCHEMA]

    def intervals(self, alpha: float | None = None, beta: float | None = None) -> pd.DataFrame:
        """The rows at one α and β, each with its interval, `low` and `high`."""
        return self.evaluation.intervals(alpha=alpha, beta=beta).assign(model=self.model, seed=self.seed)

    @property
    def reported(self) -> RunResults:
        """The same results with only the scores that the experiment wants in tables, page and figures."""
        wanted = reported_scores(self.evaluation.scores, [self.experiment] if self.experiment else [])
        return self if wanted == self.evaluation.scores else replace(self, evaluation=self.evaluation.only(wanted))


def load_run(
    experiment: Experiment, run: Run, *, device: torch.device | str = "cpu", cache: bool = False
) -> RunResults:
    """Evaluate a run from its stored outputs and its scorer, which runs on `device`.

    Confidences are read from the run's file if it is valid. Otherwise they are computed, and `cache` writes that file.
    """
    check_outputs(experiment, run, ["test", *experiment.data.ood])
    scorer = Scorer.load(run.scorer)
    ood = _stores(experiment, run)
    test = ood.pop("test")
    stage = confidences_stage(experiment, run)
    if stage.is_done():
        confidences, correct = _read_confidences(run)
    else:
        confidences, correct = _score(scorer, test, ood, device)
        if cache:
            with stage.remade() as made:
                _write_confidences(run, confidences, correct)
                made.append(run.confidences)
    # By name, as the file may have the sets in another order.
    of_ood = {name: confidences[name] for name in ood}
    evaluation = Evaluation(confidences["test"], correct, of_ood, groups=groups_of(experiment))
    return RunResults(title_of(experiment), run.seed, evaluation, scorer, test, ood, experiment)


def confidences_stage(experiment: Experiment, run: Run) -> Stage:
    """The stage that computes a run's confidences; its inputs are quick to read, as shards carry checksums."""
    stores = _stores(experiment, run)
    for store in stores.values():
        store.require_complete()
    inputs: Inputs = {
        "scorer": digest(run.scorer),
        "stores": {name: [store.model, store.data, len(store), store.digest()] for name, store in stores.items()},
        "sirc": sirc.__version__,
    }
    return Stage("confidences", run.folder, inputs | own_code(experiment), outputs=[run.confidences])


def load_runs(folders: Sequence[PathLike]) -> list[RunResults]:
    """Evaluate all runs of the studies in these folders."""
    studies = [study for folder in folders for study in load_experiments(folder)]
    return [load_run(study, run) for study in studies for run in study.runs]


def load_experiments(folder: PathLike) -> list[Experiment]:
    """Read the experiments of a study: the one in this folder, or those whose results it combines.

    The latter must be in folders below, unless this user combined them.
    """
    path = Path(folder)
    file = path / STUDY_FILE
    try:
        parts = read_json(file).get("experiments")
    except (FileNotFoundError, NotADirectoryError):
        return [load_experiment(path)]
    if not (isinstance(parts, list) and parts and all(isinstance(part, str) for part in parts)):
        raise StoreError(
            f"'{file}' must list the folders of its `experiments`; got {quoted(parts)}. Make it again with "
            "`sirc run`, or name the folders themselves."
        )
    if (outside := [part for part in parts if not is_inside(path / part, path)]) and not is_remembered(file, here=True):
        raise StoreError(
            f"'{file}' must name folders inside of its own, unless you made it here; got '{shorten(outside[0])}'. Name "
            "the folders themselves, or put them together again with `sirc run`."
        )
    return [load_experiment(path / part) for part in parts]


def load_experiment(folder: PathLike) -> Experiment:
    """Read the configuration in a study's folder; results are looked for in that folder, even if it was moved."""
    path = Path(os.path.abspath(folder))
    if not os.path.isfile(path / FILE):  # unlike `Path.is_file`, it takes names of any length
        if os.path.isfile(path):
            raise FileNotFoundError(
                f"'{folder}' is a file; name the folder that `sirc run` made, such as runs/{path.stem}."
            )
        if not os.path.isdir(path):
            raise FileNotFoundError(f"there is no folder '{folder}'. Make a study with `sirc run EXPERIMENT.toml`.")
        there = f" Its page is there already: '{path / 'report.html'}'." if (path / "report.html").is_file() else ""
        raise FileNotFoundError(
            f"'{folder}' holds no stored outputs: it has no {FILE}. Make them with `sirc run EXPERIMENT.toml`.{there}"
        )
    return replace(Experiment.read(path / FILE, whole=True), out=str(path.parent), name=path.name)


def title_of(experiment: Experiment) -> str:
    """The name of the experiment's network in tables."""
    return experiment.title or experiment.name


def groups_of(experiment: Experiment) -> dict[str, list[str]]:
    """The experiment's Close and Far OOD sets, if there are any."""
    names = {group: [n for n, s in experiment.data.ood.items() if s.in_group == group] for group in ("Close", "Far")}
    return {group: members for group, members in names.items() if members}


def reported_scores(scores: Sequence[str], experiments: Sequence[Experiment]) -> list[str]:
    """The scores for tables, page and figures: those in `report.specs` of the experiments, or all."""
    wanted = {str(parse(text)) for experiment in experiments for text in experiment.report.specs}
    if not wanted or not all(experiment.report.specs for experiment in experiments):
        return list(scores)
    return [score for score in scores if str(parse(score)) in wanted] or list(scores)


def write_results(table: pd.DataFrame, path: Path) -> None:
    """Write results.csv, with the columns of `SCHEMA`."""
    keep_text(path, as_csv(table[SCHEMA]))


def read_results(path: PathLike) -> pd.DataFrame:
    """Read a results.csv; one with other columns than `SCHEMA`, or changed since it was stamped, is an error."""
    path = Path(path)
    if kept_digest(path) not in (None, digest(path)):
        raise StoreError(
            f"'{path}' was changed or cut since it was made: its digest is not the one in the stamps of its folder. "
            "Make it again with the same `sirc run`, or `sirc evaluate … --overwrite`."
        )
    try:
        table = pd.read_csv(path, dtype=str, keep_default_na=False)
        if list(table.columns) != SCHEMA:
            raise ValueError(f"it has {shorten(', '.join(map(str, table.columns)))}")
        # Python's own float reads back every digit that was written; pandas' quick parser may not.
        numbers = {name: [float(text or "nan") for text in table[name]] for name in ("alpha", "beta", "value")}
        names = {name: table[name].map(unquoted) for name in ("model", "score", "negative", "metric")}
        return table.assign(**names, seed=table["seed"].astype(int), **numbers)
    except ValueError as error:
        raise ValueError(
            f"'{path}' must be a CSV table with the columns {', '.join(SCHEMA)}; {shorten(str(error).strip(), 120)}. "
            "Make it with `sirc run` or `sirc evaluate`."
        ) from error


def _stores(experiment: Experiment, run: Run) -> dict[str, OutputStore]:
    return {name: OutputStore(run.store(name)) for name in ("test", *experiment.data.ood)}


def _score(
    scorer: Scorer, test: OutputStore, ood: Mapping[str, OutputStore], device: torch.device | str
) -> tuple[SetConfidences, Tensor]:
    """Score all stores on the device, shard by shard: their confidences, and which test predictions are correct."""

    def shards(store: OutputStore) -> Iterator[Outputs]:
        return (outputs.to(device) for outputs in store)

    confidences, correct = score_labelled(scorer, "test", shards(test))
    by_set = {"test": confidences} | {name: scorer(shards(store)) for name, store in ood.items()}
    return {name: {score: x.cpu() for score, x in values.items()} for name, values in by_set.items()}, correct.cpu()


def _write_confidences(run: Run, confidences: SetConfidences, correct: Tensor) -> None:
    scores = list(confidences["test"])
    tensors = {_PREFIX + score: torch.cat([values[score] for values in confidences.values()]) for score in scores}
    sizes = {name: len(values[scores[0]]) for name, values in confidences.items()}
    metadata = {"format": "sirc.Confidences/1", "scores": json.dumps(scores), "sizes": json.dumps(sizes)}
    write_safetensors(run.confidences, {**tensors, "correct": correct}, metadata, overwrite=True)


def _read_confidences(run: Run) -> tuple[SetConfidences, Tensor]:
    tensors, metadata = read_safetensors(run.confidences, verify=False)  # the stage has compared its digest
    sizes: dict[str, int] = json.loads(metadata["sizes"])
    confidences: SetConfidences = {name: {} for name in sizes}
    for score in json.loads(metadata["scores"]):
        for name, values in zip(sizes, torch.split(tensors[_PREFIX + score], list(sizes.values())), strict=True):
            confidences[name][score] = values
    return confidences, tensors["correct"]
