"""Every score against a NumPy reference, one table of properties for all of them, and SIRC against the paper's C."""

from functools import cache

import numpy as np
import pytest
import torch

import sirc
from sirc import functional
from sirc.scores import Needs, blocks, registry
from sirc.scores import evaluator as evaluator_module
from sirc.scores import row_sums as row_sums_module
from sirc.scores.blocks import working_dtype
from sirc.scores.formulas import softmax as softmax_module
from support import reference, reference_features, reference_logits

LEAVES = [name for name in sirc.known_names() if name not in (*reference.COMBINATIONS, "vim", "scod")]
COMBINATIONS = [
    "vim",
    "scod",
    "knn(k=3)",
    "sirc(msp, l1)",
    "sirc(doctor, gradnorm)",
    "sirc(entropy, residual)",
    "sirc(msp, l1, residual, mahalanobis, knn)",
    "sirc(msp, vim)",
    "sirc(entropy, l1, a=10, b=0.3)",
    "linear(energy, residual, c=0.7)",
    "linear(max_logit, linear(msp, l1, c=0.1), c=2)",
    "product(msp, l1, gradnorm)",
    "sirc(margin, l1)",
    "sirc(tempered_msp, cop)",
    "sirc(tempered_entropy(temperature=2), nci)",
    "sirc(max_logit_pnorm, residual)",
    "sirc(gen, knn, relative_mahalanobis)",
    "additive(msp, l1)",
    "additive(entropy, residual, react, kappa=0.3)",
    "bayes(msp, residual)",
    "bayes(entropy, l1, knn, alpha=0.8, beta=0.3)",
    "sirc(msp, delta_knn(k=5), delta_mahalanobis)",
    "both(entropy, residual, knn)",
]
EVERY = [*LEAVES, *COMBINATIONS]
K, L, N = 6, 10, 400
VALIDATED = [spec for spec in EVERY if Needs.of([spec]).val]


@pytest.fixture(scope="module")
def data():
    return reference.model(N, K, L, seed=1)


@pytest.fixture(scope="module")
def val():
    """Rows of the same network, many of them wrong."""
    return reference.model(200, K, L, seed=1, noise=4.0)


@pytest.fixture(scope="module")
def fresh():
    _, features, _, weight, bias = reference.model(60, K, L, seed=1)
    rng = np.random.default_rng(9)
    features = features + rng.normal(size=features.shape)
    return features @ weight.T + bias, features


@pytest.fixture(scope="module")
def scorer(data, val):
    logits, features, labels, weight, bias = data
    train, head = sirc.Outputs(logits, features, labels), sirc.Head(weight, bias)
    without = sirc.fit([spec for spec in EVERY if spec not in VALIDATED], train, head=head, crossfit=0)
    needing = sirc.fit(VALIDATED, train, head=head, crossfit=0, val=sirc.Outputs(*val[:3]))
    return sirc.Scorer(EVERY, {**needing.parameters, **without.parameters})


@pytest.fixture
def one(scorer, spec):
    """A scorer of one spec, with the parameters of the one fitted on all."""
    return sirc.Scorer(spec, scorer.parameters)


@pytest.fixture(scope="module")
def plain_values(data, val, fresh):
    """Plain values of every leaf on the fresh rows of a type, each made once."""
    return cache(lambda dtype: in_sample_values(data, val, tuple(x.astype(dtype) for x in fresh)))


def in_sample_values(data, val, rows):
    """Plain value of every leaf on `rows` = (logits, features), fitted on `data` and `val`, all in NumPy."""
    _, z, y, weight, bias = data
    logits, features = rows
    u, projector = reference.fit_residual(z, weight, bias)
    means, precision = reference.fit_mahalanobis(z, y, K)
    values = {name: getattr(reference, name)(logits) for name in reference.LOGIT_SCORES}
    values["l1"] = reference.l1(features)
    values["gradnorm"] = reference.gradnorm(logits, features)
    values["residual"] = reference.residual(features, u, projector)
    values["mahalanobis"] = reference.mahalanobis(features, means, precision)
    values["knn"] = reference.knn(features, z)
    values |= reference_logits.values(data, rows) | reference_features.values(data, rows)
    return values | reference_features.delta_values(data, val, rows)


