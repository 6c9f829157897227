"""The tools of studies: ranks that give every figure, intervals, verdicts, and a document that can be checked."""

import importlib
import math
import re
import shutil
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from scipy import stats

from sirc import Ranking
from sirc.evaluation.evaluation import Evaluation
from sirc.experiment import PAPER_SPECS
from sirc.experiment.results import RunResults, read_results, write_results
from support.studies import ROOT, STUDIES

SETS = {"Near": 60, "Leaves": 50, "Cells": 40, "Noise": 70}
GROUPS = {"Close": ["Near", "Leaves"], "Far": ["Cells", "Noise"]}
SCORES = (*PAPER_SPECS, "tempered_msp", "knn", "sirc(tempered_msp, residual)", "sirc(msp, knn)")
SCORES += ("bayes(msp, residual)", "sirc(msp, residual, budget=0.1)")
MODELS = ("ResNet-50", "DenseNet-121", "MobileNetV2")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def scripts():
    """The modules of the tools."""
    names = ("ranks", "draws", "families", "measure", "study", "setup", "repeat", "results", "claims.verdicts")
    found = {name.rpartition(".")[2]: importlib.import_module(f"studies.tools.{name}") for name in names}
    return SimpleNamespace(**found, main=found["results"])


def network(model, seed, rows=200):
    """A network whose scores are noise around what a row is; with ties, and infinities of both signs."""
    rng = np.random.default_rng([seed, MODELS.index(model)])
    correct = rng.random(rows) < 0.7

    def values(place, size):
        confidence = torch.tensor(np.round(rng.normal(place, 1.0, size), 1))
        confidence[:2] = torch.tensor([math.inf, -math.inf], dtype=torch.float64)
        return confidence

    inside = {score: values(np.where(correct, 1.5, 0.0), rows) for score in SCORES}
    outside = {name: {score: values(0.3, size) for score in SCORES} for name, size in SETS.items()}
    evaluation = Evaluation(inside, torch.tensor(correct), outside, groups=GROUPS)
    return RunResults(model, seed, evaluation, None, None, {}, None)


@pytest.fixture(scope="module")
def networks():
    return [network(model, seed) for model in MODELS for seed in (1, 2, 3)]


@pytest.fixture(scope="module")
def study(scripts, networks, tmp_path_factory):
    """A folder in which everything was made by the command line."""
    folder = tmp_path_factory.mktemp("study") / "toy"
    list(scripts.ranks.write_ranks([scripts.ranks.ranks_of(run, 1000) for run in networks], folder / "ranks", limit=1))
    arguments = ["measure", str(folder / "ranks"), "--out", str(folder), "--draws", "20", "--workers", "1"]
    scripts.main.main(arguments)
    scripts.main.main(["write", str(folder), "--document", str(folder / "README.md")])
    return folder


def test_ranks_give_every_figure_that_confidences_gave(scripts, networks, tmp_path):
    ranks = [scripts.ranks.ranks_of(run) for run in networks[:2]]
    assert ranks[0].ranks.dtype == np.uint16
    (file,) = scripts.ranks.write_ranks(ranks, tmp_path / "all.safetensors", limit=0)
    for run, read in zip(networks, scripts.ranks.read_ranks([file]), strict=False):
        pd.testing.assert_frame_equal(run.evaluation.table, read.evaluation().table, check_exact=True)
        assert (read.model, read.seed, read.groups, read.sets) == (run.model, run.seed, GROUPS, SETS)


def test_files_keep_to_the_limit_and_hold_every_run(scripts, networks, tmp_path):
    ranks = [scripts.ranks.ranks_of(run) for run in networks]
    limit = 2 * (ranks[0].ranks.nbytes + ranks[0].correct.nbytes)
    files = list(scripts.ranks.write_ranks(iter(ranks), tmp_path, limit=limit))
    assert [file.name for file in files] == [f"ranks-{i}.safetensors" for i in range(1, 6)]
    header = 1 << 13
    assert all(file.stat().st_size < limit + header for file in files)
    assert {(r.model, r.seed) for r in scripts.ranks.read_ranks([tmp_path])} == {(r.model, r.seed) for r in networks}


