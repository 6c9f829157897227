"""Extraction keeps what the model said about every row, survives kills, and is the same for any number of processes."""

import errno
import os
import runpy
import signal
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, Subset, TensorDataset

import sirc
from sirc._utils.parts import Parts
from sirc.data import image_folder
from sirc.data.preprocess import Preprocess
from sirc.errors import ImageError
from sirc.extraction.writer import Shard
from sirc.progress import Progress
from support.interpreters import launched, python

K, L = 5, 16


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(12, L), nn.ReLU(), nn.Dropout(0.5), nn.Linear(L, K))


def rows(count=100, seed=1):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 3, 2, 2, generator=generator)
    return TensorDataset(x, torch.randint(0, K, (count,), generator=generator))


def expected(model, data):
    """A plain loop in evaluation mode: logits, features, labels."""
    x = torch.stack([item[0] for item in data])
    y = torch.tensor([int(item[1]) for item in data])
    z = torch.relu(x.flatten(1) @ model[1].weight.T + model[1].bias).detach()
    return (z @ model[4].weight.T + model[4].bias).detach(), z, y


def check(outputs, model, data):
    logits, features, labels = expected(model, data)
    torch.testing.assert_close(outputs.logits, logits, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(outputs.features, features, atol=1e-5, rtol=1e-5)
    assert torch.equal(outputs.labels, labels)


def contents(folder):
    return {file.name: file.read_bytes() for file in sorted(Path(folder).iterdir())}


def test_outputs_in_memory_are_those_of_a_plain_loop():
    model, data = network(), rows()
    outputs = sirc.extract(model, data, batch_size=7)
    assert isinstance(outputs, sirc.Outputs)
    check(outputs, model, data)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_store_holds_the_same_rows_in_the_same_order(tmp_path, workers):
    model, data = network(), rows()
    store = sirc.extract(model, data, tmp_path / "s", batch_size=7, workers=workers, shard_size=32)
    assert isinstance(store, sirc.OutputStore)
    assert store.num_shards == 4
    check(store.load(), model, data)


def test_the_model_is_left_as_it_was():
    model = network()
    model[4].eval()
    sirc.extract(model, rows())
    assert model.training
    assert model[3].training
    assert not model[4].training
    assert not model[4]._forward_pre_hooks


def test_batches_restart_at_each_shard(tmp_path):
    sizes = []
    model = network()
    model.register_forward_pre_hook(lambda _, args: sizes.append(len(args[0])))
    sirc.extract(model, rows(70), tmp_path / "s", batch_size=20, shard_size=32, head="4")
    assert sizes == [20, 12, 20, 12, 6]


def test_a_loader_s_own_batch_size_workers_and_collation_are_used():
    model, data = network(), rows(30)
    sizes = []
    model.register_forward_pre_hook(lambda _, args: sizes.append(len(args[0])))

    def doubled(items):
        return {"x": 2 * torch.stack([x for x, _ in items]), "labels": torch.stack([y for _, y in items])}

    outputs = sirc.extract(model, DataLoader(data, batch_size=8, collate_fn=doubled), head="4")
    assert sizes == [8, 8, 8, 6]
    twice = TensorDataset(2 * data.tensors[0], data.tensors[1])
    logits, _, labels = expected(model, twice)
    torch.testing.assert_close(outputs.logits, logits, atol=1e-5, rtol=1e-5)
    assert torch.equal(outputs.labels, labels)


def test_a_loader_in_a_fixed_order_of_its_own_gives_that_order():
    model, data = network(), rows(20)
    order = list(range(19, -1, -2))
    outputs = sirc.extract(model, DataLoader(data, batch_size=3, sampler=order))
    check(outputs, model, [data[i] for i in order])
    batches = BatchSampler(order, 4, drop_last=False)
    check(sirc.extract(model, DataLoader(data, batch_sampler=batches)), model, [data[i] for i in order])


def test_a_shuffling_loader_is_refused():
    with pytest.raises(ValueError, match="this DataLoader shuffles"):
        sirc.extract(network(), DataLoader(rows(), batch_size=8, shuffle=True))
    with pytest.raises(ValueError, match="this DataLoader shuffles"):
        sirc.extract(network(), DataLoader(rows(), batch_size=None, shuffle=True))
    shared = torch.utils.data.DistributedSampler(rows(), num_replicas=2, rank=0, shuffle=False)
    with pytest.raises(ValueError, match="this DataLoader shuffles, or takes a share"):
        sirc.extract(network(), DataLoader(rows(), batch_size=8, sampler=shared))
    sampler = torch.utils.data.SubsetRandomSampler(range(100))
    with pytest.raises(ValueError, match="this DataLoader shuffles"):
        sirc.extract(network(), DataLoader(rows(), batch_size=8, sampler=sampler))


def test_data_that_augments_are_refused():
    class Flipped(Dataset):
        def __len__(self):
            return 40

        def __getitem__(self, index):
            x = torch.arange(12.0).reshape(3, 2, 2) + index
            return (x.flip(-1) if torch.rand(()) < 0.5 else x), 0

    torch.manual_seed(0)
    for _ in range(20):
        with pytest.raises(ValueError, match="differs when read again"):
            sirc.extract(network(), Flipped())


def test_empty_data_are_refused():
    with pytest.raises(ValueError, match="it is empty"):
        sirc.extract(network(), Subset(rows(), []))
    with pytest.raises(ValueError, match="it is empty"):
        sirc.extract(network(), iter([]))


@pytest.mark.parametrize("what", ["a word", 3, torch.zeros(2, 3, 2, 2), {"x": 1}])
def test_what_is_no_data_is_refused(what):
    with pytest.raises(ValueError, match="`data` must be a Dataset, a DataLoader or an iterable"):
        sirc.extract(network(), what)


def test_what_is_no_model_is_refused():
    with pytest.raises(ValueError, match=r"`model` must be a torch.nn.Module; got function"):
        sirc.extract(lambda x: x, rows())


def test_iterables_are_read_as_they_come(tmp_path):
    class Stream(IterableDataset):
        def __iter__(self):
            yield from rows(30)

    model = network()
    check(sirc.extract(model, DataLoader(Stream(), batch_size=8)), model, rows(30))
    check(sirc.extract(model, iter(DataLoader(rows(30), batch_size=8))), model, rows(30))
    store = sirc.extract(model, DataLoader(Stream(), batch_size=8), tmp_path / "s", size=30, shard_size=16)
    check(store.load(), model, rows(30))
    with pytest.raises(ValueError, match="`size`, the number of rows, must be given"):
        sirc.extract(model, DataLoader(Stream(), batch_size=8), tmp_path / "t")


def test_labels_may_be_left_out_and_wrong_ones_are_explained():
    model = network()
    x = rows(10).tensors[0]
    assert sirc.extract(model, TensorDataset(x)).labels is None
    foreign = TensorDataset(x, torch.full((10,), 77))
    with pytest.raises(ValueError, match=r"`labels`.*77.*Pass `labels=False` for OOD data"):
        sirc.extract(model, foreign)
    assert sirc.extract(model, foreign, labels=False).labels is None
    with pytest.raises(ValueError, match="one whole number for each of the 10 inputs"):
        sirc.extract(model, TensorDataset(x, torch.rand(10, 4)))


def test_features_may_be_left_out_and_the_head_named():
    model = network()
    assert sirc.extract(model, rows(10), features=False).features is None
    assert sirc.extract(model, rows(10), head="4").num_features == L
    with pytest.raises(ValueError, match=r"`name` must be an nn\.Linear"):
        sirc.extract(model, rows(10), head="9")


def test_a_wrong_layer_leaves_no_store_that_refuses_the_right_one(tmp_path):
    for wrong in ("typo", sirc.Head(torch.ones(K, L), name="typo")):
        with pytest.raises(ValueError, match="Sequential has no 'typo'"):
            sirc.extract(network(), rows(10), tmp_path / "s", head=wrong)
        assert not (tmp_path / "s").exists()
    assert len(sirc.extract(network(), rows(10), tmp_path / "s", head="4")) == 10


def test_precision_and_stored_dtype(tmp_path):
    model, data = network(), rows(40)
    half = sirc.extract(model, data, dtype=torch.float16)
    assert half.dtype == half.features.dtype == torch.float16
    torch.testing.assert_close(half.logits.float(), expected(model, data)[0], atol=1e-2, rtol=1e-2)
    narrow = sirc.extract(model, data, tmp_path / "s", precision="bf16").load()
    torch.testing.assert_close(narrow.logits, expected(model, data)[0], atol=0.05, rtol=0.05)
    by_hand = narrow.features.float() @ model[4].weight.T + model[4].bias
    torch.testing.assert_close(narrow.logits, by_hand.detach(), atol=1e-6, rtol=1e-5)  # the head keeps every digit
    with pytest.raises(sirc.StoreError, match=r"how is .* bf16"):
        sirc.extract(model, data, tmp_path / "s")


@pytest.mark.parametrize(
    "options",
    [{"head": "1"}, {"features": False}, {"labels": False}, {"dtype": torch.float16}, {"precision": "bf16"}],
    ids=str,
)
@pytest.mark.parametrize("whole", [True, False], ids=["complete", "one shard missing"])
def test_other_settings_over_a_store_are_refused(tmp_path, options, whole):
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.layers = nn.ModuleList([nn.Linear(12, K), nn.Linear(12, K)])

        def forward(self, x):
            self.layers[1](x.flatten(1))
            return self.layers[0](x.flatten(1))

    if "head" in options:
        model, options = Twice(), {"head": "layers.1"}
    else:
        model = network()
    sirc.extract(model, rows(), tmp_path / "s", shard_size=32)
    if not whole:
        (tmp_path / "s" / "shard-00001.safetensors").unlink()
    before = contents(tmp_path / "s")
    with pytest.raises(sirc.StoreError, match="other settings: how is"):
        sirc.extract(model, rows(), tmp_path / "s", shard_size=32, **options)
    assert contents(tmp_path / "s") == before


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"precision": "fp16"}, '`precision` must be "fp32" or "bf16"'),
        ({"shard_size": 0}, "`shard_size`"),
        ({"workers": 1.5}, "`workers` must be a whole number"),
        ({"batch_size": 0}, "`batch_size`"),
        ({"size": 5}, "`size` must be the length of the data, 100; got 5"),
        ({"dtype": "float16"}, r"`dtype` must be a dtype of torch, such as torch\.float16; got str"),
        ({"head": 4}, "`head` must be a `sirc.Head`, or the name of a layer; got int"),
    ],
    ids=str,
)
def test_bad_arguments_are_answered_with_their_rule(options, words):
    with pytest.raises(ValueError, match=words):
        sirc.extract(network(), rows(), **options)


