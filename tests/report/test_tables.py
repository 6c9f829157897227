"""Tables mark the cells that the paper marks, of the means and spreads that NumPy finds, and refuse nonsense."""

import numpy as np
import pandas as pd
import pytest

import sirc
from sirc.report.tables import table
from support.table_results import PAPER, paper_results, schema, several_seeds


@pytest.fixture(scope="module")
def paper():
    return table(paper_results())


@pytest.fixture(scope="module")
def seeds():
    return several_seeds()


def expected(results, model, score, negative, metric):
    """Mean and 2 std by NumPy, straight from the rows."""
    at = results[["model", "score", "negative", "metric"]].eq([model, score, negative, metric]).all(axis=1)
    values = results["value"][at].to_numpy()
    return values.mean(), 2 * values.std(ddof=1) if len(values) > 1 else np.nan


@pytest.mark.slow
def test_the_papers_figures_are_marked_as_in_the_papers_full_tables(paper):
    ours = paper.cells.assign(percent=(100 * paper.cells["mean"]).round(2))
    theirs = PAPER.assign(model=PAPER["model"] + " (" + PAPER["id_data"] + ")")
    both = ours.merge(theirs, on=["model", "score", "negative", "metric"], suffixes=("", "_paper"))
    assert len(both) == len(PAPER) == 1632
    tied = 0
    for _, column in both.groupby(["model", "negative", "metric"]):
        assert (column["mark_paper"] == "bold").sum() == 1
        assert (column["mark_paper"] == "underline").sum() == 2
        for _, equal in column.groupby("percent"):
            # The paper ranks what it rounded away; figures that print alike share the best mark among them here.
            best = min(equal["mark_paper"], key=["bold", "underline", ""].index)
            assert set(equal["mark"]) == {best}
            tied += len(equal) > 1 and len(set(equal["mark_paper"])) > 1
    assert tied == 6


def test_marks_rank_the_scores_that_are_shown(paper):
    shown = ["sirc(msp, l1)", "sirc(msp, residual)", "sirc(entropy, l1)", "sirc(entropy, residual)", "msp", "entropy"]
    shown += ["l1", "residual", "energy", "gradnorm", "vim"]
    first = table(paper_results(), scores=shown)
    model = "ResNet-50 (ImageNet-200)"
    # Table 1 leaves DOCTOR out, so that the third place of ID✗ goes to a score that has none in the full table.
    assert paper.cell(model, "sirc(msp, l1)", "wrong", "auroc").mark == ""
    marks = {s: first.cell(model, s, "wrong", "auroc").mark for s in shown}
    assert {s: m for s, m in marks.items() if m} == {
        "sirc(msp, residual)": "bold",
        "msp": "underline",
        "sirc(msp, l1)": "underline",
    }
    assert first.cell(model, "gradnorm", "Colorectal", "fpr@95").mark == "bold"
    assert first.cell(model, "energy", "Colorectal", "auroc").mark == "bold"


def test_the_paper_comes_out_in_its_own_layout(paper):
    assert paper.scores[:6] == [s for s in PAPER["score"].unique() if s.startswith("sirc")]
    assert paper.negatives[:2] == ["wrong", "OOD mean"]
    parts = paper.parts(columns=12)
    assert [part.negatives[0] for part in parts] == ["wrong"] * 4
    assert [len(part.negatives) for part in parts] == [6, 6, 6, 4]
    assert [len(part.models) for part in parts] == [3, 3, 2, 2]
    assert paper.of_id["ResNet-50 (ImageNet-200)"]["error"][0] == pytest.approx(0.1901)


def test_figures_are_mean_and_two_sample_std_over_seeds(seeds):
    made = table(seeds, spread=True)
    assert len(made.cells) == 2 * 4 * 4 * 2
    for row in made.cells.itertuples():
        mean, two_std = expected(seeds, row.model, row.score, row.negative, row.metric)
        np.testing.assert_allclose([row.mean, row.two_std, row.runs], [mean, two_std, 3])
    assert made.of_id["net"]["error"] == pytest.approx((0.16, 0.02))


