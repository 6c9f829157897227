"""The order of classes: a pretrained network meets folders named by numbers, and the TOML says how they count."""

import shutil
from pathlib import Path

import pytest
from PIL import Image

from sirc.cli import main
from sirc.errors import ConfigError
from sirc.experiment import Experiment, run_study
from sirc.experiment.images import images_of
from sirc.experiment.stages import extract_run, outputs_stage
from sirc.outputs import OutputStore

MODEL = """
import torch
from torch import nn

class Shades(nn.Module):
    def __init__(self):
        super().__init__()
        number = torch.arange(12.0)
        self.fc = nn.Linear(1, 12)
        with torch.no_grad():  # the logits are -(shade - number)², but for what all classes share
            self.fc.weight.copy_(2 * number[:, None])
            self.fc.bias.copy_(-number**2)

    def forward(self, x):
        return self.fc(x.mean((1, 2, 3))[:, None] * 255 / 20)

def shades():
    return Shades()
"""

TOML = """
name = "shades"

[model]
name = "shades_model:shades"
num_classes = 12

[preprocess]
resize = 4
crop = 4
mean = [0.0, 0.0, 0.0]
std = [1.0, 1.0, 1.0]

[data]
root = "."

[data.train]
dataset = "folder"
path = "photos"

[data.test]
dataset = "folder"
path = "photos"

[data.ood.Noise]
dataset = "noise"
count = 10

[extract]
workers = 0

[fit]
specs = ["msp"]
"""


@pytest.fixture
def shades(tmp_path, monkeypatch):
    """A network that tells twelve shades apart, folders `0` to `11` of them, and the experiment with overrides."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for number in range(12):
        for i in range(6):
            path = Path("photos", str(number), f"{i}.png")
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (4, 4), (max(0, 20 * number + i - 2),) * 3).save(path)
    Path("shades_model.py").write_text(MODEL, encoding="utf-8")
    Path("shades.toml").write_text(TOML, encoding="utf-8")
    return lambda *overrides: Experiment.read("shades.toml", overrides)


def accuracy(experiment, name):
    return float(OutputStore(experiment.runs[0].store(name)).load().correct.double().mean())


def stderr_of(arguments, capsys):
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 0
    return capsys.readouterr().err


@pytest.mark.slow
def test_extract_and_run_tell_of_folders_that_sort_as_text_and_the_toml_mends_it(shades, capsys):
    said = stderr_of(["extract", "shades.toml", "--device", "cpu", "--only", "test"], capsys)
    assert said.count("warning: the predictions for 'test' agree with its labels in 16.7% of 72 rows, and in 100") == 1
    assert 'give the order of the classes, `sort = "natural"`' in said
    said = stderr_of(["run", "shades.toml", "--device", "cpu", "--no-figures"], capsys)
    assert said.count("warning: the predictions for 'test'") == 1
    again = stderr_of(["run", "shades.toml", "--device", "cpu", "--no-figures"], capsys)
    assert "extract: there already" in again
    assert again.count("warning: the predictions for 'test'") == again.count("'train' agree with its labels") == 1
    again = stderr_of(["extract", "shades.toml", "--device", "cpu", "--only", "test"], capsys)
    assert again.count("warning: the predictions for 'test'") == 1
    natural = ["--set", "data.train.sort=natural"]
    said = stderr_of(["run", "shades.toml", "--device", "cpu", "--no-figures", *natural], capsys)
    assert "warning" not in said
    assert accuracy(shades("data.train.sort=natural"), "test") == 1.0


@pytest.mark.parametrize("as_file", [True, False])
def test_classes_are_given_as_a_file_or_as_a_list(shades, as_file):
    names = [str(number) for number in range(12)]
    Path("classes.txt").write_text("\n".join(names) + "\n", encoding="utf-8")
    experiment = shades(f"data.train.classes={'classes.txt' if as_file else names}")
    assert images_of(experiment, "test").classes == tuple(names)
    assert Experiment.read(experiment.save(), whole=True) == experiment
    extract_run(experiment, experiment.runs[0], ["test"])
    assert accuracy(experiment, "test") == 1.0


def test_folders_of_only_some_classes_are_noted_before_the_network_runs(shades, capsys):
    for number in range(1, 7):
        shutil.rmtree(f"photos/{number}")
    said = stderr_of(["run", "shades.toml", "--device", "cpu", "--no-figures"], capsys)
    note = "the network of 'shades' has 12 outputs, and its training images have 6 classes, numbered from 0. If they"
    assert said.index(note) < said.index("36/36 images")
    names = [str(number) for number in range(12)]
    order = ["--set", f"data.train.classes={names}"]
    said = stderr_of(["run", "shades.toml", "--device", "cpu", "--no-figures", *order], capsys)
    assert "note:" not in said
    assert accuracy(shades(f"data.train.classes={names}"), "test") == 1.0


def test_a_changed_order_makes_stored_labels_stale_and_none_leaves_old_stamps_valid(shades):
    plain, natural = shades(), shades("data.train.sort=natural")
    for name in ("train", "test"):
        inputs = outputs_stage(plain, plain.runs[0], name, "").inputs
        assert not any("sort" in key or "classes" in key for key in inputs if key.startswith("data."))
        assert outputs_stage(natural, natural.runs[0], name, "").inputs != inputs
    ood = [outputs_stage(one, one.runs[0], "Noise", "").inputs for one in (plain, natural)]
    assert ood[0] == ood[1]


def test_an_order_where_it_would_do_nothing_is_refused(shades):
    with pytest.raises(ConfigError, match=r"shades.toml.*`data.test` must have the `classes` and `sort` of `train`"):
        shades("data.test.sort=natural")
    with pytest.raises(ConfigError, match=r"`data.ood.Own` must have neither `classes` nor `sort`"):
        shades('data.ood.Own={dataset = "folder", path = "photos", sort = "natural"}')
    with pytest.raises(ConfigError, match=r'`data.ood.Noise.sort` must be left out unless `dataset` is "folder"'):
        shades("data.ood.Noise.sort=natural")
    with pytest.raises(ConfigError, match=r'`data.train.sort` must be "name" or "natural"; got "size"'):
        shades("data.train.sort=size")
    both = shades("data.train.sort=natural", "data.test.sort=natural")
    assert images_of(both, "test").classes[2] == "2"


def test_a_file_of_classes_that_cannot_be_read_is_named(shades):
    with pytest.raises(FileNotFoundError, match=r"'none.txt' cannot be read: No such file"):
        run_study([shades("data.train.classes=none.txt")], figures=False)
    Path("empty.txt").touch()
    with pytest.raises(ValueError, match=r"'empty.txt' must name at least one class"):
        images_of(shades("data.train.classes=empty.txt"), "train")
    with pytest.raises(ValueError, match=r"`classes` must use variables that are set; got '\$NOWHERE/c.txt'"):
        images_of(shades("data.train.classes=$NOWHERE/c.txt"), "train")
