"""Head: weight and bias of a classifier's final linear layer, v = W z + b."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import final

import torch
from torch import Tensor

from sirc._utils.arrays import ArrayLike, add_gram_, as_tensor
from sirc._utils.checks import check_device, check_finite, check_floating, check_shape, check_type
from sirc._utils.files import (
    PathLike,
    array_names,
    is_npz,
    listed_arrays,
    read_npz,
    read_safetensors,
    write_npz,
    write_safetensors,
)
from sirc._utils.warn import warn
from sirc.errors import StoreError
from sirc.outputs.outputs import Outputs

HEAD_FORMAT = "sirc.Head/1"
_WEIGHT, _BIAS = "head_weight", "head_bias"
"""The names of the head's arrays in a file that also has outputs."""
_COMPARED = 256  # rows for which W z + b is compared with the logits
_ALIKE = 0.5  # a lower correlation with the logits means that the head belongs to another model
_ROUNDED = 1e-5  # relative rounding error of a float32 layer; rows of an untrained network may differ by less
_CLOSE = 0.05  # relative error that rounding may cause; twice that in bfloat16
_DIVERGED = "Load the weights again; if they are the same, training diverged: take an earlier checkpoint."
_WELL_CONDITIONED = 1e12  # condition number of WWᵀ up to which each refinement step adds at least three digits


