"""Ranking: the scores of ID✓, ID✗ and OOD sorted once; every metric, for every α and β, follows from counts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Literal, final

import torch
from torch import Tensor

from sirc._utils.arrays import ArrayLike, as_tensor, ascending_order
from sirc._utils.checks import check_fraction, check_number, check_positive, check_unit_interval
from sirc._utils.fused import attempt
from sirc._utils.text import quoted
from sirc.metrics import areas
from sirc.metrics.checks import check_scores, check_weights

Negative = Literal["wrong", "ood"]
Positive = Literal["correct", "id"]
Shares = tuple[Tensor, Tensor, Tensor]

# Thresholds worked on together, so that memory stays near that of the scores; a GPU wants more, for fewer launches.
_CPU_CHUNK, _GPU_CHUNK = 1 << 20, 1 << 22


@final
@dataclass(frozen=True)
class Curve:
    """Points of a curve, one for each threshold, the strictest first; 1-D float64 tensors."""

    x: Tensor
    """Recall or coverage."""
    risk: Tensor
    threshold: Tensor
    """A point accepts the scores at or above this."""


@final
class Ranking:
    """Scores of the three groups, sorted once.

    `wrong` and `ood` may be empty or None; without OOD scores, α must be 1. `ood_weights` are the weights of the OOD
    scores, up to a common factor; by default all weigh the same. Scores may be infinite, but not NaN.

    Metrics take α and β as numbers or 1-D arrays: two numbers give a float, one array a 1-D tensor, two arrays the
    (α, β) grid.

    Example:
        >>> import sirc
        >>> r = sirc.Ranking(correct=[0.9, 0.8, 0.7], wrong=[0.4], ood=[0.75, 0.1])
        >>> r
        Ranking(3 correct, 1 wrong, 2 ood)
        >>> round(r.auroc("ood"), 4), r.fpr("ood", recall=0.95)
        (0.8333, 0.5)
        >>> r.aurr([0.5, 0.9], 0.5).shape
        torch.Size([2])
    """

    def __init__(
        self,
        correct: ArrayLike,
        wrong: ArrayLike | None = None,
        ood: ArrayLike | None = None,
        *,
        ood_weights: ArrayLike | None = None,
    ) -> None:
        groups = check_scores(correct, wrong, ood)
        weights = None if ood_weights is None else check_weights(ood_weights, groups[2])
        scores = torch.cat(groups)
        # With weights, not `_sorted`: the order of equal scores decides how sums of weights are rounded.
        scores, order = _sorted(scores) if weights is None else scores.sort(descending=True)
        self._count(groups, weights, scores, order)

    def _count(self, groups: Sequence[Tensor], weights: Tensor | None, scores: Tensor, order: Tensor) -> Tensor:
        """Count what each threshold accepts; returns flags of the sorted scores that are thresholds."""
        sizes = [len(group) for group in groups]
        # Equal scores are accepted together, so the last of them is the threshold.
        last = torch.ones(len(scores), dtype=torch.bool, device=scores.device)
        torch.ne(scores[:-1], scores[1:], out=last[:-1])
        inside = sizes[0] + sizes[1]
        correct = (order < sizes[0]).cumsum(0, dtype=torch.int32)
        wrong = (order < inside).cumsum(0, dtype=torch.int32) - correct
        if weights is None:
            ood = (order >= inside).cumsum(0, dtype=torch.int32)
        else:
            ood = torch.cat((weights.new_zeros(inside), weights))[order].cumsum(0)
        columns = [scores, correct, wrong, ood]
        if not bool(last.all()):
            kept = last.nonzero()[:, 0]
            columns = [column.index_select(0, kept) for column in columns]
        self._set_counts(columns, sizes)
        return last

    @classmethod
    def placed(cls, groups: Sequence[Tensor], ood_weights: Tensor | None = None) -> tuple[Ranking, Tensor]:
        """Rank the scores of ID✓, ID✗ and OOD; also returns the index of the threshold that first accepts each."""
        made, (scores, order) = cls.__new__(cls), _sorted(torch.cat(list(groups)))
        last = made._count(groups, ood_weights, scores, order)
        return made, torch.empty_like(order).scatter_(0, order, last.cumsum(0) - last.long())

    @classmethod
    def _of_counts(cls, columns: Sequence[Tensor], sizes: Sequence[int], after_chunk: Callable[[], object]) -> Ranking:
        """A ranking from what `_set_counts` takes; `after_chunk` is called after each chunk of thresholds."""
        made = cls.__new__(cls)
        made._set_counts(columns, sizes)
        made._after_chunk = after_chunk
        return made

    def _set_counts(self, columns: Sequence[Tensor], sizes: Sequence[int]) -> None:
        """Take the thresholds, the strictest first, what each accepts of ID✓, ID✗ and OOD, and the groups' sizes."""
        self.thresholds, self._correct, self._wrong, self._ood = columns
        self.num_correct, self.num_wrong, self.num_ood = sizes
        self._ood_total = float(self._ood[-1]) if self.num_ood else 1.0
        self._after_chunk: Callable[[], object] = lambda: None
        self._steps: list[areas.Steps] | None = None
        self._sums: dict[tuple[float, ...], tuple[Tensor, Tensor]] = {}
        self._risks: dict[tuple[float, ...], tuple[Tensor, Tensor]] = {}

    def __len__(self) -> int:
        return self.num_correct + self.num_wrong + self.num_ood

    def __repr__(self) -> str:
        return f"Ranking({self.num_correct} correct, {self.num_wrong} wrong, {self.num_ood} ood)"

    @property
    def accuracy(self) -> float:
        """p, the share of right predictions on ID data."""
        return self.num_correct / (self.num_correct + self.num_wrong)

    def auroc(self, negative: Negative, *, positive: Positive = "correct") -> float:
        """P(positive > negative) + ½·P(equal). `positive="id"` is plain OOD detection, OOD|ID.

        Example:
            >>> import sirc
            >>> r = sirc.Ranking(correct=[0.9, 0.8, 0.7], wrong=[0.8, 0.4])
            >>> r.auroc("wrong")  # 4 of 6 pairs in the right order, 1 tie
            0.75
        """
        self._check_pair(negative, positive)
        pairs = (self._pair(steps, negative, positive) for steps in self._chunks())
        return sum(float(areas.trapezoids(rise, pos)) for pos, _, rise in pairs)

    def shares(self) -> Tensor:
        """The accepted shares of ID✓, ID✗ and OOD at each threshold, the strictest first, (3, thresholds)."""
        chunks = self._chunks()
        return chunks[0].shares[:, 1:] if isinstance(chunks, list) else self._as_shares(slice(None))

    @cached_property
    def midway(self) -> Tensor:
        """The shares above each threshold, plus half of those at it."""
        return areas.halfway(self.shares())

    def masses(self, alpha: float) -> Tensor:
        """The shares of ID✓, ID✗ and OOD in the input, (3,)."""
        parts = alpha * self.accuracy, alpha * (1 - self.accuracy), 1 - alpha
        return torch.tensor(parts, dtype=torch.float64, device=self.thresholds.device)

    def costs(self, alpha: float, beta: Tensor) -> Tensor:
        """The loss that each group would add if all of it were accepted, (3, β)."""
        return self.masses(alpha)[:, None] * torch.stack((torch.zeros_like(beta), beta, 1 - beta))

    def risks(self, alpha: float, beta: Tensor) -> tuple[Tensor, Tensor]:
        """At each threshold, 1/coverage and, for each β, the risk; both are 0 where nothing is covered."""
        key = alpha, *beta.tolist()
        if key not in self._risks:
            inverse = (self.masses(alpha) @ self.shares()).reciprocal_().nan_to_num_(posinf=0.0)
            self._risks = {key: (inverse, (self.costs(alpha, beta).T @ self.shares()).mul_(inverse))}
        return self._risks[key]

    def roc(self, negative: Negative, positive: Positive = "correct") -> tuple[Tensor, Tensor]:
        """The true and the false positive rate at each threshold, the strictest first."""
        self._check_pair(negative, positive)
        steps = areas.Steps(self._as_shares(slice(None)), self.accuracy)
        return self._pair(steps, negative, positive)[:2]

    def auroc_interval(
        self, negative: Negative, *, positive: Positive = "correct", level: float = 0.95
    ) -> tuple[float, float]:
        """DeLong's interval for the AUROC."""
        from sirc.metrics import influence  # which imports this module

        level = check_fraction("level", level)
        self._check_pair(negative, positive)
        accepted = self._correct + self._wrong if positive == "id" else self._correct
        counts = [accepted, self._wrong if negative == "wrong" else self._ood]
        if min(int(count[-1]) for count in counts) < 2 or counts[1].is_floating_point():
            raise ValueError(
                f"DeLong's interval needs at least two samples in each group, without `ood_weights`; this is {self!r}"
            )
        components = {}
        for group, (count, other) in {"positive": counts, "negative": counts[::-1]}.items():
            times = count.diff(prepend=count.new_zeros(1))
            components[group] = areas.halfway(other.double() / int(other[-1])).repeat_interleave(times)[None]
        found = influence.normal_estimate(self.auroc(negative, positive=positive), components, level, least=0.0)
        return found.low, found.high

    def fpr(self, negative: Negative, *, recall: float = 0.95, positive: Positive = "correct") -> float:
        """The share of negatives accepted at the highest threshold that accepts at least `recall` of the positives.

        Example:
            >>> import sirc
            >>> r = sirc.Ranking(correct=[0.9, 0.8, 0.7, 0.2], ood=[0.75, 0.1])
            >>> r.fpr("ood", recall=0.75), r.fpr("ood", recall=0.5)
            (0.5, 0.0)
        """
        self._check_pair(negative, positive)
        return float(self._shares_at(self._reaching(recall, positive))[1 if negative == "wrong" else 2])

    def aurr(self, alpha: ArrayLike, beta: ArrayLike) -> float | Tensor:
        """The area under the risk–recall curve, Σ (recallᵢ − recallᵢ₋₁)·riskᵢ.

        Example:
            >>> import sirc
            >>> r = sirc.Ranking(correct=[0.9, 0.7], wrong=[0.8], ood=[0.1])
            >>> round(r.aurr(alpha=0.5, beta=0.5), 4)  # the risk is 0 at the first ID✓, 1/6 at the second
            0.0833
        """
        a, b = self._mixture(alpha, beta)
        sums, _ = self._area_sums(a)
        return _shaped(areas.over_beta(a * sums[:, 0], (1 - a) * sums[:, 1], b), alpha, beta)

    def aurc(self, alpha: ArrayLike, beta: ArrayLike) -> float | Tensor:
        """The area under the risk–coverage curve, Σ (coverageᵢ − coverageᵢ₋₁)·riskᵢ.

        Example:
            >>> import sirc
            >>> r = sirc.Ranking(correct=[0.9, 0.7], wrong=[0.8])
            >>> round(r.aurc(alpha=1, beta=1), 4)  # risks 0, 1/2 and 1/3 at coverages 1/3, 2/3 and 1
            0.2778
        """
        a, b = self._mixture(alpha, beta)
        sums, _ = self._area_sums(a)
        wrong, ood = (a * sums[:, i] + (1 - a) * sums[:, i + 1] for i in (2, 4))
        return _shaped(areas.over_beta(a * wrong, (1 - a) * ood, b), alpha, beta)

    def eaurc(self, alpha: ArrayLike, beta: ArrayLike) -> float | Tensor:
        """AURC minus the area under the oracle's curve: what a perfect score would gain."""
        a, b = self._mixture(alpha, beta)
        oracle = areas.oracle_area(self.accuracy, a[:, None], b[None, :])
        return self.aurc(alpha, beta) - _shaped(oracle, alpha, beta)

    def augrc(self, alpha: ArrayLike, beta: ArrayLike) -> float | Tensor:
        """The area under the generalised risk–coverage curve: loss over coverage, by trapezoids from (0, 0)."""
        a, b = self._mixture(alpha, beta)
        _, sums = self._area_sums(a)
        wrong, ood = (a * sums[i] + (1 - a) * sums[i + 1] for i in (0, 2))
        return _shaped(areas.over_beta(a * wrong, (1 - a) * ood, b), alpha, beta)

    def risk_at_recall(self, recall: float, alpha: ArrayLike, beta: ArrayLike) -> float | Tensor:
        """The risk at the highest threshold that accepts at least `recall` of ID✓; Risk@95 has `recall=0.95`.

        Example:
            >>> import sirc
            >>> r = sirc.Ranking(correct=[0.9, 0.7], wrong=[0.8], ood=[0.1])
            >>> round(r.risk_at_recall(0.95, alpha=0.5, beta=0.5), 4)  # 2 right and 1 wrong are accepted
            0.1667
        """
        return self._risk_at(self._reaching(recall), alpha, beta)

    def risk_recall(self, alpha: float, beta: float) -> Curve:
        """The risk against the recall of ID✓.

        Example:
            >>> import sirc
            >>> curve = sirc.Ranking(correct=[0.9, 0.7], wrong=[0.8]).risk_recall(alpha=1, beta=1)
            >>> curve.x.tolist(), [round(risk, 3) for risk in curve.risk.tolist()]
            ([0.5, 0.5, 1.0], [0.0, 0.5, 0.333])
        """
        recall = self._correct.double() / self.num_correct
        return Curve(recall, self._coverage_risk(slice(None), alpha, beta)[1], self.thresholds.double())

    def risk_coverage(self, alpha: float, beta: float) -> Curve:
        """The risk against the coverage.

        Example:
            >>> import sirc
            >>> curve = sirc.Ranking(correct=[0.9, 0.7], wrong=[0.8, 0.1]).risk_coverage(alpha=1, beta=1)
            >>> curve.x.tolist()
            [0.25, 0.5, 0.75, 1.0]
            >>> curve.threshold.tolist()
            [0.9, 0.8, 0.7, 0.1]
        """
        return Curve(*self._coverage_risk(slice(None), alpha, beta), self.thresholds.double())

    def oracle_risk_coverage(self, alpha: float, beta: float, *, points: int = 512) -> Curve:
        """The least risk any score could have at each coverage: ID✓ first, then the cheaper of ID✗ and OOD.

        It has no thresholds: they are NaN.

        Example:
            >>> import sirc
            >>> r = sirc.Ranking(correct=[0.9, 0.7], wrong=[0.8, 0.1])
            >>> curve = r.oracle_risk_coverage(alpha=1, beta=1, points=4)
            >>> float(curve.risk[0]), float(curve.risk[-1])
            (0.0, 0.5)
        """
        a, b = self._numbers(alpha, beta)
        good, first, _, _ = areas.oracle_parts(self.accuracy, a, b)
        even = torch.linspace(0, 1, check_positive("points", points) + 1, dtype=torch.float64)
        knots = torch.stack((good, good + first)).clamp(0, 1)
        coverage = torch.cat((even[1:], knots[knots > 0])).sort().values.to(self.thresholds.device)
        risk = areas.ratio(areas.oracle_loss(coverage, self.accuracy, a, b), coverage)
        return Curve(coverage, risk, torch.full_like(coverage, torch.nan))

    def accepted(self, threshold: float) -> tuple[float, float, float]:
        """The shares of ID✓, ID✗ and OOD accepted at a threshold, S ≥ t."""
        c, x, o = self._shares_at(self._index(threshold))
        return float(c), float(x), float(o)

    def recall(self, threshold: float) -> float:
        """The share of ID✓ accepted at a threshold."""
        return self.accepted(threshold)[0]

    def coverage(self, threshold: float, alpha: float) -> float:
        """The share of all input accepted at a threshold."""
        return float(self._coverage_risk(_only(self._index(threshold)), alpha, 0.5)[0].sum())

    def risk(self, threshold: float, alpha: ArrayLike, beta: ArrayLike) -> float | Tensor:
        """The mean loss of what is accepted at a threshold; 0 where nothing is."""
        return self._risk_at(self._index(threshold), alpha, beta)

    def threshold(
        self,
        *,
        recall: float | None = None,
        coverage: float | None = None,
        risk: float | None = None,
        alpha: float | None = None,
        beta: float | None = None,
    ) -> float:
        """The threshold at a recall, a coverage (which needs α) or a risk (which needs α and β).

        At a recall or a coverage, it is the highest threshold that accepts at least that share. At a risk, it is the
        one with the largest coverage among those whose risk is at most that. Where there is none it is +inf, which
        accepts nothing (or NaN, if a score is +inf itself).
        """
        given = {"recall": recall, "coverage": coverage, "risk": risk}
        if sum(value is not None for value in given.values()) != 1:
            raise ValueError(f"give exactly one of recall=, coverage= and risk=; got {given}")
        if recall is not None:
            return self._threshold_of(self._reaching(recall))
        if alpha is None or (risk is not None and beta is None):
            raise ValueError("a threshold at a coverage needs alpha=, one at a risk alpha= and beta=")
        curve = self.risk_coverage(alpha, 0.5 if beta is None else beta)
        if coverage is not None:
            coverage = check_fraction("coverage", coverage)
            at = min(int((curve.x < coverage).sum()), len(curve.x) - 1)  # rounding may leave the last point short
            return self._threshold_of(at if coverage > 0 else -1)
        assert risk is not None
        risk = check_fraction("risk", risk)
        within = (curve.risk <= risk).nonzero()
        return self._threshold_of(int(within[-1]) if len(within) else -1)

    def _threshold_of(self, at: int) -> float:
        if at >= 0:
            return float(self.thresholds[at])
        # +inf accepts nothing, unless a score is +inf itself: no score reaches NaN.
        return float("nan") if float(self.thresholds[0]) == float("inf") else float("inf")

    def _index(self, threshold: float) -> int:
        """The last threshold at or above this one; −1 if there is none."""
        return int((self.thresholds >= check_number("threshold", threshold)).sum()) - 1

    def _reaching(self, recall: float, positive: Positive = "correct") -> int:
        """The first threshold that accepts at least this share of the positives; −1 for a recall of 0."""
        recall = check_fraction("recall", recall)
        if not recall:
            return -1
        accepted, total = self._correct, self.num_correct
        if positive == "id":
            accepted, total = accepted + self._wrong, total + self.num_wrong
        return int(torch.searchsorted(accepted, areas.least_reaching(recall, total)))

    def _shares_at(self, at: int) -> Tensor:
        """The accepted shares at one threshold, (3,); at −1 nothing is accepted."""
        return self._as_shares(_only(at)).sum(1)

    def _as_shares(self, where: slice, before: int = 0) -> Tensor:
        """The accepted shares at some thresholds, after `before` points where nothing is accepted."""
        counts = self._correct[where], self._wrong[where], self._ood[where]
        totals = self.num_correct, max(1, self.num_wrong), self._ood_total
        shares = torch.zeros(3, before + len(counts[0]), dtype=torch.float64, device=self.thresholds.device)
        for share, count, total in zip(shares[:, before:], counts, totals, strict=True):
            share.copy_(count).div_(total)
        return shares

    def _chunks(self) -> Iterable[areas.Steps]:
        """Chunks of thresholds; each starts with the last point of the one before it, the first with 0."""
        size = _CPU_CHUNK if self.thresholds.device.type == "cpu" else _GPU_CHUNK
        if len(self.thresholds) > size:
            return self._many_chunks(size)
        if self._steps is None:  # a single chunk is kept, as a table needs it for several metrics
            self._steps = [areas.Steps(self._as_shares(slice(None), before=1), self.accuracy)]
        return self._steps

    def _many_chunks(self, size: int) -> Iterator[areas.Steps]:
        for start in range(0, len(self.thresholds), size):
            shares = self._as_shares(slice(max(0, start - 1), start + size), before=0 if start else 1)
            yield areas.Steps(shares, self.accuracy)
            self._after_chunk()

    def _area_sums(self, alpha: Tensor) -> tuple[Tensor, Tensor]:
        """The sums that AURR and AURC are made of for each α, (A, 6), and those of AUGRC, (4,)."""
        key = tuple(alpha.tolist())
        if key not in self._sums:
            fused = attempt("the kernel of areas", partial(self._kernel_sums, alpha)) if alpha.is_cuda else None
            if fused is None:
                total = torch.zeros(len(alpha), 6, dtype=torch.float64, device=alpha.device)
                generalised = torch.zeros(4, dtype=torch.float64, device=alpha.device)
                for steps in self._chunks():
                    total += steps.areas(alpha)
                    generalised += steps.generalised()
                fused = total, generalised
            self._sums = {key: fused}
        return self._sums[key]

    def _kernel_sums(self, alpha: Tensor) -> tuple[Tensor, Tensor]:
        from sirc.metrics.kernel import area_sums  # needs Triton

        totals = float(self.num_correct), float(max(1, self.num_wrong)), self._ood_total
        sums = area_sums((self._correct, self._wrong, self._ood), totals, self.accuracy, alpha)
        return sums[:-1], sums[-1, :4]

    def _accepted_counts(self, where: slice) -> Shares:
        """How many ID and ID✗ samples are accepted, and how much OOD, scaled to as many samples as there are ID.

        Thresholds at a coverage or a risk use counts: at α = 1 both are then exact ratios, so 1 of 20 is 0.05.
        """
        wrong = self._wrong[where].double()
        ood = self._ood[where].double() * (self.num_correct + self.num_wrong) / self._ood_total
        return self._correct[where].double() + wrong, wrong, ood

    def _coverage_risk(self, where: slice, alpha: float, beta: float) -> tuple[Tensor, Tensor]:
        a, b = self._numbers(alpha, beta)
        inside, wrong, ood = self._accepted_counts(where)
        covered = a * (inside / (self.num_correct + self.num_wrong)) + (1 - a) * self._as_shares(where)[2]
        return covered, areas.ratio(b * a * wrong + (1 - b) * (1 - a) * ood, a * inside + (1 - a) * ood)

    def _risk_at(self, at: int, alpha: ArrayLike, beta: ArrayLike) -> float | Tensor:
        a, b = self._mixture(alpha, beta)
        inside, wrong, ood = (count.sum() for count in self._accepted_counts(_only(at)))
        covered = a * inside + (1 - a) * ood
        grid = areas.over_beta(areas.ratio(a * wrong, covered), areas.ratio((1 - a) * ood, covered), b)
        return _shaped(grid, alpha, beta)

    def _mixture(self, alpha: ArrayLike, beta: ArrayLike) -> tuple[Tensor, Tensor]:
        """α and β as 1-D float64 tensors, checked."""
        pair = []
        for name, value in (("alpha", alpha), ("beta", beta)):
            check_unit_interval(name, value)
            tensor = as_tensor(name, value).to(self.thresholds.device, torch.float64)
            if tensor.dim() > 1:
                raise ValueError(f"`{name}` must be a number or a 1-D array; got shape {tuple(tensor.shape)}")
            pair.append(tensor.reshape(-1))
        if not self.num_ood and bool((pair[0] < 1).any()):
            raise ValueError(
                f"`alpha` must be 1 where there are no OOD scores; got {float(pair[0].min()):g}. "
                "Pass `Ranking(correct, wrong, ood)`, or alpha=1 for selective classification on ID data alone"
            )
        return pair[0], pair[1]

    def _numbers(self, alpha: float, beta: float) -> tuple[float, float]:
        a, b = self._mixture(alpha, beta)
        if len(a) != 1 or len(b) != 1:
            raise ValueError("a curve or a threshold takes one alpha and one beta; got arrays. Loop over them")
        return float(a), float(b)

    def _check_pair(self, negative: Negative, positive: Positive) -> None:
        if (negative, positive) not in (("wrong", "correct"), ("ood", "correct"), ("ood", "id")):
            raise ValueError(
                '`negative` must be "wrong" or "ood" and `positive` "correct" or, against OOD only, "id"; got '
                f"{quoted(negative)}, {quoted(positive)}"
            )
        if not (self.num_wrong if negative == "wrong" else self.num_ood):
            raise ValueError(f"`{negative}` has no scores to compare with; this ranking is {self!r}")

    def _pair(self, steps: areas.Steps, negative: Negative, positive: Positive) -> Shares:
        """The accepted shares of the positives and the negatives, and the negatives' growth."""
        pos = steps.c if positive == "correct" else steps.id_share
        return (pos, steps.x, steps.x.diff()) if negative == "wrong" else (pos, steps.ood, steps.ood_steps)


