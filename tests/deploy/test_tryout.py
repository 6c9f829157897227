"""The page to try a guard on: what it tells is what the guard decides, and nonsense is answered in words."""

import base64
import io
import math
import re
from importlib.resources import files

import numpy as np
import pytest
import torch
from fastapi.testclient import TestClient
from PIL import Image

import sirc
from sirc.data import Preprocess
from sirc.deploy.confidence_graph import LOWEST
from sirc.deploy.tryout import is_own_name, make_app
from sirc.deploy.tryout.explainer import histogram, rejection_words
from support.tiny_selective import CLASSES, PREPROCESS, SPEC, calibrated, encoded, pixels
from support.tryouts import COUNT, write_training


@pytest.fixture(scope="module")
def guard():
    return calibrated()


@pytest.fixture(scope="module")
def training(guard, tmp_path_factory):
    return write_training(tmp_path_factory.mktemp("training"), guard)


def visit(guard, **options):
    return TestClient(make_app(guard, **options), base_url="http://127.0.0.1:8000")


@pytest.fixture(scope="module")
def client(guard):
    return visit(guard)


@pytest.fixture(scope="module")
def near(guard, training):
    return visit(guard, **training)


def ask(client, body, kind="application/octet-stream"):
    return client.post("/decide", content=body, headers={"Content-Type": kind})


def prepared(number):
    return PREPROCESS.test()(Image.fromarray(pixels(number)))[None]


def test_the_page_tells_what_the_guard_decides(client, guard):
    reasons = set()
    for number in range(20):
        told = ask(client, encoded(number)).json()
        decision, (reason,) = guard.explain(prepared(number))
        reasons.add(reason)
        assert told["accepted"] == bool(decision.accepted)
        assert told["class"] == CLASSES[int(decision.label)]
        assert told["confidence"] == pytest.approx(float(decision.confidence), rel=1e-6)
        assert told["threshold"] == guard.threshold.value
        assert told["reason"] == reason
        shares = decision.logits[0].double().softmax(-1)
        assert [row["probability"] for row in told["top"]] == pytest.approx(sorted(shares.tolist(), reverse=True))
        assert told["top"][0]["class"] == told["class"]
    assert reasons == {"", "residual"}


def test_a_confidence_stands_among_those_of_the_calibration(client, guard):
    told = ask(client, encoded(4)).json()
    right = guard.calibration[guard.calibration_correct]
    wrong = guard.calibration[~guard.calibration_correct]
    shares = [f"{100 * float((rows < told['confidence']).double().mean()):.1f}%" for rows in (right, wrong)]
    assert told["standing"].endswith(
        f"{shares[0]} of what the network gets right and {shares[1]} of what it gets wrong."
    )


def test_an_accepted_image_may_be_wrong_and_the_page_says_how_often(client, guard):
    told = next(told for number in range(20) if (told := ask(client, encoded(number)).json())["accepted"])
    accepted = guard.calibration >= guard.threshold.value
    wrong = 100 * float((~guard.calibration_correct[accepted]).double().mean())
    assert told["words"].endswith(f"{wrong:.1f}% are wrong.")


def test_what_the_network_sees_is_shown_as_it_is_prepared(client):
    image = Image.fromarray(pixels(3, 24, 60))
    file = io.BytesIO()
    image.save(file, "PNG")
    told = ask(client, file.getvalue()).json()
    with Image.open(io.BytesIO(base64.b64decode(told["seen"].partition(",")[2]))) as seen:
        assert np.array_equal(np.asarray(seen), np.asarray(PREPROCESS.geometry()(image)))
    assert told["size"] == "16 × 16"


def test_nothing_comes_from_elsewhere_and_no_script_but_the_page_s_own(client):
    for path, kind in {"/": "text/html", "/page.css": "text/css", "/page.js": "text/javascript"}.items():
        answer = client.get(path)
        assert answer.headers["content-type"].startswith(kind)
        addresses = set(re.findall(r"https?://[^\"'\s)]+", answer.text)) - {"http://www.w3.org/2000/svg"}
        assert not addresses
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
    page = files("sirc.deploy.tryout").joinpath("page.html").read_text(encoding="utf-8")
    assert not re.search(r"\son\w+=|style=|<script>|<style", page)


def png_of(width, height):
    file = io.BytesIO()
    Image.new("1", (width, height)).save(file, "PNG")
    return file.getvalue()


@pytest.mark.parametrize(
    ("body", "kind", "status", "words"),
    [
        (b"", "image/png", 400, "the body must be an image; it is empty"),
        (b"hello", "text/plain", 415, "the body must be an image; its type is text/plain"),
        (b"hello" * 100, "application/octet-stream", 422, "it is empty or no image that PIL knows"),
        (encoded(1)[:-500], "image/png", 422, "it is damaged"),
        (encoded(1, "JPEG")[:-200], "image/jpeg", 422, "it is damaged"),
        (bytes((32 << 20) + 1), "image/png", 413, "the image must have at most 32 MiB"),
        (png_of(9000, 9000), "image/png", 413, "at most 50,000,000 are taken"),
        (png_of(900_000, 1), "image/png", 413, "too narrow to be scaled"),
        (b"nonsense", "multipart/form-data; boundary=b", 400, "the form is malformed"),
    ],
)
def test_what_is_no_image_is_refused_in_words(client, body, kind, status, words):
    answer = ask(client, body, kind)
    assert answer.status_code == status
    assert words in answer.json()["error"]
    assert answer.headers["content-security-policy"]


