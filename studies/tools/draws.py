"""Paired bootstrap of several networks on the same images, and intervals that know of images and of networks.

One draw resamples the test images and those of each OOD set, the same for every network and every score. So the mean
over networks of a difference between scores has the spread that the images give it, however much networks agree. Seeds
add to it: the variance between those of a network, over their number, is what more networks would lower. Few seeds are
a bad guess of that variance, so that it counts with Student's t, and the two parts of an interval add up as squares.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from scipy import special

from sirc.evaluation import MEAN, POOLED, WRONG
from sirc.metrics.bootstrap import ResampledScore, draw_counts
from studies.tools.ranks import Ranks

RECALL = 0.95
MIDDLE = (0.5, 0.5)  # α and β of the tables
ID_MEAN = f"{MEAN}|ID"  # plain OOD detection: against all ID rows, right or wrong
METRICS = {"auroc": "auroc", "fpr": "fpr@95", "aurr": "aurr", "risk": "risk@95", "aurc": "aurc"}
OF_MIXTURE = ("aurr", "risk@95", "aurc")  # α and β play a part in them
LEVEL = 0.95

Key = tuple[str, str, str, float | None, float | None]  # score, negative, metric, α, β
Samples = dict[Key, np.ndarray]  # the value, and then that of each draw


@dataclass(frozen=True)
class Wanted:
    """What to draw besides every score on every OOD set at `MIDDLE`, which takes most of the time."""

    mixed: Sequence[str]
    """Scores to draw on unions of OOD sets, and as plain OOD detectors, too."""
    swept: Sequence[str]
    """Scores to draw on unions at other (α, β) too."""
    settings: Sequence[tuple[float, float]]


def draw(
    runs: Sequence[Ranks], wanted: Wanted, *, draws: int, seed: int, workers: int, tell: Callable[[str], None]
) -> list[Samples]:
    """Every metric of every run in each draw."""
    first = runs[0]
    sizes = {"test": len(first.correct), **{f"ood {name}": count for name, count in first.sets.items()}}
    blocks = list(draw_counts(sizes, draws, seed, torch.device("cpu")))

    def one(run: Ranks) -> Samples:
        found = draw_run(run, wanted, blocks)
        tell(f"{run.model}, seed {run.seed}: {draws} draws of {len(run.scores)} scores")
        return found

    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(one, runs))


def draw_run(run: Ranks, wanted: Wanted, blocks: Sequence[Mapping[str, torch.Tensor]]) -> Samples:
    """Every metric of one run: its value, from weights of 1, and then that of each draw."""
    correct = torch.from_numpy(run.correct)
    sets = {name: [name] for name in run.sets}
    unions = {POOLED: list(run.sets), **run.groups}
    sizes = {"test": len(correct), **{f"ood {name}": count for name, count in run.sets.items()}}
    whole = {name: torch.ones(count, 1, dtype=torch.float64) for name, count in sizes.items()}
    found: dict[Key, list[torch.Tensor]] = {}

    def add(score: str, one: ResampledScore, members: Mapping[str, list[str]], at: tuple[float, float]) -> None:
        for counts in (whole, *blocks):
            outside = {name: torch.cat([counts[f"ood {m}"] for m in names]) for name, names in members.items()}
            rows = counts["test"]
            values = one.metrics(rows[correct], rows[~correct], outside, alpha=at[0], beta=at[1])
            for negative, by_metric in values.items():
                for short, metric in METRICS.items():
                    # Elsewhere than in the middle, only what α and β play a part in is new.
                    if at == MIDDLE or (negative != WRONG and metric in OF_MIXTURE):
                        found.setdefault(key(score, negative, metric, at), []).append(by_metric[short])

    for score in run.scores:
        inside, outside = run.confidences(score)
        right, wrong = inside[correct], inside[~correct]
        members = {**sets, **(unions if score in wanted.mixed else {})}
        own = {name: torch.cat([outside[m] for m in names]) for name, names in members.items()}
        add(score, ResampledScore(right, wrong, own, recall=RECALL), members, MIDDLE)
        if score in wanted.swept:
            mixed = ResampledScore(right, wrong, {name: own[name] for name in unions}, recall=RECALL)
            for at in wanted.settings:
                add(score, mixed, unions, at)
        for metric in METRICS.values():
            each = [found[key(score, name, metric, MIDDLE)] for name in sets]
            mean = [torch.stack(parts).mean(0) for parts in zip(*each, strict=True)]
            found[key(score, MEAN, metric, MIDDLE)] = mean
        if score in wanted.mixed:
            detector = ResampledScore(inside, inside[:0], outside, recall=RECALL)
            for counts in (whole, *blocks):
                by_set = {name: counts[f"ood {name}"] for name in sets}
                values = detector.metrics(counts["test"], counts["test"][:0], by_set, alpha=0.5, beta=0.5)
                for short in ("auroc", "fpr"):
                    over = torch.stack([values[name][short] for name in sets]).mean(0)
                    found.setdefault(key(score, ID_MEAN, METRICS[short], MIDDLE), []).append(over)
    return {key: torch.cat(parts).numpy() for key, parts in found.items()}


def key(score: str, negative: str, metric: str, at: tuple[float, float] = MIDDLE) -> Key:
    """The key of some samples; α is 1 for the metrics of ID✗ alone, a mixture without OOD data."""
    if metric not in OF_MIXTURE:
        return (score, negative, metric, None, None)
    return (score, negative, metric, 1.0 if negative == WRONG else at[0], at[1])


@dataclass(frozen=True)
class Pooled:
    """A mean over networks, or a difference of means, with its standard errors."""

    value: float
    images: float
    """The standard error that the images bring."""
    networks: float
    """The standard error that the networks' seeds bring."""
    freedom: float
    """The degrees of freedom of the latter."""

    @property
    def reach(self) -> float:
        """Half the width of the 95% interval."""
        return math.hypot(t_quantile(math.inf) * self.images, t_quantile(self.freedom) * self.networks)


def pool(samples: Sequence[Sequence[np.ndarray]]) -> Pooled:
    """Pool one quantity over models and the seeds of each; every array is the value and then that of each draw.

    Models are given, so that their mean counts; seeds and images are samples. The images' variance is that of the mean
    over all runs in joint draws; the networks' is Σ s²/n over models, by the square of their number, where s² is the
    variance between the n seeds of a model, with Satterthwaite's degrees of freedom (n − 1 for one model).
    """
    means = np.mean([np.mean(runs, 0) for runs in samples], 0)
    images = float(np.var(means[1:], ddof=1)) if len(means) > 2 else 0.0
    parts = []
    for runs in samples:
        values = np.array([run[0] for run in runs])
        parts.append(
            (np.var(values, ddof=1) / len(values) / len(samples) ** 2 if len(values) > 1 else 0.0, len(values))
        )
    networks = float(sum(part for part, _ in parts))
    doubt = sum(part**2 / (count - 1) for part, count in parts if count > 1)
    freedom = networks**2 / doubt if doubt else math.inf
    return Pooled(float(means[0]), images**0.5, networks**0.5, float(freedom))


def t_quantile(freedom: float) -> float:
    """Student's t for a 95% interval."""
    return float(special.stdtrit(freedom, (1 + LEVEL) / 2))


def by_model(runs: Iterable[Ranks]) -> dict[str, list[int]]:
    """The places of each model's runs."""
    found: dict[str, list[int]] = {}
    for place, run in enumerate(runs):
        found.setdefault(run.model, []).append(place)
    return found
