"""The service watches itself: its monitor, the state that survives, the log of decisions, and the page about it."""

import asyncio
import contextlib
import dataclasses
import errno
import http.client
import json
import math
import sys
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from axe_playwright_python.sync_playwright import Axe
from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families

from sirc._utils import files
from sirc.deploy.monitor import Monitor, monitor
from sirc.deploy.onnx import OnnxModel, OnnxRow
from sirc.deploy.serve import make_app, watch
from sirc.deploy.serve.watch import Watch
from sirc.deploy.threshold import at_coverage, at_risk
from sirc.errors import StoreError
from support.interpreters import Interpreter
from support.tiny_selective import CLASSES, encoded

pytestmark = pytest.mark.slow  # all of it needs an exported graph
OLD = Path(__file__).parents[1] / "legacy" / "model.onnx"
COLUMNS = ["time", "request", "image", "label", "class", "confidence", "accepted", "reason"]


@pytest.fixture
def model():
    """What a watch needs of a graph."""
    rows = np.random.default_rng(0).normal(size=400)
    return SimpleNamespace(calibration=rows, threshold=at_coverage(rows, 0.9, delta=0.1), classes=CLASSES)


def decisions(model, confidences):
    labels = [number % 3 for number in range(len(confidences))]
    accepted = [bool(value >= model.threshold.value) for value in confidences]
    reasons = ["" if ok else "softmax" for ok in accepted]
    return list(map(OnnxRow, labels, [CLASSES[label] for label in labels], map(float, confidences), accepted, reasons))


def feed(watched, model, confidences, size=4):
    """Requests of some images each."""
    for start in range(0, len(confidences), size):
        watched.take(decisions(model, confidences[start : start + size]), f"request-{start}")


def gauges(client):
    families = text_string_to_metric_families(client.get("/metrics").text)
    return {sample.name: sample.value for family in families for sample in family.samples if not sample.labels}


def old_app(**options):
    with warnings.catch_warnings(action="ignore"):  # that it has no digest
        return make_app(OLD, **options)


def test_the_monitor_in_the_service_is_that_of_its_confidences(graph):
    client = TestClient(make_app(graph))
    before = client.get("/monitor").json()
    assert before["title"].startswith("No production input yet")
    assert math.isnan(gauges(client)["sirc_monitor_acceptance"])
    answers = [client.post("/predict", files=[("image", encoded(i + k)) for k in range(3)]) for i in range(0, 30, 3)]
    client.post("/predict", content=b"no image", headers={"Content-Type": "image/png"})
    client.get("/ready")
    rows = [row for answer in answers for row in answer.json()["decisions"]]
    known = OnnxModel(graph)
    expected = monitor(known.calibration, np.array([row["confidence"] for row in rows]), known.threshold)
    found = client.get("/monitor").json()
    assert found["running"]
    assert found["report"] == json.loads(json.dumps(expected.to_dict()))
    assert (found["title"], found["words"]) == expected.words()
    assert found["history"]["inputs"] == list(range(3, 31, 3))
    assert found["history"]["rate"][-1] == expected.rate == np.mean([row["accepted"] for row in rows])
    now = gauges(client)
    wanted = {
        "running": 1,
        "inputs": 30,
        "alarm": 0,
        "e_value": expected.e_value,
        "e_value_alarm": 40,
        "p_value": expected.p_value,
        "acceptance": expected.rate,
        "acceptance_low": expected.interval[0],
        "acceptance_high": expected.interval[1],
        "promised": expected.promised,
        "promised_low": expected.promised_interval[0],
        "promised_high": expected.promised_interval[1],
        "ood_share": expected.ood_share,
    }
    assert {name: now[f"sirc_monitor_{name}"] for name in wanted} == pytest.approx(wanted)


