"""One registry entry is all a metric needs: tables, comparisons, selection, the page and the commands know it."""

import math
from functools import partialmethod

import numpy as np
import pandas as pd
import pytest
import torch
from typer.testing import CliRunner

import sirc
from sirc.cli import app
from sirc.metrics import all_metrics, derivatives, find_metric, lower_is_better, metric, parse_metric, registry
from sirc.metrics.registry import REGISTRY
from sirc.report.page import report
from sirc.report.tables import table
from support.report_reader import read_page


@pytest.fixture
def toys(monkeypatch):
    """A metric of the mixture at a recall, and one of separation of which higher is better."""
    monkeypatch.setattr(registry, "REGISTRY", dict(REGISTRY))

    @metric(title="Toy", lower_is_better=True, unit="×10²")
    def toy(ranking, recall, alpha, beta):
        return ranking.risk_at_recall(recall, alpha, beta) + ranking.aurc(alpha, beta)

    @metric(title="Gini", lower_is_better=False, unit="%")
    def gini(ranking, negative):
        return 2 * ranking.auroc(negative) - 1


def arrays(n=300, seed=0):
    rng = np.random.default_rng(seed)
    correct = rng.random(n) < 0.7
    confidences = {s: (rng.normal(size=n) + k * correct, correct) for s, k in (("msp", 1.0), ("l1", 0.4))}
    ood = {name: {s: rng.normal(size=m) - 0.5 for s in confidences} for name, m in (("a", 80), ("b", 120))}
    return confidences, ood


def test_the_registry_tells_names_directions_and_units():
    assert [m.label(0.95) for m in all_metrics()] == ["error", "auroc", "fpr@95", "aurr", "risk@95", "aurc", "augrc"]
    assert [m.name for m in all_metrics() if not m.lower_is_better] == ["auroc"]
    assert [m.name for m in all_metrics() if m.unit == "%"] == ["error", "auroc", "fpr"]
    assert [m.name for m in all_metrics() if m.of_negative] == ["auroc", "fpr"]
    assert [m.name for m in all_metrics() if m.of_mixture] == ["aurr", "risk", "aurc", "augrc"]
    assert find_metric("fpr@97.5").name == "fpr"
    assert find_metric("luck") is None
    assert lower_is_better("risk@80")
    assert not lower_is_better("auroc")


@pytest.mark.parametrize("label", ["luck", "risk", "risk@0", "risk@101", "aurr@95", "risk@x", "", None])
def test_a_label_that_names_no_metric_is_not_parsed(label):
    assert parse_metric(label) is None


def test_a_label_has_its_metric_and_recall():
    assert [(m.name, r) for m, r in map(parse_metric, ("aurr", "risk@80", "fpr@97.5"))] == [
        ("aurr", 0.95), ("risk", 0.8), ("fpr", 0.975),
    ]  # fmt: skip


def test_a_metric_that_cannot_be_called_is_refused():
    def odd(ranking, temperature): ...
    def half(ranking, alpha): ...
    def aurr(ranking): ...

    for function, words in ((odd, "takes 'temperature'"), (half, "both alpha and beta"), (aurr, "'aurr' already")):
        with pytest.raises(ValueError, match=words):
            metric(title="x", lower_is_better=True, unit="%")(function)
    assert "odd" not in REGISTRY


def test_a_cell_of_a_notebook_may_register_its_metric_twice(toys):
    def gini(ranking): ...

    metric(title="x", lower_is_better=True, unit="%")(gini)
    assert find_metric("gini").function is gini


