"""Training: the paper's recipe, exact resumption, the same gradient on any number of processes."""

import csv
import dataclasses
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import sirc
from sirc.data import image_folder
from sirc.data.preprocess import Preprocess
from sirc.errors import ImageError
from sirc.progress import SILENT, Progress
from sirc.training import preflight
from sirc.training.batches import IGNORED, DeviceBatches, LoaderBatches, Order
from sirc.training.loop import learning_rate, train
from sirc.training.recipe import Augment, Train
from support import interpreters
from support.tiny_images import write_images

SMALL = Preprocess(resize=12, crop=12, mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))
QUICK = Train(epochs=3, batch_size=8, lr=0.05, milestones=(1, 2), workers=0, augment=Augment(scale=(0.5, 1.0)))
CPU = 0, 1, torch.device("cpu")  # the only process


def network(seed=1):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(3, 8, 3, 2), nn.ReLU(), nn.Flatten(), nn.Dropout(0.2), nn.Linear(200, 3))


@pytest.fixture
def images(tmp_path):
    return image_folder(write_images(tmp_path / "images"))


def run(images, folder, recipe=QUICK, *, model=None, seed=1, **options):
    model = model or network(seed)
    history = train(model, images, recipe, Path(folder), seed=seed, preprocess=SMALL, cpu=True, **options)
    return model, history


def normal_network(seed=1):
    """One that looks at its batch."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, 2), nn.BatchNorm2d(8, momentum=0.5), nn.ReLU(), nn.Flatten(), nn.Linear(200, 3)
    )


def read_by_hand(images):
    """The images as SMALL has them, by PIL alone: resized to 12 × 12, scaled to [0, 1], normalised."""
    rows = []
    for index in range(len(images)):
        image = Image.open(images.path(index)).convert("RGB").resize((12, 12), Image.Resampling.BILINEAR)
        rows.append((np.asarray(image, dtype=np.float32).transpose(2, 0, 1) / 255 - 0.5) / 0.25)
    return torch.from_numpy(np.stack(rows)), images.labels


def weights(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def same(a, b):
    return all(torch.equal(a[name], b[name]) for name in a)


class Stop(BaseException):
    """As sudden as a kill, at a place of the test's choosing."""


class Told(Progress):
    """What was noted."""

    def __init__(self):
        self.notes = []

    def note(self, text):
        self.notes.append(text)


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
    with open(tmp_path / "run" / "history.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["epoch"]) for row in rows] == list(range(1, 13))
    assert float(rows[3]["loss"]) == history[3].loss
    assert not (tmp_path / "run" / "checkpoint.safetensors").exists()


def test_the_steps_are_those_of_sgd_with_a_stepped_learning_rate(images, tmp_path):
    """The recipe again, written out: images by PIL, one batch of all so that their order plays no part."""
    model, expected = network(), network()
    model[3] = expected[3] = nn.Identity()  # dropout draws numbers of its own
    recipe = dataclasses.replace(
        QUICK, epochs=6, batch_size=21, milestones=(2, 4), augment=Augment(crop="none", flip=0.0)
    )
    _, history = run(images, tmp_path / "run", recipe, model=model)
    optimizer = torch.optim.SGD(expected.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 4], 0.1)
    x, y = read_by_hand(images)
    for line in history:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(expected(x), y)
        loss.backward()
        assert line.loss == pytest.approx(loss.item(), rel=1e-5)
        optimizer.step()
        scheduler.step()
    assert not same(weights(expected), weights(network()))
    for name, value in weights(expected).items():
        torch.testing.assert_close(model.state_dict()[name], value, atol=1e-6, rtol=1e-5)