def log_gaps(row):
    return reference.log_gaps(row) | reference_logits.log_gaps(row)


@pytest.mark.slow
@pytest.mark.parametrize("name", LEAVES)
@pytest.mark.parametrize(("dtype", "rtol"), [(np.float64, 1e-10), (np.float32, 1e-5)])
def test_each_score_is_its_formula(name, dtype, rtol, plain_values, fresh, scorer):
    logits, features = (x.astype(dtype) for x in fresh)
    expected = plain_values(dtype)[name]
    if registry.get(name).log_gap is not None and registry.get(name).confidence_kind == "log_gap":
        expected = -np.array([log_gaps(row)[name] for row in logits])
    got = scorer(sirc.Outputs(logits, features))[name].numpy()
    scale = (
        np.abs(expected).max()
        if name in ("residual", "mahalanobis", "relative_mahalanobis", "delta_mahalanobis")
        else 1.0
    )
    np.testing.assert_allclose(got, expected, rtol=rtol, atol=rtol * 1e-1 * scale)


def test_combinations_combine_plain_values(plain_values, fresh, scorer):
    v = plain_values(np.float64)
    conf = scorer(sirc.Outputs(*fresh))
    np.testing.assert_allclose(
        conf["linear(energy, residual, c=0.7)"], v["energy"] + 0.7 * v["residual"], rtol=1e-10, atol=1e-10
    )
    np.testing.assert_allclose(
        conf["linear(max_logit, linear(msp, l1, c=0.1), c=2)"],
        v["max_logit"] + 2 * (v["msp"] + 0.1 * v["l1"]),
        rtol=1e-10,
    )
    np.testing.assert_allclose(conf["product(msp, l1, gradnorm)"], v["msp"] * v["l1"] * v["gradnorm"], rtol=1e-10)


def test_zero_features_and_minus_zero_are_ordinary(scorer):
    zero, minus = torch.zeros(1, L, dtype=torch.float64), -torch.zeros(1, L, dtype=torch.float64)
    logits = torch.ones(1, K, dtype=torch.float64)
    one, other = scorer(sirc.Outputs(logits, zero)), scorer(sirc.Outputs(-logits * -1, minus))
    for spec in EVERY:
        assert torch.equal(one[spec], other[spec]), spec
        assert bool(one[spec].isfinite().all()), spec
    assert one["l1"].item() == 0
    assert one["gradnorm"].item() == 0
    assert one["knn"].item() == pytest.approx(-1.0, rel=1e-12)


@pytest.mark.parametrize("spec", EVERY)
def test_confidences_are_one_float64_per_row(spec, fresh, one):
    conf = one(sirc.Outputs(*fresh))[spec]
    assert conf.dtype == torch.float64
    assert conf.shape == (60,)


@pytest.mark.slow
@pytest.mark.parametrize("spec", EVERY)
@pytest.mark.parametrize(("dtype", "rtol"), [(np.float64, 1e-12), (np.float32, 2e-6)])
def test_a_row_scores_the_same_alone(spec, dtype, rtol, fresh, one):
    outputs = sirc.Outputs(*(x.astype(dtype) for x in fresh))
    whole = one(outputs)[spec]
    alone = torch.cat([one(outputs[i])[spec] for i in range(0, 60, 7)])
    torch.testing.assert_close(alone, whole[::7], rtol=rtol, atol=rtol * float(whole.abs().mean()))


