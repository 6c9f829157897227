"""The choice between scores: regret against loops over Ranking, draws against resamples by hand, leads against fact."""

import json
import re

import numpy as np
import pandas as pd
import pytest
import torch

import sirc
from sirc.evaluation.selection.regret import contenders, intervals, wins
from sirc.metrics import bootstrap, find_metric
from sirc.metrics.bootstrap import draw_counts
from support.metric_reference import Mixture, repeated
from support.tiny_study import write_short_study

ALPHAS = [round(0.1 * i, 12) for i in range(1, 10)]
COLUMNS = [
    *("score", "worst_regret", "worst_low", "worst_high", "worst_alpha", "worst_beta"),
    *("average_regret", "average_low", "average_high", "wins", "tied", "worst_set", "worst_set_regret"),
]


def made(n=600, errors=0.2, sets=(("a", 300),), shifts=None, seed=0, shared=0.5):
    """Gaussian confidences by score; `shifts` is how far ID✓ lies above ID✗ and above OOD, 1.5 and 1.5 for nothing."""
    rng = np.random.default_rng(seed)
    shifts = shifts or {"one": (1.5, 1.5), "two": (1.5, 1.5)}
    correct = np.arange(n) >= round(errors * n)
    common = rng.normal(size=n)
    confidences, ood = {}, {name: {} for name, _ in sets}
    for score, (above_wrong, _) in shifts.items():
        own = shared**0.5 * common + (1 - shared) ** 0.5 * rng.normal(size=n)
        confidences[score] = (own + above_wrong * correct, correct)
    for name, size in sets:
        common = rng.normal(size=size)
        for score, (above_wrong, above_ood) in shifts.items():
            own = shared**0.5 * common + (1 - shared) ** 0.5 * rng.normal(size=size)
            ood[name][score] = own + above_wrong - above_ood
    return confidences, ood


def rankings(confidences, ood, equal_sets=True):
    found = {}
    for score, (own, correct) in confidences.items():
        parts = [by_score[score] for by_score in ood.values()]
        weights = np.concatenate([np.full(len(p), 1 / len(p) if equal_sets else 1.0) for p in parts]) if parts else None
        outside = np.concatenate(parts) if parts else None
        found[score] = sirc.Ranking(own[correct], own[~correct], outside, ood_weights=weights)
    return found


def measured(ranking, metric, alpha, beta):
    if metric.startswith("risk"):
        return ranking.risk_at_recall(float(metric.partition("@")[2]) / 100, alpha, beta)
    return getattr(ranking, metric)(alpha, beta)


SHIFTS = {"one": (1.5, 0.5), "two": (1.2, 1.4), "three": (0.9, 2.0)}


@pytest.mark.slow
@pytest.mark.parametrize("metric", ["aurr", "aurc", "risk@95", "risk@80"])
@pytest.mark.parametrize("relative", [True, False])
@pytest.mark.parametrize("pool", ["datasets", "samples"])
def test_regret_is_what_a_loop_over_rankings_finds(metric, relative, pool):
    confidences, ood = made(300, sets=(("a", 150), ("b", 40)), shifts=SHIFTS)
    choice = sirc.select(confidences, ood=ood, metric=metric, relative=relative, pool=pool, draws=20)
    assert choice.alpha == choice.beta == tuple(ALPHAS)
    table = choice.table.set_index("score")
    per_point = {score: {} for score in confidences}
    ranked = rankings(confidences, ood, pool == "datasets")
    for a in ALPHAS:
        for b in ALPHAS:
            values = {score: measured(ranking, metric, a, b) for score, ranking in ranked.items()}
            best = min(values.values())
            for score, value in values.items():
                per_point[score][a, b] = (value - best) / (best if relative else 1)
    for score, found in per_point.items():
        assert table.worst_regret[score] == pytest.approx(max(found.values()), rel=1e-9)
        assert table.average_regret[score] == pytest.approx(np.mean(list(found.values())), rel=1e-9)
        at = (table.worst_alpha[score], table.worst_beta[score])
        assert found[at] == pytest.approx(max(found.values()), rel=1e-9)
        grid = choice.grid[choice.grid.score == score]
        assert grid.regret.to_numpy() == pytest.approx(list(found.values()), abs=1e-12)
        assert ((grid.low >= 0) & (grid.low <= grid.regret) & (grid.regret <= grid.high)).all()
        assert table.worst_high[score] == pytest.approx(grid.high.max())
        for low, high in (("worst_low", "worst_high"), ("average_low", "average_high")):
            middle = table[low.replace("low", "regret")][score]
            assert 0 <= table[low][score] <= middle <= table[high][score]
    assert list(choice.table.columns) == COLUMNS
    assert choice.table.worst_regret.is_monotonic_increasing
    assert choice.table.wins.sum() == pytest.approx(1)


