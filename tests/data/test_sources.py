"""A source says where data are in the words of a TOML, opens what it says, and refuses nonsense field by field."""

import importlib
import inspect
import sys
import types
import typing

import numpy as np
import pytest
import torch
import torchvision
from PIL import Image

from sirc.data import ImageSet, Noise, Source, open_source
from sirc.data.preprocess import Preprocess
from sirc.data.source import source_path
from sirc.errors import ImageError
from support.benchmark_folders import paint


def opened(root, *, split=None, labelled=True, preprocess=None, **fields):
    return open_source(Source(**fields), root=root, split=split, labelled=labelled, preprocess=preprocess)


@pytest.fixture
def own(tmp_path):
    """Data of a user's own: train and test by class, and lists beside them."""
    for part, count in (("train", 3), ("test", 2)):
        for label, kind in enumerate("ab"):
            for i in range(count):
                paint(tmp_path / "own" / part / kind / f"{i}.png", 100 * label + i)
        lines = [f"{part}/{kind}/{i}.png {label}\n" for label, kind in enumerate("ab") for i in range(count)]
        (tmp_path / "own" / f"{part}.txt").write_text("".join(lines), encoding="utf-8")
    return tmp_path


def test_a_folder_gives_the_part_asked_for(own):
    assert len(opened(own, dataset="folder", path="own", split="train")) == 6
    assert len(opened(own, dataset="folder", path="own/test", split="train")) == 4  # no parts in there
    assert len(opened(own, dataset="folder", path="own/{split}", split="test")) == 4
    assert open_source(
        Source("folder", path="own", split="test"), root=own, split="train", preprocess=None
    ).classes == ("a", "b")
    flat = opened(own, dataset="folder", path="own/train/a", labelled=False)
    assert (len(flat), flat.labels, flat.name) == (3, None, "a")


def test_a_missing_part_is_never_replaced_by_the_other(own):
    (own / "own" / "test").rename(own / "own" / "later")
    with pytest.raises(FileNotFoundError, match=r"must have a folder test or val .* for split 'test'; it has train"):
        opened(own, dataset="folder", path="own", split="test")
    with pytest.raises(FileNotFoundError, match="it has neither train nor test"):
        open_source(Source("folder", path="own/train", split="test"), root=own, preprocess=None)


def test_a_list_starts_from_its_path(own):
    images = opened(own, dataset="list", path="own", list="{split}.txt", split="train")
    assert images.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert opened(own, dataset="list", path="own", list="test.txt", labelled=False).labels is None
    with pytest.raises(ValueError, match="`split` must be given if"):
        opened(own, dataset="list", path="own", list="{split}.txt")


def test_count_takes_a_seeded_subset(own):
    first, again, other = (opened(own, dataset="folder", path="own", split="train", count=3, seed=s) for s in (0, 0, 5))
    assert len(first) == 3
    assert first.fingerprint == again.fingerprint != other.fingerprint


def test_preprocessing_is_the_tests(own):
    raw = opened(own, dataset="folder", path="own", split="test")
    assert isinstance(raw[0][0], Image.Image)
    x, label = opened(own, dataset="folder", path="own", split="test", preprocess=Preprocess())[3]
    assert (x.shape, label) == ((3, 224, 224), 1)
    assert torch.equal(x, Preprocess().test()(raw[3][0]))


def test_an_empty_class_may_be_allowed(own):
    (own / "own" / "train" / "aa").mkdir()
    with pytest.raises(FileNotFoundError, match="aa"):
        opened(own, dataset="folder", path="own", split="train")
    images = opened(own, dataset="folder", path="own", split="train", options={"allow_empty": True})
    assert images.labels.tolist() == [0, 0, 0, 2, 2, 2]


def test_paths_are_expanded(own, monkeypatch):
    monkeypatch.setenv("SIRC_DATA", str(own))
    monkeypatch.setenv("HOME", str(own))
    for path in ("$SIRC_DATA/own", "${SIRC_DATA}/own", "~/own", str(own / "own"), "own"):
        assert source_path(Source("folder", path=path), own) == own / "own"
    with pytest.raises(ValueError, match=r"`path` must use variables that are set; got '\$NOWHERE/x'\. Set \$NOWHERE"):
        source_path(Source("folder", path="$NOWHERE/x"), own)


