"""Model builders: any classifier by its name, from timm, torchvision or your own function."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, get_args

from torch import nn

from sirc._utils.checks import check_choice, check_positive
from sirc._utils.files import PathLike, read_json
from sirc._utils.imports import check_options, current_folder, import_function, needing
from sirc._utils.text import closest, first_line, listed, quoted, shorten
from sirc.data import Preprocess
from sirc.models.ensemble import Ensemble
from sirc.models.stems import Stem, halve_stem
from sirc.models.weights import fingerprint, load_weights

_Published: TypeAlias = tuple[int | None, str]  # of pretrained weights: the number of classes and the address
_AS_CHECKPOINT = "as `checkpoint=…` with `pretrained=False`"
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

    `pretrained=True` takes the library's default weights; a string names others: `"IMAGENET1K_V1"` (torchvision), or a
    tag such as `"a1_in1k"` (timm). `checkpoint` is a file of weights (see `load_weights`). With `stem="half"` the first
    layers reduce an image half as much, for images of about 64 px. `options` are passed to the builder. A function gets
    `num_classes` and `pretrained` if it takes them; its module may be in the current folder.
    """
    source, network = check_settings(name, num_classes, pretrained, checkpoint, stem)
    if source in ("timm", "torchvision"):
        find = _timm if source == "timm" else _torchvision
        model = _create(name, *find(network, pretrained), num_classes, dict(options or {}))
    else:
        model = _call_function(name, num_classes, pretrained, dict(options or {}))
    if stem == "half":
        halve_stem(model, name)
    if checkpoint is not None:
        load_weights(model, os.path.expanduser(os.path.expandvars(checkpoint)))
    return model


def named(text: str, num_classes: int | None = None) -> tuple[nn.Module, Preprocess | None]:
    """Build a network with weights from a text such as `timm:NAME`; return its preprocessing too, if that is known.

    `timm:NAME` and `torchvision:NAME` load their published weights; `…=FILE` loads a checkpoint for `num_classes`
    classes. A folder must hold a model in the format of timm and the Hub: config.json and weights. A
    `package.module:function` loads its weights itself, unless `=FILE` is given.
    """
    name, _, weights = text.partition("=")
    if Path(text).is_file():
        raise ValueError(f"a file of weights needs the name of its network, `timm:NAME={text}`; got the file alone.")
    if Path(text, "config.json").is_file():
        source, model = "timm", _from_folder(text)
    elif Path(text).is_dir():
        raise ValueError(f"a folder must hold a model, in config.json; '{text}' has none. Data come after the model.")
    elif (source := _split(name)[0]) not in ("timm", "torchvision") or weights:
        model = build(name, num_classes=num_classes, checkpoint=weights or None)
        if not weights and fingerprint(model) != fingerprint(build(name, num_classes=num_classes)):
            raise ValueError(
                f"a function must return a trained network; the weights of `{name}` are random, since each call gives "
                f"others. Let it load weights, or name their file, `{name}=FILE`."
            )
    else:
        try:
            model = build(name, pretrained=True)
        except ValueError as error:  # with advice for `build`
            raise ValueError(str(error).replace(_AS_CHECKPOINT, f"in the name, `{name}=FILE`")) from error
    if source == "torchvision":
        return model, preprocess_of(name)
    if source == "timm":
        with contextlib.suppress(ValueError):  # some do not take RGB images
            return model, preprocess_of(model)
    return model, None


def _from_folder(folder: str) -> nn.Module:
    """Load a folder in the format of timm and the Hub; the timm versions that we allow run no code from a pickle."""
    config = Path(folder, "config.json")
    if "architecture" not in read_json(config):
        raise ValueError(
            f"'{config}' must name an `architecture`, as timm's files do; it does not. Load the model in a function of "
            "your own, and name that: `package.module:function`."
        )
    try:
        return build(f"timm:local-dir:{folder}", pretrained=True)
    except ValueError as error:  # with advice for published weights
        cause = error.__cause__ or error
        why = f"timm cannot load it ({first_line(cause).rstrip('.')})"
        if "weights_only" in str(cause):  # torch would advise to switch that off
            why = "its weights are a pickle that holds more than weights; it is not read, as reading it would run code"
        raise ValueError(
            f"'{folder}' must hold config.json and weights, in the format of timm and the Hub; {why}. Repair the "
            "folder, or name the network and a file of weights: `timm:NAME=FILE`."
        ) from error


def check_settings(
    name: str, num_classes: int | None, pretrained: bool | str, checkpoint: PathLike | None, stem: Stem
) -> tuple[str, str]:
    """Refuse settings that contradict each other; return the two parts of the model's name."""
    check_choice("stem", stem, get_args(Stem))
    if num_classes is not None:
        check_positive("num_classes", num_classes)
    if pretrained == "":
        raise ValueError("`pretrained` must be true, false or the name of weights; got an empty string.")
    if pretrained and checkpoint is not None:
        raise ValueError(f"`checkpoint` must be left out if `pretrained` is given; got {quoted(pretrained)}. Drop one.")
    if pretrained and stem != "own":
        raise ValueError(
            f'`stem` must be "own" if `pretrained` is given, since the weights are for that stem; got "{stem}". '
            "Train the network, or pass a `checkpoint` that was trained with this stem."
        )
    return _split(name)


