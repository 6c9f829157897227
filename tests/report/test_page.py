"""The page shows, at every setting that a reader can make, what `sirc.Ranking` says, and its links bring it back."""

import re
from functools import partial
from types import SimpleNamespace
from urllib.parse import parse_qs

import numpy as np
import pytest
import torch

import sirc
from sirc.metrics import find_metric
from sirc.report.page import report
from support.page_driving import drag, enter, follow, read_controls, read_map, read_setting, read_table, settle
from support.page_reports import GROUPS, Run, made_up, pooled, ranking, risks, row, within_noise, write

EXACT = ("risk", "coverage", "wrong", "ood", "threshold", "set-0", "set-1", "set-2")
SCORES = ["msp", "sirc(msp, residual)", "energy", "vim", "mine"]


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    evaluation = made_up(groups=GROUPS)
    path = write(Run("net", 0, evaluation), tmp_path_factory.mktemp("one") / "report.html")
    return SimpleNamespace(path=path, evaluations=[evaluation])


@pytest.fixture(scope="module")
def seeds(tmp_path_factory):
    evaluations = [made_up(groups=GROUPS, seed=seed, wobble=0.05, right=880 + 10 * seed) for seed in range(4)]
    runs = [Run("net", seed, evaluation) for seed, evaluation in enumerate(evaluations)]
    return SimpleNamespace(path=write(runs, tmp_path_factory.mktemp("seeds") / "report.html"), evaluations=evaluations)


@pytest.fixture
def open_page(open_page):
    """Open a report for its numbers, which are the same without pictures."""
    return partial(open_page, drawn=False)


@pytest.fixture(params=["one", "seeds"])
def study(request):
    return request.getfixturevalue(request.param)


def assert_shows(page, evaluations, *, by="risk", baseline="msp", scores=SCORES, weights=None, close=1e-9, **setting):
    """The ranked list has these scores, in Python's order, with Python's numbers."""
    assert setting == {key: value for key, value in read_setting(page).items() if key in setting}
    setting = read_setting(page)
    shown = read_table(page)
    expected = {score: row(evaluations, score, weights=weights, **setting) for score in {*scores, baseline}}
    assert set(shown) == set(scores)
    for score in scores:
        for column in EXACT:
            assert shown[score][column] == pytest.approx(expected[score][column], rel=close, abs=1e-12), (score, column)
        for column in ("aurr", "aurc"):
            assert shown[score][column] == pytest.approx(expected[score][column], rel=5e-3, abs=1e-12), (score, column)
        difference = expected[score][by] - expected[baseline][by]
        each = (close if by == "risk" else 5e-3) * (expected[score][by] + expected[baseline][by])
        assert shown[score]["difference"] == pytest.approx(difference, abs=each + 1e-12)
    ordered = [shown[score][by] for score in shown]
    assert ordered == sorted(ordered)


def test_the_page_opens_from_disk_at_the_evaluations_setting(open_page, tmp_path):
    evaluation = made_up(alpha=0.3, beta=0.8, recall=0.9, pool="datasets", groups=GROUPS)
    notes = ["A <b>note</b>", "and `<i>code</i>` of `one`, and a ` alone"]
    path = report(evaluation, tmp_path / "report.html", title="A title", notes=notes)
    page = open_page(path, fresh=True)
    assert page.title() == "A title"
    assert page.inner_text("#notes").split("\n\n") == [notes[0], "and <i>code</i> of one, and a ` alone"]
    assert page.locator("#notes code").all_inner_texts() == ["<i>code</i>", "one"]
    assert page.inner_text("h1") == "A title"
    weights = pooled(evaluation, pool="datasets")
    assert_shows(page, [evaluation], alpha=0.3, beta=0.8, recall=0.9, weights=weights)
    for plot in ("risk-recall", "risk-coverage", "over-alpha", "over-beta", "map"):
        assert page.evaluate("(id) => document.getElementById(id).data.length", plot)


