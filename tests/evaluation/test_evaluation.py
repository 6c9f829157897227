"""evaluate, Evaluation and combine: the table against the reference, every way in, every error's words."""

import math

import numpy as np
import pandas as pd
import pytest
import torch

import sirc
from sirc import Ranking
from support.metric_reference import Mixture

COLUMNS = ["score", "negative", "metric", "alpha", "beta", "value"]
SPECS = ["msp", "energy"]


def small_problem(seed=0, scores=("one", "two")):
    """Confidences with many ties: 14 ID, OOD sets of 4 and 9."""
    rng = np.random.default_rng(seed)
    right = rng.permutation(np.repeat([True, False], [10, 4]))
    given = {s: (rng.integers(0, 6, 14).astype(float) + right, right) for s in scores}
    sizes = {"a": 4, "b": 9}
    ood = {name: {s: rng.integers(-2, 5, n).astype(float) for s in scores} for name, n in sizes.items()}
    return given, ood


def reference_values(plain, negative, alphas, betas, recall):
    """{(metric, α, β): value} of one ranking, α and β None where they play no part."""
    at = f"{100 * recall:g}"
    found = {("auroc", None, None): plain.auroc(negative), (f"fpr@{at}", None, None): plain.fpr(negative, recall)}
    if negative == "wrong":
        found["error", None, None] = len(plain.wrong) / plain.n_id
        alphas = [1.0]
    for a in alphas:
        for b in betas:
            found["aurr", a, b] = plain.aurr(a, b)
            found[f"risk@{at}", a, b] = plain.risk_at_recall(recall, a, b)
            found["aurc", a, b] = plain.aurc(a, b)
            found["augrc", a, b] = plain.augrc(a, b)
    return found


def is_referenced(table):
    """Which rows are of metrics that `reference_values` has."""
    return table["metric"].str.match("(error|auroc|fpr|aurr|risk|aurc|augrc)(@|$)")


def as_dict(table, score, negative):
    rows = table[(table["score"] == score) & (table["negative"] == negative) & is_referenced(table)]
    cells = [(r.metric, *(None if math.isnan(x) else x for x in (r.alpha, r.beta)), r.value) for r in rows.itertuples()]
    assert len({cell[:3] for cell in cells}) == len(cells)
    return {cell[:3]: cell[3] for cell in cells}


@pytest.fixture(scope="module")
def outputs():
    generator = torch.Generator().manual_seed(0)

    def some(n, scale, labelled=False):
        labels = torch.randint(0, 5, (n,), generator=generator)
        logits = torch.randn(n, 5, generator=generator)
        logits[torch.arange(n), labels] += scale
        return sirc.Outputs(logits, labels=labels if labelled else None)

    return {"test": some(90, 2.0, True), "near": some(40, 1.0), "far": some(25, 0.0)}


# The table


@pytest.mark.slow
@pytest.mark.parametrize("pool", ["samples", "datasets"])
@pytest.mark.parametrize("recall", [0.95, 0.7])
def test_the_table_holds_every_score_and_negative(pool, recall):
    given, ood = small_problem()
    alphas, betas = [0.3, 1.0], [0.0, 0.5, 0.8]
    ev = sirc.evaluate(
        given, ood=ood, alpha=alphas, beta=betas, groups={"G": ["b", "a"], "H": ["b"]}, pool=pool, recall=recall
    )
    table = ev.table
    assert list(table.columns) == COLUMNS
    assert list(dict.fromkeys(table["score"])) == ["one", "two"]
    assert list(dict.fromkeys(table["negative"])) == ["wrong", "a", "b", "OOD mean", "pooled", "G", "H"]
    assert is_referenced(table).sum() == 2 * (3 + 4 * 3 + 6 * (2 + 4 * 6))
    for score, (confidence, right) in given.items():
        inside = confidence[right].tolist(), confidence[~right].tolist()
        sets = {name: values[score].tolist() for name, values in ood.items()}

        def mixed(*names, inside=inside, sets=sets):
            values = [s for name in names for s in sets[name]]
            weights = [1 / len(sets[name]) for name in names for _ in sets[name]] if pool == "datasets" else None
            return Mixture(*inside, values, weights)

        expected = {
            "wrong": reference_values(mixed("a"), "wrong", alphas, betas, recall),
            **{name: reference_values(mixed(name), "ood", alphas, betas, recall) for name in sets},
            "pooled": reference_values(mixed("a", "b"), "ood", alphas, betas, recall),
            "G": reference_values(mixed("b", "a"), "ood", alphas, betas, recall),
            "H": reference_values(mixed("b"), "ood", alphas, betas, recall),
        }
        expected["OOD mean"] = {key: (value + expected["b"][key]) / 2 for key, value in expected["a"].items()}
        for negative, values in expected.items():
            assert as_dict(table, score, negative) == pytest.approx(values, abs=1e-13), negative


