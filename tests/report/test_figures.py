"""Figures show the numbers of the metric functions, take all text literally, and come out the same every time."""

import re
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from PIL import Image
from scipy import stats
from sklearn.metrics import roc_curve

import sirc
from sirc.data import image_folder
from sirc.data.base import ImageSet
from sirc.experiment.results import RunResults
from sirc.progress import Progress, Task
from sirc.report import figures
from sirc.report.figures import kernels
from sirc.report.figures.study import _endings, compared, two
from sirc.scores import registry
from support.interpreters import python

SPECS = ["msp", "entropy", "energy", "vim", "l1", "sirc(msp, l1)", "sirc(msp, residual)", "sirc(entropy, residual)"]
HOSTILE = [
    "cost $5$ a_b^c",
    "100% & <script>alert(1)</script>",
    r"\frac{1}{2} {x",
    "日本語 \uffff",
    "a\nb\x00\x1b[31m",
    "n" * 200,
]


def make_run(model="ResNet", seed=1, *, sets=("near", "far"), groups=True, specs=SPECS, n=300):
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(6, 12, generator=generator)

    def outputs(n, strength, labelled=True):
        labels = torch.randint(0, 6, (n,), generator=generator)
        features = (weight[labels] * strength + torch.randn(n, 12, generator=generator)).relu()
        return sirc.Outputs(features @ weight.T / 3, features, labels if labelled else None)

    scorer = sirc.fit(specs, outputs(400, 1.0), head=sirc.Head(weight / 3))
    test = outputs(n, 0.9)
    ood = {name: outputs(n - 20, 0.5 - 0.3 * k, False) for k, name in enumerate(sets)}
    named = {"Close": [sets[0]], "Far": [sets[-1]]} if groups and len(sets) > 1 else None
    return RunResults(model, seed, sirc.evaluate(scorer, test, ood, groups=named), scorer, test, ood)


@pytest.fixture(scope="module")
def run():
    return make_run()


@pytest.fixture(scope="module")
def evaluation(run):
    return run.evaluation


def curve_of(axes, label):
    (line,) = [line for line in axes.lines if line.get_label() == label]
    return np.asarray(line.get_xdata()), np.asarray(line.get_ydata())


def texts(figure):
    from matplotlib.text import Text

    figure.draw_without_rendering()
    return [text.get_text() for text in figure.findobj(Text) if text.get_text()]


def test_fpr_against_tpr_is_scikit_learn_s_curve(evaluation):
    own, right = evaluation.confidences["energy"], evaluation.correct
    outside = torch.cat([values["energy"] for values in evaluation.ood.values()])
    for negative, positive, positives, negatives in [
        ("ood", "id", own, outside),
        ("ood", "correct", own[right], outside),
        ("wrong", "correct", own[right], own[~right]),
    ]:
        truth = np.r_[np.ones(len(positives)), np.zeros(len(negatives))]
        fpr, tpr, _ = roc_curve(truth, torch.cat((positives, negatives)).numpy(), drop_intermediate=False)
        found = figures.roc(evaluation.ranking("energy"), negative, positive)
        inside = np.diff(np.c_[found.tpr, found.fpr], axis=0, prepend=-1).any(1)  # a third group moves neither rate
        np.testing.assert_allclose(found.tpr[inside], tpr, atol=1e-12)
        np.testing.assert_allclose(found.fpr[inside], fpr, atol=1e-12)


def test_separation_draws_the_curves_and_marks_fpr_at_95(evaluation):
    left, right = figures.separation(evaluation, ["msp", "energy"]).axes
    ranking = evaluation.ranking("energy")
    for axes, name, pair in [
        (left, "OOD|ID", ("ood", "id")),
        (right, "ID✗|ID✓", ("wrong", "correct")),
        (right, "OOD|ID✓", ("ood", "correct")),
    ]:
        tpr, fpr = curve_of(axes, f"{name}, Energy")
        expected = figures.roc(ranking, *pair)
        np.testing.assert_array_equal(tpr, expected.tpr)
        np.testing.assert_array_equal(fpr, expected.fpr)
        marks = [tuple(line.get_xydata()[0]) for line in axes.lines if line.get_marker() not in ("", "None")]
        assert (0.95, ranking.fpr(pair[0], positive=pair[1])) in marks
    assert {text.get_text() for text in left.get_legend().get_texts()} == {"OOD|ID, MSP", "OOD|ID, Energy"}
    with pytest.raises(ValueError, match="`scores` must be 1 to 4 scores"):
        figures.separation(evaluation, SPECS)


