"""Commands for a classifier in production: serve, monitor."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer
from typer import Argument, Option

from sirc._utils.text import quoted, shorten
from sirc.cli.console import result, say
from sirc.cli.options import Host, QuietRequests, refuse_unused
from sirc.errors import ConfigError, StoreError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pandas as pd

FalseAlarms = Annotated[float, Option("--delta", help="The highest probability of ever raising a false alarm.")]


class RequestLimits(NamedTuple):
    """Limits of the service, named as those of `make_app`."""

    max_bytes: Annotated[int, Option(help="The most bytes of an image.", min=1)] = 10 << 20
    max_images: Annotated[int, Option(help="The most images of a request.", min=1)] = 64
    max_pixels: Annotated[int, Option(help="The most pixels of an image.", min=1)] = 50_000_000
    max_body: Annotated[int, Option(help="The most bytes of a form with images.", min=1)] = 64 << 20
    max_memory: Annotated[int, Option(help="The most bytes of decoded and prepared images.", min=1)] = 1 << 30
    concurrency: Annotated[int, Option(help="Images decoded, or batches decided, at once.", min=1)] = 2
    answer_seconds: Annotated[float, Option("--max-seconds", help="Seconds for an answer, else 503.", min=0.001)] = 30.0


def serve(
    onnx: Annotated[Path, Argument(metavar="MODEL.onnx", help="A graph that `sirc export` wrote.")],
    host: Host = "127.0.0.1",
    port: Annotated[int, Option(help="The port; 0 takes a free one.", min=0, max=65535)] = 8000,
    state: Annotated[Path | None, Option(metavar="FILE", help="Keep the monitor's state here over restarts.")] = None,
    log: Annotated[Path | None, Option(metavar="FOLDER", help="Keep decisions here, but no images.")] = None,
    delta: FalseAlarms = 0.05,
    threads: Annotated[int, Option(help="Threads of onnxruntime for a batch; 0: one for each core.", min=0)] = 0,
    *,
    limits: RequestLimits,
    quiet: QuietRequests = False,
) -> None:
    """Serve decisions over HTTP: POST /predict, GET /health, /ready, /metrics, /monitor and /.

    A monitor watches the decisions, and a browser shows it at `/`. With `--state` it goes on after a restart. `--log`
    keeps the decisions for `sirc monitor`, or to label them later.

    The service has no password and no encryption: put it behind a proxy that has both.

    Example: `sirc serve model.onnx --port 8000 --state monitor.safetensors --log decisions.parquet`

    Then: `curl -H 'Content-Type: image/jpeg' --data-binary @photo.jpg http://127.0.0.1:8000/predict`
    """
    from sirc.deploy.serve import make_app, run

    _check_delta(delta)
    app = make_app(onnx, state=state, log=log, delta=delta, threads=threads, **limits._asdict())
    if why := app.state.service.watch.why_not:
        say(f"note: the monitor does not run: {why}")
    with contextlib.suppress(KeyboardInterrupt):  # the usual way to stop it
        run(app, host=host, port=port, quiet=quiet, started=lambda address: result(f"serving {onnx} on {address}"))


def monitor(
    calibration: Annotated[
        str, Option(metavar="FILE", help="Written by `guard`, `calibrate` or `export`, or `hf://…`.")
    ],
    confidences: Annotated[Path, Option(help="In order of time: a log of `sirc serve`, `.csv`, `.npy` or `.npz`.")],
    column: Annotated[str | None, Option(help="The column, or array of a `.npz` file. Default: `confidence`.")] = None,
    delta: FalseAlarms = 0.05,
    as_json: Annotated[bool, Option("--json", help="Print JSON.")] = False,
    fail_on_alarm: Annotated[bool, Option("--fail-on-alarm", help="Exit with 1 on an alarm.")] = False,
) -> None:
    """Compare production with the calibration: is the acceptance rate as promised, and how much input is OOD?

    This needs no labels. Rows without a confidence, such as those of broken images, are left out and counted.

    Example: `sirc monitor --calibration selective.safetensors --confidences decisions.csv`

    What a service decided: `sirc monitor --calibration model.onnx --confidences decisions.parquet`
    """
    import numpy as np

    from sirc.deploy import calibration_of
    from sirc.deploy.monitor import monitor as compare

    _check_delta(delta)
    rows, threshold = calibration_of(calibration)
    if not len(rows):
        raise ValueError(
            f"'{calibration}' holds no calibration confidences: its threshold was given, not calibrated, or an earlier "
            "version exported it."
        )
    if confidences.suffix == ".npy":
        refuse_unused("a `.npy` file has one array, without a name", column=column)
    log = read_log(confidences, column or "confidence")
    values = log.values
    if log.empty:
        say(f"note: {log.empty} rows without a confidence were left out")
    if column is None and log.accepted is not None:
        decided = log.accepted.notna()
        if others := int((log.accepted[decided] != (values >= threshold.value)[decided]).sum()):
            raise ValueError(
                f"'{confidences}' must be decisions of '{calibration}'; {others:,} of them differ from those of its "
                f"threshold, {threshold.value:.6g}. Name the guard or the graph that decided."
            )
    if _is_of_predict(confidences):
        say("note: rows of `sirc predict` are sorted by path, not by time: they are used in a random order")
        values = np.random.default_rng(0).permutation(values)
    report = compare(rows, values, threshold, delta=delta)
    if as_json:
        typer.echo(json.dumps(report.to_dict(), indent=1))
    else:
        result(str(report))
    if report.alarm and fail_on_alarm:
        raise typer.Exit(1)


def _check_delta(delta: float) -> None:
    if not 0 < delta < 1:
        raise ConfigError(f"`--delta` must lie between 0 and 1; got {delta:g}.")


class Log(NamedTuple):
    """Confidences in their order, how many rows have none, and which of the others were accepted, if known."""

    values: npt.NDArray[np.float64]
    empty: int = 0
    accepted: pd.Series | None = None


def read_log(path: Path, column: str) -> Log:
    """Read confidences from the log of a service, a table of decisions, or an array."""
    import numpy as np

    from sirc._utils.files import array_names, listed_arrays, read_npz, require_file

    if not path.is_dir():
        require_file(path)
        if path.suffix not in (".parquet", ".csv", ".npy", ".npz"):
            raise ConfigError(f"`--confidences` must be a .parquet, .csv, .npy or .npz file; got '{path}'.")
    try:
        if path.suffix not in (".npy", ".npz"):
            table = _read_csv(path, column) if path.is_file() and path.suffix == ".csv" else _read_parquet(path, column)
            known = table[table[column].notna()]
            accepted = None
            if "accepted" in table:
                words = known["accepted"].astype(str).str.strip().str.lower()
                accepted = words.map({"true": True, "false": False})
            return Log(known[column].to_numpy(np.float64), len(table) - len(known), accepted)
        if path.suffix == ".npz" and column not in (names := array_names(path)):
            raise ConfigError(f"`--column` must be an array of '{path}', {listed_arrays(names)}; got '{column}'.")
        array = np.load(path, allow_pickle=False) if path.suffix == ".npy" else read_npz(path, [column])[column]
        if array.dtype.kind not in "fiu":
            raise ValueError(f"it holds {array.dtype}")
        return Log(np.asarray(array, dtype=np.float64))
    except (ConfigError, StoreError):
        raise
    except (EOFError, ValueError, TypeError) as error:
        raise ValueError(f"'{path}' must hold plain numbers, those of `--column {column}`: {error}") from error


def _read_csv(path: Path, column: str) -> pd.DataFrame:
    """Read the confidences of a table, and what was accepted; a blank cell is missing."""
    import pandas as pd

    names = list(pd.read_csv(path, nrows=0).columns)
    _require_column(path, column, names)
    wanted = [name for name in (column, "accepted") if name in names]
    # Without an index column, a comma at the end of rows does not shift the columns.
    table = pd.read_csv(path, usecols=wanted, index_col=False, dtype=str, keep_default_na=False)
    return table.replace(r"^\s*$", None, regex=True)


def _read_parquet(path: Path, column: str) -> pd.DataFrame:
    """Read the same from a Parquet file or a folder of them, in order of time if they have it."""
    from sirc._utils.imports import needing

    with needing("reading Parquet", "pyarrow", "serve"):
        import pyarrow as pa
        from pyarrow import dataset
    try:
        data = dataset.dataset(path, format="parquet")
        if not data.files:
            raise ConfigError(f"`--confidences` must hold decisions; '{path}' is an empty folder.")
        _require_column(path, column, data.schema.names)
        if not pa.types.is_floating(data.schema.field(column).type):
            raise ValueError(f"it holds {data.schema.field(column).type}")
        wanted = [name for name in (column, "accepted", "time") if name in data.schema.names]
        table = data.to_table(columns=wanted)
        frame: pd.DataFrame = (table.sort_by("time") if "time" in wanted else table).to_pandas()
        return frame
    except (pa.ArrowException, OSError) as error:
        raise ValueError(str(error)) from error


def _require_column(path: Path, column: str, names: Sequence[str]) -> None:
    if column not in names:
        raise ConfigError(f"`--column` must be one of '{path}', {shorten(', '.join(names))}; got {quoted(column)}.")


def _is_of_predict(path: Path) -> bool:
    """Whether a file is a table of `sirc predict`, sorted by path: class after class, like a rate that changes."""
    import pandas as pd

    return path.suffix == ".csv" and {"path", "accepted", "reason", "error"} <= set(pd.read_csv(path, nrows=0).columns)