def test_where_files_are_by_default(tmp_path):
    assert source_path(Source("textures"), tmp_path) == tmp_path / "dtd"
    assert source_path(Source("noise"), tmp_path) is None
    assert source_path(Source("noise", path="n"), tmp_path) == tmp_path / "n"
    assert source_path(Source("torchvision:CIFAR10"), tmp_path) == tmp_path
    assert source_path(Source("mine.data:make"), tmp_path) is None


def test_groups_are_the_benchmarks_unless_said():
    assert Source("textures").in_group == "Far"
    assert Source("textures", group="Close").in_group == "Close"
    assert Source("imagenet-o").in_group is None
    assert Source("folder", path="x", group="Far").in_group == "Far"
    assert Source("folder", path="x").in_group is None


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"dataset": "texture"}, r"`dataset` must be one of imagenet200.* got 'texture'. Did you mean `textures`\?"),
        ({"dataset": "torchvision:"}, '`dataset` must be "torchvision:NAME"'),
        ({"dataset": "a b:c"}, "`dataset` must be"),
        ({"dataset": ""}, "`dataset` must be one of"),
        ({"dataset": None}, "`dataset` must be text; got None"),
        ({"dataset": "folder"}, '`path` must be given for dataset "folder"'),
        ({"dataset": "folder", "path": 3}, "`path` must be text; got 3"),
        ({"dataset": "list", "path": "x"}, "`list` must be given"),
        ({"dataset": "folder", "path": "x", "list": "y"}, "`list` must be left out"),
        ({"dataset": "noise", "list": "y"}, "`list` must be left out"),
        ({"dataset": "noise", "split": "val"}, '`split` must be "train" or "test"; got \'val\''),
        ({"dataset": "noise", "group": "close"}, '`group` must be "Close" or "Far"; got \'close\''),
        ({"dataset": "noise", "count": 0}, "`count` must be a whole number"),
        ({"dataset": "noise", "count": True}, "`count` must be a whole number"),
        ({"dataset": "noise", "count": 2.5}, "`count` must be a whole number"),
        ({"dataset": "noise", "seed": -1}, "`seed` must be a whole number ≥ 0; got -1"),
        ({"dataset": "noise", "seed": None}, "`seed` must be"),
        ({"dataset": "noise", "options": {"sigma": 1}}, "`options` must be empty for dataset 'noise'; got sigma"),
        (
            {"dataset": "folder", "path": "x", "options": {"deep": 1}},
            "`options` must be empty .* but for `allow_empty`; got deep",
        ),
        ({"dataset": "noise", "options": 3}, "`options` must be a table"),
        (
            {"dataset": "folder", "path": "x", "options": {"allow_empty": "yes"}},
            r"`options\.allow_empty` must be true or false; got str",
        ),
    ],
)
def test_nonsense_is_refused_by_the_name_of_its_field(fields, words):
    with pytest.raises(ValueError, match=f"^{words}"):
        Source(**fields)


def test_fields_have_types_that_a_toml_can_give():
    allowed = {str, int, float, bool, type(None), tuple[str, ...]}
    for hint in typing.get_type_hints(Source).values():
        parts = (
            typing.get_args(hint)
            if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union
            else (hint,)
        )
        for part in parts:
            literal = typing.get_origin(part) is typing.Literal
            assert part in allowed or literal or part == dict[str, object]


@pytest.fixture
def module(monkeypatch):
    """A user's own module, importable as `users_data`."""
    made = types.ModuleType("users_data")
    monkeypatch.setitem(sys.modules, "users_data", made)
    return made


class Pictures:
    """A map-style dataset that counts how often it is read."""

    def __init__(self, items, **attributes):
        self.items, self.reads = items, 0
        vars(self).update(attributes)

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        self.reads += 1
        return Image.new("L", (4, 4), index), self.items[index]


def test_a_function_of_ones_own_gets_what_it_takes(own, module):
    calls = []

    def make(path, split, deep=0):
        calls.append((path, split, deep))
        return Pictures([0, 1, 2, 1], classes=["x", "y", "z"])

    module.make = make
    images = opened(own, dataset="users_data:make", path="own", split="test", options={"deep": 2})
    assert calls == [(own / "own", "test", 2)]
    assert images.labels.tolist() == [0, 1, 2, 1]
    assert images.classes == ("x", "y", "z")
    assert (images.name, images[1][0].mode, images.where(2)) == ("make", "RGB", "image 2 of 'make'")
    bare = opened(own, dataset="users_data:make", path="own", split="test", labelled=False)
    assert bare.labels is None
    assert isinstance(bare[0], Image.Image)


