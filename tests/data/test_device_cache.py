"""Images on the device, decoded once for a study: the same outputs, whatever is missing, damaged or short of room."""

import dataclasses
import gc
import os
import sys
import weakref
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

import sirc
from sirc.data import device_cache, image_folder
from sirc.data.base import Subset
from sirc.data.device_cache import DeviceCache
from sirc.data.preprocess import Preprocess
from sirc.errors import ImageError
from sirc.experiment.experiment import Experiment
from sirc.experiment.stages import extract_run, images_of, train_run
from sirc.experiment.study import run_study
from sirc.progress import SILENT, Progress
from sirc.training.batches import IGNORED, DeviceBatches, Order
from sirc.training.recipe import Train
from support.interpreters import launched
from support.tiny_images import write_images
from support.tiny_study import MODEL, TOML

CPU = torch.device("cpu")
SMALL = Preprocess(resize=12, crop=12)


class Told(Progress):
    """What was noted."""

    def __init__(self):
        self.notes = []

    def note(self, text):
        self.notes.append(text)


@pytest.fixture
def decoded(monkeypatch):
    """The names of the sets that were decoded, in turn."""
    names, original = [], DeviceCache._decode

    def counting(self, images, *args):
        names.append(images.name)
        return original(self, images, *args)

    monkeypatch.setattr(DeviceCache, "_decode", counting)
    return names


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_images(tmp_path / "data" / "images", count=45)
    write_images(tmp_path / "data" / "held-out", count=12, seed=1)
    write_images(tmp_path / "data" / "grey", count=10, seed=2)
    Path("tiny_model.py").write_text(MODEL, encoding="utf-8")
    Path("tiny.toml").write_text(TOML.replace("lr = 0.02", "lr = 0.0005"), encoding="utf-8")

    def read(*overrides):
        asked = ['fit.specs=["msp", "tempered_msp"]', "data.holdout=4", "extract.cache=device", *overrides]
        return Experiment.read("tiny.toml", asked)

    return read


def get(cache, images, geometry=SMALL, on_unreadable=lambda lost: None, workers=0):
    return cache.pixels(images, geometry, device=CPU, workers=workers, on_unreadable=on_unreadable, progress=SILENT)


def contents(folder):
    """Every shard and setting of every store below a folder."""
    return {str(file.relative_to(folder)): file.read_bytes() for file in Path(folder).rglob("*") if file.is_file()}


def damage(file):
    file.write_bytes(file.read_bytes()[:40])


def trained(experiment):
    """The runs of an experiment, trained."""
    for run in experiment.runs:
        train_run(experiment, run, cpu=True)
    return experiment.runs


@pytest.mark.slow
@pytest.mark.parametrize("changes", [["fit.count=20"], ["preprocess.crop=10"], ["preprocess.interpolation=bicubic"]])
def test_stores_are_the_same_bytes_as_those_of_files(tiny, changes):
    asked = ["seeds=[1]", "preprocess.mean=[0.4, 0.5, 0.6]", "preprocess.std=[0.2, 0.3, 0.7]", *changes]
    experiment = tiny(*asked)
    if "preprocess.crop=10" in changes:
        text = Path("tiny_model.py").read_text(encoding="utf-8").replace("nn.Linear(200", "nn.Linear(128")
        Path("other_model.py").write_text(text, encoding="utf-8")
        experiment = tiny(*asked, "model.name=other_model:small")
    (run,) = trained(experiment)
    extract_run(experiment, run)
    cached = contents(run.folder / "outputs")
    files = dataclasses.replace(experiment, extract=dataclasses.replace(experiment.extract, cache="none"))
    extract_run(files, run, overwrite=True)
    assert cached == contents(run.folder / "outputs")


def test_a_benchmark_of_small_images_keeps_its_own_scaling(tmp_path):
    from sirc.data.source import Source, eval_geometry, eval_transform, open_source

    folder = tmp_path / "Kather_texture_2016_image_tiles_5000" / "01_TUMOR"
    folder.mkdir(parents=True)
    for seed in range(3):
        torch.manual_seed(seed)
        Image.fromarray(torch.randint(0, 256, (30, 30, 3), dtype=torch.uint8).numpy()).save(folder / f"{seed}.tif")
    source, preprocess = Source("colorectal"), Preprocess(resize=16, crop=12)
    images = open_source(source, root=tmp_path, preprocess=preprocess, labelled=False)
    assert repr(images.transform) == repr(eval_transform(source, preprocess))
    cached = get(DeviceCache(), images, eval_geometry(source, preprocess))
    normalise = preprocess.normalise()
    assert torch.equal(normalise(cached[slice(None)]), torch.stack([images[i] for i in range(3)]))
    assert cached.pixels.shape == (3, 3, 12, 12)