def test_runs_that_cannot_be_compared_are_refused(scripts, networks, tmp_path):
    one, other = (scripts.ranks.ranks_of(run) for run in networks[:2])
    list(scripts.ranks.write_ranks([one], tmp_path / "a.safetensors", limit=0))
    list(scripts.ranks.write_ranks([one], tmp_path / "b.safetensors", limit=0))
    with pytest.raises(ValueError, match="must come once; ResNet-50 with seed 1 is there twice"):
        scripts.ranks.read_ranks([tmp_path])
    short = scripts.ranks.ranks_of(network("ResNet-50", 2, rows=150))
    list(scripts.ranks.write_ranks([short], tmp_path / "b.safetensors", limit=0))
    with pytest.raises(ValueError, match=r"same test images; ResNet-50 with seed 2 has 150, .* has 200"):
        scripts.ranks.read_ranks([tmp_path])
    fewer = scripts.ranks.Ranks(**{**vars(other), "scores": ["msp"], "ranks": other.ranks[:1]})
    list(scripts.ranks.write_ranks([fewer], tmp_path / "b.safetensors", limit=0))
    with pytest.raises(ValueError, match="must have the same scores to be compared"):
        scripts.ranks.read_ranks([tmp_path])
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"there are none in .*Make them with `collect`"):
        scripts.ranks.read_ranks([tmp_path / "empty"])


@pytest.fixture(scope="module")
def drawn(scripts, networks):
    """Two runs, their samples, and the draws behind them."""
    ranks = [scripts.ranks.ranks_of(networks[i]) for i in (0, 3)]
    wanted = scripts.draws.Wanted(PAPER_SPECS, ["vim"], [(0.2, 0.5)])
    samples = scripts.draws.draw(ranks, wanted, draws=6, seed=3, workers=2, tell=lambda _: None)
    sizes = {"test": 200, **{f"ood {name}": count for name, count in SETS.items()}}
    blocks = list(scripts.draws.draw_counts(sizes, 6, 3, torch.device("cpu")))
    counts = {name: torch.cat([block[name] for block in blocks], 1).long().numpy() for name in sizes}
    return ranks, samples, counts


def test_the_first_of_the_samples_are_the_figures_of_the_table(scripts, networks, drawn):
    _, samples, _ = drawn
    table = networks[0].evaluation.table
    shown = table[table["metric"].isin(scripts.draws.METRICS.values())]
    unions = shown["negative"].isin(["pooled", *GROUPS])
    assert len(shown) == len(SCORES) * 9 * 5
    shown = shown[~unions | shown["score"].isin(PAPER_SPECS)]
    for row in shown.itertuples():
        key = scripts.draws.key(row.score, row.negative, row.metric)
        assert samples[0][key][0] == pytest.approx(row.value, abs=1e-12), row
    sweep = networks[0].evaluation.sweep([0.2], [0.5])
    for row in sweep[(sweep["score"] == "vim") & sweep["metric"].isin(["aurr", "risk@95", "aurc"])].itertuples():
        key = scripts.draws.key("vim", row.negative, row.metric, (0.2, 0.5))
        assert samples[0][key][0] == pytest.approx(row.value, abs=1e-12)


def test_plain_detection_has_all_id_rows_as_positives(scripts, networks, drawn):
    _, samples, _ = drawn
    evaluation = networks[0].evaluation
    inside = evaluation.confidences["energy"]
    rankings = [Ranking(inside, None, evaluation.ood[name]["energy"]) for name in SETS]
    key = scripts.draws.key("energy", scripts.draws.ID_MEAN, "auroc")
    assert samples[0][key][0] == pytest.approx(np.mean([r.auroc("ood") for r in rankings]))
    key = scripts.draws.key("energy", scripts.draws.ID_MEAN, "fpr@95")
    assert samples[0][key][0] == pytest.approx(np.mean([r.fpr("ood") for r in rankings]))


def auroc(positive, negative):
    above = positive[:, None] > negative[None, :]
    return float((above + 0.5 * (positive[:, None] == negative[None, :])).mean())


def test_a_draw_is_the_figure_of_rows_repeated_and_the_same_rows_for_every_network(scripts, drawn):
    ranks, samples, counts = drawn
    for run, found in zip(ranks, samples, strict=True):
        inside, outside = (part for part in run.confidences("msp"))
        for d in range(6):
            rows = np.repeat(np.arange(200), counts["test"][:, d])
            right, wrong = (inside.numpy()[rows[run.correct[rows] == flag]] for flag in (True, False))
            cells = np.repeat(outside["Cells"].numpy(), counts["ood Cells"][:, d])
            assert found["msp", "wrong", "auroc", None, None][d + 1] == pytest.approx(auroc(right, wrong), abs=1e-6)
            assert found["msp", "Cells", "auroc", None, None][d + 1] == pytest.approx(auroc(right, cells), abs=1e-6)


