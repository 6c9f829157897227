"""Reference of the command line, as Markdown: `python docs/tools/cli_reference.py > docs/reference/cli.md`."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from typer.models import ArgumentInfo, OptionInfo

from sirc.cli import app
from sirc.cli.data import app as data_app

INTRODUCTION = """\
# The command line

`sirc COMMAND --help` shows what this page shows. A command prints its result on stdout and its progress on stderr. It
exits with 0 if it succeeded, with 1 if it failed, with 2 if it was called wrongly, and with 130 if it was stopped.
`sirc --version` prints the version.
"""
_WORDS = {"Path": ["PATH"], "str": ["TEXT"], "int": ["N"], "float": ["NUMBER"], "bool": []}


class Parameter(NamedTuple):
    """An argument or an option of a command, in the words of its help."""

    info: ArgumentInfo | OptionInfo
    names: list[str]
    values: list[str]
    default: str
    repeats: bool
    required: bool


def main() -> None:
    """Print the page."""
    print(page(), end="")


def page() -> str:
    """Write the page: every command with its usage, arguments, options and examples."""
    return "\n".join([INTRODUCTION, *(_section(f"sirc {name}", command) for name, command in commands())])


def commands() -> Iterator[tuple[str, Callable[..., None]]]:
    """Give the commands by name, in the order of `sirc --help`; those of `sirc data` come last."""
    for prefix, group in (("", app), ("data ", data_app)):
        for known in group.registered_commands:
            assert known.callback is not None
            yield prefix + (known.name or known.callback.__name__), known.callback


def markdown_table(heads: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """Write a table; a bar in a cell is escaped."""
    lines = [heads, ("---",) * len(heads), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", r"\|") for cell in line) + " |" for line in lines)


def _section(name: str, command: Callable[..., None]) -> str:
    parameters = list(_parameters(command))
    arguments = [one for one in parameters if isinstance(one.info, ArgumentInfo)]
    options = [one for one in parameters if isinstance(one.info, OptionInfo)]
    prose, examples = [], []
    for paragraph in (inspect.getdoc(command) or "").split("\n\n"):
        if example := re.fullmatch(r"([^`]*?):\s+`([^`]+)`", " ".join(paragraph.split())):
            examples += ([] if example[1] == "Example" else [f"# {example[1]}"]) + [example[2]]
        else:
            prose.append(paragraph)
    parts = [f"## {name}", *prose, _code([" ".join([name, *_usage(arguments, options)])], "text")]
    if arguments:
        rows = [(_as_code(one.names), one.info.help or "") for one in arguments]
        parts.append(markdown_table(("argument", "meaning"), rows))
    if options:
        cells = [
            (_as_code(one.names), _as_code(one.values), _as_code([one.default]), one.info.help or "") for one in options
        ]
        parts.append(markdown_table(("option", "value", "default", "meaning"), cells))
    return "\n\n".join([*parts, "Example:", _code(examples, "sh")]) + "\n"


def _parameters(command: Callable[..., None]) -> Iterator[Parameter]:
    """Give the parameters of a command from the annotations of its function."""
    hints = get_type_hints(command, include_extras=True)
    for name, parameter in inspect.signature(command).parameters.items():
        kind, info = get_args(hints[name])
        values, repeats = _values(kind)
        required = parameter.default is inspect.Parameter.empty
        names = [info.metavar or name.upper()] if isinstance(info, ArgumentInfo) else _names(name, info)
        default = "" if required or parameter.default is None or kind is bool else str(parameter.default)
        yield Parameter(info, names, [info.metavar] if info.metavar else values, default, repeats, required)


def _names(parameter: str, info: OptionInfo) -> list[str]:
    """The names of an option, such as `--quiet` and `-q`: those declared, else the name of its parameter."""
    declared = (info.default, *(info.param_decls or ()))  # typer reads the first name of an annotation as a default
    names = "/".join(name for name in declared if isinstance(name, str) and name.startswith("-"))
    return names.split("/") if names else [f"--{parameter.rstrip('_').replace('_', '-')}"]


def _values(kind: Any) -> tuple[list[str], bool]:
    """Give the values of a type, or a word for them, and whether the parameter takes several."""
    if get_origin(kind) in (Union, UnionType):
        (kind,) = (one for one in get_args(kind) if one is not NoneType)
    if get_origin(kind) is list:
        return _values(*get_args(kind))[0], True
    if get_origin(kind) is tuple:
        return [" ".join(_values(one)[0][0] for one in get_args(kind))], False
    if get_origin(kind) is Literal:
        return list(get_args(kind)), False
    return [str(choice) for choice in kind] if issubclass(kind, Enum) else _WORDS[kind.__name__], False


def _usage(arguments: list[Parameter], options: list[Parameter]) -> Iterator[str]:
    for argument in arguments:
        name = argument.names[0] + "..." * argument.repeats
        yield name if argument.required else f"[{name}]"
    yield from (f"{one.names[0]} {one.values[0]}" for one in options if one.required)
    if options:
        yield "[OPTIONS]"


def _as_code(words: list[str]) -> str:
    return ", ".join(f"`{word}`" for word in words if word)


def _code(lines: list[str], language: str) -> str:
    return "\n".join([f"```{language}", *lines, "```"])


if __name__ == "__main__":
    main()
