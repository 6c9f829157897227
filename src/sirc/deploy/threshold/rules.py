"""The rules that set a threshold: a recall, a coverage, a risk or the least cost, on counted rows."""

from __future__ import annotations

import math

import numpy as np

from sirc._utils.arrays import ArrayLike
from sirc._utils.checks import check_fraction, check_number
from sirc.deploy.threshold import risk_test
from sirc.deploy.threshold.counts import ConfidenceCounts, check_inner, count_rows, rank_reaching
from sirc.deploy.threshold.result import Threshold
from sirc.deploy.threshold.text import chance, percent_above, percent_below, percent_near
from sirc.metrics import least_count


def at_recall(
    confidence: ArrayLike,
    correct: ArrayLike,
    recall: float = 0.95,
    *,
    delta: float | None = None,
    tolerance: float = 0.0,
) -> Threshold:
    """The highest threshold that accepts at least `recall` of ID✓.

    Without δ it does so on these rows, by the paper's rule, as `Ranking.threshold(recall=…)` does; on future data the
    recall then falls short about every other time. With δ it does so on future data with probability at least 1 − δ: of
    n ID✓ rows, the future recall at the j-th highest confidence is Beta(j, n + 1 − j), so j is the smallest with
    P(Binomial(n, recall) ≥ j) ≤ δ, and ties only raise the recall. `estimates` then include the plain threshold.
    """
    return _at_share("recall", _share("recall", recall), delta, count_rows(confidence, correct), tolerance)


def at_coverage(
    confidence: ArrayLike, coverage: float, *, delta: float | None = None, tolerance: float = 0.0
) -> Threshold:
    """The highest threshold that accepts at least `coverage` of ID input; it needs no labels.

    Without δ it does so on these rows, with δ on future ID data with probability at least 1 − δ, by the order statistic
    of `at_recall` over all rows.
    """
    return _at_share("coverage", _share("coverage", coverage), delta, count_rows(confidence, None), tolerance)


def at_risk(
    confidence: ArrayLike, correct: ArrayLike, risk: float, *, delta: float = 0.05, tolerance: float = 0.0
) -> Threshold:
    """The lowest threshold found whose selective risk, the share of errors among accepted ID input, is at most `risk`.

    With probability at least 1 − δ the risk on future ID data is at most `risk`, for any distribution, with or without
    ties; the module `risk_test` has the test and its proof. If no threshold can be shown to keep the risk, the result
    is not `feasible`, and its estimate "lowest_risk" is the lowest larger risk that can be shown, or 1. δ does not
    cover a `risk` that is chosen after seeing what is feasible.
    """
    risk, delta = check_inner("risk", risk), check_inner("delta", delta)
    rows = count_rows(confidence, correct)
    accepted, target = rows.accepted, f"{100 * risk:g}%"
    risk_test.require_rows(int(accepted[-1]), risk, delta)
    if not 0 <= tolerance < 0.5:
        raise ValueError(f"`tolerance` must be a share below 0.5 for a risk to be shown; got {tolerance:g}")
    # At worst, right rows fall and errors rise by the tolerance: the test raises every error by twice that.
    values, worst, errors = rows.with_errors_raised(2 * tolerance)
    at = risk_test.certified(worst, errors, risk, delta)
    lowest = risk_test.lowest_risk(worst, errors, risk, delta, feasible=at >= 0)
    if at >= 0:
        (margin,), (end,) = rows.under(tolerance, values[at : at + 1])
        return Threshold(
            float(values[at] - margin), "risk", risk, delta, True, rows.estimates(end), {"risk": risk}, rows.sizes,
            f"{chance(delta)}, at most {percent_above(risk)} of the accepted ID inputs are errors.",
            f"The lowest risk that these rows can show, if need be at a smaller coverage, is {percent_above(lowest)}.",
            float(margin),
        )  # fmt: skip
    larger = f"The lowest risk above it that these rows can show is {percent_above(lowest)}"
    if lowest == 1:
        larger = "These rows can show no larger risk either"
    more = "with the error rates seen no number of rows would do: a better score or model is needed"
    if count := risk_test.rows_for(accepted, rows.wrong, risk, delta):
        more = f"about {count:,} ID rows would be needed at the error rates seen"
    return Threshold(
        rows.nothing(), "risk", risk, delta, False, {**rows.estimates(-1), "lowest_risk": lowest}, {}, rows.sizes,
        f"None: a risk of at most {target} could not be shown at any threshold with δ = {delta:g}.",
        f"{larger}; for {target}, {more}.",
    )  # fmt: skip


