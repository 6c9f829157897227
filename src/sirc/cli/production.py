"""Reads what production said: the confidences of a CSV column or of an array."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sirc._utils.files import read_npz
from sirc.errors import ConfigError


def read_confidences(path: Path, column: str) -> tuple[npt.NDArray[np.float64], int]:
    """Read a `.csv`, `.npy` or `.npz` file: the confidences in its order, and how many rows had none."""
    if not path.is_file():
        raise FileNotFoundError(f"there is no file '{path}'.")
    if path.suffix == ".csv":
        return _from_csv(path, column)
    if path.suffix not in (".npy", ".npz"):
        raise ConfigError(f"`--confidences` must be a .csv, .npy or .npz file; got '{path}'.")
    try:
        array = np.load(path, allow_pickle=False) if path.suffix == ".npy" else read_npz(path, [column])[column]
        if np.asarray(array).dtype.kind not in "fiu":
            raise ValueError(f"it holds {np.asarray(array).dtype}")
        return np.asarray(array, dtype=np.float64), 0
    except (EOFError, ValueError, TypeError) as error:
        raise ValueError(f"'{path}' must hold confidences as plain numbers: {error}") from error


def _from_csv(path: Path, column: str) -> tuple[npt.NDArray[np.float64], int]:
    # Row by row, by the header's names: a comma at the end of rows must not shift the columns.
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file, strict=True)
            names = list(reader.fieldnames or ())
            given = [(row.get(column) or "").strip() for row in reader] if names.count(column) == 1 else []
    except (csv.Error, UnicodeDecodeError) as error:
        raise ValueError(f"'{path}' must be a CSV file with a header: {error}") from error
    if not names:
        raise ValueError(f"'{path}' must be a CSV file with a header; it is empty.")
    if names.count(column) != 1:
        listed = ", ".join(names)
        raise ValueError(f"'{path}' must have one column `{column}`; it has {listed}. Name it: `--column …`.")
    present = [text for text in given if text]
    try:
        values = np.array([float(text) for text in present], dtype=np.float64)
    except ValueError:
        bad = next(text for text in present if not _is_number(text))
        raise ValueError(f"column `{column}` of '{path}' must hold numbers; got {bad!r}.") from None
    return values, len(given) - len(present)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
