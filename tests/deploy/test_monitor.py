"""The monitor's alarm and bounds: their error rates by simulation, their power, and what they do with odd input."""

import dataclasses
import json
import math

import numpy as np
import pytest
import torch
from scipy import integrate, stats

from sirc._utils.files import write_safetensors
from sirc.deploy.monitor import Monitor, monitor
from sirc.deploy.monitor.betting import Bets, OodShare, rate_interval
from sirc.deploy.threshold import at_cost, at_coverage, at_recall, at_risk
from sirc.errors import StoreError

REPEATS = 1000


def rarely(events, delta):
    """A share of at most δ, but for three binomial standard errors of the simulation."""
    return np.mean(events) <= delta + 3 * math.sqrt(delta * (1 - delta) / len(events))


def mixed(rng, size, share, shift=3.0):
    """Confidences of which a share is OOD, lower by `shift`."""
    return rng.normal(size=size) - shift * (rng.random(size) < share)


# The test of the acceptance rate


def test_the_capital_is_that_of_the_bets():
    rng = np.random.default_rng(0)
    low, high = 0.7, 0.8
    accepts = rng.random(50) < 0.4
    bets = Bets(low, high)
    bets.update(accepts, math.inf)
    ways = [0.97, 0.85, *(2.0 ** (-j / 2) for j in range(1, 29))]
    total = 0.0
    for way in ways:
        up, down = high + way * (1 - high), low - way * low
        for q, p in ((up, high), (down, low)):
            total += math.prod(q / p if accepted else (1 - q) / (1 - p) for accepted in accepts)
    assert math.exp(bets.log_capital) == pytest.approx(total / len(ways) / 2, rel=1e-9)


@pytest.mark.parametrize("rate", [0.7, 0.8])
def test_the_capital_does_not_grow_on_average(rate):
    bets = Bets(0.7, 0.8)
    n = 12
    counts = np.arange(n + 1)
    mean = stats.binom.pmf(counts, n, rate) @ np.exp(bets._log_capital(counts, n - counts))
    assert mean <= 1 + 1e-12
    assert mean > 0.5


@pytest.mark.slow
def test_a_false_alarm_at_any_time_is_rare():
    rng = np.random.default_rng(1)
    delta, alarms, tight = 0.2, [], []
    for _ in range(REPEATS):
        calibration = rng.random(150)
        # The promise comes from the same rows, and production is as the calibration.
        watch = Monitor(calibration, at_coverage(calibration, 0.8), delta)
        alarms.append(watch.update(rng.random(1000)))
        bets = Bets(0.8, 0.8)  # a promise that is known exactly
        tight.append(bets.update(rng.random(1000) < 0.8, math.log(1 / delta)) is not None)
    assert rarely(alarms, delta)
    assert rarely(tight, delta)
    assert np.mean(tight) >= delta / 10