@pytest.mark.slow
@pytest.mark.parametrize("metric", ["aurr", "aurc", "risk", "augrc"])
@pytest.mark.parametrize("equal_sets", [True, False])
@pytest.mark.parametrize("chunk", [3, 1 << 15])
def test_each_draw_has_the_metric_of_explicitly_repeated_samples(monkeypatch, metric, equal_sets, chunk):
    monkeypatch.setattr(bootstrap, "_CPU_CHUNK", chunk)
    rng = np.random.default_rng(1)
    correct = torch.tensor(rng.random(15) < 0.7)
    confidences = {s: torch.tensor(rng.integers(0, 6, 15).astype(float)) for s in ("x", "y")}  # with equal ones
    ood = {
        n: {s: torch.tensor(rng.integers(-2, 5, k).astype(float)) for s in confidences} for n, k in (("a", 3), ("b", 8))
    }
    alpha, beta = torch.tensor([0.0, 0.3, 1.0], dtype=torch.float64), torch.tensor([0.0, 0.6, 1.0], dtype=torch.float64)
    got = torch.cat(
        list(
            bootstrap.bootstrap_grids(
                confidences, correct, ood, equal_sets=equal_sets, metric=find_metric(metric), recall=0.75, alpha=alpha,
                beta=beta, draws=6, seed=3,
            )
        )
    )  # fmt: skip
    assert got.shape == (6, 2, 3, 3)
    right = int(correct.sum())
    (counts,) = draw_counts({"correct": right, "wrong": 15 - right, "ood a": 3, "ood b": 8}, 6, 3, torch.device("cpu"))
    for draw in range(6):
        row = {name: c[:, draw].tolist() for name, c in counts.items()}
        for number, (score, own) in enumerate(confidences.items()):
            c, x = repeated(own[correct].tolist(), row["correct"]), repeated(own[~correct].tolist(), row["wrong"])
            parts = [repeated(ood[name][score].tolist(), row[f"ood {name}"]) for name in ood]
            weights = [1 / len(part) for part in parts for _ in part] if equal_sets else None
            plain = Mixture(c, x, [value for part in parts for value in part], weights)
            for i, a in enumerate(alpha.tolist()):
                for j, b in enumerate(beta.tolist()):
                    want = plain.risk_at_recall(0.75, a, b) if metric == "risk" else getattr(plain, metric)(a, b)
                    assert float(got[draw, number, i, j]) == pytest.approx(float(want), abs=2e-6)


@pytest.mark.slow
@pytest.mark.parametrize("metric", ["aurr", "aurc", "risk@95"])
@pytest.mark.parametrize(("n", "size"), [(200, 300), (400, 100)])
def test_groups_of_very_many_rows_are_drawn_with_small_ones(monkeypatch, metric, n, size):
    """Groups above a limit are counted in float64: with a low limit the draws are the same."""
    confidences, ood = made(n, sets=(("a", size),))
    plain = sirc.select(confidences, ood=ood, metric=metric, alpha=0.5, beta=0.5, draws=20)
    monkeypatch.setattr(bootstrap, "_EXACT", 250)
    exact = sirc.select(confidences, ood=ood, metric=metric, alpha=0.5, beta=0.5, draws=20)
    assert exact.table.worst_high.tolist() == pytest.approx(plain.table.worst_high.tolist(), abs=1e-5)


@pytest.mark.slow
def test_the_intervals_are_those_of_a_bootstrap_done_by_hand():
    """1000 draws of each kind: their ends agree within their own noise."""
    confidences, ood = made(400, shifts=SHIFTS, sets=(("a", 200),), seed=5)
    choice = sirc.select(confidences, ood=ood, alpha=[0.2, 0.5, 0.8], beta=0.4, draws=1000)
    table = choice.table.set_index("score")
    correct = confidences["one"][1]
    groups = [np.flatnonzero(correct), np.flatnonzero(~correct), np.arange(200)]
    values = np.stack([r.aurr([0.2, 0.5, 0.8], [0.4]).numpy()[:, 0] for r in rankings(confidences, ood).values()])
    rng, drawn = np.random.default_rng(0), []
    for _ in range(1000):
        c, x, o = (rng.choice(rows, len(rows)) for rows in groups)
        drawn.append(
            [
                sirc.Ranking(own[c], own[x], ood["a"][score][o]).aurr([0.2, 0.5, 0.8], [0.4]).numpy()[:, 0]
                for score, (own, _) in confidences.items()
            ]
        )
    drawn = np.array(drawn)
    worst = ((drawn - drawn.min(1, keepdims=True)) / values.min(0)).max(2)
    for number, score in enumerate(confidences):
        others = [s for s in range(3) if s != number]
        ratio = np.log(values[number] / values[others])
        ratios = np.log(drawn[:, [number]] / drawn[:, others])
        spread = ratios.std(0)
        reach = np.quantile(((ratios - ratio) / spread).max((1, 2)), 0.975)
        low = np.maximum(0, np.exp((ratio - reach * spread).max(0)) - 1)
        high = np.maximum(0, np.exp((ratio + 1.96 * spread).max(0)) - 1)
        for name, of in (("worst", np.max), ("average", np.mean)):
            assert table[f"{name}_low"][score] == pytest.approx(of(low), rel=0.15, abs=0.02)
            assert table[f"{name}_high"][score] == pytest.approx(of(high), rel=0.1, abs=0.02)
        share = (worst.argmin(1) == number).mean()
        assert table.wins[score] == pytest.approx(share, abs=0.08)