def test_labels_are_taken_from_where_they_are_kept(own, module):
    for kept in (
        {"targets": [0, 1, 2] * 10},
        {"labels": np.array([0, 1, 2] * 10)},
        {"_labels": torch.tensor([0, 1, 2] * 10)},
        {"samples": [("p", k) for k in [0, 1, 2] * 10]},
    ):
        data = Pictures([0, 1, 2] * 10, **kept)
        module.make = lambda data=data: data
        assert opened(own, dataset="users_data:make").labels.tolist() == [0, 1, 2] * 10
        assert data.reads == 3


@pytest.mark.parametrize(("classes", "names"), [(np.array(["x", "y"]), ("x", "y")), (2, ()), (None, ()), ([0, 1], ())])
def test_classes_may_be_kept_as_an_array_or_as_something_else(own, module, classes, names):
    module.make = lambda: Pictures([0, 1], classes=classes)
    assert opened(own, dataset="users_data:make").classes == names


def test_labels_that_say_otherwise_than_the_items_are_not_believed(own, module):
    for kept in (
        {"targets": [1, 1, 2]},
        {"targets": ["a", "b", "c"]},
        {"targets": [0, 1]},
        {"targets": [0.0, 1.0, 2.0]},
    ):
        module.make = lambda kept=kept: Pictures([0, 1, 2], **kept)
        assert opened(own, dataset="users_data:make").labels.tolist() == [0, 1, 2]


def test_a_function_may_return_an_image_set(own, module):
    module.make = lambda: Noise(4, seed=1)
    assert isinstance(opened(own, dataset="users_data:make", labelled=False), Noise)
    assert len(opened(own, dataset="users_data:make", labelled=False, count=4)) == 4
    assert len(opened(own, dataset="users_data:make", labelled=False, count=2)) == 2


def test_a_type_error_of_a_function_of_ones_own_is_its_own(own, module):
    module.make = lambda: len(3)
    with pytest.raises(TypeError, match=r"object of type 'int' has no len\(\)"):
        opened(own, dataset="users_data:make")


def test_a_function_of_ones_own_may_import_from_the_current_folder_when_it_is_called(own, module, monkeypatch):
    monkeypatch.chdir(own)
    (own / "pictures_beside.py").write_text("COUNT = 3\n", encoding="utf-8")

    def make():
        return Pictures(list(range(importlib.import_module("pictures_beside").COUNT)))

    module.make = make
    assert len(opened(own, dataset="users_data:make")) == 3
    del sys.modules["pictures_beside"]


def test_fingerprints_tell_datasets_of_functions_apart(own, module):
    module.make = lambda n: Pictures(list(range(n)))
    a, again, b = (opened(own, dataset="users_data:make", options={"n": n}) for n in (5, 5, 6))
    assert a.fingerprint == again.fingerprint != b.fingerprint
    assert isinstance(a, ImageSet)


def test_a_function_that_gives_something_else_is_refused(own, module):
    module.make, module.number = (lambda: iter([])), 3
    with pytest.raises(ValueError, match=r"must return an `ImageSet` or a map-style dataset.* returned list_iterator"):
        opened(own, dataset="users_data:make")
    with pytest.raises(ValueError, match="`users_data:number` must be a function; got a int"):
        opened(own, dataset="users_data:number")
    with pytest.raises(ValueError, match=r"`no_such.module:f` must be a benchmark, .*; no module `no_such` is"):
        opened(own, dataset="no_such.module:f")
    with pytest.raises(ValueError, match="`users_data` has no `nothing`"):
        opened(own, dataset="users_data:nothing")
    with pytest.raises(ValueError, match=r"`options` must be what `users_data:make\(\)` takes: .*'n'"):
        opened(own, dataset="users_data:make", options={"n": 1})
    module.make = lambda: Pictures(["cat"])
    with pytest.raises(ValueError, match=r"must be \(PIL image, whole number\); got \(Image, str\) for item 0"):
        opened(own, dataset="users_data:make")
    module.make = lambda: [(torch.zeros(3, 4, 4), 1)]
    with pytest.raises(ImageError, match=r"image 0 of 'make' must be a PIL image.*got Tensor.*without a transform"):
        opened(own, dataset="users_data:make")[0]
    module.make = lambda: ()
    with pytest.raises(ValueError, match="at least one image; 'make' is empty"):
        opened(own, dataset="users_data:make")


