"""The later feature-side scores: their formulas, folds, graphs and limits, against plain NumPy loops."""

from functools import cache

import numpy as np
import pytest
import torch

import sirc
from sirc import functional
from sirc.deploy.confidence_graph import ConfidenceGraph
from sirc.scores import blocks, parse, registry
from sirc.scores.formulas import shaping
from sirc.scores.formulas.boundary import inverse_distances
from sirc.scores.moments import fold_of
from support import reference, reference_features

K, L, N = 6, 10, 300
NAMES = [
    "mahalanobis_pp",
    "relative_mahalanobis",
    "react",
    "scale",
    "ash",
    "nci",
    "fdbd",
    "cop",
    "nnguide",
]
HEADED = ("react", "scale", "ash", "nci", "fdbd", "nnguide")


def fresh(weight, bias, n=50, seed=9):
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(n, weight.shape[1])) * 2
    return features @ weight.T + (0 if bias is None else bias), features


def fit(specs, data, **options):
    logits, z, y, weight, bias = data
    return sirc.fit(specs, sirc.Outputs(logits, z, y), head=sirc.Head(weight, bias), **options)


@pytest.fixture(scope="module")
def data():
    return reference.model(N, K, L, seed=1)


@pytest.fixture(scope="module")
def scorer(data):
    return fit(NAMES, data, crossfit=0)


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize(("classes", "size"), [(6, 10), (2, 7), (11, 4)])
def test_each_score_is_its_formula(classes, size, bias):
    data = reference.model(N, classes, size, seed=3, bias=bias)
    rows = fresh(*data[3:])
    conf = fit(NAMES, data, crossfit=0)(sirc.Outputs(*rows))
    for name, expected in reference_features.values(data, rows).items():
        np.testing.assert_allclose(conf[name], expected, rtol=1e-10, atol=1e-11, err_msg=name)


def test_options_reach_the_formula(data):
    _, z, _, weight, bias = data
    logits, features = rows = fresh(weight, bias)
    expected = {
        "react(percentile=75)": reference_features.react(features, weight, bias, np.percentile(z, 75)),
        "react(percentile=100)": reference_features.react(features, weight, bias, z.max()),
        "scale(percentile=42)": reference_features.scale(logits, features, bias, 42),
        "scale(percentile=0)": reference_features.scale(logits, features, bias, 0),
        "ash(percentile=65)": reference_features.ash(features, weight, bias, 65),
        "ash(percentile=99)": reference_features.ash(features, weight, bias, 99),
        "nci(scale=0.25)": reference_features.nci(logits, features, weight, z.mean(0), 0.25),
        "cop(variance=0.6)": reference_features.cop(features, *reference_features.fit_cop(z, 0.6)),
        "nnguide(k=3)": reference_features.nnguide(logits, features, z, weight, bias, k=3),
        "nnguide(k=3, skip=1)": reference_features.nnguide(logits, features, z, weight, bias, k=3, skip=1),
        "knn(k=4)": reference.knn(features, z, k=4),
    }
    conf = fit(list(expected), data)(sirc.Outputs(*rows))
    for spec, values in expected.items():
        np.testing.assert_allclose(conf[spec], values, rtol=1e-10, atol=1e-11, err_msg=spec)


def test_folds_are_scored_with_parameters_of_the_others(data):
    _, z, _, weight, bias = data
    spec = "sirc(msp, react)"
    fitted = fit(spec, data, crossfit=5)
    fold = fold_of(torch.arange(N), 5).numpy()
    values = np.empty(N)
    for f in range(5):
        here, rest = fold == f, fold != f
        values[here] = reference_features.react(z[here], weight, bias, np.percentile(z[rest], 90))
    a, b = reference.spread(values)
    np.testing.assert_allclose(fitted.parameters[spec]["a"], a, rtol=1e-9)
    np.testing.assert_allclose(fitted.parameters[spec]["b"], b, rtol=1e-9)


