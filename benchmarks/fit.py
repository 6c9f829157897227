"""Cost of a fit: time against the zᵀz products alone, memory whatever the number of rows, merging, rows left out.

Run it from a checkout: `PYTHONPATH=src python benchmarks/fit.py`. Each fit has a process of its own, so that its peak
memory is its own too. The rows are a small pool of blocks over and over, since only their number matters here.
The last figures are of few rows, where the time goes into decompositions: a fit of `sirc(msp, residual)`, each row left
out of its own statistics, against one `eigh` of the same size in the same process, and both beside other programs.
"""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from _timing import Row, peak_memory, report, reset_peak, seconds, standard_options, synchronize
from torch import Tensor

import sirc
from sirc.scores import Crossfit, Fitter

SPECS = [
    *("residual", "vim", "mahalanobis"),
    *(f"sirc({s1}, {s2})" for s1 in ("msp", "doctor", "entropy") for s2 in ("l1", "residual")),
]
_GIB = 1 << 30
_BLOCK = 8192
_BLOCKS = 4
_PRODUCTS = 8  # reference products timed in each pass


@dataclass
class Stream:
    """Batches of `rows` rows in all, as plain arrays, from a pool of a few blocks; can be read again.

    Between batches it times the reference, a float64 zᵀz of a block, and keeps that time apart from the fit's.
    """

    rows: int
    classes: int
    features: int
    device: torch.device
    products: list[float] = field(default_factory=list)
    """Seconds of each timed product of a block."""
    marks: list[float] = field(default_factory=list)
    """When each pass began and ended, on a clock that stands still during the reference."""
    _apart: float = 0.0

    def __post_init__(self) -> None:
        generator = torch.Generator(self.device).manual_seed(0)

        def normal(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator, device=self.device)

        means = normal(self.classes, self.features).relu_()
        weight = means / means.norm(dim=1, keepdim=True)
        self.head = sirc.Head(weight, normal(self.classes) * 0.1)
        self._pool = []
        for number in range(_BLOCKS):
            labels = (torch.arange(_BLOCK, device=self.device) + number * _BLOCK) % self.classes
            z = normal(_BLOCK, self.features).mul_(0.5).add_(means[labels]).relu_()
            self._pool.append((torch.addmm(self.head.bias, z, weight.T), z, labels))
        # Set aside and touched before anything is measured, so that the reference adds nothing to the fit's peak.
        self._double = self._pool[0][1].double()
        self._total = self._double.new_zeros(self.features, self.features)
        self._product()

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        self.marks.append(self.clock())
        batches = -(-self.rows // _BLOCK)
        for number in range(batches):
            block = self._pool[number % _BLOCKS]
            if number % max(1, batches // _PRODUCTS) == 0:
                self._time_product(block[1])
            rows = min(_BLOCK, self.rows - number * _BLOCK)
            yield block if rows == _BLOCK else tuple(part[:rows] for part in block)
        self.marks.append(self.clock())

    def clock(self) -> float:
        """Seconds, without those spent on the reference."""
        synchronize(self.device)
        return time.perf_counter() - self._apart

    def _time_product(self, z: Tensor) -> None:
        synchronize(self.device)
        start = time.perf_counter()
        self._double.copy_(z)
        self.products.append(seconds(self._product, self.device))
        self._apart += time.perf_counter() - start

    def _product(self) -> None:
        self._total.addmm_(self._double.T, self._double)


@dataclass(frozen=True)
class Cost:
    """What one fit took."""

    first: float
    solving: float
    second: float
    product: float
    """The mean time of the zᵀz product of a block during this fit, for as many rows as were fitted."""
    memory: float | None
    """The growth of the process's, or the device's, peak memory in GiB; None where it cannot be read."""

    @property
    def total(self) -> float:
        """Both passes and what is solved between and after them."""
        return self.first + self.solving + self.second


def main() -> None:
    parser = standard_options(
        "Time a streaming fit and measure its memory.",
        "python benchmarks/fit.py --rows 100000 --features 1024 --json fit.json",
        rows=500_000,
        repeats=1,
    )
    options = parser.parse_args()
    n, few = options.rows, max(1, options.rows // 10)
    sizes = (options.classes, options.features, options.device)
    costs = [_cost(n, "auto", sizes) for _ in range(options.repeats)]
    cost = min(costs, key=lambda cost: cost.total / cost.product)
    plain, crossfitted = (_cost(few, folds, sizes) for folds in (0, 5))
    products = f"zᵀz alone, float64 (from {2 * _PRODUCTS} blocks during the fit)"
    parts = {"first pass: moments": cost.first, "solving": cost.solving, "second pass: statistics": cost.second}
    rows = [Row(f"fit of {n:,} rows", cost.total, products, cost.product, cost.total / cost.product, 2)]
    rows += [Row(f"- {name}", part, "the same", cost.product, part / cost.product) for name, part in parts.items()]
    notes = ['crossfit is "auto" unless stated: rows are left out of their own statistics below 100 for each feature']
    if cost.memory is None or crossfitted.memory is None:
        notes.append("peak memory is read from /proc and was not measured here")
    else:
        more = cost.memory - crossfitted.memory
        rows += [
            _absolute(f"peak memory growth, {n:,} rows", cost.memory, 1, "GiB"),
            _absolute(f"peak memory growth, {few:,} rows, crossfit=5", crossfitted.memory, 1, "GiB"),
            _absolute("what ten times the rows add to it", more, 0.1, "GiB"),
        ]
    for folds in (0, 5):
        print(f"merging, crossfit={folds} …", file=sys.stderr)
        gap = merged_difference(folds, torch.device(options.device))
        rows.append(_absolute(f"relative error of a, b, c after a merge, crossfit={folds}", gap, 1e-9))
    ratio = crossfitted.total / plain.total
    rows.append(Row(f"fit of {few:,} rows, crossfit=5", crossfitted.total, "crossfit=0", plain.total, ratio))
    print("few rows …", file=sys.stderr)
    rows += _few_rows(max(5, options.repeats))
    title = f"Streaming fit on {options.features:,} float32 features and {options.classes:,} logits: {', '.join(SPECS)}"
    report(title, rows, notes, options, torch.device(options.device))


def _few_rows(repeats: int) -> Iterator[Row]:
    """An out-of-sample fit of 2,000 × 1,280 features and 1,000 classes against one `eigh`, both timed in turns."""
    everything = torch.get_num_threads()
    generator = torch.Generator().manual_seed(2)
    head = sirc.Head(torch.randn(1000, 1280, generator=generator) / 36, torch.randn(1000, generator=generator) / 10)
    z = torch.randn(2000, 1280, generator=generator).mul_(torch.linspace(0.1, 2, 1280)).relu_()
    train, moment = sirc.Outputs(torch.addmm(head.bias, z, head.weight.T), z), z.double().T @ z.double() / len(z)
    cpu = torch.device("cpu")

    def fit() -> sirc.Scorer:
        fresh = sirc.Head(head.weight, head.bias)  # `head` keeps its origin once it is computed
        return sirc.fit("sirc(msp, residual)", train, head=fresh, crossfit=5)

    def eigh() -> None:
        torch.linalg.eigh(moment)

    def both() -> list[list[float]]:
        pairs = [(seconds(fit, cpu), seconds(eigh, cpu)) for _ in range(repeats)]
        return [list(times) for times in zip(*pairs, strict=True)]

    what, decomposition = "fit of sirc(msp, residual), 2,000 × 1,280, crossfit=5", "one eigh of 1,280², float64"
    idle = {}
    for threads in sorted({1, everything}):
        torch.set_num_threads(threads)
        idle[threads] = [min(times) for times in both()]
        quickest, alone = idle[threads]
        yield Row(f"{what}, threads={threads}", quickest, decomposition, alone, quickest / alone, 2)
    quickest, alone = idle[everything]
    loads = {1: "one busy loop", everything: "a busy loop on each core", 2 * everything: "two busy loops on each core"}
    for loops, load in loads.items():
        with _busy_cores(loops):
            slowest, delayed = map(max, both())
        beside = f"threads={everything}, slowest of {repeats} beside {load}"
        yield Row(f"- {beside}", slowest, "on idle cores", quickest, slowest / quickest, 10)
        yield Row(f"- {decomposition}, {beside}", delayed, "on idle cores", alone, delayed / alone)
    fitted = {}
    for threads in (1, everything):
        torch.set_num_threads(threads)
        fitted[threads] = fit().parameters["sirc(msp, residual)"]
    gaps = [float((fitted[1][name] / fitted[everything][name] - 1).abs().max()) for name in "ab"]
    yield _absolute(f"relative difference of a and b fitted with {everything} threads and with one", max(gaps), 1e-9)


@contextmanager
def _busy_cores(count: int) -> Iterator[None]:
    """Keep that many cores busy with other processes."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def _absolute(what: str, measured: float, limit: float, unit: str = "") -> Row:
    return Row(what, measured, limit=limit, unit=unit, limit_of="measured")


def _cost(rows: int, crossfit: Crossfit, sizes: tuple[int, int, str]) -> Cost:
    print(f"{rows:,} rows, crossfit={crossfit} …", file=sys.stderr)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(fit_cost, (rows, crossfit, *sizes))


def fit_cost(rows: int, crossfit: Crossfit, classes: int, features: int, kind: str) -> Cost:
    """One streaming fit, alone in its process."""
    device = torch.device(kind)
    stream = Stream(rows, classes, features, device)
    before = reset_peak(device)
    began = stream.clock()
    sirc.fit(SPECS, stream, head=stream.head, crossfit=crossfit)
    ended = stream.clock()
    peak = peak_memory(device)
    first_ended, second_began, second_ended = stream.marks[1:]
    product = sum(stream.products) / len(stream.products) * rows / _BLOCK
    # Cross-fitting solves the folds when their first rows come, within the second pass.
    return Cost(
        first=first_ended - began,
        solving=second_began - first_ended + ended - second_ended,
        second=second_ended - second_began,
        product=product,
        memory=None if before is None or peak is None else (peak - before) / _GIB,
    )


def merged_difference(crossfit: int, device: torch.device) -> float:
    """The largest relative difference of a, b and c when four shards are fitted apart, out of order, and merged."""
    generator = torch.Generator().manual_seed(1)
    n, classes, features = 20_000, 100, 512
    weight = torch.randn(classes, features, generator=generator) / features**0.5
    head = sirc.Head(weight, torch.randn(classes, generator=generator))
    z = torch.randn(n, features, generator=generator) * torch.linspace(0.1, 2, features) + 1
    labels = torch.randint(classes, (n,), generator=generator)
    train = sirc.Outputs(z @ weight.T + head.bias, z, labels).to(device)
    specs = [*SPECS, "sirc(msp, mahalanobis)", "sirc(entropy, vim)"]
    whole = sirc.fit(specs, train, head=head, crossfit=crossfit)
    total = Fitter(specs, head=head, crossfit=crossfit)
    for shard in (2, 0, 3, 1):
        part = Fitter(specs, head=head, crossfit=crossfit)
        places = torch.arange(n).chunk(4)[shard]
        for some in places.split(1234):
            part.update(train[some], index=some)
        total.merge(part)
    merged = total.finish(train)
    gaps = [
        float(((merged.parameters[spec][name] - value) / value).abs().max())
        for spec, found in whole.parameters.items()
        for name, value in found.items()
        if name in ("a", "b", "c")
    ]
    return max(gaps)


if __name__ == "__main__":
    main()