@pytest.mark.slow
def test_a_false_alarm_is_rare_where_the_least_cost_was_searched_on_the_same_rows():
    rng = np.random.default_rng(10)
    delta, n, missed, alarms = 0.05, 500, [], []
    correct, ood = np.ones(n, dtype=bool), (np.arange(5000) + 0.5) / 5000
    for _ in range(REPEATS // 2):
        calibration = rng.random(n)
        # Accepting costs and saves the same at every threshold, so that the least cost is a matter of luck alone.
        found = at_cost(calibration, correct, ood, alpha=0.5, beta=0.5, reject_cost=0.25)
        watch = Monitor(calibration, found, delta)
        low, high = watch.report().promised_interval
        rate = 1 - min(1.0, found.value)
        missed.append(not low <= rate <= high)
        # Production far ahead, at its true rate.
        alarms.append(
            watch._bets._log_capital(*(np.array([round(2e5 * p)]) for p in (rate, 1 - rate)))[0] > math.log(2 / delta)
        )
    assert rarely(missed, delta / 2)
    assert rarely(alarms, delta / 2)


def test_the_limits_for_a_searched_threshold_hold_at_all_thresholds():
    calibration = np.arange(100.0)
    found = at_cost(calibration, np.arange(100) % 9 > 0, calibration - 50, alpha=0.8, beta=0.5, reject_cost=0.1)
    got, given = (Monitor(calibration, t, 0.1).report() for t in (found, found.value))
    reach = math.sqrt(math.log(4 / 0.1) / 200)
    want = max(0.0, got.promised - reach), min(1.0, got.promised + reach)
    assert got.promised_interval == pytest.approx(want, rel=1e-12)
    assert given.promised_interval[1] - given.promised_interval[0] < want[1] - want[0]


def test_a_search_that_ends_at_accepting_nothing_can_be_watched():
    found = at_cost([1.0, 2.0], [False, False], [3.0], alpha=0.5, beta=0.5, reject_cost=0.01)
    got = monitor(np.zeros(1000), np.zeros(100), found)
    assert (got.promised, got.promised_interval[0], got.alarm) == (0.0, 0.0, False)


@pytest.mark.slow
@pytest.mark.parametrize(("rate", "most"), [(0.6, 120), (0.75, 600), (0.99, 500)])
def test_a_changed_rate_raises_the_alarm_soon(rate, most):
    rng = np.random.default_rng(2)
    firsts = []
    for _ in range(100):
        calibration = rng.random(2000)
        got = monitor(calibration, np.where(rng.random(3000) < rate, 1.0, 0.0), at_coverage(calibration, 0.9))
        assert got.alarm
        firsts.append(got.first_alarm)
    assert np.median(firsts) < most


def test_the_alarm_is_where_the_capital_first_reaches_its_bound():
    rng = np.random.default_rng(3)
    calibration, production = rng.random(500), rng.random(2000) * 0.7
    got = monitor(calibration, production, 0.2)
    upto, before = (monitor(calibration, production[:end], 0.2) for end in (got.first_alarm + 1, got.first_alarm))
    assert got.alarm
    assert upto.alarm
    assert upto.e_value >= 40
    assert upto.p_value <= 0.025
    assert not before.alarm
    assert before.first_alarm is None


def test_an_alarm_stays_when_the_evidence_fades():
    watch = Monitor(np.linspace(0, 1, 1000), 0.2)
    assert watch.update(np.zeros(50))
    first = watch.report()
    assert watch.update(np.tile([1.0, 1.0, 1.0, 1.0, 0.0], 2000))
    last = watch.report()
    assert last.e_value < 1 < first.e_value
    assert (last.alarm, last.first_alarm, last.p_value) == (True, first.first_alarm, first.p_value)


@pytest.fixture(scope="module")
def intervals():
    """δ, and the lower and upper ends for k of t accepted, in row t − 1: at some t alone, as that takes seconds."""
    delta, n = 0.1, 300
    low, high = np.zeros((n, n + 1)), np.ones((n, n + 1))
    for t in range(1, n + 1):
        if t < 30 or t % 10 == 0:
            low[t - 1, : t + 1], high[t - 1, : t + 1] = zip(
                *(rate_interval(k, t, delta) for k in range(t + 1)), strict=True
            )
    return delta, low, high


@pytest.mark.slow
@pytest.mark.parametrize("rate", [0.03, 0.5, 0.9])
def test_the_interval_holds_the_rate_at_all_times(intervals, rate):
    rng = np.random.default_rng(4)
    delta, low, high = intervals
    accepted = np.cumsum(rng.random((REPEATS, len(low))) < rate, axis=1)
    at = np.arange(len(low))[None, :]
    missed = (low[at, accepted] > rate).any(axis=1) | (high[at, accepted] < rate).any(axis=1)
    assert rarely(missed, delta)
    assert np.mean(missed) >= delta / 20


def test_the_interval_is_where_jeffreys_bettor_has_not_won():
    low, high = rate_interval(30, 40, 0.05)
    for p in (low, high):
        mixture = integrate.quad(lambda q: stats.beta.pdf(q, 0.5, 0.5) * q**30 * (1 - q) ** 10, 0, 1)[0]
        assert mixture / (p**30 * (1 - p) ** 10) == pytest.approx(20, rel=1e-6)
    assert rate_interval(0, 10, 0.05)[0] == 0.0
    assert rate_interval(10, 10, 0.05)[1] == 1.0


# The share of OOD input


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.0, 0.1])
@pytest.mark.parametrize("decimals", [None, 0])
def test_the_bound_on_the_ood_share_is_rarely_too_high(share, decimals):
    rng = np.random.default_rng(5)
    delta, bounds = 0.2, []
    for _ in range(REPEATS):
        rows = [rng.normal(size=200), mixed(rng, 800, share, 20.0)]
        calibration, production = rows if decimals is None else (values.round(decimals) for values in rows)
        share_seen = OodShare(calibration, delta)
        share_seen.update(production)
        bounds.append(share_seen.bound(len(production)))
    assert rarely(np.array(bounds) > share, delta)
    assert min(bounds) >= 0
    if share:
        assert np.mean(bounds) > 0.04