@pytest.mark.parametrize("spec", EVERY)
def test_order_of_rows_is_kept(spec, fresh, one):
    order = np.random.default_rng(3).permutation(60)
    whole = one(sirc.Outputs(*fresh))[spec]
    permuted = one(sirc.Outputs(*(x[order] for x in fresh)))[spec]
    torch.testing.assert_close(permuted, whole[order], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("spec", EVERY)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_scores_as_the_same_values_in_float32(spec, dtype, fresh, one):
    half = sirc.Outputs(*fresh).to(dtype=dtype)
    assert torch.equal(one(half)[spec], one(half.to(dtype=torch.float32))[spec])


@pytest.mark.parametrize("spec", EVERY)
def test_blocks_of_rows_do_not_show(spec, fresh, one, monkeypatch):
    outputs = sirc.Outputs(*fresh)
    whole = one(outputs)[spec]
    monkeypatch.setitem(evaluator_module._BLOCK, "cpu", 8 * L * 7)
    monkeypatch.setattr(blocks, "_PRODUCT", 900)
    torch.testing.assert_close(one(outputs)[spec], whole, rtol=1e-12, atol=1e-12)


def test_scores_of_the_logits_leave_the_features_alone(fresh, monkeypatch):
    """Half-precision features would be widened, block by block, for nothing."""
    logits, features = (torch.as_tensor(x) for x in fresh)
    outputs = sirc.Outputs(logits.half(), features.bfloat16())
    expected = sirc.Scorer(["gen", "tempered_msp"])(outputs)

    def asked(dtype):
        assert dtype != torch.bfloat16, "features were read"
        return working_dtype(dtype)

    monkeypatch.setattr(evaluator_module, "working_dtype", asked)
    specs = [sirc.scores.parse(name) for name in expected]
    reads = evaluator_module.array_reads(specs)
    evaluator = evaluator_module.Evaluator(outputs.logits, outputs.features, reads, {})
    for spec, values in zip(specs, expected.values(), strict=True):
        assert torch.equal(-evaluator.log_gap(spec), values)


@pytest.mark.parametrize("spec", EVERY)
def test_inputs_are_left_alone_and_may_be_strided(spec, fresh, one):
    logits, features = (torch.as_tensor(x) for x in fresh)
    plain = one(sirc.Outputs(logits, features))[spec]
    wide_logits = torch.stack((logits, logits * 3), -1)[..., 0]
    wide_features = features.T.contiguous().T
    assert not wide_logits.is_contiguous()
    assert not wide_features.is_contiguous()
    kept = wide_logits.clone(), wide_features.clone()
    strided = one(sirc.Outputs(wide_logits, wide_features))[spec]
    torch.testing.assert_close(strided, plain, rtol=1e-12, atol=1e-12)
    assert torch.equal(wide_logits, kept[0])
    assert torch.equal(wide_features, kept[1])


@pytest.mark.parametrize("spec", EVERY)
def test_saturated_inputs_score_finite(spec, one):
    logits = torch.tensor([[1e4, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, -1e4], [1e30, -1e30, 0, 0, 0, 0]])
    features = torch.tensor([[0.0], [1e4], [-1e4]]).repeat(1, L)
    assert bool(one(sirc.Outputs(logits, features))[spec].isfinite().all())


@pytest.mark.parametrize("spec", EVERY)
def test_one_row_and_two_classes(spec):
    logits, features, labels, weight, bias = reference.model(80, 2, 8, seed=2)
    val = sirc.Outputs(logits, features, np.roll(labels, 1)) if spec in VALIDATED else None
    fitted = sirc.fit(spec, sirc.Outputs(logits, features, labels), head=sirc.Head(weight, bias), crossfit=0, val=val)
    conf = fitted(sirc.Outputs(logits[:1], features[:1]))[spec]
    assert conf.shape == (1,)
    assert bool(conf.isfinite().all())
    torch.testing.assert_close(conf, fitted(sirc.Outputs(logits, features))[spec][:1], rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("spec", EVERY)
def test_higher_means_accept(spec):
    """Features along their own class's direction against weak features of mixed directions and off-subspace noise."""
    rng = np.random.default_rng(5)
    classes, size, n = 8, 32, 600
    means = np.zeros((classes, size))
    for k in range(classes):  # each class switches on four of sixteen features, as many as a percentile of 90 clips
        means[k, (2 * k + np.arange(4)) % 16] = 7.0
    weight = means / 8
    labels = rng.integers(0, classes, n)
    scale = np.where(np.arange(size) < 16, 1.0, 0.3)
    features = means[labels] + rng.normal(size=(n, size)) * scale

    def typical_and_strange(n=50):
        typical = means[labels[:n]] + rng.normal(size=(n, size)) * scale
        # Ambiguous between two classes, weaker, and with a part where ID data have none.
        first = rng.integers(0, classes, n)
        strange = 0.2 * (means[first] + means[(first + rng.integers(2, classes - 1, n)) % classes])
        strange[:, 16:] += rng.normal(size=(n, 16))
        return typical, strange

    typical, strange = typical_and_strange()
    train, head, val = sirc.Outputs(features @ weight.T, features, labels), sirc.Head(weight, np.zeros(classes)), None
    if spec in VALIDATED:  # strange rows are wrong
        z = np.concatenate(typical_and_strange(300))
        right = (z @ weight.T).argmax(1)
        val = sirc.Outputs(z @ weight.T, z, np.where(np.arange(600) < 300, right, (right + 1) % classes))
    fitted = sirc.fit(spec, train, head=head, crossfit=0, val=val)
    good, bad = (fitted(sirc.Outputs(z @ weight.T, z))[spec] for z in (typical, strange))
    assert reference.auroc(good, bad) > 0.99


def test_sixteen_specs_read_the_logits_once_and_project_once(data, monkeypatch):
    logits, features, labels, weight, bias = data
    pairs = [f"sirc({s1}, {s2})" for s1 in ("msp", "doctor", "entropy") for s2 in ("l1", "residual")]
    specs = [*reference.LOGIT_SCORES, "l1", "residual", "gradnorm", "vim", "mahalanobis", *pairs]
    assert len(specs) == 16
    fitted = sirc.fit(specs, sirc.Outputs(logits, features, labels), head=sirc.Head(weight, bias), crossfit=0)
    calls = {}

    def counted(name, function):
        def wrapper(*args, **keywords):
            calls[name] = calls.get(name, 0) + 1
            return function(*args, **keywords)

        return wrapper

    monkeypatch.setattr(softmax_module, "row_sums", counted("row_sums", row_sums_module.row_sums))
    for name in LEAVES:
        score = registry.get(name)
        wrapped = registry.Score(**{**vars(score), "compute": counted(name, score.compute)})
        monkeypatch.setitem(registry._SCORES, name, wrapped)
    conf = fitted(sirc.Outputs(logits, features))
    assert list(conf) == specs
    assert calls.pop("row_sums") == 1
    assert calls.pop("residual") == 1
    assert calls.pop("mahalanobis") == 1
    assert calls.pop("l1") == 1
    assert "knn" not in calls
    assert all(count == 1 for count in calls.values()), calls


def test_logit_scores_do_not_touch_features_and_feature_scores_not_the_logits(data, monkeypatch):
    logits, features, labels, _, _ = data
    outputs = sirc.Outputs(logits, features, labels)
    monkeypatch.setattr(softmax_module, "row_sums", lambda *args, **keywords: pytest.fail("logits were read"))
    fitted = sirc.fit(["l1", "mahalanobis", "knn"], outputs)
    assert len(fitted(outputs)["knn"]) == N


@pytest.mark.slow
def test_knn_needs_little_memory_however_short_the_features(monkeypatch):
    sizes = []
    topk = torch.Tensor.topk

    def watched(self, *args, **keywords):
        sizes.append(self.numel())
        return topk(self, *args, **keywords)

    monkeypatch.setattr(torch.Tensor, "topk", watched)
    rng = np.random.default_rng(0)
    z = rng.normal(size=(20_000, 2)).astype(np.float32)
    outputs = sirc.Outputs(np.zeros((20_000, 2), dtype=np.float32), z)
    sirc.fit("knn", outputs[:5000])(outputs)
    assert sum(sizes) == 20_000 * 5000
    assert max(sizes) <= 1 << 25


def moderate(n=300, classes=7, seed=4):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, classes)) * 2, rng.normal(size=(n, 12)) + 1


