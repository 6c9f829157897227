"""Thresholds against SciPy and plain loops; each guarantee by simulation; what cannot be promised."""

import copy
import functools
import itertools
import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from sirc import Ranking
from sirc.deploy.threshold import Threshold, at_cost, at_coverage, at_recall, at_risk, risk_test
from sirc.deploy.threshold import text as words
from sirc.deploy.threshold.counts import count_rows
from support.examples import examples

small = examples(80)
REPEATS = 1000
scores = st.integers(-3, 3).map(float) | st.sampled_from([math.inf, -math.inf])
labelled = st.lists(st.tuples(scores, st.booleans()), min_size=1, max_size=25)


def broken_at_most(broken, delta):
    """The share of broken promises lies below δ, but for three binomial standard errors of the simulation."""
    return np.mean(broken) <= delta + 3 * math.sqrt(delta * (1 - delta) / len(broken))


# At a recall or a coverage


@pytest.mark.slow
@small
@given(labelled.filter(lambda rows: any(ok for _, ok in rows)), st.integers(1, 40).map(lambda k: k / 40))
def test_the_plain_threshold_is_the_paper_s(rows, recall):
    confidence, correct = np.array([s for s, _ in rows]), np.array([ok for _, ok in rows])
    ranking = Ranking(confidence[correct], confidence[~correct])
    got = at_recall(confidence, correct, recall)
    assert got.value == ranking.threshold(recall=recall)
    assert got.estimates["recall"] == ranking.recall(got.value)
    assert got.estimates["risk"] == pytest.approx(ranking.risk(got.value, 1, 1), abs=1e-15)
    assert at_coverage(confidence, recall).value == ranking.threshold(coverage=recall, alpha=1)
    assert at_coverage(confidence, recall).estimates["coverage"] == ranking.coverage(
        at_coverage(confidence, recall).value, 1
    )


def test_a_guaranteed_recall_is_an_order_statistic_and_tells_the_plain_one():
    rng = np.random.default_rng(3)
    confidence, correct = rng.normal(size=1500), rng.random(1500) < 0.8
    got, plain = at_recall(confidence, correct, 0.9, delta=0.05), at_recall(confidence, correct, 0.9)
    right = np.sort(confidence[correct])[::-1]
    n = len(right)
    j = next(j for j in range(1, n + 1) if stats.beta.cdf(0.9, j, n + 1 - j) <= 0.05)
    assert got.value == right[j - 1]
    assert got.estimates["recall"] == j / n
    assert (got.estimates["plain_threshold"], got.estimates["plain_recall"]) == (plain.value, plain.estimates["recall"])
    assert got.bounds == {"recall": 0.9}
    assert got.sizes == {"correct": n, "wrong": 1500 - n}
    assert plain.bounds == {}
    assert plain.delta is None


@pytest.mark.slow
@pytest.mark.parametrize("delta", [0.02, 0.1])
def test_a_promised_recall_is_broken_about_as_often_as_delta_says(delta, attack):
    rng, repeats = np.random.default_rng(4), attack.trials(REPEATS)
    right, wrong = rng.random((repeats, 300)), rng.random((repeats, 40))
    correct = np.arange(340) < 300
    values = [at_recall(np.append(a, b), correct, 0.9, delta=delta).value for a, b in zip(right, wrong, strict=True)]
    broken = 1 - np.array(values) < 0.9  # the recall to come, of confidences even in [0, 1]
    assert broken_at_most(broken, delta)
    assert np.mean(broken) >= delta / 10
    plain = np.array([at_recall(a, np.ones(300), 0.9).value for a in right])
    assert np.mean(1 - plain < 0.9) > 0.3
    attack.tried("promised recalls", repeats, "broken at most as often as δ says")


@pytest.mark.slow
def test_ties_keep_a_promised_recall_on_the_safe_side():
    rng = np.random.default_rng(5)
    confidence = np.floor(rng.random((REPEATS, 200)) * 10)
    values = np.array([at_recall(row, np.ones(200), 0.75, delta=0.1).value for row in confidence])
    assert set(values) <= {1.0, 2.0, 3.0}
    assert broken_at_most(1 - values / 10 < 0.75, 0.1)


@pytest.mark.slow
def test_a_promised_coverage_is_broken_about_as_often_as_delta_says():
    rng = np.random.default_rng(6)
    values = [at_coverage(row, 0.8, delta=0.05).value for row in rng.random((REPEATS, 250))]
    broken = 1 - np.array(values) < 0.8
    assert broken_at_most(broken, 0.05)
    assert np.mean(broken) >= 0.005


