"""Budgeted SIRC: the strongest S2 on the grid that costs at most the budget on validation rows."""

import numpy as np
import pytest
import torch

import sirc
from sirc.scores import parse
from sirc.scores.fitting import tuning as module
from support import reference, toys

TOY = toys.WEAK


def outputs(rows, labelled=True):
    return sirc.Outputs(rows.logits, rows.features, rows.labels if labelled else None)


@pytest.fixture(scope="module")
def train():
    return outputs(TOY.rows(4000, 0))


@pytest.fixture(scope="module")
def val():
    return outputs(TOY.rows(1500, 1))


def auroc(conf, correct):
    """Of ID✗|ID✓, by pairs."""
    conf, correct = np.asarray(conf), np.asarray(correct)
    return reference.auroc(conf[correct], conf[~correct])


def plain_search(rows, a, b, budget):
    """How many σ the a of each S2 moves: all of the grid tried, the largest that keeps the budget."""
    log_gap, columns, correct = rows
    floor = auroc(-log_gap, correct) - budget / 100
    kept = []
    for step in range(round(2 * module._FURTHEST / module._STEP) + 1):
        shift = -module._FURTHEST + step * module._STEP
        moved = [center + shift / slope for center, slope in zip(a, b, strict=True)]
        if auroc(reference.sirc(log_gap, columns, moved, b), correct) >= floor - 1e-12:
            kept.append(shift)
    return max(kept, default=None)


def lost(fitted, spec, rows):
    """Points of AUROC of ID✗|ID✓ against S1 alone."""
    conf = fitted(rows)
    return 100 * (auroc(conf["msp"], rows.correct) - auroc(conf[spec], rows.correct))


def moved(fitted, spec, plain):
    """By how many σ a was moved from μ − 3σ."""
    got, was = fitted.parameters[str(parse(spec))], fitted.parameters[plain]
    torch.testing.assert_close(got["b"], was["b"], rtol=1e-12, atol=0)
    return (got["b"] * (got["a"] - was["a"])).tolist()


@pytest.mark.slow
@pytest.mark.parametrize("budget", [0.0, 0.1, 1.0, 5.0])
def test_the_search_finds_what_a_plain_loop_finds(train, val, budget):
    spec = f"sirc(msp, l1, budget={budget})"
    fitted = sirc.fit(["msp", "sirc(msp, l1)", spec], train, val=val)
    a, b = (fitted.parameters["sirc(msp, l1)"][name].tolist() for name in "ab")
    log_gap = np.array([reference.log_gaps(row)["msp"] for row in val.logits.numpy()])
    rows = (log_gap, [reference.l1(val.features.numpy())], val.correct.numpy())
    expected = plain_search(rows, a, b, budget)
    (shift,) = moved(fitted, spec, "sirc(msp, l1)")
    if expected is None:
        assert shift < -1e6
    else:
        assert shift == pytest.approx(expected, abs=1e-6)
    assert lost(fitted, spec, val) <= budget + 1e-9


@pytest.mark.slow
def test_more_budget_is_never_less_influence(train, val):
    budgets = [0, 0.01, 0.05, 0.1, 0.3, 1, 3, 10, 100]
    specs = [f"sirc(msp, l1, budget={x})" for x in budgets]
    fitted = sirc.fit(["msp", "sirc(msp, l1)", *specs], train, val=val)
    shifts = [moved(fitted, spec, "sirc(msp, l1)")[0] for spec in specs]
    assert shifts == sorted(shifts)
    assert shifts[0] < shifts[-1] == pytest.approx(module._FURTHEST)
    for spec, x in zip(specs, budgets, strict=True):
        assert lost(fitted, spec, val) <= x + 1e-9


def test_influence_buys_ood_rejection(train, val):
    specs = ["sirc(msp, l1)", "sirc(msp, l1, budget=0.5)", "msp"]
    toy = toys.ALONE
    fitted = sirc.fit(specs, outputs(toy.rows(4000, 2)), val=outputs(toy.rows(3000, 3)))
    test, ood = (fitted(outputs(toy.rows(5000, 4 + far, ood=far))) for far in (False, True))
    correct = outputs(toy.rows(5000, 4)).correct
    found = {s: float(sirc.Ranking(test[s][correct], test[s][~correct], ood[s]).auroc("ood")) for s in specs}
    assert found["sirc(msp, l1, budget=0.5)"] > found["sirc(msp, l1)"] > found["msp"]


