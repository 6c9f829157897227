"""Adding a score is one function: everything that names, draws or evaluates scores reads the registry."""

import re
import sys
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


def solve_center(evidence, *, order):
    return {"center": evidence.moments.mean}


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


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_new_score_of_half_precision_logits_is_not_rounded_to_them(toy, sets, dtype):
    half = sets["test"].to(dtype=dtype)
    scorer = sirc.Scorer([toy])
    assert torch.equal(scorer(half)[toy], scorer(half.to(dtype=torch.float32))[toy])


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
    assert toy in (tmp_path / "results" / "results.csv").read_text(encoding="utf-8")


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


@pytest.mark.parametrize("name", sirc.known_names())
def test_every_score_is_explained_in_the_docs(name):
    page = (ROOT / "docs" / "scores.md").read_text(encoding="utf-8").partition("## Measured")[0]
    assert re.search(rf"^\| `{name}[`(]", page, re.MULTILINE), f"the table of docs/scores.md has no row of `{name}`"


@pytest.fixture
def least(scratch_registry):
    """Two combinations: one of plain values, one with a bounded first score."""

    @sirc.scores.combination(title="Least of")
    def least(*values, shift=0.0):
        """The smallest of the values."""
        return torch.stack(values).amin(0) + shift

    @sirc.scores.combination(bounded_first=True)
    def steep_sirc(log_gap, others, a, b, *, steepness):
        """`sirc` with steeper S2."""
        lows = [steepness * slope * (middle - value) for value, middle, slope in zip(others, a, b, strict=True)]
        return -log_gap - sum(torch.nn.functional.softplus(low) for low in lows)


def test_a_new_combination_is_known_everywhere(least, sets, tmp_path):
    specs = ["least(energy, max_logit)", "least(energy, max_logit, shift=2)", "steep_sirc(msp, energy, steepness=1)"]
    scorer = sirc.fit(
        [*specs, "sirc(msp, energy)", "energy", "max_logit", "sirc(msp, least(energy, max_logit))"], sets["train"]
    )
    values = scorer(sets["test"])
    assert torch.equal(values[specs[0]], torch.minimum(values["energy"], values["max_logit"]))
    torch.testing.assert_close(values[specs[1]], values[specs[0]] + 2)
    torch.testing.assert_close(values[specs[2]], values["sirc(msp, energy)"])
    assert score_name(specs[1]) == "Least of(Energy, Max Logit; shift=2)"
    scorer.save(tmp_path / "scorer.safetensors")
    again = sirc.Scorer.load(tmp_path / "scorer.safetensors")(sets["test"])
    assert all(torch.equal(again[spec], values[spec]) for spec in scorer.specs)
    assert specs[0] in set(sirc.evaluate(scorer, sets["test"], {"far": sets["ood"]}).table["score"])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("steep_sirc(msp, energy)", "`steep_sirc` needs `steepness`, a number"),
        ("steep_sirc(energy, msp, steepness=1)", "the first score of `steep_sirc` must be bounded"),
        ("least(msp)", "`least` combines at least 2 specs; got 1"),
        ("least(msp, energy, c=1)", "`least` has no parameter `c`"),
    ],
)
def test_specs_of_a_new_combination_are_checked(least, text, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        sirc.Scorer(text)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: sirc.scores.combination()(named("msp", lambda *v: v)), "`msp` is a name of the grammar already"),
        (lambda: sirc.scores.combination()(named("sirc", lambda *v: v)), "`sirc` is a name of the grammar already"),
        (lambda: sirc.scores.combination()(named("mine", lambda one: one)), "combination `mine` is called as (x1, x2)"),
        (
            lambda: sirc.scores.combination()(named("mine", lambda *v, c="x": v)),
            "must be numbers, and none may be called a or b",
        ),
        (lambda: sirc.scores.combination(bounded_first=True)(named("mine", lambda g, o: g)), "(x1, x2, x3, x4)"),
    ],
)
def test_a_combination_is_checked_at_once(scratch_registry, make, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        make()


def test_a_score_and_a_combination_cannot_share_a_name(least):
    with pytest.raises(ValueError, match="`least` is a name of the grammar; give the score another"):
        sirc.score(needs="logits")(named("least", lambda logits: logits.amax(-1)))


@pytest.mark.parametrize(
    ("function", "got"),
    [(lambda *v: torch.stack(v), r"\(2, 60\)"), (lambda *v: v[0].numpy(), "ndarray"), (lambda *v: None, "NoneType")],
)
def test_what_a_new_function_returns_is_checked(scratch_registry, sets, function, got):
    sirc.scores.combination()(named("mine", function))
    sirc.scores.combination(bounded_first=True)(named("mine_too", lambda gap, others, a, b: function(gap, others[0])))
    sirc.score(needs=("max_logit", "energy"))(named("alone", function))
    for kind, spec in (
        ("combination", "mine(max_logit, energy)"),
        ("combination", "mine_too(msp, energy, a=1.0, b=1.0)"),
        ("score", "alone"),
    ):
        words = f"{kind} `{re.escape(spec)}` must return one value for each row, shape \\(60,\\); it returned {got}"
        with pytest.raises(ValueError, match=words):
            sirc.Scorer(spec)(sets["test"])


def test_what_a_new_combination_returns_becomes_float64(scratch_registry, sets):
    sirc.scores.combination(bounded_first=True)(named("narrow", lambda gap, others, a, b: -gap.float()))
    found = sirc.Scorer("narrow(msp, energy, a=1, b=1)")(sets["test"])["narrow(msp, energy, a=1, b=1)"]
    assert found.dtype == torch.float64


def named(name, function):
    function.__name__ = name
    return function


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"solve": lambda *, order: {}}, "`solve` of score `mine` is called as (x1, order=…) and takes (*, order): "),
        ({"solve": lambda evidence: {}}, "`solve` of score `mine` is called as (x1, order=…) and takes (evidence): "),
        ({"solve": {}}, "`solve` of score `mine` must be a function; got dict"),
        (
            {"solve": solve_center, "log_gap": lambda z: z},
            "`log_gap` of score `mine` is called as (x1, center=…",
        ),
        ({"solve": solve_center, "tune": lambda logits: {}}, "`tune` of score `mine` is called as (x1, x2)"),
        ({"solve": solve_center, "resolution": lambda: 1.0}, "`resolution` of score `mine` is called as (x1)"),
        ({"solve": solve_center, "needs": ("features", "l1")}, "score `mine` is called as (x1, x2, center=…, order=…)"),
    ],
)
def test_the_functions_of_a_score_are_checked_at_decoration(scratch_registry, fields, words):
    def mine(features, *, center, order=2):
        return features[:, 0]

    with pytest.raises(ValueError, match=re.escape(words)):
        sirc.score(**{"needs": "features", "evidence": ("mean",), **fields})(mine)
    assert "mine" not in sirc.known_names()