def test_batches_and_validation_are_the_test_time_preprocessing(images):
    """Workers hand over uint8; what the network sees is what `Preprocess.test` gives, but for rounding."""
    none, test = Augment(crop="none", flip=0.0), SMALL.test()
    expected = torch.stack([test(images.image(index)) for index in range(21)])
    feed = LoaderBatches(images, images, Order(21, 8, 1, *CPU), Train(workers=0, augment=none), SMALL)
    tested, labels = (torch.cat(part) for part in zip(*feed.validation(), strict=True))
    torch.testing.assert_close(tested, expected, atol=2e-6, rtol=0)
    assert torch.equal(labels, images.labels)
    order = torch.cat([index for index, _, _ in Order(21, 8, 1, *CPU).batches(2)])
    seen = torch.cat([batch.images for batch in feed.epoch(2)])
    torch.testing.assert_close(seen, expected[order], atol=2e-6, rtol=0)
    assert seen.dtype == torch.float32


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


def test_a_finished_run_is_loaded_and_not_trained_again(images, tmp_path, monkeypatch):
    model, history = run(images, tmp_path / "run")
    monkeypatch.setitem(sys.modules, "accelerate", None)  # which it need not import
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_workers_change_nothing(images, tmp_path):
    alone, _ = run(images, tmp_path / "alone")
    helped, _ = run(images, tmp_path / "helped", dataclasses.replace(QUICK, workers=2))
    assert same(weights(alone), weights(helped))


@pytest.mark.slow
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


def test_a_warm_up_rises_in_a_straight_line():
    recipe = Train(warmup=2, epochs=10, milestones=(1, 6))
    rates = [learning_rate(recipe, epoch) for epoch in (0, 0.5, 1, 1.5, 1.99, 2, 5.9, 6)]
    plain = [0.1 * 0.01, 0.1 * 0.2575, 0.01 * 0.505, 0.01 * 0.7525, 0.01 * 0.99505, 0.01, 0.01, 0.001]
    assert rates == pytest.approx(plain)
    cosine = Train(schedule="cosine", epochs=10, warmup=4)
    assert learning_rate(cosine, 0) == pytest.approx(0.001)
    assert learning_rate(cosine, 5) == pytest.approx(0.05)
    assert "warmup" not in Train().hyperparameters()
    assert recipe.hyperparameters()["warmup"] == 2
    with pytest.raises(ValueError, match="`warmup` must be between 0 and the 3 epochs; got 5"):
        Train(epochs=3, warmup=5)


def test_every_image_is_seen_once_in_an_epoch_by_one_process():
    for world in (1, 2, 3):
        orders = [Order(21, 8, 7, rank, world, torch.device("cpu")) for rank in range(world)]
        for parts in zip(*(order.batches(4) for order in orders), strict=True):
            assert len({total for _, total, _ in parts}) == 1
            seen = [i for index, _, counts in parts if counts for i in index.tolist()]
            assert len(seen) == len(set(seen)) == parts[0][1]
        whole = [index for index, _, _ in Order(21, 8, 7, *CPU).batches(4)]
        assert sorted(torch.cat(whole).tolist()) == list(range(21))
        first = sorted(i for order in orders for i in next(order.batches(4))[0].tolist())
        assert first == sorted(whole[0].tolist())
    assert not torch.equal(next(Order(21, 8, 7, *CPU).batches(5))[0], whole[0])


def test_a_process_without_images_takes_one_that_does_not_count():
    order = Order(9, 8, 0, 1, 2, torch.device("cpu"))
    assert [counts for _, _, counts in order.batches(0)] == [True, False]


def test_images_on_the_device_are_those_of_the_files(images):
    none = Augment(crop="none", flip=0.0)
    order = Order(len(images), 8, 3, *CPU)
    files = LoaderBatches(images, images, order, Train(workers=0, augment=none), SMALL)
    held = DeviceBatches(images, images, order, Train(workers=0, augment=none), SMALL, SILENT)
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
    order = Order(22, 8, 3, *CPU)
    with pytest.raises(ValueError, match='`cache = "device"` needs images of one size'):
        DeviceBatches(
            image_folder(tmp_path / "images"),
            None,
            order,
            Train(workers=0, on_error="skip", augment=Augment(crop="none")),
            raw,
            SILENT,
        )