def test_a_swapped_activation_is_another_model(tmp_path):
    model, other = network(), network()
    other[2] = nn.Tanh()
    sirc.extract(model, rows(), tmp_path / "s")
    with pytest.raises(sirc.StoreError, match="other settings: model is"):
        sirc.extract(other, rows(), tmp_path / "s")


def test_another_function_as_transform_is_other_data(tmp_path):
    images = folder_of_images(tmp_path / "images")
    bright, dark = (images.with_transform(lambda _, c=c: torch.full((3, 2, 2), c)) for c in (1.0, 0.5))
    assert bright.fingerprint != dark.fingerprint
    assert bright.fingerprint == images.with_transform(bright.transform).fingerprint


def test_not_a_number_is_told_with_its_row(tmp_path):
    x = rows(40).tensors[0].clone()
    x[37] = torch.nan
    with pytest.raises(ValueError, match=r"must be finite; got .* at \[5, 0\].*counted from item 32"):
        sirc.extract(network(), TensorDataset(x), tmp_path / "s", shard_size=32, features=False)
    assert sirc.OutputStore(tmp_path / "s").missing == [1]


def test_another_model_or_other_data_are_refused(tmp_path):
    model, data = network(), rows()
    store = sirc.extract(model, data, tmp_path / "s", shard_size=32)
    before = contents(store.path)
    with pytest.raises(sirc.StoreError, match="other settings: model is"):
        sirc.extract(network(seed=1), data, store.path, shard_size=32)
    with pytest.raises(sirc.StoreError, match="other settings: data is"):
        sirc.extract(model, rows(seed=2), store.path, shard_size=32)
    with pytest.raises(sirc.StoreError, match="other settings: size"):
        sirc.extract(model, Subset(data, range(50)), store.path, shard_size=32)
    assert contents(store.path) == before
    other = sirc.extract(network(seed=1), data, store.path, shard_size=32, overwrite=True)
    check(other.load(), network(seed=1), data)


