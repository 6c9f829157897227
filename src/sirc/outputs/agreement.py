"""Agreement of predictions with labels: a warning if the class numbers or the weights seem wrong."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import numpy as np
import torch
from torch import Tensor

from sirc._utils.text import percent
from sirc._utils.warn import warn
from sirc.metrics import at_least
from sirc.outputs.store import OutputStore

_FAR = 0.1  # accuracy that another numbering must gain, and that a useful network has above chance
_FEW = 50  # with fewer rows, an accuracy near chance means nothing
_MISSED = 31  # wrong rows, all predicted as one class: a network that gets one in five right would have found another
_SURE = 1e-6  # the probability, without a cause, below which a gain is believed
_SHARDS = 8  # of a store, evenly spread, since folders are read class by class
_FEWEST = 10  # classes: numbers sorted as text differ from 11 on, and of a few classes any two orders are alike
_OTHERWISE = (
    "the classes are numbered otherwise",
    "The labels probably stand in another order than the network's outputs: folders named by numbers sort as text, 0, "
    "1, 10, 2 (`sirc data check folder PATH` shows it).",
)
_FROM_ONE = (
    "Probably one of the two counts from 1, the network has a background as its first class, or the labels lack one."
)
_CHECKED = ContextVar("checked", default=False)


@contextmanager
def labels_checked() -> Iterator[None]:
    """Suppress the warning inside: the caller has given it, and the functions that it calls would repeat it."""
    token = _CHECKED.set(True)
    try:
        yield
    finally:
        _CHECKED.reset(token)


def warn_of_labels(name: str, predictions: Tensor, labels: Tensor) -> None:
    """Warn if the labels of the dataset `name` probably do not belong to the network's outputs."""
    if not _CHECKED.get() and (doubt := _doubt(name, predictions, labels)):
        warn(doubt)


def _doubt(name: str, predictions: Tensor, labels: Tensor) -> str:
    """Word the warning; empty if there is no reason for one. There are four:

    - Another numbering of the classes agrees far better, by 10 points of accuracy, more than noise explains: one that
      is common (names sorted as text, a count from 1), on all rows; or the best match of predicted and true classes,
      found on every second row, on the other rows.
    - All predictions are one class, and many labels are not.
    - Most predictions are classes beyond all labels, as if the folders were only some of the network's classes.
    - The accuracy is that of chance, as if predictions and labels were independent, and 10 points more are excluded.

    A network that is only bad gives no warning, and neither do few rows.
    """
    labels, predictions = labels.cpu(), predictions.cpu()
    rows, right = len(labels), int((predictions == labels).sum())
    agree = f"the predictions for '{name}' agree with its labels in {percent(right / max(1, rows))} of {rows:,} rows"
    fresh = slice(1, None, 2)
    learnt = _renumbered(predictions[::2], labels[::2], predictions[fresh])
    # The common numberings need no rows to be learnt from: they are seen even with one row for each class.
    common, why = max(_common(predictions, labels), key=lambda numbering: int((numbering[0] == labels).sum()))
    ways = [(common, slice(None), why), (learnt, fresh, _OTHERWISE)]
    if int((learnt == labels[fresh]).sum()) > int((common[fresh] == labels[fresh]).sum()):
        ways.reverse()
    for renumbered, which, (condition, cause) in ways:
        before, after = predictions[which] == labels[which], renumbered == labels[which]
        gained, lost = int((after & ~before).sum()), int((before & ~after).sum())
        if gained - lost > _FAR * len(renumbered) and at_least(gained, gained + lost, 0.5) < _SURE:
            return (
                f"{agree}, and in {percent(float(after.double().mean()))} if {condition}. {cause} Number the labels as "
                "the outputs are, or give the order of the classes, `classes=…`."
            )
    if rows < _FEW:
        return ""
    width = 1 + int(max(predictions.max(), labels.max()))
    shares = (torch.bincount(x, minlength=width).double() / rows for x in (predictions, labels))
    chance = min(1.0, float(torch.stack([*shares]).prod(0).sum()))
    if rows - right >= _MISSED and bool((predictions == predictions[0]).all()):
        return (
            f"{agree}, as all predictions are of one class, {int(predictions[0])}. The weights or the preprocessing "
            "are probably not this network's: was it trained?"
        )
    beyond = float((predictions > labels.max()).double().mean())
    if beyond > 0.5:
        return (
            f"{agree}, as {percent(beyond)} of them are of classes beyond {int(labels.max())}, the last of the labels. "
            "If the folders are only some of the network's classes, number the labels as its outputs are, or give the "
            "order of all its classes, `classes=…`."
        )
    by_chance = at_least(right, rows, chance) > 0.01 and at_least(right + 1, rows, chance) < 0.99
    if by_chance and at_least(right + 1, rows, min(1.0, chance + _FAR)) > 0.999:
        return (
            f"{agree}, as chance would ({percent(chance)}), and no other numbering of the classes fits "
            "better. The weights, the preprocessing or the labels are probably not this network's: was it trained, and "
            "are the labels in the order of the rows, and numbered as the outputs are?"
        )
    return ""


def doubt_of_store(name: str, store: OutputStore) -> str:
    """Word the warning about the labels of a store, from some of its shards; empty if there is no reason for one."""
    pairs = []
    for i in range(0, store.num_shards if store.has_labels else 0, -(-store.num_shards // _SHARDS)):
        part = store.shard(i)
        if part.labels is not None:
            pairs.append(torch.stack((part.predictions, part.labels)))
    return _doubt(name, *torch.cat(pairs, dim=1)) if pairs else ""


def _renumbered(predictions: Tensor, labels: Tensor, others: Tensor) -> Tensor:
    """Renumber `others` by the best match of classes: the most frequent pair first, each class once."""
    if not len(labels) or not len(others):
        return others
    width = 1 + int(labels.max())
    pairs, counts = np.unique((predictions * width + labels).numpy(), return_counts=True)
    fits: dict[int, int] = {}
    taken: set[int] = set()
    for pair in pairs[np.argsort(-counts, kind="stable")].tolist():
        predicted, true = divmod(pair, width)
        if predicted not in fits and true not in taken:
            fits[predicted] = true
            taken.add(true)
    table = torch.arange(1 + int(max(predictions.max(), others.max())))
    for predicted, true in fits.items():
        table[predicted] = true
    return table[others]


def _common(predictions: Tensor, labels: Tensor) -> Iterator[tuple[Tensor, tuple[str, str]]]:
    """Renumber predictions as is often needed, with the condition and the cause in words; as they are, to begin with.

    Folders named 0, 1, 2, … sort as text, 0, 1, 10, 2, in the labels or in the training of the network; or one of the
    two counts from 1. With few classes such numberings resemble others, and the match that is learnt must do.
    """
    yield predictions, _OTHERWISE
    if not len(labels) or int(labels.max()) < _FEWEST - 1:
        return
    classes = 1 + int(labels.max())
    order = torch.tensor(sorted(range(classes), key=str))
    for table in (order.argsort(), order):
        inside = predictions < classes
        yield torch.where(inside, table[predictions.clamp(max=classes - 1)], predictions), _OTHERWISE
    yield predictions - 1, ("every label is one higher", _FROM_ONE)
    yield predictions + 1, ("every label is one lower", _FROM_ONE)