def test_risk_curves_are_those_of_the_ranking(evaluation):
    figure = figures.risks(evaluation, ["msp", "vim"], alpha=0.3, beta=0.6)
    left, right = figure.axes
    ranking = evaluation.ranking("vim")
    areas = 100 * ranking.aurc(0.3, 0.6), 100 * ranking.aurr(0.3, 0.6)
    for axes, label, curve in [
        (left, f"ViM:  {areas[0]:.1f},  {areas[1]:.1f}", ranking.risk_coverage(0.3, 0.6)),
        (left, "oracle", ranking.oracle_risk_coverage(0.3, 0.6)),
        (right, "ViM", ranking.risk_recall(0.3, 0.6)),
    ]:
        x, y = curve_of(axes, label)
        np.testing.assert_array_equal(x, curve.x.numpy())
        np.testing.assert_array_equal(y, curve.risk.numpy())
    marks = [tuple(line.get_xydata()[0]) for line in right.lines if line.get_marker() not in ("", "None")]
    assert (0.95, ranking.risk_at_recall(0.95, 0.3, 0.6)) in marks
    assert "All OOD,  α = 0.3,  β = 0.6" in texts(figure)


@pytest.mark.slow
@pytest.mark.parametrize("over", ["alpha", "beta"])
def test_sweeps_are_mean_and_std_over_runs(over):
    runs = [make_run(seed=seed).evaluation for seed in (1, 2, 3)]
    figure = figures.sweeps(runs, over, ["msp", "energy"])
    assert [axes.get_title() for axes in figure.axes[:3]] == ["All", "Close", "Far"]
    assert [axes.get_ylabel() for axes in figure.axes[::3]] == ["AURR↓ ×10²", "Risk@95↓ ×10²", "AURC↓ ×10²"]
    grid = np.arange(1, 20) / 20
    far = figure.axes[5]
    x, y = curve_of(far, "Energy")
    pair = (grid, 0.5) if over == "alpha" else (0.5, grid)
    each = np.stack([run.ranking("energy", "Far").risk_at_recall(0.95, *pair).numpy() for run in runs])
    np.testing.assert_allclose(x, grid)
    np.testing.assert_allclose(y, 100 * each.mean(0), rtol=1e-12)
    band = far.collections[1].get_paths()[0].vertices
    assert band[:, 1].max() == pytest.approx(100 * (each.mean(0) + each.std(0, ddof=1)).max())
    assert not figures.sweeps(runs[:1], over, ["msp"]).axes[0].collections  # one run has no std


@pytest.mark.slow
def test_changes_average_over_sets_and_then_runs():
    runs = [make_run(seed=seed).evaluation for seed in (1, 2)]
    figure = figures.changes({"ResNet": runs, "Other": runs[:1]})
    bars = {c.get_label(): [bar.get_width() for bar in c] for c in figure.axes[0].containers if hasattr(c, "patches")}
    names = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert names[:4] == ["−H", "Energy", "ViM", "‖z‖₁"]
    for name, negative, positive in [
        ("ID✗|ID✓", "wrong", "correct"),
        ("OOD|ID✓", "ood", "correct"),
        ("OOD|ID", "ood", "id"),
    ]:
        expected = []
        for run in runs:
            fpr = {
                score: np.mean([run.ranking(score, s).fpr(negative, positive=positive) for s in run.ood])
                for score in ("energy", "msp")
            }
            expected.append(100 * (fpr["energy"] - fpr["msp"]))
        assert bars[name][1] == pytest.approx(np.mean(expected))
    assert [axes.get_title() for axes in figure.axes] == ["ResNet", "Other"]
    assert "change in %FPR@95↓ against MSP" in texts(figure)