@pytest.mark.slow
@pytest.mark.parametrize(("by", "count"), [("worst", 2), ("average", 3)])
def test_equal_scores_seldom_lead(by, count):
    """Scores that are equally good: in about 5% of samples one of them is said to be worse, in 15% at the very most."""
    shifts = {f"s{i}": (1.5, 1.5) for i in range(count)}
    claimed = 0
    for seed in range(20):
        confidences, ood = made(300, sets=(("a", 150),), shifts=shifts, seed=seed)
        choice = sirc.select(confidences, ood=ood, by=by, alpha=[0.2, 0.8], beta=[0.2, 0.8], draws=100)
        claimed += len(choice.tied) < count
    assert claimed <= 3


def test_equal_values_are_called_worse_as_often_as_the_level_says():
    """Of candidates whose values stray as the draws do, one at least is called worse in 5% of 400 samples."""
    rng, count, called = np.random.default_rng(0), 4, 0
    mixing = np.eye(count) + 0.5  # values of scores on the same rows stray together
    for _ in range(400):
        value = rng.normal(size=count) @ mixing
        draws = value + rng.normal(size=(200, count)) @ mixing
        called += not contenders(value, draws, 0.95, 1e-6).all()
    assert 0.025 <= called / 400 <= 0.085


@pytest.mark.slow
@pytest.mark.parametrize("by", ["worst", "average"])
def test_a_gap_of_several_standard_errors_is_found(by):
    """The better one is chosen alone where its lead is over five standard errors; in few rows that lead is noise."""
    shifts = {"plain": (1.5, 1.0), "same": (1.5, 1.0), "better": (2.0, 1.7)}
    alone = tied = 0
    for seed in range(10):
        confidences, ood = made(1500, sets=(("a", 700),), shifts=shifts, seed=seed)
        choice = sirc.select(confidences, ood=ood, by=by, alpha=[0.2, 0.5, 0.8], beta=[0.2, 0.5, 0.8], draws=100)
        alone += choice.best == "better" and not choice.tie
        confidences, ood = made(60, sets=(("a", 30),), shifts=shifts, seed=seed)
        tied += sirc.select(confidences, ood=ood, by=by, draws=100).tie
    assert alone == 10
    assert tied >= 7


def test_the_worst_case_and_the_average_may_choose_differently():
    """A specialist for OOD input is better in most points, and far worse than an all-rounder where OOD is rare."""
    confidences, ood = made(6000, sets=(("a", 3000),), shifts={"all": (1.5, 1.5), "special": (0.9, 2.0)}, seed=2)
    worst = sirc.select(confidences, ood=ood, draws=20)
    average = sirc.select(confidences, ood=ood, draws=20, by="average")
    absolute = sirc.select(confidences, ood=ood, draws=20, relative=False)
    assert [choice.table.score[0] for choice in (worst, average, absolute)] == ["all", "special", "special"]
    assert dict(zip(worst.table.score, worst.table.worst_alpha, strict=True))["special"] == 0.9
    # Not relative, the corner where all risks are large decides.
    assert absolute.table.worst_alpha[1] == absolute.table.worst_beta[1] == 0.1
    assert "average regret" in average.summary.splitlines()[0]


def test_a_tie_says_so_and_takes_the_simplest():
    shifts = {
        "sirc(msp, l1)": (1.5, 1.5),
        "sirc(msp, l1, residual)": (1.5, 1.5),
        "entropy": (1.5, 1.5),
        "msp": (1.5, 1.5),
    }
    confidences, ood = made(400, shifts=shifts, shared=0.9)
    choice = sirc.select(confidences, ood=ood, draws=100)
    assert choice.tie
    assert set(choice.tied) == set(shifts)
    assert choice.tied == tuple(choice.table.score)
    assert choice.best == "entropy"  # of one part, and given before msp
    assert choice.summary.startswith("A tie: ")
    assert "Use entropy" in choice.summary.replace("\n", " ")
    assert str(choice) == choice.summary


def test_a_clear_lead_does_not_speak_of_a_tie():
    confidences, ood = made(2000, shifts={"sirc(msp, l1)": (3.0, 3.0), "msp": (1.0, 1.0)})
    choice = sirc.select(confidences, ood=ood, draws=100)
    assert (choice.best, choice.tie, choice.tied) == ("sirc(msp, l1)", False, ())
    assert "tie" not in choice.summary.split()
    assert choice.table.wins.tolist() == [1.0, 0.0]
    assert repr(choice) == "Choice('sirc(msp, l1)', tie=False, 2 scores)"


