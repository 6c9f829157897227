"""The service decides as the graph alone does, and answers everything else in words, however it is pressed."""

import asyncio
import contextlib
import dataclasses
import http.client
import importlib
import io
import json
import math
import os
import re
import shutil
import socket
import struct
import subprocess
import sys
import threading
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from fastapi.testclient import TestClient
from PIL import Image

from sirc.data.preprocess import Preprocess
from sirc.deploy.onnx import OnnxDecision, _seal
from sirc.deploy.serve import make_app, run
from sirc.deploy.serve.service import _LIGHT, _PIXEL_BYTES, _PREPARED_BYTES, KINDS, _batches
from sirc.deploy.serve.uploads import Limits, RefusedError, Upload, count_pixels, decode
from support.interpreters import Interpreter
from support.tiny_selective import CLASSES, PREPROCESS, SIDE, SPEC, calibrated, described, encoded, pixels

pytestmark = pytest.mark.slow  # all of it needs an exported graph

LIMITS = {"max_bytes": 100_000, "max_images": 20, "max_pixels": 1_000_000, "max_body": 500_000}
PREPARED = _PREPARED_BYTES * SIDE**2  # bytes, of one image


@pytest.fixture(scope="session")
def reference(graph):
    """What onnxruntime alone says of encoded images."""
    session = onnxruntime.InferenceSession(str(graph), providers=["CPUExecutionProvider"])
    prepare = PREPROCESS.test()

    def decide(*images):
        x = np.stack([prepare(Image.open(io.BytesIO(image)).convert("RGB")).numpy() for image in images])
        label, confidence, accepted, _, reason = session.run(None, {"images": x})
        close = [pytest.approx(value, abs=1e-6) for value in confidence]
        words = ["", "not computable", "softmax", "residual"]
        return [
            {"label": int(a), "class": CLASSES[a], "confidence": b, "accepted": bool(c), "reason": words[d]}
            for a, b, c, d in zip(label, close, accepted, reason, strict=True)
        ]

    return decide


@pytest.fixture
def app(graph):
    return make_app(graph, **LIMITS)


@pytest.fixture
def client(app):
    return TestClient(app)


def post(client, body, kind="image/png"):
    return client.post("/predict", content=body, headers={"Content-Type": kind} if kind else {})


def counted(text):
    """The samples of Prometheus' text: "name{labels}" to value."""
    found = re.findall(r"^(\w+(?:\{[^}]*\})?) (\S+)$", text, re.MULTILINE)
    return {name: float(value) for name, value in found}


def test_one_image_gets_the_graph_s_decision(client, reference):
    for number in range(8):
        image = encoded(number)
        answer = post(client, image)
        assert answer.status_code == 200
        assert answer.json()["decisions"] == reference(image)
        assert answer.json()["spec"] == SPEC


def test_a_form_gets_its_decisions_in_the_order_of_its_files(client, reference):
    images = [encoded(number, times=1 + number % 3) for number in range(20)]  # more than the graph sees at once
    files = [("image", (f"{i}.png", image, "image/png")) for i, image in enumerate(images)]
    answer = client.post("/predict", files=files)
    assert answer.json()["decisions"] == reference(*images)
    assert len({decision["accepted"] for decision in answer.json()["decisions"]}) == 2


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM"])
def test_every_format_of_photographs_is_read(client, reference, kind):
    image = encoded(5, kind)
    assert post(client, image, "application/octet-stream").json()["decisions"] == reference(image)


def test_grey_and_transparent_and_16_bit_images_are_read(client):
    rgba = np.dstack((pixels(1), np.full((24, 24), 7, np.uint8)))
    images = [pixels(1)[..., 0], pixels(1)[..., 0].astype(np.uint16) * 257, rgba]
    answers = []
    for image in images:
        file = io.BytesIO()
        Image.fromarray(image).save(file, "PNG")
        answers.append(post(client, file.getvalue()).json()["decisions"][0])
    assert answers[0] == answers[1]  # 16 bits of the same grey
    assert answers[2] == post(client, encoded(1)).json()["decisions"][0]  # transparency is dropped


