"""TOML files: reading them into frozen dataclasses, `extends`, overrides, and writing them back."""

from __future__ import annotations

import dataclasses
import json
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence, ValuesView
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import tomli_w

from sirc._utils.files import PathLike
from sirc._utils.text import closest, quoted, shorten
from sirc.errors import ConfigError

T = TypeVar("T")
Keys = tuple[str | int, ...]  # an int is a place in a list

EXTENDS = "extends"
NONE = "none"
"""Stands for None if leaving the key out would mean something else."""
LATER = {"later": True}
"""The metadata of a field that earlier versions did not have: it is written only if it differs from its default."""

_DEEPEST = 50  # tables within tables
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a string", object: "any value"}


def dump(instance: Any) -> str:
    """Write a dataclass as TOML, from which `Document.build` makes an equal one."""
    try:
        text = tomli_w.dumps(_plain(instance))
        text.encode()  # raises on half of a surrogate pair
    except (TypeError, UnicodeEncodeError) as error:
        raise ValueError(f"TOML cannot hold every value: {error}.") from error
    return text


def dotted(keys: Iterable[str | int]) -> str:
    """Write the path of a key as TOML does: `data.ood."my set".path`, `fit.specs[2]`."""

    def part(key: str | int) -> str:
        if isinstance(key, int):
            return f"[{key}]"
        return "." + (key if _BARE.fullmatch(key) else json.dumps(key, ensure_ascii=False))

    return "".join(map(part, keys)).removeprefix(".")


@dataclass(frozen=True)
class _File:
    """One TOML file: its text, in which lines are counted, and its parsed tree."""

    path: Path
    text: str
    tree: dict[str, Any]

    @classmethod
    def read(cls, path: Path) -> _File:
        text = ""
        try:
            text = path.read_bytes().decode("utf-8-sig").replace("\r\n", "\n")
            tree = tomllib.loads(text)
            level: list[Any] = [tree]
            for _ in range(_DEEPEST):
                inner = (part.values() if isinstance(part, dict) else part for part in level)
                level = [part for parts in inner if isinstance(parts, ValuesView | list) for part in parts]
            if level:
                raise RecursionError  # the parser itself does not recurse into dotted keys
            return cls(path, text, tree)
        except FileNotFoundError:
            others = sorted(other.name for other in path.parent.glob("*.toml"))
            raise ConfigError(f"there is no file '{path}'.{closest(path.name, others)}") from None
        except (tomllib.TOMLDecodeError, RecursionError) as error:
            at = re.search(r"line (\d+)", str(error))
            line = at[1] if at else text.rstrip("\n").count("\n") + 1
            reason = "it nests too deeply" if isinstance(error, RecursionError) else error
            raise ConfigError(f"{path}:{line}: this is not TOML: {reason}.") from error
        except IsADirectoryError:
            raise ConfigError(f"'{path}' is a folder; name a TOML file in it.") from None
        except UnicodeDecodeError:
            raise ConfigError(f"'{path}' must be UTF-8, as all TOML is; it is not. Save it as UTF-8.") from None
        except (OSError, ValueError) as error:
            raise ConfigError(f"'{path}' cannot be read: {getattr(error, 'strerror', None) or error}.") from error

    def line(self, names: Sequence[str]) -> int | None:
        """Find the line where a key begins, by parsing longer and longer parts: tomllib keeps no line numbers."""
        lines = self.text.split("\n")
        parsed = 0
        for end in range(1, len(lines) + 1):
            try:
                tree: Any = tomllib.loads("\n".join(lines[:end]))
            except tomllib.TOMLDecodeError:
                continue
            if reduce(lambda at, name: at.get(name) if isinstance(at, dict) else None, names, tree) is not None:
                return parsed + 1
            parsed = end
        return None