def test_dragging_alpha_beta_and_recall_gives_the_values_of_ranking(open_page, study):
    page = open_page(study.path)
    assert_shows(page, study.evaluations, alpha=0.5, beta=0.5, recall=0.95)
    before = read_table(page)
    for slider, to in (("alpha", 0.1), ("beta", 0.8)):
        drag(page, f"#{slider}", to)
        assert read_setting(page)[slider] == pytest.approx(to, abs=0.03)
        assert read_table(page) != before
        assert_shows(page, study.evaluations)
    drag(page, "#recall", 0.5)
    assert 0.5 < read_setting(page)["recall"] < 0.95
    assert_shows(page, study.evaluations)


@pytest.mark.parametrize(
    ("alpha", "beta", "recall", "mix", "pool"),
    [
        (0.05, 0.9, 0.8, "all", "datasets"),
        (0.93, 0.15, 0.999, "Close", "samples"),
        (0.3, 0.0, 1.0, "Far", "samples"),
        (0.0, 0.25, 0.5, "Close", "datasets"),
        (1.0, 0.7, 0.01, "all", "samples"),
    ],
)
def test_numbers_that_are_typed_and_mixes_that_are_chosen_give_the_values_of_ranking(
    open_page, seeds, alpha, beta, recall, mix, pool
):
    page = open_page(seeds.path)
    page.select_option("#pool", pool)
    page.click(f'#mix button[data-mix="{mix}"]')
    for number, value in (("alpha", alpha), ("beta", beta), ("recall", 100 * recall)):
        enter(page, number, value)
    weights = pooled(seeds.evaluations[0], GROUPS.get(mix), pool)
    assert_shows(page, seeds.evaluations, weights=weights, alpha=alpha, beta=beta, recall=recall)
    pressed = page.eval_on_selector_all("[data-mix]", "(all) => all.map((b) => [b.dataset.mix, b.ariaPressed])")
    assert pressed == [[name, str(name == mix).lower()] for name in ("all", *GROUPS)]


@pytest.mark.parametrize("alpha", [0.05, 0.95])
def test_areas_agree_with_ranking(open_page, one, alpha):
    page = open_page(one.path, f"alpha={alpha}")
    for beta in (0, 0.5, 1):
        enter(page, "beta", beta)
        assert_shows(page, one.evaluations, alpha=alpha, beta=beta)


def test_numbers_that_are_none_or_out_of_range_change_nothing(open_page, one):
    page = open_page(one.path)
    for typed in ("7", "-3", ""):
        enter(page, "alpha", typed)
        page.locator("#alpha-number").blur()
        settle(page)
        assert_shows(page, one.evaluations, alpha=0.5)
    enter(page, "recall", 94.97)
    page.locator("#recall-number").blur()
    settle(page)
    assert page.input_value("#recall-number") == "95"
    assert_shows(page, one.evaluations, recall=0.95)


def test_boxes_and_weights_of_ood_sets_make_a_mix_of_ones_own(open_page, study):
    page = open_page(study.path)
    page.uncheck('[data-set="1"]')
    settle(page)
    sizes = pooled(study.evaluations[0])
    assert_shows(page, study.evaluations, weights=sizes * [1, 0, 1])
    page.check('[data-set="1"]')
    settle(page)
    assert page.locator("[data-set]:checked").count() == 3
    drag(page, '[data-weight="2"]', 0.3)
    drag(page, '[data-weight="0"]', 0.9)
    weights = weights_of(page)
    assert weights[0] / sum(weights) != pytest.approx(sizes[0] / sum(sizes), abs=0.05)
    assert_shows(page, study.evaluations, weights=weights, close=1e-5)  # a link has six digits of each weight
    page.click('button[data-mix="all"]')
    settle(page)
    assert_shows(page, study.evaluations)


def weights_of(page):
    """Read the weights from the link, which follows a moment after the page."""
    link = page.evaluate("() => new Promise((done) => setTimeout(() => done(location.hash), 250))")
    return [float(weight) for weight in parse_qs(link[1:])["w"][0].split(",")]


def test_the_last_ood_set_cannot_be_taken_out(open_page, one):
    page = open_page(one.path, "w=0,0,1")
    assert_shows(page, one.evaluations, weights=[0, 0, 1])
    page.locator('[data-set="2"]').click(force=True)
    settle(page)
    assert all(np.isfinite(list(cells.values())).all() for cells in read_table(page).values())
    assert page.locator("[data-set]:checked").count() >= 1


