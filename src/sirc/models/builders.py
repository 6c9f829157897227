"""Model builders: any classifier by its name, from timm, torchvision or your own function."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import os
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn

from sirc._utils.checks import check_positive
from sirc._utils.files import PathLike
from sirc._utils.hints import closest
from sirc._utils.imports import current_folder, import_function, missing_package
from sirc.data import Preprocess
from sirc.models.stems import STEMS, Stem, halve_stem
from sirc.models.weights import load_weights

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
    first layers reduce an image half as much, for images of about 64 px. `options` are passed to the builder. A
    function gets `num_classes` and `pretrained` if it takes them, and may be in a module in the current folder.
    """
    source, rest = _split(name)
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
    builders = {"timm": _build_timm, "torchvision": _build_torchvision}
    model = builders.get(source, _call_function)(
        rest if source in builders else name, num_classes, pretrained, dict(options or {})
    )
    if stem == "half":
        halve_stem(model, name)
    if checkpoint is not None:
        load_weights(model, os.path.expanduser(os.path.expandvars(checkpoint)))
    return model


def preprocess_of(name: str, pretrained: bool | str = True) -> Preprocess:
    """Get the preprocessing that a pretrained model of timm or torchvision was published with."""
    source, rest = _split(name)
    if source == "timm":
        return _timm_preprocess(rest, pretrained)
    if source != "torchvision":
        raise ValueError(f"only timm and torchvision say how images are prepared; got `{name}`. Write a `Preprocess`.")
    weights = _torchvision_weights(rest, pretrained or True)
    published = weights.transforms()
    if not all(hasattr(published, key) for key in ("resize_size", "crop_size", "interpolation", "mean", "std")):
        raise ValueError(f"`{name}` must be an image classifier; its preprocessing is a {type(published).__name__}.")
    resize, (crop,) = published.resize_size, published.crop_size
    return Preprocess(
        resize=resize[0] if len(resize) == 1 else tuple(resize),
        crop=crop,
        interpolation=published.interpolation.value,
        mean=tuple(published.mean),
        std=tuple(published.std),
    )


def _split(name: str) -> tuple[str, str]:
    source, colon, rest = name.partition(":") if isinstance(name, str) else ("", "", "")
    if not (source and colon and rest):
        known: list[str] = []
        with contextlib.suppress(ImportError):
            known = _library("torchvision", name).models.list_models()
        hint = closest(str(name), known).replace("`", "`torchvision:", 1)
        raise ValueError(f"a model's `name` must be {_FORMS}; got {name!r}.{hint}")
    return source, rest


def _build_timm(name: str, num_classes: int | None, pretrained: bool | str, options: dict[str, object]) -> nn.Module:
    timm = _library("timm", f"timm:{name}")
    url = ""
    if ":" not in name:  # hf-hub:… and local-dir:… are timm's to find
        name = _timm_name(timm, name, pretrained)
        config = timm.get_pretrained_cfg(name, allow_unregistered=True)
        if pretrained and config:
            _check_classes(f"timm:{name}", num_classes, config.num_classes)
            url = f"https://huggingface.co/{config.hf_hub_id}" if config.hf_hub_id else config.url
    if num_classes is not None:
        options = {"num_classes": num_classes, **options}
    with _library_errors(f"timm:{name}", pretrained, url):
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


def _build_torchvision(
    name: str, num_classes: int | None, pretrained: bool | str, options: dict[str, object]
) -> nn.Module:
    torchvision = _torchvision_with(name)
    weights = _torchvision_weights(name, pretrained) if pretrained else None
    if weights is not None:
        _check_classes(f"torchvision:{name}", num_classes, len(weights.meta.get("categories", ())) or None)
    if num_classes is not None:
        options = {"num_classes": num_classes, **options}
    with _library_errors(f"torchvision:{name}", weights.name if weights else False, weights.url if weights else ""):
        model: nn.Module = torchvision.models.get_model(name, weights=weights, **options)
    return model


def _torchvision_with(name: str) -> Any:
    """Import torchvision and check that it has this model."""
    torchvision = _library("torchvision", f"torchvision:{name}")
    known = torchvision.models.list_models()
    if name.lower() not in known:
        raise ValueError(f"torchvision has no model `{name}`.{closest(name, known)}")
    return torchvision


def _torchvision_weights(name: str, pretrained: bool | str) -> Any:
    known = _torchvision_with(name).models.get_model_weights(name)
    wanted = "DEFAULT" if pretrained is True else str(pretrained)
    if wanted not in known.__members__:
        listed = ", ".join(known.__members__) or "none"
        raise ValueError(f"torchvision's `{name}` has the weights {listed}; got `{wanted}`.")
    return known[wanted]


def _check_classes(name: str, num_classes: int | None, pretrained_classes: int | None) -> None:
    if num_classes is not None and pretrained_classes is not None and num_classes != pretrained_classes:
        raise ValueError(
            f"`num_classes` must be {pretrained_classes}, as in the pretrained weights of `{name}`; got {num_classes}, "
            "whose head would be random. Leave `num_classes` out, or, to train such a head, build the model in a "
            "function of your own and name that: `package.module:function`."
        )


def _call_function(name: str, num_classes: int | None, pretrained: bool | str, options: dict[str, object]) -> nn.Module:
    function = import_function(name, _FORMS)
    signature = inspect.signature(function)
    keywords = any(parameter.kind is parameter.VAR_KEYWORD for parameter in signature.parameters.values())
    if pretrained and not (keywords or "pretrained" in signature.parameters):
        raise ValueError(f"`pretrained` must be false for `{name}`, which does not take it. Pass `checkpoint=`.")
    for key, value in (("num_classes", num_classes), ("pretrained", pretrained or None)):
        if value is not None and (keywords or key in signature.parameters):
            options = {key: value, **options}
    try:
        signature.bind(**options)
    except TypeError as error:
        raise ValueError(f"`options` must be what `{name}{signature}` takes: {error}.") from error
    with current_folder():
        model = function(**options)
    if not isinstance(model, nn.Module):
        raise ValueError(f"`{name}` must return a torch.nn.Module; got a {type(model).__name__}.")
    return model


@contextlib.contextmanager
def _library_errors(name: str, pretrained: bool | str, url: str = "") -> Iterator[None]:
    """Build a library's model safely: run no code from files, print nothing on stdout, explain failures."""
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
        raise missing_package(f"`{name}`", package) from error
