"""Every metric as a plain loop over thresholds, in exact fractions. Nothing of sirc is used here.

Groups are lists of numbers. A set of OOD weights is optional, one for each OOD score. α and β are floats, taken at
their exact value.
"""

import math
from fractions import Fraction
from statistics import NormalDist


class Mixture:
    """The three groups; thresholds are their distinct scores, the highest first."""

    def __init__(self, correct, wrong, ood, weights=None):
        self.correct, self.wrong, self.ood = list(correct), list(wrong), list(ood)
        self.weights = [Fraction(w) for w in (weights if weights is not None else [1] * len(self.ood))]
        self.thresholds = sorted({*self.correct, *self.wrong, *self.ood}, reverse=True)
        self.n_id = len(self.correct) + len(self.wrong)

    def recall(self, t):
        return Fraction(count_above(self.correct, t), len(self.correct))

    def wrong_share(self, t):
        return Fraction(count_above(self.wrong, t), len(self.wrong)) if self.wrong else Fraction(0)

    def ood_share(self, t):
        if not self.ood:
            return Fraction(0)
        return sum((w for s, w in zip(self.ood, self.weights, strict=True) if s >= t), Fraction(0)) / sum(self.weights)

    def coverage(self, t, alpha):
        inside = Fraction(count_above(self.correct, t) + count_above(self.wrong, t), self.n_id)
        return Fraction(alpha) * inside + (1 - Fraction(alpha)) * self.ood_share(t)

    def loss(self, t, alpha, beta):
        a, b = Fraction(alpha), Fraction(beta)
        return b * a * Fraction(count_above(self.wrong, t), self.n_id) + (1 - b) * (1 - a) * self.ood_share(t)

    def risk(self, t, alpha, beta):
        covered = self.coverage(t, alpha)
        return self.loss(t, alpha, beta) / covered if covered else Fraction(0)

    def aurr(self, alpha, beta):
        area, before = Fraction(0), Fraction(0)
        for t in self.thresholds:
            area += (self.recall(t) - before) * self.risk(t, alpha, beta)
            before = self.recall(t)
        return float(area)

    def aurc(self, alpha, beta):
        area, before = Fraction(0), Fraction(0)
        for t in self.thresholds:
            area += (self.coverage(t, alpha) - before) * self.risk(t, alpha, beta)
            before = self.coverage(t, alpha)
        return float(area)

    def augrc(self, alpha, beta):
        area, before, lost = Fraction(0), Fraction(0), Fraction(0)
        for t in self.thresholds:
            area += (self.coverage(t, alpha) - before) * (self.loss(t, alpha, beta) + lost) / 2
            before, lost = self.coverage(t, alpha), self.loss(t, alpha, beta)
        return float(area)

    def auroc(self, negative, positive="correct"):
        positives = self.correct if positive == "correct" else self.correct + self.wrong
        if negative == "wrong":
            return float(auroc(positives, self.wrong))
        return float(auroc(positives, self.ood, self.weights))

    def threshold_at_recall(self, recall, positive="correct"):
        """The highest threshold with a recall, as a float, of at least that; +inf for none at all."""
        positives = self.correct if positive == "correct" else self.correct + self.wrong
        if recall == 0:
            return math.inf
        return next(t for t in self.thresholds if count_above(positives, t) / len(positives) >= recall)

    def fpr(self, negative, recall, positive="correct"):
        t = self.threshold_at_recall(recall, positive)
        if t == math.inf and recall == 0:
            return 0.0
        return float(self.wrong_share(t) if negative == "wrong" else self.ood_share(t))

    def risk_at_recall(self, recall, alpha, beta):
        if recall == 0:
            return 0.0
        return float(self.risk(self.threshold_at_recall(recall), alpha, beta))

    def oracle_loss(self, coverage, alpha, beta):
        """The least loss with which a coverage can be reached: the three masses, the cheapest first."""
        a, b = Fraction(alpha), Fraction(beta)
        masses = [
            (Fraction(0), a * Fraction(len(self.correct), self.n_id)),
            (b, a * Fraction(len(self.wrong), self.n_id)),
            (1 - b, 1 - a),
        ]
        left, lost = Fraction(coverage), Fraction(0)
        for cost, mass in sorted(masses):
            lost += cost * min(left, mass)
            left -= min(left, mass)
        return lost


def count_above(scores, t):
    return sum(s >= t for s in scores)


def auroc(positives, negatives, weights=None):
    """The share of pairs in the right order, equal ones half."""
    weights = [Fraction(1)] * len(negatives) if weights is None else weights
    total = sum(weights) * len(positives)
    found = Fraction(0)
    for p in positives:
        for n, w in zip(negatives, weights, strict=True):
            found += w * ((p > n) + Fraction(p == n) / 2)
    return found / total


def delong(positives, negatives, level):
    """DeLong, DeLong and Clarke-Pearson 1988, literally: structural components by a double loop over pairs."""

    def psi(p, n):
        return 1.0 if p > n else 0.5 if p == n else 0.0

    m, k = len(positives), len(negatives)
    area = sum(psi(p, n) for p in positives for n in negatives) / (m * k)
    v10 = [sum(psi(p, n) for n in negatives) / k for p in positives]
    v01 = [sum(psi(p, n) for p in positives) / m for n in negatives]
    s10 = sum((v - area) ** 2 for v in v10) / (m - 1)
    s01 = sum((v - area) ** 2 for v in v01) / (k - 1)
    reach = NormalDist().inv_cdf((1 + level) / 2) * math.sqrt(s10 / m + s01 / k)
    return max(0.0, area - reach), min(1.0, area + reach)


def repeated(values, counts):
    """Each value as often as it was drawn."""
    return [value for value, count in zip(values, counts, strict=True) for _ in range(int(count))]
