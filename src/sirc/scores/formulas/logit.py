"""Scores of the logits' size: the largest logit and the free energy."""

import torch
from torch import Tensor

from sirc.scores.formulas.softmax import Softmax
from sirc.scores.registry import score


@score(needs="softmax", title="Max Logit", family="logit")
def max_logit(p: Softmax) -> Tensor:
    """The largest logit: max v. Hendrycks et al. 2022."""
    return p.top.clone()


@score(needs="softmax", family="logit")
def energy(p: Softmax) -> Tensor:
    """The free energy, negated: logsumexp v. Liu et al. 2020."""
    return p.top + torch.log1p(p.rest)
