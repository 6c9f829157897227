"""SelectiveMetrics: batches, merging, torchmetrics and doing without it."""

import copy
import pickle
import sys
import textwrap

import numpy as np
import pytest
import torch
import torchmetrics

import sirc
from sirc import SelectiveMetrics
from support.interpreters import launched, python
from support.metric_reference import Mixture

KEYS = ["error", "auroc_wrong", "fpr@80_wrong", "auroc_ood", "fpr@80_ood", "aurr", "risk@80", "aurc", "augrc"]


def samples(n=60, seed=0):
    rng = np.random.default_rng(seed)
    is_ood = rng.random(n) < 0.4
    correct = rng.random(n) < 0.6
    return rng.integers(0, 9, n) + 2.0 * (correct & ~is_ood), correct, is_ood


def expected(confidence, correct, is_ood, alpha=0.3, beta=0.6, recall=0.8):
    groups = confidence[~is_ood & correct], confidence[~is_ood & ~correct], confidence[is_ood]
    plain = Mixture(*(g.tolist() for g in groups))
    return {
        "error": len(plain.wrong) / plain.n_id,
        "auroc_wrong": plain.auroc("wrong"),
        "fpr@80_wrong": plain.fpr("wrong", recall),
        "auroc_ood": plain.auroc("ood"),
        "fpr@80_ood": plain.fpr("ood", recall),
        "aurr": plain.aurr(alpha, beta),
        "risk@80": plain.risk_at_recall(recall, alpha, beta),
        "aurc": plain.aurc(alpha, beta),
        "augrc": plain.augrc(alpha, beta),
    }


def metric():
    return SelectiveMetrics(alpha=0.3, beta=0.6, recall=0.8)


def values(figures):
    """The metrics that `expected` knows: a new one has its own test."""
    assert all(value.dtype == torch.float64 and value.dim() == 0 for value in figures.values())
    return {name: float(value) for name, value in figures.items() if name in KEYS}


def fill(one, data, size):
    for start in range(0, len(data[0]), size):
        one.update(*(part[start : start + size] for part in data))
    return one


@pytest.mark.parametrize("size", [1, 7, 60])
def test_batches_give_what_all_samples_at_once_do(size):
    data = samples()
    got = values(fill(metric(), data, size).compute())
    assert list(got) == KEYS
    assert got == pytest.approx(expected(*data), abs=1e-13)


def test_the_ranking_answers_for_other_alphas():
    confidence, correct, is_ood = samples()
    r = fill(metric(), (confidence, correct, is_ood), 10).ranking()
    groups = confidence[~is_ood & correct], confidence[~is_ood & ~correct], confidence[is_ood]
    assert r.aurr(0.9, 0.1) == pytest.approx(Mixture(*(g.tolist() for g in groups)).aurr(0.9, 0.1), abs=1e-13)


def test_what_correct_says_of_ood_does_not_matter():
    confidence, correct, is_ood = samples()
    other = np.where(is_ood, ~correct, correct)
    first, second = (values(fill(metric(), (confidence, c, is_ood), 60).compute()) for c in (correct, other))
    assert first == second


@pytest.mark.parametrize("convert", [list, np.asarray, torch.as_tensor, lambda x: torch.as_tensor(x).double()])
def test_flags_and_confidences_may_be_of_any_kind(convert):
    data = samples()
    got = metric()
    got.update(*(convert(part) for part in data))
    assert values(got.compute()) == pytest.approx(expected(*data), abs=1e-13)


def test_batches_of_different_precision_mix():
    confidence, correct, is_ood = samples()
    got = metric()
    got.update(torch.tensor(confidence[:20], dtype=torch.float32), correct[:20], is_ood[:20])
    got.update(torch.tensor(confidence[20:40], dtype=torch.bfloat16), correct[20:40], is_ood[20:40])
    got.update(confidence[40:], correct[40:], is_ood[40:])
    assert values(got.compute()) == pytest.approx(expected(confidence, correct, is_ood), abs=1e-13)


def test_a_buffer_may_be_used_again_for_the_next_batch():
    confidence, correct, is_ood = samples()
    got, buffer = metric(), torch.empty(20)
    for start in range(0, 60, 20):
        buffer.copy_(torch.tensor(confidence[start : start + 20]))
        got.update(buffer, correct[start : start + 20], is_ood[start : start + 20])
    assert values(got.compute()) == pytest.approx(expected(confidence, correct, is_ood), abs=1e-13)


def test_gradients_are_not_kept():
    got = metric()
    got.update(torch.ones(3, requires_grad=True), [1, 0, 1], [0, 0, 1])
    assert not got.confidence[0].requires_grad


