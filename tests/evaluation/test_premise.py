"""SIRC's premise: what is measured against SciPy, verdicts on toys made to hold or to break, the recommended spec."""

import json
import math
import re

import numpy as np
import pytest
import torch
from scipy import stats

import sirc
from sirc.evaluation.premise import check_assumptions, of_evaluation
from support.tiny_study import write_short_study

SPECS = ["msp", "entropy", "l1", "sirc(msp, l1)", "sirc(entropy, l1)"]


def outputs(n, *, errors=0.2, norm=10.0, tilt=0.0, spread=1.0, labels=True, seed=0):
    """Outputs of 4 classes whose features have the ℓ1 norm N(norm, spread), lower by `tilt` for right predictions.

    Wrong predictions have a smaller gap between the first two logits.
    """
    rng = np.random.default_rng(seed)
    wrong = np.arange(n) < round(errors * n)
    first = rng.integers(0, 4, n)
    logits = rng.normal(0, 0.1, (n, 4))
    logits[np.arange(n), first] += np.exp(rng.normal(0, 0.6, n)) * np.where(wrong, 2.5, 7.0) + 0.5
    first = logits.argmax(1)
    length = rng.normal(norm, spread, n) - tilt * ~wrong
    features = np.full((n, 5), 0.2) * length[:, None]
    true = np.where(wrong, (first + 1) % 4, first)
    return sirc.Outputs(logits, features=features, labels=true if labels else None)


@pytest.fixture(scope="module")
def scorer():
    return sirc.fit(SPECS, outputs(8000, seed=1), crossfit=0)


@pytest.fixture(scope="module")
def val():
    return outputs(5000)


@pytest.mark.slow
def test_rows_that_were_fitted_on_are_refused(scorer):
    with pytest.raises(ValueError, match="not fitted on; got about 100%"):
        check_assumptions(scorer, outputs(8000, seed=1))


@pytest.fixture(scope="module")
def found(scorer, val):
    return check_assumptions(scorer, val)


def one(found, **where):
    table = found.table
    for column, value in where.items():
        table = table[table[column] == value]
    assert len(table) == 1, f"{len(table)} rows for {where}"
    return table.iloc[0]


# The numbers


def test_every_number_has_an_independent_reference(scorer, val, found):
    confidences, right = scorer(val), val.correct.numpy()
    s1, s2, own = (confidences[name].numpy() for name in ("msp", "l1", "sirc(msp, l1)"))
    pair = {"score": "sirc(msp, l1)"}
    for of, values in (("msp", s1), ("l1", s2)):
        u = stats.mannwhitneyu(values[right], values[~right]).statistic / (right.sum() * (~right).sum())
        assert one(found, **pair, of=of, metric="auroc", negative="wrong").value == pytest.approx(u, abs=1e-12)
    for negative, rows in (("id", slice(None)), ("correct", right)):
        rho = stats.spearmanr(s1[rows], s2[rows]).statistic
        got = one(found, **pair, of="l1", metric="spearman", negative=negative)
        assert got.value == pytest.approx(rho, abs=1e-12)
        assert got.low < got.value < got.high
    assert one(found, **pair, of=pair["score"], metric="kendall").value == pytest.approx(
        stats.kendalltau(s1, own).statistic, abs=1e-12
    )
    a = float(scorer.parameters["sirc(msp, l1)"]["a"])
    norms = val.features.abs().sum(1).numpy()
    assert one(found, **pair, metric="below a", negative="id").value == pytest.approx((norms < a).mean(), abs=1e-12)


@pytest.mark.slow
def test_the_difference_agrees_with_a_paired_bootstrap(scorer, val, found):
    drawn = sirc.evaluate(scorer, val).compare("msp", draws=400, scores=["sirc(msp, l1)"])
    drawn = drawn[drawn["metric"] == "auroc"].iloc[0]
    got = one(found, score="sirc(msp, l1)", metric="difference")
    assert got.value == pytest.approx(drawn.difference, abs=1e-9)
    width = drawn.high - drawn.low
    assert (got.low, got.high) == pytest.approx((drawn.low, drawn.high), abs=0.2 * width)