def test_a_finished_store_is_not_computed_again(tmp_path):
    model, data = network(), rows()
    sirc.extract(model, data, tmp_path / "s", shard_size=32)
    before = contents(tmp_path / "s")
    model.register_forward_pre_hook(lambda *_: pytest.fail("the model ran"))
    sirc.extract(model, data, tmp_path / "s", shard_size=32)
    assert contents(tmp_path / "s") == before


def test_only_missing_shards_are_computed(tmp_path):
    model, data = network(), rows()
    sirc.extract(model, data, tmp_path / "s", shard_size=32)
    before = contents(tmp_path / "s")
    (tmp_path / "s" / "shard-00002.safetensors").unlink()
    sizes = []
    model.register_forward_pre_hook(lambda _, args: sizes.append(len(args[0])))
    sirc.extract(model, data, tmp_path / "s", shard_size=32, head="4")
    assert sum(sizes) == 32
    assert contents(tmp_path / "s") == before


def test_a_truncated_shard_is_told_before_any_work(tmp_path):
    model, data = network(), rows()
    sirc.extract(model, data, tmp_path / "s", shard_size=32)
    broken = tmp_path / "s" / "shard-00001.safetensors"
    broken.write_bytes(broken.read_bytes()[:-100])
    (tmp_path / "s" / "shard-00003.safetensors").unlink()
    with pytest.raises(sirc.StoreError, match=r"shard-00001\.safetensors.*cannot be trusted"):
        sirc.extract(model, data, tmp_path / "s", shard_size=32)
    broken.unlink()
    check(sirc.extract(model, data, tmp_path / "s", shard_size=32).load(), model, data)