def test_drift_raises_the_alarm_and_stays_in_the_history(model):
    watched, rng = Watch(model), np.random.default_rng(1)
    feed(watched, model, rng.normal(size=4000))
    assert not watched.about()["report"]["alarm"]
    feed(watched, model, rng.normal(size=4000) - 3 * (rng.random(4000) < 0.5))
    about = watched.about()
    assert about["report"]["alarm"]
    assert 4000 < about["report"]["first_alarm"] < 8000
    assert about["report"]["ood_share"] > 0.1
    history = about["history"]
    inputs = history["inputs"]
    assert 100 < len(inputs) <= watch._POINTS + 1
    assert inputs == sorted(set(inputs))
    assert np.diff(inputs).max() <= 8000 / 100  # evenly, old and new
    assert history["time"] == sorted(history["time"])
    assert inputs[-1] == 8000
    assert history["e_value"][-1] > 40
    assert dict(zip(inputs, history["rate"], strict=True))[8000] == about["report"]["rate"]


def test_a_confidence_that_is_no_number_counts_as_rejected(model):
    watched = Watch(model)
    watched.take(decisions(model, [np.nan, -np.inf, np.inf, 1.0]), "r")
    assert watched.about()["report"]["rate"] == 0.5


def test_the_state_survives_a_restart(model, tmp_path):
    rng, path = np.random.default_rng(2), tmp_path / "state" / "monitor.safetensors"
    values = rng.normal(size=1200) - 2 * (rng.random(1200) < 0.3)
    whole = Watch(model)
    feed(whole, model, values)
    first = Watch(model, path)
    assert path.exists()  # at once, so that a bad place is told
    feed(first, model, values[:600])
    first.write()
    written = path.stat().st_mtime_ns
    first.write()
    assert path.stat().st_mtime_ns == written  # nothing new
    second = Watch(model, path)
    before, after = first.about(), second.about()
    assert before == after
    feed(second, model, values[600:])
    assert second.about()["report"] == whole.about()["report"]
    assert set(second.about()["history"]["inputs"][:50]) <= set(before["history"]["inputs"])
    assert Monitor.load(path, model.calibration, model.threshold).inputs == 600


def test_alarms_come_with_the_delta_that_was_asked_for(model, tmp_path):
    values, path = np.random.default_rng(3).normal(size=400) - 0.7, tmp_path / "monitor.safetensors"
    Watch(model, path, delta=0.001)
    strict = Watch(model, path, delta=0.001)  # after a restart
    feed(strict, model, values)
    asked = monitor(model.calibration, values, model.threshold, delta=0.001)
    assert strict.about()["report"] == asked.to_dict()
    assert asked.delta == 0.001
    assert asked != monitor(model.calibration, values, model.threshold)


def test_the_state_of_another_graph_or_of_none_is_refused(model, tmp_path):
    path = tmp_path / "monitor.safetensors"
    Watch(model, path)
    other = at_coverage(model.calibration, 0.8)
    with pytest.raises(StoreError, match="must belong to this calibration and threshold"):
        Watch(SimpleNamespace(**{**vars(model), "threshold": other}), path)
    with pytest.raises(StoreError, match=r"it has 0\.05, and this service 0\.01"):
        Watch(model, path, delta=0.01)
    with pytest.raises(
        ValueError, match="must be left out, as no monitor runs: the graph was exported by an earlier version"
    ):
        old_app(state=path)
    (tmp_path / "folder").mkdir()
    with pytest.raises((OSError, StoreError), match="folder"):
        Watch(model, tmp_path / "folder")


def test_a_state_is_that_of_one_service_at_a_time(model, tmp_path):
    path = tmp_path / "monitor.safetensors"

    async def two() -> None:
        async with Watch(model, path).running(None):
            with pytest.raises(StoreError, match=r"must be the state of one service; another one that runs has it"):
                Watch(model, path)

    asyncio.run(two())
    Watch(model, path)  # the first has ended


