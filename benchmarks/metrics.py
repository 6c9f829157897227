"""Speed of the metrics: against one sort, against scikit-learn, and against re-sorting, in the same run.

Run it from a checkout: `PYTHONPATH=src python benchmarks/metrics.py`. Defaults are the sizes of an ImageNet-200 study:
38,000 ID✓, 12,000 ID✗ and 100,000 OOD scores. Both sides of a ratio run in turns, and it is the
median of the turns' ratios; times are the best of each side.
"""

from __future__ import annotations

import multiprocessing
import time
from functools import partial

import numpy as np
import torch
from _ranked import SCORES, Groups, Noisy, make_groups, on_grid, own_metrics, repeated
from _timing import Row, peak_memory, report, reset_peak, seconds, standard_options, versus
from sklearn.metrics import roc_auc_score, roc_curve

import sirc
from sirc.metrics.bootstrap import draw_counts

GRID = 21
DRAWS = 1000
_SOME_DRAWS = 100  # of the bootstrap, scaled to all
_PEER_DRAWS = 3  # draws of what re-evaluates each one from scratch, likewise


def resampled_point(groups: Groups, alpha: float, beta: float, rng: np.random.Generator) -> tuple[float, ...]:
    """AURR, AURC and Risk@95 at one α and β as is usual: OOD data subsampled to reach α, curves from scikit-learn."""
    correct, wrong, ood = (g.cpu().numpy() for g in groups)
    inside = len(correct) + len(wrong)
    wanted = min(len(ood), round(inside * (1 - alpha) / alpha))
    ood = rng.choice(ood, wanted, replace=False)
    scores = np.r_[correct, wrong, ood]
    cost = np.r_[np.zeros(len(correct)), np.full(len(wrong), beta), np.full(len(ood), 1 - beta)]
    right = np.r_[np.ones(len(correct)), np.zeros(len(wrong) + len(ood))]
    accepted_bad, recall, _thresholds = roc_curve(right, scores, drop_intermediate=False)
    order = np.argsort(-scores, kind="stable")
    running = np.r_[0, np.cumsum(cost[order])]
    count = accepted_bad * (len(wrong) + len(ood)) + recall * len(correct)
    risk = running[np.round(count).astype(int)] / np.maximum(count, 1)
    coverage = count / len(scores)
    at = np.argmax(recall >= 0.95)
    return float(np.diff(recall) @ risk[1:]), float(np.diff(coverage) @ risk[1:]), float(risk[at])


def sklearn_metrics(correct: np.ndarray, wrong: np.ndarray, ood: np.ndarray) -> None:
    """The metrics of one draw with scikit-learn: two AUROCs with their FPR@95, and the risk curves of the mixture."""
    for negative in (wrong, ood):
        truth = np.r_[np.ones(len(correct)), np.zeros(len(negative))]
        scores = np.r_[correct, negative]
        roc_auc_score(truth, scores)
        fpr, tpr, _ = roc_curve(truth, scores)
        fpr[np.argmax(tpr >= 0.95)]
    inside = len(correct) + len(wrong)
    weight = np.r_[np.full(inside, 0.5 / inside), np.full(len(ood), 0.5 / len(ood))]
    truth = np.r_[np.ones(len(correct)), np.zeros(len(wrong) + len(ood))]
    fpr, tpr, _ = roc_curve(truth, np.r_[correct, wrong, ood], sample_weight=weight, drop_intermediate=False)
    bad, good = fpr * weight[truth == 0].sum(), tpr * weight[truth == 1].sum()
    risk = 0.5 * bad / np.maximum(bad + good, 1e-300)
    float(np.diff(tpr) @ risk[1:]), float(np.diff(bad + good) @ risk[1:]), risk[np.argmax(tpr >= 0.95)]


def bootstrap_rows(groups: Groups, device: torch.device) -> list[Row]:
    correct, wrong, ood = groups
    scores = Noisy.of(groups, device)
    sizes = {"correct": len(correct), "wrong": len(wrong), "ood": len(ood)}
    counts = next(draw_counts(sizes, _PEER_DRAWS, 0, device))
    names = list(scores.confidences)[:2]
    draws_of = {name: [repeated(scores.groups(name), counts, draw) for draw in range(_PEER_DRAWS)] for name in names}
    evaluations = _PEER_DRAWS * len(names)

    def sort_again() -> None:
        for draws in draws_of.values():
            for drawn in draws:
                own_metrics(drawn)

    arrays = [[x.cpu().numpy() for x in drawn] for draws in draws_of.values() for drawn in draws]

    def with_sklearn() -> None:
        for drawn in arrays:
            sklearn_metrics(*drawn)

    resample = partial(scores.resample, _SOME_DRAWS)
    intervals = partial(scores.evaluation().compare, names[0], negatives=["wrong", "pooled"])
    rows = []
    on_cpu = (("", time.perf_counter), (", processor time", time.process_time))
    for how, clock in on_cpu if device.type == "cpu" else on_cpu[:1]:
        pair = versus(
            [intervals], [resample], device=device, repeats=5, budget=60.0, scale=DRAWS / _SOME_DRAWS, clock=clock
        )
        what = f"intervals of paired differences, all metrics, {SCORES} scores{how}"
        compared = f"{DRAWS} draws of the bootstrap, from {_SOME_DRAWS}"
        rows.append(Row(what, pair.ours, compared, pair.reference, 1 / pair.ratio, 100.0, faster=True))
    for compared, work, limit in (
        ("re-sorting each draw with Ranking", sort_again, 1.5),
        ("scikit-learn on each draw's samples", with_sklearn, 10.0),
    ):
        each = DRAWS / _SOME_DRAWS
        scale = DRAWS * SCORES / evaluations / each
        pair = versus([resample], [work], device=device, repeats=3, budget=60.0, scale=scale)
        what = f"{DRAWS} paired draws, from {_SOME_DRAWS}, all metrics, {SCORES} scores"
        rows.append(Row(what, pair.ours * each, compared, pair.reference * each, 1 / pair.ratio, limit, faster=True))
    return rows