def test_a_shard_that_cannot_be_written_stops_the_run(tmp_path, monkeypatch):
    def full(*_args, **_options):
        raise OSError("no space left on device")

    monkeypatch.setattr(sirc.OutputStore, "write", full)
    batches = iter(DataLoader(rows(), batch_size=8))
    for data, options in ((rows(), {}), (batches, {"size": 100})):
        model = network()
        with pytest.raises(OSError, match="no space left") as kept:
            sirc.extract(model, data, tmp_path / f"s{len(options)}", shard_size=32, **options)
        assert torch.is_grad_enabled(), kept  # at once, although the traceback is kept
        assert model.training


class Told(Progress):
    def __init__(self):
        self.notes = []

    def note(self, text):
        self.notes.append(text)


def folder_of_images(root, broken=()):
    for number in range(12):
        folder = root / "abc"[number % 3]
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / f"{number:02}.png"
        Image.new("RGB", (2, 2), (number * 20, 100, 255 - number * 20)).save(file)
        if number in broken:
            file.write_bytes(file.read_bytes()[:20])
    return image_folder(root).with_transform(Preprocess(resize=None, crop=None).test())


def test_an_unreadable_image_stops_the_run_and_is_named(tmp_path):
    images = folder_of_images(tmp_path / "images", broken={4})
    with pytest.raises(ImageError, match=r"b/04\.png.*skip, count and name such images: `on_error=\"skip\"`"):
        sirc.extract(network(), images, tmp_path / "s", batch_size=2, shard_size=4)
    assert sirc.OutputStore(tmp_path / "s").missing == [1, 2]


