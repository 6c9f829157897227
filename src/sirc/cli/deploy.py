"""Commands that put a classifier to use: guard, calibrate, predict, try, export."""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from sirc._utils.text import quoted
from sirc.cli.console import is_main, open_page, result, say
from sirc.cli.options import (
    Device,
    Host,
    OnErrorOption,
    OodFiles,
    Overwrite,
    Quiet,
    QuietRequests,
    Replace,
    Trust,
    has_begun,
    named_values,
    note_test_images,
    on_device,
    refuse_unused,
    runs_of_seeds,
)
from sirc.cli.translate import in_options
from sirc.errors import ConfigError, OnError

if TYPE_CHECKING:
    import pandas as pd
    import torch
    from torch import Tensor, nn

    from sirc.deploy import SelectiveClassifier
    from sirc.experiment import Experiment, Run
    from sirc.outputs import Outputs, OutputStore
    from sirc.progress import Progress
    from sirc.scores import Scorer

_SAVED_GUARD = Option(metavar="FILE", help="Written by `calibrate` or `guard`; or `hf://owner/name`.")
Workers = Annotated[int, Option(help="Processes that read images.", min=0)]
RunSeed = Annotated[int | None, Option("--seed", metavar="N", help="The seed of the run, if there are several.")]
Colour = tuple[float, float, float] | None
Recall = Annotated[float | None, Option(help="Accept at least this share of right predictions. Default: 0.95.")]
Risk = Annotated[float | None, Option(help="Or: at most this share of errors among accepted ID input.")]
Plain = Annotated[bool, Option("--plain", help="Only estimate, without a promise (not with `--risk`).")]
_PREFERRED = ("scod", "sirc(entropy, residual)", "sirc(msp, residual)", "sirc(doctor, residual)")