S1_MAX = {"msp": 1.0, "doctor": 1.0, "entropy": 0.0}


@pytest.mark.parametrize("s1", S1_MAX)
@pytest.mark.parametrize(("a", "b"), [(10.0, 0.5), (15.0, 2.0), (-3.0, 1.0)])
def test_sirc_is_minus_log_of_minus_the_papers_c(s1, a, b):
    logits, features = moderate()
    spec = f"sirc({s1}, l1, a={a}, b={b})"
    got = sirc.Scorer(spec)(sirc.Outputs(logits, features))[spec].numpy()
    c = -(S1_MAX[s1] - getattr(reference, s1)(logits)) * (1 + np.exp(-b * (reference.l1(features) - a)))
    np.testing.assert_allclose(got, -np.log(-c), rtol=1e-10, atol=1e-10)
    assert (np.argsort(got) == np.argsort(c)).all()
    literal = functional.sirc_literal(getattr(functional, s1)(logits), functional.l1(features), a, b, S1_MAX[s1])
    np.testing.assert_allclose(literal, c, rtol=1e-9)


def test_sirc_of_several_s2_is_the_product_over_them():
    logits, features = moderate()
    spec = "sirc(msp, l1, energy, max_logit, a=(12, 4, 3), b=(0.3, 1, 2))"
    got = sirc.Scorer(spec)(sirc.Outputs(logits, features))[spec].numpy()
    others = reference.l1(features), reference.energy(logits), reference.max_logit(logits)
    c = -(1 - reference.msp(logits))
    for s2, a, b in zip(others, (12, 4, 3), (0.3, 1, 2), strict=True):
        c = c * (1 + np.exp(-b * (s2 - a)))
    np.testing.assert_allclose(got, -np.log(-c), rtol=1e-10)
    assert (np.argsort(got) == np.argsort(c)).all()