@pytest.mark.parametrize("workers", [0, 1])
def test_unreadable_images_are_skipped_counted_and_named(tmp_path, workers):
    images = folder_of_images(tmp_path / "images", broken={4, 2, 5, 8, 11})  # b/04 and all of class c
    told = Told()
    store = sirc.extract(
        network(),
        images,
        tmp_path / "s",
        batch_size=2,
        shard_size=4,
        workers=workers,
        on_error="skip",
        progress=told,
    )
    assert store.skipped == [5, 8, 9, 10, 11]  # the last shard is empty
    assert len(store) == 7
    readable = [images[i] for i in range(12) if i not in store.skipped]
    check(store.load(), network(), readable)
    with pytest.raises(
        sirc.StoreError, match=r"lacks 5 images that could not be read, such as .*b/04\.png.*`on_error=\"skip\"`"
    ):
        sirc.extract(network(), images, tmp_path / "s", batch_size=2, shard_size=4)
    store.shard_path(2).unlink()
    again = sirc.extract(network(), images, tmp_path / "s", batch_size=2, shard_size=4, on_error="skip")
    assert again.digest() == store.digest()
    (note,) = told.notes
    assert note.startswith("5 of 12 images could not be read and were skipped:")
    for name in ("b/04.png", "c/02.png", "c/05.png", "c/08.png", "c/11.png"):
        assert note.count(name) == 1
    in_memory = sirc.extract(network(), images, batch_size=2, on_error="skip")
    assert torch.equal(in_memory.labels, store.load().labels)


def stopping_at(batch, model, stop):
    """Let a model do something else at one of its batches, whatever its fingerprint; the batches it has seen."""
    seen = []

    def watch(_, inputs):
        seen.append(len(inputs[0]))
        if len(seen) == batch:
            stop()

    model.register_forward_pre_hook(watch)
    return seen


def interrupt():
    raise KeyboardInterrupt


def test_a_stop_within_a_shard_loses_no_batch(tmp_path):
    data, options = rows(), {"batch_size": 7, "head": "4"}
    whole = sirc.extract(network(), data, tmp_path / "whole", **options)
    model = network()
    stopping_at(6, model, interrupt)
    with pytest.raises(KeyboardInterrupt):
        sirc.extract(model, data, tmp_path / "cut", **options)
    model = network()
    stopping_at(4, model, interrupt)
    with pytest.raises(KeyboardInterrupt):
        sirc.extract(model, data, tmp_path / "cut", **options)
    model = network()
    seen = stopping_at(0, model, interrupt)
    sirc.extract(model, data, tmp_path / "cut", **options)
    assert sum(seen) == 100 - 8 * 7
    assert whole.num_shards == 1
    assert contents(tmp_path / "cut") == contents(tmp_path / "whole")  # and nothing left over


def test_an_unreadable_image_loses_no_batch_before_it(tmp_path):
    images = folder_of_images(tmp_path / "images", broken={7})  # the seventh of twelve
    with pytest.raises(ImageError, match=r"b/07\.png"):
        sirc.extract(network(), images, tmp_path / "s", batch_size=2, head="4")
    model = network()
    seen = stopping_at(0, model, interrupt)
    store = sirc.extract(model, images, tmp_path / "s", batch_size=2, head="4", on_error="skip")
    assert (sum(seen), store.skipped) == (12 - 6 - 1, [6])
    (tmp_path / "s" / "shard-00000.safetensors").unlink()
    stopping_at(6, model, interrupt)
    with pytest.raises(KeyboardInterrupt):  # what it keeps lacks an image
        sirc.extract(model, images, tmp_path / "s", batch_size=2, head="4", on_error="skip")
    with pytest.raises(ImageError, match=r"b/07\.png"):
        sirc.extract(network(), images, tmp_path / "s", batch_size=2, head="4")


class Dropping(nn.Linear):
    def forward(self, x):
        return super().forward(x)[: max(1, len(x) - 1)]