@pytest.mark.parametrize("types", [("f4", "f4", "f4"), ("f8", "f8", "f8"), ("f8", "f4", "f8"), ("f4", "f4", "f8")])
def test_the_table_is_that_of_rankings_sorted_one_by_one(types):
    rng = np.random.default_rng(1)
    inside, *sets = (rng.normal(size=n).round(2).astype(dtype) for n, dtype in zip((700, 300, 90), types, strict=True))
    right = rng.random(700) < 0.6
    for values in (inside, *sets):
        values[:12] = [np.inf, np.inf, -np.inf, 0.0, -0.0, 0.0, -0.0, 0.01, 0.01, 3.0, 3.0, -3.0]
    ood = dict(zip("ab", sets, strict=True))
    ev = sirc.evaluate({"s": (inside, right)}, ood={name: {"s": x} for name, x in ood.items()}, groups={"G": ["b"]})
    rankings = {
        "wrong": Ranking(inside[right], inside[~right]),
        **{name: Ranking(inside[right], inside[~right], x) for name, x in (*ood.items(), ("G", ood["b"]))},
        "pooled": Ranking(inside[right], inside[~right], np.concatenate(sets)),
    }
    for negative, r in rankings.items():
        kind, alpha = ("wrong", 1.0) if negative == "wrong" else ("ood", 0.5)
        found = as_dict(ev.table, "s", negative)
        assert found["auroc", None, None] == r.auroc(kind)
        assert found["fpr@95", None, None] == r.fpr(kind)
        for metric in ("aurr", "aurc", "augrc"):
            assert found[metric, alpha, 0.5] == getattr(r, metric)(alpha, 0.5), (negative, metric)
        assert found["risk@95", alpha, 0.5] == r.risk_at_recall(0.95, alpha, 0.5)


def test_the_table_is_a_copy():
    ev = sirc.evaluate(*small_problem()[:1])
    table = ev.table
    table["value"] = 7
    assert (ev.table["value"] != 7).all()


def test_pools_weigh_samples_or_sets():
    right = {"s": ([2.0, 2.0], [True, True])}
    ood = {"a": {"s": [3.0]}, "b": {"s": [1.0, 1.0, 1.0]}}

    def pooled(pool):
        ev = sirc.evaluate(right, ood=ood, pool=pool)
        return ev.table.query("negative == 'pooled' and metric == 'auroc'")["value"].item()

    assert pooled("samples") == 0.75
    assert pooled("datasets") == pytest.approx(0.5, abs=1e-15)


# The ways in


def direct(outputs, spec, *sets):
    """The Ranking of a scorer's confidences, put together by hand."""
    scorer = sirc.Scorer(SPECS)
    inside = scorer(outputs["test"])[spec]
    outside = torch.cat([scorer(outputs[name])[spec] for name in sets])
    right = outputs["test"].logits.argmax(1) == outputs["test"].labels
    return Ranking(inside[right], inside[~right], outside)


def test_a_scorer_is_evaluated_on_outputs(outputs):
    ood = {name: outputs[name] for name in ("near", "far")}
    table = sirc.evaluate(sirc.Scorer(SPECS), outputs["test"], ood, alpha=0.7, beta=0.2).table
    assert set(table["score"]) == set(SPECS)
    for spec in SPECS:
        r = direct(outputs, spec, "near", "far")
        found = as_dict(table, spec, "pooled")
        assert found["aurr", 0.7, 0.2] == pytest.approx(r.aurr(0.7, 0.2), abs=1e-14)
        assert found["auroc", None, None] == pytest.approx(r.auroc("ood"), abs=1e-14)
        assert as_dict(table, spec, "wrong")["error", None, None] == pytest.approx(1 - r.accuracy)
        near = direct(outputs, spec, "near")
        assert as_dict(table, spec, "near")["risk@95", 0.7, 0.2] == pytest.approx(near.risk_at_recall(0.95, 0.7, 0.2))
    msp, energy = (as_dict(table, spec, "pooled")["aurr", 0.7, 0.2] for spec in SPECS)
    assert msp != energy


