"""The Chromium that the page is tested and photographed in: the system's, or playwright's, or one that is fetched."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Browser

VARIABLE = "SIRC_CHROMIUM"
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
MISSING = (
    f"no Chromium to show the page in. Install one, name one in {VARIABLE}, or run "
    "`python tests/support/browser.py --install`"
)


@cache
def find() -> str | None:
    """Give the path of a Chromium that runs; the one named in $SIRC_CHROMIUM, if any, is the only one looked at."""
    named = os.environ.get(VARIABLE)
    if named:
        if not _runs(named):
            raise FileNotFoundError(f"{VARIABLE} must name a Chromium that runs; got {named!r}")
        return named
    on_path = (path for path in map(shutil.which, NAMES) if path)
    return next(filter(_runs, on_path), None) or _playwrights_own()


def install() -> str | None:
    """Give the path of a Chromium, one that is fetched where there is none: by playwright, or on Debian by root."""
    if found := find():
        return found
    attempts = [[[sys.executable, "-m", "playwright", "install", "chromium"]]]
    if hasattr(os, "geteuid") and os.geteuid() == 0 and shutil.which("apt-get"):
        packages = ["chromium", "fonts-dejavu-core"]  # alone, it has no letters to write with
        attempts.append([["apt-get", "update"], ["apt-get", "install", "-y", "--no-install-recommends", *packages]])
    for commands in attempts:
        print(f"No Chromium found; trying `{' '.join(commands[-1])}`", file=sys.stderr)
        if all(_succeeds(command) for command in commands):
            find.cache_clear()
            if found := find():
                return found
    return None


@contextmanager
def launched() -> Iterator[Browser]:
    """Start it without a window, and close it and playwright after use."""
    from playwright.sync_api import sync_playwright

    path = find()
    if path is None:
        raise FileNotFoundError(MISSING)
    # Chromium's sandbox refuses to work for root.
    arguments = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=arguments)
        try:
            yield browser
        finally:
            browser.close()


def _runs(path: str) -> bool:
    """Say whether it starts: what lacks a library, or only tells where to get the real one, does not."""
    try:
        return subprocess.run([path, "--version"], capture_output=True, timeout=60).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def _playwrights_own() -> str | None:
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return None
    with sync_playwright() as playwright:
        path = playwright.chromium.executable_path
    return path if Path(path).exists() and _runs(path) else None


def _succeeds(command: list[str]) -> bool:
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    try:
        done = subprocess.run(
            command, env=quiet, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=600
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        print(error, file=sys.stderr)
        return False
    if done.returncode:
        print("\n".join(done.stdout.splitlines()[-5:]), file=sys.stderr)
    return done.returncode == 0


if __name__ == "__main__":
    path = install() if "--install" in sys.argv else find()
    print(path or MISSING, file=sys.stdout if path else sys.stderr)
    # Without one, tests of the page are skipped, but never in CI.
    sys.exit(0 if path or not os.environ.get("CI") else 1)
