"""Error bars of an evaluation: against the bootstrap, at the ends of the range, and where they fall back on it."""

import warnings
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from threading import Barrier

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats

import sirc
from sirc.evaluation import error_bars
from sirc.metrics import Placed, find_metric, influence, largest_risk, lower_is_better

SMOOTH = ("auroc", "aurr", "aurc", "augrc")
AT_RECALL = ("fpr@95", "risk@95")


def made(sizes, *, decimals=None, seed=0, pool="samples", shift=0.0, scores=2, **settings):
    """Scores of ID✓, ID✗ and OOD sets around 1.5, 0.3 and 0; those after the first have noise of their own."""
    rng = np.random.default_rng(seed)
    right, wrong, *ood = sizes
    groups = [rng.normal(m, 1, n) for n, m in zip(sizes, (1.5 + shift, 0.3, 0.0, -0.4), strict=False)]
    correct = np.repeat([True, False], [right, wrong])

    def noisy(number, values):
        values = values if not number else 0.8 * values + 0.5 * rng.normal(size=len(values))
        return values if decimals is None else values.round(decimals)

    inside = np.concatenate(groups[:2])
    given = {f"s{i}": (noisy(i, inside), correct) for i in range(scores)}
    sets = {f"set {k}": {f"s{i}": noisy(i, groups[2 + k]) for i in range(scores)} for k in range(len(ood))}
    return sirc.evaluate(given, ood=sets, pool=pool, **settings)


@pytest.mark.slow
def test_standard_errors_are_those_of_the_bootstrap():
    ev = made((1000, 300, 500, 300), pool="datasets", decimals=1, alpha=0.6, beta=0.4)
    keys = ["score", "negative", "metric"]
    for ours, drawn in (
        (ev.intervals(), ev.intervals(method="bootstrap", draws=6000)),
        (ev.compare("s0"), ev.compare("s0", method="bootstrap", draws=6000)),
    ):
        both = ours.merge(drawn, on=keys, suffixes=("", "_drawn"))
        assert len(both) == len(drawn)
        assert set(both["method_drawn"]) == {"bootstrap"}
        ratio = both["se"] / both["se_drawn"]
        smooth = both["metric"].isin(SMOOTH)
        assert set(both["method"][smooth]) == {"analytic"}
        assert ratio[smooth].between(0.95, 1.05).all()
        assert ratio[~smooth].between(0.8, 1.2).all()
        if "wins" in both:
            assert (both["wins"] - both["wins_drawn"]).abs().max() < 0.1


def test_standard_errors_are_near_those_of_a_small_bootstrap():
    ev = made((300, 120, 200), scores=1)
    ours, drawn = ev.intervals(negatives=["pooled"]), ev.intervals(method="bootstrap", draws=300, negatives=["pooled"])
    ratio = (ours["se"] / drawn["se"])[ours["metric"].isin(SMOOTH)]
    assert ratio.between(0.8, 1.2).all()


def influences(groups):
    """On the smooth metrics of a mixture at α = β = ½."""
    right, wrong, ood = (torch.as_tensor(values) for values in groups)
    metrics, half = [find_metric(name) for name in SMOOTH], torch.tensor([0.5], dtype=torch.float64)
    return Placed(right, wrong, {"x": ood}, equal_sets=False).influences(metrics, "ood", 0.95, 0.5, half)


def spread_of_difference(own, less):
    return influence.difference_spread(
        own, less, (np.abs(influence.skewness(own)) + np.abs(influence.skewness(less))) / 2
    )


def perfect_values(p):
    """The smooth metrics of a perfect ranking of many samples at α = β = ½, AUROC at its other end."""
    bad = (1 - p) / 2 + 1 / 2
    return np.array([0.0, 0.0, (bad + (1 - bad) * np.log(1 - bad)) / 2, bad**2 / 4])


