"""An experiment's TOML: a mistake is named before it costs an hour."""

import dataclasses
import json
import re
from pathlib import Path

import pytest

from sirc.errors import ConfigError
from sirc.experiment import PAPER_SPECS
from sirc.experiment.experiment import Data, Experiment, Extract, Model, Run, Source
from sirc.experiment.network import note_preprocessing
from sirc.progress import Log
from sirc.training import Augment, Train
from support.interpreters import python

SMALL = """
name = "small"
seeds = [1, 2]

[model]
name = "timm:resnet18"

[train]
lr = 0.1

[data]
train = { dataset = "folder", path = "train" }
test = { dataset = "folder", path = "test" }

[data.ood]
Noise = { dataset = "noise" }
"my textures" = { dataset = "folder", path = "$NOWHERE/x" }
"""


@pytest.fixture
def small(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("NOWHERE", raising=False)
    (tmp_path / "small.toml").write_text(SMALL, encoding="utf-8")
    return lambda *overrides: Experiment.read("small.toml", overrides)


def plain(**changes):
    source = Source("folder", "x")
    given = {"name": "a", "model": Model("torchvision:resnet18", pretrained=True), "data": Data(source, source)}
    return Experiment(**(given | changes))


def test_the_default_scores_are_the_sixteen_of_the_paper_s_tables():
    assert len(set(PAPER_SPECS)) == 16
    combined = {f"sirc({first}, {second})" for first in ("msp", "doctor", "entropy") for second in ("l1", "residual")}
    alone = {"msp", "doctor", "entropy", "l1", "residual", "max_logit", "energy", "gradnorm", "vim", "mahalanobis"}
    assert set(PAPER_SPECS) == combined | alone


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["seeds=[]"], r"--set seeds=\[\]: `seeds` must be given to train: one network for each; got none. Write"),
        (["seeds=[1, 1]"], r"`seeds` must be distinct whole numbers from 0 to 2³² − 1; got \[1, 1\]"),
        (["seeds=[-1]"], "`seeds` must be distinct whole numbers"),
        (["name=a/b"], "--set name=a/b: `name` must be a possible name of a folder: .*; got 'a/b'. Rename it."),
        (["name="], "`name` must be a possible name of a folder"),
        (["name=.."], "`name` must be a possible name of a folder"),
        ([f"name={'é' * 101}"], "must be a possible name of a folder: at most 200 bytes"),
        (
            ["model.name=resnet18"],
            "`model.name` must be `timm:NAME`, .*; got 'resnet18'. Say which library",
        ),
        (["model.num_classes=0"], "`model.num_classes` must be a whole number ≥ 1; got 0"),
        (["model.pretrained=true", "model.checkpoint=x.pt"], "`model.checkpoint` must be left out if `pretrained`"),
        (["train.lr=0"], "--set train.lr=0: `train.lr` must be positive and finite; got 0.0."),
        (["train.lr=inf"], "`train.lr` must be positive and finite; got inf."),
        (["train.gamma=nan"], "`train.gamma` must be positive and finite; got nan."),
        (["train.epochs=0"], "`train.epochs` must be a whole number ≥ 1; got 0"),
        (["train.batch_size=-1"], "`train.batch_size` must be a whole number ≥ 1; got -1"),
        (["train.momentum=1"], r"`train.momentum` must be in \[0, 1\); got 1.0."),
        (["train.weight_decay=-1"], "`train.weight_decay` must be at least 0 and finite; got -1.0."),
        (["train.nesterov=true", "train.momentum=0"], "`train.nesterov` must be false if `momentum` is 0"),
        (["train.milestones=[60, 30]"], r"`train.milestones` must be epochs ≥ 1 that increase; got \[60, 30\]."),
        (["train.milestones=[0]"], r"`train.milestones` must be epochs ≥ 1 that increase; got \[0\]."),
        (["train.workers=-1"], "`train.workers` must be a whole number ≥ 0; got -1."),
        (["train.precision=fp16"], '`train.precision` must be "fp32" or "bf16"; got "fp16".'),
        (["train.augment.scale=[0, 1]"], r"`train.augment.scale` must be shares of the area, .* got \[0.0, 1.0\]."),
        (["train.augment.ratio=[2, 1]"], "`train.augment.ratio` must be two positive numbers, least first"),
        (["train.augment.flip=2"], r"`train.augment.flip` must lie in \[0, 1\]; got 2."),
        (["train.augment.padding=-1"], "`train.augment.padding` must be a whole number ≥ 0; got -1."),
        (["extract.shard_size=0"], "`extract.shard_size` must be a whole number ≥ 1"),
        (["fit.specs=[]"], "`fit.specs` must name at least one score"),
        (['fit.specs=["mps"]'], "`fit.specs` must be scores: unknown score `mps` in `mps`. Did you mean `msp`?"),
        (['fit.specs=["sirc(msp,l1)", "sirc(msp, l1)"]'], r"`fit.specs` must be distinct; `sirc\(msp, l1\)` is there"),
        (["fit.crossfit=1"], '`fit.crossfit` must be "auto", 0'),
        (["fit.count=0"], "`fit.count` must be a whole number ≥ 1"),
        (["preprocess.crop=0"], "`preprocess.crop` must be a whole number ≥ 1; got 0"),
        (["preprocess.resize=[3, -1]"], "`preprocess.resize` must be a whole number ≥ 1; got -1"),
        (["preprocess.std=[1, 0, 1]"], "`preprocess.std` must be three numbers above 0"),
        (
            ["preprocess.resize=none", "preprocess.crop=none"],
            '`preprocess.crop` or `preprocess.resize` must be given .* or `train.augment.crop = "none"`',
        ),
        (["data.test.dataset=textures"], "`data.test` must be a labelled ID set; got Textures, an OOD set."),
        (["data.ood.Test.dataset=noise"], "`data.ood.Test` must have a name of its own, .*; 'Test' is taken."),
        (["data.ood.wrong.dataset=noise"], "`data.ood.wrong` must have a name of its own"),
        (['data.ood."OOD mean".dataset=noise'], '`data.ood."OOD mean"` must have a name of its own'),
        (["data.ood.correct.dataset=noise"], "`data.ood.correct` must have a name of its own"),
        (
            ["data.ood.noise.dataset=noise"],
            "`data.ood.noise` must have a name of its own, not only in upper or lower case",
        ),
        (['data.ood."a/b".dataset=noise'], '`data.ood."a/b"` must be a possible name of a folder'),
        (["data.ood.x.dataset=textrues"], r"`data.ood.x.dataset` .*Did you mean `textures`"),
        (["data.ood.x.group=Near", "data.ood.x.dataset=noise"], '`data.ood.x.group` must be "Close" or "Far"'),
        (
            ["data.train.dataset=imagenet1k", "model.num_classes=200"],
            "`model.num_classes` must be 1000, as ImageNet-1k",
        ),
        (["data.train.dataset=imagenet1k", "data.ood.x.dataset=caltech45"], "`data.ood.x` must share no class with"),
    ],
)
def test_a_bad_setting_is_refused_with_its_rule(small, overrides, words):
    with pytest.raises(ConfigError, match=words):
        small(*overrides)


