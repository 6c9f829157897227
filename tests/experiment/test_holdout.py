"""`data.holdout`: validation images cut out of the training set, the same for every seed, never trained on."""

import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import sirc
from sirc.data import image_folder
from sirc.data.base import Subset
from sirc.errors import ConfigError
from sirc.experiment.experiment import Experiment
from sirc.experiment.images import images_of
from sirc.experiment.stages import extract_run, fit_run, train_run
from sirc.experiment.study import run_study
from support.tiny_images import write_images
from support.tiny_study import MODEL, TOML

HOLDOUT = ["data.holdout=4", 'fit.specs=["msp", "tempered_msp"]', "seeds=[1]"]


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_images(tmp_path / "data" / "images", count=50)  # 17, 17 and 16 of the classes
    write_images(tmp_path / "data" / "held-out", count=12, seed=1)
    write_images(tmp_path / "data" / "grey", count=10, seed=2)
    Path("tiny_model.py").write_text(MODEL, encoding="utf-8")
    Path("tiny.toml").write_text(
        TOML.replace("count = 6", "count = 10").replace("lr = 0.02", "lr = 0.0005"), encoding="utf-8"
    )
    return lambda *overrides: Experiment.read("tiny.toml", [*HOLDOUT, *overrides])


def numbers(images):
    """Where these images lie in the folder."""
    return set(images.origin()[1].tolist())


def test_a_class_loses_as_many_images_as_the_others(tmp_path):
    whole = image_folder(write_images(tmp_path / "images", count=50))
    rest, held = whole.held_out(4, seed=0)
    assert np.bincount(held.labels, minlength=3).tolist() == [4, 4, 4]
    assert np.bincount(rest.labels, minlength=3).tolist() == [12, 13, 13]  # of 16, 17 and 17
    assert numbers(rest) | numbers(held) == set(range(50))
    assert not numbers(rest) & numbers(held)
    for part in (rest, held):
        assert part.classes == whole.classes
        for index in (0, len(part) - 1):
            number = int(part.indices[index])
            assert part.where(index) == whole.where(number)
            assert part.image(index).tobytes() == Image.open(whole.path(number)).tobytes()
    assert len({whole.fingerprint, rest.fingerprint, held.fingerprint}) == 3


def test_what_is_held_out_of_a_class_depends_on_the_seed_and_on_nothing_else(tmp_path):
    whole = image_folder(write_images(tmp_path / "images", count=50))
    _, held = whole.held_out(4, seed=0)
    np.random.default_rng().random(5)
    torch.rand(3)
    _, again = whole.held_out(4, seed=0)
    assert numbers(again) == numbers(held)
    assert again.fingerprint == held.fingerprint
    assert numbers(whole.held_out(4, seed=1)[1]) != numbers(held)
    # Without the first class, the others hold out the same.
    later = Subset(whole, np.flatnonzero(whole.labels.numpy() > 0))
    assert numbers(later.held_out(4, seed=0)[1]) == {n for n in numbers(held) if whole.labels[n] > 0}
    # Over many seeds every image of a class is as likely as the others.
    counts = sum(np.bincount(whole.held_out(4, seed=seed)[1].indices, minlength=50) for seed in range(800))
    assert abs(counts[:16] - 800 * 4 / 16).max() < 5 * np.sqrt(800 * 4 / 16)
    assert abs(counts[16:] - 800 * 4 / 17).max() < 5 * np.sqrt(800 * 4 / 17)


def test_a_subset_of_a_subset_knows_where_its_images_are(tmp_path):
    whole = image_folder(write_images(tmp_path / "images", count=50))
    rest, _ = whole.held_out(4, seed=0)
    part = rest.subset(10, seed=3)
    origin, found = part.origin()
    assert origin is whole
    assert [whole.where(int(n)) for n in found] == [part.where(i) for i in range(10)]


