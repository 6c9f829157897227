"""The bootstrap from counts against Mixture on samples repeated as often, and the counts themselves."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import sirc
from sirc.metrics import all_metrics, lower_is_better
from sirc.metrics import bootstrap as resample
from sirc.metrics.bootstrap import ResampledScore, bootstrap_metrics, draw_counts
from support.examples import examples
from support.metric_reference import Mixture, repeated

COMPARED = [metric for metric in all_metrics() if metric.per_negative]
small = examples(40)
scores = st.integers(-3, 3).map(float)
shares = st.one_of(st.sampled_from([0.0, 0.5, 1.0]), st.integers(0, 100).map(lambda k: k / 100))


def expected(correct, wrong, ood, weights, recall, alpha, beta):
    """The metrics of explicitly repeated samples, by negative."""
    plain = Mixture(correct, wrong, ood, weights)
    found = {
        "auroc": plain.auroc("ood"),
        "fpr": plain.fpr("ood", recall),
        "aurr": plain.aurr(alpha, beta),
        "risk": plain.risk_at_recall(recall, alpha, beta),
        "aurc": plain.aurc(alpha, beta),
        "augrc": plain.augrc(alpha, beta),
    }
    return {name: float(value) for name, value in found.items()}


def draw(size, seed, rows=3):
    rng = np.random.default_rng(seed)
    return rng.multinomial(size, np.full(size, 1 / size), rows) if size else np.zeros((rows, 0), int)


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 2e-6)])
@small
@given(
    st.lists(scores, min_size=1, max_size=7),
    st.lists(scores, max_size=6),
    st.lists(scores, min_size=1, max_size=7),
    st.integers(0, 10**6),
    shares,
    shares,
    shares,
)
def test_metrics_from_counts_are_those_of_repeated_samples(
    dtype, tolerance, correct, wrong, ood, seed, recall, alpha, beta
):
    one = ResampledScore(
        *(torch.tensor(g, dtype=torch.float64) for g in (correct, wrong)),
        {"x": torch.tensor(ood, dtype=torch.float64)},
        recall=recall,
    )
    counts = [draw(len(g), seed + i) for i, g in enumerate((correct, wrong, ood))]
    tensors = [torch.tensor(c.T, dtype=dtype) for c in counts]
    got = one.metrics(tensors[0], tensors[1], {"x": tensors[2]}, alpha=alpha, beta=beta)
    assert list(got) == (["wrong", "x"] if wrong else ["x"])
    for row in range(3):
        groups = [repeated(g, c[row]) for g, c in zip((correct, wrong, ood), counts, strict=True)]
        values = expected(*groups, None, recall, alpha, beta)
        assert set(values) == set(got["x"]) == set(ResampledScore.METRICS)
        for metric, value in values.items():
            assert float(got["x"][metric][row]) == pytest.approx(value, abs=tolerance), metric
        if wrong:
            plain = Mixture(*groups)
            assert float(got["wrong"]["auroc"][row]) == pytest.approx(plain.auroc("wrong"), abs=tolerance)
            assert float(got["wrong"]["fpr"][row]) == pytest.approx(plain.fpr("wrong", recall), abs=tolerance)


@pytest.mark.slow
@pytest.mark.parametrize("equal_sets", [False, True])
@pytest.mark.parametrize("per_block", [1, 2, 64])
def test_each_draw_of_the_bootstrap_is_an_evaluation_of_repeated_samples(monkeypatch, equal_sets, per_block):
    monkeypatch.setattr(resample, "_MOST_ON_CPU", per_block)
    rng = np.random.default_rng(2)
    correct = torch.tensor(rng.random(14) < 0.7)
    confidences = {s: torch.tensor(rng.integers(0, 6, 14).astype(float)) for s in ("one", "two")}
    sizes = {"a": 3, "b": 9}
    ood = {n: {s: torch.tensor(rng.integers(-2, 5, k).astype(float)) for s in confidences} for n, k in sizes.items()}
    unions = {"a": ["a"], "b": ["b"], "pooled": ["a", "b"], "Group": ["b", "a"]}
    settings = {"equal_sets": equal_sets, "recall": 0.75, "alpha": 0.6, "beta": 0.3}
    got = bootstrap_metrics(confidences, correct, ood, unions, **settings, draws=5, seed=4)
    assert {key[:2] for key in got} == {(s, n) for s in confidences for n in ("wrong", *unions)}
    assert {tuple(values.shape) for values in got.values()} == {(5,)}
    # The counts of the same seed, used here to repeat the samples.
    right = int(correct.sum())
    groups = {"correct": right, "wrong": 14 - right, "ood a": 3, "ood b": 9}
    blocks = list(draw_counts(groups, 5, 4, torch.device("cpu")))
    assert len(blocks) == math.ceil(5 / per_block)
    rows = [
        {name.removeprefix("ood "): c[:, i].tolist() for name, c in counts.items()}
        for counts in blocks
        for i in range(counts["correct"].shape[1])
    ]
    assert len(rows) == 5
    for number, row in enumerate(rows):
        for score, own in confidences.items():
            c, x = repeated(own[correct].tolist(), row["correct"]), repeated(own[~correct].tolist(), row["wrong"])
            for name, members in unions.items():
                parts = [repeated(ood[m][score].tolist(), row[m]) for m in members]
                weights = [1 / len(part) for part in parts for _ in part] if equal_sets else None
                values = expected(c, x, [s for part in parts for s in part], weights, 0.75, 0.6, 0.3)
                for metric, value in values.items():
                    assert float(got[score, name, metric][number]) == pytest.approx(value, abs=2e-6), (name, metric)
            plain = Mixture(c, x, [])
            alone = {
                "auroc": plain.auroc("wrong"),
                "fpr": plain.fpr("wrong", 0.75),
                "aurr": plain.aurr(1, 0.3),
                "risk": plain.risk_at_recall(0.75, 1, 0.3),
                "aurc": plain.aurc(1, 0.3),
                "augrc": plain.augrc(1, 0.3),
            }
            for metric, value in alone.items():
                assert float(got[score, "wrong", metric][number]) == pytest.approx(value, abs=2e-6), metric


@pytest.mark.slow
def test_every_recall_k_of_n_is_reached_at_the_count_k():
    for n in range(1, 40):
        values = torch.arange(float(n))
        ones = torch.ones(n, 1)
        for k in range(1, n + 1):
            one = ResampledScore(values, torch.empty(0), {"x": values}, recall=k / n)
            got = one.metrics(ones, torch.empty(0, 1), {"x": ones}, alpha=0.5, beta=0.5)
            assert round(n * float(got["x"]["fpr"])) == k


def test_the_precision_of_float32_counts_is_enough_for_many_samples():
    """At 60,000 samples with equal weights the bootstrap's value is Ranking's, to seven digits."""
    generator = torch.Generator().manual_seed(0)
    groups = [
        torch.randn(n, generator=generator, dtype=torch.float64) + m for n, m in ((30000, 1.0), (9000, 0.3), (21000, 0))
    ]
    one = ResampledScore(*groups[:2], {"x": groups[2]}, recall=0.95)
    ones = [torch.ones(len(g), 1) for g in groups]
    r = sirc.Ranking(*groups)
    for third in (ones[2], ones[2] / 21000):
        got = one.metrics(ones[0], ones[1], {"x": third}, alpha=0.3, beta=0.6)["x"]
        exact = {"auroc": r.auroc("ood"), "fpr": r.fpr("ood"), "aurr": r.aurr(0.3, 0.6), "aurc": r.aurc(0.3, 0.6)}
        exact |= {"augrc": r.augrc(0.3, 0.6), "risk": r.risk_at_recall(0.95, 0.3, 0.6)}
        for metric, value in exact.items():
            assert float(got[metric]) == pytest.approx(value, abs=3e-7), metric


# The counts


def counts_of(sizes, draws, seed):
    blocks = list(draw_counts(sizes, draws, seed, torch.device("cpu")))
    return {name: torch.cat([block[name] for block in blocks], 1).T for name in sizes}


@pytest.mark.slow
def test_counts_are_multinomial():
    n, draws = 12, 20000
    counts = counts_of({"c": n, "x": 3}, draws, 0)
    assert counts["c"].shape == (draws, n)
    assert bool((counts["c"].sum(1) == n).all() and (counts["x"].sum(1) == 3).all())
    c = counts["c"].double()
    se = math.sqrt(1 / draws)
    assert bool(((c.mean(0) - 1).abs() < 5 * se).all())
    covariance = torch.cov(c.T)
    exact = torch.eye(n, dtype=torch.float64) - 1 / n
    assert float((covariance - exact).abs().max()) < 6 * 2 * se
    # Binomial(n, 1/n) in each place, not only its moments.
    share = [float((c == k).double().mean()) for k in range(5)]
    binomial = [math.comb(n, k) * (1 / n) ** k * (1 - 1 / n) ** (n - k) for k in range(5)]
    assert share == pytest.approx(binomial, abs=5 * 0.5 * se)


@pytest.mark.slow
def test_groups_are_resampled_independently():
    counts = counts_of({"c": 5, "x": 5}, 20000, 1)
    together = torch.corrcoef(torch.cat((counts["c"], counts["x"]), 1).double().T)[:5, 5:]
    assert float(together.abs().max()) < 5 / math.sqrt(20000)
    assert not torch.equal(counts["c"], counts["x"])


@pytest.mark.parametrize("per_block", [1, 3, 11, 64])
def test_blocks_of_any_size_hold_all_draws(monkeypatch, per_block):
    monkeypatch.setattr(resample, "_MOST_ON_CPU", per_block)
    counts = counts_of({"c": 6, "x": 0, "o": 4}, 11, 0)
    assert counts["c"].shape == (11, 6)
    assert counts["x"].shape == (11, 0)
    assert bool((counts["o"].sum(1) == 4).all())
    assert len({tuple(row) for row in counts["c"].tolist()}) > 5


def test_the_same_seed_gives_the_same_draws_and_another_does_not():
    sizes = {"c": 30, "o": 10}
    first, again, other = (counts_of(sizes, 8, seed)["c"] for seed in (3, 3, 4))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    state = torch.random.get_rng_state()
    counts_of(sizes, 8, 3)
    assert torch.equal(state, torch.random.get_rng_state())


# Intervals and comparisons


def problem(seed, sizes=(60, 40, 50), shift=0.0):
    rng = np.random.default_rng(seed)
    means = (1.2, 0.3, 0.0)
    parts = [rng.normal(m, 1, n) for n, m in zip(sizes, means, strict=True)]
    right = np.repeat([True, False], sizes[:2])
    return np.concatenate(parts[:2]) + shift, right, parts[2]


def evaluation(seed=0, **others):
    confidence, right, outside = problem(seed)
    found, ood = {"msp": (confidence, right)}, {"x": {"msp": outside}}
    for name, change in others.items():
        found[name] = (change(confidence, right), right)
        ood["x"][name] = change(outside, np.zeros(len(outside), bool))
    return sirc.evaluate(found, ood=ood, alpha=0.6, beta=0.4, recall=0.8)


def test_interval_ends_are_numpys_percentiles_of_the_draws():
    ev = evaluation()
    table = ev.intervals(method="bootstrap", draws=150, level=0.8, seed=9)
    unions = {"x": ["x"], "pooled": ["x"]}
    ours = {"equal_sets": False, "recall": 0.8, "alpha": 0.6, "beta": 0.4, "draws": 150, "seed": 9}
    samples = bootstrap_metrics(ev.confidences, ev.correct, ev.ood, unions, **ours)
    assert len(table) == 4 * len(COMPARED)
    for row in table.itertuples():
        negative = "x" if row.negative == "OOD mean" else row.negative
        values = samples[row.score, negative, row.metric.partition("@")[0]].numpy()
        assert (row.low, row.high) == pytest.approx(tuple(np.quantile(values, [0.1, 0.9])), abs=1e-12)
        assert row.low <= row.value <= row.high or row.metric.startswith(("fpr", "risk"))


def test_the_interval_of_the_ood_mean_is_that_of_the_mean_in_each_draw():
    confidence, right, outside = problem(0)
    ev = sirc.evaluate({"s": (confidence, right)}, ood={"a": {"s": outside[:20]}, "b": {"s": outside[20:] + 1}})
    unions = {"a": ["a"], "b": ["b"], "pooled": ["a", "b"]}
    ours = {"equal_sets": False, "recall": 0.95, "alpha": 0.5, "beta": 0.5, "draws": 40, "seed": 0}
    samples = bootstrap_metrics(ev.confidences, ev.correct, ev.ood, unions, **ours)
    mean = (samples["s", "a", "aurr"] + samples["s", "b", "aurr"]).numpy() / 2
    row = ev.intervals(method="bootstrap", draws=40).query("negative == 'OOD mean' and metric == 'aurr'").iloc[0]
    assert (row.low, row.high) == pytest.approx(tuple(np.quantile(mean, [0.025, 0.975])), abs=1e-12)


def test_the_same_seed_gives_the_same_table():
    ev = evaluation(other=lambda s, right: s**3)
    first, again, other = (ev.intervals(method="bootstrap", draws=30, seed=seed) for seed in (1, 1, 2))
    assert first.equals(again)
    assert not first.equals(other)
    assert first["value"].equals(other["value"])


def test_a_monotone_copy_neither_wins_nor_loses():
    table = evaluation(copy=lambda s, right: np.exp(s) * 3).compare("msp", method="bootstrap", draws=60)
    assert set(table["score"]) == {"copy"}
    assert set(table["metric"]) == {metric.label(0.8) for metric in COMPARED}
    for column in ("difference", "low", "high"):
        assert (table[column] == 0).all()
    assert (table["wins"] == 0.5).all()


def test_a_better_score_wins_by_every_metric_and_a_worse_one_loses():
    table = evaluation(better=lambda s, right: s + 2.0 * right, worse=lambda s, right: s - 3.0 * right).compare(
        "msp", method="bootstrap", draws=100
    )
    for row in table.itertuples():
        better = row.score == "better"
        assert (row.difference > 0) == (lower_is_better(row.metric) != better)
        assert row.low <= row.high
        assert row.wins > 0.95 if better else row.wins < 0.05
        if row.metric in ("auroc", "aurr", "augrc"):
            assert row.low > 0 or row.high < 0


def test_a_paired_difference_is_the_difference_in_the_same_draws():
    ev = evaluation(other=lambda s, right: np.round(s))
    row = (
        ev.compare("msp", method="bootstrap", draws=80, seed=5, level=0.9)
        .query("negative == 'pooled' and metric == 'aurc'")
        .iloc[0]
    )
    ours = {"equal_sets": False, "recall": 0.8, "alpha": 0.6, "beta": 0.4, "draws": 80, "seed": 5}
    samples = bootstrap_metrics(ev.confidences, ev.correct, ev.ood, {"x": ["x"], "pooled": ["x"]}, **ours)
    difference = (samples["other", "pooled", "aurc"] - samples["msp", "pooled", "aurc"]).numpy()
    assert (row.low, row.high) == pytest.approx(tuple(np.quantile(difference, [0.05, 0.95])), abs=1e-12)
    assert row.wins == pytest.approx(np.mean(difference < 0) + np.mean(difference == 0) / 2)
    values = ev.table.query("negative == 'pooled' and metric == 'aurc'").set_index("score")["value"]
    assert row.difference == pytest.approx(values["other"] - values["msp"], abs=1e-15)


def test_bootstrap_and_delong_agree():
    confidence, right, outside = problem(3, (400, 200, 10))
    ev = sirc.evaluate({"s": (confidence, right)}, ood={"x": {"s": outside}})
    row = (
        ev.intervals(method="bootstrap", draws=1500, level=0.9)
        .query("negative == 'wrong' and metric == 'auroc'")
        .iloc[0]
    )
    low, high = ev.ranking("s").auroc_interval("wrong", level=0.9)
    assert (row.low, row.high) == pytest.approx((low, high), abs=0.15 * (high - low))


@pytest.mark.slow
def test_intervals_cover_the_truth_about_as_often_as_they_say():
    """AUROC, AURR, AURC and AUGRC of 200 datasets, each with its own bootstrap; the truth from half a million."""
    confidence, right, outside = problem(10**6, (300_000, 200_000, 250_000))
    r = sirc.Ranking(confidence[right], confidence[~right], outside)
    truth = {
        "auroc": 0.5 * math.erfc(-1.2 / 2),
        "aurr": r.aurr(0.6, 0.4),
        "aurc": r.aurc(0.6, 0.4),
        "augrc": r.augrc(0.6, 0.4),
    }
    hits = dict.fromkeys(truth, 0)
    repeats = 200
    for seed in range(repeats):
        confidence, right, outside = (torch.as_tensor(part) for part in problem(seed))
        ours = {"equal_sets": False, "recall": 0.95, "alpha": 0.6, "beta": 0.4, "draws": 200, "seed": seed}
        samples = bootstrap_metrics({"s": confidence}, right, {"x": {"s": outside}}, {"x": ["x"]}, **ours)
        for metric, value in truth.items():
            low, high = np.quantile(samples["s", "x", metric].numpy(), [0.05, 0.95])
            hits[metric] += low <= value <= high
    for metric, count in hits.items():
        # Percentile intervals of 50 samples are a little short, hence the slack below.
        assert -0.04 - 4 * math.sqrt(0.09 / repeats) < count / repeats - 0.9 < 4 * math.sqrt(0.09 / repeats), metric


@pytest.mark.parametrize("alpha", [0.5, 1.0])
@pytest.mark.parametrize("method", ["auto", "bootstrap"])
def test_no_wrong_predictions_are_no_obstacle(method, alpha):
    ev = sirc.evaluate({"s": ([3.0, 2, 1] * 3, [1, 1, 1] * 3)}, ood={"x": {"s": [2.0, 0] * 4}}, alpha=alpha)
    table = ev.intervals(method=method, draws=20)
    table = table[table["metric"] != "error"]
    assert "wrong" not in set(table["negative"])
    assert table[["value", "low", "high"]].notna().all(axis=None)


@pytest.mark.parametrize("method", ["auto", "bootstrap"])
def test_no_ood_is_no_obstacle(method):
    confidence, right, _ = problem(0)
    table = sirc.evaluate({"s": (confidence, right)}).intervals(method=method, draws=20)
    table = table[table["metric"] != "error"]
    assert set(table["negative"]) == {"wrong"}
    assert list(table["metric"]) == [metric.label(0.95) for metric in COMPARED]
    assert set(table["alpha"].dropna()) == {1}


def test_a_group_s_draws_depend_on_the_seed_and_its_name_alone(monkeypatch):
    def draws(sizes, per_block, seed=5):
        monkeypatch.setattr(resample, "_MOST_ON_CPU", per_block)
        monkeypatch.setattr(resample, "_FEWEST", 1)
        return torch.cat([b["ood a"] for b in draw_counts(sizes, 12, seed, torch.device("cpu"))], 1)

    alone = draws({"ood a": 30}, 12)
    assert torch.equal(draws({"ood a": 30}, 5), alone)
    assert torch.equal(draws({"correct": 100, "ood a": 30, "ood b": 7}, 1), alone)
    assert not torch.equal(draws({"ood a": 30}, 12, seed=6), alone)


def test_confidences_of_different_precision_are_compared_by_value():
    third = np.float32(1 / 3)  # a little more than 1/3
    ev = sirc.evaluate({"s": (np.full(4, third), [1, 1, 1, 0])}, ood={"x": {"s": np.full(3, 1 / 3)}})
    row = ev.intervals(method="bootstrap", draws=5).query("negative == 'x' and metric == 'auroc'").iloc[0]
    assert (row.value, row.low, row.high) == (1, 1, 1)