def test_outputs_stores_and_batches_give_the_same_table(outputs, tmp_path):
    scorer = sirc.Scorer(SPECS)
    expected = sirc.evaluate(scorer, outputs["test"], {"near": outputs["near"]}).table
    stores = [sirc.OutputStore.from_outputs(tmp_path / name, outputs[name], shard_size=17) for name in ("test", "near")]
    pd.testing.assert_frame_equal(sirc.evaluate(scorer, stores[0], {"near": stores[1]}).table, expected)
    batches = (batch for batch in outputs["test"].batches(13))
    mappings = [{"logits": batch.logits.numpy()} for batch in outputs["near"].batches(7)]
    pd.testing.assert_frame_equal(sirc.evaluate(scorer, batches, {"near": iter(mappings)}).table, expected)
    tuples = [(outputs["test"].logits, None, outputs["test"].labels)]
    pd.testing.assert_frame_equal(sirc.evaluate(scorer, tuples, {"near": [(outputs["near"].logits,)]}).table, expected)


def test_confidences_of_a_scorer_may_come_from_elsewhere(outputs):
    scorer = sirc.Scorer(SPECS)
    expected = sirc.evaluate(scorer, outputs["test"], {"near": outputs["near"]}).table
    right = outputs["test"].logits.argmax(1) == outputs["test"].labels
    inside, outside = scorer(outputs["test"]), scorer(outputs["near"])
    for convert, flags in ((torch.Tensor.numpy, right.int().numpy()), (torch.Tensor.tolist, right.tolist())):
        given = {spec: (convert(inside[spec]), flags) for spec in SPECS}
        plain = sirc.evaluate(given, ood={"near": {spec: convert(outside[spec]) for spec in SPECS}})
        pd.testing.assert_frame_equal(plain.table, expected)


def test_scores_picks_and_orders(outputs):
    ev = sirc.evaluate(sirc.Scorer(SPECS), outputs["test"], {"near": outputs["near"]}, scores=["energy"])
    assert ev.scores == ["energy"]
    assert set(ev.table["score"]) == {"energy"}
    assert ev.table["value"].notna().all()
    given, ood = small_problem()
    assert sirc.evaluate(given, ood=ood, scores=["two", "one"]).scores == ["two", "one"]
    assert list(dict.fromkeys(sirc.evaluate(given, ood=ood, scores=["two", "one"]).table["score"])) == ["two", "one"]


def test_an_ood_set_may_have_scores_that_are_not_asked_for():
    given, ood = small_problem()
    ood["a"]["more"] = [1.0]
    assert sirc.evaluate(given, ood=ood).scores == ["one", "two"]


def test_without_ood_there_is_what_id_data_tells():
    given, _ = small_problem()
    for ood in (None, {}):
        ev = sirc.evaluate(given, ood=ood)
        assert ev.negatives == ["wrong"]
        of_id = ["error", "auroc", "fpr@95", "aurr", "risk@95", "aurc", "augrc"]
        assert list(ev.table["metric"][is_referenced(ev.table)]) == of_id * 2
        assert set(ev.table["alpha"].dropna()) == {1}
        assert "no OOD" in repr(ev)


def test_without_ood_the_ranking_is_for_alpha_one():
    given, _ = small_problem()
    confidence, right = given["one"]
    r = sirc.evaluate(given, alpha=1).ranking("one", "wrong")
    assert r.aurc(1, 1) == pytest.approx(
        Mixture(confidence[right].tolist(), confidence[~right].tolist(), []).aurc(1, 1)
    )


def test_without_wrong_predictions_the_error_is_zero():
    ev = sirc.evaluate({"s": ([3.0, 2, 1], [1, 1, 1])}, ood={"x": {"s": [2.0, 0]}})
    assert ev.negatives == ["x", "OOD mean", "pooled"]
    assert as_dict(ev.table, "s", "wrong") == {("error", None, None): 0}
    assert as_dict(ev.table, "s", "x")["auroc", None, None] == pytest.approx(4.5 / 6)


def test_a_repr_says_what_is_inside():
    given, ood = small_problem()
    assert repr(sirc.evaluate(given, ood=ood)) == "Evaluation(2 scores; 10 correct, 4 wrong; a 4, b 9)"


# Rankings, sweeps, curves