def test_too_few_rows_for_a_recall_say_how_many_are_needed():
    with pytest.raises(ValueError, match=r"needs at least 59 ID✓ rows; got 58"):
        at_recall(np.arange(58.0), np.ones(58), 0.95, delta=0.05)
    assert at_recall(np.arange(59.0), np.ones(59), 0.95, delta=0.05).value == 0.0
    with pytest.raises(ValueError, match=r"needs at least 29 ID rows; got 1\."):
        at_coverage([0.3], 0.9, delta=0.05)
    with pytest.raises(ValueError, match="no number of rows"):
        at_recall(np.arange(58.0), np.ones(58), 1.0, delta=0.05)
    assert at_recall([0.3], [True], 1.0).value == 0.3


# At a risk


@functools.cache
def limits_by_loops(n, risk, delta):
    """The most errors that pass among k rows, in the net and in the run, and where the run starts; one toss a time."""
    needed = {share: math.ceil(math.log(delta * share) / math.log(1 - risk) - 1e-9) for share in (1, 0.5)}
    spend = 0.0 if n < 2 * max(1, needed[1]) else delta / 2
    first = max(1, needed[0.5])
    law, spent, net, run = {0: 1.0}, 0.0, [-1], [-1]
    for k in range(1, n + 1):
        after = dict.fromkeys(range(max(law) + 2), 0.0)
        for heads, p in law.items():
            after[heads] += p * (1 - risk)
            after[heads + 1] += p * risk
        law = {heads: p for heads, p in after.items() if heads >= min(law) and (p > 1e-18 or heads < risk * k)}
        if spend and k >= first:
            may = spend if k == n else spend * math.log(k / first) / math.log(n / first)
            while spent + law[min(law)] <= may:
                spent += law.pop(min(law))
        net.append(min(min(law) - 1, net[-1] + 1))
        mass, most = 0.0, min(law) - 1
        while mass + law[most + 1] <= delta - spend:
            most += 1
            mass += law[most]
        run.append(min(most, run[-1] + 1))
    able = [k for k in range(1, n + 1) if run[k] >= 0]
    decided = [k for k in able if run[k] >= math.floor(0.6 * risk * k)]
    start = min([max(n // 3, able[0]), *decided[:1]]) if able else n + 1
    return net, run, start


def lowest_by_loops(confidence, correct, risk, delta, tolerance=0.0):
    """The lowest value whose threshold keeps the risk, with every error as high as twice the tolerance may take it."""
    scale = np.median(np.abs(confidence))

    def raised(s):
        low, high = s, s + 1.0
        for _ in range(60 if tolerance else 0):
            middle = (low + high) / 2
            inside = middle - 2 * tolerance * max(abs(middle), scale) <= s
            low, high = (middle, high) if inside else (low, middle)
        return low

    rows = [(s if ok else raised(s), ok) for s, ok in zip(confidence, correct, strict=True)]
    net, run, start = limits_by_loops(len(rows), risk, delta)
    found, alive = math.inf, True
    for v in sorted({s for s, _ in rows}, reverse=True):
        size, wrong = sum(s >= v for s, _ in rows), sum(s >= v and not ok for s, ok in rows)
        above, before = sum(s > v for s, _ in rows), sum(s > v and not ok for s, ok in rows)
        if above < start <= size:
            alive = min(before + start - above, wrong) <= run[start]
        alive = alive and (size < start or wrong <= run[size])
        if wrong <= net[size] or (alive and size >= start):
            found = v
    return found


@pytest.mark.parametrize("decimals", [None, 2, 1, 0])
@pytest.mark.parametrize("tolerance", [0.0, 0.03])
@pytest.mark.slow
def test_a_risk_s_threshold_is_the_lowest_in_the_net_or_the_run(tolerance, decimals):
    rng = np.random.default_rng(7)
    for n, risk in ((35, 0.12), (60, 0.05), (150, 0.12), (150, 0.2)):
        for top in (0.0, 0.15):
            confidence = rng.random(n) if decimals is None else rng.random(n).round(decimals)
            correct = rng.random(n) >= top + 0.35 * (1 - confidence) ** 2
            want = lowest_by_loops(confidence.tolist(), correct.tolist(), risk, 0.1, tolerance)
            got = at_risk(confidence, correct, risk, delta=0.1, tolerance=tolerance)
            assert got.value == (pytest.approx(want - got.margin, abs=1e-12) if got.feasible else math.inf)
            assert got.feasible == (want < math.inf)
            if got.feasible:
                accepted = confidence >= got.value
                assert got.estimates["risk"] == pytest.approx((~correct & accepted).sum() / accepted.sum())
                assert got.estimates["coverage"] == accepted.mean()
                assert got.estimates["risk"] < risk
                assert got.bounds == {"risk": risk}


@pytest.mark.parametrize(("n", "risk", "delta"), [(15, 0.4, 0.2), (15, 0.3, 0.3), (14, 0.5, 0.05), (8, 0.3, 0.1)])
def test_of_all_sequences_of_tosses_few_enough_pass(n, risk, delta):
    tosses = (np.arange(2**n)[:, None] >> np.arange(n)) & 1
    chances = (risk**tosses * (1 - risk) ** (1 - tosses)).prod(1)
    heads, limits, sizes = tosses.cumsum(1), risk_test.ErrorLimits(n, risk, delta), np.arange(1, n + 1)
    net, run = limits.at(limits.net, sizes), limits.at(limits.run, sizes)
    assert np.all(np.diff(run) <= 1)
    caught = (heads <= net).any(1)
    passing = [chances[caught | (heads[:, k] <= run[k])].sum() for k in range(n)]
    assert max(passing) <= delta + 1e-12
    assert max(passing) > delta / 3


def test_more_rows_are_tossed_some_at_a_time_with_no_more_passing():
    n, risk, delta = 600, 0.05, 0.1
    limits, sizes = risk_test.ErrorLimits(n, risk, delta), np.arange(1, n + 1)
    net, run, _ = limits_by_loops(n, risk, delta)
    for own, one in ((limits.net, net), (limits.run, run)):
        values = limits.at(own, sizes)
        assert np.all(np.diff(values) <= 1)
        assert np.abs(values - one[1:]).max() <= 2
    law, caught = np.ones(1), 0.0
    for most in limits.at(limits.net, sizes):
        law = np.convolve(law, [1 - risk, risk])
        caught += law[: most + 1].sum()
        law[: most + 1] = 0
    assert 0.4 * delta < caught <= delta / 2 + 1e-12


ADVERSARIES = {  # the mass and the share of errors of each confidence, from the highest; 0.4 may not be exceeded
    "all just too high": ([0.4, 0.2, 0.4], [0.401, 0.401, 0.401]),
    "one step": ([0.575, 0.371, 0.054], [0.01, 1.0, 0.6]),
    "low, high, low, high": ([0.3, 0.2, 0.3, 0.2], [0.1, 0.86, 0.1, 0.86]),
    "errors on top": ([0.1, 0.6, 0.3], [0.9, 0.2, 0.72]),
    "all tied": ([1.0], [0.401]),
    "a tie that starts too high": ([0.35, 0.4, 0.25], [0.7, 0.15, 0.42]),
}


@pytest.mark.parametrize("name", ADVERSARIES)
@pytest.mark.slow
def test_with_ties_the_exact_probability_of_a_broken_risk_is_at_most_delta(name):
    mass, rates = map(np.array, ADVERSARIES[name])
    risk, delta, levels = 0.4, 0.2, len(mass)
    n = 12 if levels < 4 else 8
    too_high = np.cumsum(mass * rates) / np.cumsum(mass) > risk
    assert too_high.any()
    kinds = np.column_stack([mass * (1 - rates), mass * rates]).ravel()  # right and wrong at each confidence
    broken = 0.0
    for bars in itertools.combinations(range(n + 2 * levels - 1), 2 * levels - 1):
        counts = np.diff([-1, *bars, n + 2 * levels - 1]) - 1
        seen = counts.reshape(levels, 2)
        held = np.flatnonzero(seen.sum(1))
        at = risk_test.certified(seen.sum(1)[held].cumsum(), seen[held, 1].cumsum(), risk, delta)
        if at >= 0 and too_high[held[at]]:
            broken += math.factorial(n) * np.prod(kinds**counts / [math.factorial(count) for count in counts])
    assert broken <= delta


CURVES = {
    "falling": lambda s: 0.3 * (1 - s),
    "step": lambda s: np.where(s > 0.6, 0.01, 0.4),
    "flat, just too high": lambda s: np.full_like(s, 0.101),
    "wavy": lambda s: 0.1 * (1 + 0.95 * np.sin(35 * s)),
    "errors on top": lambda s: np.where(s > 0.97, 0.5, 0.085),
    "low, high, low, high": lambda s: np.select([s > 0.75, s > 0.65, s > 0.3], [0.02, 0.301, 0.02], 0.233),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CURVES)
@pytest.mark.parametrize("decimals", [None, 1])
def test_a_promised_risk_is_broken_at_most_as_often_as_delta_says(name, decimals, attack):
    rng = np.random.default_rng(8)
    risk, delta, n = 0.1, 0.1, 600
    curve = CURVES[name]
    # Rows of equal mass stand for the population, so that the risk to come at each threshold is a mean.
    places = (np.arange(20_000) + 0.5) / 20_000
    levels = places if decimals is None else places.round(decimals)
    to_come = np.cumsum(curve(places)[::-1]) / np.arange(1, 20_001)  # accepting from the top down
    broken, found = [], []
    repeats = min(attack.trials(REPEATS), 2000)
    for _ in range(repeats):
        s = np.sort(rng.random(n))[::-1]
        wrong = np.cumsum(rng.random(n) < curve(s))
        values = s if decimals is None else s.round(decimals)
        last = np.flatnonzero(np.append(values[:-1] != values[1:], True))
        at = risk_test.certified(last + 1, wrong[last], risk, delta)
        found.append(at >= 0)
        value = values[last[at]]
        broken.append(at >= 0 and to_come[20_000 - np.searchsorted(levels, value) - 1] > risk)
    assert broken_at_most(np.array(broken), delta)
    if name in ("falling", "step") and decimals is None:
        assert np.mean(broken) >= delta / 10
        assert np.mean(found) > 0.9
    attack.tried(f"promised risks, {name}", repeats, "broken at most as often as δ says")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n", "risk", "known", "least"),
    [(300, 0.1, 0.77, 0.49), (1500, 0.05, 0.49, 0.3), (1500, 0.1, 0.77, 0.68), (5000, 0.05, 0.49, 0.41)],
)
def test_a_risk_is_shown_near_the_coverage_that_any_test_could_reach(n, risk, known, least):
    # Confidences are normal, and an error has the log odds −2 − 1.5·confidence, as on the page about thresholds.
    rng, delta = np.random.default_rng(18), 0.1
    grid = np.linspace(8, -8, 20_001)
    density = stats.norm.pdf(grid)
    to_come = np.cumsum(density / (1 + np.exp(2 + 1.5 * grid))) / np.cumsum(density)
    reached, broken = [], []
    for _ in range(300):
        confidence = -np.sort(-rng.normal(size=n))
        wrong = np.cumsum(rng.random(n) < 1 / (1 + np.exp(2 + 1.5 * confidence)))
        at = risk_test.certified(np.arange(1, n + 1), wrong, risk, delta)
        value = confidence[at] if at >= 0 else math.inf
        reached.append(stats.norm.sf(value))
        broken.append(at >= 0 and np.interp(-value, -grid, to_come) > risk)
    assert stats.norm.sf(grid[to_come <= risk][-1]) == pytest.approx(known, abs=0.005)
    assert np.mean(reached) > least
    assert broken_at_most(np.array(broken), delta)


@pytest.mark.slow
def test_an_infeasible_risk_is_said_with_the_lowest_that_is_feasible():
    rng = np.random.default_rng(9)
    confidence = rng.random(1000)
    correct = rng.random(1000) >= 0.05 + 0.2 * (1 - confidence)
    got = at_risk(confidence, correct, 0.03)
    assert not got.feasible
    assert got.value == math.inf
    assert got.bounds == {}  # nothing holds with probability 1 − δ
    assert (got.estimates["recall"], got.estimates["coverage"], got.estimates["risk"]) == (0.0, 0.0, 0.0)
    lowest = got.estimates["lowest_risk"]
    assert 0.05 < lowest < 0.15
    assert at_risk(confidence, correct, lowest).feasible
    assert not at_risk(confidence, correct, lowest * 0.999).feasible
    assert "no number of rows would do" in got.advice
    assert "Infeasible" in str(got)


@pytest.mark.parametrize("decimals", [None, 1, 0])
@pytest.mark.slow
def test_the_lowest_risk_is_feasible_and_a_little_less_is_not(decimals):
    rng = np.random.default_rng(13)
    for n in (30, 60, 200):
        confidence = rng.random(n) if decimals is None else rng.random(n).round(decimals)
        correct = rng.random(n) >= 0.2 * (1 - confidence) + 0.1 * (confidence > 0.9)
        for risk in (0.1, 0.8):
            got = at_risk(confidence, correct, risk, delta=0.2)
            lowest = got.estimates.get("lowest_risk")
            if lowest is None:
                told = float(got.advice.rsplit(" ", 1)[1].rstrip("%.")) / 100
                assert told <= risk + 0.0011  # rounded up in the third digit
            else:
                assert at_risk(confidence, correct, lowest, delta=0.2).feasible
                assert not at_risk(confidence, correct, lowest * 0.999, delta=0.2).feasible


@pytest.mark.slow
def test_a_promised_risk_holds_with_tied_scores_from_the_rows_to_the_threshold():
    rng = np.random.default_rng(14)
    risk, delta, n, levels = 0.1, 0.1, 400, 12
    rates = np.where(np.arange(levels) < 5, 0.4, 0.02)  # the errors at each of twelve equally frequent confidences
    to_come = np.cumsum(rates[::-1])[::-1] / np.arange(levels, 0, -1)
    broken, found = [], []
    for _ in range(60):
        confidence = rng.integers(0, levels, n)
        got = at_risk(confidence, rng.random(n) >= rates[confidence], risk, delta=delta)
        found.append(got.feasible)
        broken.append(got.feasible and to_come[int(got.value)] > risk)
    assert broken_at_most(np.array(broken), delta)
    assert np.mean(broken) >= delta / 10
    assert np.mean(found) > 0.9


@pytest.mark.slow
def test_an_infeasible_risk_says_how_many_rows_would_do():
    confidence, correct = np.arange(200.0), np.ones(200, dtype=bool)
    correct[::25] = False  # one error in 25
    got = at_risk(confidence, correct, 0.06)
    assert not got.feasible
    needed = int(got.advice.split("about ")[1].split(" ID rows")[0].replace(",", ""))
    assert 500 < needed < 3000
    many = np.ones(needed, dtype=bool)
    many[::25] = False
    assert at_risk(np.arange(float(needed)), many, 0.06).feasible
    assert not at_risk(np.arange(float(needed // 3)), many[: needed // 3], 0.06).feasible


def test_too_few_rows_for_a_risk_say_how_many_are_needed():
    with pytest.raises(ValueError, match=r"needs at least 59 ID rows, and no error among them; got 58"):
        at_risk(np.arange(58.0), np.ones(58), 0.05)
    got = at_risk(np.arange(59.0), np.ones(59), 0.05)
    assert (got.feasible, got.value, got.estimates["coverage"]) == (True, 0.0, 1.0)
    correct = np.arange(59) > 0
    assert not at_risk(np.arange(59.0), correct, 0.05).feasible
    assert at_risk([0.3], [True], 0.97).value == 0.3
    hopeless = at_risk([0.3], [False], 0.97)
    assert hopeless.estimates["lowest_risk"] == 1.0
    assert hopeless.advice.startswith("These rows can show no larger risk either")


@pytest.mark.slow
def test_equal_confidences_are_accepted_or_rejected_together():
    confidence, correct = np.repeat([2.0, 1.0], 200), np.repeat([True, False], 200)
    assert at_risk(confidence, correct, 0.05).value == 2.0
    lowest = at_risk(confidence, correct, 0.01).estimates["lowest_risk"]
    assert at_risk(confidence, correct, lowest).value == 2.0
    assert not at_risk(confidence, correct, lowest * 0.99).feasible
    spread = np.append(np.arange(3.0, 203.0), np.full(200, 1.0))
    assert at_risk(spread, correct, 0.05).value >= 3.0
    assert at_risk(np.ones(400), np.ones(400), 0.05).value == 1.0
    assert not at_risk(np.ones(400), np.arange(400) % 2, 0.05).feasible


def test_infinite_confidences_take_part():
    confidence = np.append(np.full(100, math.inf), np.full(100, -math.inf))
    assert at_recall(confidence, np.ones(200), 0.3).value == math.inf
    low = at_recall(confidence, np.ones(200), 0.6, delta=0.05)
    assert low.value == -math.inf
    assert Threshold.from_dict(json.loads(json.dumps(low.to_dict()))) == low
    assert at_risk(confidence, np.ones(200), 0.05).value == -math.inf
    none = at_risk(confidence, np.zeros(200), 0.05)
    assert not none.feasible
    assert not (confidence >= none.value).any()  # +inf would accept half of them
    assert math.isnan(Threshold.from_dict(json.loads(json.dumps(none.to_dict()))).value)


# At the least cost


def cost_by_loops(rows, ood, t, alpha, beta, price):
    inside = [price if s < t else 0.0 if ok else beta for s, ok in rows]
    outside = [price if s < t else 1 - beta for s in ood]
    return alpha * sum(inside) / len(inside) + (1 - alpha) * sum(outside) / len(outside)


@small
@given(
    labelled,
    st.lists(scores, min_size=1, max_size=12),
    st.sampled_from([0.0, 0.3, 0.5, 0.95, 1.0]),
    st.sampled_from([0.0, 0.25, 0.5, 1.0]),
    st.sampled_from([0.0, 0.1, 0.4, 2.0]),
)
def test_no_threshold_costs_less(rows, ood, alpha, beta, price):
    confidence, correct = [s for s, _ in rows], [ok for _, ok in rows]
    got = at_cost(confidence, correct, ood, alpha=alpha, beta=beta, reject_cost=price)
    candidates = [math.nan, *confidence, *ood]

    def cost(t, a):
        return cost_by_loops(rows, ood, math.inf if math.isnan(t) else t, a, beta, price)

    def every(a):
        nothing = a * price + (1 - a) * price
        return [nothing, *(cost(t, a) for t in candidates[1:])]

    here = cost(got.value, alpha) if math.isfinite(got.value) or got.value in confidence + ood else every(alpha)[0]
    assert got.estimates["cost"] == pytest.approx(here, abs=1e-12)
    assert got.estimates["cost"] == pytest.approx(min(every(alpha)), abs=1e-12)
    shifted = {float(np.clip(round(alpha + shift, 12), 0, 1)) for shift in (-0.2, -0.1, 0.1, 0.2)} - {alpha}
    assert {key for key in got.estimates if "@" in key} == {
        f"{of}@alpha={a:g}" for of in ("cost", "regret") for a in shifted
    }
    for other in shifted:
        regret = got.estimates[f"cost@alpha={other:g}"] - min(every(other))
        assert got.estimates[f"regret@alpha={other:g}"] == pytest.approx(regret, abs=1e-12)


def test_near_its_end_alpha_is_misjudged_in_both_directions():
    rng = np.random.default_rng(15)
    rows = rng.normal(size=200), rng.random(200) < 0.8, rng.normal(-1, 1, 100)
    for alpha, others in ((0.95, ["0.75", "0.85", "1"]), (0.05, ["0", "0.15", "0.25"]), (1, ["0.8", "0.9"])):
        got = at_cost(*rows, alpha=alpha, beta=0.5, reject_cost=0.1)
        assert [key.split("=")[1] for key in got.estimates if key.startswith("cost@")] == others
        assert [part.split(" (")[0] for part in got.advice.split("at α = ")[1:]] == others


def test_under_a_recall_floor_the_least_cost_is_at_the_floor():
    rng = np.random.default_rng(10)
    confidence, correct, ood = rng.normal(size=500), rng.random(500) < 0.8, rng.normal(-1, 1, 300)
    got = at_cost(confidence, correct, ood, alpha=0.7, beta=0.4, recall=0.9)
    assert got.value == at_recall(confidence, correct, 0.9).value
    assert got.estimates["recall"] >= 0.9
    assert got.estimates["regret@alpha=0.5"] == 0.0
    assert got.estimates["ood"] == np.mean(ood >= got.value)
    both = at_cost(confidence, correct, ood, alpha=0.7, beta=0.4, recall=0.9, reject_cost=0.3)
    free = at_cost(confidence, correct, ood, alpha=0.7, beta=0.4, reject_cost=0.3)
    assert both.estimates["recall"] >= 0.9
    assert both.estimates["cost"] >= free.estimates["cost"]
    assert got.sizes == {"correct": correct.sum(), "wrong": 500 - correct.sum(), "ood": 300}


def test_rejecting_everything_can_be_cheapest():
    got = at_cost([1.0, 2.0], [False, False], [3.0], alpha=0.5, beta=0.5, reject_cost=0.01)
    assert (got.value, got.feasible, got.estimates["coverage"]) == (math.inf, True, 0.0)
    assert "Accept nothing" in str(got)


def test_free_rejection_without_a_floor_is_refused():
    with pytest.raises(ValueError, match="rejecting every input is free"):
        at_cost([1.0], [True], [0.0], alpha=0.5, beta=0.5)


# What comes back and what is refused


def test_a_report_can_be_read():
    rng = np.random.default_rng(11)
    confidence, correct = rng.random(1500), rng.random(1500) < 0.9
    text = str(at_recall(confidence, correct, 0.95, delta=0.05))
    assert text.startswith("Accept where confidence ≥ 0.0")
    for part in ("With probability at least 95%", "at least 95% of future ID✓", "ID✗", "four times the rows"):
        assert part in " ".join(text.split())
    assert "at most 20% of the accepted ID inputs are errors" in " ".join(
        str(at_risk(confidence, correct, 0.2)).split()
    )
    cost = " ".join(str(at_cost(confidence, correct, confidence / 2, alpha=0.5, beta=0.5, reject_cost=0.2)).split())
    assert "at α = 0.3 (" in cost
    assert max(map(len, text.splitlines())) <= 120


def test_what_is_promised_in_words_is_not_more_than_what_holds():
    confidence, correct = np.arange(3000.0), np.ones(3000, dtype=bool)
    assert "at most 10.1% of the accepted" in at_risk(confidence, correct, 0.1004).guarantee
    assert "at most 7% of the accepted" in at_risk(confidence, correct, 0.07).guarantee
    assert "a risk of at most 10.04% could not" in at_risk(confidence, ~correct, 0.1004).guarantee
    got = at_recall(confidence, correct, 0.9506, delta=0.0496).guarantee
    assert got.startswith("With probability at least 95% ")
    assert "at least 95% of future ID✓" in got
    assert "With probability at least 10% " in at_coverage(confidence, 0.5, delta=0.9).guarantee
    assert "at least 90.2% of the ID rows" in at_coverage(confidence, 0.9029).guarantee
    for share in np.random.default_rng(16).random(300):
        for told, sign in ((words.percent_below(share), -1), (words.percent_above(share), 1)):
            assert 0 <= sign * (float(told.rstrip("%")) / 100 - share) <= 0.001
    assert [words.percent_below(share) for share in (0.0, 0.29, 0.99996, 1.0)] == ["0%", "29%", "99.996%", "100%"]
    assert [words.percent_above(share) for share in (0.0, 0.29, 0.999961, 1.0)] == ["0%", "29%", "99.9961%", "100%"]


def test_a_promise_that_takes_less_than_the_plain_threshold_speaks_of_no_margin():
    rows = np.arange(1000.0)
    weak = at_coverage(rows, 0.9, delta=0.8)
    assert weak.value > weak.estimates["plain_threshold"]
    assert "margin" not in weak.advice
    assert "fewer than the plain threshold" in weak.advice
    assert "without a promise" not in weak.guarantee
    same = at_coverage(np.ones(1000), 0.9, delta=0.05)
    assert same.value == same.estimates["plain_threshold"]
    assert "as the plain threshold does" in same.advice
    assert "halve that margin" in at_coverage(rows, 0.9, delta=0.05).advice


def test_a_given_threshold_above_all_is_not_infeasible():
    for feasible in (True, False):  # it promises nothing, so there is nothing that it fails to keep
        text = str(Threshold(math.inf, "given", None, None, feasible, {}, {}, {}, "none", ""))
        assert text.startswith("Accept nothing")
        assert "Infeasible" not in text


def test_arrays_of_any_kind_and_copies_give_the_same():
    rng = np.random.default_rng(12)
    confidence, correct = rng.random(400).astype(np.float32), rng.random(400) < 0.9
    for rule in (lambda c, k: at_recall(c, k, 0.9, delta=0.05), lambda c, k: at_risk(c, k, 0.2)):
        want = rule(confidence, correct)
        assert rule(torch.tensor(confidence), torch.tensor(correct)) == want
        assert rule(confidence.tolist(), correct.astype(int).tolist()) == want
        assert copy.deepcopy(want) == want
        order = rng.permutation(400)
        assert rule(confidence[order], correct[order]) == want
        assert json.loads(json.dumps(want.to_dict(), allow_nan=False)) == want.to_dict()
        assert Threshold.from_dict(json.loads(json.dumps(want.to_dict()))) == want


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"value": None}, "`value` of a stored threshold must be a number"),
        ({"value": "high"}, "`value` of a stored threshold must be a number"),
        ({"rule": "luck"}, "`rule` of a stored threshold must be one of recall"),
        ({"delta": 1.5}, "`delta` of a stored threshold must be between 0 and 1"),
        ({"feasible": 1}, "`feasible` of a stored threshold must be true or false"),
        ({"feasible": False}, "must accept nothing"),
        ({"sizes": {"correct": 1.5}}, "`sizes` of a stored threshold must be counts"),
        ({"bounds": [0.9]}, "`bounds` of a stored threshold must be a map of names"),
        ({"estimates": {"recall": True}}, "must be a map of names to numbers"),
        ({"guarantee": 3}, "must be a text"),
        ({"extra": 3}, "exactly the fields"),
    ],
)
def test_a_changed_threshold_is_refused(change, said):
    kept = at_recall(np.arange(100.0), np.ones(100), 0.9, delta=0.05).to_dict()
    with pytest.raises(ValueError, match=said):
        Threshold.from_dict({**kept, **change})


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: at_recall([], [], 0.9), "at least one confidence"),
        (lambda: at_recall([0.1], [False], 0.9), "at least one True"),
        (lambda: at_recall([0.1, math.nan], [True, True], 0.9), "must not hold NaN"),
        (lambda: at_recall([0.1], [True, True], 0.9), "as many rows"),
        (lambda: at_recall([0.1], [True], 95), r"must lie in \[0, 1\]"),
        (lambda: at_recall([0.1], [True], 0), "above 0"),
        (lambda: at_recall([0.1], [True], 0.5, delta=0), "strictly between 0 and 1"),
        (lambda: at_coverage([], 0.9), "at least one confidence"),
        (lambda: at_coverage([[0.1]], 0.9), "must be 1-D"),
        (lambda: at_risk([0.1], [True], 0), "strictly between 0 and 1"),
        (lambda: at_risk([0.1], [True], 0.1, delta=1), "strictly between 0 and 1"),
        (lambda: at_cost([0.1], [True], None, alpha=0.5, beta=0.5, reject_cost=1), "`ood` must hold the confidences"),
        (lambda: at_recall([0.1], [True], 0.9, tolerance=-1), r"`tolerance` must lie in \[0, 1\]"),
        (
            lambda: at_cost([0.1], [True], [], alpha=0.5, beta=0.5, reject_cost=1),
            "`ood` must hold at least one confidence; got none. Pass those of some rows",
        ),
        (lambda: at_cost([0.1], [True], [0.2], alpha=0.5, beta=0.5, reject_cost=-1), "at least 0"),
        (lambda: at_cost([0.1], [False], [0.2], alpha=0.5, beta=0.5, recall=0.9), "at least one True"),
        (lambda: at_cost([0.1], [True], [0.2], alpha=2, beta=0.5, recall=0.9), "`alpha` must lie"),
    ],
)
def test_what_cannot_be_is_refused(call, said):
    with pytest.raises(ValueError, match=said):
        call()