def test_without_ood_there_are_mixture_metrics_for_alpha_one_only():
    batch = [3.0, 2, 1], [1, 0, 1]
    half, one = SelectiveMetrics(alpha=0.5), SelectiveMetrics(alpha=1.0, beta=1.0)
    half.update(*batch)
    one.update(*batch)
    assert {"error", "auroc_wrong", "fpr@95_wrong"} <= half.compute().keys()
    assert not {"aurr", "risk@95", "aurc", "augrc"} & half.compute().keys()
    assert float(one.compute()["aurc"]) == pytest.approx((0 + 1 / 2 + 1 / 3) / 3)


def test_what_was_seen_decides_what_is_told():
    right = SelectiveMetrics()
    right.update([1.0, 0.5], [1, 1], [0, 1])
    assert "auroc_wrong" not in right.compute()
    assert float(right.compute()["auroc_ood"]) == 1
    wrong = SelectiveMetrics()
    wrong.update([1.0, 0.5], [0, 0], [0, 1])
    assert values(wrong.compute()) == {"error": 1}
    outside = SelectiveMetrics()
    outside.update([1.0, 0.5], [0, 0], [1, 1])
    assert outside.compute() == {}


def test_merging_is_seeing_both():
    data = samples()
    halves = [[part[:25] for part in data], [part[25:] for part in data]]
    first, second = (fill(metric(), half, 9) for half in halves)
    before = values(second.compute())
    first.compute()  # a result that was asked for before must not come back after
    assert first.merge(second) is first
    assert values(first.compute()) == pytest.approx(expected(*data), abs=1e-13)
    assert values(second.compute()) == before
    first.update([100.0], [0], [0])
    assert values(second.compute()) == before


def test_merging_into_one_that_saw_nothing_and_of_one_that_saw_nothing():
    data = samples()
    full = fill(metric(), data, 20)
    assert values(metric().merge(full).compute()) == pytest.approx(expected(*data), abs=1e-13)
    assert values(full.merge(metric()).compute()) == pytest.approx(expected(*data), abs=1e-13)


def test_reset_forgets():
    got = fill(metric(), samples(seed=1), 20)
    got.compute()
    got.reset()
    with pytest.raises(ValueError, match="there is nothing to compute yet: call `update` first"):
        got.ranking()
    data = samples()
    assert values(fill(got, data, 20).compute()) == pytest.approx(expected(*data), abs=1e-13)


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        (([1.0, 2], [1]), "`correct` must have as many rows as `confidence`; got 1 and 2"),
        (([1.0, 2], [1, 0], [1]), "`is_ood` must have as many rows as `confidence`; got 1 and 2"),
        (([1.0, 2], [1, 2]), "`correct` must hold True and False, or 1 and 0; got torch.int64 with other values"),
        (([1.0, 2], [1, 0], [0.5, 0]), "`is_ood` must hold True and False, .*. Confidences come before it"),
        (([1.0, float("nan")], [1, 0]), "`confidence` must not hold NaN.*got 1 of 2, the first at index 1"),
        (([[1.0, 2]], [1]), "`confidence` must be 1-D"),
        (([1.0, 2], [[1], [0]]), r"`correct` must be 1-D.*got shape \(2, 1\)"),
        (([1.0, 2], 1), r"`correct` must be 1-D.*got shape \(\)"),
    ],
)
def test_bad_batches_are_refused_and_leave_no_trace(batch, words):
    got = metric()
    data = samples()
    got.update(*data)
    with pytest.raises(ValueError, match=words):
        got.update(*batch)
    assert values(got.compute()) == pytest.approx(expected(*data), abs=1e-13)


@pytest.mark.parametrize("name", ["alpha", "beta", "recall"])
def test_settings_out_of_range_are_refused(name):
    with pytest.raises(ValueError, match=rf"`{name}` must lie in \[0, 1\]; got 1.5"):
        SelectiveMetrics(**{name: 1.5})


# With torchmetrics


def test_it_is_a_torchmetrics_metric():
    assert issubclass(SelectiveMetrics, torchmetrics.Metric)
    assert sirc.SelectiveMetrics is sirc.metrics.SelectiveMetrics


def test_forward_gives_the_batch_and_remembers_all():
    data = samples()
    got = metric()
    for start in range(0, 60, 30):
        batch = [part[start : start + 30] for part in data]
        assert values(got(*batch)) == pytest.approx(expected(*batch), abs=1e-13)
    assert values(got.compute()) == pytest.approx(expected(*data), abs=1e-13)


def test_forward_on_a_batch_without_right_predictions_loses_nothing():
    """torchmetrics puts the state aside for the batch's value: an error there would lose it."""
    confidence, correct, is_ood = samples()
    order = np.argsort(is_ood, kind="stable")
    data = [part[order] for part in (confidence, correct, is_ood)]
    inside = int((~is_ood).sum())
    got = metric()
    got(*(part[:inside] for part in data))
    assert got(*(part[inside:] for part in data)) == {}
    assert values(got.compute()) == pytest.approx(expected(*data), abs=1e-13)


