"""Measure how far log(S1max − S1) spreads over ID rows, and what S2 adds to it: why SIRC costs some networks more ID✗.

Run it from the repository's root: python -m studies.tools.gap RUNS… --out studies/NAME/gap.csv.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

import sirc
from sirc._utils.files import atomic_write
from sirc.experiment import Experiment
from studies.tools.families import SECOND
from studies.tools.score_table import runs_of

FILE = "gap.csv"
COLUMNS = ["model", "error", "gap", "score", "alone", "added", "change", "low", "high"]


def measured(run: Path) -> list[tuple[object, ...]]:
    """A row for each S2 of the paper with MSP as S1: the %AUROC of ID✗|ID✓ of S2 alone, and SIRC's change in points.

    SIRC's confidence is −log(S1max − S1) less what S2 adds, so that the confidences of MSP and SIRC tell both.
    """
    experiment = Experiment.read(run.parent / "experiment.toml")
    specs = [f"sirc(msp, {second})" for second in SECOND]
    scorer = sirc.Scorer.load(run / "scorer.safetensors").only(["msp", *SECOND, *specs])
    evaluation = sirc.evaluate(scorer, sirc.OutputStore(run / "outputs" / "test").load())
    compared = evaluation.compare("msp", negatives=["wrong"]).set_index(["score", "metric"])
    wrong = 100 * float((~evaluation.correct).double().mean())
    gap = evaluation.confidences["msp"]
    rows = []
    for second, spec in zip(SECOND, specs, strict=True):
        added = float((gap - evaluation.confidences[spec]).std())
        found = 100 * compared.loc[(spec, "auroc"), ["difference", "low", "high"]]
        alone = 100 * float(compared.loc[(second, "auroc"), "value"])
        rows.append((experiment.title or experiment.name, wrong, float(gap.std()), spec, alone, added, *found))
    return rows


def read_gaps(studies: Path) -> pd.DataFrame:
    """What was measured in every study that has a file of it, with the column `study`."""
    found = [pd.read_csv(path).assign(study=path.parent.name) for path in sorted(studies.glob(f"*/{FILE}"))]
    return pd.concat(found, ignore_index=True) if found else pd.DataFrame(columns=[*COLUMNS, "study"])


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUNS", help="folders that `sirc run` left")
    parser.add_argument("--out", type=Path, required=True, help=f"the file, {FILE} in the folder of a study")
    options = parser.parse_args(arguments)
    table = pd.DataFrame([row for run in runs_of(options.runs) for row in measured(run)], columns=COLUMNS)
    text = table.sort_values("error", kind="stable").to_csv(index=False, lineterminator="\n", float_format="%.4g")
    atomic_write(options.out, lambda file: file.write(text.encode()))
    print(text, end="")


if __name__ == "__main__":
    main()