def test_pooling_adds_the_variance_of_images_and_that_between_seeds(scripts):
    rng = np.random.default_rng(0)
    one, two = rng.normal(0.5, 0.1, (3, 41)), rng.normal(0.2, 0.3, (2, 41))
    found = scripts.draws.pool([list(one), list(two)])
    mean = (one.mean(0) + two.mean(0)) / 2
    parts = [one[:, 0].var(ddof=1) / 3 / 4, two[:, 0].var(ddof=1) / 2 / 4]
    assert found.value == pytest.approx(mean[0])
    assert found.images == pytest.approx(mean[1:].std(ddof=1))
    assert found.networks == pytest.approx(math.sqrt(sum(parts)))
    freedom = sum(parts) ** 2 / (parts[0] ** 2 / 2 + parts[1] ** 2 / 1)
    assert found.freedom == pytest.approx(freedom)
    student = stats.t.ppf(0.975, freedom)
    assert found.reach == pytest.approx(math.hypot(1.959964 * found.images, student * found.networks), rel=2e-3)
    single = scripts.draws.pool([list(one)])
    assert single.freedom == pytest.approx(2)
    alone = scripts.draws.pool([[one[0]]])
    assert (alone.networks, alone.freedom) == (0.0, math.inf)
    assert alone.reach == pytest.approx(1.959964 * one[0, 1:].std(ddof=1))


@pytest.mark.parametrize("freedom", [1.0, 1.5, 2.0, 2.7, 4.0, 10.0, 33.3, 200.0, 1e5])
def test_students_quantile_is_scipys(scripts, freedom):
    assert scripts.draws.t_quantile(freedom) == pytest.approx(stats.t.ppf(0.975, freedom))


@pytest.mark.parametrize("spread", [0.0, 1.0, 4.0])
def test_intervals_hold_the_truth_as_often_as_they_say(scripts, spread):
    """Networks differ by `spread`, images shift all of them alike by 1: three seeds know nothing of that shift."""
    rng = np.random.default_rng(1)
    inside = 0
    for _ in range(400):
        shift = rng.normal()
        runs = [shift + spread * rng.normal() + np.zeros(61) for _ in range(3)]
        noise = rng.normal(size=60)
        found = scripts.draws.pool([[np.concatenate([run[:1], run[1:] + noise]) for run in runs]])
        inside += abs(found.value) <= found.reach
    assert 0.92 <= inside / 400 <= 1.0
    assert spread > 0 or inside / 400 <= 0.98


def test_verdicts_at_their_edges(scripts):
    yes, no, still = scripts.verdicts.YES, scripts.verdicts.NO, scripts.verdicts.OPEN
    judge = scripts.verdicts.judge
    assert judge([]) == "not tested"
    assert judge([yes, yes]) == "holds"
    assert judge([yes, yes, no]) == judge([yes, still]) == "holds in part"
    assert judge([yes, still, still]) == judge([still]) == judge([no, still, still]) == "undecided"
    assert judge([yes, no]) == judge([no]) == judge([no, still]) == "does not hold"


@pytest.mark.parametrize(
    ("low", "high", "bound", "below", "above"),
    [
        (-2.0, -0.1, 0.0, "for", "against"),
        (-2.0, 0.0, 0.0, "open", "open"),
        (0.0, 1.0, 0.0, "open", "open"),
        (0.1, 1.0, 0.0, "against", "for"),
        (-0.19, 0.1, -0.2, "against", "for"),
        (-0.2, 0.1, -0.2, "open", "open"),
    ],
)
def test_only_a_whole_interval_decides(scripts, low, high, bound, below, above):
    interval = scripts.study.Interval((low + high) / 2, low, high)
    assert scripts.verdicts.below(interval, bound) == below
    assert scripts.verdicts.above(interval, bound) == above


def test_every_score_has_a_family(scripts):
    found = scripts.families.families([*SCORES, "sirc(msp, l1, residual)", "additive(msp, knn, kappa=1)"])
    assert set().union(*found.values()) == {*SCORES, "sirc(msp, l1, residual)", "additive(msp, knn, kappa=1)"}
    assert "sirc(msp, residual)" in found["as S1"]
    assert "sirc(msp, residual)" in found["as S2 of MSP"]
    assert {"vim", "knn", "msp"} <= set(found["alone"])
    assert {"sirc(msp, l1, residual)", "bayes(msp, residual)", "sirc(doctor, l1)"} <= set(found["other combinations"])


@pytest.mark.slow
def test_results_of_ranks_are_those_of_the_runs(study, networks):
    table = pd.concat([run.table for run in networks]).sort_values(["model", "seed"], kind="stable")
    pd.testing.assert_frame_equal(read_results(study / "results.csv"), table.reset_index(drop=True), check_exact=True)


