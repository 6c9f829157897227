"""Every Python block of the README and the docs runs, top to bottom, as a reader would paste it."""

import re
import shlex
import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest

from sirc.metrics import registry as metric_registry
from sirc.scores import registry
from support.attacks import rows_in
from support.pages import ROOT, blocks_of
from support.reader import bring

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
SUBPAGES = sorted((ROOT / "docs").glob("*/*.md"))  # concepts and reference: few of them have code


@pytest.mark.slow
@pytest.mark.parametrize("page", [*PAGES, ROOT / "docs/reference/formats.md"], ids=lambda page: page.name)
def test_the_lines_of_this_page_run(page, tmp_path, monkeypatch, once, request):
    blocks = blocks_of(page, "python")
    assert blocks, f"{page.name} has no Python to run"
    monkeypatch.chdir(tmp_path)
    if page.name in ("quickstart.md", "guard.md", "try.md"):
        shutil.copytree(once("reader", bring), tmp_path, dirs_exist_ok=True)
    if page.name == "hosting.md":
        request.getfixturevalue("hub")
    # Pages may register scores and metrics of their own.
    monkeypatch.setattr(registry, "_SCORES", dict(registry._SCORES))
    monkeypatch.setattr(metric_registry, "REGISTRY", dict(metric_registry.REGISTRY))
    namespace = {"__name__": "docs"}
    for block in blocks:
        if find_spec("jax") is None:  # 300 MB for a few lines; NumPy has all that they call
            block = block.replace("import jax.numpy as jnp", "import numpy as jnp")
        exec(compile(block, str(page), "exec"), namespace)


@pytest.mark.slow
def test_the_commands_of_the_quickstart_run(tmp_path, monkeypatch, once, command, few_figures):
    page = ROOT / "docs" / "quickstart.md"
    monkeypatch.chdir(tmp_path)
    shutil.copytree(once("reader", bring), tmp_path, dirs_exist_ok=True)
    Path("photos.toml").write_text(*blocks_of(page, "toml"), encoding="utf-8")
    (lines,) = blocks_of(page, "sh")
    for line in lines.splitlines():
        name, *words = shlex.split(line)
        code, _, err = command(*words)
        assert name == "sirc"
        assert code == 0, err
    assert Path("runs/photos/report.html").exists()
    assert Path("decisions.csv").read_text(encoding="utf-8").count("\n") == 61


def test_the_attacks_of_the_page_are_those_of_the_tests():
    page = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    told = re.findall(r"^\| ([^|]+) \| [\d,]+ \| ([^|]+) \|$", page, re.MULTILINE)
    assert told == sorted(told)
    tested = set(rows_in(ROOT / "tests"))
    for what, held in tested:
        assert any(re.fullmatch(what, row) and re.fullmatch(held, end) for row, end in told), what
    for row, end in told:
        assert any(re.fullmatch(what, row) and re.fullmatch(held, end) for what, held in tested), row


@pytest.mark.parametrize("page", [*PAGES, *SUBPAGES], ids=lambda page: page.relative_to(ROOT).as_posix())
def test_the_links_of_this_page_lead_somewhere(page):
    prose = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", prose):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"
