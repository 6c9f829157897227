"""A whole study in one call: every stage once, nothing twice, and only what depends on a lost result again."""

import io
import json
import re
import shutil
import webbrowser
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import sirc
from sirc._utils.files import read_safetensors, write_safetensors
from sirc.data import open_source
from sirc.errors import ConfigError, StoreError
from sirc.experiment import DEFAULT_SPECS, RunResults
from sirc.experiment.arrays import find_head_in, fit_arrays, load_outputs, possible_specs, save_arrays
from sirc.experiment.claims import Finding, findings
from sirc.experiment.demo import run_demo
from sirc.experiment.experiment import Experiment
from sirc.experiment.results import SCHEMA, load_run, load_runs, read_results
from sirc.experiment.stages import check_outputs, extract_run, fit_run
from sirc.experiment.study import run_study
from support.report_reader import read_page, read_score
from support.tiny_images import write_images


def done(study):
    return [step.name for step in study.steps if not step.skipped]


def stamps(folder):
    """When files were written, and anything was made or renamed in folders, as in a write that changes nothing."""
    return {path: path.stat().st_mtime_ns for path in Path(folder).rglob("*")}


NAMES = ["train", "extract", "fit"]


@pytest.mark.slow
@pytest.mark.usefixtures("few_figures")
def test_a_study_is_done_once_and_only_what_is_lost_is_made_again(experiment):
    first = run_study([experiment], formats=["svg"])
    expected = [f"tiny, seed-{seed}: {stage}" for seed in (1, 2) for stage in NAMES]
    expected += [f"tiny, seed-{seed}: evaluate" for seed in (1, 2)] + ["tables", "page", "figures"]
    assert [step.name for step in first.steps] == expected
    assert done(first) == expected
    made = {path.name for path in first.files}
    assert {"results.csv", "table.md", "table.tex"} <= made
    assert any(path.suffix == ".svg" and path.parent.name == "figures" for path in first.files)
    assert all(path.is_file() for path in first.files)
    assert first.page == Path("runs/tiny/report.html")

    before = stamps("runs")
    second = run_study([experiment], formats=["svg"])
    assert done(second) == []
    pd.testing.assert_frame_equal(second.results, first.results)
    assert stamps("runs") == before  # so it may be in a read-only folder

    shutil.rmtree("runs/tiny/seed-2/outputs/Grey")
    assert done(run_study([experiment], formats=["svg"])) == ["tiny, seed-2: extract"]  # it came out the same

    Path("runs/tiny/seed-1/scorer.safetensors").unlink()
    assert done(run_study([experiment], formats=["svg"])) == ["tiny, seed-1: fit"]

    Path("runs/tiny/table.md").unlink()
    assert done(run_study([experiment], formats=["svg"])) == ["tables"]

    page = Path("runs/tiny/report.html").read_bytes()
    Path("runs/tiny/report.html").unlink()
    assert done(run_study([experiment], formats=["svg"])) == ["page"]
    assert Path("runs/tiny/report.html").read_bytes() == page
    assert done(run_study([experiment], formats=["svg"], redo=["page"])) == ["page"]

    Path("runs/tiny/seed-1/results.csv").unlink()
    assert done(run_study([experiment], formats=["svg"])) == ["tiny, seed-1: evaluate"]

    assert done(run_study([experiment], formats=["png"])) == ["figures"]


@pytest.mark.slow
@pytest.mark.usefixtures("finished")
def test_results_are_those_of_the_evaluation_in_the_one_schema(experiment):
    study = run_study([experiment], figures=False)
    assert list(study.results.columns) == SCHEMA
    read = read_results("runs/tiny/results.csv")
    pd.testing.assert_frame_equal(read, study.results)
    assert set(read.model) == {"tiny"}
    assert set(read.seed) == {1, 2}
    assert {"wrong", "Grey", "Noise", "OOD mean", "pooled", "Far"} == set(read.negative)
    scorer = sirc.Scorer.load("runs/tiny/seed-2/scorer.safetensors")
    stores = {name: sirc.OutputStore(f"runs/tiny/seed-2/outputs/{name}") for name in ("test", "Grey", "Noise")}
    test = stores.pop("test")
    ev = sirc.evaluate(scorer, test.load(), {name: store.load() for name, store in stores.items()})
    for row in ev.table.itertuples():
        mine = read[
            (read.seed == 2) & (read.score == row.score) & (read.negative == row.negative) & (read.metric == row.metric)
        ]
        assert mine["value"].item() == pytest.approx(row.value, nan_ok=True)


@pytest.mark.slow
@pytest.mark.usefixtures("finished")
def test_two_experiments_are_put_together(experiment):
    Path("other.toml").write_text(
        Path("tiny.toml").read_text(encoding="utf-8").replace('"tiny"', '"other"').replace("[1, 2]", "[3]"),
        encoding="utf-8",
    )
    other = Experiment.read("other.toml")
    study = run_study([experiment, other], figures=False)
    assert study.folder == Path("runs")
    assert {(row.model, row.seed) for row in study.results.itertuples()} == {("tiny", 1), ("tiny", 2), ("other", 3)}
    elsewhere = Experiment.read("other.toml", ["out=elsewhere"])
    with pytest.raises(ValueError, match="must have the same `out`"):
        run_study([experiment, elsewhere])
    with pytest.raises(ValueError, match="different names"):
        run_study([experiment, experiment])
    same = Experiment.read("other.toml", ["title=tiny"])
    with pytest.raises(ValueError, match="different titles"):
        run_study([experiment, same], folder="x")
    assert [(run.model, run.seed) for run in load_runs(["runs"])] == [("tiny", 1), ("tiny", 2), ("other", 3)]
    with pytest.raises(ValueError, match="at least one experiment"):
        run_study([])


@pytest.mark.slow
@pytest.mark.usefixtures("finished", "few_figures")
def test_the_commands_print_tables_and_paths(experiment, command):
    code, out, err = command("run", "tiny.toml", "--format", "svg")
    assert code == 0, err
    assert "SIRC(MSP, Res.)" in out
    assert "runs/tiny/results.csv" in out
    assert "runs/tiny/table.tex" in out
    assert "runs/tiny/figures/" in out
    assert "study: 11/11 stages" in err
    assert out.splitlines()[-1] == "open runs/tiny/report.html"

    code, out, _ = command("table", "runs/tiny", "--format", "latex", "--spread")
    assert code == 0
    assert r"\toprule" in out
    assert r"\pm" in out
    code, out, _ = command("table", "runs/tiny", "--metric", "aurr", "--negative", "pooled", "--out", "mine.md")
    assert (code, out) == (0, "mine.md\n")
    assert "AURR" in Path("mine.md").read_text(encoding="utf-8")
    assert command("table", "runs/tiny", "--score", "sirc(msp,residual)")[0] == 0
    code, _, err = command("table", "runs/tiny", "--format", "latex", "--out", "mine.html")
    assert code == 2
    assert "must go to a file ending in .tex" in err
    code, _, err = command("table", "runs/tiny", "--metric", "auprc")
    assert code == 1
    assert "auroc" in err

    shutil.rmtree("data")
    code, out, err = command("plot", "runs/tiny", "--out", "drawn", "--format", "png")
    assert code == 0, err
    assert "without a figure of sample images" in err
    assert all(Path(line).is_file() for line in out.splitlines())
    assert all(line.startswith("drawn/") and line.endswith(".png") for line in out.splitlines())