def damage(images, *indices):
    for index in indices:
        file = images.path(index)
        file.write_bytes(file.read_bytes()[:40])


@pytest.mark.parametrize("cache", ["none", "device"])
def test_an_unreadable_training_image_stops_or_does_not_count(images, tmp_path, cache):
    recipe = dataclasses.replace(QUICK, cache=cache)
    damage(images, 3)
    with pytest.raises(ImageError, match=r'every training image must be readable; .*png.*on_error = "skip"'):
        run(images, tmp_path / "run", recipe)
    told = Told()
    _, history = run(images, tmp_path / "run", dataclasses.replace(recipe, on_error="skip"), progress=told)
    assert [line.unreadable for line in history] == [1, 1, 1]
    assert all(np.isfinite(line.loss) for line in history)
    named = [note for note in told.notes if images.where(3) in note]
    assert len(named) == 1  # when it is first seen, and not again
    assert "train: 1 image could not be read" in named[0]
    assert told.notes.index(named[0]) < next(n for n, note in enumerate(told.notes) if "epoch 1:" in note)
    with open(tmp_path / "run" / "history.csv", encoding="utf-8") as file:
        assert [row["unreadable"] for row in csv.DictReader(file)] == ["1"] * 3


@pytest.mark.parametrize("cache", ["none", "device"])
def test_the_label_of_an_unreadable_image_is_ignored_and_its_pixels_are_blank(images, cache):
    damage(images, 3, 20)
    recipe = Train(workers=0, on_error="skip", augment=Augment(crop="none", flip=0.0))
    given = images, None, Order(21, 21, 0, *CPU), recipe, SMALL
    feed = DeviceBatches(*given, SILENT) if cache == "device" else LoaderBatches(*given)
    (batch,) = feed.epoch(0)
    (order,) = (index for index, _, _ in given[2].batches(0))
    expected = images.labels[order]
    expected[(order == 3) | (order == 20)] = IGNORED
    assert torch.equal(batch.labels, expected)
    torch.testing.assert_close(batch.images[batch.labels == IGNORED], torch.full((2, 3, 12, 12), -2.0))
    assert len(feed.unreadable) == 2


@pytest.mark.slow
@pytest.mark.parametrize("cache", ["none", "device"])
def test_unreadable_validation_images_are_left_out_and_named(images, tmp_path, cache):
    other = image_folder(write_images(tmp_path / "others", count=12))
    damage(other, 0, 7)
    recipe = dataclasses.replace(QUICK, cache=cache, epochs=1, milestones=())
    with pytest.raises(ImageError, match="every validation image must be readable"):
        run(images, tmp_path / "stopped", recipe, validation=other)
    told = Told()
    skipping = dataclasses.replace(recipe, on_error="skip")
    model, history = run(images, tmp_path / "run", skipping, validation=other, progress=told)
    assert history[0].unreadable == 2
    assert any(other.where(0) in note and other.where(7) in note for note in told.notes)
    kept = [index for index in range(12) if index not in (0, 7)]
    x = torch.stack([SMALL.test()(other.image(index)) for index in kept])
    expected = nn.functional.cross_entropy(model.eval()(x), other.labels[kept])
    assert history[0].validation_loss == pytest.approx(expected.item(), rel=1e-5)


def test_a_machine_that_fails_is_never_skipped(images, monkeypatch):
    def full(index):
        raise OSError(24, f"too many open files at {index}")

    monkeypatch.setattr(images, "image", full)
    given = images, images, Order(21, 8, 1, *CPU), Train(workers=0, on_error="skip"), SMALL
    feed = LoaderBatches(*given)
    with pytest.raises(ImageError, match=r"every training image must be readable; .*too many open files at \d+$"):
        next(feed.epoch(0))
    with pytest.raises(ImageError, match=r"every validation image must be readable; .*too many open files"):
        next(feed.validation())
    with pytest.raises(ImageError, match=r"every training image must be readable; .*too many open files"):
        DeviceBatches(*given, SILENT)