# Confidences that change from run to run


@pytest.mark.parametrize("rule", ["recall", "coverage", "risk"])
@pytest.mark.slow
def test_a_promise_holds_for_inputs_that_repeat_however_their_confidences_change(rule):
    rng = np.random.default_rng(17)
    prototypes, rates = np.array([3.1, 1.7, 0.4, -0.2, -0.9, -2.0]), np.array([0, 0.01, 0.02, 0.05, 0.4, 0.5])
    broken, delta = [], 0.1
    for _ in range(10 if rule == "risk" else 200):
        which = rng.integers(0, 6, 400)
        right = rng.random(400) >= rates[which]
        confidence = prototypes[which] * (1 + 1e-7 * rng.uniform(-1, 1, 400))
        if rule == "recall":
            t = at_recall(confidence, right, 0.8, delta=delta, tolerance=1e-6)
        elif rule == "coverage":
            t = at_coverage(confidence, 0.8, delta=delta, tolerance=1e-6)
        else:
            t = at_risk(confidence, right, 0.05, delta=delta, tolerance=1e-6)
        low, high = (prototypes * (1 + sign * 1e-7 * np.sign(prototypes)) >= t.value for sign in (-1, 1))
        assert np.array_equal(low, high)  # decided alike wherever they are scored
        if rule == "risk":
            broken.append(bool(low.any()) and rates[low].mean() > 0.05)
        else:
            weight = 1 - rates if rule == "recall" else np.ones(6)
            broken.append(weight[low].sum() / weight.sum() < 0.8)
    assert broken_at_most(np.array(broken), delta)