def _only(at: int) -> slice:
    """The threshold with this index; none for −1."""
    return slice(max(0, at), at + 1)


def _sorted(scores: Tensor) -> tuple[Tensor, Tensor]:
    """The scores, the highest first, and their order."""
    if scores.device.type != "cpu":
        ranked, order = scores.sort(descending=True)
        return ranked, order
    order = torch.from_numpy(ascending_order(-scores.numpy()))
    return scores.index_select(0, order), order


def pooled(
    correct: Tensor, wrong: Tensor, sets: Sequence[Tensor], *, equal_sets: bool
) -> tuple[list[Tensor], Tensor | None]:
    """The three groups, with all OOD sets as one; with `equal_sets` also weights that make the sets count the same."""
    groups = [correct, wrong, torch.cat([wrong[:0], *sets])]
    if not equal_sets or len(sets) < 2:
        return groups, None
    return groups, torch.cat([torch.full((len(x),), 1 / len(x), dtype=torch.float64, device=x.device) for x in sets])


def _shaped(grid: Tensor, alpha: ArrayLike, beta: ArrayLike) -> float | Tensor:
    """The (A, B) grid without the axes of arguments that were numbers."""
    for axis, given in ((1, beta), (0, alpha)):
        if as_tensor("given", given).dim() == 0:
            grid = grid.squeeze(axis)
    return float(grid) if grid.dim() == 0 else grid