def preprocess_of(model: str | nn.Module, pretrained: bool | str = True) -> Preprocess:
    """Get the published preprocessing of a model: by its name in timm or torchvision, or of one that timm made."""
    if isinstance(model, Ensemble):
        return shared_preprocess([preprocess_of(member) for member in model.members])
    if isinstance(model, nn.Module):
        config = getattr(model, "pretrained_cfg", None)
        if not isinstance(config, dict):
            raise ValueError(
                f"only models made by timm record their preprocessing; {type(model).__name__} does not. Pass its name, "
                '`preprocess_of("torchvision:resnet50")`, or write a `Preprocess`.'
            )
        kernel = model.state_dict().get(f"{config.get('first_conv')}.weight")
        channels, *sides = config.get("input_size", (3,))
        # `in_chans` changes the model and not the published size; but some first layers read several pixels as one.
        if kernel is not None and kernel.ndim == 4 and kernel.shape[1] % channels:
            config = {**config, "input_size": (kernel.shape[1], *sides)}
        return _timm_preprocess(config.get("architecture", type(model).__name__), config)
    source, network = _split(model)
    if source == "timm":
        timm = _library("timm")
        network = _timm_name(timm, network, pretrained)
        return _timm_preprocess(network, timm.get_pretrained_cfg(network).to_dict())
    if source != "torchvision":
        raise ValueError(
            f"only timm and torchvision publish a preprocessing; got `{shorten(model)}`. Write a `Preprocess`."
        )
    published = _torchvision_weights(network, pretrained or True).transforms()
    if not all(hasattr(published, key) for key in ("resize_size", "crop_size", "interpolation", "mean", "std")):
        raise ValueError(f"`{model}` must be an image classifier; its preprocessing is a {type(published).__name__}.")
    resize, (crop,) = published.resize_size, published.crop_size
    return Preprocess(
        resize=resize[0] if len(resize) == 1 else tuple(resize),
        crop=crop,
        interpolation=published.interpolation.value,
        mean=tuple(published.mean),
        std=tuple(published.std),
    )


def shared_preprocess(published: Sequence[Preprocess], changes: Mapping[str, Any] | None = None) -> Preprocess:
    """Get the preprocessing that all members of an ensemble share once `changes` are made to each."""
    try:
        first, *others = (replace(one, **(changes or {})) for one in published)
    except TypeError as error:
        raise ValueError(f"`preprocess` must have fields of `sirc.data.Preprocess`: {error}") from error
    ours, *theirs = map(asdict, (first, *others))
    if differing := [name for name in ours if any(one[name] != ours[name] for one in theirs)]:
        choice = ", ".join(f"{name!r}: …" for name in differing)
        raise ValueError(
            "the members of an ensemble must share one preprocessing; the published ones differ in "
            f"{listed(differing)}. Choose for all of them: `preprocess={{{choice}}}`"
        )
    return first


def _split(name: str) -> tuple[str, str]:
    source, colon, rest = name.partition(":") if isinstance(name, str) else ("", "", "")
    if not (source and colon and rest):
        known = str(name).strip(":") or "resnet50"
        raise ValueError(
            f"`name` must be {_FORMS}; got {quoted(name)}. Say which library has it: `timm:{shorten(known)}` or "
            f"`torchvision:{shorten(known)}`."
        )
    return source, rest


def _timm(network: str, pretrained: bool | str) -> tuple[Callable[..., nn.Module], _Published | None]:
    """Get the function that builds timm's network, and its published weights."""
    timm = _library("timm")
    published: _Published = None, network
    if ":" not in network:  # timm finds hf-hub:… and local-dir:… itself
        network = _timm_name(timm, network, pretrained)
        if config := timm.get_pretrained_cfg(network, allow_unregistered=True):
            hub = config.hf_hub_id
            published = config.num_classes, f"https://huggingface.co/{hub}" if hub else config.url
    create = partial(timm.create_model, network, pretrained=bool(pretrained))
    return create, published if pretrained else None


def _timm_name(timm: Any, name: str, pretrained: bool | str) -> str:
    base, _, tag = name.partition(".")
    if not timm.is_model(base):
        raise ValueError(f"timm has no model `{shorten(base)}`.{closest(base, timm.list_models())}")
    if isinstance(pretrained, str):
        if tag and tag != pretrained:
            raise ValueError(
                f"`pretrained` must be true or the tag in the name, `{shorten(tag)}`; got `{shorten(pretrained)}`."
            )
        tag = pretrained
    tags = [other.partition(".")[2] for other in timm.list_pretrained(f"{base}.*")]
    if (tag and tag not in tags) or (pretrained and not tags):
        raise _unknown_weights(f"timm's `{base}`", tags, tag or "true")
    return f"{base}.{tag}" if tag else base


