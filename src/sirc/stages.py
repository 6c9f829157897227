"""The stages of an experiment: train a network, extract its outputs, fit the scores; each picks up what is there."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

import torch
from torch import nn

from sirc import distributed, models
from sirc._checkpoint import Epoch
from sirc._checks import differences
from sirc._choices import OnError
from sirc._files import atomic_write, read_metadata, read_safetensors, write_safetensors
from sirc._reading import UNREADABLE
from sirc._stamps import Stamp
from sirc.data import ImageSet, open_source
from sirc.errors import ImageError, StoreError
from sirc.experiment import Experiment, Run
from sirc.extract import extract
from sirc.head import Head, find_head
from sirc.preprocess import Preprocess
from sirc.progress import SILENT, Progress
from sirc.scores import Scorer, fit
from sirc.store import OutputStore
from sirc.train import train

_HEAD_FORMAT = "sirc.Head/1"


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
    model = _built(experiment)
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
    """Extract the outputs of one network on the named datasets, by default all: train, test and every OOD set."""
    settings = experiment.extract
    _check_trained(experiment, run)
    model = network(experiment, run).to(device)
    if settings.channels_last:
        model.to(memory_format=torch.channels_last)
    stores = {}
    head: Head | None = None
    for name in names or ("train", "test", *experiment.data.ood):
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
            stamp = _extracted(experiment, run, name)
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

    A scorer that was fitted from the same outputs in the same way is only loaded.
    """
    check_outputs(experiment, run, ["train"])
    store = OutputStore(run.store("train"))
    head, _ = load_head(run.head)
    asked = _asked(experiment, store)
    note = _note(run)
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


def fitted_from(run: Run) -> dict[str, object] | None:
    """What a finished fit was made from; None where there is none, or its note cannot be read."""
    try:
        known: dict[str, object] = json.loads(_note(run).read_bytes())
    except (FileNotFoundError, ValueError):
        return None
    return known if run.scorer.exists() else None


def is_fitted(experiment: Experiment, run: Run) -> bool:
    """Whether the scores that the experiment asks for were fitted on the outputs that are there."""
    try:
        return fitted_from(run) == _asked(experiment, OutputStore(run.store("train")))
    except StoreError:
        return False


def stale_outputs(experiment: Experiment, run: Run) -> list[str]:
    """Name the datasets whose stored outputs come from other settings or other weights than there are now."""
    weights = models.fingerprint(network(experiment, run))
    stale = []
    for name in ("train", "test", *experiment.data.ood):
        stamp = _extracted(experiment, run, name)
        try:
            model = OutputStore(run.store(name)).model
        except StoreError:
            continue  # there is none yet
        if model != weights or stamp.inputs_before not in (None, stamp.inputs):
            stale.append(name)
    return stale


def _note(run: Run) -> Path:
    return run.scorer.with_suffix(".json")


def _asked(experiment: Experiment, store: OutputStore) -> dict[str, object]:
    """What a fit follows from."""
    return {
        "specs": list(experiment.fit.specs),
        "crossfit": experiment.fit.crossfit,
        "rows": len(store),
        "model": store.model,
        "data": store.data,
    }


def check_outputs(experiment: Experiment, run: Run, names: Iterable[str]) -> None:
    """Refuse stored outputs that this experiment's settings and this run's weights would not give."""
    _check_trained(experiment, run)
    for name in names:
        stamp = _extracted(experiment, run, name)
        if stamp.inputs_before is None:
            raise FileNotFoundError(
                f"there are no finished outputs at '{run.store(name)}'. Extract them first: "
                f"`sirc extract … --only {name}`."
            )
        if words := differences(stamp.inputs_before, stamp.inputs):
            raise StoreError(
                f"'{run.store(name)}' was extracted with other settings: {words}. Use those, or extract again: "
                f"`sirc extract … --only {name} --overwrite`."
            )
    weights = models.fingerprint(network(experiment, run))
    made_by = {run.head: load_head(run.head)[1]} | {
        run.store(name): OutputStore(run.store(name)).model for name in names
    }
    for path, found in made_by.items():
        if found != weights:
            raise StoreError(
                f"'{path}' comes from other weights than '{run.weights}' has now. Extract again: "
                "`sirc extract … --overwrite`."
            )


def _check_trained(experiment: Experiment, run: Run) -> None:
    """Refuse weights that this experiment's recipe would not give."""
    if experiment.train is None or not run.weights.exists():
        return
    known = json.loads(read_metadata(run.weights).get("recipe", "{}"))
    settings = experiment.train.decisive() | {f"preprocess.{k}": v for k, v in asdict(experiment.preprocess).items()}
    asked = {key: json.dumps(value) for key, value in settings.items() if key in known}
    if words := differences({key: known[key] for key in asked}, asked):
        raise StoreError(
            f"'{run.weights}' was trained with other settings: {words}. Use those, or train again: "
            "`sirc train … --overwrite`."
        )


def _extracted(experiment: Experiment, run: Run, name: str) -> Stamp:
    """The note of the settings that a store's outputs follow from."""
    extract, fitting = experiment.extract, experiment.fit
    settings: dict[str, object] = {
        **{f"model.{key}": value for key, value in asdict(experiment.model).items()},
        **{f"preprocess.{key}": value for key, value in asdict(experiment.preprocess).items()},
        **{f"data.{name}.{key}": value for key, value in asdict(experiment.source(name)).items() if key != "group"},
        **{f"extract.{key}": getattr(extract, key) for key in ("precision", "dtype", "shard_size")},
        **({"fit.count": fitting.count, "fit.seed": fitting.seed} if name == "train" else {}),
    }
    return Stamp(run.folder, f"extract-{name}", settings)


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


def network(experiment: Experiment, run: Run) -> nn.Module:
    """Build the network of a run, with the weights that it was trained to or came with, in evaluation mode."""
    model = _built(experiment)
    if experiment.train is not None:
        if not run.weights.exists():
            raise FileNotFoundError(
                f"there are no trained weights at '{run.weights}'. Train them first: `sirc train … --seed {run.seed}`."
            )
        models.load_weights(model, run.weights)
    return model.eval()


def _seed(seed: int) -> None:
    """Seed all that a model may draw its first weights from."""
    from accelerate.utils import set_seed

    set_seed(seed)


def _built(experiment: Experiment) -> nn.Module:
    config = experiment.model
    return models.build(
        config.name,
        num_classes=config.num_classes,
        pretrained=config.pretrained,
        checkpoint=config.checkpoint,
        options=config.options,
    )


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


def save_head(head: Head, path: Path, model: str) -> None:
    """Write the last layer, with the fingerprint of the model it is from."""
    with distributed.failing_together():
        if distributed.is_main():
            tensors = {"weight": head.weight} | ({} if head.bias is None else {"bias": head.bias})
            metadata = {"format": _HEAD_FORMAT, "name": head.name, "model": model}
            write_safetensors(path, tensors, metadata, overwrite=True)


def load_head(path: Path) -> tuple[Head, str]:
    """Read the last layer that `extract_run` left, and the fingerprint of its model."""
    if not path.exists():
        raise FileNotFoundError(f"there is no '{path}'. Extract the outputs first: `sirc extract …`.")
    tensors, metadata = read_safetensors(path)
    if metadata.get("format") != _HEAD_FORMAT:
        raise StoreError(f"'{path}' does not hold a head. Extract the outputs again: `sirc extract …`.")
    return Head(tensors["weight"], tensors.get("bias"), metadata["name"]), metadata["model"]
