"""Error bars of an evaluation: against the bootstrap, at the ends of the range, and where they fall back on it."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

import sirc

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
@pytest.mark.parametrize(("pool", "decimals"), [("samples", None), ("datasets", 1)])
def test_standard_errors_are_those_of_the_bootstrap(pool, decimals):
    ev = made((1200, 400, 900, 500), pool=pool, decimals=decimals, alpha=0.6, beta=0.4)
    keys = ["score", "negative", "metric"]
    for ours, drawn in (
        (ev.intervals(), ev.intervals(method="bootstrap", draws=3000)),
        (ev.compare("s0"), ev.compare("s0", method="bootstrap", draws=3000)),
    ):
        both = ours.merge(drawn, on=keys, suffixes=("", "_drawn"))
        assert len(both) == len(drawn)
        assert set(both["method_drawn"]) == {"bootstrap"}
        ratio = both["se"] / both["se_drawn"]
        smooth = both["metric"].isin(SMOOTH)
        assert set(both["method"][smooth]) == {"analytic"}
        assert ratio[smooth].between(0.95, 1.05).all()
        assert ratio[~smooth].between(0.85, 1.15).all()
        if "wins" in both:
            assert (both["wins"] - both["wins_drawn"]).abs().max() < 0.1


def test_standard_errors_are_near_those_of_a_small_bootstrap():
    ev = made((300, 120, 200), scores=1)
    ours, drawn = ev.intervals(negatives=["pooled"]), ev.intervals(method="bootstrap", draws=300, negatives=["pooled"])
    ratio = (ours["se"] / drawn["se"])[ours["metric"].isin(SMOOTH)]
    assert ratio.between(0.8, 1.2).all()


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [(1000, 300, 800), (200, 50, 100), (990, 10, 500), (30, 10, 30)])
def test_intervals_of_smooth_metrics_cover_the_truth_as_often_as_they_say(sizes):
    """400 samples each; `benchmarks/coverage.py` has 2,000, with ties, sets and differences."""
    scale = 200_000 // max(sizes)
    even = [stats.norm.ppf((np.arange(n * scale) + 0.5) / (n * scale)) for n in sizes]
    truth = sirc.Ranking(even[0] + 1.5, even[1] + 0.3, even[2])
    expected = {"auroc": truth.auroc("ood"), "aurr": truth.aurr(0.5, 0.5), "augrc": truth.augrc(0.5, 0.5)}
    held = dict.fromkeys(expected, 0)
    for seed in range(400):
        table = made(sizes, seed=seed, scores=1).intervals(negatives=["pooled"], draws=2).set_index("metric")
        for metric, value in expected.items():
            held[metric] += table.loc[metric, "low"] <= value <= table.loc[metric, "high"]
    for metric, count in held.items():
        assert 0.92 <= count / 400 <= 0.985, metric


def test_a_better_score_wins_and_a_copy_neither_wins_nor_loses():
    rng = np.random.default_rng(1)
    right = np.arange(500) < 350
    base = rng.normal(size=500) + right
    outside = rng.normal(size=300)
    changes = {"copy": lambda s, r: np.exp(s) * 3, "better": lambda s, r: s + r, "worse": lambda s, r: s - r}
    given = {"base": (base, right), **{name: (f(base, right), right) for name, f in changes.items()}}
    ood = {"x": {"base": outside, **{name: f(outside, 0.0) for name, f in changes.items()}}}
    table = sirc.evaluate(given, ood=ood).compare("base")
    assert set(table["method"]) == {"analytic"}
    copy = table[table["score"] == "copy"]
    assert (copy[["difference", "se", "low", "high"]].abs() < 1e-12).all(axis=None)
    assert (copy["wins"] == 0.5).all()
    for row in table[table["score"] != "copy"].itertuples():
        assert (row.difference > 0) == ((row.metric == "auroc") == (row.score == "better"))
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
    few = made((40, 3, 30)).intervals(draws=30)
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
    pd.testing.assert_frame_equal(ev.compare("s0", seed=1), ev.compare("s0", seed=2, draws=7))
    with pytest.raises(ValueError, match='`method` must be "auto" or "bootstrap"'):
        ev.intervals(method="normal")


@pytest.mark.parametrize("wrong", [0, 4, 6, 50])
def test_groups_that_play_no_part_do_not_widen_a_bar(wrong):
    right = np.arange(1000 + wrong) < 1000
    ev = sirc.evaluate({"s": (right + 5.0, right)}, ood={"far": {"s": np.linspace(0, 1, 2000)}})
    table = ev.intervals(negatives=["far"]).set_index("metric")
    assert table.loc["auroc", "low"] == pytest.approx(0.99616, abs=1e-4)
    assert table.loc["auroc", "method"] == "analytic"