def test_a_service_goes_on_from_what_another_saved_before_it_ran(model, tmp_path):
    path = tmp_path / "monitor.safetensors"
    early, late = Watch(model, path), Watch(model, path)

    async def run(one: Watch, count: int) -> None:
        async with one.running(None):
            feed(one, model, np.zeros(count))

    for one, count, total in ((late, 50, 50), (early, 1, 51), (late, 4, 55)):
        asyncio.run(run(one, count))
        assert Monitor.load(path, model.calibration, model.threshold).inputs == total
    feed(late, model, np.zeros(2))  # not saved yet: kept when it runs
    asyncio.run(run(late, 1))
    assert Monitor.load(path, model.calibration, model.threshold).inputs == 58


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such locks")
@pytest.mark.parametrize("number", [errno.EAGAIN, errno.EACCES, errno.ENOLCK])
def test_a_lock_that_another_has_is_told_from_none(number, model, tmp_path, monkeypatch, caplog):
    def refuse(*_: object) -> None:
        raise OSError(number, "no lock")

    monkeypatch.setattr(files.fcntl, "flock", refuse)
    held = number != errno.ENOLCK
    with pytest.raises(StoreError, match="another one that runs has it") if held else contextlib.nullcontext():
        Watch(model, tmp_path / "monitor.safetensors")
    assert ("cannot be locked here" in caplog.text) != held


def test_an_old_graph_serves_without_a_monitor_and_says_so(tmp_path):
    client = TestClient(old_app(log=tmp_path / "log.parquet"))
    answer = client.post("/predict", content=encoded(1), headers={"Content-Type": "image/png"})
    assert answer.json()["decisions"][0]["reason"] is None
    about = client.get("/monitor").json()
    assert not about["running"]
    assert about["words"]["why"].endswith("Export it again")
    found = gauges(client)
    assert found["sirc_monitor_running"] == 0
    assert "sirc_monitor_e_value" not in found
    client.app.state.service.watch.write()
    (row,) = pd.read_parquet(tmp_path / "log.parquet").itertuples()
    assert pd.isna(row.reason)
    assert row.request == answer.headers["X-Request-ID"]


def test_thresholds_without_a_calibration_have_no_monitor(model):
    given = SimpleNamespace(calibration=None, threshold=SimpleNamespace(rule="given", value=1.0), classes=None)
    assert Watch(given).why_not == "the threshold was given, not calibrated"
    nothing = at_risk(model.calibration, np.zeros(len(model.calibration), dtype=bool), 0.01, delta=0.05)
    assert not nothing.feasible
    broken = SimpleNamespace(**{**vars(model), "threshold": nothing})
    assert Watch(broken).why_not == "no threshold keeps the promise, and nothing is accepted"


def test_the_log_has_every_decision_and_is_closed_at_the_end(graph, tmp_path):
    app = make_app(graph, log=tmp_path / "decisions.parquet")
    with TestClient(app) as client:
        named = {"X-Request-ID": "camera-7/42"}
        first = client.post("/predict", files=[("image", encoded(i)) for i in range(20)], headers=named)
        second = client.post("/predict", content=encoded(3), headers={"Content-Type": "image/png"})
        refused = client.post("/predict", content=b"x", headers={"Content-Type": "image/png"})
        odd = client.post("/predict", content=b"x", headers={"X-Request-ID": "<script>"})
    table = pd.read_parquet(tmp_path / "decisions.parquet")
    assert list(table.columns) == COLUMNS
    assert str(table["time"].dtype) == "datetime64[us, UTC]"
    names = [answer.headers["X-Request-ID"] for answer in (first, second, refused, odd)]
    assert names[0] == "camera-7/42"
    assert len(set(names)) == 4
    assert "<" not in names[3]
    assert list(table["request"]) == [names[0]] * 20 + [names[1]]
    assert list(table["image"]) == [*range(20), 0]
    rows = first.json()["decisions"] + second.json()["decisions"]
    for name in ("label", "class", "confidence", "accepted", "reason"):
        assert list(table[name]) == [row[name] for row in rows]
    assert set(table["reason"]) > {""}


