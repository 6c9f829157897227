"""Weights: fingerprint, save and load them, from any common checkpoint format."""

from __future__ import annotations

import hashlib
import json
import re
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from sirc._utils.arrays import bytes_of
from sirc._utils.files import PathLike, read_safetensors, require_file, write_safetensors
from sirc._utils.text import first_line
from sirc.errors import StoreError
from sirc.models.calling import unwrap

_PICKLED = (".pt", ".pth", ".bin", ".tar", ".ckpt")
_INSIDE = ("state_dict", "model_state_dict", "model", "module")  # where training scripts keep the state dict
_PREFIXES = ("module.", "model.")
_COMPILED = "_orig_mod."  # torch.compile puts it before the names inside it
# torchvision's published DenseNets still have the names of a time when module names could hold dots.
_OLD_DENSENET = re.compile(r"(.*\bdenselayer\d+\.(?:norm|conv))\.([12]\..*)")


def fingerprint(model: nn.Module) -> str:
    """Digest the weights, bit for bit, and the settings of every layer into 32 hexadecimal digits.

    A swapped activation changes the fingerprint; changed code does not. Wrappers, the device and the memory layout do
    not matter; the dtype does, since it changes the outputs.
    """
    inner = unwrap(model)
    digest = hashlib.sha256(_class_name(inner).encode())
    for name, module in inner.named_modules():
        if not hasattr(module, "_orig_mod"):  # the module inside torch.compile's wrapper counts, not the wrapper
            plain = name.replace(_COMPILED, "").removesuffix(_COMPILED[:-1]).removesuffix(".")
            description = re.sub(r"0x[0-9a-fA-F]+", "", module.extra_repr())
            digest.update(json.dumps([plain, type(module).__qualname__, description]).encode())
    for name, value in sorted(_state(inner).items()):
        if isinstance(value, Tensor):
            digest.update(json.dumps([name, str(value.dtype), list(value.shape)]).encode())
            digest.update(bytes_of(value))
        else:
            digest.update(json.dumps([name, repr(value)]).encode())
    return digest.hexdigest()[:32]


def save_weights(model: nn.Module, path: PathLike, *, overwrite: bool = False) -> None:
    """Write all weights and buffers to a `.safetensors` file; a tensor with several names is written under each."""
    inner = unwrap(model)
    state = _state(inner)
    if others := [name for name, value in state.items() if not isinstance(value, Tensor)]:
        raise ValueError(
            f"the state of a model must be tensors to be saved; {_listed(others)} of {_name(inner)} are not."
        )
    write_safetensors(path, state, {"format": "pt", "class": _class_name(inner)}, overwrite=overwrite)


def load_weights(model: nn.Module, path: PathLike) -> None:
    """Load weights in place from `.safetensors`, a PyTorch file that holds no code, or timm's `.npz` formats.

    The file must have exactly the model's weights, in the right shapes; otherwise the model stays as it was.
    """
    inner, path = unwrap(model), Path(path)
    require_file(path)
    if path.suffix.lower() == ".npz":
        _load_npz(inner, path)
        return
    expected = _state(inner)
    state = {name.replace(_COMPILED, ""): value for name, value in _read(path).items()}
    fitting = {name: state[source] for name, source in _names(state, expected).items()}
    for name, value in expected.items():
        if name.endswith("num_batches_tracked"):  # files from before PyTorch 0.4.1 have no such counters
            fitting.setdefault(name, value)
    _check(path, inner, expected, fitting)
    inner.load_state_dict({name: fitting[name.replace(_COMPILED, "")] for name in inner.state_dict()})


def _read(path: Path) -> Mapping[str, object]:
    if path.suffix.lower() == ".safetensors":
        return read_safetensors(path, foreign=True)[0]
    if path.suffix.lower() not in _PICKLED:
        known = ", ".join((".safetensors", *_PICKLED, ".npz"))
        raise ValueError(f"a checkpoint must be one of {known}; got '{path}'. Rename or convert it.")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # about failures, which the errors below describe
            content: object = torch.load(path, map_location="cpu", weights_only=True)
    except MemoryError:
        raise
    except Exception as error:  # reading damaged bytes may raise any, such as a `struct.error`
        needed = re.search(r"(?i)unsupported (?:(?:global: )?GLOBAL|class) (\S+)", str(error))
        if needed is None:
            # torch would advise to switch `weights_only` off, which runs code.
            why = "it holds what weights do not need" if "weights_only" in str(error) else first_line(error)
            raise StoreError(f"'{path}' is not a whole PyTorch file ({why}).") from error
        raise StoreError(
            f"'{path}' holds more than weights: reading it would run the code of `{needed[1]}`, so it is not read. "
            "If you trust it, load it yourself and save the weights alone: `torch.save(model.state_dict(), path)`."
        ) from error
    inside: object = content
    while isinstance(inside, Mapping):
        content = inside
        inside = next((content[key] for key in _INSIDE if isinstance(content.get(key), Mapping)), None)
    if not isinstance(content, Mapping) or not any(isinstance(value, Tensor) for value in content.values()):
        got = f"a dict of {_listed(list(content))}" if isinstance(content, Mapping) else type(content).__name__
        raise StoreError(f"'{path}' must hold a state dict: names and tensors; got {got}.")
    return {str(name): value for name, value in content.items()}