@pytest.mark.parametrize("mean", [(0.485, 0.456, 0.406), (0.1, 0.5, 0.9)])
def test_normalised_values_are_those_of_torchvision_to_the_last_bit(mean):
    every = torch.arange(256, dtype=torch.uint8).expand(3, 256, 256).contiguous()
    preprocess = Preprocess(resize=None, crop=None, mean=mean, std=(0.229, 0.224, 0.7))
    expected = preprocess.test()(Image.fromarray(every.permute(1, 2, 0).numpy()))
    assert torch.equal(preprocess.normalise()(every[None])[0], expected)


@pytest.mark.slow
def test_only_missing_shards_are_computed_and_a_whole_store_decodes_nothing(tiny, decoded):
    experiment = tiny("seeds=[1]")
    (run,) = trained(experiment)
    extract_run(experiment, run)
    assert decoded == ["train", "test", "validation", "Grey", "Noise"]
    before = contents(run.folder / "outputs")
    del decoded[:]
    extract_run(experiment, run)
    assert decoded == []
    store = sirc.OutputStore(run.store("train"))
    assert store.num_shards == 5
    store.shard_path(2).unlink()
    kept = store.shard_path(1).stat().st_mtime_ns
    extract_run(experiment, run)
    assert decoded == ["train"]
    assert contents(run.folder / "outputs") == before
    assert store.shard_path(1).stat().st_mtime_ns == kept


@pytest.mark.slow
def test_damaged_images_are_counted_and_named_or_stop(tiny):
    experiment = tiny("seeds=[1]")
    (run,) = trained(experiment)
    files = sorted(Path("data/held-out").rglob("*.png"))
    damage(files[3])
    damage(files[9])
    with pytest.raises(ImageError, match=rf"every image must be readable; .*{files[3].name} is not: .*on_error"):
        extract_run(experiment, run, ["test"])
    told, cache = Told(), DeviceCache()
    for _ in range(2):  # the second time they are cached
        store = extract_run(experiment, run, ["test"], on_error="skip", progress=told, cache=cache, overwrite=True)[
            "test"
        ]
        assert (len(store), store.skipped) == (10, [3, 9])
    cached = contents(store.path)
    assert "2 of 12 images could not be read and were skipped" in told.notes[0]
    assert files[3].name in told.notes[0]
    plain = dataclasses.replace(experiment, extract=dataclasses.replace(experiment.extract, cache="none"))
    extract_run(plain, run, ["test"], on_error="skip", overwrite=True)
    assert contents(store.path) == cached
    with pytest.raises(sirc.StoreError, match="lacks 2 images that could not be read"):
        extract_run(experiment, run, ["test"], cache=cache)
    with pytest.raises(ImageError, match=rf"every image must be readable; .*{files[3].name}"):
        extract_run(experiment, run, ["test"], cache=cache, overwrite=True)


def test_a_failing_disk_always_stops(tiny, monkeypatch):
    experiment = tiny("seeds=[1]")
    (run,) = trained(experiment)
    from sirc.data.folder import FileSet

    def gone(self, index):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(FileSet, "image", gone)
    monkeypatch.setattr(
        "sirc.experiment.stages._head_of", lambda model, images: sirc.find_head(model, torch.zeros(2, 3, 12, 12))
    )
    with pytest.raises(OSError, match=r"cannot be opened; the machine failed, not the image: .*Input/output error"):
        extract_run(experiment, run, ["test"], on_error="skip")


@pytest.mark.slow
def test_a_study_decodes_every_set_once(tiny, decoded):
    first = tiny("train.cache=device", "name=one")
    second = tiny("train.cache=device", "name=two", "title=Two", "fit.count=20", "train.lr=0.001")
    study = run_study([first, second], figures=False)
    assert decoded == ["train", "validation", "test", "Grey", "Noise"]
    assert set(study.results.seed) == {1, 2}
    assert len(sirc.OutputStore(second.run(2).store("train"))) == 20
    # The networks and the outputs are those of experiments on their own, which hold nothing from before.
    alone = dataclasses.replace(second, name="alone", extract=dataclasses.replace(second.extract, cache="none"))
    run, other = alone.run(2), second.run(2)
    train_run(alone, run, cpu=True)
    mine, theirs = (load_file(weights) for weights in (run.weights, other.weights))
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)
    extract_run(alone, run)
    assert contents(run.folder / "outputs") == contents(other.folder / "outputs")


