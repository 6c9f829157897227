"""Options that several commands share, and functions that read their values."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, get_type_hints

from typer import Argument, Option

from sirc._utils.imports import import_module
from sirc._utils.text import listed, quoted
from sirc.cli.console import reporting
from sirc.errors import ConfigError, OnError

if TYPE_CHECKING:
    import torch

    from sirc.experiment import Experiment, Run
    from sirc.progress import Progress


Names = list[str] | None
FigureFormat = StrEnum("FigureFormat", ["pdf", "svg", "png"])  # typer takes no list of a `Literal`
Device = Annotated[str, Option(help="`auto` (a GPU if there is one), `cpu`, `cuda`, `cuda:1`, …")]
Overwrite = Annotated[bool, Option("--overwrite", help="Delete earlier results, and start again.")]
Replace = Annotated[bool, Option("--overwrite", help="Replace the file.")]
Quiet = Annotated[bool, Option("--quiet", "-q", help="No progress, only results and errors.")]
Overrides = Annotated[Names, Option("--set", metavar="KEY=VALUE", help="Override a setting: `train.lr=0.05`; repeat.")]
Formats = Annotated[list[FigureFormat] | None, Option("--format", help="Formats of the figures; repeat. Default: all.")]
Trust = Annotated[bool, Option("--trust", help="Allow the code that a run's folder names, if it comes from elsewhere.")]
Open = Annotated[bool, Option("--open", help="Open the page in the browser.")]
OodFiles = Annotated[Names, Option("--ood", metavar="NAME=PATH", help="OOD outputs, with a name for them; repeat.")]
TuningFile = Annotated[Path | None, Option(help="Other labelled ID outputs, to tune scores such as `tempered_msp` on.")]
OnErrorOption = Annotated[OnError | None, Option(help="At an unreadable image: `stop`, or `skip` and count it.")]
Host = Annotated[str, Option(help="The address to listen on; `0.0.0.0` is every address.")]
QuietRequests = Annotated[bool, Option("--quiet", "-q", help="Print no line for each request.")]
Imports = Annotated[
    Names, Option("--import", metavar="MODULE", help="Import a module that registers scores or metrics; repeat.")
]
RUN_FOLDERS = Argument(metavar="RUN", help="Folders made by `sirc run` or `sirc demo`.")


class Fitting(NamedTuple):
    """Files of outputs, and how to fit scores on them."""

    train: Annotated[Path | None, Option(help="ID training outputs; may hold `head_weight` and `head_bias`.")] = None
    ood: OodFiles = None
    head: Annotated[Path | None, Option(help="A file with the `weight` and `bias` of the last layer.")] = None
    score: Annotated[Names, Option(metavar="SPEC", help="`msp`, `sirc(msp, l1)`, …; repeat. Default: all.")] = None
    crossfit: Annotated[str | None, Option(help="Folds: `auto`, a number, or 0 for in-sample. Default: `auto`.")] = None
    on_unfit: Annotated[OnError | None, Option(help="If a score cannot be fitted: `stop`, or `skip` it.")] = None

    @property
    def folds(self) -> Literal["auto"] | int:
        """`--crossfit` as a value."""
        if self.crossfit in (None, "auto"):
            return "auto"
        if not self.crossfit.isdecimal():
            raise ConfigError(f"`--crossfit` must be auto or a whole number; got {quoted(self.crossfit)}.")
        return int(self.crossfit)

    @property
    def unfit(self) -> OnError:
        """`--on-unfit` as a value: by default, `stop` for scores that `--score` names, and `skip` for others."""
        if not self.score and self.on_unfit == "stop":
            raise ConfigError("`--on-unfit stop` is for scores that `--score` names; others are skipped.")
        return self.on_unfit or ("stop" if self.score else "skip")


def with_options(command: Callable[..., None], *, imports: bool) -> Callable[..., None]:
    """Replace each group of a command's options, a `NamedTuple`, by its fields, and add `--import` if `imports`."""
    groups = {name: kind for name, kind in get_type_hints(command).items() if _is_group(kind)}

    @wraps(command)
    def called(import_: Names = None, **options: object) -> None:
        for name in import_ or ():
            import_module(name)
        filled = {name: _take(kind, options) for name, kind in groups.items()}
        command(**filled, **options)

    parameters = _parameters_of(command)
    if imports:
        keyword = inspect.Parameter.KEYWORD_ONLY
        parameters.append(inspect.Parameter("import_", keyword, default=None, annotation=Imports))
    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    called.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return called


def _is_group(kind: object) -> bool:
    return hasattr(kind, "_fields")