def test_scores_that_rank_alike_tie_and_share_the_draws():
    confidences, ood = made(500)
    own, correct = confidences["one"]
    plain = {"first": (own, correct), "second": (np.exp(own), correct), "low": (-own, correct)}
    outside = {"a": {"first": ood["a"]["one"], "second": np.exp(ood["a"]["one"]), "low": -ood["a"]["one"]}}
    choice = sirc.select(plain, ood=outside, draws=50)
    assert choice.tied == ("first", "second")
    assert choice.table.wins.tolist() == [0.5, 0.5, 0.0]
    assert choice.table.worst_high[0] == pytest.approx(0, abs=1e-5)


def test_without_ood_data_only_errors_count_and_the_report_says_so():
    confidences, _ = made(800, shifts={"one": (2.5, 0.0), "two": (1.0, 9.0)})
    choice = sirc.select(confidences, alpha=0.5, draws=100)
    assert choice.alpha == (1.0,)
    assert choice.beta == tuple(ALPHAS)
    assert (choice.best, choice.tie) == ("one", False)
    words = choice.summary.replace("\n", " ")
    assert "No OOD data was given" in words
    assert "Nothing here shows how these scores do on OOD input" in words
    # Risk is β times the share of errors: β plays no part in a relative regret.
    ratio = {s: r.aurr(1, 1) for s, r in rankings(confidences, {}).items()}
    assert choice.table.worst_regret.tolist() == pytest.approx([0, ratio["two"] / ratio["one"] - 1])
    assert choice.table.average_regret.tolist() == pytest.approx(choice.table.worst_regret.tolist())
    assert choice.table.worst_set.isna().all()
    assert choice.table.worst_set_regret.isna().all()
    absolute = sirc.select(confidences, relative=False, draws=50)
    assert absolute.table.worst_beta[1] == 0.9
    for metric in ("aurc", "risk@95"):
        assert sirc.select(confidences, metric=metric, draws=50).best == "one"


def test_a_tie_without_ood_data_does_not_favour_what_finds_ood_input():
    confidences, _ = made(400, shifts={"sirc(msp, residual)": (1.5, 0), "msp": (1.5, 0)}, shared=0.99)
    choice = sirc.select(confidences, draws=100)
    assert choice.tie
    assert choice.best == "msp"
    assert "may differ much there" in choice.summary.replace("\n", " ")


def test_ranges_points_and_arrays():
    confidences, ood = made(200)

    def points(alpha, beta):
        choice = sirc.select(confidences, ood=ood, alpha=alpha, beta=beta, draws=20)
        return choice.alpha, choice.beta

    assert points(0.5, 0.3) == ((0.5,), (0.3,))
    assert points((0.2, 0.6), [0.1, 0.2, 0.7]) == ((0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6), (0.1, 0.2, 0.7))
    assert points(np.array([0.0, 0.5, 1.0]), torch.tensor([0.3, 0.9])) == ((0.0, 0.5, 1.0), (
        *(0.3, 0.375, 0.45, 0.525, 0.6, 0.675, 0.75, 0.825, 0.9),))  # fmt: skip
    one = sirc.select(confidences, ood=ood, alpha=0.5, beta=0.3, draws=20).table
    assert one.worst_regret.tolist() == one.average_regret.tolist()
    assert "(1 point)" in sirc.select(confidences, ood=ood, alpha=0.5, beta=0.3, draws=20).summary


@pytest.mark.slow
def test_the_worst_ood_set_is_told_for_information():
    confidences, ood = made(400, sets=(("a", 300), ("b", 200)), shifts=SHIFTS)
    choice = sirc.select(confidences, ood=ood, draws=20)
    for _, row in choice.table.iterrows():
        alone = {
            name: sirc.select(confidences, ood={name: ood[name]}, draws=20)
            .table.set_index("score")
            .worst_regret[row.score]
            for name in ood
        }
        assert row.worst_set_regret == pytest.approx(max(alone.values()))
        assert alone[row.worst_set] == max(alone.values())
    assert "worst OOD set" in choice.summary


def test_the_seed_and_nothing_else_decides_the_draws():
    confidences, ood = made(200)
    first, again, other = (sirc.select(confidences, ood=ood, draws=40, seed=seed) for seed in (1, 1, 2))
    pd.testing.assert_frame_equal(first.table, again.table)
    assert first.table.worst_high.tolist() != other.table.worst_high.tolist()


def ends(choice):
    columns = [f"{by}_{end}" for by in ("worst", "average") for end in ("low", "high")]
    return choice.table.sort_values("score")[columns].to_numpy()