def test_a_model_that_drops_a_row_is_refused(tmp_path):
    data = TensorDataset(torch.randn(10, 12))
    for path in (None, tmp_path / "s"):
        with pytest.raises(ValueError, match="one row of logits for each input; got 4 for 5"):
            sirc.extract(Dropping(12, K), data, path, batch_size=5, features=False, labels=False)


def test_a_part_whose_rows_are_not_those_of_its_items_is_computed_again(tmp_path):
    parts = Parts(tmp_path, {})
    parts.write(0, {"logits": torch.ones(4, K)}, {"items": "[0, 5, 3]"})
    assert len(Shard(range(10), 0, parts, skips=True).left) == 5
    parts.write(0, {"logits": torch.ones(4, K)}, {"items": "[0, 5]"})
    assert len(Shard(range(10), 0, parts, skips=True).left) == 10


KILLED = """
import os, runpy, signal, sys
import sirc._utils.parts

sirc._utils.parts.SECONDS = 0
here = runpy.run_path(sys.argv[1])
model = here["network"]()
here["stopping_at"](6, model, lambda: os.kill(os.getpid(), signal.SIGKILL))
here["sirc"].extract(model, here["rows"](), sys.argv[2], batch_size=7, head="4")
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL")
def test_a_kill_within_a_shard_loses_what_came_after_the_last_part(tmp_path):
    killed = python("-c", KILLED, __file__, tmp_path / "cut")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    (parts,) = (tmp_path / "cut").glob(".*")
    assert len(list(parts.iterdir())) == 5
    damaged = sorted(parts.iterdir())[3]
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"?")
    model = network()
    seen = stopping_at(0, model, interrupt)
    sirc.extract(model, rows(), tmp_path / "cut", batch_size=7, head="4")
    assert sum(seen) == 100 - 3 * 7  # what follows a gap is computed again
    sirc.extract(network(), rows(), tmp_path / "whole", batch_size=7)
    assert contents(tmp_path / "cut") == contents(tmp_path / "whole")


def test_only_an_unfinished_store_of_other_settings_is_overwritten_where_that_is_asked(tmp_path):
    model, options = network(), {"batch_size": 7, "head": "4", "overwrite": "unfinished"}
    stopping_at(3, model, interrupt)
    with pytest.raises(KeyboardInterrupt):
        sirc.extract(model, rows(), tmp_path / "s", **options)
    with pytest.raises(sirc.StoreError, match="other settings: how is"):
        sirc.extract(network(), rows(), tmp_path / "s", batch_size=7, head="4", labels=False)
    assert not sirc.extract(network(), rows(), tmp_path / "s", labels=False, **options).has_labels
    with pytest.raises(sirc.StoreError, match="other settings: how is"):
        sirc.extract(network(), rows(), tmp_path / "s", **options)


def test_a_failing_machine_is_not_a_broken_image(tmp_path):
    """With "skip", a full table of file handles would leave holes for ever."""

    class Failing(Dataset):
        def __len__(self):
            return 40

        def __getitem__(self, index):
            if index == 13:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            return rows(40)[index]

    with pytest.raises(OSError, match=r"item 13 cannot be opened; the machine failed, not the image: .*open files"):
        sirc.extract(network(), Failing(), tmp_path / "s", batch_size=2, shard_size=4, on_error="skip")
    store = sirc.OutputStore(tmp_path / "s")
    assert store.skipped == []
    assert 3 in store.missing


def test_when_nothing_can_be_read_it_says_so(tmp_path):
    images = folder_of_images(tmp_path / "images", broken=set(range(12)))
    with pytest.raises(ImageError, match="none of the first 12 images can be read"):
        sirc.extract(network(), images, on_error="skip")
    with pytest.raises(ValueError, match='`on_error` must be "stop" or "skip"'):
        sirc.extract(network(), images, on_error="ignore")


@pytest.mark.slow
def test_wrappers_are_seen_through():
    model, data = network(), rows(10)
    check(sirc.extract(nn.DataParallel(model), data), model, data)
    check(sirc.extract(torch.compile(model), data), model, data)


def test_launched_processes_that_have_not_joined_are_told(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="the 2 processes that were launched must join"):
        sirc.extract(network(), rows())


SCRIPT = """
    import os, signal, sys
    from pathlib import Path
    import torch
    from torch import nn
    from torch.utils.data import Dataset
    import sirc
    from sirc import distributed

    folder, shards_to_live = Path(sys.argv[1]), int(sys.argv[2])

    class Numbers(Dataset):
        fingerprint = "the same data"
        def __len__(self):
            return 400
        def __getitem__(self, index):
            if len(list(folder.glob("shard-*"))) >= shards_to_live:
                os.kill(os.getpid(), signal.SIGKILL)
            return torch.full((3, 2, 2), index / 400.0), index % 5

    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 5))
    with distributed.process_group(torch.device("cpu")):
        store = sirc.extract(model, Numbers(), folder, batch_size=8, shard_size=16)
        assert store.complete, distributed.rank()
        if distributed.rank() == 1:
            assert len(store.load()) == 400
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    file = tmp_path_factory.mktemp("script") / "script.py"
    file.write_text(textwrap.dedent(SCRIPT), encoding="utf-8")
    return file