def test_no_class_may_be_held_out_whole(tmp_path):
    whole = image_folder(write_images(tmp_path / "images", count=50))
    assert len(whole.held_out(15, seed=0)[0]) == 5
    with pytest.raises(ValueError, match=r"`holdout` must be smaller than every class.*got 16, and 'b' .* has 16"):
        whole.held_out(16, seed=0)
    with pytest.raises(ValueError, match=r"must have labels to be held out.*have none. Use a folder"):
        whole.unlabelled().held_out(2, seed=0)


def test_held_out_images_are_a_validation_set(tiny):
    experiment = tiny()
    assert experiment.data.validates
    assert experiment.tuned
    assert experiment.names == ("train", "test", "validation", "Grey", "Noise")
    assert experiment.source("validation") == experiment.data.train
    rest, held = images_of(experiment, "train"), images_of(experiment, "validation")
    assert (len(rest), len(held)) == (38, 12)
    assert (rest.name, held.name) == ("train", "validation")
    assert rest.classes == held.classes
    assert not numbers(rest) & numbers(held)
    assert numbers(images_of(experiment, "train", augmented=True)) == numbers(rest)
    assert numbers(images_of(tiny("fit.count=9"), "train")) < numbers(rest)
    for seed in (1, 2):
        assert numbers(images_of(tiny(f"seeds=[{seed}]"), "validation")) == numbers(held)
    plain = tiny("data.holdout=0")
    assert "validation" not in plain.names
    assert len(images_of(plain, "train")) == 50


def test_mistakes_are_told(tiny, tmp_path):
    with pytest.raises(ConfigError, match=r"`data.holdout` must be left out where `validation` is given"):
        tiny("data.validation={ dataset = 'folder', path = 'grey' }")
    with pytest.raises(ConfigError, match=r"`data.holdout` must be a whole number ≥ 0; got -1"):
        tiny("data.holdout=-1")
    with pytest.raises(ValueError, match=r"`holdout` must be smaller than every class.*got 16"):
        images_of(tiny("data.holdout=16"), "train")
    assert tiny('fit.specs=["sirc(msp, l1, budget=5)"]').tuned
    with pytest.raises(ConfigError, match=r"budget.*`data.validation`.*`data.holdout = 10`"):
        tiny('fit.specs=["sirc(msp, l1, budget=5)"]', "data.holdout=0")
    lost = tiny("data.train.path=nowhere/{split}")
    with pytest.raises(ConfigError, match=r"`data.train` needs '.*nowhere/train', which is not there"):
        lost.require(["validation"])


def test_the_number_held_out_is_written_down(tiny):
    experiment = tiny()
    assert Experiment.read(experiment.save()) == experiment


@pytest.mark.slow
def test_a_study_stores_what_select_and_calibrate_take_and_an_older_one_without_images_does_without(tiny, command):
    experiment = tiny('fit.specs=["msp", "energy"]', "seeds=[1]")
    run_study([experiment], figures=False)
    run = experiment.run(1)
    assert len(sirc.OutputStore(run.store("validation"))) == 12
    code, out, err = command("select", experiment.folder, "--draws", 20)
    assert code == 0, err
    assert "Chosen on a random half of the validation images; `sirc calibrate` takes this score and the other" in out
    assert "test images" not in err
    shutil.rmtree(run.store("validation"))
    (run.folder / ".made-from" / "extract-validation.json").unlink()
    shutil.rmtree("data")
    run_study([experiment], figures=False)
    assert {path.name for path in (run.folder / "outputs").iterdir()} == {"train", "test", "Grey", "Noise"}