@pytest.mark.parametrize("relative", [True, False])
@pytest.mark.parametrize("metric", ["aurr", "aurc", "risk@80"])
def test_intervals_without_resampling_are_near_the_bootstrap_s(metric, relative):
    given = made(1500, sets=(("a", 600), ("b", 300)), shifts=SHIFTS)
    how = {"metric": metric, "relative": relative, "alpha": [0.3, 0.5, 0.8], "beta": [0.2, 0.5, 0.6]}
    ours, drawn = (sirc.select(given[0], ood=given[1], method=m, draws=400, **how) for m in ("auto", "bootstrap"))
    assert (ours.method, drawn.method) == ("analytic", "bootstrap")
    np.testing.assert_array_equal(ours.grid["value"], drawn.grid["value"])
    assert np.abs(ends(ours) - ends(drawn)).max() < 0.15 * ends(drawn).max()
    assert "400 draws from the influence of each row" in ours.summary.replace("\n", " ")
    assert "400 draws of a bootstrap" in drawn.summary.replace("\n", " ")


def test_few_samples_or_tied_recalls_fall_back_on_the_bootstrap_and_say_so():
    few = made(40, errors=0.1)
    assert sirc.select(few[0], ood=few[1], draws=20).method == "bootstrap"
    confidences, ood = made(300)
    tied = {score: (own.round(), right) for score, (own, right) in confidences.items()}
    coarse = {name: {score: own.round() for score, own in by_score.items()} for name, by_score in ood.items()}
    assert sirc.select(tied, ood=coarse, metric="risk@95", draws=20).method == "bootstrap"
    assert sirc.select(tied, ood=coarse, draws=20).method == "analytic"
    with pytest.raises(ValueError, match='`method` must be "auto" or "bootstrap"'):
        sirc.select(confidences, ood=ood, method="none")


def noisy(truth, noise, seed, draws=400):
    """Values around the truth, draws around the values: (scores, 1, 1) and (draws, scores, 1, 1)."""
    rng = np.random.default_rng(seed)
    value = truth + noise * rng.normal(size=len(truth))
    return value[:, None, None], (value + noise * rng.normal(size=(draws, len(truth))))[..., None, None]


def test_an_interval_is_that_of_the_difference_to_the_best_and_ends_at_zero():
    value, draws = noisy(np.array([0.1, 0.3]), 0.02, 0, draws=20_000)
    regret = float(value[1, 0, 0] - value[0, 0, 0])
    for name in ("worst", "average"):
        low, high = intervals(value, draws, np.ones((1, 1)), relative=False, level=0.95)[0][name]
        assert low[1] == pytest.approx(regret - 1.96 * 0.02 * 2**0.5, rel=0.02)
        assert high[1] == pytest.approx(regret + 1.96 * 0.02 * 2**0.5, rel=0.02)
        assert (low[0], high[0]) == (0, pytest.approx(0, abs=1e-5))


def test_a_relative_interval_counts_the_noise_of_the_best_too():
    value, draws = noisy(np.log([1.0, 3.0]), 0.1, 0, draws=20_000)
    value, draws = np.exp(value), np.exp(draws)
    low, high = intervals(value, draws, value.min(0), relative=True, level=0.95)[0]["worst"]
    factor = np.exp(1.96 * 0.1 * 2**0.5)
    ratio = float(value[1, 0, 0] / value[0, 0, 0])
    assert (low[1] + 1, high[1] + 1) == (
        pytest.approx(ratio / factor, rel=0.02),
        pytest.approx(ratio * factor, rel=0.02),
    )


@pytest.mark.slow
def test_intervals_hold_the_truth_among_many_equal_scores():
    """The best of ten equal ones is so by luck, and all regrets lie above 0: a true regret of 0 is still inside."""
    held = []
    for seed in range(60):
        value, draws = noisy(np.full(10, 0.5), 0.05, seed)
        low, _ = intervals(value, draws, value.min(0), relative=True, level=0.95)[0]["worst"]
        held.append(low <= 1e-5)
    assert np.mean(held) >= 0.93


def test_the_interval_at_a_point_rests_on_that_point_alone():
    """Two scores: their difference, less and more 1.96 standard errors, or the draws' quantile where that is more."""
    rng = np.random.default_rng(5)
    values = np.array([[[0.20, 0.30]], [[0.26, 0.31]]])
    draws = values + rng.normal(0, 0.01, (4000, 2, 1, 2))
    _, (low, high) = intervals(values, draws, np.ones((1, 2)), relative=False, level=0.95)
    for point in range(2):
        d, off = values[1, 0, point] - values[0, 0, point], draws[:, 1, 0, point] - draws[:, 0, 0, point]
        c = max(1.96, np.quantile((off - d) / off.std(ddof=1), 0.975))
        assert low[1, 0, point] == pytest.approx(max(0.0, d - c * off.std(ddof=1)), rel=1e-3)
        assert high[1, 0, point] == pytest.approx(d + 1.96 * off.std(ddof=1), rel=1e-3)
    assert (low[0] == 0).all()
    confidences, ood = made(300, sets=(("a", 150),), shifts=SHIFTS)
    choice = sirc.select(confidences, ood=ood, alpha=(0.3, 0.7), beta=0.5, draws=40)
    assert list(choice.grid) == ["score", "alpha", "beta", "value", "regret", "low", "high"]


