"""The stages of a run: train a network, extract its outputs, fit the scores; each skips what is done."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import nn

from sirc._utils import distributed
from sirc._utils.checks import differences
from sirc._utils.files import read_json
from sirc._utils.imports import stored_name
from sirc._utils.text import shorten
from sirc._utils.warn import warn
from sirc.data import DeviceCache, ImageSet, Source, eval_geometry
from sirc.errors import OnError, StoreError
from sirc.experiment.experiment import Experiment, Run
from sirc.experiment.images import images_of
from sirc.experiment.network import (
    build,
    fingerprint_of,
    has_head,
    load_head,
    network,
    network_key,
    note_preprocessing,
    recipe_of,
    save_head,
)
from sirc.experiment.stamp import Inputs, Stage, code_of
from sirc.extraction import CachedSet, extract, known_weights, raise_fatal
from sirc.models import find_head
from sirc.outputs import STORE_FILE, Head, OutputStore, Overwrite, doubt_of_store
from sirc.progress import SILENT, Progress
from sirc.scores import COMBINATIONS, Scorer, all_parts, fit, parse, registry
from sirc.training import Epoch, train

_WEIGHTS = "weights"  # the input of extracted outputs that is no setting: the fingerprint of the network
_DOUBT = "doubt"  # where the stamp of extracted outputs keeps the warning about their labels


def train_stage(experiment: Experiment, run: Run) -> Stage:
    """The stage that trains a network; its stamp is the recipe stored in the weights."""
    assert experiment.train is not None
    settings = experiment.train.hyperparameters() | _prefixed("preprocess", asdict(experiment.preprocess))
    recipe = recipe_of(run)
    # Recipes of earlier versions lack some keys, and a recipe without a warm-up does not mention it.
    shared = settings.keys() & (recipe or {}).keys() | {"warmup"}
    return Stage(
        "train",
        run.folder,
        {key: json.dumps(value) for key, value in settings.items() if key in shared},
        outputs=[run.weights],
        recorded=lambda _: None if recipe is None else {key: recipe[key] for key in recipe if key in shared},
    )


def outputs_stage(experiment: Experiment, run: Run, name: str, weights: str) -> Stage:
    """The stage that extracts a network's outputs on one dataset; `weights` is the fingerprint of the network."""
    store = run.store(name)
    model = asdict(experiment.model) | {"name": stored_name(experiment.model.name)}
    if model["stem"] == "own":  # earlier versions had no other stem, and their stamps do not mention it
        del model["stem"]
    source = {key: value for key, value in _described(experiment.source(name)).items() if key != "group"}
    extraction = {key: getattr(experiment.extract, key) for key in ("precision", "dtype", "shard_size")}
    settings = _prefixed("model", model) | _prefixed("preprocess", asdict(experiment.preprocess))
    settings |= _prefixed(f"data.{name}", source) | _prefixed("extract", extraction)
    if name in ("test", "validation"):
        settings |= _prefixed("data.train", experiment.data.train.class_order)
    if name == "train":
        settings |= {"fit.count": experiment.fit.count, "fit.seed": experiment.fit.seed}
    if experiment.data.holdout and name in ("train", "validation"):
        settings["data.holdout"] = experiment.data.holdout

    def recorded(stamped: Inputs | None) -> Inputs | None:
        try:
            made_by = OutputStore(store).model
        except StoreError:
            made_by = weights
        if stamped is not None:
            return {**stamped, _WEIGHTS: made_by}
        return None if made_by == weights else {_WEIGHTS: made_by}  # unfinished, of other weights: stale

    return Stage(f"extract-{name}", run.folder, {**settings, _WEIGHTS: weights}, outputs=[store], recorded=recorded)


def outputs_stages(experiment: Experiment, run: Run) -> dict[str, Stage]:
    """The stages that extract each dataset; the network is built only if the stores may come from another one."""
    stages = {name: outputs_stage(experiment, run, name, "") for name in experiment.names}
    key = network_key(experiment, run)
    made_by = {(stage.inputs_before or {}).get(_WEIGHTS) for stage in stages.values()}
    if key and len(made_by) == 1 and all(stage.fingerprints.get("network") == key for stage in stages.values()):
        weights = str(made_by.pop())
    else:
        weights = fingerprint_of(experiment, run)
    return {name: outputs_stage(experiment, run, name, weights) for name in experiment.names}


