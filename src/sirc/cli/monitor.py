"""The command that watches production: monitor."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sirc.cli.console import result, say
from sirc.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


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
    from sirc.deploy import read
    from sirc.deploy.monitor import monitor as compare
    from sirc.deploy.threshold import Threshold

    if not 0 < delta < 1:
        raise ConfigError(f"`--delta` must lie between 0 and 1; got {delta:g}.")
    facts, tensors = read(calibration)
    if not len(tensors["calibration"]):
        raise ValueError(f"'{calibration}' holds no calibration confidences: its threshold was given, not calibrated.")
    values, empty = read_confidences(confidences, column)
    if empty:
        say(f"note: {empty} rows without a confidence were left out")
    report = compare(tensors["calibration"], values, Threshold.from_dict(facts["threshold"]), delta=delta)
    if as_json:
        typer.echo(json.dumps(report.to_dict(), indent=1))
    else:
        result(str(report))
    if report.alarm and fail_on_alarm:
        raise typer.Exit(1)


def read_confidences(path: Path, column: str) -> tuple[npt.NDArray[np.float64], int]:
    """Read a `.csv`, `.npy` or `.npz` file: the confidences in its order, and how many rows had none."""
    import numpy as np

    from sirc._utils.files import read_npz

    if not path.is_file():
        raise FileNotFoundError(f"there is no file '{path}'.")
    if path.suffix == ".csv":
        values, empty = _read_csv(path, column)
        return np.array(values, dtype=np.float64), empty
    if path.suffix not in (".npy", ".npz"):
        raise ConfigError(f"`--confidences` must be a .csv, .npy or .npz file; got '{path}'.")
    try:
        array = np.asarray(
            np.load(path, allow_pickle=False) if path.suffix == ".npy" else read_npz(path, [column])[column]
        )
        if array.dtype.kind not in "fiu":
            raise ValueError(f"it holds {array.dtype}")
        return array.astype(np.float64), 0
    except (EOFError, ValueError, TypeError) as error:
        raise ValueError(f"'{path}' must hold confidences as plain numbers: {error}") from error


def _read_csv(path: Path, column: str) -> tuple[list[float], int]:
    # Row by row, by the header's names: a comma at the end of rows must not shift the columns.
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file, strict=True)
            names = list(reader.fieldnames or ())
            cells = [(row.get(column) or "").strip() for row in reader] if names.count(column) == 1 else []
    except (csv.Error, UnicodeDecodeError) as error:
        raise ValueError(f"'{path}' must be a CSV file with a header: {error}") from error
    if not names:
        raise ValueError(f"'{path}' must be a CSV file with a header; it is empty.")
    if names.count(column) != 1:
        listed = ", ".join(names)
        raise ValueError(f"'{path}' must have one column `{column}`; it has {listed}. Name it: `--column …`.")
    values = []
    for cell in filter(None, cells):
        try:
            values.append(float(cell))
        except ValueError:
            raise ValueError(f"column `{column}` of '{path}' must hold numbers; got {cell!r}.") from None
    return values, len(cells) - len(values)
