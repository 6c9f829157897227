"""`scod`, the score to take where none is asked for: its grammar, what it is, and what it does without."""

import itertools
import re
import warnings

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr

import sirc
from sirc.errors import DataWarning
from sirc.scores import known_names, parse
from sirc.scores.fitting import second_pass, state
from sirc.scores.moments import Reservoir
from sirc.scores.spec import WITNESSES
from support import reference, reference_features

K, L, N = 5, 8, 240
LOGITS, Z, Y, WEIGHT, BIAS = reference.model(N, K, L, seed=0, noise=2.0)
LOGITS, WEIGHT, BIAS = LOGITS / 8, WEIGHT / 8, BIAS / 8  # 1 − max π has digits
TRAIN, HEAD = sirc.Outputs(LOGITS, Z, Y), sirc.Head(WEIGHT, BIAS)
UNLABELLED, BARE = sirc.Outputs(LOGITS, Z), sirc.Outputs(LOGITS)
VAL = sirc.Outputs(*reference.model(200, K, L, seed=0, noise=5.0)[:3])
FRESH = sirc.Outputs(LOGITS[:40] * 0.7, Z[:40] * 0.7 + 0.1)
SIX = "residual, vim, mahalanobis, mahalanobis_pp, knn, l1"
LONG = f"bayes(msp, {SIX}, metric=aurr)"
# By what there is, the places of the witnesses that are left, and why some are not.
HEADLESS, LABELLESS = ([2, 3, 4, 5], "`head` is needed"), ([0, 1, 4, 5], "labels are needed")


@pytest.fixture(scope="module")
def whole():
    return sirc.fit("scod", TRAIN, head=HEAD)


