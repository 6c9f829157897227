"""Verdicts on claims: comparisons for, against and open, and the word for their counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from studies.tools.study import Interval, listed

YES, NO, OPEN = "for", "against", "open"
HOLDS, PARTLY, FAILS, UNDECIDED, UNTESTED = "holds", "holds in part", "does not hold", "undecided", "not tested"
RULE = (
    "Each claim is split into comparisons, each for one network (over its seeds, if there are several), and all count "
    "alike. A comparison bears the claim out, or speaks against it, if its whole 95% interval does; it is open if the "
    "difference is too small for its interval. The claim **holds** if every comparison bears it out. It is "
    "**undecided** if more than half are open. Otherwise it **holds in part** if more bear it out than speak against "
    "it, and **does not hold** if not. The same rule gives a verdict for each network by itself, with its comparisons "
    "for / against / open, and for all networks together, by the means of their differences: these intervals are the "
    "narrowest. In tables over α and β, bold is surely below 0."
)


@dataclass(frozen=True)
class Check:
    """One comparison: its network, what is compared, its outcome for the claim, and its interval if it has one."""

    model: str
    what: str
    outcome: str
    interval: Interval | None = None
    fine: bool = False
    """Whether the interval is of an area under a risk curve, and small."""

    def __str__(self) -> str:
        shown = "" if self.interval is None else f" ({self.interval.finer if self.fine else self.interval})"
        return f"{self.what} on {self.model}{shown}"


def below(interval: Interval, bound: float = 0.0) -> str:
    """A claim that the figure is below a bound."""
    return YES if interval.high < bound else NO if interval.low > bound else OPEN


def above(interval: Interval, bound: float = 0.0) -> str:
    """A claim that the figure is above a bound."""
    return YES if interval.low > bound else NO if interval.high < bound else OPEN


def opposite(one: str, other: str) -> bool:
    """Whether two claims came out sure, one for and one against."""
    return {one, other} == {YES, NO}


def judge(outcomes: Sequence[str]) -> str:
    """The verdict, by `RULE`."""
    yes, no, still = (list(outcomes).count(outcome) for outcome in (YES, NO, OPEN))
    if not outcomes:
        return UNTESTED
    if yes == len(outcomes):
        return HOLDS
    if 2 * still > len(outcomes):
        return UNDECIDED
    return PARTLY if yes > no else FAILS


@dataclass(frozen=True)
class Claim:
    """A claim of the paper, and what became of it here."""

    title: str
    said: str
    """What the paper said, with its figures."""
    tested: str
    """What was compared, and when a comparison bears the claim out."""
    checks: Sequence[Check]
    shown: str = ""
    """A table."""
    why: Mapping[str, str] = field(default_factory=dict)
    """By verdict: why it may be so."""
    by_network: bool = False
    """Whether it makes no sense of all networks together."""

    @property
    def verdict(self) -> str:
        """The verdict, in a word or two."""
        return judge(self.outcomes())

    @property
    def counts(self) -> tuple[int, int, int]:
        """The numbers of comparisons for the claim, against it, and open."""
        outcomes = self.outcomes()
        return outcomes.count(YES), outcomes.count(NO), outcomes.count(OPEN)

    def outcomes(self, model: str | None = None) -> list[str]:
        """What each comparison says, of one network or of all."""
        return [check.outcome for check in self.checks if model in (None, check.model)]

    def written(self, number: int, together: Claim | None = None) -> str:
        """Its section of the document; `together` is the same claim about all networks as one."""
        yes, no, still = self.counts
        counted = f"{self.tested} Of {len(self.checks)} comparisons: {yes} for, {no} against, {still} open."
        if not self.checks:
            counted = f"{self.tested} No case of it came up."
        against = [str(check) for check in _worst(self.checks)]
        if against and yes:
            counted += f" Against it: {listed(against, 3)}."
        if together is not None:
            counts = "{} for, {} against, {} open".format(*together.counts)
            counted += f" Over all networks together it {_clause(together.verdict)}: {counts}."
        title = f"### {number}. {self.title}: {self.verdict}"
        parts = [title, f"*Paper.* {self.said}", f"*Here.* {counted}", self.shown, self._why()]
        return "\n\n".join(part for part in parts if part)

    def _why(self) -> str:
        """Why it may be so; a reason for what speaks against a claim is none where nothing does."""
        _, no, _ = self.counts
        return "" if self.verdict == PARTLY and not no else self.why.get(self.verdict, "")


def _clause(verdict: str) -> str:
    return f"is {verdict}" if verdict in (UNDECIDED, UNTESTED) else verdict


def _worst(checks: Sequence[Check]) -> list[Check]:
    """Those that speak against a claim, the largest differences first."""
    found = [check for check in checks if check.outcome == NO]
    return sorted(found, key=lambda check: -abs(check.interval.value) if check.interval else 0.0)
