"""Text and JSON of thresholds and monitors: rounded percentages, wrapped reports, plain values."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from typing import Any


def percent_near(share: float) -> str:
    """0.95 as "95%": three digits, more near 1."""
    return f"{100 * share:.{_digits(share)}g}%"


def percent_below(share: float | Decimal) -> str:
    """A share as percent, rounded down, for promises of "at least"."""
    return _percent(share, ROUND_FLOOR)


def percent_above(share: float | Decimal) -> str:
    """A share as percent, rounded up, for promises of "at most"."""
    return _percent(share, ROUND_CEILING)


def _percent(share: float | Decimal, rounding: str) -> str:
    # By the decimal digits of the float: 0.07 is 7%, although 100 * 0.07 is a little more.
    exact = share if isinstance(share, Decimal) else Decimal(repr(float(share)))
    digits = _digits(float(share))
    return f"{float(100 * Context(prec=digits, rounding=rounding).plus(exact)):.{digits}g}%"


def _digits(share: float) -> int:
    return 3 if share <= 0.99 or share >= 1 else min(12, 1 + math.ceil(-math.log10(1 - share)))


def certainty(delta: float) -> str:
    """1 − δ as percent, computed in decimals: as floats 1 − 0.9 is below 0.1."""
    return percent_below(1 - Decimal(repr(delta)))


def chance(delta: float) -> str:
    """The opening of every guarantee."""
    return f"With probability at least {certainty(delta)} over the draw of the calibration rows"


def report(title: str, parts: Mapping[str, str]) -> str:
    """A title, and below it the parts that are not empty, each wrapped beside its name."""
    lines = [title]
    for name, text in parts.items():
        lines += textwrap.wrap(text, 110, initial_indent=f"  {name:<10} ", subsequent_indent=" " * 13)
    return "\n".join(lines)


def as_plain(value: Any) -> Any:
    """A value, or a dict of values, for JSON: infinities and NaN, which JSON lacks, become strings."""
    if isinstance(value, Mapping):
        return {key: as_plain(part) for key, part in value.items()}
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
