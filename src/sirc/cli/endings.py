"""Endings of commands that fail or are stopped: what is kept, and errors in terms of the options at hand."""

from __future__ import annotations

import functools
import re
import typing
from collections.abc import Callable, Mapping
from typing import Any

import typer
from typer.models import OptionInfo

from sirc._utils.text import quoted
from sirc.cli.console import say, telling_warnings
from sirc.cli.options import has_begun
from sirc.errors import ConfigError

INTERRUPTED = 130
_STOPPED = {
    **dict.fromkeys(
        ("train", "extract", "run", "demo", "predict", "guard", "calibrate", "noise", "colonoscopy"),
        "what was finished is kept, and the same command goes on from there",
    ),
    "fit": "the scores of finished seeds are kept, and the same command fits the others",
    "evaluate": "what was written so far stays; `--overwrite` replaces it",
    "plot": "the figures drawn so far stay, and the same command draws all of them again",
}
_NOTHING = "nothing was written, and the same command begins anew"
_ANEW = "what was finished is kept; without `--{}` the same command goes on with what was begun and keeps older results"
_BEGINS_ANEW = {
    "train",
    "extract",
    "fit",
    "predict",
    "guard",
    "run",
    "demo",
    "noise",
}  # where it has `--overwrite` or `--redo`
# A keyword argument in the words of a library error, alone or in a call; not where its option is named beside it.
_KEYWORD = re.compile(r"`(?:\w+\((?:…|\.{3}), )?(\w+)=([^`]*?)\)?`(?! \(`--)")
_SET_OF = re.compile(r"`ood\['([^`]*)'\]`")
_SET = re.compile(r"`--set ([^`=]+)=([^`]*)`")
_MODEL = ("num_classes", "checkpoint", "pretrained")
_TABLES = {"crossfit": "fit", "on_unfit": "fit", "on_error": "extract", **dict.fromkeys(_MODEL, "model")}
_OTHER_WORDS = {
    "relative=False": "`--absolute`",
    "preprocess=…": "`--resize` and `--crop`",
    "labelled=False": "it as `data.ood.NAME`",
    "labels=False": "it as `data.ood.NAME`",
    "allow_empty=True": "`allow_empty = true` in its `options`",
}


def ending(command: Callable[..., None]) -> Callable[..., None]:
    """The command, which says how it ended where it fails or is stopped, and exits as scripts expect."""
    words = functools.partial(in_options, command)

    @functools.wraps(command)
    def run(**options: object) -> None:
        try:
            with telling_warnings(words):
                command(**options)
        except KeyboardInterrupt:
            say(f"stopped; {what_stays(command.__name__, options)}")
            raise typer.Exit(INTERRUPTED) from None
        except (ValueError, OSError, ImportError, MemoryError) as error:
            say(f"error: {words(_text(error))}")
            raise typer.Exit(2 if isinstance(error, ConfigError) else 1) from error

    return run


def _text(error: Exception) -> str:
    """The message of an error; one of the operating system quotes a long file name in short."""
    name = error.filename if isinstance(error, OSError) else None
    return str(error) if name is None else str(error).replace(repr(name), quoted(name))


def what_stays(name: str, options: Mapping[str, Any]) -> str:
    """What a stopped command leaves, and what the same command would do."""
    if (name == "predict" and not has_begun(options["out"])) or (name == "guard" and options.get("path") is None):
        return _NOTHING
    used = [option for option in ("overwrite", "redo") if options.get(option) and name in _BEGINS_ANEW]
    return _ANEW.format(used[0]) if used else _STOPPED.get(name, _NOTHING)


def in_options(command: Callable[..., None], text: str) -> str:
    """A message of the library with the command's options, or the keys of its TOML, for arguments of functions."""
    kinds = typing.get_type_hints(command, include_extras=True)
    options = {
        name.rstrip("_"): ((*(info.param_decls or ()), f"--{name.rstrip('_').replace('_', '-')}")[0], hint.__origin__)
        for name, hint in kinds.items()
        for info in getattr(hint, "__metadata__", ())
        if isinstance(info, OptionInfo)
    }

    def replace(match: re.Match[str]) -> str:
        keyword, value = match.groups()
        plain = word[1] if (word := re.fullmatch(r'"?([\w.+-]+)"?', value)) else "…"
        if keyword in options:
            option, kind = options[keyword]
            return f"`{option}`" if kind is bool else f"`{option} {plain}`"
        if keyword == "overwrite" and "redo" in options:
            return "`--redo extract`"
        if keyword in _TABLES:
            return f"`--set {_TABLES[keyword]}.{keyword}={plain.lower() if plain in ('True', 'False') else plain}`"
        return _OTHER_WORDS.get(f"{keyword}={value}", match[0])

    if "spill" in options:  # `sirc evaluate`, whose other options hold the arguments of `evaluate`
        text = _SET_OF.sub(r"`--ood \1=…`", text.replace("`test`", "`--id`").replace("`spill`", "`--spill`"))
    text = re.sub(r"(`--[^`]*`) or \1", r"\1", _KEYWORD.sub(replace, text))
    return text if "set" in options else _SET.sub(r"`\1 = \2` in the TOML", text)
