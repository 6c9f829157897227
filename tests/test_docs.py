"""Every Python block of the README and the docs runs, top to bottom, as a reader would paste it."""

import re
from pathlib import Path

import pytest

from sirc.metrics import registry as metric_registry
from sirc.scores import registry

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_lines_of_this_page_run(page, tmp_path, monkeypatch):
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    assert blocks, f"{page.name} has no Python to run"
    monkeypatch.chdir(tmp_path)
    # Pages may register scores and metrics of their own.
    monkeypatch.setattr(registry, "_SCORES", dict(registry._SCORES))
    monkeypatch.setattr(metric_registry, "REGISTRY", dict(metric_registry.REGISTRY))
    namespace = {"__name__": "docs"}
    for block in blocks:
        exec(compile(block, str(page), "exec"), namespace)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_links_of_this_page_lead_somewhere(page):
    prose = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", prose):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"