@pytest.mark.slow
def test_sensitivity_is_that_of_specs_with_their_a_and_b_written_out(scorer, val):
    outside = {"far": outputs(700, norm=5, labels=False, seed=2), "near": outputs(400, norm=9, labels=False, seed=3)}
    found = check_assumptions(scorer, val, outside, s1="msp")
    centre, slope = (float(scorer.parameters["sirc(msp, l1)"][key]) for key in "ab")
    for k, factor in ((2, 0.5), (4, 2), (3, 1)):
        spec = f"sirc(msp, l1, a={centre + (3 - k) / slope!r}, b={factor * slope!r})"
        table = sirc.evaluate(sirc.Scorer([spec]), val, outside).table
        for negative, metric in (("wrong", "auroc"), ("OOD mean", "auroc"), ("OOD mean", "aurr")):
            expected = table[(table["negative"] == negative) & (table["metric"] == metric)].value.item()
            got = one(found, of="sirc(msp, l1)", negative=negative, metric=metric, k=k, slope=factor)
            assert got.value == pytest.approx(expected, abs=1e-9)


LATER = ["sirc(margin, l1)", "sirc(max_logit_pnorm, l1)", "sirc(tempered_entropy, l1)", "sirc(gen, msp)"]


@pytest.mark.slow
def test_later_scores_and_a_budget_are_checked_as_they_are_combined(val):
    specs = [*LATER, "sirc(msp, l1, budget=2)", "additive(msp, l1)", "bayes(msp, l1)"]
    scorer = sirc.fit(specs, outputs(8000, seed=1), crossfit=0, val=outputs(1000, seed=5))
    scorer.parameters["max_logit_pnorm"] = {"p": torch.tensor([0.0]), "p_bounded": torch.tensor([3.0])}
    far = outputs(700, norm=5, labels=False, seed=2)
    found = check_assumptions(scorer, val, {"far": far})
    assert set(found.table["score"]) == {*LATER, "sirc(msp, l1, budget=2)"}  # only they have SIRC's premise
    table = sirc.evaluate(scorer, val, {"far": far}).table
    for spec in (*LATER, "sirc(msp, l1, budget=2)"):
        for negative in ("wrong", "far"):
            expected = table[(table.score == spec) & (table.negative == negative) & (table.metric == "auroc")].value
            rows = found.table[(found.table.of == spec) & (found.table.negative == negative) & found.table.low.notna()]
            assert rows[rows.metric == "auroc"].value.item() == pytest.approx(expected.item(), abs=1e-9)
    # S1 counts with its distance to the bound: the norm with p = 3, though p = 0 was tuned for the score alone.
    v = val.logits - val.logits.mean(1, keepdim=True)
    norm = sirc.Ranking(*[(v.amax(1) / v.abs().pow(3).sum(1).pow(1 / 3))[rows] for rows in (val.correct, ~val.correct)])
    got = one(found, score="sirc(max_logit_pnorm, l1)", of="max_logit_pnorm", negative="wrong", metric="auroc")
    assert got.value == pytest.approx(norm.auroc("wrong"), abs=1e-9)
    # Where a was moved to spend a budget, it says nothing of the premise.
    budget = found.table[found.table.score == "sirc(msp, l1, budget=2)"]
    assert not (budget.metric == "below a").any()
    assert not budget.k.isin([2, 4]).any()


@pytest.mark.slow
def test_the_mean_over_sets_has_the_interval_of_a_bootstrap(scorer, val):
    outside = {"far": outputs(300, norm=6, labels=False, seed=2), "near": outputs(100, norm=9, labels=False, seed=3)}
    got = one(check_assumptions(scorer, val, outside, s1="msp"), metric="difference", negative="OOD mean")
    ev = sirc.evaluate(scorer, val, outside)
    drawn = ev.compare("msp", draws=400, scores=["sirc(msp, l1)"], negatives=["OOD mean"])
    drawn = drawn[drawn["metric"] == "auroc"].iloc[0]
    assert got.value == pytest.approx(drawn.difference, abs=1e-9)
    assert (got.low, got.high) == pytest.approx((drawn.low, drawn.high), abs=0.2 * (drawn.high - drawn.low))