@dataclass(frozen=True)
class Document:
    """A TOML file, the files it extends and the overrides; it knows where each key came from."""

    files: tuple[_File, ...]  # the file itself first, then what it extends
    tree: dict[str, Any]
    overrides: tuple[tuple[Keys, str], ...] = ()

    @classmethod
    def open(cls, path: PathLike, overrides: Iterable[str] = (), *, whole: bool = False) -> Document:
        """Read a file, with overrides such as `"train.lr=0.05"`; a `whole` file must not extend another."""
        overrides = (overrides,) if isinstance(overrides, str) else overrides
        files = (_File.read(Path(path)),) if whole else _with_bases(Path(path))
        if whole and EXTENDS in files[0].tree:
            raise ConfigError(f"'{path}' must be whole, as `sirc run` writes it; it extends another file. Remove that.")
        tree: dict[str, Any] = {}
        for file in reversed(files):
            tree = _merged(tree, file.tree)
        tree.pop(EXTENDS, None)
        return cls(files, tree, tuple(_override(tree, text) for text in overrides))

    def build(self, cls: type[T]) -> T:
        """Make the dataclass; a `ConfigError` says which key does not fit, and where it is."""
        return self._dataclass(self.tree, cls, ())

    def error(self, keys: Keys, message: str) -> ConfigError:
        """Make an error about a key that begins with its place."""
        return ConfigError(f"{self.where(keys)}: {f'`{shorten(dotted(keys))}` ' if keys else ''}{message}")

    def where(self, keys: Keys) -> str:
        """The place of a key: `file:line`, or the `--set` that set it, or the file if neither has the key."""
        names = tuple(key for key in keys if isinstance(key, str))
        for path, said in reversed(self.overrides):
            if path == names[: len(path)]:
                return said
        while names:
            for file in self.files:
                if line := file.line(names):
                    return f"{file.path}:{line}"
            for path, said in reversed(self.overrides):
                if path[: len(names)] == names:
                    return said
            names = names[:-1]
        return str(self.files[0].path)

    def _dataclass(self, value: Mapping[str, object], cls: type[T], keys: Keys) -> T:
        hints = get_type_hints(cls)
        fields = {field.name: field for field in dataclasses.fields(cast(Any, cls))}
        for name in value:
            if name not in fields:
                table = f"[{shorten(dotted(keys))}]" if keys else "the top level"
                hint = closest(name, fields) or f" It knows {', '.join(fields)}."
                raise self.error((*keys, name), f"is not a key of {table}.{hint}")
        arguments = {}
        for name, field in fields.items():
            if name in value:
                arguments[name] = self._convert(value[name], hints[name], (*keys, name))
            elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
                raise self.error((*keys, name), f"is missing; it must be {_describe(hints[name])}.")
        try:
            return cls(**arguments)
        except ValueError as error:
            # The error of a dataclass begins with the name of the field: "`lr` must be positive; got -1."
            subject = re.match(r"`([^`]+)`\s*", str(error))
            names = _path(subject[1]) if subject else ()
            if subject and names and names[0] in fields:
                raise self.error((*keys, *names), str(error)[subject.end() :]) from error
            raise self.error(keys, f"is refused: {error}" if keys else str(error)) from error

    def _convert(self, value: Any, wanted: Any, keys: Keys) -> object:
        """Convert a value to a type, or to the first type of a union that it fits."""
        kinds = get_args(wanted) if get_origin(wanted) in (Union, UnionType) else (wanted,)
        if value == NONE and NoneType in kinds and str not in kinds:
            return None
        for kind in kinds:
            origin, arguments = get_origin(kind), get_args(kind)
            if origin is tuple and isinstance(value, list):
                items = [arguments[0]] * len(value) if arguments[-1] is Ellipsis else arguments
                if len(items) == len(value):
                    return tuple(self._convert(value[i], item, (*keys, i)) for i, item in enumerate(items))
            elif origin is dict and isinstance(value, dict):
                return {name: self._convert(item, arguments[1], (*keys, name)) for name, item in value.items()}
            elif dataclasses.is_dataclass(kind) and isinstance(value, dict):
                return self._dataclass(value, cast(type[Any], kind), keys)
            elif kind is float and type(value) in (int, float):
                try:
                    return float(value)
                except OverflowError:
                    raise self.error(keys, f"must be a number below 1e308; got {len(str(value))} digits.") from None
            elif kind in (object, type(value)) or (origin is Literal and value in arguments):
                return value
        choices = [choice for kind in kinds if get_origin(kind) is Literal for choice in get_args(kind)]
        hint = closest(value, map(str, choices)) if isinstance(value, str) else ""
        if str in kinds and not isinstance(value, dict | list):
            hint = f' Write "{value}", in quotes.'
        raise self.error(keys, f"must be {_describe(wanted)}; got {_shown(value)}.{hint}")