def test_scores_can_be_hidden_and_the_baseline_changed(open_page, study):
    page = open_page(study.path)
    for spec in ("vim", "mine"):
        page.uncheck(f'#scores [data-score="{spec}"]')
    settle(page)
    assert_shows(page, study.evaluations, scores=SCORES[:3])
    _, _, cells = read_map(page)
    assert {cell[0] for line in cells for cell in line} <= set(SCORES[:3])
    page.select_option("#baseline", "energy")
    settle(page)
    assert_shows(page, study.evaluations, scores=SCORES[:3], baseline="energy")
    page.check('#scores [data-score="vim"]')
    settle(page)
    assert_shows(page, study.evaluations, scores=SCORES[:4], baseline="energy")


@pytest.mark.parametrize("metric", ["aurr", "aurc"])
def test_scores_are_ranked_by_the_metric_that_is_chosen(open_page, seeds, metric):
    page = open_page(seeds.path, "alpha=0.7&beta=0.6")
    page.check(f'input[name=metric][value="{metric}"]')
    settle(page)
    assert_shows(page, seeds.evaluations, by=metric, alpha=0.7, beta=0.6)


def test_one_training_run_and_one_model_can_be_looked_at(open_page, seeds, tmp_path):
    other = made_up({"energy": (1, 1, 1), "own": (1, 2, 1)}, {"textures": 200}, seed=9)
    runs = [Run("net", seed, evaluation) for seed, evaluation in enumerate(seeds.evaluations)]
    page = open_page(write([*runs, Run("other", 5, other)], tmp_path / "report.html"), fresh=True)
    assert_shows(page, seeds.evaluations)
    page.select_option("#run", "2")
    settle(page)
    assert_shows(page, seeds.evaluations[2:3])
    page.select_option("#model", "1")
    settle(page)
    shown = read_table(page)
    assert set(shown) == {"energy", "own"}
    for score in shown:
        expected = row([other], score)
        assert shown[score]["risk"] == pytest.approx(expected["risk"], rel=1e-9)
        assert shown[score]["set-0"] == pytest.approx(expected["set-0"], rel=1e-9)
    assert not page.is_visible("#run")
    assert page.locator("[data-set]").count() == 1
    page.select_option("#model", "0")
    settle(page)
    assert set(read_table(page)) == set(SCORES)


@pytest.mark.parametrize("metric", ["risk", "aurr"])
def test_the_map_has_the_winners_that_python_finds(open_page, study, metric):
    page = open_page(study.path)
    page.check(f'input[name=metric][value="{metric}"]')
    settle(page)
    x, y, cells = read_map(page)
    assert x == pytest.approx((np.arange(40) + 0.5) / 40)
    assert y == pytest.approx((np.arange(40) + 0.5) / 40)
    winners = set()
    for i, j in ((2, 2), (3, 37), (20, 21), (36, 4), (37, 37)):
        winner, value, second, margin, noise = cells[j][i]
        expected = risks(study.evaluations, metric, alpha=x[i], beta=y[j])
        first, next_one = np.argsort(expected.mean(1))[:2]
        assert [winner, second] == [SCORES[first], SCORES[next_one]]
        assert value == pytest.approx(expected[first].mean(), rel=1e-9 if metric == "risk" else 5e-3)
        close = 1e-9 if metric == "risk" else 5e-3 * value
        assert margin == pytest.approx(expected[next_one].mean() - expected[first].mean(), abs=close)
        if len(study.evaluations) > 1:
            assert bool(noise) == within_noise(expected[next_one] - expected[first])
        winners.add(winner)
    assert len(winners) >= 2


def test_pressing_the_map_goes_there(open_page, one):
    page = open_page(one.path, drawn=True)
    page.locator("#map").scroll_into_view_if_needed()
    for alpha, beta in ((0.2, 0.8), (0.75, 0.3)):
        spot = page.evaluate(
            """([alpha, beta]) => { const plot = document.querySelector("#map");
                const { xaxis, yaxis, _size } = plot._fullLayout;
                const box = plot.getBoundingClientRect();
                return [box.x + _size.l + xaxis.l2p(alpha), box.y + _size.t + yaxis.l2p(beta)]; }""",
            [alpha, beta],
        )
        page.mouse.move(*spot)
        page.mouse.click(*spot)
        settle(page)
        setting = read_setting(page)
        assert setting["alpha"] == pytest.approx(alpha, abs=0.03)
        assert setting["beta"] == pytest.approx(beta, abs=0.03)
        assert_shows(page, one.evaluations)