def are_unchanged(experiment: Experiment, stages: Mapping[str, Stage], cache: DeviceCache) -> bool:
    """Whether, in every process, all outputs are finished, no image is missing, and the images are still the same."""
    same = all(
        stage.is_done()
        and not OutputStore(stage.outputs[0]).skipped
        and stage.fingerprints.get("images") == images_of(experiment, name, augmented=True, cache=cache).fingerprint
        for name, stage in stages.items()
    )
    return all(distributed.gather_texts("yes" if same else ""))


def fit_stage(experiment: Experiment, run: Run) -> Stage:
    """The stage that fits the scores; the outputs to fit them on must be stored already."""
    store = OutputStore(run.store("train"))
    inputs: Inputs = {"specs": experiment.fit.specs, "crossfit": experiment.fit.crossfit}
    inputs |= {"rows": len(store), "model": store.model, "data": store.data}
    if experiment.fit.on_unfit != "stop":  # stamps of earlier versions do not mention it
        inputs["on_unfit"] = experiment.fit.on_unfit
    own = own_code(experiment)
    inputs |= own
    if experiment.tuned:
        val = OutputStore(run.store("validation"))
        source = json.dumps(_described(experiment.source("validation")), sort_keys=True, default=str)
        inputs |= {"validation": source, "validation rows": len(val), "validation data": val.data}

    def recorded(stamped: Inputs | None) -> Inputs | None:
        with suppress(FileNotFoundError, StoreError):
            return own | (stamped or read_json(run.older_fit_note))  # earlier versions did not stamp own code
        return None

    return Stage("fit", run.folder, inputs, outputs=[run.scorer], recorded=recorded)


def own_code(experiment: Experiment) -> Inputs:
    """The code of a user's own scores, as inputs of a stage; empty if all scores are sirc's."""
    parts = [part for text in experiment.fit.specs for part in all_parts(parse(text))]
    return code_of((registry.get(part.name) if part.is_leaf else COMBINATIONS[part.name]).compute for part in parts)


def check_trained(experiment: Experiment, run: Run) -> None:
    """Raise if the weights were trained with another recipe."""
    if experiment.train is None:
        return
    stage = train_stage(experiment, run)
    if stage.inputs_before is not None and (changes := differences(stage.inputs_before, stage.inputs)):
        raise StoreError(
            f"'{run.weights}' was trained with other settings: {changes}. Use those, or train again: "
            f"`sirc train … --seed {run.seed} --overwrite`."
        )


def check_outputs(experiment: Experiment, run: Run, names: Iterable[str], *, weights: str | None = None) -> None:
    """Raise if stored outputs come from other settings or other weights.

    `weights` is the fingerprint of the network, if the caller has built it. Without it nothing is built: all outputs
    must come from one network, and the trained weights must contain its head.
    """
    check_trained(experiment, run)
    made_by: dict[Path, object] = {}
    for name in names:
        store, stage = run.store(name), outputs_stage(experiment, run, name, "")
        if not (stage.is_stamped and (store / STORE_FILE).is_file()):
            raise FileNotFoundError(
                f"there are no finished outputs at '{store}'. Extract them first: `sirc extract … --only {name}`."
            )
        OutputStore(store)  # a damaged store raises its own error
        before = stage.inputs_before or {}
        made_by[store] = before.get(_WEIGHTS)
        if changes := differences(before, {**stage.inputs, _WEIGHTS: made_by[store]}):
            raise StoreError(
                f"'{store}' was extracted with other settings: {changes}. Use those, or extract again: "
                f"`sirc extract … --only {name} --overwrite`."
            )
    head, made_by[run.head] = load_head(run.head)
    if weights is None and has_head(run, head):
        weights = str(made_by[run.head])
    unloaded = experiment.model.own and experiment.model.checkpoint is None and experiment.train is None
    name = shorten(experiment.model.name)
    hint = f" If `{name}` gives other weights in every process, let it load some first." if unloaded else ""
    for path, model in made_by.items():
        if model != weights:
            only = "" if path == run.head else f" --only {path.name}"
            raise StoreError(
                f"'{path}' comes from other weights than the network has now. Extract again: "
                f"`sirc extract …{only} --overwrite`.{hint}"
            )


