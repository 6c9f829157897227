"""TOML files: read into frozen dataclasses, extend one another, and are written back."""

from __future__ import annotations

import dataclasses
import json
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import tomli_w

from sirc._utils.files import PathLike
from sirc._utils.hints import closest
from sirc.errors import ConfigError

T = TypeVar("T")
Keys = tuple[str | int, ...]  # an int is a place in a list

EXTENDS = "extends"
NONE = "none"
"""How None is written where leaving the key out would mean something else."""

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_KINDS = {bool: ("true or false", "true or false"), int: ("a whole number", "whole numbers")}
_KINDS |= {float: ("a number", "numbers"), str: ("a string", "strings"), object: ("any value", "values")}


def read(cls: type[T], path: PathLike, overrides: Iterable[str] = ()) -> T:
    """Read a dataclass from a TOML file, with `overrides` such as `"train.lr=0.05"` put over it."""
    return Document.open(path, overrides).build(cls)


def dump(instance: Any) -> str:
    """Write a dataclass as TOML which `read` makes equal again."""
    try:
        text = tomli_w.dumps(_table(instance))
        text.encode()
    except TypeError as error:
        raise ValueError(f"TOML cannot hold every value: {error}.") from error
    except UnicodeEncodeError as error:
        raise ValueError(f"TOML text must be Unicode; got {error.object[error.start : error.end]!a}.") from error
    return text


def dotted(keys: Iterable[str | int]) -> str:
    """Write a path as TOML does: `data.ood."my set".path`, `fit.specs[2]`."""
    text = "".join(f"[{key}]" if isinstance(key, int) else f".{_quoted(key)}" for key in keys)
    return text.removeprefix(".")


class _Bad(Exception):  # noqa: N818 - never leaves this file
    """A value at `keys` breaks a rule."""

    def __init__(self, keys: Keys, message: str) -> None:
        super().__init__(message)
        self.keys, self.message = keys, message


@dataclass(frozen=True)
class _File:
    """One TOML file: its text, which knows the lines, and the tree parsed from it."""

    path: Path
    text: str
    tree: dict[str, Any]

    @classmethod
    def read(cls, path: Path) -> _File:
        text = _text(path)
        try:
            return cls(path, text, tomllib.loads(text))
        except tomllib.TOMLDecodeError as error:
            message, line = _syntax(str(error), text)
            raise ConfigError(f"{path}:{line}: this is not TOML: {message}.") from error
        except RecursionError:
            raise ConfigError(f"{path}: tables and lists must nest less deeply.") from None

    def line(self, names: Sequence[str]) -> int | None:
        """Find the line where a key begins: tomllib keeps none, so ever longer beginnings of the file are parsed."""
        lines = self.text.split("\n")
        parsed = 0
        for end in range(1, len(lines) + 1):
            try:
                tree = tomllib.loads("\n".join(lines[:end]))
            except tomllib.TOMLDecodeError:
                continue
            if _has(tree, names):
                return parsed + 1
            parsed = end
        return None


@dataclass(frozen=True)
class Document:
    """A TOML file, the files that it extends and the overrides put over them; it knows where each key came from."""

    files: tuple[_File, ...]  # the file itself first, then what it extends
    tree: dict[str, Any]
    overrides: tuple[tuple[Keys, str], ...] = ()

    @classmethod
    def open(cls, path: PathLike, overrides: Iterable[str] = ()) -> Document:
        """Read the file; a `ConfigError` says why it cannot be read, or what is wrong with an override."""
        files = _with_bases(Path(path))
        tree: dict[str, Any] = {}
        for file in reversed(files):
            tree = _merged(tree, file.tree)
        tree.pop(EXTENDS, None)
        if isinstance(overrides, str):
            overrides = (overrides,)
        return cls(files, tree, tuple(_override(tree, text) for text in overrides))

    def build(self, cls: type[T]) -> T:
        """Make the dataclass; a `ConfigError` names the place of what does not fit."""
        try:
            return cast(T, _dataclass(self.tree, cls, ()))
        except _Bad as bad:
            raise self.error(bad.keys, bad.message) from bad.__cause__

    def error(self, keys: Keys, message: str) -> ConfigError:
        """Say what is wrong with a key, and where it is."""
        return ConfigError(f"{self.where(keys)}: {f'`{dotted(keys)}` ' if keys else ''}{message}")

    def where(self, keys: Keys) -> str:
        """Give the place of a key: `file:line`, the `--set` that set it, or the file where nothing did."""
        names = tuple(key for key in keys if isinstance(key, str))
        for path, text in reversed(self.overrides):
            if path == names[: len(path)]:
                return f"--set {text}"
        while names:
            for file in self.files:
                if line := file.line(names):
                    return f"{file.path}:{line}"
            for path, text in reversed(self.overrides):
                if path[: len(names)] == names:
                    return f"--set {text}"
            names = names[:-1]
        return str(self.files[0].path)


