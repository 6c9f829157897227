"""Ensembles: several classifiers as one network that gives their mean softmax."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, final

import torch
from torch import Tensor, nn

from sirc._utils.checks import iterates
from sirc._utils.text import quoted
from sirc.models.calling import call_model, model_logits, unwrap


@final
class Ensemble(nn.Module):
    """Several classifiers of the same classes as one network: `Ensemble([first, second, third])`.

    The softmax of its logits is the mean of the members' softmax, and their energy, logsumexp v, is the mean of the
    members' energies; an ensemble of one keeps that model's logits. Its features are those of all members,
    concatenated. No layer maps these features to the logits, so an ensemble has no `Head`.
    """

    def __init__(self, models: Sequence[nn.Module]) -> None:
        super().__init__()
        if not iterates(models) or not (members := list(models)):
            raise ValueError(f"an ensemble must be a list of at least one model; got {quoted(models)}")
        if others := [model for model in members if not isinstance(model, nn.Module)]:
            raise ValueError(
                f"each model of an ensemble must be a torch.nn.Module; got {type(others[0]).__name__}. Build it first: "
                "`sirc.models.build(name, …)`"
            )
        self.members = nn.ModuleList(map(unwrap, members))

    def forward(self, *inputs: Any, **named: Any) -> Tensor:
        """Compute the logits of a batch, which each member gets as it would alone."""
        batch: object = [inputs] if inputs else named
        logits = [model_logits(call_model(member, batch)).float() for member in self.members]
        if len(counts := {one.shape[1] for one in logits}) > 1:
            raise ValueError(f"the members of an ensemble must have the same classes; got {sorted(counts)} outputs")
        stacked = torch.stack(logits)
        energies = stacked.logsumexp(-1, keepdim=True)
        return (stacked - energies).logsumexp(0) - math.log(len(logits)) + energies.mean(0)
