"""A store is complete or says what is missing, whoever wrote it and however often they were killed."""

import json
import os
import pickle
import shutil
import signal
import sys

import pytest
import torch

from sirc.errors import StoreError
from sirc.outputs import store as stores
from sirc.outputs.outputs import Outputs
from sirc.outputs.store import OutputStore
from support.interpreters import COPIES

SOURCE = {"model": "resnet", "data": "pets, 224 px"}


def make(n=25, *, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(n, 4, generator=generator).to(dtype)
    return Outputs(logits, torch.randn(n, 6, generator=generator), torch.randint(4, (n,), generator=generator))


def same(a, b):
    pairs = [(getattr(a, field), getattr(b, field)) for field in ("logits", "features", "labels")]
    return all(x is y if x is None else x.dtype == y.dtype and torch.equal(x, y) for x, y in pairs)


@pytest.fixture
def outputs():
    return make()


@pytest.fixture
def store(tmp_path, outputs):
    return OutputStore.from_outputs(tmp_path / "store", outputs, shard_size=10, **SOURCE)


def flip(path, at=-3):
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def test_a_store_gives_back_what_was_written(store, outputs):
    opened = OutputStore(store.path)
    assert len(opened) == 25
    assert (opened.num_shards, opened.shard_size, opened.model) == (3, 10, "resnet")
    assert (opened.num_classes, opened.num_features, opened.has_labels, opened.dtype) == (4, 6, True, torch.float32)
    assert opened.complete
    assert same(opened.load(), outputs)
    assert [len(batch) for batch in opened] == [10, 10, 5]
    assert repr(opened) == f"OutputStore('{store.path}', 25 rows, 3 of 3 shards)"


def test_each_shard_holds_its_rows_of_the_dataset(store, outputs):
    for i, batch in enumerate(store):
        assert same(batch, outputs[10 * i : 10 * (i + 1)])


def test_batches_never_span_shards(store, outputs):
    batches = list(store.batches(4))
    assert [len(batch) for batch in batches] == [4, 4, 2, 4, 4, 2, 4, 1]
    assert same(Outputs.cat(batches), outputs)
    assert [len(batch) for batch in store.batches(1000)] == [10, 10, 5]
    with pytest.raises(ValueError, match="`batch_size` must be a whole number"):
        store.batches(0)


def test_iterating_twice_gives_equal_batches(store):
    first, second = list(store), list(store)
    assert len(first) == 3
    assert all(same(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_every_type_is_kept(tmp_path, dtype):
    outputs = make(dtype=dtype)
    store = OutputStore.from_outputs(tmp_path / "s", outputs, shard_size=10)
    assert store.dtype == dtype
    assert same(store.load(), outputs)


def test_logits_alone_are_enough_and_one_shard_is_mapped_whole(tmp_path):
    outputs = Outputs(make().logits)
    store = OutputStore.from_outputs(tmp_path / "s", outputs)
    assert (store.num_shards, store.num_features, store.has_labels) == (1, None, False)
    assert same(store.load(), outputs)


@pytest.mark.parametrize("lengths", [[25], [1] * 25, [7, 7, 7, 4], [10, 10, 5], [3, 22], [24, 1]])
def test_batches_of_any_lengths_make_the_same_files(tmp_path, store, outputs, lengths):
    parts = [(part.logits, part.features, part.labels) for part in map(outputs.__getitem__, _slices(lengths))]
    again = OutputStore.from_outputs(tmp_path / "again", iter(parts), size=25, shard_size=10, **SOURCE)
    for file in sorted(store.path.iterdir()):
        assert (again.path / file.name).read_bytes() == file.read_bytes()


def _slices(lengths):
    ends = torch.tensor(lengths).cumsum(0).tolist()
    return [slice(end - length, end) for end, length in zip(ends, lengths, strict=True)]


def test_the_size_is_counted_where_it_can_be(tmp_path, store, outputs):
    assert len(OutputStore.from_outputs(tmp_path / "a", [outputs, outputs[:3]])) == 28
    assert same(OutputStore.from_outputs(tmp_path / "b", store, shard_size=7).load(), outputs)
    with pytest.raises(ValueError, match=r"`size` must be given for batches that come one by one.*or a list"):
        OutputStore.from_outputs(tmp_path / "c", iter([outputs]))
    assert not (tmp_path / "c").exists()


def test_what_holds_no_rows_and_what_is_no_path_are_told_before_anything_is_written(tmp_path, outputs):
    for empty in ([], outputs[:0], [outputs[:0]]):
        with pytest.raises(ValueError, match="`source` must have at least one row; got none"):
            OutputStore.from_outputs(tmp_path / "s", empty)
    with pytest.raises(ValueError, match="`source` must be outputs, or batches of them; got int"):
        OutputStore.from_outputs(tmp_path / "s", 3, size=3)
    assert not (tmp_path / "s").exists()
    for make_one in (OutputStore.create, OutputStore.from_outputs):
        with pytest.raises(ValueError, match=r"`path` must be a path, as text or `pathlib.Path`; got int"):
            make_one(3, outputs)


@pytest.mark.parametrize(("size", "found"), [(24, "at least 25"), (26, "25"), (20, "at least 25"), (40, "25")])
def test_a_wrong_size_is_noticed(tmp_path, outputs, size, found):
    with pytest.raises(
        ValueError, match=rf"`size` must be the total number of rows; got {size}, .* have {found}. Pass"
    ):
        OutputStore.from_outputs(tmp_path / "s", [outputs], size=size, shard_size=10)


def test_a_store_is_not_made_over_another_unless_told(store, outputs):
    with pytest.raises(FileExistsError, match=r"exists already. Pass `overwrite=True`"):
        OutputStore.from_outputs(store.path, outputs)
    with pytest.raises(ValueError, match="a store cannot be made from itself"):
        OutputStore.from_outputs(store.path, store, overwrite=True)
    assert store.complete
    new = OutputStore.from_outputs(store.path, outputs[:7], shard_size=5, overwrite=True)
    assert same(new.load(), outputs[:7])
    assert sorted(p.name for p in new.path.iterdir()) == ["meta.json"] + [f"shard-0000{i}.safetensors" for i in (0, 1)]


def test_an_interrupted_store_is_resumed(tmp_path, outputs):
    store = OutputStore.create(tmp_path / "s", 25, shard_size=10)
    assert store.missing == [0, 1, 2]
    with pytest.raises(StoreError, match=r"has no shard yet. Write one with `store.write"):
        _ = store.num_classes
    store.write(1, outputs[10:20])
    for act in (store.load, lambda: store.batches(5), lambda: iter(store), store.verify):
        with pytest.raises(StoreError, match=r"must be complete to be read; 2 of 3 shards are missing: 0, 2. Resume"):
            act()
    assert store.num_classes == 4
    resumed = OutputStore.create(tmp_path / "s", 25, shard_size=10)
    assert resumed.missing == [0, 2]
    for i in resumed.missing:
        resumed.write(i, outputs[10 * i : 10 * i + 10])
    assert resumed.complete
    assert same(store.load(), outputs)


def test_many_missing_shards_are_abridged(tmp_path):
    store = OutputStore.create(tmp_path / "s", 100, shard_size=1)
    with pytest.raises(StoreError, match="100 of 100 shards are missing: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, …"):
        store.load()


def test_other_settings_do_not_open_a_store(store):
    words = r"is another store, with other settings: size is 25, got 26, shard_size is 10, got 8192\. .* Choose another"
    with pytest.raises(StoreError, match=words):
        OutputStore.create(store.path, 26, **SOURCE)
    assert store.complete
    emptied = OutputStore.create(store.path, 26, overwrite=True)
    assert (len(emptied), emptied.missing) == (26, [0])


def test_a_folder_with_other_things_is_left_alone(tmp_path):
    (tmp_path / "shard-00000.safetensors").write_bytes(b"mine")
    for overwrite in (False, True):
        with pytest.raises(StoreError, match=r"a store must have a folder of its own; .* Choose another path"):
            OutputStore.create(tmp_path, 5, overwrite=overwrite)
    with pytest.raises(StoreError, match="folder of its own"):
        OutputStore.create(tmp_path / "shard-00000.safetensors", 5)
    assert (tmp_path / "shard-00000.safetensors").read_bytes() == b"mine"


def test_leftovers_of_killed_writers_do_no_harm(tmp_path, store):
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / ".meta.json.1-ab.tmp").write_bytes(b"half")
    assert OutputStore.create(tmp_path / "new", 5).missing == [0]
    (store.path / ".shard-00001.safetensors.1-ab.tmp").write_bytes(b"half")
    assert store.complete
    OutputStore.create(store.path, 5, overwrite=True)
    assert [p.name for p in store.path.iterdir()] == ["meta.json"]


@pytest.mark.parametrize("settings", [{"size": 0}, {"shard_size": 0}, {"size": 2.5}, {"model": 3}, {"data": 3}])
def test_bad_settings_are_refused(tmp_path, settings):
    with pytest.raises(ValueError, match=rf"`{next(iter(settings))}` must be a"):
        OutputStore.create(tmp_path / "s", **({"size": 5} | settings))
    assert not (tmp_path / "s").exists()


def test_only_fitting_shards_are_written(tmp_path, outputs):
    store = OutputStore.create(tmp_path / "s", 25, shard_size=10)
    with pytest.raises(ValueError, match=r"shard 2 must have one row for each .* 20…24 .*, 5 rows; got 10"):
        store.write(2, outputs[:10])
    with pytest.raises(ValueError, match="`i` must be a shard in 0…2; got 3"):
        store.write(3, outputs[:5])
    store.write(0, outputs[:10])
    part = outputs[10:20]
    others = {
        "num_classes is 4, got 5": Outputs(torch.zeros(10, 5), part.features, part.labels),
        "num_features is 6, got 2": Outputs(part.logits, torch.zeros(10, 2), part.labels),
        "labels is True, got False": Outputs(part.logits, part.features),
        "dtype is torch.float32, got torch.float16": Outputs(part.logits.half(), part.features, part.labels),
        "features_dtype is torch.float32, got torch.float64": Outputs(part.logits, part.features.double(), part.labels),
    }
    for words, other in others.items():
        for writer in (store, OutputStore(store.path)):
            with pytest.raises(StoreError, match=rf"must be alike; shard 1 is not: {words}"):
                writer.write(1, other)
    assert store.missing == [1, 2]


def test_shards_of_writers_that_raced_and_disagree_are_noticed(tmp_path, store):
    other = OutputStore.from_outputs(tmp_path / "o", make(dtype=torch.float16), shard_size=10, **SOURCE)
    shutil.copy(other.shard_path(1), store.shard_path(1))
    with pytest.raises(StoreError, match=r"shard-00001.safetensors' is not: dtype is torch.float32, got torch.float16"):
        OutputStore(store.path).load()


def test_a_damaged_shard_is_noticed_on_reading(store):
    flip(store.shard_path(1))
    batches = iter(OutputStore(store.path))
    assert len(next(batches)) == 10
    with pytest.raises(StoreError, match=r"shard-00001.safetensors' cannot be trusted: its content does not match its"):
        next(batches)


def test_a_truncated_shard_is_noticed(store):
    store.shard_path(0).write_bytes(store.shard_path(0).read_bytes()[:-1])
    with pytest.raises(StoreError, match=r"shard-00000.*not a whole safetensors file.*If sirc wrote it, delete it"):
        OutputStore(store.path).load()


def test_a_shard_in_the_wrong_place_is_noticed(tmp_path, store, outputs):
    shutil.copy(store.shard_path(0), store.shard_path(1))
    with pytest.raises(StoreError, match=r"written for another place: shard is 1, got 0. If sirc wrote it, delete it"):
        OutputStore(store.path).load()
    other = OutputStore.from_outputs(tmp_path / "o", outputs, shard_size=10, **SOURCE | {"model": "vit"})
    shutil.copy(other.shard_path(1), store.shard_path(1))
    with pytest.raises(StoreError, match=r"was written for another place: model is resnet, got vit"):
        OutputStore(store.path).load()


def test_verify_names_every_damaged_shard(store, outputs):
    store.verify()
    flip(store.shard_path(0))
    flip(store.shard_path(2))
    with pytest.raises(StoreError) as caught:
        OutputStore(store.path).verify()
    assert [line.split("'")[1] for line in str(caught.value).splitlines()] == [str(store.shard_path(i)) for i in (0, 2)]
    for i in (0, 2):
        store.shard_path(i).unlink()
    resumed = OutputStore(store.path)
    for i in resumed.missing:
        resumed.write(i, outputs[10 * i : 10 * i + 10])
    resumed.verify()
    assert same(resumed.load(), outputs)


def test_checksums_are_compared_once_per_store(store, monkeypatch):
    compared = []
    read = stores.read_safetensors

    def watched(path, *, verify):
        compared.extend([path.name] if verify else [])
        return read(path, verify=verify)

    monkeypatch.setattr(stores, "read_safetensors", watched)
    opened = OutputStore(store.path)
    assert opened.num_classes == 4
    list(opened)
    list(opened.batches(3))
    opened.load()
    assert sorted(compared) == [f"shard-0000{i}.safetensors" for i in range(3)]
    opened.verify()
    assert len(compared) == 6


def test_a_store_from_another_model_is_refused(tmp_path, store, outputs):
    store.check_model("resnet")
    with pytest.raises(StoreError, match=r"is a store from another model: it has 'resnet', this one is 'vit'. Extract"):
        store.check_model("vit")
    OutputStore.from_outputs(tmp_path / "unnamed", outputs).check_model("vit")


def test_a_store_of_other_data_is_refused(tmp_path, store, outputs):
    store.check_data("pets, 224 px")
    words = (
        r"is a store from other data \(or preprocessing\): it has 'pets, 224 px', this one is 'pets, 448 px'. Extract"
    )
    with pytest.raises(StoreError, match=words):
        store.check_data("pets, 448 px")
    OutputStore.from_outputs(tmp_path / "unnamed", outputs).check_data("pets, 448 px")


def test_a_store_is_not_resumed_with_another_model_or_other_data(store):
    way_out = r"Choose another folder or delete this one, or pass `create\(…, overwrite=True\)` to delete its shards"
    with pytest.raises(StoreError, match=rf"other settings: model is resnet, got vit. .* {way_out}"):
        OutputStore.create(store.path, 25, shard_size=10, **SOURCE | {"model": "vit"})
    words = "data is pets, 224 px, got birds"
    with pytest.raises(StoreError, match=rf"other settings: {words}. `model` and `data` are fingerprints"):
        OutputStore.create(store.path, 25, shard_size=10, **SOURCE | {"data": "birds"})
    with pytest.raises(StoreError, match=rf"size is 25, got 26, model is resnet, got vit, {words}"):
        OutputStore.create(store.path, 26, shard_size=10, model="vit", data="birds")
    assert OutputStore.create(store.path, 25, shard_size=10, **SOURCE).complete


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"{", "meta.json' is damaged: .* make the store again"),
        (b"\xff\xfe\x00", "meta.json' is damaged"),
        (b"[1]", "must be a store, of format sirc.OutputStore and version 2; its meta.json has None"),
        (b'{"format": "zarr"}', r"has \('zarr', None\). Check the path"),
        (b'{"format": "sirc.OutputStore", "version": 3}', r"version 2; .* 3\). Check .* update sirc"),
        (
            b'{"format": "sirc.OutputStore", "version": 1}',
            r"version 2; .* 1\). .* delete the folder and make the store again",
        ),
        (b'{"format": "sirc.OutputStore", "version": 2, "size": 3}', "meta.json' is damaged: .*'shard_size'"),
        (
            b'{"format": "sirc.OutputStore", "version": 2, "size": -3, "shard_size": 1, "model": "", "data": "",'
            b' "how": ""}',
            "damaged: `size` must be a whole number ≥ 1; got -3",
        ),
    ],
)
def test_a_bad_meta_file_is_described(store, content, words):
    (store.path / "meta.json").write_bytes(content)
    with pytest.raises(StoreError, match=words):
        OutputStore(store.path)


