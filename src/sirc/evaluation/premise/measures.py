"""Measures of a `sirc(S1, S2)`: how S1, S2 and SIRC rank ID data and, if there is any, OOD data."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias, final

import numpy as np
import numpy.typing as npt
from torch import Tensor

from sirc.evaluation.inputs import MEAN, WRONG
from sirc.metrics import AurocComponents, Estimate, Ranking, auroc_components, kendall, spearman, wilson_interval
from sirc.scores import functional

STEPS = (2.0, 3.0, 4.0)  # k of a = μ − kσ
SLOPES = (0.5, 1.0, 2.0)  # of b, in 1/σ
HALF = 0.5  # α and β
PLAIN = "plain "  # starts the name of an S2's plain values, as the same score may be an S1 too

Row: TypeAlias = dict[str, object]
FloatArray: TypeAlias = npt.NDArray[np.float64]


@final
@dataclass(frozen=True)
class Second:
    """One S2 of a combination."""

    name: str
    constant: bool
    """Whether all ID rows have the same value."""
    auroc: Mapping[str, Estimate]
    """By negative: `wrong`, each OOD set, `OOD mean`."""
    correlation: Estimate
    """ρ of S1 and S2 on ID data."""
    correlation_correct: Estimate
    """The same among right predictions."""
    below: Mapping[str, Estimate]
    """The share below a, of ID rows (`id`) and of each OOD set; empty where a is not known."""


@final
@dataclass(frozen=True)
class Variation:
    """SIRC with another a = μ − kσ and b = slope/σ."""

    k: float
    slope: float
    auroc: Mapping[str, float]
    aurr: float


@final
@dataclass(frozen=True)
class Pair:
    """One `sirc(S1, S2, …)`."""

    score: str
    s1: str
    seconds: tuple[Second, ...]
    auroc_s1: Mapping[str, Estimate]
    auroc: Mapping[str, Estimate]
    difference: Mapping[str, Estimate]
    """SIRC's AUROC less S1's, by negative."""
    spearman: float
    kendall: float
    """Of S1's and SIRC's rankings of ID data."""
    aurr_s1: float
    aurr: float
    """At α = β = ½, the mean over OOD sets; NaN without any."""
    variations: tuple[Variation, ...]
    """Empty where a and b are not known."""

    @property
    def s2(self) -> str:
        """Its S2, or its several."""
        return ", ".join(second.name for second in self.seconds)


@final
@dataclass(frozen=True)
class Combination:
    """The parts of a `sirc` spec by the names their confidences have, and a and b where they are known."""

    score: str
    s1: str
    s2: tuple[str, ...]
    a: tuple[float, ...] | None = None
    b: tuple[float, ...] | None = None


class Samples:
    """Confidences of one model's ID and OOD data by several scores, and measures that several pairs share."""

    def __init__(
        self,
        confidences: Mapping[str, Tensor],
        correct: Tensor,
        ood: Mapping[str, Mapping[str, Tensor]],
        level: float,
    ) -> None:
        self.confidences, self.correct, self.ood, self.level = confidences, correct, ood, level
        self.num_correct = int(correct.sum())
        self.num_wrong = len(correct) - self.num_correct
        self.negatives = [*([WRONG] if self.num_wrong else []), *ood, *([MEAN] if ood else [])]
        self._components: dict[tuple[str, str], AurocComponents] = {}
        self._aurr: dict[str, float] = {}

    def numpy(self, name: str) -> FloatArray:
        """The confidences of one score as a NumPy array."""
        values: FloatArray = self.confidences[name].double().cpu().numpy()
        return values

    def components(self, name: str, negative: str) -> AurocComponents:
        """The AUROC of one score."""
        if (name, negative) not in self._components:
            values = self.confidences[name]
            groups = (
                [values[~self.correct]]
                if negative == WRONG
                else [by_score[name] for key, by_score in self.ood.items() if negative in (MEAN, key)]
            )
            self._components[name, negative] = auroc_components(values[self.correct], groups)
        return self._components[name, negative]

    def aurr(self, name: str) -> float:
        """The mean AURR over OOD sets of one score."""
        if name not in self._aurr:
            outside = {key: by_score[name] for key, by_score in self.ood.items()}
            self._aurr[name] = self._summary(self.confidences[name], outside)[1]
        return self._aurr[name]

    def measure(self, which: Combination) -> Pair:
        """All measures of a combination."""
        s1, sirc = self.numpy(which.s1), self.numpy(which.score)
        return Pair(
            which.score,
            which.s1,
            tuple(self._second(which, at) for at in range(len(which.s2))),
            self._aurocs(which.s1),
            self._aurocs(which.score),
            {n: self.components(which.score, n).less(self.components(which.s1, n), self.level) for n in self.negatives},
            spearman(s1, sirc, self.level).value,
            kendall(s1, sirc),
            self.aurr(which.s1),
            self.aurr(which.score),
            tuple(self._variations(which)),
        )

    def _second(self, which: Combination, at: int) -> Second:
        name, right = which.s2[at], self.correct.cpu().numpy()
        s1, s2 = self.numpy(which.s1), self.numpy(name)
        below = {}
        if which.a is not None:
            parts = {"id": self.confidences[name], **{key: by_score[name] for key, by_score in self.ood.items()}}
            below = {k: wilson_interval(int((v < which.a[at]).sum()), len(v), self.level) for k, v in parts.items()}
        return Second(
            name.removeprefix(PLAIN),
            bool(len(s2) > 1 and s2.min() == s2.max()),
            self._aurocs(name),
            spearman(s1, s2, self.level),
            spearman(s1[right], s2[right], self.level),
            below,
        )

    def _aurocs(self, name: str) -> dict[str, Estimate]:
        return {n: self.components(name, n).interval(self.level) for n in self.negatives}

    def _variations(self, which: Combination) -> Iterator[Variation]:
        """SIRC on the grid of a and b: as a = μ − 3σ and b = 1/σ, the a of another k is a + (3 − k)/b."""
        if which.a is None or which.b is None:
            return
        for k in STEPS:
            for slope in SLOPES:
                a = [a + (3 - k) / b for a, b in zip(which.a, which.b, strict=True)]
                b = [slope * b for b in which.b]

                def scored(values: Mapping[str, Tensor], a: list[float] = a, b: list[float] = b) -> Tensor:
                    return functional.sirc(-values[which.s1], [values[name] for name in which.s2], a, b)

                inside, outside = scored(self.confidences), {key: scored(x) for key, x in self.ood.items()}
                yield Variation(k, slope, *self._summary(inside, outside))

    def _summary(self, inside: Tensor, outside: Mapping[str, Tensor]) -> tuple[dict[str, float], float]:
        """AUROC of `wrong` and of `OOD mean`, and the mean AURR."""
        right, wrong = inside[self.correct], inside[~self.correct]
        rankings = [Ranking(right, wrong, x) for x in outside.values()]
        aurocs = {WRONG: Ranking(right, wrong).auroc("wrong")} if len(wrong) else {}
        if not rankings:
            return aurocs, math.nan
        aurocs[MEAN] = sum(r.auroc("ood") for r in rankings) / len(rankings)
        return aurocs, sum(float(r.aurr(HALF, HALF)) for r in rankings) / len(rankings)


