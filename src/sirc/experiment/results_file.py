"""results.csv: the results of all runs in the one schema, read back to the last digit."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from sirc._utils.files import PathLike, atomic_write
from sirc.experiment.results import SCHEMA


def write_results(table: pd.DataFrame, path: Path) -> None:
    """Write results in the one schema that all of them have."""
    text = table[SCHEMA].to_csv(index=False, lineterminator="\n")
    atomic_write(path, lambda file: file.write(text.encode()))


def read_results(path: PathLike) -> pd.DataFrame:
    """Read results; other columns than the schema's are an error."""
    try:
        table = pd.read_csv(path, dtype=str, keep_default_na=False)
    except ValueError as error:
        raise ValueError(f"'{path}' must be a CSV table with the columns {', '.join(SCHEMA)}; {error}") from error
    if list(table.columns) != SCHEMA:
        raise ValueError(
            f"results must have the columns {', '.join(SCHEMA)}; '{path}' has {', '.join(map(str, table.columns))}. "
            "Make them with `sirc run` or `sirc evaluate`."
        )
    # Python's own float reads back every digit that was written; pandas' quick parser may not.
    numbers = {name: [float(text or "nan") for text in table[name]] for name in ("alpha", "beta", "value")}
    return table.assign(seed=table["seed"].astype(int), **numbers)
