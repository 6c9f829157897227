"""Fitting: from any source and any split the same parameters, only what is needed is kept, and errors that teach."""

import itertools
import re

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, TensorDataset

import sirc
from sirc import moments
from sirc.scores.fitting import rows as batches_module
from sirc.scores.fitting import state
from sirc.scores.moments import Moments, Reservoir
from support import reference
from support.examples import examples

K, L, N = 5, 8, 240
SPECS = ["msp", "residual", "vim", "mahalanobis", "sirc(msp, l1, react, cop)", "sirc(entropy, mahalanobis, knn)"]
LOGITS, Z, Y, WEIGHT, BIAS = reference.model(N, K, L, seed=0)
TRAIN = sirc.Outputs(LOGITS, Z, Y)
HEAD = sirc.Head(WEIGHT, BIAS)
CUTS = [0, 1, 50, 51, 130, 240]
PARTS = list(itertools.pairwise(CUTS))


def assert_same_fit(one, other, rtol=1e-9):
    """Equal statistics, and equal scores on other rows (a basis is free to turn)."""
    for spec in {**one.parameters, **other.parameters}:
        for name in set(one.parameters[spec]) & set("abc"):
            torch.testing.assert_close(one.parameters[spec][name], other.parameters[spec][name], rtol=rtol, atol=0)
    fresh = sirc.Outputs(LOGITS[:40] * 0.7, Z[:40] * 0.7 + 0.1)
    a, b = one(fresh), other(fresh)
    for spec in one.specs:
        torch.testing.assert_close(a[spec], b[spec], rtol=rtol, atol=rtol * float(b[spec].abs().max()))


class Reiterable:
    def __init__(self, make):
        self.make, self.passes = make, 0

    def __iter__(self):
        self.passes += 1
        return self.make()


def sources(tmp_path):
    tensors = [torch.as_tensor(x) for x in (LOGITS, Z, Y)]
    return {
        "outputs": TRAIN,
        "store": sirc.OutputStore.from_outputs(tmp_path / "store", TRAIN, shard_size=70),
        "batches": [TRAIN[i:j] for i, j in PARTS],
        "tuples": [(LOGITS[i:j], Z[i:j], Y[i:j]) for i, j in PARTS],
        "dicts": [{"logits": LOGITS[i:j], "features": Z[i:j], "labels": Y[i:j]} for i, j in PARTS],
        "loader": DataLoader(TensorDataset(*tensors), batch_size=33),
        "reiterable": Reiterable(lambda: (TRAIN[i:j] for i, j in PARTS)),
        "generator": (TRAIN[i:j] for i, j in PARTS),
        "iterator": iter([TRAIN]),
    }


@pytest.mark.slow
@pytest.mark.parametrize("crossfit", ["auto", 0])
@pytest.mark.parametrize(
    "source", ["outputs", "store", "batches", "tuples", "dicts", "loader", "reiterable", "generator", "iterator"]
)
def test_any_source_gives_the_same_fit(source, crossfit, tmp_path):
    whole = sirc.fit(SPECS, TRAIN, head=HEAD, crossfit=crossfit)
    assert_same_fit(sirc.fit(SPECS, sources(tmp_path)[source], head=HEAD, crossfit=crossfit), whole)


@pytest.mark.slow
def test_batches_larger_and_smaller_than_a_block_give_the_same_fit(monkeypatch):
    whole = sirc.fit(SPECS, TRAIN, head=HEAD)
    monkeypatch.setattr(batches_module, "BLOCK_ROWS", 20)
    assert_same_fit(sirc.fit(SPECS, TRAIN, head=HEAD), whole)
    assert_same_fit(sirc.fit(SPECS, [TRAIN[i:j] for i, j in PARTS], head=HEAD), whole)
    assert_same_fit(sirc.fit(SPECS, (TRAIN[i:j] for i, j in PARTS), head=HEAD), whole)