def normal(rng, sizes, repeats, means=(1.5, 0.3, 0.0)):
    """Scores of the groups in each repeat, (repeats, n) each."""
    return [rng.normal(mean, 1, (repeats, n)) for mean, n in zip(means, sizes, strict=True)]


def plain_values(groups, *, trapezoids=False):
    """The smooth metrics of each repeat at α = β = ½ by counts over all samples, sorted, of which none are equal.

    With `trapezoids`, AURC is without the bias of its steps.
    """
    sizes = [one.shape[1] for one in groups]
    order = np.argsort(-np.concatenate(groups, axis=1), axis=1)
    ends = np.cumsum([0, *sizes])
    c, x, o = (((order >= a) & (order < b)).cumsum(1) / (b - a) for a, b in pairwise(ends))
    p = sizes[0] / (sizes[0] + sizes[1])
    covered, loss = 0.5 * (p * c + (1 - p) * x) + 0.5 * o, 0.25 * ((1 - p) * x + o)

    def steps(share):
        return np.diff(share, axis=1, prepend=0)

    before, risk = loss - steps(loss), loss / covered
    fall = np.diff(risk, axis=1, prepend=risk[:, :1]) / 2 if trapezoids else 0
    return np.stack(
        [
            (steps(o) * c).sum(1),
            (steps(c) * risk).sum(1),
            (steps(covered) * (risk - fall)).sum(1),
            (steps(covered) * (loss + before) / 2).sum(1),
        ]
    )


@pytest.mark.slow
def test_variances_are_those_of_metrics_over_many_samples():
    """A wrong derivative, scale or stratum shows here: 3,000 samples against the mean of 80 analytic variances."""
    rng, sizes = np.random.default_rng(3), (150, 60, 100)
    groups = normal(rng, sizes, 3000)
    noisy = [0.8 * one + 0.6 * rng.normal(size=one.shape) for one in groups]
    own, other = plain_values(groups), plain_values(noisy)
    one = [sirc.Ranking(*(part[0] for part in groups)).aurr(0.5, 0.5), own[1, 0]]
    assert one[0] == pytest.approx(one[1], abs=1e-12)
    found = np.zeros((2, len(SMOOTH)))
    for repeat in range(80):
        first, second = (influences([part[repeat] for part in parts]) for parts in (groups, noisy))
        found += np.stack([influence.spread(first).variance, spread_of_difference(second, first).variance]) / 80
    assert found[0] == pytest.approx(own.var(1), rel=0.1)
    assert found[1] == pytest.approx((other - own).var(1), rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sizes", "means", "others"),
    [((40, 12, 30), (1.5, 0.3, 0.0), (1.2, 0.2, -0.3)), ((400, 20, 100), (4.0, 1.5, 0.0), (3.5, 1.2, -0.3))],
    ids=["few", "far apart"],
)
def test_intervals_hold_the_truth_as_often_as_they_say(sizes, means, others):
    """100 samples each; `benchmarks/coverage.py` has 2,000, with ties, sets and metrics at a recall."""
    repeats, rng = 100, np.random.default_rng(5)
    groups = normal(rng, sizes, repeats, (0.0, 0.0, 0.0))
    noisy = [0.8 * one + 0.6 * rng.normal(size=one.shape) + mean for one, mean in zip(groups, others, strict=True)]
    groups = [one + mean for one, mean in zip(groups, means, strict=True)]
    even = [stats.norm.ppf((np.arange(400 * n) + 0.5) / (400 * n))[None] for n in sizes]
    truth, beside = (
        plain_values([one + mean for one, mean in zip(even, shifts, strict=True)])[:, 0] for shifts in (means, others)
    )
    own, other = plain_values(groups), plain_values(noisy)
    p = sizes[0] / sum(sizes[:2])
    least, most = perfect_values(p), np.array([1.0, *(largest_risk(p, 0.5, 0.5),) * 3])
    held, smooth = np.zeros((2, len(SMOOTH))), plain_values(groups, trapezoids=True)
    for repeat in range(repeats):
        first, second = (influences([part[repeat] for part in parts]) for parts in (groups, noisy))
        low, high = influence.area_interval(smooth[:, repeat], influence.spread(first), least, most, 0.95)
        held[0] += (low <= truth) & (truth <= high)
        low, high = influence.difference_interval(
            other[:, repeat] - own[:, repeat], spread_of_difference(second, first), 0.95
        )
        held[1] += (low <= beside - truth) & (beside - truth <= high)
    assert (held >= 90).all(), held
    assert (held.mean(1) < 99).all(), held


