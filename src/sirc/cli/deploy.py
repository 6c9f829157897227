"""The commands that put a model to work: calibrate, predict, export, serve, monitor."""

from __future__ import annotations

import contextlib
import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sirc.cli.console import result, say
from sirc.cli.show import Replace, refuse_existing
from sirc.cli.study import Device, Quiet, started
from sirc.errors import ConfigError

if TYPE_CHECKING:
    import pandas as pd

RunFolder = Annotated[
    Path, typer.Argument(metavar="RUN", help="The folder of an experiment that was run, or of one of its seeds.")
]
Seed = Annotated[int | None, typer.Option(metavar="N", help="Which seed's network, where there are several.")]
Saved = Annotated[Path, typer.Option("--model", metavar="FILE", help="What `sirc calibrate` wrote.")]


def calibrate(
    run: RunFolder,
    seed: Seed = None,
    score: Annotated[
        str | None, typer.Option(metavar="SPEC", help="Default: `sirc(entropy, residual)`, or the first `sirc(…)`.")
    ] = None,
    recall: Annotated[float | None, typer.Option(help="Accept at least this share of ID✓. Default: 0.95.")] = None,
    coverage: Annotated[float | None, typer.Option(help="Or: accept at least this share of ID input.")] = None,
    risk: Annotated[
        float | None, typer.Option(help="Or: at most this share of errors among accepted ID input.")
    ] = None,
    delta: Annotated[float, typer.Option(help="The promise holds with probability 1 − δ.")] = 0.05,
    plain: Annotated[
        bool, typer.Option("--plain", help="The estimate alone, without a promise (not with --risk).")
    ] = False,
    val: Annotated[
        Path | None,
        typer.Option(help="Labelled ID outputs that nothing was fitted on: a file, or the folder of a store."),
    ] = None,
    out: Annotated[Path, typer.Option(help="The file to write.")] = Path("selective.safetensors"),
    overwrite: Replace = False,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Set the threshold of a run's network on labelled ID data, and print what it promises.

    Which data: `--val`; or else the experiment's validation images, if no score was tuned on them; or else its test
    images, whose own figures are then no longer honest. A promise that the data cannot bear is refused, and nothing is
    written.

    Example: `sirc calibrate runs/resnet50_imagenet200 --seed 1 --recall 0.95 --delta 0.05 --out selective.safetensors`
    """
    from sirc.cli.deploying import calibration_data, choose_score, class_names, find_run

    goals = {"recall": recall, "coverage": coverage, "risk": risk}
    chosen = {name: value for name, value in goals.items() if value is not None} or {"recall": 0.95}
    if len(chosen) > 1:
        raise ConfigError(
            f"give one of --recall, --coverage and --risk; got {' and '.join(f'--{name}' for name in chosen)}."
        )
    if plain and risk is not None:
        raise ConfigError("`--plain` is not for `--risk`: a risk without a promise would be too low a figure.")
    for name, value in {**chosen, "delta": delta}.items():
        if not 0 < value <= 1 or (name == "delta" and value == 1):
            raise ConfigError(f"`--{name}` must lie between 0 and 1; got {value:g}.")
    study, one = find_run(run, seed)
    refuse_existing(out, overwrite)
    with started(device, quiet) as (where, progress):
        from sirc.deploy import SelectiveClassifier
        from sirc.experiment import load_head, network
        from sirc.scores import Scorer

        if not one.scorer.exists():
            raise FileNotFoundError(f"there is no '{one.scorer}'. Fit the scores first: `sirc fit …`.")
        scorer = Scorer.load(one.scorer)
        spec = choose_score(scorer, score)
        model = network(study, one)
        data = calibration_data(study, one, val, model, device=where, progress=progress)
        selective = SelectiveClassifier(
            model,
            scorer,
            spec,
            head=load_head(one.head)[0],
            classes=class_names(study, scorer.num_classes, progress),
            preprocess=study.preprocess,
        )
        if val is None and study.extract.precision != "fp32":
            progress.note(
                f"note: the outputs that set the threshold were computed in {study.extract.precision}; decisions are "
                "in fp32, with confidences that differ a little. The promise needs `extract.precision` to be fp32."
            )
        goal: dict[str, Any] = {**chosen, "delta": None if plain else delta}
        selective.calibrate(data, **goal)
    assert selective.threshold is not None
    result(f"{spec}\n{selective.threshold}")
    if not selective.threshold.feasible:
        say("error: nothing was written, as no threshold keeps this promise; see the advice above")
        raise typer.Exit(1)
    selective.save(out, overwrite=overwrite)
    result(str(out))


def predict(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Images, in folders however deep.")],
    model: Annotated[Path | None, typer.Option("--model", metavar="FILE", help="What `sirc calibrate` wrote.")] = None,
    run: Annotated[
        Path | None, typer.Option("--run", metavar="RUN", help="With --model: where its network is.")
    ] = None,
    onnx: Annotated[Path | None, typer.Option(help="Or: what `sirc export` wrote.")] = None,
    seed: Seed = None,
    out: Annotated[Path, typer.Option(help="The CSV file to write.")] = Path("decisions.csv"),
    overwrite: Replace = False,
    batch_size: Annotated[int, typer.Option(help="Images that the network sees at once.", min=1)] = 32,
    workers: Annotated[int, typer.Option(help="Processes that read images.", min=0)] = 0,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Decide about every image of a folder: path, accepted, label, class, confidence, reason, error.

    The reason of a rejection is `softmax`, or the S2 that took the confidence away; a graph tells only `rejected`.
    An image that cannot be read has its error in the table and is not accepted.

    Example: `sirc predict photos --model selective.safetensors --run runs/resnet50_imagenet200 --out decisions.csv`

    With an exported graph: `sirc predict photos --onnx model.onnx`
    """
    from sirc.cli.deploying import load_selective
    from sirc.deploy import predict_folder, save_decisions

    if (onnx is None) == (model is None) or (model is None) != (run is None):
        raise ConfigError("give either `--model FILE --run RUN`, or `--onnx FILE`.")
    refuse_existing(out, overwrite)
    with started(device, quiet) as (where, progress):
        if model is not None and run is not None:
            classifier: Any = load_selective(model, run, seed)[0].to(where)
        else:
            classifier = onnx
        table = predict_folder(classifier, folder, batch_size=batch_size, workers=workers, progress=progress)
    save_decisions(table, out, overwrite=overwrite)
    result(_summary(table))
    result(str(out))


def export(
    run: RunFolder,
    model: Saved,
    out: Annotated[Path, typer.Option(help="The ONNX file to write.")] = Path("model.onnx"),
    seed: Seed = None,
    overwrite: Replace = False,
) -> None:
    """Write the calibrated network as one ONNX graph: images to label, confidence, accepted and logits.

    The file says how images are prepared, what the classes are and what the threshold promises; `sirc serve` and
    `sirc predict --onnx` need nothing else.

    Example: `sirc export runs/resnet50_imagenet200 --model selective.safetensors --out model.onnx`
    """
    from sirc.cli.deploying import example_images, load_selective

    refuse_existing(out, overwrite)
    selective, study = load_selective(model, run, seed)
    size = None if selective.preprocess is None else selective.preprocess.size
    example = example_images(study, size)
    selective.export_onnx(out, example, overwrite=overwrite)
    height, width = example.shape[-2:]
    result(f"{out}  {out.stat().st_size / 2**20:.1f} MiB, images (n, 3, {height}, {width})")


def serve(
    onnx: Annotated[Path, typer.Argument(metavar="MODEL.onnx", help="What `sirc export` wrote.")],
    host: Annotated[str, typer.Option(help="The address to listen on; `0.0.0.0` is every one.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port; 0 takes a free one.", min=0, max=65535)] = 8000,
    concurrency: Annotated[int, typer.Option(help="Requests that are computed at once.", min=1)] = 2,
    threads: Annotated[int, typer.Option(help="onnxruntime's threads for each; 0: one on each core.", min=0)] = 0,
    max_bytes: Annotated[int, typer.Option(help="Bytes of an image at most.", min=1)] = 10 << 20,
    max_images: Annotated[int, typer.Option(help="Images of a request at most.", min=1)] = 64,
    max_pixels: Annotated[int, typer.Option(help="Pixels of an image at most.", min=1)] = 50_000_000,
    max_body: Annotated[int, typer.Option(help="Bytes of a form with images at most.", min=1)] = 64 << 20,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No line for each request.")] = False,
) -> None:
    """Serve decisions over HTTP: POST /predict, GET /health, /ready, /metrics and /.

    It has no password and no encryption: what faces others belongs behind a proxy that has.

    Example: `sirc serve model.onnx --port 8000`

    Then: `curl -H 'Content-Type: image/jpeg' --data-binary @photo.jpg http://127.0.0.1:8000/predict`
    """
    from sirc.deploy.serve import make_app, run

    app = make_app(
        onnx,
        max_bytes=max_bytes,
        max_images=max_images,
        max_pixels=max_pixels,
        max_body=max_body,
        concurrency=concurrency,
        threads=threads,
    )
    with contextlib.suppress(KeyboardInterrupt):  # how a service is stopped
        run(app, host=host, port=port, quiet=quiet, started=lambda address: result(f"serving {onnx} on {address}"))


def monitor(
    calibration: Annotated[Path, typer.Option(metavar="FILE", help="What `sirc calibrate` wrote.")],
    confidences: Annotated[
        Path, typer.Option(help="Production's confidences, in the order they came: `.csv`, `.npy` or `.npz`.")
    ],
    column: Annotated[str, typer.Option(help="The CSV's column, or the array's name in the `.npz`.")] = "confidence",
    delta: Annotated[float, typer.Option(help="A false alarm is ever raised with at most this probability.")] = 0.05,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    fail_on_alarm: Annotated[bool, typer.Option("--fail-on-alarm", help="Exit with 1 on an alarm.")] = False,
) -> None:
    """Compare production with the calibration: is the acceptance rate what was promised, and how much is OOD?

    No labels are needed. Rows of a CSV without a confidence, such as broken images', are left out, and counted.

    Example: `sirc monitor --calibration selective.safetensors --confidences decisions.csv`
    """
    from sirc.cli.production import read_confidences
    from sirc.deploy import read
    from sirc.deploy.monitor import monitor as compare
    from sirc.deploy.threshold import Threshold

    if not 0 < delta < 1:
        raise ConfigError(f"`--delta` must lie between 0 and 1; got {delta:g}.")
    facts, tensors = read(calibration)
    if not len(tensors["calibration"]):
        raise ValueError(f"'{calibration}' holds no calibration confidences: its threshold was given, not calibrated.")
    values, lost = read_confidences(confidences, column)
    if lost:
        say(f"note: {lost} rows without a confidence were left out")
    found = compare(tensors["calibration"], values, Threshold.from_dict(facts["threshold"]), delta=delta)
    if as_json:
        typer.echo(json.dumps({key: _plain(value) for key, value in asdict(found).items()}, indent=1))
    else:
        result(str(found))
    if found.alarm and fail_on_alarm:
        raise typer.Exit(1)


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    for command in (calibrate, predict, export, serve, monitor):
        app.command()(command)


def _summary(table: pd.DataFrame) -> str:
    broken = int((table["error"] != "").sum())
    lines = [f"accepted {int(table['accepted'].sum())} of {len(table)}" + (f", {broken} unreadable" if broken else "")]
    reasons = table.loc[table["reason"] != "", "reason"].value_counts()
    lines += [
        f"rejected {count}: {reason}" if reason != "rejected" else f"rejected {count}"
        for reason, count in reasons.items()
    ]
    return "\n".join(lines)


def _plain(value: object) -> object:
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return [_plain(part) for part in value] if isinstance(value, tuple) else value
