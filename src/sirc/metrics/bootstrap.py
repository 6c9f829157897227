"""Stratified bootstrap: metrics of resampled data from counts on a sorted order, with no sort per draw.

A resample of a group is a count of how often each of its samples was drawn. Scores are sorted once. For each sample,
in sorted order, it is known how many of every group rank at or above it, so the accepted shares at its score, in any
resample, are looked up in running sums of the counts. The built-in metrics are means of such shares:

    AUROC  = 1 − mean over ID✓ of the share of negatives above (equal ones half)
    AURR   = mean over ID✓ of the risk at its score          AURC = mean over all input of the risk at its score

Risk is linear in β, so a whole (α, β) grid costs one reciprocal for each α and sample. Any other registered metric is
computed by its own function on a `Ranking` of each resample: correct, but slower.

The same counts serve every score, so that differences between scores are paired.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import ClassVar

import torch
from torch import Tensor

from sirc.metrics.ranking import Ranking
from sirc.metrics.registry import Metric, all_metrics

Values = dict[str, Tensor]
OodScores = Mapping[str, Mapping[str, Tensor]]
"""By OOD set and score, the confidences."""

# Draws lie side by side in memory, so that one look-up serves all of a block. A block holds about this many counts
# (on a CPU, what its cache does) and a number of draws within these bounds.
_CPU_BLOCK, _GPU_BLOCK = 1 << 20, 1 << 26
_FEWEST, _MOST_ON_CPU, _MOST_ON_GPU = 8, 64, 128
_EXACT = 1 << 22  # counts that float32 tells apart by halves, with room to spare
# Counts of a grid worked on at a time. On a CPU they stay in its cache, and are too few for PyTorch to divide among
# threads: thousands of small operations that wait for one another's threads crawl on a machine that has other work.
_CPU_CHUNK, _GPU_CHUNK = (1 << 15) - 1, 1 << 25


def bootstrap_metrics(
    confidences: Mapping[str, Tensor],
    correct: Tensor,
    ood: OodScores,
    unions: Mapping[str, Sequence[str]],
    *,
    equal_sets: bool,
    recall: float,
    alpha: float,
    beta: float,
    draws: int,
    seed: int,
) -> dict[tuple[str, str, str], Tensor]:
    """By (score, negative, metric), the value in each draw; ID✓, ID✗ and every OOD set are resampled separately.

    `unions` names the mixtures of OOD sets to take as the OOD data; with `equal_sets` sets weigh the same in each,
    else samples do.
    """
    sizes, plan = _plan(correct, ood, draws, seed)
    resampled = {
        score: ResampledScore(
            values[correct],
            values[~correct],
            {name: torch.cat([ood[member][score] for member in members]) for name, members in unions.items()},
            recall=recall,
        )
        for score, values in confidences.items()
    }
    negatives = {**({"wrong": []} if not bool(correct.all()) else {}), **unions}
    slow = [metric for metric in all_metrics() if metric.compares and metric.name not in ResampledScore.METRICS]
    a, b = torch.tensor([alpha], dtype=torch.float64), torch.tensor([beta], dtype=torch.float64)
    samples: dict[tuple[str, str, str], list[Tensor]] = {}
    for counts in plan.blocks():
        masses = {}
        for name, members in unions.items():
            parts = [counts[f"ood {member}"] / (sizes[member] if equal_sets else 1) for member in members]
            masses[name] = torch.cat(parts)
        for score, one in resampled.items():
            values = one.metrics(counts["correct"], counts["wrong"], masses, alpha=alpha, beta=beta)
            for negative, members in negatives.items() if slow else ():
                sets = {member: ood[member][score] for member in members}
                rankings = list(_rankings(confidences[score], correct, sets, counts, equal_sets))
                at = (a if sets else torch.ones_like(a), b)
                for metric in slow:
                    grids = [metric.grid(ranking, "ood" if sets else "wrong", recall, *at) for ranking in rankings]
                    values[negative][metric.name] = torch.stack(grids).reshape(-1)
            for negative, by_metric in values.items():
                for name, value in by_metric.items():
                    samples.setdefault((score, negative, name), []).append(value.double())
    # Brought to the CPU at the end, so that a GPU is not waited for after every number.
    return {key: torch.cat(parts).cpu() for key, parts in samples.items()}


def bootstrap_grids(
    confidences: Mapping[str, Tensor],
    correct: Tensor,
    ood: OodScores,
    *,
    equal_sets: bool,
    metric: Metric,
    recall: float,
    alpha: Tensor,
    beta: Tensor,
    draws: int,
    seed: int,
) -> Iterator[Tensor]:
    """For each block of draws the metric of every score, (draws of the block, scores, α, β), float64 on the CPU.

    ID✓, ID✗ and each OOD set are resampled separately. With `equal_sets` OOD sets weigh the same, else samples do.
    """
    sizes, plan = _plan(correct, ood, draws, seed)
    sets = {score: {name: by_score[score] for name, by_score in ood.items()} for score in confidences}
    orders = [
        _GridOrder(values[correct], values[~correct], torch.cat([values[:0], *sets[score].values()]), metric, recall)
        for score, values in confidences.items()
        if metric.name in _GridOrder.METRICS
    ]
    for counts in plan.blocks():
        if not orders:
            grids = [
                torch.stack(
                    [
                        metric.grid(ranking, "ood" if ood else "wrong", recall, alpha, beta)
                        for ranking in _rankings(values, correct, sets[score], counts, equal_sets)
                    ]
                )
                for score, values in confidences.items()
            ]
            yield torch.stack(grids, dim=1)
            continue
        parts = [counts[f"ood {name}"] / (n if equal_sets else 1) for name, n in sizes.items()]
        outside = torch.cat(parts) if parts else counts["wrong"][:0]
        # A group of very many rows is counted in float64, and its shares meet those of the others.
        dtype = torch.promote_types(torch.promote_types(counts["correct"].dtype, counts["wrong"].dtype), outside.dtype)
        right, wrong, outside = (mass.to(dtype) for mass in (counts["correct"], counts["wrong"], outside))
        values = torch.stack([order.values(right, wrong, outside, alpha) for order in orders])
        # (scores, 2, α, draws): what ID✗ and OOD add, for β to weigh.
        of_wrong, of_ood = values.cpu().permute(1, 3, 0, 2)[..., None]
        yield of_wrong * beta + of_ood * (1 - beta)


def _plan(correct: Tensor, ood: OodScores, draws: int, seed: int) -> tuple[dict[str, int], Draws]:
    """The size of each OOD set, and the draws of ID✓, ID✗ and each set."""
    sizes = {name: len(next(iter(by_score.values()))) for name, by_score in ood.items()}
    right = int(correct.sum())
    groups = {"correct": right, "wrong": len(correct) - right, **{f"ood {name}": n for name, n in sizes.items()}}
    return sizes, Draws(groups, draws, seed, correct.device)


def _rankings(
    confidence: Tensor, correct: Tensor, sets: Mapping[str, Tensor], counts: Values, equal_sets: bool
) -> Iterator[Ranking]:
    """The ranking of each draw of a block, of samples repeated as often as they were drawn."""
    for draw in range(counts["correct"].shape[1]):
        right, wrong, *parts = (
            values.repeat_interleave(counts[group][:, draw].long())
            for group, values in (
                ("correct", confidence[correct]),
                ("wrong", confidence[~correct]),
                *((f"ood {name}", values) for name, values in sets.items()),
            )
        )
        weights = [torch.full_like(part, 1 / len(part), dtype=torch.float64) for part in parts]
        many = equal_sets and len(parts) > 1
        ood = torch.cat(parts) if parts else None
        yield Ranking(right, wrong, ood, ood_weights=torch.cat(weights) if many else None)


class Draws:
    """Counts of stratified resamples of groups of samples.

    Each group has a stream of random numbers of its own, from the seed and the group's name: its draws are the same
    whatever other groups there are, however draws are blocked, and on every device.
    """

    def __init__(self, sizes: Mapping[str, int], draws: int, seed: int, device: torch.device) -> None:
        self.sizes = dict(sizes)
        self.draws = draws
        self.device = device
        self.seed = seed

    def blocks(self) -> Iterator[Values]:
        """Blocks of draws: by group, how often each sample was drawn, (n, draws of the block)."""
        on_cpu = self.device.type == "cpu"
        room, most = (_CPU_BLOCK, _MOST_ON_CPU) if on_cpu else (_GPU_BLOCK, _MOST_ON_GPU)
        size = min(most, max(_FEWEST, room // max(1, sum(self.sizes.values()))))
        streams = {name: torch.Generator().manual_seed(_mixed(self.seed, name)) for name in self.sizes}
        spans = [min(size, self.draws - start) for start in range(0, self.draws, size)]
        # The numbers of the next block are drawn while the caller works on this one.
        with ThreadPoolExecutor(max(1, len(self.sizes))) as pool:
            waiting: dict[str, Future[Tensor]] = {}
            for number, draws in enumerate([0, *spans]):
                drawn = {name: future.result() for name, future in waiting.items()}
                if number < len(spans):
                    waiting = {n: pool.submit(_drawn, k, spans[number], streams[n]) for n, k in self.sizes.items()}
                if drawn:
                    yield {name: self._counts(self.sizes[name], draws, places) for name, places in drawn.items()}

    def _counts(self, n: int, draws: int, drawn: Tensor) -> Tensor:
        dtype = torch.float32 if n < _EXACT else torch.float64
        if n == 0:
            return torch.zeros(0, draws, dtype=dtype, device=self.device)
        place = drawn.to(self.device, torch.int64).mul_(draws)
        place += torch.arange(draws, device=self.device)[:, None]
        return torch.bincount(place.view(-1), minlength=n * draws).view(n, draws).to(dtype)


def _drawn(n: int, draws: int, stream: torch.Generator) -> Tensor:
    """Which samples each draw takes, (draws, n)."""
    places = torch.empty(draws, n, dtype=torch.int32)
    # One draw at a time, so that a draw takes the same numbers from the stream in a block of any size.
    for row in places if n else ():
        torch.randint(n, (n,), generator=stream, dtype=torch.int32, out=row)
    return places


def _mixed(seed: int, name: str) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed} {name}".encode()).digest()[:7], "big")


class _Group:
    """The scores of one group in sorted order."""

    def __init__(self, scores: Tensor) -> None:
        self.scores, self.order = scores.sort(descending=True)
        # Negated, as searchsorted wants an ascending order.
        self._ascending = -self.scores

    def __len__(self) -> int:
        return len(self.scores)

    def at_least(self, scores: Tensor) -> Tensor:
        """How many of this group score at least as high as each of those."""
        return torch.searchsorted(self._ascending, -scores, right=True)

    def above(self, scores: Tensor) -> Tensor:
        """How many of this group score higher than each of those."""
        return torch.searchsorted(self._ascending, -scores, right=False)


class _Place:
    """Where the sorted samples of one group stand in another group's running sums."""

    def __init__(self, samples: _Group, other: _Group) -> None:
        self.at_least = other.at_least(samples.scores)
        above = other.above(samples.scores)
        self.above = None if torch.equal(above, self.at_least) else above
        self.tied = samples is other and not torch.equal(self.at_least, torch.arange(1, len(other) + 1).to(above))

    def shares(self, running: Tensor) -> Tensor:
        """The share of the other group accepted at each sample's score."""
        return running.index_select(0, self.at_least)

    def halved(self, running: Tensor, shares: Tensor) -> Tensor:
        """The share above each sample, with equal ones counted half."""
        return shares if self.above is None else (shares + running.index_select(0, self.above)) / 2


