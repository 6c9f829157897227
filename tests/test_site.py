"""The site builds without a warning, all of its links lead somewhere, and it loads nothing from elsewhere."""

import importlib
import json
import os
import re
import subprocess
import sys
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest

import sirc
from sirc.report import figures
from support.pages import ROOT

pytestmark = pytest.mark.slow
TUTORIALS = sorted(path.stem for path in (ROOT / "docs" / "tutorials").glob("*.py"))


def build(folder):
    """Build the site as `make docs` does, but into a folder of its own.

    Its pages are gathered in this process, which has imported most of what the tutorials need.
    """
    pages, config = folder / "pages", folder / "mkdocs.yml"
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    text = text.replace("docs_dir: build/pages", f"docs_dir: {pages}").replace(
        "site_dir: site", f"site_dir: {folder}/site"
    )
    text = text.replace("[docs/tools/examples.py]", f"[{ROOT}/docs/tools/examples.py]")
    config.write_text(text.replace("paths: [src]", f"paths: [{ROOT}/src]"), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "docs" / "tools"))
        importlib.import_module("gather").gather(pages)
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--config-file", config]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


class Page(HTMLParser):
    """The links of a page, what it loads, the places in it that can be linked to, and its words."""

    def __init__(self, path):
        super().__init__()
        self.links, self.loaded, self.places, self.words = [], [], set(), []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.places.add(found.get("id"))
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        elif tag in ("script", "img", "iframe", "link"):
            self.loaded += [value for key in ("src", "href") if (value := found.get(key))]

    def handle_data(self, data):
        self.words.append(data)


parsed = cache(Page)


@pytest.fixture
def site(once):
    return once("site", build) / "site"


def pages_of(site):
    return sorted(path for path in site.rglob("*.html") if path.name != "404.html")


def test_every_link_of_the_site_leads_to_a_place_that_is_there(site):
    followed = 0
    for page in pages_of(site):
        for link in parsed(page).links:
            if re.match(r"https?:|mailto:|javascript:", link):
                continue
            target, _, place = unquote(link).partition("#")
            file = (page.parent / target).resolve() if target else page
            file = file / "index.html" if file.is_dir() else file
            assert file.exists(), f"{page.relative_to(site)} links to {link}"
            if place and file.suffix == ".html":
                assert place in parsed(file).places, f"{page.relative_to(site)} links to {link}"
            followed += 1
    assert followed > 1000


def test_every_page_can_be_reached_from_the_start(site):
    seen, waiting = set(), [site / "index.html"]
    while waiting:
        page = waiting.pop()
        if page in seen:
            continue
        seen.add(page)
        for link in parsed(page).links:
            target = (page.parent / unquote(link).partition("#")[0]).resolve()
            if target.suffix == ".html" and target.exists():
                waiting.append(target)
    assert set(pages_of(site)) <= {page.resolve() for page in seen}


def test_the_site_loads_nothing_from_elsewhere(site):
    for page in pages_of(site):
        for address in parsed(page).loaded:
            assert not re.match(r"https?:|//", address), f"{page.name} loads {address}"
            assert (page.parent / unquote(address).partition("?")[0]).exists(), f"{page.name} loads {address}"


def test_every_public_name_has_its_place_in_the_reference(site):
    places = set().union(*(parsed(page).places for page in (site / "reference").glob("*.html")))
    assert {f"sirc.{name}" for name in sirc.__all__} <= places


def test_formulas_are_mathematics_and_nothing_is_left_of_their_source(site):
    page = (site / "concepts" / "witnesses.html").read_text(encoding="utf-8")
    assert page.count("<math") == 2
    for page in pages_of(site):
        assert "```" not in "".join(parsed(page).words), page


def test_the_gallery_shows_a_picture_of_each_kind_of_figure(site):
    folder = site.with_name("pages") / "gallery"
    text = (folder / "gallery.md").read_text(encoding="utf-8")
    pictures = re.findall(r"\]\(([^)]*\.png)\)", text)
    assert sorted(pictures) == sorted(path.name for path in folder.glob("*.png"))
    assert all((folder / name).read_bytes().startswith(b"\x89PNG") for name in pictures)
    assert "| SIRC(MSP, Res.) |" in text
    drawn = {name for name in figures.__all__ if re.search(rf"figures\.{name}\(", text)}
    assert {"densities", "separation", "risks", "sweeps", "changes", "plane", "plane_grid", "sample_images"} <= drawn


@pytest.mark.parametrize("name", TUTORIALS)
def test_this_tutorial_shows_what_it_drew_and_printed(name, site):
    page = parsed(site / "tutorials" / f"{name}.html")
    assert sum(Path(address).name.startswith(name) for address in page.loaded) >= 1
    notebook = json.loads((site / "tutorials" / f"{name}.ipynb").read_text(encoding="utf-8"))
    kinds = {kind for cell in notebook["cells"] for shown in cell.get("outputs", ()) for kind in shown["data"]}
    assert {"image/png", "text/plain"} <= kinds
