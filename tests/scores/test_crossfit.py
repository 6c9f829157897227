"""Out-of-sample statistics: those of fresh data, row by row or by folds; the paper's in-sample rule is kept at 0."""

import dataclasses
import warnings
from functools import partial

import numpy as np
import pytest
import torch

import sirc
from sirc.scores import parse, registry
from sirc.scores.moments import Reservoir, fold_of
from support import reference, reference_features

K, L = 5, 8


def small(n=200, seed=0):
    logits, z, y, weight, bias = reference.model(n, K, L, seed=seed)
    return logits, z, y, weight, bias, sirc.Outputs(logits, z, y), sirc.Head(weight, bias)


def spread_of(scorer, spec):
    """μ and σ back from a = μ − 3σ and b = 1/σ."""
    found = scorer.parameters[spec]
    return (found["a"] + 3 / found["b"]).tolist(), (1 / found["b"]).tolist()


def assert_a_b(scorer, spec, *values, rtol=1e-9):
    a, b = zip(*(reference.spread(v) for v in values), strict=True)
    np.testing.assert_allclose(scorer.parameters[spec]["a"], a, rtol=rtol)
    np.testing.assert_allclose(scorer.parameters[spec]["b"], b, rtol=rtol)


def literal_folds(n, folds=5):
    return fold_of(torch.arange(n), folds).numpy()


def test_zero_folds_is_the_papers_in_sample_rule():
    logits, z, y, weight, bias, train, head = small()
    specs = ["sirc(msp, residual)", "sirc(msp, mahalanobis, l1)", "vim", "sirc(entropy, vim)"]
    fitted = sirc.fit(specs, train, head=head, crossfit=0)
    residual = reference.residual(z, *reference.fit_residual(z, weight, bias))
    distance = reference.mahalanobis(z, *reference.fit_mahalanobis(z, y, K))
    assert_a_b(fitted, specs[0], residual)
    assert_a_b(fitted, specs[1], distance, reference.l1(z))
    c = reference.max_logit(logits).mean() / -residual.mean()
    assert fitted.parameters["vim"]["c"].item() == pytest.approx(c, rel=1e-9)
    assert_a_b(fitted, specs[3], reference.energy(logits) + c * residual)


@pytest.fixture(scope="module")
def held_out():
    """The values of 60 rows, each by scores that are fitted to the other 59."""
    return reference_features.held_out(small(60)[:5])


@pytest.mark.filterwarnings("ignore:typical training rows")  # `scale` and `ash` have long tails here
@pytest.mark.parametrize("crossfit", [3, "auto"])
def test_each_row_is_scored_with_parameters_of_all_others(crossfit, held_out):
    logits, z, _, weight, bias, train, head = small(60)
    specs = [f"sirc(msp, {name})" for name in held_out if name != "react"] + ["sirc(msp, l1, knn, residual)"]
    fitted = sirc.fit([*specs, "vim", "sirc(doctor, vim)", "residual"], train, head=head, crossfit=crossfit)
    for spec in specs:
        parts = [str(arg) for arg in parse(spec).args[1:]]
        assert_a_b(fitted, spec, *(reference.l1(z) if part == "l1" else held_out[part] for part in parts))
    c = reference.max_logit(logits).mean() / -held_out["residual"].mean()
    assert fitted.parameters["vim"]["c"].item() == pytest.approx(c, rel=1e-9)
    assert_a_b(fitted, "sirc(doctor, vim)", reference.energy(logits) + c * held_out["residual"])
    # The final parameters use all rows.
    whole = reference.residual(z, *reference.fit_residual(z, weight, bias))
    np.testing.assert_allclose(fitted(train)["residual"], whole, rtol=1e-9, atol=1e-11)
    assert set(fitted.parameters["residual"]) == {"origin", "basis"}


def test_only_scores_without_a_formula_need_folds(held_out):
    _, z, _, weight, bias, train, head = small(60)
    spec = "sirc(msp, react, mahalanobis, knn)"
    fold = literal_folds(60, 3)
    react = np.empty(60)
    for f in range(3):
        clip = np.percentile(z[fold != f], 90)
        react[fold == f] = reference_features.react(z[fold == f], weight, bias, clip)
    fitted = sirc.fit(spec, train, head=head, crossfit=3)
    assert_a_b(fitted, spec, react, held_out["mahalanobis"], held_out["knn"])


