"""TOML to frozen dataclasses and back: every mistake is told with its file, line, key, rule and way out."""

from __future__ import annotations

import dataclasses
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from sirc._utils.files import PathLike
from sirc._utils.hints import closest
from sirc.errors import ConfigError
from sirc.experiment.toml_text import NONE, dotted, dump, members, text_of

__all__ = ["Document", "closest", "dotted", "dump", "read"]

T = TypeVar("T")
Keys = tuple[str | int, ...]  # an int is a place in a list

_NAMES = {bool: ("true or false", "true or false"), int: ("a whole number", "whole numbers")}
_NAMES |= {float: ("a number", "numbers"), str: ("a string", "strings"), object: ("any value", "values")}


def read(cls: type[T], path: PathLike, overrides: Iterable[str] = ()) -> T:
    """Read a dataclass from a TOML file, with `overrides` such as `"train.lr=0.05"` put over it."""
    return Document.open(path, overrides).build(cls)


class _Bad(Exception):  # noqa: N818 - never leaves this file
    """A value at `keys` breaks a rule."""

    def __init__(self, keys: Keys, words: str) -> None:
        super().__init__(words)
        self.keys, self.words = keys, words


@dataclass(frozen=True)
class Document:
    """A TOML file that was read, the overrides put over it, and where each key came from."""

    path: Path
    text: str
    tree: dict[str, Any]
    overrides: tuple[tuple[Keys, str], ...] = ()

    @classmethod
    def open(cls, path: PathLike, overrides: Iterable[str] = ()) -> Document:
        """Read the file; a `ConfigError` says why it cannot be read, or what is wrong with an override."""
        path = Path(path)
        text = _text(path)
        try:
            tree = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            words, line = _syntax(str(error), text)
            raise ConfigError(f"{path}:{line}: this is not TOML: {words}.") from error
        except RecursionError:
            raise ConfigError(f"{path}: tables and lists must nest less deeply.") from None
        if isinstance(overrides, str):
            overrides = (overrides,)
        return cls(path, text, tree, tuple(_override(tree, text) for text in overrides))

    def build(self, cls: type[T]) -> T:
        """Make the dataclass; a `ConfigError` names the place of what does not fit."""
        try:
            return cast(T, _dataclass(self.tree, cls, ()))
        except _Bad as bad:
            raise self.error(bad.keys, bad.words) from bad.__cause__

    def error(self, keys: Keys, words: str) -> ConfigError:
        """Say what is wrong with a key, and where it is."""
        return ConfigError(f"{self.where(keys)}: {f'`{dotted(keys)}` ' if keys else ''}{words}")

    def where(self, keys: Keys) -> str:
        """Give the place of a key: `file:line`, the `--set` that set it, or the file where nothing did."""
        names = tuple(key for key in keys if isinstance(key, str))
        for given, text in reversed(self.overrides):
            if given == names[: len(given)]:
                return f"--set {text}"
        while names:
            if line := self._line(names):
                return f"{self.path}:{line}"
            for given, text in reversed(self.overrides):
                if given[: len(names)] == names:
                    return f"--set {text}"
            names = names[:-1]
        return str(self.path)

    def _line(self, names: tuple[str, ...]) -> int | None:
        """Find the line where a key begins: tomllib keeps none, so ever longer beginnings of the file are parsed."""
        lines = self.text.split("\n")
        whole = 0
        for end in range(1, len(lines) + 1):
            try:
                tree = tomllib.loads("\n".join(lines[:end]))
            except tomllib.TOMLDecodeError:
                continue
            if _has(tree, names):
                return whole + 1
            whole = end
        return None


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise ConfigError(f"{path}:{line}: TOML must be UTF-8; this file is not. Save it as UTF-8.") from error
    except FileNotFoundError:
        others = sorted(other.name for other in path.parent.glob("*.toml")) if path.parent.is_dir() else []
        raise ConfigError(f"there is no file '{path}'.{closest(path.name, others)}") from None
    except IsADirectoryError:
        raise ConfigError(f"'{path}' is a folder; name a TOML file in it.") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"'{path}' cannot be read: {getattr(error, 'strerror', None) or error}.") from error


def _syntax(message: str, text: str) -> tuple[str, int]:
    words, _, place = message.rpartition(" (at ")
    found = re.match(r"line (\d+), column (\d+)", place)
    if found:
        return f"{words[:1].lower()}{words[1:]}, at column {found[2]}", int(found[1])
    return f"{words[:1].lower()}{words[1:]}, at the end of the file", max(text.rstrip("\n").count("\n") + 1, 1)


def _override(tree: dict[str, Any], text: str) -> tuple[Keys, str]:
    """Put `key=value` into the tree; the value is TOML where it parses, else a plain string."""
    for split in re.finditer("=", text):
        names = _path(text[: split.start()])
        if names:
            break
    else:
        raise ConfigError(
            f"--set {text}: an override must be `key=value`, the key as in the file, quoted where it has odd "
            "characters. For example `--set train.lr=0.05`."
        )
    table = tree
    for depth, name in enumerate(names[:-1], 1):
        table = table.setdefault(name, {})
        if not isinstance(table, dict):
            raise ConfigError(
                f"--set {text}: `{dotted(names[:depth])}` must be a table to set a key in it; got {table!r}."
            )
    plain = text[split.end() :].strip()
    try:
        parsed = tomllib.loads(f"value = {plain}")
    except (tomllib.TOMLDecodeError, RecursionError):
        parsed = {}
    table[names[-1]] = parsed["value"] if parsed.keys() == {"value"} else plain
    return names, text