def rows_of(pair: Pair) -> Iterator[Row]:
    """A pair as rows of the tidy table."""

    def row(of: str, negative: str, metric: str, value: Estimate | float, **more: object) -> Row:
        estimate = value if isinstance(value, Estimate) else Estimate(value, math.nan, math.nan)
        base: Row = {"score": pair.score, "s1": pair.s1, "s2": pair.s2, "of": of, "negative": negative}
        return {**base, "metric": metric, "value": estimate.value, "low": estimate.low, "high": estimate.high, **more}

    yield from (row(pair.s1, n, "auroc", e) for n, e in pair.auroc_s1.items())
    for second in pair.seconds:
        yield from (row(second.name, n, "auroc", e) for n, e in second.auroc.items())
    yield from (row(pair.score, n, "auroc", e, k=3.0, slope=1.0) for n, e in pair.auroc.items())
    yield from (row(pair.score, n, "difference", e) for n, e in pair.difference.items())
    for second in pair.seconds:
        yield row(second.name, "id", "spearman", second.correlation)
        yield row(second.name, "correct", "spearman", second.correlation_correct)
        yield from (row(second.name, n, "below a", e) for n, e in second.below.items())
    yield row(pair.score, "id", "spearman", pair.spearman)
    yield row(pair.score, "id", "kendall", pair.kendall)
    if not math.isnan(pair.aurr):
        yield row(pair.s1, MEAN, "aurr", pair.aurr_s1)
        yield row(pair.score, MEAN, "aurr", pair.aurr, k=3.0, slope=1.0)
    for other in pair.variations:
        at = {"k": other.k, "slope": other.slope}
        if (other.k, other.slope) != (3.0, 1.0):
            yield from (row(pair.score, n, "auroc", v, **at) for n, v in other.auroc.items())
            if not math.isnan(other.aurr):
                yield row(pair.score, MEAN, "aurr", other.aurr, **at)
