"""Measures of a `sirc(S1, S2)`: how S1, S2 and SIRC rank ID data and, if there is any, OOD data."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias, final

from torch import Tensor

from sirc.evaluation.inputs import MEAN, WRONG
from sirc.metrics import Estimate, Ranking, auroc_influences, spearman, wilson_interval
from sirc.scores import functional

FITTED = (3.0, 1.0)  # k and slope of a = μ − kσ and b = slope/σ
VARIED = [(k, slope) for k in (2.0, 3.0, 4.0) for slope in (0.5, 1.0, 2.0)]
HALF = 0.5  # α and β
PLAIN = "plain "  # prefix of the name of an S2's plain values, as the same score may be an S1 too

ScoreValues: TypeAlias = Mapping[str, Tensor]
Key: TypeAlias = tuple[str, str, str, float | None, float | None]
"""The score that is measured, the negative, the metric, and for SIRC with other a and b their k and slope."""


@final
@dataclass(frozen=True)
class Measured:
    """The parts of a `sirc` spec, by the names of their confidences, and their measures."""

    score: str
    s1: str
    s2: tuple[str, ...]
    a: tuple[float, ...] = ()
    b: tuple[float, ...] = ()
    """Both are empty if not known."""
    constant: tuple[str, ...] = ()
    """Each S2 that is the same for all ID rows."""
    measures: Mapping[Key, Estimate] = field(default_factory=dict)

    @property
    def s2_names(self) -> str:
        """Its S2 scores, as text."""
        return ", ".join(name.removeprefix(PLAIN) for name in self.s2)

    def has(self, negative: str) -> bool:
        """Whether ID✓ was measured against this negative."""
        return (self.s1, negative, "auroc", None, None) in self.measures

    def of(self, name: str, negative: str, metric: str) -> Estimate:
        """One measure of S1, an S2 or SIRC."""
        varies = name == self.score and metric in ("auroc", "aurr")
        return self.measures[name, negative, metric, *(FITTED if varies else (None, None))]

    def gain(self, negative: str) -> Estimate:
        """SIRC's AUROC minus S1's."""
        return self.of(self.score, negative, "difference")

    def span(self, negative: str, metric: str) -> list[float]:
        """The measures of SIRC with every a and b that was tried; empty if a and b are not known."""
        keys = [(self.score, negative, metric, k, slope) for k, slope in VARIED]
        return [self.measures[key].value for key in keys] if self.a else []


class Samples:
    """The confidences of one model on ID and OOD data, and the AUROCs that several combinations share."""

    def __init__(
        self,
        combinations: Sequence[Measured],
        confidences: ScoreValues,
        correct: Tensor,
        ood: Mapping[str, ScoreValues],
        level: float,
    ) -> None:
        self.confidences, self.correct, self.ood, self.level = confidences, correct, ood, level
        sets: dict[str, list[str]] = {WRONG: []} if not bool(correct.all()) else {}
        sets |= {**{name: [name] for name in ood}, **({MEAN: list(ood)} if ood else {})}
        self.aurocs, self.aurr = {}, {}
        for name in dict.fromkeys(name for parts in combinations for name in (parts.s1, parts.score, *parts.s2)):
            values = confidences[name]
            self.aurocs[name] = {
                n: auroc_influences(values[correct], [ood[one][name] for one in members] or [values[~correct]])
                for n, members in sets.items()
            }
        for name in dict.fromkeys(name for parts in combinations for name in (parts.s1, parts.score)):
            self.aurr[name] = self._summary(confidences[name], [by_score[name] for by_score in ood.values()])[1]

    def measure(self, parts: Measured) -> Measured:
        """Add all measures to a combination."""
        from scipy.stats import kendalltau

        measures: dict[Key, Estimate] = {}

        def add(of: str, metric: str, values: Mapping[str, Estimate | float], *at: float) -> None:
            k, slope = at or (None, None)
            for negative, value in values.items():
                estimate = value if isinstance(value, Estimate) else Estimate(value)
                measures.setdefault((of, negative, metric, k, slope), estimate)

        s1, sirc, *seconds = (self.confidences[n].double().cpu().numpy() for n in (parts.s1, parts.score, *parts.s2))
        right, level = self.correct.cpu().numpy(), self.level
        for name in (parts.s1, *parts.s2, parts.score):
            intervals = {n: one.interval(level) for n, one in self.aurocs[name].items()}
            add(name, "auroc", intervals, *(FITTED if name == parts.score else ()))
        base = self.aurocs[parts.s1]
        add(parts.score, "difference", {n: x.less(base[n], level) for n, x in self.aurocs[parts.score].items()})
        for at, (name, s2) in enumerate(zip(parts.s2, seconds, strict=True)):
            of_right = spearman(s1[right], s2[right], level)
            add(name, "spearman", {"id": spearman(s1, s2, level), "correct": of_right})
            if parts.a:
                rows = {"id": self.confidences[name], **{key: by_score[name] for key, by_score in self.ood.items()}}
                below = {key: wilson_interval(int((x < parts.a[at]).sum()), len(x), level) for key, x in rows.items()}
                add(name, "below a", below)
        add(parts.score, "spearman", {"id": spearman(s1, sirc, level).value})
        add(parts.score, "kendall", {"id": float(kendalltau(s1, sirc).statistic) if len(s1) > 1 else math.nan})
        if self.ood:
            add(parts.s1, "aurr", {MEAN: self.aurr[parts.s1]})
            add(parts.score, "aurr", {MEAN: self.aurr[parts.score]}, *FITTED)
        for variation in VARIED if parts.a else ():
            inside, *outside = (_varied(parts, x, *variation) for x in (self.confidences, *self.ood.values()))
            aurocs, aurr = self._summary(inside, outside)
            add(parts.score, "auroc", aurocs, *variation)
            add(parts.score, "aurr", {MEAN: aurr} if self.ood else {}, *variation)
        constant = [name for name, x in zip(parts.s2, seconds, strict=True) if len(x) > 1 and x.min() == x.max()]
        return replace(parts, constant=tuple(constant), measures=measures)

    def _summary(self, inside: Tensor, outside: Sequence[Tensor]) -> tuple[dict[str, float], float]:
        """The AUROC of `wrong` and `OOD mean`, and the mean AURR."""
        right, wrong = inside[self.correct], inside[~self.correct]
        rankings = [Ranking(right, wrong, x) for x in outside]
        aurocs = {WRONG: Ranking(right, wrong).auroc("wrong")} if len(wrong) else {}
        if not rankings:
            return aurocs, math.nan
        aurocs[MEAN] = sum(ranking.auroc("ood") for ranking in rankings) / len(rankings)
        return aurocs, sum(float(ranking.aurr(HALF, HALF)) for ranking in rankings) / len(rankings)


def _varied(parts: Measured, values: ScoreValues, k: float, slope: float) -> Tensor:
    """SIRC with another a and b: as a = μ − 3σ and b = 1/σ, the a of another k is a + (3 − k)/b."""
    a = [a + (3 - k) / b for a, b in zip(parts.a, parts.b, strict=True)]
    return functional.sirc(-values[parts.s1], [values[name] for name in parts.s2], a, [slope * b for b in parts.b])