def run_here(script, folder):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [str(script), str(folder), "99"])
        runpy.run_path(str(script))
    return contents(folder)


@pytest.fixture(scope="module")
def whole(script):
    """The store that one process writes without a break."""
    return run_here(script, script.parent / "whole")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL")
def test_a_kill_loses_no_finished_shard_and_repeats_none(tmp_path, script, whole):
    killed = python(script, tmp_path / "s", "5")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    kept = {file.name: file.stat().st_mtime_ns for file in (tmp_path / "s").glob("shard-*")}
    assert 5 <= len(kept) < 25
    shards = {name: data for name, data in run_here(script, tmp_path / "s").items() if not name.startswith(".")}
    for name, written in kept.items():
        assert (tmp_path / "s" / name).stat().st_mtime_ns == written
    assert shards == whole


@pytest.mark.slow
def test_two_processes_write_the_store_of_one(tmp_path, script, whole):
    for done in launched(2, script, tmp_path / "two", "99"):
        assert done.returncode == 0, done.stderr
    assert contents(tmp_path / "two") == whole


def test_batches_whose_rows_look_different_are_refused():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 3)

        def forward(self, x):
            return self.fc(x).to(torch.float64 if float(x[0, 0]) > 3 else torch.float32)

    data = TensorDataset(torch.arange(8.0)[:, None].expand(8, 4))
    with pytest.raises(ValueError, match=r"all batches must give rows of the same .* got .*float32.*, then"):
        sirc.extract(Odd(), data, batch_size=4, features=False)


def test_a_head_that_runs_several_times_in_a_forward_is_refused():
    class Chunked(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 3)

        def forward(self, x):
            return torch.cat([self.fc(part) for part in x.split(4)])

    data = TensorDataset(torch.randn(32, 4))
    with pytest.raises(ValueError, match="`features` must have as many rows as `logits`; got 4 and 16"):
        sirc.extract(Chunked(), data, batch_size=16)
    assert len(sirc.extract(Chunked(), data, batch_size=16, features=False)) == 32


def test_a_cpu_takes_large_images_in_small_steps_with_the_same_outputs(tmp_path):
    sizes = []
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, K)).eval()
    images, labels = torch.randn(11, 3, 300, 300), torch.arange(11) % K
    with torch.no_grad():
        features = model[:3](images)
        logits = model[3](features)
    model.register_forward_pre_hook(lambda _, args: sizes.append(len(args[0])))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        store = sirc.extract(model, TensorDataset(images, labels), tmp_path / "s", batch_size=10, head="3")
    finally:
        torch.set_num_threads(threads)
    assert sizes == [3, 3, 4, 1]  # 400,000 pixels are four such images; one is left to the second batch
    found = store.load()
    torch.testing.assert_close(found.logits, logits)
    torch.testing.assert_close(found.features, features)
    assert found.labels.tolist() == labels.tolist()


