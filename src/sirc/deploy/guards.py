"""Guards: from a trained model to a classifier that says "I don't know", in one call."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn

from sirc._utils.checks import check_device, check_path, check_type
from sirc._utils.files import PathLike
from sirc._utils.text import first_line, listed, shorten
from sirc._utils.warn import warn
from sirc.data import ImageSet, Preprocess
from sirc.deploy.guard_data import (
    Data,
    KnownOutputs,
    class_names_in,
    first_inputs,
    is_unprepared,
    opened,
    renumbered,
    require_labels,
    size_of,
)
from sirc.deploy.saved import read
from sirc.deploy.selective import TRIED, TRIED_FIRST, SelectiveClassifier, largest_batch, names_of, refuse_compiled
from sirc.deploy.threshold import at_recall
from sirc.deploy.threshold.risk_test import require_rows
from sirc.errors import DataWarning, OnError, StoreError
from sirc.extraction import extract, known_weights
from sirc.models import (
    Ensemble,
    call_model,
    evaluating,
    features_at,
    head_of,
    model_logits,
    named,
    preprocess_of,
    shared_preprocess,
    unwrap,
)
from sirc.outputs import Head, Outputs, OutputStore, Overwrite, labels_checked, warn_of_labels
from sirc.progress import Progress, as_progress
from sirc.scores import Needs, Scorer, fit, parse, reads_features

_HELD_OUT = 0.2  # the share of training rows that replaces missing validation data
_MOST_HELD_OUT = 10_000  # most rows to hold out
_SEED = 0  # of their random choice
_BATCH = 8192  # stored rows read at a time
_FEW_REJECTED = 5  # rejected validation rows; fewer cause no warning
_MOST_ABSENT = 10  # absent classes to name
_ENSEMBLE = (
    "Ensemble of {}: the features of all stand side by side. No single layer turns them into logits, so S2 scores that "
    "need the head, `residual` and `vim`, are left out."
)


def guard(
    model: nn.Module | str | Sequence[nn.Module],
    train: Data,
    val: Data | None = None,
    *,
    recall: float | None = None,
    risk: float | None = None,
    delta: float | None = 0.05,
    score: str = "scod",
    head: Head | str | None = None,
    classes: Sequence[str] | None = None,
    preprocess: Preprocess | Mapping[str, Any] | None = None,
    path: PathLike | None = None,
    batch_size: int = 64,
    workers: int = 0,
    device: torch.device | str | None = None,
    on_error: OnError = "stop",
    overwrite: Overwrite = False,
    progress: Progress | bool | None = None,
) -> SelectiveClassifier:
    """Make a trained model say "I don't know": fit a score on `train` and set its threshold on `val`.

    Of future inputs that the model gets right, the guard accepts at least the share `recall`, with probability
    1 − `delta` over the draw of `val`; with `delta=None` it does so on `val`. `print(guard)` says what was done, what
    it promises and what it cannot promise. `guard.report(path)` writes a page, `guard.save(path)` a file that
    `sirc.load_guard` reads.

    Example:
        >>> import sirc, torch
        >>> _ = torch.manual_seed(0)
        >>> model, images = torch.nn.Linear(4, 3), torch.randn(900, 4)
        >>> train, val = ([(some, model(some).argmax(1))] for some in images.split(450))
        >>> guard = sirc.guard(model, train, val, score="msp", progress=False)
        >>> label, confidence, accepted, logits = guard(images)
        >>> guard.threshold.bounds, bool(accepted.double().mean() > 0.9)
        ({'recall': 0.95}, True)

    Args:
        model: a classifier, or its name as `sirc.models.named` takes it; or a list of classifiers, which become one
            `sirc.models.Ensemble`. It runs on the device it is on, and stays in evaluation mode.
        train: labelled ID data that the model was trained on, or data like it: a folder with one folder for each class,
            a dataset or a loader with the preprocessing of test time, outputs, or the path of outputs or of a store.
        val: labelled ID data, of the same kinds, that the model was not trained on. Without it a fifth of each class of
            `train` (10,000 rows at most) sets the threshold; the model was trained on these rows, so nothing is
            promised.
        recall: accept at least this share of what the model gets right; 0.95 if neither this nor `risk` is given.
        risk: or accept as much as possible with at most this share of errors among the accepted ID inputs.
        delta: the probability that the promise fails, or None for no promise.
        score: the spec of the score.
        head: the final linear layer, or its name (in an ensemble, its name in each member); found if not given.
        classes: the class folders in the order of the model's outputs; by default sorted by name.
        preprocess: how images of folders are prepared; by default as published for a timm model or a named one. A dict
            overrides parts of it: `{"resize": 72, "crop": 64}`.
        path: a folder for the model's outputs. An interrupted call resumes from it, and memory does not grow with
            `train`; without it all outputs are in memory.
        batch_size: how many images of a folder or dataset the model sees at once.
        workers: processes that read images.
        device: move the model there first.
        on_error: "stop" at an image that cannot be read, or "skip" it.
        overwrite: delete what an earlier call left in `path`.
        progress: show progress and, at the end, the summary; by default at a terminal and in a notebook.
    """
    model = _as_one(model)
    check_type("model", model, nn.Module | str, "a torch.nn.Module, a list of them, or the name of one")
    hint = "Or pass datasets that prepare their images."
    check_type("preprocess", preprocess, Preprocess | Mapping | None, "a `sirc.data.Preprocess`, or a dict", hint)
    check_type("head", head, Head | str | None, "a `sirc.Head`, or the name of a layer")
    path = None if path is None else check_path("path", path)
    promise = Promise.of(recall, risk, delta, val)
    show, needs_features = as_progress(progress), bool(reads_features([parse(score)]))
    _check_score(score, isinstance(model, Ensemble))
    train, val, names = _opened(train, val, names_of(classes), promise)
    promise.require_rows(size_of(val))
    published: Preprocess | None = None
    if isinstance(model, str):
        model, published = _named(model, names)
    network = unwrap(model if device is None else model.to(check_device(device)))
    refuse_compiled(network)
    ensemble = isinstance(network, Ensemble)
    _check_score(score, ensemble)  # a name may be that of an ensemble
    if preprocess is not None or is_unprepared(train) or is_unprepared(val):
        if not isinstance(preprocess, Preprocess):
            preprocess = _published_preprocess(network, published, preprocess)
            show.note(_preprocess_note(preprocess))
        train, val = (one.with_transform(preprocess.test()) if is_unprepared(one) else one for one in (train, val))
    if (few := first_inputs(2, val, train)) is not None:
        head = _first_run(network, few, head, names, find=needs_features)

    def outputs_of(name: str, data: Any) -> KnownOutputs:
        if isinstance(data, KnownOutputs):
            return data
        made: KnownOutputs = extract(
            network, data, path and path / name, head=head, features=needs_features, batch_size=batch_size,
            workers=workers, on_error=on_error, overwrite=overwrite, progress=show, name=name,
        )  # fmt: skip
        return made

    with known_weights(network) as weights:
        for store in (train, val):
            if isinstance(store, OutputStore):
                store.check_model(weights)
        with largest_batch(network) as batches:
            validation = None if val is None else outputs_of("val", val)
        if validation is not None:  # before the model runs on all of `train`
            rows = _checked_rows(validation, names, promise)
        training = outputs_of("train", train)
    fitted: KnownOutputs | _Selection = training
    if validation is None:
        validation, fitted = _hold_out(training)
        rows = _checked_rows(validation, names, promise)
    if needs_features and rows.features is not None and not ensemble and not isinstance(head, Head):
        head = head_of(network, rows, name=head)
    place = next(network.parameters(), rows.logits).device
    with warnings.catch_warnings():
        if ensemble:  # a remark says the same
            fewer = "`scod` uses fewer witnesses: `residual`, `vim`: `head`"
            warnings.filterwarnings("ignore", fewer, DataWarning)
        scorer = fit(score, fitted, head=head if isinstance(head, Head) else None, device=place, progress=show)
    made = SelectiveClassifier(network, scorer, score, head=head, classes=names, preprocess=preprocess)
    # On a CPU large images run in small batches, which may have too few images to show a change.
    enough = (batch for batch in batches if batch.logits is not None and len(batch.logits) >= TRIED_FIRST)
    with labels_checked():  # by `_checked_rows`
        made.calibrate(validation, images=next(enough, None) or first_inputs(TRIED, val, train), **vars(promise))
        premise = _premise_remark(scorer, score, rows)
    _warn_of_margin(made)
    about_ensemble = _ENSEMBLE.format(len(network.members)) if isinstance(network, Ensemble) and needs_features else ""
    made.remarks = tuple(filter(None, (about_ensemble, premise, _validation_remark(val, rows, names))))
    if not isinstance(progress, Progress):  # callers with their own progress print it themselves
        show.note(str(made))
    return made


def load_guard(path: PathLike, model: nn.Module | str | Sequence[nn.Module]) -> SelectiveClassifier:
    """Load a saved guard or selective classifier.

    `path` is a file, or an address on the Hugging Face Hub: `hf://owner/name` or `hf://owner/name@revision`. `model`
    must be the network it was saved with, or that network's name; for an ensemble, the list of its members in order.

    Example:
        >>> import sirc, tempfile, torch
        >>> path = f"{tempfile.mkdtemp()}/guard.safetensors"
        >>> model, images = torch.nn.Linear(4, 3), torch.randn(200, 4)
        >>> val = [(images, model(images).argmax(1))]
        >>> sirc.guard(model, val, val, score="msp", progress=False).save(path)
        >>> sirc.load_guard(path, model).spec
        'msp'
    """
    model = _as_one(model)
    if isinstance(model, str):
        model, _ = named(model, read(path)[0].get("num_classes"))
    return SelectiveClassifier.load(path, model)


def _check_score(score: str, ensemble: bool) -> None:
    """Refuse a score that is tuned on validation rows, or that needs the head of an ensemble."""
    if Needs.of([score]).val:
        raise ValueError(
            f"`score` must not be tuned on validation rows, as those set the threshold; `{score}` is. Choose another "
            "score, or fit this one on other rows, `sirc.fit(…)`, for a `sirc.SelectiveClassifier`"
        )
    if ensemble and (needs := Needs.of([score]).head):
        which = listed([f"`{one}`" for one in needs])
        raise ValueError(
            f"a score of an ensemble must do without the head, as no one layer makes its logits; {which} needs it. "
            "Take `scod`, or S2 scores such as `mahalanobis_pp`, `knn` and `l1`"
        )


def _opened(
    train: Data, val: Data | None, names: list[str] | None, promise: Promise
) -> tuple[Any, Any, list[str] | None]:
    """Open both datasets and number their classes alike; return them with the class names. Refuse to reuse one path."""
    paths = {Path(one).resolve() if isinstance(one, str | os.PathLike) else None for one in (train, val)}
    if promise.delta is not None and len(paths) == 1 and None not in paths:
        raise ValueError(
            f"`val` must be data that nothing was fitted on, or nothing can be promised; it is `train`, '{train}'. "
            "Pass other images, or no `val`, or `delta=None` for an estimate without a promise"
        )
    train, val = (opened(source, names) for source in (train, val))
    if names is None and isinstance(train, ImageSet) and train.classes:
        names = list(train.classes)
    if names is not None:
        train, val = (x.numbered_by(names) if isinstance(x, ImageSet) and x.classes else x for x in (train, val))
    return train, renumbered(val, names or class_names_in(train)), names


@final
@dataclass(frozen=True)
class Promise:
    """A recall or risk to keep on future data with probability 1 − δ, or without `delta` on the rows at hand."""

    recall: float | None
    risk: float | None
    delta: float | None

    @classmethod
    def of(cls, recall: float | None, risk: float | None, delta: float | None, val: object) -> Promise:
        """The promise of these arguments: a recall of 0.95 by default, and no δ without `val`."""
        if risk is None:
            return cls(0.95 if recall is None else recall, None, None if val is None else delta)
        if recall is not None:
            raise ValueError(f"give `recall` or `risk`, not both; got recall={recall:g} and risk={risk:g}")
        new = "labelled data that the model was not trained on"
        for name, value, way in (("delta", delta, "0.05, say"), ("val", val, new)):
            if value is None:
                raise ValueError(f"`risk` is a promise about new inputs, which needs `{name}`; got None. Pass {way}")
        return cls(None, risk, delta)

    def require_rows(self, count: int) -> None:
        """Refuse too few rows to make the promise; 0 means unknown. For a recall, count right rows; for a risk, all."""
        if self.risk is not None and self.delta is not None:
            require_rows(count or None, self.risk, self.delta)
        elif self.recall is not None:
            all_right = np.ones(count or 1, dtype=bool)
            at_recall(np.arange(count or 1), all_right, self.recall, delta=self.delta if count else None)


def _as_one(model: nn.Module | str | Sequence[nn.Module]) -> nn.Module | str:
    """Join a list of models into an ensemble."""
    return Ensemble(model) if isinstance(model, list | tuple) else model  # type: ignore[return-value]


def _named(text: str, names: Sequence[str] | None) -> tuple[nn.Module, Preprocess | None]:
    try:
        return named(text, None if names is None else len(names))
    except StoreError as error:  # its advice is for callers of `named`
        counted = "there are as many as folders; name all of them, `classes=…`"
        raise StoreError(re.sub(r"pass `num_classes=\d+`", counted, str(error))) from error


def _published_preprocess(model: nn.Module, known: Preprocess | None, changes: Mapping[str, Any] | None) -> Preprocess:
    """The preprocessing that was published with the network, with the user's changes."""
    members = list(model.members) if isinstance(model, Ensemble) else [model]
    of_timm = [member for member in members if isinstance(getattr(member, "pretrained_cfg", None), dict)]
    if known is None and changes is None and len(of_timm) < len(members):
        raise ValueError(
            f"images must be prepared as the model was trained; {type(model).__name__} does not say how. Pass "
            '`preprocess=…`, or for a published network `sirc.models.preprocess_of("torchvision:resnet50")`'
        )
    # Members without a published preprocessing take that of the others.
    published = [known] if known is not None else [preprocess_of(member) for member in of_timm]
    made = shared_preprocess(published or [Preprocess()], changes)
    if isinstance(made.resize, int) and made.crop is not None and made.crop > made.resize:
        raise ValueError(
            f"`crop` must be at most `resize`, as a larger crop has black edges; got {made.crop} and {made.resize}. "
            "Give both, or a `sirc.data.Preprocess` where the model was trained with such edges"
        )
    return made