def test_nnguide_in_sample_leaves_each_row_out_of_its_own_search(data):
    logits, z, _, weight, bias = data
    spec = "sirc(msp, nnguide)"
    fitted = fit(spec, data, crossfit=0)
    a, b = reference.spread(reference_features.nnguide(logits, z, z, weight, bias, skip=1))
    np.testing.assert_allclose(fitted.parameters[spec]["a"], a, rtol=1e-9)
    np.testing.assert_allclose(fitted.parameters[spec]["b"], b, rtol=1e-9)


class Together(torch.nn.Module):
    """All graphs in one, so that they are exported once."""

    def __init__(self, graphs):
        super().__init__()
        self.graphs = torch.nn.ModuleList(graphs)

    def forward(self, logits, features):
        return torch.stack([graph(logits, features) for graph in self.graphs], -1)


@pytest.fixture(scope="module")
def exported(data, scorer):
    """Rows of a type, and the graphs of all scores for it."""

    @cache
    def give(dtype):
        logits, features = (torch.as_tensor(x).to(dtype) for x in fresh(*data[3:]))
        together = Together([ConfidenceGraph(scorer, name, dtype) for name in NAMES]).eval()
        rows = torch.export.Dim("rows", min=1)
        shapes = {"logits": {0: rows}, "features": {0: rows}}
        return logits, features, torch.export.export(together, (logits[:4], features[:4]), dynamic_shapes=shapes)

    return give


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_graph_is_for_any_batch_and_scores_as_the_scorer_does(dtype, scorer, exported):
    logits, features, program = exported(dtype)
    graph, whole = program.module(), scorer(sirc.Outputs(logits, features))
    rtol = 1e-11 if dtype == torch.float64 else 1e-5
    for rows in (slice(0, 1), slice(3, 5), slice(0, 50)):
        found, alone = graph(logits[rows], features[rows]), scorer(sirc.Outputs(logits[rows], features[rows]))
        assert found.dtype == torch.float64
        for got, (name, values) in zip(found.unbind(-1), whole.items(), strict=True):
            tolerances = {"rtol": rtol, "atol": rtol * float(values.abs().mean())}
            torch.testing.assert_close(got, values[rows], **tolerances)
            torch.testing.assert_close(alone[name], values[rows], **tolerances)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the exporter, about itself
