"""Standing: position of held-out rows on the scale of each S2, and a warning where it is far from 0."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sirc._utils.distributed import is_main
from sirc._utils.warn import warn
from sirc.scores.spec import Spec

_LEAST_ROWS = 10  # fewer know their mean and spread badly
_LOW = -2.5  # a mean below this: most rows are near or under z = −3, where an S2 begins to speak
_OUT_OF_REACH = 8.0  # of their own standard deviations from the rows down to z = −3; 3 where the statistics are right


@dataclass(frozen=True)
class Standing:
    """The mean and the spread of z = (S2 − μ)/σ over some rows, where a combination found μ and σ of the S2."""

    s2: Spec
    mean: float
    deviation: float
    rows: int

    @property
    def low(self) -> bool:
        """Whether most rows like these are taken for OOD by the S2."""
        return self.rows >= _LEAST_ROWS and self.mean < _LOW

    @property
    def out_of_reach(self) -> bool:
        """Whether rows that differ from these by much still say nothing to the S2."""
        spread = _OUT_OF_REACH * self.deviation
        return self.rows >= _LEAST_ROWS and self.mean + 3 > spread > 1e-9  # rows that are all the same tell nothing

    def __str__(self) -> str:
        return f"`{self.s2}` (z = {self.mean:+.1f} ± {self.deviation:.2g})"


def warn_far(whose: str, standings: Iterable[Standing], advice: str) -> bool:
    """Warn of S2 scores on whose scale rows stand far off, each once, and say whether there are any."""
    distinct = {str(standing): standing for standing in standings}
    low = ", ".join(words for words, standing in distinct.items() if standing.low)
    high = ", ".join(words for words, standing in distinct.items() if standing.out_of_reach)
    doubts = [f"look OOD to {low}"] if low else []
    doubts += [f"spread so little on the scale of {high} that hardly any input will look OOD to it"] if high else []
    if doubts and is_main():
        warn(f"{whose} {', and '.join(doubts)}. {advice}")
    return bool(doubts)
