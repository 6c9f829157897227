"""A guard: one call from a model and its data to a classifier that keeps quiet, and says what it promises."""

import re
import warnings
from dataclasses import replace
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest
import timm
import torch
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset

import sirc
from sirc import SelectiveClassifier
from sirc.data import Preprocess, image_folder
from sirc.deploy.guard_data import class_names_in
from sirc.errors import DataWarning, StoreError
from sirc.models import preprocess_of, save_weights
from sirc.progress import Progress
from support.tiny_images import write_images

SMALL = Preprocess(resize=12, crop=12)


def data(count, seed):
    """Four clouds of points that overlap."""
    make = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 4, (count,), generator=make)
    return TensorDataset(3 * torch.eye(4, 6)[labels] + torch.randn(count, 6, generator=make), labels)


@cache
def trained():
    """A network that is right about most of them, and makes some errors."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 4))
    optimiser = torch.optim.Adam(model.parameters(), 0.05)
    x, y = TRAIN.tensors
    for _ in range(60):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimiser.step()
    return model.eval()


TRAIN, VAL = data(400, 0), data(600, 1)


@pytest.fixture(scope="module")
def made():
    return sirc.guard(trained(), TRAIN, VAL)


def convnet(classes=3):
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, classes))


def test_one_call_is_the_six_that_it_joins(made):
    model = trained()
    head = sirc.find_head(model, VAL.tensors[0][:2])
    scorer = sirc.fit("scod", sirc.extract(model, TRAIN, head=head), head=head)
    wanted = SelectiveClassifier(model, scorer, "scod", head=head).calibrate(VAL, recall=0.95, delta=0.05)
    assert made.threshold == wanted.threshold
    assert torch.equal(made.calibration, wanted.calibration)
    label, confidence, accepted, logits = made(VAL.tensors[0])
    assert torch.equal(label, logits.argmax(-1))
    assert torch.equal(accepted, confidence >= made.threshold.value)


def test_five_lines_say_what_it_did_promises_and_cannot(made):
    lines = str(made).splitlines()
    assert len(lines) == 5
    assert lines[0].startswith('Sequential that may say "I don\'t know": score `scod`, fitted on 400 training rows')
    assert lines[0].endswith(" with the features that '2' receives.")
    right = made.calibration_correct
    accepted = made.calibration >= made.threshold.value
    assert f"of 600 validation rows, {100 * accepted[right].double().mean():.1f}% of the {right.sum()} that" in lines[1]
    assert f"{(accepted & ~right).sum()} of the {(~right).sum()} that it gets wrong (ID✗)" in lines[1]
    assert lines[2].startswith("Promise: With probability at least 95%")
    assert lines[2].endswith("at least 95% of future ID✓ inputs are accepted.")
    assert re.match(r"Premise, .*: (holds|open|does not hold) for `\w+`", lines[3])
    assert all(f"`{s2}`" in lines[3] for s2 in ("residual", "vim", "mahalanobis", "mahalanobis_pp", "knn", "l1"))
    assert lines[4].startswith("Cannot promise: how much OOD input it rejects, as its calibration saw none")
    assert repr(made).startswith("SelectiveClassifier(")


def test_another_threshold_has_other_words(made):
    head = sirc.find_head(trained(), VAL.tensors[0][:2])
    other = SelectiveClassifier(trained(), made.scorer, "scod", head=head)
    assert str(other) == repr(other)  # nothing to tell yet
    other.remarks = ("What was said of the threshold before.",)
    *_, promise, cannot = str(other.calibrate(VAL, risk=0.2)).splitlines()
    assert "at most 20% of the accepted ID inputs are errors" in promise
    assert "how many errors" not in cannot
    other.calibrate(VAL, ood=[torch.randn(50, 6)], alpha=0.5, beta=0.5, recall=0.9)
    assert "as its calibration saw only some" in str(other)
    assert str(other.set_threshold(1)).splitlines()[1:3] == [
        "It accepts confidences of at least 1.",
        "Promise: None: the threshold was given",
    ]


def test_the_lines_are_told_once_and_not_to_who_wants_silence(capsys):
    guard = sirc.guard(trained(), TRAIN, VAL, score="msp", progress=True)
    out, err = capsys.readouterr()
    assert out == ""
    assert " ".join(err.split()).count(" ".join(str(guard).split())) == 1
    for silent in (False, Progress()):
        sirc.guard(trained(), TRAIN, VAL, score="msp", progress=silent)
        assert capsys.readouterr() == ("", "")


def outputs(part):
    return sirc.extract(trained(), part)


class Place:
    """A path of another library."""

    def __init__(self, path):
        self._path = path

    def __fspath__(self):
        return str(self._path)


KINDS = {
    "loader": lambda part, _: DataLoader(part, batch_size=50),
    "batches": lambda part, _: [part[:300], part[300:]],
    "generator": lambda part, _: (part[start : start + 100] for start in range(0, len(part), 100)),
    "outputs": lambda part, _: outputs(part),
    "file": lambda part, path: outputs(part).save(path / f"{len(part)}.npz") or str(path / f"{len(part)}.npz"),
    "store": lambda part, path: sirc.extract(trained(), part, path / f"{len(part)}"),
    "path of another kind": lambda part, path: Place(sirc.extract(trained(), part, path / f"{len(part)}").path),
    "store's path": lambda part, path: sirc.extract(trained(), part, path / f"{len(part)}").path,
}


@pytest.mark.parametrize("kind", KINDS)
def test_data_of_every_kind_give_the_same_guard(made, kind, tmp_path):
    guard = sirc.guard(trained(), *(KINDS[kind](part, tmp_path) for part in (TRAIN, VAL)))
    assert guard.threshold.value == pytest.approx(made.threshold.value, rel=1e-4)
    assert guard.head_name == "2" or kind == "generator"
    assert torch.equal(guard(VAL.tensors[0]).accepted, made(VAL.tensors[0]).accepted)


def test_without_val_rows_of_each_class_are_held_out_and_nothing_is_promised(tmp_path):
    with pytest.warns(DataWarning, match=r"of the 400 rows of `train` set the threshold.*nothing is promised\. Pass"):
        guard = sirc.guard(trained(), TRAIN, path=tmp_path)
    held = len(guard.calibration)
    assert held + guard.scorer.fitted_rows == 400
    assert abs(held - 80) <= 2
    assert guard.threshold.delta is None
    assert guard.threshold.guarantee.startswith("None, an estimate")
    assert "the model was trained on them, and is surer of them" in str(guard)
    rows = sirc.OutputStore(tmp_path / "train").load()
    assert guard.scorer.seen(rows) == pytest.approx(guard.scorer.fitted_rows / 400, abs=0.01)
    with pytest.warns(DataWarning):
        again = sirc.guard(trained(), rows)
    assert torch.equal(again.calibration, guard.calibration)


def test_labels_in_another_order_are_told_once():
    other = TensorDataset(VAL.tensors[0], (VAL.tensors[1] + 1) % 4)
    with pytest.warns(DataWarning) as told:
        sirc.guard(trained(), TRAIN, other, delta=None)
    assert [str(warning.message).startswith("the predictions for 'val' agree") for warning in told] == [True]


def test_a_share_of_each_class_is_held_out_and_of_a_small_one_none():
    from sirc.deploy.guards import _hold_out

    labels = torch.tensor([0] * 100 + [1] * 10 + [2])
    with pytest.warns(DataWarning, match="22 of the 111 rows of `train` set the threshold"):
        held, rest = _hold_out(sirc.Outputs(torch.randn(111, 3), labels=labels))
    assert held.labels.bincount(minlength=3).tolist() == [20, 2, 0]
    assert len(rest) == sum(map(len, rest)) == 89
    with pytest.raises(ValueError, match=r"at least three rows of a class .* got 3 rows of 3 classes"):
        _hold_out(sirc.Outputs(torch.randn(3, 3), labels=torch.arange(3)))


def test_what_was_extracted_is_not_run_again(tmp_path, made):
    model, rows = trained(), []
    handle = model.register_forward_pre_hook(lambda _, inputs: rows.append(len(inputs[0])))
    try:
        first = sirc.guard(model, TRAIN, VAL, path=tmp_path)
        before, rows[:] = sum(rows), []
        second = sirc.guard(model, TRAIN, VAL, path=tmp_path)
    finally:
        handle.remove()
    assert before >= 1000
    assert sum(rows) < 100  # to find the head, and to see how confidences change
    assert first.threshold == second.threshold == made.threshold
    with pytest.raises(
        StoreError, match=r"is another store, .* pass `create\(…, overwrite=True\)` to delete its shards"
    ):
        sirc.guard(model, TRAIN, data(500, 2), path=tmp_path)
    sirc.guard(model, TRAIN, data(500, 2), path=tmp_path, overwrite=True)


def test_a_file_has_all_but_the_model_and_knows_it(made, tmp_path):
    path = tmp_path / "guard.safetensors"
    made.save(path)
    again = sirc.load_guard(path, trained())
    assert str(again) == str(made)
    assert torch.equal(again(VAL.tensors[0]).confidence, made(VAL.tensors[0]).confidence)
    with pytest.raises(StoreError, match="was calibrated for another model"):
        sirc.load_guard(path, nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 4)))


def test_the_page_has_the_promise_and_says_what_is_not_known(made, tmp_path):
    made.save(tmp_path / "guard.safetensors")
    page = sirc.load_guard(tmp_path / "guard.safetensors", trained()).report(tmp_path / "page.html")
    text = page.read_text(encoding="utf-8")
    assert "at least 95% of future ID\\u2713 inputs are accepted." in text
    assert "how much OOD input it rejects, as its calibration saw none" in text
    assert '"sets":[]' in text
    far = 9 * torch.randn(50, 6, generator=torch.Generator().manual_seed(2))
    ood = made.report(tmp_path / "ood.html", ood={"far": [far]}).read_text(encoding="utf-8")
    assert '"sets":["far"]' in ood
    # At the threshold of the guard, not at that of the sliders, which begin beside it.
    assert f"Of OOD input it accepts {made(far).accepted.sum()} of 50 in far." in ood
    recall = made(VAL.tensors[0]).accepted[made.calibration_correct].double().mean()
    assert f"own threshold is {made.threshold.value:.6g}, with a recall of {100 * recall:.1f}% of them." in text
    assert f'"recall":{round(float(recall), 2)},' in text
    assert made.threshold.target < round(float(recall), 2)
    with pytest.raises(ValueError, match=r"a page needs labelled rows that set the threshold; there are none"):
        SelectiveClassifier(made.model, made.scorer, "scod").set_threshold(0).report(tmp_path / "none.html")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("folders")
    write_images(root / "train", 60)
    write_images(root / "val", 90, seed=1)
    for place in (root / "val" / "g").iterdir():  # a class that is missing there
        place.unlink()
    (root / "val" / "g").rmdir()
    (root / "empty").mkdir()
    return root


def mostly_blue():
    model = timm.create_model("test_resnet", num_classes=3)
    nn.init.constant_(model.fc.bias[:1], 2)
    return model


@pytest.fixture
def quiet_labels():
    """No word that an untrained network is an untrained network."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="the predictions for 'val' agree", category=DataWarning)
        yield


