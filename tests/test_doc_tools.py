"""The committed references are what their scripts write."""

import importlib
import re

import pytest

from support.pages import ROOT, blocks_of


@pytest.fixture
def tool(monkeypatch):
    """Import a script of docs/tools by name."""
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "tools"))
    return importlib.import_module


@pytest.mark.parametrize(("name", "page"), [("cli_reference", "cli.md"), ("toml_reference", "toml.md")])
def test_the_reference_is_what_its_script_writes(tool, name, page):
    committed = (ROOT / "docs" / "reference" / page).read_text(encoding="utf-8")
    up_to_date = committed == tool(name).page()
    assert up_to_date, f"run `python docs/tools/{name}.py > docs/reference/{page}`"


def test_the_reference_has_every_command_with_an_example(tool):
    script = tool("cli_reference")
    page = ROOT / "docs" / "reference" / "cli.md"
    names = [f"sirc {name}" for name, _ in script.commands()]
    assert re.findall("^## (.*)", page.read_text(encoding="utf-8"), re.MULTILINE) == names
    examples = blocks_of(page, "sh")
    assert len(examples) == len(names)
    for name, example in zip(names, examples, strict=True):
        assert example.startswith(f"{name} ") or example.strip() == name


def test_the_reference_explains_every_key(tool):
    script = tool("toml_reference")
    for _, table in script.tables(script.Experiment, ()):
        fields = [field.name for field in script.dataclasses.fields(table)]
        assert list(script.meanings(table)) == fields
