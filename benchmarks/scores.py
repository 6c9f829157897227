"""Speed of the scores, each against the work it cannot avoid and against peers that compute the same.

Run it from a checkout: `PYTHONPATH=src python benchmarks/scores.py`. The rows against pytorch-ood appear where it is
installed (`pip install pytorch-ood`), those against scikit-learn where that is. Both sides of a ratio run in turns,
and it is the median of the turns' ratios; times are the best of each side.
On a machine with other work, `OMP_WAIT_POLICY=passive` keeps waiting threads from taking the cores from working ones.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from _timing import Row, report, seconds, standard_options, versus
from torch import Tensor

import sirc
from sirc import functional
from sirc.scores.formulas.softmax import Softmax

SIXTEEN = [
    *(f"sirc({s1}, {s2})" for s1 in ("msp", "doctor", "entropy") for s2 in ("l1", "residual")),
    *("msp", "doctor", "entropy", "l1", "residual", "max_logit", "energy", "gradnorm", "vim", "mahalanobis"),
]
_SLICE = {"cpu": 64, "cuda": 1024}  # rows for what takes a class, or a neighbour, at a time
_PART = 8192  # rows at which long work on a CPU changes sides, as other processes come and go
_ROW_BLOCKS = {"cpu": (512, 2048, 8192), "cuda": (8192, 32768)}

Work = Callable[[sirc.Outputs], object]


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
    def few(self) -> sirc.Outputs:
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
        ours: Work,
        compared: str,
        reference: Work,
        *,
        on: sirc.Outputs | None = None,
        limit: float | None = None,
        long: bool = False,
    ) -> Row:
        """Time two sides on the same rows; long work alternates part by part."""
        rows = on or self.outputs
        size = _PART if long and self.device.type == "cpu" else len(rows)
        parts = [rows[start : start + size] for start in range(0, len(rows), size)]
        pair = versus(
            [partial(ours, part) for part in parts],
            [partial(reference, part) for part in parts],
            device=self.device,
            repeats=self.repeats,
        )
        return Row(what, pair.ours, compared, pair.reference, pair.ratio, limit)

    def row_on_few(self, what: str, ours: Work, compared: str, reference: Work, *, limit: float | None = None) -> Row:
        """Time a reference hundreds of times slower on a few of the rows; one turn tells."""
        scale = len(self.outputs) / len(self.few)
        one, other = partial(ours, self.outputs), partial(reference, self.few)
        pair = versus([one], [other], device=self.device, repeats=1, scale=scale)
        compared = f"{compared}, on {len(self.few):,} rows, scaled"
        return Row(what, pair.ours, compared, pair.reference, 1 / pair.ratio, limit, faster=True)


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
    def quantities(outputs: sirc.Outputs, *, compile: bool | None) -> tuple[Tensor, ...]:
        p = Softmax.of(outputs.logits, compile=compile)
        gaps = (functional.log_gap(p, name) for name in ("msp", "doctor", "entropy"))
        return p.prediction, functional.max_logit(p), functional.energy(p), p.deviation, *gaps

    def logsumexp(outputs: sirc.Outputs) -> Tensor:
        return torch.logsumexp(outputs.logits, -1)

    said = _Records()
    log = logging.getLogger("sirc")
    level = log.level
    log.addHandler(said)
    log.setLevel(logging.DEBUG)
    compiling = seconds(partial(quantities, bench.outputs, compile=True), bench.device)
    log.removeHandler(said)
    log.setLevel(level)
    compiles = not said.messages
    notes.append(
        f"the first call with compile=True, which compiles, took {compiling:.1f} s"
        if compiles
        else f"no compiler: {said.messages[0].splitlines()[0][:160]}"
    )
    what, whole = "logit-side quantities", "torch.logsumexp"
    if compiles:
        rows.append(bench.row(f"{what}, compile=True", partial(quantities, compile=True), whole, logsumexp))
    rows.append(bench.row(f"{what}, compile=False", partial(quantities, compile=False), whole, logsumexp, limit=5))
    default = partial(quantities, compile=None)
    rows.append(bench.row(f"{what}, default", default, whole, logsumexp, limit=2 if compiles else 5))
    # On a CPU most of a whole logsumexp goes into memory for its intermediate values; a blocked one has none.
    block = _best_block(bench)
    rows.append(bench.row(f"{what}, default", default, f"{whole}, by {block:,} rows", partial(_logsumexp, block=block)))


def mahalanobis(bench: Bench, rows: list[Row], notes: list[str]) -> None:
    scorer = bench.only("mahalanobis")
    products = _products(bench, residual=False)
    rows.append(bench.row("mahalanobis", scorer, "its two matrix products", products, limit=1.5, long=True))
    whitener = bench.parameters("mahalanobis")["whitener"]
    precision = whitener @ whitener.T

    def class_by_class(outputs: sirc.Outputs) -> Tensor:
        distances = []
        for mean in bench.class_means:
            centered = outputs.features - mean
            distances.append(((centered @ precision) * centered).sum(1))
        return -torch.stack(distances, 1).amin(1)

    rows.append(bench.row_on_few("mahalanobis", scorer, "a quadratic form per class", class_by_class, limit=100))
    gap = _difference(scorer(bench.few)["mahalanobis"], class_by_class(bench.few))
    notes.append(f"mahalanobis, per class: {gap}")


def sixteen(bench: Bench, rows: list[Row], notes: list[str]) -> None:
    """The passes that cannot be avoided.

    One over the logits with an exponential of each: `logsumexp`, the least that any softmax score needs, in the row
    blocks in which it is fastest here. One over the features for ‖z‖₁. The products with the residual's basis, with
    the whitening map, and of what that gives with the class means.
    """
    block = _best_block(bench)
    products = _products(bench, residual=True)
    scorer = sirc.Scorer(SIXTEEN, bench.scorer.parameters)

    def passes(outputs: sirc.Outputs) -> None:
        _logsumexp(outputs, block=block)
        torch.linalg.vector_norm(outputs.features, 1, dim=-1)
        products(outputs)

    rows.append(
        bench.row("the paper's sixteen specs together", scorer, "the passes they need", passes, limit=1.3, long=True)
    )


def neighbours(bench: Bench, rows: list[Row], notes: list[str]) -> None:
    try:
        from sklearn.neighbors import NearestNeighbors
    except ImportError:
        notes.append("scikit-learn is not installed: `pip install scikit-learn` adds a row for knn")
        return
    if bench.device.type != "cpu":
        notes.append("scikit-learn runs on the CPU: no row for knn")
        return
    scorer = bench.only("knn")
    some = bench.outputs[:2048]
    unit = torch.nn.functional.normalize(some.features, dim=-1).numpy()
    search = NearestNeighbors(n_neighbors=10, algorithm="brute").fit(bench.parameters("knn")["bank"].numpy())

    def peer(_: sirc.Outputs) -> Tensor:
        return -torch.from_numpy(search.kneighbors(unit)[0][:, -1]).square()

    rows.append(bench.row(f"knn, {len(some):,} rows", scorer, "scikit-learn, brute force", peer, on=some))
    notes.append(f"knn, scikit-learn: {_difference(scorer(some)['knn'], peer(some))}")


def peer(bench: Bench, rows: list[Row], notes: list[str]) -> None:
    try:
        from pytorch_ood.detector import EnergyBased, Entropy, Mahalanobis, MaxLogit, MaxSoftmax, ViM
    except ImportError:
        notes.append("pytorch-ood is not installed: `pip install pytorch-ood` adds rows against it")
        return
    detectors = {"msp": MaxSoftmax, "entropy": Entropy, "energy": EnergyBased, "max_logit": MaxLogit}

    def theirs(outputs: sirc.Outputs) -> list[Tensor]:
        return [-detector.score(outputs.logits) for detector in detectors.values()]

    def ours(outputs: sirc.Outputs) -> list[Tensor]:
        p = Softmax.of(outputs.logits)
        return [getattr(functional, name)(p) for name in detectors]

    rows.append(bench.row(", ".join(detectors), ours, "pytorch-ood", theirs))
    for name, mine, other in zip(detectors, ours(bench.outputs), theirs(bench.outputs), strict=True):
        clipped = ", which clips probabilities at 1e-7" if name == "entropy" else ""
        notes.append(f"{name}, pytorch-ood{clipped}: {_difference(mine, other)}")

    # Both get our fitted parameters, so that what differs is the scoring alone.
    found = bench.parameters("residual")
    vim = ViM(None, 1, bench.head.weight, bench.head.bias)
    vim.u, vim.principal_subspace = found["origin"], found["basis"]
    vim.alpha = float(bench.scorer.parameters["vim"]["c"])

    def their_vim(outputs: sirc.Outputs) -> Tensor:
        return -vim.predict_features(outputs.features)

    scorer = bench.only("vim")
    rows.append(bench.row("vim", scorer, "pytorch-ood, which also makes the logits", their_vim, long=True))
    notes.append(f"vim, pytorch-ood: {_difference(scorer(bench.few)['vim'], their_vim(bench.few))}")

    whitener = bench.parameters("mahalanobis")["whitener"]
    gauss = Mahalanobis(None)
    gauss.mu, gauss.precision = bench.class_means, whitener @ whitener.T

    def their_mahalanobis(outputs: sirc.Outputs) -> Tensor:
        return -2 * gauss.predict_features(outputs.features)  # it halves the squared distance

    scorer = bench.only("mahalanobis")
    rows.append(bench.row_on_few("mahalanobis", scorer, "pytorch-ood", their_mahalanobis))
    gap = _difference(scorer(bench.few)["mahalanobis"], their_mahalanobis(bench.few))
    notes.append(f"mahalanobis, pytorch-ood: {gap}")


def _products(bench: Bench, *, residual: bool) -> Work:
    """The matrix products of mahalanobis, with `residual` that one's too: into memory set aside, in the best blocks."""
    found = bench.parameters("mahalanobis")
    whitener, means = found["whitener"], found["means"].T
    basis = bench.parameters("residual")["basis"]

    def by(rows: int) -> Work:
        white, near, rest = (bench.features.new_empty(rows, m.shape[1]) for m in (whitener, means, basis))

        def run(outputs: sirc.Outputs) -> None:
            for block in outputs.features.split(rows):
                y = torch.mm(block, whitener, out=white[: len(block)])
                torch.mm(y, means, out=near[: len(block)])
                if residual:
                    torch.mm(block, basis, out=rest[: len(block)])

        return run

    sizes = _ROW_BLOCKS[bench.device.type]
    trial = bench.outputs[: max(sizes)]
    works = [by(rows) for rows in sizes]
    return min(works, key=lambda work: min(seconds(partial(work, trial), bench.device) for _ in range(3)))


def _best_block(bench: Bench) -> int:
    """The rows of the blocks in which a logsumexp over all logits is fastest."""

    def time_by(block: int) -> float:
        return min(seconds(partial(_logsumexp, bench.outputs, block=block), bench.device) for _ in range(3))

    return min((*_ROW_BLOCKS[bench.device.type], len(bench.outputs)), key=time_by)


def _logsumexp(outputs: sirc.Outputs, *, block: int) -> None:
    for part in outputs.logits.split(block):
        torch.logsumexp(part, -1)


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
