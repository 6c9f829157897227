"""The page to try a guard on, in a browser: a dropped file gets its decision, on any screen and by any hand."""

from types import SimpleNamespace

import numpy as np
import pytest
from axe_playwright_python.sync_playwright import Axe
from PIL import Image

from sirc.deploy.tryout import make_app
from support.page_driving import cut_off, overflowing
from support.tiny_selective import CLASSES, PREPROCESS, calibrated, encoded, pixels
from support.tryouts import served, write_training

HOSTILE = ['<img src=x onerror="window.hacked=1">', "</h2><b>bold</b>", "a rather long name of a class, " * 4]
DROP = """([bytes, name]) => { const transfer = new DataTransfer();
    if (bytes) transfer.items.add(new File([new Uint8Array(bytes)], name)); else transfer.setData("text/plain", name);
    return transfer; }"""
PASTE = """(transfer) => document.dispatchEvent(
    new ClipboardEvent("paste", { clipboardData: transfer, bubbles: true, cancelable: true }))"""

LINES = """(text) => { const share = document.querySelector("#top .share");
    share.textContent = text;
    const all = document.createRange(); all.selectNodeContents(share);
    return new Set([...all.getClientRects()].map((one) => one.top)).size; }"""  # of the share of the first class


@pytest.fixture(scope="module")
def guard():
    return calibrated()


@pytest.fixture(scope="module")
def address(guard, tmp_path_factory):
    with served(make_app(guard, **write_training(tmp_path_factory.mktemp("training"), guard))) as found:
        yield found


@pytest.fixture
def visit(chromium):
    """Open a page; what it logs, but for answers that are no decisions, or asks of others fails the test."""
    contexts, complaints = [], []

    def note(message):
        if message.type in ("error", "warning") and not message.text.startswith("Failed to load resource"):
            complaints.append(f"console: {message.text}")

    def open_one(address, *, width=1280, height=900, color_scheme="light"):
        size = {"width": width, "height": height}
        context = chromium.new_context(viewport=size, color_scheme=color_scheme, reduced_motion="reduce")
        contexts.append(context)
        context.set_default_timeout(60_000)
        own = (address, "blob:", "data:")
        context.on("request", lambda one: None if one.url.startswith(own) else complaints.append(one.url))
        context.on("console", note)
        context.on("weberror", lambda error: complaints.append(f"page: {error.error}"))
        page = context.new_page()
        page.goto(address)
        page.wait_for_selector("html[data-ready]", state="attached")
        return page

    yield open_one
    for context in contexts:
        context.close()
    assert not complaints


def drop(page, body, name="photo.png", how="drop"):
    transfer = page.evaluate_handle(DROP, [None if body is None else list(body), name])
    if how == "paste":
        page.evaluate(PASTE, transfer)
    else:
        page.dispatch_event("#zone", how, {"dataTransfer": transfer})
    return settled(page)


def settled(page):
    """Wait for the answer to the image at hand, and for all pictures."""
    page.wait_for_function(
        """() => document.getElementById("verdict").ariaBusy === "false"
            && [...document.images].every((image) => image.hidden || image.complete)"""
    )
    texts = {name: page.inner_text(f"#{name}") for name in ("kicker", "answer", "words", "standing")}
    return SimpleNamespace(**texts, guess=page.locator("#guess:visible").all_inner_texts())


def decided(guard, number):
    """The decision, and the reason, about an image of the tests."""
    decision, (reason,) = guard.explain(PREPROCESS.test()(Image.fromarray(pixels(number)))[None])
    return CLASSES[int(decision.label)], float(decision.confidence), bool(decision.accepted), reason


def test_a_dropped_file_gets_the_guard_s_decision(visit, address, guard):
    page = visit(address)
    assert page.inner_text("#answer") == "Show it something"
    seen = set()
    for number in range(8):
        name, confidence, accepted, reason = decided(guard, number)
        seen.add(accepted)
        told = drop(page, encoded(number))
        assert told.answer == (name if accepted else "I don't know")
        assert told.kicker == ("✓ Accepted" if accepted else "? Rejected")
        assert told.guess == ([] if accepted else [f"Its guess would be {name}."])
        assert (reason == "residual") == ("(Residual)" in told.words)
        below = (guard.calibration[guard.calibration_correct] < confidence).double().mean()
        assert f"{100 * below:.1f}% of what the network gets right" in told.standing
        assert page.locator("#top li").first.inner_text().splitlines()[0] == name
        at = float(page.get_attribute("#histogram line.here", "x1"))
        limit = float(page.get_attribute("#histogram line.threshold", "x1"))
        assert (at >= limit) == accepted
    assert seen == {True, False}


