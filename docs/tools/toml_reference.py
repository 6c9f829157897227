"""Reference of an experiment's keys, as Markdown: `python docs/tools/toml_reference.py > docs/reference/toml.md`."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import textwrap
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, get_args, get_origin, get_type_hints

import tomli_w
from cli_reference import markdown_table

from sirc.data import Source
from sirc.experiment import Experiment, toml

INTRODUCTION = """\
# Keys of an experiment

An experiment is one TOML file; [Experiments](../experiments.md) shows whole ones. This page lists every table and key.
A key without a default is required. `"none"` switches off a key that has a default but may be absent: `crop = "none"`.
At the top level, `extends = "base.toml"` takes all keys that the file does not set from another file.
"""
_LONGEST = 60  # letters of a default


def main() -> None:
    """Print the page."""
    print(page(), end="")


def page() -> str:
    """Write the page: a section for each table, with a row for each key."""
    return "\n".join([INTRODUCTION, *(_section(keys, table) for keys, table in tables(Experiment, ()))])


def tables(cls: type[Any], keys: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], type[Any]]]:
    """Give a table and those inside it, each with its keys; that of a dataset, which has several places, comes last."""
    yield keys, cls
    for name, kind in get_type_hints(cls).items():
        inner = _table_in(kind)
        if inner is not None and inner is not Source:
            yield from tables(inner, (*keys, name))
    if cls is Experiment:
        yield (), Source


def meanings(cls: type[Any]) -> dict[str, str]:
    """Read what the fields of a dataclass mean: the docstring below each."""
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(tree, ast.ClassDef)
    found = {}
    for field, text in pairwise(tree.body):
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
            found[ast.unparse(field.target)] = " ".join(str(text.value.value).split())
    return found


def _section(keys: tuple[str, ...], cls: type[Any]) -> str:
    title = "A dataset" if cls is Source else f"`[{toml.dotted(keys)}]`" if keys else "Top level"
    hints, meaning = get_type_hints(cls), meanings(cls)
    fields = sorted(dataclasses.fields(cls), key=lambda field: _table_in(hints[field.name]) is not None)
    rows = [
        (f"`{field.name}`", _kind(hints[field.name], (*keys, field.name)), _default(field), meaning[field.name])
        for field in fields
    ]
    table = markdown_table(("key", "type", "default", "meaning"), rows)
    return f"## {title}\n\n{inspect.getdoc(cls)}\n\n{table}\n"


def _table_in(kind: Any) -> type[Any] | None:
    """Give the dataclass that a field holds, alone, or None, or as the values of a dictionary."""
    for one in (kind, *get_args(kind)):
        if isinstance(one, type) and dataclasses.is_dataclass(one):
            return one
    return None


def _kind(kind: Any, keys: tuple[str, ...]) -> str:
    """Say the type of a key in the words of the errors about it; a table has a section of its own."""
    inner = _table_in(kind)
    if inner is Source:
        return "a table of [datasets](#a-dataset)" if get_origin(kind) is dict else "[a dataset](#a-dataset)"
    return f"[a table](#{''.join(keys)})" if inner else toml._describe(kind)


def _default(field: dataclasses.Field[Any]) -> str:
    if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
        return ""
    value: Any = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
    if value in (None, {}) or dataclasses.is_dataclass(value):
        return "absent"
    text = tomli_w.dumps({"key": value}).removeprefix("key = ")
    text = re.sub(r"\s+", " ", text.strip()).replace("[ ", "[").replace(", ]", "]")
    return f"`{text}`" if len(text) < _LONGEST else f"{len(value)} entries"


if __name__ == "__main__":
    main()