def fitted(*specs, train=TRAIN, **options):
    """A scorer, and the one warning of its fit, where there was any."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        scorer = sirc.fit(list(specs) or "scod", train, **options)
    told = [str(w.message) for w in caught if issubclass(w.category, DataWarning) and "witnesses" in str(w.message)]
    assert len(told) <= 1
    return scorer, *told


def places(scorer, spec="scod"):
    found = scorer.parameters[spec].get("witnesses")
    return None if found is None else found.tolist()


def assert_same(one, other, rtol=1e-12):
    torch.testing.assert_close(one, other, rtol=rtol, atol=rtol)


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("scod", "scod"),
        ("scod()", "scod"),
        ("scod(metric=aurr)", "scod"),
        ("scod(alpha=0.5, beta=0.5)", "scod"),
        ("scod( beta = 0.2,alpha=0.9)", "scod(alpha=0.9, beta=0.2)"),
        ("scod(metric=aurc, alpha=0.1)", "scod(alpha=0.1, metric=aurc)"),
        (f"bayes(msp,{SIX},metric=aurr,alpha=.9)", f"bayes(msp, {SIX}, alpha=0.9, metric=aurr)"),
        (f"bayes(msp, {SIX}, metric=aurc)", f"bayes(msp, {SIX})"),
        (f"bayes(msp, {SIX.replace('vim', 'linear(energy, residual)')})", f"bayes(msp, {SIX})"),
        ("bayes(msp, residual, metric=aurr)", "bayes(msp, residual, metric=aurr)"),
        (f"bayes(entropy, {SIX}, metric=aurr)", f"bayes(entropy, {SIX}, metric=aurr)"),
        (f"bayes(msp, {SIX}, energy)", f"bayes(msp, {SIX}, energy)"),
        ("both(scod, knn)", "both(scod, knn)"),
    ],
)
def test_every_spelling_has_one_canonical_text(text, canonical):
    assert str(parse(text)) == canonical
    assert parse(canonical) == parse(text)
    assert hash(parse(canonical)) == hash(parse(text))
    assert parse(text).is_default == canonical.startswith("scod")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("scod(msp)", "`scod` is a single score and takes no other specs, in `scod(msp)`"),
        ("scod(msp, l1)", "takes no other specs"),
        ("scod(metric=auc)", "`metric` must be aurc or aurr; got `auc` in `scod(metric=auc)`"),
        ("scod(alpha=0)", "`alpha` of `scod` must be"),
        ("scod(alpha=(0.1, 0.2))", "`alpha` of `scod` must be one number"),
        ("scod(alpha=2)", "got 2.0 in `scod(alpha=2)`"),
        ("scod(beta=-1)", "`beta` of `scod` must be"),
        ("scod(k=3)", "has no parameter `k`, in `scod(k=3)`. It takes alpha=, beta=, metric="),
        ("scod(a=1)", "has no parameter `a`"),
        ("scodd", "Did you mean `scod`?"),
        ("sirc(msp, scod)", "would have to be fitted before this S2 could be"),
        ("sirc(scod, l1)", "must be bounded"),
    ],
)
def test_a_wrong_one_is_told_what_is_wrong(text, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        parse(text)


def test_its_name_is_taken(scratch_registry):
    def scod(first, second):
        return first + second

    assert "scod" in known_names()
    with pytest.raises(ValueError, match="`scod` is a name of the grammar already"):
        sirc.scores.combination()(scod)


def test_it_is_what_is_fitted_where_nothing_is_asked_for_and_scores_as_the_long_bayes(whole):
    scores = sirc.fit(LONG, TRAIN, head=HEAD)(FRESH)
    for scorer in (whole, sirc.fit(train=TRAIN, head=HEAD)):
        assert scorer.specs == ("scod",)
        assert torch.equal(scorer(FRESH)["scod"], scores[LONG])
    with pytest.raises(ValueError, match="`train`, the outputs of ID training data, is needed"):
        sirc.fit()


def test_the_long_bayes_stays_as_it_was_written(tmp_path):
    assert parse(LONG) != parse("scod")
    with pytest.raises(ValueError, match="`head` is needed for `residual`"):
        sirc.fit(LONG, TRAIN)
    sirc.fit(["scod", LONG], TRAIN, head=HEAD).save(tmp_path / "both.safetensors")
    again = sirc.Scorer.load(tmp_path / "both.safetensors")
    assert torch.equal(again(FRESH)["scod"], again(FRESH)[LONG])
    scorer, *_ = fitted("scod", LONG, on_unfit="skip")
    assert scorer.specs == ("scod",)
    assert places(scorer) == HEADLESS[0]


def witness_values(rows, excluding_self=False):
    """The values of the six on rows (logits, features), fitted on all training rows, in NumPy."""
    logits, z = rows
    residual = reference.residual(z, *reference.fit_residual(Z, WEIGHT, BIAS))
    own = -reference.residual(Z, *reference.fit_residual(Z, WEIGHT, BIAS)).mean()
    c = reference.max_logit(LOGITS).mean() / own
    plus = reference_features.values((LOGITS, Z, Y, WEIGHT, BIAS), rows)["mahalanobis_pp"]
    near = reference.knn(z, Z, leave_out=lambda i: np.arange(N) == i) if excluding_self else reference.knn(z, Z)
    mahalanobis = reference.mahalanobis(z, *reference.fit_mahalanobis(Z, Y, K))
    return [residual, reference.energy(logits) + c * residual, mahalanobis, plus, near, reference.l1(z)]


@pytest.mark.parametrize(("alpha", "beta"), [(0.5, 0.5), (0.1, 0.9)])
def test_it_is_its_formula_from_the_training_rows_to_the_confidence(alpha, beta):
    """In sample, every number in NumPy."""
    spec = f"scod(alpha={alpha}, beta={beta})"
    scorer = sirc.fit(spec, TRAIN, head=HEAD, crossfit=0)
    own = witness_values((LOGITS, Z), excluding_self=True)
    a, b = np.transpose([reference.typical(values) for values in own])

    def u_and_g(logits, values):
        u = 1 - reference.msp(logits)
        return u, reference.witnessed(u, b * (np.transpose(values) - a) - 3)

    u, g = u_and_g(LOGITS, own)
    stages = reference.aurr_stages(u, g / g.mean(), alpha, beta)
    u_fresh, g_fresh = u_and_g(FRESH.logits, witness_values((FRESH.logits.numpy(), FRESH.features.numpy())))
    expected = reference.staged_aurr(u_fresh, g_fresh / g.mean(), alpha, beta, *stages)
    np.testing.assert_allclose(scorer(FRESH)[spec], expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("step", ["whole", "iterator", "in steps", "one pass"])
@pytest.mark.parametrize(
    ("train", "head", "left", "words"),
    [
        (TRAIN, None, *HEADLESS),
        (UNLABELLED, HEAD, *LABELLESS),
        (UNLABELLED, None, [4, 5], "2 of them|labels are needed"),
        (BARE, None, [6], "features are needed"),
        (TRAIN[:10], HEAD, [0, 1, 2, 3, 5], "`knn` needs at least 11 training rows"),
    ],
)
def test_it_does_with_the_witnesses_that_the_data_allow(train, head, left, words, step):
    if step in ("whole", "iterator"):
        batches = [train[: len(train) // 2], train[len(train) // 2 :]]
        scorer, told = fitted(train=train if step == "whole" else iter(batches), head=head)
    else:
        fitter = sirc.Fitter("scod", head=head, one_pass=step == "one pass")
        for part in train.batches(90):
            fitter.update(part)
        with pytest.warns(DataWarning, match="`scod` uses fewer witnesses") as caught:
            scorer = fitter.finish(None if step == "one pass" else train)
        (told,) = (str(w.message) for w in caught)
    assert places(scorer) == left
    assert told.startswith("`scod` uses fewer witnesses: ")
    assert re.search(words, told)
    lacking = {str(WITNESSES[place]) for place in set(range(6)) - set(left)}
    assert all(f"`{name}`" in told for name in lacking)
    # It is the `bayes` of those that are left.
    names = ", ".join(str(WITNESSES[place]) for place in left)
    plain = f"bayes(msp, {names}, metric=aurr)"
    rows = FRESH if 6 not in left else sirc.Outputs(FRESH.logits)
    assert_same(scorer(rows)["scod"], sirc.fit(plain, train, head=head)(rows)[plain], rtol=1e-9)


@pytest.mark.parametrize("several", [["scod"], ["scod(alpha=0.9)", "scod", "scod(metric=aurc)"], ["scod", "vim"]])
def test_a_witness_that_turns_out_unfit_is_left_out(several):
    log_probabilities = sirc.Outputs(torch.tensor(LOGITS).log_softmax(-1), Z, Y)
    head = sirc.Head(WEIGHT, BIAS)
    scorer, told = fitted(*several, train=log_probabilities, head=head, on_unfit="skip")
    assert "`vim` scales the residual by the mean largest logit, which must be positive" in told
    for spec in scorer.specs:
        assert places(scorer, spec) == [0, 2, 3, 4, 5]
        assert bool(scorer(FRESH)[spec].isfinite().all())
    assert set(several) - set(scorer.specs) == {"vim"} & set(several)


@pytest.mark.parametrize("one_pass", [False, True])
def test_a_witness_that_says_nothing_is_left_out(one_pass):
    z = np.abs(Z) / np.abs(Z).sum(1, keepdims=True)  # ‖z‖₁ = 1
    rows = sirc.Outputs(LOGITS, z, Y)
    scorer, told = fitted("scod", "scod(beta=0.2)", train=iter([rows]) if one_pass else rows)
    assert "`l1` does not vary over the training rows" in told
    assert places(scorer) == places(scorer, "scod(beta=0.2)") == [2, 3, 4]


def test_without_any_witness_it_is_refused_in_words():
    with pytest.raises(ValueError, match=r"`energy` does not vary over the training rows.* so `scod` has"):
        fitted(train=sirc.Outputs(np.ones((50, 3))))
    with pytest.raises(ValueError, match=r"`train` must hold at least one row"):
        fitted(train=iter([]))
    with pytest.raises(sirc.NotFittedError, match=r"`scod` learns from ID data and was not fitted.*\['scod'\], train"):
        sirc.Scorer("scod")(TRAIN)


def test_what_other_specs_lack_is_not_told_of_it():
    _, told = fitted("scod", "sirc(msp, knn(k=500))", train=iter([TRAIN[:10]]), head=HEAD, on_unfit="skip")
    assert "`knn`" in told
    assert "k=500" not in told


@pytest.mark.parametrize("specs", [["scod", "both(scod, knn)"], ["both(scod, knn)"], ["product(scod, msp)", "scod"]])
@pytest.mark.parametrize("on_unfit", ["stop", "skip"])
@pytest.mark.parametrize("kind", ["all", "no head", "negative logits"])
def test_inside_another_spec_it_is_the_same(specs, on_unfit, kind):
    train = sirc.Outputs(torch.tensor(LOGITS).log_softmax(-1), Z, Y) if kind == "negative logits" else TRAIN
    options = {"train": train, "head": None if kind == "no head" else HEAD, "val": VAL, "on_unfit": on_unfit}
    scorer, *told = fitted(*specs, **options)
    alone, *also = fitted("scod", "knn", **options)
    assert told == also
    assert scorer.specs == tuple(specs)
    assert places(scorer) == places(alone) == {"all": None, "no head": [2, 3, 4, 5]}.get(kind, [0, 2, 3, 4, 5])
    for name in "ab":
        assert torch.equal(scorer.parameters["scod"][name], alone.parameters["scod"][name])
    found, plain = scorer(FRESH), alone(FRESH)
    if "scod" in specs:
        assert torch.equal(found["scod"], plain["scod"])
    if "both(scod, knn)" in specs:
        # The share of validation rows below it, of whichever part is the less sure.
        own = alone(VAL)
        shares = [[float((own[name] < x).double().mean()) for x in plain[name]] for name in ("scod", "knn")]
        assert spearmanr(found["both(scod, knn)"], np.min(shares, 0)).statistic > 0.97


def test_two_of_them_differ_in_their_weights_alone(whole):
    specs = ["scod", "scod(alpha=0.9)", "scod(beta=0.1)", "scod(metric=aurc)"]
    scorer = sirc.fit(specs, TRAIN, head=HEAD)
    assert torch.equal(scorer(FRESH)["scod"], whole(FRESH)["scod"])
    for name in ("a", "b", "log_mean", "calibration", "claim"):
        assert all(torch.equal(scorer.parameters[s][name], whole.parameters["scod"][name]) for s in specs)
    risks = [scorer.parameters[spec]["risks"].max().item() for spec in specs[:3]]
    assert risks[1] < risks[0] < risks[2]
    assert "risks" not in scorer.parameters["scod(metric=aurc)"]


@pytest.mark.parametrize("head", [HEAD, None], ids=["all", "reduced"])
def test_it_saves_and_loads_and_is_taken_apart(head, tmp_path):
    scorer, *_ = fitted("msp", "scod", "scod(alpha=0.2)", "sirc(msp, l1)", head=head)
    scorer.save(tmp_path / "s.safetensors")
    again = sirc.Scorer.load(tmp_path / "s.safetensors")
    expected = scorer(FRESH)
    for other in (again, scorer.only(["scod"]), again.only("scod(alpha=0.2)")):
        for spec, value in other(FRESH).items():
            assert torch.equal(value, expected[spec])
    assert again.only("scod").seen(TRAIN) == 1


PARTS = list(itertools.pairwise([0, 1, 50, 51, 130, 240]))
SPECS = ["scod", "bayes(msp, l1, knn, react)", "bayes(entropy, residual, metric=aurr)"]


@pytest.mark.parametrize("bank", [12_500, 90])
@pytest.mark.parametrize("crossfit", ["auto", 0])
def test_rows_in_parts_and_in_any_order_give_the_same_fit(crossfit, bank, monkeypatch):
    """The rows whose medians are taken are chosen by their places, however they come."""
    monkeypatch.setattr(state, "BANK_SIZE", bank)
    monkeypatch.setattr(second_pass, "_ROWS", 100)
    one = sirc.fit(SPECS, TRAIN, head=HEAD, crossfit=crossfit)
    order = torch.from_numpy(np.random.default_rng(0).permutation(N))
    fitters = [sirc.Fitter(SPECS, head=HEAD, crossfit=crossfit) for _ in range(3)]
    for fitter, rows in zip(fitters, (order[:70], order[70:70], order[70:]), strict=True):
        for part in rows.split(33):
            fitter.update(TRAIN[part], index=part)
    scorers = {
        "batches": sirc.fit(SPECS, [TRAIN[i:j] for i, j in PARTS], head=HEAD, crossfit=crossfit),
        "merged": fitters[1].merge(fitters[2]).merge(fitters[0]).finish(TRAIN),
    }
    if bank > N:
        scorers["one pass"] = sirc.fit(SPECS, (TRAIN[i:j] for i, j in PARTS), head=HEAD, crossfit=crossfit)
    for name, other in scorers.items():
        for spec in SPECS:
            key = str(parse(spec))
            assert set(one.parameters[key]) == set(other.parameters[key])
            for parameter, value in one.parameters[key].items():
                torch.testing.assert_close(other.parameters[key][parameter], value, rtol=1e-9, atol=1e-12, msg=name)


@pytest.mark.parametrize("bank", [239, 230, N])
def test_a_bank_of_nearly_all_rows_leaves_rows_for_the_statistics(bank, monkeypatch):
    monkeypatch.setattr(state, "BANK_SIZE", bank)
    scorer, *told = fitted("scod", "sirc(msp, knn)", head=HEAD, crossfit=0)
    assert not told
    a, b = np.transpose([reference.typical(values) for values in (reference.l1(Z), near_others(bank))])
    for name, expected in (("a", a), ("b", b)):
        np.testing.assert_allclose(scorer.parameters["scod"][name][[5, 4]], expected, rtol=1e-9)
    a, b = reference.spread(near_others(bank))
    assert scorer.parameters["sirc(msp, knn)"]["a"].item() == pytest.approx(a, rel=1e-9)
    assert scorer.parameters["sirc(msp, knn)"]["b"].item() == pytest.approx(b, rel=1e-9)


def near_others(bank):
    """`knn` of the training rows, where each row's nearest in the bank, which may be itself, is left out."""
    kept = Reservoir(bank).update(torch.arange(N), {}).rows()[0].numpy()
    return reference.knn(Z, Z[kept], k=11)


