"""TOML text from frozen dataclasses, written here because no TOML writer is among the dependencies."""

from __future__ import annotations

import dataclasses
import datetime
import re
from collections.abc import Iterable, Mapping, Sequence
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

NONE = "none"
"""What None is written as where leaving the key out would mean something else."""

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_ESCAPES = {"\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r", '"': '\\"', "\\": "\\\\"}


def dotted(keys: Iterable[str | int]) -> str:
    """Write a path as TOML does: `data.ood."my set".path`, `fit.specs[2]`."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{key(part)}" for part in keys)
    return text.removeprefix(".")


def dump(instance: Any) -> str:
    """Write a dataclass as TOML which `read` makes equal again."""
    lines = _table(_plain(instance), ())
    return "\n".join(lines).lstrip("\n") + "\n"


def members(wanted: Any) -> tuple[Any, ...]:
    """Give the types of a union, or the one type."""
    return get_args(wanted) if get_origin(wanted) in (Union, UnionType) else (wanted,)


def _plain(instance: Any) -> dict[str, object]:
    """Give the fields as a table, without those that are None or empty by default."""
    hints, table = get_type_hints(type(instance)), {}
    for field in dataclasses.fields(instance):
        value = getattr(instance, field.name)
        default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        if value is None:
            if default is None:
                continue
            if str in members(hints[field.name]):
                raise ValueError(f"`{field.name}` must not be None to be written; its default is {default!r}.")
            value = NONE
        if not (value == {} and default == {}):
            table[field.name] = value
    return table


def _table(table: Mapping[str, object], keys: tuple[str, ...]) -> list[str]:
    tables = {name: _plain(v) if dataclasses.is_dataclass(v) else v for name, v in table.items()}
    inner = {name: value for name, value in tables.items() if isinstance(value, dict)}
    lines = [f"{key(name)} = {text_of(value)}" for name, value in tables.items() if name not in inner]
    if keys and (lines or not inner):
        lines = ["", f"[{dotted(keys)}]", *lines]
    for name, value in inner.items():
        lines += _table(value, (*keys, name))
    return lines


def key(name: str) -> str:
    """Write a key, quoted where it must be."""
    return name if _BARE.fullmatch(name) else text_of(name)


def text_of(value: object) -> str:
    """Write a value on one line."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        if any("\ud800" <= c <= "\udfff" for c in value):
            raise ValueError(f"TOML text must be Unicode; got {value!r}.")
        escaped = (_ESCAPES.get(c) or (f"\\u{ord(c):04x}" if c < " " or c == "\x7f" else c) for c in value)
        return f'"{"".join(escaped)}"'
    if isinstance(value, int):
        return int.__repr__(value)
    if isinstance(value, float):
        return float.__repr__(value)
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key(name)} = {text_of(item)}' for name, item in value.items())}}}"
    if isinstance(value, Sequence):
        return f"[{', '.join(map(text_of, value))}]"
    if dataclasses.is_dataclass(value):
        return text_of(_plain(value))
    raise ValueError(f"TOML cannot hold a {type(value).__name__}; got {value!r}.")