def test_data_are_read_twice_and_only_once_where_once_will_do():
    needy, easy = Reiterable(lambda: iter([TRAIN])), Reiterable(lambda: iter([TRAIN]))
    sirc.fit("sirc(msp, residual)", needy, head=HEAD)
    sirc.fit(["residual", "mahalanobis", "knn", "msp"], easy, head=HEAD)
    assert (needy.passes, easy.passes) == (2, 1)


@pytest.mark.parametrize("crossfit", [0, 5])
def test_a_one_shot_iterator_takes_its_statistics_from_the_reservoir(crossfit, monkeypatch):
    monkeypatch.setattr(state, "BANK_SIZE", 90)
    kept = np.sort(Reservoir(90).update(torch.arange(N), {}).rows()[0].numpy())
    spec = "sirc(msp, l1, residual, knn(k=3))"
    fitted = sirc.fit([spec, "residual"], (TRAIN[i:j] for i, j in PARTS), head=HEAD, crossfit=crossfit)
    near = np.empty(N)
    near[kept] = reference.knn(Z[kept], Z[kept], k=3, leave_out=lambda i: np.arange(90) == i)
    residual = reference.residual(Z, *reference.fit_residual(Z, WEIGHT, BIAS))
    for i in kept if crossfit else ():
        residual[i] = reference.residual(Z[i : i + 1], *reference.fit_residual(np.delete(Z, i, 0), WEIGHT, BIAS))[0]
    # The subspace comes from all rows, μ and σ from the sample.
    a, b = zip(*(reference.spread(v[kept]) for v in (reference.l1(Z), residual, near)), strict=True)
    np.testing.assert_allclose(fitted.parameters[spec]["a"], a, rtol=1e-9)
    np.testing.assert_allclose(fitted.parameters[spec]["b"], b, rtol=1e-9)
    expected = reference.residual(Z, *reference.fit_residual(Z, WEIGHT, BIAS))
    np.testing.assert_allclose(fitted(TRAIN)["residual"], expected, rtol=1e-9, atol=1e-11)


@pytest.mark.slow
@pytest.mark.parametrize("block", [20, 8192])
def test_a_generator_may_fill_the_same_memory_again(block, monkeypatch):
    monkeypatch.setattr(batches_module, "BLOCK_ROWS", block)
    v, z, y = np.empty((30, K)), np.empty((30, L)), np.empty(30, dtype=np.int64)

    def batches():
        for i in range(0, N, 30):
            v[:], z[:], y[:] = LOGITS[i : i + 30], Z[i : i + 30], Y[i : i + 30]
            yield v, z, y

    assert_same_fit(sirc.fit(SPECS, batches(), head=HEAD), sirc.fit(SPECS, TRAIN, head=HEAD))
    assert_same_fit(sirc.fit(SPECS, Reiterable(batches), head=HEAD), sirc.fit(SPECS, TRAIN, head=HEAD))


def merged(parts, **keywords):
    """Workers that see parts of the rows, given as lists of dataset indices, and are merged in that order."""
    fitters = []
    for rows in parts:
        fitter = sirc.Fitter(SPECS, head=HEAD, **keywords)
        index = torch.as_tensor(rows, dtype=torch.int64)
        for i in range(0, len(rows), 17):
            fitter.update(TRAIN[index[i : i + 17]], index=index[i : i + 17])
        fitters.append(fitter)
    first, *others = fitters
    for other in others:
        first.merge(other)
    assert first.count == sum(len(rows) for rows in parts)
    return first


@pytest.mark.slow
@examples(12)
@given(
    owner=st.lists(st.integers(0, 3), min_size=N, max_size=N),
    shuffle=st.randoms(use_true_random=False),
    one_pass=st.booleans(),
    crossfit=st.sampled_from(["auto", 0, 3]),
)
def test_any_number_of_workers_gives_the_same_fit(owner, shuffle, one_pass, crossfit):
    parts = [[i for i in range(N) if owner[i] == w] for w in range(4)]
    for part in parts:
        shuffle.shuffle(part)
    fitter = merged(parts, one_pass=one_pass, crossfit=crossfit)
    whole = sirc.fit(SPECS, TRAIN, head=HEAD, crossfit=crossfit)
    assert_same_fit(fitter.finish(None if one_pass else TRAIN), whole)