@pytest.mark.slow
def test_an_exploding_loss_stops_the_run_with_the_last_checkpoint_kept(images, tmp_path, monkeypatch):
    recipe = dataclasses.replace(QUICK, milestones=())
    whole, _ = run(images, tmp_path / "whole", recipe)
    with monkeypatch.context() as patch:
        patch.setattr("sirc.training.loop.learning_rate", lambda recipe, epoch: 1e30 if epoch >= 2 else recipe.lr)
        with pytest.raises(ValueError, match=r"must stay finite; it is .* in epoch 3 .*Lower `train\.lr`"):
            run(images, tmp_path / "run", recipe)
    kept = sirc._utils.files.read_safetensors(tmp_path / "run" / "checkpoint.safetensors")[0]
    assert all(value.isfinite().all() for value in kept.values())
    with open(tmp_path / "run" / "history.csv", encoding="utf-8") as file:
        assert [row["epoch"] for row in csv.DictReader(file)] == ["1", "2"]
    told = Told()
    model, history = run(images, tmp_path / "run", recipe, progress=told)
    assert told.notes[0] == "train: resuming after epoch 2 of 3"
    assert len(history) == 3
    assert same(weights(model), weights(whole))


class Hidden(nn.Sequential):
    """A head that is a convolution, and hidden layers wider than it."""

    def __init__(self, classes):
        super().__init__(
            nn.Conv2d(3, 64, 3), nn.BatchNorm2d(64), nn.AdaptiveAvgPool2d(1), nn.Dropout(), nn.Conv2d(64, classes, 1)
        )


def hidden_linear(classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 12 * 12, 64), nn.ReLU(), nn.Linear(64, classes))


@pytest.mark.parametrize("build", [hidden_linear, Hidden])
def test_labels_that_the_model_has_no_output_for_are_told(images, tmp_path, build):
    with pytest.raises(ValueError, match=r"must be in 0…1, as the model has 2 outputs; got 2 for .*num_classes = 3`"):
        run(images, tmp_path / "run", model=build(2))
    with pytest.raises(ValueError, match="training needs labels"):
        run(images.unlabelled(), tmp_path / "run", model=build(3))
    write_images(tmp_path / "others", count=6)
    (tmp_path / "others" / "x").mkdir()
    Image.new("RGB", (16, 16)).save(tmp_path / "others" / "x" / "other.png")
    other = image_folder(tmp_path / "others").named("validation")
    with pytest.raises(ValueError, match=r"labels of `validation` must be in 0…2.*got 3 for .*other\.png"):
        run(images, tmp_path / "run", model=build(3), validation=other)
    with pytest.raises(ValueError, match="training needs labels; `validation` has none"):
        run(images, tmp_path / "run", model=build(3), validation=other.unlabelled())
    images.labels[5] = -1
    with pytest.raises(ValueError, match=r"got -1 for .* Number the classes from 0"):
        run(images, tmp_path / "run", model=build(3))


def test_looking_at_the_outputs_leaves_no_trace_in_the_model(images):
    model = Hidden(3)
    model[3].eval()
    before, flags, state = weights(model), [m.training for m in model.modules()], torch.get_rng_state()
    preflight.check_num_outputs(model, (3, 12, 12), images)
    assert same(before, weights(model))
    assert flags == [m.training for m in model.modules()]
    assert torch.equal(state, torch.get_rng_state())


def test_overwriting_deletes_nothing_before_the_new_run_can_start(images, tmp_path):
    run(images, tmp_path / "run")
    with pytest.raises(ValueError, match="as the model has 2 outputs"):
        run(images, tmp_path / "run", model=hidden_linear(2), overwrite=True)
    assert (tmp_path / "run" / "model.safetensors").exists()


class FailsToCompile(nn.Module):
    def __init__(self, model, error):
        super().__init__()
        self._orig_mod, self.error = model, error

    def forward(self, x):
        self._orig_mod(x)  # as far as batch norm and dropout
        raise self.error


