"""What `sirc check` and `sirc select` are about: a fitted scorer with ID and OOD outputs, from files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sirc.cli.results import named_pairs
from sirc.errors import ConfigError

if TYPE_CHECKING:
    from sirc.experiment import Experiment, Run
    from sirc.outputs import Outputs, OutputStore
    from sirc.progress import Progress
    from sirc.scores import Scorer

Case = tuple[str, "Scorer", "Outputs | OutputStore", "dict[str, Outputs | OutputStore]"]

Val = Annotated[Path | None, typer.Option(help="Labelled ID outputs that nothing was fitted on.")]
Train = Annotated[
    Path | None, typer.Option(help="ID training outputs, to fit on; `head_weight` and `head_bias` may be in it.")
]
Tune = Annotated[
    Path | None, typer.Option(help="Other labelled ID outputs, which scores such as `tempered_msp` are tuned on.")
]
Fitted = Annotated[Path | None, typer.Option(help="A fitted scorer instead, as `scorer.save` writes it.")]
Ood = Annotated[list[str] | None, typer.Option("--ood", metavar="NAME=PATH", help="OOD outputs; repeat for several.")]
HeadFile = Annotated[Path | None, typer.Option(help="A file with the `weight` and `bias` of the last layer.")]


def check_given(command: str, runs: list[Path] | None, val: Path | None, *others: object) -> None:
    """Refuse both RUN folders and arrays, or neither."""
    if bool(runs) == (val is not None):
        raise ConfigError(f"`sirc {command}` is for RUN folders or for arrays, `--val VAL.npz`: give one of the two.")
    if runs and any(others):
        raise ConfigError("RUN folders have their own scorer, head and OOD sets; leave these options to `--val`.")


def cases_of_runs(folders: list[Path], inside: Callable[[Experiment, Run], str]) -> Iterator[Case]:
    """Each run of each study: its scorer, its ID outputs of the set that `inside` names, and its OOD outputs."""
    from sirc.experiment import check_outputs, load_studies, title_of
    from sirc.outputs import OutputStore
    from sirc.scores import Scorer

    for study in (study for folder in folders for study in load_studies(folder)):
        for run in study.runs:
            name = inside(study, run)
            check_outputs(study, run, [name, *study.data.ood])
            ood = {other: OutputStore(run.store(other)) for other in study.data.ood}
            title = f"{title_of(study)}, seed {run.seed}"
            yield title, Scorer.load(run.scorer), OutputStore(run.store(name)), dict(ood)


def case_of_arrays(
    val: Path,
    train: Path | None,
    tune: Path | None,
    scorer: Path | None,
    ood: list[str] | None,
    head: Path | None,
    specs: list[str] | None,
    progress: Progress,
    suits: Callable[[str], bool] = lambda spec: True,
) -> Case:
    """The one case that files describe, with a scorer that is loaded or fitted.

    Without `specs`, all of the paper's scores are fitted that the files allow and that `suits`.
    """
    from sirc.experiment import arrays
    from sirc.scores import Scorer, fit

    if (train is None) == (scorer is None):
        raise ConfigError("`--val` needs a scorer: give either `--train TRAIN.npz` to fit one, or `--scorer FILE`.")
    for option, given in (("--head", head), ("--tune", tune)):
        if train is None and given is not None:
            raise ConfigError(f"`{option}` is for fitting on `--train`; a saved scorer has all it needs.")
    inside = arrays.load_outputs(val)
    outside = {name: arrays.load_outputs(path) for name, path in named_pairs("--ood", ood)}
    if scorer is not None:
        return str(scorer), Scorer.load(scorer), inside, outside
    assert train is not None
    training, layer = arrays.load_outputs(train), arrays.find_head_in(head, train)
    tuning = None if tune is None else arrays.load_outputs(tune)
    chosen = specs or [text for text in arrays.possible_specs(training, inside, layer, tuning) if suits(text)]
    if not chosen:
        raise ValueError(f"`sirc(S1, S2)` needs `features` for its S2; '{val}' or '{train}' has none.")
    if tuning is None and (wanting := _wanting(chosen)):
        raise ConfigError(f"`{wanting}` is tuned on labelled ID outputs other than those of `--val`: give `--tune`.")
    return val.stem, fit(chosen, training, head=layer, val=tuning, progress=progress), inside, outside


def _wanting(specs: list[str]) -> str | None:
    from sirc.scores import Needs

    return next((spec for spec in specs if Needs.of([spec]).val), None)