def test_onnx_scores_as_the_scorer_does(scorer, exported, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    logits, features, traced = exported(torch.float32)
    program = torch.onnx.export(traced, dynamo=True, input_names=["v", "z"], verbose=False)
    program.save(tmp_path / "all.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "all.onnx")
    expected = scorer(sirc.Outputs(logits, features))
    for n in (1, 2, 50):
        got = session.run(None, {"v": logits[:n].numpy(), "z": features[:n].numpy()})[0]
        for column, name in enumerate(NAMES):
            scale = float(expected[name].abs().mean())
            np.testing.assert_allclose(got[:, column], expected[name][:n], rtol=1e-5, atol=1e-5 * scale, err_msg=name)


def test_tables_stay_small_whatever_the_number_of_rows(monkeypatch):
    largest = {}

    def watched(name):
        function = getattr(torch.Tensor, name)

        def run(self, *args, **keywords):
            largest[name] = max(largest.get(name, 0), self.numel())
            return function(self, *args, **keywords)

        return run

    rng = np.random.default_rng(0)
    wide = rng.normal(size=(300, 3))
    features = rng.normal(size=(2000, 3))
    logits = features @ wide.T
    whole = {}
    for limit in (1 << 25, 60_000):
        largest.clear()
        monkeypatch.setattr(blocks, "_PRODUCT", limit)
        monkeypatch.setitem(blocks._BLOCK, "cpu", limit)
        with monkeypatch.context() as patch:
            for name in ("logsumexp", "topk"):
                patch.setattr(torch.Tensor, name, watched(name))
            found = {
                "react": functional.react(features, wide, None, 0.5),
                "scale": functional.scale(logits, features, None),
                "ash": functional.ash(features, wide, None),
                "fdbd": functional.fdbd(logits, features, wide, np.zeros(3)),
                "nnguide": functional.nnguide(logits, features, features[:400], wide),
            }
        whole = whole or found
    for name, values in found.items():
        torch.testing.assert_close(values, whole[name], rtol=1e-12, atol=1e-12)
    assert max(largest.values()) <= 60_000


def test_scaling_a_row_changes_no_score_of_its_direction(data, scorer):
    logits, features = fresh(*data[3:])
    one, other = (scorer(sirc.Outputs(logits, features * c)) for c in (1.0, 1e4))
    for name in ("mahalanobis_pp", "cop", "nnguide"):
        torch.testing.assert_close(one[name], other[name], rtol=1e-10, atol=1e-10)


def test_relative_mahalanobis_does_not_depend_on_the_coordinates(data):
    logits, z, y, weight, bias = data
    rng = np.random.default_rng(2)
    turn, shift = rng.normal(size=(L, L)), rng.normal(size=L) * 5
    rows = fresh(weight, bias)[1]
    conf = []
    for map_ in (lambda x: x, lambda x: x @ turn + shift):
        fitted = sirc.fit("relative_mahalanobis", sirc.Outputs(logits, map_(z), y))
        conf.append(fitted(sirc.Outputs(logits[:50], map_(rows)))["relative_mahalanobis"])
    torch.testing.assert_close(*conf, rtol=1e-7, atol=1e-7)


def test_relative_mahalanobis_ignores_what_no_class_explains():
    """A direction that varies alike within and between rows of all classes says nothing about the class."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 5000)
    z = np.column_stack([y * 10.0 + rng.normal(size=5000), rng.normal(size=5000) * 4])
    fitted = sirc.fit(["mahalanobis", "relative_mahalanobis"], sirc.Outputs(np.zeros((5000, 3)), z, y))
    conf = fitted(sirc.Outputs(np.zeros((2, 3)), np.array([[10.0, 0.0], [10.0, 80.0]])))
    assert float(conf["mahalanobis"].diff()) == pytest.approx(-400, rel=0.1)
    assert abs(float(conf["relative_mahalanobis"].diff())) < 4


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("n", [1, 2, 10, 999])
def test_the_pooled_percentile_is_numpys(dtype, n):
    values = torch.randn(n, 3, generator=torch.Generator().manual_seed(n)).to(dtype)
    for percentile in (0, 0.1, 33, 50, 90, 99.9, 100):
        expected = np.percentile(values.double().numpy(), percentile)
        assert float(shaping.pooled_percentile(values, percentile)) == pytest.approx(expected, rel=1e-12, abs=1e-14)


@pytest.mark.slow
def test_the_pooled_percentile_takes_more_values_than_a_quantile_of_torch():
    values = torch.arange((1 << 24) + 9, dtype=torch.float64).flip(0)
    assert float(shaping.pooled_percentile(values, 90)) == pytest.approx(0.9 * (len(values) - 1), rel=1e-15)


def published(z, percentile):
    """Which features the authors of ASH and SCALE keep: the first of the sorted ones, and so one of equal ones."""
    count = len(z) - int(np.round(len(z) * percentile / 100.0))
    chosen = np.argsort(-z, kind="stable")[:count]
    kept = np.zeros(len(z))
    kept[chosen] = z[chosen]
    return kept


def test_after_a_relu_scale_and_ash_are_the_published_ones():
    rng = np.random.default_rng(0)
    z = np.maximum(rng.normal(size=(40, 200)), 0)
    weight, bias = rng.normal(size=(5, 200)) / 10, rng.normal(size=5)
    logits = z @ weight.T + bias
    pruned = [published(row, 90) for row in z]
    expected = [weight @ row * np.exp(full.sum() / row.sum()) + bias for row, full in zip(pruned, z, strict=True)]
    np.testing.assert_allclose(functional.ash(z, weight, bias), reference.energy(expected), rtol=1e-12)
    expected = [weight @ (row * np.exp(row.sum() / published(row, 85).sum())) + bias for row in z]
    np.testing.assert_allclose(functional.scale(logits, z, bias), reference.energy(expected), rtol=1e-12)


def test_rows_without_a_positive_feature_are_scaled_by_e():
    z = np.array([[0.0, 0, 0, 0], [-1, -2, -3, -4]])
    weight, bias = np.eye(4)[:3], np.array([0.5, 0.0, -0.5])
    got = functional.scale(z @ weight.T + bias, z, bias)
    np.testing.assert_allclose(got, reference.energy(np.e * z @ weight.T + bias), rtol=1e-14)
    largest = np.array([[0.0, 0, 0, 0], [-1, 0, 0, 0]])
    np.testing.assert_allclose(
        functional.ash(z, weight, bias), reference.energy(np.e * largest @ weight.T + bias), rtol=1e-14
    )


def test_equal_features_are_kept_together():
    z = np.array([[3.0, 3, 1, 0, 0, 0, 0, 0, 0, 0]])
    weight = np.eye(10)[:2]
    np.testing.assert_allclose(
        functional.ash(z, weight, None, percentile=90), reference.energy([[3 * np.exp(7 / 6)] * 2]), rtol=1e-14
    )
    swapped = z[:, ::-1].copy()
    assert torch.equal(functional.ash(z, weight, None), functional.ash(swapped, weight[:, ::-1].copy(), None))


def test_the_strongest_scaling_stays_finite():
    z = torch.full((1, 4096), 60_000.0).half()
    z[0, 0] = 61_000
    logits = torch.tensor([[6e4, -6e4]]).half()
    weight = torch.ones(2, 4096)
    assert bool(functional.scale(logits, z, None, percentile=99).isfinite().all())
    assert bool(functional.ash(z, weight, None, percentile=99).isfinite().all())


def test_only_scale_and_ash_are_unsuited_for_transformers():
    assert [name for name in NAMES if "transformers" in registry.get(name).unsuited_for] == ["scale", "ash"]


@pytest.mark.parametrize("offset", [0.0, 1e6, -1e9])
def test_fdbd_loses_no_digits_to_a_constant_in_the_logits(offset):
    rng = np.random.default_rng(0)
    gaps = np.round(rng.normal(size=(40, K)) * 1024) / 1024  # exact beside the offset
    features, weight = rng.normal(size=(40, L)), rng.normal(size=(K, L))
    expected = reference_features.fdbd(gaps, features, weight, np.ones(L))
    got = functional.fdbd(gaps + offset, features, weight, np.ones(L))
    np.testing.assert_allclose(got, expected, rtol=1e-13)


def test_classes_of_equal_weights_have_no_boundary():
    weight = np.array([[1.0, 0], [1, 0], [0, 2], [-3, 0]])
    logits = np.array([[5.0, 4, 3, 1], [1, 2, 7, 3]])
    z = np.array([[3.0, 4], [0, 2]])
    got = functional.fdbd(logits, z, weight, np.zeros(2))
    expected = [(2 / np.sqrt(5) + 4 / 4) / 2 / 5, (6 / np.sqrt(5) + 5 / np.sqrt(5) + 4 / np.sqrt(13)) / 3 / 2]
    np.testing.assert_allclose(got, expected, rtol=1e-14)
    alone = functional.fdbd(logits[:, :2], z, weight[:2], np.zeros(2))
    assert alone.tolist() == [0, 0]


@pytest.mark.parametrize("step", [1.0, 1e-3, 1e-8, 1e-13])
def test_near_weights_keep_the_digits_of_their_distance(step):
    rng = np.random.default_rng(0)
    weight = rng.normal(size=(8, 5)) + 3
    weight[4:6] = weight[:2] + step * rng.normal(size=(2, 5))
    weight[6] = weight[2]
    got = inverse_distances(torch.as_tensor(weight))
    apart = np.linalg.norm(weight[:, None] - weight, axis=-1)
    inverse = np.divide(1, apart, where=apart > 0, out=np.zeros_like(apart))
    np.testing.assert_allclose(got, inverse / (apart > 0).sum(1, keepdims=True), rtol=1e-12, atol=0)


def test_two_classes_of_fdbd_are_the_distance_to_one_plane():
    weight, bias = np.array([[1.0, 2], [3, -1]]), np.array([0.5, 0.0])
    z, mean = np.array([[4.0, 1], [-2, 5]]), np.array([1.0, 1])
    normal = weight[0] - weight[1]
    plane = np.abs(z @ normal + 0.5) / np.linalg.norm(normal)
    got = functional.fdbd(z @ weight.T + bias, z, weight, mean)
    np.testing.assert_allclose(got, plane / np.linalg.norm(z - mean, axis=1), rtol=1e-14)


def test_a_feature_that_is_the_centre_scores_finite():
    rng = np.random.default_rng(0)
    mean, weight = rng.normal(size=L), rng.normal(size=(K, L))
    logits = np.array([[1e30, 0, 0, 0, 0, 0]])
    assert functional.nci(logits, mean[None], weight, mean).item() == pytest.approx(1e-4 * np.abs(mean).sum())
    assert bool(functional.fdbd(logits, mean[None], weight, mean).isfinite().all())


def test_cop_leaves_one_direction_out_where_all_are_needed():
    data = reference.model(N, 3, 4, seed=0)
    for variance in (0.9999999, 1.0):
        assert fit(f"cop(variance={variance})", data).parameters[f"cop(variance={variance})"]["outside"].shape == (1, 4)
    assert fit("cop(variance=0)", data).parameters["cop(variance=0.0)"]["outside"].shape == (3, 4)


def test_cop_is_zero_for_features_that_never_leave_a_plane():
    rng = np.random.default_rng(0)
    z = rng.normal(size=(200, 2)) @ rng.normal(size=(2, 9))
    outputs = sirc.Outputs(z[:, :2], z)
    fitted = sirc.fit("cop(variance=1)", outputs)
    assert fitted.parameters["cop(variance=1.0)"]["outside"].shape[1] == 9
    assert float(fitted(outputs)["cop(variance=1)"].abs().max()) < 1e-6
    with pytest.raises(ValueError, match="does not vary over the training rows by more than rounding"):
        sirc.fit("sirc(msp, cop(variance=0.9999999))", outputs, crossfit=0)


def one_direction():
    z = np.arange(1, 61)[:, None] * np.ones((1, 4))
    return z, z, np.arange(60) % 4, np.eye(4), np.zeros(4)


def constant_in_classes():
    y = np.arange(60) % 4
    return np.eye(4)[y], np.eye(4)[y], y, np.eye(4), np.zeros(4)


def mostly_zero():
    z = np.zeros((60, 20))
    z[:, 0] = np.arange(60)
    return z[:, :4], z, np.arange(60) % 4, np.eye(4, 20), np.zeros(4)


def one_head():
    _, z, y, weight, bias = reference.model(60, 4, 5, seed=0)
    return z @ np.ones_like(weight).T + bias, z, y, np.ones_like(weight), bias


def thin():
    z = np.linspace(-1, 1, 60)[:, None]
    return z * np.ones((1, 4)), z, np.arange(60) % 4, np.ones((4, 1)), np.zeros(4)


@pytest.mark.parametrize(
    ("spec", "make", "words"),
    [
        ("mahalanobis_pp", constant_in_classes, "`mahalanobis_pp` needs features that vary within classes"),
        ("relative_mahalanobis", constant_in_classes, "`relative_mahalanobis` needs features that vary within classes"),
        ("react", mostly_zero, r"at 90 it is 0, the least of all.*Choose a higher one: `react\(percentile=99\)`"),
        ("cop", thin, "`cop` needs at least two features.*; got L = 1"),
        ("cop", one_direction, "rows of different directions.*; got rows that all point in one direction"),
        ("fdbd", one_head, "`fdbd` .* needs a head whose rows differ; all 4 rows of its weight are equal"),
        ("nnguide(k=61)", one_direction, r"`nnguide\(k=61\)` needs at least 61 training rows to search; got 60"),
        (
            "nnguide(k=12501)",
            one_direction,
            "got 60. Choose a smaller k, or fit on more rows; no more than 12500 are searched",
        ),
        ("knn(k=61)", one_direction, "61 training rows to search; got 60. Choose a smaller k, or fit on more rows"),
        (
            "knn(k=12501)",
            one_direction,
            "got 60. Choose a smaller k, or fit on more rows; no more than 12500 are searched",
        ),
        (
            "nnguide(k=60, skip=1)",
            one_direction,
            r"skip=1\)` needs at least 61 training rows .* got 60",
        ),
    ],
)
def test_data_that_cannot_give_a_parameter_are_told_the_rule(spec, make, words):
    with pytest.raises(ValueError, match=words):
        fit(spec, make(), crossfit=0)


@pytest.mark.parametrize("name", HEADED)
def test_scores_through_the_head_ask_for_it(name, data):
    with pytest.raises(ValueError, match=f"`head` is needed for `{name}`"):
        sirc.fit(name, sirc.Outputs(*data[:3]))


@pytest.mark.parametrize("name", ["mahalanobis_pp", "relative_mahalanobis"])
def test_scores_of_classes_ask_for_labels(name, data):
    with pytest.raises(ValueError, match=f"labels are needed to fit `{name}`"):
        sirc.fit(name, sirc.Outputs(*data[:2]))


@pytest.mark.parametrize(
    "spec",
    ["react(percentile=101)", "scale(percentile=100)", "ash(percentile=-1)", "cop(variance=1.5)", "nci(scale=-1)"],
)
def test_options_have_limits(spec):
    name, _, option = spec.partition("(")
    with pytest.raises(ValueError, match=f"`{option.partition('=')[0]}` of `{name}` must be a number"):
        parse(spec)


@pytest.mark.parametrize("skip", ["2", "-1", "0.5"])
def test_nnguide_skips_itself_or_nothing(skip):
    with pytest.raises(ValueError, match="`skip` of `nnguide` must be a whole number from 0 to 1"):
        parse(f"nnguide(skip={skip})")


def test_a_saved_scorer_gives_the_same_confidences(data, scorer, tmp_path):
    outputs = sirc.Outputs(*fresh(*data[3:]))
    scorer.save(tmp_path / "scorer.safetensors")
    again = sirc.Scorer.load(tmp_path / "scorer.safetensors")(outputs)
    for name, values in scorer(outputs).items():
        assert torch.equal(again[name], values), name


@pytest.mark.parametrize("axis", [0, 1])
def test_the_halves_of_a_matrix_keep_22_bits_of_its_largest(axis):
    from sirc.scores.products import _halves

    x = torch.randn(40, 30, generator=torch.Generator().manual_seed(0)) * torch.logspace(-30, 30, 30)
    x[:, 3], x[4] = 0, 0
    both, scale = _halves(x, axis)
    head, tail = both.double().chunk(2, axis)
    largest = x.abs().amax(axis, keepdim=True).double()
    error = ((head + tail) * scale - x).abs()
    assert bool((error <= (x.abs() * 2.0**-22).clamp_min(largest * 2.0**-35)).all())
    assert torch.equal(scale.log2(), scale.log2().round())