def test_a_promised_risk_holds_where_right_rows_sink_and_errors_rise():
    confidence = np.repeat([2.0, 1.0, 0.9999, 0.9997, 0.99955], [16000, 100, 3500, 400, 5000])
    correct = np.arange(25_000) < 19_600
    found = at_risk(confidence, correct, 0.023, delta=0.05, tolerance=1e-4)
    change = found.margin * np.where(correct, -1, 1)
    for moved in (confidence, confidence + change, confidence - change):
        accepted = moved >= found.value
        assert np.mean(~correct[accepted]) <= 0.023


@pytest.mark.parametrize("share", [0.0, 0.02, 0.3])
def test_errors_are_raised_to_where_a_threshold_may_find_them(share):
    rng = np.random.default_rng(3)
    confidence, correct = rng.normal(size=300).round(1), rng.random(300) < 0.7
    rows = count_rows(confidence, correct)
    values, accepted, wrong = rows.with_errors_raised(share)
    for value, both, errors in zip(values, accepted, wrong, strict=True):
        low = value - share * max(abs(value), rows.scale)
        assert errors == np.sum(~correct & (confidence >= low - 1e-12))
        assert both == errors + np.sum(correct & (confidence >= value))


def test_a_tolerance_is_a_share_of_the_confidence_or_of_the_median_one():
    confidence, correct = np.array([-8.0, -4.0, -2.0, -1.0, 0.0]), np.ones(5)
    found = [at_recall(confidence, correct, share, tolerance=0.01) for share in (0.2, 0.6, 1.0)]
    assert [t.value for t in found] == [-0.02, -2.02, -8.08]
    assert [t.margin for t in found] == [0.02, 0.02, 0.08]
    assert "0.08 below the row that sets it" in str(found[-1])
    near = at_recall([1.0, 0.995, 0.5], np.ones(3), 0.3, tolerance=0.01)
    assert near.estimates["recall"] == pytest.approx(2 / 3)  # what is accepted at the value that is told
    cost = at_cost([1.0, 0.995, 0.5], [1, 0, 0], [0.0], alpha=0.9, beta=0.5, reject_cost=0.3, tolerance=0.01)
    assert cost.value == pytest.approx(0.99)
    assert (cost.estimates["coverage"], cost.estimates["risk"]) == (pytest.approx(2 / 3), 0.5)


def test_a_threshold_without_a_margin_is_read_from_older_files():
    kept = at_recall(np.arange(100.0), np.ones(100), 0.9, delta=0.05, tolerance=1e-3)
    assert Threshold.from_dict(json.loads(json.dumps(kept.to_dict()))) == kept
    older = {name: value for name, value in kept.to_dict().items() if name != "margin"}
    assert Threshold.from_dict(older).margin == 0
    with pytest.raises(ValueError, match="`margin` of a stored threshold must be at least 0"):
        Threshold.from_dict({**older, "margin": -1})