# Verdicts and recommendations


def test_a_premise_that_holds_by_construction_holds(found):
    assert found.verdicts == {"l1": "holds"}
    assert found.recommended.startswith("sirc(")
    assert found.sizes == {"correct": 4000, "wrong": 1000}


@pytest.mark.slow
def test_a_premise_that_holds_is_never_said_not_to(scorer):
    verdicts = [check_assumptions(scorer, outputs(1500, seed=100 + seed)).verdicts["l1"] for seed in range(30)]
    assert not [verdict for verdict in verdicts if verdict.startswith("does not hold")]
    assert verdicts.count("holds") >= 24


@pytest.mark.slow
def test_an_s2_that_ranks_right_predictions_low_breaks_it(scorer):
    found = check_assumptions(scorer, outputs(5000, tilt=2.0, norm=12))
    assert found.verdicts["l1"].startswith("does not hold: l1 ranks right predictions below wrong ones")
    assert found.recommended in ("msp", "entropy")
    assert "S1 alone" in found.reason


@pytest.mark.slow
def test_an_s2_that_speaks_too_often_breaks_it(scorer):
    found = check_assumptions(scorer, outputs(5000, norm=7.3))
    assert found.verdicts["l1"].startswith("does not hold: ")
    assert "of ID rows have l1 below a; it should be at most 5.0%" in found.verdicts["l1"]
    assert found.recommended in ("msp", "entropy")


@pytest.mark.slow
def test_a_sure_loss_of_wrong_against_correct_is_named(scorer):
    # Only right predictions have a few very small norms, so that the AUROC of l1 stays near 50%.
    plain = outputs(5000, seed=6)
    features = plain.features.clone()
    features[plain.correct.nonzero()[:160, 0]] *= 0.2
    found = check_assumptions(scorer, sirc.Outputs(plain.logits, features=features, labels=plain.labels))
    assert "with msp it costs" in found.verdicts["l1"]
    assert "points of AUROC of ID✗|ID✓" in found.verdicts["l1"]
    assert one(found, score="sirc(msp, l1)", metric="difference").high < -0.005


@pytest.mark.parametrize(
    ("rows", "errors", "words"),
    [
        (400, 0.0, "open: no wrong predictions"),
        (400, 1 / 400, "open: too few wrong predictions (1; at least 20"),
        (400, 5 / 400, "open: too few wrong predictions (5; at least 20"),
        (150, 30 / 150, "open: too few wrong predictions (30): its AUROC of ID✗|ID✓ may be as low as"),
        (60, 55 / 60, "too few right predictions (5; at least 20"),
        (1, 0.0, "open: too few ID rows (1)"),
    ],
)
def test_too_few_predictions_leave_it_open(scorer, rows, errors, words):
    found = check_assumptions(scorer, outputs(rows, errors=errors, seed=8))
    assert words in found.verdicts["l1"]
    assert found.verdicts["l1"].startswith("open: ")
    assert found.recommended in ("msp", "entropy")
    assert str(found)
    json.dumps(found.to_dict(), allow_nan=False)


def test_an_s2_that_is_constant_on_the_data_is_said_to_be(scorer):
    found = check_assumptions(scorer, outputs(500, spread=0.0))
    assert found.verdicts["l1"] == "does not hold: l1 has the same value for every ID row"
    assert one(found, score="sirc(msp, l1)", of="l1", metric="auroc").value == 0.5
    assert math.isnan(one(found, score="sirc(msp, l1)", of="l1", metric="spearman", negative="id").value)


def test_equal_confidences_are_no_trouble(scorer):
    few = outputs(40, seed=9)
    many = sirc.Outputs(few.logits.repeat(30, 1), features=few.features.repeat(30, 1), labels=few.labels.repeat(30))
    s1, own = (scorer(many)[name].numpy() for name in ("msp", "sirc(msp, l1)"))
    got = one(check_assumptions(scorer, many), score="sirc(msp, l1)", metric="kendall")
    assert got.value == pytest.approx(stats.kendalltau(s1, own).statistic, abs=1e-12)