def test_changes_of_four_networks_stand_two_by_two_without_an_empty_panel():
    run = make_run(seed=1).evaluation
    figure = figures.changes({name: [run] for name in "ABCD"}, scores=["energy"])
    assert [axes.get_title() for axes in figure.axes] == list("ABCD")
    assert figure.axes[0].get_gridspec().get_geometry() == (2, 2)


def test_densities_mark_the_thresholds_of_both_tasks(evaluation):
    figure = figures.densities(evaluation, ["msp", "energy"])
    detection, scod = figure.axes[2:]
    ranking = evaluation.ranking("energy")
    assert [line.get_xdata()[0] for line in scod.lines][-1] == ranking.threshold(recall=0.95)
    inside = np.sort(evaluation.confidences["energy"].numpy())[::-1]
    assert detection.lines[-1].get_xdata()[0] == inside[int(np.ceil(0.95 * len(inside))) - 1]
    words = " ".join(texts(figure))
    assert f"OOD|ID✓ {100 * ranking.fpr('ood'):.1f}%" in words
    assert f"OOD|ID {100 * ranking.fpr('ood', positive='id'):.1f}%" in words
    x, y = curve_of(scod, "ID✓")
    values = evaluation.confidences["energy"][evaluation.correct].numpy()
    reference = stats.gaussian_kde(values, kernels.bandwidth(values) / values.std(ddof=1))(x)
    middle = slice(len(x) // 4, -len(x) // 4)
    np.testing.assert_allclose(y[middle], reference[middle], atol=0.01 * reference.max())


def test_densities_mark_no_threshold_where_nothing_is_accepted():
    right = np.arange(20) % 4 > 0
    ev = sirc.evaluate({"msp": (np.arange(20.0), right)}, ood={"far": {"msp": np.arange(9.0)}}, recall=0)
    figure = figures.densities(ev, "msp")
    assert not [line for axes in figure.axes for line in axes.lines if len(set(line.get_xdata())) == 1]
    assert "OOD|ID 0.0%" in " ".join(texts(figure))


def test_a_density_has_the_mass_of_its_samples():
    values = np.random.default_rng(0).normal(size=2000)
    grid = np.linspace(-8, 8, 400)
    assert kernels.density(values, grid).sum() * 16 / 399 == pytest.approx(1)
    half = kernels.density(np.abs(values), np.linspace(-1, 8, 400), bounds=(0.0, np.inf))
    assert half[:44].max() == 0
    assert half.sum() * 9 / 399 == pytest.approx(1)
    apart = np.r_[values / 100, values / 100 + 5]
    weighted = kernels.density(apart, grid, np.repeat([3.0, 1.0], len(values)))
    assert weighted[grid < 2.5].sum() / weighted.sum() == pytest.approx(0.75, abs=0.01)
    plane = kernels.density_2d(values, values[::-1], grid, grid)
    assert plane.sum() * (16 / 399) ** 2 == pytest.approx(1)
    (level,) = kernels.mass_levels(plane, [0.5])
    assert plane[plane >= level].sum() / plane.sum() == pytest.approx(0.5, abs=0.01)


def plane_of(scorer, outputs, spec):
    """A plane, and S1 and S2 of all outputs in their order."""
    plane = figures.Plane.of(scorer, spec, outputs, outputs)
    return plane, *plane.groups["ood"]


def test_the_plane_has_the_paper_s_s1_and_s2(run):
    values, s1, s2 = plane_of(run.scorer, run.test, "sirc(entropy, residual)")
    np.testing.assert_allclose(s1, sirc.functional.entropy(run.test.logits).numpy())
    np.testing.assert_allclose(s2, _residual(run), rtol=1e-6)
    assert values.s1_max == 0
    assert (values.a, values.b) == tuple(
        float(run.scorer.parameters["sirc(entropy, residual)"][key]) for key in ("a", "b")
    )
    combined = sirc.functional.sirc(np.log(values.s1_max - s1), s2, values.a, values.b)
    expected = run.scorer(run.test)["sirc(entropy, residual)"]
    torch.testing.assert_close(combined, expected, rtol=1e-6, atol=1e-6)
    assert plane_of(run.scorer, run.test, "sirc(msp, l1)")[0].s1_max == 1
    for spec, words in [("vim", "must be sirc with one S2"), ("sirc(doctor, l1)", "not among the scorer's specs")]:
        with pytest.raises(ValueError, match=words):
            plane_of(run.scorer, run.test, spec)


def _residual(run):
    parameters = run.scorer.parameters["residual"]
    return sirc.functional.residual(run.test.features, parameters["origin"], parameters["basis"]).numpy()


@pytest.fixture(scope="module")
def later():
    """Outputs, and a scorer with S1 whose plain value is not S1max − gap, or is tuned apart from it."""
    rng = np.random.default_rng(5)
    labels, features = rng.integers(0, 4, 600), rng.normal(size=(600, 6)).astype("f")
    logits = features[:, :4] + 1.5 * np.eye(4, dtype="f")[labels]
    outputs = sirc.Outputs(logits, features, labels)
    specs = ["sirc(margin, l1)", "sirc(max_logit_pnorm, l1)", "sirc(gen, l1)", "sirc(msp, l1, budget=0.2)"]
    scorer = sirc.fit(specs, outputs[:300], val=outputs[300:450])
    scorer.parameters["max_logit_pnorm"] = {"p": torch.tensor([0.0]), "p_bounded": torch.tensor([3.0])}
    return scorer, outputs[450:]


@pytest.mark.parametrize(
    "spec", ["sirc(margin, l1)", "sirc(max_logit_pnorm, l1)", "sirc(gen, l1)", "sirc(msp, l1, budget=0.2)"]
)
def test_the_plane_of_later_scores_is_what_sirc_combines(later, spec):
    scorer, test = later
    values, s1, s2 = plane_of(scorer, test, spec)
    again = -np.log(values.s1_max - s1) - np.logaddexp(0, values.b * (values.a - s2))
    np.testing.assert_allclose(again, scorer(test)[spec], rtol=1e-5, atol=1e-5)
    assert values.first == {"sirc(margin, l1)": "Margin, bounded"}.get(spec, spec[5:].partition(",")[0])


def test_the_plane_of_a_tuned_norm_has_the_bounded_one_s_values(later):
    scorer, test = later
    v = test.logits.double() - test.logits.double().mean(1, keepdim=True)
    expected = v.amax(1) / v.abs().pow(3).sum(1).pow(1 / 3)
    values, s1, _ = plane_of(scorer, test, "sirc(max_logit_pnorm, l1)")
    np.testing.assert_allclose(s1, expected, rtol=1e-9)
    assert values.s1_max == pytest.approx((1 + 3.0**-2) ** (-1 / 3))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("gen", "distance"),
        ("tempered_msp", "distance"),
        ("additive(msp, l1)", "distance"),
        ("bayes(msp, l1)", "expected cost"),
        ("both(msp, l1)", "least ID quantile"),
        ("margin", ""),
        ("max_logit_pnorm", ""),
        ("mine", ""),
    ],
)
def test_densities_say_on_which_scale_a_confidence_is(spec, words):
    values = {"ood": {spec: np.arange(9.0)}}
    drawn = figures.densities(sirc.evaluate({spec: (np.arange(20.0), np.arange(20) % 2 > 0)}, ood=values), spec)
    label = drawn.axes[0].get_ylabel()
    assert words in label.replace("\n", " ")
    assert bool(words) == ("log" in label)


