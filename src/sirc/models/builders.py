"""Any classifier by its name: timm's, torchvision's or a function of your own, with its weights."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from sirc._utils.checks import check_positive
from sirc._utils.files import PathLike
from sirc._utils.hints import closest
from sirc._utils.imports import current_folder
from sirc.data import Preprocess
from sirc.models.stems import STEMS, Stem, halve_stem
from sirc.models.weights import fingerprint, load_weights, save_weights

__all__ = ["build", "fingerprint", "load_weights", "preprocess_of", "save_weights"]

_FORMS = "`timm:NAME`, `torchvision:NAME` or `package.module:function`"


def build(
    name: str,
    *,
    num_classes: int | None = None,
    pretrained: bool | str = False,
    checkpoint: PathLike | None = None,
    stem: Stem = "own",
    options: Mapping[str, object] | None = None,
) -> nn.Module:
    """Build a classifier from `timm:NAME`, `torchvision:NAME` or `package.module:function`.

    `pretrained=True` takes the library's default weights, a string names others: `"IMAGENET1K_V1"` (torchvision), a tag
    such as `"a1_in1k"` (timm). `checkpoint` is a file of weights instead (see `load_weights`). `stem="half"` lets the
    first layers reduce an image half as much, for images of about 64 px. `options` go to the builder. A function gets
    `num_classes` and `pretrained` where it takes them, and is looked for in the current folder too.
    """
    source, _, rest = _split(name)
    if stem not in STEMS:
        raise ValueError(f'`stem` must be "own" or "half"; got {stem!r}.')
    if pretrained and stem != "own":
        raise ValueError(
            f'`stem` must be "own" where `pretrained` is given, as the weights are for that; got "{stem}". Train the '
            "network, or give a `checkpoint` of one that was trained so."
        )
    if pretrained and checkpoint is not None:
        raise ValueError(f"give one of `pretrained` and `checkpoint`; got {pretrained!r} and '{checkpoint}'.")
    if num_classes is not None:
        num_classes = check_positive("num_classes", num_classes)
    make = {"timm": _timm, "torchvision": _torchvision}.get(source)
    arguments = dict(options or {})
    model = (
        make(rest, num_classes, pretrained, arguments) if make else _function(name, num_classes, pretrained, arguments)
    )
    if stem == "half":
        halve_stem(model, name)
    if checkpoint is not None:
        load_weights(model, os.path.expanduser(os.path.expandvars(checkpoint)))
    return model


def preprocess_of(name: str, pretrained: bool | str = True) -> Preprocess:
    """Give the preprocessing that a pretrained model of timm or torchvision was published with."""
    source, _, rest = _split(name)
    if source == "timm":
        return _timm_preprocess(rest, pretrained)
    if source != "torchvision":
        raise ValueError(f"only timm and torchvision say how images are prepared; got `{name}`. Write a `Preprocess`.")
    weights = _torchvision_weights(rest, pretrained or True)
    given = weights.transforms()
    if not all(hasattr(given, key) for key in ("resize_size", "crop_size", "interpolation", "mean", "std")):
        raise ValueError(f"`{name}` must be an image classifier; its preprocessing is a {type(given).__name__}.")
    resize, (crop,) = given.resize_size, given.crop_size
    return Preprocess(
        resize=resize[0] if len(resize) == 1 else tuple(resize),
        crop=crop,
        interpolation=given.interpolation.value,
        mean=tuple(given.mean),
        std=tuple(given.std),
    )


def _split(name: str) -> tuple[str, str, str]:
    source, colon, rest = name.partition(":") if isinstance(name, str) else ("", "", "")
    if not (source and colon and rest):
        near = ""
        with contextlib.suppress(ImportError):
            near = closest(str(name), _library("torchvision", name).models.list_models())
        raise ValueError(f"a model's `name` must be {_FORMS}; got {name!r}.{near.replace('`', '`torchvision:', 1)}")
    return source, colon, rest


def _timm(name: str, num_classes: int | None, pretrained: bool | str, options: dict[str, object]) -> nn.Module:
    timm = _library("timm", f"timm:{name}")
    url = ""
    if ":" not in name:  # hf-hub:… and local-dir:… are timm's to find
        name = _timm_name(timm, name, pretrained)
        known = timm.get_pretrained_cfg(name, allow_unregistered=True)
        if pretrained and known:
            _check_classes(f"timm:{name}", num_classes, known.num_classes)
            url = f"https://huggingface.co/{known.hf_hub_id}" if known.hf_hub_id else known.url
    if num_classes is not None:
        options = {"num_classes": num_classes, **options}
    with _fetching(f"timm:{name}", pretrained, url):
        model: nn.Module = timm.create_model(name, pretrained=bool(pretrained), **options)
    return model


def _timm_name(timm: Any, name: str, pretrained: bool | str) -> str:
    base, _, tag = name.partition(".")
    if not timm.is_model(base):
        raise ValueError(f"timm has no model `{base}`.{closest(base, timm.list_models())}")
    if isinstance(pretrained, str):
        if tag and tag != pretrained:
            raise ValueError(f"`pretrained` must be true or the tag in the name, `{tag}`; got `{pretrained}`.")
        tag = pretrained
    tags = [other.partition(".")[2] for other in timm.list_pretrained(f"{base}.*")]
    if tag and tag not in tags:
        listed = f"has {', '.join(tags)}" if tags else "has none"
        raise ValueError(f"timm has no weights `{tag}` for `{base}`; it {listed}.{closest(tag, tags)}")
    if pretrained and not tags:
        raise ValueError(f"timm has no weights for `{base}`. Pass `checkpoint=`, or another model.")
    return f"{base}.{tag}" if tag else base


def _timm_preprocess(name: str, pretrained: bool | str) -> Preprocess:
    timm = _library("timm", f"timm:{name}")
    name = _timm_name(timm, name, pretrained)
    config = timm.data.resolve_data_config(pretrained_cfg=timm.get_pretrained_cfg(name).to_dict())
    _, height, width = config["input_size"]
    if height != width or config["crop_mode"] == "border" or config["interpolation"] == "random":
        raise ValueError(f"`timm:{name}` is prepared in a way that `Preprocess` does not know: {config}.")
    side = int(height / config["crop_pct"])
    return Preprocess(
        resize=(side, side) if config["crop_mode"] == "squash" else side,
        crop=height,
        interpolation=config["interpolation"],
        mean=tuple(config["mean"]),
        std=tuple(config["std"]),
    )


def _torchvision(name: str, num_classes: int | None, pretrained: bool | str, options: dict[str, object]) -> nn.Module:
    torchvision = _library("torchvision", f"torchvision:{name}")
    _check_torchvision(torchvision, name)
    weights = _torchvision_weights(name, pretrained) if pretrained else None
    if weights is not None:
        _check_classes(f"torchvision:{name}", num_classes, len(weights.meta.get("categories", ())) or None)
    if num_classes is not None:
        options = {"num_classes": num_classes, **options}
    with _fetching(f"torchvision:{name}", weights.name if weights else False, weights.url if weights else ""):
        model: nn.Module = torchvision.models.get_model(name, weights=weights, **options)
    return model


def _check_torchvision(torchvision: Any, name: str) -> None:
    known = torchvision.models.list_models()
    if name.lower() not in known:
        raise ValueError(f"torchvision has no model `{name}`.{closest(name, known)}")


def _torchvision_weights(name: str, pretrained: bool | str) -> Any:
    torchvision = _library("torchvision", f"torchvision:{name}")
    _check_torchvision(torchvision, name)
    known = torchvision.models.get_model_weights(name)
    wanted = "DEFAULT" if pretrained is True else str(pretrained)
    if wanted not in known.__members__:
        listed = ", ".join(known.__members__) or "none"
        raise ValueError(f"torchvision's `{name}` has the weights {listed}; got `{wanted}`.")
    return known[wanted]


def _check_classes(name: str, num_classes: int | None, theirs: int | None) -> None:
    if num_classes is not None and theirs is not None and num_classes != theirs:
        raise ValueError(
            f"`num_classes` must be {theirs}, as in the pretrained weights of `{name}`; got {num_classes}, whose head "
            "would be random. Leave `num_classes` out, or, to train such a head, build the model in a function of your "
            "own and name that: `package.module:function`."
        )


def _function(name: str, num_classes: int | None, pretrained: bool | str, options: dict[str, object]) -> nn.Module:
    module_name, _, path = name.partition(":")
    with current_folder():
        try:
            function: Any = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            if error.name and (module_name == error.name or module_name.startswith(f"{error.name}.")):
                near = closest(module_name, ("timm", "torchvision"))
                raise ValueError(
                    f"`{name}` must be {_FORMS}; no module `{error.name}` is installed or in '{Path.cwd()}'.{near}"
                ) from error
            raise
        for part in path.split("."):
            if not hasattr(function, part):
                public = [other for other in vars(function) if not other.startswith("_")]
                raise ValueError(f"`{module_name}` has no `{path}`.{closest(part, public)}")
            function = getattr(function, part)
        if not callable(function):
            raise ValueError(f"`{name}` must be a function that returns a model; got a {type(function).__name__}.")
        taken = inspect.signature(function).parameters.values()
        for key, value in (("num_classes", num_classes), ("pretrained", pretrained or None)):
            if value is not None and any(p.name == key or p.kind is p.VAR_KEYWORD for p in taken):
                options = {key: value, **options}
            elif key == "pretrained" and value:
                raise ValueError(
                    f"`pretrained` must be false for `{name}`, which does not take it. Pass `checkpoint=`."
                )
        try:
            inspect.signature(function).bind(**options)
        except TypeError as error:
            raise ValueError(f"`options` must be what `{name}{inspect.signature(function)}` takes: {error}.") from error
        model = function(**options)
    if not isinstance(model, nn.Module):
        raise ValueError(f"`{name}` must return a torch.nn.Module; got a {type(model).__name__}.")
    return model


@contextlib.contextmanager
def _fetching(name: str, pretrained: bool | str, url: str = "") -> Iterator[None]:
    """Build a library's model: no code out of files, nothing on stdout, failures in words."""
    key = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
    before = os.environ.get(key)
    os.environ[key] = "1"
    try:
        with contextlib.redirect_stdout(sys.stderr):  # torch.hub prints where it downloads to
            yield
    except TypeError as error:
        raise ValueError(f"`options` must be what `{name}` takes: {error}.") from error
    except Exception as error:
        if not pretrained:
            raise
        reason = str(error).splitlines()[0].rstrip(".") if str(error) else repr(error)
        raise ValueError(
            f"the pretrained weights of `{name}` could not be had: {reason}. Where there is no network, fetch "
            f"them elsewhere{f' ({url})' if url else ''} and pass the file as `checkpoint=` with `pretrained=False`."
        ) from error
    finally:
        if before is None:
            del os.environ[key]
        else:
            os.environ[key] = before


def _library(package: str, name: object) -> Any:
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        raise ImportError(f"`{name}` needs {package}: pip install 'sirc[vision]'") from error