def _with_bases(path: Path) -> tuple[_File, ...]:
    """Read a file, its base, the base of that, and so on."""
    files = [_File.read(path)]
    while (base := files[-1].tree.get(EXTENDS)) is not None:
        file = files[-1]
        other = file.path.parent / str(base)
        if not other.is_file() or other.resolve() in (known.path.resolve() for known in files):
            raise ConfigError(
                f"{file.path}:{file.line([EXTENDS])}: `{EXTENDS}` must name another TOML file, relative to this one, "
                f"that does not extend this one in turn; got {_shown(base)}."
            )
        files.append(_File.read(other))
    return tuple(files)


def _merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Merge one tree into another: tables merge key by key, other values replace."""
    shared = [key for key in over if isinstance(over[key], dict) and isinstance(base.get(key), dict)]
    return {**base, **over, **{key: _merged(base[key], over[key]) for key in shared}}


def _override(tree: dict[str, Any], text: str) -> tuple[Keys, str]:
    """Put `key=value` into the tree; the value is TOML if it parses, else a plain string."""
    said = shorten(f"--set {text}")
    for split in re.finditer("=", text):
        names = _path(text[: split.start()])
        if names:
            break
    else:
        raise ConfigError(
            f"{said}: an override must be KEY=VALUE, the key as in the file, quoted if it has odd "
            "characters. For example `--set train.lr=0.05`."
        )
    table = tree
    for depth, name in enumerate(names[:-1], 1):
        table = table.setdefault(name, {})
        if not isinstance(table, dict):
            raise ConfigError(
                f"{said}: `{shorten(dotted(names[:depth]))}` must be a table to set a key in it; got {quoted(table)}."
            )
    plain = text[split.end() :].strip()
    try:
        parsed = tomllib.loads(f"value = {plain}")
    except (tomllib.TOMLDecodeError, RecursionError):
        parsed = {}
    table[names[-1]] = parsed["value"] if parsed.keys() == {"value"} else plain
    return names, said


def _path(text: str) -> tuple[str, ...]:
    """Parse a dotted key; empty if the text is not one."""
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


def _plain(value: Any) -> Any:
    """Turn a dataclass into a table, without fields that have their default and are None, empty or `LATER`."""
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if not dataclasses.is_dataclass(value):
        return value
    table = {}
    for field in dataclasses.fields(value):
        item = getattr(value, field.name)
        default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        if item != default or not (item in (None, {}) or field.metadata == LATER):
            table[field.name] = NONE if item is None else _plain(item)
    return table


def _shown(value: object) -> str:
    """Write a value into a message, shortened. JSON is close to TOML, and can write any value."""
    text = json.dumps(value, ensure_ascii=False, default=str).encode(errors="backslashreplace").decode()
    return shorten(text)


def _describe(wanted: Any) -> str:
    """Say in words what values of a type are."""
    origin, arguments = get_origin(wanted), get_args(wanted)
    if origin in (Union, UnionType):
        return " or ".join(_describe(member) for member in arguments if member is not NoneType)
    if origin is Literal:
        return " or ".join(_shown(choice) for choice in arguments)
    if origin is tuple:
        count = "" if arguments[-1] is Ellipsis else f"{len(arguments)} "
        return f"a list of {count}{_describe(arguments[0]).removeprefix('a ')}s"
    if origin is dict:
        return "a table"
    if dataclasses.is_dataclass(wanted):
        return f"a table with {', '.join(field.name for field in dataclasses.fields(wanted))}"
    return _KINDS[wanted]