def test_it_works_in_a_collection():
    data = samples()
    collection = torchmetrics.MetricCollection({"third": metric(), "one": SelectiveMetrics(alpha=1.0, beta=1.0)})
    for start in range(0, 60, 20):
        collection.update(*(part[start : start + 20] for part in data))
    got = {name: float(value) for name, value in collection.compute().items()}
    third, one = expected(*data), expected(*data, alpha=1.0, beta=1.0)
    assert got["third_aurr"] == pytest.approx(third["aurr"], abs=1e-13)
    assert got["one_aurc"] == pytest.approx(one["aurc"], abs=1e-13)
    assert got["third_error"] == got["one_error"] == third["error"]


def test_torchmetrics_merge_state_is_merge():
    data = samples()
    first, second = (fill(metric(), [part[cut] for part in data], 9) for cut in (slice(25), slice(25, None)))
    first.merge_state(second)
    assert values(first.compute()) == pytest.approx(expected(*data), abs=1e-13)


def test_it_is_copied_and_pickled():
    data = samples()
    got = fill(metric(), data, 20)
    for other in (copy.deepcopy(got), pickle.loads(pickle.dumps(got)), got.clone()):
        assert values(other.compute()) == pytest.approx(expected(*data), abs=1e-13)


@pytest.mark.skipif(not torch.distributed.is_available() or sys.platform != "linux", reason="starts two gloo processes")
@pytest.mark.slow
def test_two_processes_gather_what_each_has_seen(tmp_path):
    """Unequal shares in two precisions, one process without OOD input or any at all: both have the figures of all."""
    script = """
        import sys
        import numpy as np
        from sirc import SelectiveMetrics
        import torch.distributed as dist

        folder = sys.argv[1]
        data = np.load(folder + "/data.npz")
        dist.init_process_group("gloo")
        rank = dist.get_rank()
        for cut in (17, 60):
            metric = SelectiveMetrics(alpha=0.3, beta=0.6, recall=0.8)
            mine = np.arange(60)[:cut] if rank == 0 else np.arange(60)[cut:]
            for part in np.array_split(mine, 3) if len(mine) else []:
                confidence = data["confidence"][part].astype(np.float32 if rank else np.float64)
                metric.update(confidence, data["correct"][part], data["is_ood"][part])
            figures = metric.compute()
            again = len(metric.confidence)  # its own batches are back after the gathering
            values = [float(figures[key]) for key in sys.argv[2:]]
            np.save(f"{folder}/{cut}-{rank}.npy", [*values, again])
        dist.barrier()  # whoever is first must not hang up while the other still listens
        dist.destroy_process_group()
    """
    confidence, correct, is_ood = samples()
    order = np.argsort(is_ood, kind="stable")
    confidence, correct, is_ood = confidence[order], correct[order], is_ood[order]
    assert not is_ood[:17].any()
    confidence = confidence.astype(np.float32).astype(float)
    np.savez(tmp_path / "data.npz", confidence=confidence, correct=correct, is_ood=is_ood)
    for done in launched(2, "-c", textwrap.dedent(script), tmp_path, *KEYS, GLOO_SOCKET_IFNAME="lo"):
        assert done.returncode == 0, done.stderr
    figures = expected(confidence, correct, is_ood)
    for cut, batches in ((17, (3, 3)), (60, (3, 0))):
        for rank in range(2):
            got = np.load(tmp_path / f"{cut}-{rank}.npy").tolist()
            assert dict(zip(KEYS, got[:-1], strict=True)) == pytest.approx(figures, abs=1e-13)
            assert got[-1] == batches[rank]


@pytest.mark.slow
def test_without_torchmetrics_it_works_by_itself():
    script = """
        import sys
        sys.modules["torchmetrics"] = None  # any import of it fails
        from sirc import SelectiveMetrics
        assert SelectiveMetrics.__mro__[1].__module__ == "sirc.metrics.accumulator"
        first, second = (SelectiveMetrics(alpha=1.0, beta=1.0) for _ in range(2))
        first.update([3.0, 2.0], [1, 0])
        second.update([1.0], [1])
        print(float(first.compute()["aurc"]))
        first.merge(second)
        print(float(first.compute()["aurc"]))
        first.reset()
        first.update([1.0], [1])
        print(float(first.compute()["aurc"]), len(second.confidence))
    """
    done = python("-c", textwrap.dedent(script))
    assert done.returncode == 0, done.stderr
    got = [float(word) for word in done.stdout.split()]
    assert got == pytest.approx([(0 + 1 / 2) / 2, (0 + 1 / 2 + 1 / 3) / 3, 0, 1])
