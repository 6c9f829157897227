"""The plain formulas, one function each: arrays in, a 1-D float64 tensor of confidences out. Nothing is fitted here.

Arguments are torch tensors, NumPy arrays, or anything `Outputs` takes. `msp`, `doctor` and `entropy` are the plain
values of the paper, which reach their maximum when the softmax saturates; `log_gap` keeps confident rows apart.
"""

from sirc.scores.functional.combinations import additive, bayes, linear, product, sirc, sirc_literal
from sirc.scores.functional.features import (
    ash,
    cop,
    fdbd,
    gradnorm,
    knn,
    l1,
    mahalanobis,
    mahalanobis_pp,
    nci,
    nnguide,
    react,
    relative_mahalanobis,
    residual,
    scale,
    vim,
)
from sirc.scores.functional.logits import (
    doctor,
    energy,
    entropy,
    gen,
    log_gap,
    margin,
    max_logit,
    max_logit_pnorm,
    msp,
    softmax,
    tempered_entropy,
    tempered_msp,
)

__all__ = [
    "additive",
    "ash",
    "bayes",
    "cop",
    "doctor",
    "energy",
    "entropy",
    "fdbd",
    "gen",
    "gradnorm",
    "knn",
    "l1",
    "linear",
    "log_gap",
    "mahalanobis",
    "mahalanobis_pp",
    "margin",
    "max_logit",
    "max_logit_pnorm",
    "msp",
    "nci",
    "nnguide",
    "product",
    "react",
    "relative_mahalanobis",
    "residual",
    "scale",
    "sirc",
    "sirc_literal",
    "softmax",
    "tempered_entropy",
    "tempered_msp",
    "vim",
]
