"""Record of a study's claims: every comparison and its outcome, small enough to keep beside the study's document."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path

import pandas as pd

from studies.tools.claims.verdicts import NO, OPEN, YES, Claim
from studies.tools.study import Interval

COLUMNS = ["claim", "model", "what", "outcome", "value", "low", "high"]
FILE = "claims.csv"


def record(claims: Iterable[Claim]) -> pd.DataFrame:
    """A row for each comparison; figures are in points, or ×10² for areas under risk curves, as in the document."""
    unknown = Interval(math.nan, math.nan, math.nan)
    rows = [
        (claim.title, check.model, check.what, check.outcome, *vars(check.interval or unknown).values())
        for claim in claims
        for check in claim.checks
    ]
    return pd.DataFrame(rows, columns=COLUMNS)


def read_record(path: Path) -> pd.DataFrame:
    """Read what `record` made, and refuse anything else."""
    table = pd.read_csv(path)
    if list(table.columns) != COLUMNS or not table["outcome"].isin([YES, NO, OPEN]).all():
        raise ValueError(
            f"'{path}' must have the columns {', '.join(COLUMNS)}, with outcomes {YES}, {NO} or {OPEN}; it has others. "
            "Make it with `python -m studies.tools.results write`."
        )
    return table
