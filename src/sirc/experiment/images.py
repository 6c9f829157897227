"""Images of an experiment: open its datasets, and check them before the first long stage."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from sirc._utils import distributed
from sirc._utils.text import shorten
from sirc.data import DeviceCache, ImageSet, eval_transform, open_source
from sirc.experiment.experiment import Experiment
from sirc.experiment.trust import is_own
from sirc.progress import Progress
from sirc.training import refuse_labels

_ID_SETS = ("train", "test", "validation")
_HOLDOUT_SEED = 0  # the same images are held out for every run, whatever the network's seed


def images_of(
    experiment: Experiment, name: str, *, augmented: bool = False, cache: DeviceCache | None = None
) -> ImageSet:
    """Open a dataset of an experiment, preprocessed for evaluation; `augmented` images are left to the training loop.

    `data.holdout` images of each class are taken out of the training images and become the validation images. Scores
    are fitted on all training images, or on `fit.count` random ones. Test and validation images have the class numbers
    of the training images, even if they lack a class.
    """
    experiment.require([name])
    source, count = experiment.source(name), experiment.fit.count
    if experiment.data.holdout and name in ("train", "validation"):
        rest, held_out = _open(experiment, "train", cache).held_out(experiment.data.holdout, seed=_HOLDOUT_SEED)
        images = rest if name == "train" else held_out
    else:
        images = _open(experiment, name, cache)
    images = images.named(name)
    if not augmented:
        images = images.with_transform(eval_transform(source, experiment.preprocess))
        if name == "train" and count is not None and count < len(images):
            images = images.subset(count, seed=experiment.fit.seed)
    if name in ("test", "validation") and source.benchmark is None and images.classes:
        experiment.require(["train"])
        images = images.numbered_by(_open(experiment, "train", cache).classes)
    return images


def images_for_samples(experiment: Experiment, *, run_code: bool = True) -> dict[str, ImageSet]:
    """Open the test images and the OOD sets of an experiment without preprocessing, to show samples.

    With `run_code=False`, all must be datasets that sirc itself reads, and no archive is unpacked.
    """
    names = ("test", *experiment.data.ood)
    for name in names:
        if not run_code and not is_own(dataset := experiment.source(name).dataset):
            raise ValueError(f"'{name}' is made by `{shorten(dataset)}`, which only `sirc run` calls")
    return {name: _open_source(experiment, name, unpack=run_code) for name in names}


def check_data(
    experiment: Experiment, names: Iterable[str], *, trains: bool, cache: DeviceCache, progress: Progress
) -> None:
    """Check that each dataset has images and that the network has an output for every label; no image is decoded.

    More outputs than classes may be intended, so they are only noted.
    """
    outputs = experiment.model.num_classes
    for name in names:
        images = images_of(experiment, name, augmented=True, cache=cache)
        if outputs is None or images.labels is None:
            continue
        refuse_labels(images, images.labels, outputs, f"`model.num_classes` of '{experiment.name}' is {outputs}")
        classes = len(images.classes) or len(np.unique(images.labels.numpy()))
        if name != "train" or classes >= outputs or not distributed.is_main():
            continue
        if trains:
            progress.note(
                f"note: '{experiment.name}' asks for {outputs} classes (`model.num_classes`), and its training images "
                f"have {classes}: the other outputs learn to stay low. Unless you want that, stop, and set "
                f"`model.num_classes = {classes}`, or check that all class folders are in the training data."
            )
        elif experiment.train is None and images.classes:
            progress.note(
                f"note: the network of '{experiment.name}' has {outputs} outputs, and its training images have "
                f"{classes} classes, numbered from 0. If they are only some of the network's classes, give all of them "
                "in order: `classes = …` of the dataset."
            )


def _open(experiment: Experiment, name: str, cache: DeviceCache | None) -> ImageSet:
    """Open a whole dataset without preprocessing, once for all runs that share a cache."""

    def opened() -> ImageSet:
        images: ImageSet | None = None
        with distributed.failing_together():
            if distributed.is_main():  # it goes first, as opening an archive unpacks it
                images = _open_source(experiment, name)
        with distributed.failing_together():
            if images is None:
                images = _open_source(experiment, name)
            if cache is not None:
                _ = images.cache_key  # looks at every file, once for all copies of this dataset
        return images

    if cache is None:
        return opened()
    return cache.opened(repr((experiment.source(name), str(experiment.root), name)), opened)


def _open_source(experiment: Experiment, name: str, *, unpack: bool = True) -> ImageSet:
    is_id = name in _ID_SETS
    images = open_source(
        experiment.source(name),
        root=experiment.root,
        split=("train" if name == "train" else "test") if is_id else None,
        preprocess=None,
        labelled=is_id,
        unpack=unpack,
    )
    if not len(images):  # a user's function may return none
        raise ValueError(f"every dataset must have images; '{name}' of '{experiment.name}' has none. Check it.")
    return images.named(name)