@pytest.mark.slow
@pytest.mark.usefixtures("quiet_labels")
def test_folders_have_their_classes_and_the_preparation_of_a_timm_model(folders):
    model = mostly_blue()
    guard = sirc.guard(model, folders / "train", str(folders / "val"), recall=0.5, delta=None)
    assert guard.classes == ["b", "g", "r"]
    assert guard.preprocess == preprocess_of(model)
    assert "The validation rows lack 1 of 3 classes: g." in str(guard)
    val = image_folder(folders / "val", classes=["b", "g", "r"], transform=guard.preprocess.test())
    assert len(guard.calibration) == len(val)
    assert torch.equal(guard.calibration_correct, sirc.extract(model, val).correct)


@pytest.mark.slow
@pytest.mark.usefixtures("quiet_labels")
def test_images_that_lack_a_class_are_numbered_as_the_network_does_and_a_loader_of_them_is_told(folders):
    model = mostly_blue()
    guard = sirc.guard(model, folders / "train", folders / "val", recall=0.5, delta=None)
    right = guard.calibration_correct
    train, val = (image_folder(folders / part, transform=guard.preprocess.test()) for part in ("train", "val"))
    assert val.classes == ("b", "r")
    guard.calibrate(val, recall=0.5)
    assert torch.equal(guard.calibration_correct, right)
    told = "the validation data number 'r' as class 1, the network as 2: a dataset that lacks a class"
    with pytest.warns(DataWarning, match=told):
        guard.calibrate(DataLoader(val, batch_size=30), recall=0.5)
    with pytest.warns(DataWarning, match=told):
        sirc.guard(model, DataLoader(train, 30), DataLoader(Subset(val, range(60)), 30), recall=0.5, delta=None)
    guard.classes = ["blue", "green", "red"]  # other words than the folders'
    guard.calibrate(val, recall=0.5)


