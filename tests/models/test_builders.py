"""Models are built by name with their weights, all of them or none, and are told apart to the last bit."""

import os
import pickle
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
import torchvision
from PIL import Image
from safetensors.torch import load_file, save_file
from timm.models import save_for_hf
from torch import nn

from sirc._utils.files import read_safetensors
from sirc.data.preprocess import Preprocess
from sirc.errors import StoreError
from sirc.models import build, fingerprint, load_weights, named, preprocess_of, save_weights

SMALL_BIT = {"channels": [128, 128, 128, 128], "stem_chs": 32}


class Tied(nn.Module):
    def __init__(self, num_classes=3):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.first = nn.Linear(4, num_classes)
        self.second = nn.Linear(4, num_classes)
        self.second.weight = self.first.weight

    def forward(self, x):
        x = self.norm(self.conv(x)).mean((2, 3))
        return self.first(x) + self.second(x)


def same(model, other):
    mine, theirs = model.state_dict(), other.state_dict()
    return mine.keys() == theirs.keys() and all(torch.equal(mine[name], theirs[name]) for name in mine)


@pytest.fixture(scope="module")
def resnet():
    torch.manual_seed(0)
    return torchvision.models.resnet18(num_classes=7)


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A module of the user's in the current folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_networks.py").write_text(
        "from torch import nn\n"
        "def plain(num_classes, width=4):\n    return nn.Sequential(nn.Linear(width, num_classes))\n"
        "def fixed():\n    return nn.Linear(2, 2)\n"
        "def any(**options):\n    return nn.Linear(2, options['num_classes'])\n"
        "def wrong():\n    return 'a model'\n"
        "class Zoo:\n    net = nn.Identity\n"
        "number = 3\n",
        encoding="utf-8",
    )
    (tmp_path / "my_broken.py").write_text("import a_package_that_is_not_there\n", encoding="utf-8")
    yield tmp_path
    sys.modules.pop("my_networks", None)


def test_models_of_both_libraries_are_built_by_name():
    assert build("torchvision:resnet18", num_classes=7).fc.out_features == 7
    assert build("torchvision:resnet18").fc.out_features == 1000
    network = build("timm:resnet18", num_classes=7, options={"drop_rate": 0.25})
    assert isinstance(network, timm.models.ResNet)
    assert (network.num_classes, network.drop_rate) == (7, 0.25)


def test_a_function_of_one_s_own_is_found_in_the_current_folder(mine):
    before = list(sys.path)
    assert build("my_networks:plain", num_classes=5, options={"width": 6})[0].weight.shape == (5, 6)
    assert isinstance(build("my_networks:fixed", num_classes=5), nn.Linear)
    assert build("my_networks:any", num_classes=9).out_features == 9
    assert isinstance(build("my_networks:Zoo.net"), nn.Identity)
    assert sys.path == before