def test_results_that_are_there_stay(scripts, networks, tmp_path, capsys):
    write_results(networks[0].table, tmp_path / "results.csv")
    before = (tmp_path / "results.csv").read_text(encoding="utf-8")
    list(scripts.ranks.write_ranks([scripts.ranks.ranks_of(networks[0])], tmp_path / "ranks.safetensors", limit=0))
    scripts.main.main(["measure", str(tmp_path / "ranks.safetensors"), "--out", str(tmp_path), "--draws", "2"])
    assert (tmp_path / "results.csv").read_text(encoding="utf-8") == before
    table = pd.read_csv(tmp_path / "comparisons.csv")
    assert set(table["seeds"]) == {1}
    assert (table["networks"] == 0).all()
    for other in (networks[1].table, networks[0].table.assign(value=lambda t: t["value"] * 1.01)):
        write_results(other, tmp_path / "results.csv")
        with pytest.raises(SystemExit):
            scripts.main.main(["measure", str(tmp_path / "ranks.safetensors"), "--out", str(tmp_path), "--draws", "2"])
        assert "must be of the runs that were collected; it is of others" in capsys.readouterr().err


def test_figures_that_differ_between_the_tables_are_refused(scripts, study, networks, tmp_path, capsys):
    for name in ("comparisons.csv", "sets.csv"):
        (tmp_path / name).write_bytes((study / name).read_bytes())
    table = pd.concat([run.table for run in networks])
    write_results(table.assign(value=table["value"] * 0.99), tmp_path / "results.csv")
    with pytest.raises(SystemExit):
        scripts.main.main(["write", str(tmp_path), "--document", str(tmp_path / "README.md")])
    assert re.search(
        r"results\.csv and comparisons\.csv in .* must be of the same runs; auroc", capsys.readouterr().err
    )


def test_comparisons_are_differences_of_means_over_seeds_and_networks(study, networks):
    table = pd.read_csv(study / "comparisons.csv")
    values = pd.concat([run.table for run in networks]).set_index(["model", "score", "negative", "metric"])["value"]
    rows = table[table["baseline"].notna() & table["alpha"].isin([0.5]) & table["beta"].isin([0.5])]
    rows = pd.concat([rows, table[table["alpha"].isna() & table["baseline"].notna()]])
    rows = rows[rows["negative"] != "OOD mean|ID"].sample(80, random_state=0)
    for row in rows.itertuples():
        models = MODELS if row.model == "all networks" else [row.model]
        own, base = (
            np.mean([values[model, score, row.negative, row.metric].mean() for model in models])
            for score in (row.score, row.baseline)
        )
        assert row.difference == pytest.approx(own - base, abs=1e-5)
        assert row.low <= row.difference <= row.high
        assert row.seeds == 3
    best = table[(table["model"] == "all networks") & (table["metric"] == "aurr") & (table["negative"] == "OOD mean")]
    assert set(SCORES) <= {*best["score"], "msp"}


def test_the_document_has_the_figures_of_the_tables(study, networks):
    text = (study / "README.md").read_text(encoding="utf-8")
    table = pd.concat([run.table for run in networks]).set_index(["model", "score", "negative", "metric"])["value"]
    own = 100 * table["ResNet-50", "energy", "wrong", "auroc"]
    section = text.partition("### ResNet-50\n")[2].partition("###")[0]
    (line,) = [line for line in section.splitlines() if line.startswith("| Energy |")]
    cells = [cell.strip(" *") for cell in line.split("|")]
    assert cells[2] == f"{own.mean():.1f} ±{2 * own.std():.1f}"
    assert cells[3] == "82.0" or cells[3] == "82.1"  # the paper's 82.05
    compared = pd.read_csv(study / "comparisons.csv")
    one = compared[
        (compared["model"] == "ResNet-50")
        & (compared["score"] == "energy")
        & (compared["baseline"] == "msp")
        & (compared["negative"] == "wrong")
        & (compared["metric"] == "auroc")
    ].iloc[0]
    shown = [f"{100 * one[name]:+.1f}".replace("-", "−") for name in ("difference", "low", "high")]
    assert f"{shown[0]} [{shown[1]}, {shown[2]}]" in text.partition("### 1. ")[2].partition("### 2. ")[0]
    every, beside = text.partition("## Every score")[2], text.partition("### As S2: SIRC(MSP, S2) and")[2]
    for score in SCORES:
        second = score.removeprefix("sirc(msp, ").removeprefix("sirc(entropy, ").removesuffix(")")
        assert f"`{score}`" in every or f"| `{second}` |" in beside.partition("###")[0]
    for word in ("nan", "None", "inf"):
        assert f" {word}" not in text
        assert f"{word} |" not in text