def test_a_dataset_that_renumbers_its_labels_is_left_alone():
    names = SimpleNamespace(classes=["b", "r"])
    assert class_names_in(names) == class_names_in(DataLoader(Subset(names, [0]))) == ["b", "r"]
    assert class_names_in(SimpleNamespace(classes=["b", "r"], target_transform=[0, 2].__getitem__)) == []
    assert class_names_in(SimpleNamespace(dataset=names)) == []  # a wrapper of another kind may renumber


@pytest.mark.usefixtures("quiet_labels")
def test_members_of_an_ensemble_are_asked_what_they_differ_in(folders):
    members = [mostly_blue(), mostly_blue()]
    members[1].pretrained_cfg = {**members[1].pretrained_cfg, "input_size": (3, 96, 96)}
    both = folders / "train", folders / "val"
    told = (
        r"the published ones differ in resize and crop\. Choose for all of them: `preprocess={'resize': …, 'crop': …}`"
    )
    with pytest.raises(ValueError, match=told):
        sirc.guard(members, *both, delta=None)
    guard = sirc.guard(members, *both, delta=None, preprocess={"resize": 12, "crop": 12})
    assert guard.preprocess == replace(preprocess_of(members[0]), resize=12, crop=12)


@pytest.mark.usefixtures("quiet_labels")
def test_a_member_that_says_nothing_takes_images_as_the_others_do(folders):
    members = [mostly_blue(), nn.Sequential(convnet()[:4], nn.Linear(8, 3))]
    members[0].pretrained_cfg = {**members[0].pretrained_cfg, "mean": (0.1, 0.2, 0.3)}
    both, options = (folders / "train", folders / "val"), {"delta": None, "score": "msp", "recall": 0.5}
    with pytest.raises(ValueError, match="Ensemble does not say how"):
        sirc.guard(members, *both, **options)
    guard = sirc.guard(members, *both, preprocess={"resize": 12, "crop": 12}, **options)
    assert guard.preprocess == replace(preprocess_of(members[0]), resize=12, crop=12)
    assert guard.preprocess.mean == (0.1, 0.2, 0.3)


