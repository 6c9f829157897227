"""Streaming moments and the reservoir: equal to NumPy's on all rows at once, however the rows are split."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from sirc.scores.moments import Moments, Reservoir, fold_of, row_hash
from support.examples import examples


def rows_of(n=500, size=7, classes=4, seed=0, offset=0.0):
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(n, size)) @ rng.normal(size=(size, size)) + offset
    return z, rng.integers(0, classes, n)


def numpy_within(z, y):
    total = np.zeros((z.shape[1],) * 2)
    for k in np.unique(y):
        centred = z[y == k] - z[y == k].mean(0)
        total += centred.T @ centred
    return total / len(z)


def test_moments_are_numpy_s():
    z, y = rows_of()
    m = Moments(classes=4).update(torch.as_tensor(z), torch.as_tensor(y))
    assert m.count == 500
    np.testing.assert_allclose(m.mean, z.mean(0), rtol=1e-12)
    np.testing.assert_allclose(m.covariance, np.cov(z.T, bias=True), rtol=1e-11, atol=1e-13)
    np.testing.assert_allclose(m.class_count, np.bincount(y))
    np.testing.assert_allclose(m.class_mean, [z[y == k].mean(0) for k in range(4)], rtol=1e-11)
    np.testing.assert_allclose(m.within_class_covariance, numpy_within(z, y), rtol=1e-10, atol=1e-12)
    u = np.arange(7.0)
    np.testing.assert_allclose(m.second_moment(torch.as_tensor(u)), (z - u).T @ (z - u) / 500, rtol=1e-11)


@pytest.mark.parametrize("classes", [None, 4])
@pytest.mark.parametrize("second", [False, True])
def test_saved_moments_load_as_they_were(second, classes):
    z, y = (torch.as_tensor(x) for x in rows_of())
    m = Moments(second=second, classes=classes).update(z, y)
    saved = m.save()
    assert set(saved) == {"count", "mean"} | ({"scatter"} if second else set()) | (
        {"class_count", "class_sum"} if classes else set()
    )
    again = Moments(second=second, classes=classes).load(saved)
    for one in (again, Moments(second=second, classes=classes).merge(again)):
        assert one.count == 500
        assert torch.equal(one.mean, m.mean)
        assert not second or torch.equal(one.covariance, m.covariance)
        assert not classes or torch.equal(one.class_mean, m.class_mean)
    nothing = Moments().load(Moments().save())
    assert nothing.count == 0
    assert nothing.merge(m if second and not classes else Moments().update(z)).count == 500


def test_reading_a_moment_does_not_change_it():
    z, y = rows_of()
    m = Moments(classes=4).update(torch.as_tensor(z), torch.as_tensor(y))
    first = m.covariance.clone()
    m.second_moment(torch.ones(7))
    _ = m.within_class_covariance
    assert torch.equal(m.covariance, first)
    assert torch.equal(m.covariance, m.covariance.T)


def test_more_columns_than_a_block_and_more_rows_than_a_block(monkeypatch):
    monkeypatch.setattr("sirc.moments._ROWS", 100)
    monkeypatch.setattr("sirc._utils.arrays._COLUMNS", 3)
    z, _ = rows_of(n=1001, size=8)
    m = Moments().update(torch.as_tensor(z))
    np.testing.assert_allclose(m.covariance, np.cov(z.T, bias=True), rtol=1e-11, atol=1e-13)


@examples(40)
@given(cuts=st.lists(st.integers(0, 120), max_size=6), order=st.randoms(use_true_random=False))
def test_any_split_merged_in_any_order_is_all_at_once(cuts, order):
    z, y = rows_of(n=120, offset=3.0)
    edges = [0, *sorted(cuts), 120]
    parts = [
        Moments(classes=4).update(torch.as_tensor(z[i:j]), torch.as_tensor(y[i:j]))
        for i, j in itertools.pairwise(edges)
    ]
    order.shuffle(parts)
    merged = Moments(classes=4)
    for part in parts:
        merged.merge(part)
    assert merged.count == 120
    np.testing.assert_allclose(merged.mean, z.mean(0), rtol=1e-9)
    np.testing.assert_allclose(merged.covariance, np.cov(z.T, bias=True), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(merged.within_class_covariance, numpy_within(z, y), rtol=1e-9, atol=1e-11)


def test_merging_leaves_the_other_alone():
    z, _ = rows_of()
    a, b = Moments(), Moments().update(torch.as_tensor(z[:50]))
    before = b.covariance.clone()
    a.merge(b).update(torch.as_tensor(z[50:]))
    assert b.count == 50
    assert torch.equal(b.covariance, before)
    np.testing.assert_allclose(a.covariance, np.cov(z.T, bias=True), rtol=1e-10, atol=1e-12)


def test_a_large_offset_costs_no_digits():
    z, y = rows_of(n=2000)
    shifted = z + 1e6
    exact = shifted - 1e6  # what float64 could keep of the rows at all
    m = Moments(classes=4)
    for i in range(0, 2000, 130):
        m.update(torch.as_tensor(shifted[i : i + 130]), torch.as_tensor(y[i : i + 130]))
    np.testing.assert_allclose(m.covariance, np.cov(exact.T, bias=True), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(m.within_class_covariance, numpy_within(exact, y), rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_narrow_rows_are_summed_in_float64(dtype):
    z = torch.as_tensor(rows_of()[0]).to(dtype)
    m = Moments().update(z)
    assert m.covariance.dtype == torch.float64
    np.testing.assert_allclose(m.covariance, np.cov(z.double().numpy().T, bias=True), rtol=1e-11, atol=1e-13)


def test_one_row_and_no_row():
    m = Moments(classes=2).update(torch.tensor([[1.0, 2.0]]), torch.tensor([1]))
    assert m.mean.tolist() == [1.0, 2.0]
    assert m.covariance.abs().max() == 0
    assert m.class_mean.isnan().all(1).tolist() == [True, False]
    assert m.update(torch.empty(0, 2), torch.empty(0, dtype=torch.int64)).count == 1
    assert m.merge(Moments(classes=2)).count == 1


def test_update_does_not_touch_its_rows():
    z = torch.as_tensor(rows_of()[0])
    kept = z.clone()
    Moments().update(z)
    assert torch.equal(z, kept)


def test_moments_say_what_is_wrong():
    m = Moments(classes=3)
    with pytest.raises(ValueError, match=r"`rows` must have shape \(n, L\) with n ≥ 0, L ≥ 1; got \(3,\)"):
        m.update(torch.zeros(3), torch.zeros(3))
    with pytest.raises(ValueError, match="`labels` must give the class of each of the 3 rows; got none"):
        m.update(torch.zeros(3, 2))
    with pytest.raises(ValueError, match="of each of the 3 rows; got 2"):
        m.update(torch.zeros(3, 2), torch.zeros(2, dtype=torch.int64))
    with pytest.raises(ValueError, match="no rows were read yet"):
        _ = Moments().mean
    with pytest.raises(ValueError, match="second moments were not kept"):
        _ = Moments(second=False).update(torch.zeros(3, 2)).covariance
    with pytest.raises(ValueError, match="per-class moments were not kept"):
        _ = Moments().update(torch.zeros(3, 2)).class_mean
    with pytest.raises(ValueError, match="moments merge when they keep the same things"):
        Moments().merge(Moments(classes=2))
    with pytest.raises(ValueError, match="moments of 2 and of 3 columns cannot merge"):
        Moments().update(torch.zeros(1, 2)).merge(Moments().update(torch.zeros(1, 3)))
    with pytest.raises(ValueError, match="must have the 2 columns of earlier ones; got 3"):
        Moments().update(torch.zeros(1, 2)).update(torch.zeros(1, 3))


def splitmix(index, seed):
    """splitmix64 in Python integers."""
    mask = (1 << 64) - 1
    x = (index + 0x9E3779B97F4A7C15 * (2 * seed + 1)) & mask
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & mask
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & mask
    return x ^ (x >> 31)


def test_the_hash_is_splitmix64_and_never_collides():
    index = torch.tensor([0, 1, 2, 12345, 2**40, 2**62])
    for seed in (0, 1, 7):
        expected = [splitmix(int(i), seed) for i in index]
        assert [int(h) % 2**64 for h in row_hash(index, seed)] == expected
    many = row_hash(torch.arange(200_000), 0)
    assert len(many.unique()) == 200_000


def test_folds_are_balanced():
    fold = fold_of(torch.arange(50_000), 5)
    counts = torch.bincount(fold, minlength=5)
    assert stats.chisquare(counts.numpy()).pvalue > 1e-3
    assert fold.min() == 0
    assert fold.max() == 4


def test_folds_come_from_a_second_hash():
    index = torch.arange(300)
    fold = fold_of(index, 5).tolist()
    assert fold == [(splitmix(i, 1) >> 1) % 5 for i in range(300)]
    same_as_the_reservoir_s = np.mean([f == (splitmix(i, 0) >> 1) % 5 for i, f in enumerate(fold)])
    assert same_as_the_reservoir_s < 0.3


def test_folds_do_not_know_the_reservoir():
    n = 20_000
    kept, _ = Reservoir(2000).update(torch.arange(n), {}).rows()
    inside = torch.zeros(n, dtype=torch.bool)
    inside[kept] = True
    table = np.zeros((2, 5))
    np.add.at(table, (inside.numpy().astype(int), fold_of(torch.arange(n), 5).numpy()), 1)
    assert stats.chi2_contingency(table).pvalue > 1e-3


def offered(n=3000, size=3, seed=0):
    return torch.arange(n), torch.as_tensor(np.random.default_rng(seed).normal(size=(n, size)))


def test_a_reservoir_keeps_the_rows_of_smallest_hash():
    index, rows = offered()
    kept, columns = Reservoir(100).update(index, {"z": rows}).rows()
    signed = [(h - 2**64 if h >> 63 else h) for h in (splitmix(int(i), 0) for i in index)]
    assert kept.tolist() == np.argsort(signed)[:100].tolist()
    assert torch.equal(columns["z"], rows[kept])


@pytest.mark.slow
@examples(30)
@given(
    cuts=st.lists(st.integers(0, 400), max_size=5),
    shuffle=st.randoms(use_true_random=False),
    capacity=st.sampled_from([1, 7, 150, 400, 600]),
)
def test_a_reservoir_does_not_depend_on_order_or_split(cuts, shuffle, capacity):
    index, rows = offered(400)
    whole_index, whole = Reservoir(capacity).update(index, {"z": rows}).rows()
    places = list(range(400))
    shuffle.shuffle(places)
    order = torch.tensor(places)
    edges = [0, *sorted(cuts), 400]
    parts = [Reservoir(capacity).update(order[i:j], {"z": rows[order[i:j]]}) for i, j in itertools.pairwise(edges)]
    merged = Reservoir(capacity)
    for part in parts:
        merged.merge(part)
    merged_index, columns = merged.rows()
    assert torch.equal(merged_index, whole_index)
    assert torch.equal(columns["z"], whole["z"])
    assert len(merged) == min(capacity, 400)


def test_a_reservoir_is_a_uniform_sample():
    n, capacity = 2000, 200
    hits = np.zeros(n)
    for seed in range(60):
        kept, _ = Reservoir(capacity, seed=seed).update(torch.arange(n), {}).rows()
        hits[kept.numpy()] += 1
    assert hits.sum() == 60 * capacity
    by_place = hits.reshape(50, -1).sum(1)
    assert stats.chisquare(by_place).pvalue > 1e-3
    # Counts of single rows are binomial: neither all alike nor a few favourites.
    assert 0.85 < hits.var() / (60 * 0.1 * 0.9) < 1.15


def test_holds_tells_which_offered_rows_were_kept():
    index, rows = offered()
    reservoir = Reservoir(64)
    for i in range(0, 3000, 500):
        reservoir.update(index[i : i + 500], {"z": rows[i : i + 500]})
    assert set(index[reservoir.holds(index)].tolist()) == set(reservoir.rows()[0].tolist())
    assert not Reservoir(4).holds(index).any()
    assert Reservoir(4000).update(index, {}).holds(index).all()


def test_a_reservoir_copies_what_it_keeps():
    buffer = torch.ones(5, 2)
    reservoir = Reservoir(10).update(torch.arange(5), {"z": buffer})
    buffer.fill_(9)
    assert reservoir.rows()[1]["z"].tolist() == [[1.0, 1.0]] * 5


def test_reservoirs_of_other_sizes_do_not_merge():
    with pytest.raises(ValueError, match="their capacity and seed are the same; got 4, 0 and 5, 0"):
        Reservoir(4).merge(Reservoir(5))


def test_the_mean_square_is_the_trace_of_the_second_moment():
    rows = torch.randn(200, 600, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) + 3
    origin = torch.linspace(-1, 1, 600, dtype=torch.float64)
    m = Moments().update(rows)
    assert m.mean_square(origin) == pytest.approx(float((rows - origin).square().sum(1).mean()), rel=1e-12)
    with pytest.raises(ValueError, match="second moments were not kept"):
        Moments(second=False).update(rows).mean_square(origin)


def test_a_reservoir_holds_only_the_rows_that_it_keeps():
    few, empty = Reservoir(10).update(torch.arange(0, 100, 2), {}), Reservoir(10)
    assert few.holds(torch.arange(100)).nonzero()[:, 0].tolist() == sorted(few.rows()[0].tolist())
    assert not empty.holds(torch.arange(100)).any()