@pytest.mark.usefixtures("finished")
@pytest.mark.slow
def test_what_other_code_wrote_is_written_again(experiment, monkeypatch):
    def redone():
        study = run_study([experiment], figures=False)
        return {step.name for step in study.steps if not step.skipped}

    assert redone() == set()
    monkeypatch.setattr("sirc.experiment.study.folder_digest", lambda folder: f"newer code in {folder.name}")
    assert redone() == {"tables", "page"}
    assert redone() == set()


@pytest.mark.slow
@pytest.mark.usefixtures("finished")
def test_the_page_of_a_study_is_written_again_from_what_is_stored(experiment, command, monkeypatch):
    opened = []
    monkeypatch.setattr("webbrowser.open", lambda address: opened.append(address) or True)
    code, out, err = command("run", "tiny.toml", "--no-figures", "--open", "--quiet")
    assert (code, err) == (0, "")
    page = Path("runs/tiny/report.html")
    assert out.splitlines()[-1] == f"open {page}"
    assert opened == [page.resolve().as_uri()]
    content = read_page(page)
    assert content["title"] == "tiny"
    (model,) = content["models"]
    assert [run["seed"] for run in model["runs"]] == [1, 2]
    assert (model["sets"], model["groups"]) == (["Grey", "Noise"], {"Far": [1]})
    results = read_results("runs/tiny/results.csv").query("metric == 'aurr' and negative == 'pooled' and seed == 2")
    run = model["runs"][1]
    for score, packed in zip(model["scores"], run["scores"], strict=True):
        weights = np.array(run["sizes"][2:]) / sum(run["sizes"][2:])
        aurr, _ = read_score(packed, 4).areas(0.5, 0.5, weights)
        assert aurr == pytest.approx(results[results.score == score["spec"]]["value"].item(), rel=0.005)

    before = page.read_bytes()
    code, out, err = command("report", "runs/tiny")
    assert (code, out) == (0, "runs/tiny/report.html\n")
    assert "page: 6/6 scores" in err
    assert page.read_bytes() == before
    code, out, err = command("report", "runs/tiny", "--out", "mine.html", "--title", "Mine", "--quiet")
    assert (code, out, err) == (0, "mine.html\n", "")
    assert read_page("mine.html")["title"] == "Mine"
    code, out, err = command("report", "runs/tiny", "--out", "mine.html")
    assert (code, out) == (1, "")
    assert "'mine.html' exists already. Pass `--overwrite` to replace it." in err
    assert command("report", "runs/tiny", "--out", "mine.html", "--overwrite", "--quiet")[0] == 0
    assert read_page("mine.html")["title"] == "tiny"
    code, _, err = command("report", "runs/tiny", "runs/tiny")
    assert code == 1
    assert "runs of one model must have different seeds; 'tiny' has 1, 2, 1, 2" in err
    assert len(opened) == 1


@pytest.mark.slow
@pytest.mark.parametrize("failing", [lambda _: False, None], ids=["none", "an error"])
def test_where_no_browser_opens_the_page_is_there_all_the_same(arrays, command, monkeypatch, failing):
    def broken(_):
        raise webbrowser.Error("could not locate runnable browser")

    monkeypatch.setattr("webbrowser.open", failing or broken)
    code, out, err = command("evaluate", "--id", "test.npz", *SETS, "--no-figures", "--open")
    assert code == 0
    assert out.splitlines()[-1] == "open sirc-results/report.html"
    assert "no browser could be opened; open 'sirc-results/report.html' yourself" in err
    assert read_page("sirc-results/report.html")["models"][0]["sets"] == ["near", "far"]


