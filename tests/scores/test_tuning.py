"""`fit` with `val`, `ood` and `unlabelled`: read in any form, refused in words, and what is found is kept and used."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

import sirc
from sirc.scores import bayes
from sirc.scores.fitting import bayes_fit
from sirc.scores.formulas import pnorm, temperature
from support import reference, toys

K, L = 5, 6
BAYES = "bayes(msp, l1)"
TUNED = ["max_logit_pnorm", "tempered_msp", "tempered_entropy"]
SPECS = [*TUNED, "sirc(max_logit_pnorm, residual)", "sirc(tempered_msp, l1)", "bayes(tempered_entropy, l1, residual)"]


def parts(seed=0):
    """Rows of one network: training, validation, test and OOD rows, and its head."""
    logits, z, y, weight, bias = reference.model(1400, K, L, seed=seed, noise=2.0)
    rng = np.random.default_rng(seed + 1)
    far = rng.normal(size=(300, L))
    rows = sirc.Outputs(logits, z, y)
    ood = sirc.Outputs(far @ weight.T + bias, far)
    return rows[:800], rows[800:1100], rows[1100:], ood, sirc.Head(weight, bias)


TRAIN, VAL, TEST, OOD, HEAD = parts()
MIXED = sirc.Outputs.cat([sirc.Outputs(TEST.logits, TEST.features), OOD])


def fit(specs=SPECS, train=TRAIN, **data):
    return sirc.fit(specs, train, head=HEAD, **data)


def same(one, other, rows=TEST):
    first, second = one(rows), other(rows)
    assert list(first) == list(second)
    return all(torch.equal(first[spec], second[spec]) for spec in first)


@pytest.fixture(scope="module")
def tuned():
    return fit(val=VAL, ood=OOD)


def test_options_are_those_that_the_scores_own_rules_choose(tuned):
    p = pnorm.choose_p(VAL.logits, VAL.labels)
    t = temperature.fit_temperature(VAL.logits, VAL.labels)["temperature"]
    assert t != 1
    for name, values in {
        "max_logit_pnorm": p,
        "tempered_msp": {"temperature": t},
        "tempered_entropy": {"temperature": t},
    }.items():
        assert {key: value.item() for key, value in tuned.parameters[name].items()} == values


def test_tuned_options_are_used_alone_and_inside_combinations(tuned):
    found = {name: {k: v.item() for k, v in tuned.parameters[name].items()} for name in TUNED}
    p, bounded = (int(found["max_logit_pnorm"][key]) for key in ("p", "p_bounded"))
    t = found["tempered_msp"]["temperature"]
    explicit = [f"max_logit_pnorm(p={p})", f"tempered_msp(temperature={t!r})", f"tempered_entropy(temperature={t!r})"]
    conf, expected = tuned(TEST), fit(explicit)(TEST)
    for name, text in zip(TUNED, explicit, strict=True):
        assert torch.equal(conf[name], expected[text])
    first = "msp" if bounded == pnorm.MSP else f"max_logit_pnorm(p={bounded})"
    pair = f"sirc({first}, residual)"
    # a and b come from covariances with other terms beside them, which may round otherwise.
    torch.testing.assert_close(conf["sirc(max_logit_pnorm, residual)"], fit(pair)(TEST)[pair], rtol=1e-12, atol=1e-12)
    pair = f"sirc({explicit[1]}, l1)"
    torch.testing.assert_close(conf["sirc(tempered_msp, l1)"], fit(pair)(TEST)[pair], rtol=1e-12, atol=1e-12)


def test_an_option_for_combinations_may_differ(monkeypatch):
    """p = 0 has no bound: where it is best alone, a combination gets the best p that has one."""
    score = sirc.scores.registry.get("max_logit_pnorm")
    chosen = sirc.scores.registry.Score(**{**vars(score), "tune": lambda logits, labels: {"p": 0, "p_bounded": 3}})
    monkeypatch.setitem(sirc.scores.registry._SCORES, "max_logit_pnorm", chosen)
    specs = ["max_logit_pnorm", "sirc(max_logit_pnorm, l1)", "bayes(max_logit_pnorm, l1)"]
    conf = fit(specs, val=VAL)(TEST)
    texts = ["max_logit_pnorm(p=0)", "sirc(max_logit_pnorm(p=3), l1)", "bayes(max_logit_pnorm(p=3), l1)"]
    expected = fit(texts, val=VAL)(TEST)
    for spec, text in zip(specs, texts, strict=True):
        assert torch.equal(conf[spec], expected[text])


def test_an_option_that_is_given_is_not_tuned_even_if_it_is_the_default():
    specs = ["tempered_msp(temperature=1)", "max_logit_pnorm(p=4)", "sirc(tempered_msp(temperature=1), l1)"]
    given, plain = fit(specs, val=VAL), fit(["tempered_msp", "max_logit_pnorm", "sirc(tempered_msp, l1)"])
    first, second = given(TEST), plain(TEST)
    for spec, default in zip(specs, plain.specs, strict=True):
        assert torch.equal(first[spec], second[default])
    assert set(given.parameters) == {"sirc(tempered_msp(temperature=1.0), l1)"}
    assert given.seen(VAL) == 0
    assert not torch.equal(fit("tempered_msp", val=VAL)(TEST)["tempered_msp"], second["tempered_msp"])


def test_validation_rows_change_nothing_where_nothing_is_tuned():
    specs = ["msp", "residual", "sirc(msp, residual)", "additive(entropy, l1)"]
    assert same(fit(specs), fit(specs, val=VAL, ood=OOD, unlabelled=MIXED))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["val", "ood", "unlabelled"])
def test_tuning_rows_come_in_any_form(tuned, tmp_path, name):
    base = {"val": VAL, "ood": OOD} if name != "unlabelled" else {"val": VAL, "unlabelled": MIXED}
    rows, expected = base[name], tuned if name != "unlabelled" else fit(**base)
    arrays = {"logits": rows.logits.numpy(), "features": rows.features.numpy()}
    if rows.labels is not None:
        arrays["labels"] = rows.labels.numpy()
    forms = {
        "dict": arrays,
        "list of outputs": list(rows.batches(70)),
        "list of dicts": [arrays],
        "list of tuples": [tuple(arrays.values())],
        "one-shot iterator": iter(rows.batches(41)),
        "generator": (batch for batch in rows.batches(500)),
        "store": sirc.OutputStore.from_outputs(tmp_path / "rows", rows, shard_size=64),
    }
    if name == "ood":
        forms["dict of sets"] = {"far": list(rows.batches(100))}
    for form, given in forms.items():
        assert same(fit(**{**base, name: given}), expected), form


def test_ood_sets_weigh_the_same_whatever_their_numbers():
    few, many = OOD[:30], OOD[30:]
    doubled = sirc.Outputs.cat([many, many])
    one, other = (fit(BAYES, val=VAL, ood={"few": few, "many": rows}) for rows in (many, doubled))
    pooled = fit(BAYES, val=VAL, ood=sirc.Outputs.cat([few, many]))
    # Twice the rows are a little surer of what they tell.
    torch.testing.assert_close(one(TEST)[BAYES], other(TEST)[BAYES], rtol=1e-3, atol=0.02)
    assert (one(TEST)[BAYES] - pooled(TEST)[BAYES]).abs().max() > 0.1


def test_a_training_set_that_is_seen_once_is_enough(tuned):
    once = fit(train=iter(TRAIN.batches(90)), val=iter(VAL.batches(50)), ood=iter(OOD.batches(50)))
    first, second = once(TEST), tuned(TEST)
    for spec in SPECS:
        torch.testing.assert_close(first[spec], second[spec], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("crossfit", [0, 5])
def test_tuning_goes_with_and_without_folds(crossfit):
    spec = "bayes(tempered_msp, residual, knn)"
    scorer = fit(spec, val=VAL, ood=OOD, crossfit=crossfit)
    assert bool(scorer(TEST)[spec].isfinite().all())
    unlearnt = fit(spec, crossfit=crossfit)  # a and b are those of the training rows in any case
    for name in "ab":
        assert torch.equal(scorer.parameters[spec][name], unlearnt.parameters[spec][name])


def test_in_steps_the_same_scorer_comes_out(tuned):
    fitter = sirc.Fitter(SPECS, head=HEAD, val=iter(VAL.batches(60)), ood={"ood": OOD})
    for start in range(0, 800, 130):
        fitter.update(TRAIN[start : start + 130])
    assert same(fitter.finish(TRAIN), tuned)


def test_merged_fitters_tune_as_one(tuned):
    one, other = (sirc.Fitter(SPECS, head=HEAD, val=VAL, ood=OOD) for _ in range(2))
    one.update(TRAIN[:300], index=np.arange(300))
    other.update(TRAIN[300:], index=np.arange(300, 800))
    merged = one.merge(other).finish(TRAIN)
    first, second = merged(TEST), tuned(TEST)
    for spec in SPECS:
        torch.testing.assert_close(first[spec], second[spec], rtol=1e-8, atol=1e-8)
    assert merged.seen(VAL) == 1


def test_a_device_may_be_named(tuned):
    assert same(fit(val=VAL, ood=OOD, device="cpu"), tuned)


def test_a_tuned_scorer_saves_and_loads_bit_for_bit(tuned, tmp_path):
    for number, scorer in enumerate((tuned, fit(val=VAL, unlabelled=MIXED), fit(val=VAL), fit())):
        scorer.save(tmp_path / f"{number}.safetensors")
        again = sirc.Scorer.load(tmp_path / f"{number}.safetensors")
        assert same(scorer, again)
        assert {s: set(p) for s, p in again.parameters.items()} == {s: set(p) for s, p in scorer.parameters.items()}
        assert again.seen(VAL) == scorer.seen(VAL)


def test_some_of_the_specs_score_as_all_do(tuned):
    whole = tuned(TEST)
    for spec in SPECS:
        assert torch.equal(tuned.only(spec)(TEST)[spec], whole[spec])


def test_the_scorer_knows_the_rows_that_it_was_tuned_on(tuned):
    assert tuned.seen(TRAIN) == 1
    assert tuned.seen(VAL) == 1
    assert tuned.seen(OOD) == 1
    assert tuned.seen(TEST) == 0
    assert tuned.seen(sirc.Outputs.cat([VAL, TEST])) == pytest.approx(0.5, abs=0.1)
    mixed = fit(BAYES, val=VAL, unlabelled=MIXED)
    assert mixed.seen(MIXED) == 1
    for scorer in (fit("msp", val=VAL), fit("sirc(msp, l1)", val=VAL, ood=OOD, unlabelled=MIXED)):
        assert scorer.seen(VAL) == scorer.seen(OOD) == scorer.seen(MIXED) == 0
    assert fit("tempered_msp", val=VAL).seen(VAL) == 1
    assert fit("tempered_msp", val=VAL, ood=OOD).seen(OOD) == 0  # nothing learnt from them


@pytest.mark.parametrize("kept", [{"classes": 4}, {"features": 3}])
def test_tuning_rows_of_another_model_are_refused_at_the_first_batch(kept):
    read = []

    class Batches:
        def __iter__(self):
            for start in range(0, len(TRAIN), 50):
                read.append(start)
                yield TRAIN[start : start + 50]

    with pytest.raises(ValueError, match="must be of the same model as `train`"):
        sirc.fit(["msp", BAYES], Batches(), val=unlike(**kept))
    assert len(read) == 1


def unlike(classes=K, features=L, rows=20, labelled=True):
    rng = np.random.default_rng(0)
    labels = rng.integers(0, classes, rows) if labelled else None
    return sirc.Outputs(rng.normal(size=(rows, classes)), rng.normal(size=(rows, features)), labels)


@pytest.mark.parametrize(
    ("specs", "data", "words"),
    [
        (BAYES, {"ood": OOD}, "`val` is needed beside `ood` or `unlabelled`: `bayes` learns how OOD rows differ"),
        (BAYES, {"unlabelled": MIXED}, "`val` is needed beside `ood` or `unlabelled`"),
        ("linear(l1, bayes(msp, l1), c=1)", {"ood": OOD}, "`val` is needed beside"),
        ("tempered_msp", {"val": sirc.Outputs(VAL.logits)}, "`val` must have labels: scores are tuned on which"),
        ("msp", {"val": sirc.Outputs(VAL.logits)}, "`val` must have labels"),
        (
            "tempered_msp",
            {"val": unlike(classes=4)},
            "`val` must be of the same model as `train`, with 5 classes; got 4",
        ),
        (BAYES, {"val": unlike(features=3)}, "`val` must be of the same model as `train`, with 6 features; got 3"),
        (
            BAYES,
            {"val": VAL, "ood": {"far": unlike(classes=7)}},
            r"`ood\['far'\]` must be of the same model .* 5 classes; got 7",
        ),
        (
            BAYES,
            {"val": VAL, "unlabelled": unlike(features=2)},
            "`unlabelled` must be of the same model .* 6 features; got 2",
        ),
        (BAYES, {"val": sirc.Outputs(VAL.logits, None, VAL.labels)}, "features are needed for `l1`"),
        (BAYES, {"val": VAL, "ood": sirc.Outputs(OOD.logits)}, "features are needed for `l1`"),
        (BAYES, {"val": VAL[:0]}, "`val` must hold at least one row; got none"),
        (BAYES, {"val": []}, "`val` must hold at least one row; got none"),
        (BAYES, {"val": VAL, "ood": {"far": OOD[:0]}}, r"`ood\['far'\]` must hold at least one row; got none"),
        (BAYES, {"val": VAL, "unlabelled": iter(())}, "`unlabelled` must hold at least one row; got none"),
        (
            BAYES,
            {"val": "val.npz"},
            "`val` must be an `Outputs`, an `OutputStore` or an iterable of .*; got str. .* `sirc.extract",
        ),
        (BAYES, {"val": 3}, "`val` must be an `Outputs`, .* got int"),
        (BAYES, {"val": VAL.logits}, "each batch of `val` must be an `Outputs`, .* got a tensor. Wrap whole arrays"),
        (BAYES, {"val": VAL, "ood": {"far": 3}}, r"`ood\['far'\]` must be an `Outputs`, .* got int"),
        (
            BAYES,
            {"val": (VAL.logits, VAL.features, VAL.labels)},
            "each batch of `val` must be an `Outputs`, a dict, .* got a tensor",
        ),
    ],
)
def test_what_cannot_be_tuned_on_is_refused_in_words(specs, data, words):
    with pytest.raises(ValueError, match=words):
        fit(specs, **data)


def test_without_tuning_data_all_but_a_budget_is_fitted():
    assert fit(ood={}).parameters["bayes(tempered_entropy, l1, residual)"]["calibration"].tolist() == [0, 1]
    assert fit("msp", ood=OOD, unlabelled=MIXED).parameters == {}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["one row", "all right", "all wrong", "all the same", "saturated"])
@pytest.mark.parametrize("ood", [None, OOD, OOD[:1]])
def test_poor_validation_rows_give_finite_scores_in_the_order_of_s1(kind, ood):
    sure = VAL.logits * 1e4
    val = {
        "one row": VAL[:1],
        "all right": VAL[VAL.correct],
        "all wrong": VAL[~VAL.correct],
        "all the same": VAL[[3] * 20],
        "saturated": sirc.Outputs(sure, VAL.features, VAL.labels),
    }[kind]
    scorer = fit(["msp", *SPECS, BAYES, "bayes(msp, l1, alpha=1)"], val=val, ood=ood)
    for rows in (TEST, OOD, sirc.Outputs(TEST.logits * 1e4, TEST.features)):
        conf = scorer(rows)
        for spec, value in conf.items():
            assert bool(value.isfinite().all()), spec
    if ood is not None:
        conf = scorer(TEST)
        assert bool((conf["bayes(msp, l1, alpha=1)"].argsort() == conf["msp"].argsort()).all())


def test_one_row_moves_the_odds_and_keeps_their_scale():
    for rows in (VAL[:1], VAL[[0] * 7]):
        offset, slope = fit(BAYES, val=rows).parameters[BAYES]["calibration"].tolist()
        assert slope == pytest.approx(1, rel=1e-6)
        assert abs(offset) < 20


@pytest.mark.parametrize("scale", [1e-3, 0.1, 10.0, 1e4])
def test_calibration_hardly_minds_the_scale_of_the_logits(scale):
    rng = np.random.default_rng(7)
    x = torch.as_tensor(rng.normal(-3, 2, 2000))
    wrong = torch.as_tensor(rng.random(2000)) < torch.sigmoid(0.5 * x)
    offset, slope = bayes_fit.calibrate(x, wrong)
    scaled = bayes_fit.calibrate(x * scale, wrong)
    assert scaled == pytest.approx((offset, slope / scale), rel=0.02, abs=0.02)


def test_calibration_starts_from_what_the_network_claims():
    """Rows that say nothing, or only that all is well, leave the slope near 1; rows that say otherwise are followed."""
    rng = np.random.default_rng(8)
    x = torch.as_tensor(rng.normal(-3, 2, 3))
    for wrong in (torch.zeros(3).bool(), torch.ones(3).bool()):
        offset, slope = bayes_fit.calibrate(x, wrong)
        assert 0.3 < slope < 3
        assert abs(offset) < 12
    x = torch.as_tensor(rng.normal(-9, 6, 5000))
    wrong = torch.as_tensor(rng.random(5000)) < torch.sigmoid(x / 3)
    offset, slope = bayes_fit.calibrate(x, wrong)
    assert slope == pytest.approx(1 / 3, rel=0.1)
    assert offset == pytest.approx(0, abs=0.2)


def test_calibration_of_equal_log_odds_is_the_rate_of_errors():
    wrong = torch.arange(2000) < 800
    offset, slope = bayes_fit.calibrate(torch.full((2000,), -3.0), wrong)
    # The prior, worth about a row, moves it by less than a thousandth.
    assert torch.sigmoid(torch.tensor(offset + slope * -3)) == pytest.approx(0.4, abs=1e-3)
    assert slope == 1


def test_calibration_is_platts_rule():
    rng = np.random.default_rng(4)
    x = rng.normal(-2, 2, 4000)
    wrong = rng.random(4000) < 1 / (1 + np.exp(-(0.7 + 0.4 * x)))
    offset, slope = bayes_fit.calibrate(torch.as_tensor(x), torch.as_tensor(wrong))

    def loss(theta):
        z = theta[0] + theta[1] * x
        return (np.logaddexp(0, z) - wrong * z).mean()

    expected = minimize(loss, [0.0, 1.0], tol=1e-12).x
    # What differs is the prior, which is worth a row or two.
    np.testing.assert_allclose([offset, slope], expected, rtol=5e-3)


@pytest.mark.parametrize("n", [500, 20, 1])
def test_the_density_ratio_is_the_minimum_of_its_likelihood(n):
    """Against SciPy with bounds on the weights, for the same terms; few rows stay near the prior, here (1, 0, 0)."""
    rng = np.random.default_rng(5)
    own, other = rng.normal(0, 1, (800, 3)) ** 2, rng.normal(0.3, 1.2, (n, 3)) ** 2
    other[:, 2] *= 0.5 if n > 1 else 0.01  # tells the other way: its weight is 0
    contrast = bayes_fit.Contrast(torch.as_tensor(other), torch.full((n,), 1 / n, dtype=torch.float64))
    constant, weights = bayes_fit.density_ratio(torch.as_tensor(own), [contrast], 1)
    penalty = max(1e-3, 0.1 * (1 / 800 + 1 / n))

    def loss(theta):
        a, b = theta[0] + own @ theta[1:], theta[0] + other @ theta[1:]
        prior = penalty * ((theta[1:] - np.array([1.0, 0, 0])) ** 2).sum()
        return np.logaddexp(0, a).mean() + np.logaddexp(0, -b).mean() + prior

    expected = minimize(loss, np.zeros(4), bounds=[(None, None), *[(0, None)] * 3], method="L-BFGS-B", tol=1e-14).x
    assert n == 20 or expected[3] == pytest.approx(0, abs=1e-6)
    np.testing.assert_allclose([constant, *weights.tolist()], expected, atol=2e-3)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("share", [0.0, 0.95])
def test_the_density_ratio_ends_at_a_minimum_on_heavy_tails_too(seed, share):
    """No weight that is free to move has a slope left, and none at 0 wants to rise."""
    rng = np.random.default_rng(seed)
    own, other = (
        bayes.basis(
            -torch.as_tensor(rng.standard_cauchy(500)).abs(), [torch.as_tensor(rng.standard_cauchy(500))], (0, 1)
        )
        for _ in range(2)
    )
    constant, weights = bayes_fit.density_ratio(
        own, [bayes_fit.Contrast(other, torch.full((500,), 1 / 500, dtype=torch.float64), share)], 2
    )
    theta = torch.tensor([constant, *weights.tolist()], dtype=torch.float64, requires_grad=True)
    log_g = [theta[0] + x @ theta[1:] + np.log1p(-share) for x in (own, other)]
    odds = [torch.logaddexp(g, torch.full_like(g, np.log(share))) if share else g for g in log_g]
    loss = torch.nn.functional.softplus(odds[0]).mean() + torch.nn.functional.softplus(-odds[1]).mean()
    prior = (theta[1:] - (torch.arange(len(theta) - 1) < 2).double()).square().sum()
    (slope,) = torch.autograd.grad(loss + bayes_fit._PENALTY * prior, theta)
    slope = slope / torch.cat([torch.ones(1), own.abs().mean(0).clamp_min(1)])  # of a weight on terms of size one
    free = theta.detach() > 0
    free[0] = True
    assert float(slope[free].abs().max()) < 1e-4
    assert not bool((slope[~free] < -1e-4).any())


def test_the_share_of_id_rows_is_the_least_ratio_and_has_an_error():
    rng = np.random.default_rng(6)
    own = torch.as_tensor(rng.normal(0, 1, 5000))
    for share in (0.25, 0.75):
        inside = round(4000 * share)
        mixed = torch.as_tensor(np.r_[rng.normal(0, 1, inside), rng.normal(9, 1, 4000 - inside)])
        found, error = bayes_fit.id_share(own, mixed)
        assert abs(found - share) < 4 * error
        assert error == pytest.approx(np.sqrt(share * (1 - share) / 4000), rel=0.2)
    found, error = bayes_fit.id_share(own, torch.as_tensor(rng.normal(20, 1, 50)))
    assert found == 0
    assert 0 < error < 0.05


def test_overconfident_networks_are_calibrated_before_they_are_combined():
    """Logits three times too large change nothing in what a calibrated `bayes` learns from OOD rows."""
    areas = []
    for toy in (toys.Toy(2.0), toys.SHARP):
        train, val, ood, test, far = (
            sirc.Outputs(rows.logits, rows.features, rows.labels)
            for rows in (toy.rows(3000, seed, ood=seed % 2 == 1) for seed in (0, 2, 1, 4, 3))
        )
        scorer = sirc.fit(BAYES, train, val=val, ood=ood)
        own, other = scorer(test)[BAYES], scorer(far)[BAYES]
        areas.append(float(sirc.Ranking(own[test.correct], own[~test.correct], other).aurc(0.5, 0.5)))
    assert areas[1] == pytest.approx(areas[0], rel=0.01)


def test_no_optimizer_of_torch_is_made(monkeypatch):
    """The first one loads a compiler that nothing here needs, which takes seconds."""
    monkeypatch.setattr(torch.optim.Optimizer, "__init__", lambda *_, **__: pytest.fail("an optimizer was made"))
    fit(val=VAL, ood=OOD)
