"""Endings of commands: what a stopped one keeps, and errors in terms of its own options."""

from __future__ import annotations

import functools
import re
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import typer
from typer.models import OptionInfo

from sirc._utils.text import quoted
from sirc._utils.written import WRITTEN
from sirc.cli.console import say, telling_warnings
from sirc.cli.options import has_begun, names_of_option
from sirc.errors import ConfigError

INTERRUPTED = 130
_NOTHING = "nothing was written, and the same command begins anew"
_STAYS = "what was written so far stays; `--overwrite` replaces it"
# Commands that go on where they were stopped.
_GO_ON = ("train", "extract", "fit", "run", "demo", "data get", "data noise", "data colonoscopy")
_CHOSEN = "the choices made so far are kept, and the same command chooses all of them again"
_DRAWN = "the figures drawn so far stay, and the same command draws all of them again"

# A keyword argument in a library error, alone or in a call. One letter is a parameter of a score.
_KEYWORD = re.compile(r"`(?:(\w+)\((?:…|\.{3}), )?([a-z_]\w+)=([^`]*?)\)?`")
_SET = re.compile(r"`--set ([^`=]+)=([^`]*)`")
# What exists only in Python: an argument without an option, a name in `sirc`, a class, a method or a function; but not
# `module:function`, which files and options name.
_PYTHON = re.compile(
    r"`(?:\w+\((?:…|\.{3}), )?[a-z_]\w+=[^`]*`|`(?!np\.|[\w.]+:)[^`]*(?:\bsirc\.\w|\b[A-Z]\w*[a-z]\w*[.(]|\w\.\w+\(|"
    r"\[None\]|\b(?:calibrate|find_head|finish|fit|preprocess_of|sel|set_threshold|update)\()[^`]*`"
)
_OR = re.compile(r"(,? or |; )(?=(?:[^`]*`[^`]*`)*[^`]*$)")  # not between backticks
_SETS, _TOML = "set", "toml"  # stand for commands with `--set`, and for these and others that open what a TOML names
_OF_RUNS = ("calibrate", "predict", "export", "plot")
_TABLES = {
    **dict.fromkeys(("crossfit", "on_unfit"), "fit"),
    **dict.fromkeys(("on_error", "dtype"), "extract"),
    **dict.fromkeys(("num_classes", "checkpoint", "pretrained"), "model"),
}
# Arguments that are other things in a command, by command; those of `create`, `train` and `fit` have rows of their own.
_WORDS: dict[str, dict[str, str]] = {
    "create overwrite": {"extract": "`--overwrite`", "guard": "`--overwrite`", "run": "`--redo extract`"},
    "train overwrite": {"train": "`--overwrite`", "run": "`--redo train`"},
    "fit overwrite": {"fit": "`--overwrite`", "run": "`--redo fit`"},
    "relative": {"select": "`--absolute`"},
    "preprocess": {"guard": "`--resize`, `--crop`, `--interpolation`, `--mean` and `--std`"},
    "delta=None": dict.fromkeys(("guard", "calibrate"), "`--plain`"),
    "labelled": {_TOML: "it as `data.ood.NAME`"},
    "labels": {_TOML: "it as `data.ood.NAME`"},
    "allow_empty": {_TOML: "`allow_empty = true` in its `options`"},
    "classes": {_SETS: '`sort = "natural"` or `classes = …` of the dataset in the TOML'},
    "val": {_SETS: "`data.validation`", "check": "`--tune …`", "select": "`--tune …`"},
}
# Arguments that errors name without a value.
_NAMES = {
    "evaluate": {"test": "--id", "train": "--train", "val": "--val", "spill": "--spill"},
    "guard": {"train": "TRAIN", "val": "VAL"}
    | {name: f"--{name}" for name in ("recall", "risk", "resize", "crop", "interpolation", "mean", "std")},
}
_SET_OF = re.compile(r"`ood\['([^`]*?)'\](?:\['[^`]*'\])?`")  # or the confidences of a score there


def ending(command: Callable[..., None]) -> Callable[..., None]:
    """Wrap a command: where it fails or is stopped, say why and what is kept, and exit as scripts expect."""
    translate = functools.partial(in_options, command)

    @functools.wraps(command)
    def run(**options: object) -> None:
        WRITTEN.clear()
        try:
            with telling_warnings(translate):
                command(**options)
        except KeyboardInterrupt:
            say(f"stopped; {what_stays(_name(command), options)}")
            raise typer.Exit(INTERRUPTED) from None
        except (ValueError, OSError, ImportError, MemoryError) as error:
            say(f"error: {translate(_text(error))}")
            raise typer.Exit(2 if isinstance(error, ConfigError) else 1) from error

    return run


def _text(error: Exception) -> str:
    """The message of an error, with a long file name of the operating system's shortened."""
    name = error.filename if isinstance(error, OSError) else None
    return str(error) if name is None else str(error).replace(repr(name), quoted(name))