def test_the_sentence_counts_what_the_table_shares_out(open_page, study):
    page = open_page(study.path)
    pattern = (
        r"At recall ([\d.]+)%, with ([\d.]+)% OOD, of 1000 inputs (.+) accepts (\d+): "
        r"(\d+) right, (\d+) wrong, (\d+) that belongs? to no class\."
    )
    for alpha, beta, recall in ((0.5, 0.5, 0.95), (0.7, 0.9, 0.8), (0.07, 0.2, 0.999)):
        follow(page, f"alpha={alpha}&beta={beta}&recall={recall}")
        found = re.search(pattern, page.inner_text("#sentence"))
        assert found, page.inner_text("#sentence")
        best, cells = next(iter(read_table(page).items()))
        accepted, right, wrong, ood = map(int, found.groups()[3:])
        assert [float(found[1]), float(found[2])] == pytest.approx([100 * recall, 100 * (1 - alpha)])
        assert found[3] == sirc.report.names.score_name(best)
        assert accepted == right + wrong + ood
        assert accepted == pytest.approx(1000 * cells["coverage"], abs=1)
        each = [ranking(e, best, pooled(e)) for e in study.evaluations]
        error = [1 - r.accuracy for r in each]
        shares = [r.accepted(r.threshold(recall=recall)) for r in each]
        assert wrong == pytest.approx(
            1000 * alpha * np.mean([e * s[1] for e, s in zip(error, shares, strict=True)]), abs=1
        )
        assert ood == pytest.approx(1000 * (1 - alpha) * cells["ood"], abs=1)


def test_each_kind_of_input_has_its_own_numbers(open_page, study):
    page = open_page(study.path, "alpha=0.6&beta=0.4&recall=0.9")
    for detail in ("auroc", "fpr", "risk", "aurr", "augrc"):
        page.select_option("#detail", detail)
        settle(page)
        shown = read_table(page, "sets")
        assert set(shown) == set(SCORES)
        for score in SCORES:
            for at, column in enumerate(("wrong", "set-0", "set-1", "set-2")):
                each = [ranking(e, score, np.eye(4)[at, 1:]) for e in study.evaluations]
                kind = "ood" if at else "wrong"
                expected = {
                    "auroc": lambda r, kind=kind: r.auroc(kind),
                    "fpr": lambda r, kind=kind: r.fpr(kind, recall=0.9),
                    "risk": lambda r, at=at: r.risk_at_recall(0.9, 0.6 if at else 1, 0.4),
                    "aurr": lambda r, at=at: r.aurr(0.6 if at else 1, 0.4),
                    "augrc": lambda r, at=at: r.augrc(0.5 if at else 1, 0.5),  # as evaluated, whatever the setting
                }[detail]
                close = 1e-9 if detail in ("fpr", "risk") else 5e-3
                assert shown[score][column] == pytest.approx(np.mean([expected(r) for r in each]), rel=close)


def test_several_runs_have_bands_and_marks_where_a_difference_is_noise(open_page, one, seeds):
    page = open_page(seeds.path)
    marks = set()
    for alpha, beta in ((0.5, 0.5), (0.5, 0.9), (0.9, 0.5)):
        follow(page, f"alpha={alpha}&beta={beta}")
        values = dict(zip(SCORES, risks(seeds.evaluations, alpha=alpha, beta=beta), strict=True))
        for score in SCORES[1:]:
            expected = within_noise(values[score] - values["msp"])
            cell = page.locator(f'#ranked tr[data-score="{score}"] [data-column="difference"]')
            assert ("≈" in cell.inner_text()) == expected, (alpha, beta, score)
            marks.add(expected)
        best, *others = read_table(page)
        for score in others:
            mark = page.inner_text(f'#ranked tr[data-score="{score}"] th .mark')
            assert ("≈" in mark) == within_noise(values[score] - values[best])
    assert marks == {True, False}
    single = open_page(one.path)
    for plot in ("risk-recall", "risk-coverage", "over-alpha", "over-beta"):
        bands = "(id) => document.getElementById(id).data.filter((trace) => trace.meta === 'band').length"
        assert page.evaluate(bands, plot) == 2  # of the best and of the baseline
        assert single.evaluate(bands, plot) == 0


