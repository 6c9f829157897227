"""The overview of all studies: verdicts counted over networks, the paper's figures beside them, a page to check."""

import importlib

import numpy as np
import pandas as pd
import pytest
import torch

import sirc
from sirc.experiment import PAPER_SPECS, Experiment
from support.studies import ROOT, STUDIES

overview, results, gap = (importlib.import_module(f"studies.tools.{name}") for name in ("overview", "results", "gap"))

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


def page(studies):
    return overview.page(overview.records(studies), gap.read_gaps(studies))


def cells(text, title):
    """The row of a claim in the last table that has it."""
    rows = [line for line in text.splitlines() if line.startswith(f"| {title.replace('|', chr(92) + '|')} |")]
    return [cell.strip() for cell in rows[-1].replace("\\|", "¦").strip("| ").split("|")][1:]


def test_a_column_for_each_study_and_one_over_the_networks_of_all(studies):
    text = page(studies)
    assert "| the paper's claim | [good](good/README.md) | [poor](poor/README.md) | all studies |" in text
    assert cells(text, KEEPS) == ["holds 4/0/0", "does not hold 0/1/1", "holds in part 4/1/1"]
    assert cells(text, WORSE) == ["holds in part 3/0/1", "holds 4/0/0", "holds in part 7/0/1"]
    assert cells(text, RUNS) == ["–", "holds 2/0/0", "holds 2/0/0"]
    assert "| [good](good/README.md) | Net-0, Net-1 | 1 | 20.0 … 25.0 |" in text
    assert "| [poor](poor/README.md) | Net-0, Net-1 | 3 | 50.0 … 55.0 |" in text
    for word in ("nan", "None", "inf "):
        assert word not in text


def test_a_verdict_that_turns_with_the_error_is_shown(studies):
    text = page(studies).partition("## What the error")[2].partition("## What a score")[0]
    assert cells(text, KEEPS) == ["holds 4/0/0", "does not hold 0/1/1"]
    assert WORSE not in text  # it holds in part, or more, on both sides
    assert RUNS not in text  # networks of less error have no seeds to tell


def test_what_s2_adds_is_shown_beside_what_it_is_added_to(studies):
    assert "log(1 − MSP)" not in page(studies)
    (studies / "letters").mkdir()
    lines = ["model,error,gap,score,alone,added,change,low,high"]
    for model, error, spread, change in (("9 px", 10, 2.0, -0.1), ("3 px", 60, 0.5, -0.7)):
        for s2, alone in (("l1", 31.6), ("residual", 70)):
            lines.append(f'{model},{error},{spread},"sirc(msp, {s2})",{alone},0.25,{change},-0.9,-0.05')
    (studies / "letters" / "gap.csv").write_text("\n".join(lines), encoding="utf-8")
    text = page(studies)
    row = "| 3 px, letters | 60.0 | 0.5 | 32, 0.50: −0.70 [−0.90, −0.05] | 70, 0.50: −0.70 [−0.90, −0.05] |"
    assert row in text.splitlines()
    words = " ".join(text.split())
    assert "the error goes from 10 to 60%, the spread of log(1 − MSP) from 2.0 to 0.5" in words
    assert "rank correlation of +1.00 with the error and of +1.00 with what S2 adds" in words
    assert "2 of 4 sure changes have the sign that S2 alone has" in words
    assert "counts more than how often it errs" not in words
    sure = pd.read_csv(studies / "letters" / "gap.csv").assign(error=[60, 60, 10, 10])
    sure.to_csv(studies / "letters" / "gap.csv", index=False)
    words = " ".join(page(studies).split())
    assert "**How sure a network is counts more than how often it errs.**" not in words  # as well told by the error
    sure.assign(error=[10, 60, 60, 10]).to_csv(studies / "letters" / "gap.csv", index=False)
    assert "(rank correlation +1.00), more than with the error (0.00)." in " ".join(page(studies).split())
    assert "| all studies |" in text
    assert "[letters](letters/README.md) |" not in text  # it has no claims to count
    results.main(["page", "--studies", str(studies)])


