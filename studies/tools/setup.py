"""The set-up of a study: data, networks, recipe and training, differences from the paper, and how to repeat it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from statistics import median

import pandas as pd
from PIL import Image

from sirc.evaluation import WRONG
from sirc.experiment import Experiment
from studies.tools.study import Study, listed, table

# What the paper's text says of its own study.
PAPER_CLASSES, PAPER_PIXELS, PAPER_EPOCHS, PAPER_STEPS, PAPER_SEEDS = 200, 224, 90, (30, 60), 5


def done(study: Study, beside: Path) -> list[str]:
    """Data, errors and, where the experiments are known, recipe and commands; files are those in `beside`."""
    parts = [_data(study), _errors(study), *trained(study)]
    recipes = {experiment.title or experiment.name: experiment for experiment in study.experiments}
    if known := {model: recipes[model] for model in study.models if model in recipes}:
        parts += [
            _recipe(known),
            _differences(study, known),
            _commands(study, [e for e in study.experiments if e in known.values()]),
        ]
    return [*parts, _files(study, beside)]


def networks(study: Study) -> str:
    """How many networks there are, and which."""
    count = study.results.groupby(["model", "seed"]).ngroups
    return f"{count} networks ({', '.join(study.models)}; {study.seed_words})"


def _data(study: Study) -> str:
    sizes = dict(zip(study.sizes["set"], study.sizes["images"], strict=True))
    use = "fit" if study.experiments and not any(one.train for one in study.experiments) else "train and fit"
    fitted = f"{sizes['train']:,} images to {use} on, " if sizes["train"] else ""
    rows = [["ID", f"{fitted}{sizes['test']:,} images to test on"]]
    for group, members in study.groups.items():
        rows.append([f"{group} OOD", ", ".join(f"{name} ({sizes[name]:,})" for name in members)])
    return table(["data", "images"], rows, "---")


def _errors(study: Study) -> str:
    rows = []
    for model in study.models:
        errors = study.each(model, study.scores[0], WRONG, "error")
        printed = study.printed[study.printed["model"] == model]["id_error"]
        old = f"{float(printed.iloc[0]):.1f}" if len(printed) else "–"
        spread = [f"{min(errors):.1f} … {max(errors):.1f}"] if study.seeds > 1 else []
        rows.append([model, f"{sum(errors) / len(errors):.1f}", *spread, old])
    columns = ["mean", "range over seeds"] if study.seeds > 1 else ["here"]
    return table(["ID %error", *columns, "paper, ImageNet-200"], rows)


def _recipe(experiments: dict[str, Experiment]) -> str:
    rows = []
    for model, experiment in experiments.items():
        train = experiment.train
        if train is None:
            continue
        steps = f"÷{1 / train.gamma:g} at {', '.join(map(str, train.milestones))}"
        rate = f"{train.lr:g}, {steps if train.schedule == 'steps' else 'cosine'}"
        if train.warmup:
            rate += f", {train.warmup:g} epochs of warm-up"
        momentum = f"{train.momentum:g}{', Nesterov' if train.nesterov else ''}"
        epochs, batch, decay = str(train.epochs), str(train.batch_size), f"{train.weight_decay:g}"
        rows.append([model, epochs, batch, rate, momentum, decay, train.precision])
    return table(["", "epochs", "batch", "learning rate", "momentum", "weight decay", "precision"], rows)


def _differences(study: Study, experiments: dict[str, Experiment]) -> str:
    some = list(experiments.values())
    trains = [experiment.train for experiment in some if experiment.train is not None]
    shares = {tuple(step / train.epochs for step in train.milestones) for train in trains if train.schedule == "steps"}
    same = shares == {tuple(step / PAPER_EPOCHS for step in PAPER_STEPS)}
    known = {name.lower() for name in study.printed_sets}
    named_alike = [name for name in study.sets if name.lower() in known]
    in_sample = all(experiment.fit.crossfit == 0 for experiment in some)
    images = "Tiny-ImageNet" if study.folder.resolve().name.startswith("tiny") else "ImageNet"
    lines = [
        f"{_all(e.model.num_classes for e in some)} classes of {images} at "
        f"{_all(e.preprocess.size for e in some)} px "
        f"instead of {PAPER_CLASSES} of ImageNet at {PAPER_PIXELS}.",
        "" if trains else "The networks are published ones, trained by others: there is one run of each.",
        "The first layers reduce an image half as much as the networks' own, to suit its size."
        if any(experiment.model.stem != "own" for experiment in some)
        else "",
        f"{_all(train.epochs for train in trains)} epochs instead of {PAPER_EPOCHS}"
        f"{', with the steps of the learning rate at the same shares' if same else ''}; {study.seed_words}, instead of "
        f"{PAPER_SEEDS}: what the GPU time at hand allowed, by a timed run of a few epochs."
        if trains
        else "",
        *(
            f"{model} has a warm-up of {experiment.train.warmup:g} epochs, the paper's none: at a rate of "
            f"{experiment.train.lr:g} from the start it hardly learns in so few steps."
            for model, experiment in experiments.items()
            if experiment.train is not None and experiment.train.warmup
        ),
        f"The OOD sets differ{f'; {listed(named_alike)} share a name with the paper’s' if named_alike else ''}. None "
        "is adversarial.",
        "Scores are fitted in sample, as in the paper." if in_sample else "Scores are fitted by cross-fitting.",
        "Scores that can be tuned are tuned on ID images held out of training."
        if any(experiment.data.validates for experiment in some)
        else "",
    ]
    return "What differs from the paper:\n\n" + "\n".join(f"- {line}" for line in lines if line)


def _commands(study: Study, experiments: list[Experiment]) -> str:
    name = study.folder.resolve().name
    files = [experiment.name.removeprefix(f"{name}_") for experiment in experiments]
    trained = any(experiment.train for experiment in experiments)
    there = "" if trained else " and the weights in `weights/`"
    tool = "python -m studies.tools.results"
    return f"""\