def png_of(width, height):
    """A PNG whose pixels are zeros: few bytes, however large it says it is."""

    def chunk(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    packer = zlib.compressobj()
    rows = b"".join(packer.compress(bytes((width + 7) // 8 + 1)) for _ in range(height)) + packer.flush()
    head = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def float_tiff():
    file = io.BytesIO()
    Image.fromarray(np.ones((20, 20), np.float32)).save(file, "TIFF")
    return file.getvalue()


def many_scans(count):
    """A progressive JPEG whose last scan, of a few bytes, comes again and again."""
    file = io.BytesIO()
    Image.new("L", (64, 64), 128).save(file, "JPEG", progressive=True)
    whole = file.getvalue()
    scan = whole[whole.rindex(b"\xff\xda") : -2]
    return whole[:-2] + scan * (count - whole.count(b"\xff\xda")) + whole[-2:]


BOMB = png_of(9000, 9000)
BAD = {
    "empty": (b"", "image/png", 400, "no_image"),
    "no type": (b"x", None, 415, "content_type"),
    "text": (b"hello", "text/plain", 415, "content_type"),
    "json": (b"{}", "application/json", 415, "content_type"),
    "urlencoded": (encoded(1), "application/x-www-form-urlencoded", 415, "content_type"),
    "no image": (b"hello" * 100, "image/png", 422, "not_an_image"),
    "svg": (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "image/svg+xml", 422, "not_an_image"),
    "postscript": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "image/eps", 422, "not_an_image"),
    "truncated png": (encoded(1)[:-500], "image/png", 422, "damaged"),
    "truncated jpeg": (encoded(1, "JPEG")[:-200], "image/jpeg", 422, "damaged"),
    "only a head": (encoded(1)[:30], "image/png", 422, ("damaged", "not_an_image")),
    "numbers": (float_tiff(), "image/tiff", 422, "not_an_image"),
    "many scans": (many_scans(5000), "image/jpeg", 413, "too_many_pixels"),
    "jpeg in tiff": (encoded(1, "TIFF", compression="jpeg"), "image/tiff", 422, "not_an_image"),
    "plain bits": (b"P1\n2 2\n" + b"#\n" * 99 + b"1 0 0 1", "image/x-portable-bitmap", 422, "not_an_image"),
    "plain grey": (b"P2\n2 2\n255\n1 2 3 4", "image/x-portable-graymap", 422, "not_an_image"),
    "plain colours": (b"P3\n1 1\n255\n1 2 3", "image/x-portable-pixmap", 422, "not_an_image"),
    "a long type": (b"x", "a" * 50_000, 415, "content_type"),
    "huge": (bytes(100_001), "image/png", 413, "too_large"),
    "bomb": (BOMB, "image/png", 413, "too_many_pixels"),
    "narrow": (png_of(90_000, 1), "image/png", 413, "too_many_pixels"),
    "no boundary": (b"x", "multipart/form-data", 400, "malformed"),
    "bad form": (b"nonsense", "multipart/form-data; boundary=b", 400, "malformed"),
    "cut form": (
        b'--b\r\nContent-Disposition: form-data; name="a"; filename="a.png"\r\n\r\nabc',
        "multipart/form-data; boundary=b",
        400,
        "malformed",
    ),
    "empty form": (b"--b--\r\n", "multipart/form-data; boundary=b", 400, "no_image"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_no_image_is_refused_in_words(client, case):
    body, kind, status, word = BAD[case]
    answer = post(client, body, kind)
    assert answer.status_code == status, answer.text
    assert set(answer.json()) == {"error", "kind"}
    assert answer.json()["kind"] in (word if isinstance(word, tuple) else (word,))
    assert "Traceback" not in answer.text
    assert 10 < len(answer.json()["error"]) < 300
    text = client.get("/metrics").text
    assert counted(text)[f'sirc_errors_total{{kind="{answer.json()["kind"]}"}}'] == 1
    assert counted(text)[f'sirc_requests_total{{status="{status}"}}'] == 1


@pytest.mark.filterwarnings("ignore")  # PIL has opinions on odd metadata
def test_random_damage_gets_a_decision_or_a_refusal(client, caplog, attack):
    random = np.random.default_rng(0)
    statuses = []
    images, forms = attack.trials(280), attack.trials(60)
    for number in range(images):
        kind = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM")[number % 7]
        body = np.frombuffer(encoded(number, kind), np.uint8).copy()
        places = random.integers(0, min(len(body), 200 if number % 2 else len(body)), random.integers(1, 12))
        body[places] = random.integers(0, 256, len(places))
        if number % 3 == 0:
            statuses.append(client.post("/predict", files={"image": body.tobytes()}).status_code)
        else:
            statuses.append(post(client, body.tobytes()).status_code)
    assert set(statuses) == {200, 413, 422}
    assert not [record for record in caplog.records if record.name == "sirc.deploy.serve"]  # nothing went wrong inside
    whole = np.frombuffer(form(*(encoded(number) for number in range(3))), np.uint8)
    for _ in range(forms):
        body = whole.copy()
        places = random.integers(0, 200, random.integers(1, 8))
        body[places] = random.integers(0, 256, len(places))
        answer = post(client, body.tobytes(), "multipart/form-data; boundary=b")
        assert answer.status_code in (200, 400, 413, 415, 422), answer.text
    assert not [record for record in caplog.records if record.name == "sirc.deploy.serve"]
    attack.tried("damaged images and forms sent to the service", images + forms, "a decision, or 4xx in words")


def test_a_bomb_is_small_on_the_way_and_refused_before_it_is_decoded(client, monkeypatch):
    assert len(BOMB) < LIMITS["max_bytes"]

    def decoded(*_):
        raise AssertionError

    monkeypatch.setattr(Image.Image, "convert", decoded)
    assert post(client, BOMB).status_code == 413


@pytest.mark.parametrize("case", ["many scans", "jpeg in tiff", "plain bits", "plain grey", "plain colours"])
def test_what_takes_long_to_decode_is_refused_before(client, case, monkeypatch):
    def decoded(*_):
        raise AssertionError

    monkeypatch.setattr(Image.Image, "convert", decoded)
    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", decoded)
    answer = post(client, BAD[case][0])
    assert answer.json()["kind"] == BAD[case][3]
    if case == "many scans":
        assert "its 5,000 scans take as long as 1,024,000 pixels" in answer.json()["error"]


def test_a_progressive_jpeg_of_a_camera_is_read(client, reference):
    image = encoded(5, "JPEG", progressive=True)
    assert image.count(b"\xff\xda") > 3
    assert post(client, image).json()["decisions"] == reference(image)
    assert post(client, many_scans(4000)).status_code == 200  # 819,200 pixels' worth


def test_the_pixels_of_a_request_are_limited_together_before_any_is_decoded(client, monkeypatch):
    image = png_of(960, 1000)
    assert client.post("/predict", files=[("image", image)] * 4).status_code == 200
    monkeypatch.setattr("sirc.deploy.serve.service.decode", lambda _: pytest.fail("it was decoded"))
    answer = client.post("/predict", files=[("image", image)] * 5)
    assert (answer.status_code, answer.json()["kind"]) == (413, "too_many_pixels")
    assert "image 4 ('upload') cannot be used: it is one too many" in answer.json()["error"]


@pytest.mark.parametrize("mode", ["I;16", "I;16B", "I"])
def test_16_bit_images_keep_their_high_byte(mode):
    values = np.random.default_rng(0).integers(0, 1 << 16, (201, 199)).astype(np.uint16)
    file = io.BytesIO()
    if mode == "I":
        file.write(b"P5\n199 201\n65535\n" + values.astype(">u2").tobytes())
    else:
        Image.fromarray(values.astype(">u2") if mode == "I;16B" else values).save(file, "TIFF")
    assert Image.open(file).mode == mode
    image = decode(Upload("it", file))
    np.testing.assert_array_equal(np.asarray(image), np.repeat((values >> 8)[..., None], 3, axis=2))


def webp_of(width, height):
    """A lossless WebP of one colour, in 28 bytes: each of its five alphabets has one symbol, of no bits."""
    fields = [(0x2F, 8), (width - 1, 14), (height - 1, 14), (0, 1 + 3 + 3), *[(1, 4)] * 5]
    bits = "".join(format(value, f"0{size}b")[::-1] for value, size in fields)
    data = int(bits[::-1], 2).to_bytes(8, "little")
    return b"RIFF" + struct.pack("<I", 20) + b"WEBPVP8L" + struct.pack("<I", 8) + data


@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="the peak of memory cannot be seen here")
def test_decoding_takes_no_more_memory_than_is_counted():
    rgb = Image.fromarray(np.kron(pixels(0, 30, 30), np.ones((100, 100, 1), np.uint8)))  # large enough to be mapped
    grey = Image.fromarray(np.asarray(rgb)[..., 0].astype(np.uint16) * 257)
    files = {
        "small webp": io.BytesIO(webp_of(3000, 3000)),
        "16-bit pgm": io.BytesIO(b"P5\n3000 3000\n65535\n" + bytes(18_000_000)),
    }
    for name, image, kind, options in (
        ("webp", rgb, "WEBP", {"method": 0}),
        ("png", rgb, "PNG", {"compress_level": 1}),
        ("palette", rgb.convert("P"), "PNG", {"compress_level": 1, "transparency": 3}),
        ("cmyk", rgb.convert("CMYK"), "JPEG", {"progressive": True, "subsampling": 0}),
        ("tiff", rgb, "TIFF", {"compression": "tiff_deflate"}),
        ("16-bit png", grey, "PNG", {"compress_level": 1}),
    ):
        files[name] = io.BytesIO()
        image.save(files[name], kind, **options)
    for name, file in files.items():
        Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
        before = memory("self", "VmRSS")
        decode(Upload(name, file))
        assert memory("self", "VmHWM") - before < 1.1 * _PIXEL_BYTES * 3000 * 3000 / (1 << 20), name


@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="the peak of memory cannot be seen here")
def test_preparing_takes_no_more_memory_than_is_counted(graph):
    preprocess = Preprocess(resize=256, crop=224)
    service = make_app(graph).state.service
    service._geometry, service._normalise = preprocess.geometry(), preprocess.normalise()
    service.model.size = (224, 224)
    service._prepare(Upload("the first, which imports", io.BytesIO(png_of(300, 300))))
    for width, height in ((1, 762), (200, 1), (1500, 1500)):
        upload = Upload("it", io.BytesIO(png_of(width, height)))
        ((_, counted_bytes),) = _batches(count_pixels([upload], preprocess, Limits()), preprocess.crop)
        Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
        before = memory("self", "VmRSS")
        service._prepare(upload)
        assert memory("self", "VmHWM") - before < 1.1 * counted_bytes / (1 << 20), (width, height)


def test_images_that_grow_when_they_are_scaled_count_as_they_will_be():
    preprocess, small = Preprocess(resize=256, crop=224), png_of(1, 762)
    assert len(small) < 120
    (pixels,) = count_pixels([Upload("it", io.BytesIO(small))], preprocess, Limits())
    assert pixels == 256 * 256 * 762
    assert pixels * _PIXEL_BYTES > _LIGHT  # so that others go first
    with pytest.raises(RefusedError, match="one too many for the pixels of one request"):
        count_pixels([Upload("it", io.BytesIO(small))] * 64, preprocess, Limits())
    assert count_pixels([Upload("it", io.BytesIO(small))], Preprocess(resize=(256, 256)), Limits()) == [762]
    assert count_pixels([Upload("it", io.BytesIO(small))], Preprocess(resize=None), Limits()) == [762]


def test_batches_are_light_or_of_one_image_and_count_what_the_graph_sees():
    pixels = [5000, 3_000_000, 400_000, *[9] * 40, 2_000_000]
    batches = list(_batches(pixels, 224))
    prepared = _PREPARED_BYTES * 224**2
    assert sorted(place for batch, _ in batches for place in batch) == list(range(len(pixels)))
    assert [batch for batch, _ in batches[:2]] == [[1], [43]]
    for batch, taken in batches:
        assert taken == _PIXEL_BYTES * max(pixels[place] for place in batch) + len(batch) * prepared
        assert len(batch) == 1 or (taken <= _LIGHT and len(batch) <= 16)
    assert [len(batch) for batch, _ in batches[2:]] == [16, 16, 10]
    assert [len(batch) for batch, _ in _batches([9] * 5, 1024)] == [1] * 5  # 24 MiB each
    assert list(_batches([100] * 3, None)) == [([0, 1, 2], 1600 + 3 * 2400)]


@pytest.mark.parametrize(
    ("files", "status", "words"),
    [
        ([("a", encoded(1)), ("b", b"hello")], 422, "image 1 ('b')"),
        ([("a", encoded(1)), ("b", b"")], 422, "image 1 ('b') cannot be used: it is empty"),
        ([("a", bytes(100_001))], 413, "image 0 ('a') must have at most 100,000 bytes"),
        ([(str(i), bytes(90_000)) for i in range(6)], 413, "the request must have at most 500,000 bytes"),
        ([(str(i), encoded(i)) for i in range(21)], 413, "at most 20 images"),
        ([("a", encoded(1), "text/html")], 415, "image 0 ('a') must be an image; its type is text/html"),
        ([("a", encoded(1), "text/" + "x" * 900)], 415, f"its type is text/{'x' * 75}"),
    ],
)
def test_one_bad_file_refuses_the_form_and_is_named(client, files, status, words):
    answer = client.post("/predict", files=[("image", file) for file in files])
    assert answer.status_code == status
    assert words in answer.json()["error"]
    assert len(answer.json()["error"]) < 200
    assert counted(client.get("/metrics").text)["sirc_accepted_total"] == 0


def test_a_body_without_a_length_is_limited_too(client):
    def body():
        for _ in range(20):
            yield bytes(10_000)

    assert post(client, body()).json()["kind"] == "too_large"


def test_paths_and_methods_that_are_not_there_answer_in_json(client):
    assert client.get("/nothing").status_code == 404
    assert client.get("/predict").status_code == 405
    assert "POST /predict" in client.get("/nothing").json()["error"]
    for path in ("/docs", "/redoc"):  # they would load scripts from elsewhere
        assert client.get(path).status_code == 404
    assert {"/predict", "/health", "/ready", "/metrics", "/monitor", "/"} == set(
        client.get("/openapi.json").json()["paths"]
    )


def test_the_counters_add_up_and_belong_to_one_service(graph, client, reference):
    images = [encoded(number) for number in range(12)]
    for image in images:
        post(client, image)
    post(client, b"hello")
    found = counted(client.get("/metrics").text)
    expected = reference(*images)
    accepted = sum(decision["accepted"] for decision in expected)
    assert 0 < accepted < 12
    assert found["sirc_accepted_total"] == accepted
    assert found["sirc_rejected_total"] == 12 - accepted
    assert found["sirc_confidence_count"] == 12
    values = np.array([decision["confidence"].expected for decision in expected])
    for edge in (-0.5, 0.0, 0.5):
        bounds = {float(name.split('"')[1]): value for name, value in found.items() if "sirc_confidence_bucket" in name}
        bound = min(bounds, key=lambda other: abs(other - edge))
        assert bounds[bound] == (values <= bound).sum()
    assert found['sirc_requests_total{status="200"}'] == 12
    assert found['sirc_requests_total{status="422"}'] == 1
    assert found["sirc_request_seconds_count"] == 13
    assert found["sirc_requests_in_progress"] == 0
    assert {f'sirc_errors_total{{kind="{kind}"}}' for kind in KINDS} <= set(found)
    other = counted(TestClient(make_app(graph)).get("/metrics").text)
    assert other["sirc_confidence_count"] == other["sirc_accepted_total"] == 0


def test_the_buckets_of_confidences_are_the_calibration_s_quantiles_and_the_threshold(client):
    selective = calibrated()
    text = client.get("/metrics").text
    bounds = [float(edge) for edge in re.findall(r'sirc_confidence_bucket\{le="([^"]+)"\}', text)]
    wanted = np.quantile(selective.calibration, np.arange(1, 20) / 20).tolist()
    np.testing.assert_allclose(bounds, [*sorted({*wanted, selective.threshold.value}), np.inf], rtol=1e-9)
    promised = float((selective.calibration >= selective.threshold.value).double().mean())
    assert counted(text)["sirc_calibration_acceptance"] == pytest.approx(promised)


def test_it_tells_what_it_serves(client):
    about = client.get("/").json()
    threshold = calibrated().threshold
    assert about["spec"] == SPEC
    assert about["threshold"] == pytest.approx(threshold.value)
    assert about["guarantee"] == threshold.guarantee
    assert "probability at least 95%" in about["guarantee"]
    assert about["classes"] == CLASSES
    assert (about["input"]["height"], about["input"]["width"]) == (SIDE, SIDE)
    assert about["limits"].items() >= {**LIMITS, "max_request_pixels": 4_000_000, "answer_seconds": 30}.items()


def test_it_lives_and_is_ready_while_the_graph_answers(app, client, monkeypatch, caplog):
    assert client.get("/health").json() == {"alive": True}
    assert client.get("/ready").json() == {"ready": True}
    for path in ("/health", "/ready"):
        assert (client.head(path).status_code, client.head(path).content) == (200, b"")
    monkeypatch.setattr(type(app.state.service.model), "explain", lambda *_: 1 / 0)
    assert client.get("/ready").status_code == 200  # it has just answered
    app.state.service._answered -= 2
    assert client.get("/ready").status_code == 503
    assert client.get("/health").status_code == 200
    assert "ZeroDivisionError" in caplog.text


def test_what_goes_wrong_inside_is_logged_and_not_told(app, client, monkeypatch, caplog):
    monkeypatch.setattr(type(app.state.service.model), "explain", lambda *_: 1 / 0)
    answer = post(client, encoded(1))
    assert answer.status_code == 500
    assert answer.json()["kind"] == "internal"
    assert "division" not in answer.text
    assert "ZeroDivisionError" in caplog.text
    monkeypatch.undo()
    assert post(client, encoded(1)).status_code == 200


def test_confidences_that_are_no_numbers_are_strings_and_do_not_spoil_the_histogram(app, client, monkeypatch):
    values = [np.inf, -np.inf, np.nan, 1.5]
    fake = OnnxDecision(np.zeros(4, np.int64), np.array(values), np.array([True, False, False, True]))
    monkeypatch.setattr(type(app.state.service.model), "explain", lambda *_: (fake, None))
    answer = client.post("/predict", files=[("image", encoded(1))] * 4)
    decisions = json.loads(answer.text, parse_constant=pytest.fail)["decisions"]
    assert [decision["confidence"] for decision in decisions] == ["inf", "-inf", "nan", 1.5]
    np.testing.assert_array_equal([float(decision["confidence"]) for decision in decisions], values)
    found = counted(client.get("/metrics").text)
    assert found["sirc_confidence_count"] == 1
    assert found['sirc_confidence_bucket{le="+Inf"}'] == 1
    assert found["sirc_confidence_nonfinite_total"] == 3


def test_too_many_requests_at_once_are_sent_away(app, client):
    app.state.service._waiting = 256
    answer = post(client, encoded(1))
    assert answer.status_code == 503
    assert answer.headers["Retry-After"] == "1"


def test_all_requests_together_hold_a_limited_number_of_bytes(graph):
    app = make_app(graph, max_held=1000)
    client, reader = TestClient(app), app.state.service._reader
    assert len(encoded(1)) > 1000
    assert post(client, encoded(1)).status_code == 200  # one alone is always read
    reader.held = 500  # another request's
    for _ in range(2):
        answer = post(client, encoded(1))
        assert (answer.status_code, answer.json()["kind"]) == (503, "busy")
        assert post(client, b"hello").json()["kind"] == "not_an_image"
        assert client.post("/predict", files={"image": encoded(1)}).status_code == 503
        assert reader.held == 500
    reader.held = 0
    assert client.post("/predict", files={"image": encoded(1)}).status_code == 200
    assert reader.held == 0


def test_an_image_that_the_graph_cannot_take_is_refused(graph, tmp_path):
    whole = Preprocess(resize=SIDE, crop=None)
    client = TestClient(make_app(described(graph, tmp_path / "uncropped.onnx", preprocess=whole)))
    assert post(client, encoded(1)).status_code == 200
    file = io.BytesIO()
    Image.fromarray(pixels(1, 24, 48)).save(file, "PNG")
    answer = post(client, file.getvalue())
    assert answer.status_code == 422
    assert answer.json() == {
        "error": "the image must have 16 × 16 pixels once prepared; it has 32 × 16",
        "kind": "wrong_size",
    }


@pytest.mark.parametrize("package", ["fastapi", "PIL", "prometheus_client", "python_multipart"])
def test_a_missing_package_names_the_extra(monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    for module in ("sirc.deploy.serve", "sirc.deploy.serve.app"):
        monkeypatch.delitem(sys.modules, module)
    with pytest.raises(ImportError, match=r"pip install 'torch-sirc\[serve\]'"):
        importlib.import_module("sirc.deploy.serve")


def test_a_graph_that_cannot_be_served_is_refused_at_the_start(tmp_path, graph):
    import onnx

    with pytest.raises(FileNotFoundError, match="sirc export"):
        make_app(tmp_path / "none.onnx")
    (tmp_path / "text.onnx").write_text("hello", encoding="utf-8")
    with pytest.raises(ValueError, match="must be an ONNX graph"):
        make_app(tmp_path / "text.onnx")
    (tmp_path / "cut.onnx").write_bytes(graph.read_bytes()[:-1000])
    with pytest.raises(ValueError, match="must be an ONNX graph"):
        make_app(tmp_path / "cut.onnx")
    with pytest.raises(ValueError, match="must take images and say how they are prepared"):
        make_app(described(graph, tmp_path / "unprepared.onnx", preprocess=None))
    model = onnx.load(graph)
    del model.metadata_props[:]
    onnx.save(model, tmp_path / "foreign.onnx")
    with pytest.raises(ValueError, match="does not say how it was calibrated"):
        make_app(tmp_path / "foreign.onnx")
    for damaged in ("{", "[]", '{"spec": "msp"}'):
        model.metadata_props.add(key="sirc", value=damaged)
        data = model.SerializeToString()
        (tmp_path / "damaged.onnx").write_bytes(data + _seal(data))
        with pytest.raises(ValueError, match=r"damaged\.onnx"):
            make_app(tmp_path / "damaged.onnx")
        model.metadata_props.pop()
    for name in (*LIMITS, "max_memory", "concurrency", "answer_seconds"):
        for odd in (0, -1, math.nan, math.inf, "9", None, [1]):
            with pytest.raises(ValueError, match=rf"`{name}` must be (a .*|one) number.*; got .*\. "):
                make_app(graph, **{name: odd})
    with pytest.raises(ValueError, match=r"a limit must be one of max_bytes, .*; got max_byte\. .*`max_bytes`\?"):
        make_app(graph, max_byte=1)
    with pytest.raises(ValueError, match="threads"):
        make_app(graph, threads=-1)


def test_only_the_process_of_a_service_takes_other_blocks_for_images(graph, monkeypatch):
    seen = []
    monkeypatch.setattr("uvicorn.Server.run", lambda *_, **__: seen.append(Image.core.get_block_size()))
    before = Image.core.get_block_size()
    try:
        app = make_app(graph)
        assert Image.core.get_block_size() == before != 64 << 20
        run(app, port=0)
        assert seen == [64 << 20]
    finally:
        Image.core.set_block_size(before)


class Client:
    """A client in the same loop: it sends pieces and leaves when the test says so."""

    def __init__(self, app, *pieces, kind="image/png", length=None):
        self._inbox, self._sent = asyncio.Queue(), []
        size = sum(map(len, pieces)) if length is None else length
        headers = [(b"content-type", kind.encode()), (b"content-length", b"%d" % size)]
        scope = {"type": "http", "method": "POST", "path": "/predict", "query_string": b"", "root_path": ""}
        self.task = asyncio.create_task(app({**scope, "headers": headers}, self._inbox.get, self._send))
        for number, piece in enumerate(pieces, 1):
            self.say(piece, more=number < len(pieces) or length is not None)

    def say(self, piece, *, more=True):
        self._inbox.put_nowait({"type": "http.request", "body": piece, "more_body": more})

    def leave(self):
        self._inbox.put_nowait({"type": "http.disconnect"})

    async def _send(self, message):
        self._sent.append(message)

    async def answer(self):
        """The status, the headers and the kind of the error, if it is one."""
        await self.task
        headers = {name.decode(): value.decode() for name, value in self._sent[0]["headers"]}
        return self._sent[0]["status"], headers, json.loads(self._sent[1]["body"]).get("kind")


class Gate:
    """Stands before the decoder: notes which images are begun, and keeps them until it is opened."""

    def __init__(self, monkeypatch):
        self.begun, self._open = [], threading.Event()
        monkeypatch.setattr("sirc.deploy.serve.service.decode", self._decode)

    def _decode(self, upload):
        self.begun.append(Image.open(upload.file).size)
        self._open.wait()
        return Image.new("RGB", (24, 24))

    def open(self):
        self._open.set()


async def until(condition):
    """Wait for other tasks and threads, however slow the machine is."""
    while not condition():
        await asyncio.sleep(0.001)


def together(story):
    """Run a story; one that never ends is a failure."""
    asyncio.run(asyncio.wait_for(story, 600))


@pytest.fixture
def gate(monkeypatch):
    made = Gate(monkeypatch)
    yield made
    made.open()


def test_a_body_that_does_not_arrive_in_time_is_refused(graph):
    app = make_app(graph, read_seconds=0.01)

    async def story():
        status, headers, kind = await Client(app, b"abc", length=1000).answer()
        assert (status, headers["connection"], kind) == (408, "close", "timeout")

    together(story())
    assert counted(TestClient(app).get("/metrics").text)['sirc_errors_total{kind="timeout"}'] == 1


@pytest.mark.parametrize("limits", [{"max_waiting": 3}, {"max_held": 40}], ids=["places", "bytes"])
def test_silent_bodies_give_way_to_those_that_come(graph, limits):
    app = make_app(graph, read_seconds=600, **limits)
    reader = app.state.service._reader

    async def story():
        silent = []
        for number in range(3):
            silent.append(Client(app, b"x" * 10, length=1000))
            await until(lambda: len(reader.reading) == reader.held / 10 == number + 1)  # noqa: B023
        silent[0].say(b"y")  # it is no longer the most silent
        await until(lambda: reader.held == 31)
        image = encoded(1)
        status, *_ = await Client(app, image[:5], image[5:]).answer()
        assert status == 200
        assert (await silent[1].answer())[0] == 408
        if "max_waiting" in limits:  # bytes are needed from all of them
            assert not silent[0].task.done()
            assert not silent[2].task.done()
        for client in silent:
            client.leave()
            assert (await client.answer())[2] in ("timeout", "disconnected")
        assert (reader.held, reader.reading) == (0, {})

    together(story())


def test_258_silent_bodies_keep_nobody_out(graph):
    app = make_app(graph, read_seconds=600)
    reader = app.state.service._reader

    async def story():
        silent = [Client(app, b"abc", length=1000) for _ in range(258)]
        await until(lambda: len(reader.reading) == 256 and silent[0].task.done() and silent[1].task.done())
        for number in range(3):
            assert (await Client(app, encoded(number)).answer())[0] == 200
        for client in silent:
            client.leave()
            await client.answer()

    together(story())


def test_a_body_whose_time_ends_as_another_comes_disturbs_nobody(graph):
    app = make_app(graph, max_waiting=1)
    reading = app.state.service._reader.reading

    async def story():
        silent = Client(app, b"abc", length=1000)
        await until(lambda: reading)
        (timeout,) = reading.values()
        timeout.reschedule(0)  # it ends before the next client comes, and its task has not noticed yet
        assert (await Client(app, encoded(1)).answer())[0] == 200
        assert (await silent.answer())[2] == "timeout"

    together(story())


def test_work_of_clients_that_left_is_not_done(graph, gate):
    app = make_app(graph)
    service = app.state.service

    async def story():
        images = form(*[webp_of(7000, 7000)] * 4)
        assert len(images) < 700
        attackers = [Client(app, images, kind="multipart/form-data; boundary=b") for _ in range(12)]
        await until(lambda: service._waiting == 12 and gate.begun)
        for client in attackers:
            client.leave()
        answers = [await client.answer() for client in attackers]
        assert {kind for *_, kind in answers} == {"disconnected"}
        assert service._waiting == 0
        assert service.turns.running == [16 * 7000 * 7000 + PREPARED]  # the one that was begun still counts
        gate.open()
        assert (await Client(app, encoded(1)).answer())[0] == 200
        assert gate.begun == [(7000, 7000), (24, 24)]
        await until(lambda: not service.turns.running)

    together(story())
    assert counted(TestClient(app).get("/metrics").text)["sirc_requests_in_progress"] == 0


def test_the_images_of_a_request_after_its_client_left_are_not_decoded(graph, gate):
    app = make_app(graph)

    async def story():
        client = Client(app, form(*(encoded(number) for number in range(5))), kind="multipart/form-data; boundary=b")
        await until(lambda: gate.begun)
        client.leave()
        await client.answer()
        gate.open()
        await until(lambda: not app.state.service.turns.running)
        assert len(gate.begun) == 1

    together(story())


def test_a_request_past_its_deadline_is_told_to_come_again_and_never_begun(graph, gate):
    app = make_app(graph, concurrency=1)
    service = app.state.service

    async def story():
        first = Client(app, webp_of(2000, 2000))
        await until(lambda: gate.begun)
        service.limits = dataclasses.replace(service.limits, answer_seconds=0.01)
        status, headers, kind = await Client(app, webp_of(2000, 2000)).answer()
        assert (status, headers["retry-after"], kind) == (503, "1", "late")
        gate.open()
        assert (await first.answer())[0] == 200
        assert len(gate.begun) == 1
        await until(lambda: not service.turns.running)

    together(story())
    assert counted(TestClient(app).get("/metrics").text)['sirc_errors_total{kind="late"}'] == 1


def test_decoding_shares_its_memory_and_small_images_pass_large_ones(graph, gate):
    app = make_app(graph)
    running = app.state.service.turns.running

    async def story():
        large = [Client(app, webp_of(7000, 7000), kind="image/webp") for _ in range(3)]
        await until(lambda: gate.begun and app.state.service._waiting == 3)
        small = Client(app, encoded(1))
        await until(lambda: len(gate.begun) == 2)
        assert gate.begun == [(7000, 7000), (24, 24)]  # the second thread has no memory for a second large one
        assert running == [16 * 7000 * 7000 + PREPARED, 16 * 24 * 24 + PREPARED]
        assert sum(running) < 1 << 30
        gate.open()
        for client in (small, *large):
            assert (await client.answer())[0] == 200
        await until(lambda: not running)

    together(story())


def test_light_work_has_a_thread_more_and_earlier_requests_end_first(graph, gate):
    app = make_app(graph, concurrency=1)
    running, many = app.state.service.turns.running, "multipart/form-data; boundary=b"

    async def story():
        first = Client(app, form(*[webp_of(2000, 3000)] * 3), kind=many)
        await until(lambda: gate.begun)
        second = Client(app, form(*[webp_of(3000, 2000)] * 2), kind=many)
        await until(lambda: app.state.service.turns.waiting == [(16 * 6_000_000 + PREPARED, 2)])
        small = Client(app, encoded(1))
        await until(lambda: len(gate.begun) == 2)
        gate.open()
        for client in (first, second, small):
            assert (await client.answer())[0] == 200
        assert gate.begun == [(2000, 3000), (24, 24), *[(2000, 3000)] * 2, *[(3000, 2000)] * 2]
        await until(lambda: not running)

    together(story())


def test_an_image_beyond_the_memory_is_decoded_when_it_is_alone(graph):
    client = TestClient(make_app(graph, max_memory=1))
    assert client.post("/predict", files=[("image", encoded(number)) for number in range(3)]).status_code == 200


SERVER = """
import sys
from sirc.deploy.serve import make_app, run
app = make_app(sys.argv[1], read_seconds=600, threads=1, max_held=32 << 20, max_bytes=1 << 20, max_body=4 << 20)
run(app, port=0, quiet=True, started=lambda address: print(address, flush=True))
"""


@pytest.fixture(scope="module")
def server(graph):
    """The service in a process of its own: its process and its port."""
    service = Interpreter("-c", SERVER, graph)
    yield service.process, int(service.first_line().rpartition(":")[2])
    service.process.terminate()
    told = service.end(120).stderr
    assert "Traceback" not in told, told


def asked(port, method="POST", path="/predict", body=None, headers=None):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    with contextlib.closing(connection):
        connection.request(method, path, body=body, headers=headers or {})
        answer = connection.getresponse()
        return answer.status, answer.read()


def counters(port, before=None):
    """What the service counted, since then."""
    found = counted(asked(port, "GET", "/metrics")[1].decode())
    return {name: value - (before or {}).get(name, 0) for name, value in found.items()}


def memory(process, what="VmHWM"):
    """What a process has, or the most it ever had at once since `forget`, in MiB."""
    return int(re.search(rf"{what}:\s+(\d+)", Path(f"/proc/{process}/status").read_text(encoding="utf-8"))[1]) / 1024


def forget(process):
    try:
        Path(f"/proc/{process.pid}/clear_refs").write_text("5", encoding="utf-8")
    except OSError as error:
        pytest.skip(f"the peak of memory cannot be seen here: {error}")


def form(*images):
    parts = [
        b'--b\r\nContent-Disposition: form-data; name="image"; filename="%d.png"\r\n'
        b"Content-Type: image/png\r\n\r\n%s\r\n" % (i, image)
        for i, image in enumerate(images)
    ]
    return b"".join(parts) + b"--b--\r\n"


def test_under_load_nothing_crashes_is_lost_or_decided_otherwise(server, reference):
    process, port = server
    good = {number: encoded(number) for number in range(12)}
    expected = {number: reference(image) for number, image in good.items()}
    batch = form(*good.values())
    many = "multipart/form-data; boundary=b"
    huge = bytes(30 << 20)
    small = [name for name in BAD if name not in ("narrow", "many scans")]  # this service takes more pixels
    bad = [BAD[name][:3] for name in small if BAD[name][1] and len(BAD[name][0]) < 100_000]
    jobs = []
    for number in range(200):
        if number % 5 < 3:
            jobs.append((good[number % 12], "image/png", 200, expected[number % 12]))
        elif number % 25 == 3:
            jobs.append((huge, "image/png", 413, None))
        elif number % 25 == 4:
            jobs.append((form(huge[: 3 << 20]), many, 413, None))
        elif number % 25 == 8:
            jobs.append((BOMB, "image/png", 413, None))
        elif number % 25 == 9:
            jobs.append((batch, many, 200, [row for rows in expected.values() for row in rows]))
        else:
            body, kind, status = bad[number % len(bad)]
            jobs.append((body, kind, 413 if body is BOMB else status, None))

    assert asked(port, "GET", "/ready")[0] == 200
    for _ in range(3):
        asked(port, body=batch, headers={"Content-Type": many})
    counts = counters(port)
    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(lambda job: asked(port, body=job[0], headers={"Content-Type": job[1]}), jobs))
    for (status, text), (_, _, wanted, decisions) in zip(found, jobs, strict=True):
        assert status == wanted, text
        answer = json.loads(text)
        assert answer.get("decisions") == decisions
        assert ("error" in answer) == (wanted != 200)
    assert process.is_alive()

    new = counters(port, counts)
    for status in {job[2] for job in jobs}:
        assert new[f'sirc_requests_total{{status="{status}"}}'] == sum(job[2] == status for job in jobs)
    rows = [row for job in jobs for row in job[3] or ()]
    assert new["sirc_accepted_total"] == sum(row["accepted"] for row in rows)
    assert new["sirc_rejected_total"] == sum(not row["accepted"] for row in rows)
    assert new["sirc_confidence_count"] == len(rows)
    errors = sum(value for name, value in new.items() if name.startswith("sirc_errors_total"))
    assert errors == sum(job[2] != 200 for job in jobs)
    assert counters(port)["sirc_requests_in_progress"] == 0


def test_bodies_that_are_too_large_are_never_held(server):
    process, port = server
    forget(process)
    before = memory(process.pid)
    piece = bytes(1 << 20)

    def upload(number):
        kind = "image/png" if number % 2 else "multipart/form-data; boundary=b"
        head = form(b"").removesuffix(b"\r\n--b--\r\n")
        return asked(port, body=iter([head, *[piece] * 70]), headers={"Content-Type": kind})[0]

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(upload, range(8))) == [413] * 8
        bombs = pool.map(lambda _: asked(port, body=BOMB, headers={"Content-Type": "image/png"}), range(8))
        assert [status for status, _ in bombs] == [413] * 8
    assert memory(process.pid) - before < 150  # 560 MiB came by


def test_slow_and_vanishing_clients_hold_nobody_up(server, reference):
    """As in the stories above, over sockets: the service notices who leaves."""
    _, port = server
    before = counters(port)
    head = b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Type: image/png\r\nContent-Length: 1000\r\n\r\nabc"
    slow = [socket.create_connection(("127.0.0.1", port)) for _ in range(300)]
    for connection in slow:
        connection.sendall(head)
    for connection in slow[:44]:
        assert connection.recv(20).startswith(b"HTTP/1.1 408"), "the first gave way"
    image = encoded(3)
    status, text = asked(port, body=image, headers={"Content-Type": "image/png"})
    assert (status, json.loads(text)["decisions"]) == (200, reference(image))
    for connection in slow:
        connection.close()
    for _ in range(100_000):  # the others are noticed one by one
        if not counters(port)["sirc_requests_in_progress"]:
            break
    new = counters(port, before)
    assert new['sirc_errors_total{kind="timeout"}'] == 45  # for the image too, one gave way
    assert new['sirc_errors_total{kind="disconnected"}'] == 255


NGINX = shutil.which("nginx", path=os.environ["PATH"] + os.pathsep + "/usr/sbin")


@pytest.mark.skipif(NGINX is None, reason="there is no nginx")
def test_the_documented_proxy_passes_whole_requests_on(server, reference, tmp_path):
    _, port = server
    page = (Path(__file__).parents[2] / "docs" / "deploy.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"^```nginx\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    place = tmp_path / "nginx.sock"
    example = example.replace("listen 80;", f"listen unix:{place};").replace("127.0.0.1:8000", f"127.0.0.1:{port}")
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    folders = " ".join(f"{kind}_temp_path {tmp_path};" for kind in kinds)
    user = "user root;" if os.geteuid() == 0 else ""
    start = f"{user} pid {tmp_path}/pid; daemon off; events {{}} http {{ access_log off; {folders}\n{example}}}"
    (tmp_path / "nginx.conf").write_text(start, encoding="utf-8")
    call = [NGINX, "-e", str(tmp_path / "log"), "-c", str(tmp_path / "nginx.conf")]
    assert subprocess.run([*call, "-t"]).returncode == 0, (tmp_path / "log").read_text(encoding="utf-8")

    def send(data):
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(str(place))
        connection.sendall(data)
        return connection

    def answer(connection):
        with connection, contextlib.closing(http.client.HTTPResponse(connection)) as found:
            found.begin()
            return found.status, found.read()

    head = b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Type: image/png\r\nContent-Length: %d\r\n\r\n"
    process = subprocess.Popen(call)
    try:
        while not place.exists():
            assert process.poll() is None, (tmp_path / "log").read_text(encoding="utf-8")
        image = encoded(3)
        with send(head % 1000 + b"abc"):  # a body that does not end
            status, text = answer(send(head % len(image) + image))
            assert (status, json.loads(text)["decisions"]) == (200, reference(image))
            assert counters(port)["sirc_requests_in_progress"] == 0
        assert answer(send(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"))[0] == 403
        assert answer(send(head % (65 << 20)))[0] == 413
    finally:
        process.terminate()
        process.wait()


def test_the_command_passes_its_limits_on(graph, monkeypatch):
    from sirc.cli import production

    served = []
    monkeypatch.setattr("sirc.deploy.serve.run", lambda app, **_: served.append(app.state.service.limits))
    given = {name: number for number, name in enumerate(production.RequestLimits._fields, 1)}
    production.serve(graph, limits=production.RequestLimits(**given))
    assert vars(served[0]).items() >= given.items()


def test_a_port_that_is_taken_is_told(graph):
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(OSError, match="cannot be listened on"):
        run(make_app(graph), port=taken.getsockname()[1])