def test_what_is_no_store_is_described(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    for path in (tmp_path, tmp_path / "nothing", tmp_path / "file"):
        with pytest.raises(
            StoreError,
            match=r"there is no store at .*has no meta.json. Check the path, or make one with `OutputStore.create`",
        ):
            OutputStore(path)


def test_meta_is_json_that_people_can_read(store):
    assert json.loads((store.path / "meta.json").read_text(encoding="utf-8")) == {
        "format": "sirc.OutputStore",
        "version": 2,
        "size": 25,
        "shard_size": 10,
        "model": "resnet",
        "data": "pets, 224 px",
        "how": None,
    }


def lacking(path, outputs, skipped, shard_size=10):
    """A store without the rows of some items."""
    store = OutputStore.create(path, len(outputs), shard_size=shard_size, **SOURCE)
    for i in range(store.num_shards):
        items = range(shard_size * i, min(shard_size * (i + 1), len(outputs)))
        kept = [item for item in items if item not in skipped]
        store.write(i, outputs[kept] if kept else outputs[:0], [item for item in items if item in skipped])
    return store


@pytest.mark.parametrize(
    "skipped", [[3], [0, 9, 24], [*range(10), 15], [*range(10, 20)], [*range(20, 25)], [*range(25)]]
)
def test_items_whose_image_cannot_be_read_have_no_row(tmp_path, outputs, skipped):
    written = lacking(tmp_path / "s", outputs, skipped)
    kept = [item for item in range(25) if item not in skipped]
    for store in (written, OutputStore(written.path)):
        assert (store.skipped, len(store), store.size) == (skipped, len(kept), 25)
        assert repr(store) == f"OutputStore('{store.path}', {len(kept)} of 25 rows, 3 of 3 shards)"
        store.verify()
        assert same(store.load(), outputs[torch.tensor(kept, dtype=torch.int64)])
        assert sum(len(batch) for batch in store.batches(4)) == len(kept)
        assert all(len(batch) for batch in store)
        assert torch.cat([store.index(i) for i in range(3)]).tolist() == kept
        for i in range(3):
            assert store.index(i).dtype == torch.int64
            assert same(store.shard(i), outputs[store.index(i)])


@pytest.mark.slow
@pytest.mark.parametrize("skipped", [[], [3], [0, 9, 24], [*range(12), 15], [*range(25)]])
@pytest.mark.parametrize("shard_size", [1, 4, 10, 100])
def test_a_store_cut_anew_keeps_its_items(tmp_path, outputs, skipped, shard_size):
    store = lacking(tmp_path / "s", outputs, skipped)
    again = OutputStore.from_outputs(tmp_path / "again", store, shard_size=shard_size)
    alone = lacking(tmp_path / "alone", outputs, skipped, shard_size)
    assert again.skipped == skipped
    for file in sorted(alone.path.iterdir()):
        assert (again.path / file.name).read_bytes() == file.read_bytes()
    with pytest.raises(ValueError, match=r"`size` must be that of the store, 25; got 24. Leave it out"):
        OutputStore.from_outputs(tmp_path / "c", store, size=24)


def test_the_length_of_an_unfinished_store_counts_what_may_still_come(tmp_path, outputs):
    store = OutputStore.create(tmp_path / "s", 25, shard_size=10)
    other = OutputStore(store.path)
    assert (len(store), store.skipped) == (25, [])
    store.write(1, outputs[10:18], skipped=[18, 19])
    for opened in (store, other, OutputStore(store.path)):
        assert (len(opened), opened.skipped, opened.missing) == (23, [18, 19], [0, 2])
        assert repr(opened).endswith("23 of 25 rows, 1 of 3 shards)")
    store.write(1, outputs[10:20])
    assert len(store) == 25


def test_a_single_shard_is_read_while_others_are_missing(tmp_path, outputs):
    store = OutputStore.create(tmp_path / "s", 25, shard_size=10)
    store.write(1, outputs[10:20])
    assert same(store.shard(1), outputs[10:20])
    for read in (store.shard, store.index):
        with pytest.raises(StoreError, match=r"has no shard 0 yet. Write it with `store.write\(0, outputs\)`"):
            read(0)
        for i in (-1, 3):
            with pytest.raises(ValueError, match=rf"`i` must be a shard in 0…2; got {i}"):
                read(i)
    flip(store.shard_path(1))
    with pytest.raises(StoreError, match="does not match its checksum"):
        OutputStore(store.path).shard(1)


def test_the_skipped_and_the_rows_make_up_a_shard(tmp_path, outputs):
    store = OutputStore.create(tmp_path / "s", 25, shard_size=10)
    rule = "`skipped` must be different dataset items of shard 1, 10…19; got"
    with pytest.raises(ValueError, match=rf"{rule} \[3\]. Count from the start of the dataset"):
        store.write(1, outputs[:9], skipped=[3])
    with pytest.raises(ValueError, match=rf"{rule} \[13, 13\]"):
        store.write(1, outputs[:8], skipped=[13, 13])
    with pytest.raises(ValueError, match=r"shard 1 must have one row for each .*, 9 rows; got 8"):
        store.write(1, outputs[:8], skipped=[13])
    with pytest.raises(ValueError, match=r"shard 1 must have .*, 10 rows; got 8. Name items without a row"):
        store.write(1, outputs[:8])
    store.write(1, outputs[:7], skipped=torch.tensor([13, 11, 12]))
    assert store.skipped == [11, 12, 13]


@pytest.mark.parametrize("text", [b"14,13", b"3,,14", b"11,91", b"14,14", b"spam!"])
def test_a_header_that_skips_nonsense_is_not_believed(tmp_path, outputs, text):
    store = lacking(tmp_path / "s", outputs, [11, 13])
    store.shard_path(1).write_bytes(
        store.shard_path(1).read_bytes().replace(b'"skipped":"11,13"', b'"skipped":"%b"' % text)
    )
    opened = OutputStore(store.path)
    with pytest.raises(StoreError, match=r"shard-00001.safetensors' cannot be trusted: it gives the items it skips as"):
        len(opened)
    assert "25 rows" in repr(opened)
    with pytest.raises(StoreError, match=r"shard-00001.safetensors' cannot be trusted: its content does not match"):
        opened.shard(1)


def test_the_skipped_are_read_off_the_headers_once(tmp_path, outputs, monkeypatch):
    store = OutputStore(lacking(tmp_path / "s", outputs, [11, 13]).path)
    read, looked = stores.read_metadata, []
    monkeypatch.setattr(stores, "read_safetensors", lambda *_, **__: pytest.fail("the data were read"))
    monkeypatch.setattr(stores, "read_metadata", lambda path: looked.append(path.name) or read(path))
    for _ in range(3):
        assert (len(store), store.skipped) == (23, [11, 13])
    assert looked == [f"shard-0000{i}.safetensors" for i in range(3)]


def test_a_store_travels_to_worker_processes(store, outputs):
    assert same(pickle.loads(pickle.dumps(store)).load(), outputs)


def _anonymous_memory():
    with open("/proc/self/status", encoding="utf-8") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("RssAnon"))


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_reading_maps_one_shard_at_a_time_and_copies_nothing(tmp_path):
    rows = Outputs(torch.zeros(1024, 1000))
    store = OutputStore.from_outputs(tmp_path / "s", [rows] * 24, shard_size=1024)  # 98 MB
    list(store.batches(10_000))
    before = _anonymous_memory()
    most_mapped = 0
    for batch in store.batches(512):
        assert batch.logits.sum() == 0
        with open("/proc/self/maps", encoding="utf-8") as maps:
            most_mapped = max(most_mapped, len({line.split()[-1] for line in maps if str(store.path) in line}))
    assert most_mapped <= 2
    assert _anonymous_memory() - before < 8 << 20


def _write_all(path, order, kill_at):
    outputs = make()
    store = OutputStore.create(path, 25, shard_size=5)
    for i in order:
        if i == kill_at:
            os.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
        store.write(i, outputs[5 * i : 5 * i + 5])


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL")
def test_processes_that_race_and_die_leave_a_store_that_one_can_finish(tmp_path, outputs):
    path = tmp_path / "s"
    plans = [([0, 1, 2], None), ([2, 1, 0, 4, 3], 3)]
    workers = [COPIES.Process(target=_write_all, args=(path, *plan)) for plan in plans]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(600)
    assert [worker.exitcode for worker in workers] == [0, -signal.SIGKILL]
    store = OutputStore.create(path, 25, shard_size=5)
    assert store.missing == [3]
    store.write(3, outputs[15:20])
    store.verify()
    alone = OutputStore.from_outputs(tmp_path / "alone", outputs, shard_size=5)
    for i in range(5):
        assert store.shard_path(i).read_bytes() == alone.shard_path(i).read_bytes()
