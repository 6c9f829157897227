"""Reads what production said: the confidences of a CSV column or of an array."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from sirc._files import read_npz
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
        return np.asarray(array, dtype=np.float64), 0
    except (EOFError, ValueError, TypeError) as error:
        raise ValueError(f"'{path}' must hold confidences as plain numbers: {error}") from error


def _from_csv(path: Path, column: str) -> tuple[npt.NDArray[np.float64], int]:
    try:
        table = pd.read_csv(path, dtype=str, keep_default_na=False, usecols=lambda name: name == column)
        names = [] if len(table.columns) else list(pd.read_csv(path, nrows=0).columns)
    except (ValueError, pd.errors.ParserError) as error:
        raise ValueError(f"'{path}' must be a CSV file with a header: {error}") from error
    if names:
        listed = ", ".join(map(str, names))
        raise ValueError(f"'{path}' must have a column `{column}`; it has {listed}. Name it: `--column …`.")
    given = table[column].str.strip()
    present = given[given != ""]
    values = pd.to_numeric(present, errors="coerce")
    if bad := [
        text for text, value in zip(present, values, strict=True) if math.isnan(value) and text.lower() != "nan"
    ]:
        raise ValueError(f"column `{column}` of '{path}' must hold numbers; got {bad[0]!r}.")
    return np.asarray(values, dtype=np.float64), len(given) - len(present)