def what_stays(name: str, options: Mapping[str, Any]) -> str:
    """Say what a stopped command keeps, judged by what it wrote, and what the same command would do next."""
    out, begun = options.get("out"), None
    if name in ("serve", "try"):  # both catch Ctrl-C once they serve
        return "nothing was served yet"
    if name in _GO_ON:
        begun = bool(WRITTEN)
    elif name == "predict" and has_begun(options["out"]):
        begun = True
    elif name == "guard" and options["path"] and not _wrote(out, options["report"]):
        begun = _wrote(options["path"])
    elif name == "calibrate" and not _wrote(out) and _wrote(options["run"]):
        begun = True
    if begun is not None:
        kept = "what was finished is kept" if begun else "nothing new was written"
        anew = next((option for option in ("overwrite", "redo") if options.get(option) and name != "calibrate"), None)
        if name == "guard" and anew and _exist(out, options["report"]):
            return f"{kept}; with another `--out` instead of `--overwrite` the same command goes on from there"
        if anew:
            return f"{kept}; without `--{anew}` the same command goes on with what was begun and keeps older results"
        return f"{kept}, and the same command goes on {'from there' if begun else 'with what there is'}"
    if name in ("check", "select"):
        return _CHOSEN if _wrote(*(options["runs"] or ())) else _NOTHING
    if name == "plot":
        return _DRAWN if WRITTEN else _NOTHING
    if name == "evaluate" and not _wrote(out) and (spill := options["spill"]) and any(spill.glob("*")):
        return f"scores in '{spill}' are kept, and the same command goes on from there"
    return _STAYS if _wrote(out, options.get("report"), *(options.get("runs") or ())) else _NOTHING


def _wrote(*places: Path | None) -> bool:
    """Whether one of these files, or a file in one of these folders, was written."""
    roots = {place.resolve() for place in places if place is not None}
    return any(not roots.isdisjoint((path, *path.parents)) for path in map(Path.resolve, WRITTEN))


def _exist(*places: Path | None) -> bool:
    return any(place is not None and place.exists() for place in places)


def in_options(command: Callable[..., None], text: str) -> str:
    """Translate a message of the library: arguments of functions become the command's options, or keys of its TOML.

    Advice that works only in Python is left out.
    """
    name, options = _name(command), _options(command)
    kinds = [name, *([_SETS] if "set" in options else []), *([_TOML] if "set" in options or name in _OF_RUNS else [])]

    def replace(match: re.Match[str]) -> str:
        call, keyword, value = match.groups()
        plain = word[1] if (word := re.fullmatch(r'"?([\w.+-]+)"?', value)) else "…"
        made = f"{call} {keyword}" in _WORDS
        entries = (f"{call} {keyword}", f"{keyword}={value}", keyword)
        special = next((_WORDS[entry] for entry in entries if entry in _WORDS), {})
        if words := next((special[kind] for kind in kinds if kind in special), None):
            return words
        if keyword in options and not made:
            option, kind = options[keyword]
            return f"`{option}`" if kind is bool else f"`{option} {plain}`"
        if keyword in _TABLES and _TOML in kinds:
            return f"`--set {_TABLES[keyword]}.{keyword}={plain.lower() if plain in ('True', 'False') else plain}`"
        return match[0]

    for argument, option in _NAMES.get(name, {}).items():
        text = text.replace(f"`{argument}`", f"`{option}`" if option.startswith("-") else option)
    if name == "evaluate":
        text = _SET_OF.sub(r"`--ood \1=…`", text)
    text = re.sub(r"(`--[^`]*`) or \1", r"\1", _KEYWORD.sub(replace, text))
    if _TOML in kinds and _SETS not in kinds:
        text = _SET.sub(lambda match: f"`{match[1]} = {_as_toml(match[2])}` in the TOML", text)
        text = re.sub(r"` in the TOML( with `[^`]*` in the TOML)", r"`\1", text)
    return _without(text, lambda part: bool(_PYTHON.search(part) or (_TOML not in kinds and _SET.search(part))))


def _without(text: str, gone: Callable[[str], bool]) -> str:
    """Drop the alternatives ("this or that; or the other") that are gone, and sentences of which none is left.

    Where the first alternative goes, the text before its colon stays.
    """
    kept = []
    for sentence in re.split(r"(?<=[.?!])(?= )|(?=\n)", text):
        if gone(sentence):
            space, stop = re.match(r"\s*", sentence)[0], re.search(r"[.?!]?$", sentence)[0]  # type: ignore[index]
            first, *rest = _OR.split(sentence.removesuffix(stop).removeprefix(space))
            first = first.partition(": ")[0] if gone(first) else first
            ways = [("", first), *zip(rest[::2], rest[1::2], strict=True)]
            left = [way for way in ways if not gone(way[1])]
            begin = "".join(way[1] for way in left[:1])
            begin = begin if left[:1] == ways[:1] else begin[:1].upper() + begin[1:]
            sentence = space + begin + "".join(map("".join, left[1:])) + stop if left else ""
        kept.append(sentence)
    return "".join(kept).lstrip(" ") or text


def _as_toml(value: str) -> str:
    return value if re.fullmatch(r"true|false|[\d.+-]+", value) else f'"{value}"'


def _name(command: Callable[..., None]) -> str:
    """The name by which a command is called: `data check` is not `check`."""
    return f"data {command.__name__}" if command.__module__.endswith(".data") else command.__name__


@functools.cache
def _options(command: Callable[..., None]) -> dict[str, tuple[str, object]]:
    """The options of a command, by the argument that each fills, with the kind of its value."""
    kinds = typing.get_type_hints(command, include_extras=True)
    return {
        name.rstrip("_"): (names_of_option(name, info)[0], hint.__origin__)
        for name, hint in kinds.items()
        for info in getattr(hint, "__metadata__", ())
        if isinstance(info, OptionInfo)
    }
