"""Training: the paper's recipe, exact resumption, the same gradient on any number of processes."""

import csv
import dataclasses
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import sirc
from sirc._feeding import IGNORED, DeviceFeed, LoaderFeed, Order, Share
from sirc.data import image_folder
from sirc.errors import ImageError
from sirc.experiment import Augment, Train
from sirc.preprocess import Preprocess
from sirc.progress import SILENT, Progress
from sirc.train import learning_rate, train

SMALL = Preprocess(resize=12, crop=12, mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))
QUICK = Train(epochs=3, batch_size=8, lr=0.05, milestones=(1, 2), workers=0, augment=Augment(scale=(0.5, 1.0)))
CPU = Share(0, 1, torch.device("cpu"))


def network(seed=1):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(3, 8, 3, 2), nn.ReLU(), nn.Flatten(), nn.Dropout(0.2), nn.Linear(200, 3))


def write_images(root, count=21, side=16):
    """Three classes of colour, with noise; returns the folder."""
    random = np.random.default_rng(0)
    for number in range(count):
        folder = root / "rgb"[number % 3]
        folder.mkdir(parents=True, exist_ok=True)
        pixels = random.integers(0, 120, (side, side, 3))
        pixels[..., number % 3] += 100
        Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{number:03}.png")
    return root


@pytest.fixture
def images(tmp_path):
    return image_folder(write_images(tmp_path / "images"))


def run(images, folder, recipe=QUICK, *, model=None, seed=1, **options):
    model = model or network(seed)
    history = train(model, images, recipe, Path(folder), seed=seed, preprocess=SMALL, cpu=True, **options)
    return model, history


def weights(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def same(a, b):
    return all(torch.equal(a[name], b[name]) for name in a)


class Stop(BaseException):
    """As sudden as a kill, at a place of the test's choosing."""


class StopAt(Progress):
    def __init__(self, epoch):
        self.epoch = epoch

    def note(self, text):
        if f"epoch {self.epoch}:" in text:
            raise Stop


def test_training_lowers_the_loss_and_leaves_weights_and_history(images, tmp_path):
    recipe = dataclasses.replace(QUICK, epochs=12, milestones=(8, 10))
    model, history = run(images, tmp_path / "run", recipe, validation=images)
    assert history[-1].loss < 0.5 * history[0].loss
    assert history[-1].validation_error == 0.0
    assert [line.lr for line in history] == pytest.approx([0.05] * 8 + [0.005] * 2 + [0.0005] * 2)
    loaded = network(5)
    sirc.models.load_weights(loaded, tmp_path / "run" / "model.safetensors")
    assert same(weights(model), weights(loaded))
    with open(tmp_path / "run" / "history.csv") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["epoch"]) for row in rows] == list(range(1, 13))
    assert float(rows[3]["loss"]) == history[3].loss
    assert not (tmp_path / "run" / "checkpoint.safetensors").exists()


def test_the_steps_are_those_of_sgd_with_a_stepped_learning_rate(images, tmp_path):
    """The recipe again, written out: one batch after the other, torch's own scheduler."""
    model, expected = network(), network()
    model[3] = expected[3] = nn.Identity()  # dropout draws numbers of its own
    run(images, tmp_path / "run", model=model)
    optimizer = torch.optim.SGD(expected.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [1, 2], 0.1)
    feed = LoaderFeed(images, None, Order(21, 8, 1, CPU), QUICK.augment, SMALL, workers=0, skip=False)
    for epoch in range(3):
        for batch in feed.epoch(epoch):
            optimizer.zero_grad()
            nn.functional.cross_entropy(expected(batch.images), batch.labels).backward()
            optimizer.step()
        scheduler.step()
    for name, value in weights(expected).items():
        torch.testing.assert_close(model.state_dict()[name], value, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("cache", ["none", "device"])
def test_a_run_stopped_after_an_epoch_ends_with_the_same_weights(images, tmp_path, cache):
    recipe = dataclasses.replace(QUICK, cache=cache)
    whole, history = run(images, tmp_path / "whole", recipe, validation=images)
    with pytest.raises(Stop):
        run(images, tmp_path / "cut", recipe, validation=images, progress=StopAt(1))
    assert (tmp_path / "cut" / "checkpoint.safetensors").exists()
    assert not (tmp_path / "cut" / "model.safetensors").exists()
    torch.rand(17)  # whatever else happened to the random numbers
    model, resumed = run(images, tmp_path / "cut", recipe, validation=images)
    assert same(weights(model), weights(whole))
    assert [line.loss for line in resumed] == [line.loss for line in history]
    assert [line.validation_loss for line in resumed] == [line.validation_loss for line in history]


def test_a_finished_run_is_loaded_and_not_trained_again(images, tmp_path):
    model, history = run(images, tmp_path / "run")
    again, loaded = run(images, tmp_path / "run")
    assert same(weights(again), weights(model))
    assert loaded == history
    assert loaded[0].seconds == history[0].seconds


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"recipe": dataclasses.replace(QUICK, lr=0.01)}, "lr is 0.05, got 0.01"),
        ({"recipe": dataclasses.replace(QUICK, epochs=4)}, "epochs is 3, got 4"),
        ({"seed": 2}, "seed is 1, got 2"),
        ({"model": network(9)}, "starting weights is"),
    ],
)
def test_another_recipe_is_refused(images, tmp_path, change, words):
    with pytest.raises(Stop):
        run(images, tmp_path / "run", progress=StopAt(1))
    with pytest.raises(sirc.StoreError, match=f"comes from another recipe: .*{words}"):
        run(images, tmp_path / "run", **change)
    _, history = run(images, tmp_path / "run", overwrite=True, **change)
    assert len(history) == (4 if "epochs" in words else 3)