@pytest.mark.parametrize(("metric", "name"), [("risk", "risk@95"), ("aurr", "aurr"), ("aurc", "aurc")])
def test_one_run_has_the_sampling_error_that_compare_finds(open_page, one, metric, name):
    (evaluation,) = one.evaluations
    page = open_page(one.path)
    for alpha, beta in ((0.5, 0.5), (0.8, 0.9)):
        follow(page, f"alpha={alpha}&beta={beta}&by={metric}")
        found = evaluation.compare("msp", alpha=alpha, beta=beta, negatives=["pooled"])
        for line in found[found["metric"] == name].itertuples():
            cell = page.locator(f'#ranked tr[data-score="{line.score}"] [data-column="difference"]')
            spread = float(cell.get_attribute("title").split()[1]) / 100
            assert spread == pytest.approx(2 * line.se, rel=0.1), (line.score, alpha, beta)
            noise = abs(line.difference) <= spread
            assert ("≈" in cell.inner_text()) == noise
            assert (cell.get_attribute("class") in ("better", "worse")) == (not noise)
            if not 0.85 < abs(line.difference) / spread < 1.15:
                assert noise == (line.low <= 0 <= line.high), (line.score, alpha, beta)
    assert "2 standard errors" in page.inner_text("#ranked-note")
    assert "noise (± 2 standard errors is " in page.inner_text("#advice")


@pytest.mark.parametrize("detail", ["auroc", "fpr", "risk", "aurr"])
def test_each_set_of_one_run_is_coloured_where_compare_says_it_is_more_than_noise(open_page, one, detail):
    (evaluation,) = one.evaluations
    page = open_page(one.path, f"detail={detail}")
    label = find_metric(detail).label(0.95)
    table = evaluation.compare("msp", negatives=["wrong", *evaluation.ood])
    for line in table[table["metric"] == label].itertuples():
        column = "wrong" if line.negative == "wrong" else f"set-{list(evaluation.ood).index(line.negative)}"
        coloured = page.get_attribute(f'#sets tr[data-score="{line.score}"] [data-column="{column}"]', "class") or ""
        if not 0.85 < abs(line.difference) / (2 * line.se) < 1.15:
            better = (line.difference > 0) == (detail == "auroc")
            expected = ("better" if better else "worse") if abs(line.difference) > 2 * line.se else ""
            assert {"better", "worse"} & set(coloured.split()) == {expected} - {""}


def test_a_lead_of_one_run_that_is_noise_is_neither_coloured_nor_bare_of_dots(open_page, tmp_path):
    """Scores that are equally good but for luck: nothing on the page calls one of them better."""
    equal = dict.fromkeys(("msp", "energy", "mine"), (1.2, 1.2, 1.2))
    page = open_page(report(made_up(equal, right=400, wrong=100, seed=4), tmp_path / "equal.html"), fresh=True)
    assert page.locator("#ranked .better, #ranked .worse").count() == 0
    assert page.locator("#sets .better, #sets .worse").count() <= 1  # of eight, each wrong once in twenty
    noisy = np.array([[cell[4] for cell in row] for row in read_map(page)[2]])
    assert noisy.mean() > 0.9
    dots = page.evaluate("() => document.querySelector('#map').data.find((trace) => trace.meta === 'noise').marker")
    assert dots["line"]["color"] != dots["color"]  # dots of the ink alone would vanish on MSP, which is black
    assert "the baseline; in Risk@95 they differ within noise." in page.inner_text("#advice")
    assert "but nowhere beyond noise" in page.inner_text("#advice") or not noisy[20].all()


