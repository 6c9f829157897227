"""The stages of an experiment: train a network, extract its outputs, fit the scores; each picks up what is there."""

from __future__ import annotations

import json
from collections.abc import Iterable

import torch
from torch import nn

from sirc._utils import distributed
from sirc._utils.checks import differences
from sirc._utils.choices import OnError
from sirc._utils.files import atomic_write, read_metadata
from sirc.data import READ_ERRORS, CachedImages, DeviceCache, ImageSet, eval_geometry, eval_transform, open_source
from sirc.errors import ImageError, StoreError
from sirc.experiment.experiment import Experiment, Run
from sirc.experiment.provenance import (
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
from sirc.extraction import HeldSet, extract, known_weights, refuse_fatal
from sirc.models import find_head
from sirc.outputs import Head, OutputStore
from sirc.progress import SILENT, Progress
from sirc.scores import Scorer, fit
from sirc.training import Epoch, train

_HOLDOUT_SEED = 0  # one for all runs: which images validate is no matter of the network's seed


def train_run(
    experiment: Experiment,
    run: Run,
    *,
    cpu: bool = False,
    overwrite: bool = False,
    progress: Progress = SILENT,
    holding: DeviceCache | None = None,
) -> list[Epoch]:
    """Train the network of one seed; a finished run only returns its history. `holding` keeps images for other runs."""
    recipe = experiment.train
    if recipe is None:
        raise ValueError(
            f"an experiment must have a [train] table to be trained; `{experiment.name}` uses a pretrained model. "
            "Go on with `sirc extract`."
        )
    _seed(run.seed)
    model = built(experiment)
    images = images_of(experiment, "train", augmented=True, holding=holding)
    tested = "validation" if experiment.data.validates else "test"
    validation = images_of(experiment, tested, augmented=True, holding=holding)
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
        cache=holding,
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
    holding: DeviceCache | None = None,
) -> dict[str, OutputStore]:
    """Extract the outputs of one network on the named datasets, by default all that a study needs.

    These are train, test and every OOD set, and validation if scores are tuned on it. With `cache = "device"`, images
    that are in `holding` already are not decoded again, and others stay in it.
    """
    settings = experiment.extract
    names = list(names or experiment.stored)
    check_trained(experiment, run)
    _check_held_out(experiment, run, names, holding, progress)
    model = network(experiment, run).to(device)
    if settings.channels_last:
        model.to(memory_format=torch.channels_last)
    stores = {}
    head: Head | None = None
    with known_weights(model) as weights:
        for name in names:
            images = images_of(experiment, name, holding=holding)
            if head is None:
                head = _head_of(model, images)
                save_head(head, run.head, weights)
            stores[name] = extract(
                model,
                images if settings.cache == "none" else _on_device(experiment, name, images, device, progress, holding),
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


def images_of(
    experiment: Experiment, name: str, *, augmented: bool = False, holding: DeviceCache | None = None
) -> ImageSet:
    """Open a dataset of an experiment, preprocessed as in a test; `augmented` leaves that to the training loop.

    `data.holdout` images of each class are kept out of the training images, and are the validation images. The
    training images that scores are fitted on may be a random subset, `fit.count` of them. Test and validation images
    have the class numbers of the training images, also where they lack a class.
    """
    experiment.require([name])
    source, count, holdout = experiment.source(name), experiment.fit.count, experiment.data.holdout
    if holdout and name in ("train", "validation"):
        rest, held_out = _open(experiment, "train", holding).held_out(holdout, seed=_HOLDOUT_SEED)
        images = rest if name == "train" else held_out
    else:
        images = _open(experiment, name, holding)
    images = images.named(name)
    if not augmented:
        images = images.with_transform(eval_transform(source, experiment.preprocess))
        if name == "train" and count is not None and count < len(images):
            images = images.subset(count, seed=experiment.fit.seed)
    if name in ("test", "validation") and source.benchmark is None and images.classes:
        experiment.require(["train"])
        images = images.numbered_by(_open(experiment, "train", holding).classes)
    return images


def _open(experiment: Experiment, name: str, holding: DeviceCache | None) -> ImageSet:
    """A dataset without preprocessing, whole."""
    source, root = experiment.source(name), experiment.root
    ours = name in ("train", "test", "validation")
    split = ("train" if name == "train" else "test") if ours else None

    def opened() -> ImageSet:
        images = open_source(source, root=root, split=split, preprocess=None, labelled=ours, name=name)
        if not len(images):  # as a function may return
            raise ValueError(f"every dataset must have images; '{name}' of '{experiment.name}' has none. Check it.")
        return images

    def one_by_one() -> ImageSet:
        # One process goes first, as archives are unpacked when they are opened.
        first: ImageSet | None = None
        with distributed.failing_together():
            if distributed.is_main():
                first = opened()
        with distributed.failing_together():
            images = first or opened()
            if holding is not None:
                _ = images.cache_key  # looks at every file; done now, the copies made of it need not
        return images

    if holding is None:
        return one_by_one()
    return holding.opened(repr((source, str(root), split, ours, name)), one_by_one)


def _on_device(
    experiment: Experiment,
    name: str,
    images: ImageSet,
    device: torch.device | str,
    progress: Progress,
    holding: DeviceCache | None,
) -> HeldSet:
    """The images, to be read from the device; decoded when the first of their outputs is missing."""
    preprocess = eval_geometry(experiment.source(name), experiment.preprocess)

    def load() -> CachedImages:
        return (holding or DeviceCache()).pixels(
            images,
            preprocess,
            device=torch.device(device),
            workers=experiment.extract.workers,
            on_unreadable=refuse_fatal(images),
            progress=progress,
        )

    return HeldSet(images, preprocess, load)


def _check_held_out(
    experiment: Experiment, run: Run, names: Iterable[str], holding: DeviceCache | None, progress: Progress
) -> None:
    """Refuse to fit and to validate on other images than training left for it, as where `holdout` was changed."""
    held = experiment.data.holdout
    if not ({"train", "validation"} if held else {"train"}) & {*names}:
        return
    if experiment.train is None:
        if held and "validation" in names and distributed.is_main():
            progress.note(
                f"note: the network was trained elsewhere, and must not have seen the {held} images "
                "of each class that are held out: it is surer of images it has seen. If it has, give others in "
                "`data.validation`, and drop `data.holdout`."
            )
        return
    known = json.loads(read_metadata(run.weights).get("recipe", "{}")) if run.weights.exists() else {}
    asked = images_of(experiment, "train", augmented=True, holding=holding).fingerprint
    if known.get("training images") not in (None, json.dumps(asked)):
        wanted = f"without the images that are held out, {held} of each class" if held else "on `data.train`"
        raise StoreError(
            f"'{run.weights}' must be trained {wanted}; it was trained on other images. Use those, with the "
            "`data.holdout` of then, or train again: `sirc train … --overwrite`."
        )


def _seed(seed: int) -> None:
    """Seed all that a model may draw its first weights from."""
    from accelerate.utils import set_seed

    set_seed(seed)


def _head_of(model: nn.Module, images: ImageSet) -> Head:
    """Find the last layer with the first image that can be read."""
    for index in range(len(images)):
        try:
            item = images[index]
        except READ_ERRORS:
            continue
        x = item[0] if isinstance(item, tuple) else item
        return find_head(model, x[None])  # type: ignore[index]
    raise ImageError(f"none of the {len(images)} images of `{images.name}` can be read. Check the path.")