def test_a_registered_metric_is_in_the_table_with_the_value_of_its_function(toys):
    confidences, ood = arrays()
    ev = sirc.evaluate(confidences, ood=ood, alpha=[0.3, 0.6], beta=[0.2, 0.5], recall=0.9)
    rows = ev.table[ev.table.metric == "toy@90"]
    assert len(rows) == 2 * (2 + 4 * 4)  # scores × (ID✗ at each β, and a, b, mean and pooled at each α and β)
    row = rows[(rows.score == "l1") & (rows.negative == "b") & (rows.alpha == 0.3) & (rows.beta == 0.5)]
    r = ev.ranking("l1", "b")
    assert row.value.item() == pytest.approx(r.risk_at_recall(0.9, 0.3, 0.5) + r.aurc(0.3, 0.5), abs=1e-15)
    gini = ev.table[(ev.table.metric == "gini") & (ev.table.score == "msp") & (ev.table.negative == "a")]
    assert gini.value.item() == pytest.approx(2 * ev.ranking("msp", "a").auroc("ood") - 1, abs=1e-15)
    assert math.isnan(gini.alpha.item())
    assert "toy@90" in set(ev.sweep([0.5], [0.5]).metric)


@pytest.mark.slow
@pytest.mark.parametrize("pool", ["samples", "datasets"])
def test_draws_of_a_metric_without_a_fast_path_are_those_of_the_ones_it_is_made_of(toys, pool):
    confidences, ood = arrays()
    ev = sirc.evaluate(confidences, ood=ood, pool=pool)
    how = {"method": "bootstrap", "draws": 30}
    intervals = ev.intervals(**how).set_index(["metric", "score", "negative"])
    versus = ev.compare("l1", **how).set_index(["metric", "negative"])
    for negative in ("wrong", "a", "pooled", "OOD mean"):
        for end in ("low", "high"):
            auroc = intervals.loc[("auroc", "msp", negative), end]
            assert intervals.loc[("gini", "msp", negative), end] == pytest.approx(2 * auroc - 1, abs=1e-5)
        assert versus.loc[("gini", negative), "wins"] == versus.loc[("auroc", negative), "wins"]
        assert 0 <= versus.loc[("toy@95", negative), "wins"] <= 1
    assert versus.loc[("toy@95", "wrong"), "wins"] == 1  # lower is better, and msp has the better ranking


def test_a_metric_without_a_derivative_is_resampled_beside_the_others(toys):
    confidences, ood = arrays()
    table = sirc.evaluate(confidences, ood=ood).compare("l1", draws=10, negatives=["pooled"]).set_index("metric")
    assert table["method"].to_dict() == {
        metric.label(0.95): "bootstrap" if metric.derivative is None else "analytic"
        for metric in all_metrics()
        if metric.per_negative
    }
    assert set(table.query("method == 'bootstrap'").index) >= {"toy@95", "gini"}
    assert set(table.query("method == 'analytic'").index) >= {"auroc", "fpr@95", "aurr", "risk@95", "aurc", "augrc"}


def test_a_metric_with_a_derivative_needs_no_draws(monkeypatch):
    monkeypatch.setattr(registry, "REGISTRY", dict(REGISTRY))

    def half_slopes(ranking, alpha, beta):
        return {group: slope / 2 for group, slope in derivatives.aurr(ranking, alpha, beta).items()}

    @metric(title="Half", lower_is_better=True, unit="%", derivative=half_slopes)
    def halved(ranking, alpha, beta):
        return ranking.aurr(alpha, beta) / 2

    @metric(title="Odd", lower_is_better=True, unit="%", derivative=lambda ranking, negative: {"all": torch.ones(3)})
    def odd(ranking, negative):
        return 0.5

    confidences, ood = arrays()
    ev = sirc.evaluate(confidences, ood=ood)
    with pytest.raises(ValueError, match="derivative of metric 'odd' must give, for any of correct, wrong, ood, 1 × "):
        ev.intervals()
    registry.REGISTRY.pop("odd")
    rows = ev.intervals().set_index(["metric", "score", "negative"])
    for negative in ("wrong", "pooled", "OOD mean"):
        half, whole = (rows.loc[(name, "msp", negative)] for name in ("halved", "aurr"))
        assert (half["method"], half["se"]) == ("analytic", pytest.approx(whole["se"] / 2))