@pytest.mark.slow
@pytest.mark.parametrize("pool", ["samples", "datasets"])
def test_a_sweep_is_the_grid_of_each_mixture(pool):
    given, ood = small_problem()
    alphas, betas = [0.1, 0.6, 1.0], np.array([0.0, 0.4])
    ev = sirc.evaluate(given, ood=ood, groups={"G": ["b"]}, pool=pool, recall=0.8)
    sweep = ev.sweep(alphas, betas)
    assert list(sweep.columns) == COLUMNS
    assert set(sweep["negative"]) == {"pooled", "G"}
    assert set(sweep["metric"]) == {"aurr", "risk@80", "aurc", "augrc"}
    assert len(sweep) == 2 * 2 * 4 * 6
    weights = [1 / 4] * 4 + [1 / 9] * 9 if pool == "datasets" else None
    for score, (confidence, right) in given.items():
        inside = confidence[right].tolist(), confidence[~right].tolist()
        pooled = Mixture(*inside, [*ood["a"][score].tolist(), *ood["b"][score].tolist()], weights)
        for negative, plain in (("pooled", pooled), ("G", Mixture(*inside, ood["b"][score].tolist()))):
            expected = reference_values(plain, "ood", alphas, betas.tolist(), 0.8)
            expected = {key: value for key, value in expected.items() if key[1] is not None}
            assert as_dict(sweep, score, negative) == pytest.approx(expected, abs=1e-13)


def test_a_sweep_takes_some_groups_and_scores():
    given, ood = small_problem()
    ev = sirc.evaluate(given, ood=ood, groups={"G": ["b"]})
    sweep = ev.sweep(0.5, [0.5, 1], ["a", "G"], scores=["two"])
    assert set(sweep["negative"]) == {"a", "G"}
    assert set(sweep["score"]) == {"two"}
    assert len(sweep) == 2 * 4 * 2
    alone = sirc.evaluate(given).sweep([1.0], [1.0], ["wrong"])
    assert set(alone["negative"]) == {"wrong"}


@pytest.mark.parametrize("kind", ["risk_recall", "risk_coverage"])
def test_curves_are_those_of_the_mixture(kind):
    given, ood = small_problem()
    ev = sirc.evaluate(given, ood=ood, alpha=0.6, beta=0.3)
    curves = ev.curves(kind, negative="b")
    assert list(curves) == ["one", "two", *(["oracle"] if kind == "risk_coverage" else [])]
    for score, (confidence, right) in given.items():
        plain = Mixture(confidence[right].tolist(), confidence[~right].tolist(), ood["b"][score].tolist())
        x = [plain.recall(t) if kind == "risk_recall" else plain.coverage(t, 0.6) for t in plain.thresholds]
        assert curves[score].x.tolist() == pytest.approx([float(v) for v in x])
        assert curves[score].risk.tolist() == pytest.approx([float(plain.risk(t, 0.6, 0.3)) for t in plain.thresholds])
        assert curves[score].threshold.tolist() == plain.thresholds
    other = ev.curves(kind, negative="b", alpha=0.2, beta=0.9, scores=["two"])
    assert "one" not in other
    last = 0.9 * 0.2 * 4 / 14 + 0.1 * 0.8
    assert float(other["two"].risk[-1]) == pytest.approx(last)


def test_several_alphas_need_a_choice_for_curves_and_draws():
    given, ood = small_problem()
    ev = sirc.evaluate(given, ood=ood, alpha=[0.2, 0.8], beta=0.5)
    for call in (ev.curves, ev.intervals, lambda: ev.compare("one")):
        with pytest.raises(
            ValueError, match=r"`alpha` must be one number here; got \[0.2, 0.8\]. Pass `alpha=` one of them"
        ):
            call()
    chosen = ev.intervals(draws=10, alpha=0.8)
    single = sirc.evaluate(given, ood=ood, alpha=0.8, beta=0.5).intervals(draws=10)
    pd.testing.assert_frame_equal(chosen, single)
    assert set(chosen.query("negative != 'wrong'")["alpha"].dropna()) == {0.8}
    with pytest.raises(ValueError, match="`alpha` must be one number here"):
        ev.curves(alpha=[0.2, 0.8])