def at_cost(
    confidence: ArrayLike,
    correct: ArrayLike,
    ood: ArrayLike,
    *,
    alpha: float,
    beta: float,
    reject_cost: float | None = None,
    recall: float | None = None,
    tolerance: float = 0.0,
) -> Threshold:
    """The threshold of least expected cost per input, for a share α of ID input.

    An accepted ID✗ costs β, an accepted OOD input 1 − β, and a rejected input of any kind `reject_cost`; or rejecting
    is free, but at least `recall` of ID✓ must be accepted. Both may be given. The estimates also tell what happens if
    the true α differs by 0.1 or 0.2: the cost of this threshold ("cost@alpha=0.4"), and how much the best one would
    save ("regret@alpha=0.4").
    """
    alpha, beta = check_fraction("alpha", alpha), check_fraction("beta", beta)
    if reject_cost is None and recall is None:
        raise ValueError(
            "`at_cost` needs `reject_cost=` or `recall=`: without either, rejecting every input is free and best. Give "
            "the cost of a rejected input (a second look by a person, say), or the recall of ID✓ to keep."
        )
    price = 0.0 if reject_cost is None else check_number("reject_cost", reject_cost)
    if not 0 <= price < math.inf:
        raise ValueError(f"`reject_cost` must be a cost of at least 0, in the unit of β and 1 − β; got {price:g}")
    if ood is None:
        raise ValueError("`ood` must hold the confidences of OOD rows, whose cost counts too; got None")
    rows = count_rows(confidence, correct, ood)
    first = 0  # the index of the highest threshold allowed; index 0 accepts nothing
    if recall is not None:
        rank = rank_reaching(rows.sizes["correct"], _share("recall", recall))
        first = 1 + int(np.searchsorted(rows.correct, rank))
    # The mean cost of an ID and of an OOD input if nothing is accepted, and at the threshold below each value.
    margins, ends = rows.under(tolerance)
    values, margins, ends = np.append(rows.nothing(), rows.values - margins), np.append(0, margins), np.append(-1, ends)
    wrong, accepted, others = (np.append(0, counts)[1 + ends] for counts in (rows.wrong, rows.accepted, rows.ood))
    inside = (beta * wrong + price * (accepted[-1] - accepted)) / accepted[-1]
    outside = ((1 - beta) * others + price * (others[-1] - others)) / others[-1]
    mixed = alpha * inside + (1 - alpha) * outside
    best = first + int(mixed[first:].argmin())  # the highest threshold among equals
    estimates = rows.estimates(ends[best])
    estimates["ood"] = int(others[best]) / rows.sizes["ood"]
    estimates["cost"] = float(mixed[best])
    misjudged = []
    shifted = (min(1.0, max(0.0, round(alpha + shift, 12))) for shift in (-0.2, -0.1, 0.1, 0.2))
    for name, other in {f"{other:g}": other for other in shifted if other != alpha}.items():
        costs = other * inside + (1 - other) * outside
        regret = max(0.0, float(costs[best] - costs[first:].min()))
        estimates[f"cost@alpha={name}"], estimates[f"regret@alpha={name}"] = float(costs[best]), regret
        misjudged.append(f"{costs[best]:.6g} at α = {name} ({regret:.6g} above the best)")
    rule = [] if reject_cost is None else [f"a rejected input costs {price:g}"]
    rule += [] if recall is None else [f"at least {percent_below(recall)} of ID✓ is accepted"]
    return Threshold(
        float(values[best]), "cost", None, None, True, estimates, {}, rows.sizes,
        f"None, an estimate: the least cost on these rows for α = {alpha:g}, β = {beta:g}, where {' and '.join(rule)}.",
        f"If α is misjudged, the cost is {', '.join(misjudged)}.",
        float(margins[best]),
    )  # fmt: skip


