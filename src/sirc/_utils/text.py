"""Text for people: shortened quotes, percentages, lists of names, aligned columns, harmless CSV, errors."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

# Quotes are counted as part of it, so that `unquoted` takes off one that `as_csv` put there. Numbers are none.
_FORMULA = re.compile(r"(?![+-]?\d*\.?\d+(e[+-]?\d+)?$)'*[=+@\t\r\n-]", re.IGNORECASE)


def shorten(text: str, most: int = 80) -> str:
    """The text if it has at most `most` characters, else its beginning and an ellipsis."""
    return text if len(text) <= most else text[: most - 1] + "…"


def quoted(value: object) -> str:
    """What someone passed, as an error quotes it: its `repr` in at most 80 characters, with the closing quote."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:78]}…{text[-1]}"


def percent(share: float) -> str:
    """0.954 as `95.4%`; NaN as a dash."""
    return "–" if math.isnan(share) else f"{100 * share:.1f}%"


def listed(names: Sequence[str]) -> str:
    """Names as in a sentence: `a, b and c`."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def aligned(columns: Sequence[Sequence[str]]) -> Iterator[str]:
    """Lines of a plain table, one for each row of the columns, each column as wide as its longest cell."""
    widths = [max(map(len, column)) for column in columns]
    for row in zip(*columns, strict=True):
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def as_csv(table: pd.DataFrame) -> str:
    """A table as CSV, in which no spreadsheet finds a formula: text that could be one has a quote before it."""

    def quoted(cell: object) -> object:
        return f"'{cell}" if isinstance(cell, str) and _FORMULA.match(cell) else cell

    columns = {name: table[name].map(quoted) for name in map(str, table) if table[name].dtype.kind == "O"}
    return table.assign(**columns).rename(columns=quoted).to_csv(index=False, lineterminator="\n")


def unquoted(cell: str) -> str:
    """A cell that `as_csv` wrote, as it was."""
    return cell[cell.startswith("'") :] if _FORMULA.match(cell) else cell


def first_line(error: BaseException) -> str:
    """The first line of an error's text, or its type where it has none."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
