"""The page is for everyone: by keyboard, on any screen, in print, with names of any kind, and quick under the hand."""

import io
from pathlib import Path
from types import SimpleNamespace

import pytest
from axe_playwright_python.sync_playwright import Axe
from PIL import Image

import sirc
from support.page_driving import cut_off, drag, overflowing, read_setting, read_table, settle
from support.page_reports import GROUPS, Run, made_up, row, write

HOSTILE = [
    '</script><img src=x onerror="window.hacked=1">',
    "<b>bold</b>",
    "%{x}",
    '"quotes" & <tags>',
    "a'); window.hacked=1; ('",
    "&lt;i&gt;",
    "{{script}}",
    "__proto__",
]


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """Two models, one of them trained twice, so that every control is there."""
    runs = [Run("net", seed, made_up(groups=GROUPS, seed=seed, wobble=0.05)) for seed in range(2)]
    runs.append(Run("a second network, with a rather long name", 0, made_up(seed=7)))
    path = write(runs, tmp_path_factory.mktemp("looks") / "report.html")
    return SimpleNamespace(path=path, evaluations=[run.evaluation for run in runs[:2]])


def test_tab_reaches_every_control_in_the_pages_order_and_shows_where_it_is(open_page, study):
    page = open_page(study.path)
    count = page.evaluate(
        """() => { const all = document.querySelectorAll("a[href], button, input, select, summary, [tabindex='0']");
            window.stops = [...all].filter((e) => e.checkVisibility({ visibilityProperty: true }) && !e.disabled
                && e.tabIndex >= 0 && (e.type !== "radio" || e.checked)); return window.stops.length; }"""
    )
    assert count > 40
    assert page.locator("[tabindex]:not([tabindex='0'], [tabindex='-1'])").count() == 0
    reached, unmarked = [], []
    for _ in range(count):
        page.keyboard.press("Tab")
        at, shown, what = page.evaluate(
            """() => { const e = document.activeElement, s = getComputedStyle(e);
                const shown = (s.outlineStyle !== "none" && parseFloat(s.outlineWidth) > 0) || s.boxShadow !== "none";
                return [window.stops.indexOf(e), shown, e.outerHTML.slice(0, 90)]; }"""
        )
        reached.append(at)
        if not shown:
            unmarked.append(what)
    assert reached == list(range(count))
    assert unmarked == []


def test_keys_alone_make_any_setting(open_page, study):
    page = open_page(study.path)
    for slider, keys, expected in (
        ("alpha", ["ArrowRight"] * 3 + ["ArrowUp", "ArrowLeft"], 0.53),
        ("beta", ["Home", "ArrowRight", "ArrowRight"], 0.02),
        ("recall", ["End"], 1.0),
    ):
        page.focus(f"#{slider}")
        for key in keys:
            page.keyboard.press(key)
        settle(page)
        assert read_setting(page)[slider] == expected
    shown = read_table(page)
    for score, cells in shown.items():
        expected = row(study.evaluations, score, alpha=0.53, beta=0.02, recall=1.0)
        assert cells["risk"] == pytest.approx(expected["risk"], rel=1e-9)
    page.focus("input[name=metric][value=risk]")
    page.keyboard.press("ArrowDown")
    settle(page)
    assert page.is_checked("input[name=metric][value=aurr]")
    page.focus('button[data-mix="Close"]')
    page.keyboard.press("Enter")
    settle(page)
    assert page.get_attribute('button[data-mix="Close"]', "aria-pressed") == "true"
    page.focus('button[data-mix="all"]')
    page.keyboard.press("Space")
    settle(page)
    assert page.get_attribute('button[data-mix="all"]', "aria-pressed") == "true"
    page.focus('#scores [data-score="vim"]')
    page.keyboard.press("Space")
    settle(page)
    assert set(read_table(page)) == set(shown) - {"vim"}
    page.focus("#baseline")
    page.keyboard.press("ArrowDown")
    settle(page)
    assert page.input_value("#baseline") == "sirc(msp, residual)"
    assert read_table(page)["sirc(msp, residual)"]["difference"] == 0
    page.focus("#link")
    page.keyboard.press("Enter")
    page.wait_for_function("() => document.getElementById('link-note').textContent.length > 3")
    page.focus("#reset")
    page.keyboard.press("Enter")
    settle(page)
    assert read_setting(page) == {"alpha": 0.5, "beta": 0.5, "recall": 0.95}
    assert set(read_table(page)) == set(shown)