TUNED = ["tempered_msp", "sirc(max_logit_pnorm, l1)", "bayes(msp, l1)", "sirc(msp, l1, budget=0.1)", "both(msp, l1)"]
HELD_OUT = 'data.validation={ dataset = "folder", path = "held-out" }'


@pytest.mark.parametrize("spec", TUNED)
def test_scores_that_can_be_tuned_are_where_there_are_validation_images(small, spec):
    known = small(f'fit.specs=["msp", "{spec}"]', HELD_OUT)
    assert known.tuned
    assert known.names == ("train", "test", "validation", *known.data.ood)
    for specs in (["msp", "tempered_msp(temperature=1)"], ["max_logit_pnorm(p=4)", "additive(msp, l1)"]):
        assert not small(f"fit.specs={json.dumps(specs)}", HELD_OUT).tuned
    if "budget" not in spec and "both" not in spec:
        assert not small(f'fit.specs=["{spec}"]').tuned


@pytest.mark.parametrize("spec", ["sirc(msp, l1, budget=0.1)", "both(msp, l1)"])
def test_a_spec_that_needs_validation_images_is_refused_before_any_work_without(small, spec):
    words = rf"`fit.specs` must do without validation images.*{re.escape(spec)}.*data.validation"
    with pytest.raises(ConfigError, match=words):
        small(f'fit.specs=["msp", "{spec}"]')