def claim_rows(text):
    """The rows of the table of claims: number, title, verdict, counts, and what each network says by itself."""
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.count(" | ") == 9]
    return [row for row in rows if row[0].isdigit()]


def test_every_claim_has_a_verdict_that_its_counts_give(scripts, study):
    text = (study / "README.md").read_text(encoding="utf-8")
    claims = claim_rows(text)
    assert len(claims) >= 20
    words = [scripts.verdicts.YES, scripts.verdicts.NO, scripts.verdicts.OPEN]

    def verdict(counts):
        return scripts.verdicts.judge([word for word, count in zip(words, counts, strict=True) for _ in range(count)])

    for number, row in enumerate(claims, start=1):
        counts = [int(cell) for cell in row[3:6]]
        assert row[2] == verdict(counts)
        assert f"### {number}. " in text
        by_network = [cell.rpartition(" ")[::2] for cell in row[6:9]]
        each = [[int(count) for count in shown.split("/")] for _, shown in by_network]
        assert np.sum(each, 0).tolist() == counts
        assert [word for word, _ in by_network] == [verdict(own) for own in each]
        if row[9] != "–":
            word, _, shown = row[9].rpartition(" ")
            assert word == verdict([int(count) for count in shown.split("/")])
    alone = {row[1] for row in claims if row[9] == "–"}  # others may lack cases in which an S2 fails
    assert alone >= {"Which S2 is better depends on the network", "Training runs differ, and most on Noise"}


def test_the_record_has_every_comparison_behind_the_table_of_claims(study):
    rows = claim_rows((study / "README.md").read_text(encoding="utf-8"))
    record = pd.read_csv(study / "claims.csv")
    for row in rows:
        own = record[record["claim"] == row[1].replace("\\|", "|")]
        alone = own[own["model"] != "all networks"]["outcome"]
        assert [str((alone == word).sum()) for word in ("for", "against", "open")] == row[3:6]
        together = own[own["model"] == "all networks"]["outcome"]
        if row[9] != "–":
            counts = [str((together == word).sum()) for word in ("for", "against", "open")]
            assert row[9].rpartition(" ")[2] == "/".join(counts)
    keeps = record[(record["claim"] == "SIRC keeps the ID✗|ID✓ of its S1") & (record["model"] == "ResNet-50")]
    compared = pd.read_csv(study / "comparisons.csv")
    one = compared[(compared["model"] == "ResNet-50") & (compared["score"] == "sirc(msp, l1)")]
    one = one[(one["baseline"] == "msp") & (one["negative"] == "wrong") & (one["metric"] == "auroc")].iloc[0]
    shown = keeps[keeps["what"] == "SIRC(MSP, ‖z‖₁)"].iloc[0]
    for name, column in (("difference", "value"), ("low", "low"), ("high", "high")):
        assert shown[column] == pytest.approx(100 * one[name], rel=1e-4)


def test_all_networks_together_are_judged_by_the_means_of_their_differences(scripts, study):
    """Read off comparisons.csv: SIRC against its S1, the mean over the OOD sets."""
    table = pd.read_csv(study / "comparisons.csv", keep_default_na=False)
    own = table[(table["model"] == "all networks") & (table["negative"] == "OOD mean") & (table["metric"] == "auroc")]
    pairs = [(s, s.partition("(")[2].partition(",")[0]) for s in PAPER_SPECS if s.startswith("sirc(")]
    found = [own[(own["score"] == s) & (own["baseline"] == first)].iloc[0] for s, first in pairs]
    counts = [sum(r["low"] > 0 for r in found), sum(r["high"] < 0 for r in found)]
    row = next(
        row for row in claim_rows((study / "README.md").read_text(encoding="utf-8")) if row[1].startswith("SIRC raises")
    )
    assert row[9].rpartition(" ")[2] == f"{counts[0]}/{counts[1]}/{len(pairs) - sum(counts)}"
    seen = scripts.study.Study(study)
    values = [np.mean(seen.each(model, "msp", "Near", "auroc")) for model in MODELS]
    assert np.mean(seen.together().each("all networks", "msp", "Near", "auroc")) == pytest.approx(np.mean(values))
    assert seen.together().models == ["all networks"]
    assert seen.models == [*seen.kinds]


