"""Evaluation of stores beyond memory: the same table as in memory, from any chunks, parts, processes and restarts."""

import errno
import shutil

import numpy as np
import pandas as pd
import pytest
import torch

import sirc
from sirc import Outputs, OutputStore, Scorer
from sirc.evaluation import SpilledEvaluation, spilled
from sirc.metrics import Ranking, SortedBlock, ranking_of_blocks, sorted_blocks
from support.interpreters import launched

SPECS = ["msp", "energy", "l1"]
ASKED = {"alpha": [0.2, 0.7], "beta": [0.3, 0.5], "groups": {"Both": ["near/..", "far"]}, "recall": 0.9}


def some_outputs(n, scale, labelled):
    labels = torch.randint(0, 4, (n,))
    logits = torch.randn(n, 4).round(decimals=1)  # ties
    logits[torch.arange(n), labels] += scale
    return Outputs(logits, torch.rand(n, 3).round(decimals=1), labels if labelled else None)


def make_stores(folder):
    torch.manual_seed(0)
    test = OutputStore.from_outputs(folder / "test", some_outputs(230, 2, True), shard_size=16)
    near = OutputStore.from_outputs(folder / "near", some_outputs(90, 1, False), shard_size=7)
    far = OutputStore.from_outputs(folder / "far", some_outputs(41, 0, False), shard_size=50)
    return test, {"near/..": near, "far": far}


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    return make_stores(tmp_path_factory.mktemp("stores"))


@pytest.fixture
def small(monkeypatch):
    """Parts of a few shards, and chunks of a few rows."""
    monkeypatch.setattr(spilled, "_VALUES", 150)
    monkeypatch.setattr(sorted_blocks, "_CHUNK", 40)
    monkeypatch.setattr(sorted_blocks, "_LEAST", 3)


def written(path, values):
    np.sort(np.asarray(values, dtype=np.float64)).tofile(path)
    return SortedBlock(path, 0, 8 * len(values))


@pytest.mark.parametrize("pool", ["samples", "datasets"])
@pytest.mark.slow
def test_the_table_is_that_of_an_evaluation_in_memory(stores, small, tmp_path, pool):
    expected = sirc.evaluate(Scorer(SPECS), *stores, pool=pool, **ASKED)
    ev = sirc.evaluate(Scorer(SPECS), *stores, pool=pool, spill=tmp_path, **ASKED)
    assert isinstance(ev, SpilledEvaluation)
    assert len(list(tmp_path.glob("test-*/*"))) == 5
    # Counts are exact; weights of samples are added up in another order.
    pd.testing.assert_frame_equal(ev.table, expected.table, check_exact=pool == "samples", rtol=1e-12)
    grid = [0.1, 0.5, 0.9], [0.0, 0.4]
    pd.testing.assert_frame_equal(ev.sweep(*grid), expected.sweep(*grid), check_exact=pool == "samples", rtol=1e-12)
    for name in ("sizes", "scores", "negatives"):
        assert getattr(ev, name) == getattr(expected, name)
    assert repr(ev) == repr(expected).replace("Evaluation", "SpilledEvaluation")
    curve, wanted = (x.curves(negative="far", alpha=0.5, beta=0.5)["energy"] for x in (ev, expected))
    assert torch.equal(curve.threshold, wanted.threshold)
    combined = sirc.combine([ev, expected])
    assert combined["std"].max() < 1e-12


def test_without_ood_sets_and_with_some_of_the_scores(stores, tmp_path):
    ev = sirc.evaluate(Scorer(SPECS), stores[0], spill=tmp_path, scores=["energy"])
    expected = sirc.evaluate(Scorer(SPECS), stores[0], scores=["energy"])
    pd.testing.assert_frame_equal(ev.table, expected.table, check_exact=True)