@pytest.mark.slow
def test_several_s2_move_together_each_by_its_own_spread(train, val):
    rng = np.random.default_rng(5)

    def lifted(rows):  # a constant added to all logits: S1 does not see it, `max_logit` does
        return sirc.Outputs(rows.logits + torch.as_tensor(rng.normal(0, 7, (len(rows), 1))), rows.features, rows.labels)

    train, val = lifted(train), lifted(val)
    plain, spec = "sirc(msp, l1, max_logit)", "sirc(msp, l1, max_logit, budget=1)"
    fitted = sirc.fit(["msp", plain, spec], train, val=val)
    first, second = moved(fitted, spec, plain)
    assert first == pytest.approx(second, abs=1e-9)
    a, b = (fitted.parameters[plain][name].tolist() for name in "ab")
    log_gap = np.array([reference.log_gaps(row)["msp"] for row in val.logits.numpy()])
    columns = [reference.l1(val.features.numpy()), reference.max_logit(val.logits.numpy())]
    assert first == pytest.approx(plain_search((log_gap, columns, val.correct.numpy()), a, b, 1.0), abs=1e-6)
    assert lost(fitted, spec, val) <= 1 + 1e-9


@pytest.mark.slow
def test_an_s2_that_costs_even_from_afar_is_not_heard():
    """Right rows with an S2 hundreds of σ low: no a on the grid keeps the budget, so S2 is silent."""
    rng = np.random.default_rng(6)
    gap = np.r_[rng.uniform(3, 9, 900), rng.uniform(0, 3, 100)]
    labels = np.r_[np.zeros(900), np.ones(100)].astype(int)
    z = rng.normal(500, 1, 1000)
    train = sirc.Outputs(np.c_[gap, 0 * gap], z[:, None], labels)
    z = z.copy()
    z[:300] -= 400
    val = sirc.Outputs(np.c_[gap, 0 * gap], z[:, None], labels)
    specs = ["msp", "sirc(msp, l1, budget=0)", "sirc(msp, l1, budget=2)", "sirc(msp, l1, budget=100)"]
    with pytest.warns(sirc.DataWarning, match="rows of `val` look OOD to `l1`"):
        fitted = sirc.fit(specs, train, val=val)
    conf = fitted(val)
    assert torch.equal(conf[specs[1]], conf["msp"])
    assert torch.equal(conf[specs[2]], conf["msp"])
    assert not torch.equal(conf[specs[3]], conf["msp"])


def test_budget_needs_validation_rows_with_right_and_wrong_predictions(train, val):
    with pytest.raises(
        ValueError, match=r"`val` is needed for `sirc\(msp, l1, budget=0.1\)`, which is tuned on labelled"
    ):
        sirc.fit("sirc(msp, l1, budget=0.1)", train)
    with pytest.raises(ValueError, match="`val` is needed for"):
        sirc.Fitter("sirc(msp, l1, budget=0.1)", unlabelled=val)
    for kept, words in ((val.correct, "and 0 wrong"), (~val.correct, "got 0 right and")):
        with pytest.raises(ValueError, match=f"`val` must hold right and wrong predictions for .*{words}"):
            sirc.fit("sirc(msp, l1, budget=0.1)", train, val=val[kept])


@pytest.mark.parametrize("text", ["budget=-0.1", "budget=101", "budget=(1, 2)", "budget=1, a=3", "budget=1, b=2"])
def test_a_wrong_budget_is_refused(text):
    with pytest.raises(ValueError, match="budget"):
        sirc.Scorer(f"sirc(msp, l1, {text})")


def test_an_unfitted_budget_says_so(val):
    with pytest.raises(sirc.NotFittedError, match=r"sirc\(msp, l1, budget=1\)"):
        sirc.Scorer("sirc(msp, l1, budget=1)")(val)


@pytest.mark.slow
def test_a_budgeted_scorer_saves_and_loads_bit_for_bit(train, val, tmp_path):
    spec = "sirc(entropy, l1, budget=0.3)"
    fitted = sirc.fit(spec, train, val=val)
    fitted.save(tmp_path / "s.safetensors")
    again = sirc.Scorer.load(tmp_path / "s.safetensors")
    assert torch.equal(again(val)[spec], fitted(val)[spec])
    assert again.seen(val) == fitted.seen(val) == 1