@pytest.mark.slow
def test_a_study_trains_and_fits_on_the_rest_and_tunes_on_what_is_held_out(tiny):
    experiment = tiny()
    run = experiment.run(1)
    run_study([experiment], figures=False)
    train, val = (sirc.OutputStore(run.store(name)) for name in ("train", "validation"))
    assert (len(train), len(val)) == (38, 12)
    whole = image_folder("data/images")
    for store, name in ((train, "train"), (val, "validation")):
        assert torch.equal(store.load().labels, whole.labels[sorted(numbers(images_of(experiment, name)))])
    assert sirc.Scorer.load(run.scorer).seen(val.load()) == 1
    # The last validation error of the history is that of the stored logits.
    wrong = (val.load().logits.argmax(-1) != val.load().labels).double().mean()
    last = run.history.read_text(encoding="utf-8").splitlines()
    errors = dict(zip(last[0].split(","), last[-1].split(","), strict=True))
    assert float(errors["validation_error"]) == pytest.approx(float(wrong))
    assert not [step for step in run_study([experiment], figures=False).steps if not step.skipped]


def test_images_that_were_trained_on_do_not_validate(tiny):
    before = tiny("data.holdout=0")
    train_run(before, before.run(1), cpu=True)
    after = tiny()
    with pytest.raises(sirc.StoreError, match=r"must be trained without the images that are held out, 4 of each class"):
        extract_run(after, after.run(1), ["validation"])
    with pytest.raises(sirc.StoreError, match="training images is"):
        train_run(after, after.run(1), cpu=True)
    extract_run(after, after.run(1), ["test"])
    train_run(after, after.run(1), cpu=True, overwrite=True)
    assert len(extract_run(after, after.run(1), ["validation"])["validation"]) == 12


def test_images_that_were_held_out_are_not_fitted_on(tiny):
    before = tiny()
    train_run(before, before.run(1), cpu=True)
    after = tiny("data.holdout=0")
    with pytest.raises(sirc.StoreError, match=r"must be trained on `data\.train`; it was trained on other images"):
        extract_run(after, after.run(1), ["train"])
    extract_run(after, after.run(1), ["test"])


@pytest.mark.slow
def test_outputs_of_another_number_held_out_are_not_fitted(tiny):
    experiment = tiny()
    train_run(experiment, experiment.run(1), cpu=True)
    extract_run(experiment, experiment.run(1), ["train", "validation"])
    with pytest.raises(sirc.StoreError, match=r"was extracted with other settings: data.holdout is 4, got 5"):
        fit_run(tiny("data.holdout=5"), experiment.run(1))
    assert fit_run(experiment, experiment.run(1))


@pytest.mark.slow
def test_a_network_from_elsewhere_may_have_seen_what_is_held_out(tiny, command):
    experiment = tiny()
    train_run(experiment, experiment.run(1), cpu=True)
    elsewhere = re.sub(
        r"\[train\].*?(?=\[extract\])", "", Path("tiny.toml").read_text(encoding="utf-8"), flags=re.DOTALL
    )
    checkpoint = f'num_classes = 3\ncheckpoint = "{experiment.run(1).weights.as_posix()}"'
    Path("elsewhere.toml").write_text(
        elsewhere.replace("num_classes = 3", checkpoint).replace("seeds = [1, 2]", ""), encoding="utf-8"
    )
    for only, told in (("validation", True), ("test", False)):
        settings = ["--set", "name=other", "--set", "data.holdout=4", "--only", only]
        code, _, err = command("extract", "elsewhere.toml", *settings)
        assert code == 0, err
        assert ("must not have seen the 4 images of each class that are held out" in err) == told


@pytest.mark.slow
def test_select_judges_on_what_is_held_out(tiny, command):
    Path("tiny.toml").write_text(
        Path("tiny.toml").read_text(encoding="utf-8").replace("[data.train]", "[data]\nholdout = 4\n\n[data.train]"),
        encoding="utf-8",
    )
    run_study([tiny('fit.specs=["msp", "energy"]')], figures=False)
    settings = ["--set", 'fit.specs=["msp", "energy"]', "--set", "seeds=[1]"]
    code, _, err = command("extract", "tiny.toml", *settings, "--only", "validation")
    assert code == 0, err
    code, _, err = command("select", "runs/tiny", "--draws", "20")
    assert code == 0, err
    assert "note" not in err