def large_rows(device: torch.device) -> list[Row]:
    """Ten million scores: time against a million, memory against the input."""
    times = {}
    for total in (1_000_000, 10_000_000):
        groups = make_groups((total // 4, total // 12, total - total // 4 - total // 12), device)
        own_metrics(groups)
        times[total] = min(seconds(lambda g=groups: own_metrics(g), device) for _ in range(2))
    ideal = float(10 * np.log(1e7) / np.log(1e6))
    grown = times[10_000_000] / times[1_000_000]
    rows = [
        Row("all metrics of 10,000,000 scores", times[10_000_000], "of 1,000,000", times[1_000_000], grown, 1.5 * ideal)
    ]
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        growth = pool.apply(memory_growth, (10_000_000, device.type))
    what = "their memory, in arrays of the input"
    rows.append(Row(what, growth / (8 * 10_000_000), limit=10, unit="arrays", limit_of="measured"))
    return rows


def memory_growth(total: int, kind: str) -> int:
    """The peak memory of all metrics over that of the scores alone, in a process of its own."""
    device = torch.device(kind)
    own_metrics(make_groups((100, 100, 100), device))
    groups = make_groups((total // 4, total // 12, total - total // 4 - total // 12), device)
    before = reset_peak(device)
    own_metrics(groups)
    return (peak_memory(device) or 0) - (before or 0)


def main() -> None:
    parser = standard_options(__doc__ or "", "python benchmarks/metrics.py --markdown", rows=150_000, repeats=9)
    parser.add_argument("--skip-large", action="store_true", help="leave out the rows with ten million scores")
    options = parser.parse_args()
    device = torch.device(options.device)
    n = options.rows
    sizes = (n * 38 // 150, n * 12 // 150, n - n * 38 // 150 - n * 12 // 150)
    groups = make_groups(sizes, device)
    together = torch.cat(groups)
    alphas = torch.linspace(0.05, 1, GRID, dtype=torch.float64)
    betas = torch.linspace(0, 1, GRID, dtype=torch.float64)
    rows = []

    pair = versus(
        [lambda: on_grid(groups, alphas, betas)], [lambda: together.sort()], device=device, repeats=options.repeats
    )
    what = f"AURR, AURC, Risk@95 on {GRID} × {GRID} (α, β), with the sort"
    rows.append(Row(what, pair.ours, "one torch.sort", pair.reference, pair.ratio, 5))

    rng = np.random.default_rng(0)
    points = [(float(a), float(b)) for a in alphas[5::7] for b in betas[3::7]]

    def peer() -> None:
        for a, b in points:
            resampled_point(groups, a, b, rng)

    pair = versus(
        [lambda: on_grid(groups, alphas, betas)], [peer], device=device, repeats=3, scale=GRID**2 / len(points)
    )
    rows.append(
        Row("the same, per (α, β)", pair.ours, "resampled OOD, scikit-learn", pair.reference, 1 / pair.ratio, 200, True)
    )

    correct, _wrong, ood = (g.cpu().numpy() for g in groups)
    truth, scores = np.r_[np.ones(len(correct)), np.zeros(len(ood))], np.r_[correct, ood]

    def auroc_fpr() -> None:
        r = sirc.Ranking(groups[0], None, groups[2])
        r.auroc("ood"), r.fpr("ood")

    pair = versus([auroc_fpr], [lambda: roc_auc_score(truth, scores)], device=device, repeats=options.repeats)
    rows.append(Row("AUROC and FPR@95", pair.ours, "sklearn roc_auc_score alone", pair.reference, pair.ratio, 1))
    rows += bootstrap_rows(groups, device)
    if not options.skip_large:
        rows += large_rows(device)
    report(f"Metrics of {n:,} scores", rows, [], options, device)


if __name__ == "__main__":
    main()