def test_a_folder_without_stored_outputs_has_no_page(tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    code, out, err = command("report", "nowhere")
    assert (code, out) == (1, "")
    assert "there is no folder 'nowhere'" in err
    assert "sirc run EXPERIMENT.toml" in err
    assert not Path("nowhere").exists()
    Path("mine.toml").touch()
    code, _, err = command("calibrate", "mine.toml")
    assert code == 1
    assert "'mine.toml' is a file; name the folder that `sirc run` made, such as runs/mine" in err


@pytest.fixture
def arrays(tmp_path, monkeypatch):
    """Outputs as someone else would bring them: plain NumPy files."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    rng = np.random.default_rng(0)
    weight, bias = rng.normal(size=(4, 12)).astype("f"), rng.normal(size=4).astype("f")

    def write(name, count, shift=0.0, labelled=True, **more):
        labels = rng.integers(0, 4, count)
        features = np.maximum(0, weight[labels] + rng.normal(size=(count, 12)) + shift).astype("f")
        columns = {"logits": features @ weight.T + bias, "features": features}
        np.savez(name, **columns, **({"labels": labels} if labelled else {}), **more)

    write("train.npz", 2000, head_weight=weight, head_bias=bias)
    write("test.npz", 400)
    write("near.npz", 300, shift=0.5, labelled=False)
    write("far.npz", 300, shift=2.0, labelled=False)
    write("val.npz", 300)
    np.savez("head.npz", weight=weight, bias=bias)
    return tmp_path


FIRSTS = ("msp", "doctor", "entropy")
SETS = ["--ood", "near=near.npz", "--ood", "far=far.npz"]


@pytest.mark.slow
@pytest.mark.usefixtures("few_figures")
def test_arrays_are_evaluated_like_a_study(arrays, command):
    code, out, err = command("evaluate", "--train", "train.npz", "--id", "test.npz", *SETS, "--format", "svg")
    assert code == 0, err
    assert "sirc-results/results.csv" in out
    results = read_results("sirc-results/results.csv")
    assert set(results.score) == set(DEFAULT_SPECS)
    train = sirc.Outputs.load("train.npz")
    with np.load("train.npz") as file:
        head = sirc.Head(file["head_weight"], file["head_bias"])
    scorer = sirc.fit("sirc(msp, residual)", train, head=head)
    ood = {name: sirc.Outputs.load(f"{name}.npz") for name in ("near", "far")}
    ev = sirc.evaluate(scorer, sirc.Outputs.load("test.npz"), ood)
    mine = results[results.score == "sirc(msp, residual)"]
    for row in ev.table.itertuples():
        value = mine[(mine.negative == row.negative) & (mine.metric == row.metric)]["value"].item()
        assert value == pytest.approx(row.value, nan_ok=True)


@pytest.mark.slow
def test_arrays_of_validation_rows_tune_the_scores(arrays, command):
    given = ["evaluate", "--train", "train.npz", "--id", "test.npz", *SETS, "--no-figures", "--overwrite"]
    specs = ["tempered_msp", "sirc(entropy, l1, budget=1)", "bayes(msp, residual)"]
    asked = [word for spec in specs for word in ("--score", spec)]
    code, _, err = command(*given, "--val", "val.npz", *asked)
    assert code == 0, err
    outputs = {name: sirc.Outputs.load(f"{name}.npz") for name in ("train", "test", "val", "near", "far")}
    scorer = sirc.fit(specs, outputs["train"], head=sirc.Head.load("train.npz"), val=outputs["val"])
    assert scorer.parameters["tempered_msp"]["temperature"] != 1
    ev = sirc.evaluate(scorer, outputs["test"], {name: outputs[name] for name in ("near", "far")})
    found = read_results("sirc-results/results.csv").set_index(["score", "negative", "metric"])["value"]
    expected = ev.table.set_index(["score", "negative", "metric"])["value"]
    np.testing.assert_allclose(found[expected.index], expected, rtol=1e-6)
    code, _, err = command(*given, *asked)
    assert code == 1
    assert "`--val` is needed for `sirc(entropy, l1, budget=1.0)`" in err
    code, _, err = command(*given, *asked, "--on-unfit", "skip")
    assert code == 0, err
    assert "warning: left out: `--val` is needed for `sirc(entropy, l1, budget=1.0)`" in err
    assert set(read_results("sirc-results/results.csv")["score"]) == {"tempered_msp", "bayes(msp, residual)"}
    code, _, err = command(*given, "--val", "val.npz", "--score", "msp")
    assert code == 0
    assert "'val.npz' was not used" in err
    for wrong, words in ((["--val", "test.npz"], "must be different outputs"), (["--val", "none.npz"], "'none.npz'")):
        code, _, err = command(*given, *wrong, "--score", "tempered_msp")
        assert code
        assert words in err
    code, _, err = command("evaluate", "--id", "test.npz", *SETS, "--val", "val.npz")
    assert code == 2
    assert "`--train" in err


def test_only_scores_that_the_arrays_allow_are_possible(arrays):
    train, test, val = (sirc.Outputs.load(f"{name}.npz") for name in ("train", "test", "val"))
    head = sirc.Head.load("train.npz")
    assert possible_specs(train, test, head) == possible_specs(train, test, head, val) == list(DEFAULT_SPECS)
    unlabelled = sirc.Outputs(train.logits, train.features)
    assert {*DEFAULT_SPECS} - {*possible_specs(unlabelled, test, head)} == {"mahalanobis"}
    headless = {"residual", "vim", *(f"sirc({s1}, residual)" for s1 in FIRSTS)}
    assert {*DEFAULT_SPECS} - {*possible_specs(train, test, None)} == headless
    bare = sirc.Outputs(test.logits, labels=test.labels)
    logits = ["msp", "doctor", "entropy", "max_logit", "energy"]
    assert possible_specs(None, bare, head, val) == possible_specs(train, bare, head) == logits
    assert possible_specs(sirc.Outputs(train.logits, labels=train.labels), bare, head) == [*logits, "scod"]
    for spec in DEFAULT_SPECS:
        sirc.evaluate(sirc.fit(spec, train[:600], head=head), test)


@pytest.mark.slow
def test_checks_and_choices_of_arrays_may_be_tuned(arrays, command):
    files = ["--val", "test.npz", "--train", "train.npz", "--ood", "near=near.npz"]
    budget = ["--score", "sirc(max_logit_pnorm, l1, budget=1)"]
    for name in (["check"], ["select", "--draws", "20", "--score", "bayes(msp, residual)"]):
        code, out, err = command(*name, *files, "--tune", "val.npz", *budget, "--quiet")
        assert code == 0, err
        assert "max_logit_pnorm" in out
        code, _, err = command(*name, *files, *budget)
        assert code == 2
        assert "give `--tune`" in err
        code, _, err = command(*name, "--val", "test.npz", "--scorer", "x", "--tune", "val.npz", *budget)
        assert code == 2
        assert "`--tune` would do nothing" in err
        code, _, err = command(*name, "--val", "val.npz", "--train", "train.npz", "--tune", "val.npz", *budget)
        assert code == 1
        assert "not fitted on" in err


@pytest.mark.slow
def test_what_the_arrays_do_not_allow_is_left_out_and_said(arrays, command):
    code, _, err = command("evaluate", "--id", "test.npz", *SETS, "--no-figures")
    assert code == 0, err
    assert "left out, as features" in err
    assert "vim" in err
    assert set(read_results("sirc-results/results.csv").score) == {
        *("msp", "doctor", "entropy", "max_logit", "energy", "l1", "gradnorm")
    }
    code, _, err = command("evaluate", "--id", "test.npz", *SETS, "--no-figures")
    assert code == 1
    assert "'sirc-results/results.csv' exists already. Pass `--overwrite`" in err
    Path("sirc-results/results.csv").unlink()
    for table in Path("sirc-results").glob("table.*"):
        table.unlink()
    code, _, err = command("evaluate", "--id", "test.npz", *SETS, "--no-figures")
    assert code == 1
    assert "'sirc-results/report.html' exists already" in err


@pytest.mark.slow
def test_by_default_scod_is_evaluated_with_what_the_arrays_allow(arrays, command):
    def scores(*train):
        code, _, err = command("evaluate", *train, *SETS, "--no-figures", "--overwrite")
        assert (code, "Traceback" in err) == (0, False), err
        return set(read_results("sirc-results/results.csv").score), err

    with np.load("train.npz") as train:
        np.savez("headless.npz", **{name: train[name] for name in ("logits", "features", "labels")})
        np.savez("logits.npz", **{name: train[name] for name in ("logits", "labels")})
    found, err = scores("--train", "headless.npz", "--id", "test.npz")
    assert set(DEFAULT_SPECS) - found == {"residual", "vim", *(f"sirc({s1}, residual)" for s1 in FIRSTS)}
    assert "`scod` uses fewer witnesses: `residual`, `vim`: `head` is needed" in " ".join(err.split())
    found, err = scores("--train", "logits.npz", "--id", "test.npz")
    assert "scod" in found
    assert "features are needed for" in " ".join(err.split())
    with np.load("test.npz") as test:
        np.savez("bare.npz", **{name: test[name] for name in ("logits", "labels")})
    for name in ("near", "far"):
        with np.load(f"{name}.npz") as rows:
            np.savez(f"{name}.npz", logits=rows["logits"])
    found, err = scores("--train", "train.npz", "--id", "bare.npz")  # the training rows alone have features
    assert found == {*FIRSTS, "max_logit", "energy"}


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--id", "none.npz"], 1, "there is no file or store 'none.npz'"),
        (["--id", "near.npz", "--ood", "far=far.npz"], 1, "labels"),
        (
            ["--id", "test.npz", "--ood", "far"],
            2,
            "`--ood` must be NAME=PATH, where NAME is your choice",
        ),
        (["--id", "test.npz", "--ood", "a=far.npz", "--ood", "a=near.npz"], 2, "each name once"),
        (["--id", "test.npz", "--group", "Close"], 2, "`--group` must be NAME=SET,SET"),
        (["--id", "test.npz", "--ood", "a=test.npz"], 2, "`--ood a` and `--id` must be different outputs"),
        (
            ["--train", "train.npz", "--id", "test.npz", "--ood", "a=train.npz"],
            2,
            "`--ood a` and `--train` must be different outputs",
        ),
        (["--train", "test.npz", "--id", "test.npz"], 2, "`--id` and `--train` must be different outputs"),
        (["--id", "test.npz", "--out", "no.txt"], 2, "`--out` must be a folder"),
        (["--id", "test.npz", "--score", "mps"], 1, "msp"),
        (["--id", "test.npz", "--score", "vim"], 1, "vim"),
        (["--id", "test.npz", "--crossfit", "often"], 2, "`--crossfit` must be auto or a whole number"),
        (["--train", "train.npz", "--id", "test.npz", "--head", "test.npz"], 1, "must hold `head_weight`"),
        (["--id", "test.npz", "--ood", "far=head.npz"], 1, "error: 'head.npz' must have an array named `logits`"),
        (["--id", "test.npz", "--ood", "far=junk.npz"], 1, "error: 'junk.npz' cannot be trusted"),
        (["--id", "no.txt"], 1, "must end in `.npz` or `.safetensors`; got 'no.txt'"),
        (["--id", "test.npz", *SETS, "--group", "Close=nearest"], 1, "nearest"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_mistakes_with_arrays_are_answered_in_words(arrays, command, arguments, code, words):
    Path("junk.npz").write_text("junk", encoding="utf-8")
    Path("no.txt").touch()
    got, _, err = command("evaluate", *arguments, "--no-figures")
    assert got == code
    assert words in err
    assert "Traceback" not in err
    assert all(err.count(f"'{file}'") <= 1 for file in ("head.npz", "junk.npz", "no.txt"))


def test_wrong_shapes_are_answered_in_words(arrays, command):
    np.savez("narrow.npz", logits=np.zeros((5, 3), "f"), features=np.zeros((5, 12), "f"))
    code, _, err = command("evaluate", "--train", "train.npz", "--id", "test.npz", "--ood", "x=narrow.npz")
    assert code == 1
    assert "3" in err
    assert "4" in err
    code, _, err = command("evaluate", "--id", "test.npz", "--ood", "x=narrow.npz", "--score", "msp")
    assert code == 1
    assert "OOD set 'x' must have the logits of the network that made `--id`: 4 columns; got 3" in err


def test_the_head_is_found_in_any_of_its_places(arrays):
    inside, alone = find_head_in(None, "train.npz"), find_head_in("head.npz", "train.npz")
    assert torch.equal(inside.weight, alone.weight)
    assert torch.equal(inside.bias, alone.bias)
    assert find_head_in(None, "test.npz") is None
    outputs = load_outputs("train.npz")
    save_arrays("again.npz", outputs, inside)
    assert torch.equal(sirc.Head.load("again.npz").weight, inside.weight)
    store = sirc.OutputStore.from_outputs("store", outputs)
    assert load_outputs("store").path == store.path
    assert find_head_in(None, "store") is None
    assert possible_specs(outputs, outputs, inside) == list(DEFAULT_SPECS)
    unlabelled = possible_specs(load_outputs("near.npz"), outputs, inside)
    assert set(DEFAULT_SPECS) - set(unlabelled) == {"mahalanobis"}


@pytest.mark.slow
def test_findings_are_those_of_the_paired_differences(arrays):
    train, test, near, far = (load_outputs(f"{name}.npz") for name in ("train", "test", "near", "far"))
    sets = {"near": near, "far": far}
    scorer = fit_arrays(train, test, sets, head=sirc.Head.load("head.npz"))
    run = RunResults("model", 0, sirc.evaluate(scorer, test, sets), scorer, test, sets)
    lose, keep, match, change = findings([run], draws=50)
    assert "OOD detectors" in lose.claim
    assert set(lose.details.score) == {"max_logit", "energy", "gradnorm", "vim", "residual", "mahalanobis"}
    table = run.evaluation.compare("msp", draws=50)
    for row in lose.details.itertuples():
        expected = table[(table.score == row.score) & (table.negative == "wrong") & (table.metric == "auroc")]
        assert row.difference == pytest.approx(expected.difference.item())
        assert row.low == pytest.approx(expected.low.item())
    assert (lose.sure, lose.against) == ((lose.details.high < 0).sum(), (lose.details.low > 0).sum())
    assert len(keep.details) == len(match.details) == 6
    assert (keep.sure, keep.against) == ((keep.details.low >= -0.002).sum(), (keep.details.high < -0.002).sum())
    assert all(found.sure + found.against + found.open == len(found.details) for found in (lose, keep, match))
    assert "with l1: " in keep.measured
    assert "with residual: " in keep.measured
    assert "different scores have the lowest AURR" in change.measured


def test_of_scores_that_always_tie_the_same_one_is_best_everywhere():
    rng = np.random.default_rng(0)
    inside, correct, outside = rng.normal(size=60), rng.random(60) < 0.8, rng.normal(size=40) - 0.5
    names = ("msp", "doctor", "entropy")
    evaluation = sirc.evaluate(dict.fromkeys(names, (inside, correct)), ood={"far": dict.fromkeys(names, outside)})
    (change,) = findings([RunResults("model", 0, evaluation, ood={"far": None})], draws=5)
    assert change.measured.startswith("1 to 1 different scores")
    assert change.verdict == "does not hold"
    assert findings([]) == []


def test_a_finding_holds_only_where_nothing_is_open():
    def verdict(sure, against, unsure):
        return Finding("claim", "", sure, against, unsure, pd.DataFrame()).verdict

    assert verdict(4, 0, 0) == "holds"
    assert verdict(3, 0, 1) == "undecided"
    assert verdict(3, 1, 0) == verdict(0, 4, 0) == "does not hold"


@pytest.mark.slow
@pytest.mark.usefixtures("finished")
def test_a_study_read_back_is_what_it_was(experiment):
    study = run_study([experiment], figures=False)
    runs = load_runs(["runs/tiny"])
    assert [(run.model, run.seed) for run in runs] == [("tiny", 1), ("tiny", 2)]
    table = pd.concat([run.table for run in runs], ignore_index=True)
    pd.testing.assert_frame_equal(table[SCHEMA], study.results)
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        load_runs(["nowhere"])
    shutil.move("runs", "elsewhere")
    moved = load_runs(["elsewhere/tiny"])
    assert moved[0].test.path == Path("elsewhere/tiny/seed-1/outputs/test").absolute()


def bits(runs):
    """Everything that an evaluation holds, to the last bit."""
    sets = [
        {"test": {**run.evaluation.confidences, "correct": run.evaluation.correct}} | run.evaluation.ood for run in runs
    ]
    return [
        {(name, score): (x.dtype, x.numpy().tobytes()) for name, part in one.items() for score, x in part.items()}
        for one in sets
    ]


def by_shard(scorer, store):
    parts = [scorer(shard) for shard in store]
    return {score: torch.cat([part[score] for part in parts]) for score in scorer.specs}


def unscored(monkeypatch):
    """Refuse to score anything."""

    def refuse(*_):
        raise AssertionError("scored again")

    monkeypatch.setattr(sirc.Scorer, "__call__", refuse)


KEPT = Path("runs/tiny/seed-2/confidences.safetensors")


@pytest.mark.slow
@pytest.mark.usefixtures("finished")
def test_what_was_scored_is_not_scored_again(experiment, command, monkeypatch):
    study = run_study([experiment], figures=False)
    page = Path("runs/tiny/report.html")
    before, scored = page.read_bytes(), bits(study.runs)
    assert KEPT.is_file()
    for seed in (1, 2):
        run = experiment.run(seed)
        scorer = sirc.Scorer.load(run.scorer)
        for name in ("test", "Grey", "Noise"):
            for score, values in by_shard(scorer, sirc.OutputStore(run.store(name))).items():
                assert scored[seed - 1][name, score] == (values.dtype, values.numpy().tobytes())
    unscored(monkeypatch)
    read = load_runs(["runs/tiny"])
    assert bits(read) == scored
    pd.testing.assert_frame_equal(pd.concat([run.table for run in read], ignore_index=True)[SCHEMA], study.results)
    assert command("report", "runs/tiny", "--quiet")[0] == 0
    assert done(run_study([experiment], figures=False, redo=["page"])) == ["page"]
    assert page.read_bytes() == before
    renamed = Experiment.read("tiny.toml", ["title=Tiny"])
    assert done(run_study([renamed], figures=False))[:2] == [f"tiny, seed-{seed}: evaluate" for seed in (1, 2)]
    text = Path("tiny.toml").read_text(encoding="utf-8")
    grey, noise = (text.index(f"[data.ood.{name}]") for name in ("Grey", "Noise"))
    end = text.index("[train]")
    Path("tiny.toml").write_text(text[:grey] + text[noise:end] + text[grey:noise] + text[end:], encoding="utf-8")
    other = Experiment.read("tiny.toml")
    assert list(other.data.ood) == ["Noise", "Grey"]
    assert bits(load_run(other, run) for run in other.runs) == scored


def damage():
    content = bytearray(KEPT.read_bytes())
    content[-100] ^= 1
    KEPT.write_bytes(content)


def forge():
    """Whole, with its checksum, but not what the run kept."""
    tensors, metadata = read_safetensors(KEPT)
    forged = {name: ~x if x.dtype == torch.bool else -x for name, x in tensors.items()}
    write_safetensors(KEPT, forged, metadata, overwrite=True)


@pytest.mark.slow
@pytest.mark.usefixtures("finished")
@pytest.mark.parametrize("spoil", [damage, forge, lambda: KEPT.write_bytes(b""), lambda: KEPT.unlink()])
def test_confidences_that_are_not_what_was_kept_are_made_again(experiment, spoil):
    study = run_study([experiment], figures=False)
    before, scored, results = KEPT.read_bytes(), bits(study.runs), Path("runs/tiny/results.csv").read_bytes()
    spoil()
    assert bits(load_runs(["runs/tiny"])) == scored
    assert done(run_study([experiment], figures=False)) == ["tiny, seed-2: evaluate"]
    assert KEPT.read_bytes() == before
    assert Path("runs/tiny/results.csv").read_bytes() == results


@pytest.mark.slow
@pytest.mark.usefixtures("finished")
@pytest.mark.parametrize("name", ["test", "Noise"])
def test_other_outputs_have_other_confidences(experiment, name):
    study = run_study([experiment], figures=False)
    before = study.runs[1].evaluation
    store = sirc.OutputStore(experiment.run(2).store(name))
    rows = store.shard(0)
    store.write(0, sirc.Outputs(rows.logits * 3, rows.features, rows.labels))
    expected = by_shard(sirc.Scorer.load(experiment.run(2).scorer), store)
    (first, second) = load_runs(["runs/tiny"])
    found = second.evaluation.confidences if name == "test" else second.evaluation.ood[name]
    assert all(torch.equal(found[score], values) for score, values in expected.items())
    assert not torch.equal(found["msp"], before.confidences["msp"] if name == "test" else before.ood[name]["msp"])
    again = run_study([experiment], figures=False)
    assert "tiny, seed-2: evaluate" in done(again)
    pd.testing.assert_frame_equal(again.results, pd.concat([first.table, second.table], ignore_index=True)[SCHEMA])


@pytest.mark.slow
@pytest.mark.usefixtures("finished")
def test_another_scorer_has_other_confidences(experiment, monkeypatch):
    run_study([experiment], figures=False)
    run, fewer = experiment.run(2), Experiment.read("tiny.toml", ['fit.specs=["energy", "max_logit"]'])
    fit_run(fewer, run, overwrite=True)
    found = load_run(fewer, run).evaluation
    assert found.scores == ["energy", "max_logit"]
    logits = sirc.OutputStore(run.store("Noise")).load().logits
    torch.testing.assert_close(found.ood["Noise"]["max_logit"].double(), logits.double().amax(1))
    unscored(monkeypatch)
    with pytest.raises(AssertionError, match="scored again"):
        load_run(fewer, run)  # reading has kept nothing


@pytest.mark.slow
@pytest.mark.usefixtures("finished")
def test_changed_settings_redo_what_follows_from_them_and_never_the_training(experiment):
    run_study([experiment], figures=False)
    weights = {seed: Path(f"runs/tiny/seed-{seed}/model.safetensors").stat().st_mtime_ns for seed in (1, 2)}
    fit = [f"tiny, seed-{seed}: {stage}" for stage in ("fit",) for seed in (1, 2)]
    evaluate = [f"tiny, seed-{seed}: evaluate" for seed in (1, 2)]
    more = Experiment.read("tiny.toml", ['fit.specs=["msp", "energy"]'])
    study = run_study([more], figures=False)
    assert done(study) == [*fit, *evaluate, "tables", "page"]
    assert set(study.results.score) == {"msp", "energy"}
    larger = Experiment.read("tiny.toml", ['fit.specs=["msp", "energy"]', "data.ood.Noise.count=25"])
    extract = [f"tiny, seed-{seed}: extract" for seed in (1, 2)]
    assert done(run_study([larger], figures=False)) == [*extract, *evaluate, "tables", "page"]
    assert {s: Path(f"runs/tiny/seed-{s}/model.safetensors").stat().st_mtime_ns for s in (1, 2)} == weights
    with pytest.raises(sirc.StoreError, match="another recipe"):
        run_study([Experiment.read("tiny.toml", ["train.lr=0.1"])], figures=False)
    again = run_study([Experiment.read("tiny.toml", ["train.lr=0.1"])], figures=False, redo=["train"])
    assert len(done(again)) == 2 * 4 + 2
    with pytest.raises(ValueError, match="`redo` must be among"):
        run_study([experiment], redo=["everything"])


@pytest.mark.slow
def test_an_interrupted_extraction_is_begun_anew_with_other_settings(experiment, command, monkeypatch):
    write, written = sirc.OutputStore.write, []

    def stop(self, i, *rest):
        if len(written) >= 3:
            raise KeyboardInterrupt
        written.append(write(self, i, *rest))

    with monkeypatch.context() as patch:
        patch.setattr(sirc.OutputStore, "write", stop)
        code, _, err = command("run", "tiny.toml", "--no-figures", "--quiet")
    assert code == 130
    assert "stopped; what was finished is kept, and the same command goes on from there" in err
    other = ["tiny.toml", "--set", "extract.precision=bf16", "--quiet"]
    code, _, err = command("extract", *other)
    assert code == 1
    assert "is another store, with other settings: how is" in err
    assert "or pass `--only NAME --overwrite` to delete its shards" in err
    code, _, err = command("run", *other, "--no-figures")
    assert code == 0, err
    assert "bf16" in sirc.OutputStore("runs/tiny/seed-1/outputs/train").how


@pytest.mark.slow
def test_so_are_outputs_that_were_all_written_but_not_yet_stamped(experiment, command, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("sirc.experiment.stages._stamp_outputs", stop)
        assert command("run", "tiny.toml", "--no-figures", "--quiet")[0] == 130
    assert sirc.OutputStore("runs/tiny/seed-1/outputs/train").complete
    shard = next(Path("runs/tiny/seed-1/outputs/train").glob("shard-*"))
    whole = shard.read_bytes()
    shard.write_bytes(damaged := whole[:-1] + bytes([whole[-1] ^ 1]))
    assert command("run", "tiny.toml", "--no-figures", "--quiet")[0] == 1
    assert shard.read_bytes() == damaged  # a damaged store is told, not deleted
    shard.write_bytes(whole)
    code, _, err = command("run", "tiny.toml", "--no-figures", "--quiet", "--set", "extract.precision=bf16")
    assert code == 0, err
    assert "bf16" in sirc.OutputStore("runs/tiny/seed-1/outputs/train").how


@pytest.mark.slow
def test_where_nothing_is_left_to_do_no_network_is_built_and_no_image_read(experiment, monkeypatch):
    small = Experiment.read("tiny.toml", ["seeds=[1]", "model.name=timm:test_resnet", "train.epochs=1"])
    run_study([small], figures=False)

    def fail(*_, **__):
        pytest.fail("there is nothing to do")

    with monkeypatch.context() as patch:
        patch.setattr("sirc.models.build", fail)
        patch.setattr("sirc.data.folder.read_image", fail)
        patch.setattr(torch.nn.Module, "load_state_dict", fail)
        assert done(run_study([small], figures=False)) == []
    tensors, metadata = read_safetensors(small.run(1).weights)
    tensors["fc.bias"] = tensors["fc.bias"] + 1
    write_safetensors(small.run(1).weights, tensors, metadata, overwrite=True)
    assert "tiny, seed-1: extract" in done(run_study([small], figures=False))


@pytest.mark.slow
def test_changed_images_of_a_finished_study_are_told_with_the_option_that_takes_them(experiment, finished, command):
    next(Path("data/grey").rglob("*.png")).unlink()
    code, _, err = command("run", "tiny.toml", "--no-figures", "--quiet")
    assert code == 1
    assert "outputs/Grey' is another store" in err
    assert "or pass `--redo extract` to delete its shards" in err
    code, _, err = command("run", "tiny.toml", "--no-figures", "--quiet", "--redo", "extract")
    assert code == 0, err


@pytest.mark.slow
def test_scores_are_tuned_on_the_validation_images(experiment, command):
    for seed, name in enumerate(("held-out", "grey", "some", "others"), start=1):
        write_images(Path("data") / name, count=30, seed=seed)  # unlike the training images
    run = experiment.run(1)
    plain = ["seeds=[1]", 'fit.specs=["msp"]']
    run_study([Experiment.read("tiny.toml", plain)], figures=False)
    asked = ["seeds=[1]", 'fit.specs=["msp", "tempered_msp", "sirc(msp, l1, budget=5)"]']
    steps = ["tiny, seed-1: extract", "tiny, seed-1: fit", "tiny, seed-1: evaluate", "tables", "page"]
    assert not run.store("validation").exists()
    with pytest.raises(ConfigError, match="validation"):
        Experiment.read("tiny.toml", asked)
    other = Experiment.read("tiny.toml", [*asked, 'data.validation={ dataset = "folder", path = "some" }'])
    with pytest.raises(FileNotFoundError, match="--only validation"):
        fit_run(other, run)
    study = run_study([other], figures=False)
    assert done(study) == steps
    val = sirc.OutputStore(run.store("validation")).load()
    train = sirc.OutputStore(run.store("train"))
    expected = sirc.fit(other.fit.specs, train, head=sirc.Head.load(run.head), val=val)
    found = sirc.Scorer.load(run.scorer)
    for spec in ("tempered_msp", "sirc(msp, l1, budget=5.0)"):
        for name, value in expected.parameters[spec].items():
            torch.testing.assert_close(found.parameters[spec][name], value)
    assert found.seen(val) == 1
    assert done(run_study([other], figures=False)) == []
    # Rows that tuned a score neither choose one nor set its threshold.
    code, _, err = command("select", "runs/tiny", "--draws", "20")
    assert code == 0, err
    assert "tuned scores on its validation images, so its test images choose" in err
    assert "optimistic: give `--val` and `--scorer` instead of RUN." in err
    code, _, err = command("calibrate", "runs/tiny", "--score", "tempered_msp", "--plain", "--device", "cpu")
    assert code == 0, err
    assert "tuned scores on its validation images, so its test images set the threshold" in err
    changed = Experiment.read("tiny.toml", [*asked, 'data.validation={ dataset = "folder", path = "others" }'])
    assert done(run_study([changed], figures=False))[:2] == steps[:2]


@pytest.mark.slow
@pytest.mark.usefixtures("finished")
def test_damaged_results_are_made_again(experiment):
    run_study([experiment], figures=False)
    Path("runs/tiny/table.md").write_text("", encoding="utf-8")
    assert done(run_study([experiment], figures=False)) == ["tables"]
    file = Path("runs/tiny/seed-1/results.csv")
    file.write_text("\n".join(file.read_text(encoding="utf-8").splitlines()[:4]), encoding="utf-8")
    assert done(run_study([experiment], figures=False)) == ["tiny, seed-1: evaluate"]
    Path("runs/tiny/seed-1/.made-from/fit.json").write_text("", encoding="utf-8")
    assert done(run_study([experiment], figures=False)) == ["tiny, seed-1: fit"]


def as_earlier_versions_left_it(folder):
    """Put a run's notes back into the form that they had before every stage had a stamp."""
    stamps = folder / ".made-from"
    fit = json.loads((stamps / "fit.json").read_text(encoding="utf-8"))
    (folder / "scorer.json").write_text(json.dumps(fit["inputs"], indent=1), encoding="utf-8")
    (stamps / "fit.json").unlink()
    for path in stamps.glob("extract-*.json"):
        stamp = json.loads(path.read_text(encoding="utf-8"))
        del stamp["inputs"]["weights"]
        path.write_text(json.dumps(stamp), encoding="utf-8")
    results = json.loads((stamps / "results.json").read_text(encoding="utf-8"))
    del results["made"]["confidences.safetensors"]
    (stamps / "results.json").write_text(json.dumps(results), encoding="utf-8")


@pytest.mark.slow
@pytest.mark.usefixtures("finished")
def test_a_study_of_an_earlier_version_is_finished(experiment):
    run_study([experiment], figures=False)
    for run in experiment.runs:
        as_earlier_versions_left_it(run.folder)
    before = stamps("runs")
    assert done(run_study([experiment], figures=False)) == []
    changed = {path.name for path, time in stamps("runs").items() if before.get(path) != time}
    assert changed <= {"experiment.toml", "results.csv", "head.safetensors", "study.json"}
    assert [(run.model, run.seed) for run in load_runs(["runs/tiny"])] == [("tiny", 1), ("tiny", 2)]
    # The old notes are compared like stamps, and go when their stage is done again.
    more = Experiment.read("tiny.toml", ['fit.specs=["msp", "energy"]'])
    with pytest.raises(FileExistsError, match="was fitted on other inputs: specs is"):
        fit_run(more, experiment.runs[0])
    resized = Experiment.read("tiny.toml", ["preprocess.resize=14"])
    with pytest.raises(StoreError, match=r"preprocess\.resize is 12, got 14"):
        fit_run(resized, experiment.runs[0])
    assert "tiny, seed-1: fit" in done(run_study([more], figures=False))
    assert not experiment.runs[0].older_fit_note.exists()


SMALL_DEMO = [
    "seeds=[1]",
    "train.epochs=1",
    "data.train.options.count=312",
    "data.test.options.count=200",
    "data.validation.options.count=52",
    *(
        f"data.ood.{name}.options.count=30"
        for name in ("Greek", "Cyrillic", "Digits", "Handwritten", "Photos", "Noise")
    ),
]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::sirc.DataWarning")  # that the network, trained for a moment, guesses
def test_the_demo_s_files_feed_evaluate(tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    study, found = run_demo("demo", figures=False, overrides=SMALL_DEMO)
    assert set(study.results.model) == {"ResNet (Glyphs)", "DenseNet (Glyphs)"}
    assert len(found) == 4
    assert (tmp_path / "demo" / "findings.md").read_text(encoding="utf-8").count("\n") == 6
    names = ["Greek", "Cyrillic", "Digits", "Handwritten", "Photos", "Noise"]
    sets = [word for name in names for word in ("--ood", f"{name}=demo/arrays/{name}.npz")]
    arrays = [f"demo/arrays/{name}.npz" for name in ("train", "test", "validation")]
    arrays = ["--train", arrays[0], "--id", arrays[1], "--val", arrays[2], *sets]
    groups = ["--group", "Close=Greek,Cyrillic,Digits", "--group", "Far=Handwritten,Photos,Noise"]
    code, _, err = command("evaluate", *arrays, *groups, "--no-figures")
    assert code == 0, err
    mine = read_results("sirc-results/results.csv").drop(columns=["model", "seed"])
    first = study.results[study.results.model == study.results.model.iloc[0]].drop(columns=["model", "seed"])
    keys = ["score", "negative", "metric"]
    both = mine.merge(first, on=keys, suffixes=("", "_study"))
    assert len(both) == len(mine) == len(first)
    np.testing.assert_allclose(both["value"], both["value_study"], rtol=1e-6, atol=1e-9)
    monkeypatch.setattr("sirc.experiment.demo.findings", lambda *_, **__: found)  # for which all is drawn anew
    assert done(run_demo("demo", figures=False, overrides=SMALL_DEMO)[0]) == []


@pytest.mark.slow
@pytest.mark.usefixtures("finished", "few_figures")
def test_tables_page_and_figures_show_the_scores_that_the_report_names(experiment, command):
    shown = ["msp", "sirc(msp,residual)"]
    narrow = Experiment.read("tiny.toml", [f"report.specs={shown}", 'fit.specs=["msp", "l1", "sirc(msp, residual)"]'])
    study = run_study([narrow], formats=["svg"])
    wanted = ["msp", "sirc(msp, residual)"]
    assert set(study.results["score"]) == {"msp", "l1", "sirc(msp, residual)"}
    assert set(pd.read_csv(study.folder / "table.csv")["score"]) == set(wanted)
    page = read_page(study.folder / "report.html")
    assert [score["spec"] for score in page["models"][0]["scores"]] == wanted
    assert [run.evaluation.scores for run in study.reported] == [wanted, wanted]
    assert study.runs[0].evaluation.scores == ["msp", "l1", "sirc(msp, residual)"]
    printed = command("table", "runs/tiny", "--format", "csv")
    assert set(pd.read_csv(io.StringIO(printed[1]))["score"]) == set(wanted)
    every = command("table", "runs/tiny/results.csv", "--format", "csv")
    assert set(pd.read_csv(io.StringIO(every[1]))["score"]) == {"msp", "l1", "sirc(msp, residual)"}
    # Another choice makes them anew, and nothing else.
    wider = Experiment.read("tiny.toml", ['fit.specs=["msp", "l1", "sirc(msp, residual)"]'])
    assert done(run_study([wider], formats=["svg"])) == ["tables", "page", "figures"]
    with pytest.raises(ConfigError, match=r"`report.specs` must be among `fit.specs`; `vim` is not"):
        Experiment.read("tiny.toml", ['report.specs=["vim"]', 'fit.specs=["msp"]'])
    with pytest.raises(ConfigError, match=r"`report` is refused: unknown score `mspp`"):
        Experiment.read("tiny.toml", ['report.specs=["mspp"]'])


@pytest.mark.slow
@pytest.mark.usefixtures("finished")
def test_weights_trained_with_another_warm_up_are_refused(experiment):
    run_study([experiment], figures=False)
    warm = Experiment.read("tiny.toml", ["train.warmup=1"])
    with pytest.raises(StoreError, match=r"another recipe: warmup is not known, got 1\.0"):
        run_study([warm], figures=False)
    with pytest.raises(StoreError, match=r"trained with other settings: warmup is not known, got 1\.0"):
        extract_run(warm, warm.runs[0])
    run_study([warm], figures=False, redo=["train"])
    with pytest.raises(StoreError, match=r"trained with other settings: warmup is 1\.0, got nothing"):
        extract_run(experiment, experiment.runs[0])


def weights():
    return list(Path("runs").rglob("*.safetensors"))


def extra_class(path):
    shutil.copytree(Path("data") / path / "r", Path("data") / path / "violet")


def emptied(path):
    shutil.rmtree(Path("data") / path)
    (Path("data") / path).mkdir()


OWN_VALIDATION = 'data.validation={ dataset = "folder", path = "some" }'


@pytest.mark.parametrize(
    ("spoil", "overrides", "words"),
    [
        (lambda: extra_class("held-out"), [], r"classes of 'test' must be among those of the training .* 'violet'"),
        (lambda: extra_class("held-out"), [OWN_VALIDATION], r"classes of 'test' must be among .* 'violet' is not"),
        (lambda: extra_class("some"), [OWN_VALIDATION], r"classes of 'validation' must be among .* 'violet' is not"),
        (lambda: emptied("grey"), [], r"no image in or below 'data/grey'"),
        (lambda: emptied("held-out"), [], r"no image in or below 'data/held-out'"),
        (lambda: None, ["data.ood.Grey={ dataset = 'tiny_data:nothing' }"], r"must have images; 'Grey' of 'tiny' has"),
        (
            lambda: None,
            ["model.num_classes=2"],
            r"labels of `train` must be in 0…1, as `model\.num_classes` of 'tiny' is 2; got 2 for data/images/r/000"
            r"\.png, and labels up to 2\. Set `model\.num_classes = 3`, or use other images\.",
        ),
        (
            lambda: None,
            ["data.train={ dataset = 'list', path = 'images', list = 'train.txt' }"],
            r"labels of `test` must be in 0…2, .*; got 7 for data/held-out/b/002\.png, and labels up to 7",
        ),
    ],
    ids=["test class", "test class, validation", "validation class", "OOD", "test", "function", "outputs", "list"],
)
def test_mistakes_in_the_data_are_told_before_anything_is_trained(experiment, spoil, overrides, words):
    write_images(Path("data/some"), count=15, seed=1)
    Path("tiny_data.py").write_text("def nothing():\n    return []\n", encoding="utf-8")
    Path("data/images/train.txt").write_text("r/000.png 2\ng/001.png 1\nb/002.png 0\n", encoding="utf-8")
    if "'list'" in str(overrides):
        Path("data/held-out/test.txt").write_text("r/000.png 2\ng/001.png 1\nb/002.png 7\n", encoding="utf-8")
        overrides = [*overrides, "data.test={ dataset = 'list', path = 'held-out', list = 'test.txt' }"]
    spoil()
    with pytest.raises((ValueError, OSError), match=words):
        run_study([Experiment.read("tiny.toml", overrides)], figures=False)
    assert not weights()


def test_a_function_without_weights_is_refused_before_anything_is_extracted(experiment, command):
    text = Path("tiny.toml").read_text(encoding="utf-8")
    Path("rest.toml").write_text(
        re.sub(r"(?s)\[train\].*?(?=\[extract)", "", text).replace("seeds = [1, 2]", ""), encoding="utf-8"
    )
    for name in ("run", "extract"):
        code, _, err = command(name, "rest.toml")
        assert code == 2
        assert "rest.toml:6: `model.name` must have weights where there is no [train] table; `tiny_model:small`" in err
    assert not Path("runs").exists()
    Path("loaded_model.py").write_text(
        "import torch\nfrom tiny_model import small\n\ndef loaded():\n    model = small()\n"
        "    model.load_state_dict(torch.load('weights.pt', weights_only=True))\n    return model\n",
        encoding="utf-8",
    )
    torch.save(sirc.models.build("tiny_model:small").state_dict(), "weights.pt")
    arguments = ("rest.toml", "--only", "Noise", "--quiet", "--set", "model.name=loaded_model:loaded")
    code, _, err = command("extract", *arguments)
    assert (code, err) == (0, "")
    # One that keeps random weights for the length of a process looks as if it loaded them.
    kept = Experiment.read("rest.toml", ["model.name=loaded_model:loaded"])
    with pytest.raises(sirc.StoreError, match="If `loaded_model:loaded` gives other weights in every process, let it"):
        check_outputs(kept, kept.runs[0], ["Noise"], weights="those of the next process")


def test_mistakes_in_the_last_experiment_are_told_before_the_first_is_trained(experiment, command):
    Path("other.toml").write_text(
        Path("tiny.toml").read_text(encoding="utf-8").replace('"tiny"', '"other"').replace('"grey"', '"dim"'),
        encoding="utf-8",
    )
    Path("data/dim").mkdir()
    code, out, err = command("run", "tiny.toml", "other.toml", "--no-figures")
    assert (code, out) == (1, "")
    assert "there is no image in or below 'data/dim'" in err
    assert "Traceback" not in err
    assert not weights()


@pytest.mark.slow
def test_every_dataset_is_opened_once_for_all_runs(experiment, monkeypatch):
    opened = []

    def counting(source, **options):
        opened.append(source)
        return open_source(source, **options)

    monkeypatch.setattr("sirc.experiment.images.open_source", counting)
    run_study([experiment], figures=False)
    assert opened == [experiment.source(name) for name in ("train", "test", "Grey", "Noise")]


@pytest.mark.slow
def test_more_outputs_than_classes_are_noted_and_trained(experiment, command):
    words = (
        "note: 'tiny' asks for 100 classes (`model.num_classes`), and its training images have 3: the other outputs "
        "learn to stay low. Unless you want that, stop, and set `model.num_classes = 3`"
    )
    wide = ["tiny.toml", "--set", "model.num_classes=100", "--set", "train.epochs=1"]
    code, _, err = command("train", *wide)
    assert code == 0, err
    assert err.count(words) == 1  # for two seeds
    assert err.index(words) < err.index("seed 1, epoch 1: loss")
    assert "note:" not in command("train", *wide)[2]  # all are trained
    once = ["--set", "seeds=[1]", "--no-figures"]
    code, _, err = command("run", *wide, "--set", "name=fresh", "--set", "train.lr=0.02", *once)
    assert code == 0, err
    assert err.count(words.replace("tiny", "fresh")) == 1
    code, _, err = command("run", "tiny.toml", "--set", "name=plain", *once)
    assert code == 0, err
    assert "note:" not in err


@pytest.mark.slow
@pytest.mark.usefixtures("finished", "few_figures")
def test_a_finished_study_does_without_its_images(experiment, command):
    first = run_study([experiment], formats=["svg"])
    kept, tables = first.results, {name: Path("runs/tiny", name).read_bytes() for name in ("table.md", "table.tex")}
    shutil.rmtree("data")
    for name in tables:
        Path("runs/tiny", name).unlink()
    code, _, err = command("run", "tiny.toml", "--format", "svg")
    assert code == 0, err
    assert "stored outputs are used, and cannot be compared with their images: tiny.toml:13: `data.train` needs" in err
    assert {name: Path("runs/tiny", name).read_bytes() for name in tables} == tables
    assert Path("runs/tiny/figures/samples.svg").is_file()
    more = Experiment.read("tiny.toml", ['fit.specs=["msp", "sirc(msp, residual)", "energy"]'])
    study = run_study([more], formats=["svg"])  # which needs the stored outputs alone
    assert "tiny, seed-1: fit" in done(study)
    msp = [results[results.score == "msp"].reset_index(drop=True) for results in (kept, study.results)]
    pd.testing.assert_frame_equal(*msp)
    # Whatever needs images says that they are missing, and settings are compared as ever.
    for asked, redo in ((["seeds=[1, 2, 3]"], []), (["preprocess.resize=14"], []), ([], ["extract"]), ([], ["train"])):
        with pytest.raises(ConfigError, match=r"`data\.train` needs '.*images', which is not there"):
            run_study([Experiment.read("tiny.toml", asked)], figures=False, redo=redo)
    with pytest.raises(StoreError, match="trained with other settings: lr is"):
        run_study([Experiment.read("tiny.toml", ["train.lr=0.1"])], figures=False)
    shutil.rmtree("runs/tiny/seed-2/outputs/Grey")
    with pytest.raises(ConfigError, match="which is not there"):
        run_study([experiment], figures=False)