def test_a_row_chosen_by_keyboard_is_what_the_sentence_speaks_of(open_page, study):
    page = open_page(study.path)
    page.focus('#ranked tr[data-score="energy"] button')
    page.keyboard.press("Enter")
    settle(page)
    assert "Energy accepts" in page.inner_text("#sentence")
    assert page.evaluate("() => document.activeElement.closest('tr').dataset.score") == "energy"


def test_explanations_open_and_close_by_key(open_page, study):
    page = open_page(study.path)
    buttons = page.locator("button.why")
    note = page.locator("[role=note]")
    texts = set()
    for at in range(buttons.count()):
        button = buttons.nth(at)
        assert len(button.get_attribute("aria-label") or button.inner_text()) > 3
        button.focus()
        page.keyboard.press("Enter")
        assert note.is_visible()
        texts.add(note.inner_text())
        box = note.bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 1280
        assert 0 <= box["y"] <= 900 - box["height"]
        page.keyboard.press("Escape")
        assert not note.is_visible()
        assert button.evaluate("(b) => b === document.activeElement")
    assert len(texts) == buttons.count() >= 8
    assert all(len(text) > 60 for text in texts)


@pytest.mark.parametrize("width", [360, 3840])
def test_nothing_sticks_out_of_the_narrowest_or_widest_screen(open_page, study, width):
    page = open_page(study.path, fresh=True, width=width, height=800 if width < 1000 else 2160)
    for _ in range(2):
        assert overflowing(page) == [0, []]
        assert cut_off(page) == []
        picture = Image.open(io.BytesIO(page.screenshot(full_page=True)))
        assert picture.width == width
        assert len(picture.convert("RGB").resize((200, 200)).getcolors(40_000)) > 20
        page.locator("#more > summary").click()  # with the other controls folded, and unfolded
        settle(page)
    sizes = page.evaluate(
        """() => [...document.querySelectorAll("p, td, th, label, button, select, svg text")]
            .filter((e) => e.checkVisibility() && e.textContent.trim())
            .map((e) => [parseFloat(getComputedStyle(e).fontSize), e.outerHTML.slice(0, 90)])"""
    )
    assert min(sizes)[0] >= 10


def test_long_names_do_not_widen_the_page(open_page, tmp_path):
    name = "a_name_without_a_single_space_" * 4
    strengths = {name: (1, 1, 1), "sirc(msp, l1, residual, knn)": (1.5, 1.5, 1.5)}
    options = {"right": 80, "wrong": 30, "groups": {f"{name}group": ["x"]}}
    runs = [Run(f"{name}{i}", 0, made_up(strengths, {f"{name}set": 50, "x": 50}, **options)) for i in range(2)]
    page = open_page(write(runs, tmp_path / "report.html", title=name), fresh=True, width=360, height=800)
    page.locator("#more > summary").click()
    settle(page)
    assert overflowing(page) == [0, []]
    page.set_viewport_size({"width": 1280, "height": 900})
    settle(page)
    assert overflowing(page) == [0, []]
    sticking = """() => { const edge = document.querySelector("#controls").getBoundingClientRect().right;
        return [...document.querySelectorAll("#controls :is(select, button, input, label)")]
            .filter((e) => e.checkVisibility() && e.getBoundingClientRect().right > edge).map((e) => e.id); }"""
    assert page.evaluate(sticking) == []


def test_plots_follow_the_window(open_page, study):
    page = open_page(study.path, fresh=True, width=1600)
    page.set_viewport_size({"width": 360, "height": 800})
    page.wait_for_function(
        """() => [...document.querySelectorAll(".plot")].filter((p) => p.checkVisibility())
            .every((p) => p.querySelector("svg").getBoundingClientRect().right <= innerWidth)"""
    )


def luminance(page, selector, what):
    """The relative luminance of a colour, which the browser may give in several ways."""
    return page.evaluate(
        """([selector, what]) => { const pen = document.createElement("canvas").getContext("2d");
            pen.fillStyle = getComputedStyle(document.querySelector(selector))[what]; pen.fillRect(0, 0, 1, 1);
            const [r, g, b] = pen.getImageData(0, 0, 1, 1).data;
            return (0.2126 * r + 0.7152 * g + 0.0722 * b) / 255; }""",
        [selector, what],
    )


