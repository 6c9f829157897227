"""Stems for small images: first layers that reduce the resolution half as much."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import nn

Stem = Literal["own", "half"]
STEMS: tuple[Stem, ...] = ("own", "half")
_POOLS = (nn.MaxPool2d, nn.AvgPool2d)


def halve_stem(model: nn.Module, name: str) -> None:
    """Make the first layers reduce the resolution half as much, in place.

    If the first convolution, of stride 2, is followed by a pooling of stride 2 (ResNet, DenseNet), the pooling is
    removed and the convolution becomes 3×3. Otherwise (MobileNet) the convolution's stride becomes 1. The 3×3 weights
    are the centre of the initial ones, scaled to the variance that the initialisation gives a 3×3 kernel.
    """
    first, pool = _first_layers(model)
    if first is None or first[1].stride != (2, 2):
        got = "none" if first is None else f"stride {first[1].stride}"
        raise ValueError(
            f'`stem = "half"` needs a network whose first convolution has stride 2; that of `{name}` has {got}. Leave '
            "`stem` out, or change the network in a function of your own: `package.module:function`."
        )
    where, conv = first
    if pool is None:
        conv.stride = (1, 1)
        return
    for name, layer in ((where, _smaller(conv)), (pool, nn.Identity())):
        parent, _, last = name.rpartition(".")
        setattr(model.get_submodule(parent), last, layer)


def _first_layers(model: nn.Module) -> tuple[tuple[str, nn.Conv2d] | None, str | None]:
    """Find the first convolution, and the name of a pooling of stride 2 between it and the next convolution."""
    first: tuple[str, nn.Conv2d] | None = None
    for name, layer in model.named_modules():
        if isinstance(layer, nn.Conv2d):
            if first is not None:
                return first, None
            first = name, layer
        elif first is not None and isinstance(layer, _POOLS) and layer.stride in (2, (2, 2)):
            return first, name
    return first, None


def _smaller(conv: nn.Conv2d) -> nn.Conv2d:
    """Make a 3×3 convolution from a larger one."""
    if min(conv.kernel_size) <= 3:
        return conv
    other = nn.Conv2d(conv.in_channels, conv.out_channels, 3, 2, 1, groups=conv.groups, bias=conv.bias is not None).to(
        conv.weight
    )
    high, wide = ((size - 3) // 2 for size in conv.kernel_size)
    # Initialisations give weights a variance proportional to 1/(k² × channels).
    scale = math.sqrt(math.prod(conv.kernel_size) / 9)
    with torch.no_grad():
        other.weight.copy_(conv.weight[:, :, high : high + 3, wide : wide + 3] * scale)
        if conv.bias is not None and other.bias is not None:
            other.bias.copy_(conv.bias)
    return other