@pytest.mark.slow
@pytest.mark.parametrize(("share", "shift", "least"), [(0.5, 3.0, 0.38), (0.2, 3.0, 0.12), (0.05, 4.0, 0.015)])
def test_the_bound_on_the_ood_share_is_of_use(share, shift, least):
    rng = np.random.default_rng(6)
    bounds = [monitor(rng.normal(size=2000), mixed(rng, 5000, share, shift), -2.0).ood_share for _ in range(30)]
    assert np.mean(bounds) > least
    assert max(bounds) < share


def test_input_more_confident_than_id_shows_no_ood():
    rng = np.random.default_rng(7)
    assert monitor(rng.normal(size=1000), rng.normal(1, 1, 5000), 0.0).ood_share == 0.0


# Inputs that repeat

TOLERANCE = 1e-4
RULES = {
    "coverage": lambda rows, rng: at_coverage(rows, 0.8, tolerance=TOLERANCE),
    "recall": lambda rows, rng: at_recall(rows, rng.random(300) < 0.8, 0.9, delta=0.05, tolerance=TOLERANCE),
    "cost": lambda rows, rng: at_cost(
        rows, rng.random(300) < 0.8, rows[:50] - 0.5, alpha=0.8, beta=0.5, reject_cost=0.1, tolerance=TOLERANCE
    ),
}
MOVES = {  # shares by which 500 confidences change; `which` has the prototype, of six, that each input is
    "in the last digits": lambda which, rng: 1e-8 * rng.uniform(-1, 1, 500),
    "all down in the last digits": lambda which, rng: np.full(500, -1e-8),
    "by the margin, each prototype in a way of its own": lambda which, rng: TOLERANCE * rng.choice([-1, 1], 6)[which],
    "all down by the margin": lambda which, rng: np.full(500, -TOLERANCE),
    "all up by the margin": lambda which, rng: np.full(500, TOLERANCE),
}


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("apart", [0.7, 1.5e-4])  # from one prototype to the next: far, and within what both may change
def test_confidences_of_repeated_inputs_that_change_a_little_are_no_drift(rule, apart, attack):
    rng = np.random.default_rng(11)
    delta, alarms, claims = 0.05, [], []
    for repeat in range(attack.trials(200)):
        levels, weights = 2 + apart * np.arange(6), rng.dirichlet(np.full(6, 2.0))
        calibration, which = levels[rng.choice(6, 300, p=weights)], rng.choice(6, 500, p=weights)
        watch = Monitor(calibration, RULES[rule](calibration, rng), delta)
        move = list(MOVES.values())[repeat % len(MOVES)](which, rng)
        size = np.maximum(levels[which], np.median(calibration))  # of which a change is a share
        alarms.append(watch.update(levels[which] + move * size))
        claims.append(watch.report().ood_share > 0)
    assert rarely(alarms, delta)
    assert rarely(claims, delta)
    attack.tried("monitors of inputs that repeat", len(alarms), "false alarms at most as often as δ says")