class ResampledScore:
    """One score's ranking of ID✓, ID✗ and one or more OOD mixtures, ready for any resample of them."""

    METRICS: ClassVar = ("auroc", "fpr", "aurr", "risk", "aurc", "augrc")
    """The metrics that it has a fast path for."""

    def __init__(self, correct: Tensor, wrong: Tensor, oods: Mapping[str, Tensor], *, recall: float) -> None:
        self._correct, self._wrong = _Group(correct), _Group(wrong)
        self._oods = {name: _Group(scores) for name, scores in oods.items()}
        self._accuracy = len(correct) / (len(correct) + len(wrong))
        self._least = _least_reaching(recall, len(correct))
        groups = {"correct": self._correct, "wrong": self._wrong, **{f"ood {n}": g for n, g in self._oods.items()}}
        self._places: dict[tuple[str, str], _Place] = {}
        for of, samples in groups.items():
            for among, other in groups.items():
                if not (of.startswith("ood ") and among.startswith("ood ") and of != among):
                    self._places[of, among] = _Place(samples, other)

    def metrics(
        self, correct: Tensor, wrong: Tensor, oods: Mapping[str, Tensor], *, alpha: float, beta: float
    ) -> dict[str, Values]:
        """By negative (`wrong` and each mixture), every metric in each draw.

        Takes how often each ID✓ and ID✗ was drawn, (n, draws), and for each mixture the mass of each sample.
        """
        p = self._accuracy
        w_c, run_c = _running(correct.index_select(0, self._correct.order))
        w_x, run_x = _running(wrong.index_select(0, self._wrong.order))
        at = self._at_recall(run_c[1:])

        def above(samples: str, other: str, running: Tensor, shares: Tensor) -> Tensor:
            return self._places[samples, other].halved(running, shares)

        def picked(shares: Tensor) -> Tensor:
            # A recall of 0 is reached by accepting nothing.
            return shares.gather(0, at[None])[0] if self._least else shares.new_zeros(shares.shape[1])

        # At each ID sample, what does not depend on the OOD data: the accepted shares of ID✓ and ID✗.
        c = {e: self._places[e, "correct"].shares(run_c) for e in ("correct", "wrong")}
        x = {e: self._places[e, "wrong"].shares(run_x) for e in ("correct", "wrong")}
        miss_x = _mean(w_c, above("correct", "wrong", run_x, x["correct"]))
        at_x = picked(x["correct"])
        alone = {e: _Parts(c[e], x[e], p, 1.0, beta) for e in c}
        values: dict[str, Values] = {}
        if len(self._wrong):
            aurr = _mean(w_c, alone["correct"].risk())
            values["wrong"] = {
                "auroc": 1 - miss_x,
                "fpr": at_x,
                "aurr": aurr,
                "risk": picked(alone["correct"].risk()),
                "aurc": p * aurr + (1 - p) * _mean(w_x, alone["wrong"].risk()),
                "augrc": beta * (p * (1 - p) * miss_x + (1 - p) ** 2 / 2),
            }
        mixed = {e: _Parts(c[e], x[e], p, alpha, beta) for e in c}
        for name, group in self._oods.items():
            key = f"ood {name}"
            w_o, run_o = _running(oods[name].index_select(0, group.order))
            o = {e: self._places[e, key].shares(run_o) for e in ("correct", "wrong", key)}
            c_o, x_o = self._places[key, "correct"].shares(run_c), self._places[key, "wrong"].shares(run_x)
            miss_o = _mean(w_c, above("correct", key, run_o, o["correct"]))
            wrong_above = 1 - _mean(w_x, above("wrong", key, run_o, o["wrong"])) if len(self._wrong) else miss_o * 0
            at_correct = mixed["correct"].risk(o["correct"])
            aurr = _mean(w_c, at_correct)
            id_risk = p * aurr + (1 - p) * _mean(w_x, mixed["wrong"].risk(o["wrong"]))
            values[name] = {
                "auroc": 1 - miss_o,
                "fpr": picked(o["correct"]),
                "aurr": aurr,
                "risk": picked(at_correct),
                "aurc": alpha * id_risk + (1 - alpha) * _mean(w_o, _Parts(c_o, x_o, p, alpha, beta).risk(o[key])),
                "augrc": _augrc(miss_x, miss_o, wrong_above, p, alpha, beta),
            }
        return values

    def _at_recall(self, shares: Tensor) -> Tensor:
        """In each draw, the sorted ID✓ at whose score the recall is first reached."""
        # Shares are counts over n, rounded: half a count tells the least count from the one below it.
        short = shares < (self._least - 0.5) / len(self._correct)
        if self._places["correct", "correct"].tied:
            short = short.index_select(0, self._places["correct", "correct"].at_least - 1)
        return short.sum(0).clamp_max(len(self._correct) - 1)


