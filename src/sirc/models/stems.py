"""Stems for small images: first layers that reduce the resolution half as much."""

from __future__ import annotations

import math
from itertools import takewhile
from typing import Literal

import torch
from torch import nn

Stem = Literal["own", "half"]
_POOLS = (nn.MaxPool2d, nn.AvgPool2d)


def halve_stem(model: nn.Module, name: str) -> None:
    """Make the first layers reduce the resolution half as much, in place.

    If the first convolution, of stride 2, is followed by a pooling of stride 2 (ResNet, DenseNet), the pooling is
    removed and the convolution becomes 3×3. Otherwise (MobileNet) the convolution's stride becomes 1. The 3×3 weights
    are the centre of the initial ones, scaled to the variance that the initialisation gives a 3×3 kernel.
    """
    layers = model.named_modules()
    name_of_conv, conv = next(((key, layer) for key, layer in layers if isinstance(layer, nn.Conv2d)), ("", None))
    if conv is None or conv.stride != (2, 2):
        got = "none" if conv is None else f"stride {conv.stride}"
        raise ValueError(
            f'`stem = "half"` needs a network whose first convolution has stride 2; that of `{name}` has {got}. Leave '
            "`stem` out, or change the network in a function of your own: `package.module:function`."
        )
    # `layers` goes on after the first convolution.
    between = takewhile(lambda item: not isinstance(item[1], nn.Conv2d), layers)
    pools = [key for key, layer in between if isinstance(layer, _POOLS) and layer.stride in (2, (2, 2))]
    if not pools:
        conv.stride = (1, 1)
        return
    for key, layer in ((name_of_conv, _three_by_three(conv)), (pools[0], nn.Identity())):
        parent, _, last = key.rpartition(".")
        setattr(model.get_submodule(parent), last, layer)


def _three_by_three(conv: nn.Conv2d) -> nn.Conv2d:
    """Make a 3×3 convolution from a larger one."""
    if min(conv.kernel_size) <= 3:
        return conv
    high, wide = ((size - 3) // 2 for size in conv.kernel_size)
    # Initialisations give weights a variance proportional to 1/(k² × channels).
    scale = math.sqrt(math.prod(conv.kernel_size) / 9)
    smaller = nn.Conv2d(conv.in_channels, conv.out_channels, 3, 2, 1, groups=conv.groups, bias=False).to(conv.weight)
    with torch.no_grad():
        smaller.weight.copy_(conv.weight[:, :, high : high + 3, wide : wide + 3] * scale)
    smaller.bias = conv.bias
    return smaller