def test_a_margin_widens_the_promised_interval_by_the_rows_within_it():
    rows = np.repeat([1.0, 2.0, 2.00005, 2.0003], 25)
    found = at_coverage(rows, 0.5, tolerance=TOLERANCE)
    assert found.value == pytest.approx(2.00005 * (1 - TOLERANCE))  # accepts the rows at 2 as they are now
    got = Monitor(rows, found, 0.1).report()
    assert got.promised == 0.75
    least, most = (stats.binomtest(count, 100).proportion_ci(0.95, "exact") for count in (50, 75))
    assert got.promised_interval == pytest.approx((least.low, most.high), rel=1e-9)


def test_a_real_shift_beyond_the_margin_still_shows():
    rng = np.random.default_rng(12)
    rows = rng.choice([1.0, 2.0, 3.0], 500)
    watch = Monitor(rows, at_coverage(rows, 0.6, tolerance=TOLERANCE))
    assert watch.update(rng.choice([1.0, 2.0, 3.0], 500) - 0.001)
    assert watch.report().ood_share > 0.2


# Step by step, and odd input


def test_in_pieces_it_is_the_same_as_at_once():
    rng = np.random.default_rng(8)
    calibration, production = rng.normal(size=700), mixed(rng, 9000, 0.02)
    watch = Monitor(calibration, -1.0, 0.1)
    at = 0
    while at < len(production):
        size = int(rng.integers(0, 3000))
        watch.update(torch.tensor(production[at : at + size]))
        at += size
    assert watch.report() == monitor(calibration, production, -1.0, delta=0.1)


def test_memory_does_not_grow_with_the_input():
    watch = Monitor(np.linspace(0, 1, 100_000), 0.5)

    def held():
        parts = [*vars(watch).values(), *vars(watch._bets).values(), *vars(watch._share).values()]
        return sum(part.size for part in parts if isinstance(part, np.ndarray)) + len(parts)

    before = held()
    for _ in range(3):
        watch.update(np.linspace(0, 1, 50_000))
    assert held() == before < 200


def test_before_the_first_input_nothing_is_claimed():
    got = Monitor([0.1, 0.9], 0.5).report()
    assert math.isnan(got.rate)
    assert (got.alarm, got.interval, got.e_value, got.p_value, got.ood_share) == (False, (0.0, 1.0), 1.0, 1.0, 0.0)
    assert "No production input yet; 50% accepted was promised" in str(got)


@pytest.mark.parametrize(("threshold", "rate"), [(-math.inf, 1.0), (math.inf, 0.0), (0.5, 0.5)])
def test_one_row_and_thresholds_at_the_ends_are_fine(threshold, rate):
    got = monitor([0.7], [0.7, 0.1], threshold)
    assert got.rate == rate
    assert not got.alarm
    assert got.sizes == {"calibration": 1, "production": 2}


def test_a_promise_to_accept_all_is_broken_by_rejections():
    got = monitor(np.ones(1000), np.append(np.ones(200), np.zeros(100)), 0.5)
    assert got.alarm
    assert got.first_alarm < 215
    assert got.promised_interval[1] == 1.0


def test_infinite_confidences_are_counted():
    calibration = np.append(np.full(500, math.inf), np.zeros(500))
    got = monitor(calibration, np.tile([-math.inf, math.inf], 400), 1.0)
    assert got.rate == 0.5
    assert not got.alarm
    assert 0.35 < got.ood_share <= 0.5


def test_the_promised_interval_is_clopper_and_pearson_s():
    got = monitor(np.arange(100), [5.0], 20.0, delta=0.1)
    assert got.promised == 0.8
    want = stats.binomtest(80, 100).proportion_ci(0.95, "exact")
    assert got.promised_interval == pytest.approx((want.low, want.high), rel=1e-9)


