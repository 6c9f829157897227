"""Ranks of scores: all that figures need of a run, small enough to copy from the machine with its outputs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.numpy import save

from sirc._utils.files import atomic_write
from sirc.evaluation import Evaluation
from sirc.experiment.results import RunResults

SUFFIX = ".safetensors"
_KEY = "sirc_ranks"


@dataclass(frozen=True)
class Ranks:
    """One run: the dense rank of each score over ID test rows and then the rows of each OOD set, in that order."""

    model: str
    seed: int
    scores: list[str]
    ranks: np.ndarray
    """(scores, rows); equal ranks are equal confidences."""
    correct: np.ndarray
    sets: dict[str, int]
    """How many rows each OOD set has, in the order of the rows."""
    groups: dict[str, list[str]]
    trained: int
    """The number of images that the scores were fitted on; 0 if it is no longer known."""

    def confidences(self, score: str) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """The ranks of a score as confidences, of ID rows and of each OOD set."""
        rows = torch.from_numpy(self.ranks[self.scores.index(score)].astype(np.float32))
        inside, *outside = rows.split([len(self.correct), *self.sets.values()])
        return inside, dict(zip(self.sets, outside, strict=True))

    def evaluation(self, *, alpha: float = 0.5, beta: float = 0.5) -> Evaluation:
        """The evaluation of the run: every metric depends on the order alone."""
        found = {score: self.confidences(score) for score in self.scores}
        outside = {name: {score: found[score][1][name] for score in self.scores} for name in self.sets}
        return Evaluation(
            {score: inside for score, (inside, _) in found.items()},
            torch.from_numpy(self.correct),
            outside,
            alpha=alpha,
            beta=beta,
            groups=self.groups,
        )


def ranks_of(run: RunResults, trained: int = 0) -> Ranks:
    """The ranks of a run that was evaluated, whose scores were fitted on `trained` images."""
    evaluation = run.evaluation
    sets = {name: len(next(iter(by_score.values()))) for name, by_score in evaluation.ood.items()}
    rows = []
    for score, inside in evaluation.confidences.items():
        both = torch.cat([inside, *(evaluation.ood[name][score] for name in sets)])
        rows.append(torch.unique(both, return_inverse=True)[1].cpu().numpy())
    ranks = np.stack(rows)
    if ranks.max() <= np.iinfo(np.uint16).max:
        ranks = ranks.astype(np.uint16)
    elif ranks.max() < 1 << 24:  # what float32 confidences tell apart
        ranks = ranks.astype(np.int32)
    else:
        raise ValueError(f"ranks of a run must be fewer than 2²⁴ to be told apart; got {ranks.max() + 1} of them")
    return Ranks(
        run.model,
        run.seed,
        evaluation.scores,
        ranks,
        evaluation.correct.cpu().numpy(),
        sets,
        {name: list(members) for name, members in evaluation.groups.items()},
        trained,
    )


def write_ranks(runs: Iterable[Ranks], out: Path, *, limit: int) -> Iterator[Path]:
    """Write runs into files of at most `limit` bytes (a run alone may have more), each as soon as it is full."""
    single = out.suffix == SUFFIX
    waiting: list[Ranks] = []
    count = 0
    for run in runs:
        if waiting and not single and sum(one.ranks.nbytes + one.correct.nbytes for one in [*waiting, run]) > limit:
            count += 1
            yield _write(waiting, out / f"ranks-{count}{SUFFIX}")
            waiting = []
        waiting.append(run)
    if waiting:
        yield _write(waiting, out if single else out / f"ranks-{count + 1}{SUFFIX}")


def read_ranks(paths: Sequence[Path]) -> list[Ranks]:
    """Read the runs in these files, and in the files of these folders; all must be of the same test images."""
    files = [file for path in paths for file in (sorted(path.glob(f"*{SUFFIX}")) if path.is_dir() else [path])]
    if not files or not all(file.is_file() for file in files):
        listed = ", ".join(f"'{path}'" for path in paths)
        raise ValueError(f"ranks must be in files *{SUFFIX}; there are none in {listed}. Make them with `collect`.")
    runs = [run for file in files for run in _read(file)]
    seen: set[tuple[str, int]] = set()
    for run in runs:
        if (run.model, run.seed) in seen:
            raise ValueError(f"each run must come once; {run.model} with seed {run.seed} is there twice. Drop a file.")
        seen.add((run.model, run.seed))
        for what in ("scores", "sets", "groups"):
            if getattr(run, what) != getattr(runs[0], what):
                raise ValueError(
                    f"runs must have the same {what} to be compared; {run.model} with seed {run.seed} has others than "
                    f"{runs[0].model} with seed {runs[0].seed}. Measure them by themselves."
                )
        if len(run.correct) != len(runs[0].correct):
            raise ValueError(
                f"runs must be of the same test images; {run.model} with seed {run.seed} has {len(run.correct)}, "
                f"{runs[0].model} with seed {runs[0].seed} has {len(runs[0].correct)}. Measure them by themselves."
            )
    return sorted(runs, key=lambda run: (run.model, run.seed))


def _write(runs: Sequence[Ranks], path: Path) -> Path:
    about = [
        {name: getattr(run, name) for name in ("model", "seed", "scores", "sets", "groups", "trained")} for run in runs
    ]
    tensors = {f"{i}.ranks": run.ranks for i, run in enumerate(runs)}
    tensors |= {f"{i}.correct": run.correct for i, run in enumerate(runs)}
    atomic_write(path, lambda file: file.write(save(tensors, metadata={_KEY: json.dumps(about)})))
    return path


def _read(path: Path) -> list[Ranks]:
    with safe_open(path, "numpy") as file:
        written = (file.metadata() or {}).get(_KEY)
        if written is None:
            raise ValueError(f"'{path}' must be a file of ranks; it has no {_KEY} in it. Make one with `collect`.")
        about: list[dict[str, Any]] = json.loads(written)
        return [
            Ranks(**known, ranks=file.get_tensor(f"{i}.ranks"), correct=file.get_tensor(f"{i}.correct").astype(bool))
            for i, known in enumerate(about)
        ]