@pytest.mark.slow
def test_ood_data_decide_by_what_was_measured(scorer, val):
    caught = check_assumptions(scorer, val, {"short": outputs(1000, norm=5, labels=False, seed=2)})
    assert caught.recommended in ("sirc(msp, l1)", "sirc(entropy, l1)")
    assert one(caught, score="sirc(msp, l1)", metric="difference", negative="short").low > 0
    missed = check_assumptions(scorer, val, {"long": outputs(1000, norm=20, labels=False, seed=2)})
    assert missed.recommended in ("msp", "entropy")
    assert "surely takes from" not in str(caught)
    broken = check_assumptions(
        scorer, outputs(5000, tilt=1.0, norm=12), {"short": outputs(1000, norm=5, labels=False, seed=2)}
    )
    assert broken.verdicts["l1"].startswith("does not hold")
    assert broken.recommended.startswith("sirc(")
    assert "Its premise does not hold" in broken.reason


@pytest.mark.slow
def test_of_equal_combinations_the_s2_with_least_in_common_is_recommended():
    train = outputs(8000, seed=1)
    scorer = sirc.fit(["sirc(msp, max_logit)", "sirc(msp, l1)"], train, crossfit=0)
    found = check_assumptions(scorer, outputs(5000))
    assert found.recommended == "sirc(msp, l1)"
    assert set(found.verdicts) == {"max_logit", "l1"}


# Specs of every kind


@pytest.mark.slow
def test_several_s2_are_judged_together():
    scorer = sirc.fit("sirc(msp, l1, energy)", outputs(8000, seed=1), crossfit=0)
    val = outputs(5000)
    found = check_assumptions(scorer, val)
    assert list(found.verdicts) == ["l1, energy"]
    own = scorer(val)["sirc(msp, l1, energy)"].numpy()
    s1 = sirc.Scorer(["msp"])(val)["msp"].numpy()
    assert one(found, metric="kendall").value == pytest.approx(stats.kendalltau(s1, own).statistic, abs=1e-12)
    assert set(found.table[found.table["metric"] == "below a"]["of"]) == {"l1", "energy"}


@pytest.mark.slow
def test_a_bounded_s2_is_compared_with_a_by_its_plain_value():
    scorer = sirc.fit(["sirc(msp, entropy)", "sirc(entropy, l1)"], outputs(8000, seed=1), crossfit=0)
    val = outputs(5000)
    found = check_assumptions(scorer, val)
    plain = sirc.functional.entropy(val.logits)
    expected = float((plain < float(scorer.parameters["sirc(msp, entropy)"]["a"])).double().mean())
    got = one(found, score="sirc(msp, entropy)", metric="below a", of="entropy")
    assert got.value == pytest.approx(expected, abs=1e-12)
    assert set(found.verdicts) == {"entropy", "l1"}
    assert expected > 0


def test_a_and_b_that_are_written_out_need_no_fit(val):
    found = check_assumptions(sirc.Scorer(["sirc(msp, l1, a=8, b=1)"]), val)
    expected = (val.features.abs().sum(1) < 8).double().mean()
    assert one(found, metric="below a").value == pytest.approx(float(expected), abs=1e-12)


@pytest.mark.slow
def test_s1_and_s2_pick_pairs_and_a_store_gives_the_same(scorer, val, tmp_path):
    assert set(check_assumptions(scorer, val, s1="entropy", s2=["l1"]).table["score"]) == {"sirc(entropy, l1)"}
    batches = [val[:1700], val[1700:]]
    whole, parts = check_assumptions(scorer, val), check_assumptions(scorer, batches)
    np.testing.assert_allclose(whole.table["value"], parts.table["value"], rtol=1e-9)


# An evaluation's confidences


def test_an_evaluation_with_its_scorer_gives_the_same(scorer, val, found):
    again = of_evaluation(sirc.evaluate(scorer, val), scorer)
    np.testing.assert_allclose(again.table["value"], found.table["value"], rtol=1e-9)
    assert again.recommended == found.recommended


