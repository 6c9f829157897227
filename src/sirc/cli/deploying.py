"""What the commands of deployment find: the run that is meant, its network, and data that may calibrate it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sirc.errors import ConfigError

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from sirc.deploy import SelectiveClassifier
    from sirc.experiment import Experiment, Run
    from sirc.outputs import Outputs, OutputStore
    from sirc.progress import Progress
    from sirc.scores import Scorer

_PREFERRED = ("sirc(entropy, residual)", "sirc(msp, residual)", "sirc(doctor, residual)")


def find_runs(folder: Path, seed: int | None) -> tuple[Experiment, tuple[Run, ...]]:
    """The experiment in a folder, and its runs, or that of the seed; the folder may be that of one run, too."""
    from sirc.experiment import FILE, load_studies, load_study

    if not (folder / FILE).exists() and (folder.absolute().parent / FILE).is_file():
        study = load_study(folder.absolute().parent)
        runs = tuple(run for run in study.runs if run.folder.name == folder.absolute().name)
        if not runs:
            raise ConfigError(f"'{folder}' must be the folder of an experiment or of one of its runs; it is neither.")
    else:
        studies = load_studies(folder)
        if len(studies) > 1:
            listed = ", ".join(f"'{study.folder}'" for study in studies)
            raise ConfigError(f"RUN must be one experiment; '{folder}' has {len(studies)}: {listed}. Name one of them.")
        study, runs = studies[0], studies[0].runs
    if seed is not None:
        runs = tuple(run for run in runs if run.seed == seed)
        if not runs:
            listed = ", ".join(str(run.seed) for run in study.runs)
            raise ConfigError(f"`--seed` must be one of the run's, {listed}; got {seed}.")
    return study, runs


def find_run(folder: Path, seed: int | None) -> tuple[Experiment, Run]:
    """The one run that is meant."""
    study, runs = find_runs(folder, seed)
    if len(runs) > 1:
        listed = ", ".join(str(run.seed) for run in runs)
        raise ConfigError(f"'{folder}' has runs of the seeds {listed}: say which with `--seed {runs[0].seed}`.")
    return study, runs[0]


def load_selective(path: Path, folder: Path, seed: int | None) -> tuple[SelectiveClassifier, Experiment]:
    """A saved classifier with the network of the run that it was calibrated for, among those of the folder."""
    from sirc.deploy import SelectiveClassifier, read
    from sirc.experiment import network
    from sirc.models import fingerprint

    wanted = read(path)[0]["model"]
    study, runs = find_runs(folder, seed)
    for run in runs:
        model = network(study, run)
        if len(runs) == 1 or fingerprint(model) == wanted:
            return SelectiveClassifier.load(path, model), study  # refuses another model, in words
    seeds = ", ".join(str(run.seed) for run in runs)
    raise ValueError(f"'{path}' was calibrated for none of the networks in '{folder}' (seeds {seeds}). Calibrate anew.")


def choose_score(scorer: Scorer, asked: str | None) -> str:
    """The score asked for, or the best founded of those that were fitted."""
    from sirc.scores import parse

    known = {str(parse(spec)): spec for spec in scorer.specs}
    if asked is not None:
        try:
            spec = str(parse(asked))
        except ValueError as error:
            raise ConfigError(f"`--score`: {error}") from error
        if spec not in known:
            raise ConfigError(f"`--score` must be one of the run's: {'; '.join(known)}; got {asked!r}.")
        return known[spec]
    ours = [spec for spec in known if spec.startswith("sirc(")]
    return known[next(spec for spec in (*_PREFERRED, *ours, *known) if spec in known)]


def calibration_data(
    study: Experiment,
    run: Run,
    val: Path | None,
    model: nn.Module,
    *,
    device: torch.device,
    progress: Progress,
) -> Outputs | OutputStore:
    """The outputs that set the threshold: those of a file, of the validation images, or at worst of the test images."""
    from sirc.errors import StoreError
    from sirc.experiment import arrays, check_outputs, extract_run
    from sirc.models import fingerprint
    from sirc.outputs import OutputStore

    if val is not None:
        given = arrays.load_outputs(val)
        if isinstance(given, OutputStore) and given.model not in (None, fingerprint(model)):
            raise StoreError(
                f"'{val}' must hold outputs of this run's network; they are another's. Extract them again."
            )
        return given
    if not study.data.validates or study.tuned:
        check_outputs(study, run, ["test"])
        why = "tuned scores on its validation images" if study.tuned else "has no validation images"
        way = "give `--val`" if study.tuned else "give `--val`, or `data.validation` or `data.holdout` in the TOML"
        progress.note(
            f"note: the experiment {why}, so its test images set the threshold. What the test set says of this "
            f"threshold is then no longer honest: {way}."
        )
        return OutputStore(run.store("test"))
    try:
        check_outputs(study, run, ["validation"])
    except FileNotFoundError:
        extract_run(study, run, ["validation"], device=device, progress=progress)
    return OutputStore(run.store("validation"))


def class_names(study: Experiment, count: int | None, progress: Progress) -> list[str] | None:
    """The names of the classes, from the training images; None where they cannot be had."""
    from sirc.experiment import images_of

    try:
        names = images_of(study, "train", augmented=True).classes
    except (ValueError, OSError, ImportError) as error:
        progress.note(f"note: without names of classes, as the training images cannot be opened: {error}")
        return None
    return list(names) if names and len(names) == count else None


def example_images(study: Experiment, size: int | tuple[int, int] | None) -> Tensor:
    """A batch to export with: noise of the network's size, or, where images keep their own, one of the test images."""
    import torch

    from sirc.experiment import images_of

    if size is None:
        item = images_of(study, "test")[0]
        image = item[0] if isinstance(item, tuple) else item
        assert isinstance(image, torch.Tensor)
        size = (image.shape[-2], image.shape[-1])
    height, width = (size, size) if isinstance(size, int) else size
    return torch.randn(3, 3, height, width, generator=torch.Generator().manual_seed(0))
