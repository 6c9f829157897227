"""Fixtures that several rooms share: commands, the browser, a finished study."""

import io
import os
import shutil
import sys
from types import SimpleNamespace

import pytest
import torch
from filelock import FileLock

from sirc.scores import registry, spec
from support import browser, page_driving

# Workers share the cores, and a sum must not depend on how many there are: here and in every process that is started.
os.environ["OMP_NUM_THREADS"] = "1"
torch.set_num_threads(1)


def pytest_collection_modifyitems(items):
    for item in items:
        if "chromium" in item.fixturenames:
            item.add_marker(pytest.mark.browser)


@pytest.fixture(scope="session")
def once(tmp_path_factory):
    """Make something once for all tests of all workers: `once(name, make)` gives the folder that `make` filled.

    Whoever changes what is in there copies it first.
    """
    root = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent  # a worker's own folder lies below the one that all share

    def give(name, make):
        folder, unfinished = root / f"shared-{name}", root / f"unfinished-{name}"
        with FileLock(root / f"{name}.lock"):
            if not folder.exists():
                shutil.rmtree(unfinished, ignore_errors=True)  # of a worker that failed
                unfinished.mkdir()
                make(unfinished)
                unfinished.rename(folder)
        return folder

    return give


@pytest.fixture
def scratch_registry():
    """Scores registered in a test are gone after it."""
    before = dict(registry._SCORES)
    yield
    registry._SCORES.clear()
    registry._SCORES.update(before)
    spec._parse.cache_clear()


@pytest.fixture
def command(capfd):
    """Run a command as the shell would: its exit code, what it printed, what it told."""
    from sirc.cli import main

    def run(*arguments):
        with pytest.raises(SystemExit) as stop:
            main([str(argument) for argument in arguments])
        out, err = capfd.readouterr()
        return stop.value.code or 0, out, err

    return run


@pytest.fixture
def command_in(monkeypatch):
    """Run a command whose output goes to streams of another encoding: its exit code, what it printed, what it told."""
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
    """Pages that the tests of one file share, as loading one takes a second, and what they complained of."""
    shared = SimpleNamespace(pages={}, complaints=[])
    yield shared
    for page in shared.pages.values():
        page.context.close()


@pytest.fixture
def open_page(chromium, tabs):
    """Open a report as its reader does, but without a network; what it logs or asks for fails the test.

    A page that another test opened is brought to the setting; one that is to be changed otherwise must be `fresh`.
    """
    contexts = []

    def note_request(request):
        if request.url.partition(":")[0] not in ("file", "data", "blob"):
            tabs.complaints.append(f"request: {request.url}")

    def note_message(message):
        if message.type in ("error", "warning"):
            tabs.complaints.append(f"console: {message.text}")

    def open_one(path, setting="", *, fresh=False, width=1280, height=900, **options):
        key = (path, width, height, *sorted(options.items()))
        if not fresh and key in tabs.pages:
            page_driving.go(tabs.pages[key], setting)
            return tabs.pages[key]
        context = chromium.new_context(offline=True, viewport={"width": width, "height": height}, **options)
        context.set_default_timeout(60_000)
        context.on("request", note_request)
        context.on("console", note_message)
        context.on("weberror", lambda error: tabs.complaints.append(f"page: {error.error}"))
        page = context.new_page()
        if fresh:
            contexts.append(context)
        else:
            tabs.pages[key] = page
        page.goto(f"{path.as_uri()}#{setting}")
        page.wait_for_selector("html[data-ready]", state="attached")
        return page

    yield open_one
    for context in contexts:
        context.close()
    complaints, tabs.complaints = tabs.complaints, []
    assert not complaints


def pytest_terminal_summary(terminalreporter):
    """Say aloud that the page went untested."""
    skipped = [
        report for report in terminalreporter.stats.get("skipped", []) if browser.MISSING in str(report.longrepr)
    ]
    if skipped:
        terminalreporter.section("THE PAGE IS UNTESTED", red=True, bold=True)
        terminalreporter.line(f"{len(skipped)} tests were skipped: {browser.MISSING}.", red=True)