def test_a_registered_metric_chooses_a_score(toys):
    confidences, ood = arrays()
    for sets in (ood, None):
        choice = sirc.select(confidences, ood=sets, metric="toy@90", alpha=[0.3, 0.5, 0.6], beta=0.5, draws=30)
        assert choice.best == "msp"
        assert "regret of Toy@90" in str(choice)
    with pytest.raises(ValueError, match=r"one of aurr, risk@95, aurc, augrc, toy@95, .*; got 'gini'"):
        sirc.select(confidences, ood=ood, metric="gini")


def test_a_registered_metric_is_shown_in_tables_and_on_the_page(toys, tmp_path):
    confidences, ood = arrays()
    ev = sirc.evaluate(confidences, ood=ood)
    made = table(ev.table, metrics=["toy@95", "gini"])
    assert "Toy@95↓ ×10²" in made.text()
    assert "%Gini↑" in made.text()
    assert made.cell("", "msp", "a", "gini").mark == "bold"
    data = read_page(report(ev, tmp_path / "page.html"))
    assert data["metrics"]["toy"] == {"title": "Toy@95", "higher": False, "unit": "×10²", "recomputed": False}
    values = data["models"][0]["runs"][0]["values"]["toy"]
    at = ev.table[(ev.table.metric == "toy@95") & (ev.table.score == "l1")].set_index("negative").value
    assert values[1] == pytest.approx([at["wrong"], at["a"], at["b"]], rel=1e-5)


def test_a_registered_metric_is_known_to_the_commands(toys, tmp_path):
    confidences, ood = arrays()
    results = sirc.evaluate(confidences, ood=ood).table
    results.insert(0, "model", "net")
    results.insert(1, "seed", 0)
    results.to_csv(tmp_path / "results.csv", index=False)
    done = CliRunner().invoke(app, ["table", str(tmp_path / "results.csv"), "--metric", "toy@95"])
    assert done.exit_code == 0, done.output
    assert "Toy@95" in done.output


@pytest.fixture
def squared(monkeypatch):
    """A metric of the ID data alone."""
    monkeypatch.setattr(registry, "REGISTRY", dict(REGISTRY))

    @metric(title="Squared", lower_is_better=False, unit="%")
    def squared(ranking):
        return ranking.accuracy**2


def test_a_metric_of_the_id_data_has_intervals_that_know_its_error_varies(squared):
    confidences, ood = arrays()
    ev = sirc.evaluate(confidences, ood=ood)
    accuracy = float(ev.correct.double().mean())
    assert set(ev.table.query("metric == 'squared'").negative) == {"wrong"}
    rows = ev.intervals(draws=400).query("metric == 'squared'")
    assert list(rows.score) == ["msp", "l1"]
    assert set(rows.method) == {"bootstrap"}
    assert rows.value.tolist() == pytest.approx([accuracy**2] * 2)
    # The delta method: the derivative of the square is 2a, the standard error of the accuracy √(a(1 − a)/n).
    expected = 2 * accuracy * (accuracy * (1 - accuracy) / 300) ** 0.5
    assert rows.se.tolist() == pytest.approx([expected] * 2, rel=0.1)
    assert (rows.low < accuracy**2).all()
    assert (rows.high > accuracy**2).all()
    assert "squared" not in set(ev.compare("l1", draws=10).metric)
    assert "squared" not in set(ev.intervals(negatives=["a"]).metric)


def test_a_metric_of_the_id_data_has_an_interval_where_a_draw_may_lack_right_predictions(squared):
    ev = sirc.evaluate({"msp": (np.arange(3.0), [True, False, False])})
    row = ev.intervals(draws=200).query("metric == 'squared'")
    assert 0 < row.low.item() <= 1 / 9 <= row.high.item() <= 1


