"""Options that several commands share, and the functions that read their values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sirc.cli.console import reporting
from sirc.errors import ConfigError

if TYPE_CHECKING:
    import torch

    from sirc.experiment import Experiment, Run
    from sirc.progress import Progress


FigureFormat = StrEnum("FigureFormat", ["pdf", "svg", "png"])

Device = Annotated[str, typer.Option(help="`auto` (a GPU if there is one), `cpu`, `cuda`, `cuda:1`, …")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Delete what an earlier run left, and start anew.")]
Replace = Annotated[bool, typer.Option("--overwrite", help="Replace the file.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress, only results and errors.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a setting: `--set train.lr=0.05`. Repeat for several."),
]
Formats = Annotated[
    list[FigureFormat] | None,
    typer.Option("--format", help="Formats of the figures; repeat for several. Default: all."),
]
Open = Annotated[bool, typer.Option("--open", help="Open the page in the browser.")]
RunFolder = Annotated[
    Path, typer.Argument(metavar="RUN", help="The folder of an experiment that was run, or of one of its seeds.")
]
RunSeed = Annotated[int | None, typer.Option("--seed", metavar="N", help="Which seed's network, if there are several.")]
TrainFile = Annotated[
    Path | None, typer.Option(help="ID training outputs, to fit on; `head_weight` and `head_bias` may be in it.")
]
TuningFile = Annotated[
    Path | None, typer.Option(help="Other labelled ID outputs, to tune scores such as `tempered_msp` on.")
]
OodFiles = Annotated[
    list[str] | None, typer.Option("--ood", metavar="NAME=PATH", help="OOD outputs; repeat for several.")
]
ScoreSpecs = Annotated[
    list[str] | None,
    typer.Option(
        "--score",
        metavar="SPEC",
        help="`msp`, `sirc(msp, l1)`, …; repeat. Default: all of the scorer's, or the paper's that can be fitted.",
    ),
]
HeadFile = Annotated[Path | None, typer.Option(help="A file with the `weight` and `bias` of the last layer.")]


def named_pairs(option: str, texts: list[str] | None) -> list[tuple[str, str]]:
    """Read the NAME=VALUE of an option that may be repeated."""
    pairs = []
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not (name and equals and value):
            raise ConfigError(f"`{option}` must be NAME=VALUE; got {text!r}.")
        pairs.append((name, value))
    if len(dict(pairs)) < len(pairs):
        raise ConfigError(f"`{option}` must have each name once; got {', '.join(name for name, _ in pairs)}.")
    return pairs


def refuse_existing(path: Path, overwrite: bool) -> None:
    """Refuse to replace a file before any work is done, and name the option that allows it."""
    if path.exists() and not overwrite:
        raise FileExistsError(f"'{path}' exists already. Pass `--overwrite` to replace it.")


def find_runs(folder: Path, seed: int | None) -> tuple[Experiment, tuple[Run, ...]]:
    """The experiment of a folder and its runs, or the one with this seed. The folder may also be that of one run."""
    from sirc.experiment import FILE, load_studies, load_study

    place = folder.absolute()
    of_run = not (place / FILE).exists() and (place.parent / FILE).is_file()
    studies = [load_study(place.parent)] if of_run else load_studies(folder)
    if len(studies) > 1:
        listed = ", ".join(f"'{study.folder}'" for study in studies)
        raise ConfigError(f"RUN must be one experiment; '{folder}' has {len(studies)}: {listed}. Name one of them.")
    (study,) = studies
    runs = tuple(run for run in study.runs if not of_run or run.folder.name == place.name)
    if not runs:
        raise ConfigError(f"'{folder}' must be the folder of an experiment or of one of its runs; it is neither.")
    return study, runs if seed is None else runs_of_seeds(runs, [seed])


def runs_of_seeds(runs: Sequence[Run], seeds: Sequence[int]) -> tuple[Run, ...]:
    """The runs with these seeds, each once."""
    known = {run.seed: run for run in runs}
    for seed in seeds:
        if seed not in known:
            listed = ", ".join(map(str, known))
            raise ConfigError(f"`--seed` must be one of the experiment's seeds ({listed}); got {seed}.")
    return tuple(known[seed] for seed in dict.fromkeys(seeds))


@contextmanager
def on_device(device: str, quiet: bool) -> Iterator[tuple[torch.device, Progress]]:
    """Choose the device, join the other processes, if there are any, and open the progress display."""
    import torch

    from sirc._utils import distributed

    name = ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
    try:
        where = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"`--device` must be auto, cpu, cuda or cuda:N; got {device!r}.") from error
    if where.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            f"`--device {device}` needs a GPU that this PyTorch can use; there is none. Use `--device cpu`."
        )
    with distributed.process_group(where), reporting(quiet=quiet) as progress:
        if where.type == "cuda":
            where = torch.device("cuda", torch.cuda.current_device() if where.index is None else where.index)
            torch.cuda.set_device(where)  # accelerate trains on the current one
        yield where, progress