def test_without_a_scorer_all_but_a_and_b_is_there(scorer, val, found):
    ev = sirc.evaluate(scorer, val)
    plain = of_evaluation(
        sirc.evaluate(
            {name: (conf, val.correct) for name, conf in ev.confidences.items()}
            | {"my own": (ev.confidences["l1"], val.correct)}
        )
    )
    assert "below a" not in set(plain.table["metric"])
    assert "a and b are not known here" in str(plain)
    assert plain.verdicts == found.verdicts
    assert one(plain, score="sirc(msp, l1)", metric="difference").equals(
        one(found, score="sirc(msp, l1)", metric="difference")
    )


def test_pairs_with_and_without_known_a_and_b_are_reported_together(val):
    specs = ["msp", "margin", "l1", "sirc(msp, l1)", "sirc(margin, l1)"]
    fitted = sirc.fit(specs, outputs(8000, seed=1), crossfit=0)
    check = of_evaluation(sirc.evaluate(fitted, val), fitted)  # confidences of `margin` are not −log(S1max − S1)
    assert {row.s1 for row in check.table.itertuples() if row.k == 2} == {"msp"}
    assert re.search(r"^ *margin .* –$", str(check), re.MULTILINE)


def test_confidences_of_another_scorer_are_refused(scorer, val):
    other = sirc.fit(SPECS, outputs(8000, norm=20, seed=1), crossfit=0)
    with pytest.raises(ValueError, match=r"must follow from the scorer's a and b, but do not"):
        of_evaluation(sirc.evaluate(scorer, val), other)
    with pytest.raises(sirc.NotFittedError, match=r"must be fitted, to know its a and b"):
        of_evaluation(sirc.evaluate(scorer, val), sirc.Scorer(["msp"]))


# Words


def test_the_report_says_it_all(scorer, val):
    text = str(check_assumptions(scorer, val, {"short": outputs(1000, norm=5, labels=False, seed=2)}))
    for words in (
        "l1: holds",
        "Recommended: sirc(",
        "4,000 right, 1,000 wrong",
        "short 1,000",
        "ID rows below a",
        "AURR",
    ):
        assert words in text


def test_the_dict_is_plain_json(found):
    again = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert again["recommended"] == found.recommended
    assert again["verdicts"] == dict(found.verdicts)
    assert len(again["table"]) == len(found.table)


@pytest.mark.slow
def test_bad_input_is_told_the_way_out(scorer, val):
    with pytest.raises(ValueError, match=r"at least one `sirc\(S1, S2\)` .*; got msp"):
        check_assumptions(sirc.Scorer(["msp"]), val)
    with pytest.raises(ValueError, match=r"among the scores too; got msp, sirc"):
        of_evaluation(sirc.evaluate(scorer, val, scores=["msp", "sirc(msp, l1)"]))
    with pytest.raises(ValueError, match=r"`val` must have labels"):
        check_assumptions(scorer, outputs(50, labels=False))
    with pytest.raises(ValueError, match=r"at least one prediction must be right"):
        check_assumptions(scorer, outputs(20, errors=1.0))
    with pytest.raises(ValueError, match=r"`ood` must be a dict"):
        check_assumptions(scorer, val, val)
    with pytest.raises(ValueError, match=r"'id' has its own meaning"):
        check_assumptions(scorer, val, {"id": val})
    with pytest.raises(ValueError, match=r"with the given `s1` and `s2`; got"):
        check_assumptions(scorer, val, s1="doctor")
    with pytest.raises(ValueError, match=r"`level` must lie between 0 and 1"):
        check_assumptions(scorer, val, level=1)
    with pytest.raises(ValueError, match=r"`val` must be labelled ID outputs, a store or batches of them; got int"):
        check_assumptions(scorer, 3)
    with pytest.raises(ValueError, match=r"`val` must hold at least one batch"):
        check_assumptions(scorer, [])
    with pytest.raises(sirc.NotFittedError, match=r"`sirc\(msp, l1\)` must be fitted, to know its a and b"):
        check_assumptions(sirc.Scorer(["sirc(msp, l1)"]), val)
    with pytest.raises(ValueError, match=r"`scorer` must be a `Scorer`; got dict"):
        check_assumptions({}, val)