def test_the_bar_of_an_aurc_reaches_down_to_that_of_many_samples():
    """Few samples that are ranked well have an AURC above that of many, and hardly a spread."""
    rng, sizes = np.random.default_rng(2), (400, 20, 60)
    even = [stats.norm.ppf((np.arange(400 * n) + 0.5) / (400 * n)) for n in sizes]
    truth = sirc.Ranking(even[0] + 5, even[1] + 1.5, even[2]).aurc(0.5, 0.5)
    for _ in range(10):
        right, wrong, ood = (one[0] for one in normal(rng, sizes, 1, (5, 1.5, 0)))
        given = {"s": (np.append(right, wrong), np.arange(420) < 400)}
        row = sirc.evaluate(given, ood={"x": {"s": ood}}).intervals(negatives=["x"]).set_index("metric").loc["aurc"]
        assert row.low <= truth <= row.high


def test_an_end_allows_for_the_sample_that_matters_most_and_was_not_drawn():
    """Of 20 errors far below ID✓ the highest decides; a sample that lacks it must still hold the AUROC of many."""
    truth = stats.norm.cdf(3 / 2**0.5)
    right = 4.5 + stats.norm.ppf((np.arange(1980) + 0.5) / 1980)
    wrong = 1.5 + stats.norm.ppf((np.arange(20) + 0.5) / 20).clip(max=1.2)
    given = {"s": (np.append(right, wrong), np.arange(2000) < 1980)}
    row = sirc.evaluate(given).intervals(negatives=["wrong"]).set_index("metric").loc["auroc"]
    assert row.value - truth > 2 * row.se
    assert row.low <= truth <= row.high


@pytest.mark.parametrize("highest", [3.5, -8.0])
def test_a_group_of_very_few_samples_that_lies_far_off_is_warned_of(highest):
    """Whether or not the one that matters most was drawn."""
    right, wrong = np.linspace(2, 6, 300), np.append(np.linspace(-9, 2.5, 7), highest)
    given = {"s": (np.append(right, wrong), np.arange(308) < 300)}
    with pytest.warns(sirc.errors.DataWarning, match="rest on a group of 8 samples that lies far from ID✓"):
        table = sirc.evaluate(given).intervals(negatives=["wrong"]).set_index("metric")
    row = table.loc["auroc"]
    assert row.value - row.low > 3 * row.se
    assert row.high <= 1


def test_few_samples_that_lie_near_are_not_warned_of():
    right, wrong = np.linspace(-2, 2, 300), np.linspace(-2.5, 1.5, 8)
    given = {"s": (np.append(right, wrong), np.arange(308) < 300)}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sirc.evaluate(given).intervals(negatives=["wrong"])


def test_ends_move_little_where_samples_do():
    """No end leaps as the skewness grows past a limit."""
    rng = np.random.default_rng(1)
    groups = [part[0] for part in normal(rng, (300, 20, 50), 1)]
    widths = []
    for shift in np.linspace(0, 3, 61):
        moved = [groups[0], groups[1] - shift, groups[2]]
        value = plain_values([part[None] for part in moved])[:, 0]
        found = influence.spread(influences(moved))
        low, high = influence.area_interval(
            value, found, perfect_values(300 / 320), np.array([1.0, 0.5, 0.5, 0.5]), 0.95
        )
        widths.append((high - low) / np.sqrt(found.variance))
    assert np.max(widths) < 12
    assert np.abs(np.diff(widths, axis=0)).max() < 0.6