def test_figures_say_what_is_wrong_with_their_arguments(evaluation):
    with pytest.raises(ValueError, match="`alpha` must be one number; got list"):
        figures.risks(evaluation, ["msp"], alpha=[0.1, 0.2])
    with pytest.raises(ValueError, match="at least one score is needed; got none"):
        figures.densities(evaluation, [])


def test_models_whose_names_are_alike_have_files_of_their_own():
    assert _endings(["a"]) == [""]
    assert _endings(["ResNet 1.5", "b"]) == ["-resnet-1-5", "-b"]
    assert _endings(["a", "a 3", "a!", "日本"]) == ["-a", "-a-3", "-a-3-3", "-4"]


@pytest.mark.slow
def test_decision_contours_are_those_of_the_formulas(run):
    plane = figures.Plane.of(run.scorer, "sirc(msp, l1)", run.test, run.ood["far"])
    right = run.evaluation.correct.numpy()
    assert [plane.groups[k].shape[1] for k in ("correct", "wrong", "ood")] == [right.sum(), (~right).sum(), 280]
    rules = figures.plane_rules(plane, c=0.5)
    s1, s2 = np.array([0.2, 0.9]), np.array([1.0, 3.0])
    np.testing.assert_allclose(rules["S₁ + c·S₂"](s1, s2), s1 + 0.5 * s2)
    np.testing.assert_allclose(rules["S₁·S₂"](s1, s2), s1 * s2)
    literal = sirc.functional.sirc_literal(s1, s2, plane.a, plane.b, 1.0)
    np.testing.assert_allclose(rules["SIRC"](s1, s2), -np.log(-literal.numpy()))
    stricter = sirc.functional.sirc_literal(s1, s2, plane.a - 2 / plane.b, 2 * plane.b, 1.0)
    np.testing.assert_allclose(rules["SIRC, lower a, higher b"](s1, s2), -np.log(-stricter.numpy()))
    figure = figures.plane(plane, title="far")
    assert [axes.get_title() for axes in figure.axes] == list(rules)
    assert {axes.get_xlabel() for axes in figure.axes} == {"S₁: MSP"}
    for axes in figure.axes:
        assert len(axes.collections) == 5  # filled bands, their lines, three groups


