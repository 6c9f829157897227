"""Translation of the library's messages: arguments become options of the command, or keys of its TOML.

The library puts code between backticks and advice into alternatives: "Fit on more rows, or pass `crossfit=0`." Each
piece of code is translated. If a command has no counterpart, the alternative with that code is left out.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable

import typer
from typer.core import TyperOption
from typer.main import get_command

from sirc.cli.options import with_options

_GONE = "\0"  # marks code that only works in Python, or not with this command
_OF_RUNS = ("calibrate", "predict", "try", "export", "plot")  # they open what the TOML of a run names
_SET = "--set"  # a key of `_WORDS` for all commands that take `--set`
_TOML = "TOML"  # a key for these and `_OF_RUNS`
_TABLES = {
    **dict.fromkeys(("crossfit", "on_unfit"), "fit"),
    **dict.fromkeys(("on_error", "dtype"), "extract"),
    **dict.fromkeys(("num_classes", "checkpoint", "pretrained"), "model"),
}
# Translations, by command, of code that does not become an option of the same name.
_WORDS: dict[str, dict[str, str]] = {
    "create overwrite=": {"extract": "`--only NAME --overwrite`", "guard": "`--overwrite`", "run": "`--redo extract`"},
    "train overwrite=": {
        "train": "`--seed N --overwrite`",
        "run": "`sirc train … --seed N --overwrite`, or of all seeds with `--redo train`",
    },
    "fit overwrite=": {"fit": "`--overwrite`", "run": "`--redo fit`"},
    "relative=": {"select": "`--absolute`"},
    "preprocess=": {"guard": "`--resize`, `--crop`, `--interpolation`, `--mean` and `--std`"},
    "delta=None": {"guard": "`--plain`", "calibrate": "`--plain`"},
    "labelled=": {_TOML: "it as `data.ood.NAME`"},
    "labels=": {_TOML: "it as `data.ood.NAME`"},
    "allow_empty=": {_TOML: "`allow_empty = true` in its `options`"},
    "classes=": {_SET: '`sort = "natural"` or `classes = …` of the dataset in the TOML'},
    "val=": {_SET: "`data.validation`", "check": "`--tune …`", "select": "`--tune …`"},
    "test": {"evaluate": "`--id`"},
    "train": {"guard": "TRAIN"},
    "val": {"guard": "VAL"},
    "metrics": {"table": "`--metric`"},
    "negatives": {"table": "`--negative`"},
}
# Options of these commands whose arguments errors name without a value.
_NAMED = {
    "guard": ("recall", "risk", "delta", "score", "classes", "resize", "crop", "interpolation", "mean", "std"),
    "evaluate": ("train", "val", "crossfit", "spill"),
    "check": ("train", "crossfit", "level"),
    "select": ("train", "crossfit", "level", "metric", "alpha", "beta", "draws", "seed"),
    "calibrate": ("val", "score", "recall", "coverage", "risk", "delta", "alpha", "beta", "reject_cost"),
    "table": ("alpha", "beta"),
    "serve": ("state", "delta", "answer_seconds"),
}
# An argument, alone or in a call: `crossfit=0`, `fit(…, overwrite=True)`. One letter is a parameter of a score.
_ARGUMENT = re.compile(r"(?:(\w+)\((?:…|\.{3}), )?([a-z_]\w+)=(.*?)\)?")
_SETTING = re.compile(r"--set ([^=]+)=(.*)")
_OOD_SET = re.compile(r"""ood\[(['"])(.*?)\1\](?:\[.*\])?""")  # or of one score: ood['far']['msp']
# Other code that only works in Python. NumPy's and `module:function` may stay, as files and options name them.
# Commands and keys of a TOML may have names that look like classes: `sirc serve ResNet.onnx`, `data.ood.Textures.path`.
_PYTHON = re.compile(
    r"""(?!np\.|[\w.]+:|data\.|(sirc|hf)\ |--set\ ).*(
        \bsirc\.\w  # a name in the package
        | \b[A-Z]\w*[a-z]\w*[.(]  # a class
        | \w\.\w+\(  # a method
        | \[None\]
        | \b(calibrate|find_head|finish|fit|preprocess_of|sel|set_threshold|update)\(
    )""",
    re.VERBOSE,
)


def in_options(command: Callable[..., None], text: str) -> str:
    """Translate a message of the library for users of a command; unchanged if nothing of it would be left."""
    name, options = name_of(command), _options(command)
    kinds = [name, *([_SET] if "set" in options else []), *([_TOML] if "set" in options or name in _OF_RUNS else [])]

    def counterpart(entry: str) -> str:
        """The translation that `_WORDS` has for this command, or an empty text."""
        return next((_WORDS[entry][kind] for kind in kinds if kind in _WORDS.get(entry, ())), "")

    def translated(match: re.Match[str]) -> str:
        code = match[1]
        if parts := _ARGUMENT.fullmatch(code):
            call, argument, value = parts.groups()
            for entry in (f"{call} {argument}=", f"{argument}={value}"):
                if entry in _WORDS:
                    return counterpart(entry) or _GONE
            plain = value.strip('"') if re.fullmatch(r'"?[\w.+-]+"?', value) else "…"
            if known := counterpart(f"{argument}="):
                return known
            if argument in options:
                option, is_flag = options[argument]
                return f"`{option}`" if is_flag else f"`{option} {plain}`"
            if argument not in _TABLES:
                return _GONE
            code = f"--set {_TABLES[argument]}.{argument}={plain.lower() if plain in ('True', 'False') else plain}"
        elif code in _NAMED.get(name, ()):
            return f"`{options[code][0]}`"
        elif known := counterpart(code):
            return known
        if (ood_set := _OOD_SET.fullmatch(code)) and "ood" in options:
            return f"`--ood {ood_set[2]}=…`"
        if (setting := _SETTING.fullmatch(code)) and _SET not in kinds:
            return f"`{setting[1]} = {_as_toml(setting[2])}` in the TOML" if _TOML in kinds else _GONE
        return _GONE if _PYTHON.match(code) else f"`{code}`"

    message = re.sub(r"`([^`]*)`", translated, text)
    message = re.sub(r"(`--[^`]*`) or \1", r"\1", message)
    message = re.sub(r" in the TOML(?= \w+ `[^`]*` in the TOML)", "", message)
    return "".join(map(_without_gone, re.split(r"(?<=[.?!])(?= )|(?=\n)", message))).lstrip(" ") or text


def _without_gone(sentence: str) -> str:
    """Drop the alternatives ("this or that; or the other") with untranslatable code; if all have some, drop all.

    Of the first alternative, the text before a colon stays.
    """
    if _GONE not in sentence:
        return sentence
    body = sentence.lstrip().rstrip(".?!")
    space, stop = sentence[: sentence.index(body)], sentence[sentence.index(body) + len(body) :]
    first, *others = re.split(r"(,? or |; )", body)
    begin = first.partition(": ")[0] if _GONE in first else first
    left = [(joint, way) for joint, way in zip(others[::2], others[1::2], strict=True) if _GONE not in way]
    if _GONE in begin:
        if not left:
            return ""
        begin = left[0][1][:1].upper() + left[0][1][1:]
        del left[0]
    return space + begin + "".join(map("".join, left)) + stop


def _as_toml(value: str) -> str:
    return value if re.fullmatch(r"true|false|[\d.+-]+", value) else f'"{value}"'


def name_of(command: Callable[..., None]) -> str:
    """The name of a command on the command line: `data check` is not `check`."""
    return f"data {command.__name__}" if command.__module__.endswith(".data") else command.__name__


@functools.cache
def _options(command: Callable[..., None]) -> dict[str, tuple[str, bool]]:
    """The name of each option of a command and whether it is a flag, by parameter."""
    app = typer.Typer(add_completion=False)
    app.command()(with_options(command, imports=False))
    options = [option for option in get_command(app).params if isinstance(option, TyperOption)]
    return {str(option.name).rstrip("_"): (option.opts[0], option.is_flag) for option in options}
