"""Helpers for arrays: the order that sorts them."""

import numpy as np
import pytest

from sirc._utils.arrays import ascending_order, counts_from_above

RNG = np.random.default_rng(0)


@pytest.mark.parametrize(
    "values",
    [
        RNG.normal(size=3000),
        RNG.normal(size=3000).astype(np.float32),
        RNG.normal(size=3000).round(1) + 0.0,
        1 - 10 ** RNG.uniform(-16, -8, 3000),  # alike in the bits that are sorted by
        np.array([0.0, np.inf, -1.0, -np.inf, 5e-324, np.inf, -5e-324, 1e308, -1e308]),
        np.array([2.0]),
        np.array([]),
    ],
    ids=["float64", "float32", "equal ones", "near 1", "extremes", "one", "none"],
)
def test_the_order_is_that_of_a_stable_sort(values):
    assert ascending_order(values).tolist() == np.argsort(values, kind="stable").tolist()
    assert ascending_order(-values).tolist() == np.argsort(-values, kind="stable").tolist()


def test_counts_from_above_are_those_of_a_loop():
    groups = [np.array([1.0, 2.0, 2.0, -np.inf]), np.array([]), np.array([2.0, np.inf, 0.0, -0.0])]
    values, counts = counts_from_above(groups)
    assert values.tolist() == [np.inf, 2, 1, 0, -np.inf]
    assert counts.tolist() == [[sum(x >= value for x in group) for value in values] for group in groups]