@pytest.mark.parametrize(
    ("name", "given", "words"),
    [
        ("resnet50", {}, r"must be `timm:NAME`, .* got 'resnet50'. Say which .* `torchvision:resnet50`."),
        ("timm:", {}, "`name` must be"),
        (3, {}, "`name` must be .* got 3"),
        ("timm:resnet5", {}, "timm has no model `resnet5`. Did you mean `resnet50"),
        ("torchvision:densnet121", {}, r"torchvision has no model `densnet121`. Did you mean `densenet121`\?"),
        ("tim:resnet18", {}, "no module `tim` is installed or in .* Did you mean `timm`"),
        ("my_networks:plane", {}, r"`my_networks` has no `plane`. Did you mean `plain`\?"),
        ("my_networks:number", {}, "must be a function; got a int"),
        ("my_networks:number.net", {}, "`my_networks` has no `number.net`"),
        ("my_networks:wrong", {}, "`my_networks:wrong` must return a torch.nn.Module; got a str"),
        ("my_networks:plain", {"options": {"n": 3}}, "must be what `my_networks:plain.*'num_classes'; got n\\."),
        (
            "my_networks:fixed",
            {"options": {"depth": 3}},
            "`options` must be what .* unexpected keyword argument 'depth'",
        ),
        (
            "my_networks:fixed",
            {"pretrained": True},
            "`pretrained` must be false for `my_networks:fixed`, which does not",
        ),
        (
            "torchvision:resnet18",
            {"options": {"zap": 1}},
            "`options` must be what `torchvision:resnet18` takes: .*'zap'",
        ),
        ("timm:resnet18", {"options": {"zap": 1}}, "`options` must be what `timm:resnet18` takes: .*'zap'"),
        ("timm:resnet18", {"num_classes": 0}, "`num_classes` must be a whole number ≥ 1; got 0"),
        (
            "timm:resnet18",
            {"pretrained": True, "checkpoint": "x"},
            "`checkpoint` must be left out if `pretrained` is given; got True",
        ),
        (
            "timm:resnet18",
            {"pretrained": "a9_in1k"},
            "timm's `resnet18` has the weights a1_in1k, .*; got `a9_in1k`. Did",
        ),
        ("timm:resnet18.a1_in1k", {"pretrained": "tv_in1k"}, "`pretrained` must be true or the tag in the name"),
        ("timm:resnet18", {"pretrained": True, "num_classes": 7}, "`num_classes` must be 1000, .* got 7, whose head"),
        ("torchvision:resnet18", {"pretrained": "V9"}, "has the weights IMAGENET1K_V1, DEFAULT; got `V9`"),
        ("torchvision:resnet18", {"pretrained": True, "num_classes": 7}, "must be 1000, as in the pretrained weights"),
    ],
)
def test_a_bad_request_is_told_with_the_way_out(mine, name, given, words):
    with pytest.raises(ValueError, match=words):
        build(name, **given)


def test_an_error_inside_one_s_own_module_is_left_as_it_is(mine):
    with pytest.raises(ModuleNotFoundError, match="a_package_that_is_not_there"):
        build("my_broken:f")


def test_a_missing_library_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(ImportError, match=r"a model of timm needs timm: pip install 'torch-sirc\[vision\]'"):
        build("timm:resnet18")


def test_the_error_of_a_broken_library_is_left_as_it_is(monkeypatch, tmp_path):
    (tmp_path / "timm.py").write_text("raise ImportError('libgomp.so.1: cannot open it')", encoding="utf-8")
    monkeypatch.delitem(sys.modules, "timm", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ImportError, match=r"^libgomp"):
        build("timm:resnet18")


def old_names(state):
    """torchvision's published DenseNets: dots before the number, no counters of batches."""
    kept = {name: value for name, value in state.items() if not name.endswith("num_batches_tracked")}
    return {
        name if "denselayer" not in name else name.replace("norm", "norm.").replace("conv", "conv."): value
        for name, value in kept.items()
    }


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """A TORCH_HOME which holds a DenseNet-121 as torchvision publishes it."""
    torch.manual_seed(1)
    model = torchvision.models.densenet121()
    home = tmp_path_factory.mktemp("home")
    file = home / "hub" / "checkpoints" / "densenet121-a639ec97.pth"
    file.parent.mkdir(parents=True)
    state = old_names(model.state_dict())
    assert "features.denseblock1.denselayer1.norm.1.weight" in state
    torch.save(state, file)
    return home, file, model


@pytest.mark.slow
def test_pretrained_weights_of_torchvision_land_in_the_model(published, monkeypatch, capsys):
    home, file, model = published
    monkeypatch.setenv("TORCH_HOME", str(home))
    assert same(build("torchvision:densenet121", num_classes=1000, pretrained="IMAGENET1K_V1"), model)
    assert same(build("torchvision:densenet121", checkpoint=file), model)
    assert capsys.readouterr().out == ""