def test_the_report_is_in_words():
    rng = np.random.default_rng(9)
    calibration = rng.normal(size=1000)
    quiet = " ".join(str(monitor(calibration, rng.normal(size=1000), -1.0)).split())
    assert quiet.startswith("No alarm")
    assert "none could be shown" in quiet
    loud = " ".join(str(monitor(calibration, mixed(rng, 1000, 0.3), -1.0)).split())
    assert loud.startswith("ALARM at input")
    assert "fewer are accepted" in loud
    assert "of the input is not like" in loud
    assert "1,000 production inputs against 1,000 calibration rows" in loud


def test_limits_are_told_on_the_safe_side():
    got = dataclasses.replace(
        monitor(np.arange(1000.0), np.arange(1000.0), 100.0),
        interval=(0.87651, 0.91249), promised_interval=(0.12389, 0.45612), ood_share=0.20079,
    )  # fmt: skip
    text = " ".join(str(got).split())
    for part in ("(87.6% to 91.3% at any time)", "(12.3% to 45.7%)", "with probability 95% at least 20% of the input"):
        assert part in text


def test_what_cannot_be_is_refused():
    with pytest.raises(ValueError, match="`calibration` must hold at least one"):
        monitor([], [0.1], 0.5)
    with pytest.raises(ValueError, match="`production` must hold at least one"):
        monitor([0.1], [], 0.5)
    with pytest.raises(ValueError, match="`confidences` must not hold NaN"):
        Monitor([0.1], 0.5).update([math.nan])
    with pytest.raises(ValueError, match="strictly between 0 and 1"):
        Monitor([0.1], 0.5, 1)
    with pytest.raises(ValueError, match="Pass one that is feasible"):
        Monitor([math.inf], at_risk(np.full(100, math.inf), np.zeros(100), 0.1))


# The file that a monitor goes on from


@pytest.mark.parametrize("rule", ["coverage", "cost"])
def test_a_monitor_goes_on_from_its_file(tmp_path, rule):
    rng = np.random.default_rng(0)
    rows, ood = rng.normal(size=500), rng.normal(-2, 1, size=200)
    limit = at_coverage(rows, 0.9, delta=0.1)
    if rule == "cost":
        limit = at_cost(rows, rng.random(500) < 0.9, ood, alpha=0.8, beta=0.5, reject_cost=0.1)
    production = mixed(rng, 3000, 0.3)
    for stop in (0, 7, 1500):
        first = Monitor(rows, limit, 0.1)
        first.update(production[:stop])
        first.save(tmp_path / "m.safetensors", overwrite=True)
        again = Monitor.load(tmp_path / "m.safetensors", rng.permutation(rows), limit)
        assert again.inputs == stop
        assert str(again.report()) == str(first.report())
        again.update(production[stop:])
        assert again.report() == monitor(rows, production, limit, delta=0.1)
    assert again.report().alarm


def test_the_file_of_another_calibration_is_refused(tmp_path):
    rng = np.random.default_rng(0)
    rows, path = rng.normal(size=200), tmp_path / "m.safetensors"
    limit = at_coverage(rows, 0.9, delta=0.1)
    Monitor(rows, limit).save(path)
    with pytest.raises(FileExistsError, match="overwrite=True"):
        Monitor(rows, limit).save(path)
    for others in ((rows + 1e-9, limit), (rows[1:], limit), (rows, limit.value + 0.1), (rows, at_coverage(rows, 0.8))):
        with pytest.raises(StoreError, match=r"m\.safetensors' must belong to this calibration and threshold"):
            Monitor.load(path, *others)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(StoreError, match="cannot be trusted"):
        Monitor.load(path, rows, limit)
    write_safetensors(path, {}, {"sirc": json.dumps({"format": "sirc-scorer"})}, overwrite=True)
    with pytest.raises(StoreError, match="is not a saved monitor"):
        Monitor.load(path, rows, limit)
    _, about = Monitor(rows, limit).contents()
    write_safetensors(path, {}, about, overwrite=True)
    with pytest.raises(StoreError, match="is not whole"):
        Monitor.load(path, rows, limit)