def _preprocess_note(preprocess: Preprocess) -> str:
    """Say how images are prepared: if the weights were trained otherwise, accuracy drops without an error."""
    size, crop = preprocess.resize, preprocess.crop
    side = " × ".join(map(str, size)) if isinstance(size, tuple) else size
    steps = [f"resized to {side}"] if side else []
    steps += [f"cropped to {crop}"] if crop else []
    mean, std = (", ".join(f"{x:.4g}" for x in values) for values in (preprocess.mean, preprocess.std))
    steps.append(f"normalised with mean {mean} and std {std}")
    return f"images are {listed(steps)}; the model must have been trained so"


def _first_run(
    model: nn.Module, few: object, head: Head | str | None, names: Sequence[str] | None, *, find: bool
) -> Head | str | None:
    """Run the model on a few inputs; refuse it if they or the classes do not fit. Find its head if `find` says so."""
    try:
        found = _find_head(model, few, head) if find and not isinstance(head, Head) else None
        if isinstance(found, Head):  # the model ran to find it
            outputs = len(found.weight)
        else:
            with evaluating(model):
                outputs = model_logits(call_model(model, few)).shape[1]
    except torch.cuda.OutOfMemoryError:
        raise
    except (RuntimeError, AssertionError) as error:  # layers and timm's networks raise these if sizes do not fit
        images = few[0] if isinstance(few, tuple | list) else few
        shape = f" of shape {tuple(images.shape)}" if isinstance(images, Tensor) else ""
        raise ValueError(
            f"the model must accept the prepared images; {type(model).__name__} fails on images{shape} "
            f"({shorten(first_line(error), 200)}). Prepare them as for its training, `preprocess=…`."
        ) from error
    _check_classes(names, outputs)
    return head if found is None else found