def test_a_grey_network_in_a_folder_takes_a_loader(folders, tmp_path):
    timm = pytest.importorskip("timm")
    torch.manual_seed(0)
    model = timm.create_model("test_resnet", num_classes=3, in_chans=1).eval()
    timm.models.save_for_hf(model, tmp_path / "hub", safe_serialization=True)
    images = torch.randn(80, 1, 32, 32)
    loader = [(images, model(images).argmax(-1))]
    guard = sirc.guard(str(tmp_path / "hub"), loader, loader, score="msp", delta=None)
    assert guard.preprocess is None
    with pytest.raises(ValueError, match=r"must take 3 channels; .* takes 1\. Pass a dataset or a loader"):
        sirc.guard(str(tmp_path / "hub"), folders / "train", folders / "val", score="msp", delta=None)


@pytest.mark.usefixtures("quiet_labels")
def test_a_folder_sets_another_threshold(folders):
    model = mostly_blue()
    guard = sirc.guard(model, folders / "train", folders / "val", recall=0.5, delta=None, score="msp")
    before = guard.calibration
    guard.calibrate(folders / "val", coverage=0.5)
    assert torch.allclose(guard.calibration, before)
    assert guard.threshold.rule == "coverage"
    with pytest.raises(ValueError, match=r"this classifier does not say how\. Pass a dataset"):
        SelectiveClassifier(model, guard.scorer, "msp").calibrate(folders / "val", recall=0.5)