def test_one_image_is_taken_at_a_time(client):
    files = [("image", (f"{number}.png", encoded(number), "image/png")) for number in range(2)]
    assert client.post("/decide", files=files[:1]).json()["class"] in CLASSES
    answer = client.post("/decide", files=files)
    assert (answer.status_code, answer.json()["kind"]) == (413, "too_many")


def test_a_failure_of_the_network_is_told_without_its_details(client, guard, monkeypatch, caplog):
    def fail(_):
        raise RuntimeError("out of memory at 0x123")

    monkeypatch.setattr(guard, "outputs", fail)
    answer = ask(client, encoded(1))
    assert (answer.status_code, answer.json()["kind"]) == (500, "internal")
    assert "0x123" not in answer.text
    assert "0x123" in caplog.text


def test_an_image_of_a_size_that_the_network_cannot_take_is_its_own_fault():
    answer = ask(visit(calibrated(preprocess=Preprocess(resize=None, crop=None))), png_of(2, 2))
    assert answer.status_code == 422
    assert "the network cannot take an image of 2 × 2 pixels" in answer.json()["error"]


def test_an_image_without_a_confidence_is_told_in_words():
    guard = calibrated()
    with torch.no_grad():
        guard.model[-1].bias[0] = torch.nan
    told = ask(visit(guard), encoded(1)).json()
    assert (told["accepted"], told["confidence"], told["top"]) == (False, None, [])
    assert told["words"].startswith("No confidence can be computed for it")
    assert told["standing"] == "It has no place among the validation images."


def test_a_threshold_that_was_given_has_nothing_to_compare_with():
    guard = calibrated(classes=None).set_threshold(-math.inf)
    client = visit(guard)
    assert client.get("/guard").json()["histogram"] is None
    told = ask(client, encoded(1)).json()
    assert (told["accepted"], told["threshold"]) == (True, None)
    assert told["words"] == "Its confidence reaches the threshold."
    assert told["class"] == f"class {int(guard(prepared(1)).label)}"
    assert told["standing"].startswith("The threshold was given, not calibrated")


def test_rows_that_are_not_known_to_be_right_are_one_group():
    guard = calibrated()
    guard.calibration_correct = None
    client = visit(guard)
    drawn = client.get("/guard").json()["histogram"]
    assert sum(drawn["right"]) + drawn["outside"] == len(guard.calibration)
    assert not any(drawn["wrong"])
    assert ask(client, encoded(1)).json()["standing"].endswith("of the validation images.")


def test_the_page_tells_what_the_guard_promises(client, guard):
    about = client.get("/guard").json()
    assert about["lines"] == str(guard).splitlines()
    assert (about["spec"], about["classes"], about["max_bytes"]) == (SPEC, 3, 32 << 20)
    assert "`--train FOLDER`" in about["neighbours"]


def test_bars_count_every_row_on_its_side_of_the_threshold(guard):
    right, wrong = (guard.calibration[rows].numpy() for rows in (guard.calibration_correct, ~guard.calibration_correct))
    limit = guard.threshold.value
    drawn = histogram(right, wrong, limit)
    edges = np.array(drawn["edges"])
    assert limit in edges
    for name, rows in (("right", right), ("wrong", wrong)):
        for low, high, count in zip(edges[:-1], edges[1:], drawn[name], strict=True):
            assert count == ((rows >= low) & (rows < high)).sum()
        accepted = sum(count for low, count in zip(edges[:-1], drawn[name], strict=True) if low >= limit)
        assert accepted == ((rows >= limit) & (rows <= edges[-1])).sum()


def test_rows_far_outside_do_not_squeeze_the_others():
    rows = np.concatenate([np.linspace(0, 1, 400), [1e9, LOWEST]])
    drawn = histogram(rows, np.empty(0), 0.25)
    assert 2 <= drawn["outside"] <= 4
    assert drawn["edges"][0] <= 0
    assert drawn["edges"][-1] < 1.1


@pytest.mark.parametrize("threshold", [5.0, -math.inf, math.inf])
def test_equal_rows_are_one_bar(threshold):
    drawn = histogram(np.full(9, 5.0), np.empty(0), threshold)
    assert max(drawn["right"]) == 9
    assert drawn["outside"] == 0


def test_without_rows_there_is_no_histogram():
    assert histogram(np.empty(0), np.empty(0), 0.0) is None
    assert histogram(np.array([LOWEST]), np.empty(0), 0.0) is None