@final
@dataclass(frozen=True, init=False, eq=False, repr=False)
class Head:
    """The last layer of a classifier, which maps features z to logits v = W z + b.

    Args:
        weight: W, shape (K, L): one row per class. A 1×1 convolution's (K, L, 1, 1) is flattened.
        bias: b, shape (K,), or None.
        name: the layer's dotted path in the model, as in `model.named_modules()`; "" if it has none.

    Example:
        >>> import sirc
        >>> head = sirc.Head([[1.0, 0.0], [0.0, 2.0], [1.0, 1.0]], bias=[0.0, 0.5, 0.0])
        >>> head
        Head('', 3 classes × 2 features)
        >>> head.num_classes, head.num_features
        (3, 2)
    """

    weight: Tensor
    bias: Tensor | None
    name: str

    def __init__(self, weight: ArrayLike, bias: ArrayLike | None = None, name: str = "") -> None:
        W = as_tensor("weight", weight)
        if W.ndim == 4 and W.shape[2:] == (1, 1):
            W = W.flatten(1)
        check_shape("weight", W, K=1, L=1, hint="Pass one row per class, one column per feature.")
        check_floating("weight", W)
        check_finite("weight", W, _DIVERGED)
        b = None if bias is None else as_tensor("bias", bias).to(W.device)
        if b is not None:
            if b.shape != W.shape[:1]:
                turned = b.shape == W.shape[1:]
                raise ValueError(
                    f"`bias` must have one value for each of the {len(W)} rows of `weight` {tuple(W.shape)}; "
                    f"got {tuple(b.shape)}. "
                    + ("`weight` looks transposed: pass weight.T." if turned else "Pass both from one layer.")
                )
            check_floating("bias", b)
            check_finite("bias", b, _DIVERGED)
        check_type("name", name, str, "a layer's path, as text")
        vars(self).update(weight=W, bias=b, name=name)

    @property
    def num_classes(self) -> int:
        """K, the number of logits."""
        return self.weight.shape[0]

    @property
    def num_features(self) -> int:
        """L, the number of features."""
        return self.weight.shape[1]

    @cached_property
    def origin(self) -> Tensor:
        """The origin u = −W⁺ b, in float64: the point of feature space where the logits vanish."""
        if self.bias is None:
            return torch.zeros(self.num_features, dtype=torch.float64, device=self.weight.device)
        # Singular values that the rounding of the given dtype explains count as zero. A half-precision weight was
        # rounded once, after training in a wider type: eps·max(K, L) of its own type would leave no singular value.
        wide = torch.float64 if self.weight.dtype == torch.float64 else torch.float32
        rtol = max(torch.finfo(self.weight.dtype).eps, max(self.weight.shape) * torch.finfo(wide).eps)
        return -_least_norm(self.weight.double(), self.bias.double(), rtol)

    def check(self, outputs: Outputs) -> None:
        """Compare W z + b with the logits of some rows: raise if they are unrelated, warn if they are only similar.

        A constant added to all logits of a row is ignored, since it changes no prediction.
        """
        if outputs.features is None or not len(outputs):
            return
        if (outputs.num_features, outputs.num_classes) != (self.num_features, self.num_classes):
            raise ValueError(
                f"`head` must map the features to the logits; it maps {self.num_features} features to "
                f"{self.num_classes} logits, the data have {outputs.num_features} and {outputs.num_classes}. Is it the "
                "head of this model?"
            )
        some = slice(None, None, 1 + len(outputs) // _COMPARED)
        made = outputs.features[some].double() @ self.weight.to(outputs.device).double().T
        made = made if self.bias is None else made + self.bias.to(outputs.device).double()
        made, given = (_between_classes(x) for x in (made, outputs.logits[some].double()))
        if not given.any():
            return
        off = float((made - given).norm() / given.norm())
        differ = f"W z + b is off by {100 * off:.3g}% of the logits' size"
        # Subtract the mean row: heads of other models may have it too.
        made, given = (x - x.mean(0) for x in (made, given))
        if off > _ROUNDED and float((made * given).sum()) < _ALIKE * float(made.norm() * given.norm()):
            raise ValueError(
                f"`head` must give the logits from the features, W z + b; on these rows {differ}. Pass the weight and "
                "bias of the layer that made these logits, and the features that were its input."
            )
        half = torch.bfloat16 in (outputs.dtype, outputs.features.dtype, self.weight.dtype)
        if off > (2 * _CLOSE if half else _CLOSE):
            warn(
                f"`head` should give the logits from the features, but {differ}. Scores that use it are off too, "
                "unless the logits were scaled on purpose."
            )

    def to(self, device: torch.device | str) -> "Head":
        """Move to another device."""
        device = check_device(device)
        return Head(self.weight.to(device), None if self.bias is None else self.bias.to(device), self.name)

    def _tensors(self) -> dict[str, Tensor]:
        """The arrays that are not None, by name."""
        return {"weight": self.weight} | ({} if self.bias is None else {"bias": self.bias})

    def save(self, path: PathLike, *, model: str = "", overwrite: bool = False) -> None:
        """Write a `.safetensors` file with the fingerprint of its `model`, or a `.npz` file of the arrays alone."""
        if is_npz(path, "a head"):
            write_npz(path, self._tensors(), overwrite=overwrite)
        else:
            metadata = {"format": HEAD_FORMAT, "name": self.name, "model": model}
            write_safetensors(path, self._tensors(), metadata, overwrite=overwrite)

    @classmethod
    def load(cls, path: PathLike) -> "Head":
        """Read what `save` wrote, or any such file with `weight` and `bias`, or `head_weight` and `head_bias`."""
        head = read_head(path, required=True)
        assert head is not None
        return head

    def __repr__(self) -> str:
        bias = "" if self.bias is not None else ", no bias"
        return f"Head({self.name!r}, {self.num_classes} classes × {self.num_features} features{bias})"


def read_head(path: PathLike, *, required: bool = False) -> Head | None:
    """Read a head from its own file or from one with outputs; without a head, return None unless it is `required`."""
    as_npz = is_npz(path, "a head")
    tensors, metadata = ({}, {}) if as_npz else read_safetensors(path, foreign=True)
    names = array_names(path) if as_npz else set(tensors)
    weight, bias = (_WEIGHT, _BIAS) if _WEIGHT in names or "logits" in names else ("weight", "bias")
    if weight not in names and required:
        raise StoreError(
            f"'{path}' must hold `{weight}` (and `{bias}`) of the last layer; it has {listed_arrays(names)}. Rename "
            "the arrays, or pass them: `sirc.Head(weight, bias)`."
        )
    if weight not in names:
        return None
    arrays: Mapping[str, ArrayLike] = read_npz(path, (weight, bias)) if as_npz else tensors
    name = metadata.get("name", "") if metadata.get("format") == HEAD_FORMAT else ""
    return Head(arrays[weight], arrays.get(bias), name)


def _between_classes(logits: Tensor) -> Tensor:
    """Subtract the mean of each row; all zeros if the classes differ only by rounding."""
    centred = logits - logits.mean(-1, keepdim=True)
    return centred * (centred.abs().amax() > 1e-9 * logits.abs().amax())


def _least_norm(W: Tensor, b: Tensor, rtol: float) -> Tensor:
    """Compute W⁺ b, where singular values up to `rtol` times the largest count as zero.

    If all are far larger, a Cholesky factor of the smaller of WWᵀ and WᵀW is much quicker than a singular value
    decomposition. It squares the condition number; iterative refinement makes up for that.
    """
    wide = W.shape[0] <= W.shape[1]
    size = min(W.shape)
    gram = W.new_zeros(size, size)
    add_gram_(gram, W.T if wide else W)
    factor, failed = torch.linalg.cholesky_ex(gram, upper=True)
    # √2 times the norm of the upper triangle bounds the largest eigenvalue. A matrix that stays positive definite with
    # `least` taken from its diagonal has no eigenvalue below `least`.
    least = math.sqrt(2) * float(gram.triu().norm()) * max(1 / _WELL_CONDITIONED, rtol**2)
    gram.diagonal().sub_(least)
    measured = 0 < least < math.inf  # the squares of WWᵀ neither vanish nor overflow
    if not measured or int(failed) or int(torch.linalg.cholesky_ex(gram, upper=True).info):
        if W.device.type == "cpu":
            solution: Tensor = torch.linalg.lstsq(W, b[:, None], rcond=rtol, driver="gelsd").solution
            return solution[:, 0]
        pinv: Tensor = torch.linalg.pinv(W, rtol=rtol)
        return pinv @ b
    u = torch.zeros_like(W[0])
    for _ in range(3):
        left = b - W @ u if wide else W.T @ (b - W @ u)
        step = torch.cholesky_solve(left[:, None], factor, upper=True)[:, 0]
        u += W.T @ step if wide else step
    return u