def shown_in(path):
    assert b"<script" not in path.read_bytes()
    return "".join(ElementTree.parse(path).getroot().itertext()).replace(" ", "")


@pytest.mark.slow
def test_names_are_drawn_as_they_are(tmp_path):
    run = make_run(sets=HOSTILE, n=60, specs=["msp", "energy", "sirc(msp, l1)"])
    plain = [re.sub(r"[\x00-\x1f\x7f ]", "", name)[:20].replace("\uffff", "�") for name in HOSTILE]
    for name, words in zip(HOSTILE[2:4], plain[2:4], strict=True):
        (path,) = figures.save(figures.separation(run.evaluation, ["msp"], negative=name), tmp_path / "one", ["svg"])
        assert words in shown_in(path)
    planes = {n: {"pair": figures.Plane.of(run.scorer, "sirc(msp, l1)", run.test, run.ood[n])} for n in HOSTILE[:2]}
    sets = {name: Squares(name, 1, (4, 4)) for name in HOSTILE}
    for number, (figure, expected) in enumerate(
        [
            (figures.changes({name: [run.evaluation] for name in HOSTILE}), plain),
            (figures.plane_grid(planes, title=HOSTILE[2]), plain[:3]),
            (figures.densities(run.evaluation, "msp", negative=HOSTILE[1]), plain[1:2]),
            (figures.risks(run.evaluation, ["msp"], negative=HOSTILE[0]), plain[:1]),
            (figures.sample_images(sets, count=1), [words[:13] for words in plain]),
        ]
    ):
        for path in figures.save(figure, tmp_path / f"figure-{number}", ["svg", "pdf"] if number == 4 else ["svg"]):
            assert path.suffix == ".pdf" or all(words in shown_in(path) for words in expected)


