"""Small networks for 32×32 images, a ResNet and a DenseNet, that a laptop trains quickly."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn

from sirc._utils.checks import check_positive


def resnet(num_classes: int = 26, width: int = 20) -> nn.Module:
    """Build a residual network (He et al. 2016, pre-activation): three stages of one block, 4·width features."""
    width = check_positive("width", width)
    return nn.Sequential(
        _conv(3, width, stride=2),
        _Residual(width, width, stride=1),
        _Residual(width, 2 * width, stride=2),
        _Residual(2 * width, 4 * width, stride=2),
        *_top(4 * width, num_classes),
    )


def densenet(num_classes: int = 26, growth: int = 16) -> nn.Module:
    """Build a densely connected network (Huang et al. 2017): blocks of one, three and three layers, 5¼·growth features.

    The first block is the shortest, since its images are the largest and its layers the slowest.
    """
    growth = check_positive("growth", growth)
    channels = 2 * growth
    layers: list[nn.Module] = [_conv(3, channels, stride=2)]
    for block, depth in enumerate((1, 3, 3)):
        if block:
            layers.append(_Transition(channels, channels // 2))
            channels //= 2
        layers += [_Dense(channels + growth * number, growth) for number in range(depth)]
        channels += depth * growth
    return nn.Sequential(*layers, *_top(channels, num_classes))


def _top(channels: int, num_classes: int) -> tuple[nn.Module, ...]:
    classes = check_positive("num_classes", num_classes)
    pool = nn.AdaptiveAvgPool2d(1)
    return nn.BatchNorm2d(channels), nn.ReLU(inplace=True), pool, nn.Flatten(), nn.Linear(channels, classes)


def _conv(inputs: int, outputs: int, *, size: int = 3, stride: int = 1) -> nn.Conv2d:
    conv = nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False)
    nn.init.kaiming_normal_(conv.weight, nonlinearity="relu")
    return conv


@final
class _Residual(nn.Module):
    """x + conv(relu(norm(conv(relu(norm(x)))))), with a strided 1×1 convolution of x where shapes differ."""

    def __init__(self, inputs: int, outputs: int, *, stride: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.BatchNorm2d(inputs), _conv(inputs, outputs, stride=stride)
        self.norm2, self.conv2 = nn.BatchNorm2d(outputs), _conv(outputs, outputs)
        self.skip = None if inputs == outputs and stride == 1 else _conv(inputs, outputs, size=1, stride=stride)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm1(x).relu()
        x = x if self.skip is None else self.skip(h)
        out: Tensor = x + self.conv2(self.norm2(self.conv1(h)).relu())
        return out


@final
class _Dense(nn.Module):
    """Appends `growth` new channels to x."""

    def __init__(self, inputs: int, growth: int) -> None:
        super().__init__()
        self.norm, self.conv = nn.BatchNorm2d(inputs), _conv(inputs, growth)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.conv(self.norm(x).relu())], 1)


@final
class _Transition(nn.Module):
    """Reduces the channels, and halves height and width."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.norm, self.conv = nn.BatchNorm2d(inputs), _conv(inputs, outputs, size=1)

    def forward(self, x: Tensor) -> Tensor:
        pooled = nn.functional.avg_pool2d(self.norm(x).relu(), 2)
        out: Tensor = self.conv(pooled)
        return out