@pytest.mark.parametrize(
    ("found", "got"),
    [
        ({"c": 1.0}, "`c`: a float"),
        ({"d": torch.ones(1)}, "`d`: a Tensor"),
        ({"c": torch.ones(1), "rest": 2}, "`c`: a Tensor, `rest`: a int"),
        ({}, "an empty dict"),
        (torch.ones(1), "a Tensor"),
        (None, "a NoneType"),
    ],
)
def test_what_solve_returns_is_checked_as_soon_as_it_has_run(scratch_registry, found, got):
    @sirc.score(needs="features", evidence=("mean",), solve=lambda evidence: found)
    def mine(features, *, c):
        return features.sum(-1)

    words = f"`solve` of score `mine` must return a dict with a tensor for each parameter, `c`; got {got}. Return"
    with pytest.raises(ValueError, match=re.escape(words)):
        sirc.fit(["mine"], sirc.Outputs(torch.randn(20, 3), torch.randn(20, 4)))


def test_evidence_that_solve_uses_but_the_score_does_not_name_is_asked_for(scratch_registry):
    @sirc.score(needs="features", solve=lambda evidence: {"c": evidence.moments.mean})
    def mine(features, *, c):
        return features.sum(-1)

    with pytest.raises(ValueError, match="the `solve` of a score has what its `evidence` names"):
        sirc.fit(["mine"], sirc.Outputs(torch.randn(20, 3), torch.randn(20, 4)))


MY_SCORES = """
import sirc
from pathlib import Path

Path("imported").touch()


@sirc.score(needs="logits")
def second_logit(logits):
    return -logits.topk(2).values[:, 1]
"""


@pytest.fixture
def my_scores(scratch_registry, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("my_scores.py").write_text(MY_SCORES, encoding="utf-8")
    yield "second_logit"
    sys.modules.pop("my_scores", None)


def test_a_module_of_scores_is_imported_on_the_user_s_word(my_scores, sets, command):
    for name, outputs in sets.items():
        outputs.save(f"{name}.npz")
    given = ["evaluate", "--id", "test.npz", "--ood", "far=ood.npz", "--score", my_scores, "--no-figures", "--quiet"]
    code, _, err = command(*given)
    assert code == 1
    assert "unknown score `second_logit`" in err
    assert "One of your own is known once its module is imported (`--import MODULE`)" in err
    code, out, err = command(*given, "--import", "my_scores")
    assert (code, err) == (0, "")
    assert "Second logit" in out
    for module, words in (
        ("nowhere", "no module `nowhere` is installed or in"),
        ("os", "standard library"),
        ("a b", "`a b` must be a module"),
    ):
        code, _, err = command(*given, "--import", module)
        assert code == 1
        assert words in err