@pytest.mark.slow
def test_equal_figures_are_equal_bytes_whatever_the_user_s_settings(evaluation, tmp_path):
    import matplotlib

    made = {}
    for number, settings in enumerate([{}, {"font.size": 30, "lines.linewidth": 9, "svg.fonttype": "path"}]):
        with matplotlib.rc_context(settings):
            figure = figures.risks(evaluation, ["msp", "energy"])
            paths = figures.save(figure, tmp_path / str(number) / "v1.5 risks")
            assert all(matplotlib.rcParams[key] == value for key, value in settings.items())
        made[number] = [path.read_bytes() for path in paths]
        assert [path.name for path in paths] == ["v1.5 risks.pdf", "v1.5 risks.svg", "v1.5 risks.png"]
        assert sorted(paths[0].parent.iterdir()) == sorted(paths)  # no temporary file is left
    assert made[0] == made[1]
    pdf, svg, png = made[0]
    assert pdf.startswith(b"%PDF")
    assert b"/Type3" not in pdf
    assert b"CreationDate" not in pdf
    assert b">recall of ID" in svg
    assert png.startswith(b"\x89PNG")
    with pytest.raises(ValueError, match="`formats` must be among pdf, svg, png"):
        figures.save(figure, tmp_path / "x", ["exe"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("values", "right", "outside"),
    [
        ([0.9, 0.8, 0.7], [1, 1, 1], None),
        ([0.9, 0.8, 0.7], [1, 1, 1], [0.5]),
        ([0.9, 0.8, 0.7], [1, 0, 1], None),
        ([1.0, 1.0, 1.0], [1, 0, 1], [1.0]),
        ([np.inf, 1.0, 2.0, -np.inf], [1, 0, 1, 0], [np.inf, -np.inf, 0.0]),
    ],
    ids=["only ID✓", "no ID✗", "no OOD", "all equal", "infinite"],
)
def test_small_and_odd_groups_are_drawn(values, right, outside, tmp_path):
    ood = None if outside is None else {"one": {"mine": outside, "msp": outside}}
    evaluation = sirc.evaluate({"mine": (values, right), "msp": (values[::-1], right)}, ood=ood)
    drawn = [figures.densities(evaluation, ["mine"]), figures.risks(evaluation, ["mine"])]
    if evaluation.negatives:
        drawn += [figures.separation(evaluation, ["mine"]), figures.changes({"m": [evaluation]})]
    else:
        with pytest.raises(ValueError, match="needs wrong predictions or OOD data"):
            figures.separation(evaluation, ["mine"])
    for number, figure in enumerate(drawn):
        figures.save(figure, tmp_path / str(number), ["svg"])


class Squares(ImageSet):
    def __init__(self, name, count, size):
        super().__init__(name=name)
        self.count, self.size = count, size

    def __len__(self):
        return self.count

    def image(self, index):
        return Image.new("RGB", self.size, (index % 256, 0, 0))

    def where(self, index):
        return str(index)

    @property
    def _identity(self):
        return self.name


@pytest.mark.slow
def test_samples_are_the_sets_own_images_with_their_number():
    figure = figures.sample_images({"letters": Squares("a", 1234, (40, 32)), "few": Squares("b", 2, (8, 300))}, count=4)
    shown = [axes.images[0].get_array()[0, 0, 0] for axes in figure.axes if axes.images]
    picked = np.sort(np.random.default_rng(0).permutation(1234)[:4]) % 256
    assert shown == [*picked, 0, 1]
    assert figure.axes[0].images[0].get_array().shape == (32, 32, 3)
    assert {"letters\n1,234 images", "few\n2 images"} <= set(texts(figure))


def test_samples_leave_out_images_that_cannot_be_read(tmp_path):
    Image.new("RGB", (8, 8), (7, 0, 0)).save(tmp_path / "good.png")
    for name in "ab":
        (tmp_path / f"{name}.png").write_bytes(b"not an image")
    figure = figures.sample_images({"some": image_folder(tmp_path, labelled=False)}, count=2)
    assert [axes.images[0].get_array()[0, 0, 0] for axes in figure.axes if axes.images] == [7]


class Counted(Progress):
    done = total = 0

    def task(self, name, total, *, done=0, unit="images"):
        from contextlib import contextmanager

        outer = self

        class Counter(Task):
            def advance(self, steps=1, **facts):
                outer.done += steps

        @contextmanager
        def opened():
            outer.total = total
            yield Counter()

        return opened()


@pytest.fixture
def unwritten(monkeypatch):
    """Figures are drawn, but not written: rendering takes most of the time."""
    monkeypatch.setattr("sirc.report.figures.study.save", lambda figure, stem, formats: [stem])


@pytest.mark.slow
def test_a_study_s_figures_have_names_that_tell_them_apart(tmp_path, monkeypatch, unwritten):
    for name in ("densities", "separation", "risks", "sweeps", "plane", "changes", "plane_grid"):  # others draw them
        monkeypatch.setattr(f"sirc.report.figures.study.{name}", lambda *_, **__: None)
    specs = ["msp", "energy", "sirc(msp, l1)"]
    runs = [make_run(model, seed, n=60, specs=specs) for model in ("Res/Net", "res net") for seed in (1, 2)]
    paths = figures.figures(runs, tmp_path, images={"few": Squares("b", 2, (8, 8))})
    each = ["densities", "densities-two", "separation", "risks", "sweep-alpha", "sweep-beta", "plane"]
    expected = [f"{name}{ending}" for ending in ("-res-net", "-res-net-2") for name in each]
    assert [path.name for path in paths] == [*expected, "changes", "plane-grid-near", "plane-grid-far", "samples"]


@pytest.mark.slow
def test_a_study_s_figures_are_files_and_reported(tmp_path):
    progress = Counted()
    run = make_run(n=60, specs=["msp", "sirc(msp, l1)"], sets=("only",))
    paths = figures.figures([run], tmp_path / "new", formats=["svg"], progress=progress)
    assert progress.done == progress.total == len(paths) == 9
    assert sorted((tmp_path / "new").iterdir()) == sorted(paths)
    with pytest.raises(ValueError, match="at least one run"):
        figures.figures([], tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "missing"),
    [
        ({"sets": ("only",), "specs": SPECS[:1] + SPECS[-1:]}, {"plane-grid-far"}),
        ({"sets": (), "specs": ["msp", "sirc(msp, l1)"]}, {"sweep-alpha", "plane", "plane-grid-near"}),
        ({"specs": ["msp", "energy"], "groups": False}, {"plane", "plane-grid-near"}),
        ({"specs": ["l1"]}, {"densities-two", "changes", "plane"}),
    ],
    ids=["one OOD set", "no OOD", "no SIRC", "one score"],
)
def test_a_poor_study_has_the_figures_it_allows(options, missing, tmp_path, unwritten):
    names = {path.name for path in figures.figures([make_run(n=80, **options)], tmp_path)}
    assert not names & missing
    assert {"densities", "separation", "risks"} <= names