@pytest.mark.slow
def test_where_compiling_fails_training_goes_on_without(images, tmp_path, monkeypatch):
    from torch._dynamo.exc import TorchDynamoException

    class NoCompilerError(TorchDynamoException):
        pass

    recipe = dataclasses.replace(QUICK, compile=True)
    expected, _ = run(images, tmp_path / "eager", model=normal_network())
    for number, error in enumerate((NoCompilerError("no g++\nat all"), RuntimeError("Compiler: cl is not found."))):
        monkeypatch.setattr(torch, "compile", lambda model, error=error, **_: FailsToCompile(model, error))
        told = Told()
        model, _ = run(images, tmp_path / str(number), recipe, model=normal_network(), progress=told)
        words = str(error).splitlines()[0]
        assert told.notes[0] == f"torch.compile is not usable here, training runs without it: {words}"
        assert same(weights(model), weights(expected))


def test_errors_of_the_model_are_not_taken_for_those_of_the_compiler(images, tmp_path, monkeypatch):
    error = RuntimeError("mat1 and mat2 shapes cannot be multiplied")
    monkeypatch.setattr(torch, "compile", lambda model, **_: FailsToCompile(model, error))
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        run(images, tmp_path / "run", dataclasses.replace(QUICK, compile=True))


@pytest.mark.slow
def test_a_compiled_network_trains_to_the_same_weights(images, tmp_path, monkeypatch):
    monkeypatch.setattr(preflight, "_BACKEND", "aot_eager")  # traced and differentiated as always, but no code is built
    recipe = dataclasses.replace(QUICK, epochs=1, milestones=(), batch_size=7)
    eager, history = run(images, tmp_path / "eager", recipe, model=normal_network())
    told = Told()
    model = normal_network()
    _, lines = run(images, tmp_path / "run", dataclasses.replace(recipe, compile=True), model=model, progress=told)
    assert not any("not usable" in note for note in told.notes)
    assert lines[0].loss == pytest.approx(history[0].loss, rel=1e-5)
    for name, value in weights(eager).items():
        torch.testing.assert_close(model.state_dict()[name], value, atol=1e-5, rtol=1e-5)


@pytest.mark.slow
def test_a_graph_that_cannot_be_is_told_and_changes_nothing(images, tmp_path):
    expected, _ = run(images, tmp_path / "plain", model=normal_network())
    told = Told()
    model, _ = run(
        images, tmp_path / "run", dataclasses.replace(QUICK, graph=True), model=normal_network(), progress=told
    )
    assert any("`graph` is for one process on a GPU" in note for note in told.notes)
    assert same(weights(model), weights(expected))
    assert all(parameter.grad is None for parameter in model.parameters())


def test_without_accelerate_the_extra_is_named(images, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "accelerate", None)
    with pytest.raises(ImportError, match=r"training needs accelerate: pip install 'torch-sirc\[vision\]'"):
        run(images, tmp_path / "run", QUICK)


@pytest.mark.slow
def test_tensorboard_gets_every_epoch(images, tmp_path):
    run(images, tmp_path / "run", dataclasses.replace(QUICK, tensorboard=True))
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    assert [event.step for event in events.Scalars("loss")] == [1, 2, 3]


def test_a_missing_tensorboard_is_told_with_its_extra(images, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ImportError, match=r"`train.tensorboard` needs TensorBoard: pip install '.*\[tensorboard\]'"):
        run(images, tmp_path / "run", dataclasses.replace(QUICK, tensorboard=True))