class _Parts:
    """The ID part of coverage and loss at some samples, to which each OOD mixture adds its own."""

    def __init__(self, c: Tensor, x: Tensor, p: float, alpha: float, beta: float) -> None:
        self._coverage = (c * (alpha * p)).add_(x, alpha=alpha * (1 - p))
        self._loss = x * (beta * alpha * (1 - p))
        self._alpha, self._beta = alpha, beta

    def risk(self, o: Tensor | None = None) -> Tensor:
        """Loss over coverage; where nothing is accepted the loss is 0, and so is this."""
        tiny = torch.finfo(self._loss.dtype).tiny
        if o is None:
            return self._loss / self._coverage.clamp_min(tiny)
        covered = torch.add(self._coverage, o, alpha=1 - self._alpha).clamp_min_(tiny)
        return torch.add(self._loss, o, alpha=(1 - self._beta) * (1 - self._alpha)).div_(covered)


class _GridOrder:
    """One score's order of the three groups, to compute one metric on an (α, β) grid in any resample."""

    METRICS: ClassVar = ("aurr", "aurc", "risk")
    """The metrics that it has a fast path for."""

    def __init__(self, correct: Tensor, wrong: Tensor, ood: Tensor, metric: Metric, recall: float) -> None:
        self._metric = metric.name
        self._accuracy = len(correct) / (len(correct) + len(wrong))
        self._least = _least_reaching(recall, len(correct))
        groups = [_Group(scores.double()) for scores in (correct, wrong, ood)]
        self._orders = [group.order for group in groups]
        # AURR and the risk at a recall look at the scores of ID✓ alone.
        looked_at = groups if self._metric == "aurc" else groups[:1]
        self._places = [[other.at_least(group.scores) for other in groups] for group in looked_at]

    def values(self, correct: Tensor, wrong: Tensor, ood: Tensor, alpha: Tensor) -> Tensor:
        """What ID✗ and OOD add to the metric at β = 1 and β = 0, from the mass of each sample, (2, α, draws)."""
        sums = [
            _running(mass.index_select(0, order))
            for mass, order in zip((correct, wrong, ood), self._orders, strict=True)
        ]
        weights, running = [weight for weight, _ in sums], [run for _, run in sums]
        if self._metric == "risk":
            return self._at_recall(running, alpha)
        p, a = self._accuracy, alpha.to(correct.device)[:, None]
        areas = [self._areas(group, weights[group], running, alpha) for group in range(len(self._places))]
        if self._metric == "aurr":
            return areas[0]
        return a * (p * areas[0] + (1 - p) * areas[1]) + (1 - a) * areas[2]

    def _areas(self, group: int, weights: Tensor, running: list[Tensor], alpha: Tensor) -> Tensor:
        """The mean risk at the samples of a group."""
        draws = weights.shape[1]
        total = torch.zeros(2, len(alpha), draws, dtype=torch.float64, device=weights.device)
        size = max(1, (_CPU_CHUNK if weights.device.type == "cpu" else _GPU_CHUNK) // draws)
        for start in range(0, len(weights), size):
            some = slice(start, start + size)
            c, x, o = (run.index_select(0, at[some]) for run, at in zip(running, self._places[group], strict=True))
            x *= 1 - self._accuracy
            inside = c.mul_(self._accuracy).add_(x)
            bad = (x.mul_(weights[some]), torch.mul(o, weights[some]))
            inverse, term = torch.empty_like(o), torch.empty_like(o)
            for number, a in enumerate(alpha.tolist()):
                # Where nothing is accepted the loss is 0, and so is the risk.
                torch.lerp(o, inside, a, out=inverse).clamp_min_(torch.finfo(o.dtype).tiny).reciprocal_()
                for which, share in enumerate((a, 1 - a)):
                    if share > 0:  # 0 times what may be infinite
                        total[which, number].add_(torch.mul(inverse, bad[which], out=term).sum(0), alpha=share)
        return total

    def _at_recall(self, running: list[Tensor], alpha: Tensor) -> Tensor:
        """The risk at the highest threshold that accepts enough of ID✓."""
        draws = running[0].shape[1]
        if not self._least:  # reached by accepting nothing
            return torch.zeros(2, len(alpha), draws, dtype=torch.float64, device=running[0].device)
        # Shares are counts over n, rounded: half a count tells the least count from the one below it.
        recall = running[0].index_select(0, self._places[0][0])
        at = (recall < (self._least - 0.5) / len(recall)).sum(0).clamp_max(len(recall) - 1)
        c, x, o = (
            run.double().gather(0, place[at][None])[0] for run, place in zip(running, self._places[0], strict=True)
        )
        p, a = self._accuracy, alpha.to(c.device)[:, None]
        covered = a * (p * c + (1 - p) * x) + (1 - a) * o
        bad = torch.stack((a * (1 - p) * x, (1 - a) * o))
        return bad / covered.clamp_min(torch.finfo(covered.dtype).tiny)


def _augrc(miss_x: Tensor, miss_o: Tensor, wrong_above: Tensor, p: float, alpha: float, beta: float) -> Tensor:
    """AUGRC from three probabilities: ID✗ above ID✓, OOD above ID✓, ID✗ above OOD (equal ones half)."""
    wrong = alpha * (p * (1 - p) * miss_x + (1 - p) ** 2 / 2) + (1 - alpha) * (1 - p) * wrong_above
    ood = alpha * (p * miss_o + (1 - p) * (1 - wrong_above)) + (1 - alpha) / 2
    return alpha * beta * wrong + (1 - alpha) * (1 - beta) * ood


def _least_reaching(recall: float, n: int) -> int:
    """The least count of n whose share, as a float64, reaches the recall."""
    least = math.ceil(recall * n)
    return least - 1 if (least - 1) / n >= recall else least


def _running(weights: Tensor) -> tuple[Tensor, Tensor]:
    """Weights scaled to add up to 1, and their running sum from 0 on (summed first: counts add up without rounding)."""
    running = weights.new_zeros(len(weights) + 1, weights.shape[1])
    if weights.device.type == "cpu":
        torch.cumsum(weights, 0, out=running[1:])
    else:
        running[1:] = _cumsum_in_parts(weights)
    scale = running[-1].clamp_min(torch.finfo(running.dtype).tiny).reciprocal()
    return weights.mul_(scale), running.mul_(scale)


def _cumsum_in_parts(weights: Tensor) -> Tensor:
    """The running sum along the first axis, which a GPU would run along with one thread for each draw."""
    n, draws = weights.shape
    part = 1 << (n.bit_length() + 1) // 2
    padded = weights.new_zeros(-(-n // part) * part, draws)
    padded[:n] = weights
    within = padded.view(-1, part, draws).cumsum_(1)
    within[1:] += within[:-1, -1].cumsum(0)[:, None]
    return padded[:n]


def _mean(weights: Tensor, values: Tensor) -> Tensor:
    return (weights * values).sum(0).double()
