"""Tools of all benchmarks: interleaved timing of two sides, rows with a target, and the tables they print."""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

_LONG = 1.0  # seconds beyond which starting costs no longer show
_HEADER = ("what", "measured", "compared with", "ratio", "target", "ok")


@dataclass(frozen=True)
class Row:
    """One row of the table. `ratio` is our time over the reference's, or with `faster` the reference's over ours.

    Of two sides timed in turns (`versus`) it is the median of the turns' ratios; the times are the best of each side.
    """

    what: str
    measured: float | None
    """Seconds, or what `unit` says."""
    compared: str = "—"
    reference: float | None = None
    """The other side's seconds."""
    ratio: float | None = None
    limit: float | None = None
    """The target: the largest ratio allowed, or with `faster` the smallest."""
    faster: bool = False
    unit: str = "s"
    limit_of: str = "ratio"
    """What the limit is on: "ratio" or "measured"."""

    @property
    def ok(self) -> bool | None:
        """Whether the target is met; None without a target or a measurement."""
        figure = self.ratio if self.limit_of == "ratio" else self.measured
        if self.limit is None or figure is None:
            return None
        return figure >= self.limit if self.faster else figure <= self.limit

    def cells(self) -> tuple[str, ...]:
        """The columns of the printed table."""
        compared = self.compared + (f", {self.reference:.3g} {self.unit}" if self.reference is not None else "")
        times = "x faster" if self.faster else "x"
        target = "info" if self.limit is None else f"{'≥' if self.faster else '≤'} {self.limit:g}"
        if self.limit is not None:
            target += times if self.limit_of == "ratio" else f" {self.unit}".rstrip()
        ratio = "—"
        if self.ratio is not None:
            ratio = (f"{self.ratio:.0f}" if self.ratio >= 20 else f"{self.ratio:.2f}") + times
        measured = "—" if self.measured is None else f"{self.measured:.3g} {self.unit}".rstrip()
        return self.what, measured, compared, ratio, target, {True: "yes", False: "NO", None: "—"}[self.ok]


@dataclass(frozen=True)
class Pair:
    """Two sides timed in turns: the best time of each, and the median of the ratios of neighbouring runs."""

    ours: float
    reference: float
    ratio: float


def versus(
    ours: Sequence[Callable[[], object]],
    reference: Sequence[Callable[[], object]],
    *,
    device: torch.device,
    repeats: int,
    budget: float = 20.0,
    scale: float = 1.0,
    clock: Callable[[], float] = time.perf_counter,
) -> Pair:
    """Time two sides in turns, so that whatever else the machine does falls on both.

    Each side comes in as many parts as the other, which alternate within a turn. The first turn is a warm-up and left
    out, unless both sides are long. `repeats` turns follow; once `budget` seconds are spent, three are enough. `scale`
    multiplies the reference's time, for a reference that runs on some of the rows. `clock` may be `time.process_time`,
    for that of the processor.
    """
    began = time.perf_counter()

    def turn() -> tuple[float, float]:
        taken = [0.0, 0.0]
        for number, parts in enumerate(zip(ours, reference, strict=True)):
            for side in (0, 1) if number % 2 else (1, 0):
                taken[side] += seconds(parts[side], device, clock)
        return taken[0], taken[1]

    first = turn()
    turns = [first] if min(first) > _LONG else []
    while len(turns) < repeats and not (len(turns) >= 3 and time.perf_counter() - began > budget):
        turns.append(turn())
    return Pair(
        ours=min(a for a, _ in turns),
        reference=min(b for _, b in turns) * scale,
        ratio=statistics.median(a / (b * scale) for a, b in turns),
    )


def seconds(work: Callable[[], object], device: torch.device, clock: Callable[[], float] = time.perf_counter) -> float:
    """The time of one call, with all it queued on the device."""
    synchronize(device)
    start = clock()
    work()
    synchronize(device)
    return clock() - start


def synchronize(device: torch.device) -> None:
    """Wait for all that was queued on the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def reset_peak(device: torch.device) -> int | None:
    """The memory in use now, in bytes; the peak is counted from here."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return torch.cuda.memory_allocated(device)
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
    except OSError:
        return None
    return _status("VmRSS")


def peak_memory(device: torch.device) -> int | None:
    """The most memory in use since `reset_peak`, in bytes."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else _status("VmHWM")


def _status(key: str) -> int | None:
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1]) * 1024
    return None


def standard_options(about: str, example: str, *, rows: int, repeats: int) -> argparse.ArgumentParser:
    """The options that every benchmark has."""
    parser = argparse.ArgumentParser(
        description=about, epilog=f"example: {example}", formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--rows", type=_positive, default=rows, help="number of samples")
    parser.add_argument("--classes", type=_positive, default=1000, help="K, the number of logits")
    parser.add_argument("--features", type=_positive, default=2048, help="L, the number of features")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="where the arrays are")
    parser.add_argument("--repeats", type=_positive, default=repeats, help="turns of each pair")
    parser.add_argument("--json", type=Path, metavar="PATH", help="also write the rows as JSON")
    parser.add_argument("--markdown", action="store_true", help="print a Markdown table")
    return parser


def _positive(text: str) -> int:
    value = int(text.replace(",", "").replace("_", ""))
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1; got {value}")
    return value


def machine(device: torch.device) -> str:
    """The versions and the hardware that the figures come from."""
    where = f"{torch.get_num_threads()} threads of {_processor()}"
    if device.type == "cuda":
        where = torch.cuda.get_device_name(device)
    return f"torch {torch.__version__}, Python {platform.python_version()}, {where}"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def report(
    title: str, rows: Sequence[Row], notes: Sequence[str], options: argparse.Namespace, device: torch.device
) -> None:
    """Print the table, and write it as JSON where asked."""
    cells = [_HEADER, *(row.cells() for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [" | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in cells]
    rule = ("-|-" if not options.markdown else " | ").join("-" * width for width in widths)
    lines.insert(1, rule)
    if options.markdown:
        lines = [f"| {line} |" for line in lines]
    where = machine(device)
    print(f"{title}\n{where}\n")
    print("\n".join(line.rstrip() for line in lines))
    if notes:
        print()
        bullet = "- " if options.markdown else "  "
        print("\n".join(f"{bullet}{note}" for note in notes))
    if options.json is not None:
        settings = {key: getattr(options, key) for key in ("rows", "classes", "features", "device", "repeats")}
        content = {
            "title": title,
            "machine": where,
            "settings": settings,
            "rows": [{**asdict(row), "ok": row.ok} for row in rows],
            "notes": list(notes),
        }
        options.json.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