def test_a_cached_download_that_would_run_code_is_not_read(tmp_path, monkeypatch):
    file = tmp_path / "hub" / "checkpoints" / "resnet18-f37072fd.pth"
    file.parent.mkdir(parents=True)
    torch.save(nn.Linear(2, 2), file)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    with pytest.raises(
        ValueError, match="the pretrained weights of `torchvision:resnet18` could not be loaded: Weights only"
    ):
        build("torchvision:resnet18", pretrained=True)
    assert "TORCH_FORCE_WEIGHTS_ONLY_LOAD" not in os.environ


@pytest.mark.slow
def test_without_a_network_the_error_says_what_to_fetch(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))

    def offline(*_, **__):
        raise OSError("Name or service not known")

    monkeypatch.setattr(torch.hub, "urlopen", offline)
    with pytest.raises(
        ValueError,
        match=r"Name or service not known. Without a network connection, fetch them elsewhere "
        r"\(https://download.pytorch.org/models/resnet18-f37072fd.pth\) and pass the file as `checkpoint=…`",
    ):
        build("torchvision:resnet18", pretrained=True)
    assert capsys.readouterr().out == ""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ValueError, match=r"could not be loaded.*\(https://huggingface.co/timm/resnet18.a1_in1k\)"):
        build("timm:resnet18", pretrained=True)
    with pytest.raises(ValueError, match=r"and pass the file in the name, `torchvision:resnet18=FILE`\."):
        named("torchvision:resnet18")


@pytest.mark.parametrize("wrap", ["plain", "state_dict", "model", "module", "model_state_dict", "twice"])
@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod.", "_orig_mod.module.", "model."])
def test_state_dicts_are_found_however_they_were_wrapped(tmp_path, wrap, prefix):
    torch.manual_seed(2)
    model = Tied()
    state = {prefix + name: value for name, value in model.state_dict().items()}
    content = {"plain": state, "twice": {"model": {"state_dict": state}, "epoch": 3}}.get(
        wrap, {wrap: state, "epoch": 3}
    )
    torch.save(content, tmp_path / "x.tar")
    other = Tied()
    assert not same(other, model)
    load_weights(other, tmp_path / "x.tar")
    assert same(other, model)


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".safetensors", ".pt", ".pth", ".bin", ".PTH"])
def test_checkpoints_of_every_kind_are_loaded(tmp_path, resnet, suffix):
    path = tmp_path / f"weights{suffix}"
    (save_file if suffix == ".safetensors" else torch.save)(resnet.state_dict(), path)
    assert same(build("torchvision:resnet18", num_classes=7, checkpoint=path), resnet)


@pytest.mark.slow
def test_variables_in_the_path_of_a_checkpoint_are_expanded(tmp_path, resnet, monkeypatch):
    torch.save(resnet.state_dict(), tmp_path / "x.pt")
    monkeypatch.setenv("WEIGHTS", str(tmp_path))
    assert same(build("torchvision:resnet18", num_classes=7, checkpoint="$WEIGHTS/x.pt"), resnet)


def test_half_precision_weights_take_the_model_s_dtype(tmp_path):
    model = Tied()
    torch.save({name: value.half() for name, value in model.state_dict().items()}, tmp_path / "x.pt")
    other = Tied()
    load_weights(other, tmp_path / "x.pt")
    assert other.conv.weight.dtype == torch.float32
    assert torch.equal(other.conv.weight, model.conv.weight.half().float())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda s: s | {"first.weight": torch.zeros(5, 4), "first.bias": torch.zeros(5)},
            r"does not fit the Tied: 2 have other shapes: `first.weight \(5, 4\) instead of \(3, 4\)`, `first.bias "
            r"\(5,\) instead of \(3,\)`. It seems to have 5 classes, the model 3: pass `num_classes=5`.",
        ),
        (
            lambda s: {k: v for k, v in s.items() if k != "conv.bias"},
            "1 are missing: `conv.bias`. Build the model",
        ),
        (lambda s: s | {"extra": torch.zeros(1)}, "1 are unexpected: `extra`. Build the model that the file was saved"),
        (
            lambda s: {f"{i}.weight": torch.zeros(1) for i in range(9)},
            r"10 are missing: `conv.weight`, `conv.bias`, `norm.weight`, …; 9 are unexpected: `0.w.*Build the model",
        ),
        (lambda s: s | {"conv.bias": 3}, r"1 have other shapes: `conv.bias None instead of \(4,\)`"),
        (lambda s: [1, 2], "must hold a state dict: names and tensors; got list"),
        (lambda s: {"epoch": 3}, "must hold a state dict: names and tensors; got a dict of `epoch`"),
        (lambda s: {}, "must hold a state dict"),
    ],
)
def test_weights_that_do_not_fit_are_refused_and_change_nothing(tmp_path, change, words):
    model, path = Tied(), tmp_path / "x.pt"
    torch.save(change(Tied().state_dict()), path)
    before = fingerprint(model)
    with pytest.raises(StoreError, match=words):
        load_weights(model, path)
    assert fingerprint(model) == before


