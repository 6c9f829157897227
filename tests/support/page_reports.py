"""Runs to make pages of, from made-up confidences, and what `sirc.Ranking` says a page must show for them."""

from dataclasses import dataclass

import numpy as np

import sirc
from sirc.report.page import report

# How far ID✗, the first and the last OOD set lie below ID✓, in standard deviations: each score has its own strength.
STRENGTHS = {
    "msp": (1.6, 1.0, 0.9),
    "sirc(msp, residual)": (1.55, 1.2, 1.7),
    "energy": (1.1, 1.2, 1.3),
    "vim": (0.6, 1.2, 2.6),
    "mine": (1.3, 1.6, 0.7),
}
SETS = {"near": 400, "shifted": 150, "far": 700}
GROUPS = {"Close": ["near", "shifted"], "Far": ["far"]}


@dataclass(frozen=True)
class Run:
    model: str
    seed: int
    evaluation: sirc.Evaluation


def made_up(strengths=STRENGTHS, sets=SETS, *, right=900, wrong=250, seed=0, wobble=0.0, decimals=4, **options):
    """An evaluation; `wobble` moves the strengths with the seed, as training again does."""
    rng = np.random.default_rng(seed)
    correct = np.arange(right + wrong) < right
    share = {name: i / max(1, len(sets) - 1) for i, name in enumerate(sets)}
    noise = {name: rng.standard_normal(size) for name, size in {"": right + wrong, **sets}.items()}
    inside, outside = {}, {name: {} for name in sets}
    for score, strength in strengths.items():
        below, first, last = np.asarray(strength) + wobble * rng.standard_normal(3)

        def values(name, shift, score=score):
            # Scores of one input go together, but not wholly; rounded, some of them are equal.
            own = rng.standard_normal(len(noise[name]))
            return np.round(0.8 * noise[name] + 0.6 * own - shift, decimals)

        inside[score] = values("", np.where(correct, 0, below)), correct
        for name in sets:
            outside[name][score] = values(name, first + (last - first) * share[name])
    return sirc.evaluate(inside, ood=outside, **options)


def write(runs, path, **options):
    """Write their page."""
    return report([runs] if isinstance(runs, Run) else runs, path, **options)


def pooled(evaluation, members=None, pool="samples"):
    """The weight of each OOD set when these are pooled."""
    sizes = [len(next(iter(x.values()))) if members is None or n in members else 0 for n, x in evaluation.ood.items()]
    return np.asarray(sizes, float) if pool == "samples" else (np.asarray(sizes) > 0).astype(float)


def ranking(evaluation, score, weights):
    """The `Ranking` of a score where the OOD sets have these weights, whatever their sizes."""
    own, correct = evaluation.confidences[score].numpy(), evaluation.correct.numpy()
    some = [(x[score].numpy(), w) for x, w in zip(evaluation.ood.values(), weights, strict=True) if w > 0]
    if not some:
        return sirc.Ranking(own[correct], own[~correct])
    each = np.concatenate([np.full(len(values), w / len(values)) for values, w in some])
    return sirc.Ranking(own[correct], own[~correct], np.concatenate([v for v, _ in some]), ood_weights=each)


def row(evaluations, score, *, alpha=0.5, beta=0.5, recall=0.95, weights=None):
    """A score's row of the ranked list: each column's mean over the runs."""
    rows = []
    for evaluation in evaluations:
        each = pooled(evaluation) if weights is None else weights
        found = ranking(evaluation, score, each)
        at = found.threshold(recall=recall)
        alone = [float((x[score].numpy() >= at).mean()) for x in evaluation.ood.values()]
        _, wrong, ood = found.accepted(at)
        rows.append(
            {
                "risk": found.risk_at_recall(recall, alpha, beta),
                "coverage": found.coverage(at, alpha),
                "wrong": wrong,
                "ood": ood,
                "threshold": at,
                "aurr": found.aurr(alpha, beta),
                "aurc": found.aurc(alpha, beta),
                **{f"set-{i}": share for i, share in enumerate(alone)},
            }
        )
    return {column: float(np.mean([r[column] for r in rows])) for column in rows[0]}


def risks(evaluations, metric="risk", *, alpha=0.5, beta=0.5, recall=0.95, weights=None):
    """The metric that scores are ranked by, (score, run)."""
    found = []
    for score in evaluations[0].scores:
        each = [ranking(e, score, pooled(e) if weights is None else weights) for e in evaluations]
        if metric == "risk":
            found.append([r.risk_at_recall(recall, alpha, beta) for r in each])
        else:
            found.append([getattr(r, metric)(alpha, beta) for r in each])
    return np.asarray(found)


def within_noise(differences):
    """Whether paired differences over runs could be none: their mean is at most two standard deviations from 0."""
    return abs(np.mean(differences)) <= 2 * np.std(differences, ddof=1)