def test_a_best_near_zero_leaves_finite_intervals():
    value, draws = noisy(np.array([1e-4, 0.2]), 5e-5, 1)
    found, _ = intervals(np.abs(value), np.maximum(draws, 0), np.abs(value).min(0), relative=True, level=0.95)
    assert all(np.isfinite(end).all() for ends in found.values() for end in ends)


def test_only_those_that_differ_by_more_than_all_noise_are_out():
    rng = np.random.default_rng(0)
    value = np.array([0.0, 0.1, 1.0])
    draws = value + 0.1 * rng.normal(size=(2000, 3))
    assert contenders(value, draws, 0.95, 1e-6).tolist() == [True, True, False]
    # Tukey's quantile for three means, 3.31/√2, times the standard error 0.1·√2 of a difference.
    limit = 3.314 * 0.1
    for gap, inside in ((0.92 * limit, True), (1.08 * limit, False)):
        value = np.array([0.0, gap, 0.0])
        assert contenders(value, value + draws - draws.mean(0), 0.95, 1e-6)[1] == inside
    assert wins(np.array([[0.0, 0.0, 1.0], [2.0, 1.0, 1.5]]), 1e-9).tolist() == [0.25, 0.75, 0.0]


def outputs(n, seed=0, shift=0.0, labelled=True):
    rng = np.random.default_rng(seed)
    weight = np.random.default_rng(99).normal(size=(4, 6))
    labels = rng.integers(0, 4, n)
    features = np.maximum(weight[labels] * (1.0 if labelled else 0.2) + 1.3 * rng.normal(size=(n, 6)) + shift, 0)
    return sirc.Outputs(features @ weight.T, features, labels if labelled else None)


@pytest.fixture(scope="module")
def scorer():
    return sirc.fit(["msp", "l1", "sirc(msp, l1)", "entropy"], outputs(2000, 1))


def test_a_scorer_chooses_as_its_confidences_do(scorer):
    val, far = outputs(500, 2), outputs(200, 3, 0.5, labelled=False)
    by_scorer = sirc.select(scorer, val, {"far": far}, scores=["msp", "l1", "entropy"], draws=50)
    found, outside = scorer(val), scorer(far)
    names = ["msp", "l1", "entropy"]
    plain = {s: (found[s], val.correct) for s in names}
    by_hand = sirc.select(plain, ood={"far": {s: outside[s] for s in names}}, draws=50)
    pd.testing.assert_frame_equal(by_scorer.table, by_hand.table)
    assert by_scorer.sizes == {"correct": int(val.correct.sum()), "wrong": int((~val.correct).sum()), "far": 200}
    batches = sirc.select(scorer, [val[:200], val[200:]], {"far": [far]}, scores=names, draws=50)
    pd.testing.assert_frame_equal(batches.table, by_hand.table)


def test_rows_that_the_scorer_was_fitted_on_are_refused(scorer):
    with pytest.raises(ValueError, match=r"`val` must be rows that the scorer was not fitted on; got about \d+%"):
        sirc.select(scorer, outputs(2000, 1), draws=20)
    with pytest.raises(ValueError, match=r"`ood\['same'\]` must be rows that the scorer was not fitted on"):
        sirc.select(scorer, outputs(500, 2), {"same": outputs(2000, 1)}, draws=20)
    seen = outputs(2000, 1)
    for batches in ([seen[:900], seen[900:]], (seen,)):
        with pytest.raises(ValueError, match="`val` must be rows that the scorer was not fitted on"):
            sirc.select(scorer, batches, draws=20)
    # What learnt nothing cannot be flattered.
    assert sirc.select(scorer, outputs(2000, 1), scores=["msp", "l1"], draws=20).best in ("msp", "l1")