def _names(state: Mapping[str, object], expected: Mapping[str, object]) -> dict[str, str]:
    """Map the model's names to the file's; other names of the file map to themselves."""
    names = {name: name for name in state}
    while names and not names.keys() & expected.keys():
        prefix = next((prefix for prefix in _PREFIXES if all(name.startswith(prefix) for name in names)), None)
        if prefix is None:
            break
        names = {name.removeprefix(prefix): source for name, source in names.items()}
    for name in list(names):
        old = _OLD_DENSENET.fullmatch(name)
        if old and name not in expected and old[1] + old[2] in expected:
            names[old[1] + old[2]] = names.pop(name)
    return names


def _check(path: Path, model: nn.Module, expected: Mapping[str, object], state: Mapping[str, object]) -> None:
    """Refuse weights that do not fit; say which names differ, and guess the cause."""
    pairs = {name: (_shape(state[name]), _shape(value)) for name, value in expected.items() if name in state}
    shapes = {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
    differing = {
        "are missing": [name for name in expected if name not in state],
        "are unexpected": [name for name in state if name not in expected],
        "have other shapes": [f"{name} {theirs} instead of {ours}" for name, (theirs, ours) in shapes.items()],
    }
    parts = [f"{len(names)} {how}: {_listed(names)}" for how, names in differing.items() if names]
    if not parts:
        return
    classes = {(theirs[0], ours[0]) for theirs, ours in shapes.values() if theirs and ours and theirs[1:] == ours[1:]}
    hint = "Build the model that the file was saved from."
    if len(parts) == 1 and len(shapes) in (1, 2) and len(classes) == 1:
        theirs, ours = classes.pop()
        hint = f"It seems to have {theirs} classes, the model {ours}: pass `num_classes={theirs}`."
    raise StoreError(f"'{path}' does not fit {_name(model)}: {'; '.join(parts)}. {hint}")


def _load_npz(model: nn.Module, path: Path) -> None:
    """Let timm's model read its original format, and check that it read every weight.

    timm keeps the random initial values of weights that are not in the file, such as a head for other classes.
    """
    load = getattr(model, "load_pretrained", None)
    if not callable(load):
        raise ValueError(
            f"a `.npz` checkpoint must be for a timm model that reads this format, such as "
            f"`timm:resnetv2_101x1_bit`; got {_name(model)}. Convert it to `.safetensors`."
        )
    before = {name: value.clone() for name, value in model.state_dict().items()}
    weights = {name: value for name, value in model.named_parameters() if value.is_floating_point()}
    try:
        with torch.no_grad():
            for value in weights.values():
                value.fill_(torch.nan)
        _check_depth(model, path)
        load(str(path))
        unset = [name for name, value in weights.items() if value.isnan().any()]
        if unset:
            raise StoreError(
                f"'{path}' does not fill {_name(model)}: {len(unset)} weights are not in it: {_listed(unset)}. "
                "If these are the head's, build the model for as many classes as the file has, `num_classes=…`."
            )
    except BaseException as error:
        model.load_state_dict(before)
        if isinstance(error, StoreError) or not isinstance(error, Exception):
            raise
        raise StoreError(f"'{path}' does not fit {_name(model)}: {first_line(error)}.") from error


def _check_depth(model: nn.Module, path: Path) -> None:
    """Refuse the file of a deeper BiT: it has all weights of a shallower one, which would load without an error."""
    with open(path, "rb") as file:  # NumPy leaves it open when it fails
        names = np.load(file, allow_pickle=False).files
    units = {match[0] for name in names if (match := re.match(r"resnet/block\d+/unit\d+/", name))}
    blocks = sum(len(stage.blocks) for stage in getattr(model, "stages", ()) if hasattr(stage, "blocks"))
    if units and len(units) != blocks:
        raise StoreError(f"'{path}' has {len(units)} residual blocks, {_name(model)} {blocks}. Build the same depth.")


def _state(model: nn.Module) -> dict[str, Tensor]:
    """Get the state dict with the names that the model has when it is not compiled."""
    return {name.replace(_COMPILED, ""): value for name, value in model.state_dict().items()}


def _shape(value: object) -> tuple[int, ...] | None:
    return tuple(value.shape) if isinstance(value, Tensor) else None


def _class_name(model: nn.Module) -> str:
    return f"{type(model).__module__}.{type(model).__qualname__}"


def _name(model: nn.Module) -> str:
    return f"the {type(model).__name__}"


def _listed(names: Sequence[object]) -> str:
    shown = ", ".join(f"`{name}`" for name in names[:3])
    return f"{shown}, …" if len(names) > 3 else shown