def test_intervals_have_the_rows_of_the_table():
    given, ood = small_problem()
    ev = sirc.evaluate(given, ood=ood, groups={"G": ["b"]}, recall=0.7)
    table = ev.intervals(draws=10)
    assert list(table.columns) == [*COLUMNS, "se", "low", "high", "method"]
    pd.testing.assert_frame_equal(table[COLUMNS], ev.table)
    expected = ev.table[ev.table["metric"] != "error"].reset_index(drop=True)
    pd.testing.assert_frame_equal(ev.intervals(method="bootstrap", draws=10)[COLUMNS], expected)
    versus = ev.compare("two", draws=10)
    assert list(versus.columns) == [*COLUMNS, "difference", "se", "low", "high", "wins", "method"]
    pd.testing.assert_frame_equal(versus[COLUMNS], expected[expected["score"] == "one"].reset_index(drop=True))
    assert versus["wins"].between(0, 1).all()


# Several runs


def test_combine_is_mean_and_two_sample_standard_deviations():
    runs = [sirc.evaluate(given, ood=ood) for given, ood in map(small_problem, range(3))]
    combined = sirc.combine(runs)
    assert list(combined.columns) == [*COLUMNS[:-1], "mean", "std", "low", "high", "runs"]
    values = np.stack([run.table["value"].to_numpy() for run in runs])
    pd.testing.assert_frame_equal(combined[COLUMNS[:-1]], runs[0].table[COLUMNS[:-1]])
    np.testing.assert_allclose(combined["mean"], values.mean(0))
    np.testing.assert_allclose(combined["std"], values.std(0, ddof=1), atol=1e-15)
    np.testing.assert_allclose(combined["low"], values.mean(0) - 2 * values.std(0, ddof=1), atol=1e-15)
    np.testing.assert_allclose(combined["high"], values.mean(0) + 2 * values.std(0, ddof=1), atol=1e-15)
    assert (combined["runs"] == 3).all()


def test_combine_takes_tables_in_any_row_order():
    first, second = (sirc.evaluate(*problem[:1], ood=problem[1]).table for problem in map(small_problem, range(2)))
    expected = sirc.combine([first, second])
    pd.testing.assert_frame_equal(sirc.combine([first, second.sample(frac=1, random_state=0)]), expected)


def test_one_run_has_no_spread():
    given, ood = small_problem()
    ev = sirc.evaluate(given, ood=ood)
    combined = sirc.combine([ev])
    np.testing.assert_array_equal(combined["mean"], ev.table["value"])
    assert combined[["std", "low", "high"]].isna().all(axis=None)
    assert (combined["runs"] == 1).all()


def test_runs_that_differ_do_not_combine():
    given, ood = small_problem()
    first = sirc.evaluate(given, ood=ood)
    for second, words in (
        (sirc.evaluate(given, ood=ood, scores=["one"]), "score=two"),
        (sirc.evaluate(given, ood=ood, alpha=0.7), r"alpha=0\.[57]"),
        (sirc.evaluate(given, ood={"a": ood["a"]}), "negative=b"),
        (sirc.evaluate(given, ood=ood, recall=0.8), "metric=(fpr|risk)@"),
    ):
        with pytest.raises(ValueError, match=rf"same scores, sets, α and β; \d+ rows are not in every run, .*{words}"):
            sirc.combine([first, second])
    with pytest.raises(ValueError, match="`runs` must hold at least one evaluation; got none"):
        sirc.combine([])


# What bad input gets