def test_one_of_several_runs_is_judged_by_the_spread_over_them(open_page, seeds):
    page = open_page(seeds.path, "run=2")
    values = dict(zip(SCORES, risks(seeds.evaluations, alpha=0.5, beta=0.5), strict=True))
    for score in SCORES[1:]:
        differences = values[score] - values["msp"]
        cell = page.locator(f'#ranked tr[data-score="{score}"] [data-column="difference"]')
        assert ("≈" in cell.inner_text()) == (abs(differences[2]) <= 2 * np.std(differences, ddof=1)), score
        assert "2 std over 4 runs" in cell.get_attribute("title")


def test_columns_out_of_sight_are_hinted_at(open_page, tmp_path):
    sets = {f"a set with a long name {i}": 30 for i in range(10)}
    page = open_page(report(made_up(sets=sets), tmp_path / "wide.html"), fresh=True)
    page.set_viewport_size({"width": 1440, "height": 900})
    settle(page)
    hint = "() => getComputedStyle(document.getElementById('ranked-title'), '::after').content"
    assert "More columns: scroll the table sideways" in page.evaluate(hint)
    page.evaluate("() => { document.getElementById('ranked').parentElement.scrollLeft = 1e6; }")
    page.wait_for_selector(".scroll:not([data-more]) > #ranked")
    assert page.evaluate(hint) == "none"


def test_bands_are_two_standard_deviations_wide(open_page, seeds):
    page = open_page(seeds.path, "score=msp&beta=0.3")
    for plot, vary in (("over-alpha", "alpha"), ("over-beta", "beta"), ("risk-recall", "recall")):
        band, line = page.evaluate(
            """(id) => { const { data } = document.getElementById(id);
                return [data.find((trace) => trace.meta === "band"), data.find((trace) => trace.name === "MSP")]
                    .map(({ x, y }) => ({ x: [...x], y: [...y] })); }""",
            plot,
        )
        for at in (5, 11, 18):
            values = risks(seeds.evaluations, **{"beta": 0.3, vary: line["x"][at]})[0]
            spread = 2 * np.std(values, ddof=1)
            assert line["y"][at] == pytest.approx(values.mean(), rel=1e-9)
            assert band["y"][at] == pytest.approx(values.mean() + spread, rel=1e-9)
            assert band["y"][len(band["y"]) - 1 - at] == pytest.approx(values.mean() - spread, rel=1e-9, abs=1e-12)


def test_curves_run_through_the_points_of_ranking(open_page, one):
    page = open_page(one.path, "alpha=0.7&beta=0.8&recall=0.9")
    curves = {
        plot: page.evaluate(
            """(id) => document.getElementById(id).data.filter((trace) => trace.name)
                .map(({ name, x, y }) => [name, [...x], [...y]])""",
            plot,
        )
        for plot in ("risk-recall", "risk-coverage")
    }
    found = {plot: {name: (np.array(x), np.array(y)) for name, x, y in traces} for plot, traces in curves.items()}
    for score in SCORES:
        name = sirc.report.names.score_name(score)
        expected = ranking(one.evaluations[0], score, pooled(one.evaluations[0]))
        recall, risk = found["risk-recall"][name]
        assert len(recall) == 190
        assert risk == pytest.approx([expected.risk_at_recall(r, 0.7, 0.8) for r in recall], rel=1e-9)
        coverage, risk = found["risk-coverage"][name]
        curve = expected.risk_coverage(0.7, 0.8)
        assert len(coverage) == 512
        assert risk == pytest.approx(np.interp(coverage, curve.x.numpy(), curve.risk.numpy()), rel=1e-9, abs=1e-12)
    coverage, risk = found["risk-coverage"]["oracle"]
    curve = expected.oracle_risk_coverage(0.7, 0.8)
    assert risk == pytest.approx(np.interp(coverage, curve.x.numpy(), curve.risk.numpy()), abs=1e-4)


