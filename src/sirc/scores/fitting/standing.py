"""Standing of rows on the scale of an S2, (S2 − μ)/σ: their mean and deviation, and a warning if it is far from 0."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sirc._utils.distributed import is_main
from sirc._utils.warn import warn
from sirc.scores.spec import Spec

_LEAST_ROWS = 10  # with fewer, mean and deviation are too uncertain
_LOW = -2.5  # with a lower mean, most rows are near or below z = −3, where an S2 starts to lower the confidence
_OUT_OF_REACH = 8.0  # of the rows' standard deviations from their mean to z = −3; 3 if the statistics are right


@dataclass(frozen=True)
class Standing:
    """Mean and standard deviation of z = (S2 − μ)/σ over some rows, with the fitted μ and σ of a combination."""

    s2: Spec
    mean: float
    deviation: float
    rows: int

    @property
    def low(self) -> bool:
        """Whether most of these rows look OOD to the S2."""
        return self.rows >= _LEAST_ROWS and self.mean < _LOW

    @property
    def out_of_reach(self) -> bool:
        """Whether even rows that differ a lot from these would not look OOD to the S2."""
        spread = _OUT_OF_REACH * self.deviation
        return self.rows >= _LEAST_ROWS and self.mean + 3 > spread > 1e-9  # equal rows have no spread

    def __str__(self) -> str:
        return f"`{self.s2}` (z = {self.mean:+.1f} ± {self.deviation:.2g})"


def warn_far(whose: str, standings: Iterable[Standing], advice: str) -> bool:
    """Warn of S2 scores on whose scale the rows are far from 0; returns whether there are any."""
    distinct = {str(standing): standing for standing in standings}
    low = ", ".join(text for text, standing in distinct.items() if standing.low)
    high = ", ".join(text for text, standing in distinct.items() if standing.out_of_reach)
    doubts = [f"look OOD to {low}"] if low else []
    doubts += [f"spread so little on the scale of {high} that hardly any input will look OOD to it"] if high else []
    if doubts and is_main():
        warn(f"{whose} {', and '.join(doubts)}. {advice}")
    return bool(doubts)