def _take(group: Any, options: dict[str, object]) -> Any:
    """Remove the fields of a group from the options, and give the group; groups may hold groups."""
    kinds = get_type_hints(group)
    return group(*(_take(kinds[name], options) if _is_group(kinds[name]) else options.pop(name) for name in kinds))


def _parameters_of(command: Callable[..., object]) -> list[inspect.Parameter]:
    """The parameters of a command with their types, with the fields of a group in its place."""
    hints = get_type_hints(command, include_extras=True)
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(command).parameters.values():
        kind = hints[parameter.name]
        parameters += _parameters_of(kind) if _is_group(kind) else [parameter.replace(annotation=kind)]
    return parameters


def named_values(option: str, texts: Names, form: str = "NAME=PATH") -> dict[str, str]:
    """Read an option with NAME=VALUE, which may be repeated with other names."""
    values: dict[str, str] = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not (name and equals and value):
            raise ConfigError(f"`{option}` must be {form}, where NAME is your choice; got {quoted(text)}.")
        if name in values:
            raise ConfigError(f"`{option}` must have each name once; got {quoted(name)} twice.")
        values[name] = value
    return values


def refuse_unused(why: str, **options: object) -> None:
    """Refuse options that were given but would have no effect; `why` is the reason, and what to do."""
    given = [name for name, value in options.items() if value is not None and value is not False]
    if given:
        names = listed([f"`--{name.replace('_', '-')}`" for name in given])
        raise ConfigError(f"{names} would do nothing: {why}.")


def decisions_of(table: Path) -> Path:
    """The folder in which `predict_folder` keeps the decisions of an unfinished table."""
    return table.with_name(f".{table.name}.parts")


def has_begun(table: Path) -> bool:
    """Whether a stopped `sirc predict` left decisions for this table."""
    return decisions_of(table).is_dir()


def read_runs(path: Path, overrides: Names, seeds: list[int] | None, trust: bool) -> tuple[Experiment, tuple[Run, ...]]:
    """Read an experiment and pick its runs with these seeds, by default all.

    An experiment that lies beside its results may come from someone else: code that it names needs `trust`.
    """
    from sirc.experiment import FILE, Experiment, import_named, require_trust

    beside = (".made-from", "results.csv", "study.json", "seed-*")
    kept = path.name == FILE and any(any(path.parent.glob(name)) for name in beside)
    import_named(path, overrides or (), kept=kept, trust=trust)
    study = Experiment.read(path, overrides or ())
    if kept:
        require_trust(study, path, trust)
    return study, runs_of_seeds(study.runs, seeds) if seeds else study.runs


def runs_of_seeds(runs: Sequence[Run], seeds: Sequence[int]) -> tuple[Run, ...]:
    """The runs with these seeds, each once."""
    known = {run.seed: run for run in runs}
    for seed in seeds:
        if seed not in known:
            listed = ", ".join(map(str, known))
            raise ConfigError(f"`--seed` must be one of the experiment's seeds ({listed}); got {seed}.")
    return tuple(known[seed] for seed in dict.fromkeys(seeds))


def note_test_images(study: Experiment, purpose: str, others: str, progress: Progress) -> None:
    """Note that test images are used for want of validation images, what that costs, and which options give others."""
    reason = "tuned scores on its validation images" if study.tuned else "has no outputs of validation images"
    advice = f"give {others}{'' if study.tuned else ', or `data.validation` or `data.holdout` in the TOML'}"
    if study.data.validates and not study.tuned:
        advice = "extract the others first, `sirc extract EXPERIMENT.toml --only validation`"
    progress.note(
        f"note: '{study.folder}' {reason}, so its test images {purpose}. Results on the test set are then "
        f"optimistic: {advice}."
    )


@contextmanager
def on_device(device: str, quiet: bool) -> Iterator[tuple[torch.device, Progress]]:
    """Choose the device, join the other processes of torchrun, and open the progress display."""
    import torch

    from sirc._utils import distributed

    name = ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
    try:
        where = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"`--device` must be auto, cpu, cuda or cuda:N; got {quoted(device)}.") from error
    if where.type == "cuda" and (where.index or 0) >= (count := torch.cuda.device_count()):
        there = f"it can use {count}, the first is cuda:0" if count else "there is none. Use `--device cpu`"
        raise ConfigError(f"`--device {device}` needs a GPU that this PyTorch can use; {there}.")
    with distributed.process_group(where):
        if where.type == "cuda":
            where = torch.device("cuda", torch.cuda.current_device() if where.index is None else where.index)
            torch.cuda.set_device(where)  # accelerate trains on the current one
        yield where, reporting(quiet)
