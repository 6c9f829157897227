"""Scores, negatives and metrics have the paper's names, and any other name comes through whole and harmless."""

import html
import re

import pytest

from sirc.metrics import lower_is_better
from sirc.report.names import escape, metric_name, negative_name, score_name
from sirc.scores import registry


@pytest.mark.parametrize(
    ("spec", "text", "latex", "web"),
    [
        ("msp", "MSP", "MSP", "MSP"),
        ("entropy", "−H", r"$-\mathcal{H}$", "−<i>H</i>"),
        ("residual", "Residual", "Residual", "Residual"),
        ("vim", "ViM", "ViM", "ViM"),
        ("linear(energy, residual)", "ViM", "ViM", "ViM"),
        ("sirc(entropy,residual)", "SIRC(−H, Res.)", r"SIRC($-\mathcal{H}$, Res.)", "SIRC(−<i>H</i>, Res.)"),
        ("sirc(doctor, l1)", "SIRC(DR, ‖z‖₁)", r"SIRC(DR, $\|\mathbf{z}\|_1$)", "SIRC(DR, ‖<b>z</b>‖<sub>1</sub>)"),
        ("sirc(msp, knn(k=20))", *["SIRC(MSP, KNN(k=20))"] * 3),
        ("sirc(msp, energy, a=-1, b=2)", "SIRC(MSP, Energy; a=−1, b=2)", "SIRC(MSP, Energy; a=$-$1, b=2)",
         "SIRC(MSP, Energy; a=−1, b=2)"),
        ("linear(msp, energy, c=-0.5)", "MSP − 0.5·Energy", r"MSP $-$ 0.5$\cdot$Energy", "MSP − 0.5·Energy"),
        ("product(msp, linear(energy, residual, c=2))", "MSP·(Energy + 2·Res.)",
         r"MSP$\cdot$(Energy + 2$\cdot$Res.)", "MSP·(Energy + 2·Res.)"),
        ("tempered_msp", "MSP (T)", "MSP ($T$)", "MSP (<i>T</i>)"),
        ("tempered_entropy(temperature=2)", "−H(T=2)", r"$-\mathcal{H}$($T$=2)", "−<i>H</i>(<i>T</i>=2)"),
        ("max_logit_pnorm(p=3)", "MaxLogit-pNorm(p=3)", "MaxLogit-$p$Norm(p=3)", "MaxLogit-<i>p</i>Norm(p=3)"),
        ("gen(gamma=0.2)", "GEN(γ=0.2)", r"GEN($\gamma$=0.2)", "GEN(γ=0.2)"),
        ("sirc(margin, mahalanobis_pp, budget=0.1)", *["SIRC(Margin, Mahal.++; budget=0.1)"] * 3),
        ("delta_mahalanobis", "Δ-Mahalanobis", r"$\Delta$-Mahalanobis", "Δ-Mahalanobis"),
        ("sirc(msp, delta_knn(k=5))", "SIRC(MSP, Δ-KNN(k=5))", r"SIRC(MSP, $\Delta$-KNN(k=5))",
         "SIRC(MSP, Δ-KNN(k=5))"),
        ("both(msp, l1, knn)", "Both(MSP, ‖z‖₁, KNN)", r"Both(MSP, $\|\mathbf{z}\|_1$, KNN)",
         "Both(MSP, ‖<b>z</b>‖<sub>1</sub>, KNN)"),
        ("additive(gen, cop, kappa=0.3)", "Additive(GEN, CoP; κ=0.3)", r"Additive(GEN, CoP; $\kappa$=0.3)",
         "Additive(GEN, CoP; κ=0.3)"),
        ("bayes(msp, l1, alpha=0.3, beta=0.5, metric=aurr)", "Bayes(MSP, ‖z‖₁; α=0.3, metric=AURR)",
         r"Bayes(MSP, $\|\mathbf{z}\|_1$; $\alpha$=0.3, metric=AURR)",
         "Bayes(MSP, ‖<b>z</b>‖<sub>1</sub>; α=0.3, metric=AURR)"),
    ],
)  # fmt: skip
def test_a_spec_has_one_name_in_each_style(spec, text, latex, web):
    assert [score_name(spec), score_name(spec, "latex"), score_name(spec, "html")] == [text, latex, web]