def test_mistakes_are_answered_in_words(scorer):
    confidences, ood = made(100)
    val = outputs(100, 2)
    cases = [
        (lambda: sirc.select("msp", val), "`scorer` must be a `Scorer`, or"),
        (lambda: sirc.select(scorer), "`val` must be labelled ID outputs, a store or batches of them; got none"),
        (lambda: sirc.select(scorer, 3), "got int"),
        (lambda: sirc.select(scorer, outputs(50, 4, labelled=False)), "`val` must have labels"),
        (lambda: sirc.select(scorer, val, scores=["msp"]), "`select` needs at least two scores; got msp"),
        (lambda: sirc.select(scorer, val, scores="msp"), "at least two scores"),
        (lambda: sirc.select(scorer, val, scores=["msp", "energy"]), "not among the scorer's specs"),
        (lambda: sirc.select({}), "at least one score is needed"),
        (lambda: sirc.select(confidences, val), "`val` must be left out with confidences from elsewhere"),
        (lambda: sirc.select(confidences, ood=[ood]), "`ood` must be a dict of OOD sets; got list"),
        (
            lambda: sirc.select(confidences, ood={"a": {"one": [1.0]}}),
            "with the scores of the ID data, .*; got only one",
        ),
        (lambda: sirc.select(confidences, ood={"pooled": ood["a"]}), "has its own meaning"),
        (lambda: sirc.select(confidences, ood={"correct": ood["a"]}), "'correct' has its own meaning"),
        (lambda: sirc.select(confidences, ood=ood, metric="auroc"), "`metric` must be"),
        (lambda: sirc.select(confidences, ood=ood, seed="x"), "`seed` must be a whole number ≥ 0; got 'x'"),
        (lambda: sirc.select(confidences, ood=ood, metric=None), "`metric` must be .*; got None"),
        (lambda: sirc.select(confidences, ood=ood, metric="risk@0"), "`metric` must be"),
        (lambda: sirc.select(confidences, ood=ood, metric="risk@101"), "`metric` must be"),
        (lambda: sirc.select(confidences, ood=ood, by="best"), '`by` must be "worst" or "average"'),
        (lambda: sirc.select(confidences, ood=ood, pool="rows"), "`pool` must be"),
        (lambda: sirc.select(confidences, ood=ood, level=1.0), "`level` must lie between 0 and 1"),
        (lambda: sirc.select(confidences, ood=ood, draws=19), "a level of 0.95 needs at least 20 draws; got 19"),
        (lambda: sirc.select(confidences, ood=ood, level=0.9999), "at least 10000 draws; got 1000. Use 10000"),
        (lambda: sirc.select(confidences, ood=ood, draws=0), "`draws` must be a whole number"),
        (
            lambda: sirc.select(confidences, ood=ood, alpha=(0.9, 0.1)),
            r"must be a range \(low, high\); got \(0.9, 0.1\)",
        ),
        (lambda: sirc.select(confidences, ood=ood, beta=50), r"`beta` must lie in \[0, 1\]"),
        (lambda: sirc.select(confidences, beta=0.0), "accepting a mistake must cost something"),
        (
            lambda: sirc.select(confidences, ood=ood, alpha=0.0, beta=1.0),
            "accepting a mistake must cost something",
        ),
    ]
    for call, words in cases:
        with pytest.raises(ValueError, match=words):
            call()
    own, _ = confidences["one"]
    for right, words in (
        (np.ones(100, bool), "got 100 that are all right"),
        (np.zeros(100, bool), "at least one prediction"),
    ):
        with pytest.raises(ValueError, match=words):
            sirc.select({"one": (own, right), "two": (own, right)})


def test_a_perfect_score_has_no_relative_regret():
    correct = np.arange(40) >= 10
    rng = np.random.default_rng(0)
    plain = {"perfect": (correct * 1.0, correct), "other": (rng.normal(size=40), correct)}
    with pytest.raises(ValueError, match=r"needs a best value above 0; got 0 at α = 1, β = 0\.1"):
        sirc.select(plain, metric="risk@95")
    choice = sirc.select(plain, metric="risk@95", relative=False, draws=50)
    assert choice.best == "perfect"
    assert "With only 30 ID✓ and 10 ID✗" in choice.summary.replace("\n", " ")
    assert "points (hundredths) above the best" in choice.summary.replace("\n", " ")


def test_points_where_nothing_costs_anything_have_no_regret():
    confidences, ood = made(200)
    choice = sirc.select(confidences, ood=ood, alpha=[0.0, 0.5, 1.0], beta=[0.0, 0.5, 1.0], draws=20)
    grid = choice.grid.set_index(["alpha", "beta"])
    assert (grid.loc[[(0.0, 1.0), (1.0, 0.0)], "regret"] == 0).all()
    assert np.isfinite(choice.table.drop(columns=["score", "worst_set"]).to_numpy(dtype=float)).all()


@pytest.fixture
def files(tmp_path, scorer):
    far = outputs(200, 3, 0.5, labelled=False)
    for name, data in {"train": outputs(2000, 1), "val": outputs(400, 2), "far": far}.items():
        data.save(tmp_path / f"{name}.npz")
    scorer.save(tmp_path / "scorer.safetensors")
    return tmp_path