def test_other_images_are_refused_and_speed_settings_are_not(images, tmp_path):
    with pytest.raises(Stop):
        run(images, tmp_path / "run", progress=StopAt(1))
    other = image_folder(write_images(tmp_path / "others", count=18))
    with pytest.raises(sirc.StoreError, match="training images is"):
        run(other, tmp_path / "run")
    run(images, tmp_path / "run", dataclasses.replace(QUICK, workers=1, channels_last=True))


def test_a_damaged_checkpoint_is_told(images, tmp_path):
    with pytest.raises(Stop):
        run(images, tmp_path / "run", progress=StopAt(1))
    file = tmp_path / "run" / "checkpoint.safetensors"
    file.write_bytes(file.read_bytes()[:-10])
    with pytest.raises(sirc.StoreError, match=r"checkpoint\.safetensors.*cannot be trusted"):
        run(images, tmp_path / "run")


def test_workers_change_nothing(images, tmp_path):
    alone, _ = run(images, tmp_path / "alone")
    helped, _ = run(images, tmp_path / "helped", dataclasses.replace(QUICK, workers=2))
    assert same(weights(alone), weights(helped))


def test_bf16_channels_last_and_cosine_train_too(images, tmp_path):
    recipe = dataclasses.replace(
        QUICK, epochs=8, precision="bf16", channels_last=True, schedule="cosine", cache="device"
    )
    model, history = run(images, tmp_path / "run", recipe)
    assert history[-1].loss < history[0].loss
    assert all(value.dtype == torch.float32 for value in weights(model).values())


def test_the_learning_rate_is_the_paper_s():
    recipe = Train()
    rates = [learning_rate(recipe, epoch) for epoch in range(90)]
    assert rates == pytest.approx([0.1] * 30 + [0.01] * 30 + [0.001] * 30)
    cosine = Train(schedule="cosine", epochs=10)
    assert learning_rate(cosine, 0) == 0.1
    assert learning_rate(cosine, 5) == pytest.approx(0.05)
    assert learning_rate(cosine, 10) == pytest.approx(0)


def test_every_image_is_seen_once_in_an_epoch_by_one_process():
    for world in (1, 2, 3):
        orders = [Order(21, 8, 7, Share(rank, world, torch.device("cpu"))) for rank in range(world)]
        for parts in zip(*(order.batches(4) for order in orders), strict=True):
            assert len({total for _, total, _ in parts}) == 1
            seen = [i for index, _, counts in parts if counts for i in index.tolist()]
            assert len(seen) == len(set(seen)) == parts[0][1]
        whole = [index for index, _, _ in Order(21, 8, 7, CPU).batches(4)]
        assert sorted(torch.cat(whole).tolist()) == list(range(21))
        first = sorted(i for order in orders for i in next(order.batches(4))[0].tolist())
        assert first == sorted(whole[0].tolist())
    assert not torch.equal(next(Order(21, 8, 7, CPU).batches(5))[0], whole[0])


def test_a_process_without_images_takes_one_that_does_not_count():
    order = Order(9, 8, 0, Share(1, 2, torch.device("cpu")))
    assert [counts for _, _, counts in order.batches(0)] == [True, False]


