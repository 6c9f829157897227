"""Text for people: shortened quotes, percentages, lists of names, aligned columns, safe CSV and Markdown, hints."""

from __future__ import annotations

import difflib
import html
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

# A formula may start with quotes, so that `unquoted` removes the one that `as_csv` added. Numbers are no formulas.
_FORMULA = re.compile(r"(?![+-]?\d*\.?\d+(e[+-]?\d+)?$)'*[=+@\t\r\n-]", re.IGNORECASE)


def shorten(text: str, most: int = 80) -> str:
    """The text, cut to `most` characters with an ellipsis if it is longer."""
    return text if len(text) <= most else text[: most - 1] + "…"


def quoted(value: object) -> str:
    """A value as errors quote it: its `repr`, cut to 80 characters but with the closing quote."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:78]}…{text[-1]}"


def percent(share: float) -> str:
    """0.954 as `95.4%`; NaN as a dash."""
    return "–" if math.isnan(share) else f"{100 * share:.1f}%"


def listed(names: Sequence[str]) -> str:
    """Names as a sentence lists them: `a, b and c`."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def with_lines(title: str, lines: Sequence[str]) -> str:
    """A title with indented lines below it: the first 20, then the number of the others."""
    more = [f"… and {len(lines) - 20} more"] if len(lines) > 20 else []
    return "\n  ".join([title, *lines[:20], *more])


def aligned(columns: Sequence[Sequence[str]]) -> Iterator[str]:
    """The lines of a plain table, with each column as wide as its longest cell."""
    widths = [max(map(len, column)) for column in columns]
    for row in zip(*columns, strict=True):
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def as_csv(table: pd.DataFrame) -> str:
    """A table as CSV without formulas: a quote is put before text that a spreadsheet would take for one."""

    def safe(cell: object) -> object:
        return f"'{cell}" if isinstance(cell, str) and _FORMULA.match(cell) else cell

    columns = {name: table[name].map(safe) for name in map(str, table) if table[name].dtype.kind == "O"}
    return table.assign(**columns).rename(columns=safe).to_csv(index=False, lineterminator="\n")


def unquoted(cell: str) -> str:
    """The original text of a cell that `as_csv` wrote."""
    return cell[cell.startswith("'") :] if _FORMULA.match(cell) else cell


def as_markdown(text: str) -> str:
    """Text that Markdown shows literally, on one line, even in a table; addresses do not become links."""
    plain = html.escape(" ".join(text.split()), quote=False)
    return without_links(re.sub(r"([\\`*_|~$])", r"\\\1", plain))


def without_links(markdown: str) -> str:
    """Markdown in which brackets and addresses do not become links."""
    return re.sub(r"[\[\]]|:(?=//)|(?<=www)\.", r"\\\g<0>", markdown, flags=re.IGNORECASE)


def first_line(error: BaseException) -> str:
    """The first line of an error's text, or its type if it has no text."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def closest(word: object, known: Iterable[str], *, cutoff: float = 0.6) -> str:
    """` Did you mean …?`, or an empty text if no name is close."""
    match = closest_match(word, known, cutoff=cutoff)
    return f" Did you mean `{match}`?" if match else ""


def closest_match(word: object, known: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    """The known name that is most similar to `word`, whatever the case; None if no name is close."""
    folded = {name.lower(): name for name in known}
    matches = difflib.get_close_matches(str(word).strip().lower(), folded, n=1, cutoff=cutoff)
    return folded[matches[0]] if matches else None