def _find_head(model: nn.Module, example: object, name: str | None) -> Head | str:
    try:
        return features_at(model, example, name=name)
    except ValueError as error:
        raise ValueError(f'{error} Or take a score that needs no features, `score="msp"`.') from error


def _check_classes(names: Sequence[str] | None, outputs: int) -> None:
    if names is not None and len(names) != outputs:
        raise ValueError(
            f"the model must have one output for each class; it has {outputs}, and there are {len(names)} classes: "
            f"{shorten(', '.join(names))}. Pass `classes=…`, a name for each output in order: its folder's or any other"
        )


def _checked_rows(validation: KnownOutputs, names: Sequence[str] | None, promise: Promise) -> Outputs:
    """Load validation rows; check their classes and that they suffice for the promise; warn of misnumbered labels."""
    require_labels("val", validation)
    rows = validation.load() if isinstance(validation, OutputStore) else validation
    assert rows.labels is not None
    _check_classes(names, rows.num_classes)
    warn_of_labels("val", rows.predictions, rows.labels)
    right = int(rows.correct.sum())
    if not right:
        raise ValueError(
            f"the model must get some of the validation rows right; of {len(rows):,} it gets none. Is it trained, and "
            "are its classes in the order of the labels? If not, pass `classes=…`"
        )
    promise.require_rows(right if promise.risk is None else len(rows))
    return rows