def test_images_on_the_device_are_those_of_the_files(images):
    none = Augment(crop="none", flip=0.0)
    order = Order(len(images), 8, 3, CPU)
    files = LoaderFeed(images, images, order, none, SMALL, workers=0, skip=False)
    held = DeviceFeed(images, images, order, none, SMALL, workers=0, progress=SILENT)
    for a, b in zip(files.epoch(0), held.epoch(0), strict=True):
        torch.testing.assert_close(a.images, b.images, atol=1e-4, rtol=0)
        assert torch.equal(a.labels, b.labels)
        assert a.total == b.total
    for a, b in zip(files.validation(), held.validation(), strict=True):
        torch.testing.assert_close(a[0], b[0], atol=1e-5, rtol=0)
        assert torch.equal(a[1], b[1])


def test_images_of_many_sizes_cannot_be_held_uncropped(images, tmp_path):
    Image.new("RGB", (30, 20)).save(tmp_path / "images" / "r" / "other.png")
    raw = Preprocess(resize=None, crop=None)
    order = Order(22, 8, 3, CPU)
    with pytest.raises(ValueError, match='`cache = "device"` needs images of one size'):
        DeviceFeed(
            image_folder(tmp_path / "images"), None, order, Augment(crop="none"), raw, workers=0, progress=SILENT
        )


def test_an_unreadable_training_image_stops_or_does_not_count(images, tmp_path):
    broken = tmp_path / "images" / "g" / "004.png"
    broken.write_bytes(broken.read_bytes()[:40])
    with pytest.raises(ImageError, match=r"every training image must be readable; .*004\.png"):
        run(images, tmp_path / "run")
    notes = []

    class Told(Progress):
        def note(self, text):
            notes.append(text)

    run(images, tmp_path / "run", dataclasses.replace(QUICK, on_error="skip"), progress=Told())
    assert "1 training images could not be read" in notes[-1]
    assert "004.png" in notes[-1]
    order = Order(21, 21, 0, CPU)
    feed = LoaderFeed(images, None, order, Augment(), SMALL, workers=0, skip=True)
    (batch,) = feed.epoch(0)
    assert (batch.labels == IGNORED).sum() == 1


def test_an_exploding_loss_stops_the_run_with_the_last_checkpoint_kept(images, tmp_path):
    with pytest.raises(ValueError, match=r"the training loss must stay finite.*Lower `train\.lr`"):
        run(images, tmp_path / "run", dataclasses.replace(QUICK, lr=1e30))


def test_labels_that_the_model_has_no_output_for_are_told(images, tmp_path):
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 12 * 12, 2))
    with pytest.raises(ValueError, match=r"labels up to 2.*Set `model\.num_classes = 3`"):
        run(images, tmp_path / "run", model=model)
    with pytest.raises(ValueError, match="training needs labels"):
        run(images.unlabelled(), tmp_path / "run")


def test_tensorboard_gets_every_epoch(images, tmp_path):
    run(images, tmp_path / "run", dataclasses.replace(QUICK, tensorboard=True))
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    assert [event.step for event in events.Scalars("loss")] == [1, 2, 3]


SCRIPT = """
    import dataclasses, sys
    from pathlib import Path
    sys.path.insert(0, sys.argv[3])
    from test_train import QUICK, image_folder, network, run
    from sirc import distributed
    from torch import nn, device

    images = image_folder(Path(sys.argv[1]))
    with distributed.process_group(device("cpu")):
        for cache in ("none", "device"):
            model = network()
            model[3] = nn.Identity()  # every process has dropout of its own
            recipe = dataclasses.replace(QUICK, cache=cache, batch_size=10)
            run(images, Path(sys.argv[2]) / cache, recipe, model=model, validation=images)
"""


def test_two_processes_train_to_the_weights_of_one(images, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT))
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    for count in (1, 2):
        launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count)]
        command = [sys.executable, *launch, script, tmp_path / "images", tmp_path / str(count), Path(__file__).parent]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    for cache in ("none", "device"):
        one, two = network(), network()
        one[3] = two[3] = nn.Identity()
        sirc.models.load_weights(one, tmp_path / "1" / cache / "model.safetensors")
        sirc.models.load_weights(two, tmp_path / "2" / cache / "model.safetensors")
        for name, value in weights(one).items():
            torch.testing.assert_close(two.state_dict()[name], value, atol=1e-5, rtol=1e-5)
        with (
            open(tmp_path / "1" / cache / "history.csv") as alone,
            open(tmp_path / "2" / cache / "history.csv") as shared,
        ):
            for a, b in zip(csv.DictReader(alone), csv.DictReader(shared), strict=True):
                assert float(a["loss"]) == pytest.approx(float(b["loss"]), rel=1e-5)
                assert float(a["validation_loss"]) == pytest.approx(float(b["validation_loss"]), rel=1e-5)
                assert a["error"] == b["error"]
