"""Confidences that OpenOOD saved, files with `conf`, `pred` and `label`, are evaluated as they are."""

import numpy as np
import pandas as pd
import pytest

import sirc
from sirc.experiment import read_results


@pytest.fixture
def saved(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    label = rng.integers(10, size=400)
    pred = np.where(rng.random(400) < 0.8, label, rng.integers(10, size=400))
    files = {"cifar10": (rng.normal(size=400) + (pred == label), pred, label)}
    for name in ("svhn", "dtd"):
        files[name] = rng.normal(size=200) - 0.5, rng.integers(10, size=200), np.full(200, -1)
    for name, (conf, predicted, true) in files.items():
        np.savez(f"{name}.npz", conf=conf, pred=predicted, label=true)
    return files


def call(*more):
    sets = ("--ood", "svhn=svhn.npz", "--ood", "dtd=dtd.npz")
    return ("evaluate", "--id", "cifar10.npz", *sets, "--no-figures", "--overwrite", *more)


def test_openoods_files_give_the_table_of_their_confidences(saved, command):
    code, out, err = command(*call("--score", "vim", "--group", "Far=svhn,dtd"))
    assert code == 0, err
    assert "ViM" in out
    assert "left out" not in err
    conf, pred, label = saved["cifar10"]
    ood = {name: {"vim": saved[name][0]} for name in ("svhn", "dtd")}
    expected = sirc.evaluate({"vim": (conf, pred == label)}, ood=ood, groups={"Far": ["svhn", "dtd"]}).table
    got = read_results("sirc-results/results.csv")
    np.testing.assert_allclose(got["value"], expected["value"])
    assert command(*call("--quiet"))[0] == 0
    assert set(read_results("sirc-results/results.csv")["score"]) == {"confidence"}


def test_a_table_has_the_intervals_that_were_asked_for(saved, command):
    code, out, err = command(*call("--intervals"))
    assert code == 0, err
    conf, pred, label = saved["cifar10"]
    ood = {name: {"confidence": saved[name][0]} for name in ("svhn", "dtd")}
    found = sirc.evaluate({"confidence": (conf, pred == label)}, ood=ood).intervals(negatives=["wrong"])
    row = found.set_index("metric").loc["auroc"]
    assert f"[{100 * row.low:.1f}, {100 * row.high:.1f}]" in out
    assert "95% intervals over samples in brackets" in out
    cells = pd.read_csv("sirc-results/table.csv").query("negative == 'wrong' and metric == 'auroc'").iloc[0]
    assert (cells.low, cells.high) == pytest.approx((row.low, row.high))
    assert "low" not in read_results("sirc-results/results.csv").columns
    code, _, err = command("table", "sirc-results", "--intervals")
    assert code == 1
    assert "holds no stored outputs" in err


def test_labels_of_another_order_are_told_here_too(saved, command):
    conf, pred, label = saved["cifar10"]
    np.savez("cifar10.npz", conf=conf, pred=pred, label=(label + 1) % 10)
    code, _, err = command(*call())
    assert code == 0
    assert "warning: the predictions for 'test' agree with its labels in" in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--score", "a", "--score", "b"), "`--spill` and all but one `--score`"),
        (("--train", "svhn.npz"), "of one score: leave out `--train`"),
        (("--ood", "none=none.npz"), "there is no file"),
        (("--id", "svhn.npz"), "must have the class of each ID input; `label` is -1 at row 0"),
        (("--id", "short.npz"), "`pred` must have as many rows as `conf`; got 3 and 4"),
        (("--id", "bare.npz"), "must have an array named `pred`; it has `conf`"),
        (("--id", "text.npz"), "`conf`"),
        (("--ood", "logits=logits.npz"), "must have an array named `conf`; it has `logits`"),
    ],
)
def test_files_that_do_not_fit_are_refused_in_words(saved, command, arguments, words):
    np.savez("short.npz", conf=np.zeros(4), pred=np.zeros(3, int), label=np.zeros(4, int))
    np.savez("bare.npz", conf=np.zeros(4))
    np.savez("text.npz", conf=np.array(["a", "b"]), pred=np.zeros(2, int), label=np.zeros(2, int))
    np.savez("logits.npz", logits=np.zeros((4, 3)))
    code, out, err = command(*call(*arguments))
    assert code in (1, 2)
    assert out == ""
    assert words in err


def test_an_error_names_the_option_of_the_set(saved, command):
    np.savez("svhn.npz", conf=np.zeros((200, 1)))
    code, _, err = command(*call("--quiet"))
    assert code == 1
    assert err.startswith("error: `--ood svhn=…` must be 1-D, one score for each sample; got shape (200, 1)")