@pytest.mark.parametrize("crossfit", [0, 3])
def test_saved_states_load_and_merge_to_the_same_fit(crossfit):
    cpu = torch.device("cpu")
    whole = state.FitState(SPECS, head=HEAD, crossfit=crossfit)
    for rows in (range(150, N), [], range(150)):
        saved = merged([rows], crossfit=crossfit)._state.save()
        whole.merge(whole.empty().load(saved, cpu))
    fitter = sirc.Fitter(SPECS, head=HEAD, crossfit=crossfit)
    fitter._state = whole.empty().load(whole.save(), cpu)
    assert_same_fit(fitter.finish(TRAIN), sirc.fit(SPECS, TRAIN, head=HEAD, crossfit=crossfit))


@pytest.mark.slow
@pytest.mark.parametrize("parts", [[range(N), []], [[], range(N)], [[], range(100), [], range(100, N), []]])
def test_a_worker_without_rows_changes_nothing(parts):
    assert_same_fit(merged(parts).finish(TRAIN), sirc.fit(SPECS, TRAIN, head=HEAD))


@pytest.mark.parametrize("first", [0, 1])
def test_workers_merge_on_either_side_of_a_hundred_rows_per_feature(first):
    logits, z, y, weight, bias = reference.model(250, 3, 2, seed=1)
    train, head, specs = sirc.Outputs(logits, z, y), sirc.Head(weight, bias), ["sirc(msp, residual, mahalanobis)"]
    large, small = torch.arange(215), torch.arange(215, 250)
    fitters = [sirc.Fitter(specs, head=head).update(train[rows], index=rows) for rows in (large, small)]
    one, other = fitters[first], fitters[1 - first]
    got = one.merge(other).finish(train).parameters[specs[0]]
    expected = sirc.fit(specs, train, head=head, crossfit=0).parameters[specs[0]]
    torch.testing.assert_close(got, expected, rtol=1e-9, atol=0)


def test_fitting_on_narrow_features_is_fitting_on_their_values():
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        narrow = TRAIN.to(dtype=dtype)
        one = sirc.fit(["sirc(msp, residual)", "vim"], narrow, head=HEAD)
        other = sirc.fit(["sirc(msp, residual)", "vim"], narrow.to(dtype=torch.float64), head=HEAD)
        for spec in one.parameters:
            for name in set(one.parameters[spec]) & set("abc"):
                torch.testing.assert_close(one.parameters[spec][name], other.parameters[spec][name], rtol=1e-4, atol=0)
            for name in set(one.parameters[spec]) - set("abc"):
                assert one.parameters[spec][name].dtype == torch.float64


def forbid(monkeypatch, target, name):
    monkeypatch.setattr(target, name, lambda *args, **keywords: pytest.fail(f"{name} was called"))


def test_no_moments_are_kept_for_scores_without(monkeypatch):
    forbid(monkeypatch, moments.Moments, "add")
    fitter = sirc.Fitter(["msp", "knn", "l1"]).update(TRAIN)
    assert len(fitter.finish()(TRAIN)["knn"]) == N


def test_no_rows_are_kept_for_scores_without_a_bank(monkeypatch):
    kept = columns_kept(monkeypatch)
    fitted = sirc.fit(["residual", "mahalanobis", "sirc(msp, residual)"], TRAIN, head=HEAD)
    assert kept == {"mark", "values"}  # S2 of a sample, a number a row
    assert set(fitted.parameters) == {"residual", "mahalanobis", "sirc(msp, residual)"}


def test_no_class_sums_are_kept_for_scores_without():
    for specs, sums in ((["sirc(msp, residual)", "vim"], False), (["vim", "mahalanobis"], True)):
        saved = sirc.Fitter(specs, head=HEAD).update(TRAIN)._state.save()
        assert any(name.endswith("class_sum") for name in saved) == sums


