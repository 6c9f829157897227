"""What was done: data, networks and their errors, the recipe, what differs from the paper, and how to repeat it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from _results_study import ROOT, WRONG, Study, listed, table
from _results_training import trained

from sirc.experiment.experiment import Experiment

# What the paper's text says of its own study.
PAPER_CLASSES, PAPER_PIXELS, PAPER_EPOCHS, PAPER_STEPS, PAPER_SEEDS = 200, 224, 90, (30, 60), 5
# Figures that stand in the document, and what is said where they cannot be seen.
_SHOWN = {"changes.png": "Change in FPR@95 against MSP for ID✗|ID✓, OOD|ID✓ and OOD|ID, by score and network"}


def done(study: Study) -> list[str]:
    """Data, errors and, where the experiments are known, recipe and commands."""
    parts = [_data(study), _errors(study), *trained(study)]
    recipes = {experiment.title or experiment.name: experiment for experiment in study.experiments}
    if known := {model: recipes[model] for model in study.models if model in recipes}:
        parts += [_recipe(known), _differences(study, known), _commands(study)]
    return [*parts, _files(study)]


def networks(study: Study) -> str:
    """How many networks there are, and which."""
    count = study.results.groupby(["model", "seed"]).ngroups
    return f"{count} networks ({', '.join(study.models)}; {study.seed_words})"


def _data(study: Study) -> str:
    sizes = dict(zip(study.sizes["set"], study.sizes["images"], strict=True))
    fitted = f"{sizes['train']:,} images to train and fit on, " if sizes["train"] else ""
    rows = [["ID", f"{fitted}{sizes['test']:,} images to test on"]]
    for group, members in study.groups.items():
        rows.append([f"{group} OOD", ", ".join(f"{name} ({sizes[name]:,})" for name in members)])
    return "\n".join(["| data | images |", "|---|---|", *(f"| {' | '.join(row)} |" for row in rows)])


def _errors(study: Study) -> str:
    rows = []
    for model in study.models:
        errors = study.each(model, study.scores[0], WRONG, "error")
        printed = study.printed[study.printed["model"] == model]["id_error"]
        old = f"{float(printed.iloc[0]):.1f}" if len(printed) else "–"
        rows.append([model, f"{sum(errors) / len(errors):.1f}", f"{min(errors):.1f} … {max(errors):.1f}", old])
    return table(["ID %error", "mean", "range over seeds", "paper, ImageNet-200"], rows)


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
    lines = [
        f"{_all(e.model.num_classes for e in some)} classes of Tiny-ImageNet at "
        f"{_all(e.preprocess.size for e in some)} px "
        f"for {PAPER_CLASSES} of ImageNet at {PAPER_PIXELS}.",
        "The first layers reduce an image half as much as the networks' own, to suit its size."
        if any(experiment.model.stem != "own" for experiment in some)
        else "",
        f"{_all(train.epochs for train in trains)} epochs for {PAPER_EPOCHS}"
        f"{', with the steps of the learning rate at the same shares' if same else ''}; {study.seed_words}, for "
        f"{PAPER_SEEDS}: what the GPU time at hand allowed, by a timed run of a few epochs.",
        *(
            f"{model} has a warm-up of {experiment.train.warmup:g} epochs, the paper's none: at a rate of "
            f"{experiment.train.lr:g} from the start it hardly learns in so few steps."
            for model, experiment in experiments.items()
            if experiment.train is not None and experiment.train.warmup
        ),
        f"Other OOD sets{f'; {listed(named_alike)} share a name with the paper’s' if named_alike else ''}. None is "
        "adversarial.",
        "Scores are fitted in sample, as in the paper." if in_sample else "Scores are fitted by cross-fitting.",
        "Scores that can be tuned are tuned on ID images held out of training."
        if any(experiment.data.holdout for experiment in some)
        else "",
    ]
    return "What differs from the paper:\n\n" + "\n".join(f"- {line}" for line in lines if line)


def _commands(study: Study) -> str:
    name = study.folder.resolve().name
    words = "To repeat it, with the images in `data/` (tables, page and figures are made by the first of these):"
    lines = [
        f"sirc run experiments/{name}_*.toml --out again/{name}",
        f"python scripts/results.py collect again/{name} --out ranks --device cuda",
        f"python scripts/results.py measure ranks --out again/{name}",
        f"python scripts/results.py write again/{name} --document again/RESULTS.md",
    ]
    rerun = f"runs/{study.experiments[0].name}" if study.experiments else f"runs/{name}"
    again = [
        "One of them alone is repeated and compared with what is kept, figure by figure, by:",
        "",
        "```bash",
        f"sirc run experiments/{Path(rerun).name}.toml",
        f"python scripts/results.py repeat {rerun} results/{name}",
        "```",
    ]
    return "\n".join([words, "", "```bash", *lines, "```", "", *again])


def _files(study: Study) -> str:
    """What lies beside the figures of the document, as far as it is there."""
    folder = study.folder.resolve()
    at = folder.relative_to(ROOT).as_posix() if folder.is_relative_to(ROOT) else folder.name
    known = {
        "results.csv": "every score × OOD set × metric × seed",
        "comparisons.csv": "every difference with its interval",
        "table.md": "the paper's tables for these networks, set by set",
        "report.html": "a page in which α, β and the recall can be dragged",
        "data.md": "which images, in which folders",
        "history": "each network's training, epoch by epoch",
        "figures": "the paper's figures of these networks",
    }
    lines = [f"- [{name}]({at}/{name}): {what}" for name, what in known.items() if (folder / name).exists()]
    shown = [
        f"\n![{words}]({at}/figures/{name})\n\n{words}; left is better. The line at a bar is ± std over seeds."
        for name, words in _SHOWN.items()
        if (folder / "figures" / name).is_file()
    ]
    return "\n".join(["What else there is:", "", *lines, *shown])


def _all(values: Iterable[object]) -> str:
    return " or ".join(dict.fromkeys(str(value) for value in values))