def test_a_link_brings_the_whole_view_back(open_page, seeds):
    page = open_page(seeds.path)
    enter(page, "alpha", 0.31)
    enter(page, "beta", 0.77)
    enter(page, "recall", 92.3)
    page.select_option("#run", "1")
    page.select_option("#pool", "datasets")
    page.check('input[name=metric][value="aurr"]')
    page.uncheck('[data-set="1"]')
    page.uncheck('#scores [data-score="mine"]')
    page.select_option("#baseline", "vim")
    page.select_option("#detail", "fpr")
    page.wait_for_function("() => location.hash.includes('detail=fpr') && location.hash.includes('baseline=vim')")
    settle(page)
    again = open_page(seeds.path, page.evaluate("() => location.hash.slice(1)"), fresh=True)
    assert read_controls(again) == read_controls(page)
    for table in ("ranked", "sets"):
        before, after = read_table(page, table), read_table(again, table)
        assert list(before) == list(after)
        for score in before:
            assert after[score] == pytest.approx(before[score], rel=1e-5)
    assert again.inner_text("#sentence") == page.inner_text("#sentence")
    assert again.input_value("#baseline") == "vim"
    assert read_setting(again) == {"alpha": 0.31, "beta": 0.77, "recall": 0.923}


def test_links_that_make_no_sense_are_passed_over(open_page, seeds):
    page = open_page(seeds.path)
    table, controls = read_table(page), read_controls(page)
    for fragment in (
        "alpha=banana&mix=nope&score=<img>",
        "alpha=7&beta=-1&recall=2&run=99&model=5&by=luck&pool=x&detail=x&baseline=x&focus=x",
        "w=1,2&alpha=NaN&beta=Infinity",
        "w=0,0,0&mix=own&model=-1&run=__proto__",
        "mix=constructor&score=__proto__&alpha=1e999&w=,,",
        "%E0%A4%A&=&&&alpha&alpha=",
    ):
        follow(page, "alpha=0.25&by=aurc&baseline=vim&w=1,0,2&score=msp&score=vim&run=1")
        assert read_table(page) != table
        follow(page, fragment)
        assert read_table(page) == table, fragment
        assert read_controls(page) == controls, fragment
    loaded = open_page(seeds.path, fragment, fresh=True)
    assert read_controls(loaded) == controls
    follow(page, "w=1,1,1")
    even = read_table(page)
    follow(page, "w=1e308,1e308,1e308")  # relative weights, however large
    assert read_table(page) == even
    follow(page, "alpha=0.25&beta=x")
    assert read_setting(page) == {"alpha": 0.25, "beta": 0.5, "recall": 0.95}


def alone(confidence, correct, ood=()):
    confidence, correct = torch.tensor(confidence).double(), torch.tensor(correct)
    return sirc.evaluate({"msp": (confidence, correct)}, ood={"set": {"msp": list(ood)}} if len(ood) else None)


@pytest.mark.parametrize(
    "evaluation",
    [
        pytest.param(lambda: made_up(sets={}), id="no OOD sets"),
        pytest.param(lambda: made_up({"msp": (1, 1, 1)}), id="one score"),
        pytest.param(lambda: alone([0.5], [True]), id="one sample"),
        pytest.param(lambda: alone([0.5, 0.7], [True, True]), id="all right, no OOD"),
        pytest.param(lambda: alone([0.5, 0.7], [True, True], [0.6]), id="all right"),
        pytest.param(lambda: alone([1, 1, 1], [True, False, True], [1, 1]), id="all equal"),
        pytest.param(lambda: alone([np.inf, 3, -np.inf], [True, False, True], [-np.inf, np.inf, 2]), id="infinite"),
    ],
)
def test_the_smallest_evaluations_have_a_page(open_page, tmp_path, evaluation):
    found = evaluation()
    page = open_page(write(Run("net", 0, found), tmp_path / "report.html"), fresh=True)
    enter(page, "beta", 0.25)
    enter(page, "recall", 50)
    alpha = 0.5 if found.ood else 1.0
    shown = read_table(page)
    assert set(shown) == set(found.scores)
    for score, cells in shown.items():
        expected = row([found], score, alpha=alpha, beta=0.25, recall=0.5)
        for column, value in expected.items():
            if column in cells:
                close = 5e-3 if column in ("aurr", "aurc") else 1e-9
                assert cells[column] == pytest.approx(value, rel=close, abs=1e-12), column
        assert {"risk", "coverage", "threshold"} <= set(cells)
    assert page.is_visible("#alpha") == bool(found.ood)
    assert page.is_visible("#map") == bool(found.ood)