def test_a_risk_may_be_promised_instead():
    made = sirc.guard(trained(), TRAIN, VAL, risk=0.1)
    assert made.threshold.rule == "risk"
    assert made.threshold.bounds == {"risk": 0.1}
    accepted = made.calibration >= made.threshold.value
    assert (~made.calibration_correct[accepted]).double().mean() < 0.1
    assert "at most 10% of the accepted ID inputs are errors" in str(made)


def test_rows_at_hand_are_the_reference_of_the_tolerance():
    model, runs = trained(), []
    handle = model.register_forward_pre_hook(lambda _, args: runs.append(len(args[0])))
    try:
        sirc.guard(model, TRAIN, VAL)
    finally:
        handle.remove()
    # Two to find the head, all rows once in batches of 64, and four alone: no other batch runs again.
    assert sorted(runs)[:5] == [1, 1, 1, 1, 2]
    assert sum(runs) == 4 + 2 + len(TRAIN) + len(VAL)


def test_few_images_run_again_for_convolutions():
    torch.manual_seed(0)
    model, images = convnet().eval(), torch.randn(500, 3, 12, 12) + torch.randn(500, 3, 1, 1)
    data = TensorDataset(images, model(images).argmax(-1))
    train, val = (torch.utils.data.Subset(data, rows) for rows in (range(300), range(300, 500)))
    runs = []
    handle = model.register_forward_pre_hook(lambda _, args: runs.append(len(args[0])))
    try:
        sirc.guard(model, train, val)
    finally:
        handle.remove()
    # Besides all rows: two to find the head, sixteen with rounded convolutions, and four alone, as batches change
    # confidences far less than rounding does.
    assert sorted(runs)[:6] == [1, 1, 1, 1, 2, 200 % 64]
    assert sum(runs) == 500 + 2 + 16 + 4


def test_a_margin_that_takes_most_rejections_away_is_told(monkeypatch):
    monkeypatch.setattr(SelectiveClassifier, "_tolerance", lambda *_: 0.4)
    with pytest.warns(
        DataWarning, match=r"rejects \d+ of 600 validation rows; it would reject \d\d if confidences did not"
    ):
        sirc.guard(trained(), TRAIN, VAL, score="msp")


@pytest.mark.usefixtures("quiet_labels")
def test_a_broken_image_stops_it_or_is_skipped(tmp_path):
    for part in ("train", "val"):
        write_images(tmp_path / part, 30)
        (tmp_path / part / "b" / "broken.png").write_bytes(b"no image")
    torch.manual_seed(0)
    model = nn.Sequential(convnet()[:4], nn.Linear(8, 3))
    options = {"preprocess": SMALL, "score": "msp", "recall": 0.5, "delta": None}
    with pytest.raises(ValueError, match=r"every image must be readable; .*broken.png is not.* `on_error=\"skip\"`"):
        sirc.guard(model, tmp_path / "train", tmp_path / "val", **options)
    guard = sirc.guard(model, tmp_path / "train", tmp_path / "val", on_error="skip", **options)
    assert len(guard.calibration) == 30


@pytest.mark.usefixtures("quiet_labels")
def test_images_are_numbered_by_the_classes_that_are_named(folders):
    model = mostly_blue()
    train, val = (image_folder(folders / part, transform=SMALL.test()) for part in ("train", "val"))
    guard = sirc.guard(model, train, val, classes=["r", "g", "b"], score="msp", recall=0.5, delta=None)
    labels = torch.tensor(["rgb".index(val.classes[i]) for i in val.labels])
    assert torch.equal(guard.calibration_correct, sirc.extract(model, val, labels=False).predictions == labels)


