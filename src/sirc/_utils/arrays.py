"""Arrays: conversion from any framework to torch, without a copy if the memory layout allows it; sorting, xᵀx."""

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

_COLUMNS = 256  # of a block of xᵀx


class SupportsDLPack(Protocol):
    """An array that can share its memory through DLPack: JAX, CuPy, TensorFlow, MLX."""

    def __dlpack__(self, *, stream: Any = None) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...


ArrayLike: TypeAlias = Tensor | npt.ArrayLike | SupportsDLPack
Floats: TypeAlias = npt.NDArray[np.float64]


def as_tensor(name: str, value: object) -> Tensor:
    """`value` as a detached tensor that shares its memory; errors call it `name`.

    Only what torch cannot express is copied: negative strides, foreign byte order, Python lists. The tensor of a
    read-only array shares its memory too, so callers must not write to the result.
    """
    if isinstance(value, Tensor):
        if value.layout is not torch.strided:
            raise ValueError(f"`{name}` must be a dense tensor; got {value.layout}. Use `{name}.to_dense()`.")
        if value.is_meta:
            raise ValueError(f"`{name}` must hold numbers; got a tensor on the meta device, which has none.")
        return value.detach()
    if isinstance(value, np.ndarray):
        return _from_numpy(name, value, type(value).__name__)
    if hasattr(value, "__dlpack__"):
        try:
            return torch.utils.dlpack.from_dlpack(value)
        except Exception as error:
            # The other framework refuses read-only memory, or a device that torch does not know.
            if not hasattr(value, "__array__"):
                raise ValueError(
                    f"`{name}` could not be read through DLPack: {error}. Convert it to a NumPy array first."
                ) from error
    if isinstance(value, Sequence) and len(value) > 0 and all(isinstance(row, Tensor) for row in value):
        try:
            return torch.stack([row.detach() for row in value])
        except RuntimeError as error:
            raise ValueError(
                f"`{name}` must be one array; got a list of tensors that do not stack: {error}. "
                "Give every row the same shape and device."
            ) from error
    try:
        array = np.asarray(value)
    except Exception as error:
        raise ValueError(
            f"`{name}` must be an array of numbers; got {type(value).__name__}, which NumPy cannot read: {error}. "
            "Give every row the same length."
        ) from error
    return _from_numpy(name, array, type(value).__name__)


def bytes_of(tensor: Tensor) -> memoryview:
    """The memory of a tensor, without a copy if it is contiguous and on the CPU."""
    array: npt.NDArray[np.uint8] = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return array.data


def row_index(key: int | slice | ArrayLike, n: int, device: torch.device) -> slice | Tensor:
    """Turn a key for `n` rows into a slice, which selects a view, or into a mask or an index on `device`."""
    if isinstance(key, slice):
        start, stop, step = key.indices(n)
        return key if step > 0 else torch.tensor(range(start, stop, step), dtype=torch.int64, device=device)
    index = as_tensor("index", key)
    if index.dtype == torch.bool:
        if index.shape != (n,):
            raise IndexError(f"a mask must have shape ({n},), one value per row; got {tuple(index.shape)}.")
        return index.to(device)
    whole = not (index.is_floating_point() or index.is_complex()) or index.numel() == 0
    if index.ndim > 1 or not whole:
        raise IndexError(
            "rows must be chosen by an int, a slice, a mask or a 1-D integer index; "
            f"got {index.dtype} of shape {tuple(index.shape)}. For columns, index `.logits`."
        )
    index = index.to(torch.int64).reshape(-1)
    # A bad index on a GPU would make the device unusable for this process.
    wrong = (index < -n) | (index >= n)
    if wrong.any():
        raise IndexError(f"rows must be in 0…{n - 1}; got {int(index[wrong][0])}.")
    if isinstance(key, int):
        row = int(index) % n
        return slice(row, row + 1)
    return index.to(device)


def ascending_order(values: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """The order that sorts floats without NaN, faster than `np.argsort`.

    Floats compare like their bits read as integers. The last bits of each integer are replaced by the index of the
    float, so that sorting the integers sorts the indices too.
    """
    n = len(values)
    places = (1 << n.bit_length()) - 1
    keys = values.astype(np.float64).view(np.int64)
    keys ^= (keys >> 63) & np.iinfo(np.int64).max  # negative floats compare in reverse
    keys &= ~places
    keys |= np.arange(n)
    keys.sort()
    keys &= places
    found = values[keys]
    if (found[1:] < found[:-1]).any():  # some differ only in the replaced bits
        keys = keys[np.argsort(found, kind="stable")]
    return keys


def counts_from_above(groups: Sequence[npt.NDArray[Any]]) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
    """The distinct values of all groups, the highest first, and how many of each group are at least that."""
    values = np.concatenate(groups)
    order = ascending_order(-values)
    values = values[order]
    last = np.append(values[1:] != values[:-1], True)
    group_of = np.repeat(np.arange(len(groups)), [len(group) for group in groups])[order]
    counts = [(group_of == number).cumsum(dtype=np.int64)[last] for number in range(len(groups))]
    return values[last], np.stack(counts)


def add_gram_(total: Tensor, x: Tensor) -> None:
    """Add xᵀx to the upper triangle of `total`. What is below the diagonal is meaningless: symmetry halves the work."""
    for start in range(0, x.shape[1], _COLUMNS):
        stop = start + _COLUMNS
        total[start:stop, start:].addmm_(x[:, start:stop].T, x[:, start:])


def _from_numpy(name: str, array: npt.NDArray[Any], kind: str) -> Tensor:
    if isinstance(array, np.ma.MaskedArray) and (masked := int(np.sum(array.mask))):
        raise ValueError(f"`{name}` must have no masked values; got {masked}. Drop those rows first.")
    if array.dtype.name == "bfloat16":  # of ml_dtypes, which torch.from_numpy does not know
        return _from_numpy(name, array.view(np.int16), kind).view(torch.bfloat16)
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if any(stride < 0 or stride % array.itemsize for stride in array.strides):
        array = np.ascontiguousarray(array)
    if not array.flags.writeable:
        array = np.asarray(_Unlocked(array))
    try:
        return torch.from_numpy(array)
    except TypeError as error:
        raise ValueError(
            f"`{name}` must be an array of numbers torch can hold; got {kind} of dtype {array.dtype}. "
            "Convert it, for example with `.astype('float32')`."
        ) from error


class _Unlocked:
    """A writable alias of a read-only array: torch warns about read-only memory, and we never write to it."""

    def __init__(self, array: npt.NDArray[Any]) -> None:
        self.owner = array  # keeps the memory alive
        address, _ = array.__array_interface__["data"]
        self.__array_interface__ = array.__array_interface__ | {"data": (address, False)}