def test_workers_without_labels_merge_and_those_with_and_without_do_not():
    def worker(rows, start, stop):
        index = torch.arange(start, stop)
        return sirc.Fitter("scod", head=HEAD).update(rows[index], index=index)

    merged = sirc.Fitter("scod", head=HEAD).merge(worker(UNLABELLED, 0, 100)).merge(worker(UNLABELLED, 100, N))
    with pytest.warns(DataWarning, match="labels are needed"):
        found = merged.finish(UNLABELLED)
    expected, _ = fitted(train=UNLABELLED, head=HEAD)
    assert places(found) == LABELLESS[0]
    assert_same(found(FRESH)["scod"], expected(FRESH)["scod"], rtol=1e-9)
    for one, other in ((TRAIN, UNLABELLED), (UNLABELLED, TRAIN)):
        with pytest.raises(ValueError, match="fitters merge when their `scod` has the same witnesses"):
            worker(one, 0, 100).merge(worker(other, 100, N))


def test_a_later_batch_without_labels_is_refused_by_name():
    fitter = sirc.Fitter("scod", head=HEAD).update(TRAIN[:100])
    with pytest.raises(ValueError, match="labels are needed to fit `mahalanobis`, `mahalanobis_pp`: the class"):
        fitter.update(UNLABELLED[100:])