def _with_bases(path: Path) -> tuple[_File, ...]:
    """Read a file, the one it extends, the one that this extends, and so on."""
    files = [_File.read(path)]
    while (base := files[-1].tree.get(EXTENDS)) is not None:
        file = files[-1]
        place = f"{file.path}:{file.line([EXTENDS])}: `{EXTENDS}`"
        if not isinstance(base, str):
            raise ConfigError(f"{place} must be the path of another TOML file, in quotes; got {_shown(base)}.")
        other = file.path.parent / base
        if other.resolve() in (known.path.resolve() for known in files):
            chain = " → ".join(f"'{known.path}'" for known in files)
            raise ConfigError(
                f"{place} must not lead back to a file that is extended already; got {chain} → '{other}'."
            )
        try:
            files.append(_File.read(other))
        except ConfigError as error:
            if other.is_file():
                raise  # it is there, and the error names the place in it
            raise ConfigError(f"{place} must name a TOML file, relative to this one; {error}") from error
    return tuple(files)


def _merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Put one tree over another: tables merge key by key, anything else replaces."""
    tree = {name: _merged(value, {}) if isinstance(value, dict) else value for name, value in base.items()}
    for name, value in over.items():
        both = isinstance(value, dict) and isinstance(tree.get(name), dict)
        tree[name] = _merged(tree[name], value) if both else value
    return tree


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


def _syntax(error: str, text: str) -> tuple[str, int]:
    """Split what tomllib says into the message and the line."""
    message, _, place = error.rpartition(" (at ")
    message = f"{message[:1].lower()}{message[1:]}"
    if at := re.match(r"line (\d+), column (\d+)", place):
        return f"{message}, at column {at[2]}", int(at[1])
    return f"{message}, at the end of the file", max(text.rstrip("\n").count("\n") + 1, 1)


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
        subject = re.match(r"`([^`]+)`\s*", str(error))
        names = _path(subject[1]) if subject else ()
        if subject and names and names[0] in fields:
            raise _Bad((*keys, *names), str(error)[subject.end() :]) from error
        raise _Bad(keys, f"is refused: {error}" if keys else str(error)) from error


def _convert(value: object, wanted: Any, keys: Keys) -> object:
    kinds = _members(wanted)
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
    """Tell whether a value is of the kind that a type holds, whatever is inside it."""
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


def _members(wanted: Any) -> tuple[Any, ...]:
    """Give the types of a union, or the one type."""
    return get_args(wanted) if get_origin(wanted) in (Union, UnionType) else (wanted,)


def _table(instance: Any) -> dict[str, object]:
    """Give the fields of a dataclass as a table, without those that are None or empty by default."""
    hints, table = get_type_hints(type(instance)), {}
    for field in dataclasses.fields(instance):
        value = getattr(instance, field.name)
        default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        if value is None:
            if default is None:
                continue
            if str in _members(hints[field.name]):
                raise ValueError(f"`{field.name}` must not be None to be written; its default is {default!r}.")
            value = NONE
        if value == {} and default == {}:
            continue
        if isinstance(value, dict):
            value = {name: _table(v) if dataclasses.is_dataclass(v) else v for name, v in value.items()}
        table[field.name] = _table(value) if dataclasses.is_dataclass(value) else value
    return table


def _quoted(key: str) -> str:
    return key if _BARE.fullmatch(key) else json.dumps(key, ensure_ascii=False)


def _shown(value: object) -> str:
    """Write a value into a message, shortened; JSON is close to TOML, and holds what the command line may bring."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    if any("\ud800" <= letter <= "\udfff" for letter in text):
        text = ascii(value)
    return text if len(text) <= 80 else f"{text[:77]}…"


def _describe(wanted: Any, *, many: bool = False) -> str:
    origin, arguments = get_origin(wanted), get_args(wanted)
    if origin in (Union, UnionType):
        return " or ".join(_describe(member) for member in arguments if member is not NoneType)
    if origin is Literal:
        return " or ".join(_shown(choice) for choice in arguments)
    if origin is tuple:
        count = "" if arguments[-1] is Ellipsis else f"{len(arguments)} "
        return f"a list of {count}{_describe(arguments[0], many=True)}"
    if origin is dict:
        return "a table"
    if dataclasses.is_dataclass(wanted):
        return f"a table with {', '.join(field.name for field in dataclasses.fields(wanted))}"
    return _KINDS[wanted][many]