def test_the_nearest_training_images_are_shown(visit, address):
    page = visit(address)
    drop(page, encoded(5))
    assert page.locator("#nearest li").count() == 6
    assert page.get_attribute("#nearest img >> nth=0", "alt") == "blue/05.png"
    assert page.locator("#nearest small").first.inner_text() == "1.000"
    widths = page.evaluate("() => [...document.querySelectorAll('#nearest img')].map((image) => image.naturalWidth)")
    assert widths == [24] * 6
    same = sum(text == "blue" for text in page.locator("#nearest strong").all_inner_texts())
    name = page.locator("#top li").first.inner_text().splitlines()[0]
    assert name != "blue" or f"{same} of 6 are blue." in page.inner_text("#near-words")


def test_a_file_may_be_pasted_or_chosen_by_key_and_the_same_one_again(visit, address, guard, tmp_path):
    page = visit(address)
    name, _, accepted, _ = decided(guard, 2)
    expected = name if accepted else "I don't know"
    assert drop(page, encoded(2), how="paste").answer == expected
    assert drop(page, b"nonsense").answer == "That did not work"
    (tmp_path / "2.png").write_bytes(encoded(2))
    page.on("filechooser", lambda chooser: chooser.set_files(tmp_path / "2.png"))
    for key in ("Space", "Enter"):
        page.focus("#file")
        with page.expect_response("**/decide"):
            page.keyboard.press(key)
        assert settled(page).answer == expected


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"nonsense", "it is empty or no image that PIL knows. Send one of JPEG, PNG, WEBP"),
        (encoded(1)[:-500], "it is damaged"),
        (None, "What was dropped is no file. Save the image first, and drop that."),
    ],
)
def test_what_is_no_image_is_told_in_words_and_leaves_no_old_answer(visit, address, body, words):
    page = visit(address)
    drop(page, encoded(1))
    told = drop(page, body)
    assert (told.kicker, told.answer) == ("No decision", "That did not work")
    assert words in told.words
    assert page.locator("#classes:visible, #near:visible, #seen:visible, #histogram .here").count() == 0
    assert drop(page, encoded(1)).kicker != "No decision"


def test_a_file_that_is_too_large_is_not_sent(visit, address):
    page = visit(address)
    page.on("request", lambda request: pytest.fail("it was sent") if request.url.endswith("/decide") else None)
    page.evaluate(
        """() => { const transfer = new DataTransfer();
            transfer.items.add(new File([new Uint8Array(33 * 2 ** 20)], "large.png"));
            dispatchEvent(new DragEvent("drop", { dataTransfer: transfer })); }"""
    )
    assert settled(page).words == "The image must have at most 32 MiB; it has 33."


def test_the_answer_of_an_image_that_was_replaced_is_not_shown(visit, address, guard):
    page = visit(address)
    held = []
    page.route("**/decide", lambda route: held.append(route) if not held else route.continue_())
    transfer = page.evaluate_handle(DROP, [list(encoded(1)), "first.png"])
    with page.expect_request("**/decide"):
        page.dispatch_event("#zone", "drop", {"dataTransfer": transfer})
    name, _, accepted, _ = decided(guard, 2)
    assert drop(page, encoded(2)).answer == (name if accepted else "I don't know")
    assert page.get_attribute("#preview", "alt") == "Your image, photo.png"


def test_rows_of_a_guard_that_does_not_know_which_are_right_are_not_called_right(visit):
    old = calibrated()
    old.calibration_correct = None
    with served(make_app(old)) as address:
        assert visit(address).inner_text("#key").strip() == "validation images"


def test_a_server_that_has_ended_is_told(visit, guard):
    with served(make_app(guard)) as address:
        page = visit(address)
    assert drop(page, encoded(1)).words == "The program behind this page does not answer."


@pytest.mark.parametrize("color_scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 360])
def test_the_page_fits_and_can_be_read_by_everyone(visit, address, width, color_scheme):
    page = visit(address, width=width, color_scheme=color_scheme)
    for number in (None, 0, 1, 2):
        if number is not None:
            drop(page, encoded(number))
        assert overflowing(page) == [0, []]
        assert cut_off(page) == []
    assert page.evaluate(LINES, "100.0%") == 1
    page.click("summary")
    found = Axe().run(page).response["violations"]
    assert [(one["id"], node["target"]) for one in found for node in one["nodes"]] == []
    ink, ground = (
        page.evaluate(f"() => getComputedStyle(document.body).{name}") for name in ("color", "backgroundColor")
    )
    light = [np.mean([int(part) for part in text[4:-1].split(",")]) for text in (ink, ground)]
    assert (light[0] < light[1]) == (color_scheme == "light")


def test_names_are_text_and_nothing_runs(visit, tmp_path):
    with served(make_app(calibrated(classes=HOSTILE))) as address:
        page = visit(address, width=360)
        shown = ""
        for number in range(3):
            drop(page, encoded(number), name=HOSTILE[0])
            shown += page.inner_text("#results")
        assert all(name.strip() in shown for name in HOSTILE[:2])
        assert overflowing(page) == [0, []]
        assert page.evaluate("() => window.hacked") is None
        assert "Start the page with --train FOLDER" in page.inner_text("#near-words").replace("`", "")