@final
@dataclass(frozen=True, eq=False)
class _Selection:
    """The rows of some outputs where `kept` is True, in batches; can be iterated several times."""

    rows: KnownOutputs
    kept: Tensor

    def __len__(self) -> int:
        return int(self.kept.sum())

    def __iter__(self) -> Iterator[Outputs]:
        start = 0
        for batch in self.rows.batches(_BATCH):
            part = self.kept[start : start + len(batch)]
            start += len(batch)
            if part.any():
                yield batch[part]


def _hold_out(rows: KnownOutputs) -> tuple[Outputs, _Selection]:
    """Hold out the same share of each class, chosen at random; return the rows held out and the rest."""
    require_labels("train", rows)
    labels = np.concatenate([batch.labels.cpu().numpy() for batch in rows.batches(_BATCH) if batch.labels is not None])
    share = min(_HELD_OUT, _MOST_HELD_OUT / len(labels))
    order = np.lexsort((np.random.default_rng(_SEED).random(len(labels)), labels))
    counts = np.bincount(labels)
    place = np.arange(len(labels)) - (counts.cumsum() - counts)[labels[order]]  # of each row in its class
    chosen = np.zeros(len(labels), dtype=bool)
    chosen[order] = place < np.floor(share * counts[labels[order]] + 0.5)
    if not chosen.any():
        raise ValueError(
            f"`train` must have at least three rows of a class for some to be held out; got {len(labels)} rows of "
            f"{int((counts > 0).sum())} classes. Pass labelled data as `val`"
        )
    held_out = torch.from_numpy(chosen)
    warn(
        f"`val` was not given: {int(chosen.sum()):,} of the {len(rows):,} rows of `train` set the threshold. The model "
        "was trained on them, and is surer of them than of new inputs: it will accept fewer of the latter, and nothing "
        "is promised. Pass labelled data that it was not trained on as `val`"
    )
    return Outputs.cat(list(_Selection(rows, held_out))), _Selection(rows, ~held_out)