def test_scores_are_not_tuned_on_the_test_images(small):
    test = small().data.test
    same = f'data.validation={{ dataset = "{test.dataset}", path = "{test.path}" }}'
    small(same, 'fit.specs=["msp", "sirc(msp, l1)"]')
    for tuned in ([], ['fit.specs=["tempered_msp"]']):  # by default there is `scod`
        with pytest.raises(ConfigError, match=r"`data.validation` must be other images than `data.test`"):
            small(same, *tuned)


def test_a_mistake_in_the_file_is_told_with_its_line(small, tmp_path):
    path = tmp_path / "small.toml"
    path.write_text(SMALL.replace("lr = 0.1", "lr = 0.1\nepoch = 3"), encoding="utf-8")
    with pytest.raises(
        ConfigError, match=r"^small.toml:10: `train.epoch` is not a key of \[train\]. Did you mean `epochs`"
    ):
        small()
    path.write_text(SMALL.replace("[train]\nlr = 0.1", ""), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"^small.toml:3: `seeds` must be left out without a \[train\] table"):
        small()
    path.write_text(path.read_text(encoding="utf-8").replace("seeds = [1, 2]", ""), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"^small.toml:5: `model` must be pretrained or have a checkpoint"):
        small()
    assert small("model.pretrained=true").runs == (Run(0, Path("runs/small/pretrained")),)
    assert small("model.checkpoint=x.pt").seeds == ()
    assert small("model.name=mine:network").model.own


def test_a_run_knows_its_files(small):
    experiment = small("out=there")
    assert [run.folder for run in experiment.runs] == [Path("there/small/seed-1"), Path("there/small/seed-2")]
    run = experiment.run(2)
    assert run.seed == 2
    files = (run.weights, run.history, run.head, run.scorer, run.store("Noise"))
    assert [str(path.relative_to(run.folder)) for path in files] == [
        "model.safetensors",
        "history.csv",
        "head.safetensors",
        "scorer.safetensors",
        "outputs/Noise",
    ]
    with pytest.raises(ValueError, match="`seed` must be one of the experiment's, 1, 2; got 3"):
        experiment.run(3)


def test_datasets_are_found_by_name(small):
    experiment = small()
    assert experiment.names == ("train", "test", "Noise", "my textures")
    assert experiment.source("train") == Source("folder", "train")
    assert experiment.source("Noise") == Source("noise")
    with pytest.raises(ValueError, match=r"`small` has no dataset 'noise'. Did you mean `Noise`?"):
        experiment.source("noise")
    with pytest.raises(ValueError, match=r"has no dataset 'validation'. It has train, test, Noise, my textures."):
        experiment.source("validation")
    validated = small("data.validation={ dataset = 'folder', path = 'v' }")
    assert validated.names[:3] == ("train", "test", "validation")
    assert validated.source("validation").path == "v"


def test_missing_images_are_told_all_at_once_with_the_way_out(small, tmp_path, monkeypatch):
    experiment = small()
    experiment.require(["Noise"])
    with pytest.raises(ConfigError) as caught:
        experiment.require(["test", "train", "Noise"])
    assert str(caught.value) == (
        f"small.toml:13: `data.test` needs '{tmp_path}/data/test', which is not there; also missing: 'data/train' "
        "(train). See `sirc data check folder data/test`, or say where it is: `--set data.root=…` or "
        "`--set data.test.path=…`."
    )
    with pytest.raises(
        ConfigError, match=r'^small.toml:17: `data.ood."my textures".path` must use variables that are set'
    ):
        experiment.require()
    for name in ("train", "test"):
        (tmp_path / "data" / name).mkdir(parents=True)
    experiment.require(["train", "test"])
    monkeypatch.setenv("NOWHERE", str(tmp_path))
    with pytest.raises(
        ConfigError, match=rf"my textures\"` needs '{tmp_path}/x', .*--set data.ood.\"my textures\".path=…"
    ):
        experiment.require()
    moved = small("data.root=elsewhere")
    with pytest.raises(ConfigError, match=r"small.toml:12: `data.train` needs '.*/elsewhere/train'"):
        moved.require(["train"])


def test_split_names_in_paths_and_downloads_are_understood(small, tmp_path):
    source = "{ dataset = 'folder', path = 'all/{split}' }"
    experiment = small(f"data.train={source}", f"data.test={source}")
    (tmp_path / "data" / "all" / "train").mkdir(parents=True)
    experiment.require(["train"])
    with pytest.raises(ConfigError, match=r"needs '.*data/all/test'"):
        experiment.require(["test"])
    small("data.train={ dataset = 'torchvision:CIFAR10', options = { download = true } }", "data.root=new").require(
        ["train"]
    )
    with pytest.raises(ConfigError, match=r"needs '.*/new', which is not there. Say where it is"):
        small("data.train={ dataset = 'torchvision:CIFAR10' }", "data.root=new").require(["train"])


