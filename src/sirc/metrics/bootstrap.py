"""Stratified bootstrap: metrics of resampled data from weights on the sorted order, with no sort per draw.

A resample of a group is a count of how often each of its samples was drawn. Scores are sorted once. For each sample,
in sorted order, it is known how many of every group rank at or above it, so the accepted shares at its score, in any
resample, are looked up in running sums of the counts. Every metric is a mean of such shares:

    AUROC  = 1 − mean over ID✓ of the share of negatives above (equal ones half)
    AURR   = mean over ID✓ of the risk at its score          AURC = mean over all input of the risk at its score

The same counts serve every score, so that differences between scores are paired.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import Tensor

Values = dict[str, Tensor]

METRICS = ("auroc", "fpr", "aurr", "risk", "aurc", "augrc")

# Draws lie side by side in memory, so that one look-up serves all of a block. A block holds about this many counts
# (on a CPU, what its cache does) and a number of draws within these bounds.
_BLOCK, _BLOCK_ELSEWHERE = 1 << 20, 1 << 26
_FEWEST, _MOST, _MOST_ELSEWHERE = 8, 64, 128
_EXACT = 1 << 22  # counts that float32 tells apart by halves, with room to spare


def bootstrap(
    confidences: Mapping[str, Tensor],
    correct: Tensor,
    ood: Mapping[str, Mapping[str, Tensor]],
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
    sizes = {name: len(next(iter(by_score.values()))) for name, by_score in ood.items()}
    right = int(correct.sum())
    plan = Draws(
        {"correct": right, "wrong": len(correct) - right, **{f"ood {n}": k for n, k in sizes.items()}},
        draws,
        seed,
        correct.device,
    )
    resampled = {
        score: ResampledScore(
            own[correct],
            own[~correct],
            {name: torch.cat([ood[member][score] for member in members]) for name, members in unions.items()},
            recall=recall,
        )
        for score, own in confidences.items()
    }
    found: dict[tuple[str, str, str], list[Tensor]] = {}
    for counts in plan.blocks():
        masses = {}
        for name, members in unions.items():
            parts = [counts[f"ood {member}"] / (sizes[member] if equal_sets else 1) for member in members]
            masses[name] = torch.cat(parts)
        for score, one in resampled.items():
            values = one.metrics(counts["correct"], counts["wrong"], masses, alpha=alpha, beta=beta)
            for negative, by_metric in values.items():
                for metric, value in by_metric.items():
                    found.setdefault((score, negative, metric), []).append(value.double())
    # Brought to the CPU at the end, so that a GPU is not waited for after every number.
    return {key: torch.cat(parts).cpu() for key, parts in found.items()}


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
        room, most = (_BLOCK, _MOST) if on_cpu else (_BLOCK_ELSEWHERE, _MOST_ELSEWHERE)
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

    def __init__(self, correct: Tensor, wrong: Tensor, oods: Mapping[str, Tensor], *, recall: float) -> None:
        self._correct, self._wrong = _Group(correct), _Group(wrong)
        self._oods = {name: _Group(scores) for name, scores in oods.items()}
        self._accuracy = len(correct) / (len(correct) + len(wrong))
        # The least count of ID✓ whose share, as a float64, reaches the recall.
        least = math.ceil(recall * len(correct))
        self._least = least - 1 if (least - 1) / len(correct) >= recall else least
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
        found: dict[str, Values] = {}
        if len(self._wrong):
            aurr = _mean(w_c, alone["correct"].risk())
            found["wrong"] = {
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
            found[name] = {
                "auroc": 1 - miss_o,
                "fpr": picked(o["correct"]),
                "aurr": aurr,
                "risk": picked(at_correct),
                "aurc": alpha * id_risk + (1 - alpha) * _mean(w_o, _Parts(c_o, x_o, p, alpha, beta).risk(o[key])),
                "augrc": _augrc(miss_x, miss_o, wrong_above, p, alpha, beta),
            }
        return found

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


def _augrc(miss_x: Tensor, miss_o: Tensor, wrong_above: Tensor, p: float, alpha: float, beta: float) -> Tensor:
    """AUGRC from three probabilities: ID✗ above ID✓, OOD above ID✓, ID✗ above OOD (equal ones half)."""
    wrong = alpha * (p * (1 - p) * miss_x + (1 - p) ** 2 / 2) + (1 - alpha) * (1 - p) * wrong_above
    ood = alpha * (p * miss_o + (1 - p) * (1 - wrong_above)) + (1 - alpha) / 2
    return alpha * beta * wrong + (1 - alpha) * (1 - beta) * ood


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