ID = {"s": ([3.0, 2, 1], [1, 0, 1])}
OOD = {"x": {"s": [2.0, 0]}}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"scorer": {}}, "at least one score is needed"),
        ({"scorer": ID, "test": 3}, "`test` must be left out with confidences from elsewhere"),
        ({"scorer": {"s": [1.0, 2, 3]}}, r"score 's' must come as \(confidence, correct\); got list"),
        ({"scorer": {"s": np.ones(2)}}, r"must come as \(confidence, correct\); got ndarray"),
        ({"scorer": {"s": ([1.0, 2], [1])}}, "`correct of 's'` must have as many rows as `confidence`; got 1 and 2"),
        ({"scorer": {"s": ([1.0, 2], [[1], [0]])}}, r"`correct of 's'` must be 1-D.*got shape \(2, 1\)"),
        ({"scorer": {"s": ([1.0, 2], [1, 7])}}, "`correct of 's'` must hold True and False, or 1 and 0"),
        ({"scorer": {"s": ([[1.0], [2]], [1, 0])}}, "`confidence of 's'` must be 1-D"),
        (
            {"scorer": {"s": ([1.0, math.nan], [1, 0])}},
            "`confidence of 's'` must not hold NaN.*got 1 of 2, the first at index 1",
        ),
        ({"scorer": {"s": ([1.0, 2], [0, 0])}}, "at least one prediction must be right.*got 2 wrong"),
        ({"scorer": ID | {"t": ([1.0, 2, 3], [1, 1, 1])}}, "`correct` differs between 's' and 't'.*see `sirc.combine`"),
        ({"scorer": ID, "scores": ["t"]}, "`scores` must be among those given, s; got 't'"),
        ({"scorer": ID, "scores": []}, "at least one score is needed"),
        (
            {"scorer": ID, "ood": {"x": [1.0, 2]}},
            "OOD set 'x' must be {score: confidence} with the scores of the ID data, s; got list",
        ),
        ({"scorer": ID, "ood": {"x": {"t": [1.0]}}}, "scores of the ID data, s; got only t"),
        ({"scorer": ID, "ood": {"x": {}}}, "scores of the ID data, s; got only none"),
        ({"scorer": ID, "ood": {"x": {1: [1.0]}}}, "scores of the ID data, s; got only 1"),
        ({"scorer": ID, "ood": {"x": {"s": []}}}, r"OOD set 'x' must have the same samples, at least one.*got \[0\]"),
        ({"scorer": ID, "ood": {"x": {"s": [math.nan]}}}, r"`ood\['x'\]\['s'\]` must not hold NaN"),
        ({"scorer": ID, "ood": {"wrong": OOD["x"]}}, "'wrong' has its own meaning in the table"),
        ({"scorer": ID, "ood": {"pooled": OOD["x"]}}, "'pooled' has its own meaning"),
        ({"scorer": ID, "ood": {"correct": OOD["x"]}}, "'correct' has its own meaning"),  # its size is that of ID✓
        ({"scorer": ID, "ood": OOD, "groups": {"OOD mean": ["x"]}}, "'OOD mean' has its own meaning"),
        ({"scorer": ID, "ood": OOD, "groups": {"x": ["x"]}}, "'x' names both an OOD set and a group"),
        ({"scorer": ID, "groups": {"G": ["x"]}}, r"must be a list of OOD sets, of which there are none; got \['x'\]"),
        (
            {"scorer": ID, "ood": OOD, "groups": {"G": ["y"]}},
            r"group 'G' must be a list of OOD sets among x, each once; got \['y'\]",
        ),
        (
            {"scorer": ID, "ood": OOD, "groups": {"G": "x"}},
            "group 'G' must be a list of OOD sets among x, each once; got 'x'",
        ),
        (
            {"scorer": ID, "ood": OOD, "groups": {"G": []}},
            r"group 'G' must be a list of OOD sets among x, each once; got \[\]",
        ),
        ({"scorer": ID, "ood": OOD, "pool": "sets"}, '`pool` must be "samples" or "datasets"; got \'sets\''),
        ({"scorer": ID, "ood": OOD, "alpha": 1.2}, r"`alpha` must lie in \[0, 1\]; got 1.2"),
        ({"scorer": ID, "ood": OOD, "beta": [0.5, -1]}, r"`beta` must lie in \[0, 1\]; got -1 at index 1"),
        ({"scorer": ID, "ood": OOD, "recall": 95}, r"`recall` must lie in \[0, 1\]; got 95"),
    ],
)
def test_bad_arguments_are_refused(arguments, words):
    with pytest.raises(ValueError, match=words):
        sirc.evaluate(**arguments)


def test_sets_must_have_the_same_samples_for_each_score():
    two = ID | {"t": ID["s"]}
    with pytest.raises(
        ValueError, match=r"OOD set 'x' must have the same samples, at least one, for each score; got \[1, 2\]"
    ):
        sirc.evaluate(two, ood={"x": {"s": [1.0], "t": [1.0, 2]}})


