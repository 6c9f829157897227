"""Speed on a GPU, each figure beside what the card can do at most, measured in the same run.

Run it from a checkout: `PYTHONPATH=src python benchmarks/gpu.py --markdown`. It was written for a card with 40 GB; with
`--rows` it runs on smaller ones. Several calls are timed in a row, so that the queue of launches is full, and the best
of a few turns counts. Rows against pytorch-ood appear where it is installed.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from unittest.mock import patch

import torch
from _gpu_limits import Limits, Share, in_turns, measure_limits, tf32, three_products, versions
from _gpu_networks import extraction, training
from _ranked import SCORES, Noisy, make_groups, on_grid, own_metrics, repeated
from _timing import Row, report, seconds, standard_options
from fit import SPECS
from torch import Tensor

import sirc
from scores import SIXTEEN, Bench, prepare
from sirc import functional
from sirc.metrics.bootstrap import draw_counts
from sirc.scores import products as split
from sirc.scores.formulas import feature
from sirc.scores.formulas.softmax import Softmax

SIX = ("msp", "doctor", "entropy", "energy", "max_logit", "margin")
PARTS = ("softmax", "products", "fit", "metrics", "extraction", "training")
_GRID = 21
_DRAWS = 1000
_SAMPLE = 20_000  # rows of which all pairs are compared


def main() -> None:
    parser = standard_options(
        "Time sirc on a GPU against the limits of the card.",
        "python benchmarks/gpu.py --markdown --parts softmax,products",
        rows=500_000,
        repeats=5,
    )
    parser.set_defaults(device="cuda")
    parser.add_argument("--parts", default=",".join(PARTS), help="what to measure")
    parser.add_argument("--ranked", type=int, default=10_000_000, help="scores of the ranking")
    parser.add_argument("--images", type=int, default=25_600, help="images of 64 px to extract and to train on")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error(
            "this needs a CUDA device. To try it without: --device cpu --rows 3000 --classes 20 --features 64 "
            "--ranked 10000 --images 64 --repeats 1"
        )
    device = torch.device(options.device)
    parts = options.parts.split(",")
    if unknown := set(parts) - set(PARTS):
        parser.error(f"--parts are {', '.join(PARTS)}; got {', '.join(sorted(unknown))}")
    rows: list[Row] = []
    notes = [versions()]
    if not {"softmax", "products", "fit"}.isdisjoint(parts):
        bench = prepare(options.rows, options.classes, options.features, device, options.repeats)
        limits = measure_limits(bench.features, repeats=options.repeats)
        notes.append(limits.words())
        for part in (softmax, products, fit):
            if part.__name__ in parts:
                _announce(part.__name__)
                part(bench, limits, rows, notes)
        del bench
    if "metrics" in parts:
        _announce("metrics")
        ranking(options.ranked, device, options.repeats, rows)
        resampling(options.rows * 3 // 10, device, rows)
    for part in (extraction, training):
        if part.__name__ in parts:
            _announce(part.__name__)
            rows += part(options.images, device, notes)
    _announce("done")
    title = (
        f"sirc on a GPU: {options.rows:,} rows of {options.classes:,} float32 logits and {options.features:,} features"
    )
    report(title, rows, notes, options, device)


def _announce(part: str) -> None:
    print(f"{time.perf_counter():8.1f} s  {part} …", file=sys.stderr, flush=True)


def softmax(bench: Bench, limits: Limits, rows: list[Row], notes: list[str]) -> None:
    logits, features = bench.logits, bench.features
    p = Softmax.of(logits)

    works = (
        lambda: Softmax.of(logits),
        lambda: _six(p[:]),
        lambda: _six(Softmax.of(logits)),
        lambda: _eager_six(logits),
        lambda: Softmax.of(logits, compile=False),
        lambda: torch.logsumexp(logits, -1),
        lambda: feature.l1(features),
        lambda: features.abs().sum(-1),
    )
    one, after, all_six, eager, double, logsumexp, l1, plain_l1 = in_turns(
        *works, device=bench.device, repeats=bench.repeats, calls=10
    )
    what = "the softmax pass: prediction, v₁, v₂, t, w, q, ‖π − 1/K‖₁"
    rows.append(limits.reading(what, one, logits.nbytes, limit=0.8))
    rows.append(_times(what, one, "the same by float64 operations of torch", double))
    rows.append(_times(f"{', '.join(SIX)} from it", after, "the pass", one))
    rows.append(limits.reading("the pass and these six scores", all_six, logits.nbytes))
    rows.append(_times("the pass and these six scores", all_six, "their plain formulas in float32", eager))
    rows.append(_times("the pass and these six scores", all_six, "torch.logsumexp alone", logsumexp))
    rows.append(limits.reading("l1", l1, features.nbytes, limit=0.8))
    rows.append(_times("l1", l1, "z.abs().sum(-1)", plain_l1))
    some = logits[:_SAMPLE]
    fast, exact = Softmax.of(some), Softmax.of(some, compile=False)
    for name in ("msp", "doctor", "entropy"):
        a, b = functional.log_gap(fast, name), functional.log_gap(exact, name)
        notes.append(
            f"{name}, log(S1max − S1) of the pass against float64 exponentials: differs by at most "
            f"{float((a - b).abs().max()):.1e}; {_discordance(a, b)}"
        )
    try:
        from pytorch_ood.detector import EnergyBased, Entropy, MaxLogit, MaxSoftmax
    except ImportError:
        notes.append("pytorch-ood is not installed: `pip install pytorch-ood` adds rows against it")
        return
    peers = (MaxSoftmax, Entropy, EnergyBased, MaxLogit)
    (theirs,) = in_turns(lambda: [x.score(logits) for x in peers], device=bench.device, repeats=bench.repeats)
    rows.append(_times("the pass and these six scores", all_six, "four of them by pytorch-ood", theirs))


def _six(p: Softmax) -> list[Tensor]:
    return [getattr(functional, name)(p) for name in SIX]


def _eager_six(logits: Tensor) -> tuple[Tensor, ...]:
    """The same scores as one would write them down."""
    pi = logits.softmax(-1)
    top = logits.topk(2, -1).values
    entropy = (pi * logits.log_softmax(-1)).sum(-1)
    return pi.amax(-1), pi.norm(dim=-1), entropy, logits.logsumexp(-1), logits.amax(-1), top[:, 0] - top[:, 1]


def products(bench: Bench, limits: Limits, rows: list[Row], notes: list[str]) -> None:
    """The matrix scores: how near to the rate of the products, and what other precisions would do to the ranking."""
    n, size = bench.features.shape
    found = {name: bench.parameters(name) for name in ("residual", "mahalanobis")}
    outside = found["residual"]["basis"].shape[1]
    kept, classes = found["mahalanobis"]["whitener"].shape[1], len(found["mahalanobis"]["means"])
    operations = {"residual": 2 * n * size * outside, "mahalanobis": 2 * n * kept * (size + classes)}
    formulas = {"residual": feature.residual, "mahalanobis": feature.mahalanobis}
    shifted = bench.features[:_SAMPLE] + 0.12 * torch.randn_like(bench.features[:_SAMPLE])
    for name, formula in formulas.items():
        scorer, given = bench.only(name), found[name]
        works = (partial(scorer, bench.outputs), partial(formula, bench.features, **given))
        ours, whole = in_turns(*works, device=bench.device, repeats=bench.repeats, calls=2)
        rows.append(limits.multiplying(name, ours, operations[name], "float32", 1.2))
        rows.append(_times(name, ours, "its formula on all rows at once", whole))
        with tf32(True):
            switched = scorer(bench.outputs[:_SAMPLE])[name]
        same = torch.equal(switched, scorer(bench.outputs[:_SAMPLE])[name])
        notes.append(f"{name} with TF32 switched on for the process: {'the same values' if same else 'OTHER VALUES'}")
        inside = bench.features[:_SAMPLE]
        wide = {key: bench.scorer.parameters[name][key].double() for key in given}
        exact = [formula(z.double(), **wide) for z in (inside, shifted)]
        for precision in ("as scored", "in float32", "in TF32", "in bfloat16"):
            with (
                nullcontext() if precision == "as scored" else patch.object(split, "_split_pays", return_value=False),
                tf32(precision == "in TF32"),
                torch.autocast(bench.device.type, torch.bfloat16, enabled=precision == "in bfloat16"),
            ):
                values = [formula(z, **given).double() for z in (inside, shifted)]
            notes.append(_precision_note(name, precision, values, exact))
        if name == "residual":
            pair = [three_products(z - given["origin"], given["basis"]) for z in (inside, shifted)]
            values = [-torch.linalg.vector_norm(part, dim=-1).double() for part in pair]
            notes.append(_precision_note(name, "in 3×TF32", values, exact))
    (sixteen,) = in_turns(
        partial(sirc.Scorer(SIXTEEN, bench.scorer.parameters), bench.outputs), device=bench.device, repeats=2, calls=1
    )
    notes.append(f"the paper's sixteen scores: {n / sixteen:,.0f} rows/s")
    few = bench.features[:4096]  # rows enough to fill the card
    (slow,) = in_turns(partial(_class_by_class, bench, few), device=bench.device, repeats=1, calls=1)
    compared = f"a quadratic form per class, on {len(few):,} rows, scaled"
    rows.append(_times("mahalanobis", ours, compared, slow * n / len(few)))


def _class_by_class(bench: Bench, z: Tensor) -> Tensor:
    whitener = bench.parameters("mahalanobis")["whitener"]
    precision = whitener @ whitener.T
    distances = [(((z - mean) @ precision) * (z - mean)).sum(1) for mean in bench.class_means]
    return -torch.stack(distances, 1).amin(1)


def _precision_note(name: str, precision: str, values: list[Tensor], exact: list[Tensor]) -> str:
    change = _auroc(values) - _auroc(exact)
    return (
        f"{name} {precision} against float64: {_discordance(values[0], exact[0])}; the AUROC of these rows against "
        f"rows with a little noise, {_auroc(exact):.4f}, changes by {change:+.1e}"
    )


def _auroc(pair: list[Tensor]) -> float:
    return sirc.Ranking(pair[0], None, pair[1]).auroc("ood")


def _discordance(values: Tensor, exact: Tensor) -> str:
    """How many pairs of rows are in another order than they should be."""
    wrong = 0
    for some in torch.arange(len(exact), device=exact.device).split(2048):
        wrong += int(((exact[some, None] > exact) & (values[some, None] <= values)).sum())
    pairs = len(exact) * (len(exact) - 1) // 2
    return f"{wrong:,} of {pairs:,} pairs in another order ({wrong / pairs:.1e})"


def fit(bench: Bench, limits: Limits, rows: list[Row], notes: list[str]) -> None:
    """The streaming fit beside the float64 zᵀz, and beside that with the eigendecompositions that it needs."""
    outputs, z = bench.outputs, bench.features
    total = torch.zeros(z.shape[1], z.shape[1], dtype=torch.float64, device=z.device)

    def gram() -> None:
        for block in z.split(8192):
            wide = block.double()
            total.addmm_(wide.T, wide)

    gram()
    symmetric = total + total.T
    works = (lambda: sirc.fit(SPECS, outputs, head=bench.head), gram, lambda: torch.linalg.eigh(symmetric))
    taken, product, eigen = in_turns(*works, device=bench.device, repeats=2, calls=1)
    least = 2 * z.shape[0] * z.shape[1] ** 2 / limits.products["float64"]
    rows.append(
        Share("zᵀz of the features, float64", product * 1e3, "its product in float64", least * 1e3, least / product)
    )
    what = f"fit of {', '.join(SPECS[:3])} and {len(SPECS) - 3} of sirc"
    rows.append(_times(what, taken, "zᵀz, float64", product))
    rows.append(_times(what, taken, "zᵀz and the two eigendecompositions", product + 2 * eigen))


def ranking(count: int, device: torch.device, repeats: int, rows: list[Row]) -> None:
    groups = make_groups((count // 4, count // 12, count - count // 4 - count // 12), device)
    together = torch.cat(groups)
    alphas = torch.linspace(0.05, 1, _GRID, dtype=torch.float64)
    betas = torch.linspace(0, 1, _GRID, dtype=torch.float64)

    ours = partial(on_grid, groups, alphas, betas)
    order = together.sort(descending=True).indices

    def plain() -> None:
        """AURR and AURC of one α and β from the sorted scores."""
        right = (order < len(groups[0])).double()
        inside = (order < len(groups[0]) + len(groups[1])).double()
        weight = torch.where(inside > 0, 0.5 / (len(groups[0]) + len(groups[1])), 0.5 / len(groups[2]))
        coverage = weight.cumsum(0)
        risk = (weight * (1 - right) * 0.5).cumsum(0) / coverage
        float((risk * right).sum() / len(groups[0])), float((risk * weight).sum())

    taken, sort, one = in_turns(ours, together.sort, plain, device=device, repeats=repeats, calls=2)
    what = f"AURR, AURC, Risk@95 of {count:,} scores on {_GRID} × {_GRID} (α, β)"
    rows.append(replace(_times(what, taken, "one torch.sort", sort), limit=5))
    compared = "a sort, then plain formulas of AURR, AURC for each (α, β), one of them scaled"
    rows.append(_times(what, taken, compared, sort + one * _GRID**2))


def resampling(count: int, device: torch.device, rows: list[Row]) -> None:
    made = make_groups((count * 38 // 150, count * 12 // 150, count * 2 // 3), device)
    scores = Noisy.of(made, device)
    sizes = dict(zip(("correct", "wrong", "ood"), map(len, made), strict=True))
    counts = next(draw_counts(sizes, 2, 0, device))
    drawn = [repeated(scores.groups("score 0"), counts, draw) for draw in range(2)]

    def sort_again() -> None:
        for group in drawn:
            own_metrics(group)

    scores.resample(64)
    taken = seconds(lambda: scores.resample(_DRAWS), device)
    drawing = seconds(lambda: deque(draw_counts(sizes, _DRAWS, 0, device), maxlen=0), device)
    (again,) = in_turns(sort_again, device=device, repeats=3, calls=2)
    what = f"{_DRAWS} paired draws of {count:,} rows, all metrics, {SCORES} scores"
    rows.append(_times(what, taken, "sorting each draw again with Ranking", again / 2 * _DRAWS * SCORES))
    rows.append(_times(what, taken, "drawing alone, the same numbers on every device", drawing))


def _times(what: str, ours: float, compared: str, reference: float) -> Row:
    faster = reference >= ours
    unit, scale = ("s", 1) if max(ours, reference) > 1 else ("ms", 1e3)
    ratio = reference / ours if faster else ours / reference
    return Row(what, ours * scale, compared, reference * scale, ratio, faster=faster, unit=unit)


if __name__ == "__main__":
    main()