To repeat it from the repository's root, with the images in `{experiments[0].data.root}/`{there} (the first command \
makes tables, page and figures):

```bash
sirc run studies/{name}/{{{",".join(files)}}}.toml --out again/{name}
{tool} collect again/{name} --out ranks{" --device cuda" if trained else ""}
{tool} measure ranks --out again/{name}
{tool} write again/{name}
```

To repeat one network alone and compare it with summary.csv, number by number:

```bash
sirc run studies/{name}/{files[0]}.toml
{tool} repeat runs/{experiments[0].name} studies/{name}
```"""


def figures_of(study: Study) -> dict[str, str]:
    """The figures that stand in the document, and their captions."""
    first = study.kinds[0]
    name = first.lower().replace(" ", "-")
    return {
        "changes.png": "Change in FPR@95 against MSP for ID✗|ID✓, OOD|ID✓ and OOD|ID, by score and network; left is "
        f"better.{' The line at a bar is ± std over seeds.' if study.seeds > 1 else ''}",
        f"densities-{name}.png": f"OOD, ID✗ and ID✓ along MSP on {first}, for OOD detection and for SCOD; hatched is "
        "to be rejected.",
        f"separation-{name}.png": f"FPR against TPR on {first}: OOD|ID on the left, ID✗|ID✓ and OOD|ID✓ on the right; "
        "low is good.",
        f"risks-{name}.png": f"Risk against coverage and against recall on {first}; low is good.",
    }


def copy_figures(study: Study, folder: Path) -> None:
    """Put the figures of the document beside it, with 256 colours: a third of the bytes, and no visible difference."""
    for name in figures_of(study):
        file, target = study.folder / "figures" / name, folder / "figures" / name
        if file.is_file() and file.resolve() != target.resolve():
            target.parent.mkdir(parents=True, exist_ok=True)
            with Image.open(file) as figure:
                figure.convert("RGB").quantize(256).save(target, optimize=True)


def _files(study: Study, beside: Path) -> str:
    """The files beside the document, and its figures."""
    known = {
        "results.csv": "every score × OOD set × metric × seed",
        "comparisons.csv": "every difference with its interval",
        "summary.csv": "the mean and the standard deviation over seeds of each score's main metrics",
        "claims.csv": "every comparison behind a verdict, and how it came out",
        "gap.csv": "how far log(S1max − S1) spreads and what S2 adds, by `python -m studies.tools.gap`",
        "table.md": "the paper's tables for these networks, set by set",
        "report.html": "a page in which α, β and the recall can be dragged",
        "data.md": "which images, in which folders",
        "scod.md": "`scod` beside its rivals, on the same networks trained again",
    }
    lines = [f"- [{name}]({name}): {what}" for name, what in known.items() if (beside / name).exists()]
    shown = [
        f"\n![{caption.partition(';')[0]}](figures/{name})\n\n{caption}"
        for name, caption in figures_of(study).items()
        if (beside / "figures" / name).is_file()
    ]
    return "\n".join(["Other files:", "", *lines, *shown])


def _all(values: Iterable[object]) -> str:
    return " or ".join(dict.fromkeys(str(value) for value in values))


def trained(study: Study) -> list[str]:
    """A table of the histories, where they were kept."""
    found = {model: histories(study, model) for model in study.models}
    return [_training_table(found), _speed_note(found)] if all(found.values()) else []


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


def _training_table(found: dict[str, list[pd.DataFrame]]) -> str:
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


def _speed_note(found: dict[str, list[pd.DataFrame]]) -> str:
    """The experiments ran side by side, so that speeds are shares of one card."""
    return (
        "Validation images are held out of training; the training error is that of augmented images. The "
        f"{len(found)} kinds were trained side by side on one NVIDIA H200, so minutes and speeds are those of a "
        "shared card."
    )


def _range(values: list[float]) -> str:
    low, high = f"{min(values):.1f}", f"{max(values):.1f}"
    return low if low == high else f"{low} … {high}"