def test_below_a_heading_sirc_is_the_tuple_of_its_parts():
    assert score_name("sirc(msp, residual)", bare=True) == "(MSP, Res.)"
    assert score_name("msp", bare=True) == "MSP"
    assert score_name("bayes(msp, residual)", bare=True) == "Bayes(MSP, Res.)"


def test_no_two_registered_scores_share_a_name():
    for style in ("text", "latex", "html"):
        names = [score_name(spec, style) for spec in (*registry.names(), "vim")]
        assert len(set(names)) == len(names)


@pytest.mark.parametrize("name", ["mine", "sirc(", "sirc(mine, l1)", "sirc(1or 2, l1)", "", "my score, v2", "a\\d"])
def test_what_is_no_spec_is_printed_as_it_is(name):
    assert score_name(name) == name


def test_html_names_cannot_open_a_tag():
    hostile = '</script><b onclick="x">\'&amp;'
    for written in (score_name(hostile, "html"), negative_name(hostile, "html"), metric_name(hostile, "html")):
        assert not re.search(r"[<>\"']", written)
        assert html.unescape(written) == hostile


@pytest.mark.parametrize(
    ("character", "written"),
    [*zip("_%&#${}", [rf"\{c}" for c in "_%&#${}"], strict=True), ("\\", r"\textbackslash{}"),
     ("~", r"\textasciitilde{}"), ("^", r"\textasciicircum{}"), ("✗", r"$\times$"), ("−", "$-$"), ("±", r"$\pm$"),
     ("β", r"$\beta$"), ("\n", " "), ("\ud800", " ")],
)  # fmt: skip
def test_latex_gets_a_command_for_what_it_would_stop_at(character, written):
    assert escape(f"a{character}b", "latex") == f"a{written}b"


def test_latex_reads_letters_of_any_script_as_they_are():
    assert escape("Zoë Š ß 中 е Ω 🙂", "latex") == "Zoë Š ß 中 е Ω 🙂"
    assert escape("Zoe\u0308", "latex") == "Zoë"


def test_hyphens_stay_hyphens_in_latex():
    assert escape("a--b---c", "latex") == "a-{}-b-{}-{}-c"


def test_text_cannot_steer_the_terminal():
    assert escape("a\x1b[31mb\u202ec\rd", "text") == "a [31mb c d"


def test_negatives_have_the_names_of_the_paper():
    assert [negative_name(n) for n in ("wrong", "OOD mean", "pooled", "Far")] == ["ID✗", "OOD mean", "All OOD", "Far"]
    assert negative_name("wrong", "latex") == r"ID$\times$"


def test_metrics_are_named_with_their_unit_and_better_direction():
    assert metric_name("fpr@95") == "FPR@95"
    assert metric_name("auroc", unit=True, arrow=True) == "%AUROC↑"
    assert metric_name("risk@80", unit=True, arrow=True) == "Risk@80↓ ×10²"
    assert metric_name("fpr@95", "latex", unit=True, arrow=True) == r"\%FPR@95$\downarrow$"
    assert metric_name("aurr", "html", unit=True) == "AURR ×10<sup>2</sup>"
    assert metric_name("my_metric", "latex", unit=True, arrow=True) == r"my\_metric"
    assert [m for m in ("auroc", "fpr@95", "aurr", "risk@95", "aurc", "augrc", "error") if not lower_is_better(m)] == [
        "auroc"
    ]


def test_an_unknown_style_is_told_the_known_ones():
    with pytest.raises(ValueError, match='`style` must be "text", "latex" or "html"; got'):
        score_name("msp", "markdown")
