"""What specs ask of the data: features, training rows and their labels, the head, validation rows, a fit network."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import final

import torch

from sirc.outputs import Outputs
from sirc.progress import Progress
from sirc.scores import registry
from sirc.scores.moments import counts_classes
from sirc.scores.scorer import learns
from sirc.scores.spec import Spec, parse
from sirc.scores.values import needed_leaves

_SIGNED = 0.1  # share of negative features in ‖z‖₁ above which a network is not one that ends in a ReLU, or nearly so


@final
@dataclass(frozen=True)
class Needs:
    """What must be there for some specs to be fitted and computed, and what they take where it is there."""

    features: bool
    train: bool
    labels: bool
    """Of the training rows."""
    head: bool
    val: bool
    """Labelled ID validation rows, without which there is no fit."""
    tuned: bool
    """Whether they are tuned on such rows where there are any."""

    @classmethod
    def of(cls, specs: Iterable[str | Spec]) -> Needs:
        """Of all these specs together."""
        parsed = [parse(spec) if isinstance(spec, str) else spec for spec in specs]
        leaves = needed_leaves(parsed)
        scores = [registry.get(leaf.name) for leaf in leaves]
        parts = [part for spec in parsed for part in spec.walk()]
        required = any(part.tunes for part in parts)
        # An option that is given, were it the default, is not tuned.
        chosen = any(registry.get(leaf.name).tune is not None and not leaf.options for leaf in leaves)
        return cls(
            features=any("features" in score.needs for score in scores),
            train=learns(parsed),
            labels=any(counts_classes(score.evidence) for score in scores),
            head=any(score.head for score in scores),
            val=required,
            tuned=required or chosen or any(part.name == "bayes" for part in parts),
        )


def tell_unfit(specs: Iterable[str], outputs: Outputs, progress: Progress) -> None:
    """Note which of the scores are not for this network: those `unfit` for signed features, if these rows' are.

    Signed: more than a tenth of ‖z‖₁ is of negative features, which about half is after a LayerNorm, and none after a
    ReLU. The scores are computed all the same.
    """
    leaves = [leaf for leaf in needed_leaves([parse(text) for text in specs]) if registry.get(leaf.name).unfit]
    if not leaves or outputs.features is None:
        return
    size = float(outputs.features.abs().sum(dtype=torch.float64))
    negative = float(outputs.features.clamp_max(0).abs().sum(dtype=torch.float64)) / (size or 1.0)
    if negative > _SIGNED:
        for leaf in leaves:
            progress.note(
                f"note: `{leaf}` is not for this network, {negative:.0%} of whose features' size is negative. It is "
                f"unfit for {registry.get(leaf.name).unfit}."
            )