def train_run(
    experiment: Experiment,
    run: Run,
    *,
    cpu: bool = False,
    overwrite: bool = False,
    progress: Progress = SILENT,
    cache: DeviceCache | None = None,
) -> list[Epoch]:
    """Train the network of one seed, or return the history of a finished run; `cache` keeps images for other runs."""
    recipe = experiment.train
    if recipe is None:
        raise ValueError(
            f"an experiment must have a [train] table to be trained; `{experiment.name}` uses a pretrained model. "
            "Go on with `sirc extract`."
        )
    for set_seed in (random.seed, np.random.seed, torch.manual_seed):  # a model may draw its initial weights from any
        set_seed(run.seed)
    model = build(experiment)
    names = ("train", "validation" if experiment.data.validates else "test")
    images, validation = (images_of(experiment, name, augmented=True, cache=cache) for name in names)
    return train(
        model,
        images,
        recipe,
        run.folder,
        seed=run.seed,
        preprocess=experiment.preprocess,
        validation=validation,
        validated_on=names[1],
        cpu=cpu,
        overwrite=overwrite,
        progress=progress,
        name=f"seed {run.seed}",
        cache=cache,
    )


def extract_run(
    experiment: Experiment,
    run: Run,
    names: Iterable[str] | None = None,
    *,
    device: torch.device | str = "cpu",
    on_error: OnError | None = None,
    overwrite: Overwrite = False,
    progress: Progress = SILENT,
    cache: DeviceCache | None = None,
) -> dict[str, OutputStore]:
    """Extract the outputs of one network on the named datasets, by default all of the experiment's.

    `overwrite="unfinished"` replaces an unfinished store of other settings. With `extract.cache = "device"`, images in
    `cache` are not decoded again, and new ones are added to it.
    """
    settings = experiment.extract
    options = asdict(settings) | {"on_error": on_error or settings.on_error}
    options["dtype"] = None if settings.dtype == "model" else getattr(torch, settings.dtype)
    on_device = options.pop("cache") == "device"
    names = list(names or experiment.names)
    check_trained(experiment, run)
    check_held_out(experiment, run, names, cache, progress)
    note_preprocessing(experiment, progress)
    model = network(experiment, run).to(device)
    if settings.channels_last:
        model.to(memory_format=torch.channels_last)

    def from_device(name: str, images: ImageSet) -> CachedSet:
        geometry = eval_geometry(experiment.source(name), experiment.preprocess)
        load = partial(
            (cache or DeviceCache()).pixels,
            images,
            geometry,
            device=torch.device(device),
            workers=settings.workers,
            on_unreadable=lambda lost: raise_fatal(lost, images.where),
            progress=progress,
        )
        return CachedSet(images, geometry, load)

    stores, key = {}, network_key(experiment, run)
    head: Head | None = None
    with known_weights(model) as weights:
        for name in names:
            images = images_of(experiment, name, cache=cache)
            if head is None:
                head = _head_of(model, images)
                save_head(head, run.head, weights)
            stage = outputs_stage(experiment, run, name, weights)
            with distributed.failing_together():
                if overwrite is True and distributed.is_main():
                    OutputStore.clear(run.store(name))  # before the stamp: after a kill in between, it is not done
                    stage.forget()
            unstamped = overwrite == "unfinished" and not stage.is_stamped  # perhaps stopped just before the stamp
            stores[name] = extract(
                model,
                from_device(name, images) if on_device else images,
                run.store(name),
                head=head,
                overwrite="differing" if unstamped else overwrite,
                progress=progress,
                name=f"{run.folder.name}, {name}",
                **options,
            )
            used = {"images": images_of(experiment, name, augmented=True, cache=cache).fingerprint, "network": key}
            with distributed.failing_together():
                if distributed.is_main():
                    _stamp_outputs(stage, name, stores[name], used)
    return stores