@pytest.mark.slow
def test_memory_is_given_back_at_the_end_of_a_study(tiny, monkeypatch):
    kept = []
    original = DeviceCache._decode

    def watching(*args, **options):
        pixels, lost = original(*args, **options)
        kept.append(weakref.ref(pixels))
        return pixels, lost

    monkeypatch.setattr(DeviceCache, "_decode", watching)
    run_study([tiny("train.cache=device", "seeds=[1]")], figures=False)
    gc.collect()
    assert len(kept) == 5
    assert not [pixels for pixels in kept if pixels() is not None]


@pytest.mark.slow
def test_what_is_held_goes_at_the_end_of_its_context(tmp_path):
    images = image_folder(write_images(tmp_path / "images", count=10))
    with DeviceCache() as cache:
        pixels = weakref.ref(get(cache, images).pixels)
        gc.collect()
        assert pixels() is not None
    gc.collect()
    assert pixels() is None  # though `cache` is still there


def test_training_and_extraction_share_one_tensor(tiny, decoded):
    experiment = tiny("train.cache=device", "seeds=[1]")
    cache = DeviceCache()
    images = images_of(experiment, "train", augmented=True, cache=cache)
    order = Order(len(images), 8, 1, 0, 1, CPU)
    feed = DeviceBatches(images, None, order, Train(workers=0), experiment.preprocess, SILENT, cache)
    cached = get(cache, images_of(experiment, "train", cache=cache), experiment.preprocess)
    assert cached.pixels.data_ptr() == feed._augment.images.pixels.data_ptr()
    assert decoded == ["train"]
    get(cache, images, dataclasses.replace(experiment.preprocess, crop=8))
    assert decoded == ["train", "train"]


def test_parts_of_what_is_held_are_not_decoded_again(tmp_path, decoded):
    whole = image_folder(write_images(tmp_path / "images", count=50))
    damage(whole.path(7))
    damage(whole.path(30))
    cache = DeviceCache()
    every = get(cache, whole)
    assert [item.index for item in every.lost] == [7, 30]
    rest, held_out = whole.held_out(4, seed=0)
    for part in (rest, held_out, rest.subset(11, seed=1), Subset(whole, [7]), Subset(whole, [])):
        found = get(cache, part)
        assert torch.equal(found[slice(None)], every.pixels[part.origin()[1]])
        assert len(found) == len(part)
        lost = [part.where(item.index) for item in found.lost]
        assert lost == [whole.where(n) for n in (7, 30) if n in part.origin()[1]]
    assert len(decoded) == 1
    apart = DeviceCache()
    for part in (held_out, rest):
        get(apart, part)
    assert len(decoded) == 3


def test_a_part_trains_as_if_it_had_been_decoded_alone(tmp_path):
    whole = image_folder(write_images(tmp_path / "images", count=50))
    damage(whole.path(7))
    part, val = whole.held_out(4, seed=0)
    shared = DeviceCache()
    get(shared, whole)
    order = Order(len(part), 8, 1, 0, 1, CPU)
    feeds = [
        DeviceBatches(part, val, order, Train(workers=0, on_error="skip"), SMALL, SILENT, cache)
        for cache in (None, shared)
    ]
    assert feeds[1]._augment.images.rows is not None
    assert feeds[0].unreadable == feeds[1].unreadable
    assert len(feeds[0].unreadable) == 1
    for alone, beside in zip(feeds[0].epoch(3), feeds[1].epoch(3), strict=True):
        assert torch.equal(alone.images, beside.images)
        assert torch.equal(alone.labels, beside.labels)
    for alone, beside in zip(feeds[0].validation(), feeds[1].validation(), strict=True):
        assert torch.equal(alone[0], beside[0])
        assert torch.equal(alone[1], beside[1])
        assert IGNORED not in beside[1]


def test_folders_whose_files_have_the_same_names_and_sizes_are_two_sets(tmp_path):
    for name, shade in (("dark", 10), ("light", 200)):
        (tmp_path / name / "x").mkdir(parents=True)
        Image.new("RGB", (12, 12), (shade, 0, 0)).save(tmp_path / name / "x" / "0.bmp")
    dark, light = (image_folder(tmp_path / name).named("same") for name in ("dark", "light"))
    assert dark.fingerprint == light.fingerprint
    cache = DeviceCache()
    assert get(cache, dark).pixels[0, 0, 0, 0] == 10
    assert get(cache, light).pixels[0, 0, 0, 0] == 200
    assert get(cache, dark).pixels[0, 0, 0, 0] == 10


