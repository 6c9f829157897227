"""Two or three processes that share the rows fit what one process fits, and fail together.

Started as a program, this file is one of those processes: `python test_distributed_fit.py FOLDER`.
"""

import json
import sys
from pathlib import Path

import pytest
import torch

import sirc
from sirc import distributed
from sirc.scores.fitting import rows, second_pass, state
from support import reference
from support.interpreters import launched

K, L, N = 5, 8, 300
LOGITS, Z, Y, WEIGHT, BIAS = reference.model(N, K, L, seed=0)
TRAIN = sirc.Outputs(LOGITS, Z, Y)
HEAD = sirc.Head(WEIGHT, BIAS)
SPECS = ["msp", "vim", "mahalanobis", "knn", "sirc(msp, react, residual, mahalanobis)", "sirc(entropy, vim, knn)"]
NARROW = reference.model(325, 2, 3, seed=1)
VAL, OOD = sirc.Outputs(*reference.model(200, K, L, seed=0, noise=2.0)[:3]), sirc.Outputs(LOGITS[:90] / 3, Z[:90] / 3)
TUNED = ["max_logit_pnorm", "sirc(tempered_msp, residual)", "bayes(entropy, l1)", "sirc(msp, l1, budget=1)"]
TUNED += ["both(msp, bayes(entropy, l1))", "sirc(msp, delta_mahalanobis)", "delta_knn(k=3)"]
NEGATIVE = LOGITS - LOGITS.max(1, keepdims=True) - 1  # of which ViM cannot be made
HOLES = [0, 41, 42, *range(80, 120), 299]

# The specs, the shards (rows, shard size, items without a row), and what is set for the time of the fit.
FITS = {
    "in-sample": (SPECS, (TRAIN, 40, []), {"crossfit": 0}),
    "five folds": (SPECS, (TRAIN, 40, []), {"crossfit": 5}),
    "auto, few rows": (SPECS, (TRAIN, 64, []), {}),
    "fewer shards than processes": (SPECS, (TRAIN, 200, []), {}),
    "one shard": (SPECS, (TRAIN, 1000, []), {"crossfit": 0}),
    "rows skipped": (SPECS, (TRAIN, 40, HOLES), {"crossfit": 5}),
    "rows skipped, in-sample": (SPECS, (TRAIN, 7, HOLES), {"crossfit": 0}),
    "a bank of some rows": (SPECS, (TRAIN, 40, HOLES), {"crossfit": 0, "bank": 60}),
    "a bank of some rows, folds": (SPECS, (TRAIN, 40, []), {"crossfit": 3, "bank": 60}),
    "single scores": (["residual", "knn(k=3)", "mahalanobis"], (TRAIN, 40, []), {}),
    "scod": (["scod", "scod(alpha=0.2)", "bayes(entropy, l1, react)"], (TRAIN, 40, []), {}),
    "scod, a bank of some rows": (["scod"], (TRAIN, 40, HOLES), {"crossfit": 0, "bank": 60, "sample": 100}),
    "scod without labels": (["scod", "both(scod, l1)"], (sirc.Outputs(LOGITS, Z), 40, []), {"val": VAL}),
    "scod of log-probabilities": (["scod"], (sirc.Outputs(NEGATIVE, Z, Y), 40, []), {"sample": 100}),
    "nothing fitted": (["msp", "l1"], (TRAIN, 40, []), {}),
    "logits alone": (["sirc(msp, energy)"], (sirc.Outputs(LOGITS), 40, []), {}),
    "float32": (SPECS, (TRAIN.to(dtype=torch.float32), 40, []), {"crossfit": 5}),
    "in memory": (SPECS, (TRAIN, None, []), {"crossfit": 5, "block": 50}),
    "in memory, one block": (SPECS, (TRAIN, None, []), {"crossfit": 0}),
    "auto, enough rows together": (["sirc(msp, residual, mahalanobis)"], (NARROW, 20, []), {}),
    "auto, enough rows in one": (["sirc(msp, residual, mahalanobis)"], (NARROW, 305, []), {}),
    "tuned": (TUNED, (TRAIN, 40, []), {"val": VAL}),
    "tuned with OOD rows": (TUNED, (TRAIN, None, []), {"val": VAL, "ood": OOD, "block": 50}),
}
# Three processes fit all of them, two some.
FITTED = [(3, case) for case in FITS]
FITTED += [(2, case) for case in ("in-sample", "fewer shards than processes", "rows skipped", "a bank of some rows")]
FITTED += [(2, case) for case in ("scod", "in memory", "auto, enough rows in one", "tuned with OOD rows")]