def _timm_preprocess(name: str, published: Mapping[str, Any]) -> Preprocess:
    config = _library("timm").data.resolve_data_config(pretrained_cfg=published)
    channels, height, width = config["input_size"]
    if channels != 3:
        raise ValueError(
            f"images are read as RGB, so the network must take 3 channels; `timm:{name}` takes {channels}. Pass a "
            "dataset or a loader that prepares its own inputs."
        )
    if height != width or config["crop_mode"] == "border" or config["interpolation"] == "random":
        raise ValueError(f"`timm:{name}` has a preprocessing that `Preprocess` cannot express: {config}.")
    side = int(height / config["crop_pct"])
    return Preprocess(
        resize=(side, side) if config["crop_mode"] == "squash" else side,
        crop=height,
        interpolation=config["interpolation"],
        mean=tuple(config["mean"]),
        std=tuple(config["std"]),
    )


def _torchvision(network: str, pretrained: bool | str) -> tuple[Callable[..., nn.Module], _Published | None]:
    """Get the function that builds torchvision's network, and its published weights."""
    weights = _torchvision_weights(network, pretrained)
    published = weights and (len(weights.meta.get("categories", ())) or None, weights.url)
    return partial(_library("torchvision").models.get_model, network, weights=weights), published


def _torchvision_weights(network: str, pretrained: bool | str) -> Any:
    """Get torchvision's weights of a network, or None if `pretrained` is false."""
    models = _library("torchvision").models
    if network.lower() not in (known := models.list_models()):
        raise ValueError(f"torchvision has no model `{shorten(network)}`.{closest(network, known)}")
    if not pretrained:
        return None
    weights = models.get_model_weights(network)
    wanted = "DEFAULT" if pretrained is True else pretrained
    if wanted not in weights.__members__:
        raise _unknown_weights(f"torchvision's `{network}`", list(weights.__members__), wanted)
    return weights[wanted]


def _unknown_weights(network: str, known: Sequence[str], wanted: str) -> ValueError:
    names = ", ".join(known) or "none"
    return ValueError(f"{network} has the weights {names}; got `{wanted}`.{closest(wanted, known)}")


def _call_function(name: str, num_classes: int | None, pretrained: bool | str, options: dict[str, object]) -> nn.Module:
    function = import_function(name, _FORMS)
    signature = inspect.signature(function)
    keywords = any(parameter.kind is parameter.VAR_KEYWORD for parameter in signature.parameters.values())
    if pretrained and not (keywords or "pretrained" in signature.parameters):
        raise ValueError(f"`pretrained` must be false for `{name}`, which does not take it. Pass `checkpoint=…`.")
    for key, value in (("num_classes", num_classes), ("pretrained", pretrained or None)):
        if value is not None and (keywords or key in signature.parameters):
            options = {key: value, **options}
    check_options(name, function, options)
    with current_folder():
        model = function(**options)
    if not isinstance(model, nn.Module):
        raise ValueError(f"`{name}` must return a torch.nn.Module; got a {type(model).__name__}.")
    return model


def _create(
    name: str,
    create: Callable[..., nn.Module],
    published: _Published | None,
    num_classes: int | None,
    options: dict[str, object],
) -> nn.Module:
    """Build a library's model: run no code from files, print nothing to stdout, explain failures."""
    if num_classes is not None:
        options = {"num_classes": num_classes, **options}
        if published and published[0] not in (None, num_classes):
            raise ValueError(
                f"`num_classes` must be {published[0]}, as in the pretrained weights of `{name}`; got "
                f"{num_classes}, whose head would be random. Leave `num_classes` out. To train such a head, build the "
                "model in a function of your own and name that: `package.module:function`."
            )
    key = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
    before = os.environ.get(key)
    os.environ[key] = "1"
    try:
        with contextlib.redirect_stdout(sys.stderr):  # torch.hub prints where it downloads to
            return create(**options)
    except TypeError as error:
        raise ValueError(f"`options` must be what `{name}` takes: {error}.") from error
    except Exception as error:
        if published is None and not isinstance(error, RuntimeError):
            raise
        reason = first_line(error).rstrip(".")
        if published is None:
            raise ValueError(f"`{name}` cannot be built with these `options`: {reason}.") from error
        raise ValueError(
            f"the pretrained weights of `{name}` could not be loaded: {reason}. Without a network connection, fetch "
            f"them elsewhere ({published[1]}) and pass the file {_AS_CHECKPOINT}."
        ) from error
    finally:
        os.environ.pop(key, None)  # another thread may have removed it
        if before is not None:
            os.environ[key] = before


def _library(package: str) -> Any:
    with needing(f"a model of {package}", package):
        return importlib.import_module(package)
