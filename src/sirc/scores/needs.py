"""Needs of specs: features, training rows, labels, the head, validation rows; and a note on unsuited networks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import final

import torch

from sirc.outputs import Outputs
from sirc.progress import Progress
from sirc.scores import registry
from sirc.scores.evaluator import needed_leaves
from sirc.scores.moments import counts_classes
from sirc.scores.scorer import learns
from sirc.scores.spec import WITNESSES, Spec, parse

_SIGNED = 0.1  # with a larger share of negative features in ‖z‖₁, a network does not end in a ReLU or the like


@final
@dataclass(frozen=True)
class Needs:
    """The data that some specs need to be fitted and computed.

    `features`, `labels` (of training rows), `head` and `val` (labelled ID validation rows) hold the parts of the specs
    that require them.
    """

    features: tuple[Spec, ...]
    train: bool
    labels: tuple[Spec, ...]
    head: tuple[Spec, ...]
    val: tuple[Spec, ...]
    tuned: bool
    """Whether the specs are tuned on validation rows if there are any."""

    @classmethod
    def of(cls, specs: Iterable[str | Spec]) -> Needs:
        """The needs of all these specs together."""
        parsed = [parse(spec) if isinstance(spec, str) else spec for spec in specs]
        # Of its witnesses, a `scod` requires only the last.
        parsed = [spec.with_defaults(lambda scod: scod.witnessed_by(WITNESSES[-1:])) for spec in parsed]
        scores = [(leaf, registry.get(leaf.name)) for leaf in needed_leaves(parsed)]
        parts = dict.fromkeys(part for spec in parsed for part in spec.walk())
        # An option that is given in the spec is not tuned, even at its default.
        tuned = any(score.tune is not None and not leaf.options for leaf, score in scores)
        val = (*(leaf for leaf, score in scores if score.val), *(part for part in parts if part.tunes))
        return cls(
            features=tuple(leaf for leaf, score in scores if "features" in score.needs),
            train=learns(parsed),
            labels=tuple(leaf for leaf, score in scores if counts_classes(score.evidence)),
            head=tuple(leaf for leaf, score in scores if score.head),
            val=val,
            tuned=tuned or bool(val) or any(part.name == "bayes" for part in parts),
        )


def warn_unsuited(specs: Iterable[str], outputs: Outputs, progress: Progress) -> None:
    """Note the scores that are `unsuited_for` signed features, if more than a tenth of ‖z‖₁ of these rows is negative.

    About half of it is negative after a LayerNorm, and none after a ReLU. The scores are computed anyway.
    """
    leaves = [leaf for leaf in needed_leaves([parse(text) for text in specs]) if registry.get(leaf.name).unsuited_for]
    if not leaves or outputs.features is None:
        return
    size = float(outputs.features.abs().sum(dtype=torch.float64))
    negative = float(outputs.features.clamp_max(0).abs().sum(dtype=torch.float64)) / (size or 1.0)
    for leaf in leaves if negative > _SIGNED else ():
        progress.note(
            f"note: `{leaf}` does not suit this network: {negative:.0%} of its features' 1-norm is negative. It is "
            f"unsuited for {registry.get(leaf.name).unsuited_for}."
        )