SCRIPT = """
    import dataclasses, sys
    from pathlib import Path
    sys.path[:0] = [sys.argv[3], str(Path(sys.argv[3]).parent)]
    from test_training import QUICK, Told, image_folder, network, normal_network, run
    from sirc._utils import distributed
    from torch import nn, device

    images = image_folder(Path(sys.argv[1]))
    out = Path(sys.argv[2])
    with distributed.process_group(device("cpu")):
        recipe = dataclasses.replace(QUICK, batch_size=10)
        for cache in ("none", "device"):
            model = network()
            model[3] = nn.Identity()  # every process has dropout of its own
            run(images, out / cache, dataclasses.replace(recipe, cache=cache), model=model, validation=images)

        even = dataclasses.replace(QUICK, batch_size=7)  # with 10 the last image goes to both
        run(images, out / "normal", even, model=normal_network(), validation=images)

        damaged = image_folder(Path(sys.argv[1]).parent / "damaged")
        told = Told()
        run(damaged, out / "damaged", dataclasses.replace(recipe, on_error="skip"), progress=told)
        if distributed.is_main():
            (out / "notes").write_text("\\n".join(told.notes))

        if distributed.world() > 1:  # a folder of its own for each, of which one has a checkpoint
            try:
                run(images, out / f"apart-{distributed.rank()}")
            except ValueError as error:
                (out / f"words-{distributed.rank()}").write_text(str(error))
"""


@pytest.fixture(scope="module")
def launched(tmp_path_factory):
    """The script run by one process and by two; the folder has the images, and `1` and `2` what was trained."""
    root = tmp_path_factory.mktemp("launched")
    images = image_folder(write_images(root / "images"))
    damage(image_folder(write_images(root / "damaged")), 2, 5, 11)
    with pytest.raises(Stop):
        run(images, root / "2" / "apart-0", progress=StopAt(2))
    script = root / "script.py"
    script.write_text(textwrap.dedent(SCRIPT), encoding="utf-8")
    for count in (1, 2):
        for done in interpreters.launched(count, script, root / "images", root / str(count), Path(__file__).parent):
            assert done.returncode == 0, done.stderr
    return root


def lines_of(folder):
    with open(folder / "history.csv", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
@pytest.mark.parametrize("cache", ["none", "device"])
def test_two_processes_train_to_the_weights_of_one(launched, cache):
    one, two = network(), network()
    one[3] = two[3] = nn.Identity()
    sirc.models.load_weights(one, launched / "1" / cache / "model.safetensors")
    sirc.models.load_weights(two, launched / "2" / cache / "model.safetensors")
    for name, value in weights(one).items():
        torch.testing.assert_close(two.state_dict()[name], value, atol=1e-5, rtol=1e-5)
    for a, b in zip(lines_of(launched / "1" / cache), lines_of(launched / "2" / cache), strict=True):
        assert float(a["loss"]) == pytest.approx(float(b["loss"]), rel=1e-5)
        assert float(a["validation_loss"]) == pytest.approx(float(b["validation_loss"]), rel=1e-5)
        assert a["error"] == b["error"]


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2])
def test_the_validation_numbers_are_those_of_the_saved_network(launched, count):
    """Batch norm sees other images in each process, and one network is saved."""
    model = normal_network(5)
    sirc.models.load_weights(model, launched / str(count) / "normal" / "model.safetensors")
    x, y = read_by_hand(image_folder(launched / "images"))
    with torch.no_grad():
        logits = model.eval()(x)
    last = lines_of(launched / str(count) / "normal")[-1]
    expected = nn.functional.cross_entropy(logits, y).item()
    assert float(last["validation_loss"]) == pytest.approx(expected, rel=1e-5)
    assert float(last["validation_error"]) == (logits.argmax(-1) != y).double().mean().item()


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2])
def test_images_that_any_process_could_not_read_are_counted_and_named(launched, count):
    assert [line["unreadable"] for line in lines_of(launched / str(count) / "damaged")] == ["3", "3", "3"]
    notes = (launched / str(count) / "notes").read_text(encoding="utf-8")
    images = image_folder(launched / "damaged")
    assert notes.count("3 images could not be read") == 1
    assert all(notes.count(images.where(index)) == 1 for index in (2, 5, 11))


@pytest.mark.slow
def test_processes_that_do_not_share_the_folder_are_told(launched):
    for rank in range(2):
        words = (launched / "2" / f"words-{rank}").read_text(encoding="utf-8")
        assert "process 0 has 2 epochs" in words
        assert "process 1 0 epochs" in words
        assert "must be shared" in words