def test_scores_that_learn_nothing_have_nothing_to_crossfit():
    logits, z, _, _, _, train, _ = small()
    specs = ["sirc(msp, l1)", "sirc(msp, energy, gradnorm)"]
    for folds in (0, 5, "auto"):
        fitted = sirc.fit(specs, train, crossfit=folds)
        assert_a_b(fitted, specs[0], reference.l1(z))
        assert_a_b(fitted, specs[1], reference.energy(logits), reference.gradnorm(logits, z))


@pytest.mark.parametrize("crossfit", [0, 5])
def test_knn_counts_rows_outside_the_bank(crossfit, monkeypatch):
    monkeypatch.setattr("sirc.scores.fitting.state.BANK_SIZE", 60)
    _, z, _, _, _, train, _ = small()
    fitted = sirc.fit(["sirc(msp, knn, l1)", "knn"], train, crossfit=crossfit)
    kept, _ = Reservoir(60).update(torch.arange(200), {}).rows()
    outside = np.ones(200, dtype=bool)
    outside[kept.numpy()] = False
    assert outside.sum() == 140
    # l1 needs no bank: all rows count for it.
    assert_a_b(fitted, "sirc(msp, knn, l1)", reference.knn(z[outside], z[~outside]), reference.l1(z))
    np.testing.assert_allclose(fitted(train)["knn"], reference.knn(z, z[~outside]), rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize("k", [1, 12])
def test_in_sample_knn_leaves_each_row_out_of_its_own_search(k):
    _, z, _, _, _, train, _ = small()
    spec = f"sirc(msp, knn(k={k}))"
    fitted = sirc.fit(spec, train, crossfit=0)
    others = reference.knn(z, z, k=k, leave_out=lambda i: np.arange(200) == i)
    assert_a_b(fitted, spec, others)


def test_in_sample_knn_inside_a_product_is_self_excluded_too():
    _, z, _, _, _, train, _ = small()
    spec = "sirc(msp, product(knn, l1))"
    others = reference.knn(z, z, leave_out=lambda i: np.arange(200) == i)
    assert_a_b(sirc.fit(spec, train, crossfit=0), spec, others * reference.l1(z))


def test_auto_crossfits_below_a_hundred_rows_per_feature():
    size = 2
    logits, z, y, weight, bias = reference.model(100 * size, 3, size, seed=3)
    train, head = sirc.Outputs(logits, z, y), sirc.Head(weight, bias)
    spec = "sirc(msp, residual)"

    def fitted(rows, crossfit):
        return sirc.fit(spec, train[:rows], head=head, crossfit=crossfit).parameters[spec]["a"].item()

    assert fitted(200, "auto") == pytest.approx(fitted(200, 0), rel=1e-12)
    assert fitted(199, "auto") == pytest.approx(fitted(199, 5), rel=1e-12)
    assert fitted(200, 0) != pytest.approx(fitted(200, 5), rel=1e-9)
    assert fitted(199, 0) != pytest.approx(fitted(199, 5), rel=1e-9)


def gaussian(seed, n, size, classes, spectrum=0.5):
    """Features around class means with a decaying spectrum, as a trained network's; fresh draws on request."""
    rng = np.random.default_rng(seed)
    scale = np.arange(1, size + 1) ** -spectrum
    means = rng.normal(size=(classes, size)) * scale
    weight = means / scale**2 * 0.05
    bias = rng.normal(size=classes) * 0.1

    def draw(n):
        y = rng.integers(0, classes, n)
        z = means[y] + rng.normal(size=(n, size)) * scale
        return sirc.Outputs(z @ weight.T + bias, z, y)

    return draw(n), draw, sirc.Head(weight, bias)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_crossfitted_residual_statistics_are_those_of_fresh_data(seed):
    size = 256
    train, draw, head = gaussian(seed, 2 * size, size, 10)
    specs = ["sirc(msp, residual)", "residual"]
    folded = sirc.fit(specs, train, head=head)
    with pytest.warns(sirc.DataWarning, match=r"with 2 rows for each feature and `crossfit=0`, rows that .* look OOD"):
        in_sample = sirc.fit(specs, train, head=head, crossfit=0)
    fresh = folded(draw(4000))["residual"]
    mu, sigma = fresh.mean().item(), fresh.std(correction=0).item()
    (m5,), (s5,) = spread_of(folded, specs[0])
    (m0,), _ = spread_of(in_sample, specs[0])
    assert m5 == pytest.approx(mu, rel=0.05)
    assert s5 == pytest.approx(sigma, rel=0.10)
    # The subspace hugs its own rows: their residuals look smaller than any fresh row's.
    assert m0 - mu > 0.15 * abs(mu)
    assert m0 - mu > 3 * sigma


def test_crossfitted_mahalanobis_statistics_are_those_of_fresh_data():
    size = 64
    train, draw, _ = gaussian(2, 10 * size, size, 8)
    specs = ["sirc(msp, mahalanobis)", "mahalanobis"]
    folded, in_sample = (sirc.fit(specs, train, crossfit=folds) for folds in ("auto", 0))
    fresh = folded(draw(4000))["mahalanobis"]
    mu, sigma = fresh.mean().item(), fresh.std(correction=0).item()
    (m5,), (s5,) = spread_of(folded, specs[0])
    (m0,), _ = spread_of(in_sample, specs[0])
    assert m5 == pytest.approx(mu, rel=0.05)
    assert s5 == pytest.approx(sigma, rel=0.10)
    assert abs(m0 - mu) > 3 * abs(m5 - mu)


def test_crossfitted_vim_finds_the_c_of_fresh_data():
    size = 128
    train, draw, head = gaussian(3, 2 * size, size, 10)
    specs = ["vim", "residual", "max_logit"]
    folded, in_sample = (sirc.fit(specs, train, head=head, crossfit=folds) for folds in ("auto", 0))
    conf = folded(draw(4000))
    residual = -conf["residual"].mean().item()
    logit = in_sample(train)["max_logit"].mean().item()
    assert folded.parameters["vim"]["c"].item() == pytest.approx(logit / residual, rel=0.05)
    assert in_sample.parameters["vim"]["c"].item() > 1.15 * logit / residual


@pytest.mark.slow
@pytest.mark.parametrize(("classes", "size"), [(80, 320), (100, 256)])
def test_three_images_per_class_are_enough_for_every_score(classes, size):
    rng = np.random.default_rng(classes)
    scale = np.arange(1, size + 1) ** -0.3
    means = rng.normal(size=(classes, size)) * scale * 0.2
    weight = means / scale**2
    bias = -0.5 * (means * weight).sum(1)

    def draw(y):
        z = means[y] + rng.normal(size=(len(y), size)) * scale
        return sirc.Outputs(z @ weight.T + bias, z, y)

    train, test = draw(np.tile(np.arange(classes), 3)), draw(rng.integers(0, classes, 3000))
    right = test.correct.numpy()
    distances = ["mahalanobis", "mahalanobis_pp", "relative_mahalanobis", "knn", "nnguide"]
    others = ["residual", "vim", "cop", "fdbd", "nci", "react"]
    specs = [f"sirc(msp, {name})" for name in (*distances, *others)]

    head = sirc.Head(weight, bias)
    scorer = sirc.fit(["msp", *distances, *others, *specs], train, head=head)
    conf = scorer(test)
    for name, spec in zip((*distances, *others), specs, strict=True):
        (mu,), (sigma,) = spread_of(scorer, spec)
        z = (conf[name] - mu) / sigma
        assert abs(float(z.mean())) < 0.4, name
        assert 0.7 < float(z.std()) < 1.35, name

    def auroc(values):
        return 100 * reference.auroc(values.numpy()[right], values.numpy()[~right])

    msp = auroc(conf["msp"])
    assert 80 < msp < 92
    for name in ("residual", "knn", "vim", "mahalanobis"):
        assert auroc(conf[f"sirc(msp, {name})"]) > msp - 0.5
    with pytest.warns(sirc.DataWarning, match="look OOD to `residual`"):
        in_sample = sirc.fit("sirc(msp, residual)", train, head=head, crossfit=0)
    assert auroc(in_sample(test)["sirc(msp, residual)"]) < msp - 5


SPOKEN = ["residual", "mahalanobis", "mahalanobis_pp", "relative_mahalanobis", "cop", "knn", "fdbd", "vim"]


@pytest.mark.parametrize("one_pass", [False, True])
def test_in_sample_statistics_that_mislead_are_told(one_pass):
    train, draw, head = gaussian(0, 128, 64, 8)
    spec = f"sirc(msp, {', '.join(SPOKEN)})"

    def fit(**options):
        return sirc.fit([spec, *SPOKEN], iter([train]) if one_pass else train, head=head, **options)

    with pytest.warns(sirc.DataWarning, match="with 2 rows for each feature and `crossfit=0`") as told:
        in_sample = fit(crossfit=0)
    (message,) = (str(warning.message) for warning in told)
    fresh = in_sample(draw(2000))
    (mu, sigma) = spread_of(in_sample, spec)
    for name, m, s in zip(SPOKEN, mu, sigma, strict=True):
        z = float((fresh[name].mean() - m) / s)
        assert (f"`{name}` (z = " in message) is (z < -2.5) or abs(z + 2.5) < 0.2
        if z < -2.7:  # the figure is that of fresh rows
            assert float(message.partition(f"`{name}` (z = ")[2].split()[0]) == pytest.approx(z, abs=0.3 * abs(z))
    assert message.endswith('Pass `crossfit="auto"`, or fit on more rows')
    with pytest.warns(sirc.DataWarning) as told:  # once, not of `val` again
        fit(crossfit=0, val=draw(200))
    assert len(told) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit(val=draw(200))
        sirc.fit(spec, draw(1280), head=head, crossfit=0)


def test_an_s2_that_never_speaks_is_told(monkeypatch):
    """With three rows a class, a covariance from four folds puts the fifth far below where all rows lie."""
    plain = registry.get("mahalanobis_pp")
    monkeypatch.setitem(registry._SCORES, "mahalanobis_pp", dataclasses.replace(plain, held_out=None))
    many, draw, _ = gaussian(1, 2000, 52, 40)
    train = many[torch.cat([(many.labels == k).nonzero()[:3, 0] for k in range(40)])]
    fit = partial(sirc.fit, "sirc(msp, mahalanobis_pp)")
    words = r"not fitted on spread so little on the scale of `mahalanobis_pp` \(z = .*Fit on more rows$"
    for rows, options in ((train, {}), (iter([train]), {}), (train, {"val": draw(300)})):
        with pytest.warns(sirc.DataWarning, match=words) as told:
            fit(rows, **options)
        assert len(told) == 1
    fit(many)  # with rows enough there is nothing to tell


@pytest.mark.parametrize("spec", ["sirc(msp, l1)", "sirc(entropy, energy, l1)"])
def test_an_s2_whose_scale_a_few_huge_rows_decide_is_told(spec):
    *_, train, head = small(1000)
    z = train.features.clone()
    z[0] *= 1e4
    huge = sirc.Outputs(z @ head.weight.T + head.bias, z, train.labels)
    words = r"typical training rows spread so little on the scale of .*A few huge values make σ large"
    for rows in (huge, iter([huge])):
        with pytest.warns(sirc.DataWarning, match=words):
            sirc.fit(spec, rows, head=head)
    sirc.fit([spec], train, head=head)  # without such a row there is nothing to tell
    sirc.fit("bayes(msp, l1, residual)", huge, head=head)  # takes the median


class Shuffled:
    """Re-iterable batches that come in another order each time."""

    def __init__(self, outputs, size=32):
        self.outputs, self.size, self.passes = outputs, size, 0

    def __iter__(self):
        self.passes += 1
        order = np.random.default_rng(self.passes).permutation(len(self.outputs))
        return iter([self.outputs[order[i : i + self.size]] for i in range(0, len(order), self.size)])


SAME_ORDER = "the second pass over `train` must bring the same rows in the same order as the first"


def test_shuffled_batches_are_refused_where_rows_are_left_out_by_fold():
    *_, train, head = small()
    with pytest.raises(ValueError, match=f"{SAME_ORDER}: each row is scored without its own fold"):
        sirc.fit(["sirc(msp, residual)", "sirc(msp, react)"], Shuffled(train), head=head)


@pytest.mark.parametrize("spec", ["sirc(msp, residual)", "sirc(msp, mahalanobis)"])
def test_other_rows_than_those_of_the_first_pass_cannot_be_left_out(spec):
    *_, train, head = small()

    class Augmented:
        passes = 0

        def __iter__(self):
            self.passes += 1
            z = train.features + 0.1 * torch.randn(train.features.shape, generator=torch.manual_seed(self.passes))
            return iter([sirc.Outputs(z @ head.weight.T + head.bias, z, train.labels)])

    with pytest.raises(ValueError, match="must bring the same rows as the first: each row is scored without itself"):
        sirc.fit(spec, Augmented(), head=head)


def test_shuffled_batches_are_refused_where_the_bank_must_know_its_rows(monkeypatch):
    monkeypatch.setattr("sirc.scores.fitting.state.BANK_SIZE", 60)
    *_, train, _ = small()
    with pytest.raises(ValueError, match=SAME_ORDER):
        sirc.fit("sirc(msp, knn)", Shuffled(train), crossfit=0)


@pytest.mark.parametrize("size", [6, 40])
def test_shuffling_is_seen_in_features_that_sum_to_zero(size):
    rng = np.random.default_rng(0)
    z = rng.normal(size=(200, size))
    z -= z.mean(1, keepdims=True)  # LayerNorm
    weight = rng.normal(size=(3, size))
    with pytest.raises(ValueError, match=SAME_ORDER):
        sirc.fit("sirc(msp, react)", Shuffled(sirc.Outputs(z @ weight.T, z)), head=sirc.Head(weight))


@pytest.mark.parametrize("crossfit", [0, 5])
def test_shuffled_batches_do_where_order_does_not_matter(crossfit):
    *_, train, head = small()
    specs = ["sirc(msp, residual)", "sirc(msp, l1, mahalanobis, knn)", "vim"]
    shuffled = sirc.fit(specs, Shuffled(train), head=head, crossfit=crossfit)
    plain = sirc.fit(specs, train, head=head, crossfit=crossfit)
    for spec in specs:
        for name, value in plain.parameters[spec].items():
            torch.testing.assert_close(shuffled.parameters[spec][name], value, rtol=1e-9, atol=0)


@pytest.mark.parametrize("crossfit", [1, -1, 2.5, True, "yes", None])
def test_crossfit_is_a_number_of_folds(crossfit):
    *_, train, _ = small()
    with pytest.raises(ValueError, match=r'`crossfit` must be "auto", 0 [(]in-sample[)] or a number'):
        sirc.fit("msp", train, crossfit=crossfit)


def test_rows_of_a_single_fold_cannot_be_crossfitted():
    *_, train, head = small()
    with pytest.raises(ValueError, match="cross-fitting needs rows in at least two folds; 1 came, all of fold"):
        sirc.fit("sirc(msp, react)", train[:1], head=head)


def test_a_residual_takes_one_decomposition_whatever_the_folds(monkeypatch):
    calls = []

    def counted(name, compute):
        return lambda *args, **options: (calls.append(name), compute(*args, **options))[1]

    for name in ("eigh", "svd", "pinv", "lstsq"):
        monkeypatch.setattr(torch.linalg, name, counted(name, getattr(torch.linalg, name)))
    z, head = torch.randn(60, 12), sirc.Head(torch.randn(5, 12), torch.randn(5))
    sirc.fit("sirc(msp, residual)", sirc.Outputs(z @ head.weight.T + head.bias, z), head=head, crossfit=5)
    assert calls == ["eigh"]