def _stamp_outputs(stage: Stage, name: str, store: OutputStore, used: dict[str, str]) -> None:
    """Stamp extracted outputs as done; if they are already, add the images and network that they were compared with."""
    if not stage.is_done():
        stage.record(fingerprints={**used, _DOUBT: doubt_of_store(name, store)})
    elif not used.items() <= stage.fingerprints.items():
        with suppress(OSError):  # a finished study may be read-only
            stage.record(fingerprints={**stage.fingerprints, **used})
    warn_again(stage)


def warn_again(stage: Stage) -> None:
    """Repeat the warning that extraction gave about these outputs."""
    if distributed.is_main() and (doubt := stage.fingerprints.get(_DOUBT)):
        warn(doubt)


def fit_run(
    experiment: Experiment,
    run: Run,
    *,
    device: torch.device | str = "cpu",
    overwrite: bool = False,
    progress: Progress = SILENT,
) -> Scorer:
    """Fit the experiment's scores on the stored outputs of the training images; all processes share the work.

    Scores that can be tuned are tuned on the validation images, if the experiment has any. A scorer that was fitted on
    the same outputs with the same settings is only loaded.
    """
    check_outputs(experiment, run, ["train", "validation"] if experiment.tuned else ["train"])
    stage = fit_stage(experiment, run)
    if stage.inputs_before is not None and run.scorer.exists() and not overwrite:
        if changes := differences(stage.inputs_before, stage.inputs):
            raise FileExistsError(
                f"'{run.scorer}' was fitted on other inputs: {changes}. Give the experiment another `name`, or "
                "pass `fit(…, overwrite=True)` to fit again."
            )
        return Scorer.load(run.scorer)
    scorer = fit(
        experiment.fit.specs,
        OutputStore(run.store("train")),
        head=load_head(run.head)[0],
        crossfit=experiment.fit.crossfit,
        val=OutputStore(run.store("validation")) if experiment.tuned else None,
        on_unfit=experiment.fit.on_unfit,
        device=device,
        distributed=True,
        progress=progress,
    )
    with distributed.failing_together():
        if distributed.is_main():
            with stage.remade() as made:
                run.older_fit_note.unlink(missing_ok=True)
                scorer.save(run.scorer, overwrite=True)
                made.append(run.scorer)
    return scorer


def _prefixed(table: str, settings: dict[str, object]) -> dict[str, object]:
    return {f"{table}.{key}": value for key, value in settings.items()}


def _described(source: Source) -> dict[str, object]:
    """The settings of a dataset; an order of classes only if one is given, as earlier versions had none."""
    return {key: value for key, value in asdict(source).items() if key not in ("classes", "sort") or value is not None}


def check_held_out(
    experiment: Experiment, run: Run, names: Iterable[str], cache: DeviceCache | None, progress: Progress
) -> None:
    """Raise if the network was trained on other images than are fitted or validated on, as when `holdout` changed."""
    count = experiment.data.holdout
    if not ({"train", "validation"} if count else {"train"}) & {*names}:
        return
    if experiment.train is None:
        if count and "validation" in names and distributed.is_main():
            progress.note(
                f"note: the network was trained elsewhere, and must not have seen the {count} images of each class "
                "that are held out: it is more confident on images it has seen. If it has, give others in "
                "`data.validation`, and drop `data.holdout`."
            )
        return
    trained_on = (recipe_of(run) or {}).get("training images")
    images = images_of(experiment, "train", augmented=True, cache=cache)
    if trained_on not in (None, json.dumps(images.fingerprint)):
        wanted = f"without the images that are held out, {count} of each class" if count else "on `data.train`"
        raise StoreError(
            f"'{run.weights}' must be trained {wanted}; it was trained on other images. Use those, with the "
            f"`data.holdout` of that training, or train again: `sirc train … --seed {run.seed} --overwrite`."
        )


def _head_of(model: nn.Module, images: ImageSet) -> Head:
    """Find the head by running the first readable image."""
    item = images.first_readable(images.__getitem__)
    x = item[0] if isinstance(item, tuple) else item
    return find_head(model, x[None])  # type: ignore[index]