def test_the_scores_that_are_drawn_are_the_paper_s_where_they_are_there(evaluation):
    assert two(evaluation) == ["msp", "vim"]
    assert compared(evaluation) == ["msp", "energy", "vim", "sirc(msp, residual)", "sirc(entropy, residual)"]
    plain = sirc.evaluate({name: ([0.2, 0.4], [0, 1]) for name in ("mine", "yours")})
    assert two(plain) == compared(plain) == ["mine", "yours"]


def test_no_two_known_methods_look_the_same():
    combined = [f"sirc({first}, {second})" for first in ("msp", "doctor", "entropy") for second in ("residual", "l1")]
    methods = [*registry.names(), "vim", *combined]
    assert len({(figures.method_look(name).colour, figures.method_look(name).dash) for name in methods}) == len(methods)
    assert len({(look.dash, look.hatch) for look in figures.GROUPS.values()}) == 3
    assert figures.method_look("mine") == figures.method_look("mine") != figures.method_look("yours")


@pytest.mark.slow
def test_matplotlib_is_imported_only_to_draw_and_missed_with_its_extra():
    code = (
        "import sys; import sirc.report.figures; assert 'matplotlib' not in sys.modules\n"
        "sys.modules['matplotlib'] = None\n"
        "import sirc; e = sirc.evaluate({'m': ([0.2, 0.4], [0, 1])})\n"
        "try: sirc.report.figures.densities(e, 'm')\nexcept ImportError as error: print(error)"
    )
    found = python("-c", code)
    assert "pip install 'torch-sirc[plots]'" in found.stdout, found.stderr