def test_a_metric_of_the_id_data_stands_beside_the_models_name_and_is_not_ranked(squared, tmp_path):
    confidences, ood = arrays()
    ev = sirc.evaluate(confidences, ood=ood)
    value = float(ev.correct.double().mean()) ** 2
    made = table(ev.table, spread=True)
    for written in (made.text(), made.markdown().replace("\\", ""), made.html(), made.latex().replace("\\", "")):
        assert f"ID %Squared: {100 * value:.2f}" in written
    assert float(made.csv().splitlines()[1].split(",")[2]) == pytest.approx(value)
    assert made.csv().startswith("model,id_error,id_squared,score")
    with pytest.raises(ValueError, match=r"got 'squared'\. One of your own .* those of ID data stand beside"):
        table(ev.table, metrics=["squared"])
    data = read_page(report(ev, tmp_path / "page.html"))
    assert data["ofId"]["squared"] == {"title": "Squared", "unit": "%"}
    assert data["models"][0]["runs"][0]["ofId"]["squared"] == pytest.approx(value, rel=1e-5)
    assert "squared" not in data["metrics"]


OWN_METRICS = """
from sirc.metrics import metric

@metric(title="Own", lower_is_better=True, unit="×10²")
def own(ranking, alpha, beta):
    return ranking.aurr(alpha, beta) / 2

@metric(title="Correct", lower_is_better=False, unit="%")
def correct(ranking):
    return ranking.accuracy
"""


def test_a_module_of_ones_own_brings_its_metrics_to_the_commands(tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "REGISTRY", dict(REGISTRY))
    monkeypatch.setattr(sirc.Evaluation, "intervals", partialmethod(sirc.Evaluation.intervals, draws=20))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "metrics_of_mine.py").write_text(OWN_METRICS, encoding="utf-8")
    torch.manual_seed(0)
    for name in ("id", "train", "far"):
        labels = {} if name == "far" else {"labels": torch.randint(0, 4, (120,))}
        sirc.Outputs(torch.randn(120, 4), **labels).save(f"{name}.npz")
    call = CliRunner().invoke
    inputs = ["--train", "train.npz", "--ood", "far=far.npz", "--score", "msp", "--score", "energy"]
    unknown = call(app, ["select", "--val", "id.npz", *inputs, "--metric", "own"])
    assert unknown.exit_code == 1
    assert "got 'own'. One of your own is known once its module is imported (`--import MODULE`)" in unknown.stderr
    own = ["--import", "metrics_of_mine"]
    done = call(app, ["evaluate", "--id", "id.npz", *inputs, "--out", "made", "--no-figures", "--intervals", *own])
    assert done.exit_code == 0, done.output
    assert "ID %Correct: " in done.stdout
    results = pd.read_csv("made/results.csv").set_index(["score", "negative", "metric"])
    halves, wholes = (results.loc[("msp", "far", name), "value"] for name in ("own", "aurr"))
    assert halves == pytest.approx(wholes / 2)
    assert read_page(tmp_path / "made/report.html")["metrics"]["own"]["title"] == "Own"
    shown = call(app, ["table", "made", "--metric", "own", *own])
    assert shown.exit_code == 0, shown.output
    assert "Own↓ ×10²" in shown.stdout
    chosen = call(app, ["select", "--val", "id.npz", *inputs, "--metric", "own", "--draws", "20", *own])
    assert chosen.exit_code == 0, chosen.output
    assert "regret of Own" in chosen.stdout


def test_the_accumulator_gives_every_metric(toys):
    confidences, ood = arrays()
    accumulator = sirc.SelectiveMetrics(recall=0.8)
    values, correct = confidences["msp"]
    accumulator.update(values, correct)
    accumulator.update(ood["a"]["msp"], torch.zeros(80), torch.ones(80))
    assert {"toy@80", "gini_wrong", "gini_ood"} <= set(accumulator.compute())