def test_the_files_of_a_log_are_closed_by_count_and_a_restart_adds_to_them(model, tmp_path, monkeypatch):
    monkeypatch.setattr(watch, "_ROWS", 10)
    folder, values = tmp_path / "log.parquet", np.random.default_rng(0).normal(size=50)
    first = Watch(model, log=folder)
    feed(first, model, values[:8])
    first.write()
    (file,) = folder.iterdir()
    feed(first, model, values[8:26])
    first.write()
    assert [len(pd.read_parquet(path)) for path in sorted(folder.iterdir())] == [10, 10, 6]
    assert sorted(folder.iterdir())[0] == file
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    first.write()
    assert before == {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    second = Watch(model, log=folder)
    feed(second, model, values[26:])
    second.write()
    np.testing.assert_array_equal(pd.read_parquet(folder)["confidence"], values)


def test_rows_that_come_during_a_write_of_the_log_wait_for_the_next(model, tmp_path, monkeypatch):
    watched, writes = Watch(model, log=tmp_path / "log.parquet"), []

    def busy(*args):
        writes.append(files.atomic_write(*args))
        if len(writes) < 9:
            feed(watched, model, np.ones(4))

    monkeypatch.setattr(watch, "atomic_write", busy)
    feed(watched, model, np.ones(4))
    watched.write()
    assert len(writes) == 1
    watched.write()
    assert len(writes) == 2
    assert len(pd.read_parquet(tmp_path / "log.parquet")) == 8


def test_a_disk_that_takes_nothing_stops_no_decision(model, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(watch, "_KEPT", 20)
    watched = Watch(model, tmp_path / "state.safetensors", tmp_path / "log.parquet")

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(watch, "atomic_write", full)
        for number in range(15):
            feed(watched, model, np.full(4, number))
            watched._try_to_write()
    assert "the log cannot be written; it is tried again" in caplog.text
    assert Monitor.load(tmp_path / "state.safetensors", model.calibration, model.threshold).inputs == 60
    lost = watched.log.lost
    assert lost == 60 - 20
    watched.write()
    watched.write()
    assert len(pd.read_parquet(tmp_path / "log.parquet")) == 60 - lost
    assert watched.about()["report"]["sizes"]["production"] == 60


def test_a_log_is_a_folder_of_its_own(model, tmp_path, monkeypatch):
    (tmp_path / "file.parquet").write_text("x", encoding="utf-8")
    with pytest.raises(FileExistsError, match="must be a folder, as a Parquet file cannot grow"):
        Watch(model, log=tmp_path / "file.parquet")
    with pytest.raises(ValueError, match=r"whose name ends in `\.parquet`; got"):
        Watch(model, log=tmp_path / "log.csv")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ImportError, match=r"pip install 'torch-sirc\[serve\]'"):
        Watch(model, log=tmp_path / "log.parquet")


def test_the_command_reads_the_log_of_a_service(graph, tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    known = OnnxModel(graph)
    rng = np.random.default_rng(0)
    values = rng.choice(known.calibration, 200)
    watched = Watch(known, log="decisions.parquet")
    feed(watched, known, values)
    watched.write()
    call = ("monitor", "--calibration", graph, "--confidences", "decisions.parquet")
    code, out, err = command(*call, "--json")
    assert code == 0, err
    assert json.loads(out) == json.loads(json.dumps(monitor(known.calibration, values, known.threshold).to_dict()))
    table = pd.read_parquet("decisions.parquet")
    later = table.assign(time=table["time"] - pd.Timedelta(hours=1), confidence=-9.0, accepted=False).head(100)
    later.loc[3, "confidence"] = None
    later.to_parquet("decisions.parquet/z.parquet")  # another service, an hour before
    code, out, err = command(*call, "--json")
    assert err == "note: 1 rows without a confidence were left out\n"
    both = np.concatenate((np.full(99, -9.0), values))
    assert json.loads(out)["first_alarm"] == monitor(known.calibration, both, known.threshold).first_alarm
    table.to_parquet("one.parquet")
    assert command(*call[:-1], "one.parquet")[0] == 0
    others = table.assign(accepted=~table["accepted"])
    others.to_parquet("others.parquet")
    others.to_csv("others.csv")
    for name in ("others.parquet", "others.csv"):
        code, _, err = command(*call[:-1], name)
        assert code == 1
        assert "200 of them differ from those of its threshold" in err
    Path("junk.parquet").write_text("junk", encoding="utf-8")
    Path("empty.parquet").mkdir()
    for name, more, code, words in (
        ("none.parquet", (), 1, "there is no file 'none.parquet'"),
        ("junk.parquet", (), 1, "'junk.parquet' must hold plain numbers"),
        ("empty.parquet", (), 2, "'empty.parquet' is an empty folder"),
        ("one.parquet", ("--column", "score"), 2, "`--column` must be one of 'one.parquet', time, request"),
        ("one.parquet", ("--column", "class"), 1, "it holds"),
    ):
        got, out, err = command(*call[:-1], name, *more)
        assert (got, out) == (code, ""), (name, err)
        assert words in err
    code, _, err = command("monitor", "--calibration", OLD, "--confidences", "one.parquet")
    assert code == 1
    assert "holds no calibration confidences" in err


def test_the_command_passes_state_and_log_on_and_tells_where_no_monitor_runs(graph, tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sirc.deploy.serve.run", lambda app, **_: app.state.service.watch.write())
    code, _, err = command("serve", graph, "--state", "m.safetensors", "--log", "d.parquet", "--delta", "0.01")
    assert (code, err) == (0, "")
    code, _, err = command("serve", graph, "--state", "m.safetensors")
    assert code == 1
    assert "it has 0.01, and this service 0.05. Give it the former" in err
    assert command("serve", graph, "--delta", "1")[0] == 2
    assert Path("m.safetensors").is_file()
    assert Path("d.parquet").is_dir()
    monkeypatch.setattr("sirc.deploy.onnx.warn", lambda _: None)
    code, _, err = command("serve", OLD)
    assert code == 0
    assert "note: the monitor does not run: the graph was exported by an earlier version" in err


SERVER = """
import sys
from sirc.deploy.serve import make_app, run, watch
watch.SECONDS = 0.01
app = make_app(sys.argv[1], threads=1, state=sys.argv[2], log=sys.argv[3])
run(app, port=0, quiet=True, started=lambda address: print(address, flush=True))
"""


def ask(port, method, path, body=None, headers=None):
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        connection.request(method, path, body, headers or {})
        return json.loads(connection.getresponse().read())


def test_what_was_answered_before_a_kill_is_kept_in_the_order_of_the_answers(graph, tmp_path):
    state, log = tmp_path / "m.safetensors", tmp_path / "d.parquet"
    service = Interpreter("-c", SERVER, graph, state, log)
    try:
        port = int(service.first_line().rpartition(":")[2])
        head = {"Content-Type": "image/png"}
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(lambda i: ask(port, "POST", "/predict", encoded(i), head), range(60)))
        found = ask(port, "GET", "/monitor")["report"]
        known = OnnxModel(graph)
        while Monitor.load(state, known.calibration, known.threshold).inputs < 60 or len(pd.read_parquet(log)) < 60:
            assert service.process.is_alive()
            time.sleep(0.1)  # the service needs the core more
    finally:
        service.process.kill()
        service.end()
    table = pd.read_parquet(log).sort_values("time", kind="stable")
    assert sorted(table["confidence"]) == sorted(answer["decisions"][0]["confidence"] for answer in answers)
    kept = Monitor.load(state, known.calibration, known.threshold).report()
    in_order = monitor(known.calibration, table["confidence"].to_numpy(), known.threshold)
    assert json.loads(json.dumps(kept.to_dict())) == found
    assert (kept.p_value, kept.e_value) == pytest.approx((in_order.p_value, in_order.e_value))
    assert make_app(graph, state=state).state.service.watch.about()["report"] == kept.to_dict()


# The page


BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8"


def test_browsers_get_a_page_and_programs_what_they_always_got(graph):
    client = TestClient(make_app(graph))
    for accept in ("*/*", "application/json", "", "application/json, text/html;q=0.5", "text/html;q=0", ";,=;q=x"):
        answer = client.get("/", headers={"Accept": accept})
        assert answer.headers["Content-Type"] == "application/json", accept
        assert answer.headers["Vary"] == "Accept"
    assert "monitor" not in client.get("/").json()
    page = client.get("/", headers={"Accept": BROWSER})
    policy = page.headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self';")
    assert "unsafe" not in policy
    assert "http" not in page.text.replace("http-equiv", "")
    for name, kind in {"page.js": "text/javascript", "page.css": "text/css"}.items():
        assert client.get(f"/{name}").headers["Content-Type"].startswith(kind)
    assert client.get("/page.html").status_code == 404


@pytest.fixture
def shown(chromium):
    """Open the page of a service, whose answers come from here; what the page complains of fails the test."""
    complaints, contexts = [], []

    def open_one(client, **options):
        def answer(route):
            path = route.request.url.removeprefix("http://service.test")
            assert path.startswith("/"), route.request.url
            found = client.get(path, headers={"Accept": route.request.headers.get("accept", "*/*")})
            route.fulfill(status=found.status_code, headers=dict(found.headers), body=found.content)

        context = chromium.new_context(**options)
        contexts.append(context)
        context.set_default_timeout(60_000)  # a busy machine
        context.on("console", lambda message: complaints.append(message.text))
        context.on("weberror", lambda error: complaints.append(str(error.error)))
        context.route("**", answer)
        page = context.new_page()
        page.goto("http://service.test/")
        page.wait_for_selector("html[data-ready]", state="attached")
        return page

    yield open_one
    for context in contexts:
        context.close()
    assert not complaints


def test_the_page_shows_the_monitor(graph, shown):
    app = make_app(graph)
    watched, known = app.state.service.watch, app.state.service.model
    client, rng = TestClient(app), np.random.default_rng(0)
    page = shown(client, viewport={"width": 390, "height": 800})
    assert page.inner_text("#title") == watched.about()["title"]
    assert page.is_hidden("#charts")
    assert page.inner_text("#guarantee") == known.threshold.guarantee
    feed(watched, known, rng.choice(known.calibration, 400))
    page.evaluate("ask()")
    page.wait_for_selector("#charts", state="visible")
    report = watched.about()["report"]
    assert page.inner_text("#title").startswith("No alarm")
    assert page.inner_text("#rate") == f"{100 * report['rate']:.1f}%"
    assert page.locator("#status.good").count() == 1
    assert page.locator("#rate-chart .stretch").count() > 10
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.hover("#rate-chart", position={"x": 200, "y": 60})
    assert " at " in page.text_content("#rate-chart .value")

    feed(watched, known, np.full(400, known.threshold.value - 1))
    for scheme in ("light", "dark"):
        page = shown(client, viewport={"width": 1280, "height": 900}, color_scheme=scheme)
        report = watched.about()["report"]
        assert page.inner_text("#title") == watched.about()["title"]
        assert page.inner_text("#title").startswith(f"ALARM at input {report['first_alarm']}")
        assert page.title() == "ALARM · sirc"
        assert page.locator("#status.bad").count() == 1
        assert page.inner_text("#evidence").startswith("e = ")
        assert float(page.inner_text("#ood").removesuffix("%")) <= 100 * report["ood_share"]
        tops = page.evaluate("[...document.querySelectorAll('#charts .card')].map(x => x.getBoundingClientRect().top)")
        assert len(tops) == 3
        assert len(set(tops)) == 1  # side by side
        found = Axe().run(page).response["violations"]
        assert [rule["id"] for rule in found if rule["impact"] in ("serious", "critical")] == []


def test_the_page_shows_a_threshold_that_accepts_everything(graph, shown):
    app = make_app(graph)
    model = app.state.service.model
    model.threshold = dataclasses.replace(model.threshold, value=-math.inf)
    page = shown(TestClient(app))
    assert page.inner_text("#about").endswith("threshold −inf")


def test_the_page_of_an_old_graph_tells_why_there_are_no_charts(shown):
    page = shown(TestClient(old_app()))
    assert page.inner_text("#title") == "The monitor does not run"
    assert "Export it again" in page.inner_text("#seen")
    assert page.is_hidden("#charts")
