"""Imports by name, `package.module:function`; errors say what is missing and how to install it."""

import contextlib
import importlib
import inspect
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from sirc._utils.text import closest, shorten

DISTRIBUTION = "torch-sirc"
"""The name to install; on PyPI, `sirc` is another project."""
_MOVED = {"sirc.small": "sirc.models.small"}  # old names of modules, in earlier experiments


def import_module(name: str) -> ModuleType:
    """Import a module, also from the current folder; modules of the standard library are refused."""
    module = re.sub(r"(\.py)?(:.*)?$", "", name).replace("/", ".").lstrip(".")
    if module != name:
        raise ValueError(f"`{shorten(name)}` must be a module, `package.module`. Write `{shorten(module)}`.")
    return _import(name, name, "a module, `package.module`")


def _import(module: str, name: str, forms: str, known: tuple[str, ...] = ()) -> ModuleType:
    """Import the module of a `name`; the error says which `forms` a name may have, and which `known` one is close."""
    module = _MOVED.get(module, module)
    _refuse_standard(name, module)
    if not all(part.isidentifier() for part in module.split(".")):
        raise ValueError(f"`{shorten(name)}` must be {forms}.")
    with current_folder():
        try:
            return importlib.import_module(module)
        except ModuleNotFoundError as error:
            if not error.name or not f"{module}.".startswith(f"{error.name}."):
                raise  # the module exists, but one of its own imports does not
            raise ValueError(
                f"`{shorten(name)}` must be {forms}; no module `{shorten(error.name)}` is installed or in "
                f"'{Path.cwd()}'.{closest(module, known)}"
            ) from error


def import_function(name: str, forms: str) -> Callable[..., Any]:
    """Import `package.module:function`, also from the current folder; the error says which `forms` a name may have.

    Functions of the standard library are refused under any name: it has no networks and no images.
    """
    module, _, path = name.partition(":")
    value: Any = _import(module, name, forms, ("timm", "torchvision"))
    module_name = value.__name__
    for part in path.split("."):
        if not hasattr(value, part):
            public = [other for other in dir(value) if not other.startswith("_")]
            raise ValueError(f"`{module_name}` has no `{shorten(path)}`.{closest(part, public)}")
        value = getattr(value, part)
        if isinstance(value, ModuleType):
            raise ValueError(
                f"`{shorten(name)}` must not lead through another module. Write `{value.__name__}:function`."
            )
    if not callable(value):
        raise ValueError(f"`{shorten(name)}` must be a function; got a {type(value).__name__}.")
    function: Callable[..., Any] = value
    while isinstance(value, partial):
        value = value.func
    _refuse_standard(name, getattr(value, "__module__", None) or "builtins")
    return function


def check_options(name: str, function: Callable[..., Any], options: Mapping[str, object]) -> None:
    """Refuse options that this function does not take, or without one that it needs, before it is called."""
    signature = inspect.signature(function)
    try:
        signature.bind(**options)
    except TypeError as error:
        why, got = shorten(str(error)), shorten(", ".join(options)) or "none"
        raise ValueError(f"`options` must be what `{name}{signature}` takes: {why}; got {got}.") from error


def _refuse_standard(name: str, module: str) -> None:
    if module.partition(".")[0] in sys.stdlib_module_names:
        raise ValueError(
            f"`{shorten(name)}` must be your own or of a library; `{shorten(module)}` is in Python's standard library. "
            "Name another, or rename your module."
        )


def stored_name(name: str) -> str:
    """The name of a `module:function` before its module moved, which stored runs have: so they stay valid."""
    module, colon, function = name.partition(":")
    old = {new: old for old, new in _MOVED.items()}
    return f"{old.get(module, module)}{colon}{function}"


@contextlib.contextmanager
def current_folder() -> Iterator[None]:
    """Allow imports from the current folder."""
    here = os.getcwd()
    sys.path.insert(0, here)
    importlib.invalidate_caches()
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove(here)


def missing_package(what: str, package: str, extra: str = "vision") -> ImportError:
    """The error for a package that is not installed; it names the extra that installs it."""
    return ImportError(f"{what} needs {package}: pip install '{DISTRIBUTION}[{extra}]'")


@contextlib.contextmanager
def needing(what: str, package: str, extra: str = "vision") -> Iterator[None]:
    """Import an optional package inside; if it is not installed, the error names the extra that installs it."""
    try:
        yield
    except ModuleNotFoundError as error:  # not the error of a package that is installed but broken
        raise missing_package(what, package, extra) from error
