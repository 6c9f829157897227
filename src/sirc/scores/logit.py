"""Scores on the logits themselves."""

from __future__ import annotations

import torch
from torch import Tensor

from sirc.scores.registry import score
from sirc.scores.softmax import Softmax


@score(needs="softmax")
def max_logit(p: Softmax) -> Tensor:
    """The largest logit: max v. Hendrycks et al. 2022."""
    return p.top.clone()


@score(needs="softmax")
def energy(p: Softmax) -> Tensor:
    """The free energy, negated: logsumexp v. Liu et al. 2020."""
    return p.top + torch.log1p(p.rest)