def test_the_command_prints_what_the_function_finds(command, files, scorer):
    common = ["select", "--val", files / "val.npz", "--ood", f"far={files / 'far.npz'}", "--draws", "50", "--quiet"]
    code, out, _ = command(*common, "--scorer", files / "scorer.safetensors", "--alpha", "0.5,0.9", "--beta", "0.5")
    assert code == 0
    val, far = outputs(400, 2), outputs(200, 3, 0.5, labelled=False)
    assert out.split() == str(sirc.select(scorer, val, {"far": far}, alpha=(0.5, 0.9), beta=0.5, draws=50)).split()
    options = ["--train", files / "train.npz", "--score", "msp", "--score", "l1", "--by", "average", "--absolute"]
    code, out, _ = command(*common, *options, "--metric", "risk@90", "--pool", "samples", "--json")
    assert code == 0
    (found,) = json.loads(out)
    want = sirc.select(
        scorer, val, {"far": far}, scores=["msp", "l1"], by="average", relative=False, metric="risk@90",
        pool="samples", draws=50,
    )  # fmt: skip
    assert found == {"model": "val", **want.to_dict()}


def test_the_command_without_ood_data_takes_all_that_can_be_fitted(command, files):
    code, out, _ = command("select", "--val", files / "val.npz", "--train", files / "train.npz", "--draws", "20", "-q")
    assert code == 0
    assert "No OOD data was given" in out
    assert "sirc(entropy, l1)" in out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ([], 2, "needs either RUN folders or your own outputs"),
        (["nowhere", "--val", "val.npz"], 2, "needs either RUN folders or your own outputs"),
        (["nowhere", "--ood", "x=y"], 2, "such options are only for `--val`"),
        (["--val", "val.npz"], 2, "needs a scorer"),
        (
            ["--val", "val.npz", "--scorer", "scorer.safetensors", "--head", "h.npz"],
            2,
            "a saved scorer has all it needs",
        ),
        (["--val", "val.npz", "--scorer", "scorer.safetensors", "--crossfit", "0"], 2, "`--crossfit` would do nothing"),
        (["--val", "val.npz", "--train", "train.npz", "--crossfit", "x"], 2, "must be auto or a whole number"),
        (["--val", "val.npz", "--train", "train.npz", "--on-unfit", "stop"], 2, "is for scores that `--score` names"),
        (["--val", "val.npz", "--scorer", "scorer.safetensors", "--alpha", "low"], 2, "`--alpha` must be numbers"),
        (["--val", "val.npz", "--scorer", "scorer.safetensors", "--by", "x"], 2, "Invalid value for '--by'"),
        (["--val", "val.npz", "--scorer", "scorer.safetensors", "--pool", "x"], 2, "Invalid value for '--pool'"),
        (["--val", "no.npz", "--scorer", "scorer.safetensors"], 1, "no file or store 'no.npz'"),
        (["--val", "val.npz", "--scorer", "scorer.safetensors", "--score", "msp"], 1, "at least two scores"),
        (["--val", "train.npz", "--scorer", "scorer.safetensors"], 1, "was not fitted on"),
        (["--val", "val.npz", "--train", "train.npz", "--head", "val.npz"], 1, "must hold `head_weight`"),
        (["nowhere"], 1, "there is no folder"),
    ],
)
def test_the_command_says_what_is_wrong(command, files, monkeypatch, arguments, code, words):
    monkeypatch.chdir(files)
    got, out, err = command("select", *arguments)
    assert (got, out) == (code, "")
    assert words in err


@pytest.mark.slow
def test_the_command_chooses_for_each_run_of_a_study(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    validation = '[data.validation]\ndataset = "folder"\npath = "labelled"\n\n[data.ood.Grey]'
    counts = {"images": 45, "held-out": 30, "labelled": 24, "grey": 10}
    write_short_study(counts, {"[1, 2]": "[1]", "[data.ood.Grey]": validation})
    without = [word for name in ("train", "test", "Grey", "Noise") for word in ("--only", name)]
    for stage, options in (("train", ()), ("extract", without), ("fit", ())):
        assert command(stage, "tiny.toml", "--device", "cpu", *options)[0] == 0
    code, out, err = command("select", "runs/tiny", "--draws", "20", "--json")
    assert code == 0
    (found,) = json.loads(out)
    assert found["sizes"]["correct"] + found["sizes"]["wrong"] == 30
    assert {"Grey", "Noise"} <= set(found["sizes"])
    assert "its test images choose the score" in err
    assert command("extract", "tiny.toml", "--device", "cpu", "--only", "validation")[0] == 0
    code, out, err = command("select", "runs/tiny", "--draws", "20")
    assert (code, err) == (0, "")
    assert out.startswith("tiny, seed 1\n")
    sizes = re.search(r"(\d+) ID✓, (\d+) ID✗, 10 Grey and 6 Noise", out.replace("\n", " "))
    assert int(sizes[1]) + int(sizes[2]) == 12  # half of them; the others set the threshold


@pytest.mark.parametrize("method", ["auto", "bootstrap"])
def test_perfect_scores_are_tied(method):
    right = np.arange(40) < 30
    scores = {f"s{i}": (right * 1.0, right) for i in range(3)}
    ood = {"x": {name: np.zeros(20) - 1 for name in scores}}
    choice = sirc.select(scores, ood=ood, relative=False, method=method, draws=50)
    assert choice.tie