def test_two_perfect_scores_differ_by_what_was_not_seen():
    right = np.arange(120) < 100
    first, second = right * 10 + np.linspace(0, 1, 120), right * 10 + np.linspace(1, 0, 120)
    ev = sirc.evaluate({"a": (first, right), "b": (second, right)})
    row = ev.compare("a").set_index("metric")
    for metric in SMOOTH:
        assert row.loc[metric, "difference"] == 0
        assert row.loc[metric, "wins"] == 0.5
        assert row.loc[metric, "high"] == -row.loc[metric, "low"] > 0.001
    alone = ev.intervals().query("score == 'a'").set_index("metric")
    for metric in ("aurr", "aurc", "augrc"):
        assert alone.loc[metric, "high"] - alone.loc[metric, "value"] > 0.005


def test_a_better_score_wins_and_a_copy_neither_wins_nor_loses():
    rng = np.random.default_rng(1)
    right = np.arange(500) < 350
    base = rng.normal(size=500) + right
    outside = rng.normal(size=300)
    changes = {"copy": lambda s, r: np.exp(s) * 3, "better": lambda s, r: s + r, "worse": lambda s, r: s - r}
    given = {"base": (base, right), **{name: (f(base, right), right) for name, f in changes.items()}}
    ood = {"x": {"base": outside, **{name: f(outside, 0.0) for name, f in changes.items()}}}
    table = sirc.evaluate(given, ood=ood).compare("base")
    assert set(table[table["metric"].isin((*SMOOTH, *AT_RECALL))]["method"]) == {"analytic"}
    copy = table[table["score"] == "copy"]
    assert (copy[["difference", "se", "low", "high"]].abs() < 1e-12).all(axis=None)
    assert (copy["wins"] == 0.5).all()
    for row in table[table["score"] != "copy"].itertuples():
        assert (row.difference > 0) == (lower_is_better(row.metric) != (row.score == "better"))
        assert row.low <= row.difference <= row.high
        assert row.wins > 0.95 if row.score == "better" else row.wins < 0.05


def test_intervals_stay_in_the_range_and_keep_a_width_at_its_ends():
    apart = made((100, 20, 40), shift=20.0, scores=1).intervals()
    assert ((apart["low"] >= 0) & (apart["low"] <= apart["value"])).all()
    assert ((apart["high"] <= 1) & (apart["high"] >= apart["value"])).all()
    rows = apart[apart["negative"] == "pooled"].set_index("metric")
    assert rows.loc["auroc", "value"] == 1
    assert 0.8 < rows.loc["auroc", "low"] < 0.95
    assert 0 < rows.loc["fpr@95", "high"] < 0.2
    assert 0 < rows.loc["aurr", "high"] < 0.2


@pytest.mark.parametrize(("alpha", "beta"), [(0.5, 0.5), (0.0, 0.5), (1.0, 0.0), (0.5, 1.0), (0.0, 1.0)])
@pytest.mark.parametrize("level", [0, 0.95, 1])
def test_every_level_and_corner_has_intervals_around_the_values(alpha, beta, level):
    ev = made((60, 20, 30), scores=1)
    ev = sirc.evaluate(
        {"s": (ev.confidences["s0"], ev.correct), "same": (np.zeros(80), ev.correct)},
        ood={"x": {"s": ev.ood["set 0"]["s0"], "same": np.zeros(30)}},
    )
    table = ev.intervals(alpha=alpha, beta=beta, level=level, draws=20)
    rows = table[table["method"] != "bootstrap"]
    assert ((rows["low"] <= rows["value"] + 1e-12) & (rows["value"] <= rows["high"] + 1e-12)).all()
    assert rows[["se", "low", "high"]].notna().all(axis=None)
    assert (
        ev.compare("same", alpha=alpha, beta=beta, level=level, draws=20)[["low", "high", "wins"]]
        .notna()
        .all(axis=None)
    )


