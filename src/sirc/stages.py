"""The stages of an experiment: train a network, extract its outputs, fit the scores; each picks up what is there."""

from __future__ import annotations

import json
from collections.abc import Iterable

import torch
from torch import nn

from sirc import distributed, models
from sirc._checkpoint import Epoch
from sirc._checks import differences
from sirc._choices import OnError
from sirc._files import atomic_write
from sirc._provenance import (
    built,
    check_outputs,
    check_trained,
    extract_stamp,
    fit_inputs,
    fit_note,
    fit_stores,
    fitted_from,
    load_head,
    network,
    save_head,
)
from sirc._reading import UNREADABLE
from sirc.data import ImageSet, open_source
from sirc.errors import ImageError
from sirc.experiment import Experiment, Run
from sirc.extract import extract
from sirc.head import Head, find_head
from sirc.preprocess import Preprocess
from sirc.progress import SILENT, Progress
from sirc.scores import Scorer, fit
from sirc.store import OutputStore
from sirc.train import train


def train_run(
    experiment: Experiment, run: Run, *, cpu: bool = False, overwrite: bool = False, progress: Progress = SILENT
) -> list[Epoch]:
    """Train the network of one seed; a finished run only returns its history."""
    recipe = experiment.train
    if recipe is None:
        raise ValueError(
            f"an experiment must have a [train] table to be trained; `{experiment.name}` uses a pretrained model. "
            "Go on with `sirc extract`."
        )
    _seed(run.seed)
    model = built(experiment)
    images = images_of(experiment, "train", augmented=True)
    validation = images_of(experiment, "validation" if experiment.data.validation else "test", augmented=True)
    return train(
        model,
        images,
        recipe,
        run.folder,
        seed=run.seed,
        preprocess=experiment.preprocess,
        validation=validation,
        cpu=cpu,
        overwrite=overwrite,
        progress=progress,
        name=f"seed {run.seed}",
    )


def extract_run(
    experiment: Experiment,
    run: Run,
    names: Iterable[str] | None = None,
    *,
    device: torch.device | str = "cpu",
    on_error: OnError | None = None,
    overwrite: bool = False,
    progress: Progress = SILENT,
) -> dict[str, OutputStore]:
    """Extract the outputs of one network on the named datasets, by default all that a study needs.

    These are train, test and every OOD set, and validation if scores are tuned on it.
    """
    settings = experiment.extract
    check_trained(experiment, run)
    model = network(experiment, run).to(device)
    if settings.channels_last:
        model.to(memory_format=torch.channels_last)
    stores = {}
    head: Head | None = None
    for name in names or experiment.stored:
        images = images_of(experiment, name)
        if head is None:
            head = _head_of(model, images)
            save_head(head, run.head, models.fingerprint(model))
        stores[name] = extract(
            model,
            images,
            run.store(name),
            head=head,
            batch_size=settings.batch_size,
            workers=settings.workers,
            precision=settings.precision,
            channels_last=settings.channels_last,
            dtype=None if settings.dtype == "model" else getattr(torch, settings.dtype),
            shard_size=settings.shard_size,
            on_error=on_error or settings.on_error,
            overwrite=overwrite,
            progress=progress,
            name=f"{run.folder.name}, {name}",
        )
        with distributed.failing_together():
            stamp = extract_stamp(experiment, run, name)
            if distributed.is_main() and not stamp.valid():
                stamp.write([])
    return stores


def fit_run(
    experiment: Experiment,
    run: Run,
    *,
    device: torch.device | str = "cpu",
    overwrite: bool = False,
    progress: Progress = SILENT,
) -> Scorer:
    """Fit the experiment's scores on the stored outputs of the training images, with all processes there are.

    Scores that can be tuned are, on the outputs of the validation images, where the experiment has some. A scorer that
    was fitted from the same outputs in the same way is only loaded.
    """
    check_outputs(experiment, run, ["train", *(["validation"] if experiment.tuned else [])])
    store, val = fit_stores(experiment, run)
    head, _ = load_head(run.head)
    asked = fit_inputs(experiment, store, val)
    note = fit_note(run)
    known = fitted_from(run)
    if known is not None and not overwrite:
        if words := differences(known, asked):
            raise FileExistsError(
                f"'{run.scorer}' exists already and is another: {words}. Give the experiment another `name`, or pass "
                "`overwrite=True` (`--overwrite`) to fit again."
            )
        return Scorer.load(run.scorer)
    scorer = fit(
        experiment.fit.specs,
        store,
        head=head,
        crossfit=experiment.fit.crossfit,
        val=val,
        device=device,
        distributed=True,
        progress=progress,
    )
    with distributed.failing_together():
        if distributed.is_main():
            # The note goes first and comes last: killed in between, the scorer is seen to be unfinished.
            note.unlink(missing_ok=True)
            scorer.save(run.scorer, overwrite=True)
            atomic_write(note, lambda file: file.write(json.dumps(asked, indent=1).encode()))
    return scorer


def images_of(experiment: Experiment, name: str, *, augmented: bool = False) -> ImageSet:
    """Open a dataset of an experiment, preprocessed as in a test; `augmented` leaves that to the training loop.

    The training images that scores are fitted on may be a random subset, `fit.count` of them. Test and validation
    images have the class numbers of the training images, also where they lack a class.
    """
    experiment.require([name])
    images = _open(experiment, name, None if augmented else experiment.preprocess)
    source, count = experiment.source(name), experiment.fit.count
    if name == "train" and not augmented and count is not None and count < len(images):
        images = images.subset(count, seed=experiment.fit.seed)
    if name in ("test", "validation") and source.benchmark is None and images.classes:
        experiment.require(["train"])
        images = images.numbered_by(_open(experiment, "train", None).classes)
    return images


def _open(experiment: Experiment, name: str, preprocess: Preprocess | None) -> ImageSet:
    ours = name in ("train", "test", "validation")

    def opened() -> ImageSet:
        return open_source(
            experiment.source(name),
            root=experiment.root,
            split=("train" if name == "train" else "test") if ours else None,
            preprocess=preprocess,
            labelled=ours,
            name=name,
        )

    # One process goes first, as archives are unpacked when they are opened.
    first: ImageSet | None = None
    with distributed.failing_together():
        if distributed.is_main():
            first = opened()
    return first or opened()


def _seed(seed: int) -> None:
    """Seed all that a model may draw its first weights from."""
    from accelerate.utils import set_seed

    set_seed(seed)


def _head_of(model: nn.Module, images: ImageSet) -> Head:
    """Find the last layer with the first image that can be read."""
    for index in range(len(images)):
        try:
            item = images[index]
        except UNREADABLE:
            continue
        x = item[0] if isinstance(item, tuple) else item
        return find_head(model, x[None])  # type: ignore[index]
    raise ImageError(f"none of the {len(images)} images of `{images.name}` can be read. Check the path.")