class Evil:
    def __reduce__(self):
        return (Path("ran").touch, ())


class Shell:
    def __reduce__(self):
        return (os.system, ("touch ran",))


def test_a_checkpoint_that_needs_code_is_refused_with_words(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save(Tied(), "model.pt")
    with pytest.raises(
        StoreError, match=r"reading it would run the code of `test_builders.Tied`, so it is not read. If"
    ):
        load_weights(Tied(), "model.pt")
    torch.save({"state_dict": Tied().state_dict(), "args": Evil()}, "evil.pth")
    with pytest.raises(StoreError, match="holds more than weights"):
        load_weights(Tied(), "evil.pth")
    torch.save({"args": Shell()}, "shell.pth")  # of a module that torch blocks, with other words and bad advice
    with pytest.raises(StoreError, match=r"would run the code of `(posix|nt).system`, so it is not read"):
        load_weights(Tied(), "shell.pth")
    Path("raw.bin").write_bytes(pickle.dumps(Evil()))
    with pytest.raises(StoreError, match=r"raw.bin"):
        load_weights(Tied(), "raw.bin")
    for options in (
        {"checkpoint_path": "evil.pth"},
        {"pretrained_cfg_overlay": {"file": "evil.pth"}, "pretrained": True},
    ):
        with pytest.raises(ValueError, match=r"cannot be built with these `options`|could not be loaded"):
            build("timm:test_resnet", options=options)
    assert not Path("ran").exists()


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("x.pt", b"", "is not a whole PyTorch file"),
        ("x.pt", b"junk", "is not a whole PyTorch file"),
        ("x.pt", b"garbage" * 99, "is not a whole PyTorch file"),
        ("x.pt", b"PK\x03\x04" + b"\0" * 99, "is not a whole PyTorch file"),
        ("x.safetensors", b"garbage" * 99, "cannot be trusted: not a whole safetensors file"),
        ("x.onnx", b"", r"must be one of .safetensors, .pt, .pth, .bin, .tar, .ckpt, .npz; got '.*x.onnx'"),
        ("x.npz", b"", "a `.npz` checkpoint must be for a timm model that reads this format"),
    ],
)
def test_what_is_no_checkpoint_is_described(tmp_path, name, content, words):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=words):
        load_weights(Tied(), tmp_path / name)


def test_a_checkpoint_that_is_not_there_is_told(tmp_path):
    for path in (tmp_path, tmp_path / "x.pt"):
        with pytest.raises(FileNotFoundError, match=rf"there is no file '{path}'[.:]"):
            load_weights(Tied(), path)