def test_the_set_not_used_for_longest_makes_room(tmp_path, decoded, monkeypatch):
    one, two, three = (
        image_folder(write_images(tmp_path / name, count=10)).named(name) for name in ("one", "two", "three")
    )
    size = 10 * 3 * 12 * 12
    monkeypatch.setattr(device_cache, "device_memory", lambda device: (float("inf"), 4 * size + 4))
    cache = DeviceCache()
    for images in (one, two, one, three, one):
        get(cache, images)
    assert decoded == ["one", "two", "three"]  # room for two: `two` went
    get(cache, two)
    assert decoded[3:] == ["two"]
    get(cache, three)
    assert decoded[4:] == ["three"]  # it went when `two` came back, as `one` had been used since
    monkeypatch.setattr(device_cache, "device_memory", lambda device: (float("inf"), 1))
    get(cache, one)
    assert len(cache._entries) == 1


@pytest.mark.parametrize(("device", "there"), [("cpu", "is all the memory for cpu"), ("cuda:0", "are free on cuda:0")])
def test_a_set_larger_than_memory_is_refused(device, there, monkeypatch):
    monkeypatch.setattr(device_cache, "device_memory", lambda device: (10 * 2**30, 40 * 2**30))
    DeviceCache()._make_room(8 * 2**30, torch.device(device), "huge")
    words = rf'`cache = "device"` needs 9.0 GiB for `huge`; 10.0 GiB {there}. Use `cache = "none"`'
    with pytest.raises(ValueError, match=words):
        DeviceCache()._make_room(9 * 2**30, torch.device(device), "huge")


def test_the_memory_of_the_machine_bounds_what_is_held(tmp_path, monkeypatch):
    fewer, more = (image_folder(write_images(tmp_path / str(count), count=count)) for count in (9, 10))
    monkeypatch.setattr(os, "sysconf", {"SC_PAGE_SIZE": 100, "SC_PHYS_PAGES": 50}.__getitem__)
    assert len(get(DeviceCache(), fewer)) == 9  # 3888 of 5000 bytes
    with pytest.raises(ValueError, match=r"needs 0.0 GiB for `10`; 0.0 GiB is all the memory for cpu"):
        get(DeviceCache(), more)  # 4320


def test_more_workers_give_the_same_pixels(tmp_path):
    images = image_folder(write_images(tmp_path / "images", count=30))
    damage(images.path(12))
    one, two = get(DeviceCache(), images), get(DeviceCache(), images, workers=2)
    assert torch.equal(one.pixels, two.pixels)
    assert [item.index for item in two.lost] == [12]
    assert not one.pixels[12].any()


def test_sizes_that_differ_and_folders_without_images_are_told(tmp_path):
    images = image_folder(write_images(tmp_path / "images", count=6))
    Image.new("RGB", (30, 20)).save(tmp_path / "images" / "r" / "other.png")
    with pytest.raises(ValueError, match='`cache = "device"` needs images of one size; those of `images` differ'):
        get(DeviceCache(), image_folder(tmp_path / "images"), Preprocess(resize=None, crop=None))
    for index in range(len(images)):
        damage(images.path(index))
    with pytest.raises(ImageError, match="none of the 6 images of `images` can be read"):
        get(DeviceCache(), images)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="starts processes")
def test_two_processes_write_the_same_store(tiny):
    experiment = tiny("seeds=[1]", "train.cache=device")
    (run,) = trained(experiment)
    expected = {name: store.load() for name, store in extract_run(experiment, run).items()}
    Path("whole.toml").write_text(experiment.dump(), encoding="utf-8")
    for done in launched(2, "-m", "sirc", "extract", "whole.toml", "--device", "cpu", "--overwrite", "--quiet"):
        assert done.returncode == 0, done.stderr
    for name, outputs in expected.items():
        found = sirc.OutputStore(run.store(name))
        torch.testing.assert_close(found.load().logits, outputs.logits)  # another number of threads rounds otherwise
        torch.testing.assert_close(found.load().features, outputs.features)
        assert (outputs.labels is None) or torch.equal(found.load().labels, outputs.labels)


def test_images_are_normalised_on_a_device_as_one_by_one():
    preprocess = Preprocess(mean=(0.1, 0.5, 0.7), std=(0.2, 0.3, 0.4))
    pixels = torch.arange(256, dtype=torch.uint8).repeat(3).reshape(2, 3, 8, 16)
    assert torch.equal(preprocess.normalise_on(pixels.device)(pixels), preprocess.normalise()(pixels))
