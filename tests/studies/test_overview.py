"""The overview of all studies: verdicts counted over networks, the paper's figures beside them, a page to check."""

import importlib

import numpy as np
import pandas as pd
import pytest

from sirc.experiment import PAPER_SPECS
from support.studies import STUDIES

overview, results = (importlib.import_module(f"studies.tools.{name}") for name in ("overview", "results"))

KEEPS = "SIRC keeps the ID✗|ID✓ of its S1"
WORSE = "OOD detectors are worse than MSP for SCOD"
RUNS = "Training runs differ, and most on Noise"


def write_study(folder, errors, outcomes, *, seeds=1, shift=0.0):
    """A record of networks with these errors; `outcomes` of each claim go round the networks."""
    folder.mkdir(parents=True)
    names = [f"Net-{i}" for i in range(len(errors))]
    rows = [
        (claim, names[i % len(names)], f"what {i}", word, -0.1, -0.3, 0.1)
        for claim, words in outcomes.items()
        for i, word in enumerate(words)
    ]
    rows += [(KEEPS, "all networks", "what 0", "against", -0.5, -0.6, -0.4)]
    columns = ["claim", "model", "what", "outcome", "value", "low", "high"]
    pd.DataFrame(rows, columns=columns).to_csv(folder / "claims.csv", index=False)
    figures = []
    for name, error in zip(names, errors, strict=True):
        figures.append((name, "msp", "wrong", "error", np.nan, np.nan, error, np.nan, seeds))
        for place, score in enumerate(PAPER_SPECS):
            paid = (-shift if score.startswith("sirc(") else 0.0) - 0.1 * (score == "energy")
            figures.append((name, score, "wrong", "auroc", np.nan, np.nan, 0.9 + paid, np.nan, seeds))
            figures.append((name, score, "OOD mean", "auroc", np.nan, np.nan, 0.8 + place / 100, np.nan, seeds))
            figures.append((name, score, "OOD mean", "aurr", 0.5, 0.5, 0.2 - place / 1000, np.nan, seeds))
    columns = ["model", "score", "negative", "metric", "alpha", "beta", "mean", "std", "seeds"]
    pd.DataFrame(figures, columns=columns).to_csv(folder / "summary.csv", index=False)


@pytest.fixture
def studies(tmp_path):
    write_study(tmp_path / "poor", [0.5, 0.55], {KEEPS: ["against", "open"], WORSE: ["for"] * 4, RUNS: ["for"] * 2},
                seeds=3, shift=0.01)  # fmt: skip
    write_study(tmp_path / "good", [0.2, 0.25], {KEEPS: ["for"] * 4, WORSE: ["for"] * 3 + ["open"]}, shift=0.001)
    (tmp_path / "paper").mkdir()
    return tmp_path


def cells(text, title):
    """The row of a claim in the last table that has it."""
    rows = [line for line in text.splitlines() if line.startswith(f"| {title.replace('|', chr(92) + '|')} |")]
    return [cell.strip() for cell in rows[-1].replace("\\|", "¦").strip("| ").split("|")][1:]


def test_a_column_for_each_study_and_one_over_the_networks_of_all(studies):
    text = overview.page(overview.records(studies))
    assert "| the paper's claim | [good](good/README.md) | [poor](poor/README.md) | all studies |" in text
    assert cells(text, KEEPS) == ["holds 4/0/0", "does not hold 0/1/1", "holds in part 4/1/1"]
    assert cells(text, WORSE) == ["holds in part 3/0/1", "holds 4/0/0", "holds in part 7/0/1"]
    assert cells(text, RUNS) == ["–", "holds 2/0/0", "holds 2/0/0"]
    assert "| [good](good/README.md) | Net-0, Net-1 | 1 | 20.0 … 25.0 |" in text
    assert "| [poor](poor/README.md) | Net-0, Net-1 | 3 | 50.0 … 55.0 |" in text
    for word in ("nan", "None", "inf "):
        assert word not in text


