"""How a threshold is told: its report in words, and its plain values for JSON."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal

GROUPS = {"correct": "ID✓", "wrong": "ID✗", "ood": "OOD", "id": "ID"}
NAMES = {
    "recall": "recall of ID✓",
    "coverage": "coverage of ID",
    "risk": "errors among accepted ID",
    "ood": "OOD accepted",
}


def percent(share: float) -> str:
    """0.95 as "95%"; three digits, more where it is near 1."""
    return f"{100 * share:.{_digits(share)}g}%"


def percent_below(share: float | Decimal) -> str:
    """A share as percent, rounded down: what is promised as "at least" must not be more than what holds."""
    return _percent(share, ROUND_FLOOR)


def percent_above(share: float | Decimal) -> str:
    """A share as percent, rounded up: what is promised as "at most" must not be less than what holds."""
    return _percent(share, ROUND_CEILING)


def _percent(share: float | Decimal, rounding: str) -> str:
    # A float stands for the decimal number that it is written as: 0.07 is 7%, although 100 * 0.07 is a little more.
    exact = share if isinstance(share, Decimal) else Decimal(repr(float(share)))
    digits = _digits(float(share))
    return f"{float(100 * Context(prec=digits, rounding=rounding).plus(exact)):.{digits}g}%"


def _digits(share: float) -> int:
    return 3 if share <= 0.99 or share >= 1 else min(12, 1 + math.ceil(-math.log10(1 - share)))


def certainty(delta: float) -> str:
    """1 − δ, in decimals: as floats 1 − 0.9 is below 0.1."""
    return percent_below(1 - Decimal(repr(delta)))


def chance(delta: float) -> str:
    """The opening of every guarantee."""
    return f"With probability at least {certainty(delta)} over the draw of the calibration rows"


def counted(sizes: Mapping[str, int]) -> str:
    """{"correct": 1200, "wrong": 300} as "1,200 ID✓, 300 ID✗"."""
    return ", ".join(f"{count:,} {GROUPS.get(group, group)}" for group, count in sizes.items())


def number(value: float) -> str:
    """A threshold or a cost in six digits."""
    return f"{value:.6g}"


def report(value: float, feasible: bool, parts: Mapping[str, str]) -> str:
    """The first line says what to do; each part follows under its name, wrapped."""
    if feasible and not math.isfinite(value) and value != -math.inf:
        first = "Accept nothing"
    elif feasible:
        first = f"Accept where confidence ≥ {number(value)}"
    else:
        first = "Infeasible: no threshold keeps this promise, accept nothing"
    lines = [first]
    for name, text in parts.items():
        if text:
            lines += textwrap.wrap(text, 110, initial_indent=f"  {name:<10} ", subsequent_indent=" " * 13)
    return "\n".join(lines)


def estimated(estimates: Mapping[str, float]) -> str:
    """The main figures of the calibration data."""
    figures = [f"{NAMES[key]} {percent(estimates[key])}" for key in NAMES if key in estimates]
    if "cost" in estimates:
        figures.append(f"cost {number(estimates['cost'])} per input")
    return ", ".join(figures)


def as_plain(value: float) -> float | str:
    """A float as JSON has it: infinities and NaN as words."""
    return float(value) if math.isfinite(value) else str(float(value))


def from_plain(name: str, value: object) -> float:
    """The float that `as_plain` wrote."""
    if isinstance(value, str) and value in ("inf", "-inf", "nan"):
        return float(value)
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    raise ValueError(
        f'`{name}` of a stored threshold must be a number, "inf", "-inf" or "nan"; got {value!r}. The file was '
        "changed or is not of `Threshold.to_dict`; calibrate again."
    )


def from_plain_map(name: str, value: object) -> dict[str, float]:
    """The mapping of names to floats that was written."""
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise ValueError(f"`{name}` of a stored threshold must map names to numbers; got {value!r}. Calibrate again.")
    return {key: from_plain(f"{name}[{key!r}]", number) for key, number in value.items()}