@pytest.mark.parametrize(
    ("reason", "spec", "words"),
    [
        ("softmax", "scod", "The network itself is unsure: its outputs alone do not reach the threshold."),
        (
            "knn",
            "scod",
            "The network's outputs alone would reach the threshold, but its features lie far from those of",
        ),
        ("knn(k=3)", "sirc(msp, knn(k=3))", "nearest to it (KNN)."),
        ("vim", "scod", "by more than its outputs make up for (ViM)."),
        ("mahalanobis", "mahalanobis", "Its features lie far from those of every class (Mahalanobis)."),
        ("both(msp, knn)", "both(msp, knn)", "Its features are unlike those of training images (both(msp, knn))."),
    ],
)
def test_a_reason_is_told_in_words(reason, spec, words):
    assert words in rejection_words(reason, 0.0, spec)


def test_the_nearest_training_images_are_those_at_the_smallest_angle(near, guard, training):
    store = sirc.OutputStore(training["outputs"]).load()
    for number in (0, COUNT + 1):
        told = ask(near, encoded(number)).json()["nearest"]
        wanted = guard.outputs(prepared(number))[1][0].double().numpy()
        rows = store.features.double().numpy()
        cosines = rows @ wanted / np.linalg.norm(rows, axis=1) / np.linalg.norm(wanted)
        order = np.argsort(-cosines)[: len(told)]
        assert len(told) == 6
        assert [image["number"] for image in told] == order.tolist()
        assert [image["similarity"] for image in told] == pytest.approx(cosines[order], abs=1e-5)
    itself = ask(near, encoded(5)).json()["nearest"][0]
    assert (itself["file"], itself["class"]) == ("blue/05.png", "blue")
    assert itself["similarity"] == pytest.approx(1, abs=1e-5)


def test_training_images_are_shown_by_their_number_and_no_other_file_is(near, client):
    told = ask(near, encoded(5)).json()["nearest"][0]
    with Image.open(io.BytesIO(near.get(f"/train/{told['number']}").content)) as shown:
        far = [np.abs(np.asarray(shown).astype(int) - pixels(number)).mean() for number in range(COUNT)]
    assert int(np.argmin(far)) == 5
    for path in (
        f"/train/{COUNT}",
        "/train/-1",
        "/train/../meta.json",
        "/train/%2e%2e%2fmeta.json",
        "/train/x",
        "/docs",
    ):
        answer = near.get(path)
        assert answer.status_code == 404
        assert set(answer.json()) == {"error", "kind"}
    assert client.get("/train/0").status_code == 404


def test_items_without_a_row_keep_the_others_numbers(guard, training, tmp_path):
    whole = sirc.OutputStore(training["outputs"])
    part = sirc.OutputStore.create(tmp_path / "part", COUNT, shard_size=10, model=whole.model, data=whole.data)
    rows = whole.load()
    for i in range(3):
        part.write(i, rows[10 * i + 1 : 10 * i + 10], skipped=[10 * i])
    client = visit(guard, train=training["train"], outputs=tmp_path / "part")
    number = whole.index(0)[25]
    told = ask(client, (training["train"] / "blue" / "17.png").read_bytes()).json()["nearest"][0]
    assert told["file"] == "blue/17.png"
    assert told["number"] == int(number)


def test_a_store_must_be_of_these_images_and_of_this_network(guard, training, tmp_path):
    train, store = training.values()
    rows, model = sirc.OutputStore(store).load(), sirc.OutputStore(store).model

    def kept(name, outputs, **options):
        return sirc.OutputStore.from_outputs(tmp_path / name, outputs, **options).path

    for made, words in (
        (kept("fewer", rows[:20]), r"it has 20, the folder 30\. Name the folder that they were made from"),
        (kept("plain", sirc.Outputs(rows.logits, labels=rows.labels)), "those of '.*plain' have none"),
        (kept("other", rows, model="another"), "is a store from another model"),
        (kept("elsewhere", rows, model=model, data="others"), "is a store from other data"),
        (tmp_path / "nowhere", "there is no store at"),
    ):
        with pytest.raises(ValueError, match=words):
            make_app(guard, train=train, outputs=made)
    with pytest.raises(ValueError, match="need both `train`, their folder, and `outputs`, their store"):
        make_app(guard, train=train)
    make_app(guard, train=train, outputs=store.parent)  # what `guard(…, path=…)` was given


def test_a_guard_that_does_not_know_how_images_are_prepared_is_refused():
    with pytest.raises(ValueError, match="this classifier does not say how"):
        make_app(calibrated(preprocess=None))


def test_only_this_machine_s_own_names_are_answered(guard):
    client = visit(guard)
    for host, status in {
        "localhost:80": 200, "127.0.0.1": 200, "[::1]:9": 200, "[::1]": 200,
        "evil.example": 403, "127.0.0.1.evil.example:80": 403, "": 403,
    }.items():  # fmt: skip
        answer = client.get("/guard", headers={"Host": host})
        assert answer.status_code == status, host
    everyone = visit(guard, local=False)
    assert everyone.get("/guard", headers={"Host": "desk.example"}).status_code == 200
    assert [is_own_name(name) for name in ("127.0.0.1", "::1", "localhost", "0.0.0.0", "desk")] == [True] * 3 + [
        False
    ] * 2