def test_a_cpu_takes_a_dict_with_one_input_in_small_steps_too():
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc, self.sizes = nn.Linear(3, K), []

        def forward(self, pixel_values, scale=None):
            self.sizes.append(len(pixel_values))
            return self.fc(pixel_values.mean((2, 3)) if scale is None else scale * pixel_values.mean((2, 3)))

    model, images, labels = Named(), torch.randn(11, 3, 360, 360), torch.arange(11) % K  # three at once
    outputs = sirc.extract(model, [{"pixel_values": images, "labels": labels}], head="fc")
    assert model.sizes == [2, 3, 3, 3]
    with torch.no_grad():
        torch.testing.assert_close(outputs.logits, model(images))
    assert outputs.labels.tolist() == labels.tolist()
    model.sizes.clear()  # nothing says that the rows of several inputs belong together
    sirc.extract(model, [{"pixel_values": images, "scale": torch.ones(11, 1)}], head="fc")
    assert model.sizes == [11]


def test_no_image_of_a_batch_is_left_alone_by_the_steps_of_a_cpu():
    class Squeezing(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(3, K)

        def forward(self, x):
            return self.fc(x.mean((2, 3)).squeeze())

    images = torch.randn(10, 3, 360, 360)  # three at once
    outputs = sirc.extract(Squeezing(), TensorDataset(images), batch_size=10, labels=False, head="fc")
    assert len(outputs) == 10


def test_paths_beside_the_images_are_not_taken_for_labels():
    images = [(torch.zeros(3, 2, 2), f"{i}.png") for i in range(4)]
    words = r"`labels` must be one whole number for each of the 4 inputs; got .'0.png', .*Pass `labels=False`"
    with pytest.raises(ValueError, match=words):
        sirc.extract(network(), DataLoader(images, batch_size=4))
    assert len(sirc.extract(network(), DataLoader(images, batch_size=4), labels=False)) == 4


def test_an_empty_batch_of_a_stream_is_told_for_what_it_is():
    with pytest.raises(ValueError, match=r"a tuple that starts with one, .*got tuple"):
        sirc.extract(network(), [()], head="4", channels_last=True)


def test_images_get_their_memory_format_in_every_kind_of_batch():
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc, self.formats = nn.Linear(3, K), []

        def forward(self, x, other=None):
            for images in (x, x if other is None else other):
                self.formats.append(images.is_contiguous(memory_format=torch.channels_last))
            return self.fc(x.mean((2, 3)))

    model, x, labels = Named(), torch.randn(2, 3, 4, 4), torch.tensor([0, 1])
    for batch in (x, (x, labels), ((x, x), labels), {"x": x, "labels": labels}):
        sirc.extract(model, [batch], head="fc", channels_last=True)
    assert len(model.formats) == 8
    assert all(model.formats)


@pytest.mark.parametrize("workers", [0, 1])
def test_images_without_a_transform_and_of_many_sizes_are_told_for_what_they_are(tmp_path, workers):
    unprepared = folder_of_images(tmp_path / "images").with_transform(None)
    words = r"`data` must give tensors, .* found <class 'PIL.Image.Image'>\. Prepare images with a transform"
    with pytest.raises(ValueError, match=words):
        sirc.extract(network(), unprepared, workers=workers)
    Image.new("RGB", (3, 2)).save(tmp_path / "images" / "a" / "wide.png")
    uneven = image_folder(tmp_path / "images").with_transform(Preprocess(resize=None, crop=None).test())
    with pytest.raises(ValueError, match=r"of one size, to form batches; got: .*equal size.* resizes and crops"):
        sirc.extract(network(), uneven, workers=workers, head="4")


def test_images_that_a_loader_s_own_collation_prepares_are_extracted(tmp_path):
    images = folder_of_images(tmp_path / "images")
    prepare = images.transform

    def collated(items):
        return torch.stack([prepare(image) for image, _ in items]), torch.tensor([label for _, label in items])

    loader = DataLoader(images.with_transform(None), batch_size=5, collate_fn=collated)
    check(sirc.extract(network(), loader), network(), images)