def test_a_verdict_that_turns_with_the_error_is_said_to(studies):
    text = overview.page(overview.records(studies)).partition("## What the error")[2].partition("## What a score")[0]
    assert cells(text, KEEPS)[:2] == ["holds 4/0/0", "does not hold 0/1/1"]
    assert "surer of what it gets right" in cells(text, KEEPS)[2]
    assert cells(text, WORSE)[:2] == ["holds in part 3/0/1", "holds 4/0/0"]
    assert RUNS not in text  # networks of less error have no seeds to tell


def test_the_cost_against_the_error_is_that_of_all_networks_and_the_paper_s(studies):
    printed = pd.read_csv(STUDIES / "paper" / "tables.csv")
    own = printed[(printed["negative"] == "wrong") & (printed["metric"] == "auroc")]
    values = own.set_index(["model", "id_data", "score"])["mean"]
    sirc = [score for score in PAPER_SPECS if score.startswith("sirc(")]
    first = [score.partition("(")[2].partition(",")[0] for score in sirc]
    networks = own[["model", "id_data", "id_error"]].drop_duplicates()
    errors, costs = [20.0, 25.0, 50.0, 55.0], [-0.1, -0.1, -1.0, -1.0]
    for model, data, error in networks.itertuples(index=False):
        errors.append(error)
        costs.append(
            np.mean([values[model, data, s] - values[model, data, f] for s, f in zip(sirc, first, strict=True)])
        )
    text = " ".join(overview.page(overview.records(studies)).split())
    low = [cost for error, cost in zip(errors, costs, strict=True) if error < 35]
    assert len(low) == 7
    assert f"{np.mean(low):+.2f} in the mean".replace("-", "−") in text
    assert "−1.00 in the mean (−1.00 … −1.00) for 2 that err on 35% or more" in text
    slope, fit = np.polyfit(errors, costs, 1)[0], np.corrcoef(errors, costs)[0, 1]
    assert f"changes by {10 * slope:+.2f} points for 10% more error (correlation {fit:+.2f})".replace("-", "−") in text


def test_the_best_of_a_study_has_the_lowest_aurr(studies):
    text = overview.page(overview.records(studies))
    (row,) = [line for line in text.splitlines() if line.startswith("| the best of all |")]
    change = f"−{(len(PAPER_SPECS) - 1) / 10:.2f}"
    assert row.count(f"`{PAPER_SPECS[-1]}` {change} ({change} … {change})") == 2
    assert "| `scod` | – | – |" in text


def test_the_page_is_written_with_its_figures_and_can_be_checked(studies, capsys):
    results.main(["page", "--studies", str(studies)])
    assert {path.name for path in (studies / "figures").iterdir()} == {"error.png", "gain.png"}
    results.main(["page", "--studies", str(studies), "--check"])
    write_study(studies / "third", [0.1], {KEEPS: ["for"]})
    with pytest.raises(SystemExit):
        results.main(["page", "--studies", str(studies), "--check"])
    assert "must be what `python -m studies.tools.results page` makes of the studies" in capsys.readouterr().err
    results.main(["page", "--studies", str(studies)])
    text = (studies / "README.md").read_text(encoding="utf-8")
    assert cells(text, KEEPS) == ["holds 1/0/0", "holds 4/0/0", "does not hold 0/1/1", "holds in part 5/1/1"]


def test_a_folder_without_records_and_a_record_of_another_kind_are_refused(studies, tmp_path):
    with pytest.raises(ValueError, match=r"must have studies with a claims.csv; it has none"):
        overview.records(tmp_path / "good")
    (studies / "good" / "claims.csv").write_text("claim,outcome\nx,maybe\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"must have the columns claim, model, .*; it has others"):
        overview.records(studies)


def test_the_page_in_the_repository_is_up_to_date():
    results.main(["page", "--check"])