def test_light_and_dark_follow_the_readers_choice_and_paper_is_white(open_page, study):
    page = open_page(study.path, fresh=True, color_scheme="light")
    assert luminance(page, "body", "backgroundColor") > 0.85
    assert luminance(page, "#sentence", "color") < 0.3
    font = "() => document.querySelector('#risk-recall')._fullLayout.font.color"
    light = page.evaluate(font)
    page.emulate_media(color_scheme="dark")
    page.wait_for_function(f"(light) => ({font})() !== light", arg=light)
    assert luminance(page, "body", "backgroundColor") < 0.2
    assert luminance(page, "#sentence", "color") > 0.6
    page.emulate_media(color_scheme="dark", media="print")
    assert luminance(page, "body", "backgroundColor") > 0.95
    assert luminance(page, "#sentence", "color") < 0.3


def test_it_can_be_printed(open_page, study):
    page = open_page(study.path, fresh=True)
    document = page.pdf(format="A4")
    assert document.startswith(b"%PDF")
    assert len(document) > 30_000
    page.emulate_media(media="print")
    assert all(page.is_visible(part) for part in ("h1", "#setting", "#sentence", "#ranked", "#sets", "#map"))
    assert not any(page.is_visible(part) for part in ("#alpha", "#mix", "button.why"))


@pytest.mark.parametrize("width", [360, 3840])
def test_on_paper_plots_have_the_size_of_their_place(open_page, study, width):
    page = open_page(study.path, fresh=True, width=width)
    page.set_viewport_size({"width": width, "height": 1000})
    settle(page)
    page.evaluate("() => dispatchEvent(new Event('beforeprint'))")
    page.emulate_media(media="print")
    page.set_viewport_size({"width": 720, "height": 1000})  # about what A4 leaves between its margins
    for plot in ("#map", "#risk-recall", "#risk-coverage", "#over-alpha", "#over-beta"):
        drawn, place = page.locator(f"{plot} svg.main-svg").first.bounding_box(), page.locator(plot).bounding_box()
        assert drawn["height"] <= place["height"] + 1
        assert drawn["width"] <= place["width"] + 1
        assert drawn["height"] > 0.9 * place["height"]
    page.emulate_media(media="screen")
    page.evaluate("() => dispatchEvent(new Event('afterprint'))")
    settle(page)
    drawn, place = page.locator("#map svg.main-svg").first.bounding_box(), page.locator("#map").bounding_box()
    assert drawn["width"] == pytest.approx(place["width"], abs=2)


def test_skipping_the_controls_keeps_the_setting(open_page, study):
    page = open_page(study.path, fresh=True)
    page.fill("#alpha-number", "0.2")
    settle(page)
    page.focus(".skip")
    page.keyboard.press("Enter")
    settle(page)
    assert page.evaluate("() => document.activeElement.id") == "main"
    assert page.input_value("#alpha") == "0.2"
    assert page.evaluate("() => location.hash") in ("", "#alpha=0.2")


def test_equal_scores_are_not_told_as_a_victory(open_page, study):
    page = open_page(study.path, "alpha=0")
    assert "All scores have the same Risk@95, the lowest." in page.inner_text("#advice")