def published_bit(model, classes):
    """The arrays of a BiT file for such a model, in the layout that big_transfer publishes: kernels are HWIO."""
    generator = np.random.default_rng(0)
    arrays = {}

    def kernel(name, weight, outputs=None):
        o, i, h, w = weight.shape
        arrays[f"resnet/{name}/kernel"] = generator.normal(size=(h, w, i, outputs or o)).astype(np.float32)

    def norm(name, width):
        for part in ("gamma", "beta"):
            arrays[f"resnet/{name}group_norm/{part}"] = generator.normal(size=width).astype(np.float32)

    kernel("root_block/standardized_conv2d", model.stem.conv.weight)
    norm("", len(model.norm.weight))
    kernel("head/conv2d", model.head.fc.weight, classes)
    arrays["resnet/head/conv2d/bias"] = generator.normal(size=classes).astype(np.float32)
    for i, stage in enumerate(model.stages, 1):
        for j, block in enumerate(stage.blocks, 1):
            unit = f"block{i}/unit{j:02d}"
            for letter, conv, normed in zip(
                "abc", (block.conv1, block.conv2, block.conv3), (block.norm1, block.norm2, block.norm3), strict=True
            ):
                kernel(f"{unit}/{letter}/standardized_conv2d", conv.weight)
                norm(f"{unit}/{letter}/", len(normed.weight))
            if block.downsample is not None:
                kernel(f"{unit}/a/proj/standardized_conv2d", block.downsample.conv.weight)
    return arrays


@pytest.fixture(scope="module")
def bit(tmp_path_factory):
    model = timm.create_model("resnetv2_50x1_bit", num_classes=11, **SMALL_BIT)
    arrays = published_bit(model, 11)
    path = tmp_path_factory.mktemp("bit") / "BiT.npz"
    np.savez(path, **arrays)
    return path, arrays


def test_every_weight_of_a_bit_file_lands_in_timm_s_model(bit):
    path, arrays = bit
    model = build("timm:resnetv2_50x1_bit", num_classes=11, checkpoint=path, options=SMALL_BIT)
    oihw = {name: array.transpose(3, 2, 0, 1) if array.ndim == 4 else array for name, array in arrays.items()}
    landed = {
        "stem.conv.weight": "resnet/root_block/standardized_conv2d/kernel",
        "head.fc.weight": "resnet/head/conv2d/kernel",
        "head.fc.bias": "resnet/head/conv2d/bias",
        "norm.weight": "resnet/group_norm/gamma",
        "stages.0.blocks.0.downsample.conv.weight": "resnet/block1/unit01/a/proj/standardized_conv2d/kernel",
        "stages.2.blocks.5.conv2.weight": "resnet/block3/unit06/b/standardized_conv2d/kernel",
        "stages.3.blocks.2.norm3.bias": "resnet/block4/unit03/c/group_norm/beta",
    }
    parameters = dict(model.named_parameters())
    for name, source in landed.items():
        np.testing.assert_array_equal(parameters[name].detach().numpy(), oihw[source])
    total = sum(float(np.abs(array).sum(dtype=np.float64)) for array in arrays.values())
    assert sum(float(p.detach().abs().sum(dtype=torch.float64)) for p in parameters.values()) == pytest.approx(total)
    assert len(parameters) == len(arrays)


def test_a_bit_file_that_leaves_a_random_head_is_refused(bit):
    model = timm.create_model("resnetv2_50x1_bit", num_classes=12, **SMALL_BIT)
    before = fingerprint(model)
    with pytest.raises(StoreError, match=r"2 weights are not in it: `head.fc.weight`, .*`num_classes=…`"):
        load_weights(model, bit[0])
    assert fingerprint(model) == before