def _warn_of_margin(made: SelectiveClassifier) -> None:
    """Warn if the margin for rounding more than halves what the threshold rejects."""
    threshold, rows = made._check_threshold(), made.calibration
    assert rows is not None
    low, high = (int((rows < value).sum()) for value in (threshold.value, threshold.value + threshold.margin))
    if threshold.feasible and high >= _FEW_REJECTED and low < high / 2:
        warn(
            f"this guard rejects {low:,} of {len(rows):,} validation rows; it would reject {high:,} if confidences did "
            "not change with batch size, device and rounding: to allow for that, its threshold is lower by "
            f"{threshold.margin:.2g}. If `val` is outputs, pass images instead: they show how much confidences change"
        )


def _premise_remark(scorer: Scorer, score: str, rows: Outputs) -> str:
    """One line that says for which S2 scores SIRC's premise holds; empty for a score without S2."""
    from sirc.evaluation.premise import check_assumptions

    spec, fitted = scorer.parsed(score), scorer.parameters.get(score, {})
    specs = [score] if spec.name == "sirc" else []
    if {"a", "b"} <= fitted.keys():  # the middle of each S2 score and the inverse of its scale
        middles = zip(spec.args[1:], fitted["a"].tolist(), fitted["b"].tolist(), strict=True)
        specs = [f"sirc({spec.args[0]}, {s2}, a={a - 3 / b!r}, b={b!r})" for s2, a, b in middles]
    if not specs:
        return ""
    alike: dict[str, dict[str, str]] = {}  # by kind of verdict: the first reason of each score
    for s2, verdict in check_assumptions(Scorer(specs, scorer.parameters), rows).verdicts.items():
        kind, _, why = verdict.partition(": ")
        alike.setdefault(kind, {})[f"`{s2}`"] = re.split(r"; (?![^(]*\))", why)[0]
    parts = []
    for kind, reasons in alike.items():
        names, why = list(reasons), next(iter(reasons.values()))
        reason = f"{names[0]}: {why}" if why and len(names) > 1 else why
        parts.append(f"{kind} for {listed(names)}" + (f" ({reason})" if reason else ""))
    return f"Premise, that features do not speak against what it gets right: {'; '.join(parts)}."


def _validation_remark(val: object, rows: Outputs, names: Sequence[str] | None) -> str:
    """One line about validation rows that the model was trained on, or that lack classes; else empty."""
    assert rows.labels is not None
    if val is None:
        return "The threshold was set on held-out training rows: the model was trained on them, and is surer of them."
    absent = sorted(set(range(rows.num_classes)) - set(rows.labels.tolist()))
    some = [str(names[i] if names else i) for i in absent[:_MOST_ABSENT]] + ["…"] * (len(absent) > _MOST_ABSENT)
    which = shorten(", ".join(some))
    return f"The validation rows lack {len(absent)} of {rows.num_classes} classes: {which}." if absent else ""