def test_names_are_shown_as_they_are_and_do_nothing(open_page, tmp_path):
    strengths = {name: (1 + 0.1 * i, 1, 1.5 - 0.1 * i) for i, name in enumerate(HOSTILE)}
    sets = {f"set {name}": 60 for name in HOSTILE}
    groups = {f"group {name}": [f"set {name}"] for name in HOSTILE}
    runs = [
        Run(f"model {name}", seed, made_up(strengths, sets, right=80, wrong=30, groups=groups, seed=seed))
        for name in HOSTILE[:2]
        for seed in range(2)
    ]
    title = "title " + " ".join(HOSTILE)
    page = open_page(write(runs, tmp_path / "report.html", title=title), fresh=True)
    assert page.title() == title
    assert page.inner_text("h1") == title
    for model in (0, 1):
        page.select_option("#model", str(model))
        settle(page)
        assert set(read_table(page)) == set(HOSTILE)
        assert texts(page, "#ranked tbody th button") == set(HOSTILE)
        assert texts(page, "#scores label") == set(HOSTILE)
        assert texts(page, "#baseline option") == set(HOSTILE)
        assert texts(page, "#mix-sets label") == set(sets)
        assert set(groups) <= texts(page, "#mix button[data-mix]")
        assert set(sets) <= texts(page, "#sets thead th")
    assert texts(page, "#model option") == {f"model {name}" for name in HOSTILE[:2]}
    for plot in ("risk-coverage", "over-alpha"):
        assert labels(page, plot) == set(HOSTILE)
    on_map = " ".join(page.locator("#map svg text").all_text_contents())
    assert any(name in on_map for name in HOSTILE)
    for at, name in enumerate(HOSTILE[:3]):
        page.locator("#ranked tbody tr").locator("button").filter(has_text=name).first.click()
        page.locator("[data-mix]").nth(at + 1).click()
        settle(page)
        assert f"{name} accepts" in page.inner_text("#sentence")
        assert page.locator("[data-set]:checked").get_attribute("data-set") == str(at)
    assert page.evaluate("() => [window.hacked, document.querySelectorAll('img, main b').length]") == [None, 0]
    assert page.locator("script").count() == 3


def texts(page, selector):
    """What these elements say; the browser joins no spaces that names have inside."""
    return {text.strip() for text in page.locator(selector).all_text_contents()}


def labels(page, plot):
    """Point at the middle of each line, and give the names that its label shows."""
    shown = page.evaluate(
        """async (id) => { const plot = document.getElementById(id), found = [];
            const shown = () => plot.querySelector(".hoverlayer text tspan")?.textContent;
            for (const [at, trace] of plot.data.entries()) {
                if (!trace.name || trace.name.startsWith("oracle")) continue;
                const before = shown();
                Plotly.Fx.hover(plot, [{ curveNumber: at, pointNumber: Math.floor(trace.x.length / 2) }]);
                for (let frames = 0; frames < 120 && (!shown() || shown() === before); frames += 1)
                    await new Promise(requestAnimationFrame);
                found.push(shown()); }
            Plotly.Fx.unhover(plot); return found; }""",
        plot,
    )
    return {name.strip() for name in shown}


def test_a_large_report_is_small_and_follows_every_control(open_page, tmp_path):
    strengths = {f"score {i}": (1 + 0.05 * i, 1 - 0.02 * i, 1 + 0.1 * i) for i in range(16)}
    sets = {f"set {i}": 100 + 30 * i for i in range(10)}  # more rows make no larger page
    runs = [
        Run("net", seed, made_up(strengths, sets, right=700, wrong=200, seed=seed, wobble=0.05)) for seed in range(3)
    ]
    path = write(runs, tmp_path / "report.html")
    library = Path(sirc.__file__).parent / "report/page/vendor/plotly-cartesian.min.js"
    assert path.stat().st_size - library.stat().st_size < 2_000_000
    page = open_page(path, fresh=True)
    everyone = list(read_table(page))
    assert len(everyone) == 16
    page.click("#scores-few")
    settle(page)
    assert list(read_table(page)) == everyone[:5]
    page.click("#scores-all")
    settle(page)
    assert list(read_table(page)) == everyone
    for metric, control in (("risk", "#alpha"), ("aurr", '[data-weight="3"]')):
        page.check(f"input[name=metric][value={metric}]")
        settle(page)
        before = read_table(page)
        drag(page, control, 0.1, steps=1)
        settle(page)
        assert read_table(page) != before


@pytest.mark.parametrize("width", [360, 1280])
def test_axe_finds_no_serious_violation(open_page, study, width):
    page = open_page(study.path, fresh=True, width=width)
    page.evaluate("() => { document.getElementById('more').open = true; }")
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        settle(page)
        assert violations(page) == []
    page.locator("button.why").first.click()
    assert violations(page) == []


def violations(page):
    found = Axe().run(page).response["violations"]
    return [
        (violation["id"], node["target"], node["failureSummary"])
        for violation in found
        if violation["impact"] in ("serious", "critical")
        for node in violation["nodes"]
    ]