@pytest.mark.slow
@pytest.mark.parametrize(
    ("drop", "words"),
    [
        ("resnet/block4/unit03/c/group_norm/beta", "does not fit the ResNetV2: .*block4/unit03/c/group_norm/beta"),
        ("resnet/block4/unit03/", "has 15 residual blocks, the ResNetV2 16. Build the same depth."),
        ("resnet/root_block", "does not fit the ResNetV2: "),
    ],
)
def test_an_incomplete_bit_file_is_refused(bit, tmp_path, drop, words):
    path, arrays = bit
    np.savez(tmp_path / "x.npz", **{name: array for name, array in arrays.items() if not name.startswith(drop)})
    with pytest.raises(StoreError, match=words):
        build("timm:resnetv2_50x1_bit", num_classes=11, checkpoint=tmp_path / "x.npz", options=SMALL_BIT)
    data = path.read_bytes()
    (tmp_path / "half.npz").write_bytes(data[: len(data) // 2])
    with pytest.raises(StoreError, match=r"half.npz' does not fit the ResNetV2"):
        build("timm:resnetv2_50x1_bit", num_classes=11, checkpoint=tmp_path / "half.npz", options=SMALL_BIT)
    with zipfile.ZipFile(tmp_path / "odd.npz", "w") as file:
        file.writestr("resnet/root_block/standardized_conv2d/kernel.npy", pickle.dumps(Evil()))
    with pytest.raises(StoreError, match=r"odd.npz' does not fit the ResNetV2"):
        build("timm:resnetv2_50x1_bit", num_classes=11, checkpoint=tmp_path / "odd.npz", options=SMALL_BIT)


@pytest.mark.slow
def test_a_fingerprint_sees_weights_and_nothing_else(resnet):
    first = fingerprint(resnet)
    assert len(first) == 32
    assert int(first, 16) >= 0
    torch.manual_seed(1)
    again = torchvision.models.resnet18(num_classes=7)
    assert fingerprint(again) != first
    again.load_state_dict(resnet.state_dict())
    assert fingerprint(again) == first
    assert fingerprint(again.to(memory_format=torch.channels_last)) == first
    assert fingerprint(again.train()) == fingerprint(again.eval()) == first
    assert fingerprint(nn.DataParallel(again)) == first
    assert fingerprint(torch.compile(again)) == first
    again.layer1 = torch.compile(again.layer1)
    assert fingerprint(again) == first


def test_one_bit_of_one_weight_changes_the_fingerprint():
    model = Tied()
    first = fingerprint(model)
    with torch.no_grad():
        bits = model.conv.bias.view(torch.int32)
        bits[1] ^= 1
        changed = fingerprint(model)
        bits[1] ^= 1
    assert changed != first
    assert fingerprint(model) == first
    model.norm.num_batches_tracked += 1
    assert fingerprint(model) != first


def test_equal_bytes_under_other_names_shapes_types_or_classes_differ():
    class Other(Tied):
        pass

    def layer(*shape, dtype=torch.float32, name="weight"):
        module = nn.Module()
        module.register_buffer(name, torch.zeros(*shape, dtype=dtype))
        return module

    models_ = [layer(2, 3), layer(3, 2), layer(6), layer(6, dtype=torch.int32), layer(6, name="bias"), Tied(), Other()]
    models_[-1].load_state_dict(models_[-2].state_dict())
    assert len({fingerprint(model) for model in models_}) == len(models_)
    assert fingerprint(Tied().bfloat16()) != fingerprint(Tied())


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_saved_weights_come_back_to_the_last_bit(tmp_path, dtype):
    model = Tied().to(dtype).to(memory_format=torch.channels_last)
    model(torch.randn(2, 3, 5, 5, dtype=dtype))
    save_weights(nn.DataParallel(model), tmp_path / "x.safetensors")
    other = Tied().to(dtype)
    load_weights(torch.compile(other), tmp_path / "x.safetensors")
    assert fingerprint(other) == fingerprint(model)
    assert other.second.weight is other.first.weight


def test_saved_weights_are_plain_safetensors_and_not_overwritten(tmp_path):
    model, path = Tied(), tmp_path / "x.safetensors"
    save_weights(model, path)
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in load_file(path).items())
    assert read_safetensors(path)[1] == {"format": "pt", "class": "test_builders.Tied"}
    with pytest.raises(FileExistsError, match="overwrite=True"):
        save_weights(model, path)
    save_weights(model, path, overwrite=True)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(StoreError, match="its content does not match its checksum"):
        load_weights(model, path)


@pytest.mark.slow
def test_partly_compiled_models_are_saved_and_loaded_by_plain_names(tmp_path):
    model = Tied()
    first = fingerprint(model)
    model.conv = torch.compile(model.conv)
    save_weights(model, tmp_path / "x.safetensors")
    plain = Tied()
    load_weights(plain, tmp_path / "x.safetensors")
    assert fingerprint(plain) == first
    with torch.no_grad():
        model.conv.weight.zero_()
    load_weights(model, tmp_path / "x.safetensors")
    assert fingerprint(model) == first


@pytest.mark.parametrize(
    ("name", "pretrained"),
    [("densenet121", "IMAGENET1K_V1"), ("resnet50", True), ("mobilenet_v3_large", "IMAGENET1K_V2"), ("swin_t", True)],
)
def test_torchvision_s_preprocessing_gives_torchvision_s_pixels(name, pretrained):
    weights = torchvision.models.get_model_weights(name)["DEFAULT" if pretrained is True else pretrained]
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (300, 451, 3), dtype=np.uint8))
    ours = preprocess_of(f"torchvision:{name}", pretrained).test()(image)
    torch.testing.assert_close(ours, weights.transforms()(image), rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    "name", ["resnet50.a1_in1k", "resnetv2_101x1_bit", "vit_base_patch16_224", "mobilenetv4_conv_small.e2400_r224_in1k"]
)
def test_timm_s_preprocessing_gives_timm_s_pixels(name):
    config = timm.data.resolve_data_config(pretrained_cfg=timm.get_pretrained_cfg(name).to_dict())
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (500, 451, 3), dtype=np.uint8))
    ours = preprocess_of(f"timm:{name}").test()(image)
    theirs = timm.data.create_transform(**config, is_training=False)(image)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)