@pytest.mark.parametrize("decimals", [0, 1, 9])
@pytest.mark.parametrize("chunk", [1, 8, 1 << 20])
def test_merged_blocks_rank_as_one_sort_does(tmp_path, monkeypatch, decimals, chunk):
    monkeypatch.setattr(sorted_blocks, "_CHUNK", chunk)
    monkeypatch.setattr(sorted_blocks, "_LEAST", 1)
    rng = np.random.default_rng(0)
    groups = [np.round(rng.standard_normal(n) + shift, decimals) for n, shift in ((60, 1), (25, 0), (40, -1), (3, 0))]
    cut = [np.array_split(group, pieces) for group, pieces in zip(groups, (4, 3, 1, 2), strict=True)]
    found = [[written(tmp_path / f"{i} {j}", part) for j, part in enumerate(parts)] for i, parts in enumerate(cut)]
    ranking = ranking_of_blocks(found[0], found[1], found[2:], tmp_path)
    expected = Ranking(groups[0], groups[1], np.concatenate(groups[2:]))
    for name in ("thresholds", "_correct", "_wrong", "_ood"):
        assert torch.equal(getattr(ranking, name), getattr(expected, name))
    assert (ranking.num_correct, ranking.num_wrong, ranking.num_ood) == (60, 25, 43)
    for recall in (0.0, 0.3, 0.95, 1.0):
        assert ranking.fpr("ood", recall=recall) == expected.fpr("ood", recall=recall)


def test_no_chunk_grows_with_the_rows_nor_with_those_that_are_equal(tmp_path, monkeypatch):
    monkeypatch.setattr(sorted_blocks, "_CHUNK", 64)
    monkeypatch.setattr(sorted_blocks, "_LEAST", 1)
    read = []
    original = SortedBlock.read
    monkeypatch.setattr(SortedBlock, "read", lambda block, *place: read.append(original(block, *place)) or read[-1])
    values = np.concatenate([np.zeros(5000), np.arange(1000.0)])
    chunks = list(sorted_blocks.merged([[written(tmp_path / "a", values)], [written(tmp_path / "b", np.zeros(3000))]]))
    assert max(map(len, read)) <= 32
    assert max(len(thresholds) for thresholds, _ in chunks) <= 64
    assert chunks[-1][1][:, -1].tolist() == [6000, 3000]


class Counting:
    """A scorer's scoring, which counts its shards and may stop before one of them."""

    def __init__(self, monkeypatch, stop=None):
        self.shards, self.stop = 0, stop
        original = Scorer.__call__

        def score(scorer, outputs, **options):
            if self.shards == self.stop:
                raise KeyboardInterrupt
            self.shards += 1
            return original(scorer, outputs, **options)

        monkeypatch.setattr(Scorer, "__call__", score)


@pytest.mark.slow
def test_a_stopped_evaluation_goes_on_from_its_parts(stores, small, tmp_path, monkeypatch):
    test, ood = stores
    expected = sirc.evaluate(Scorer(SPECS), test, ood).table
    with monkeypatch.context() as patch:
        Counting(patch, stop=10)
        with pytest.raises(KeyboardInterrupt):
            sirc.evaluate(Scorer(SPECS), test, ood, spill=tmp_path)
    with monkeypatch.context() as patch:
        again = Counting(patch)
        ev = sirc.evaluate(Scorer(SPECS), test, ood, spill=tmp_path)
        assert again.shards == 15 + 13 + 1 - 9  # three parts of three shards were written
    pd.testing.assert_frame_equal(ev.table, expected, check_exact=True)
    part = next(tmp_path.glob("test-*/*"))
    part.write_bytes(part.read_bytes()[:-8] + b"damaged!")
    with monkeypatch.context() as patch:
        again = Counting(patch)
        ev = sirc.evaluate(Scorer(SPECS), test, ood, spill=tmp_path)
        assert again.shards in (2, 3)
    pd.testing.assert_frame_equal(ev.table, expected, check_exact=True)


def test_another_scorer_or_store_takes_nothing_from_the_folder(stores, tmp_path):
    test, ood = stores
    first = sirc.evaluate(Scorer(SPECS), test, ood, spill=tmp_path)
    other = sirc.evaluate(Scorer(["msp", "max_logit", "l1"]), test, ood, spill=tmp_path).table
    expected = sirc.evaluate(Scorer(["msp", "max_logit", "l1"]), test, ood).table
    pd.testing.assert_frame_equal(other, expected, check_exact=True)
    changed = shutil.copytree(test.path, tmp_path / "changed")
    store = OutputStore(changed)
    store.write(3, OutputStore(changed).shard(4))
    assert not sirc.evaluate(Scorer(SPECS), store, ood, spill=tmp_path).table.equals(first.table)


def test_a_part_that_vanishes_is_missed(stores, tmp_path, monkeypatch):
    monkeypatch.setattr(spilled._SortedStore, "write", lambda self, number, device: None)
    with pytest.raises(sirc.StoreError, match="changed while it was in use"):
        sirc.evaluate(Scorer(SPECS), *stores, spill=tmp_path)