def test_sirc_does_not_overflow_where_the_paper_s_c_does():
    logits = np.array([[0.0, 0.0], [0.0, 0.0], [800.0, 0.0]])
    features = np.array([[1.0], [2.0], [2.0]])
    spec = "sirc(msp, l1, a=1e6, b=1.0)"
    got = sirc.Scorer(spec)(sirc.Outputs(logits, features))[spec]
    expected = [np.log(2) - (1e6 - 1), np.log(2) - (1e6 - 2), 800 - (1e6 - 2)]
    np.testing.assert_allclose(got, expected, rtol=1e-14)


@pytest.mark.parametrize("constant", [1e3, -50.0])
def test_a_constant_added_to_s2_changes_nothing(constant):
    """max_logit and max_logit + constant as S2, by adding the constant to all logits: S1 does not see it."""
    logits = np.random.default_rng(0).normal(size=(500, 5)) * 3
    spec = "sirc(msp, max_logit)"
    plain, shifted = sirc.Outputs(logits), sirc.Outputs(logits + constant)
    one, other = (sirc.fit(spec, outputs)(outputs)[spec] for outputs in (plain, shifted))
    torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


def test_a_scaled_s2_changes_nothing():
    logits, features = moderate()
    spec = "sirc(entropy, l1)"
    one, other = (sirc.fit(spec, out)(out)[spec] for out in (sirc.Outputs(logits, features * c) for c in (1, 64)))
    torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("s1", S1_MAX)
def test_an_infinite_s2_leaves_the_order_of_s1(s1):
    logits, features = moderate()
    spec = f"sirc({s1}, l1, a=0, b=1)"
    conf = sirc.Scorer([s1, spec])(sirc.Outputs(logits, features + 1e5))
    torch.testing.assert_close(conf[spec], conf[s1], rtol=1e-15, atol=0)


def test_a_low_s2_is_a_penalty_of_slope_b():
    features = np.arange(0, 50, 5.0)[:, None]
    spec = "sirc(msp, l1, a=1000, b=0.25)"
    conf = sirc.Scorer(spec)(sirc.Outputs(np.zeros((10, 2)), features))[spec]
    np.testing.assert_allclose(conf.diff(), 0.25 * 5.0, rtol=1e-12)