def test_combined_results_give_the_same_table(seeds):
    combined = table(sirc.combine([seeds]), spread=True)
    pd.testing.assert_frame_equal(combined.cells, table(seeds, spread=True).cells)
    assert combined.latex() == table(seeds, spread=True).latex()


def test_one_seed_has_no_spread():
    made = table(several_seeds(seeds=1), spread=True)
    assert made.cells["two_std"].isna().all()
    assert all("±" not in text for text in (made.text(), made.markdown(), made.html()))
    assert "training runs" not in made.text()


def test_ranks_follow_the_better_direction_and_equal_values_share_one():
    values = {"a": 0.1, "b": 0.3, "c": 0.3, "d": 0.2, "e": 0.25}
    results = schema([("m", s, "x", k, v) for s, v in values.items() for k in ("auroc", "fpr@95", "aurr")])
    made = table(results, metrics=["auroc", "fpr@95", "aurr"])
    marks = {k: [made.cell("m", s, "x", k).mark for s in values] for k in made.metrics}
    assert marks["auroc"] == ["", "bold", "bold", "", "underline"]
    assert marks["fpr@95"] == marks["aurr"] == ["bold", "", "", "underline", "underline"]


def test_equal_means_of_differently_ordered_seeds_are_equal():
    a, b = (0.1, 0.2, 0.3), (0.3, 0.2, 0.1)  # their means differ in the last bit
    parts = [schema([("m", "a", "x", "auroc", a[i]), ("m", "b", "x", "auroc", b[i])], seed=i) for i in range(3)]
    assert list(table(pd.concat(parts), metrics="auroc").cells["mark"]) == ["bold", "bold"]


def test_missing_and_nan_figures_are_dashes_without_a_mark(seeds):
    at = seeds[["model", "score", "negative", "metric"]].eq(["net", "msp", "near", "auroc"]).all(axis=1)
    nan = seeds.assign(value=seeds["value"].mask(at & (seeds["seed"] == 1)))
    without = seeds[~(at & (seeds["seed"] == 1))]
    never = seeds[~at]
    for results, runs in ((nan, 2), (without, 2), (never, 0)):
        made = table(results)
        cell = made.cell("net", "msp", "near", "auroc")
        assert np.isnan(cell.mean)
        assert (cell.runs, cell.mark) == (runs, "")
        assert sorted(made.cell("net", s, "near", "auroc").mark for s in made.scores) == [
            "",
            "bold",
            *["underline"] * 2,
        ]
        assert "–" in made.markdown()
        assert "nan" not in (made.text() + made.markdown() + made.html() + made.latex()).lower()


def test_a_score_alone_is_not_marked(seeds):
    made = table(seeds, scores="msp", metrics="auroc", negatives="far")
    assert set(made.cells["mark"]) == {""}
    assert len(made.cells) == 2
    assert "best" not in made.text()