def test_training_rows_are_read_twice_and_each_score_is_computed_once_a_block(monkeypatch):
    passes = []

    class Train:
        def __iter__(self):
            passes.append(1)
            return iter([TRAIN])

    calls = {}
    for name in sirc.scores.registry.names():
        score = sirc.scores.registry.get(name)

        def counted(*args, name=name, compute=score.compute, **keywords):
            calls[name] = calls.get(name, 0) + 1
            return compute(*args, **keywords)

        changed = sirc.scores.registry.Score(**{**vars(score), "compute": counted})
        monkeypatch.setitem(sirc.scores.registry._SCORES, name, changed)
    scorer = sirc.fit(["scod", "scod(alpha=0.9)"], Train(), head=HEAD, crossfit=0)
    assert len(passes) == 2
    # In sample, scores that nothing leaves out are computed once more for the rows that tell where others stand.
    twice = dict.fromkeys(("knn", "l1", "energy", "max_logit"), 2)
    assert calls == {**dict.fromkeys(("residual", "mahalanobis", "mahalanobis_pp"), 1), **twice}
    calls.clear()
    scorer(FRESH)
    assert calls == dict.fromkeys(("residual", "mahalanobis", "mahalanobis_pp", "knn", "l1", "energy"), 1)


def test_rounding_changes_it_about_as_much_as_msp_and_a_margin_for_it_leaves_rejections():
    """A threshold lies below its row by a share of its size; that must not reach down to the rows that are rejected."""
    logits, z, y, weight, bias = reference.model(3000, K, L, seed=1, noise=2.0)
    logits, weight, bias = logits / 8, weight / 8, bias / 8
    scorer = sirc.fit(["scod", "msp"], sirc.Outputs(logits, z, y)[:2000], head=sirc.Head(weight, bias))
    new, rng = slice(2000, None), np.random.default_rng(0)
    rounded = z[new] * (1 + 1e-3 * rng.normal(size=z[new].shape))
    before = scorer(sirc.Outputs(z[new] @ weight.T + bias, z[new]))
    after = scorer(sirc.Outputs(rounded @ weight.T + bias, rounded))

    def change(spec):
        return float((after[spec] - before[spec]).abs().max() / before[spec].abs().median())

    assert change("scod") < 3 * change("msp")
    correct = logits[new].argmax(1) == y[new]
    for tolerance, most in ((0.01, 0.96), (0.03, 0.97)):  # of TF32 and of bfloat16
        at = sirc.threshold.at_recall(before["scod"], correct, 0.95, tolerance=tolerance)
        assert 0.95 <= (before["scod"].numpy()[correct] >= at.value).mean() < most