def _at_share(rule: str, share: float, delta: float | None, rows: ConfidenceCounts, tolerance: float) -> Threshold:
    """The threshold at a recall of ID✓, or at a coverage, where all rows count as correct."""
    n = rows.sizes["correct"]
    group, sizes = ("ID✓", rows.sizes) if rule == "recall" else ("ID", {"id": n})

    margins, ends = rows.under(tolerance)

    def reached(rank: int) -> tuple[float, float, dict[str, float]]:
        at = int(np.searchsorted(rows.correct, rank))
        estimates = {name: x for name, x in rows.estimates(ends[at]).items() if rule in ("recall", name)}
        return float(rows.values[at] - margins[at]), float(margins[at]), estimates

    plain, margin, estimates = reached(rank_reaching(n, share))
    if delta is None:
        guarantee = f"None, an estimate: at least {percent_below(share)} of the {group} rows at hand are accepted."
        advice = f"With δ = 0.05 it would be a promise for future data; {_rows_for(share, 0.05, group)}."
        return Threshold(plain, rule, share, None, True, estimates, {}, sizes, guarantee, advice, margin)
    delta = check_inner("delta", delta)
    rank = least_count(n, share, delta) if share < 1 else None
    if rank is None:
        raise ValueError(
            f"a {rule} of {share:g} with δ = {delta:g}: {_rows_for(share, delta, group)}; got {n:,}. Label more rows, "
            f"or ask for a smaller {rule} or a larger δ."
        )
    value, margin, guaranteed = reached(rank)
    both = {**guaranteed, "plain_threshold": plain, f"plain_{rule}": estimates[rule]}
    plain_text = f"{plain:.6g}, would accept {percent_near(estimates[rule])} of the rows at hand"
    takes = f"The guarantee takes {percent_near(guaranteed[rule])} of the rows at hand"
    if value < plain:
        comparison = f"The plain threshold, {plain_text}, without a promise."
        taken = f"{takes}; four times the rows would halve that margin."
    elif value == plain:
        comparison, taken = "The plain threshold is the same.", f"{takes}, as the plain threshold does."
    else:  # a large δ can promise the share at a higher threshold
        comparison = f"The plain threshold, {plain_text}: it is lower, and keeps this too."
        taken = f"{takes}, fewer than the plain threshold: δ = {delta:g} is large. A smaller δ takes more."
    promise = f"at least {percent_below(share)} of future {group} inputs are accepted."
    guarantee = f"{chance(delta)}, {promise} ({comparison})"
    advice = f"{taken} The highest {rule} that {n:,} rows can promise is {percent_below(delta ** (1 / n))}."
    return Threshold(value, rule, share, delta, True, both, {rule: share}, sizes, guarantee, advice, margin)


def _rows_for(share: float, delta: float, group: str) -> str:
    """Say how many rows an order statistic needs: shareⁿ ≤ δ."""
    if share == 1:
        return "no number of rows can promise all of the inputs to come"
    return f"that needs at least {math.ceil(math.log(delta) / math.log(share) - 1e-9):,} {group} rows"


def _share(name: str, value: float) -> float:
    share = check_fraction(name, value)
    if share == 0:
        raise ValueError(f"`{name}` must be above 0: at 0 nothing need be accepted; got 0")
    return share