def test_the_penalty_is_exact_between_its_limits():
    features = np.linspace(0, 80, 161)[:, None]
    spec = "sirc(msp, l1, a=40, b=1)"
    conf = sirc.Scorer(spec)(sirc.Outputs(np.tile([[1.0, 0.0]], (161, 1)), features))[spec]
    x = 40 - features[:, 0]
    penalty = np.logaddexp(0, 1.0) - conf.numpy()
    np.testing.assert_allclose(penalty, np.logaddexp(0, x), rtol=1e-13, atol=1e-14)


def test_higher_s2_never_lowers_sirc():
    features = np.linspace(0, 100, 400)[:, None]
    spec = "sirc(msp, l1, a=30, b=2)"
    conf = sirc.Scorer(spec)(sirc.Outputs(np.tile([[3.0, 1.0]], (400, 1)), features))[spec]
    assert bool((conf.diff() >= 0).all())
    assert conf[-1] - conf[0] == pytest.approx(60, rel=1e-12)


def test_given_a_and_fitted_b_go_together():
    logits, features = moderate()
    outputs = sirc.Outputs(logits, features)
    specs = ["sirc(msp, l1)", "sirc(msp, l1, a=3)", "sirc(msp, l1, b=4)"]
    conf = sirc.fit(specs, outputs)(outputs)
    s2 = reference.l1(features)
    a, b = reference.spread(s2)
    gap = np.log(1 - reference.msp(logits))
    for spec, (center, slope) in zip(specs, [(a, b), (3, b), (a, 4)], strict=True):
        np.testing.assert_allclose(conf[spec], reference.sirc(gap, [s2], [center], [slope]), rtol=1e-9)


def test_vim_is_linear_of_energy_and_residual_with_its_c(data):
    logits, features, labels, weight, bias = data
    outputs, head = sirc.Outputs(logits, features, labels), sirc.Head(weight, bias)
    fitted = sirc.fit(["vim", "energy", "residual"], outputs, head=head, crossfit=0)
    c = fitted.parameters["vim"]["c"].item()
    u, projector = reference.fit_residual(features, weight, bias)
    norms = -reference.residual(features, u, projector)
    assert c == pytest.approx(reference.max_logit(logits).mean() / norms.mean(), rel=1e-10)
    conf = fitted(outputs)
    np.testing.assert_allclose(conf["vim"], reference.energy(logits) - c * norms, rtol=1e-10, atol=1e-9)
    torch.testing.assert_close(conf["vim"], conf["energy"] + c * conf["residual"], rtol=1e-14, atol=1e-13)
    spec = f"linear(energy, residual, c={c!r})"
    explicit = sirc.fit(["linear(energy, residual)", spec], outputs, head=head, crossfit=0)(outputs)
    assert torch.equal(explicit[spec], conf["vim"])
    assert torch.equal(explicit["linear(energy, residual)"], conf["vim"])


def test_a_registered_function_is_a_score_at_once(scratch_registry, tmp_path, data):
    @sirc.score(needs="logits")
    def toy_margin(logits, *, power: float = 1.0):
        """The distance between the two largest logits."""
        top = logits.topk(2, -1).values
        return (top[:, 0] - top[:, 1]) ** power

    logits, features, labels, _, _ = data
    outputs = sirc.Outputs(logits, features, labels)
    assert "toy_margin" in sirc.known_names()
    specs = ["toy_margin", "toy_margin(power=2)", "sirc(msp, toy_margin)", "linear(toy_margin, l1, c=0.5)"]
    fitted = sirc.fit(specs, outputs)
    conf = fitted(outputs)
    margin = np.array([np.sort(row)[-1] - np.sort(row)[-2] for row in logits])
    np.testing.assert_allclose(conf["toy_margin"], margin, rtol=1e-12)
    np.testing.assert_allclose(conf["toy_margin(power=2)"], margin**2, rtol=1e-12)
    np.testing.assert_allclose(conf[specs[3]], margin + 0.5 * reference.l1(features), rtol=1e-12)
    a, b = reference.spread(margin)
    expected = reference.sirc([reference.log_gaps(row)["msp"] for row in logits], [margin], [a], [b])
    np.testing.assert_allclose(conf["sirc(msp, toy_margin)"], expected, rtol=1e-9)
    fitted.save(tmp_path / "toy.safetensors")
    again = sirc.Scorer.load(tmp_path / "toy.safetensors")(outputs)
    assert all(torch.equal(again[spec], conf[spec]) for spec in specs)
    with pytest.raises(ValueError, match="`power` of `toy_margin` must be one number"):
        sirc.Scorer("toy_margin(power=(1, 2))")
    with pytest.raises(ValueError, match="Did you mean `toy_margin`"):
        sirc.Scorer("toy_margn")