def test_check_fails_once_a_figure_changes(scripts, study, tmp_path, capsys):
    document = tmp_path / "README.md"
    scripts.main.main(["write", str(study), "--document", str(document)])
    command = ["write", str(study), "--check", "--document", str(document)]
    scripts.main.main(command)
    for file, old, new in ((document, "±", "±1"), (tmp_path / "claims.csv", "open", "for")):
        before = file.read_text(encoding="utf-8")
        file.write_text(before.replace(old, new, 1), encoding="utf-8")
        with pytest.raises(SystemExit) as stop:
            scripts.main.main(command)
        assert stop.value.code == 1
        assert f"{file.name}' must be what `write` makes of" in capsys.readouterr().err
        file.write_text(before, encoding="utf-8")


def test_missing_tables_are_named_with_what_makes_them(scripts, study, tmp_path, capsys):
    (tmp_path / "results.csv").write_bytes((study / "results.csv").read_bytes())
    with pytest.raises(SystemExit):
        scripts.main.main(["write", str(tmp_path), "--document", str(tmp_path / "README.md")])
    assert "must hold comparisons.csv; it does not. Make it with `python -m studies.tools.results measure`" in (
        capsys.readouterr().err
    )
    assert not (tmp_path / "README.md").exists()


def test_comparisons_of_other_runs_are_refused(scripts, study, tmp_path, capsys):
    for name in ("results.csv", "sets.csv"):
        (tmp_path / name).write_bytes((study / name).read_bytes())
    table = pd.read_csv(study / "comparisons.csv", keep_default_na=False)
    keep = (table["baseline"] == "msp") | (table["negative"] != "OOD mean")
    table[keep].to_csv(tmp_path / "comparisons.csv", index=False)
    with pytest.raises(SystemExit):
        scripts.main.main(["write", str(tmp_path), "--document", str(tmp_path / "README.md")])
    assert "the best here; it does not, so that it is of other runs than results.csv" in capsys.readouterr().err


def test_one_network_is_enough(scripts, networks, tmp_path):
    list(scripts.ranks.write_ranks([scripts.ranks.ranks_of(networks[0])], tmp_path / "ranks.safetensors", limit=0))
    scripts.main.main(["measure", str(tmp_path / "ranks.safetensors"), "--out", str(tmp_path), "--draws", "5"])
    scripts.main.main(["write", str(tmp_path), "--document", str(tmp_path / "README.md")])
    text = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert "One seed each says nothing of how networks differ." in text
    assert "nan" not in text
    compared, record = (pd.read_csv(tmp_path / f"{name}.csv") for name in ("comparisons", "claims"))
    own = compared[compared["baseline"].isna() & (compared["score"] == "msp") & (compared["metric"] == "auroc")]
    ends = own.set_index("negative")[["low", "high"]]
    close, far = (ends.loc[GROUPS[group]].mean() for group in ("Close", "Far"))
    expected = "for" if close["high"] < far["low"] else "against" if close["low"] > far["high"] else "open"
    found = record[record["claim"].str.startswith("OOD images near") & (record["what"] == "MSP (Close below Far)")]
    assert found["outcome"].tolist() == [expected]


@pytest.mark.slow
def test_collect_writes_the_ranks_of_every_run(scripts, networks, tmp_path, monkeypatch):
    """Studies are read as `sirc.experiment.results` does; here they are given."""
    (tmp_path / "history.csv").write_text("epoch,lr\n1,0.1\n", encoding="utf-8")
    runs = [
        SimpleNamespace(store=lambda name: tmp_path, of=run, seed=run.seed, history=tmp_path / "history.csv")
        for run in networks[:2]
    ]
    monkeypatch.setattr(
        scripts.main, "load_experiments", lambda folder: [SimpleNamespace(runs=runs, name="toy_resnet50")]
    )
    monkeypatch.setattr(scripts.main, "load_run", lambda study, run, device: run.of)
    monkeypatch.setattr(scripts.main, "OutputStore", lambda path: range(1234))
    scripts.main.main(["collect", "runs", "--out", str(tmp_path / "ranks")])
    found = scripts.ranks.read_ranks([tmp_path / "ranks"])
    assert [(run.model, run.seed, run.trained) for run in found] == [("ResNet-50", s, 1234) for s in (1, 2)]
    pd.testing.assert_frame_equal(found[1].evaluation().table, networks[1].evaluation.table, check_exact=True)
    out = tmp_path / "toy"
    scripts.main.main(["measure", str(tmp_path / "ranks"), "--out", str(out), "--draws", "2", "--workers", "1"])
    kept = [(out / "history" / f"toy_resnet50-{seed}.csv").read_text(encoding="utf-8") for seed in (1, 2)]
    assert kept == ["epoch,lr\n1,0.1\n"] * 2


