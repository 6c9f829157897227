"""Several training runs as one table: mean ± 2 std of every figure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pandas as pd

from sirc.evaluation.evaluation import COLUMNS, Evaluation


def combine(runs: Sequence[Evaluation | pd.DataFrame]) -> pd.DataFrame:
    """The tables of several training runs as one: `mean`, `std` (sample, n − 1), `low` and `high` (± 2 std), `runs`.

    Takes evaluations or their tables, which must have the same rows. A table with a column `seed` holds the runs of
    several seeds, and models in a column `model` stay apart. One run alone has no std: it is NaN.
    """
    if isinstance(runs, Evaluation | pd.DataFrame) or not isinstance(runs, Iterable):
        raise ValueError(f"`runs` must be a list of evaluations or of their tables; got {type(runs).__name__}")
    tables: list[pd.DataFrame] = []
    for run in runs:
        table = run.table if isinstance(run, Evaluation) else run
        if not isinstance(table, pd.DataFrame) or not set(COLUMNS) <= set(table.columns):
            got = ", ".join(map(str, table.columns)) if isinstance(table, pd.DataFrame) else type(table).__name__
            raise ValueError(f"a run must be an evaluation, or a table with {', '.join(COLUMNS)}; got {got}")
        tables += [part for _, part in table.groupby("seed")] if "seed" in table.columns else [table]
    if not tables:
        raise ValueError("`runs` must hold at least one evaluation; got none")
    keys = [*(["model"] if "model" in tables[0].columns else []), *COLUMNS[:-1]]
    first = _rows_of(tables[0], keys)
    for number, table in enumerate(tables):
        rows = _rows_of(table, keys)
        if len(set(rows)) < len(rows):
            raise ValueError(
                f"run {number} has the same row twice: keep runs apart, as a list of tables or by a column `seed`, and "
                "models by a column `model`"
            )
        if odd := set(first) ^ set(rows):
            example = ", ".join(f"{k}={v}" for k, v in zip(keys, sorted(odd, key=str)[0], strict=True))
            raise ValueError(
                f"runs combine when they have the same scores, sets, α and β; run {number} and run 0 differ in "
                f"{len(odd)} rows, such as {example}"
            )
    together = pd.concat(tables, ignore_index=True)
    found = together.groupby(keys, sort=False, dropna=False)["value"].agg(mean="mean", std="std", runs="count")
    found["low"], found["high"] = found["mean"] - 2 * found["std"], found["mean"] + 2 * found["std"]
    return found.reset_index()[[*keys, "mean", "std", "low", "high", "runs"]]


def _rows_of(table: pd.DataFrame, keys: list[str]) -> list[tuple[object, ...]]:
    # NaN is not equal to itself, and would make every row differ.
    values = table[keys].astype(object)
    return list(values.where(values.notna(), "").itertuples(index=False, name=None))
