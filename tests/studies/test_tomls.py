"""The TOMLs of the studies: the paper's five say what the paper says, and all read and dump equal."""

import re
import tomllib

import pytest

from sirc.data import benchmark
from sirc.data.preprocess import Preprocess
from sirc.experiment import DEFAULT_SPECS
from sirc.experiment.experiment import Experiment, Fit, Model
from sirc.training import Augment, Train
from support.studies import STUDIES

PAPER = STUDIES / "paper"
TEMPLATE = STUDIES / "folder.toml"
FILES = sorted(path for path in STUDIES.rglob("*.toml") if not path.name.endswith("base.toml"))
IMAGENET_200 = ["resnet50_imagenet200", "densenet121_imagenet200", "mobilenetv2_imagenet200"]
IMAGENET_1K = ["densenet121_imagenet1k", "bit_resnetv2_101_imagenet1k"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_experiment_reads_and_its_dump_is_equal(path, tmp_path):
    experiment = Experiment.read(path)
    assert path == TEMPLATE or experiment.name in (path.stem, f"{path.parent.name}_{path.stem}")
    (tmp_path / "again.toml").write_text(experiment.dump(), encoding="utf-8")
    assert Experiment.read(tmp_path / "again.toml") == experiment


@pytest.mark.parametrize("name", IMAGENET_200)
def test_imagenet_200_is_trained_by_the_paper_s_recipe(name):
    experiment = Experiment.read(PAPER / f"{name}.toml")
    network = {"resnet50": "resnet50", "densenet121": "densenet121", "mobilenetv2": "mobilenet_v2"}[name.split("_")[0]]
    assert experiment.model == Model(f"torchvision:{network}", num_classes=200)
    assert experiment.seeds == (1, 2, 3, 4, 5)
    # Appendix, "Models and Training": 90 epochs, batches of 256, SGD, weight decay 1e-4, momentum 0.9, 0.1 stepping
    # down by 10 at 30 and 60; 0.05 for MobileNetV2; Nesterov for DenseNet-121; random resized crops and flips.
    assert experiment.train == Train(
        epochs=90,
        batch_size=256,
        lr=0.05 if network == "mobilenet_v2" else 0.1,
        momentum=0.9,
        weight_decay=1e-4,
        nesterov=network == "densenet121",
        schedule="steps",
        milestones=(30, 60),
        gamma=0.1,
        augment=Augment(crop="resized", scale=(0.08, 1.0), ratio=(3 / 4, 4 / 3), flip=0.5),
    )
    assert experiment.preprocess == Preprocess()
    assert experiment.fit == Fit(DEFAULT_SPECS, crossfit=0, count=None)
    assert experiment.data.train.dataset == experiment.data.test.dataset == "imagenet200"
    assert len(experiment.data.ood) == 9


@pytest.mark.parametrize("name", IMAGENET_1K)
def test_imagenet_1k_uses_the_paper_s_pretrained_networks(name):
    experiment = Experiment.read(PAPER / f"{name}.toml")
    assert experiment.train is None
    assert experiment.model.num_classes == 1000
    assert experiment.fit == Fit(DEFAULT_SPECS, crossfit=0, count=250_000)
    assert experiment.data.train.dataset == "imagenet1k"
    assert not {"Near-ImageNet-200", "Caltech-45"} & experiment.data.ood.keys()
    assert len(experiment.data.ood) == 7
    if name.startswith("bit"):
        assert experiment.model.checkpoint == "BiT-S-R101x1.npz"
        half = (0.5, 0.5, 0.5)
        assert experiment.preprocess == Preprocess(resize=(480, 480), crop=None, mean=half, std=half)
    else:
        assert experiment.model.pretrained == "IMAGENET1K_V1"
        assert experiment.preprocess.size == 224


@pytest.mark.parametrize("name", IMAGENET_200 + IMAGENET_1K)
def test_ood_sets_go_by_the_paper_s_titles_and_groups(name):
    experiment = Experiment.read(PAPER / f"{name}.toml")
    groups = {"Close": set(), "Far": set(), None: set()}
    for title, source in experiment.data.ood.items():
        assert benchmark(source.dataset).title == title
        groups[source.in_group].add(title)
    near = {"Near-ImageNet-200", "Caltech-45"} if name in IMAGENET_200 else set()
    assert groups == {
        "Close": {"Openimage-O", "iNaturalist"} | near,
        "Far": {"Textures", "Colonoscopy", "Colorectal", "Noise"},
        None: {"ImageNet-O"},
    }


@pytest.mark.parametrize("line", re.findall(r"^# ?(\w+ = .*)$", TEMPLATE.read_text(encoding="utf-8"), re.MULTILINE))
def test_what_the_template_leaves_commented_can_be_switched_on(line, tmp_path):
    text = TEMPLATE.read_text(encoding="utf-8")
    if line.startswith("checkpoint"):
        text = text.replace("# pretrained", "# not-pretrained")
    path = tmp_path / "folder.toml"
    path.write_text(text.replace(f"# {line}", line), encoding="utf-8")
    assert tomllib.loads(path.read_text(encoding="utf-8")) != tomllib.loads(text)
    Experiment.read(path)


def test_the_networks_of_tiny_imagenet_differ_from_their_base_in_a_line_or_two():
    base = tomllib.loads((STUDIES / "tiny_imagenet_100" / "base.toml").read_text(encoding="utf-8"))
    for name, changed in (("resnet50", "warmup"), ("densenet121", "nesterov"), ("mobilenetv2", "lr")):
        experiment = Experiment.read(STUDIES / "tiny_imagenet_100" / f"{name}.toml")
        train = base["train"] | {changed: getattr(experiment.train, changed)}
        assert experiment.train == Train(**train | {"augment": Augment(**train["augment"]), "milestones": (10, 20)})
        assert len(experiment.data.ood) == 9


@pytest.mark.parametrize("study", ["tiny_imagenet_100", "imagenet_1k", "imagenet_20"])
def test_the_studies_measure_the_same_scores(study):
    shared = tomllib.loads((STUDIES / "scores.base.toml").read_text(encoding="utf-8"))
    files = [path for path in (STUDIES / study).glob("*.toml") if path.name != "base.toml"]
    assert len(files) >= 3
    for path in files:
        experiment = Experiment.read(path)
        assert list(experiment.fit.specs) == shared["fit"]["specs"]
        assert list(experiment.report.specs) == shared["report"]["specs"]
        assert (len(experiment.fit.specs), len(experiment.report.specs)) == (100, 29)
        assert {source.group for source in experiment.data.ood.values()} == {"Close", "Far"}


def test_the_tree_keeps_under_a_megabyte_of_each_study():
    for study in (path for path in STUDIES.iterdir() if path.is_dir() and path.name != "tools"):
        size = sum(path.stat().st_size for path in study.rglob("*") if path.is_file() and path.suffix != ".pyc")
        assert size < 10**6, study
