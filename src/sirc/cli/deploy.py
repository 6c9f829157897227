"""Commands that use a calibrated classifier: predict, export, serve."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sirc.cli.console import result
from sirc.cli.options import Device, Quiet, Replace, RunFolder, RunSeed, find_runs, on_device, refuse_existing
from sirc.errors import ConfigError

if TYPE_CHECKING:
    import pandas as pd
    from torch import Tensor

    from sirc.deploy import SelectiveClassifier
    from sirc.experiment import Experiment


def predict(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Images, in folders however deep.")],
    model: Annotated[Path | None, typer.Option("--model", metavar="FILE", help="What `sirc calibrate` wrote.")] = None,
    run: Annotated[
        Path | None, typer.Option("--run", metavar="RUN", help="With --model: where its network is.")
    ] = None,
    onnx: Annotated[Path | None, typer.Option(help="Or: what `sirc export` wrote.")] = None,
    seed: RunSeed = None,
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
    from sirc.deploy import predict_folder, save_decisions

    if (onnx is None) == (model is None) or (model is None) != (run is None):
        raise ConfigError("give either `--model FILE --run RUN`, or `--onnx FILE`.")
    refuse_existing(out, overwrite)
    with on_device(device, quiet) as (where, progress):
        classifier: SelectiveClassifier | Path
        if model is not None and run is not None:
            classifier = _load_selective(model, run, seed)[0].to(where)
        else:
            assert onnx is not None
            classifier = onnx
        table = predict_folder(classifier, folder, batch_size=batch_size, workers=workers, progress=progress)
    save_decisions(table, out, overwrite=overwrite)
    result(_summary(table))
    result(str(out))


def export(
    run: RunFolder,
    model: Annotated[Path, typer.Option("--model", metavar="FILE", help="What `sirc calibrate` wrote.")],
    out: Annotated[Path, typer.Option(help="The ONNX file to write.")] = Path("model.onnx"),
    seed: RunSeed = None,
    overwrite: Replace = False,
) -> None:
    """Write the calibrated network as one ONNX graph: images to label, confidence, accepted and logits.

    The file says how images are prepared, what the classes are and what the threshold promises; `sirc serve` and
    `sirc predict --onnx` need nothing else.

    Example: `sirc export runs/resnet50_imagenet200 --model selective.safetensors --out model.onnx`
    """
    refuse_existing(out, overwrite)
    selective, study = _load_selective(model, run, seed)
    size = None if selective.preprocess is None else selective.preprocess.size
    example = _example_images(study, size)
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


def _load_selective(path: Path, folder: Path, seed: int | None) -> tuple[SelectiveClassifier, Experiment]:
    """Load a classifier with the network that it was calibrated for, one of the runs in the folder."""
    from sirc.deploy import SelectiveClassifier, read
    from sirc.experiment import network
    from sirc.models import fingerprint

    wanted = read(path)[0]["model"]
    study, runs = find_runs(folder, seed)
    for run in runs:
        model = network(study, run)
        if len(runs) == 1 or fingerprint(model) == wanted:
            return SelectiveClassifier.load(path, model), study  # which refuses any other model
    seeds = ", ".join(str(run.seed) for run in runs)
    raise ValueError(f"'{path}' was calibrated for none of the networks in '{folder}' (seeds {seeds}). Calibrate anew.")


def _example_images(study: Experiment, size: int | tuple[int, int] | None) -> Tensor:
    """Noise to export with, of the network's image size, or of a test image's if the preprocessing fixes none."""
    import torch

    from sirc.experiment import images_of

    if size is None:
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
    lines += [
        f"rejected {count}: {reason}" if reason != "rejected" else f"rejected {count}"
        for reason, count in reasons.items()
    ]
    return "\n".join(lines)