def made_up(model, seeds, generator, shift=0.0):
    """Figures of a network: normal, each score with a mean and a spread of its own."""
    rows = [
        (model, seed, f"score{i}", "wrong", metric, math.nan, math.nan, i + shift + (1 + i % 7) * generator.normal())
        for seed in seeds
        for i in range(400)
        for metric in ("error", "auroc")
    ]
    columns = ["model", "seed", "score", "negative", "metric", "alpha", "beta", "value"]
    return pd.DataFrame(rows, columns=columns)


@pytest.mark.parametrize("seeds", [1, 3])
def test_a_rerun_of_the_same_networks_lies_within_in_95_percent(scripts, seeds):
    again = scripts.repeat
    generator = np.random.default_rng(seeds)
    kept = pd.concat([made_up("A", (1, 2, 3), generator), made_up("B", (1,), generator)])
    rerun = made_up("A", range(seeds), generator)
    summary = scripts.measure.summary(kept)
    found = again.repeated(rerun, summary)
    assert len(found) == 800  # B has one seed, and no spread
    assert 0.93 < found["within"].mean() < 0.97
    one = found.iloc[5]
    values = [
        own.loc[(own["model"] == "A") & (own["score"] == one["score"]) & (own["metric"] == one["metric"]), "value"]
        for own in (rerun, kept)
    ]
    reach = stats.t.ppf(0.975, 2) * values[1].std() * math.sqrt(1 / seeds + 1 / 3)
    assert (one["difference"], one["reach"]) == pytest.approx((values[0].mean() - values[1].mean(), reach), rel=1e-4)
    assert again.repeated(made_up("A", range(seeds), generator, shift=99.0), summary)["within"].mean() < 0.2


def test_repeat_prints_what_differs(scripts, tmp_path, capsys):
    generator = np.random.default_rng(0)
    for name, shift in (("kept", 0.0), ("again", 99.0)):
        (tmp_path / name).mkdir()
        results = made_up("A", (1, 2, 3), generator, shift)
        write_results(results, tmp_path / name / "results.csv")
        scripts.measure.summary(results).to_csv(tmp_path / name / "summary.csv", index=False)
    scripts.main.main(["repeat", str(tmp_path / "kept"), str(tmp_path / "kept" / "summary.csv")])
    out = capsys.readouterr().out
    assert "| A | 1, 2, 3 | 3 |" in out
    assert "| 800 of 800 | 100.0% |" in out
    assert "farthest" not in out
    scripts.main.main(["repeat", str(tmp_path / "again"), str(tmp_path / "kept")])
    assert capsys.readouterr().out.count("\n- A, `score") == 5
    write_results(made_up("B", (1,), generator), tmp_path / "other.csv")
    with pytest.raises(SystemExit):
        scripts.main.main(["repeat", str(tmp_path / "other.csv"), str(tmp_path / "kept")])
    assert "it has B, kept are A" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        scripts.main.main(["repeat", str(tmp_path), str(tmp_path / "kept")])
    assert re.search(r"there is no '.*results\.csv'\. Make it with `sirc run`", capsys.readouterr().err)


def test_training_is_told_from_the_histories(scripts, study, tmp_path):
    """Of a network whose TOML is known by its title."""
    folder = tmp_path / "tiny_imagenet_100"
    shutil.copytree(study, folder)
    histories = {
        (name, seed): pd.DataFrame(
            {
                "lr": [0.1, 0.1, 0.01],
                "error": [0.9, 0.8, 0.5],
                "validation_error": [0.9, 0.6 + seed / 100, 0.4 + seed / 100],
                "seconds": [60.0, 60.0, 60.0 * seed],
                "images_per_second": [100.0, 200.0, 300.0],
            }
        )
        for name in ("resnet50", "densenet121", "mobilenetv2")
        for seed in (1, 2, 3)
    }
    (folder / "history").mkdir()
    for (name, seed), history in histories.items():
        history.to_csv(folder / "history" / f"{name}-{seed}.csv", index=False)
    scripts.main.main(["write", str(folder)])
    text = " ".join((folder / "README.md").read_text(encoding="utf-8").split())
    assert "| validation %error, epoch 2 |" in text
    assert "| ResNet-50, 3 seeds | 61.0 … 63.0 | 50.0 | 41.0 … 43.0 | 3.0 … 5.0 | 200 |" in text
    assert "| ResNet-50 | 30 | 256 | 0.1, ÷10 at 10, 20, 2 epochs of warm-up |" in text
    assert "- ResNet-50 has a warm-up of 2 epochs, the paper's none" in text
    assert "sirc run studies/tiny_imagenet_100/{densenet121,mobilenetv2,resnet50}.toml --out again/" in text


