"""The page: one HTML file in which α, β, the recall and the mix of OOD sets can be dragged, exact at every setting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

from sirc._utils.files import PathLike, atomic_write, refuse_existing
from sirc.evaluation import Evaluation
from sirc.progress import SILENT, Progress
from sirc.report.page.document import page
from sirc.report.page.payload import payload
from sirc.report.runs import Run

__all__ = ["Run", "report"]


def report(
    runs: Evaluation | Sequence[Run],
    path: PathLike,
    *,
    title: str | None = None,
    overwrite: bool = False,
    progress: Progress = SILENT,
) -> Path:
    """Write a page about an evaluation, or about all runs of one or several models, and give its path.

    The page is one file that opens from disk. It holds, for each score, how many of ID✓, ID✗ and each OOD set are
    accepted at up to 512 thresholds: at those, risk, coverage and shares are exact for every α, β and mix of OOD sets,
    and areas are within 0.5% of `sirc.Ranking`'s.
    """
    refuse_existing(path, overwrite)
    shown: Sequence[Run] = [_Single(runs)] if isinstance(runs, Evaluation) else list(runs)
    if not shown:
        raise ValueError("a page must have at least one run to show; got none")
    for run in shown:
        if not isinstance(getattr(run, "evaluation", None), Evaluation):
            raise ValueError(
                "`runs` must be an evaluation, or a list of runs such as `sirc.experiment.load_runs` gives; got "
                f"{type(run).__name__}"
            )
    models = dict.fromkeys(run.model for run in shown if run.model)
    text = page(payload(shown, title or ", ".join(models) or "Which score to deploy", progress=progress))
    atomic_write(path, lambda file: file.write(text.encode()))
    return Path(path)


@final
@dataclass(frozen=True)
class _Single:
    """An evaluation on its own."""

    evaluation: Evaluation
    model: str = ""
    seed: int = 0