def test_one_pass_keeps_only_the_columns_its_statistics_read(monkeypatch):
    kept = columns_kept(monkeypatch)
    sirc.fit("sirc(msp, energy)", iter([TRAIN]))
    assert kept == {"logits", "mark", "values"}
    kept.clear()
    sirc.fit("knn", iter([TRAIN]))
    assert kept == {"features", "mark"}


def columns_kept(monkeypatch):
    kept = set()
    update = Reservoir.update

    def watched(self, index, columns):
        kept.update(columns)
        return update(self, index, columns)

    monkeypatch.setattr(Reservoir, "update", watched)
    return kept


def test_a_scorer_knows_the_rows_it_was_fitted_on(tmp_path):
    new = sirc.Outputs(TRAIN.logits.flip(1) + 0.1, TRAIN.features, TRAIN.labels)
    fitted = sirc.fit("sirc(msp, l1)", (TRAIN[i:j] for i, j in PARTS))
    assert fitted.seen(TRAIN) == 1
    assert fitted.seen(new) == 0
    half = len(TRAIN) // 2
    mixed = sirc.Outputs.cat([TRAIN[:half], new[:half]])
    assert fitted.seen(mixed) == pytest.approx(0.5)
    assert fitted.seen(mixed.batches(7)) == pytest.approx(0.5)
    fitted.save(tmp_path / "scorer.safetensors")
    again = sirc.Scorer.load(tmp_path / "scorer.safetensors")
    assert again.seen(TRAIN) == 1
    assert again.only("sirc(msp, l1)").seen(new) == 0
    assert sirc.fit("msp", TRAIN).seen(TRAIN) == 0
    both = sirc.fit(["msp", "sirc(msp, l1)"], TRAIN)
    assert both.seen(TRAIN) == 1
    assert both.only("msp").seen(TRAIN) == 0


def test_rows_that_are_computed_anew_are_known_too():
    fitted = sirc.fit("sirc(msp, l1)", TRAIN)
    noise = torch.randn(TRAIN.logits.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    again = sirc.Outputs(TRAIN.logits.double() * (1 + 1e-7 * noise), TRAIN.features)
    assert fitted.seen(again) == 1
    two = sirc.Outputs(noise[:, :2])
    other = sirc.Outputs(torch.randn(len(two), 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1)))
    assert sirc.fit("sirc(msp, energy)", two).seen(other) == 0


@pytest.mark.slow
def test_of_many_fitting_rows_a_sample_is_known():
    rng = np.random.default_rng(0)
    many = sirc.Outputs(rng.normal(size=(40_000, 3)))
    fitted = sirc.fit("sirc(msp, energy)", many)
    assert len(fitted.fitted_on) == 4096
    new = sirc.Outputs(rng.normal(size=(5_000, 3)))
    assert fitted.seen(sirc.Outputs.cat([many[:5_000], new])) == pytest.approx(0.5, abs=0.05)


def test_scores_that_learn_nothing_accumulate_nothing(monkeypatch):
    forbid(monkeypatch, Moments, "update")
    forbid(monkeypatch, Reservoir, "update")
    fitted = sirc.fit(["msp", "energy", "l1", "gradnorm", "sirc(msp, l1, a=1, b=1)"], (TRAIN[i:j] for i, j in PARTS))
    assert fitted.parameters == {}
    assert fitted.num_classes == K


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "dropped", "n"),
    [(1, 0, 20), (2, 1, 20), (9, 4, 40), (511, 255, 300), (512, 256, 300), (513, 512, 560), (1500, 512, 520)],
)
def test_the_principal_subspace_has_the_papers_dimension(size, dropped, n):
    z = np.random.default_rng(size).normal(size=(n, size))
    fitted = sirc.fit("residual", sirc.Outputs(z @ np.eye(size, 2), z), head=sirc.Head(np.eye(2, size)))
    basis = fitted.parameters["residual"]["basis"]
    assert basis.shape == (size, size - dropped)
    torch.testing.assert_close(basis.T @ basis, torch.eye(size - dropped).double(), rtol=0, atol=1e-10)