def guard(
    model: Annotated[
        str,
        Argument(metavar="MODEL", help="`timm:NAME`, `torchvision:NAME`, `…=WEIGHTS`; a folder; `module:function`."),
    ],
    train: Annotated[Path, Argument(metavar="TRAIN", help="Training images in class folders, or their outputs.")],
    val: Annotated[Path | None, Argument(metavar="VAL", help="The same, not trained on, for the threshold.")] = None,
    recall: Recall = None,
    risk: Risk = None,
    delta: Annotated[float, Option(help="The promise holds with probability 1 − δ.")] = 0.05,
    plain: Plain = False,
    score: Annotated[str, Option(metavar="SPEC", help="The score that ranks inputs.")] = "scod",
    head: Annotated[str | None, Option(metavar="LAYER", help="The last linear layer. Default: it is found.")] = None,
    classes: Annotated[Path | None, Option(help="A text file of class folders in the order of the logits.")] = None,
    resize: Annotated[int | None, Option(help="The shorter side after resizing. Default: as published.", min=1)] = None,
    crop: Annotated[int | None, Option(help="The side of the central square. Default: as published.", min=1)] = None,
    interpolation: Annotated[str | None, Option(help="bilinear, bicubic or lanczos. Default: as published.")] = None,
    mean: Annotated[Colour, Option(metavar="R G B", help="The mean of pixels, in 0…1. Default: as published.")] = None,
    std: Annotated[Colour, Option(metavar="R G B", help="Their standard deviation. Default: as published.")] = None,
    path: Annotated[Path | None, Option(help="A folder that keeps outputs, to resume a stopped command.")] = None,
    report: Annotated[Path | None, Option(help="Also write an HTML page to this file.")] = None,
    out: Annotated[Path, Option(help="The file to write.")] = Path("guard.safetensors"),
    overwrite: Overwrite = False,
    batch_size: Annotated[int, Option(help="Images in a batch; fewer on a CPU if they are large.", min=1)] = 64,
    workers: Workers = 0,
    on_error: OnErrorOption = None,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Make a trained model say "I don't know", and print what that promises.

    MODEL has its published weights, or yours: `timm:resnet18=weights.safetensors`. It may also be a folder in the
    format of timm and the Hub, or a function of yours that returns the network with its weights. Without VAL, a part of
    TRAIN sets the threshold, and nothing is promised.

    Example: `sirc guard timm:resnet18=weights.pth photos/train photos/validation --out guard.safetensors`

    Then: `sirc predict photos/new --model guard.safetensors --run timm:resnet18=weights.pth`
    """
    from sirc._utils.files import refuse_existing
    from sirc.data import Source, class_names
    from sirc.deploy import guard as make_guard

    _refuse_plain_risk(plain, risk)
    for data in filter(None, (train, val)):
        if str(data).startswith(("timm:", "torchvision:")):
            raise ConfigError(f"the model comes first: `sirc guard MODEL TRAIN VAL`; got {quoted(str(data))} after it.")
    for file in filter(None, (out, report)):
        refuse_existing(file, overwrite)
    names = None if classes is None else class_names(Source("folder", str(train), classes=str(classes)), Path())
    preparation = {"resize": resize, "crop": crop, "interpolation": interpolation, "mean": mean, "std": std}
    with on_device(device, quiet) as (where, progress):
        classifier = make_guard(
            model, train, val, recall=recall, risk=risk, delta=None if plain else delta, score=score, head=head,
            classes=names,
            preprocess={name: value for name, value in preparation.items() if value} or None, path=path,
            batch_size=batch_size, workers=workers, device=where, on_error=on_error or "stop",
            overwrite=overwrite, progress=progress,
        )  # fmt: skip
        if is_main():
            _save(classifier, str(classifier), out, overwrite, report)


def calibrate(
    run: Annotated[Path, Argument(metavar="RUN", help="The folder of an experiment, or of one of its seeds.")],
    seed: RunSeed = None,
    score: Annotated[str | None, Option(metavar="SPEC", help="Default: chosen by `sirc select` or `check`.")] = None,
    recall: Recall = None,
    coverage: Annotated[float | None, Option(help="Or: accept at least this share of ID input.")] = None,
    risk: Risk = None,
    delta: Annotated[float | None, Option(help="The promise holds with probability 1 − δ. Default: 0.05.")] = None,
    plain: Plain = False,
    alpha: Annotated[float | None, Option(help="Or: the least cost for this share of ID input.")] = None,
    beta: Annotated[float | None, Option(help="With `--alpha`: the cost of accepting ID✗; of OOD, 1 − β.")] = None,
    reject_cost: Annotated[float | None, Option(help="With `--alpha`: the cost of a rejected input.")] = None,
    ood: OodFiles = None,
    val: Annotated[Path | None, Option(help="Labelled ID outputs, not fitted on: a file or a store's folder.")] = None,
    on_error: OnErrorOption = None,
    out: Annotated[Path, Option(help="The file to write.")] = Path("selective.safetensors"),
    overwrite: Replace = False,
    trust: Trust = False,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Set the threshold of a run's network on labelled ID data, and print what it promises.

    The default score is the one that `sirc select` or `sirc check` chose for the run, else `scod` or one of SIRC's.

    The threshold is set on the outputs of `--val`, or else on the experiment's validation images. If it has none, or
    tuned scores on them, the test images are used, and results on these become optimistic. If the score was chosen on
    one half of the images, the other half sets the threshold. If the data cannot support the promise, nothing is
    written.

    `--alpha` asks for the least expected cost on the run's OOD sets, or those of `--ood`, and promises nothing. Then a
    rejected input costs `--reject-cost`, or nothing as long as `--recall` of ID✓ is kept.

    Example: `sirc calibrate runs/resnet50_imagenet200 --seed 1 --recall 0.95 --delta 0.05 --out selective.safetensors`
    """
    from sirc._utils.files import refuse_existing
    from sirc.deploy import SelectiveClassifier
    from sirc.experiment import arrays, load_head, network
    from sirc.scores import Scorer

    if alpha is None:
        refuse_unused("for the least cost, give `--alpha` too", beta=beta, reject_cost=reject_cost, ood=ood)
    else:
        refuse_unused("the least cost, which `--alpha` asks for, has no promise", delta=delta, plain=plain)
    goal = _goal({"recall": recall, "coverage": coverage, "risk": risk}, delta, plain, alpha, beta, reject_cost)
    study, runs = _find_runs(run, seed, trust)
    if len(runs) > 1:
        listed = ", ".join(str(run.seed) for run in runs)
        raise ConfigError(f"'{run}' has runs of the seeds {listed}: say which with `--seed {runs[0].seed}`.")
    (chosen_run,) = runs
    refuse_existing(out, overwrite)
    with on_device(device, quiet) as (where, progress):
        if not chosen_run.scorer.exists():
            raise FileNotFoundError(f"there is no '{chosen_run.scorer}'. Fit the scores first: `sirc fit …`.")
        scorer = Scorer.load(chosen_run.scorer)
        spec = _choose_score(scorer, score, chosen_run, progress)
        model = network(study, chosen_run)
        data, rows = _calibration_data(study, chosen_run, val, model, where, on_error, progress)
        head, classes = load_head(chosen_run.head)[0], _class_names(study, scorer.num_classes, progress)
        selective = SelectiveClassifier(model, scorer, spec, head=head, classes=classes, preprocess=study.preprocess)
        if val is None and study.extract.precision != "fp32":
            progress.note(
                f"note: the outputs that set the threshold were computed in {study.extract.precision}; decisions are "
                "in fp32. The threshold allows for the difference; with `extract.precision` fp32 it would be tighter."
            )
        if alpha is not None:
            outside = {name: arrays.load_outputs(path) for name, path in named_values("--ood", ood).items()}
            goal["ood"] = outside or _ood_outputs(study, chosen_run, model)
        selective.calibrate(data, rows=rows, **goal)
        if is_main():
            _save(selective, f"{spec}\n{selective.threshold}", out, overwrite)


def _goal(
    target: Mapping[str, float | None],
    delta: float | None,
    plain: bool,
    alpha: float | None,
    beta: float | None,
    reject_cost: float | None,
) -> dict[str, Any]:
    """Check the goal of a threshold, and give it as arguments of `calibrate`, without OOD data."""
    given = {name: value for name, value in target.items() if value is not None}
    if plain:
        refuse_unused("`--plain` leaves the promise out", delta=delta)
    if alpha is not None and (not given.keys() <= {"recall"} or (not given and reject_cost is None)):
        raise ConfigError("`--alpha`, for the least cost, needs `--reject-cost` or `--recall`, and no other goal.")
    if len(given) > 1:
        raise ConfigError(f"give one of --recall, --coverage and --risk; got {' and '.join(given)}.")
    _refuse_plain_risk(plain, target["risk"])
    delta = 0.05 if delta is None else delta
    for name, value in {**given, "delta": delta}.items():
        if not 0 < value <= 1 or (name == "delta" and value == 1):
            raise ConfigError(f"`--{name}` must lie between 0 and 1; got {value:g}.")
    if alpha is None:
        return {**(given or {"recall": 0.95}), "delta": None if plain else delta}
    mixture = {"alpha": alpha, "beta": 0.5 if beta is None else beta}
    for name, share in mixture.items():
        if not 0 <= share <= 1:
            raise ConfigError(f"`--{name}` must be a share, from 0 to 1; got {share:g}.")
    if reject_cost is not None and not 0 <= reject_cost < math.inf:
        raise ConfigError(f"`--reject-cost` must be a cost, 0 or more; got {reject_cost:g}.")
    return {**given, **mixture, "reject_cost": reject_cost}


def _refuse_plain_risk(plain: bool, risk: float | None) -> None:
    if plain and risk is not None:
        raise ConfigError("`--plain` is not for `--risk`: a risk without a promise would be too low a number.")


def _save(classifier: SelectiveClassifier, about: str, out: Path, overwrite: bool, report: Path | None = None) -> None:
    """Write a classifier and its page, then print what it promises; if no threshold can keep that, write nothing."""
    feasible = classifier.threshold is not None and classifier.threshold.feasible
    if feasible:  # write before printing, which fails if the reader of a pipe is gone
        classifier.save(out, overwrite=overwrite)
        if report is not None:
            classifier.report(report, overwrite=overwrite)
    result(about)
    if not feasible:
        say("error: nothing was written, as no threshold keeps this promise; see the advice above")
        raise typer.Exit(1)
    result("\n".join(str(file) for file in (report, out) if file is not None))


def predict(
    folder: Annotated[Path, Argument(metavar="FOLDER", help="Images, in subfolders of any depth.")],
    model: Annotated[str | None, _SAVED_GUARD] = None,
    run: Annotated[Path | None, Option(metavar="RUN", help="With `--model`: its run, or the MODEL of `guard`.")] = None,
    onnx: Annotated[Path | None, Option(help="Instead of both: a graph that `sirc export` wrote.")] = None,
    seed: RunSeed = None,
    out: Annotated[Path, Option(help="The CSV file to write.")] = Path("decisions.csv"),
    overwrite: Replace = False,
    batch_size: Annotated[int, Option(help="Images in a batch.", min=1)] = 32,
    workers: Workers = 0,
    trust: Trust = False,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Accept or reject every image in a folder, and write a CSV file with a row for each.

    Its columns are path, accepted, label, class, confidence, reason and error. The reason for a rejection is `softmax`,
    or the S2 that lowered the confidence; a graph from an earlier version only says `rejected`. An image that cannot be
    read is not accepted, and its row holds the error. The same command resumes a stopped one.

    Example: `sirc predict photos --model selective.safetensors --run runs/resnet50_imagenet200 --out decisions.csv`

    With an exported graph: `sirc predict photos --onnx model.onnx`

    With four processes: `torchrun --nproc-per-node 4 -m -- sirc predict …`; without `--`, torchrun reads `--run` as an
    option of its own.
    """
    if (onnx is None) == (model is None) or (model is None) != (run is None):
        raise ConfigError("give either `--model FILE --run RUN` or `--onnx FILE`.")
    if onnx is not None:
        elsewhere = None if device in ("auto", "cpu") else device
        refuse_unused("a graph needs no run, and is computed on the CPU", seed=seed, trust=trust, device=elsewhere)
    from sirc._utils.files import refuse_existing
    from sirc.deploy import predict_folder

    refuse_existing(out, overwrite or has_begun(out))
    with on_device(device, quiet) as (where, progress):
        classifier = onnx if model is None or run is None else _load_selective(model, run, seed, trust)[0].to(where)
        assert classifier is not None
        table = predict_folder(
            classifier,
            folder,
            path=out,
            overwrite=overwrite,
            batch_size=batch_size,
            workers=workers,
            progress=progress,
        )
        result(_summary(table))
        result(str(out))


def try_(
    guard: Annotated[str, Argument(metavar="GUARD", help="Written by `guard` or `calibrate`; or `hf://owner/name`.")],
    model: Annotated[Path, Argument(metavar="MODEL", help="Its network: a run, or the MODEL of `sirc guard`.")],
    train: Annotated[Path | None, Option(help="The folder of its training images, to show the nearest.")] = None,
    outputs: Annotated[Path | None, Option(help="With `--train`: the folder of `sirc guard --path`.")] = None,
    host: Host = "127.0.0.1",
    port: Annotated[int, Option(help="The port; 0 takes a free one.", min=0, max=65535)] = 0,
    no_open: Annotated[bool, Option("--no-open", help="Do not open a browser.")] = False,
    seed: RunSeed = None,
    trust: Trust = False,
    device: Device = "auto",
    quiet: QuietRequests = False,
) -> None:
    """Open a page to try a guard: drop an image on it, and see the decision and its reason.

    Images stay on this machine and are not kept. Only this machine can open the page, unless `--host` lets others in.
    They need no password, and also see the training images that it shows.

    Example: `sirc try guard.safetensors timm:resnet18=weights.pth`

    With the nearest training images, after `sirc guard --path kept`: `sirc try … --train photos/train --outputs kept`
    """
    if (train is None) != (outputs is None):
        raise ConfigError("give both `--train FOLDER` and `--outputs STORE`, or neither: one alone shows nothing.")
    from sirc.deploy.tryout import is_own_name, make_app, run

    def started(address: str) -> None:
        result(address)
        if not no_open:  # in a thread: a browser in the terminal would keep the page from being served
            threading.Thread(target=open_page, args=(address,), daemon=True).start()

    with on_device(device, quiet) as (where, _):
        classifier = _load_selective(guard, model, seed, trust)[0].to(where)
        app = make_app(classifier, train=train, outputs=outputs, local=is_own_name(host))
        with contextlib.suppress(KeyboardInterrupt):  # the usual way to stop it
            run(app, host=host, port=port, quiet=quiet, started=started)


try_.__name__ = "try"  # a reserved word in Python


def export(
    run: Annotated[Path, Argument(metavar="RUN", help="A run, or the MODEL of `sirc guard`.")],
    model: Annotated[str, _SAVED_GUARD],
    out: Annotated[Path, Option(help="The ONNX file to write.")] = Path("model.onnx"),
    triton: Annotated[
        Path | None, Option(metavar="DIR", help="Also write a folder for Triton; the model gets its name.")
    ] = None,
    seed: RunSeed = None,
    overwrite: Replace = False,
    trust: Trust = False,
) -> None:
    """Write the calibrated network as one ONNX graph: images to label, confidence, accepted, logits, reason.

    The file also says how to prepare images, what the classes are and what the threshold promises: `sirc serve` and
    `sirc predict --onnx` need nothing else.

    Example: `sirc export runs/resnet50_imagenet200 --model selective.safetensors --out model.onnx`

    For Triton: `sirc export timm:resnet18 --model hf://owner/name --triton models/flowers`
    """
    from sirc._utils.files import refuse_existing
    from sirc.deploy import write_triton

    refuse_existing(out, overwrite)
    if triton is not None:
        refuse_existing(triton, overwrite, folder=True)
    selective, study = _load_selective(model, run, seed, trust)
    size = None if selective.preprocess is None else selective.preprocess.size
    example = _example_images(study, size)
    selective.export_onnx(out, example, overwrite=overwrite)
    height, width = example.shape[-2:]
    result(f"{out}  {out.stat().st_size / 2**20:.1f} MiB, images (n, 3, {height}, {width})")
    if triton is not None:
        result(str(write_triton(out, triton, overwrite=overwrite)))


def _find_runs(folder: Path, seed: int | None, trust: bool) -> tuple[Experiment, tuple[Run, ...]]:
    """Open the experiment of a folder, which may be that of one run; give its runs, or only the one with this seed."""
    from sirc.experiment import FILE, import_named, load_experiment, load_experiments, require_trust

    place = folder.absolute()
    of_run = not (place / FILE).exists() and (place.parent / FILE).is_file()
    file = (place.parent if of_run else place) / FILE
    if file.is_file():
        import_named(file, kept=True, trust=trust)
    studies = [load_experiment(place.parent)] if of_run else load_experiments(folder)
    if len(studies) > 1:
        listed = ", ".join(f"'{study.folder}'" for study in studies)
        raise ConfigError(f"RUN must be one experiment; '{folder}' has {len(studies)}: {listed}. Name one of them.")
    (study,) = studies
    require_trust(study, study.folder / FILE, trust)
    runs = tuple(run for run in study.runs if not of_run or run.folder.name == place.name)
    if not runs:
        raise ConfigError(f"'{folder}' must be the folder of an experiment or of one of its runs; it is neither.")
    return study, runs if seed is None else runs_of_seeds(runs, [seed])


def _choose_score(scorer: Scorer, name: str | None, run: Run, progress: Progress) -> str:
    """The score of `--score`; else the one chosen for the run; else the first of the preferred ones that is fitted."""
    from sirc.experiment import latest_choice, load_head
    from sirc.scores import parse

    fitted = {str(parse(spec)): spec for spec in scorer.specs}

    def as_fitted(text: str) -> str | None:
        with contextlib.suppress(ValueError):  # `check` may choose an S1 that was only fitted in a combination
            return fitted.get(str(parse(text))) or scorer.only(text).specs[0]
        return None

    if name is not None:
        if (spec := as_fitted(name)) is None:
            raise ConfigError(f"`--score` must be one of the run's: {'; '.join(fitted)}; got {quoted(name)}.")
        return spec
    if choice := latest_choice(run, load_head(run.head)[1]):
        if spec := as_fitted(choice.score):
            progress.note(f"the score is `{spec}`, which `sirc {choice.command}` chose")
            return spec
        progress.note(f"`sirc {choice.command}` chose `{choice.score}`, which is no longer a score of the run")
    ours = [spec for spec in fitted if spec.startswith("sirc(")]
    spec = fitted[next(spec for spec in (*_PREFERRED, *ours, *fitted) if spec in fitted)]
    progress.note(f"the score is `{spec}`, the default; `sirc select` chooses by your α and β")
    return spec


def _calibration_data(
    study: Experiment,
    run: Run,
    val: Path | None,
    model: nn.Module,
    device: torch.device,
    on_error: OnError | None,
    progress: Progress,
) -> tuple[Outputs | OutputStore, Tensor | None]:
    """The outputs to set the threshold on: of `--val`, validation or test images; and which rows, None for all."""
    from sirc.experiment import arrays, calibration_set, check_outputs, extract_run, rows_to_calibrate
    from sirc.models import fingerprint
    from sirc.outputs import OutputStore

    if val is None:
        name = calibration_set(study)
        try:
            check_outputs(study, run, [name], weights=fingerprint(model))
        except FileNotFoundError:
            if name == "test":
                raise
            extract_run(study, run, [name], device=device, on_error=on_error, overwrite="unfinished", progress=progress)
        if name == "test":
            note_test_images(study, "set the threshold", "`--val`", progress)
    outputs = arrays.load_outputs(run.store(name) if val is None else val)
    rows, choice = rows_to_calibrate(run, outputs) if isinstance(outputs, OutputStore) else (None, None)
    if choice and rows is None:
        again = f"Run `sirc {choice.command}` again: it now uses one half of them"
        progress.note(
            f"note: `sirc {choice.command}` chose a score on all of the {choice.images} images, which also set the "
            f"threshold: a promise may not hold for that score. {'Give other outputs' if val else again}."
        )
    elif choice and rows is not None:
        progress.note(
            f"`sirc {choice.command}` chose a score on one half of the {choice.images} images; the other half, "
            f"{len(rows):,} rows, sets the threshold, as only these are fresh"
        )
    return outputs, rows


def _ood_outputs(study: Experiment, run: Run, model: nn.Module) -> dict[str, OutputStore]:
    """The outputs of the run's OOD sets."""
    from sirc.experiment import check_outputs
    from sirc.models import fingerprint
    from sirc.outputs import OutputStore

    if not study.data.ood:
        raise ConfigError("`--alpha`, for the least cost, needs OOD data; the run has none: give `--ood NAME=PATH`.")
    check_outputs(study, run, study.data.ood, weights=fingerprint(model))
    return {name: OutputStore(run.store(name)) for name in study.data.ood}


def _class_names(study: Experiment, count: int | None, progress: Progress) -> list[str] | None:
    """The class names of the training images; None if these cannot be opened."""
    from sirc.experiment import images_of

    try:
        names = images_of(study, "train", augmented=True).classes
    except (ValueError, OSError, ImportError) as error:
        why = in_options(calibrate, str(error))
        progress.note(f"note: without names of classes, as the training images cannot be opened: {why}")
        return None
    return list(names) if names and len(names) == count else None


def _load_selective(
    path: str, folder: Path, seed: int | None, trust: bool
) -> tuple[SelectiveClassifier, Experiment | None]:
    """Load a classifier and the network that it was calibrated for: that of a run in the folder, or one by its name."""
    from sirc.deploy import SelectiveClassifier, load_guard, read
    from sirc.experiment import FILE, network
    from sirc.models import fingerprint

    is_run = (folder / FILE).exists()  # then it needs trust, whatever else is there
    if (":" in str(folder) and not folder.exists()) or ((folder / "config.json").is_file() and not is_run):
        refuse_unused(f"they are for the folder of a run; '{folder}' is a network", seed=seed, trust=trust)
        return load_guard(path, str(folder)), None
    wanted = read(path)[0].get("model")
    study, runs = _find_runs(folder, seed, trust)
    for run in runs:
        model = network(study, run)
        if len(runs) == 1 or fingerprint(model) == wanted:
            return SelectiveClassifier.load(path, model), study  # `load` refuses any other network
    seeds = ", ".join(str(run.seed) for run in runs)
    raise ValueError(f"'{path}' was calibrated for none of the networks in '{folder}' (seeds {seeds}). Calibrate anew.")


def _example_images(study: Experiment | None, size: int | tuple[int, int] | None) -> Tensor:
    """Random images to export with, of the size that preprocessing gives, or else of a test image's size."""
    import torch

    from sirc.experiment import images_of

    if size is None:
        if study is None:
            raise ValueError("a graph needs the size of its images, which this guard lacks: guard with `--crop`")
        item = images_of(study, "test")[0]
        image = item[0] if isinstance(item, tuple) else item
        assert isinstance(image, torch.Tensor)
        size = (image.shape[-2], image.shape[-1])
    height, width = (size, size) if isinstance(size, int) else size
    return torch.randn(3, 3, height, width, generator=torch.Generator().manual_seed(0))


def _summary(table: pd.DataFrame) -> str:
    broken = int((table["error"] != "").sum())
    lines = [f"accepted {int(table['accepted'].sum())} of {len(table)}" + (f", {broken} unreadable" if broken else "")]
    reasons = table.loc[table["reason"] != "", "reason"].value_counts()
    lines += [f"rejected {count}: {reason}".removesuffix(": rejected") for reason, count in reasons.items()]
    return "\n".join(lines)
