"""Toys whose optimum is known: two classes, the gap of the logits exponential, S2 normal, so that u and g are exact.

S2 is `l1` of the one feature, kept positive by a constant. Nothing of sirc is imported here.
"""

from dataclasses import dataclass

import numpy as np

TYPICAL = 50.0


@dataclass(frozen=True)
class Rows:
    """Arrays of some rows, and what is known of them."""

    logits: np.ndarray
    features: np.ndarray
    labels: np.ndarray
    log_u: np.ndarray
    log_g: np.ndarray

    @property
    def s2(self):
        return self.features[:, 0]


@dataclass(frozen=True)
class Toy:
    """OOD rows lie `shift` σ lower in S2, and their gap has the mean `ood_gap` instead of `id_gap`.

    `sharp`: by how much the network overstates the gap, its errors being as frequent as the true gap says.
    """

    shift: float
    id_gap: float = 4.0
    ood_gap: float = 2.0
    sharp: float = 1.0

    def rows(self, n, seed, *, ood=False):
        rng = np.random.default_rng(seed)
        gap = rng.exponential(self.ood_gap if ood else self.id_gap, n)
        s2 = rng.normal(-self.shift if ood else 0.0, 1.0, n)
        winner = rng.integers(0, 2, n)
        logits = np.zeros((n, 2))
        logits[np.arange(n), winner] = self.sharp * gap
        right = rng.random(n) < 1 / (1 + np.exp(-gap))
        log_g = -self.shift * s2 - self.shift**2 / 2
        log_g += np.log(self.id_gap / self.ood_gap) + gap / self.id_gap - gap / self.ood_gap
        labels = np.where(right, winner, 1 - winner)
        return Rows(logits, s2[:, None] + TYPICAL, labels, -np.logaddexp(0, gap), log_g)


NONE, WEAK, STRONG, ALONE, FAR = Toy(0.0), Toy(0.5, ood_gap=1.5), Toy(2.0, ood_gap=1.5), Toy(2.0, ood_gap=4.0), Toy(4.0)
SHARP = Toy(2.0, sharp=3.0)
TOYS = {"no S2": NONE, "weak S2": WEAK, "strong S2": STRONG, "S2 alone": ALONE, "far": FAR, "overconfident": SHARP}
