"""Coverage under a promised risk: what `sirc.threshold.at_risk` accepts, beside an older test and what could be.

Run it from a checkout: `PYTHONPATH=src python benchmarks/promises.py --repeats 2000` prints the table of
docs/threshold.md. Cells are shares of all inputs that are accepted, on average over draws of the validation rows, also
of those in which nothing is: with the risk known; by one exact binomial test with the whole δ, at the number of rows
that suits it best, or the confidence where these repeat; by a sequence of such tests with six starts that share δ, the
fallback procedure of Wiens (2003), which was used before; and now. In brackets is the average over the draws in which
something is accepted. The last is how often the risk to come is above what was promised.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import stats

from sirc.deploy.threshold import risk_test

Floats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]
_STARTS = 6
_GRID = 200_000  # inputs that stand for all there are


@dataclass(frozen=True)
class Case:
    """The rate of errors at each place, from the most confident input, 0, to the least, 1; and what is asked for."""

    name: str
    rate: Callable[[Floats], Floats]
    n: int
    risk: float
    delta: float
    ties: int = 0  # that many confidences, as often each


def odds(slope: float) -> Callable[[Floats], Floats]:
    """Normal confidences, and log odds of an error of −2 − slope · confidence."""
    return lambda place: stats.logistic.cdf(-2 - slope * stats.norm.isf(place))


def steps(*rates: float) -> Callable[[Floats], Floats]:
    """As many confidences as rates."""
    return lambda place: np.array(rates)[np.minimum(place * len(rates), len(rates) - 1).astype(int)]


def in_turn(place: Floats) -> Floats:
    """Few errors and many in turn, twice."""
    return np.select([place < 0.25, place < 0.35, place < 0.7], [0.02, 0.301, 0.02], 0.233)


def on_top(place: Floats) -> Floats:
    """Most of the errors where confidence is highest."""
    return np.where(place < 0.03, 0.5, 0.07)


CASES = (
    Case("as above: log odds −2 − 1.5 · confidence", odds(1.5), 300, 0.1, 0.1),
    Case("the same", odds(1.5), 1500, 0.05, 0.1),
    Case("the same", odds(1.5), 5000, 0.05, 0.1),
    Case("the same", odds(1.5), 300, 0.1, 0.05),
    Case("the same", odds(1.5), 1500, 0.05, 0.05),
    Case("the same", odds(1.5), 1500, 0.1, 0.05),
    Case("slower to fall: −2 − confidence", odds(1.0), 300, 0.1, 0.05),
    Case("few and many in turn, twice", in_turn, 600, 0.1, 0.1),
    Case("most of them at the top", on_top, 600, 0.1, 0.1),
    Case("a share of 0.1001 everywhere", steps(0.1001), 600, 0.1, 0.1),
    Case("the same", steps(0.1001), 40, 0.1, 0.1),
    Case("six confidences that repeat", steps(0.01, 0.02, 0.05, 0.1, 0.4, 0.5), 300, 0.1, 0.1, ties=6),
    Case("six others, four of them near the risk", steps(0.03, 0.08, 0.09, 0.09, 0.1, 0.4), 1500, 0.1, 0.1, ties=6),
)


def six_starts(accepted: Counts, wrong: Counts, risk: float, delta: float) -> int:
    """The index of the lowest value down to which the older test showed the risk, or −1."""
    n = int(accepted[-1])
    for count in range(_STARTS, 0, -1):  # as many as could succeed without an error
        ranks = [-(-n // 2**i) for i in range(count - 1, -1, -1)]
        rows = n if count == 1 else ranks[0] - 1
        if rows > 0 and (1 - risk) ** rows <= delta / count * (1 + 1e-9):
            break
    else:
        return -1
    starts = [int(at) for at in np.searchsorted(accepted, ranks)]
    best, level, alive = -1, 0.0, False
    for number, (start, end) in enumerate(zip(starts, [*starts[1:], len(accepted)], strict=True)):
        level = level + delta / count if alive else delta / count
        if not alive:
            is_sample = start == 0 or number == len(starts) - 1
            alive = is_sample or bool(stats.binom.cdf(wrong[start - 1], accepted[start - 1], risk) <= level)
        if alive and end > start:
            passed = stats.binom.cdf(wrong[start:end], accepted[start:end], risk) <= level
            alive = bool(passed.all())
            down_to = len(passed) if alive else int(passed.argmin())
            best = start + down_to - 1 if down_to else best
    return best


def simulated(case: Case, repeats: int) -> list[str]:
    """The coverage with the risk known, by one test, by six starts and now; and how often the promise is broken."""
    places = (np.arange(_GRID) + 0.5) / _GRID
    to_come = np.cumsum(case.rate(places)) / np.arange(1, _GRID + 1)
    ends = np.arange(1, _GRID + 1) if not case.ties else np.arange(1, case.ties + 1) * _GRID // case.ties
    kept = ends[to_come[ends - 1] <= case.risk]
    rng, sizes = np.random.default_rng(0), np.arange(1, case.n + 1)
    alone = np.zeros(case.n)  # what one test at each number of rows accepts
    reached, broken = np.zeros((2, repeats)), np.zeros(repeats, dtype=bool)
    most = stats.binom.ppf(case.delta, sizes, case.risk)
    most -= stats.binom.cdf(most, sizes, case.risk) > case.delta
    for draw in range(repeats):
        place = np.sort(rng.random(case.n))
        wrong = np.cumsum(rng.random(case.n) < case.rate(place))
        level = np.ceil(place * case.ties) / case.ties if case.ties else place
        last = np.flatnonzero(np.append(level[:-1] != level[1:], True))
        numbers = np.rint(level[last] * case.ties).astype(int) - 1 if case.ties else last
        alone[numbers] += level[last] * (wrong[last] <= most[last])
        for number, test in enumerate((six_starts, risk_test.certified)):
            at = test(last + 1, wrong[last], case.risk, case.delta)
            reached[number, draw] = level[last[at]] if at >= 0 else 0
        count = int(reached[1, draw] * _GRID)
        broken[draw] = count > 0 and to_come[count - 1] > case.risk
    known = kept[-1] / _GRID if len(kept) else 0.0
    both = [f"{each.mean():.2f} ({each.sum() / max(1, (each > 0).sum()):.2f})" for each in reached]
    return [f"{known:.2f}", f"{alone.max() / repeats:.2f}", *both, f"{100 * broken.mean():.1f}%"]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=200)
    repeats = parser.parse_args().repeats
    print("| errors, by confidence | n | risk | δ | risk known | one test | six starts | now | promise broken |")
    print("|---|---|---|---|---|---|---|---|---|")
    for case in CASES:
        cells = [case.name, f"{case.n:,}", f"{case.risk:g}", f"{case.delta:g}", *simulated(case, repeats)]
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