def test_a_document_elsewhere_gets_its_summary_and_figures(scripts, study, networks, tmp_path):
    folder = tmp_path / "toy"
    shutil.copytree(study, folder)
    (folder / "figures").mkdir()
    for name in ("changes.png", "risks-resnet-50.png", "plane-resnet-50.png"):
        Image.new("RGBA", (4, 3), (200, 10, 20, 255)).save(folder / "figures" / name)
    scripts.main.main(["write", str(folder), "--document", str(tmp_path / "there" / "README.md")])
    made = sorted(str(path.relative_to(tmp_path / "there")) for path in (tmp_path / "there").rglob("*.*"))
    assert made == ["README.md", "claims.csv", "figures/changes.png", "figures/risks-resnet-50.png", "summary.csv"]
    with Image.open(tmp_path / "there" / "figures" / "changes.png") as figure:
        assert figure.convert("RGB").getcolors() == [(12, (200, 10, 20))]
    text = (tmp_path / "there" / "README.md").read_text(encoding="utf-8")
    assert "](figures/risks-resnet-50.png)" in text
    assert "- [summary.csv](summary.csv)" in text
    assert "results.csv](" not in text
    summary = pd.read_csv(tmp_path / "there" / "summary.csv").set_index(["model", "score", "negative", "metric"])
    table = pd.concat([run.table for run in networks]).set_index(["model", "score", "negative", "metric"])["value"]
    key = ("MobileNetV2", "sirc(msp, knn)", "OOD mean", "aurr")
    row = summary.loc[key]
    assert (row["mean"], row["std"], row["seeds"]) == pytest.approx((table[key].mean(), table[key].std(), 3), rel=1e-4)


@pytest.mark.parametrize(
    ("rates", "expected"), [([0.1, 0.1, 0.01], 2), ([0.001, 0.05, 0.1, 0.1, 0.01, 0.001], 4), ([0.1, 0.1], 2)]
)
def test_the_first_step_is_where_the_rate_falls(scripts, rates, expected):
    assert scripts.setup.first_step(pd.DataFrame({"lr": rates})) == expected


def test_the_table_of_the_readme_is_that_of_the_document():
    text = (STUDIES / "tiny_imagenet_100" / "README.md").read_text(encoding="utf-8").replace("**", "")
    part = (ROOT / "README.md").read_text(encoding="utf-8").partition("## Measured")[2].partition("`scod`, what")[0]
    rows = re.findall(r"^\| `(.+)` (\| .+ \|)$", part, re.MULTILINE)
    assert len(rows) == 6
    for spec, cells in rows:
        short = re.sub(r"^sirc\(msp, (\w+)\)$", r"\1", spec)  # as the table of S2 names it
        assert any(f"| `{name}` {cells}"[:-1] in text for name in (spec, short)), spec


def test_published_networks_are_described_without_training_or_seeds(scripts, tmp_path):
    titles = {"EfficientNet-Lite1": 0, "MobileNetV1": 1, "MobileNetV2": 2}
    runs = []
    for title, place in titles.items():
        found = network(MODELS[place], 1)
        runs.append(scripts.ranks.ranks_of(RunResults(title, 0, found.evaluation, None, None, {}, None), 3000))
    folder = tmp_path / "imagenet_1k"
    ranks = tmp_path / "ranks.safetensors"
    list(scripts.ranks.write_ranks(runs, ranks, limit=2**24))
    scripts.main.main(["measure", str(ranks), "--out", str(folder), "--draws", "5", "--workers", "1"])
    scripts.main.main(["write", str(folder)])
    text = " ".join((folder / "README.md").read_text(encoding="utf-8").split())
    assert "3 networks (MobileNetV2, EfficientNet-Lite1, MobileNetV1; one run each)" in text
    assert "3,000 images to fit on" in text
    assert "- 1000 classes of ImageNet at 224 or 240 px instead of 200 of ImageNet at 224." in text
    assert "- The networks are published ones, trained by others: there is one run of each." in text
    assert "images in `data/imagenet_1k/` and the weights in `weights/`" in text
    # EfficientNet-Lite2 and -Lite4 have a TOML, but no results here.
    assert "sirc run studies/imagenet_1k/{efficientnet_lite1,mobilenetv1,mobilenetv2}.toml --out" in text
    assert "resamples the images" in text
    for word in ("epochs instead of", "seeds each", "--device cuda", "range over seeds"):
        assert word not in text
