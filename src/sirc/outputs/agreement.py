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

_GAIN = 0.1  # accuracy that another numbering must gain, and that a useful network has above chance
_FEWEST_ROWS = 50  # with fewer rows, an accuracy near chance means nothing
_MISSED = 31  # wrong rows, all predicted as one class: a network that gets one in five right would have found another
_P_VALUE = 1e-6  # of a gain in accuracy, below which it is not taken for noise
_SHARDS = 8  # of a store that are read, evenly spread, since folders are read class by class
_FEWEST_CLASSES = 10  # with fewer, numbers sort as text as they do by value, and two orders easily look alike
_OTHER_ORDER = (
    "the classes are numbered differently",
    "The labels probably have another order than the network's outputs: folders named by numbers sort as text, 0, 1, "
    "10, 2 (`sirc data check folder PATH` shows it).",
)
_FROM_ONE = (
    "Probably one of the two counts from 1, the network's first class is a background, or the labels lack a class."
)
_CHECKED = ContextVar("checked", default=False)


@contextmanager
def labels_checked() -> Iterator[None]:
    """Suppress the warning inside, for a caller that has given it: the functions that it calls would repeat it."""
    token = _CHECKED.set(True)
    try:
        yield
    finally:
        _CHECKED.reset(token)


def warn_of_labels(name: str, predictions: Tensor, labels: Tensor) -> None:
    """Warn if the labels of the dataset `name` probably do not fit the order of the network's outputs."""
    if not _CHECKED.get() and (doubt := _warning(name, predictions, labels)):
        warn(doubt)


def _warning(name: str, predictions: Tensor, labels: Tensor) -> str:
    """Write the warning; empty if there is no reason for one. There are four reasons:

    - Another numbering of the classes is far better, by 10 points of accuracy, more than noise explains. It is either a
      common one (names sorted as text, a count from 1), tested on all rows; or the best match of predicted and true
      classes, found on every second row and tested on the other rows.
    - All predictions are one class, and many labels are not.
    - Most predictions are classes beyond all labels, as if the folders were only some of the network's classes.
    - The accuracy is that of chance, as if predictions and labels were independent, and 10 points more are excluded.

    A network that is merely bad gives no warning, and neither do few rows.
    """
    labels, predictions = labels.cpu(), predictions.cpu()
    rows, right = len(labels), int((predictions == labels).sum())
    agree = f"the predictions for '{name}' agree with its labels in {percent(right / max(1, rows))} of {rows:,} rows"
    fresh = slice(1, None, 2)
    learnt = _renumbered(predictions[::2], labels[::2], predictions[fresh])
    # The common numberings need no rows to be learnt from: they are recognised even with one row for each class.
    common, why = max(_common(predictions, labels), key=lambda numbering: int((numbering[0] == labels).sum()))
    candidates = [(common, slice(None), why), (learnt, fresh, _OTHER_ORDER)]
    if (learnt == labels[fresh]).sum() > (common[fresh] == labels[fresh]).sum():
        candidates.reverse()
    for renumbered, tested, (condition, cause) in candidates:
        before, after = predictions[tested] == labels[tested], renumbered == labels[tested]
        gained, lost = int((after & ~before).sum()), int((before & ~after).sum())
        if gained - lost > _GAIN * len(renumbered) and at_least(gained, gained + lost, 0.5) < _P_VALUE:
            return (
                f"{agree}, and in {percent(float(after.double().mean()))} if {condition}. {cause} Number the labels as "
                "the outputs are, or give the order of the classes, `classes=…`."
            )
    if rows < _FEWEST_ROWS:
        return ""
    width = 1 + int(max(predictions.max(), labels.max()))
    predicted, true = (torch.bincount(x, minlength=width).double() / rows for x in (predictions, labels))
    chance = min(1.0, float((predicted * true).sum()))
    if rows - right >= _MISSED and (predictions == predictions[0]).all():
        return (
            f"{agree}, as all predictions are of one class, {int(predictions[0])}. The weights or the preprocessing "
            "are probably not this network's: was it trained?"
        )
    beyond = float((predictions > labels.max()).double().mean())
    if beyond > 0.5:
        return (
            f"{agree}, as {percent(beyond)} of them are of classes beyond {int(labels.max())}, the highest label. "
            "If the folders are only some of the network's classes, number the labels as its outputs are, or give the "
            "order of all its classes, `classes=…`."
        )
    by_chance = at_least(right, rows, chance) > 0.01 and at_least(right + 1, rows, chance) < 0.99
    if by_chance and at_least(right + 1, rows, min(1.0, chance + _GAIN)) > 0.999:
        return (
            f"{agree}, as chance would ({percent(chance)}), and no other numbering of the classes fits "
            "better. The weights, the preprocessing or the labels are probably not this network's: was it trained, and "
            "are the labels in the order of the rows, and numbered as the outputs are?"
        )
    return ""


def doubt_of_store(name: str, store: OutputStore) -> str:
    """Write the warning about the labels of a store, from some of its shards; empty if there is no reason for one."""
    pairs = []
    for i in range(0, store.num_shards if store.has_labels else 0, -(-store.num_shards // _SHARDS)):
        part = store.shard(i)
        if part.labels is not None:
            pairs.append(torch.stack((part.predictions, part.labels)))
    return _warning(name, *torch.cat(pairs, dim=1)) if pairs else ""


def _renumbered(predictions: Tensor, labels: Tensor, others: Tensor) -> Tensor:
    """Renumber `others` by the best match of classes: the most frequent pair first, each class once."""
    if not len(labels) or not len(others):
        return others
    width = 1 + int(labels.max())
    pairs, counts = np.unique((predictions * width + labels).numpy(), return_counts=True)
    matches: dict[int, int] = {}
    taken: set[int] = set()
    for pair in pairs[np.argsort(-counts, kind="stable")].tolist():
        predicted, true = divmod(pair, width)
        if predicted not in matches and true not in taken:
            matches[predicted] = true
            taken.add(true)
    table = torch.arange(1 + int(max(predictions.max(), others.max())))
    for predicted, true in matches.items():
        table[predicted] = true
    return table[others]


def _common(predictions: Tensor, labels: Tensor) -> Iterator[tuple[Tensor, tuple[str, str]]]:
    """Renumber predictions in the ways that are often needed, each with a condition and a cause in words.

    First come the unchanged predictions. Folders named 0, 1, 2, … sort as text, 0, 1, 10, 2, in the labels or in the
    training of the network; or one of the two counts from 1. With few classes these numberings resemble others, and
    only the match that is learnt is used.
    """
    yield predictions, _OTHER_ORDER
    if not len(labels) or int(labels.max()) < _FEWEST_CLASSES - 1:
        return
    classes = 1 + int(labels.max())
    order = torch.tensor(sorted(range(classes), key=str))
    for table in (order.argsort(), order):
        inside = predictions < classes
        yield torch.where(inside, table[predictions.clamp(max=classes - 1)], predictions), _OTHER_ORDER
    yield predictions - 1, ("every label is one higher", _FROM_ONE)
    yield predictions + 1, ("every label is one lower", _FROM_ONE)