def test_a_plain_evaluation_is_a_table_too():
    rng = np.random.default_rng(1)
    correct = rng.random(400) < 0.8
    confidence = {name: rng.random(400) + correct for name in ("mine", "yours")}
    ev = sirc.evaluate(
        {name: (c, correct) for name, c in confidence.items()},
        ood={"x": {name: rng.random(300) for name in confidence}, "y": {name: rng.random(200) for name in confidence}},
        groups={"Far": ["y"]},
        beta=[0.2, 0.5],
    )
    made = table(ev.table)
    assert "low" not in made.csv().splitlines()[0]
    known = ev.intervals(beta=0.5)
    with_intervals = table(known, metrics=["auroc"])
    low, high = known.query("score == 'mine' and negative == 'x' and metric == 'auroc'")[["low", "high"]].to_numpy()[0]
    for written in (with_intervals.text(), with_intervals.markdown(), with_intervals.html(), with_intervals.latex()):
        assert f"[{100 * low:.1f}, {100 * high:.1f}]" in written
    assert made.negatives == ["wrong", "OOD mean", "x", "y"]
    assert made.models == [""]
    assert made.of_id[""]["error"][0] == pytest.approx(1 - correct.mean())
    assert made.text().startswith("ID %error: ")
    for fmt in (made.markdown(), made.html(), made.latex()):
        assert "%error" in fmt

    mixed = table(ev.table, metrics=["aurr", "risk@95"], beta=0.2)
    assert mixed.negatives == ["pooled", "Far", "OOD mean", "x", "y"]
    assert mixed.cell("", "mine", "pooled", "aurr").mean == ev.ranking("mine").aurr(0.5, 0.2)
    assert "at α = 0.5, β = 0.2" in mixed.text()
    with_wrong = table(ev.table, metrics="aurr", negatives=["wrong", "x"], beta=0.5, alpha=0.5)
    assert with_wrong.cell("", "mine", "wrong", "aurr").mean == ev.ranking("mine", "wrong").aurr(1.0, 0.5)
    assert "(ID✗: α = 1)" in with_wrong.text()
    with pytest.raises(ValueError, match=r"one beta; the results have 0\.2, 0\.5\. Pass `beta=…`, one of them"):
        table(ev.table, metrics="aurr")
    with pytest.raises(ValueError, match=r"`beta` must be among 0\.2, 0\.5; got 0\.3"):
        table(ev.table, metrics="aurr", beta=0.3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"metrics": "fpr@90"}, r"`metrics` must be among those of the results: auroc; fpr@95; got 'fpr@90'"),
        ({"metrics": "error"}, r"`metrics` must be among those of the results: auroc; fpr@95; got 'error'"),
        ({"negatives": ["nowhere"]}, r"`negatives` must be .*: wrong; near; far; OOD mean; got 'nowhere'"),
        ({"scores": ["mps"]}, r"`scores` must be .*: msp; energy; sirc\(msp, l1\); vim; got 'mps'"),
        ({"scores": []}, "`scores` must be among those of the results: msp; .*; got none"),
    ],
)
def test_an_unknown_name_is_told_what_there_is(seeds, options, message):
    with pytest.raises(ValueError, match=message):
        table(seeds, **options)


def test_results_that_are_no_results_are_refused(seeds):
    with pytest.raises(ValueError, match=r"must be a table with model, seed, score, .*; got list"):
        table([1])
    with pytest.raises(ValueError, match="got model, seed"):
        table(seeds[["model", "seed"]])
    with pytest.raises(ValueError, match="a table needs wrong ID predictions or OOD sets"):
        table(sirc.evaluate({"msp": ([0.1, 0.2], [True, True])}).table)
    with pytest.raises(ValueError, match="at least one row"):
        table(seeds.iloc[:0])
    with pytest.raises(ValueError, match="each value once; 'msp', 'wrong', 'auroc' of model 'net' comes twice"):
        table(seeds.assign(seed=0))
    with pytest.raises(ValueError, match="whose better direction is known; got 'fame'"):
        table(seeds.assign(metric="fame").drop_duplicates(["model", "seed", "score", "negative"]), metrics="fame")


def test_results_read_back_from_csv_give_the_same_table(seeds, tmp_path):
    nameless = seeds.assign(model=seeds["model"].replace("net", ""))
    nameless.to_csv(tmp_path / "results.csv", index=False)
    again = table(pd.read_csv(tmp_path / "results.csv"), spread=True)
    assert again.markdown() == table(nameless, spread=True).markdown()
    assert again.models == ["", "other net"]


def test_the_command_shows_one_beta_of_several(tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(1)
    correct = rng.random(40) < 0.8
    ev = sirc.evaluate({"mine": (rng.random(40), correct)}, ood={"x": {"mine": rng.random(30)}}, beta=[0.2, 0.5])
    results = ev.table.assign(model="m", seed=1)
    results[["model", "seed", *ev.table.columns]].to_csv("mine.csv", index=False)
    code, _, err = command("table", "mine.csv", "--metric", "aurr")
    assert code == 1
    assert "a table is for one beta; the results have 0.2, 0.5. Pass `--beta …`, one of them." in err
    code, out, err = command("table", "mine.csv", "--metric", "aurr", "--beta", 0.2)
    assert code == 0, err
    assert "β = 0.2" in out
