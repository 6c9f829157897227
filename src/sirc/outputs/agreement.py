"""Agreement of predictions with labels: a warning where they agree as if the classes were numbered otherwise."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from sirc._utils.text import percent
from sirc._utils.warn import warn
from sirc.metrics import at_least
from sirc.outputs.store import OutputStore

_FAR = 0.1  # accuracy that renumbered classes must gain; what a network of any use has above chance
_FEW = 50  # rows say nothing of chance
_MISSED = 31  # rows of other classes than the one that is always predicted: who finds one in five would have found some
_SURE = 1e-6  # how unlikely a gain must be without a cause
_SHARDS = 8  # of a store are looked at, evenly spread: class by class is how folders are read


def warn_of_labels(name: str, predictions: Tensor, labels: Tensor) -> None:
    """Warn if labels, those of a dataset called `name`, are probably not what the network's outputs stand for."""
    if doubt := _doubt(name, predictions, labels):
        warn(doubt)


def _doubt(name: str, predictions: Tensor, labels: Tensor) -> str:
    """The words of the warning, if there is reason for one.

    Either other numbers of the classes agree far better: the best match of predicted with true classes, made on every
    other row, gains 10 points of accuracy on the rows between, by more than noise. Or the accuracy is that of chance,
    the one of predictions that have nothing to do with the labels, and 10 points above it are ruled out. Or all
    predictions are of one class, and many labels are not. A network that is bad but honest gives none, nor do few rows.
    """
    labels, predictions = labels.cpu(), predictions.cpu()
    rows, right = len(labels), int((predictions == labels).sum())
    fresh = slice(1, None, 2)
    renumbered = _renumbered(predictions[::2], labels[::2], predictions[fresh])
    gained = int(((renumbered == labels[fresh]) & (predictions[fresh] != labels[fresh])).sum())
    lost = int(((renumbered != labels[fresh]) & (predictions[fresh] == labels[fresh])).sum())
    agree = f"the predictions for '{name}' agree with its labels in {percent(right / max(1, rows))} of {rows:,} rows"
    if gained - lost > _FAR * len(renumbered) and at_least(gained, gained + lost, 0.5) < _SURE:
        best = percent(float((renumbered == labels[fresh]).double().mean()))
        return (
            f"{agree}, and in {best} if the classes are numbered otherwise. The labels probably stand in another order "
            "than the network's outputs: folders named by numbers sort as text, 0, 1, 10, 2 (`sirc data check folder "
            "PATH` shows it). Number the labels as the outputs are, or give the order of the classes, `classes=…`."
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
    by_chance = at_least(right, rows, chance) > 0.01 and at_least(right + 1, rows, chance) < 0.99
    if by_chance and at_least(right + 1, rows, min(1.0, chance + _FAR)) > 0.999:
        return (
            f"{agree}, as chance would ({percent(chance)}), and no other numbering of the classes is better. The "
            "weights, the preprocessing or the labels are probably not this network's: was it trained, and are the "
            "labels in the order of the rows?"
        )
    return ""


def doubt_of_store(name: str, store: OutputStore) -> str:
    """What to warn of in the labels of stored outputs, if it has any, from some of its shards; empty if nothing."""
    pairs = []
    for i in range(0, store.num_shards if store.has_labels else 0, -(-store.num_shards // _SHARDS)):
        part = store.shard(i)
        if part.labels is not None:
            pairs.append(torch.stack((part.predictions, part.labels)))
    return _doubt(name, *torch.cat(pairs, dim=1)) if pairs else ""


def _renumbered(predictions: Tensor, labels: Tensor, others: Tensor) -> Tensor:
    """Give other predictions the class that fits best: the most frequent pair of classes first, each class once."""
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
