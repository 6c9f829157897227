"""Stratified bootstrap: metrics of resamples from counts in sorted order, without sorting each draw.

A resample of a group counts how often each of its samples was drawn. Scores are sorted once, which gives for each
sample how many of every group rank at or above it. So the accepted shares at its score, in any resample, are looked up
in running sums of the counts. The built-in metrics are means of such shares:

    AUROC  = 1 − mean over ID✓ of the share of negatives above (equal ones half)
    AURR   = mean over ID✓ of the risk at its score          AURC = mean over all input of the risk at its score

Risk is linear in β, so a whole (α, β) grid costs one reciprocal for each α and sample. Any other registered metric is
computed by its own function on a `Ranking` of each resample, which is slower.

All scores share the same counts, so differences between scores are paired.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import ClassVar

import torch
from torch import Tensor

from sirc.metrics.areas import least_reaching
from sirc.metrics.ranking import Ranking, pooled
from sirc.metrics.registry import Metric, all_metrics

Values = dict[str, Tensor]
OodScores = Mapping[str, Mapping[str, Tensor]]
"""By OOD set and score, the confidences."""

# The draws of a block are side by side in memory, so that one look-up serves them all. A block holds about this many
# counts (on a CPU, what fits in its cache), and at least `_FEWEST` draws.
_CPU_BLOCK, _GPU_BLOCK = 1 << 20, 1 << 26
_FEWEST, _MOST_ON_CPU, _MOST_ON_GPU = 8, 64, 128
_EXACT = 1 << 22  # counts up to here are exact in float32, with room to spare
# Counts of a grid in one operation. On a CPU they fit in its cache, and are too few for PyTorch to split among threads:
# on a busy machine, thousands of small operations that wait for threads are slow.
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
    resampled = {}
    for score, values in confidences.items():
        oods = {name: torch.cat([ood[member][score] for member in members]) for name, members in unions.items()}
        resampled[score] = ResampledScore(values[correct], values[~correct], oods, recall=recall)
    negatives = {**({"wrong": []} if not bool(correct.all()) else {}), **unions}
    slow = [metric for metric in all_metrics() if metric.per_negative and metric.name not in ResampledScore.METRICS]
    a, b = torch.tensor([alpha], dtype=torch.float64), torch.tensor([beta], dtype=torch.float64)
    samples: dict[tuple[str, str, str], list[Tensor]] = {}
    for counts in _draws(correct, ood, draws, seed):
        masses = {name: torch.cat(_masses(counts, members, equal_sets)) for name, members in unions.items()}
        for score, one in resampled.items():
            by_negative = one.metrics(counts["correct"], counts["wrong"], masses, alpha=alpha, beta=beta)
            for negative, members in negatives.items() if slow else ():
                sets = {member: ood[member][score] for member in members}
                at = (recall, a if sets else torch.ones_like(a), b)
                by_negative[negative] |= _by_ranking(slow, confidences[score], correct, sets, counts, equal_sets, *at)
            for negative, by_metric in by_negative.items():
                for name, value in by_metric.items():
                    samples.setdefault((score, negative, name), []).append(value.double().reshape(-1))
    # Brought to the CPU at the end, so that a GPU is not waited for after every number.
    return {key: torch.cat(parts).cpu() for key, parts in samples.items()}


def bootstrap_id_metrics(
    metrics: Sequence[Metric], confidence: Tensor, correct: Tensor, *, recall: float, draws: int, seed: int
) -> Values:
    """By metric of the ID data, its value in each draw; ID✓ and ID✗ are drawn together, so the error varies."""
    one = torch.ones(1, dtype=torch.float64)
    samples: dict[str, list[Tensor]] = {metric.name: [] for metric in metrics}
    for block in draw_counts({"id": len(correct)}, draws, seed, correct.device):
        counts = block["id"][:, block["id"][correct].sum(0) > 0]  # a draw without ID✓ has no ranking
        if counts.shape[1]:
            parts = {"correct": counts[correct], "wrong": counts[~correct]}
            drawn = _by_ranking(metrics, confidence, correct, {}, parts, False, recall, one, one)
            for name, values in drawn.items():
                samples[name].append(values.reshape(-1))
    return {name: torch.cat([torch.empty(0, dtype=torch.float64), *parts]) for name, parts in samples.items()}


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
    if metric.name not in ResampledScore.ON_GRIDS:
        for counts in _draws(correct, ood, draws, seed):
            grids = []
            for score, values in confidences.items():
                sets = {name: by_score[score] for name, by_score in ood.items()}
                drawn = _by_ranking([metric], values, correct, sets, counts, equal_sets, recall, alpha, beta)
                grids.append(drawn[metric.name])
            yield torch.stack(grids, dim=1)
        return
    resampled = []
    for score, values in confidences.items():
        outside = torch.cat([values[:0], *(by_score[score] for by_score in ood.values())])
        resampled.append(ResampledScore(values[correct], values[~correct], {"all": outside}, recall=recall))
    for counts in _draws(correct, ood, draws, seed):
        right, wrong = counts["correct"], counts["wrong"]
        outside = torch.cat([wrong[:0], *_masses(counts, ood, equal_sets)])
        # A very large group is counted in float64, and then so are the others.
        dtype = torch.promote_types(right.dtype, outside.dtype)
        masses = right.to(dtype), wrong.to(dtype), outside.to(dtype)
        # (scores, 2, α, draws): what ID✗ and OOD add, before β weights them.
        parts = torch.stack([one.parts(metric.name, masses, alpha) for one in resampled])
        of_wrong, of_ood = parts.cpu().permute(1, 3, 0, 2)[..., None]
        yield of_wrong * beta + of_ood * (1 - beta)


def _draws(correct: Tensor, ood: OodScores, draws: int, seed: int) -> Iterator[Values]:
    """Blocks of draws of ID✓, ID✗ and each OOD set, in this order: how often each sample was drawn."""
    sizes = {"correct": int(correct.sum()), "wrong": int((~correct).sum())}
    sizes |= {f"ood {name}": len(next(iter(by_score.values()))) for name, by_score in ood.items()}
    return draw_counts(sizes, draws, seed, correct.device)


def _masses(counts: Values, sets: Iterable[str], equal_sets: bool) -> list[Tensor]:
    """The mass of each sample of some OOD sets, in each draw."""
    return [count / (len(count) if equal_sets else 1) for count in (counts[f"ood {name}"] for name in sets)]


def _by_ranking(
    metrics: Sequence[Metric],
    confidence: Tensor,
    correct: Tensor,
    sets: Mapping[str, Tensor],
    counts: Values,
    equal_sets: bool,
    recall: float,
    alpha: Tensor,
    beta: Tensor,
) -> Values:
    """By metric, its grids in each draw of a block, (draws, α, β), from samples repeated as often as drawn."""
    groups = {"correct": confidence[correct], "wrong": confidence[~correct]}
    groups |= {f"ood {name}": values for name, values in sets.items()}
    grids: dict[str, list[Tensor]] = {metric.name: [] for metric in metrics}
    for draw in range(counts["correct"].shape[1]):
        repeated = (values.repeat_interleave(counts[name][:, draw].long()) for name, values in groups.items())
        right, wrong, *parts = repeated
        samples, weights = pooled(right, wrong, parts, equal_sets=equal_sets)
        ranking = Ranking(*samples, ood_weights=weights)
        for metric in metrics:
            grids[metric.name].append(metric.grid(ranking, "ood" if sets else "wrong", recall, alpha, beta))
    return {name: torch.stack(by_draw) for name, by_draw in grids.items()}


def draw_counts(sizes: Mapping[str, int], draws: int, seed: int, device: torch.device) -> Iterator[Values]:
    """Stratified resamples in blocks of draws: by group, how often each sample was drawn, (n, draws of the block).

    Each group has its own stream of random numbers, from the seed and the group's name. So its draws do not depend on
    the other groups, on the size of blocks, or on the device.
    """
    room, most = (_CPU_BLOCK, _MOST_ON_CPU) if device.type == "cpu" else (_GPU_BLOCK, _MOST_ON_GPU)
    size = min(most, max(_FEWEST, room // max(1, sum(sizes.values()))))
    blocks = [min(size, draws - start) for start in range(0, draws, size)]
    digests = {name: hashlib.sha256(f"{seed} {name}".encode()).digest() for name in sizes}
    streams = {name: torch.Generator().manual_seed(int.from_bytes(d[:7], "big")) for name, d in digests.items()}
    with ThreadPoolExecutor(max(1, len(sizes))) as pool:

        def started(count: int) -> dict[str, Future[Tensor]]:
            return {name: pool.submit(_drawn, n, count, streams[name]) for name, n in sizes.items()}

        waiting = started(blocks[0])
        for count, following in zip(blocks, [*blocks[1:], 0], strict=True):
            drawn = {name: future.result() for name, future in waiting.items()}
            waiting = started(following)  # while the caller works on this block
            yield {name: _counts(sizes[name], count, places.to(device)) for name, places in drawn.items()}


def _drawn(n: int, draws: int, stream: torch.Generator) -> Tensor:
    """The samples that each draw takes, (draws, n)."""
    places = torch.empty(draws, n, dtype=torch.int32)
    # One draw at a time, so that draws do not depend on the size of blocks.
    for row in places if n else ():
        torch.randint(n, (n,), generator=stream, dtype=torch.int32, out=row)
    return places


def _counts(n: int, draws: int, drawn: Tensor) -> Tensor:
    """How often each of n samples is among those that each draw takes, (n, draws)."""
    dtype = torch.float32 if n < _EXACT else torch.float64
    place = drawn.to(torch.int64).mul_(draws)
    place += torch.arange(draws, device=drawn.device)[:, None]
    return torch.bincount(place.view(-1), minlength=n * draws).view(n, draws).to(dtype)


class ResampledScore:
    """One score's ranking of ID✓, ID✗ and one or more OOD mixtures, ready for any resample of them."""

    METRICS: ClassVar = ("auroc", "fpr", "aurr", "risk", "aurc", "augrc")
    """The metrics that `metrics` computes."""
    ON_GRIDS: ClassVar = ("aurr", "aurc", "risk")
    """The metrics that `parts` computes."""

    def __init__(self, correct: Tensor, wrong: Tensor, oods: Mapping[str, Tensor], *, recall: float) -> None:
        self._oods = [f"ood {name}" for name in oods]
        groups = {"correct": correct, "wrong": wrong, **dict(zip(self._oods, oods.values(), strict=True))}
        self._groups = {name: scores.double().sort(descending=True) for name, scores in groups.items()}
        self._accuracy = len(correct) / (len(correct) + len(wrong))
        self._least, self._right = least_reaching(recall, len(correct)), len(correct)
        self._places: dict[tuple[str, str], tuple[Tensor, Tensor | None]] = {}

    def metrics(
        self, correct: Tensor, wrong: Tensor, oods: Mapping[str, Tensor], *, alpha: float, beta: float
    ) -> dict[str, Values]:
        """By negative (`wrong` and each mixture), every metric in each draw.

        `correct` and `wrong` count how often each sample was drawn, (n, draws); `oods` are the masses in each mixture.
        """
        p, inside = self._accuracy, ("correct", "wrong")
        w_c, run_c = self._running("correct", correct)
        w_x, run_x = self._running("wrong", wrong)
        # At each ID sample, what does not depend on the OOD data: the accepted shares of ID✓ and ID✗.
        c = {group: self._shares(group, "correct", run_c) for group in inside}
        x = {group: self._shares(group, "wrong", run_x) for group in inside}
        at = self._at_recall(c["correct"])

        def picked(shares: Tensor) -> Tensor:
            # A recall of 0 is reached by accepting nothing.
            return shares.gather(0, at[None])[0] if self._least else shares.new_zeros(shares.shape[1])

        miss_x = _mean(w_c, self._halved("correct", "wrong", run_x, x["correct"]))
        values: dict[str, Values] = {}
        if wrong.shape[0]:
            alone = {group: _IdPart(c[group], x[group], p, 1.0, beta).risk() for group in inside}
            aurr = _mean(w_c, alone["correct"])
            values["wrong"] = {
                "auroc": 1 - miss_x,
                "fpr": picked(x["correct"]),
                "aurr": aurr,
                "risk": picked(alone["correct"]),
                "aurc": p * aurr + (1 - p) * _mean(w_x, alone["wrong"]),
                "augrc": beta * (p * (1 - p) * miss_x + (1 - p) ** 2 / 2),
            }
        mixed = {group: _IdPart(c[group], x[group], p, alpha, beta) for group in inside}
        for key, (name, mass) in zip(self._oods, oods.items(), strict=True):
            w_o, run_o = self._running(key, mass)
            o = {group: self._shares(group, key, run_o) for group in (*inside, key)}
            c_o, x_o = self._shares(key, "correct", run_c), self._shares(key, "wrong", run_x)
            miss_o = _mean(w_c, self._halved("correct", key, run_o, o["correct"]))
            below = _mean(w_x, self._halved("wrong", key, run_o, o["wrong"]))
            wrong_above = 1 - below if wrong.shape[0] else miss_o * 0
            at_correct = mixed["correct"].risk(o["correct"])
            aurr = _mean(w_c, at_correct)
            id_risk = p * aurr + (1 - p) * _mean(w_x, mixed["wrong"].risk(o["wrong"]))
            values[name] = {
                "auroc": 1 - miss_o,
                "fpr": picked(o["correct"]),
                "aurr": aurr,
                "risk": picked(at_correct),
                "aurc": alpha * id_risk + (1 - alpha) * _mean(w_o, _IdPart(c_o, x_o, p, alpha, beta).risk(o[key])),
                "augrc": _augrc(miss_x, miss_o, wrong_above, p, alpha, beta),
            }
        return values

    def parts(self, metric: str, masses: Sequence[Tensor], alpha: Tensor) -> Tensor:
        """A metric of `ON_GRIDS` at β = 1, which counts ID✗ alone, and at β = 0, OOD alone: (2, α, draws).

        `masses` are those of the samples of ID✓, of ID✗ and of the only mixture.
        """
        sums = [self._running(name, mass) for name, mass in zip(self._groups, masses, strict=True)]
        weights, running = [weight for weight, _ in sums], [run for _, run in sums]
        p, a = self._accuracy, alpha.to(running[0].device)[:, None]
        if metric == "risk":
            return self._risk_parts(running, a)
        # AURR uses the scores of ID✓ alone.
        looked_at = list(zip(self._groups, weights, strict=True))[: None if metric == "aurc" else 1]
        areas = [self._area_parts(name, weight, running, alpha) for name, weight in looked_at]
        return areas[0] if metric == "aurr" else a * (p * areas[0] + (1 - p) * areas[1]) + (1 - a) * areas[2]

    def _area_parts(self, group: str, weights: Tensor, running: list[Tensor], alpha: Tensor) -> Tensor:
        """The mean risk at the samples of a group."""
        draws = weights.shape[1]
        total = torch.zeros(2, len(alpha), draws, dtype=torch.float64, device=weights.device)
        size = max(1, (_CPU_CHUNK if weights.device.type == "cpu" else _GPU_CHUNK) // draws)
        for start in range(0, len(weights), size):
            some = slice(start, start + size)
            pairs = zip(self._groups, running, strict=True)
            c, x, o = (run.index_select(0, self._place(group, other)[0][some]) for other, run in pairs)
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

    def _risk_parts(self, running: list[Tensor], a: Tensor) -> Tensor:
        """The risk at the highest threshold that accepts enough of ID✓."""
        if not self._least:  # reached by accepting nothing
            return torch.zeros(2, len(a), running[0].shape[1], dtype=torch.float64, device=a.device)
        at = self._at_recall(self._shares("correct", "correct", running[0]))
        pairs = zip(self._groups, running, strict=True)
        c, x, o = (run.gather(0, self._place("correct", other)[0][at][None])[0].double() for other, run in pairs)
        p = self._accuracy
        covered = a * (p * c + (1 - p) * x) + (1 - a) * o
        bad = torch.stack((a * (1 - p) * x, (1 - a) * o))
        return bad / covered.clamp_min(torch.finfo(covered.dtype).tiny)

    def _running(self, group: str, mass: Tensor) -> tuple[Tensor, Tensor]:
        """Masses in sorted order, scaled to sum to 1, and their running sum, which starts with 0."""
        weights = mass.index_select(0, self._groups[group].indices)
        running = weights.new_zeros(len(weights) + 1, weights.shape[1])
        if weights.device.type == "cpu":
            torch.cumsum(weights, 0, out=running[1:])
        else:
            running[1:] = _cumsum_in_parts(weights)
        # Scaled after the sum: counts add up without rounding.
        scale = running[-1].clamp_min(torch.finfo(running.dtype).tiny).reciprocal()
        return weights.mul_(scale), running.mul_(scale)

    def _place(self, samples: str, other: str) -> tuple[Tensor, Tensor | None]:
        """For each sorted sample of a group, how many of another group are at or above it, and how many above it.

        Both are indices into the other group's running sums. The second is None if no two samples are equal.
        """
        if (samples, other) not in self._places:
            # Negated, as searchsorted needs ascending values.
            ascending, scores = -self._groups[other].values, -self._groups[samples].values
            at_least, above = (torch.searchsorted(ascending, scores, right=equal) for equal in (True, False))
            self._places[samples, other] = at_least, None if torch.equal(above, at_least) else above
        return self._places[samples, other]

    def _shares(self, samples: str, other: str, running: Tensor) -> Tensor:
        """The share of the other group accepted at each sample's score."""
        return running.index_select(0, self._place(samples, other)[0])

    def _halved(self, samples: str, other: str, running: Tensor, shares: Tensor) -> Tensor:
        """The share of the other group above each sample, with equal ones counted half; `shares` counts them fully."""
        _, above = self._place(samples, other)
        return shares if above is None else (shares + running.index_select(0, above)) / 2

    def _at_recall(self, shares: Tensor) -> Tensor:
        """In each draw, the place of the ID✓ at whose score the recall is first reached."""
        # Shares are rounded, so they are compared with half a count below the smallest one that reaches the recall.
        return (shares < (self._least - 0.5) / self._right).sum(0).clamp_max(self._right - 1)


class _IdPart:
    """The ID part of coverage and loss at some samples; each OOD mixture adds its own part."""

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


def _augrc(miss_x: Tensor, miss_o: Tensor, wrong_above: Tensor, p: float, alpha: float, beta: float) -> Tensor:
    """AUGRC from three probabilities: ID✗ above ID✓, OOD above ID✓, ID✗ above OOD (equal ones half)."""
    wrong = alpha * (p * (1 - p) * miss_x + (1 - p) ** 2 / 2) + (1 - alpha) * (1 - p) * wrong_above
    ood = alpha * (p * miss_o + (1 - p) * (1 - wrong_above)) + (1 - alpha) / 2
    return alpha * beta * wrong + (1 - alpha) * (1 - beta) * ood


def _cumsum_in_parts(weights: Tensor) -> Tensor:
    """The running sum along the first axis in two levels: a GPU alone would use one thread for each draw."""
    n, draws = weights.shape
    part = 1 << (n.bit_length() + 1) // 2
    padded = weights.new_zeros(-(-n // part) * part, draws)
    padded[:n] = weights
    within = padded.view(-1, part, draws).cumsum_(1)
    within[1:] += within[:-1, -1].cumsum(0)[:, None]
    return padded[:n]


def _mean(weights: Tensor, values: Tensor) -> Tensor:
    return (weights * values).sum(0).double()
