"""Trust: the code that an experiment names, and whether this user has made or trusted the experiment."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from sirc._utils.files import atomic_write
from sirc._utils.imports import import_module
from sirc._utils.text import listed, quoted, shorten
from sirc.errors import ConfigError
from sirc.experiment.toml import Document

if TYPE_CHECKING:
    from sirc.experiment.experiment import Experiment

# sirc's functions are listed one by one, as others in its modules would call whatever their options name.
_MODELS = re.compile(r"timm:[\w.-]+|torchvision:\w+|sirc\.(models\.)?small:(resnet|densenet)")
_OWN_DATASETS = re.compile(r"[^:]+|sirc\.data\.glyphs:(letters|greek|cyrillic|digits|handwritten|photos|noise)")
_FILE_OPTIONS = {"checkpoint_path", "pretrained_cfg", "pretrained_cfg_overlay", "cache_dir"}  # paths that timm reads


def is_own(dataset: str) -> bool:
    """Whether sirc itself reads or draws a dataset; others may unpack archives or run code."""
    return _OWN_DATASETS.fullmatch(dataset) is not None


def require_trust(experiment: Experiment, file: Path, trust: bool) -> None:
    """Raise if an `experiment.toml` beside its results names code, unless this user made or trusts it.

    Models of sirc, timm and torchvision need no trust: their code is installed, and runs nothing that the file brings.
    sirc's own datasets need none either. torchvision's datasets do: they may unpack archives and download files.
    """
    model = experiment.model
    datasets = [experiment.source(name).dataset for name in experiment.names]
    names = [name for name in datasets if not is_own(name)]
    if not _MODELS.fullmatch(model.name):
        names.append(model.name)
    names += [f"model.options.{key}" for key in sorted(_FILE_OPTIONS.intersection(model.options))]
    _require([*names, *experiment.imports], file, trust)


def import_named(file: Path, overrides: Iterable[str] = (), *, kept: bool, trust: bool = False) -> None:
    """Import the modules in an experiment's `imports`, which register the scores that it names.

    An experiment that was `kept` beside its results needs trust for them, as for all code that it names.
    """
    names = Document.open(file, overrides, whole=kept).tree.get("imports", [])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ConfigError(f'{file}: `imports` must be a list of modules, such as ["my_scores"]; got {quoted(names)}.')
    if kept:
        _require(names, file, trust)
    for name in names:
        import_module(name)


def _require(names: Sequence[str], file: Path, trust: bool) -> None:
    """Raise if a file names code, unless this user made or trusts it."""
    if names and trust:
        remember(file)
    elif names and not is_remembered(file):
        named = listed([f"`{shorten(name)}`" for name in dict.fromkeys(names)][:5])
        raise ConfigError(
            f"'{file}' names code that this command runs: {named}. You did not make the file here, or did so with an "
            "earlier version. If you trust its author and that code, pass `--trust`, once."
        )


def remember(file: Path) -> None:
    """Note that this user made or trusts the content of a file; if the note cannot be written, trust is asked again."""
    with suppress(OSError):
        place = os.fsencode(file.resolve())
        if (note := _note(file)) is not None and place not in (places := _places(note)):
            note.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            atomic_write(note, lambda handle: handle.write(b"\0".join([*places, place]) + b"\n"))


def is_remembered(file: Path, *, here: bool = False) -> bool:
    """Whether this user made or trusts a file with this content, anywhere or, with `here`, at this path."""
    note = _note(file)
    return note is not None and (os.fsencode(file.resolve()) in _places(note) if here else note.is_file())


def _places(note: Path) -> list[bytes]:
    """The paths of the files with this content when they were made or trusted."""
    return note.read_bytes().removesuffix(b"\n").split(b"\0") if note.is_file() else []


def _note(file: Path) -> Path | None:
    """The note about a file's content, in the user's state folder; None if the user has no home.

    A folder that comes from elsewhere cannot bring such a note, and a changed file has none.
    """
    given = os.environ.get("XDG_STATE_HOME", "")
    state = given if os.path.isabs(given) else os.path.expanduser("~/.local/state")
    content = hashlib.sha256(file.read_bytes()).hexdigest()
    return Path(state, "sirc", "trusted", content) if os.path.isabs(state) else None