def test_homes_and_variables_are_expanded(small, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("STORE", "/disk")
    experiment = small("data.root=~/images", "out=$STORE/runs")
    assert experiment.root == tmp_path / "images"
    assert experiment.folder == Path("/disk/runs/small")
    with pytest.raises(
        ConfigError, match=r"--set data.root=\$NOWHERE: `data.root` must use variables that are set.*Set \$NOW"
    ):
        _ = small("data.root=$NOWHERE").root


def test_the_configuration_is_kept_beside_the_results(small, tmp_path):
    experiment = small("train.lr=0.05")
    path = experiment.save()
    assert path == Path("runs/small/experiment.toml")
    assert Experiment.read(path) == experiment
    assert "momentum = 0.9\n" in path.read_text(encoding="utf-8")
    experiment.save()


def test_where_it_was_read_from_takes_no_part_in_equality(small, tmp_path):
    (tmp_path / "other.toml").write_text("\n\n" + SMALL, encoding="utf-8")
    assert Experiment.read("other.toml") == small()


def test_an_experiment_can_be_made_in_python():
    experiment = plain()
    assert experiment.extract == Extract()
    with pytest.raises(ConfigError, match=r"^`data.train` needs '.*data/x'"):
        experiment.require()
    with pytest.raises(ValueError, match=r"^`seeds` must be left out"):
        plain(seeds=(1,))


def test_options_as_tuples_are_the_same_settings(small, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    model = Model("timm:resnet18", pretrained=True, options={"sizes": (1, 2)})
    plain(model=model).save()
    plain(model=model).save()
    assert Experiment.read("runs/a/experiment.toml").model.options == {"sizes": [1, 2]}


def test_what_decides_the_weights_survives_json_and_leaves_out_what_does_not():
    recipe = Train()
    assert json.loads(json.dumps(recipe.hyperparameters())) == recipe.hyperparameters()
    same = dataclasses.replace(recipe, workers=0, compile=True, channels_last=True, tensorboard=True, on_error="skip")
    assert same.hyperparameters() == recipe.hyperparameters()
    others = {"epochs": 91, "batch_size": 255, "lr": 0.2, "momentum": 0.8, "weight_decay": 0.0, "nesterov": True}
    others |= {"schedule": "cosine", "milestones": (30,), "gamma": 0.2, "precision": "bf16", "cache": "device"}
    for name, value in (others | {"augment": Augment(flip=0.0)}).items():
        changed = dataclasses.replace(recipe, **{name: value}).hyperparameters()
        assert changed != recipe.hyperparameters(), name
        assert changed.keys() == recipe.hyperparameters().keys()


@pytest.mark.slow
def test_reading_an_experiment_loads_no_image_library(small, tmp_path):
    code = (
        "import sys; from sirc.experiment import Experiment; "
        f"Experiment.read({str(tmp_path / 'small.toml')!r}); import sirc.models; "
        "print([name for name in ('torchvision', 'timm', 'PIL', 'accelerate', 'av') if name in sys.modules])"
    )
    done = python("-c", code)
    assert done.stdout.strip() == "[]", done.stderr


def test_settings_that_came_later_are_written_only_where_they_are_set(small):
    assert "on_unfit" not in small().dump()
    skipping = small("fit.on_unfit=skip")
    Path("again.toml").write_text(skipping.dump(), encoding="utf-8")
    assert Experiment.read("again.toml") == skipping
    assert skipping.fit.on_unfit == "skip"


def test_a_preparation_other_than_the_published_one_is_noted():
    def notes(**changes):
        told = []
        note_preprocessing(plain(**changes), Log(told.append))
        return told

    (note,) = notes(model=Model("torchvision:efficientnet_b2", pretrained=True))
    assert "was published with another preprocessing than [preprocess] has: its resize is 288, got" in note
    assert "crop is 288, got 224" in note
    assert not notes()
    assert not notes(model=Model("torchvision:efficientnet_b2", num_classes=3, checkpoint="x.pth"))
    assert not notes(model=Model("my.module:net", pretrained=True))