def test_the_error_has_wilson_s_interval():
    row = made((70, 30, 20)).intervals().query("metric == 'error'").iloc[0]
    expected = stats.binomtest(30, 100).proportion_ci(0.95, method="wilson")
    assert (row.value, row.low, row.high) == pytest.approx((0.3, expected.low, expected.high))
    assert (row.method, row.se) == ("wilson", pytest.approx((0.3 * 0.7 / 100) ** 0.5))


def test_too_few_samples_or_tied_recalls_fall_back_on_the_bootstrap_and_say_so():
    with pytest.warns(sirc.errors.DataWarning, match="come from a bootstrap, as a group has 3 samples"):
        few = made((40, 3, 30)).intervals(draws=30)
    with pytest.warns(
        sirc.errors.DataWarning, match="fpr@95, risk@95 .* hardly one of 30 ID✓ lies beyond a recall of 95%"
    ):
        made((30, 20, 30)).intervals(draws=30)
    of_wrong = (few["negative"] == "wrong") | few["metric"].isin(["aurr", "aurc", "augrc", "risk@95"])
    drawn = few[few["negative"].isin(["wrong", "pooled"]) & of_wrong & (few["metric"] != "error")]
    assert set(drawn["method"]) == {"bootstrap"}
    tied = made((400, 80, 90), decimals=0).compare("s0", draws=40)
    by_metric = tied.groupby("metric")["method"].agg(set)
    assert all(by_metric[metric] == {"bootstrap"} for metric in AT_RECALL)
    assert all(by_metric[metric] == {"analytic"} for metric in SMOOTH)
    expected = made((400, 80, 90), decimals=0).compare("s0", method="bootstrap", draws=40)
    columns = ["difference", "low", "high", "wins"]
    rows = tied["metric"].isin(AT_RECALL)
    pd.testing.assert_frame_equal(tied[rows][columns], expected[rows][columns])


def test_the_seed_plays_no_part_where_nothing_is_drawn():
    ev = made((300, 100, 150))
    one, other = (ev.compare("s0", seed=seed, draws=draws) for seed, draws in ((1, 1000), (2, 7)))
    analytic = one["metric"].isin((*SMOOTH, *AT_RECALL))
    pd.testing.assert_frame_equal(one[analytic], other[analytic])
    with pytest.raises(ValueError, match='`method` must be "auto" or "bootstrap"'):
        ev.intervals(method="normal")


@pytest.mark.parametrize("wrong", [0, 4, 6, 50])
def test_groups_that_play_no_part_do_not_widen_a_bar(wrong):
    right = np.arange(1000 + wrong) < 1000
    ev = sirc.evaluate({"s": (right + 5.0, right)}, ood={"far": {"s": np.linspace(0, 1, 2000)}})
    table = ev.intervals(negatives=["far"]).set_index("metric")
    assert table.loc["auroc", "low"] == pytest.approx(0.99616, abs=1e-4)
    assert table.loc["auroc", "method"] == "analytic"


def test_scores_are_measured_at_once_with_one_thread_each_and_the_number_stays_as_it_was():
    before, together, cpu = torch.get_num_threads(), Barrier(3), torch.device("cpu")

    def measure(score):
        together.wait(timeout=600)  # all three are at work at once
        return [score, torch.get_num_threads(), torch.is_grad_enabled()]

    def numbers():
        with ThreadPoolExecutor(1) as pool:
            return torch.get_num_threads(), pool.submit(torch.get_num_threads).result()

    try:
        torch.set_num_threads(3)
        assert error_bars._side_by_side(measure, ["a", "b", "c"], cpu) == [[s, 1, False] for s in "abc"]
        assert numbers() == (3, 3)
        with pytest.raises(ZeroDivisionError):
            error_bars._side_by_side(lambda score: 1 / 0, ["a"], cpu)
        assert numbers() == (3, 3)
        assert error_bars._side_by_side(measure, [], cpu) == []
    finally:
        torch.set_num_threads(before)
