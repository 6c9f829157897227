"""`both`: the smallest ID quantile of its parts on validation rows, against plain loops."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import sirc
from sirc.scores.id_quantiles import id_quantiles, least_quantile
from support import reference

SPECS = [
    "both(msp, l1)",
    "both(energy, l1, knn)",
    "both(sirc(msp, l1), both(knn, energy))",
    "both(bayes(msp, l1), vim)",
]


LOGITS, Z, Y, WEIGHT, BIAS = reference.model(1000, 5, 12, seed=3, noise=3.0)
TRAIN, VAL, TEST = (
    sirc.Outputs(LOGITS[some], Z[some], Y[some]) for some in (slice(500), slice(500, 800), slice(800, 1000))
)
HEAD = sirc.Head(WEIGHT, BIAS)


@pytest.fixture(scope="module")
def fitted():
    parts = ["msp", "l1", "energy", "knn", "vim", "sirc(msp, l1)", "bayes(msp, l1)", "both(knn, energy)"]
    return sirc.fit([*SPECS, *parts], TRAIN, head=HEAD, val=VAL, crossfit=0)


def excess(val):
    """How far the least tenth lies below the row after it, on average."""
    tail = math.ceil(len(val) / 10)
    found = np.mean([val[min(tail, len(val) - 1)] - x for x in val[:tail]])
    return found if found > 1e-12 * abs(val[0]) else abs(val[0]) or 1.0


def quantiles(points, val):
    """log(F/(1 − F)) of each point: linear between the values of some rows, by exponential tails outside."""
    val = sorted(float(v) for v in val)
    level = {}
    for v in set(val):
        below = sum(w < v for w in val) + sum(w == v for w in val) / 2
        level[v] = math.log(below / (len(val) - below))

    def quantile(x):
        if x < val[0]:
            return level[val[0]] - (val[0] - x) / excess(val)
        if x > val[-1]:
            return level[val[-1]] + (x - val[-1]) / excess([-v for v in reversed(val)])
        left, right = max(v for v in val if v <= x), min(v for v in val if v >= x)
        share = 0.0 if left == right else (x - left) / (right - left)
        return level[left] + share * (level[right] - level[left])

    return np.array([quantile(float(x)) for x in points])


@pytest.mark.parametrize(
    ("spec", "parts"),
    [
        (SPECS[0], ["msp", "l1"]),
        (SPECS[1], ["energy", "l1", "knn"]),
        (SPECS[2], ["sirc(msp, l1)", "both(knn, energy)"]),
        (SPECS[3], ["bayes(msp, l1)", "vim"]),
    ],
)
def test_it_is_the_smallest_quantile_of_its_parts(fitted, spec, parts):
    on_val = fitted(VAL)
    for found in (on_val, fitted(TEST)):
        expected = np.min([quantiles(found[part][::7], on_val[part]) for part in parts], axis=0)
        np.testing.assert_allclose(found[spec][::7], expected, rtol=1e-9, atol=1e-9)


def test_a_threshold_is_one_for_each_part(fitted):
    """Accepted are the rows that have at least a share p of the validation rows below them by every part."""
    on_val, on_test = fitted(VAL), fitted(TEST)
    found = [quantiles(on_test[part], on_val[part]) for part in ("msp", "l1")]
    for p in (0.05, 0.3, 0.9):
        limit = math.log(p / (1 - p))
        passed = (found[0] >= limit) & (found[1] >= limit)
        assert np.array_equal(on_test["both(msp, l1)"] >= limit, passed)
        assert 0 < passed.sum() < len(passed)


def test_labels_say_nothing(fitted):
    """Right rows and wrong ones are ID rows alike."""
    shuffled = sirc.Outputs(VAL.logits, VAL.features, VAL.labels.flip(0))
    again = sirc.fit(SPECS[0], TRAIN, val=shuffled)
    assert torch.equal(again(TEST)[SPECS[0]], fitted(TEST)[SPECS[0]])


def knots_of(values):
    return tuple(torch.tensor(x, dtype=torch.float64) for x in id_quantiles(values))


grids = st.integers(-4000, 4000).map(lambda x: x / 8)


@given(st.lists(grids, min_size=1, max_size=40), st.lists(grids, min_size=2, max_size=20, unique=True))
def test_rows_that_differ_never_tie_whatever_the_validation_rows(val, points):
    knots = knots_of(torch.tensor(val, dtype=torch.float64))
    assert all((x.diff() > 0).all() and x.isfinite().all() for x in knots)
    points = torch.tensor(sorted(points), dtype=torch.float64)
    found = least_quantile([points], [knots])
    assert found.isfinite().all()
    assert (found.diff() > 0).all()
    np.testing.assert_allclose(found, quantiles(points, val), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("value", [0.0, -5.0, 1e-300, 1e300])
def test_a_score_that_never_varies_has_finite_quantiles(value):
    knots = knots_of(torch.full((9,), value, dtype=torch.float64))
    away = max(abs(value), 1e-3)
    points = torch.tensor([value - away, value, value + away], dtype=torch.float64)
    found = least_quantile([points], [knots])
    assert found[0] < found[1] == 0 < found[2]
    assert found.isfinite().all()


def test_many_rows_are_kept_as_few_knots():
    """The outermost rows have knots of their own; in the middle a quantile is off by less than its sampling error."""
    make = torch.Generator().manual_seed(0)
    val = torch.randn(20_000, generator=make, dtype=torch.float64)
    scores, levels = knots = knots_of(val)
    assert len(scores) == len(levels) <= 1026
    assert set(val.sort().values[:20].tolist()) <= set(scores.tolist())
    exact = val.argsort().argsort().add(0.5) / len(val)
    found = least_quantile([val], [knots]).sigmoid()
    assert (found - exact).abs().max() < 0.3 / math.sqrt(len(val))


def test_confident_rows_do_not_tie():
    """Their plain values do: max π is 1 for all of them."""
    logits = torch.zeros(40, 3)
    logits[:, 0] = torch.arange(40) + 100.0
    rows = sirc.Outputs(logits, logits, torch.zeros(40, dtype=torch.int64))
    found = sirc.fit("both(msp, max_logit)", rows, val=rows)(rows)["both(msp, max_logit)"]
    assert (found.diff() > 0).all()


@pytest.mark.parametrize("kept", [slice(0, 1), slice(0, 2)])
def test_one_validation_row_is_enough(kept):
    found = sirc.fit(SPECS[:2], TRAIN, val=VAL[kept])(TEST)
    for spec in SPECS[:2]:
        assert found[spec].isfinite().all()
        assert len(found[spec].unique()) == len(TEST)


def test_it_learns_from_validation_rows_and_says_so(fitted, tmp_path):
    with pytest.raises(ValueError, match=r"`val` is needed for `both\(msp, l1\)`: labelled ID validation data"):
        sirc.fit("both(msp, l1)", TRAIN)
    with pytest.raises(sirc.NotFittedError, match=r"sirc.fit\(\['both\(msp, vim\)'\], train, head=head, val=val\)"):
        sirc.Scorer("both(msp, vim)")(TEST)
    scorer = sirc.fit("both(msp, energy)", TRAIN, val=VAL)
    assert scorer.seen(VAL) == 1
    assert scorer.seen(TRAIN) == 0
    assert fitted.only(SPECS[0]).seen(VAL) == 1
    fitted.save(tmp_path / "scorer")
    again = sirc.Scorer.load(tmp_path / "scorer")(TEST)
    assert all(torch.equal(again[spec], fitted(TEST)[spec]) for spec in SPECS)


def test_a_part_that_cannot_be_tuned_leaves_it_out():
    right = sirc.Outputs(VAL.logits, VAL.features, VAL.predictions)
    specs = ["msp", "both(msp, l1)", "both(sirc(msp, l1, budget=1), l1)"]
    with pytest.warns(sirc.errors.DataWarning, match=r"both\(sirc.*must hold right and wrong predictions"):
        scorer = sirc.fit(specs, TRAIN, val=right, on_unfit="skip")
    assert scorer.specs == ("msp", "both(msp, l1)")


@pytest.mark.parametrize("text", ["sirc(msp, both(msp, l1))", "bayes(msp, linear(l1, both(msp, l1), c=2))"])
def test_it_is_no_s2(text):
    with pytest.raises(ValueError, match=r"`both\(msp, l1\)` would have to be fitted before.*Leave it out"):
        sirc.Scorer(text)


def test_it_is_better_than_either_where_each_sees_other_negatives(fitted):
    """Wrong rows are told by MSP, and rows far off by the norm."""
    far = sirc.Outputs(TEST.logits * 3, TEST.features * 0.01)
    on_test, on_far = fitted(TEST), fitted(far)
    right = TEST.correct

    def worst(spec):
        positive = on_test[spec][right]
        return min(reference.auroc(positive, on_test[spec][~right]), reference.auroc(positive, on_far[spec]))

    assert worst("both(msp, l1)") > max(worst("msp"), worst("l1"))