def source(case, folder):
    """The training data and the head of a case; a store is there already."""
    data, shard_size, _ = FITS[case][1]
    data, head = (data, HEAD) if isinstance(data, sirc.Outputs) else (sirc.Outputs(*data[:3]), sirc.Head(*data[3:]))
    return (data if shard_size is None else sirc.OutputStore(folder / case)), head


def write(case, folder):
    data, shard_size, holes = FITS[case][1]
    data = data if isinstance(data, sirc.Outputs) else sirc.Outputs(*data[:3])
    if shard_size is None:
        return
    store = sirc.OutputStore.create(folder / case, len(data), shard_size=shard_size)
    for i in range(store.num_shards):
        items = range(i * shard_size, min((i + 1) * shard_size, len(data)))
        kept = [item for item in items if item not in holes]
        part = data[kept] if kept else data[:0]
        store.write(i, part, [item for item in items if item in holes])


def run(case, folder, *, shared):
    """Fit a case, with small banks and blocks where it says so."""
    specs, _, settings = FITS[case]
    train, head = source(case, folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(state, "BANK_SIZE", settings.get("bank", 12_500))
        patch.setattr(rows, "BLOCK_ROWS", settings.get("block", 8192))
        patch.setattr(second_pass, "_ROWS", settings.get("sample", 4096))
        tuning = {name: settings[name] for name in ("val", "ood") if name in settings}
        return sirc.fit(
            specs, train, head=head, crossfit=settings.get("crossfit", "auto"), distributed=shared, **tuning
        )


def failing(case, folder):
    """What goes wrong in one process, or in all."""
    rank, store = distributed.rank(), sirc.OutputStore(folder / "five folds")
    if case == "damaged shard":
        sirc.fit("residual", sirc.OutputStore(folder / "damaged"), head=HEAD, distributed=True)
    elif case == "missing shard":
        sirc.fit("residual", sirc.OutputStore(folder / "missing"), head=HEAD, distributed=True)
    elif case == "no rows":
        sirc.fit("msp", sirc.OutputStore(folder / "no rows"), distributed=True)
    elif case == "other specs":
        sirc.fit("msp" if rank else "energy", store, distributed=True)
    elif case == "other head":
        sirc.fit("residual", store, head=sirc.Head(WEIGHT + rank, BIAS), distributed=True)
    elif case == "own part of the rows":
        sirc.fit("l1", TRAIN[rank * 100 : 250], distributed=True)
    elif case == "bad spec in one":
        sirc.fit("nonsense" if rank == 1 else "msp", store, distributed=True)
    elif case == "batches":
        sirc.fit("l1", [TRAIN], distributed=True)
    elif case == "too few rows":
        sirc.fit("knn(k=200)", TRAIN[:150], distributed=True)
    elif case == "second pass":
        with pytest.MonkeyPatch.context() as patch:
            if rank == 1:
                patch.setattr(rows.OutputStore, "shard", Fickle(rows.OutputStore.shard, store.num_shards))
            sirc.fit("sirc(msp, residual)", store, head=HEAD, distributed=True)
    elif case == "changed between passes":
        with pytest.MonkeyPatch.context() as patch:
            if rank == 1:
                patch.setattr(rows.OutputStore, "shard", Fickle(rows.OutputStore.shard, None))
            sirc.fit("sirc(msp, react)", store, head=HEAD, distributed=True)
    elif case == "no value error":
        with distributed.failing_together():
            if rank == 1:
                raise OSError("disk on fire")


class Fickle:
    """Reads shards as it should in the first pass; in the second it fails, or gives other rows."""

    def __init__(self, read, fails):
        self.read, self.fails, self.seen = read, fails, set()

    def __get__(self, store, owner):
        def shard(i):
            again = i in self.seen
            self.seen.add(i)
            if again and self.fails:
                raise MemoryError("no room in the second pass")
            outputs = self.read(store, i)
            return outputs[torch.arange(len(outputs)).flip(0)] if again else outputs

        return shard


FAILURES = [
    "damaged shard",
    "missing shard",
    "no rows",
    "other specs",
    "other head",
    "own part of the rows",
    "bad spec in one",
    "batches",
    "too few rows",
    "second pass",
    "changed between passes",
    "no value error",
]


def odd_tensors(rank):
    """Names, types and shapes that differ between processes."""
    every = {"“ö” {}": torch.tensor(1.5 + rank, dtype=torch.bfloat16), "none": torch.empty(0, 3)}
    if rank == 1:
        every = {"flag": torch.tensor([True, False]), "turned": torch.arange(6).reshape(2, 3).t()}
    return every if rank < 2 else {}


def work(folder):
    """Be one of the processes: fit every case, and leave what came out."""
    alone = (distributed.rank(), distributed.world(), distributed.is_main())
    with distributed.process_group(torch.device("cpu")):
        rank, world = distributed.rank(), distributed.world()
        with distributed.process_group():  # already there: nothing to do
            distributed.barrier()
        out = folder / f"{world}"
        for case in (case for size, case in FITTED if size == world):
            run(case, folder, shared=True).save(out / f"{rank} {case}.safetensors")
        words = {}
        for case in FAILURES:
            try:
                failing(case, folder)
                words[case] = "nothing happened"
            except Exception as error:
                words[case] = f"{type(error).__name__}: {error} {' '.join(getattr(error, '__notes__', []))}"
        words["texts"] = distributed.gather_texts("ä" * rank)
        words["parts"] = [
            {name: [str(x.dtype), x.tolist()] for name, x in part.items()}
            for part in distributed.gather_tensors(odd_tensors(rank))
        ]
        words["first"] = sorted(distributed.broadcast_tensors(odd_tensors(rank)))
        words["who"] = [*alone, rank, world, distributed.is_main()]
    words["after"] = [distributed.rank(), distributed.world()]
    (out / f"{rank}.json").write_text(json.dumps(words), encoding="utf-8")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Everything that two and that three processes found."""
    folder = tmp_path_factory.mktemp("together")
    for case in FITS:
        write(case, folder)
    damaged = sirc.OutputStore.from_outputs(folder / "damaged", TRAIN, shard_size=60).shard_path(1)
    content = bytearray(damaged.read_bytes())
    content[-1] ^= 1
    damaged.write_bytes(content)
    sirc.OutputStore.from_outputs(folder / "missing", TRAIN, shard_size=60).shard_path(3).unlink()
    sirc.OutputStore.create(folder / "no rows", 3, shard_size=2).write(0, TRAIN[:0], [0, 1])
    sirc.OutputStore(folder / "no rows").write(1, TRAIN[:0], [2])
    for world in (2, 3):
        (folder / f"{world}").mkdir()
        ends = launched(world, __file__, folder)
        assert all(done.returncode == 0 for done in ends), "\n".join(done.stderr for done in ends)
    return folder


def heard(folder, world):
    return [json.loads((folder / f"{world}" / f"{rank}.json").read_text(encoding="utf-8")) for rank in range(world)]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`scod` uses fewer witnesses")
@pytest.mark.parametrize(("world", "case"), FITTED)
def test_processes_together_fit_what_one_fits(folder, case, world):
    one = run(case, folder, shared=False)
    files = [folder / f"{world}" / f"{rank} {case}.safetensors" for rank in range(world)]
    assert len({file.read_bytes() for file in files}) == 1  # the same scorer in every process
    many = sirc.Scorer.load(files[0])
    assert many.specs == one.specs
    assert {s: set(p) for s, p in many.parameters.items()} == {s: set(p) for s, p in one.parameters.items()}
    for spec, values in one.parameters.items():
        for name, expected in values.items():
            got = many.parameters[spec][name]
            if name == "bank":
                assert torch.equal(got, expected)
            elif name in ("basis", "whitener"):  # directions are free to turn
                torch.testing.assert_close(got @ got.T, expected @ expected.T, rtol=1e-9, atol=1e-10)
            elif name != "means":
                torch.testing.assert_close(got, expected, rtol=1e-9 if got.dtype == torch.float64 else 1e-6, atol=1e-14)
    data = source(case, folder)[0]
    fresh = data[:40] if isinstance(data, sirc.Outputs) else data.shard(1 % data.num_shards)
    mine, theirs = one(fresh), many(fresh)
    for spec in one.specs:
        scale = float(mine[spec].abs().max())
        tolerance = 1e-9 if fresh.dtype == torch.float64 else 1e-5
        torch.testing.assert_close(theirs[spec], mine[spec], rtol=tolerance, atol=tolerance * scale)


SOME = {  # where it happens, and what the others hear of it
    "damaged shard": (1, r"shard-00001.safetensors' cannot be trusted: its content does not match its checksum"),
    "bad spec in one": (1, "unknown score `nonsense`"),
    "second pass": (1, "no room in the second pass"),
    "no value error": (1, "disk on fire"),
}
ALL = {
    "missing shard": "must be complete to be read; 1 of 5 shards are missing: 3",
    "no rows": "`train` must hold at least one row of ID training data",
    "other specs": "must pass the same arguments to `fit`; process 1 differs from process 0: specs is energy, got msp",
    "other head": "every process must pass the same arguments to `fit`; process 1 differs from process 0: head is ",
    "own part of the rows": "process 1 differs from process 0: rows is 250, got 150. Pass the whole of `train` in each",
    "batches": "must be an `OutputStore` or an `Outputs` with `distributed=True`, so that each process can take its",
    "too few rows": "`knn(k=200)` needs at least 200 training rows to search; got 150",
    "changed between passes": "the second pass over `train` must bring the same rows in the same order as the first",
}


@pytest.mark.slow
@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("case", FAILURES)
def test_an_error_in_one_process_is_heard_in_all(folder, case, world):
    for rank, words in enumerate(heard(folder, world)):
        if case in ALL:
            assert ALL[case] in words[case]
        else:
            where, what = SOME[case]
            assert what in words[case]
            if rank == where:
                assert f"This was process {where} of {world}; the others stopped too." in words[case]
            else:
                kind = {"second pass": "MemoryError", "no value error": "OSError"}.get(case, "ValueError")
                assert words[case].startswith(f"{kind}: process {where} of {world} failed: ")


@pytest.mark.slow
@pytest.mark.parametrize("world", [2, 3])
def test_processes_hear_each_other(folder, world):
    for rank, words in enumerate(heard(folder, world)):
        assert words["texts"] == ["ä" * other for other in range(world)]
        expected = [
            {"“ö” {}": ["torch.bfloat16", 1.5], "none": ["torch.float32", []]},
            {"flag": ["torch.bool", [True, False]], "turned": ["torch.int64", [[0, 3], [1, 4], [2, 5]]]},
            {},
        ]
        assert words["parts"] == expected[:world]
        assert words["first"] == ["none", "“ö” {}"]
        assert words["who"] == [0, 1, True, rank, world, rank == 0]
        assert words["after"] == [0, 1]


def test_a_process_alone_is_the_first_of_one():
    assert (distributed.rank(), distributed.world(), distributed.is_main()) == (0, 1, True)
    distributed.barrier()
    tensors = odd_tensors(1)
    assert distributed.gather_texts("ä") == ["ä"]
    for part in (*distributed.gather_tensors(tensors), distributed.broadcast_tensors(tensors)):
        assert all(torch.equal(part[name], tensors[name]) for name in tensors)
    with distributed.process_group(), distributed.failing_together():
        assert distributed.world() == 1
    with pytest.raises(OSError, match="disk"), distributed.failing_together():
        raise OSError("disk on fire")


def test_more_processes_than_gpus_are_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    variables = {"RANK": 2, "LOCAL_RANK": 2, "WORLD_SIZE": 4, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 1}
    for name, value in variables.items():
        monkeypatch.setenv(name, str(value))
    words = "process 2 of this machine asks for GPU 2 of 2. Launch one process for each GPU"
    with pytest.raises(ValueError, match=words), distributed.process_group(torch.device("cuda")):
        pass


def test_alone_a_distributed_fit_is_a_plain_one():
    one, other = (sirc.fit(SPECS, [TRAIN], head=HEAD, distributed=shared)(TRAIN) for shared in (True, False))
    for spec in SPECS:
        assert torch.equal(one[spec], other[spec])


if __name__ == "__main__":
    work(Path(sys.argv[1]))