def test_the_gap_of_a_run_is_that_of_its_test_rows(tmp_path, capsys):
    """Against the formulas in NumPy, for a run as `sirc run` leaves it."""
    generator = torch.Generator().manual_seed(0)
    run = tmp_path / "toy" / "seed-1"
    features = torch.randn(900, 8, generator=generator).relu()
    head = sirc.Head(torch.randn(5, 8, generator=generator), torch.zeros(5))
    logits = features @ head.weight.T
    labels = logits.add(torch.randn(900, 5, generator=generator)).argmax(-1)
    train, test = (sirc.Outputs(logits[part], features[part], labels[part]) for part in (slice(400), slice(400, 900)))
    scorer = sirc.fit(["msp", "l1", "residual", "sirc(msp, l1)", "sirc(msp, residual)"], train, head=head)
    run.mkdir(parents=True)
    (run / "outputs").mkdir()
    sirc.OutputStore.from_outputs(run / "outputs" / "test", test)
    scorer.save(run / "scorer.safetensors")
    experiment = Experiment.read(STUDIES / "letters" / "px8.toml")
    (run.parent / "experiment.toml").write_text(experiment.dump(), encoding="utf-8")
    gap.main([str(tmp_path / "toy"), "--out", str(tmp_path / "gap.csv")])
    assert capsys.readouterr().out == (tmp_path / "gap.csv").read_text(encoding="utf-8")
    found = pd.read_csv(tmp_path / "gap.csv").set_index("score")
    assert found["model"].tolist() == ["8 px"] * 2
    probability = np.exp(logits[400:].double().numpy())
    probability /= probability.sum(1, keepdims=True)
    log_gap = np.log(1 - probability.max(1))
    right = (logits.argmax(-1) == labels)[400:].numpy()
    assert found["error"].tolist() == pytest.approx([100 * (1 - right.mean())] * 2, rel=1e-3)
    assert found["gap"].tolist() == pytest.approx([log_gap.std(ddof=1)] * 2, rel=1e-3)
    a, b = (float(scorer.parameters["sirc(msp, l1)"][name]) for name in "ab")
    added = np.logaddexp(0, b * (a - np.abs(features[400:].double().numpy()).sum(1)))
    assert found.loc["sirc(msp, l1)", "added"] == pytest.approx(added.std(ddof=1), rel=1e-3)

    def auroc(confidence):
        return (confidence[right][:, None] > confidence[~right]).mean()

    norms = features[400:].double().numpy().sum(1)
    assert found.loc["sirc(msp, l1)", "alone"] == pytest.approx(100 * auroc(norms), abs=0.02)
    change = 100 * (auroc(-log_gap - added) - auroc(-log_gap))
    assert found.loc["sirc(msp, l1)", "change"] == pytest.approx(change, rel=1e-3, abs=1e-6)
    assert (found["low"] <= found["change"]).all()
    assert (found["change"] <= found["high"]).all()


def test_the_cost_against_the_error_is_that_of_all_networks_and_the_paper_s(studies):
    printed = pd.read_csv(STUDIES / "paper" / "tables.csv")
    own = printed[(printed["negative"] == "wrong") & (printed["metric"] == "auroc")]
    values = own.set_index(["model", "id_data", "score"])["mean"]
    networks = own[["model", "id_data", "id_error"]].drop_duplicates()
    errors, costs = [20.0, 25.0, 50.0, 55.0], [-0.1, -0.1, -1.0, -1.0]
    for model, data, error in networks.itertuples(index=False):
        errors.append(error)
        changes = [
            values[model, data, f"sirc({first}, residual)"] - values[model, data, first]
            for first in ("msp", "doctor", "entropy")
        ]
        costs.append(np.mean(changes))
    text = " ".join(page(studies).split())
    low = [cost for error, cost in zip(errors, costs, strict=True) if error < 35]
    shown = f"with Residual: {np.mean(low):+.2f} ({min(low):+.2f} … {max(low):+.2f}) for 7 networks that err on less"
    assert shown.replace("-", "−") in text
    assert "−1.00 (−1.00) for 2 networks that err on 35% or more; correlation" in text
    fit = np.corrcoef(errors, costs)[0, 1]
    assert text.count(f"correlation with the error {fit:+.2f}".replace("-", "−")) >= 1


def test_the_best_of_a_study_has_the_lowest_aurr(studies):
    text = page(studies)
    (row,) = [line for line in text.splitlines() if line.startswith("| the best of all |")]
    change = f"−{(len(PAPER_SPECS) - 1) / 10:.2f}"
    assert row.count(f"`{PAPER_SPECS[-1]}` {change} ({change})") == 2
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


def test_what_the_readme_says_of_imagenet_1k_is_what_was_measured():
    summary = pd.read_csv(STUDIES / "imagenet_1k" / "summary.csv")
    aurr = summary[(summary["negative"] == "OOD mean") & (summary["metric"] == "aurr")].groupby("score")["mean"].mean()
    text = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    part = text.partition("ImageNet-1k networks]")[2].partition("All studies on one page")[0]
    for score, words in (
        ("scod", "AURR changes by {} ±"),
        ("sirc(msp, residual)", "by {} ± 0.10 with `sirc(msp, residual)`"),
        ("vim", "by {} ± 0.58 with `vim`"),
        ("energy", "by {} ± 0.39 with `energy`"),
    ):
        assert words.format(f"{100 * (aurr[score] - aurr['msp']):+.2f}".replace("-", "−")) in part
    assert f"the best of {len(aurr)} scores and combinations" in part
    assert aurr["scod"] == pytest.approx(aurr.min())
    errors = 100 * summary[summary["metric"] == "error"]["mean"]
    assert f"err on {errors.min():.0f} to {errors.max():.0f}%" in part
