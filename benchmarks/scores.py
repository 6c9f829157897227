"""How fast the scores are, each against the work it cannot avoid and against peers that compute the same.

Run it from a checkout: `PYTHONPATH=src python benchmarks/scores.py`. The rows against pytorch-ood appear where it is
installed (`pip install pytorch-ood`), those against scikit-learn where that is. Both sides of a ratio run in turns.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass

import torch
from _timing import Row, report, seconds, standard_options, versus
from torch import Tensor

import sirc
from sirc import functional
from sirc.scores.softmax import Softmax

SIXTEEN = [
    *(f"sirc({s1}, {s2})" for s1 in ("msp", "doctor", "entropy") for s2 in ("l1", "residual")),
    *("msp", "doctor", "entropy", "l1", "residual", "max_logit", "energy", "gradnorm", "vim", "mahalanobis"),
]
_SLICE = {"cpu": 64, "cuda": 1024}  # rows for what takes a class, or a neighbour, at a time
_ROW_BLOCKS = {"cpu": (512, 2048, 8192), "cuda": (8192, 32768)}


@dataclass(frozen=True)
class Bench:
    """The arrays, a scorer fitted for them, and how to time."""

    outputs: sirc.Outputs
    scorer: sirc.Scorer
    head: sirc.Head
    class_means: Tensor
    repeats: int

    @property
    def logits(self) -> Tensor:
        """The (n, K) logits."""
        return self.outputs.logits

    @property
    def features(self) -> Tensor:
        """The (n, L) features."""
        assert self.outputs.features is not None
        return self.outputs.features

    @property
    def device(self) -> torch.device:
        """Where they are."""
        return self.outputs.device

    @property
    def slice(self) -> sirc.Outputs:
        """The first few rows."""
        return self.outputs[: _SLICE[self.device.type]]

    def parameters(self, leaf: str) -> dict[str, Tensor]:
        """What was fitted, where and as the features are."""
        return {name: value.to(self.features) for name, value in self.scorer.parameters[leaf].items()}

    def only(self, spec: str) -> sirc.Scorer:
        """The same fit, for one spec."""
        return sirc.Scorer([spec], self.scorer.parameters)

    def row(
        self,
        what: str,
        ours: Callable[[], object],
        compared: str,
        reference: Callable[[], object],
        *,
        limit: float | None = None,
        faster: bool = False,
        scale: float = 1.0,
    ) -> Row:
        """Time two sides and state the target."""
        pair = versus(ours, reference, device=self.device, repeats=self.repeats, scale=scale)
        ratio = 1 / pair.ratio if faster else pair.ratio
        return Row(what, pair.ours, compared, pair.reference, ratio, limit, faster)


def main() -> None:
    parser = standard_options(
        "Time the scores against the work they cannot avoid, and against peers.",
        "python benchmarks/scores.py --rows 20000 --device cuda --json scores.json",
        rows=50_000,
        repeats=7,
    )
    options = parser.parse_args()
    device = torch.device(options.device)
    bench = prepare(options.rows, options.classes, options.features, device, options.repeats)
    rows: list[Row] = []
    notes: list[str] = []
    for part in (logit_side, mahalanobis, sixteen, neighbours, peer):
        print(f"{part.__name__.replace('_', ' ')} …", file=sys.stderr)
        part(bench, rows, notes)
    title = f"Scores of {options.rows:,} rows of {options.classes:,} float32 logits and {options.features:,} features"
    report(title, rows, notes, options, device)


def prepare(n: int, classes: int, features: int, device: torch.device, repeats: int) -> Bench:
    """Rows around class means, with the logits that a linear head gives them; a scorer fitted on other such rows."""
    generator = torch.Generator(device).manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device=device)

    means = normal(classes, features).relu_()
    weight = means / means.norm(dim=1, keepdim=True)
    head = sirc.Head(weight, normal(classes) * 0.1)

    def draw(rows: int) -> sirc.Outputs:
        labels = torch.arange(rows, device=device) % classes
        z = normal(rows, features).mul_(0.5).add_(means[labels]).relu_()
        return sirc.Outputs(torch.addmm(head.bias, z, weight.T), z, labels)

    # Rows enough for a covariance of full rank and for a full bank: all products then have a real fit's widths.
    train = draw(max(12_500, 2 * (features + classes)))
    scorer = sirc.fit([*SIXTEEN, "knn"], train, head=head, crossfit=0)
    total = torch.zeros(classes, features, dtype=torch.float64, device=device)
    total.index_add_(0, train.labels, train.features.double())
    class_means = total / train.labels.bincount(minlength=classes)[:, None]
    return Bench(draw(n), scorer, head, class_means.float(), repeats)


def logit_side(bench: Bench, rows: list[Row], notes: list[str]) -> None:
    v, device = bench.logits, bench.device

    def quantities(compile: bool | None) -> tuple[Tensor, ...]:
        p = Softmax.of(v, compile=compile)
        gaps = (functional.log_gap(p, name) for name in ("msp", "doctor", "entropy"))
        return p.prediction, functional.max_logit(p), functional.energy(p), p.deviation, *gaps

    fallback = _Records()
    log = logging.getLogger("sirc")
    level = log.level
    log.addHandler(fallback)
    log.setLevel(logging.DEBUG)
    compiling = seconds(lambda: quantities(True), device)
    log.removeHandler(fallback)
    log.setLevel(level)
    if fallback.messages:
        notes.append(f"no compiler: {fallback.messages[0].splitlines()[0][:160]}")
    else:
        notes.append(f"the first call with compile=True, which compiles, took {compiling:.1f} s")

    def whole() -> Tensor:
        return torch.logsumexp(v, -1)

    what = "logit-side quantities"
    if not fallback.messages:
        rows.append(bench.row(f"{what}, compile=True", lambda: quantities(True), "torch.logsumexp", whole, limit=2))
    rows.append(bench.row(f"{what}, compile=False", lambda: quantities(False), "torch.logsumexp", whole, limit=5))
    limit = 5 if fallback.messages else 2
    rows.append(bench.row(f"{what}, default", lambda: quantities(None), "torch.logsumexp", whole, limit=limit))
    # On a CPU much of a whole logsumexp goes into memory for its intermediate values; a blocked one has none.
    block, blocked = _fastest_logsumexp(bench)
    rows.append(bench.row(f"{what}, default", lambda: quantities(None), f"torch.logsumexp by {block:,} rows", blocked))


def mahalanobis(bench: Bench, rows: list[Row], notes: list[str]) -> None:
    scorer = bench.only("mahalanobis")
    products = _products(bench, residual=False)
    rows.append(bench.row("mahalanobis", lambda: scorer(bench.outputs), "its two matrix products", products, limit=1.5))
    found = bench.parameters("mahalanobis")
    precision = found["whitener"] @ found["whitener"].T
    means = bench.class_means
    z = bench.slice.features
    assert z is not None

    def class_by_class() -> Tensor:
        distances = []
        for mean in means:
            centered = z - mean
            distances.append(((centered @ precision) * centered).sum(1))
        return -torch.stack(distances, 1).amin(1)

    rows.append(
        bench.row(
            "mahalanobis",
            lambda: scorer(bench.outputs),
            f"a quadratic form per class, on {len(z)} rows, scaled",
            class_by_class,
            limit=100,
            faster=True,
            scale=len(bench.features) / len(z),
        )
    )
    notes.append(f"mahalanobis, per class: {_difference(scorer(bench.slice)['mahalanobis'], class_by_class())}")


def sixteen(bench: Bench, rows: list[Row], notes: list[str]) -> None:
    """The passes that cannot be avoided.

    One over the logits with an exponential of each: `logsumexp`, the least that any softmax score needs, in the row
    blocks in which it is fastest here. One over the features for ‖z‖₁. The products with the residual's basis, with
    the whitening map, and of what that gives with the class means.
    """
    _, logsumexp = _fastest_logsumexp(bench)
    products = _products(bench, residual=True)
    scorer = sirc.Scorer(SIXTEEN, bench.scorer.parameters)

    def passes() -> None:
        logsumexp()
        torch.linalg.vector_norm(bench.features, 1, dim=-1)
        products()

    rows.append(
        bench.row(
            "all sixteen specs of the paper", lambda: scorer(bench.outputs), "the passes it needs", passes, limit=1.3
        )
    )


def neighbours(bench: Bench, rows: list[Row], notes: list[str]) -> None:
    try:
        from sklearn.neighbors import NearestNeighbors
    except ImportError:
        notes.append("scikit-learn is not installed: `pip install scikit-learn` adds knn's rows")
        return
    if bench.device.type != "cpu":
        notes.append("scikit-learn runs on the CPU only: no row for knn")
        return
    scorer = bench.only("knn")
    part = bench.outputs[:2048]
    assert part.features is not None
    unit = torch.nn.functional.normalize(part.features, dim=-1).numpy()
    bank = bench.scorer.parameters["knn"]["bank"].float().numpy()
    search = NearestNeighbors(n_neighbors=10, algorithm="brute").fit(bank)

    def peer() -> Tensor:
        return -torch.from_numpy(search.kneighbors(unit)[0][:, -1]).square()

    rows.append(bench.row(f"knn, {len(part):,} rows", lambda: scorer(part), "scikit-learn, brute force", peer))
    notes.append(f"knn, scikit-learn: {_difference(scorer(part)['knn'], peer())}")


def peer(bench: Bench, rows: list[Row], notes: list[str]) -> None:
    try:
        from pytorch_ood.detector import EnergyBased, Entropy, Mahalanobis, MaxLogit, MaxSoftmax, ViM
    except ImportError:
        notes.append("pytorch-ood is not installed: `pip install pytorch-ood` adds rows against it")
        return
    v = bench.logits
    detectors = {"msp": MaxSoftmax, "entropy": Entropy, "energy": EnergyBased, "max_logit": MaxLogit}

    def theirs() -> list[Tensor]:
        return [-detector.score(v) for detector in detectors.values()]

    def ours() -> list[Tensor]:
        p = Softmax.of(v)
        return [getattr(functional, name)(p) for name in detectors]

    rows.append(bench.row(", ".join(detectors), ours, "pytorch-ood", theirs))
    for name, mine, other in zip(detectors, ours(), theirs(), strict=True):
        clipped = ", whose probabilities are clipped at 1e-7" if name == "entropy" else ""
        notes.append(f"{name}, pytorch-ood{clipped}: {_difference(mine, other)}")

    found = bench.parameters("residual")
    vim = ViM(None, 1, bench.head.weight, bench.head.bias)
    vim.u, vim.principal_subspace = found["origin"], found["basis"]
    vim.alpha = float(bench.scorer.parameters["vim"]["c"])
    scorer = bench.only("vim")
    rows.append(
        bench.row(
            "vim",
            lambda: scorer(bench.outputs),
            "pytorch-ood, which also makes the logits",
            lambda: vim.predict_features(bench.features),
        )
    )
    notes.append(
        f"vim, pytorch-ood: {_difference(scorer(bench.slice)['vim'], -vim.predict_features(bench.slice.features))}"
    )

    found = bench.parameters("mahalanobis")
    gauss = Mahalanobis(None)
    gauss.mu, gauss.precision = bench.class_means, found["whitener"] @ found["whitener"].T
    scorer = bench.only("mahalanobis")
    rows.append(
        bench.row(
            "mahalanobis",
            lambda: scorer(bench.outputs),
            f"pytorch-ood, on {len(part)} rows, scaled",
            lambda: gauss.predict_features(part.features),
            faster=True,
            scale=len(bench.features) / len(part),
        )
    )
    halved = gauss.predict_features(part.features)
    notes.append(f"mahalanobis, pytorch-ood: {_difference(scorer(part)['mahalanobis'], -2 * halved)}")


def _products(bench: Bench, *, residual: bool) -> Callable[[], None]:
    """The matrix products of mahalanobis, with `residual` that one's too: into memory set aside, in the best blocks."""
    z = bench.features
    found = bench.parameters("mahalanobis")
    whitener, means = found["whitener"], found["means"].T
    basis = bench.parameters("residual")["basis"]

    def by(rows: int) -> Callable[[int], None]:
        white = z.new_empty(rows, whitener.shape[1])
        near = z.new_empty(rows, means.shape[1])
        rest = z.new_empty(rows, basis.shape[1])

        def run(n: int) -> None:
            for start in range(0, n, rows):
                block = z[start : start + rows]
                y = torch.mm(block, whitener, out=white[: len(block)])
                torch.mm(y, means, out=near[: len(block)])
                if residual:
                    torch.mm(block, basis, out=rest[: len(block)])

        return run

    n = len(z)
    trial = min(n, 4 * max(_ROW_BLOCKS[z.device.type]))
    runs = [by(rows) for rows in (*_ROW_BLOCKS[z.device.type], trial) if rows <= n]
    best = min(runs, key=lambda run: min(seconds(lambda: run(trial), z.device) for _ in range(2)))
    return lambda: best(n)


def _fastest_logsumexp(bench: Bench) -> tuple[int, Callable[[], None]]:
    """The rows of the block in which a logsumexp over all logits is fastest, and that pass."""
    v = bench.logits

    def by(rows: int) -> Callable[[], None]:
        def run() -> None:
            for start in range(0, len(v), rows):
                torch.logsumexp(v[start : start + rows], -1)

        return run

    runs = {rows: by(rows) for rows in (*_ROW_BLOCKS[v.device.type], len(v))}
    best = min(runs, key=lambda rows: min(seconds(runs[rows], v.device) for _ in range(3)))
    return best, runs[best]


def _difference(ours: Tensor, theirs: Tensor) -> str:
    ours, theirs = ours.double(), theirs.double()
    gap = (ours - theirs).abs()
    return f"values differ by at most {float(gap.max()):.1e} ({float((gap / theirs.abs()).max()):.1e} relative)"


class _Records(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


if __name__ == "__main__":
    main()
