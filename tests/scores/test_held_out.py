"""Scores of training rows without themselves: the closed forms against refits without each row, at awkward points."""

import numpy as np
import pytest
import torch

import sirc
from sirc.scores import registry
from sirc.scores.blocks import unit, working_dtype
from sirc.scores.moments import Evidence, Moments
from support import reference, reference_features

K, L, N = 4, 8, 40


def rows(n=N, size=L, classes=K, seed=0):
    rng = np.random.default_rng(seed)
    y = np.arange(n) % classes
    return rng.normal(size=(n, size)) * np.linspace(0.2, 3, size) + rng.normal(size=(classes, size))[y] + 1, y


def changed(change):
    z, y = rows()
    change(z, y)
    return z, y


def dead(z, y):
    z[:, 2], z[:, 3], z[:, 4] = 0, 7, z[:, 5]
    z[:, 6] = np.arange(N) == 3  # known from one row alone


def one_row_class(z, y):
    y[7] = K


def of_unit_length(z, y):
    z /= np.linalg.norm(z, axis=1, keepdims=True)


def repeated(z, y):
    z[N // 2 :], y[N // 2 :] = z[: N // 2], y[: N // 2]


CASES = {
    "plain": rows(),
    "two classes": rows(classes=2),
    "one class": rows(classes=1),
    "fewer rows than features": rows(12, 20),
    "as many rows as directions": rows(L + K),
    "one row more": rows(L + K + 1),
    "three rows a class": rows(15, 40, 5),
    "one row in a class": changed(one_row_class),
    "dead features": changed(dead),
    "rows of unit length": changed(of_unit_length),
    "each row twice": changed(repeated),
    "an offset": (rows()[0] + 1e4, rows()[1]),
    "huge": (rows()[0] * 1e100, rows()[1]),
    "float32": (rows()[0].astype(np.float32), rows()[1]),
    "float16": (rows()[0].astype(np.float16), rows()[1]),
    "equal variances": (np.vstack([3 * np.eye(L), -3 * np.eye(L), np.eye(L)]), np.arange(3 * L) % 2),
    "rows at the origin": (np.vstack([np.zeros((3, L)), rows()[0]]), np.append([0, 1, 2], rows()[1])),
    "many rows": rows(20 * 3, 3),
}


def held_out(name, z, y, head=None, **options):
    z, y = torch.as_tensor(z), torch.as_tensor(y)
    classes = int(y.max()) + 1
    score = registry.get(name)
    moments = (Moments(classes=classes).update(x, y) for x in (z, unit(z.double())))
    evidence = Evidence(next(moments), None, head, 1e-11, next(moments))
    found = score.held_out(evidence, score.solve(evidence, **options), **options)
    return found(z.to(working_dtype(z.dtype)), y).numpy()


def refitted(score, z, y):
    """score(row, other rows, their labels) of each row."""
    z = np.asarray(z, dtype=np.float64)
    return np.array([score(z[i : i + 1], np.delete(z, i, 0), np.delete(y, i))[0] for i in range(len(z))])


def mahalanobis(row, z, y):
    return reference.mahalanobis(row, *reference.fit_mahalanobis(z, y, int(max(y)) + 1))


def relative(row, z, y):
    mean, total = reference_features.fit_background(z)
    return mahalanobis(row, z, y) + (row[0] - mean) @ total @ (row[0] - mean)


def pp(row, z, y):
    return mahalanobis(reference.unit(row), reference.unit(z), y)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(
    ("name", "score"), [("mahalanobis", mahalanobis), ("mahalanobis_pp", pp), ("relative_mahalanobis", relative)]
)
def test_distances_are_those_of_refits(name, score, case):
    z, y = CASES[case]
    expected = refitted(score, z, y)
    # A refit that nearly loses a direction has lost digits itself.
    rtol = 1e-6 if case in ("an offset", "one row more") else 1e-9
    np.testing.assert_allclose(held_out(name, z, y), expected, rtol=rtol, atol=1e-9 + rtol * np.abs(expected).max())


@pytest.mark.parametrize("case", CASES)
def test_residuals_are_those_of_refits(case):
    z, y = CASES[case]
    weight = np.random.default_rng(1).normal(size=(6, z.shape[1]))
    bias = None if case in ("huge", "rows at the origin", "equal variances") else np.ones(6)
    expected = refitted(lambda row, z, y: reference.residual(row, *reference.fit_residual(z, weight, bias)), z, y)
    rtol = {"an offset": 1e-6}.get(case, 1e-5 if z.dtype in (np.float16, np.float32) else 1e-8)
    got = held_out("residual", z, y, sirc.Head(weight, bias))
    np.testing.assert_allclose(got, expected, rtol=rtol, atol=rtol * np.abs(expected).max())


@pytest.mark.parametrize("variance", [0.99, 0.7])
@pytest.mark.parametrize("case", CASES)
def test_cop_is_that_of_refits_with_as_many_directions(case, variance):
    z, y = CASES[case]
    leading = z.shape[1] - round(np.trace(reference_features.fit_cop(z, variance)[1]))
    expected = refitted(
        lambda row, z, y: reference_features.cop(row, *reference_features.fit_cop(z, leading=leading)), z, y
    )
    rtol = 1e-4 if z.dtype in (np.float16, np.float32) else 1e-6
    got = held_out("cop", z, y, variance=variance)
    np.testing.assert_allclose(got, expected, rtol=rtol, atol=5 * rtol * np.abs(expected).max())


def test_very_few_rows_lie_outside_of_what_the_others_span():
    z = np.random.default_rng(0).normal(size=(2, 6))
    along = z[0] @ z[1]
    outside = [np.sqrt(z[i] @ z[i] - along**2 / (z[1 - i] @ z[1 - i])) for i in (0, 1)]
    head, labels = sirc.Head(np.eye(6)), np.zeros(2, dtype=int)
    np.testing.assert_allclose(held_out("residual", z, labels, head), -np.array(outside))
    np.testing.assert_allclose(held_out("residual", z[:1], labels[:1], head), -np.linalg.norm(z[:1], axis=1))


def test_float32_keeps_the_digits_that_a_row_alone_in_its_direction_needs():
    """Two of 400 rows, a class of their own, vary in a feature that all others have at 0."""
    z, y = np.random.default_rng(0).normal(size=(400, 4)).astype(np.float32), np.arange(400) % 3
    z[:, 3], y[:2] = 0, 3
    z[0, 3], z[1, 3] = 1, 2
    expected = [mahalanobis(z[i : i + 1], np.delete(z, i, 0), np.delete(y, i))[0] for i in (0, 1, 2)]
    np.testing.assert_allclose(held_out("mahalanobis", z, y)[:3], expected, rtol=1e-5)


def test_a_score_of_ones_own_may_have_its_own_formula():
    """Without one its statistics are found by folds."""
    logits, z, y, *_ = reference.model(60, K, L, seed=0)
    train = sirc.Outputs(logits, z, y)
    distance = np.linalg.norm(z - z.mean(0), axis=1)
    others = [np.linalg.norm(z[i] - np.delete(z, i, 0).mean(0)) for i in range(60)]

    def solve(evidence):
        return {"center": evidence.moments.mean, "count": torch.tensor(evidence.moments.count)}

    def without(evidence, found):
        k = int(found["count"]) / (int(found["count"]) - 1)
        return lambda features, labels: -k * (features - found["center"]).norm(dim=-1)

    def nearness(features, *, center):
        """Minus the distance to the mean."""
        return -(features - center).norm(dim=-1)

    before = dict(registry._SCORES)
    try:
        registry.score(needs="features", solve=solve, evidence=("mean",), held_out=without)(nearness)
        fitted = sirc.fit(["nearness", "sirc(msp, nearness)"], train)
        found = fitted.parameters["sirc(msp, nearness)"]
        np.testing.assert_allclose([*found["a"], *found["b"]], reference.spread(-np.array(others)))
        assert set(fitted.parameters["nearness"]) == {"center"}
        np.testing.assert_allclose(fitted(train)["nearness"], -distance)
        with pytest.raises(ValueError, match="`held_out` of score `nearness` is called as"):
            registry.score(needs="features", solve=solve, evidence=("mean",), held_out=solve)(nearness)
    finally:
        registry._SCORES.clear()
        registry._SCORES.update(before)
