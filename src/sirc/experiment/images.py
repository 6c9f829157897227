"""Images of an experiment: open its datasets, and check all of them before the first long stage."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from sirc._utils import distributed
from sirc._utils.text import shorten
from sirc.data import DeviceCache, ImageSet, Source, eval_transform, open_source
from sirc.experiment.experiment import Experiment
from sirc.experiment.trust import is_own
from sirc.progress import Progress
from sirc.training import refuse_labels

_ID_SETS = ("train", "test", "validation")
_HOLDOUT_SEED = 0  # one for all runs: the network's seed does not decide which images validate


def images_of(
    experiment: Experiment, name: str, *, augmented: bool = False, cache: DeviceCache | None = None
) -> ImageSet:
    """Open a dataset of an experiment, preprocessed as in a test; `augmented` leaves that to the training loop.

    `data.holdout` images of each class are kept out of the training images, and are the validation images. The
    training images that scores are fitted on may be a random subset, `fit.count` of them. Test and validation images
    have the class numbers of the training images, also where they lack a class.
    """
    experiment.require([name])
    source, count, holdout = experiment.source(name), experiment.fit.count, experiment.data.holdout
    if holdout and name in ("train", "validation"):
        rest, held_out = _open(experiment, "train", cache).held_out(holdout, seed=_HOLDOUT_SEED)
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
    """Open the datasets of an experiment to look at: test images first, then the OOD sets, without preprocessing.

    With `run_code=False` all must be sirc's own kinds, whose files are read where they are: nothing is unpacked.
    """
    sources = {name: experiment.source(name) for name in ("test", *experiment.data.ood)}
    for name, source in sources.items():
        if not run_code and not is_own(source.dataset):
            raise ValueError(f"'{name}' is made by `{shorten(source.dataset)}`, which only `sirc run` calls")
    return {name: _open_source(experiment, name, source, unpack=run_code) for name, source in sources.items()}


def check_data(
    experiment: Experiment, names: Iterable[str], *, trains: bool, cache: DeviceCache, progress: Progress
) -> None:
    """Check datasets without decoding an image: each has some, and the network has an output for every label.

    A network with outputs for more classes than it is trained on may be meant, so that is only noted.
    """
    outputs = experiment.model.num_classes
    for name in names:
        images = images_of(experiment, name, augmented=True, cache=cache)
        if outputs is None or images.labels is None:
            continue
        refuse_labels(images, images.labels, outputs, f"`model.num_classes` of '{experiment.name}' is {outputs}")
        classes = len(images.classes) or len(np.unique(images.labels.numpy()))
        if trains and name == "train" and classes < outputs and distributed.is_main():
            progress.note(
                f"note: '{experiment.name}' asks for {outputs} classes (`model.num_classes`), and its training images "
                f"have {classes}: the other outputs learn to stay low. Unless that is meant, stop, and set "
                f"`model.num_classes = {classes}`, or check that all class folders are in the training data."
            )


def _open(experiment: Experiment, name: str, cache: DeviceCache | None) -> ImageSet:
    """Open a whole dataset without preprocessing, once for all runs that share `cache`."""

    def opened() -> ImageSet:
        images: ImageSet | None = None
        with distributed.failing_together():
            if distributed.is_main():  # this process goes first, as archives are unpacked when they are opened
                images = _open_source(experiment, name, experiment.source(name))
        with distributed.failing_together():
            if images is None:
                images = _open_source(experiment, name, experiment.source(name))
            if cache is not None:
                _ = images.cache_key  # looks at every file; done now, the copies made of it need not
        return images

    if cache is None:
        return opened()
    return cache.opened(repr((experiment.source(name), str(experiment.root), name)), opened)


def _open_source(experiment: Experiment, name: str, source: Source, *, unpack: bool = True) -> ImageSet:
    is_id = name in _ID_SETS
    images = open_source(
        source,
        root=experiment.root,
        split=("train" if name == "train" else "test") if is_id else None,
        preprocess=None,
        labelled=is_id,
        name=name,
        unpack=unpack,
    )
    if not len(images):  # as a function may return
        raise ValueError(f"every dataset must have images; '{name}' of '{experiment.name}' has none. Check it.")
    return images