def test_a_registered_score_may_be_fitted_and_bounded(scratch_registry, data):
    def solve(evidence):
        return {"center": evidence.moments.mean}

    @sirc.score(needs="features", solve=solve, evidence=("second",))
    def toy_distance(features, *, center):
        """Minus the distance to the mean."""
        return -(features - center).norm(dim=-1)

    @sirc.score(needs=("softmax", "toy_distance"), log_gap=lambda p, d: -p.top)
    def toy_bounded(p, d):
        """Bounded, in a way."""
        return p.top.tanh() + 0 * d

    logits, features, labels, _, _ = data
    outputs = sirc.Outputs(logits, features, labels)
    conf = sirc.fit(["toy_distance", "toy_bounded", "sirc(toy_bounded, l1, a=0, b=1)"], outputs)(outputs)
    expected = [-np.linalg.norm(row - features.mean(0)) for row in features]
    np.testing.assert_allclose(conf["toy_distance"], expected, rtol=1e-10)
    np.testing.assert_allclose(conf["toy_bounded"], reference.max_logit(logits), rtol=1e-12)


@pytest.mark.parametrize(
    ("keywords", "words"),
    [
        ({"needs": "pixels"}, "`needs` of score `toy` must be among logits, features, softmax, msp"),
        (
            {"needs": "logits", "evidence": ("third",)},
            "`evidence` of score `toy` must be among mean, second, by_class, unit",
        ),
        (
            {"needs": "logits", "solve": lambda evidence: {}},
            r"score `toy` has a `solve`, so it must take the fitted parameters after a `\*`, without a default",
        ),
    ],
)
def test_a_wrong_registration_says_why(scratch_registry, keywords, words):
    with pytest.raises(ValueError, match=words):

        @sirc.score(**keywords)
        def toy(x):
            """Nothing."""
            return x

    assert "toy" not in sirc.known_names()


def test_what_solve_finds_is_checked_when_a_score_is_decorated(scratch_registry):
    def fitted(features, *, mean):
        return -(features - mean).norm(dim=-1)

    with pytest.raises(ValueError, match="score `fitted` must have a `solve`, which finds `mean`"):
        sirc.score(needs="features")(fitted)
    with pytest.raises(ValueError, match="a score needs a name that a spec can hold; got '<lambda>'"):
        sirc.score(needs="features")(lambda features: features.sum(-1))
    sirc.score(needs="features", solve=lambda evidence: {"mean": evidence.moments.mean}, evidence="mean")(fitted)
    assert "fitted" in sirc.known_names()


@pytest.mark.parametrize("name", ["sirc", "linear", "product", "vim"])
def test_the_names_of_combinations_are_not_for_scores(scratch_registry, name):
    def taken(logits):
        return logits.amax(-1)

    taken.__name__ = name
    with pytest.raises(ValueError, match=f"`{name}` is a name of the grammar"):
        sirc.score(needs="logits")(taken)


def test_a_name_is_registered_once(scratch_registry):
    with pytest.raises(ValueError, match="a score named `msp` is registered already, by sirc"):

        @sirc.score(needs="logits")
        def msp(logits):
            """Another."""
            return logits[:, 0]


@pytest.mark.parametrize("name", LEAVES)
def test_every_score_says_what_it_is(name):
    assert len(registry.get(name).compute.__doc__.partition("\n")[0]) > 20