def test_torchvisions_datasets_open_by_name(tmp_path):
    images = opened(tmp_path, dataset="torchvision:FakeData", options={"size": 5, "num_classes": 3}, labelled=False)
    assert len(images) == 5
    with pytest.raises(ValueError, match=r"`split` must be left out for torchvision:FakeData"):
        opened(tmp_path, dataset="torchvision:FakeData", options={"size": 5}, split="train")
    assert len(opened(tmp_path, dataset="torchvision:FakeData", options={"size": 5}, split="test", labelled=False)) == 5
    with pytest.raises(ValueError, match=r"got 'CIFAR11'. Did you mean"):
        opened(tmp_path, dataset="torchvision:CIFAR11")
    with pytest.raises(ValueError, match=r"must not unpickle files, as that can run code; torchvision:LSUN does"):
        opened(tmp_path, dataset="torchvision:LSUN")
    with pytest.raises(ValueError, match=r"`options` must be what `torchvision:FakeData` takes: .*'sizes'"):
        opened(tmp_path, dataset="torchvision:FakeData", options={"sizes": 5})


def test_nothing_is_downloaded_unasked(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"torchvision:CIFAR10 cannot be opened .*download = true"):
        opened(tmp_path, dataset="torchvision:CIFAR10", split="test")
    assert list(tmp_path.iterdir()) == []


def test_a_download_that_fails_is_not_told_to_download(tmp_path):
    options = {"frames_per_clip": 1, "download": True}
    (tmp_path / "files").write_text("no folder", encoding="utf-8")
    with pytest.raises(FileNotFoundError, match=r"torchvision:Kinetics cannot be opened ") as caught:
        opened(tmp_path, dataset="torchvision:Kinetics", path=".", split="train", options=options)
    assert "download = true" not in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "split", "expected"),
    [
        ("MNIST", "train", {"train": True}),
        ("EMNIST", "test", {"train": False, "split": "letters"}),
        ("SVHN", "test", {"split": "test"}),
        ("ImageNet", "test", {"split": "val"}),
        ("Places365", "train", {"split": "train-standard"}),
        ("GTSRB", "train", {"split": "train"}),
    ],
)
def test_each_classs_own_word_for_a_split_is_found(tmp_path, monkeypatch, kind, split, expected):
    """The class is replaced by one with its signature and its splits, which records how it was called."""
    real = getattr(torchvision.datasets, kind)
    called = {}
    words = {
        "SVHN": ("train", "test"),
        "ImageNet": ("train", "val"),
        "Places365": ("train-standard", "val"),
        "GTSRB": ("train", "test"),
    }

    def record(self, root, **kwargs):
        if kind in words and kwargs["split"] not in words[kind]:
            raise ValueError(f"Unknown value '{kwargs['split']}' for argument split.")
        called.update(kwargs)
        self.root, self.targets = root, [0, 1]

    record.__signature__ = inspect.signature(real.__init__)
    made = type(
        kind,
        (real,),
        {"__init__": record, "__len__": lambda self: 2, "__getitem__": lambda self, i: (Image.new("L", (2, 2)), i)},
    )
    monkeypatch.setattr(torchvision.datasets, kind, made)
    options = {"split": "letters"} if kind == "EMNIST" else {}
    images = opened(tmp_path, dataset=f"torchvision:{kind}", split=split, options=options)
    assert called == expected
    assert images.labels.tolist() == [0, 1]


def test_a_real_torchvision_folder_gives_its_labels_and_classes(own):
    images = opened(own, dataset="torchvision:ImageFolder", path="own/train")
    assert images.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert images.classes == ("a", "b")


def test_the_argument_split_is_checked(tmp_path):
    with pytest.raises(ValueError, match="`split` must be"):
        opened(tmp_path, dataset="noise", split="val", labelled=False)
