"""Endings of commands: exit codes, errors, and what a stopped command keeps."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import typer

from sirc._utils.text import first_line, quoted
from sirc._utils.written import WRITTEN
from sirc.cli.console import printing_warnings, say
from sirc.cli.options import decisions_of, has_begun
from sirc.cli.translate import in_options, name_of
from sirc.errors import ConfigError

INTERRUPTED = 130
_NOTHING = "nothing was written, and the same command begins anew"
_STAYS = "what was written so far stays; `--overwrite` replaces it"
_BEGINNINGS = ("meta.json", "head.safetensors")  # of stores and runs, written before the first row
# These commands go on where they were stopped.
_GO_ON = ("train", "extract", "fit", "run", "demo", "data get", "data noise", "data colonoscopy")
_CHOSEN = "the choices made so far are kept, and the same command chooses all of them again"
_DRAWN = "the figures drawn so far stay, and the same command draws all of them again"


def ending(command: Callable[..., None]) -> Callable[..., None]:
    """Wrap a command: if it fails or is stopped, say why and what is kept, and exit with the right code."""
    translate = functools.partial(in_options, command)

    @functools.wraps(command)
    def run(**options: object) -> None:
        WRITTEN.clear()
        try:
            with printing_warnings(translate):
                command(**options)
        except KeyboardInterrupt:
            say(f"stopped; {what_stays(name_of(command), options)}")
            raise typer.Exit(INTERRUPTED) from None
        except (ValueError, OSError, ImportError, MemoryError) as error:
            say(f"error: {translate(_text(error))}")
            raise typer.Exit(2 if isinstance(error, ConfigError) else 1) from error
        except RuntimeError as error:
            if not str(error).startswith("DataLoader worker"):  # other faults show where they are
                raise
            why = first_line(error).rstrip(" .")
            say(f"error: a process that reads images has died ({why}); {what_stays(name_of(command), options)}")
            raise typer.Exit(1) from error

    return run


def _text(error: Exception) -> str:
    """The message of an error; a long file name in one of the operating system is shortened."""
    name = error.filename if isinstance(error, OSError) else None
    return str(error) if name is None else str(error).replace(repr(name), quoted(name))


def what_stays(name: str, options: Mapping[str, Any]) -> str:
    """Say what a stopped command keeps, from the files that it wrote, and what the same command does next."""
    if name in ("serve", "try"):  # both catch Ctrl-C once they serve
        return "nothing was served yet"
    if name in _GO_ON:
        return _goes_on(bool(_written()), options)
    if name == "plot":
        return _DRAWN if WRITTEN else _NOTHING
    runs = options.get("runs") or ()
    if name in ("check", "select"):
        return _CHOSEN if _wrote(*runs) else _NOTHING
    out, report = options.get("out"), options.get("report")
    if name == "predict" and has_begun(options["out"]):
        begun = _wrote(decisions_of(options["out"]))  # an earlier command may have had other options
        return _goes_on(begun, options, older="")  # the older table is replaced in the end
    if _wrote(out, report, *runs):
        return _STAYS
    if name == "guard" and options["path"]:
        begun = _wrote(options["path"])
        if options.get("overwrite") and any(place is not None and place.exists() for place in (out, report)):
            return f"{_kept(begun)}; with another `--out` instead of `--overwrite` the same command goes on from there"
        return _goes_on(begun, options)
    if name == "calibrate" and _wrote(options["run"]):
        return _goes_on(True, {})  # its `--overwrite` is about the file
    spill = options["spill"] if name == "evaluate" else None
    if spill is not None and (_wrote(spill) or any(spill.glob("*/part-*.safetensors"))):
        return f"scores in '{spill}' are kept, and the same command goes on from there"
    return _NOTHING


def _goes_on(begun: bool, options: Mapping[str, Any], older: str = " and keeps older results of these settings") -> str:
    """Say what is kept by a command that goes on where it stopped, unless an option makes it begin anew."""
    if anew := next((option for option in ("overwrite", "redo") if options.get(option)), None):
        return f"{_kept(begun)}; without `--{anew}` the same command goes on with what was begun{older}"
    return f"{_kept(begun)}, and the same command goes on {'from there' if begun else 'with what there is'}"


def _kept(begun: bool) -> str:
    return "what was finished is kept" if begun else "nothing new was finished"


def _wrote(*places: Path | None) -> bool:
    """Whether one of these files, or a file in one of these folders, was written."""
    roots = {place.resolve() for place in places if place is not None}
    return any(not roots.isdisjoint((path, *path.parents)) for path in _written())


def _written() -> list[Path]:
    """The files that the command wrote, without those that hold no finished work."""
    return [path.resolve() for path in WRITTEN if path.name not in _BEGINNINGS]
