"""Fixtures that several packages share: commands, the browser, a finished study."""

import gc
import io
import os
import shutil
import sys
from contextlib import suppress
from functools import cache
from itertools import islice
from types import SimpleNamespace

import pytest
from filelock import FileLock
from hypothesis import HealthCheck, settings

from support import attacks, browser, fake_hub, page_driving

# Workers share the cores, and a sum must not depend on how many there are: here and in every process that is started.
os.environ["OMP_NUM_THREADS"] = "1"  # read when torch is imported, which the process that leads the workers never does
os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"  # read when MLflow is imported
os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # a pool of compilers would import torch anew
# The same examples each time, however slow the machine: what fails, fails again.
settings.register_profile("all", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("quick", settings.get_profile("all"), max_examples=10)  # of 100: see `support.examples`
settings.load_profile("all")
gc.disable()  # while tests are collected: modules stay to the end, and collecting garbage would only scan them


def pytest_collection_finish():
    gc.freeze()
    gc.enable()


def pytest_unconfigure():
    gc.unfreeze()


def pytest_runtest_setup():
    """Seed torch before the fixtures of each test and before the test itself, whatever ran before."""
    if torch := sys.modules.get("torch"):
        torch.default_generator.manual_seed(0)


pytest_runtest_call = pytest_runtest_setup


def pytest_addoption(parser):
    attacks.add_option(parser)


def pytest_collection_modifyitems(items):
    for item in items:
        for fixture, marker in (("chromium", pytest.mark.browser), ("attack", pytest.mark.attack)):
            if fixture in item.fixturenames:
                item.add_marker(marker)


@pytest.fixture(scope="session")
def shared_root(tmp_path_factory):
    """The folder that all workers share."""
    root = tmp_path_factory.getbasetemp()
    return root.parent if "PYTEST_XDIST_WORKER" in os.environ else root  # a worker's own lies below it


@pytest.fixture(scope="session", autouse=True)
def state(shared_root):
    """Keep the notes that sirc and others make about their user apart from those of the person who runs the tests."""
    os.environ["XDG_STATE_HOME"] = str(shared_root / "state")
    os.environ["YOLO_CONFIG_DIR"] = str(shared_root / "ultralytics")
    os.environ["YOLO_OFFLINE"] = "true"  # no telemetry


@pytest.fixture(scope="session", autouse=True)
def unsynced():
    """Do not wait for the disk after each write: no test cuts the power."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def translations():
    """Make torch's table of ONNX operators once: torch makes it at each export, which takes a second."""
    with pytest.MonkeyPatch.context() as patch, suppress(ImportError, AttributeError):  # private, and only for speed
        if "torch" in sys.modules:
            from torch.onnx._internal.exporter._registration import ONNXRegistry

            patch.setattr(ONNXRegistry, "from_torchlib", staticmethod(cache(ONNXRegistry.from_torchlib)))
        yield


@pytest.fixture(scope="session")
def once(shared_root):
    """Make something once for all tests of all workers: `once(name, make)` gives the folder that `make` filled.

    A test that changes its content copies the folder first.
    """

    def give(name, make):
        folder, unfinished = shared_root / f"shared-{name}", shared_root / f"unfinished-{name}"
        with FileLock(shared_root / f"{name}.lock"):
            if not folder.exists():
                shutil.rmtree(unfinished, ignore_errors=True)  # of a worker that failed
                unfinished.mkdir()
                make(unfinished)
                unfinished.rename(folder)
        return folder

    return give


@pytest.fixture
def attack(request):
    """The number of trials of an attack, and its row in the table of `make attack`."""
    return attacks.Attack(request)


@pytest.fixture
def scratch_registry():
    """Remove the scores and combinations that a test registers when it ends."""
    from sirc.scores import registry, spec

    tables = registry._SCORES, spec.COMBINATIONS
    before, reserved = [dict(table) for table in tables], set(registry.RESERVED)
    yield
    registry.RESERVED &= reserved
    for table, entries in zip(tables, before, strict=True):
        table.clear()
        table.update(entries)
    spec._parse.cache_clear()


@pytest.fixture
def command(capfd):
    """Run a command as the shell would: returns its exit code, stdout and stderr."""
    from sirc.cli import main

    def run(*arguments):
        with pytest.raises(SystemExit) as stop:
            main([str(argument) for argument in arguments])
        out, err = capfd.readouterr()
        return stop.value.code or 0, out, err

    return run


@pytest.fixture
def hub(monkeypatch, tmp_path_factory):
    """A Hub on this machine, which the real client uses in place of the public one."""
    with fake_hub.for_the_client(monkeypatch, tmp_path_factory.mktemp("hub")) as found:
        yield found


@pytest.fixture
def few_figures(monkeypatch):
    """Draw one figure for each model, and the samples: a study treats more of them alike."""
    from sirc.report.figures import study

    all_of_model = study._of_model
    monkeypatch.setattr(study, "_of_model", lambda runs: islice(all_of_model(runs), 1))
    monkeypatch.setattr(study, "_of_all", lambda models: [])


@pytest.fixture
def command_in(monkeypatch):
    """Run a command with streams of another encoding: returns its exit code, stdout and stderr."""
    from sirc.cli import main

    def run(encoding, *arguments):
        streams = [io.TextIOWrapper(io.BytesIO(), encoding=encoding) for _ in range(2)]
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", streams[0])
            patch.setattr(sys, "stderr", streams[1])
            with pytest.raises(SystemExit) as stop:
                main([str(argument) for argument in arguments])
        for stream in streams:
            stream.flush()
        out, err = (stream.buffer.getvalue().decode(encoding) for stream in streams)
        return stop.value.code or 0, out, err

    return run


@pytest.fixture(scope="module")
def chromium():
    """A browser for the tests of one file.

    Not for the whole session: while playwright runs, no other test of the process could use asyncio.
    """
    if browser.find() is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(browser.MISSING)
    with browser.launched() as found:
        yield found


@pytest.fixture(scope="module")
def tabs(chromium):
    """The tabs that the tests of one file share, as starting one takes two seconds, and what they complained of."""
    shared = SimpleNamespace(pages={}, complaints=[])
    yield shared
    for page in shared.pages.values():
        page.context.close()


@pytest.fixture
def open_page(chromium, tabs):
    """Open a report as its reader does, but without a network; a logged warning or any request fails the test.

    A report that another test opened is only set to `setting`. One that a test changes in other ways must be `fresh`:
    it is loaded anew, in a tab that all such reports share. Without `drawn`, plots get their data and draw nothing.
    """

    def note_request(request):
        if request.url.partition(":")[0] not in ("file", "data", "blob", "about"):
            tabs.complaints.append(f"request: {request.url}")

    def note_message(message):
        if message.type in ("error", "warning"):
            tabs.complaints.append(f"console: {message.text}")

    def new_tab(drawn):
        context = chromium.new_context(offline=True)
        context.set_default_timeout(60_000)
        context.on("request", note_request)
        context.on("console", note_message)
        context.on("weberror", lambda error: tabs.complaints.append(f"page: {error.error}"))
        if not drawn:
            context.add_init_script(page_driving.UNDRAWN)
        return context.new_page()

    def open_one(path, setting="", *, fresh=False, drawn=True, width=1280, height=900, color_scheme="light"):
        key = "fresh" if fresh else (path, drawn)
        known = key in tabs.pages
        page = tabs.pages[key] if known else tabs.pages.setdefault(key, new_tab(drawn or fresh))
        if known and not fresh:
            page_driving.go(page, setting)
            return page
        page.goto("about:blank")  # a link to another setting of what is shown would load nothing
        page.emulate_media(media="screen", color_scheme=color_scheme)
        page.set_viewport_size({"width": width, "height": height})
        page.goto(f"{path.as_uri()}#{setting}")
        page.wait_for_selector("html[data-ready]", state="attached")
        return page

    yield open_one
    complaints, tabs.complaints = tabs.complaints, []
    assert not complaints


def pytest_terminal_summary(terminalreporter):
    """Report loudly if the page went untested, and in `make attack` what was tried."""
    if terminalreporter.config.getoption(attacks.SCALE) > 1:
        for row in attacks.table(terminalreporter.stats.get("passed", [])):
            terminalreporter.line(row)
    skipped = [
        report for report in terminalreporter.stats.get("skipped", []) if browser.MISSING in str(report.longrepr)
    ]
    if skipped:
        terminalreporter.section("THE PAGE IS UNTESTED", red=True, bold=True)
        terminalreporter.line(f"{len(skipped)} tests were skipped: {browser.MISSING}.", red=True)
