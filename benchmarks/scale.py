"""What an evaluation beyond memory costs: time, memory and disk for each row, and the same table as in memory.

Run it from a checkout: `PYTHONPATH=src python benchmarks/scale.py --rows 40,000,000`. Half of the rows are ID, a
quarter is in each of two OOD sets. Stores and what is spilled lie in a temporary folder below `--folder`.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from _timing import Row, peak_memory, report, reset_peak, seconds, standard_options

import sirc
from sirc.progress import Progress, Task

SPECS = ["msp", "energy"]
_GIB = 1 << 30
_MEMORY = 0.5  # GiB, for any number of rows


class Stopwatch(Progress):
    """The seconds that each piece of work takes."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def task(self, name: str, total: int | None, *, done: int = 0, unit: str = "images") -> Iterator[Task]:
        """Take the time of a piece of work."""
        began = time.perf_counter()
        yield Task()
        self.seconds[name] = time.perf_counter() - began


def make_store(path: Path, rows: int, classes: int, gain: float, labelled: bool) -> sirc.OutputStore:
    """Noise as logits, with the label's raised by the gain."""
    store = sirc.OutputStore.create(path, rows, shard_size=max(8192, (1 << 22) // classes))
    random = torch.Generator().manual_seed(int(10 * gain))
    for i in range(store.num_shards):
        count = len(store.items(i))
        labels = torch.randint(classes, (count,), generator=random)
        logits = torch.randn(count, classes, generator=random)
        logits[torch.arange(count), labels] += gain
        store.write(i, sirc.Outputs(logits, labels=labels if labelled else None))
    return store


def measured(root: Path, count: int, classes: int, device: torch.device) -> list[Row]:
    """The rows of the table for so many rows of data."""
    cpu, scorer = torch.device("cpu"), sirc.Scorer(SPECS)
    test = make_store(root / "test", count // 2, classes, 2.0, labelled=True)
    near, far = (make_store(root / f"{gain}", count // 4, classes, gain, labelled=False) for gain in (1.0, 0.0))
    ood = {"near": near, "far": far}
    sirc.evaluate(scorer, test, spill=root / "warm-up", device=device)
    first, again, before = Stopwatch(), Stopwatch(), reset_peak(cpu)
    ev = sirc.evaluate(scorer, test, ood, spill=root / "spill", device=device, progress=first)
    peak = peak_memory(cpu)
    growth = None if before is None or peak is None else (peak - before) / _GIB
    sirc.evaluate(scorer, test, ood, spill=root / "spill", device=device, progress=again)
    plain: dict[str, sirc.Evaluation] = {}
    score = seconds(lambda: plain.update(ev=sirc.evaluate(scorer, test, ood)), cpu)
    rank = seconds(lambda: plain["ev"].table, cpu)
    if not ev.table.equals(plain["ev"].table):
        sys.exit("the table of what was spilled must be that of what is in memory; it is another")
    disk = sum(file.stat().st_size for file in (root / "spill").rglob("*") if file.is_file())
    what, each = f"{count:,} rows, {len(SPECS)} scores", count * len(SPECS)
    return [
        Row(f"score and sort {what}", first.seconds["score"], "score in memory", score, first.seconds["score"] / score),
        Row(f"rank {what}", first.seconds["rank"], "in memory", rank, first.seconds["rank"] / rank),
        Row("- find what is scored already", again.seconds["score"]),
        Row("- score and sort, for a row and score", 1e9 * first.seconds["score"] / each, unit="ns"),
        Row("- rank, for a row and score, four times", 1e9 * first.seconds["rank"] / each, unit="ns"),
        Row("- on disk, for a row and score", disk / each, unit="bytes"),
        Row("- peak memory growth", growth, limit=_MEMORY, unit="GiB", limit_of="measured"),
    ]


def main() -> None:
    about, example = __doc__.partition("\n")[0], "benchmarks/scale.py --rows 4,000,000"
    parser = standard_options(about, example, rows=4_000_000, repeats=1)
    parser.set_defaults(classes=4)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()), help="where to write")
    options = parser.parse_args()
    device, rows = torch.device(options.device), []
    for count in (options.rows // 10, options.rows):
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            rows += measured(Path(folder), count, options.classes, device)
    notes = ["the tables are equal, bit for bit", "scores are computed where `--device` says, and ranked on the CPU"]
    title = f"Evaluation of {options.rows:,} rows of {options.classes} logits that are spilled to disk."
    report(title, rows, notes, options, device)


if __name__ == "__main__":
    main()
