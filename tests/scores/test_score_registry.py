"""Adding a score is one function: everything that names, draws or evaluates scores reads the registry."""

import re
from pathlib import Path

import pytest
import torch

import sirc
from sirc.report.figures import method_look
from sirc.report.names import score_family, score_name
from sirc.report.tables import table
from sirc.scores import registry
from support.report_reader import read_page

ROOT = Path(__file__).parents[2]


@pytest.fixture
def toy(scratch_registry):
    """A score of two lines, in a family of the library."""

    @sirc.score(needs="logits", family="logit")
    def range_of_logits(logits):
        """The largest logit less the smallest."""
        return logits.amax(-1) - logits.amin(-1)

    return "range_of_logits"


@pytest.fixture
def sets():
    generator = torch.Generator().manual_seed(0)

    def outputs(rows, strength):
        labels = torch.randint(0, 4, (rows,), generator=generator)
        logits = torch.randn(rows, 4, generator=generator) + strength * torch.eye(4)[labels]
        return sirc.Outputs(logits, labels=labels)

    return {"train": outputs(80, 2.0), "test": outputs(60, 2.0), "ood": outputs(50, 0.0)}


def test_a_new_score_is_known_everywhere(toy, sets, tmp_path):
    assert toy in sirc.known_names()
    scorer = sirc.fit([toy, "msp", f"sirc(msp, {toy})"], sets["train"])
    logits = sets["test"].logits
    torch.testing.assert_close(scorer(sets["test"])[toy], (logits.amax(-1) - logits.amin(-1)).double())

    evaluation = sirc.evaluate(scorer, sets["test"], {"far": sets["ood"]})
    assert toy in set(evaluation.table["score"])
    printed = str(table(evaluation.table.assign(model="net", seed=0)))
    assert re.search(r"^ *Range of logits +\S*\d", printed, re.MULTILINE)
    assert "SIRC(MSP, Range of logits)" in printed

    page = read_page(evaluation.report(tmp_path / "report.html"))
    (entry,) = [score for score in page["models"][0]["scores"] if score["spec"] == toy]
    assert (entry["name"], entry["family"]) == ("Range of logits", "logit")
    assert entry["colour"] == method_look(toy).colour


def test_a_new_score_is_known_to_the_commands(toy, sets, tmp_path, command):
    for name, outputs in sets.items():
        outputs.save(tmp_path / f"{name}.npz")
    code, out, _ = command(
        "evaluate", "--train", tmp_path / "train.npz", "--id", tmp_path / "test.npz",
        "--ood", f"far={tmp_path}/ood.npz", "--score", toy, "--score", "msp",
        "--out", tmp_path / "results", "--no-figures", "--quiet",
    )  # fmt: skip
    assert code == 0
    assert "Range of logits" in out
    assert toy in (tmp_path / "results" / "results.csv").read_text()


def test_names_for_people_stand_beside_the_function(scratch_registry):
    @sirc.score(needs="logits", title="Top & co", short="Top", latex=r"$\top$ \& co", family="mine")
    def top(logits, *, temperature=1.0):
        return logits.amax(-1)

    assert [score_name("top", style) for style in ("text", "latex", "html")] == [
        "Top & co", r"$\top$ \& co", "Top &amp; co"
    ]  # fmt: skip
    assert score_name("sirc(msp, top)") == "SIRC(MSP, Top)"
    assert score_name("top(temperature=2)") == "Top & co(T=2)"
    assert score_family("top") == "mine"


def test_a_family_has_a_look_for_any_number_of_scores(scratch_registry):
    for number in range(12):

        def function(logits):
            return logits.amax(-1)

        function.__name__ = f"toy{number}"
        sirc.score(needs="logits", family="residual")(function)
    looks = {method_look(name) for name in registry.names() if registry.get(name).family == "residual"}
    assert len(looks) == 14


def test_families_of_combinations_are_their_names():
    assert [score_family(text) for text in ("msp", "knn(k=20)", "sirc(msp, l1)", "vim", "no spec")] == [
        "softmax", "distance", "sirc", "linear", "other"
    ]  # fmt: skip


@pytest.mark.parametrize("name", [*registry.names(), "vim"])
def test_every_score_is_explained_in_the_docs(name):
    page = (ROOT / "docs" / "scores.md").read_text(encoding="utf-8").partition("## Measured")[0]
    assert re.search(rf"^\| `{name}` \|", page, re.MULTILINE)
