"""Text that other programs read: no spreadsheet finds a formula in a CSV file."""

import csv
import io

import pandas as pd
import pytest

from sirc._utils.text import as_csv, unquoted

FORMULAS = ["=1+1", "+cmd|' /C calc'!A0", "@SUM(A1)", "-2+3+cmd|' /C calc'!A0", "-x", "\t=1", "'=1", "''-x", "-"]
HARMLESS = ["plain", "a=b", "-2.5", "+1e-3", "-.5", "", "'quoted'", "'", "sirc(msp, l1)", "ID✗", "-7"]


@pytest.mark.parametrize("cell", [*FORMULAS, *HARMLESS])
def test_no_cell_is_a_formula_and_each_comes_back(cell):
    table = pd.DataFrame({"name": [cell], "value": [-1.5], "label": pd.array([None], dtype="Int64"), "right": [True]})
    ((written, *others),) = list(csv.reader(io.StringIO(as_csv(table), newline="")))[1:]
    assert others == ["-1.5", "", "True"]
    assert written == (f"'{cell}" if cell in FORMULAS else cell)
    assert unquoted(written) == cell


def test_a_line_s_end_hides_no_formula():
    assert "'\r=1" in as_csv(pd.DataFrame({"name": ["\r=1"]}))
    assert as_csv(pd.DataFrame({"=1": [1]})).startswith("'=1")