def test_a_network_is_named_with_its_weights_in_one_word(tmp_path, mine, monkeypatch):
    torch.manual_seed(0)
    model = timm.create_model("test_resnet", num_classes=3)
    file, folder = tmp_path / "weights.safetensors", tmp_path / "hub"
    save_weights(model, file)
    save_for_hf(model, folder, safe_serialization=True)
    published = preprocess_of("timm:test_resnet")
    for text in (f"timm:test_resnet={file}", str(folder)):
        found, preprocess = named(text, 3)
        assert fingerprint(found) == fingerprint(model)
        assert preprocess == published == preprocess_of(model)
    own = build("torchvision:resnet18", num_classes=3)
    save_weights(own, tmp_path / "own.safetensors")
    found, preprocess = named(f"torchvision:resnet18={tmp_path / 'own.safetensors'}", 3)
    assert fingerprint(found) == fingerprint(own)
    assert preprocess == preprocess_of("torchvision:resnet18")
    given = []
    monkeypatch.setattr("sirc.models.builders.build", lambda *a, **named: given.append((*a, *named.items())) or model)
    assert named("timm:test_resnet")[0] is model
    assert named("my_models:make", 3)[1] is None
    assert given == [
        ("timm:test_resnet", ("pretrained", True)),
        ("my_models:make", ("num_classes", 3), ("checkpoint", None)),
        ("my_models:make", ("num_classes", 3)),  # again, to see whether it draws its weights at random
    ]


def test_a_name_without_a_network_says_how_to_write_it(tmp_path):
    (tmp_path / "weights.pt").touch()
    (tmp_path / "config.json").write_text('{"architectures": ["ViT"]}', encoding="utf-8")
    with pytest.raises(ValueError, match=r"a file of weights needs the name of its network, `timm:NAME=.*weights.pt`"):
        named(str(tmp_path / "weights.pt"))
    with pytest.raises(ValueError, match=r"must name an `architecture`, as timm's files do; it does not"):
        named(str(tmp_path))
    with pytest.raises(ValueError, match=r"only models made by timm record their preprocessing; ResNet does not"):
        preprocess_of(build("torchvision:resnet18"))


def test_preprocessing_that_nobody_published_is_told():
    assert preprocess_of("torchvision:densenet121", "IMAGENET1K_V1") == Preprocess()
    with pytest.raises(ValueError, match="only timm and torchvision publish a preprocessing; got `mine:f`"):
        preprocess_of("mine:f")
    with pytest.raises(ValueError, match="must be an image classifier; its preprocessing is a ObjectDetection"):
        preprocess_of("torchvision:fasterrcnn_resnet50_fpn")