# The command


@pytest.fixture(scope="module")
def files(tmp_path_factory, scorer):
    folder = tmp_path_factory.mktemp("arrays")
    outputs(5000).save(folder / "val.npz")
    outputs(8000, seed=1).save(folder / "train.npz")
    outputs(1000, norm=5, labels=False, seed=2).save(folder / "short.npz")
    scorer.save(folder / "scorer.safetensors")
    return folder


def test_the_command_fits_and_reports(command, files):
    code, out, _ = command("check", "--val", files / "val.npz", "--train", files / "train.npz")
    assert code == 0
    assert "l1: holds" in out
    assert "Recommended: sirc(" in out


@pytest.mark.slow
def test_the_command_prints_json_that_equals_the_library_s(command, files, scorer):
    arguments = ["--val", files / "val.npz", "--scorer", files / "scorer.safetensors", "--score", "sirc(msp, l1)"]
    code, out, _ = command("check", *arguments, "--ood", f"short={files / 'short.npz'}", "--json")
    assert code == 0
    (report,) = json.loads(out)
    outside = {"short": sirc.Outputs.load(files / "short.npz")}
    expected = check_assumptions(scorer, sirc.Outputs.load(files / "val.npz"), outside, s1="msp").to_dict()
    assert {key: report[key] for key in expected} == expected


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ([], 2, "needs either RUN folders or your own outputs"),
        (["nowhere", "--val", "val.npz"], 2, "needs either RUN folders or your own outputs"),
        (["nowhere", "--ood", "x=y"], 2, "such options are only for `--val`"),
        (["--val", "val.npz"], 2, "needs a scorer"),
        (["--val", "val.npz", "--train", "train.npz", "--scorer", "scorer.safetensors"], 2, "needs a scorer"),
        (
            ["--val", "val.npz", "--scorer", "scorer.safetensors", "--head", "h.npz"],
            2,
            "a saved scorer has all it needs",
        ),
        (["--val", "val.npz", "--scorer", "scorer.safetensors", "--ood", "x"], 2, "NAME=PATH"),
        (["--val", "no.npz", "--scorer", "scorer.safetensors"], 1, "no file or store 'no.npz'"),
        (["--val", "val.npz", "--scorer", "scorer.safetensors", "--score", "knn"], 1, "not among the scorer's specs"),
        (["--val", "val.npz", "--train", "train.npz", "--head", "val.npz"], 1, "must hold `head_weight`"),
        (["nowhere"], 1, "there is no folder"),
    ],
)
def test_the_command_says_what_is_wrong(command, files, monkeypatch, arguments, code, words):
    monkeypatch.chdir(files)
    got, out, err = command("check", *arguments)
    assert (got, out) == (code, "")
    assert words in err


@pytest.mark.slow
def test_the_command_checks_each_run_of_a_study(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_short_study({"images": 45, "held-out": 30, "grey": 10})
    for stage in ("train", "extract", "fit"):
        assert command(stage, "tiny.toml", "--device", "cpu")[0] == 0
    code, out, _ = command("check", "runs/tiny")
    assert code == 0
    assert out.count("Does SIRC's premise hold?") == out.count("Recommended: ") == 2
    assert "tiny, seed 1\n" in out
    assert "tiny, seed 2\n" in out
    code, out, _ = command("check", "runs/tiny", "--json")
    assert [report["model"] for report in json.loads(out)] == ["tiny, seed 1", "tiny, seed 2"]
    assert set(json.loads(out)[0]["sizes"]) == {"correct", "wrong", "Grey", "Noise"}


def test_outputs_without_features_are_told_what_they_lack(command, files, tmp_path):
    full = outputs(500)
    sirc.Outputs(full.logits, labels=full.labels).save(tmp_path / "bare.npz")
    code, _, err = command("check", "--val", tmp_path / "bare.npz", "--train", tmp_path / "bare.npz")
    assert code == 1
    assert "needs `features`" in err