def test_a_scorers_data_must_fit_it(outputs):
    scorer, test, near = sirc.Scorer(SPECS), outputs["test"], outputs["near"]
    for arguments, words in (
        ((scorer,), "`test` must be labelled ID outputs, a store or batches of them; got none"),
        ((scorer, near), "`test` must have labels, to know which predictions are right"),
        ((scorer, [near]), "`test` must have labels"),
        ((scorer, []), "`test` must hold at least one batch; got an empty iterable"),
        (
            (scorer, test, {"near": {"msp": [1.0]}}),
            "OOD set 'near' must be outputs for the scorer to score; got dict",
        ),
        ((scorer, test, {"near": near[:0]}), r"OOD set 'near' must have the same samples, at least one"),
        ((scorer, test[~test.correct]), "at least one prediction must be right"),
    ):
        with pytest.raises(ValueError, match=words):
            sirc.evaluate(*arguments)
    with pytest.raises(ValueError, match="`device` must be an available one, such as cpu or cuda:0; got 'attic'"):
        sirc.evaluate(scorer, test, device="attic")
    with pytest.raises(ValueError, match="`knn` is not among the scorer's specs: msp, energy"):
        sirc.evaluate(scorer, test, scores=["knn"])
    with pytest.raises(ValueError, match="at least one score is needed, of msp, energy; got none"):
        sirc.evaluate(scorer, test, scores=[])


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda ev: ev.ranking("t"), "unknown score 't'; this evaluation has s"),
        (lambda ev: ev.ranking("s", "y"), "`negative` must be one of wrong, x, pooled, G; got 'y'"),
        (lambda ev: ev.ranking("s", "OOD mean"), "`negative` must be one of .*got 'OOD mean'"),
        (lambda ev: ev.sweep(0.5, 0.5, ["y"]), "`negative` must be one of"),
        (lambda ev: ev.sweep(0.5, 0.5, scores=["t"]), "unknown score 't'"),
        (lambda ev: ev.sweep([0.5, 2], 0.5), r"`alphas` must lie in \[0, 1\]; got 2 at index 1"),
        (lambda ev: ev.curves("risk"), '`kind` must be "risk_recall" or "risk_coverage"; got \'risk\''),
        (lambda ev: ev.curves(scores=["t"]), "unknown score 't'"),
        (lambda ev: ev.curves(alpha=2), "`alpha` must lie in"),
        (lambda ev: ev.compare("t"), "unknown score 't'; this evaluation has s"),
        (lambda ev: ev.intervals(draws=0), "`draws` must be a whole number ≥ 1; got 0"),
        (lambda ev: ev.intervals(draws=5, level=95), "`level` must lie in"),
        (lambda ev: ev.intervals(draws=5, seed="x"), "`seed` must be a whole number ≥ 0"),
        (lambda ev: ev.intervals(negatives=[]), "`negatives` must be among wrong, x, OOD mean, pooled, G; got none"),
        (lambda ev: ev.intervals(negatives=["x", "y"]), "`negatives` must be among .*; got 'y'"),
    ],
)
def test_bad_questions_are_refused(call, words):
    with pytest.raises(ValueError, match=words):
        call(sirc.evaluate(ID, ood=OOD, groups={"G": ["x"]}))


def test_nothing_to_compare_with_is_said():
    ev = sirc.evaluate({"s": ([3.0, 2, 1], [1, 1, 1])})
    assert ev.negatives == []
    with pytest.raises(ValueError, match="wrong predictions or OOD sets are needed to compare with"):
        ev.intervals(draws=5)


def test_small_differences_that_are_real_count_as_wins():
    generator = torch.Generator().manual_seed(0)
    right = torch.arange(6060) < 6000
    base = torch.randn(6060, generator=generator, dtype=torch.float64) + 4.0 * right
    better = base - 0.05 * ~right
    ev = sirc.evaluate({"base": (base, right), "better": (better, right)}, beta=0.01)
    rows = ev.compare("base", draws=60).set_index("metric")
    for metric in ("aurr", "aurc", "augrc"):
        assert -1e-5 < rows.loc[metric, "high"] < 0
        assert rows.loc[metric, "wins"] > 0.95


def test_figures_do_not_change_with_the_callers_memory():
    given, ood = small_problem()
    confidence, right = (torch.as_tensor(x).clone() for x in given["one"])
    ev = sirc.evaluate({"one": (confidence, right)}, ood={"a": {"one": ood["a"]["one"]}})
    expected = sirc.evaluate({"one": (confidence.clone(), right)}, ood={"a": {"one": ood["a"]["one"]}}).table
    confidence.zero_()
    pd.testing.assert_frame_equal(ev.table, expected)


def test_only_some_scores_and_negatives_may_be_resampled():
    given, ood = small_problem()
    ev = sirc.evaluate(given, ood=ood)
    whole = ev.compare("one", draws=20)
    part = ev.compare("one", draws=20, scores="two", negatives=["OOD mean", "wrong"])
    expected = whole[whole["negative"].isin(["OOD mean", "wrong"])].reset_index(drop=True)
    pd.testing.assert_frame_equal(part, expected)
    with pytest.raises(ValueError, match="`negatives` must be among wrong, a, b, OOD mean, pooled; got 'c'"):
        ev.intervals(draws=5, negatives=["c"])