def _path(text: str) -> tuple[str, ...]:
    """Parse a dotted key; nothing where it is none."""
    try:
        tree: object = tomllib.loads(f"{text} = 0")
    except tomllib.TOMLDecodeError:
        return ()
    names: list[str] = []
    while isinstance(tree, dict):
        if len(tree) != 1:
            return ()
        ((name, tree),) = tree.items()
        names.append(name)
    return tuple(names)


def _has(tree: object, names: Sequence[str]) -> bool:
    for name in names:
        if not isinstance(tree, dict) or name not in tree:
            return False
        tree = tree[name]
    return True


def _dataclass(value: Mapping[str, object], cls: type[Any], keys: Keys) -> object:
    hints = get_type_hints(cls)
    fields = {field.name: field for field in dataclasses.fields(cls) if field.init}
    for name in value:
        if name not in fields:
            table = f"[{dotted(keys)}]" if keys else "the top level"
            hint = closest(name, fields) or f" It knows {', '.join(fields)}."
            raise _Bad((*keys, name), f"is not a key of {table}.{hint}")
    arguments = {}
    for name, field in fields.items():
        if name in value:
            arguments[name] = _convert(value[name], hints[name], (*keys, name))
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise _Bad((*keys, name), f"is missing; it must be {_describe(hints[name])}.")
    try:
        return cls(**arguments)
    except ValueError as error:
        # A rule of the dataclass names its field first: "`lr` must be positive; got -1."
        found = re.match(r"`([^`]+)`\s*", str(error))
        names = _path(found[1]) if found else ()
        if found and names and names[0] in fields:
            raise _Bad((*keys, *names), str(error)[found.end() :]) from error
        raise _Bad(keys, f"is refused: {error}" if keys else str(error)) from error


def _convert(value: object, wanted: Any, keys: Keys) -> object:
    kinds = members(wanted)
    if value == NONE and NoneType in kinds and str not in kinds:
        return None
    problem: _Bad | None = None
    for kind in kinds:
        if _fits(value, kind):
            try:
                return _convert_one(value, kind, keys)
            except _Bad as bad:
                problem = problem or bad
    if problem:
        raise problem
    choices = [choice for kind in kinds if get_origin(kind) is Literal for choice in get_args(kind)]
    hint = closest(value, map(str, choices)) if isinstance(value, str) else ""
    if str in kinds and not isinstance(value, dict | list):
        hint = f' Write "{value}", in quotes.'
    raise _Bad(keys, f"must be {_describe(wanted)}; got {_shown(value)}.{hint}")


def _fits(value: object, wanted: Any) -> bool:
    """Whether a value is of the kind that a type holds, what is inside it apart."""
    origin = get_origin(wanted)
    if origin is Literal:
        return any(value == choice and type(value) is type(choice) for choice in get_args(wanted))
    if origin is tuple:
        return isinstance(value, list) and (get_args(wanted)[-1] is Ellipsis or len(value) == len(get_args(wanted)))
    if origin is dict or dataclasses.is_dataclass(wanted):
        return isinstance(value, dict)
    if wanted is float:
        return type(value) in (int, float)
    return wanted is object or type(value) is wanted


def _convert_one(value: Any, wanted: Any, keys: Keys) -> object:
    arguments = get_args(wanted)
    if get_origin(wanted) is tuple:
        kinds = [arguments[0]] * len(value) if arguments[-1] is Ellipsis else arguments
        return tuple(_convert(item, kind, (*keys, i)) for i, (item, kind) in enumerate(zip(value, kinds, strict=True)))
    if get_origin(wanted) is dict:
        return {name: _convert(item, arguments[1], (*keys, name)) for name, item in value.items()}
    if dataclasses.is_dataclass(wanted):
        return _dataclass(value, cast(type[Any], wanted), keys)
    if wanted is float:
        try:
            return float(value)
        except OverflowError:
            raise _Bad(keys, f"must be a number below 1e308; got one of {len(str(value))} digits.") from None
    return value


def _shown(value: object) -> str:
    """Write a value into a message; the command line can bring text that TOML cannot hold."""
    try:
        text = text_of(value)
    except ValueError:
        text = ascii(value)
    return text if len(text) <= 80 else f"{text[:77]}…"


def _describe(wanted: Any, *, many: bool = False) -> str:
    origin, arguments = get_origin(wanted), get_args(wanted)
    if origin in (Union, UnionType):
        return " or ".join(_describe(member) for member in arguments if member is not NoneType)
    if origin is Literal:
        return " or ".join(text_of(choice) for choice in arguments)
    if origin is tuple:
        count = "" if arguments[-1] is Ellipsis else f"{len(arguments)} "
        return f"a list of {count}{_describe(arguments[0], many=True)}"
    if origin is dict:
        return "a table"
    if dataclasses.is_dataclass(wanted):
        return f"a table with {', '.join(field.name for field in dataclasses.fields(wanted))}"
    return _NAMES[wanted][many]