@pytest.mark.usefixtures("quiet_labels")
def test_a_network_may_be_named(folders, tmp_path):
    save_weights(mostly_blue(), tmp_path / "weights.safetensors")
    name = f"timm:test_resnet={tmp_path / 'weights.safetensors'}"
    parts = (folders / "train", folders / "val")
    guard = sirc.guard(name, *parts, recall=0.5, delta=None, score="msp", preprocess={"resize": 12, "crop": 12})
    guard.save(tmp_path / "guard.safetensors")
    again = sirc.load_guard(tmp_path / "guard.safetensors", name)
    assert again.preprocess == replace(preprocess_of("timm:test_resnet"), resize=12, crop=12)
    assert again.threshold == guard.threshold
    with pytest.raises(
        StoreError, match=r"have 3 classes, the model 2: there are as many as folders; name all of them"
    ):
        sirc.guard(name, folders / "val")


BAD = {
    "an empty folder": (lambda here: (convnet(), here / "empty"), {}, "there is no image in or below"),
    "no folder": (lambda here: (convnet(), here / "nowhere"), {}, "the folder '.*nowhere' does not exist"),
    "images that nobody prepares": (
        lambda here: (convnet(), here / "train"),
        {},
        r"prepared as the model was trained; Sequential does not say how. Pass `preprocess=…`",
    ),
    "other classes": (
        lambda here: (convnet(7), here / "train"),
        {"preprocess": SMALL},
        r"one output for each class; it has 7, and there are 3 classes: b, g, r. Pass `classes=…`",
    ),
    "a class of no folder": (
        lambda here: (convnet(), here / "train", here / "val"),
        {"preprocess": SMALL, "classes": ["b", "r", "x"]},
        r"`classes` must name every class folder",
    ),
    "too few rows": (
        lambda _: (None, TRAIN, data(40, 3)),
        {},
        r"a recall of 0.95 with δ = 0.05: that needs at least 59 ID✓ rows; got 40. Label more rows",
    ),
    "too few images": (
        lambda here: (None, here / "train", here / "val"),
        {"recall": 0.99},
        r"needs at least 299 ID✓ rows; got 60",
    ),
    "too few rows for a risk": (
        lambda _: (None, TRAIN, data(40, 3)),
        {"risk": 0.01},
        r"a risk of 0.01 with δ = 0.05 needs at least 299 ID rows, and no error among them; got 40",
    ),
    "a recall and a risk": (lambda _: (None, TRAIN, VAL), {"recall": 0.9, "risk": 0.1}, "give `recall` or `risk`, not"),
    "a risk without a promise": (lambda _: (None, TRAIN, VAL), {"risk": 0.1, "delta": None}, "which needs `delta`"),
    "a risk of known rows": (lambda _: (None, TRAIN), {"risk": 0.1}, "which needs `val`; got None. Pass labelled data"),
    "a crop with black edges": (
        lambda here: (mostly_blue(), here / "train", here / "val"),
        {"preprocess": {"resize": 12, "crop": 24}, "recall": 0.5},
        "`crop` must be at most `resize`, as a larger crop has black edges; got 24 and 12",
    ),
    "an odd recall": (lambda _: (None, TRAIN, VAL), {"recall": 95}, r"`recall` must lie in \[0, 1\]; got 95"),
    "an odd delta": (lambda _: (None, TRAIN, VAL), {"delta": 1}, r"`delta` must lie strictly between 0 and 1"),
    "no labels": (
        lambda _: (trained(), TRAIN, TensorDataset(torch.randn(99, 6))),
        {},
        "`val` must have labels, to know which predictions are right; it has none",
    ),
    "no labels to hold out": (
        lambda _: (trained(), TensorDataset(torch.randn(99, 6))),
        {},
        "`train` must have labels, to know which predictions are right; it has none",
    ),
    "a loader that shuffles": (
        lambda _: (trained(), DataLoader(TRAIN, shuffle=True), VAL),
        {},
        "this DataLoader shuffles, or takes a share",
    ),
    "a head that is none": (
        lambda _: (trained(), TRAIN, VAL),
        {"head": "1"},
        r"'1' is ReLU.* linear layers: '0', '2'. Or take a score that needs no features, `score=\"msp\"`",
    ),
    "a store of another model": (
        lambda _: (nn.Sequential(nn.Linear(6, 4)), outputs(TRAIN), outputs(VAL)),
        {},
        r"must map these features to these logits, W z \+ b; no linear layer of the model does",
    ),
    "rows that it was fitted on": (lambda _: (trained(), TRAIN, TRAIN), {}, "rows that a score was fitted on may not"),
    "no model": (lambda _: (3, TRAIN), {}, "`model` must be a torch.nn.Module, a list of them, or"),
    "no data": (lambda _: (trained(), 3), {}, "`data` must be a Dataset, a DataLoader or an iterable"),
    "a transform": (lambda _: (trained(), TRAIN), {"preprocess": len}, "`preprocess` must be a `sirc.data.Preprocess`"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_is_told_with_the_way_out(case, folders):
    make, options, words = BAD[case]
    model, *parts = make(folders)
    if model is None:
        model = trained()
    with pytest.raises((ValueError, OSError), match=words):
        sirc.guard(model, *parts, **options)


def test_too_few_rows_are_told_before_the_model_runs():
    model = trained()
    handle = model.register_forward_pre_hook(lambda *_: pytest.fail("it ran"))
    try:
        with pytest.raises(ValueError, match="at least 59"):
            sirc.guard(model, TRAIN, DataLoader(data(40, 3), batch_size=7))
    finally:
        handle.remove()


class Bag(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.classifier = nn.Embedding(50, 8), nn.Linear(8, 3)

    def forward(self, input_ids, attention_mask):
        mask = attention_mask.unsqueeze(-1)
        return self.classifier((self.embed(input_ids) * mask).sum(1) / mask.sum(1))


def test_batches_of_text_are_taken_by_name():
    model = Bag().eval()

    def sentences(count):
        batch = {"input_ids": torch.randint(0, 50, (count, 5)), "attention_mask": torch.ones(count, 5, dtype=int)}
        return {**batch, "labels": model(**batch).argmax(-1)}

    guard = sirc.guard(model, [sentences(200)], [sentences(100)])
    batch = sentences(4)
    assert torch.equal(guard(batch).confidence, guard(**batch).confidence)


@pytest.mark.filterwarnings("ignore:typical training rows")
def test_the_premise_names_a_witness_that_misleads():
    from sirc.deploy.guards import _premise_remark

    make = torch.Generator().manual_seed(0)
    logits = torch.randn(800, 4, generator=make) * 3
    labels = torch.where(torch.rand(800, generator=make) < 0.7, logits.argmax(-1), logits.argmin(-1))
    right = labels == logits.argmax(-1)
    features = torch.randn(800, 6, generator=make).abs() + 3 * (~right[:, None])  # errors have the larger norms
    rows = sirc.Outputs(logits, features, labels)
    scorer = sirc.fit("sirc(msp, l1)", rows[:400])
    text = _premise_remark(scorer, "sirc(msp, l1)", rows[400:])
    assert "does not hold for `l1` (l1 ranks right predictions below wrong ones" in text
    assert np.char.count(text, "\n") == 0
    assert _premise_remark(sirc.Scorer("msp"), "msp", rows) == ""


def test_what_the_promise_lacks_is_told_before_the_model_runs_on_train(folders):
    model, (inputs, labels) = trained(), data(100, 3).tensors
    seen = []
    handle = model.register_forward_pre_hook(lambda _, args: seen.append(len(args[0])))
    few = TensorDataset(inputs, torch.where(torch.arange(100) < 50, labels, (labels + 1) % 4))
    none = TensorDataset(inputs, (model(inputs).argmax(-1) + 1) % 4)
    try:
        for val, words in ((few, "at least 59 ID✓ rows"), (none, "of 100 it gets none. Is it trained")):
            seen.clear()
            with warnings.catch_warnings(action="ignore", category=DataWarning), pytest.raises(ValueError, match=words):
                sirc.guard(model, TRAIN, val)
            assert sum(seen) < len(TRAIN)
    finally:
        handle.remove()
    with pytest.raises(ValueError, match=r"`val` must be data that nothing was fitted on.* it is `train`"):
        sirc.guard(model, folders / "train", f"{folders}/train/")