def test_alphas_of_single_precision_are_what_was_meant():
    given, ood = small_problem()
    sweep = sirc.evaluate(given, ood=ood).sweep(torch.linspace(0.1, 0.9, 9), [0.5])
    assert len(sweep.query("alpha == 0.3")) == 8


def test_combine_keeps_seeds_and_models_apart():
    table = sirc.evaluate(*small_problem()[:1]).table
    stored = pd.concat([table.assign(model=m, seed=s, value=table["value"] + s) for m in ("x", "y") for s in (1, 2, 3)])
    got = sirc.combine([stored])
    assert set(got["runs"]) == {3}
    assert len(got) == 2 * len(table)
    assert got["std"].to_numpy() == pytest.approx(1)
    for twice in ([pd.concat([table, table])], [stored.drop(columns="seed")]):
        with pytest.raises(ValueError, match="each row of a run must be there once"):
            sirc.combine(twice)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda g, o: sirc.evaluate(g, ood=[o]), "`ood` must be a dict of OOD sets; got list"),
        (lambda g, o: sirc.evaluate("msp"), "`scorer` must be a `Scorer`, or"),
        (lambda g, o: sirc.evaluate(g, ood=o, groups=["a"]), "`groups` must be a dict"),
        (lambda g, o: sirc.evaluate(g, ood=o, groups={"G": ["a", "a"]}), "among .*, each once; got \\['a', 'a'\\]"),
        (lambda g, o: sirc.evaluate(g, ood=o, alpha=[]), "`alpha` must be numbers in"),
        (lambda g, o: sirc.evaluate(g, ood=o, alpha=[[0.5]]), "`alpha` must be a number or a 1-D array"),
        (lambda g, o: sirc.evaluate(g, ood=o, alpha=[0.5, 0.5]), "`alpha` must hold each value once"),
        (lambda g, o: sirc.evaluate(g, ood=o, recall=[0.9, 0.95]), "`recall` must be one number; got list"),
        (lambda g, o: sirc.combine(sirc.evaluate(g, ood=o)), "`runs` must be a list of evaluations"),
        (lambda g, o: sirc.combine([pd.DataFrame({"a": [1]})]), "a table with score, negative"),
        (lambda g, o: sirc.evaluate(g, ood=o).sweep([0.5], [0.5], groups=[]), "at least one group"),
        (lambda g, o: sirc.Evaluation({"m": torch.rand(5)}, torch.ones(4), {}), "`correct of 'm'` must have as many"),
        (lambda g, o: sirc.evaluate({"oracle": g["one"]}), "'oracle' is the name of the best possible curve"),
    ],
)
def test_the_wrong_kind_of_container_is_told(call, words):
    with pytest.raises(ValueError, match=words):
        call(*small_problem())


def test_zeros_and_ones_are_flags_for_an_evaluation_too():
    ev = sirc.Evaluation({"m": torch.arange(5.0)}, torch.tensor([1, 0, 1, 1, 0]), {})
    assert ev.table.query("metric == 'error'")["value"].item() == pytest.approx(0.4)


def test_without_ood_sweeps_and_curves_are_of_id_data():
    given, _ = small_problem()
    ev = sirc.evaluate(given)
    assert set(ev.sweep([1], [0.5])["negative"]) == {"wrong"}
    assert set(ev.curves("risk_coverage")) == {"one", "two", "oracle"}


def test_some_scores_of_an_evaluation_are_the_same_evaluation():
    given, ood = small_problem(scores=("one", "two", "three"))
    whole = sirc.evaluate(given, ood=ood, alpha=[0.3, 0.6], beta=0.2, groups={"both": ["a", "b"]}, pool="datasets")
    some = whole.only(["three", "one"])
    assert some.scores == ["three", "one"]
    expected = pd.concat([whole.table[whole.table["score"] == name] for name in ("three", "one")], ignore_index=True)
    pd.testing.assert_frame_equal(some.table, expected)
    with pytest.raises(ValueError, match="unknown score 'four'; this evaluation has one, two, three"):
        whole.only(["four"])
    with pytest.raises(ValueError, match="at least one score"):
        whole.only([])