def test_a_full_disk_is_named_with_its_folder(stores, tmp_path, monkeypatch):
    def full(dir):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(sorted_blocks, "TemporaryFile", full)
    with pytest.raises(OSError, match=r"cannot take the counts of 230 rows.*No space left on device\. Make room"):
        sirc.evaluate(Scorer(SPECS), *stores, spill=tmp_path)


def test_a_part_that_was_deleted_later_is_named(stores, tmp_path):
    ev = sirc.evaluate(Scorer(SPECS), *stores, spill=tmp_path)
    for part in tmp_path.rglob("part-*.safetensors"):
        part.unlink()
    with pytest.raises(FileNotFoundError, match=r"part-\d+\.safetensors"):
        ev.ranking(ev.scores[0])


def test_what_cannot_be_spilled_is_refused(stores, tmp_path):
    test, ood = stores
    scorer = Scorer(SPECS)
    unlabelled = ood["far"]
    wrong = {
        "must be a `Scorer`; got dict": ({"msp": ([1.0], [True])}, None, None),
        "`test` must be an `OutputStore`; got Outputs": (scorer, test.load(), ood),
        "`test` must be an `OutputStore`; got NoneType": (scorer, None, ood),
        r"`ood\['x'\]` must be an `OutputStore`; got list": (scorer, test, {"x": [unlabelled.load()]}),
        "`test` must have labels": (scorer, unlabelled, None),
    }
    for words, arguments in wrong.items():
        with pytest.raises(ValueError, match=words):
            sirc.evaluate(*arguments, spill=tmp_path / "new")
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"`spill` must be a folder.*file' is a file"):
        sirc.evaluate(scorer, test, ood, spill=tmp_path / "file")
    with pytest.raises(ValueError, match="`spill` must be a path"):
        sirc.evaluate(scorer, test, ood, spill=3)
    with pytest.raises(ValueError, match="unknown score 'knn'"):
        sirc.evaluate(scorer, test, ood, spill=tmp_path).ranking("knn")
    with pytest.raises(ValueError, match="`device` is for stores that are spilled; got meta without `spill`"):
        sirc.evaluate(scorer, test, ood, device="meta")
    outputs = test.load()
    outputs = outputs[~outputs.correct]
    all_wrong = OutputStore.from_outputs(tmp_path / "wrong", outputs)
    with pytest.raises(ValueError, match="at least one prediction must be right"):
        sirc.evaluate(scorer, all_wrong, ood, spill=tmp_path / "new")


SCRIPT = """
import sys
import sirc
from sirc import OutputStore, Scorer
from sirc.evaluation import spilled

spilled._VALUES = 150
root = sys.argv[1]
with sirc.distributed.process_group():
    sets = {"near/..": OutputStore(root + "/near"), "far": OutputStore(root + "/far")}
    ev = sirc.evaluate(Scorer(["msp", "energy", "l1"]), OutputStore(root + "/test"), sets, spill=root + "/spill")
    ev.table.to_pickle(f"{root}/table {sirc.distributed.rank()}")
"""


@pytest.mark.slow
def test_two_processes_share_the_work_and_have_the_same_table(tmp_path):
    expected = sirc.evaluate(Scorer(SPECS), *make_stores(tmp_path)).table
    for done in launched(2, "-c", SCRIPT, tmp_path, GLOO_SOCKET_IFNAME="lo"):
        assert done.returncode == 0, done.stderr
    for rank in range(2):
        pd.testing.assert_frame_equal(pd.read_pickle(tmp_path / f"table {rank}"), expected, check_exact=True)


@pytest.mark.slow
def test_evaluations_of_other_scores_may_use_the_same_folder(stores, small, tmp_path):
    ev = sirc.evaluate(Scorer(["msp", "energy"]), *stores, spill=tmp_path)
    before = ev.ranking("energy", "far").auroc("ood")
    other = sirc.evaluate(Scorer(["max_logit", "msp"]), *stores, spill=tmp_path)
    assert ev.ranking("energy", "far").auroc("ood") == before
    assert other.ranking("msp", "far").auroc("ood") == ev.ranking("msp", "far").auroc("ood")


def test_what_needs_the_rows_says_so(stores, tmp_path):
    ev = sirc.evaluate(Scorer(["msp"]), *stores, spill=tmp_path)
    with pytest.raises(AttributeError, match="an evaluation on disk has no `compare`, which needs all rows in memory"):
        ev.compare("msp")
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        _ = ev.nonsense