@pytest.mark.slow
def test_above_1500_features_the_principal_subspace_has_a_thousand():
    z = np.random.default_rng(0).normal(size=(1020, 1501)).astype(np.float32)
    fitted = sirc.fit("residual", sirc.Outputs(z[:, :2], z), head=sirc.Head(np.eye(2, 1501)))
    assert fitted.parameters["residual"]["basis"].shape == (1501, 501)


def test_residual_drops_no_more_than_the_rank():
    z = np.random.default_rng(0).normal(size=(10, 64))
    weight, bias = np.random.default_rng(1).normal(size=(3, 64)), np.array([0.5, -1.0, 2.0])
    for b in (bias, None):
        train, head = sirc.Outputs(z @ weight.T + (0 if b is None else b), z), sirc.Head(weight, b)
        fitted = sirc.fit("residual", train, head=head)
        assert fitted.parameters["residual"]["basis"].shape == (64, 54)
        assert fitted(train)["residual"].abs().max() < 1e-12
        fresh = np.random.default_rng(2).normal(size=(20, 64))
        expected = reference.residual(fresh, *reference.fit_residual(z, weight, b))
        np.testing.assert_allclose(fitted(sirc.Outputs(fresh @ weight.T, fresh))["residual"], expected, rtol=1e-9)


