"""How the networks of a study were trained: errors and speed by their histories, and which were not finished."""

from __future__ import annotations

import math
from statistics import median

import pandas as pd
from _results_study import WRONG, Study, table

UNFINISHED = 60.0  # %error on ID images from which on we speak of a network that was not trained to the end


def trained(study: Study) -> list[str]:
    """A table of the histories, and what a reader must know of networks and seeds."""
    parts = []
    found = {model: histories(study, model) for model in study.models}
    if all(found.values()):
        parts += [_table(study, found), _words(study, found)]
    return [*parts, _missing(study)]


def not_finished(study: Study) -> list[tuple[str, float]]:
    """Networks that err so often that their training must have ended early, with their error."""
    found = [(model, study.mean(model, study.scores[0], WRONG, "error")) for model in study.models]
    return [(model, error) for model, error in found if error > UNFINISHED]


def histories(study: Study, model: str) -> list[pd.DataFrame]:
    """The history of each seed of a network that has results, where they were kept."""
    for experiment in study.experiments:
        if (experiment.title or experiment.name) == model:
            short = experiment.name.removeprefix(f"{study.folder.resolve().name}_")
            seeds = sorted(set(study.results.loc[study.results["model"] == model, "seed"]))
            files = [study.folder / "history" / f"{short}-{seed}.csv" for seed in seeds]
            if all(file.is_file() for file in files):
                return [pd.read_csv(file) for file in files]
    return []


def first_step(history: pd.DataFrame) -> int:
    """The last epoch at the first learning rate."""
    return int((history["lr"] == history["lr"].iloc[0]).sum())


def _table(study: Study, found: dict[str, list[pd.DataFrame]]) -> str:
    rows = []
    for model, runs in found.items():
        rows.append(
            [
                f"{model}, {len(runs)} seeds",
                _range([100 * run["validation_error"][first_step(run) - 1] for run in runs]),
                _range([100 * run["error"].iloc[-1] for run in runs]),
                _range([100 * run["validation_error"].iloc[-1] for run in runs]),
                _range([run["seconds"].sum() / 60 for run in runs]),
                f"{median(speed for run in runs for speed in run['images_per_second']):,.0f}",
            ]
        )
    step = first_step(next(iter(found.values()))[0])
    header = [f"validation %error, epoch {step}", "training, last", "validation, last", "minutes", "images/s, median"]
    return table(["", *header], rows)


def _words(study: Study, found: dict[str, list[pd.DataFrame]]) -> str:
    """The experiments ran side by side, so that speeds are shares of one card."""
    words = [
        "Validation images are held out of training; the training error is that of augmented images. The "
        f"{len(found)} kinds were trained side by side on one NVIDIA H200, so that minutes and speeds are those of a "
        "shared card."
    ]
    for model, _ in not_finished(study):
        recipe = next(e.train for e in study.experiments if (e.title or e.name) == model)
        runs, sizes = found[model], dict(zip(study.sizes["set"], study.sizes["images"], strict=True))
        if recipe is None:
            continue
        steps = round(recipe.epochs * math.floor(sizes["train"] / recipe.batch_size), -2)
        warm = " and no warm-up" if not recipe.warmup else ""
        words.append(
            f"**{model} was not trained to the end.** {recipe.epochs} epochs are about {steps:,} steps; with the "
            f"paper's learning rate of {recipe.lr:g}{warm} it learns so slowly at first that after "
            f"{first_step(runs[0])} epochs, when the rate falls, it still errs on "
            f"{_range([100 * run['validation_error'][first_step(run) - 1] for run in runs])}%. It stays in "
            "everything below, and verdicts are given by network, too."
        )
    return " ".join(words)


def _missing(study: Study) -> str:
    """Seeds that an experiment names and that have no results."""
    lines = []
    for experiment in study.experiments:
        model = experiment.title or experiment.name
        if model in study.runs and study.runs[model] < len(experiment.seeds):
            lines.append(
                f"{model} has {study.runs[model]} of its {len(experiment.seeds)} seeds: the GPU time ended before the "
                "next was trained."
            )
    return " ".join(lines)


def _range(values: list[float]) -> str:
    low, high = f"{min(values):.1f}", f"{max(values):.1f}"
    return low if low == high else f"{low} … {high}"