def test_a_grey_network_has_no_preprocessing_of_folders():
    told = r"must take 3 channels; `timm:test_resnet` takes 1\. Pass a dataset or a loader"
    with pytest.raises(ValueError, match=told):
        preprocess_of(timm.create_model("test_resnet", in_chans=1))
    published = timm.create_model("test_vit")
    published.pretrained_cfg |= {"input_size": (1, 28, 28), "mean": (0.13,), "std": (0.31,), "first_conv": None}
    with pytest.raises(ValueError, match=r"`timm:test_vit` takes 1\. "):
        preprocess_of(published)


def test_a_first_layer_that_reads_blocks_of_pixels_as_one_takes_rgb_images():
    with torch.device("meta"):
        model = timm.create_model("tresnet_m")
    assert model.state_dict()["body.conv1.conv.weight"].shape[1] == 48
    assert preprocess_of(model).crop == 224


def first_outputs(model, side):
    """The shapes (C, H, W) of what the first and the last convolution give for an image."""
    seen = []
    convs = [layer for layer in model.modules() if isinstance(layer, nn.Conv2d)]
    for layer in (convs[0], convs[1], convs[-1]):
        layer.register_forward_hook(lambda _, __, y: seen.append(tuple(y.shape[1:])))
    model.eval()(torch.zeros(1, 3, side, side))
    return seen


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "kernel", "stride", "side"),
    [
        ("torchvision:resnet18", 3, 2, 32),
        ("torchvision:densenet121", 3, 2, 32),
        ("torchvision:mobilenet_v2", 3, 1, 64),
        ("timm:resnet18", 3, 2, 32),
        ("timm:mobilenetv2_050", 3, 1, 64),
    ],
)
def test_a_half_stem_reduces_the_image_half_as_much(name, kernel, stride, side):
    model = build(name, num_classes=5, stem="half")
    first = next(layer for layer in model.modules() if isinstance(layer, nn.Conv2d))
    assert (first.kernel_size, first.stride) == ((kernel, kernel), (stride, stride))
    stem, after, last = first_outputs(model, 64)
    assert stem[1:] == after[1:] == (side, side)
    assert last[1:] == (4, 4)
    whole = first_outputs(build(name, num_classes=5), 64)
    assert whole[-1][1:] == (2, 2)
    assert model.eval()(torch.zeros(2, 3, 64, 64)).shape == (2, 5)


@pytest.mark.slow
def test_a_half_stem_draws_weights_by_the_model_s_rule(tmp_path):
    torch.manual_seed(3)
    model = build("torchvision:resnet18", num_classes=5, stem="half")
    # Kaiming's rule for fan-out: variance 2/(3 · 3 · 64).
    assert model.conv1.weight.shape == (64, 3, 3, 3)
    assert model.conv1.weight.std().item() == pytest.approx((2 / (9 * 64)) ** 0.5, rel=0.05)
    torch.manual_seed(3)
    own = build("torchvision:resnet18", num_classes=5)
    assert torch.equal(model.conv1.weight, own.conv1.weight[:, :, 2:5, 2:5] * (7 / 3))
    assert torch.equal(model.layer4[1].conv2.weight, own.layer4[1].conv2.weight)
    save_weights(model, tmp_path / "half.safetensors")
    again = build("torchvision:resnet18", num_classes=5, stem="half", checkpoint=tmp_path / "half.safetensors")
    assert fingerprint(again) == fingerprint(model)


@pytest.mark.slow
def test_stems_that_cannot_be_are_told():
    with pytest.raises(ValueError, match='`stem` must be "own" or "half"; got \'small\''):
        build("torchvision:resnet18", stem="small")
    with pytest.raises(ValueError, match="first convolution has stride 2; that of `torchvision:vgg11` has stride"):
        build("torchvision:vgg11", num_classes=2, stem="half")
    with pytest.raises(ValueError, match='`stem` must be "own" if `pretrained` is given'):
        build("torchvision:resnet18", pretrained=True, stem="half")