def test_a_head_without_bias_has_its_origin_at_zero():
    fitted = sirc.fit("residual", sirc.Outputs(LOGITS - BIAS, Z), head=sirc.Head(WEIGHT))
    assert fitted.parameters["residual"]["origin"].abs().max() == 0
    expected = reference.residual(Z, *reference.fit_residual(Z, WEIGHT, None))
    np.testing.assert_allclose(fitted(TRAIN)["residual"], expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("kind", ["copied columns", "constant column", "fewer rows than features"])
def test_mahalanobis_takes_a_singular_covariance(kind):
    rng = np.random.default_rng(0)
    z, y = Z.copy(), Y
    if kind == "copied columns":
        z = np.concatenate((z, z[:, :3], z @ rng.normal(size=(L, 2))), 1)
    elif kind == "constant column":
        z[:, 2] = 4.0
    else:
        z, y = rng.normal(size=(12, 20)), np.arange(12) % K
    train = sirc.Outputs(np.zeros((len(z), K)), z, y)
    expected = reference.mahalanobis(z, *reference.fit_mahalanobis(z, y, K))
    got = sirc.fit("mahalanobis", train)(train)["mahalanobis"]
    np.testing.assert_allclose(got, expected, rtol=1e-6)
    fresh = z * 0.9
    expected = reference.mahalanobis(fresh, *reference.fit_mahalanobis(z, y, K))
    got = sirc.fit("mahalanobis", train)(sirc.Outputs(np.zeros((len(z), K)), fresh))["mahalanobis"]
    np.testing.assert_allclose(got, expected, rtol=1e-6)


def test_classes_without_rows_leave_the_minimum():
    rows = np.isin(Y, (0, 2, 3))
    train = TRAIN[rows]
    fitted = sirc.fit("mahalanobis", train)
    assert fitted.parameters["mahalanobis"]["means"].shape[0] == 3
    expected = reference.mahalanobis(Z, *reference.fit_mahalanobis(Z[rows], Y[rows], K))
    np.testing.assert_allclose(fitted(TRAIN)["mahalanobis"], expected, rtol=1e-9)


def test_mahalanobis_keeps_its_digits_at_a_large_offset():
    shifted = Z + 1e4
    train = sirc.Outputs(LOGITS, shifted, Y)
    expected = reference.mahalanobis(Z, *reference.fit_mahalanobis(Z, Y, K))
    np.testing.assert_allclose(sirc.fit("mahalanobis", train)(train)["mahalanobis"], expected, rtol=1e-7)


# What bad input gets.


def test_a_constant_s2_is_named():
    flat = sirc.Outputs(LOGITS, np.ones_like(Z), Y)
    with pytest.raises(
        ValueError, match=r"`l1` does not vary .*\(σ = 0, .*rounding\), so `sirc\(msp, l1\)` has no scale"
    ):
        sirc.fit("sirc(msp, l1)", flat)
    with pytest.raises(ValueError, match="`l1` does not vary over the training rows"):
        sirc.fit("sirc(msp, energy, l1)", flat)
    with pytest.raises(ValueError, match="`energy` does not vary over the training rows"):
        sirc.fit("sirc(msp, energy)", sirc.Outputs(np.tile(LOGITS[:1], (9, 1))))


def test_features_that_stay_in_the_subspace_have_no_residual_to_read():
    z = np.random.default_rng(0).normal(size=(N, 2)) @ np.random.default_rng(1).normal(size=(2, L))
    for dtype in (np.float64, np.float32):
        train = sirc.Outputs(z @ WEIGHT.T, z.astype(dtype), Y)
        with pytest.raises(ValueError, match="`residual` does not vary over the training rows"):
            sirc.fit("sirc(msp, residual)", train, head=sirc.Head(WEIGHT))
        with pytest.raises(ValueError, match="`vim` needs features with a part outside their principal subspace"):
            sirc.fit("vim", train, head=sirc.Head(WEIGHT))


def test_the_same_row_over_and_over():
    flat = sirc.Outputs(np.tile(LOGITS[:1], (N, 1)), np.tile(Z[:1], (N, 1)), Y)
    for spec in ("sirc(msp, residual)", "sirc(msp, knn)", "sirc(msp, l1)"):
        for crossfit in (0, 5):
            with pytest.raises(ValueError, match="does not vary over the training rows"):
                sirc.fit(spec, flat, head=HEAD, crossfit=crossfit)


@pytest.mark.parametrize("order", [np.arange(40), np.random.default_rng(0).permutation(40)])
def test_one_row_per_class_has_no_covariance(order):
    z = np.random.default_rng(0).normal(size=(40, 6)) + 3
    with pytest.raises(ValueError, match="`mahalanobis` needs features that vary within classes"):
        sirc.fit("mahalanobis", [(np.zeros((20, 40)), z[i : i + 20], order[i : i + 20]) for i in (0, 20)])


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda: sirc.fit("residual", TRAIN),
            "`head` is needed for `residual`: the weight and bias of the final linear",
        ),
        (lambda: sirc.fit("sirc(msp, vim)", TRAIN), "Pass `head=sirc.find_head(model, example)`"),
        (
            lambda: sirc.fit("residual", TRAIN, head=sirc.Head(WEIGHT[:, :-1], BIAS)),
            "it maps 7 features to 5 logits, the data have 8 and 5. Is it the head of this model?",
        ),
        (
            lambda: sirc.fit("residual", TRAIN, head=sirc.Head(WEIGHT[:-1], BIAS[:-1])),
            "it maps 8 features to 4 logits, the data have 8 and 5",
        ),
        (
            lambda: sirc.fit("sirc(msp, mahalanobis)", sirc.Outputs(LOGITS, Z)),
            "labels are needed to fit `mahalanobis`: the class of each training row",
        ),
        (
            lambda: sirc.fit(["l1", "residual"], sirc.Outputs(LOGITS, labels=Y), head=HEAD),
            "features are needed for `l1`, `residual`; these outputs have none",
        ),
        (lambda: sirc.fit("msp", []), "`train` must hold at least one row of ID training data; got an empty iterable"),
        (lambda: sirc.fit("sirc(msp, l1)", iter([])), "`train` must hold at least one row"),
        (lambda: sirc.fit("knn", TRAIN[:9]), "`knn` needs at least 10 training rows to search; got 9"),
        (lambda: sirc.fit("knn(k=3)", TRAIN[:2]), "at least 3 training rows to search; got 2"),
        (
            lambda: sirc.fit("sirc(msp, knn)", TRAIN[:10], crossfit=0),
            "at least 11 training rows to search, as no",
        ),
        (lambda: sirc.fit("sirc(msp, knn)", [TRAIN[:10]], crossfit=5), "at least 11 training rows to search, as no"),
        (lambda: sirc.fit("msp", [TRAIN, sirc.Outputs(LOGITS[:, :4], Z)]), "num_classes is 5, got 4"),
        (lambda: sirc.fit("msp", [TRAIN, sirc.Outputs(LOGITS, Z[:, :3])]), "num_features is 8, got 3"),
        (
            lambda: sirc.fit("msp", [TRAIN, sirc.Outputs(LOGITS)]),
            "all batches of `train` must be alike and of one model: features is float64, got none",
        ),
        (lambda: sirc.fit("msp", [3]), "a batch must be an `Outputs`"),
        (lambda: sirc.fit("msp", [(LOGITS * np.nan,)]), "`logits` must be finite"),
        (lambda: sirc.fit("msp", [(LOGITS, Z, Y + 1)]), "`labels` must be in 0…4"),
        (lambda: sirc.fit([], TRAIN), "`specs` must name at least one score"),
        (lambda: sirc.fit("nope", TRAIN), "unknown score `nope`"),
    ],
)
def test_bad_input_is_told_the_rule_and_the_way_out(call, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        call()


def test_a_second_pass_with_other_rows_is_refused():
    lengths = iter([N, N - 40])
    with pytest.raises(ValueError, match=f"must bring the rows of the first; got {N - 40} rows after {N}"):
        sirc.fit("sirc(msp, l1)", Reiterable(lambda: iter([TRAIN[: next(lengths)]])))
    exhausted = iter([TRAIN])
    with pytest.raises(
        ValueError, match=f"got 0 rows after {N}. Pass a list, an `OutputStore`, or a one-shot iterator"
    ):
        sirc.fit("sirc(msp, l1)", Reiterable(lambda: exhausted))


def test_fitters_say_why_they_do_not_merge_or_finish():
    with pytest.raises(ValueError, match="fitters merge when specs, crossfit and one_pass are the same"):
        sirc.Fitter("msp").merge(sirc.Fitter("energy"))
    other = sirc.Fitter("msp").update(sirc.Outputs(LOGITS[:, :3]))
    with pytest.raises(
        ValueError, match="fitters merge when their rows are alike and of one model; num_classes is 5, got 3"
    ):
        sirc.Fitter("msp").update(sirc.Outputs(LOGITS)).merge(other)
    with pytest.raises(ValueError, match=r"pass `finish\(train\)` for a second pass, or make the fitter with"):
        sirc.Fitter("sirc(msp, l1)").update(TRAIN).finish()
    with pytest.raises(ValueError, match="`index` must have as many rows as `batch`; got 3 and 240"):
        sirc.Fitter("msp").update(TRAIN, index=torch.arange(3))
    with pytest.raises(ValueError, match="`index` must be integers; got bool"):
        sirc.Fitter("msp").update(TRAIN, index=torch.ones(240, dtype=torch.bool))


@pytest.mark.parametrize("dtype", [np.int32, np.uint16, np.uint32])
def test_dataset_indices_may_be_integers_of_any_type(dtype):
    expected = sirc.Fitter("knn").update(TRAIN, index=np.arange(N)).finish().parameters["knn"]["bank"]
    found = sirc.Fitter("knn").update(TRAIN, index=np.arange(N, dtype=dtype)).finish().parameters["knn"]["bank"]
    assert torch.equal(found, expected)


def test_training_data_are_left_alone():
    logits, z, y = torch.as_tensor(LOGITS.copy()), torch.as_tensor(Z.copy()), torch.as_tensor(Y.copy())
    sirc.fit(SPECS, sirc.Outputs(logits, z, y), head=HEAD)
    assert np.array_equal(logits, LOGITS)
    assert np.array_equal(z, Z)
    assert np.array_equal(y, Y)
