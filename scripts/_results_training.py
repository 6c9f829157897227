"""How the networks of a study were trained: errors and speed, by their histories."""

from __future__ import annotations

from statistics import median

import pandas as pd
from _results_study import Study, table


def trained(study: Study) -> list[str]:
    """A table of the histories, where they were kept."""
    found = {model: histories(study, model) for model in study.models}
    return [_table(found), _words(found)] if all(found.values()) else []


def histories(study: Study, model: str) -> list[pd.DataFrame]:
    """The history of each seed of a network that has results, where they were kept."""
    for experiment in study.experiments:
        if (experiment.title or experiment.name) == model:
            name = experiment.name
            short = name.removeprefix(f"{study.folder.resolve().name}_")
            seeds = sorted(set(study.results.loc[study.results["model"] == model, "seed"]))
            for own in (short, name):
                files = [study.folder / "history" / f"{own}-{seed}.csv" for seed in seeds]
                if all(file.is_file() for file in files):
                    return [pd.read_csv(file) for file in files]
    return []


def first_step(history: pd.DataFrame) -> int:
    """The last epoch before the learning rate falls for the first time."""
    falls = history["lr"].diff().lt(0)
    return int(falls.idxmax()) if falls.any() else len(history)


def _table(found: dict[str, list[pd.DataFrame]]) -> str:
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


def _words(found: dict[str, list[pd.DataFrame]]) -> str:
    """The experiments ran side by side, so that speeds are shares of one card."""
    return (
        "Validation images are held out of training; the training error is that of augmented images. The "
        f"{len(found)} kinds were trained side by side on one NVIDIA H200, so that minutes and speeds are those of a "
        "shared card."
    )


def _range(values: list[float]) -> str:
    low, high = f"{min(values):.1f}", f"{max(values):.1f}"
    return low if low == high else f"{low} … {high}"
